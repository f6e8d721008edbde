"""The common description of a mixer: one record for every kind, which the other rooms read."""

from dataclasses import dataclass

from capplan.model.cache_parts import CachePart, StatePart


@dataclass(frozen=True, slots=True)
class Heads:
    """Units that tensor parallelism distributes over ranks and must not split."""

    count: int
    name: str = "heads"
    """Plural noun for messages."""
    replicable: bool = False
    """Replicated where ranks outnumber them (KV heads)."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """How prefill expands cached latents into keys and values of every head."""

    heads: int
    head_elements: int
    """Elements of one expanded head: the key without its rotary part, and the value."""
    latent_elements: int
    """Width of the latent that each head is expanded from."""
    gathered_elements: int
    """Width of one cached vector, which is gathered first."""


@dataclass(frozen=True, slots=True)
class Description:
    """One mixer; what does not apply to its kind keeps the default."""

    name: str
    """Name in reports."""
    heads: tuple[Heads, ...]
    cache_parts: tuple[CachePart, ...] = ()
    state_parts: tuple[StatePart, ...] = ()
    read_limits: tuple[float, ...] = ()
    """Contexts beyond which a query reads no more tokens: its window, the tokens an indexer selects [tokens]."""
    softmax: bool = False
    """Softmax attention, over the cache of this layer or of another one."""
    causal: bool = True
    """False where a position sees those after it: its prompt is read whole, in one step."""
    mixed_pages: bool = False
    """Engines lay out its cache in pages of several sizes; all other kinds share one pool of equal pages."""
    rotary_elements: int = 0
    """Rotated elements of a head, summed over its tables of sines and cosines."""
    normed_elements: int = 0
    """Elements of queries and keys that are normalised before attention."""
    norms_exchange: bool = False
    """This norm spans all heads, so tensor-parallel ranks exchange mean squares."""
    expansion: Expansion | None = None
    """Of cached latents into keys and values; None where the cache holds keys and values."""
