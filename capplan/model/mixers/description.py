"""What the rest of the package asks of a mixer, whatever its kind: every kind answers with one record."""

from dataclasses import dataclass

from capplan.model.cache_parts import CachePart, StatePart


@dataclass(frozen=True, slots=True)
class Heads:
    """What tensor parallelism divides over ranks and must not break."""

    count: int
    name: str = "heads"
    """In the plural, as a message calls them."""
    replicable: bool = False
    """Ranks that outnumber them hold copies (KV heads)."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """How prefill expands cached latents to keys and values of every head."""

    heads: int
    head_elements: int
    """Of one expanded head: the key without its rotary part, and the value."""
    latent_elements: int
    """That are multiplied into each head."""
    gathered_elements: int
    """Of one cached vector, which is gathered first."""


@dataclass(frozen=True, slots=True)
class Description:
    """One mixer; what a kind does not have, it leaves out."""

    name: str
    """What a person calls it."""
    heads: tuple[Heads, ...]
    cache_parts: tuple[CachePart, ...] = ()
    state_parts: tuple[StatePart, ...] = ()
    read_limits: tuple[float, ...] = ()
    """Contexts from which a query reads no more: windows and chosen tokens [tokens]."""
    softmax: bool = False
    """Attends with softmax, to a cache of its own or of another layer."""
    mixed_pages: bool = False
    """Engines lay its cache out in pages of several sizes; all others share one pool of equal pages."""
    rotary_elements: int = 0
    """Rotated elements of a head, over all the tables of sines and cosines that it needs."""
    normed_elements: int = 0
    """Of queries and keys that pass a norm of their own."""
    norms_exchange: bool = False
    """That norm spans all heads, so that tensor ranks exchange their mean squares."""
    expansion: Expansion | None = None
    """Of latents to keys and values; None where the cache holds these."""
