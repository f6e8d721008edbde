"""What one layer caches for a sequence, as its mixer declares it: vectors that grow with the context, states of fixed size."""

import math
from dataclasses import dataclass

import numpy as np

from capplan.numbers import Number


@dataclass(frozen=True, slots=True)
class CachePart:
    """One kind of vector that a layer caches."""

    elements: int
    """Elements of one vector; the key and the value of a head count as one vector."""
    heads: int = 1
    """Vectors per token. Tensor-parallel ranks split them and hold at least one each, so a single one is on every rank."""
    window_tokens: float = math.inf
    """Most recent tokens that are kept."""
    chunked: bool = False
    """The window is an aligned chunk, not a sliding one."""
    entry_tokens: int = 1
    """Tokens compressed into one vector."""
    overlapping: bool = False
    """Each vector also covers the tokens of the previous one."""
    packed_bytes: float | None = None
    """Bytes of one vector in the engines' 8-bit layout, scales and 16-bit parts included; None: elements x cache dtype."""
    index: bool = False
    """Indexer keys, which engines store in `packed_bytes` whatever the cache dtype."""
    source_tokens: int = 0
    """Positions of an encoder that are kept from the first token on, whatever the context; 0: the tokens of the context are."""


@dataclass(frozen=True, slots=True)
class StatePart:
    """A state of fixed size that a layer keeps for a sequence, whatever its length."""

    elements: int
    """Elements that the architecture needs, over all ranks."""
    held_elements: int
    """Elements that engines keep instead."""
    state_format: str | None = None
    """Key of `weight_format.FORMATS`; None: the activation dtype."""
    pieces: int | None = None
    """Indivisible pieces; every tensor-parallel rank holds at least one. None: split evenly."""
    recurrent: bool = False
    """Engines store it in the dtype of the model unless `stated`."""
    stated: bool = False
    """The config, or the engines' code for this family, says `state_format`."""


def cache_elements_on_rank(elements: Number, heads: Number, tensor_parallel: Number = 1.0) -> Number:
    """Return the elements that one token adds to the cache of one layer, on one rank.

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
    """Return the elements of a state that one rank holds.

        e_rank = e / tp, or ceil(g / tp) e / g for g indivisible pieces

    Parameters
    ----------
    elements : e, over all ranks [elements]
    pieces : g, such as the groups of Mamba-2 [-]; None splits evenly
    tensor_parallel : [-]
        tp, ranks

    Returns
    -------
    [elements]
        e_rank

    Examples
    --------
    Four ranks hold a quarter of a state each, or one of its two groups each, in two copies:

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
    """Return the bytes of the vectors of one token or entry as engines store them, on one rank.

        v = packed bytes in an 8-bit cache, e_rank b in a wider one

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
    A latent of 512 and a rotary key of 64 elements takes 656 bytes packed, 2 x 576 in bf16:

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
