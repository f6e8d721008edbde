"""A live engine on this machine, measured next to what capplan predicts: `make live`."""
