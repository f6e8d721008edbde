"""Families with layers that keep a state of fixed size (Mamba, linear attention, recurrences), beside attention or alone."""
