"""Families whose every layer that mixes tokens is attention: with a cache, a window or a latent, dense or with experts."""
