"""Families with layers that keep a state of fixed size (Mamba, linear attention, recurrences), with or without attention layers."""
