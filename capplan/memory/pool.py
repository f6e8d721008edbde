"""Tokens and sequences that a KV pool holds, in the layout of each engine.

The pool of models with compressed attention has pages of several sizes, all vectors of a layer in one slab per block. A block covers 256
tokens of every entry cache. Windows and waiting tokens use the same pages, in separate groups with fewer tokens per page. This is vLLM's
layout; other engines may differ.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from capplan.assumption import Assumption
from capplan.engine.profile import MemoryRules
from capplan.memory.layer_groups import CacheKind, group_layers, state_bytes_held
from capplan.model.mixers import CachePart, held_vector_bytes
from capplan.model.network import CompressedAttention, Mixer, Network, layer_counts
from capplan.numbers import Array, Number


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """Layout of the pool of one rank, for sequences of the maximum context."""

    block_tokens: Number
    """Tokens in a block of an attention layer."""
    block_bytes: Number
    """Bytes of one block, over all layers of a group."""
    groups: int
    """Layer groups; a token needs a block in each of them."""
    sequence_blocks: Number
    """Maximum blocks of one sequence, over all groups."""


def window_blocks(
    context_tokens: Number, window_tokens: Number, step_tokens: Number, block_tokens: Number
) -> Number:
    """Return the maximum blocks that a sliding-window layer needs for one sequence.

        n = ceil(min(w - 1 + t, l) / p) + 1

    Parameters
    ----------
    context_tokens : [tokens]
        l
    window_tokens : [tokens]
        w
    step_tokens : [tokens]
        t, token budget of a step: a whole chunk is written before old blocks are freed
    block_tokens : [tokens]
        p

    Returns
    -------
    [-]
        n; one extra because a window need not start at a block boundary

    Examples
    --------
    1,023 tokens of the window and a step of 2,048 fill 192 blocks of 16:

    >>> window_blocks(8192.0, 1024.0, 2048.0, 16.0)
    np.float64(193.0)

    References
    ----------
    vLLM, `SlidingWindowSpec.max_memory_usage_bytes`: https://docs.vllm.ai/en/latest/api/vllm/v1/kv_cache_interface.
    """
    blocks: Number = (
        np.ceil(np.minimum(window_tokens - 1.0 + step_tokens, context_tokens) / block_tokens) + 1.0
    )
    return blocks


LEAST_KERNEL_BLOCK = 16.0
"""Tokens of the smallest block of attention kernels."""


def aligned_block_tokens(
    state_bytes: Number, token_bytes: Number, multiple: Number = LEAST_KERNEL_BLOCK
) -> Number:
    """Return the block size whose page can hold a recurrent state.

        p = q ceil(S / (q e)),   at least q

    Parameters
    ----------
    state_bytes : [B]
        S, of one sequence and layer
    token_bytes : [B]
        e, of one token and attention layer
    multiple : [tokens]
        q, granularity of the attention kernel, or the engine's own block where that is larger (128 on processors)

    Returns
    -------
    [tokens]
        p

    Examples
    --------
    Qwen3-Next on two ranks: a state of 548,864 bytes against 1,024 bytes per token.

    >>> aligned_block_tokens(548864.0, 1024.0)
    np.float64(544.0)

    References
    ----------
    vLLM, `HybridAttentionMambaModelConfig.verify_and_update_config`:
    https://docs.vllm.ai/en/latest/api/vllm/model_executor/models/config.
    """
    tokens: Number = np.maximum(multiple * np.ceil(state_bytes / (multiple * token_bytes)), multiple)
    return tokens


def grouped_layout(
    kinds: list[CacheKind],
    block_tokens: Number,
    context_tokens: Number,
    step_tokens: Number,
    stage_share: Number = 1.0,
) -> PoolLayout:
    """Return the layout of a pool shared by layer groups.

    Parameters
    ----------
    kinds : caches of the whole network, states included
    block_tokens : [tokens]
        of the engine; enlarged where a recurrent state needs it
    context_tokens : [tokens]
        maximum context
    step_tokens : [tokens]
        token budget of a step
    stage_share : [-]
        fraction of the layers on this pipeline stage

    Examples
    --------
    Two groups of three layers with 512 blocks of 16 tokens for the full ones and 513 for the sliding ones:

    >>> kinds = [CacheKind("full", 3, 100.0, 0.0), CacheKind("window", 3, 100.0, 0.0, 128.0)]
    >>> layout = grouped_layout(kinds, 16.0, 8192.0, 8192.0)
    >>> float(layout.block_bytes), layout.groups, float(layout.sequence_blocks)
    (4800.0, 2, 1025.0)

    References
    ----------
    vLLM documentation, "Hybrid KV Cache Manager": https://docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager.html.
    """
    growing = [kind for kind in kinds if kind.kind != "state"]
    state = _max_of([kind.state_bytes for kind in kinds])
    if not growing:
        size = group_layers(kinds)
        groups = sum(-(-kind.layers // size) for kind in kinds)
        return PoolLayout(context_tokens, state * np.ceil(size * stage_share), groups, float(groups))
    smallest = -_max_of([-np.asarray(kind.token_bytes) for kind in growing])
    multiple = np.maximum(block_tokens, LEAST_KERNEL_BLOCK)
    block = np.where(np.asarray(state) > 0, aligned_block_tokens(state, smallest, multiple), block_tokens)
    if all(kind.kind == "full" for kind in kinds):
        whole = sum((kind.layers * kind.token_bytes for kind in kinds), np.zeros(()))
        return PoolLayout(block, block * whole * stage_share, 1, np.ceil(context_tokens / block))
    page = np.maximum(block * _max_of([kind.token_bytes for kind in growing]), state)
    size = group_layers(kinds)
    groups = 0
    blocks: Number = 0.0
    for kind in kinds:
        count = -(-kind.layers // size)
        groups += count
        blocks = blocks + count * _blocks_of(kind, page, context_tokens, step_tokens, block)
    return PoolLayout(block, page * np.ceil(size * stage_share), groups, blocks)


def _blocks_of(kind: CacheKind, page: Number, context: Number, step_tokens: Number, block: Number) -> Number:
    if kind.kind == "state":
        return 1.0
    # Layers with smaller keys and values hold more tokens in the same page.
    tokens = np.where(
        np.asarray(kind.token_bytes) > 0, np.floor(page / kind.token_bytes / block) * block, block
    )
    if kind.kind in ("full", "source"):
        whole: Number = np.ceil((context if kind.kind == "full" else kind.window_tokens) / tokens)
        return whole
    if kind.chunked:
        chunk: Number = np.ceil(np.minimum(kind.window_tokens + step_tokens, context) / tokens)
        return chunk
    return window_blocks(context, kind.window_tokens, step_tokens, tokens)


def _max_of(values: list[Number]) -> Number:
    """Return the elementwise maximum of several numbers or arrays."""
    largest: Number = values[0]
    for value in values[1:]:
        largest = np.maximum(largest, value)
    return np.float64(largest) if isinstance(largest, float) else largest


def block_capacity(
    available_bytes: Number, layout: PoolLayout, context_tokens: Number, rules: MemoryRules
) -> tuple[Number, Number]:
    """Return tokens and concurrent sequences of a pool of blocks, as vLLM prints them.

        n = floor(A / b);   c = n / s;   tokens = p floor(n / g), or c l from 0.20 on

    Parameters
    ----------
    available_bytes : [B]
        A
    layout : blocks (b bytes, p tokens), g groups, s blocks per sequence
    context_tokens : [tokens]
        l, maximum context
    rules : of the engine version, which prints one of the two

    Returns
    -------
    tokens [tokens], sequences of the maximum context [-]

    Examples
    --------
    55 blocks of 100 bytes: 27 in each of two groups, 16 tokens each, and ten of them for a sequence.

    >>> from capplan.engine.lookup import profile
    >>> layout = PoolLayout(16.0, 100.0, 2, 10.0)
    >>> tokens, sequences = block_capacity(5500.0, layout, 80.0, profile("vllm", "0.19.0").memory)
    >>> float(tokens), float(sequences)
    (432.0, 5.5)

    References
    ----------
    vLLM, `get_kv_cache_configs`: https://docs.vllm.ai/en/latest/api/vllm/v1/core/kv_cache_utils.
    """
    blocks = np.floor(np.maximum(available_bytes, 0.0) / layout.block_bytes)
    sequences: Number = blocks / layout.sequence_blocks
    if rules.tokens_from_concurrency:
        tokens: Number = np.floor(sequences * context_tokens)
    else:
        tokens = np.floor(blocks / layout.groups) * layout.block_tokens
    return tokens, sequences


def _beside_states(pool: Number, size: Number, states: Number, rules: MemoryRules) -> tuple[Number, Number]:
    """Return the sequences of a pool of which states may have a part of their own, and what is left for tokens [B]."""
    if rules.state_pool_ratio is None or not np.any(states > 0):
        return pool / size, pool
    rest = pool / (1.0 + rules.state_pool_ratio)
    growing = np.maximum(size - states, 1.0)
    return np.minimum((pool - rest) / np.maximum(states, 1.0), rest / growing), rest


def split_capacity(
    available_bytes: Number,
    kinds: list[CacheKind],
    block_tokens: Number,
    context_tokens: Number,
    step_tokens: Number,
    rules: MemoryRules,
) -> tuple[Number, Number, Number]:
    """Return tokens, concurrent sequences and bytes per sequence where each kind of layer has a separate pool.

        states get A r / (1 + r); of the rest, tokens = A' / (f + q w), window pool q tokens for each

    Parameters
    ----------
    available_bytes : [B]
        A
    kinds : caches; f bytes per token over full layers, w over sliding ones
    block_tokens : [tokens]
        rounding of a sequence
    context_tokens, step_tokens : [tokens]
        maximum context, and token budget of a step
    rules : q and r of the engine; without q, sliding layers are sized for the maximum context

    Returns
    -------
    tokens [tokens], sequences [-], bytes of one sequence [B]

    Examples
    --------
    Two layers of 5 bytes a token:

    >>> from capplan.engine.lookup import profile
    >>> rules = profile("sglang").memory
    >>> tokens, sequences, size = split_capacity(1000.0, [CacheKind("full", 2, 5.0, 0.0)], 1.0, 20.0, 8.0, rules)
    >>> float(tokens), float(sequences), float(size)
    (100.0, 5.0, 200.0)

    References
    ----------
    SGLang, `ModelRunner.profile_max_num_token`: https://github.com/sgl-project/sglang.
    """
    full, sliding, states = (_held_bytes(kinds, kind) for kind in ("full", "window", "state"))
    sources = [kind for kind in kinds if kind.kind == "source"]
    if sources:
        return _shared_slots(
            available_bytes, sources, full, np.ceil(context_tokens / block_tokens) * block_tokens
        )
    windows = [kind.window_tokens for kind in kinds if kind.kind == "window"]
    whole = np.ceil(context_tokens / block_tokens) * block_tokens
    kept = np.minimum(min(windows) + step_tokens, whole) if windows else whole
    size = full * whole + sliding * kept + states
    pool = np.maximum(available_bytes, 0.0)
    if windows and rules.window_tokens_ratio is not None:
        share = rules.window_tokens_ratio if np.any(full > 0) else 1.0
        tokens: Number = np.floor(pool / (full + share * sliding))
        return tokens, np.minimum(tokens / whole, share * tokens / kept), size
    sequences, rest = _beside_states(pool, size, states, rules)
    if windows:
        return np.floor(sequences * whole), sequences, size
    return np.floor(rest / np.maximum(full, 1.0)), sequences, size


def _shared_slots(
    available_bytes: Number, sources: list[CacheKind], token_bytes: Array, context_tokens: Number
) -> tuple[Number, Number, Number]:
    """Return what a pool holds whose slots are for a token or a position of an encoder, in all layers alike.

    SGLang, `ScheduleBatch.prepare_encoder_info_extend` and `num_attention_layers`: https://github.com/sgl-project/sglang.
    """
    slot = token_bytes + sum(kind.layers * kind.token_bytes for kind in sources)
    slots = context_tokens + max(kind.window_tokens for kind in sources)
    tokens: Number = np.floor(np.maximum(available_bytes, 0.0) / slot)
    return tokens, tokens / slots, slots * slot


def _held_bytes(kinds: list[CacheKind], wanted: str) -> Array:
    """Return bytes of all layers of one kind: those of a sequence for states, of a token for caches."""
    each = (
        kind.layers * (kind.state_bytes if wanted == "state" else kind.token_bytes)
        for kind in kinds
        if kind.kind == wanted
    )
    return np.asarray(sum(each, np.zeros(())))


BLOCK_TOKENS = 256.0
"""Tokens of one block in the caches of entries."""
PAGE_ALIGNMENT_BYTES = 576.0
"""Multiple that pages of the packed fp8 layout are padded to."""
_WINDOW_PAGE_TOKENS = 64.0
_WAITING_PAGE_TOKENS = {True: 4.0, False: 8.0}
"""Waiting tokens per page, with and without overlapping entries."""


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


PackedLayout: TypeAlias = tuple[Number, tuple[tuple[float, float, int], ...]]
"""Bytes of one block of one rank over all layers; window tokens, tokens of a page and block tables of each group of layers whose sliding caches
share a block table: windows, or tokens that wait to be compressed."""


def packed_layout(mixers: Sequence[Mixer], kv_bytes_per_element: Number) -> PackedLayout:
    """Return how a pool lays out windows, entries and waiting tokens.

        b = sum_i s_i p_i

    Layers are put into groups, each with a block table. A block has pages of several sizes i; s_i is the
    number of layers in the largest group with pages of p_i bytes.

    Parameters
    ----------
    mixers : of all layers
    kv_bytes_per_element : [B]
        of the cache dtype

    Returns
    -------
    the layout, whose blocks have b bytes

    Examples
    --------
    DeepSeek-V4-Pro in fp8, 30 layers with an entry per 4 tokens and 31 with one per 128:

    >>> from capplan.model.network import CompressedAttention
    >>> sparse = CompressedAttention(128, 512, 64, 128, 16, 4, True, 64, 128, 1024)
    >>> layout = packed_layout([sparse] * 30 + [CompressedAttention(128, 512, 64, 128, 16, 128)] * 31, 1.0)
    >>> float(layout[0]), [tables for _, _, tables in layout[1]]
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
    groups = [(window.window_tokens, float(_WINDOW_PAGE_TOKENS), tables)]
    for ratio, (entry, *keys) in of.items():
        series = 2 if entry.overlapping else 1
        held = _WAITING_PAGE_TOKENS[entry.overlapping]
        groups.append((float(series * ratio), held, 1))
        if BLOCK_TOKENS / ratio != _WINDOW_PAGE_TOKENS:
            vector = held_vector_bytes(entry, kv_bytes_per_element)
            block = block + layers[ratio] * page(BLOCK_TOKENS / ratio, vector)
        for key in keys:
            vectors = page(BLOCK_TOKENS / ratio, held_vector_bytes(key, kv_bytes_per_element))
            block = block + layers[ratio] * np.maximum(vectors, page(held, 8.0 * series * key.elements))
    return block, tuple(groups)


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

    The chunk in flight, f more blocks of sliding groups, counts once; the concurrency that vLLM prints
    counts it for every sequence and is lower.

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

    >>> layout = 100.0, ((128.0, 64.0, 1),)
    >>> tokens, sequences, size = packed_capacity(1600.0, layout, 1024.0, 128.0)
    >>> float(tokens), float(sequences), float(size)
    (2048.0, 2.0, 700.0)

    References
    ----------
    vLLM, `SlidingWindowSpec.max_memory_usage_bytes`: https://docs.vllm.ai/en/latest/api/vllm/v1/kv_cache_interface.
    """
    held_blocks: Number = np.ceil(context_tokens / BLOCK_TOKENS)
    most: Number = held_blocks
    block_bytes, groups = layout
    for window_tokens, page_tokens, tables in groups:
        near = np.minimum(window_tokens, context_tokens)
        reach = np.minimum(window_tokens - 1.0 + step_tokens, np.maximum(context_tokens, near))
        held = np.ceil(near / page_tokens) + 1.0
        held_blocks = held_blocks + tables * held
        most = most + tables * np.maximum(np.ceil(reach / page_tokens) + 1.0, held)
    blocks = np.floor(np.maximum(available_bytes, 0.0) / block_bytes)
    sequences: Number = np.maximum(blocks - (most - held_blocks), 0.0) / held_blocks
    return np.floor(sequences * context_tokens), sequences, held_blocks * block_bytes


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

    Returns
    -------
    one assumption where the engine's layout is not modelled, otherwise none

    Examples
    --------
    >>> from capplan.engine.lookup import profile
    >>> from capplan.model.network import CompressedAttention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> network = Network("n", "t", 8, 10, (Layer((CompressedAttention(1, 16, 8, 128, 1),), ()),), head, True, 80)
    >>> [len(layout_assumptions(network, profile(name).memory)) for name in ("vllm", "sglang", "trtllm")]
    [0, 0, 1]
    """
    mixers = compressed_layers(network)
    if not mixers:
        return ()
    if shares_entries(mixers):
        what = "the cache of layers that share entries counts vectors and states only; the padding of pages is not modelled"
        return (Assumption(what, "the KV cache size that the engine prints at its start"),)
    if rules.budget == "utilisation" or rules.compressed_window_ratio is not None:
        return ()
    what = "the cache of compressed attention counts vectors only; the padding of this engine is not modelled"
    return (Assumption(what, "--engine vllm"),)
