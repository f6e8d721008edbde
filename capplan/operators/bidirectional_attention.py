"""Softmax attention of encoders: every token of a prompt sees the tokens on both sides of it, and nothing is cached."""

import numpy as np

from capplan.numbers import Number
from capplan.operators.attention import (
    QUERY_TILE_TOKENS,
    WINDOW_RAMPS,
    AttentionRates,
    attended_pairs,
    padded_queries,
    prefill_attention_bytes,
    prefill_kernel_time_s,
)
from capplan.operators.roofline import scheduled_flop


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
    >>> rates = AttentionRates(1e3, 1e9, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 8.0, 0.5,
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
