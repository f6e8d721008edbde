"""Work of the mixers over what they remember: attention over the cache, recurrent states, convolutions.

Every function takes the sequences or tokens of one attention group and returns the cost on one rank.
"""

import math

import numpy as np

from capplan.model.network import (
    Attention,
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    Mixer,
    ShortConvolution,
    StateSpace,
)
from capplan.model.weight_format import named_weight_format
from capplan.numbers import Number
from capplan.operators import attention, compressed_attention, latent_attention, linear_attention, state_space
from capplan.operators.matmul import matmul_time_s
from capplan.phases.cost import OperatorCost
from capplan.phases.rates import StepRates


def _windows(mixer: Attention) -> tuple[float, float]:
    """Return the keys that a decoding and a prefilling query sees.

    Half a chunk on average under chunks; the tokens of the chosen blocks where an indexer chooses blocks.
    """
    window = math.inf if mixer.window_tokens is None else float(mixer.window_tokens)
    if mixer.index_top_tokens:
        window = min(window, float(mixer.index_top_tokens))
    return (window, window / 2.0) if mixer.chunked else (window, window)


def _heads(mixer: Attention, tensor_parallel: Number) -> tuple[Number, Number]:
    """Return query and KV heads on one rank; KV heads are replicated once ranks outnumber them."""
    return mixer.query_heads / tensor_parallel, np.maximum(1.0, mixer.kv_heads / tensor_parallel)


def _choosing_s(
    mixer: Attention, sequences: Number, new: Number, past: Number, kv_bytes: Number, rates: StepRates
) -> Number:
    """Return the time in which a block-sparse layer scores its index keys, at the rates of the sparse MLA indexer."""
    if not mixer.index_heads:
        return 0.0
    return latent_attention.indexer_time_s(
        sequences, new, past, float(mixer.index_heads), float(mixer.index_head_dim), kv_bytes,
        rates.latent_attention,
    )  # fmt: skip


def _attention_decode(
    mixer: Attention, sequences: Number, context: Number, tensor_parallel: Number, kv_bytes: Number,
    rates: StepRates, query_tokens: Number,
) -> OperatorCost:  # fmt: skip
    own = rates.attention
    query_heads, kv_heads = _heads(mixer, tensor_parallel)
    window, _ = _windows(mixer)
    dims = (float(mixer.head_dim), float(mixer.value_head_dim), window)
    flop = attention.decode_attention_flop(sequences, context, query_heads, *dims, query_tokens)
    shape = (sequences, context, query_heads, kv_heads, *dims, kv_bytes)
    moved = attention.decode_attention_bytes(*shape, query_tokens)
    seconds = attention.decode_attention_time_s(*shape, own, query_tokens)
    seconds = seconds + _choosing_s(mixer, sequences, query_tokens, context, kv_bytes, rates)
    return OperatorCost(
        "attention", seconds, flop, moved, compute_s=flop / own.flop_per_s, memory_s=moved / own.bytes_per_s
    )


def _attention_prefill(
    mixer: Attention,
    prompts: Number,
    new: Number,
    past: Number,
    tensor_parallel: Number,
    kv_bytes: Number,
    rates: StepRates,
) -> OperatorCost:
    own = rates.attention
    query_heads, kv_heads = _heads(mixer, tensor_parallel)
    _, window = _windows(mixer)
    dims = (float(mixer.head_dim), float(mixer.value_head_dim), window)
    flop = attention.prefill_attention_flop(prompts, new, past, query_heads, *dims)
    shape = (prompts, new, past, query_heads, kv_heads, *dims, kv_bytes)
    moved = attention.prefill_attention_bytes(*shape)
    seconds = attention.prefill_attention_time_s(*shape, own)
    seconds = seconds + _choosing_s(mixer, prompts, new, past, kv_bytes, rates)
    return OperatorCost(
        "attention", seconds, flop, moved, compute_s=flop / own.flop_per_s, memory_s=moved / own.bytes_per_s
    )


def _top_tokens(mixer: LatentAttention) -> float:
    return float(mixer.index_top_tokens) if mixer.index_heads else math.inf


def _latent_decode(
    mixer: LatentAttention, sequences: Number, context: Number, tensor_parallel: Number, kv_bytes: Number,
    rates: StepRates, query_tokens: Number,
) -> OperatorCost:  # fmt: skip
    own = rates.latent_attention
    query_heads, top = mixer.query_heads / tensor_parallel, _top_tokens(mixer)
    lora, rope = float(mixer.kv_lora_rank), float(mixer.rope_head_dim)
    flop = latent_attention.mla_decode_flop(sequences, context, query_heads, lora, rope, top, query_tokens)
    moved = latent_attention.mla_decode_bytes(
        sequences, context, query_heads, lora, rope, kv_bytes, top, query_tokens
    )
    seconds = latent_attention.mla_decode_time_s(
        sequences, context, query_heads, lora, rope, float(mixer.nope_head_dim), float(mixer.value_head_dim),
        kv_bytes, own, top, query_tokens,
    )  # fmt: skip
    if mixer.index_heads:
        seconds = seconds + latent_attention.indexer_time_s(
            sequences, query_tokens, context, float(mixer.index_heads), float(mixer.index_head_dim), 1.0, own
        )
    return OperatorCost(
        "attention", seconds, flop, moved, compute_s=flop / own.flop_per_s, memory_s=moved / own.bytes_per_s
    )


def _latent_prefill(
    mixer: LatentAttention, prompts: Number, new: Number, past: Number, tensor_parallel: Number, kv_bytes: Number,
    rates: StepRates, expansion_format: str,
) -> OperatorCost:  # fmt: skip
    """Prefill attends over expanded keys and values; those of the cached prefix are expanded again."""
    own = rates.latent_attention
    query_heads, top = mixer.query_heads / tensor_parallel, _top_tokens(mixer)
    dims = (float(mixer.rope_head_dim), float(mixer.nope_head_dim), float(mixer.value_head_dim))
    flop = latent_attention.mla_prefill_flop(prompts, new, past, query_heads, *dims, top)
    moved = latent_attention.mla_prefill_bytes(prompts, new, past, query_heads, *dims)
    seconds = latent_attention.mla_prefill_time_s(
        prompts, new, past, query_heads, float(mixer.kv_lora_rank), *dims, kv_bytes, own, top
    )
    if mixer.index_heads:
        seconds = seconds + latent_attention.indexer_time_s(
            prompts, new, past, float(mixer.index_heads), float(mixer.index_head_dim), 1.0, own
        )
    outputs = query_heads * (mixer.nope_head_dim + mixer.value_head_dim)
    again = matmul_time_s(
        np.maximum(past * prompts, 1.0), float(mixer.kv_lora_rank), outputs,
        named_weight_format(expansion_format).bytes_per_element, 2.0, rates.matmul[expansion_format],
    )  # fmt: skip
    seconds = seconds + np.where(np.asarray(past) > 0, again, 0.0)
    return OperatorCost(
        "attention", seconds, flop, moved, compute_s=flop / own.flop_per_s, memory_s=moved / own.bytes_per_s
    )


def _entries(mixer: CompressedAttention) -> tuple[float, float, float]:
    """Return window, tokens per entry and entries that a query reads at most."""
    per_entry = float(mixer.entry_tokens or math.inf)
    top = float(mixer.index_top_entries) if mixer.index_heads else math.inf
    return float(mixer.window_tokens), per_entry, top


def _compressed_decode(
    mixer: CompressedAttention, sequences: Number, context: Number, tensor_parallel: Number, kv_bytes: Number,
    rates: StepRates, query_tokens: Number,
) -> OperatorCost:  # fmt: skip
    own = rates.latent_attention
    query_heads, width, reach = mixer.query_heads / tensor_parallel, float(mixer.head_dim), _entries(mixer)
    vectors = compressed_attention.visible_vectors(context, *reach)
    flop = latent_attention.mla_decode_flop(
        sequences, vectors, query_heads, width, 0.0, math.inf, query_tokens
    )
    moved = latent_attention.mla_decode_bytes(
        sequences, vectors, query_heads, width, 0.0, kv_bytes, math.inf, query_tokens
    )
    seconds = compressed_attention.compressed_decode_time_s(
        sequences, context, query_heads, width, *reach, kv_bytes, own, query_tokens
    )
    if mixer.index_heads:
        seconds = seconds + compressed_attention.entry_indexer_time_s(
            sequences, query_tokens, context, float(mixer.index_heads), float(mixer.index_head_dim),
            float(mixer.entry_tokens), own,
        )  # fmt: skip
    return OperatorCost(
        "attention", seconds, flop, moved, compute_s=flop / own.flop_per_s, memory_s=moved / own.bytes_per_s
    )


def _compressed_prefill(
    mixer: CompressedAttention, prompts: Number, new: Number, past: Number, tensor_parallel: Number,
    kv_bytes: Number, rates: StepRates,
) -> OperatorCost:  # fmt: skip
    own = rates.latent_attention
    query_heads, width, reach = mixer.query_heads / tensor_parallel, float(mixer.head_dim), _entries(mixer)
    flop = 4.0 * prompts * query_heads * width * compressed_attention.visible_pairs(new, past, *reach)
    vectors = compressed_attention.visible_vectors(past, *reach)
    moved = prompts * (4.0 * new * query_heads * width + (vectors + new) * width * kv_bytes)
    seconds = compressed_attention.compressed_prefill_time_s(
        new, past, query_heads, width, *reach, kv_bytes, own, prompts
    )
    if mixer.index_heads:
        seconds = seconds + compressed_attention.entry_indexer_time_s(
            prompts, new, past, float(mixer.index_heads), float(mixer.index_head_dim),
            float(mixer.entry_tokens), own,
        )  # fmt: skip
    return OperatorCost(
        "attention", seconds, flop, moved, compute_s=flop / own.flop_per_s, memory_s=moved / own.bytes_per_s
    )


def _state_cost(
    mixer: LinearAttention | StateSpace | ShortConvolution, sequences: Number, new: Number, tp: Number,
    rates: StepRates, *, decode: bool,
) -> OperatorCost:  # fmt: skip
    """Return the recurrence of a mixer that keeps a state: its convolution and its scan or step."""
    own = rates.linear_attention
    if isinstance(mixer, ShortConvolution):
        channels, kernel = mixer.channels / tp, float(mixer.kernel)
        moved = linear_attention.short_convolution_bytes(sequences, new, channels, kernel)
        seconds = linear_attention.short_convolution_time_s(sequences, new, channels, kernel, own)
        return OperatorCost("convolution", seconds, 0.0, moved, memory_s=moved / own.bytes_per_s)
    state_bytes = named_weight_format(mixer.state_format).bytes_per_element
    channels, kernel = mixer.conv_channels / tp, float(mixer.conv_kernel)
    if isinstance(mixer, LinearAttention):
        shape = (
            mixer.key_heads / tp, mixer.value_heads / tp, float(mixer.key_head_dim), float(mixer.value_head_dim),
            state_bytes,
        )  # fmt: skip
        held = mixer.value_heads / tp * mixer.key_head_dim * mixer.value_head_dim * state_bytes
        seconds = (
            linear_attention.gated_delta_decode_time_s(sequences, *shape, own, new)
            if decode
            else linear_attention.gated_delta_prefill_time_s(sequences, new, *shape, own)
        )
    else:
        inner, size, groups = mixer.inner_size / tp, float(mixer.state_size), float(mixer.groups)
        held = inner * size * state_bytes
        if decode:
            seconds = state_space.state_space_decode_time_s(
                sequences, inner, size, groups, state_bytes, own, new
            )
        elif mixer.version == 1:
            seconds = state_space.selective_scan_prefill_time_s(sequences, new, inner, size, state_bytes, own)
        else:
            seconds = state_space.state_space_prefill_time_s(
                sequences, new, mixer.heads / tp, float(mixer.head_dim), size, groups, state_bytes, own
            )
    moved = 2.0 * sequences * held
    if mixer.conv_channels:
        seconds = seconds + linear_attention.short_convolution_time_s(sequences, new, channels, kernel, own)
        moved = moved + linear_attention.short_convolution_bytes(sequences, new, channels, kernel)
    return OperatorCost("state", seconds, 0.0, moved, memory_s=moved / own.bytes_per_s)


def decode_cost(
    mixer: Mixer, sequences: Number, context_tokens: Number, tensor_parallel: Number, kv_bytes: Number,
    rates: StepRates, query_tokens: Number = 1.0,
) -> OperatorCost:  # fmt: skip
    """Return the cost of one mixer when every sequence adds `query_tokens` to a cache of `context_tokens`."""
    if isinstance(mixer, Attention):
        return _attention_decode(
            mixer, sequences, context_tokens, tensor_parallel, kv_bytes, rates, query_tokens
        )
    if isinstance(mixer, LatentAttention):
        return _latent_decode(
            mixer, sequences, context_tokens, tensor_parallel, kv_bytes, rates, query_tokens
        )
    if isinstance(mixer, CompressedAttention):
        return _compressed_decode(
            mixer, sequences, context_tokens, tensor_parallel, kv_bytes, rates, query_tokens
        )
    return _state_cost(mixer, sequences, query_tokens, tensor_parallel, rates, decode=True)


def prefill_cost(
    mixer: Mixer, prompts: Number, new_tokens: Number, past_tokens: Number, tensor_parallel: Number,
    kv_bytes: Number, rates: StepRates, expansion_format: str = "bf16",
) -> OperatorCost:  # fmt: skip
    """Return the cost of one mixer for chunks of `new_tokens` of so many prompts, after `past_tokens` cached of each.

    All prompts of a step share one launch, so many short ones cost less than one after the other.
    """
    if isinstance(mixer, Attention):
        return _attention_prefill(mixer, prompts, new_tokens, past_tokens, tensor_parallel, kv_bytes, rates)
    if isinstance(mixer, LatentAttention):
        return _latent_prefill(
            mixer, prompts, new_tokens, past_tokens, tensor_parallel, kv_bytes, rates, expansion_format
        )
    if isinstance(mixer, CompressedAttention):
        return _compressed_prefill(mixer, prompts, new_tokens, past_tokens, tensor_parallel, kv_bytes, rates)
    return _state_cost(mixer, prompts, new_tokens, tensor_parallel, rates, decode=False)
