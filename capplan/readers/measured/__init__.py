"""Tables of measured results, and the values in them that cannot be."""
