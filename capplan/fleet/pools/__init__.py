"""Prefill and decode in separate pools: the link between them, their plan, and the search for it."""
