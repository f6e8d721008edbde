"""Cost of mixers over their cache or state: attention, recurrences, convolutions.

Each kind of mixer has a function for decode and one for prefill, over the sequences of one attention group; `_COSTS`
lists them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from capplan.model.network import (
    Attention,
    CompressedAttention,
    CrossAttention,
    LatentAttention,
    LinearAttention,
    Mixer,
    Network,
    ShortConvolution,
    StateSpace,
    layer_counts,
)
from capplan.model.weight_format import named_weight_format
from capplan.numbers import Number
from capplan.operators import (
    attention,
    compressed_attention,
    latent_attention,
    linear_attention,
)
from capplan.operators.attention import bidirectional_attention_time_s, bidirectional_pairs
from capplan.operators.matmul import matmul_time_s
from capplan.phases.cost import OperatorCost, StepRates
from capplan.phases.token_work import ACTIVATION_BYTES


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens that one step adds to each of several sequences."""

    sequences: Number
    new: Number
    """Tokens per sequence: of its prompt, or decoded at once."""
    past: Number
    """Cached tokens per sequence."""
    tensor_parallel: Number
    kv_bytes: Number
    """Bytes of one cached element."""
    rates: StepRates
    decode: bool = False
    expansion_format: str = "bf16"
    """Format of the matrix that expands cached latents in prefill."""
    context: Number = 1.0
    """Ranks that share out the cached tokens of each sequence, and attend with the heads of all of them."""


def _attended(
    seconds: Number,
    flop: Number,
    moved: Number,
    rates: attention.AttentionRates | latent_attention.LatentAttentionRates,
) -> OperatorCost:
    compute_s, memory_s = flop / rates.flop_per_s, moved / rates.bytes_per_s
    return OperatorCost("attention", seconds, flop, moved, compute_s=compute_s, memory_s=memory_s)


def _window(mixer: Attention) -> float:
    """Return the keys that a query sees at most: of a sliding window, or in the blocks that an indexer selects."""
    if mixer.chunked:
        return math.inf
    limits = (mixer.window_tokens or math.inf, mixer.index_top_tokens or math.inf)
    return float(min(limits))


def _chunk_tokens(mixer: Attention) -> float:
    """Return the length of the aligned chunks beyond which no query sees (llama4); infinity without."""
    return float(mixer.window_tokens or math.inf) if mixer.chunked else math.inf


def _heads(mixer: Attention, tensor_parallel: Number) -> tuple[Number, Number]:
    """Return query and KV heads on one rank; KV heads are replicated once ranks outnumber them."""
    return mixer.query_heads / tensor_parallel, np.maximum(1.0, mixer.kv_heads / tensor_parallel)


def _indexing_s(mixer: Attention | LatentAttention, chunk: Chunk, kv_bytes: Number) -> Number:
    """Return the time a sparse layer takes to score its index keys; block-sparse layers use the rates of sparse MLA."""
    if not mixer.index_heads:
        return 0.0
    pool = float(mixer.index_pool_tokens)
    return compressed_attention.indexer_time_s(
        chunk.sequences, chunk.new, chunk.past, mixer.index_heads / pool, float(mixer.index_head_dim), kv_bytes / pool,
        chunk.rates.latent_attention,
    )  # fmt: skip


def _attention_decode(mixer: Attention, chunk: Chunk) -> OperatorCost:
    rates = chunk.rates.attention
    query_heads, kv_heads = _heads(mixer, chunk.tensor_parallel)
    dims = (float(mixer.head_dim), float(mixer.value_head_dim), _window(mixer))
    seen = chunk.past
    if mixer.chunked:
        seen = attention.chunk_keys(chunk.sequences, chunk.past, _chunk_tokens(mixer))
    at = (chunk.sequences, seen)
    flop = attention.decode_attention_flop(*at, query_heads, *dims, chunk.new)
    shape = (*at, query_heads, kv_heads, *dims, chunk.kv_bytes)
    moved = attention.decode_attention_bytes(*shape, chunk.new)
    seconds = attention.decode_attention_time_s(*shape, rates, chunk.new)
    return _attended(seconds + _indexing_s(mixer, chunk, chunk.kv_bytes), flop, moved, rates)


def _attention_prefill(mixer: Attention, chunk: Chunk) -> OperatorCost:
    rates = chunk.rates.attention
    query_heads, kv_heads = _heads(mixer, chunk.tensor_parallel)
    dims = (float(mixer.head_dim), float(mixer.value_head_dim), _window(mixer))
    chunk_tokens = _chunk_tokens(mixer)
    if not mixer.causal:
        return _whole_prompts(mixer, chunk, query_heads, kv_heads)
    at = (chunk.sequences, chunk.new, chunk.past)
    flop = attention.prefill_attention_flop(*at, query_heads, *dims, chunk_tokens)
    shape = (*at, query_heads, kv_heads, *dims, chunk.kv_bytes)
    moved = attention.prefill_attention_bytes(*shape, chunk_tokens)
    seconds = attention.prefill_attention_time_s(*shape, rates)
    if mixer.chunked:
        widths = (float(mixer.head_dim), float(mixer.value_head_dim), chunk_tokens, chunk.kv_bytes)
        seconds = attention.chunk_attention_prefill_time_s(*at, query_heads, kv_heads, *widths, rates)
    return _attended(seconds + _indexing_s(mixer, chunk, chunk.kv_bytes), flop, moved, rates)


def _whole_prompts(mixer: Attention, chunk: Chunk, query_heads: Number, kv_heads: Number) -> OperatorCost:
    """Return attention over whole prompts, in both directions: nothing is read from a cache, or written to one."""
    rates, at = chunk.rates.attention, (chunk.sequences, chunk.new)
    window = _window(mixer)
    dims = (float(mixer.head_dim), float(mixer.value_head_dim))
    flop = 2.0 * chunk.sequences * query_heads * sum(dims) * bidirectional_pairs(chunk.new, window)
    shape = (query_heads, kv_heads, *dims)
    moved = attention.prefill_attention_bytes(*at, 0.0, *shape, math.inf, ACTIVATION_BYTES)
    return _attended(bidirectional_attention_time_s(*at, *shape, window, rates), flop, moved, rates)


def _crossed(mixer: CrossAttention, chunk: Chunk) -> OperatorCost:
    """Return attention over the positions of an encoder, in prefill and decode alike: every token sees them all."""
    rates, heads = chunk.rates.attention, mixer.heads / chunk.tensor_parallel
    dims = (float(mixer.head_dim), float(mixer.head_dim), math.inf)
    at = (chunk.sequences, float(mixer.source_tokens))
    flop = attention.decode_attention_flop(*at, heads, *dims, chunk.new)
    shape = (*at, heads, heads, *dims, chunk.kv_bytes)
    moved = attention.decode_attention_bytes(*shape, chunk.new)
    return _attended(attention.decode_attention_time_s(*shape, rates, chunk.new), flop, moved, rates)


def _top_tokens(mixer: LatentAttention) -> float:
    """Return the latents that a query reads at most: those that an indexer selects, or of a sliding window."""
    return float(mixer.index_top_tokens if mixer.index_heads else mixer.window_tokens or math.inf)


def _latent_decode(mixer: LatentAttention, chunk: Chunk) -> OperatorCost:
    rates = chunk.rates.latent_attention
    query_heads, visible = (
        mixer.query_heads / chunk.tensor_parallel,
        np.minimum(chunk.past, _top_tokens(mixer)),
    )
    lora, rope = float(mixer.kv_lora_rank), float(mixer.rope_head_dim)
    shape = (chunk.sequences, visible / chunk.context, query_heads * chunk.context, lora, rope)
    heads = (float(mixer.nope_head_dim), float(mixer.value_head_dim))
    absorbed = (chunk.sequences * chunk.new, query_heads, lora, *heads)
    flop = latent_attention.mla_decode_flop(*shape, chunk.new)
    flop = flop + latent_attention.mla_absorption_flop(*absorbed)
    moved = latent_attention.mla_decode_bytes(*shape, chunk.kv_bytes, chunk.new)
    moved = moved + latent_attention.mla_absorption_bytes(*absorbed)
    seconds = latent_attention.mla_attention_decode_time_s(*shape, chunk.kv_bytes, rates, chunk.new)
    seconds = seconds + latent_attention.mla_absorption_time_s(*absorbed, rates)
    return _attended(seconds + _indexing_s(mixer, chunk, 1.0), flop, moved, rates)


def _latent_prefill(mixer: LatentAttention, chunk: Chunk) -> OperatorCost:
    """Return prefill over expanded keys and values or, beyond the keys that an indexer selects, over these, absorbed."""
    if not mixer.index_heads:
        return _expanded_latent_prefill(mixer, chunk)
    kernels, seen = chunk.rates.sparse_prefill, np.asarray(chunk.past) + chunk.new
    short = (np.asarray(kernels.expands_short) > 0) & (seen <= mixer.index_top_tokens)
    masked = np.asarray(kernels.masks) > 0
    sparse = _sparse_latent_prefill(mixer, chunk)
    if not np.any(short | masked):
        return sparse
    expanded = _expanded_latent_prefill(mixer, chunk)
    quicker = expanded.seconds + _indexing_s(mixer, chunk, 1.0) < sparse.seconds
    kept = short | (masked & quicker)
    indexed_s = np.where(short, 0.0, _indexing_s(mixer, chunk, 1.0))
    columns = {name: getattr(expanded, name) for name in ("flop", "moved_bytes", "compute_s", "memory_s")}
    columns["seconds"] = expanded.seconds + indexed_s
    return replace(
        sparse, **{name: np.where(kept, own, getattr(sparse, name))[()] for name, own in columns.items()}
    )


def _expanded_latent_prefill(mixer: LatentAttention, chunk: Chunk) -> OperatorCost:
    """Return prefill over expanded keys and values; those of the cached prefix are expanded again."""
    rates, lora = chunk.rates.latent_attention, float(mixer.kv_lora_rank)
    window = float(mixer.window_tokens or math.inf)
    past = np.minimum(chunk.past, window)
    query_heads = mixer.query_heads / chunk.tensor_parallel
    width = float(mixer.nope_head_dim + mixer.rope_head_dim + mixer.value_head_dim)
    written = (lora + mixer.rope_head_dim) * chunk.kv_bytes
    shape = (chunk.sequences, chunk.new, past, query_heads, width)
    flop = latent_attention.mla_prefill_flop(*shape, window)
    moved = latent_attention.mla_prefill_bytes(*shape)
    seconds = latent_attention.expanded_attention_time_s(*shape, written, rates, window)
    outputs, name = query_heads * (mixer.nope_head_dim + mixer.value_head_dim), chunk.expansion_format
    again = matmul_time_s(
        np.maximum(past * chunk.sequences, 1.0), lora, outputs,
        named_weight_format(name).bytes_per_element, 2.0, chunk.rates.matmul[name],
    )  # fmt: skip
    return _attended(seconds + np.where(np.asarray(chunk.past) > 0, again, 0.0), flop, moved, rates)


def _sparse_latent_prefill(mixer: LatentAttention, chunk: Chunk) -> OperatorCost:
    """Return prefill over the keys that an indexer selects, absorbed as in decode, so nothing is expanded."""
    rates, query_heads = chunk.rates.latent_attention, mixer.query_heads / chunk.tensor_parallel
    top, heads = float(mixer.index_top_tokens), (float(mixer.nope_head_dim), float(mixer.value_head_dim))
    lora, rope = float(mixer.kv_lora_rank), float(mixer.rope_head_dim)
    shape = (chunk.sequences, chunk.new, chunk.past, query_heads, lora, rope)
    absorbed = (chunk.sequences * chunk.new, query_heads, lora, *heads)
    flop = latent_attention.mla_sparse_prefill_flop(*shape, top)
    moved = latent_attention.mla_sparse_prefill_bytes(*shape, chunk.kv_bytes, top)
    kernels = chunk.rates.sparse_prefill
    computed = latent_attention.tiled_heads(query_heads, kernels.tile_heads, kernels.tiled_above)
    tiled = (np.asarray(query_heads) > kernels.tiled_above) & (np.asarray(kernels.tile_heads) > 1.0)
    # a kernel with tiles computes all keys that may be selected, also those that a query does not see
    past = np.where(tiled, np.maximum(chunk.past, top), chunk.past)
    run = (chunk.sequences, chunk.new, past, computed, lora, rope)
    seconds = latent_attention.sparse_attention_prefill_time_s(*run, chunk.kv_bytes, rates, top)
    seconds = seconds + latent_attention.mla_absorption_time_s(*absorbed, rates)
    return _attended(
        seconds + _indexing_s(mixer, chunk, 1.0),
        flop + latent_attention.mla_absorption_flop(*absorbed),
        moved + latent_attention.mla_absorption_bytes(*absorbed),
        rates,
    )


def _entries(mixer: CompressedAttention) -> tuple[float, float, float]:
    """Return window, tokens per entry and the maximum number of entries that a query reads."""
    per_entry = float(mixer.entry_tokens or math.inf)
    top = float(mixer.index_top_entries) if mixer.index_top_entries else math.inf
    return float(mixer.window_tokens), per_entry, top


def _entry_indexing_s(mixer: CompressedAttention, chunk: Chunk) -> Number:
    if not mixer.index_heads:
        return 0.0
    return compressed_attention.entry_indexer_time_s(
        chunk.sequences, chunk.new, chunk.past, float(mixer.index_heads), float(mixer.index_head_dim),
        float(mixer.entry_tokens), chunk.rates.latent_attention,
    )  # fmt: skip


def _compressed_decode(mixer: CompressedAttention, chunk: Chunk) -> OperatorCost:
    rates, width, reach = chunk.rates.latent_attention, float(mixer.head_dim), _entries(mixer)
    query_heads = mixer.query_heads / chunk.tensor_parallel
    vectors = compressed_attention.visible_vectors(chunk.past, *reach)
    shape = (chunk.sequences, vectors, query_heads, width, 0.0)
    flop = latent_attention.mla_decode_flop(*shape, chunk.new)
    moved = latent_attention.mla_decode_bytes(*shape, chunk.kv_bytes, chunk.new)
    seconds = compressed_attention.compressed_decode_time_s(
        chunk.sequences, chunk.past, query_heads, width, *reach, chunk.kv_bytes, rates, chunk.new
    )
    return _attended(seconds + _entry_indexing_s(mixer, chunk), flop, moved, rates)


def _compressed_prefill(mixer: CompressedAttention, chunk: Chunk) -> OperatorCost:
    rates, width, reach = chunk.rates.latent_attention, float(mixer.head_dim), _entries(mixer)
    query_heads, prompts, new = mixer.query_heads / chunk.tensor_parallel, chunk.sequences, chunk.new
    pairs = compressed_attention.visible_pairs(new, chunk.past, *reach)
    flop = 4.0 * prompts * query_heads * width * pairs
    vectors = compressed_attention.visible_vectors(chunk.past, *reach)
    moved = prompts * (4.0 * new * query_heads * width + (vectors + new) * width * chunk.kv_bytes)
    computed = latent_attention.tiled_heads(query_heads, chunk.rates.sparse_prefill.compressed_tile_heads)
    seconds = compressed_attention.compressed_prefill_time_s(
        new, chunk.past, computed, width, *reach, chunk.kv_bytes, rates, prompts
    )
    return _attended(seconds + _entry_indexing_s(mixer, chunk), flop, moved, rates)


def _convolution(mixer: ShortConvolution, chunk: Chunk) -> OperatorCost:
    """Return a convolution by itself, in prefill and decode alike."""
    rates = chunk.rates.linear_attention
    shape = (chunk.sequences, chunk.new, mixer.channels / chunk.tensor_parallel, float(mixer.kernel))
    moved = linear_attention.short_convolution_bytes(*shape)
    seconds = linear_attention.short_convolution_time_s(*shape, rates)
    return OperatorCost("convolution", seconds, 0.0, moved, memory_s=moved / rates.bytes_per_s)


def _recurrence(
    mixer: LinearAttention | StateSpace, chunk: Chunk, seconds: Number, flop: Number, held_bytes: Number
) -> OperatorCost:
    """Return a scan or step with the convolution before it; the state of `held_bytes` is read and written once.

    Only products on tensor cores count as FLOP: those of a scan in chunks, none in decode.
    """
    rates = chunk.rates.linear_attention
    moved = 2.0 * chunk.sequences * held_bytes
    if mixer.conv_channels:
        channels, kernel = mixer.conv_channels / chunk.tensor_parallel, float(mixer.conv_kernel)
        shape = (chunk.sequences, chunk.new, channels, kernel)
        seconds = seconds + linear_attention.short_convolution_time_s(*shape, rates)
        moved = moved + linear_attention.short_convolution_bytes(*shape)
    compute_s, memory_s = flop / rates.flop_per_s, moved / rates.bytes_per_s
    return OperatorCost("state", seconds, flop, moved, compute_s=compute_s, memory_s=memory_s)


def _linear(mixer: LinearAttention, chunk: Chunk) -> OperatorCost:
    rates, tp = chunk.rates.linear_attention, chunk.tensor_parallel
    key_dim, value_dim = float(mixer.key_head_dim), float(mixer.value_head_dim)
    state_bytes = named_weight_format(mixer.state_format).bytes_per_element
    shape = (mixer.key_heads / tp, mixer.value_heads / tp, key_dim, value_dim, state_bytes)
    at, delta = (chunk.sequences, chunk.new), mixer.kind != "lightning"
    flop: Number = 0.0
    if chunk.decode:
        seconds = linear_attention.gated_delta_decode_time_s(chunk.sequences, *shape, rates, chunk.new)
    else:
        seconds = linear_attention.gated_delta_prefill_time_s(*at, *shape, rates, delta=delta)
        widths = (mixer.value_heads / tp, key_dim, value_dim, linear_attention.CHUNK_TOKENS)
        flop = linear_attention.gated_delta_prefill_flop(*at, *widths, delta=delta)
    return _recurrence(
        mixer, chunk, seconds, flop, mixer.value_heads / tp * key_dim * value_dim * state_bytes
    )


def _state_space(mixer: StateSpace, chunk: Chunk) -> OperatorCost:
    rates, tp, at = chunk.rates.linear_attention, chunk.tensor_parallel, (chunk.sequences, chunk.new)
    inner, size, groups = mixer.inner_size / tp, float(mixer.state_size), np.maximum(1.0, mixer.groups / tp)
    state_bytes = named_weight_format(mixer.state_format).bytes_per_element
    flop: Number = 0.0
    if chunk.decode:
        seconds = linear_attention.state_space_decode_time_s(
            chunk.sequences, inner, size, groups, state_bytes, rates, chunk.new
        )
    elif mixer.version == 1:
        seconds = linear_attention.selective_scan_prefill_time_s(*at, inner, size, state_bytes, rates)
    else:
        shape = (*at, mixer.heads / tp, float(mixer.head_dim), size, groups, float(mixer.chunk_tokens))
        seconds = linear_attention.state_space_prefill_time_s(*shape, state_bytes, rates)
        flop = linear_attention.state_space_prefill_flop(*shape)
    return _recurrence(mixer, chunk, seconds, flop, inner * size * state_bytes)


_Cost: TypeAlias = Callable[[Any, Chunk], OperatorCost]


@dataclass(frozen=True, slots=True)
class MixerCosts:
    """Cost functions of one kind of mixer."""

    decode: _Cost
    prefill: _Cost
    borrowed: Callable[[Any], str] = lambda _: ""
    """What is assumed of a mixer whose kernel was not measured."""


def _sparse_prefill_is_borrowed(mixer: LatentAttention) -> str:
    return "prefill of sparse latent attention: efficiencies of expanded prefill" if mixer.index_heads else ""


_COSTS: Mapping[type[Mixer], MixerCosts] = {
    Attention: MixerCosts(_attention_decode, _attention_prefill),
    CrossAttention: MixerCosts(_crossed, _crossed),
    LatentAttention: MixerCosts(_latent_decode, _latent_prefill, _sparse_prefill_is_borrowed),
    CompressedAttention: MixerCosts(
        _compressed_decode,
        _compressed_prefill,
        lambda _: "compressed attention: efficiencies of latent attention",
    ),
    LinearAttention: MixerCosts(_linear, _linear),
    StateSpace: MixerCosts(_state_space, _state_space),
    ShortConvolution: MixerCosts(_convolution, _convolution),
}


def decode_cost(
    mixer: Mixer, sequences: Number, context_tokens: Number, tensor_parallel: Number, kv_bytes: Number,
    rates: StepRates, query_tokens: Number = 1.0, context: Number = 1.0,
) -> OperatorCost:  # fmt: skip
    """Return the cost of one mixer when every sequence adds `query_tokens` to a cache of `context_tokens`."""
    chunk = Chunk(
        sequences,
        query_tokens,
        context_tokens,
        tensor_parallel,
        kv_bytes,
        rates,
        decode=True,
        context=context,
    )
    return _COSTS[type(mixer)].decode(mixer, chunk)


def prefill_cost(
    mixer: Mixer, prompts: Number, new_tokens: Number, past_tokens: Number, tensor_parallel: Number,
    kv_bytes: Number, rates: StepRates, expansion_format: str = "bf16",
) -> OperatorCost:  # fmt: skip
    """Return the cost of one mixer for a chunk of `new_tokens` of each prompt, after `past_tokens` cached ones.

    All prompts of a step share one launch, so many short prompts cost less than the same prompts in sequence.
    """
    chunk = Chunk(
        prompts, new_tokens, past_tokens, tensor_parallel, kv_bytes, rates, expansion_format=expansion_format
    )
    return _COSTS[type(mixer)].prefill(mixer, chunk)


def borrowed_rates(network: Network) -> tuple[str, ...]:
    """Return what is assumed for mixers of a network whose rates were measured on kernels of another kind.

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layers = (Layer((CompressedAttention(64, 512, 64, 128, 8),), ()), Layer((Attention(8, 8, 64, 64),), ()))
    >>> borrowed_rates(Network("n", "t", 8, 10, layers, head, True, 80))
    ('compressed attention: efficiencies of latent attention',)
    """
    mixers = dict.fromkeys(mixer for layer, _ in layer_counts(network) for mixer in layer.mixers)
    return tuple(filter(None, dict.fromkeys(_COSTS[type(mixer)].borrowed(mixer) for mixer in mixers)))
