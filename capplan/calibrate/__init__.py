"""Torch microbenchmarks of the local device, and the fit of its efficiencies."""
