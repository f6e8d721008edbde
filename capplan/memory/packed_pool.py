"""The pool of models with compressed attention: pages of several sizes, all vectors of a layer in one slab per block.

A block covers 256 tokens of every entry cache. Windows and waiting tokens use the same pages, in separate groups with
fewer tokens per page. This is vLLM's layout; other engines may differ.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from capplan.assumption import Assumption
from capplan.engine.memory_rules import MemoryRules
from capplan.memory.layer_groups import state_bytes_held
from capplan.model.cache_parts import CachePart, held_vector_bytes
from capplan.model.network import CompressedAttention, Mixer, Network, layer_counts
from capplan.numbers import Number

BLOCK_TOKENS = 256.0
"""Tokens of one block in the caches of entries."""
PAGE_ALIGNMENT_BYTES = 576.0
"""Multiple that pages of the packed fp8 layout are padded to."""
_WINDOW_PAGE_TOKENS = 64.0
_WAITING_PAGE_TOKENS = {True: 4.0, False: 8.0}
"""Waiting tokens per page, with and without overlapping entries."""


@dataclass(frozen=True, slots=True)
class SlidingGroup:
    """Layers whose sliding caches share a block table: windows, or tokens that wait to be compressed."""

    window_tokens: float
    page_tokens: float
    tables: int
    """Block tables that its layers are split into."""


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """The pool of one rank."""

    block_bytes: Number
    """Bytes of one block, over all layers."""
    groups: tuple[SlidingGroup, ...]


def compressed_layers(network: Network) -> list[Mixer]:
    """Return the mixers whose caches engines lay out in pages of several sizes, layer by layer.

    Parameters
    ----------
    network : the model, or a pipeline stage of it

    Returns
    -------
    mixers with compressed attention; empty for all other models

    Examples
    --------
    >>> from capplan.model.network import CompressedAttention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((CompressedAttention(64, 512, 64, 128, 8, 128),), ())
    >>> len(compressed_layers(Network("n", "t", 8, 10, (layer,) * 3, head, True, 80)))
    3
    """
    distinct = {mixer for layer, _ in layer_counts(network) for mixer in layer.mixers}
    mixed = {mixer for mixer in distinct if mixer.description.mixed_pages}
    return [mixer for layer in network.layers for mixer in layer.mixers if mixer in mixed] if mixed else []


def shares_entries(mixers: Sequence[Mixer]) -> bool:
    """Return whether later layers read the entries of earlier ones (DeepSeek V4.1), a layout whose padding is not modelled."""
    return any(isinstance(mixer, CompressedAttention) and mixer.shared_entries for mixer in mixers)


def packed_layout(mixers: Sequence[Mixer], kv_bytes_per_element: Number) -> PackedLayout:
    """Return how a pool lays out windows, entries and waiting tokens.

        b = sum over page sizes of slots x page;  slots are the layers of the largest group with that page

    Parameters
    ----------
    mixers : of all layers
    kv_bytes_per_element : [B]
        of the cache dtype

    Returns
    -------
    the layout

    Examples
    --------
    DeepSeek-V4-Pro in fp8, 30 layers with an entry per 4 tokens and 31 with one per 128:

    >>> from capplan.model.network import CompressedAttention
    >>> sparse = CompressedAttention(128, 512, 64, 128, 16, 4, True, 64, 128, 1024)
    >>> layout = packed_layout([sparse] * 30 + [CompressedAttention(128, 512, 64, 128, 16, 128)] * 31, 1.0)
    >>> float(layout.block_bytes), [group.tables for group in layout.groups]
    (1473408.0, [2, 1, 1])

    References
    ----------
    vLLM, `get_kv_cache_groups`, layer tuples of DeepSeek V4: https://docs.vllm.ai/en/latest/api/vllm/v1/core/kv_cache_utils.
    """
    page = partial(_page_bytes, kv_bytes_per_element)
    window, *_ = mixers[0].description.cache_parts
    of, layers = _entries_by_ratio(mixers)
    counts = list(layers.values())
    tables = -(-len(mixers) // _slots([max([1, *counts]), len(mixers), *counts]))
    wide = page(_WINDOW_PAGE_TOKENS, held_vector_bytes(window, kv_bytes_per_element))
    # Windows, entries of the smallest ratio and waiting tokens share the slots of the widest page.
    block = max([-(-len(mixers) // tables), *counts]) * wide
    groups = [SlidingGroup(window.window_tokens, _WINDOW_PAGE_TOKENS, tables)]
    for ratio, (entry, *keys) in of.items():
        series = 2 if entry.overlapping else 1
        held = _WAITING_PAGE_TOKENS[entry.overlapping]
        groups.append(SlidingGroup(float(series * ratio), held, 1))
        if BLOCK_TOKENS / ratio != _WINDOW_PAGE_TOKENS:
            vector = held_vector_bytes(entry, kv_bytes_per_element)
            block = block + layers[ratio] * page(BLOCK_TOKENS / ratio, vector)
        for key in keys:
            vectors = page(BLOCK_TOKENS / ratio, held_vector_bytes(key, kv_bytes_per_element))
            block = block + layers[ratio] * np.maximum(vectors, page(held, 8.0 * series * key.elements))
    return PackedLayout(block, tuple(groups))


def _page_bytes(kv_bytes_per_element: Number, tokens: float, vector_bytes: Number) -> Number:
    """Return the bytes of a page of vectors; in one byte and less an element, pages are aligned."""
    plain = tokens * vector_bytes
    aligned = np.ceil(plain / PAGE_ALIGNMENT_BYTES) * PAGE_ALIGNMENT_BYTES
    held: Number = np.where(np.asarray(kv_bytes_per_element) <= 1.0, aligned, plain)
    return held


def _entries_by_ratio(mixers: Sequence[Mixer]) -> tuple[dict[int, list[CachePart]], Counter[int]]:
    """Return, by the tokens that share an entry, the parts of the first such layer and the number of layers."""
    parts: dict[int, list[CachePart]] = {}
    layers: Counter[int] = Counter()
    for mixer, count in Counter(mixers).items():
        entries = [part for part in mixer.description.cache_parts if part.entry_tokens > 1]
        if entries:
            ratio = entries[0].entry_tokens
            parts.setdefault(ratio, entries)
            layers[ratio] += count
    return parts, layers


def _slots(counts: list[int]) -> int:
    """Return the layers per group with the least padding for these layer counts; of equals, the largest."""

    def padding(slots: int) -> int:
        return sum(-count % slots for count in counts)

    return min(range(counts[0], max(counts) + 1), key=lambda slots: (padding(slots), -slots))


def packed_capacity(
    available_bytes: Number, layout: PackedLayout, context_tokens: Number, step_tokens: Number
) -> tuple[Number, Number, Number]:
    """Return tokens, sequences and bytes per sequence of a packed pool.

        n = (floor(A / b) - f) / s;  s = ceil(l / 256) + sum over groups of ceil(min(w, l) / p) + 1

    The chunk in flight, f more blocks of sliding groups, counts once, because all sequences share the tokens of a step.
    As in vLLM, one sequence and the chunk must fit; the concurrency that vLLM prints counts a chunk for every sequence
    and is lower.

    Parameters
    ----------
    available_bytes : [B]
        A
    layout : blocks of b bytes, groups with windows of w and p tokens to a page
    context_tokens : [tokens]
        l
    step_tokens : [tokens]
        token budget of a step

    Returns
    -------
    tokens [tokens], sequences [-], bytes of one sequence [B]

    Examples
    --------
    Blocks of 100 bytes, a window of 128 in pages of 64: 4 + 3 blocks, and two more for a step of 128 tokens.

    >>> layout = PackedLayout(100.0, (SlidingGroup(128.0, 64.0, 1),))
    >>> tokens, sequences, size = packed_capacity(1600.0, layout, 1024.0, 128.0)
    >>> float(tokens), float(sequences), float(size)
    (2048.0, 2.0, 700.0)

    References
    ----------
    vLLM, `SlidingWindowSpec.max_memory_usage_bytes`: https://docs.vllm.ai/en/latest/api/vllm/v1/kv_cache_interface.
    """
    held_blocks: Number = np.ceil(context_tokens / BLOCK_TOKENS)
    most: Number = held_blocks
    for group in layout.groups:
        near = np.minimum(group.window_tokens, context_tokens)
        reach = np.minimum(group.window_tokens - 1.0 + step_tokens, np.maximum(context_tokens, near))
        held = np.ceil(near / group.page_tokens) + 1.0
        held_blocks = held_blocks + group.tables * held
        most = most + group.tables * np.maximum(np.ceil(reach / group.page_tokens) + 1.0, held)
    blocks = np.floor(np.maximum(available_bytes, 0.0) / layout.block_bytes)
    sequences: Number = np.maximum(blocks - (most - held_blocks), 0.0) / held_blocks
    return np.floor(sequences * context_tokens), sequences, held_blocks * layout.block_bytes


def summed_capacity(
    available_bytes: Number,
    mixers: Sequence[Mixer],
    kv_bytes_per_element: Number,
    context_tokens: Number,
    step_tokens: Number,
    block_tokens: Number,
) -> tuple[Number, Number, Number]:
    """Return tokens, sequences and bytes per sequence where the engine's layout is not known: vectors without pages.

        r = sum over layers of v min(w, l) + ceil(l / p) p / c (v + k) + waiting tokens

    Parameters
    ----------
    available_bytes : [B]
        of one device
    mixers : of all layers
    kv_bytes_per_element : [B]
        of the cache dtype
    context_tokens : [tokens]
        l
    step_tokens : [tokens]
        token budget of a step, counted once in addition to the windows
    block_tokens : [tokens]
        p of the engine, at least one entry

    Returns
    -------
    tokens [tokens], sequences [-], bytes of one sequence [B]

    Examples
    --------
    One layer, a window of 128 tokens of 16 elements, two bytes each:

    >>> from capplan.model.network import CompressedAttention
    >>> window = CompressedAttention(1, 16, 8, 128, 1)
    >>> tokens, sequences, size = summed_capacity(12288.0, [window], 2.0, 256.0, 128.0, 16.0)
    >>> float(tokens), float(sequences), float(size)
    (512.0, 2.0, 4096.0)

    References
    ----------
    Hugging Face transformers 5.23, `DeepseekV4HCACache`, models/deepseek_v4.
    """
    size: Number = np.zeros(())
    flying: Number = np.zeros(())
    for mixer, count in Counter(mixers).items():
        for part in mixer.description.cache_parts:
            vectors = count * held_vector_bytes(part, kv_bytes_per_element)
            if part.window_tokens < math.inf:
                size = size + vectors * np.minimum(part.window_tokens, context_tokens)
                flying = flying + vectors * np.minimum(step_tokens, context_tokens)
            else:
                rounded = np.maximum(block_tokens, float(part.entry_tokens))
                entries = np.ceil(context_tokens / rounded) * rounded / part.entry_tokens
                size = size + vectors * entries
        size = size + count * state_bytes_held(mixer.description.state_parts)
    sequences: Number = np.maximum(available_bytes - flying, 0.0) / size
    return np.floor(sequences * context_tokens), sequences, size


def layout_assumptions(network: Network, rules: MemoryRules) -> tuple[Assumption, ...]:
    """Return what is assumed about the layout of compressed attention in an engine.

    Parameters
    ----------
    network : the model
    rules : of the engine

    Returns
    -------
    one assumption where the engine's layout is not modelled, otherwise none

    Examples
    --------
    >>> from capplan.engine.lookup import profile
    >>> from capplan.model.network import CompressedAttention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> network = Network("n", "t", 8, 10, (Layer((CompressedAttention(1, 16, 8, 128, 1),), ()),), head, True, 80)
    >>> [len(layout_assumptions(network, profile(name).memory)) for name in ("vllm", "sglang")]
    [0, 1]
    """
    mixers = compressed_layers(network)
    if not mixers:
        return ()
    if shares_entries(mixers):
        what = "the cache of layers that share entries counts vectors and states only; the padding of pages is not modelled"
        return (Assumption(what, "the KV cache size that the engine prints at its start"),)
    if rules.budget == "utilisation":
        return ()
    what = "the cache of compressed attention counts vectors only; the padding of this engine is not modelled"
    return (Assumption(what, "--engine vllm"),)
