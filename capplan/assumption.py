"""A default that nobody confirmed, with the flag or key that replaces it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assumption:
    """One line of the footer of every result."""

    what: str
    """What was assumed, with the value: 'KV cache in bf16, the dtype of the activations'."""
    replace: str
    """The flag or scenario key that replaces it: '--kv-dtype'."""
