"""The vectors that one layer caches: how wide, for how many tokens, shared by how many ranks."""

from dataclasses import dataclass

import numpy as np

from capplan.model.network import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Mixer,
    Network,
    layer_counts,
)
from capplan.numbers import Number


def attention_cache_elements(
    kv_heads: Number, head_dim: Number, value_head_dim: Number, tensor_parallel: Number = 1.0
) -> Number:
    """Return the elements that one token leaves in the cache of one attention layer, on one rank.

        e = ceil(h / tp) (d_k + d_v)

    Parameters
    ----------
    kv_heads : [-]
        h, key-value heads, not query heads
    head_dim : [elements]
        d_k, a key of its own in config.json, often not hidden size / heads
    value_head_dim : [elements]
        d_v
    tensor_parallel : [-]
        tp, ranks; each holds at least one head

    Returns
    -------
    [elements]
        e

    Examples
    --------
    Llama-3: eight heads of 128, a key and a value each; sixteen ranks hold one head each.

    >>> attention_cache_elements(8.0, 128.0, 128.0)
    np.float64(2048.0)
    >>> attention_cache_elements(8.0, 128.0, 128.0, tensor_parallel=16.0)
    np.float64(256.0)

    References
    ----------
    Ainslie et al. 2023, "GQA", arXiv:2305.13245, section 2.2.
    """
    elements: Number = np.ceil(kv_heads / tensor_parallel) * (head_dim + value_head_dim)
    return elements


def cached_tokens(context_tokens: Number, window_tokens: Number) -> Number:
    """Return how many tokens of a context a layer with a window has to keep.

        c = min(n, w)

    Parameters
    ----------
    context_tokens : [tokens]
        n
    window_tokens : [tokens]
        w, the position itself included; for chunked attention the chunk, its fullest state

    Returns
    -------
    [tokens]
        c, the minimum of the architecture; engines keep more

    Examples
    --------
    >>> cached_tokens(8192.0, 4096.0)
    np.float64(4096.0)

    References
    ----------
    Jiang et al. 2023, "Mistral 7B", arXiv:2310.06825, section 2 (rolling buffer cache).
    """
    tokens: Number = np.minimum(context_tokens, window_tokens)
    return tokens


def cache_elements_per_token(mixer: Mixer, tensor_parallel: Number = 1.0) -> Number:
    """Return the elements that one token leaves in the cache of one layer, on one rank.

        GQA:         e = ceil(h / tp) (d_k + d_v) (+ index_head_dim)
        MLA:         e = kv_lora_rank + rope_head_dim (+ index_head_dim), the same on every rank
        compressed:  e = d + (d + index_head_dim) / entry_tokens, the same on every rank; d within the window

    Parameters
    ----------
    mixer : the mixer of the layer
    tensor_parallel : [-]
        ranks; the MLA latent is replicated, not divided

    Returns
    -------
    [elements]
        zero for states and for layers that read another layer's cache

    Examples
    --------
    >>> cache_elements_per_token(LatentAttention(128, 512, 64, 128, 128), tensor_parallel=8.0)
    576.0

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", arXiv:2405.04434, table 1; DeepSeek-V3.2-Exp report, section 2 (indexer).
    """
    if isinstance(mixer, Attention) and mixer.cached:
        own = attention_cache_elements(mixer.kv_heads, mixer.head_dim, mixer.value_head_dim, tensor_parallel)
        return own + mixer.index_head_dim
    if isinstance(mixer, LatentAttention):
        index = mixer.index_head_dim if mixer.index_cached else 0
        return float(mixer.kv_lora_rank + mixer.rope_head_dim + index)
    if isinstance(mixer, CompressedAttention):
        entry = mixer.head_dim + mixer.index_head_dim
        return mixer.head_dim + (entry / mixer.entry_tokens if mixer.entry_tokens else 0.0)
    return 0.0


@dataclass(frozen=True, slots=True)
class CachePart:
    """Vectors of one kind that a layer caches."""

    elements: Number
    """Of one vector, on one rank."""
    window_tokens: float = np.inf
    """Tokens that have a vector."""
    entry_tokens: int = 1
    """Tokens that one vector stands for."""
    index: bool = False
    """Keys of an indexer, which an engine may keep in a dtype of their own."""


def cache_parts(mixer: Mixer, tensor_parallel: Number = 1.0) -> tuple[CachePart, ...]:
    """Return the kinds of vectors that a layer caches.

    Parameters
    ----------
    mixer : the mixer of the layer
    tensor_parallel : [-]
        ranks

    Returns
    -------
    one part for most attention, one more for index keys, two or three for compressed attention, none for states

    Examples
    --------
    >>> [(part.elements, part.entry_tokens) for part in cache_parts(CompressedAttention(64, 512, 64, 128, 8, 128))]
    [(512.0, 1), (512.0, 128)]

    References
    ----------
    Hugging Face transformers, `DeepseekV4HCACache`, `DeepseekV4CSACache` (5.23, models/deepseek_v4).
    """
    parts: list[CachePart] = []
    if isinstance(mixer, CompressedAttention):
        own, entry = float(mixer.head_dim), mixer.entry_tokens
        parts = [CachePart(own, float(mixer.window_tokens))]
        if entry:
            parts.append(CachePart(own, entry_tokens=entry))
        if entry and mixer.index_head_dim:
            parts.append(CachePart(float(mixer.index_head_dim), entry_tokens=entry, index=True))
    elif isinstance(mixer, LatentAttention):
        parts = [CachePart(float(mixer.kv_lora_rank + mixer.rope_head_dim))]
        if mixer.index_head_dim and mixer.index_cached:
            parts.append(CachePart(float(mixer.index_head_dim), index=True))
    elif isinstance(mixer, Attention) and mixer.cached:
        own_heads = attention_cache_elements(
            mixer.kv_heads, mixer.head_dim, mixer.value_head_dim, tensor_parallel
        )
        window = np.inf if mixer.window_tokens is None else float(mixer.window_tokens)
        parts = [CachePart(own_heads, window)]
        if mixer.index_head_dim:
            parts.append(CachePart(float(mixer.index_head_dim), window))
    return tuple(parts)


def index_bytes_per_element(kv_bytes_per_element: Number) -> Number:
    """Return the bytes of one element of the index keys that latent and compressed attention cache.

        b_i = min(b, 1 + 4 / 128)

    Engines and the models' own code keep those in fp8 with an fp32 scale per 128, whatever the cache dtype.

    Parameters
    ----------
    kv_bytes_per_element : [B]
        b, of the cache dtype

    Returns
    -------
    [B]
        b_i

    Examples
    --------
    >>> index_bytes_per_element(2.0)
    np.float64(1.03125)

    References
    ----------
    DeepSeek-AI 2025, "DeepSeek-V3.2-Exp", inference/model.py, `Indexer`: https://github.com/deepseek-ai/DeepSeek-V3.2-Exp.
    """
    size: Number = np.minimum(kv_bytes_per_element, 1.0 + 4.0 / 128.0)
    return size


def keeps_own_index_keys(network: Network) -> bool:
    """Return whether a model has index keys that engines keep in fp8: those of sparse latent and compressed attention.

    Parameters
    ----------
    network : the model

    Returns
    -------
    False for models without an indexer, and for block-sparse attention, whose keys are in the cache dtype

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> keeps_own_index_keys(Network("n", "t", 8, 10, (Layer((Attention(8, 8, 64, 64),), ()),), head, True, 80))
    False
    """
    return any(
        mixer.index_head_dim > 0
        for layer, _ in layer_counts(network)
        for mixer in layer.mixers
        if isinstance(mixer, LatentAttention | CompressedAttention)
    )
