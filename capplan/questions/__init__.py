"""A scenario, flags or measured rows to what the rooms below are asked."""
