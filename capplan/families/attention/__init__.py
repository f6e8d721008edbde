"""Families in which every mixer is attention: full, sliding-window or latent; dense or with experts."""
