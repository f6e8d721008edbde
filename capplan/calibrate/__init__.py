"""Torch microbenchmarks of the device in front of us, and the fit of efficiencies."""
