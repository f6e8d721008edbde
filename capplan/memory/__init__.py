"""Weights, KV, state, activations and runtime against what the device really has."""
