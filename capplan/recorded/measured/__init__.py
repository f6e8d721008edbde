"""Tables of measured results, and impossible values in them."""
