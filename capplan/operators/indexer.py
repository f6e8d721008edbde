"""Sparse indexers: small heads that score every key, or every compressed entry, so that attention reads only the best."""

import numpy as np

from capplan.numbers import Number
from capplan.operators.attention import DECODE_SHARPNESS
from capplan.operators.attention_demand import attended_pairs
from capplan.operators.latent_attention import LatentAttentionRates
from capplan.operators.roofline import roofline_time_s

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
