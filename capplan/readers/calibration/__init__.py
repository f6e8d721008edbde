"""Calibration files: their schema, and what other commands take from them."""
