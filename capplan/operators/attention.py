"""Softmax attention over cached keys and values (MHA, GQA, MQA), full or windowed, and that of encoders: FLOP, bytes and time."""

from dataclasses import dataclass

import numpy as np

from capplan.numbers import Number
from capplan.operators.roofline import roofline_time_s, scheduled_flop, soft_maximum


def chunk_keys(sequences: Number, context_tokens: Number, chunk_tokens: Number) -> Number:
    """Return the keys that a decoding query sees in the aligned chunk that it is in.

        one sequence: v = (m - 1) mod c + 1;  several, of mean context m: v = m up to c, (c + 1) / 2 beyond

    Contexts of several sequences are assumed to be spread evenly over a chunk, whose mean this is.

    Parameters
    ----------
    sequences : [-]
        running.
    context_tokens : [-]
        m, the token being decoded included.
    chunk_tokens : [-]
        c.

    Returns
    -------
    [-]
        v.

    Examples
    --------
    >>> [float(chunk_keys(1.0, m, 8192.0)) for m in (1.0, 8192.0, 8193.0, 20000.0)]
    [1.0, 8192.0, 1.0, 3616.0]
    >>> float(chunk_keys(64.0, 20000.0, 8192.0))
    4096.5

    References
    ----------
    vLLM, `ChunkedLocalAttention`, and transformers, `chunked_overlay` in masking_utils.py (a query at i, from 0, sees
    keys up to i with the same i // c): https://github.com/huggingface/transformers/blob/main/src/transformers/masking_utils.py
    """
    earlier = np.maximum(np.ceil(np.asarray(context_tokens) / chunk_tokens) - 1.0, 0.0)
    alone = context_tokens - earlier * chunk_tokens
    spread = np.where(context_tokens <= chunk_tokens, context_tokens, (chunk_tokens + 1.0) / 2.0)
    return np.asarray(np.where(np.asarray(sequences) <= 1.0, alone, spread))[()]


def chunk_pairs(new_tokens: Number, past_tokens: Number, chunk_tokens: Number) -> Number:
    """Return the (query, key) pairs of one causal sequence whose queries see only the aligned chunk that they are in.

        pairs = G(p + n) - G(p),  G(m) = floor(m / c) c (c + 1) / 2 + r (r + 1) / 2,  r = m mod c

    Parameters
    ----------
    new_tokens : [-]
        n, queries.
    past_tokens : [-]
        p, cached prefix.
    chunk_tokens : [-]
        c.

    Returns
    -------
    [-]
        pairs.

    Examples
    --------
    With chunks of 3, five queries after two cached tokens see 3, 1, 2, 3 and 1 keys:

    >>> float(chunk_pairs(5.0, 2.0, 3.0))
    10.0

    References
    ----------
    vLLM, `make_local_attention_virtual_batches`, which makes a causal sequence of each chunk:
    https://github.com/vllm-project/vllm/blob/main/vllm/v1/attention/backends/utils.py
    """

    def until(tokens: Number) -> Number:
        rest = np.mod(tokens, chunk_tokens)
        whole = (tokens - rest) / chunk_tokens
        return whole * chunk_tokens * (chunk_tokens + 1.0) / 2.0 + rest * (rest + 1.0) / 2.0

    return np.asarray(until(past_tokens + new_tokens) - until(past_tokens))[()]


def attended_pairs(new_tokens: Number, past_tokens: Number, window_tokens: Number) -> Number:
    """Return the (query, key) pairs of one causal sequence whose prefix is cached.

        pairs = sum over i = 1..n of min(p + i, w)

    Parameters
    ----------
    new_tokens : [-]
        n, queries.
    past_tokens : [-]
        p, cached prefix.
    window_tokens : [-]
        w, keys a query sees, itself included; infinity without a window.

    Returns
    -------
    [-]
        pairs.

    Examples
    --------
    Three queries see 1, 2 and 3 keys; with a window of 2 they see 1, 2 and 2:

    >>> float(attended_pairs(3.0, 0.0, np.inf)), float(attended_pairs(3.0, 0.0, 2.0))
    (6.0, 5.0)

    References
    ----------
    Dao 2023, "FlashAttention-2", section 3.1 on causal masks, https://arxiv.org/abs/2307.08691
    """
    growing = np.clip(window_tokens - past_tokens, 0.0, new_tokens)
    full = new_tokens - growing
    capped = np.where(full > 0.0, full * np.minimum(window_tokens, 1e18), 0.0)
    return np.asarray(growing * past_tokens + growing * (growing + 1.0) / 2.0 + capped)[()]


def _seen_pairs(new: Number, past: Number, window_tokens: Number, chunk_tokens: Number) -> Number:
    """Return the pairs within a window, or within aligned chunks where these are finite; no model has both."""
    if np.all(np.isinf(chunk_tokens)):
        return attended_pairs(new, past, window_tokens)
    return chunk_pairs(new, past, chunk_tokens)


def prefill_attention_flop(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    head_dim: Number,
    value_head_dim: Number,
    window_tokens: Number,
    chunk_tokens: Number = np.inf,
) -> Number:
    """Return the arithmetic of causal attention over new tokens and their cached prefix.

        F = 2 s h (d + d_v) pairs

    Parameters
    ----------
    sequences : [-]
        s.
    new_tokens : [-]
        of each sequence.
    past_tokens : [-]
        cached prefix of each sequence.
    query_heads : [-]
        h, on this rank.
    head_dim : [-]
        d, of queries and keys.
    value_head_dim : [-]
        d_v.
    window_tokens : [-]
        infinity without a window.
    chunk_tokens : [-]
        of aligned chunks, infinity without.

    Returns
    -------
    [FLOP]
        F, without the softmax.

    Examples
    --------
    >>> float(prefill_attention_flop(1.0, 3.0, 0.0, 1.0, 1.0, 1.0, np.inf))
    24.0

    References
    ----------
    Dao 2023, "FlashAttention-2", section 4.1 (causal: half of the square), https://arxiv.org/abs/2307.08691
    """
    pairs = _seen_pairs(new_tokens, past_tokens, window_tokens, chunk_tokens)
    return 2.0 * sequences * query_heads * (head_dim + value_head_dim) * pairs


def prefill_attention_bytes(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    kv_heads: Number,
    head_dim: Number,
    value_head_dim: Number,
    window_tokens: Number,
    kv_bytes_per_element: Number,
    chunk_tokens: Number = np.inf,
) -> Number:
    """Return the minimum traffic of prefill attention: queries, visible keys and values, outputs, once each.

        Q = s (2 n h (d + d_v) + (n + min(p, w, p mod c)) k (d + d_v) b)

    Parameters
    ----------
    sequences : [-]
        s.
    new_tokens : [-]
        n.
    past_tokens : [-]
        p.
    query_heads : [-]
        h, on this rank; queries and outputs are 2 bytes.
    kv_heads : [-]
        k, on this rank.
    head_dim : [-]
        d.
    value_head_dim : [-]
        d_v.
    window_tokens : [-]
        w, infinity without a window.
    kv_bytes_per_element : [B]
        b.
    chunk_tokens : [-]
        c, of aligned chunks, infinity without.

    Returns
    -------
    [B]
        Q.

    Examples
    --------
    >>> float(prefill_attention_bytes(1.0, 3.0, 0.0, 1.0, 1.0, 1.0, 1.0, np.inf, 2.0))
    24.0

    References
    ----------
    Dao et al. 2022, "FlashAttention", proposition 3, https://arxiv.org/abs/2205.14135
    """
    queries = 2.0 * new_tokens * query_heads * (head_dim + value_head_dim)
    visible = new_tokens + np.minimum(np.mod(past_tokens, chunk_tokens), window_tokens)
    keys_values = visible * kv_heads * (head_dim + value_head_dim) * kv_bytes_per_element
    return np.asarray(sequences * (queries + keys_values))[()]


def decode_attention_flop(
    sequences: Number,
    context_tokens: Number,
    query_heads: Number,
    head_dim: Number,
    value_head_dim: Number,
    window_tokens: Number,
    query_tokens: Number = 1.0,
) -> Number:
    """Return the arithmetic of decode attention over cached contexts.

        F = 2 s g h (d + d_v) min(c, w)

    Parameters
    ----------
    sequences : [-]
        s.
    context_tokens : [-]
        c, the token being decoded included.
    query_heads : [-]
        h, on this rank.
    head_dim : [-]
        d.
    value_head_dim : [-]
        d_v.
    window_tokens : [-]
        w, infinity without a window.
    query_tokens : [-]
        g, tokens verified per sequence; 1 without speculation.

    Returns
    -------
    [FLOP]
        F, without the softmax.

    Examples
    --------
    One query on ten keys and ten values of one element:

    >>> float(decode_attention_flop(1.0, 10.0, 1.0, 1.0, 1.0, np.inf))
    40.0

    References
    ----------
    Ainslie et al. 2023, "GQA", section 2, https://arxiv.org/abs/2305.13245
    """
    visible = np.minimum(context_tokens, window_tokens)
    return np.asarray(2.0 * sequences * query_tokens * query_heads * (head_dim + value_head_dim) * visible)[
        ()
    ]


def decode_attention_bytes(
    sequences: Number,
    context_tokens: Number,
    query_heads: Number,
    kv_heads: Number,
    head_dim: Number,
    value_head_dim: Number,
    window_tokens: Number,
    kv_bytes_per_element: Number,
    query_tokens: Number = 1.0,
) -> Number:
    """Return the minimum traffic of decode attention: the visible cache, queries and outputs, once each.

        Q = s (min(c, w) k (d + d_v) b + 2 g h (d + d_v))

    Parameters
    ----------
    sequences : [-]
        s.
    context_tokens : [-]
        c.
    query_heads : [-]
        h, on this rank.
    kv_heads : [-]
        k, on this rank.
    head_dim : [-]
        d.
    value_head_dim : [-]
        d_v.
    window_tokens : [-]
        w, infinity without a window.
    kv_bytes_per_element : [B]
        b.
    query_tokens : [-]
        g.

    Returns
    -------
    [B]
        Q.

    Examples
    --------
    Ten keys and ten values in 2 bytes, and a query and an output of one element each:

    >>> float(decode_attention_bytes(1.0, 10.0, 1.0, 1.0, 1.0, 1.0, np.inf, 2.0))
    44.0

    References
    ----------
    Ainslie et al. 2023, "GQA", section 2, https://arxiv.org/abs/2305.13245
    """
    cache = np.minimum(context_tokens, window_tokens) * kv_heads * kv_bytes_per_element
    return np.asarray(sequences * (head_dim + value_head_dim) * (cache + 2.0 * query_tokens * query_heads))[
        ()
    ]


QUERY_TILE_TOKENS = 128.0
"""Queries per block of a prefill kernel."""
QUERY_PAD_TOKENS = 32.0
"""Average padding of a prompt shorter than a tile, in queries."""
WINDOW_RAMPS = 3.0
"""Additional ramps that a window costs: its far edge cuts tiles too, and masked tiles are slower than others."""
FEWEST_QUERY_PASSES = 0.5
"""A decode kernel moves queries and results at least this many times (an assumption)."""
LARGEST_SPLIT = 32.0
"""Maximum number of parts that a decode kernel splits a context into."""
DECODE_SHARPNESS = 6.0
"""p of the soft maximum in decode."""


@dataclass(frozen=True, slots=True)
class FlashRates:
    """What a device reaches in attention kernels of one KV format and engine, whatever they cache."""

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
    """Masked keys that are computed because tiles straddle the diagonal [tokens]."""
    prefill_tail_fraction: Number
    """Fraction of the longest block that other blocks do not hide."""
    softmax_width: Number
    """Time of the softmax of one score, in multiply-adds: 2 x this many FLOP."""
    prefill_sharpness: Number
    """p of the soft maximum in prefill."""
    prefill_floor_s: Number
    decode_fraction: Number
    """Achieved fraction of the bandwidth on long contexts."""
    decode_compute_fraction: Number
    """Achieved fraction of the peak when many query heads share a KV head; all share one latent, so its decode becomes compute-bound early."""
    decode_tail_fraction: Number
    """Fraction of the longest block that other blocks do not hide."""
    decode_pad_tokens: Number
    """Fixed cost of a sequence and KV head, in tokens."""
    decode_split_tokens: Number
    """Smallest part of a context that gets a separate block."""
    decode_query_passes: Number
    """Traffic of queries, partial results and outputs, in passes of 4 bytes."""
    decode_floor_s: Number


@dataclass(frozen=True, slots=True)
class AttentionRates(FlashRates):
    """What a device reaches in kernels that read keys and values."""

    wide_head_exponent: Number = 0.0
    """Slow-down of heads wider than 128, whose tiles are smaller."""
    decode_group_exponent: Number = 0.0
    """How often a decode kernel reads the keys of a head that several query heads share: their number to this power. Not of the
    device but of the engine's kernels: `EngineProfile.decode_group_exponent`."""
    captured_tokens: Number = 0.0
    """Context for which a CUDA graph has chosen the parts of a decode kernel; 0: the kernel chooses them for the context that it reads."""


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

    F' adds the longest block as in `scheduled_flop`. n includes the padding of a tile; the ramp c is multiplied by
    1 + 3 x (share of queries whose window is full).

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
    >>> rates = AttentionRates(1e3, 1e9, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.5,
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


def chunk_attention_prefill_time_s(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    kv_heads: Number,
    head_dim: Number,
    value_head_dim: Number,
    chunk_tokens: Number,
    kv_bytes_per_element: Number,
    rates: AttentionRates,
) -> Number:
    """Return the time of prefill attention of one layer whose queries see only the aligned chunk that they are in.

        F = 2 s h (d + d_v + 2 e) (chunk_pairs + n' x);  t = soft_maximum(F' / P max(1, d / 128)^g, Q / B) + t_0

    As `prefill_attention_time_s`, for chunks are causal sequences in one launch.

    Parameters
    ----------
    sequences, new_tokens, past_tokens : [-]
        s, prefilled together; n, of each; cached prefix of each.
    query_heads, kv_heads : [-]
        h queries, and keys and values, on this rank.
    head_dim, value_head_dim : [-]
        d, of queries and keys, and d_v, of values.
    chunk_tokens, kv_bytes_per_element : [-], [B]
        of the aligned chunks; of the cache.
    rates : what the device reaches; x is `prefill_ramp_tokens`, e `softmax_width`, g `wide_head_exponent`

    Returns
    -------
    t [s]

    Examples
    --------
    Three queries see 1, 2 and 1 keys: 16 FLOP at 1000 FLOP/s, and half a second to start:

    >>> rates = AttentionRates(1e3, 1e9, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.5,
    ...                        1.0, 1.0, 0.0, 0.0, 512.0, 1.0, 0.0)
    >>> round(float(chunk_attention_prefill_time_s(1.0, 3.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, rates)), 6)
    0.516

    References
    ----------
    vLLM, `make_local_attention_virtual_batches`, https://github.com/vllm-project/vllm/blob/main/vllm/v1/attention/backends/utils.py
    """
    padded, ramp_tokens = padded_queries(new_tokens), rates.prefill_ramp_tokens
    pairs = chunk_pairs(new_tokens, past_tokens, chunk_tokens) + padded * ramp_tokens
    keys = np.minimum(np.mod(past_tokens, chunk_tokens) + new_tokens, chunk_tokens)
    longest = np.minimum(padded, QUERY_TILE_TOKENS) * (keys + ramp_tokens)
    blocks = (sequences * query_heads * pairs, longest, rates.multiprocessors, rates.prefill_tail_fraction)
    flop = 2.0 * (head_dim + value_head_dim + 2.0 * rates.softmax_width) * scheduled_flop(*blocks)
    moved_bytes = prefill_attention_bytes(
        sequences, new_tokens, past_tokens, query_heads, kv_heads, head_dim, value_head_dim, np.inf,
        kv_bytes_per_element, chunk_tokens,
    )  # fmt: skip
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
    >>> rates = AttentionRates(1e3, 1e9, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.5,
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
    query_heads, kv_heads, head_dim, value_head_dim : [-]
        h and k, on this rank; d, of queries and keys, and d_v, of values.
    window_tokens, kv_bytes_per_element : [-], [B]
        w, infinity without a window; b, of the cache.
    rates : what the device reaches; c_0 is `decode_pad_tokens`, x `decode_query_passes`, y `decode_group_exponent`

    Returns
    -------
    t, inside a CUDA graph [s]

    Examples
    --------
    >>> rates = AttentionRates(1e9, 1e3, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.0,
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
    of_units = (sequences * kv_heads, visible, token_bytes)
    captured = (rates.multiprocessors, np.minimum(rates.captured_tokens, window_tokens))
    split_bytes = np.maximum(
        decode_scheduled_bytes(*of_units, *kernel), captured_split_bytes(*of_units, *captured)
    )
    query_bytes = 4.0 * sequences * query_tokens * query_heads * width
    moved_bytes = split_bytes + np.maximum(rates.decode_query_passes, FEWEST_QUERY_PASSES) * query_bytes
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


BLOCKS_PER_MULTIPROCESSOR = 2.0
"""Blocks of FlashAttention 2's decode kernel that run on a multiprocessor at once."""
KEY_TILE_TOKENS = 128.0
"""Keys that such a block reads at a time: no part of a context is shorter."""


def captured_split_bytes(
    pairs: Number,
    visible_tokens: Number,
    token_bytes: Number,
    multiprocessors: Number,
    captured_tokens: Number,
) -> Number:
    """Return the traffic that takes as long as the longest block of a decode kernel whose parts a CUDA graph has fixed.

        Q = 2 S min(c, L / x) b,  x = max(1, min(2 S / u, L / 128))

    FlashAttention 2 splits the longest context of its graph; most parts of a shorter one are empty, and a block gets its share of the bandwidth.

    Parameters
    ----------
    pairs, visible_tokens, token_bytes, multiprocessors : [-], [-], [B], [-]
        u, c, b and S of `decode_scheduled_bytes`.
    captured_tokens : [-]
        L, of the graph; 0: none.

    Returns
    -------
    [B]
        Q.

    Examples
    --------
    >>> float(captured_split_bytes(1.0, 3072.0, 1.0, 10.0, 8000.0))
    8000.0

    References
    ----------
    `num_splits_heuristic`, https://github.com/Dao-AILab/flash-attention/blob/v2.6.3/csrc/flash_attn/flash_api.cpp
    """
    slots = BLOCKS_PER_MULTIPROCESSOR * multiprocessors
    parts = np.minimum(slots / np.maximum(pairs, 1e-9), captured_tokens / KEY_TILE_TOKENS)
    part_tokens = captured_tokens / np.maximum(parts, 1.0)
    return np.asarray(slots * np.minimum(visible_tokens, part_tokens) * token_bytes)[()]


def bidirectional_pairs(tokens: Number, window_tokens: Number) -> Number:
    """Return the (query, key) pairs of one prompt whose tokens see both sides.

        pairs = sum over i = 1..n of min(i, r + 1) + min(n + 1 - i, r + 1) - 1,  r = (w - 1) / 2

    Both sums are those of a causal prompt with a window of r + 1; every token sees itself once.

    Parameters
    ----------
    tokens : [-]
        n.
    window_tokens : [-]
        w, keys that a token sees, itself and both sides included; infinity without a window.

    Returns
    -------
    [-]
        pairs.

    Examples
    --------
    Four tokens see four keys each; with one neighbour on each side they see 2, 3, 3 and 2:

    >>> float(bidirectional_pairs(4.0, np.inf)), float(bidirectional_pairs(4.0, 3.0))
    (16.0, 10.0)

    References
    ----------
    Devlin et al. 2018, "BERT", section 3, https://arxiv.org/abs/1810.04805; Warner et al. 2024, "ModernBERT",
    section 2.1.2 on alternating attention, https://arxiv.org/abs/2412.13663
    """
    one_side = attended_pairs(tokens, 0.0, (window_tokens + 1.0) / 2.0)
    return np.asarray(2.0 * one_side - tokens)[()]


def bidirectional_attention_time_s(
    sequences: Number,
    tokens: Number,
    query_heads: Number,
    kv_heads: Number,
    head_dim: Number,
    value_head_dim: Number,
    window_tokens: Number,
    rates: AttentionRates,
) -> Number:
    """Return the time of one layer of attention over whole prompts, with the rates of causal kernels.

        F = 2 s h (d + d_v + 2 e) (pairs + n' c);  t = soft_maximum(F' / P max(1, d / 128)^g, Q / B) + t_0

    As in `prefill_attention_time_s`, whose kernels are the same without their mask; every block is as long as the longest.

    Parameters
    ----------
    sequences, tokens : [-]
        s, prefilled together, and the length of each.
    query_heads, kv_heads : [-]
        h queries, and keys and values, on this rank; all in 2 bytes.
    head_dim, value_head_dim : [-]
        d and d_v.
    window_tokens : [-]
        as for `bidirectional_pairs`.
    rates : what the device reaches; c is `prefill_ramp_tokens`, e `softmax_width`, g `wide_head_exponent`

    Returns
    -------
    t [s]

    Examples
    --------
    >>> rates = AttentionRates(1e3, 1e9, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.5,
    ...                        1.0, 1.0, 0.0, 0.0, 512.0, 1.0, 0.0)
    >>> round(float(bidirectional_attention_time_s(1.0, 3.0, 1.0, 1.0, 1.0, 1.0, np.inf, rates)), 6)
    0.536

    References
    ----------
    Dao 2023, "FlashAttention-2", section 4.1: kernels with and without the causal mask, https://arxiv.org/abs/2307.08691
    """
    width = head_dim + value_head_dim
    padded = padded_queries(tokens)
    capped = np.clip((tokens - window_tokens) / np.maximum(tokens, 1.0), 0.0, 1.0)
    wasted = rates.prefill_ramp_tokens * (1.0 + WINDOW_RAMPS * capped)
    pairs = bidirectional_pairs(tokens, window_tokens) + padded * wasted
    longest_keys = np.minimum(tokens, window_tokens + QUERY_TILE_TOKENS) + wasted
    longest = np.minimum(padded, QUERY_TILE_TOKENS) * longest_keys
    blocks = (sequences * query_heads * pairs, longest, rates.multiprocessors, rates.prefill_tail_fraction)
    flop = 2.0 * (width + 2.0 * rates.softmax_width) * scheduled_flop(*blocks)
    heads = (query_heads, kv_heads, head_dim, value_head_dim)
    moved_bytes = prefill_attention_bytes(sequences, tokens, 0.0, *heads, np.inf, 2.0)
    return prefill_kernel_time_s(flop, moved_bytes, head_dim, rates)
