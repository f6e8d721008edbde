"""Scheduling under load: closed forms of the steady state, event simulation, prefix cache."""
