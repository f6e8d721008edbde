"""Scheduling under load: steady state in closed form, discrete-event simulation, prefix cache."""
