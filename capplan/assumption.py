"""A default that nobody confirmed, with the flag or key that replaces it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assumption:
    """One line of the footer of every result."""

    what: str
    """What was assumed, with the value: 'KV cache in bf16, the dtype of the activations'."""
    replace: str
    """The flag or scenario key that replaces it: '--kv-dtype'."""


def assumption_of(sentence: str) -> Assumption:
    """Return the assumption that a sentence ending in '(replace with ...)' states.

    Parameters
    ----------
    sentence : what was assumed, then in brackets what replaces it

    Returns
    -------
    the same in two parts

    Examples
    --------
    >>> assumption_of("KV cache in bf16 (replace with --kv-dtype)")
    Assumption(what='KV cache in bf16', replace='--kv-dtype')
    """
    what, _, replace = sentence.rstrip(")").partition(" (replace with ")
    return Assumption(what, replace)
