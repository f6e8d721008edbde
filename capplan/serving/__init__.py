"""Scheduling under load: steady state, queueing, event simulation, prefix cache."""
