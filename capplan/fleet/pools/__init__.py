"""Prefill and decode in pools of their own: the link between them, their plan, and the search for it."""
