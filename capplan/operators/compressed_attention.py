"""Attention over a window and compressed entries (DeepSeek V4), and sparse indexers: small heads that score every key, so that attention reads only the best.

Attention over compressed entries is composed from the formulas of latent attention: all heads share one vector per token or entry,
as in absorbed latent attention without a rotary part next to it. No such kernel was measured: the rates are those of latent attention, an assumption.
"""

import numpy as np

from capplan.numbers import Number
from capplan.operators.attention import DECODE_SHARPNESS, attended_pairs
from capplan.operators.latent_attention import (
    LatentAttentionRates,
    mla_attention_decode_time_s,
    sparse_attention_prefill_time_s,
)
from capplan.operators.roofline import roofline_time_s


def visible_vectors(
    context_tokens: Number, window_tokens: Number, entry_tokens: Number, top_entries: Number
) -> Number:
    """Return how many vectors a decoding query reads: its window, and the compressed entries that it may read.

        v = min(c, w) + min(c / r, k)

    Parameters
    ----------
    context_tokens : [tokens]
        c.
    window_tokens : [tokens]
        w.
    entry_tokens : [tokens]
        r, tokens compressed into one entry; infinity without entries.
    top_entries : [-]
        k, entries that an indexer selects; infinity without one.

    Returns
    -------
    [-]
        v.

    Examples
    --------
    >>> float(visible_vectors(8192.0, 128.0, 4.0, 512.0)), float(visible_vectors(8192.0, 128.0, 128.0, np.inf))
    (640.0, 192.0)

    References
    ----------
    Hugging Face transformers 5.23, `DeepseekV4Attention`, models/deepseek_v4.
    """
    vectors: Number = np.minimum(context_tokens, window_tokens) + np.minimum(
        context_tokens / entry_tokens, top_entries
    )
    return vectors


def visible_pairs(
    new_tokens: Number,
    past_tokens: Number,
    window_tokens: Number,
    entry_tokens: Number,
    top_entries: Number,
) -> Number:
    """Return the pairs of query and vector that prefill multiplies.

        pairs = pairs(n, p, w) + pairs(n, p, r k) / r

    Parameters
    ----------
    new_tokens : [tokens]
        n.
    past_tokens : [tokens]
        p, already cached.
    window_tokens : [tokens]
        w.
    entry_tokens : [tokens]
        r; infinity without entries.
    top_entries : [-]
        k; infinity without an indexer.

    Returns
    -------
    [-]
        pairs; an incomplete entry counts in proportion.

    Examples
    --------
    Two tokens after 100 see two tokens each, and about 25 entries of four:

    >>> float(visible_pairs(2.0, 100.0, 2.0, 4.0, np.inf))
    54.75

    References
    ----------
    Hugging Face transformers 5.23, `DeepseekV4CSACompressor`, models/deepseek_v4.
    """
    of_window = attended_pairs(new_tokens, past_tokens, window_tokens)
    return of_window + attended_pairs(new_tokens, past_tokens, entry_tokens * top_entries) / entry_tokens


def compressed_decode_time_s(
    sequences: Number,
    context_tokens: Number,
    query_heads: Number,
    head_dim: Number,
    window_tokens: Number,
    entry_tokens: Number,
    top_entries: Number,
    kv_bytes_per_element: Number,
    rates: LatentAttentionRates,
    query_tokens: Number = 1.0,
) -> Number:
    """Return the time of decode attention of one layer, without the indexer.

        t = absorbed latent attention over v = min(c, w) + min(c / r, k) vectors of d elements

    Parameters
    ----------
    sequences : [-]
        running sequences.
    context_tokens : [tokens]
        c, of each.
    query_heads : [-]
        on this rank.
    head_dim : [elements]
        d; one vector serves as key and value.
    window_tokens : [tokens]
        w.
    entry_tokens : [tokens]
        r; infinity without entries.
    top_entries : [-]
        k; infinity without an indexer.
    kv_bytes_per_element : [B]
        of the cache.
    rates : what the device achieves in latent attention
    query_tokens : [-]
        per sequence.

    Returns
    -------
    [s]
        t, inside a CUDA graph.

    Examples
    --------
    Ten vectors of two elements and two bytes at 1000 B/s, and queries of 8 bytes:

    >>> rates = LatentAttentionRates(1e9, 1e3, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.0,
    ...                              1.0, 1.0, 0.0, 0.0, 512.0, 0.5, 0.0, 1.0, 1.0, 0.0)
    >>> round(float(compressed_decode_time_s(1.0, 8.0, 1.0, 2.0, 8.0, 4.0, np.inf, 2.0, rates)), 6)
    0.048

    References
    ----------
    DeepSeek-AI 2025, FlashMLA, https://github.com/deepseek-ai/FlashMLA
    """
    vectors = visible_vectors(context_tokens, window_tokens, entry_tokens, top_entries)
    return mla_attention_decode_time_s(
        sequences, vectors, query_heads, head_dim, 0.0, kv_bytes_per_element, rates, query_tokens
    )


def compressed_prefill_time_s(
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    head_dim: Number,
    window_tokens: Number,
    entry_tokens: Number,
    top_entries: Number,
    kv_bytes_per_element: Number,
    rates: LatentAttentionRates,
    sequences: Number = 1.0,
) -> Number:
    """Return the time of prefill attention of one layer, without the indexer.

        t = prefill(h, w) + prefill(h / r, r k) - t_0:  h heads over one entry per r tokens cost as much as h / r heads over all tokens

    Parameters
    ----------
    new_tokens, past_tokens : [tokens]
        of the chunk, and cached before it.
    query_heads, head_dim : [-], [elements]
        h, on this rank; one vector serves as key and value.
    window_tokens : [tokens]
        w.
    entry_tokens, top_entries : [-]
        r tokens an entry, infinity without entries; k, infinity without an indexer.
    kv_bytes_per_element, sequences : [B], [-]
        of the cache; prefilled together.
    rates : what the device achieves in latent attention; t_0 is its floor, paid once: one kernel reads both

    Returns
    -------
    [s]
        t.

    Examples
    --------
    Three tokens, six pairs of one head, two multiply-adds each: 24 FLOP at 1000 FLOP/s, and no entries:

    >>> rates = LatentAttentionRates(1e3, 1e9, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.0,
    ...                              1.0, 1.0, 0.0, 0.0, 512.0, 0.5, 0.0, 1.0, 1.0, 0.0)
    >>> seconds = compressed_prefill_time_s(3.0, 0.0, 1.0, 1.0, 128.0, np.inf, np.inf, 2.0, rates)
    >>> 0.024 <= float(seconds) < 0.03
    True

    References
    ----------
    DeepSeek-AI 2025, FlashMLA, sparse prefill, https://github.com/deepseek-ai/FlashMLA
    """
    head = (head_dim, 0.0, kv_bytes_per_element, rates)
    near = np.minimum(past_tokens, window_tokens)
    seconds = sparse_attention_prefill_time_s(sequences, new_tokens, near, query_heads, *head, window_tokens)
    if np.all(np.isinf(entry_tokens)):
        return seconds
    reach = entry_tokens * top_entries
    far = np.minimum(past_tokens, reach)
    heads = query_heads / entry_tokens
    beyond = sparse_attention_prefill_time_s(sequences, new_tokens, far, heads, *head, reach)
    return seconds + beyond - rates.prefill_floor_s


INDEX_KEY_BYTES = 1.0 + 4.0 / 128.0
"""Index keys are stored in fp8 with an fp32 scale per 128 elements."""


def indexer_time_s(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    index_heads: Number,
    index_head_dim: Number,
    key_bytes_per_element: Number,
    rates: LatentAttentionRates,
) -> Number:
    """Return the time a sparse indexer takes to score every visible key for every query.

        F = 2 s i d pairs,  Q = s (n + p) d b

    Parameters
    ----------
    sequences : [-]
        s.
    new_tokens : [-]
        n, 1 in decode.
    past_tokens : [-]
        p.
    index_heads : [-]
        i, replicated on every rank.
    index_head_dim : [-]
        d.
    key_bytes_per_element : [B]
        b, of the index cache.
    rates : what the device reaches

    Returns
    -------
    [s]
        t, without the projections of the indexer.

    Examples
    --------
    Ten keys of two bytes at 1000 B/s:

    >>> rates = LatentAttentionRates(1e9, 1e3, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.0,
    ...                              1.0, 1.0, 0.0, 0.0, 512.0, 0.5, 0.0, 1.0, 1.0, 0.0)
    >>> round(float(indexer_time_s(1.0, 1.0, 9.0, 1.0, 2.0, 1.0, rates)), 6)
    0.02

    References
    ----------
    DeepSeek-AI 2025, "DeepSeek-V3.2-Exp", section 1, equation 1,
    https://github.com/deepseek-ai/DeepSeek-V3.2-Exp
    """
    pairs = attended_pairs(new_tokens, past_tokens, np.inf)
    return roofline_time_s(
        2.0 * sequences * index_heads * index_head_dim * pairs,
        sequences * (new_tokens + past_tokens) * index_head_dim * key_bytes_per_element,
        rates.flop_per_s * rates.prefill_fraction,
        rates.bytes_per_s * rates.decode_fraction,
        DECODE_SHARPNESS,
        rates.decode_floor_s,
    )


def entry_indexer_time_s(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    index_heads: Number,
    index_head_dim: Number,
    entry_tokens: Number,
    rates: LatentAttentionRates,
) -> Number:
    """Return the time an indexer takes to score every visible entry for every query.

        F = 2 s i d pairs / r,  Q = s (n + p) d b / r

    Parameters
    ----------
    sequences : [-]
        s.
    new_tokens : [tokens]
        n, 1 in decode.
    past_tokens : [tokens]
        p.
    index_heads : [-]
        i, replicated on every rank.
    index_head_dim : [elements]
        d.
    entry_tokens : [tokens]
        r, tokens compressed into one entry.
    rates : what the device reaches in latent attention

    Returns
    -------
    [s]
        without the projections of the indexer.

    Examples
    --------
    Two entries of 132 bytes at 1000 B/s:

    >>> rates = LatentAttentionRates(1e9, 1e3, 100.0, 1.0, 1.0, 0.0, 0.0, 0.0, 8.0, 0.0,
    ...                              1.0, 1.0, 0.0, 0.0, 512.0, 0.5, 0.0, 1.0, 1.0, 0.0)
    >>> round(float(entry_indexer_time_s(1.0, 1.0, 7.0, 1.0, 128.0, 4.0, rates)), 6)
    0.264

    References
    ----------
    Hugging Face transformers 5.23, `DeepseekV4Indexer`, models/deepseek_v4.
    """
    return indexer_time_s(
        sequences, new_tokens, past_tokens, index_heads / entry_tokens, index_head_dim,
        INDEX_KEY_BYTES / entry_tokens, rates,
    )  # fmt: skip
