"""Work of softmax attention: FLOP and bytes, exact and independent of the device."""

import numpy as np

from capplan.numbers import Number


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


def prefill_attention_flop(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    head_dim: Number,
    value_head_dim: Number,
    window_tokens: Number,
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
    pairs = attended_pairs(new_tokens, past_tokens, window_tokens)
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
) -> Number:
    """Return the minimum traffic of prefill attention: queries, visible keys and values, outputs, once each.

        Q = s (2 n h (d + d_v) + min(n + p, n + w) k (d + d_v) b)

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
    Dao et al. 2022, "FlashAttention", theorem 2 (lower bound: inputs once), https://arxiv.org/abs/2205.14135
    """
    queries = 2.0 * new_tokens * query_heads * (head_dim + value_head_dim)
    visible = new_tokens + np.minimum(past_tokens, window_tokens)
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
