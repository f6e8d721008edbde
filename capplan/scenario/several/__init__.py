"""Several models in one scenario: cascades, shared devices, slices of them."""
