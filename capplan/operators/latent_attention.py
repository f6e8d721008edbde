"""Multi-head latent attention (MLA), expanded in prefill, absorbed in decode and wherever an indexer selects keys: FLOP, bytes and time."""

from dataclasses import dataclass

import numpy as np

from capplan.numbers import Number
from capplan.operators.attention import (
    DECODE_SHARPNESS,
    FlashRates,
    attended_pairs,
    decode_scheduled_bytes,
    prefill_scheduled_flop,
)
from capplan.operators.roofline import roofline_time_s, soft_maximum


@dataclass(frozen=True, slots=True)
class SparsePrefill:
    """The kernels that an engine runs for prompts of sparse attention on a device."""

    tile_heads: Number
    """Query heads of a rank are computed in multiples of it."""
    tiled_above: Number
    """Query heads of a rank up to which another kernel runs, without tiles."""
    compressed_tile_heads: Number
    """Multiples in compressed attention (DeepSeek V4)."""
    expands_short: Number
    """1 where prompts that an indexer would select whole are expanded instead."""
    masks: Number
    """1 where longer ones are expanded too, and masked, if that is quicker."""


UNTILED = SparsePrefill(1.0, 0.0, 1.0, 0.0, 0.0)
"""Heads are computed as they are, and nothing is expanded."""


def mla_prefill_flop(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    width: Number,
    seen_tokens: Number = np.inf,
) -> Number:
    """Return the arithmetic of causal MLA with expanded keys and values (the expansion is a projection).

        F = 2 s h w pairs,  w = d_nope + d_rope + d_v

    Parameters
    ----------
    sequences : [-]
        s.
    new_tokens : [-]
        of each sequence.
    past_tokens : [-]
        cached prefix.
    query_heads : [-]
        h, on this rank.
    width : [-]
        w, of one key and one value of a head together, rotary part included.
    seen_tokens : [-]
        tokens that a query sees at most, itself included: a sliding window

    Returns
    -------
    [FLOP]
        F.

    Examples
    --------
    Three queries see 1, 2 and 3 keys, with a multiply-add for each of three elements:

    >>> float(mla_prefill_flop(1.0, 3.0, 0.0, 1.0, 3.0))
    36.0

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", section 2.1, https://arxiv.org/abs/2405.04434
    """
    pairs = attended_pairs(new_tokens, past_tokens, seen_tokens)
    return 2.0 * sequences * query_heads * width * pairs


def mla_prefill_bytes(
    sequences: Number, new_tokens: Number, past_tokens: Number, query_heads: Number, width: Number
) -> Number:
    """Return the minimum traffic of prefill MLA: queries, expanded keys and values of all tokens, outputs.

        Q = 2 s h (n + n + p) w,  w = d_nope + d_rope + d_v

    Parameters
    ----------
    sequences : [-]
        s.
    new_tokens : [-]
        n.
    past_tokens : [-]
        p, whose keys and values are expanded too.
    query_heads : [-]
        h, on this rank.
    width : [-]
        w, of one key and one value of a head together, rotary part included.

    Returns
    -------
    [B]
        Q, 2 bytes per element.

    Examples
    --------
    >>> mla_prefill_bytes(1.0, 3.0, 0.0, 1.0, 3.0)
    36.0

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", section 2.1, https://arxiv.org/abs/2405.04434
    """
    return 2.0 * sequences * query_heads * (2.0 * new_tokens + past_tokens) * width


def mla_sparse_prefill_flop(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    kv_lora_rank: Number,
    rope_head_dim: Number,
    top_tokens: Number,
) -> Number:
    """Return the arithmetic of causal absorbed MLA over the keys that an indexer selects for each query.

        F = 2 s h (2 r + d_rope) pairs,  pairs = sum over i = 1..n of min(p + i, k)

    Each query has keys of its own, so none is expanded: queries are as wide as the latent and its rotary part.

    Parameters
    ----------
    sequences : [-]
        s.
    new_tokens, past_tokens : [-]
        n, of each sequence, and p, its cached prefix.
    query_heads : [-]
        h, on this rank.
    kv_lora_rank : [-]
        r.
    rope_head_dim : [-]
        d_rope.
    top_tokens : [-]
        k, keys that the indexer selects.

    Returns
    -------
    [FLOP]
        F, without the products of `mla_absorption_flop`.

    Examples
    --------
    Three queries see 1, 2 and 2 keys, with five multiply-adds each:

    >>> float(mla_sparse_prefill_flop(1.0, 3.0, 0.0, 1.0, 2.0, 1.0, 2.0))
    50.0

    References
    ----------
    DeepSeek-AI 2025, "DeepSeek-V3.2-Exp", section 2.1 (the MQA mode of MLA),
    https://github.com/deepseek-ai/DeepSeek-V3.2-Exp; its kernel: https://github.com/deepseek-ai/FlashMLA
    """
    pairs = attended_pairs(new_tokens, past_tokens, top_tokens)
    return 2.0 * sequences * query_heads * (2.0 * kv_lora_rank + rope_head_dim) * pairs


def tiled_heads(query_heads: Number, tile_heads: Number, above: Number = 0.0) -> Number:
    """Return the query heads that a kernel computes which takes them in tiles.

        h' = m ceil(h / m) for h > a, else h

    Parameters
    ----------
    query_heads, tile_heads : [-]
        h, on this rank; m
    above : [-]
        a, heads up to which another kernel runs, without tiles

    Returns
    -------
    [-]
        h'

    Examples
    --------
    Sixteen heads of a rank in tiles of 64, and in another kernel:

    >>> float(tiled_heads(16.0, 64.0)), float(tiled_heads(16.0, 128.0, 16.0))
    (64.0, 16.0)

    References
    ----------
    vLLM, `FlashMLASparseImpl`: https://github.com/vllm-project/vllm/blob/main/vllm/v1/attention/backends/mla/flashmla_sparse.py
    """
    return np.where(
        np.asarray(query_heads) > above, tile_heads * np.ceil(query_heads / tile_heads), query_heads
    )[()]


def mla_sparse_prefill_bytes(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    kv_lora_rank: Number,
    rope_head_dim: Number,
    kv_bytes_per_element: Number,
    top_tokens: Number,
) -> Number:
    """Return the minimum traffic of absorbed prefill: the latents that any query reads, queries and outputs, and the cache write.

        Q = s (min(n + p, n k) (r + d_rope) b + 2 n h (2 r + d_rope) + n (r + d_rope) b)

    Parameters
    ----------
    sequences : [-]
        s.
    new_tokens, past_tokens : [-]
        n, of each sequence, and p, its cached prefix.
    query_heads : [-]
        h, on this rank.
    kv_lora_rank : [-]
        r.
    rope_head_dim : [-]
        d_rope.
    kv_bytes_per_element : [B]
        b, of the cache.
    top_tokens : [-]
        k, keys that the indexer selects.

    Returns
    -------
    [B]
        Q, without the products of `mla_absorption_bytes`.

    Examples
    --------
    Three tokens of three elements are read and written in 2 bytes, and three queries and outputs are five wide:

    >>> float(mla_sparse_prefill_bytes(1.0, 3.0, 0.0, 1.0, 2.0, 1.0, 2.0, 2.0))
    66.0

    References
    ----------
    DeepSeek-AI 2025, FlashMLA, sparse prefill, https://github.com/deepseek-ai/FlashMLA
    """
    latents = np.minimum(new_tokens + past_tokens, new_tokens * top_tokens) + new_tokens
    queries = 2.0 * new_tokens * query_heads * (2.0 * kv_lora_rank + rope_head_dim)
    cached_bytes = latents * (kv_lora_rank + rope_head_dim) * kv_bytes_per_element
    return np.asarray(sequences * (cached_bytes + queries))[()]


def mla_absorption_flop(
    tokens: Number, query_heads: Number, kv_lora_rank: Number, nope_head_dim: Number, value_head_dim: Number
) -> Number:
    """Return the arithmetic of both products of the absorbed form: queries to latents, and latents to values.

        F = 2 T h r (d_nope + d_v)

    Parameters
    ----------
    tokens : [-]
        T.
    query_heads : [-]
        h, on this rank.
    kv_lora_rank : [-]
        r.
    nope_head_dim, value_head_dim : [-]
        d_nope and d_v.

    Returns
    -------
    [FLOP]
        F, as much as expanding the latents of T tokens.

    Examples
    --------
    >>> mla_absorption_flop(3.0, 2.0, 5.0, 4.0, 6.0)
    600.0

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", appendix C, https://arxiv.org/abs/2405.04434
    """
    return 2.0 * tokens * query_heads * kv_lora_rank * (nope_head_dim + value_head_dim)


def mla_absorption_bytes(
    tokens: Number, query_heads: Number, kv_lora_rank: Number, nope_head_dim: Number, value_head_dim: Number
) -> Number:
    """Return the traffic of both products of the absorbed form: their matrices, inputs and outputs once, in 2 bytes.

        Q = 2 h (r (d_nope + d_v) + T (2 r + d_nope + d_v))

    Parameters
    ----------
    tokens : [-]
        T.
    query_heads : [-]
        h, on this rank.
    kv_lora_rank : [-]
        r.
    nope_head_dim, value_head_dim : [-]
        d_nope and d_v.

    Returns
    -------
    [B]
        Q.

    Examples
    --------
    >>> mla_absorption_bytes(3.0, 2.0, 5.0, 4.0, 6.0)
    440.0

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", appendix C, https://arxiv.org/abs/2405.04434
    """
    heads = nope_head_dim + value_head_dim
    return 2.0 * query_heads * (kv_lora_rank * heads + tokens * (2.0 * kv_lora_rank + heads))


def mla_decode_flop(
    sequences: Number,
    context_tokens: Number,
    query_heads: Number,
    kv_lora_rank: Number,
    rope_head_dim: Number,
    query_tokens: Number = 1.0,
) -> Number:
    """Return the arithmetic of absorbed decode MLA: scores over latent and rotary part, values over the latent.

        F = 2 s g h (2 r + d_rope) c

    Parameters
    ----------
    sequences : [-]
        s.
    context_tokens : [-]
        c; at most the keys that a sparse indexer selects, where there is one.
    query_heads : [-]
        h, on this rank.
    kv_lora_rank : [-]
        r.
    rope_head_dim : [-]
        d_rope.
    query_tokens : [-]
        g, per sequence.

    Returns
    -------
    [FLOP]
        F.

    Examples
    --------
    >>> mla_decode_flop(1.0, 10.0, 1.0, 2.0, 1.0)
    100.0

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2 and appendix C, https://arxiv.org/abs/2405.04434
    """
    width = 2.0 * kv_lora_rank + rope_head_dim
    return 2.0 * sequences * query_tokens * query_heads * width * context_tokens


def mla_decode_bytes(
    sequences: Number,
    context_tokens: Number,
    query_heads: Number,
    kv_lora_rank: Number,
    rope_head_dim: Number,
    kv_bytes_per_element: Number,
    query_tokens: Number = 1.0,
) -> Number:
    """Return the minimum traffic of absorbed decode MLA: the latent cache once for all heads, queries, outputs.

        Q = s (c (r + d_rope) b + 2 g h (2 r + d_rope))

    Parameters
    ----------
    sequences : [-]
        s.
    context_tokens : [-]
        c; at most the keys that a sparse indexer selects, where there is one.
    query_heads : [-]
        h, on this rank.
    kv_lora_rank : [-]
        r.
    rope_head_dim : [-]
        d_rope.
    kv_bytes_per_element : [B]
        b.
    query_tokens : [-]
        g, per sequence.

    Returns
    -------
    [B]
        Q.

    Examples
    --------
    >>> mla_decode_bytes(1.0, 10.0, 1.0, 2.0, 1.0, 2.0)
    70.0

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2 and appendix C, https://arxiv.org/abs/2405.04434
    """
    cache = context_tokens * (kv_lora_rank + rope_head_dim) * kv_bytes_per_element
    queries = 2.0 * query_tokens * query_heads * (2.0 * kv_lora_rank + rope_head_dim)
    return sequences * (cache + queries)


@dataclass(frozen=True, slots=True)
class LatentAttentionRates(FlashRates):
    """What a device achieves in MLA kernels of one KV format and engine."""

    bmm_fraction: Number
    """Achieved fraction of the peak in the two batched products of the absorbed form."""
    bmm_memory_fraction: Number
    bmm_floor_s: Number


def mla_prefill_time_s(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    kv_lora_rank: Number,
    rope_head_dim: Number,
    nope_head_dim: Number,
    value_head_dim: Number,
    kv_bytes_per_element: Number,
    rates: LatentAttentionRates,
) -> Number:
    """Return the time of prefill MLA of one layer, without its projections.

        t = expanded(d_nope + d_rope + d_v, (r + d_rope) b)

    Parameters
    ----------
    sequences : [-]
        prefilled together.
    new_tokens : [-]
        of each sequence.
    past_tokens : [-]
        cached prefix.
    query_heads : [-]
        on this rank.
    kv_lora_rank : [-]
        r, width of the latent.
    rope_head_dim : [-]
        d_rope, width of the shared rotary key.
    nope_head_dim : [-]
        d_nope, of queries and expanded keys.
    value_head_dim : [-]
        d_v, of expanded values.
    kv_bytes_per_element : [B]
        b, of the cache.
    rates : what the device achieves

    Returns
    -------
    [s]
        t of `expanded_attention_time_s`.

    Examples
    --------
    >>> rates = LatentAttentionRates(1e3, 1e9, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.5,
    ...                              1.0, 1.0, 0.0, 0.0, 512.0, 0.5, 0.0, 1.0, 1.0, 0.0)
    >>> round(float(mla_prefill_time_s(1.0, 3.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, rates)), 6)
    0.536

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", section 2.1, https://arxiv.org/abs/2405.04434
    """
    width = nope_head_dim + rope_head_dim + value_head_dim
    written = (kv_lora_rank + rope_head_dim) * kv_bytes_per_element
    return expanded_attention_time_s(sequences, new_tokens, past_tokens, query_heads, width, written, rates)


def expanded_attention_time_s(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    width: Number,
    written_bytes_per_token: Number,
    rates: LatentAttentionRates,
    seen_tokens: Number = np.inf,
) -> Number:
    """Return the time of prefill attention over keys and values expanded from latents, cache write included.

        t = soft_maximum(F' / P, (Q + s n w) / B) + t_0, with F' as in `prefill_scheduled_flop`

    Parameters
    ----------
    sequences : [-]
        s, prefilled together.
    new_tokens, past_tokens : [-]
        n, of each sequence, and its cached prefix.
    query_heads, width : [-]
        on this rank; of one key and one value of a head together, rotary part included.
    written_bytes_per_token : [B]
        w, what one token adds to the cache.
    rates : what the device achieves
    seen_tokens : [-]
        tokens that a query sees at most, itself included: a sliding window

    Returns
    -------
    [s]
        t, without projections.

    Examples
    --------
    Three queries on 1, 2 and 3 keys of width 3: 36 FLOP at 1000 FLOP/s, and half a second to start:

    >>> rates = LatentAttentionRates(1e3, 1e9, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.5,
    ...                              1.0, 1.0, 0.0, 0.0, 512.0, 0.5, 0.0, 1.0, 1.0, 0.0)
    >>> round(float(expanded_attention_time_s(1.0, 3.0, 0.0, 1.0, 3.0, 4.0, rates)), 6)
    0.536

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", section 2.1, https://arxiv.org/abs/2405.04434
    """
    moved_bytes = mla_prefill_bytes(sequences, new_tokens, past_tokens, query_heads, width)
    moved_bytes = moved_bytes + sequences * new_tokens * written_bytes_per_token
    at = (sequences, new_tokens, past_tokens, query_heads)
    return _prefill_kernel_time_s(*at, width, seen_tokens, moved_bytes, rates)


def _prefill_kernel_time_s(
    sequences: Number, new_tokens: Number, past_tokens: Number, query_heads: Number, width: Number, seen_tokens: Number,
    moved_bytes: Number, rates: LatentAttentionRates,
) -> Number:  # fmt: skip
    """Return the time of a prefill kernel, expanded or absorbed: t = soft_maximum(F' / P, Q / B) + t_0."""
    blocks_flop = prefill_scheduled_flop(
        sequences, new_tokens, past_tokens, query_heads, width, seen_tokens, rates.multiprocessors,
        rates.softmax_width, rates.prefill_ramp_tokens, rates.prefill_tail_fraction,
    )  # fmt: skip
    return roofline_time_s(
        blocks_flop,
        moved_bytes,
        rates.flop_per_s * rates.prefill_fraction,
        rates.bytes_per_s * rates.prefill_memory_fraction,
        rates.prefill_sharpness,
        rates.prefill_floor_s,
    )


def sparse_attention_prefill_time_s(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    kv_lora_rank: Number,
    rope_head_dim: Number,
    kv_bytes_per_element: Number,
    rates: LatentAttentionRates,
    top_tokens: Number,
) -> Number:
    """Return the time of the absorbed prefill kernel by itself, cache write included.

        t = soft_maximum(F' / P, Q / B) + t_0, with F' as in `prefill_scheduled_flop` of width 2 r + d_rope

    No such kernel was measured: it is assumed to reach what expanded prefill reaches. FlashMLA states 640 TFLOP/s on an H800,
    65% of the peak of 989.

    Parameters
    ----------
    sequences : [-]
        prefilled together.
    new_tokens, past_tokens : [-]
        of each sequence, and its cached prefix.
    query_heads : [-]
        on this rank.
    kv_lora_rank, rope_head_dim : [-]
        r and d_rope; without a rotary part next to it, the width of what is key and value at once.
    kv_bytes_per_element : [B]
        of the cache.
    rates : what the device achieves
    top_tokens : [-]
        keys that a query sees at most.

    Returns
    -------
    [s]
        t, without projections, absorption and indexer.

    Examples
    --------
    Three queries on 1, 2 and 2 keys of width 5: 50 FLOP at 1000 FLOP/s, and half a second to start:

    >>> rates = LatentAttentionRates(1e3, 1e9, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.5,
    ...                              1.0, 1.0, 0.0, 0.0, 512.0, 0.5, 0.0, 1.0, 1.0, 0.0)
    >>> round(float(sparse_attention_prefill_time_s(1.0, 3.0, 0.0, 1.0, 2.0, 1.0, 2.0, rates, 2.0)), 6)
    0.55

    References
    ----------
    DeepSeek-AI 2025, FlashMLA, sparse prefill, https://github.com/deepseek-ai/FlashMLA
    """
    at, widths = (sequences, new_tokens, past_tokens, query_heads), (kv_lora_rank, rope_head_dim)
    moved_bytes = mla_sparse_prefill_bytes(*at, *widths, kv_bytes_per_element, top_tokens)
    width = 2.0 * kv_lora_rank + rope_head_dim
    return _prefill_kernel_time_s(*at, width, top_tokens, moved_bytes, rates)


def mla_absorption_time_s(
    tokens: Number,
    query_heads: Number,
    kv_lora_rank: Number,
    nope_head_dim: Number,
    value_head_dim: Number,
    rates: LatentAttentionRates,
) -> Number:
    """Return the time of both products of the absorbed form.

        t = bmm(q, W_uk) + bmm(o, W_uv)

    Parameters
    ----------
    tokens, query_heads : [-]
        of all sequences; on this rank.
    kv_lora_rank : [-]
        width of the latent.
    nope_head_dim, value_head_dim : [-]
        of queries before absorption, and of outputs after it.
    rates : what the device achieves

    Returns
    -------
    [s]
        t, inside a CUDA graph.

    Examples
    --------
    >>> rates = LatentAttentionRates(1e9, 1e3, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.0,
    ...                              1.0, 1.0, 0.0, 0.0, 512.0, 0.5, 0.0, 1.0, 1.0, 0.0)
    >>> round(float(mla_absorption_time_s(1.0, 1.0, 2.0, 1.0, 1.0, rates)), 6)
    0.02

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2 and appendix C, https://arxiv.org/abs/2405.04434
    """
    absorb_s = mla_bmm_time_s(tokens, query_heads, nope_head_dim, kv_lora_rank, 2.0, rates)
    expand_s = mla_bmm_time_s(tokens, query_heads, kv_lora_rank, value_head_dim, 2.0, rates)
    return absorb_s + expand_s


def mla_decode_time_s(
    sequences: Number,
    context_tokens: Number,
    query_heads: Number,
    kv_lora_rank: Number,
    rope_head_dim: Number,
    nope_head_dim: Number,
    value_head_dim: Number,
    kv_bytes_per_element: Number,
    rates: LatentAttentionRates,
    query_tokens: Number = 1.0,
) -> Number:
    """Return the time of absorbed decode MLA of one layer, with the two batched products, without projections.

        t = attention(F, Q) + bmm(q, W_uk) + bmm(o, W_uv)

    Parameters
    ----------
    sequences : [-]
        running sequences.
    context_tokens : [-]
        of each; at most the keys that a sparse indexer selects, where there is one.
    query_heads : [-]
        on this rank.
    kv_lora_rank, rope_head_dim : [-]
        widths of the latent and of the shared rotary key.
    nope_head_dim, value_head_dim : [-]
        of queries before absorption, and of outputs after it.
    kv_bytes_per_element : [B]
        of the cache.
    rates : what the device achieves
    query_tokens : [-]
        per sequence.

    Returns
    -------
    [s]
        t, inside a CUDA graph.

    Examples
    --------
    >>> rates = LatentAttentionRates(1e9, 1e3, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.0,
    ...                              1.0, 1.0, 0.0, 0.0, 512.0, 0.5, 0.0, 1.0, 1.0, 0.0)
    >>> round(float(mla_decode_time_s(1.0, 10.0, 1.0, 2.0, 1.0, 1.0, 1.0, 2.0, rates)), 6)
    0.09

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2 and appendix C, https://arxiv.org/abs/2405.04434
    """
    attention_s = mla_attention_decode_time_s(
        sequences, context_tokens, query_heads, kv_lora_rank, rope_head_dim, kv_bytes_per_element, rates,
        query_tokens,
    )  # fmt: skip
    widths = (query_heads, kv_lora_rank, nope_head_dim, value_head_dim)
    return attention_s + mla_absorption_time_s(sequences * query_tokens, *widths, rates)


def mla_attention_decode_time_s(
    sequences: Number,
    context_tokens: Number,
    query_heads: Number,
    kv_lora_rank: Number,
    rope_head_dim: Number,
    kv_bytes_per_element: Number,
    rates: LatentAttentionRates,
    query_tokens: Number = 1.0,
) -> Number:
    """Return the time of the absorbed attention kernel by itself.

        t = soft_maximum(F / P, Q' / B) + t_0, with Q' as in `decode_scheduled_bytes`

    Parameters
    ----------
    sequences : [-]
        running sequences.
    context_tokens : [-]
        of each; at most the keys that a sparse indexer selects, where there is one.
    query_heads : [-]
        on this rank.
    kv_lora_rank : [-]
        width of the latent.
    rope_head_dim : [-]
        width of the shared rotary key.
    kv_bytes_per_element : [B]
        of the cache.
    rates : what the device achieves
    query_tokens : [-]
        per sequence.

    Returns
    -------
    [s]
        t, inside a CUDA graph.

    Examples
    --------
    >>> rates = LatentAttentionRates(1e9, 1e3, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.0,
    ...                              1.0, 1.0, 0.0, 0.0, 512.0, 0.5, 0.0, 1.0, 1.0, 0.0)
    >>> round(float(mla_attention_decode_time_s(1.0, 10.0, 1.0, 2.0, 1.0, 2.0, rates)), 6)
    0.07

    References
    ----------
    DeepSeek-AI 2025, FlashMLA, https://github.com/deepseek-ai/FlashMLA
    """
    flop = mla_decode_flop(sequences, context_tokens, query_heads, kv_lora_rank, rope_head_dim, query_tokens)
    split_bytes = decode_scheduled_bytes(
        sequences, context_tokens, (kv_lora_rank + rope_head_dim) * kv_bytes_per_element,
        rates.multiprocessors, rates.decode_pad_tokens, rates.decode_tail_fraction * rates.decode_fraction,
        rates.decode_split_tokens,
    )  # fmt: skip
    query_bytes = 4.0 * sequences * query_tokens * query_heads * (2.0 * kv_lora_rank + rope_head_dim)
    moved_bytes = split_bytes + np.maximum(rates.decode_query_passes, 0.5) * query_bytes
    compute_s = flop / (rates.flop_per_s * rates.decode_compute_fraction)
    memory_s = moved_bytes / (rates.bytes_per_s * rates.decode_fraction)
    return soft_maximum(compute_s, memory_s, DECODE_SHARPNESS) + rates.decode_floor_s


def mla_bmm_time_s(
    tokens: Number,
    query_heads: Number,
    inputs: Number,
    outputs: Number,
    weight_bytes_per_element: Number,
    rates: LatentAttentionRates,
) -> Number:
    """Return the time of one batched product over heads, as the absorbed form needs before and after attention.

        F = 2 T h k n,  Q = h (k n w + 2 T (k + n))

    Parameters
    ----------
    tokens : [-]
        T.
    query_heads : [-]
        h, on this rank.
    inputs : [-]
        k, per head.
    outputs : [-]
        n, per head.
    weight_bytes_per_element : [B]
        w.
    rates : what the device achieves

    Returns
    -------
    [s]
        t, inside a CUDA graph.

    Examples
    --------
    >>> rates = LatentAttentionRates(1e9, 1e3, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.0,
    ...                              1.0, 1.0, 0.0, 0.0, 512.0, 0.5, 0.0, 1.0, 1.0, 0.0)
    >>> round(float(mla_bmm_time_s(1.0, 1.0, 1.0, 2.0, 2.0, rates)), 6)
    0.01

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", appendix C, https://arxiv.org/abs/2405.04434
    """
    weight_bytes = query_heads * inputs * outputs * weight_bytes_per_element
    return roofline_time_s(
        2.0 * tokens * query_heads * inputs * outputs,
        weight_bytes + 2.0 * tokens * query_heads * (inputs + outputs),
        rates.flop_per_s * rates.bmm_fraction,
        rates.bytes_per_s * rates.bmm_memory_fraction,
        DECODE_SHARPNESS,
        rates.bmm_floor_s,
    )
