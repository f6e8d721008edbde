"""Time of softmax attention over cached keys and values (MHA, GQA, MQA), full or windowed."""

from dataclasses import dataclass

import numpy as np

from capplan.numbers import Number
from capplan.operators.attention_demand import (
    attended_pairs,
    decode_attention_bytes,
    decode_attention_flop,
    prefill_attention_bytes,
    prefill_attention_flop,
)
from capplan.operators.roofline import roofline_time_s, scheduled_flop, soft_maximum

__all__ = [
    "AttentionRates",
    "attended_pairs",
    "decode_attention_bytes",
    "decode_attention_flop",
    "decode_attention_time_s",
    "decode_scheduled_bytes",
    "padded_queries",
    "prefill_attention_bytes",
    "prefill_attention_flop",
    "prefill_attention_time_s",
    "prefill_kernel_time_s",
    "prefill_scheduled_flop",
]

QUERY_TILE_TOKENS = 128.0
"""Queries per block of a prefill kernel."""
QUERY_PAD_TOKENS = 32.0
"""Average padding of a prompt shorter than a tile, in queries."""
WINDOW_RAMPS = 3.0
"""Additional ramps that a window costs: its far edge cuts tiles too, and masked tiles are slower than others."""
LARGEST_SPLIT = 32.0
"""Maximum number of parts that a decode kernel splits a context into."""
DECODE_SHARPNESS = 6.0
"""p of the soft maximum in decode."""


@dataclass(frozen=True, slots=True)
class AttentionRates:
    """What a device reaches in attention kernels of one KV format and engine."""

    flop_per_s: Number
    """Datasheet peak of the dtype that attention multiplies in."""
    bytes_per_s: Number
    """Datasheet memory bandwidth."""
    multiprocessors: Number
    prefill_fraction: Number
    """Achieved fraction of the peak."""
    prefill_memory_fraction: Number
    """Achieved fraction of the bandwidth."""
    prefill_ramp_tokens: Number
    """Masked keys beyond the causal edge that a tile multiplies anyway."""
    prefill_tail_fraction: Number
    """Fraction of the longest block that other blocks do not hide."""
    softmax_width: Number
    """Time of the softmax of one score, in multiply-adds: 2 x this many FLOP."""
    wide_head_exponent: Number
    """Slow-down of heads wider than 128, whose tiles are smaller."""
    prefill_sharpness: Number
    """p of the soft maximum in prefill."""
    prefill_floor_s: Number
    decode_fraction: Number
    """Achieved fraction of the bandwidth on long contexts."""
    decode_compute_fraction: Number
    """Achieved fraction of the peak when many query heads share a KV head."""
    decode_tail_fraction: Number
    """Fraction of the longest block that other blocks do not hide."""
    decode_pad_tokens: Number
    """Fixed cost of a sequence and KV head, in tokens."""
    decode_split_tokens: Number
    """Smallest part of a context that gets a separate block."""
    decode_query_passes: Number
    """Traffic of queries, partial results and outputs, in passes of 4 bytes."""
    decode_floor_s: Number
    decode_group_exponent: Number = 0.0
    """How often a decode kernel reads the keys of a head that several query heads share: their number to this power. Not of the
    device but of the engine's kernels: `EngineProfile.decode_group_exponent`."""


def prefill_attention_time_s(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    kv_heads: Number,
    head_dim: Number,
    value_head_dim: Number,
    window_tokens: Number,
    kv_bytes_per_element: Number,
    rates: AttentionRates,
) -> Number:
    """Return the time of prefill attention of one layer.

        F = 2 s h (d + d_v + 2 e) (pairs + n c);  t = soft_maximum(F' / P max(1, d / 128)^g, Q / B) + t_0

    F' adds the longest block as in `scheduled_flop`; n counts a padded tile, c counts four times where a window cuts it.

    Parameters
    ----------
    sequences, new_tokens, past_tokens : [-]
        s, prefilled together; n, of each; cached prefix of each.
    query_heads, kv_heads : [-]
        h queries, and keys and values, on this rank.
    head_dim, value_head_dim : [-]
        d, of queries and keys, and d_v, of values.
    window_tokens, kv_bytes_per_element : [-], [B]
        infinity without a window; of the cache.
    rates : what the device reaches; c is `prefill_ramp_tokens`, e `softmax_width`, g `wide_head_exponent`

    Returns
    -------
    t [s]

    Examples
    --------
    >>> rates = AttentionRates(1e3, 1e9, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 8.0, 0.5,
    ...                        1.0, 1.0, 0.0, 0.0, 512.0, 1.0, 0.0)
    >>> round(float(prefill_attention_time_s(1.0, 3.0, 0.0, 1.0, 1.0, 1.0, 1.0, np.inf, 2.0, rates)), 6)
    0.524

    References
    ----------
    Dao 2023, "FlashAttention-2", section 3, https://arxiv.org/abs/2307.08691; Shah et al. 2024,
    "FlashAttention-3", section 3.1 on the cost of the softmax, https://arxiv.org/abs/2407.08608
    """
    queries = (sequences, new_tokens, past_tokens, query_heads)
    keys = (head_dim + value_head_dim, window_tokens, rates.multiprocessors)
    ramp_tokens, tail_fraction = rates.prefill_ramp_tokens, rates.prefill_tail_fraction
    flop = prefill_scheduled_flop(*queries, *keys, rates.softmax_width, ramp_tokens, tail_fraction)
    heads = (kv_heads, head_dim, value_head_dim)
    moved_bytes = prefill_attention_bytes(*queries, *heads, window_tokens, kv_bytes_per_element)
    return prefill_kernel_time_s(flop, moved_bytes, head_dim, rates)


def prefill_kernel_time_s(
    flop: Number, moved_bytes: Number, head_dim: Number, rates: AttentionRates
) -> Number:
    """Return the time of a prefill kernel, with or without a causal mask.

        t = soft_maximum(F max(1, d / 128)^g / P, Q / B) + t_0

    Parameters
    ----------
    flop : [FLOP]
        F, with the overhead of tiles, softmax and uneven blocks.
    moved_bytes : [B]
        Q.
    head_dim : [-]
        d.
    rates : what the device reaches in prefill; g is `wide_head_exponent`

    Returns
    -------
    t [s]

    Examples
    --------
    >>> rates = AttentionRates(1e3, 1e9, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 8.0, 0.5,
    ...                        1.0, 1.0, 0.0, 0.0, 512.0, 1.0, 0.0)
    >>> round(float(prefill_kernel_time_s(100.0, 1.0, 64.0, rates)), 6)
    0.6

    References
    ----------
    Dao 2023, "FlashAttention-2", section 3, https://arxiv.org/abs/2307.08691
    """
    return roofline_time_s(
        flop * np.maximum(1.0, head_dim / 128.0) ** rates.wide_head_exponent,
        moved_bytes,
        rates.flop_per_s * rates.prefill_fraction,
        rates.bytes_per_s * rates.prefill_memory_fraction,
        rates.prefill_sharpness,
        rates.prefill_floor_s,
    )


def padded_queries(tokens: Number) -> Number:
    """Return the queries that a prefill kernel works on, those that fill a tile included.

        n' = n + 32 exp(-n / 128)

    Parameters
    ----------
    tokens : [-]
        n, of one prompt.

    Returns
    -------
    [-]
        n'.

    Examples
    --------
    >>> round(float(padded_queries(128.0)), 2)
    139.77

    References
    ----------
    Dao 2023, "FlashAttention-2", section 3.2 on tiles of queries, https://arxiv.org/abs/2307.08691
    """
    return tokens + QUERY_PAD_TOKENS * np.exp(-tokens / QUERY_TILE_TOKENS)


def prefill_scheduled_flop(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    width: Number,
    window_tokens: Number,
    multiprocessors: Number,
    softmax_width: Number,
    ramp_tokens: Number,
    tail_fraction: Number,
) -> Number:
    """Return the work of a prefill kernel, including the overhead of tiles, softmax and uneven blocks.

        F = 2 (w + 2 e) s h (pairs + n' c),  n' = n + 32 exp(-n / 128)

    Parameters
    ----------
    sequences : [-]
        s.
    new_tokens, past_tokens : [-]
        n, of each sequence, and its cached prefix.
    query_heads : [-]
        h, on this rank.
    width : [-]
        w, of keys plus values.
    window_tokens : [-]
        infinity without a window.
    multiprocessors, tail_fraction : [-]
        of the device, and the part of the longest block that shows, see `scheduled_flop`.
    softmax_width, ramp_tokens : [-]
        e and c, of `AttentionRates`.

    Returns
    -------
    [FLOP]
        F, with the tail.

    Examples
    --------
    Three queries see 1, 2 and 3 keys: 2 x 2 x 6 FLOP without any overhead.

    >>> float(prefill_scheduled_flop(1.0, 3.0, 0.0, 1.0, 2.0, np.inf, 100.0, 0.0, 0.0, 0.0))
    24.0

    References
    ----------
    Dao 2023, "FlashAttention-2", section 3, https://arxiv.org/abs/2307.08691
    """
    padded = padded_queries(new_tokens)
    keys = past_tokens + new_tokens
    capped = np.clip((keys - window_tokens) / np.maximum(new_tokens, 1.0), 0.0, 1.0)
    wasted = ramp_tokens * (1.0 + WINDOW_RAMPS * capped)
    pairs = attended_pairs(new_tokens, past_tokens, window_tokens) + padded * wasted
    longest_keys = np.minimum(keys, window_tokens + QUERY_TILE_TOKENS) + wasted
    longest = np.minimum(padded, QUERY_TILE_TOKENS) * longest_keys
    work = scheduled_flop(sequences * query_heads * pairs, longest, multiprocessors, tail_fraction)
    return 2.0 * (width + 2.0 * softmax_width) * work


def decode_attention_time_s(
    sequences: Number,
    context_tokens: Number,
    query_heads: Number,
    kv_heads: Number,
    head_dim: Number,
    value_head_dim: Number,
    window_tokens: Number,
    kv_bytes_per_element: Number,
    rates: AttentionRates,
    query_tokens: Number = 1.0,
) -> Number:
    """Return the time of decode attention of one layer.

        Q = s k r (min(c, w)^2 + c_0^2)^(1/2) (d + d_v) b + 4 x s g h (d + d_v);  t = soft_maximum(F / P, Q' / B) + t_0

    r = (h / k)^y is how often a kernel reads what query heads share, once (y = 0) where one block serves all of them. Q'
    adds the longest block as in `scheduled_flop`: a sequence and KV head, split into parts of at least
    `decode_split_tokens` while there are fewer blocks than multiprocessors.

    Parameters
    ----------
    sequences, context_tokens, query_tokens : [-]
        s, running; c, of each (their mean); g, of each: gamma + 1 in speculative verification.
    query_heads, kv_heads : [-]
        h and k, on this rank.
    head_dim, value_head_dim : [-]
        d, of queries and keys, and d_v, of values.
    window_tokens, kv_bytes_per_element : [-], [B]
        w, infinity without a window; b, of the cache.
    rates : what the device reaches; c_0 is `decode_pad_tokens`, x `decode_query_passes`, y `decode_group_exponent`

    Returns
    -------
    t, inside a CUDA graph [s]

    Examples
    --------
    >>> rates = AttentionRates(1e9, 1e3, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 8.0, 0.0,
    ...                        1.0, 1.0, 0.0, 0.0, 512.0, 0.5, 0.5)
    >>> round(float(decode_attention_time_s(1.0, 10.0, 1.0, 1.0, 1.0, 1.0, np.inf, 2.0, rates)), 6)
    0.544

    References
    ----------
    Dao et al. 2023, "Flash-Decoding for long-context inference", https://pytorch.org/blog/flash-decoding/
    """
    width, visible = head_dim + value_head_dim, np.minimum(context_tokens, window_tokens)
    reads = np.maximum(query_heads / kv_heads, 1.0) ** rates.decode_group_exponent
    heads = (query_heads, head_dim, value_head_dim)
    flop = decode_attention_flop(sequences, context_tokens, *heads, window_tokens, query_tokens)
    tail_fraction = rates.decode_tail_fraction * rates.decode_fraction
    kernel = (rates.multiprocessors, rates.decode_pad_tokens, tail_fraction, rates.decode_split_tokens)
    token_bytes = reads * width * kv_bytes_per_element
    split_bytes = decode_scheduled_bytes(sequences * kv_heads, visible, token_bytes, *kernel)
    query_bytes = 4.0 * sequences * query_tokens * query_heads * width
    moved_bytes = split_bytes + np.maximum(rates.decode_query_passes, 0.5) * query_bytes
    compute_s = flop / (rates.flop_per_s * rates.decode_compute_fraction)
    memory_s = moved_bytes / (rates.bytes_per_s * rates.decode_fraction)
    return soft_maximum(compute_s, memory_s, DECODE_SHARPNESS) + rates.decode_floor_s


def decode_scheduled_bytes(
    pairs: Number,
    visible_tokens: Number,
    token_bytes: Number,
    multiprocessors: Number,
    pad_tokens: Number,
    tail_fraction: Number,
    split_tokens: Number,
) -> Number:
    """Return the cache traffic of a decode kernel, including the overhead of block starts and uneven blocks.

        Q = u (c^2 + c_0^2)^(1/2) b + q S ((c / x)^2 + c_0^2)^(1/2) b,  x = max(1, min(S / u, c / l, 32))

    Parameters
    ----------
    pairs : [-]
        u, sequences times KV heads: what can be spread over multiprocessors without splitting.
    visible_tokens : [-]
        c, keys that a query sees.
    token_bytes : [B]
        b, keys and values of one token and KV head.
    multiprocessors : [-]
        S.
    pad_tokens : [-]
        c_0.
    tail_fraction : [-]
        q.
    split_tokens : [-]
        l.

    Returns
    -------
    [B]
        Q.

    Examples
    --------
    Two contexts of 100 tokens, 4 bytes each, and half of the longest block on ten multiprocessors:

    >>> float(decode_scheduled_bytes(2.0, 100.0, 4.0, 10.0, 0.0, 0.5, 512.0))
    2800.0

    References
    ----------
    Dao et al. 2023, "Flash-Decoding for long-context inference", https://pytorch.org/blog/flash-decoding/
    """
    parts = np.minimum(multiprocessors / np.maximum(pairs, 1e-9), visible_tokens / split_tokens)
    splits = np.maximum(1.0, np.minimum(parts, LARGEST_SPLIT))
    total = pairs * np.hypot(visible_tokens, pad_tokens)
    longest = np.hypot(visible_tokens / splits, pad_tokens)
    return token_bytes * scheduled_flop(total, longest, multiprocessors, tail_fraction)
