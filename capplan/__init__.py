"""Capacity planning and cost modelling for LLM inference."""

__version__ = "0.1.0"
