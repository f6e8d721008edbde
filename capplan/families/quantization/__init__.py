"""The quantisation that a config states, and the format of every matrix that follows from it."""
