"""What one layer keeps of a sequence, as its mixer states it: vectors that grow in number, states that do not."""

import math
from dataclasses import dataclass

import numpy as np

from capplan.numbers import Number


@dataclass(frozen=True, slots=True)
class CachePart:
    """Vectors of one kind that a layer caches."""

    elements: int
    """Of one vector; key and value of a head are one vector here."""
    heads: int = 1
    """Vectors for one token. Tensor ranks share them out and hold at least one each: a single one is on every rank."""
    window_tokens: float = math.inf
    """Latest tokens that have a vector."""
    chunked: bool = False
    """The window is an aligned chunk, not a sliding one."""
    entry_tokens: int = 1
    """Tokens that one vector stands for."""
    overlapping: bool = False
    """A vector also draws on the tokens of the one before."""
    packed_bytes: float | None = None
    """One vector in the eight-bit layout of engines, with its scales and wider parts; None: elements x cache dtype."""
    index: bool = False
    """Keys of an indexer that engines keep in `packed_bytes` whatever the cache dtype."""


@dataclass(frozen=True, slots=True)
class StatePart:
    """Numbers that a layer keeps for a sequence, however long it is."""

    elements: int
    """What the architecture needs, over all ranks."""
    held_elements: int
    """What engines keep in their place."""
    state_format: str | None = None
    """Key of `weight_format.FORMATS`; None is the dtype of the activations."""
    pieces: int | None = None
    """Pieces that stay whole: tensor ranks hold at least one each. None: cut evenly."""
    recurrent: bool = False
    """Engines keep it in the dtype of the model unless the config states another."""


def cache_elements_on_rank(elements: Number, heads: Number, tensor_parallel: Number = 1.0) -> Number:
    """Return the elements that one token leaves in the cache of one layer, on one rank.

        e_rank = ceil(h / tp) e

    Parameters
    ----------
    elements : [elements]
        e, of the vectors of one head: key and value
    heads : [-]
        h, key-value heads, not query heads
    tensor_parallel : [-]
        tp, ranks; each holds at least one head

    Returns
    -------
    [elements]
        e_rank

    Examples
    --------
    Llama-3: eight heads of 128, a key and a value each; sixteen ranks hold one head each.

    >>> cache_elements_on_rank(2 * 128.0, 8.0)
    np.float64(2048.0)
    >>> cache_elements_on_rank(2 * 128.0, 8.0, tensor_parallel=16.0)
    np.float64(256.0)

    References
    ----------
    Ainslie et al. 2023, "GQA", arXiv:2305.13245, section 2.2.
    """
    on_rank: Number = np.ceil(heads / tensor_parallel) * elements
    return on_rank


def state_elements_on_rank(elements: int, pieces: int | None, tensor_parallel: Number = 1.0) -> Number:
    """Return the part of a state that one rank holds.

        e_rank = e / tp, or ceil(g / tp) e / g of g pieces that stay whole

    Parameters
    ----------
    elements : e, over all ranks [elements]
    pieces : g, such as the groups of Mamba-2 [-]; None cuts evenly
    tensor_parallel : [-]
        tp, ranks

    Returns
    -------
    [elements]
        e_rank

    Examples
    --------
    >>> state_elements_on_rank(64, None, 4.0), float(state_elements_on_rank(64, 2, 4.0))
    (16.0, 32.0)

    References
    ----------
    Dao, Gu 2024, "Transformers are SSMs", arXiv:2405.21060, section 8.2 (tensor parallelism).
    """
    if pieces is None:
        return elements / tensor_parallel
    on_rank: Number = np.ceil(pieces / tensor_parallel) * (elements / pieces)
    return on_rank


def index_key_bytes(index_head_dim: Number) -> Number:
    """Return the bytes of one index key of sparse latent or compressed attention: fp8 with a scale per 128.

        k = d (1 + 4 / 128)

    Parameters
    ----------
    index_head_dim : [elements]
        d

    Returns
    -------
    [B]
        k, whatever the cache dtype

    Examples
    --------
    >>> index_key_bytes(128.0)
    132.0

    References
    ----------
    vLLM, `DeepseekV32IndexerCache`: https://docs.vllm.ai/en/latest/api/vllm/model_executor/models/deepseek_v2.
    """
    return index_head_dim * (1.0 + 4.0 / 128.0)


def held_vector_bytes(part: CachePart, kv_bytes_per_element: Number, tensor_parallel: Number = 1.0) -> Number:
    """Return the bytes of the vectors of one token or entry as engines keep them, on one rank.

        v = packed bytes in eight bits, e_rank b in wider dtypes

    Parameters
    ----------
    part : what is cached
    kv_bytes_per_element : [B]
        b, of the cache dtype
    tensor_parallel : [-]
        ranks

    Returns
    -------
    [B]
        v; index keys are packed whatever the cache dtype

    Examples
    --------
    >>> latent = CachePart(576, packed_bytes=656.0)
    >>> float(held_vector_bytes(latent, 1.0)), float(held_vector_bytes(latent, 2.0, 8.0))
    (656.0, 1152.0)

    References
    ----------
    vLLM, fp8_ds_mla: https://docs.vllm.ai/en/latest/api/vllm/v1/attention/backends/mla.
    """
    plain = cache_elements_on_rank(part.elements, part.heads, tensor_parallel) * kv_bytes_per_element
    if part.packed_bytes is None:
        return plain
    packed = part.index | (np.asarray(kv_bytes_per_element) <= 1.0)
    size: Number = np.where(packed, part.packed_bytes + 0.0 * plain, plain)
    return size
