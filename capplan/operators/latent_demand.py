"""What multi-head latent attention (MLA) has to do: FLOP and bytes, exact and without a device."""

import numpy as np

from capplan.numbers import Number
from capplan.operators.attention_demand import attended_pairs


def mla_prefill_flop(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    rope_head_dim: Number,
    nope_head_dim: Number,
    value_head_dim: Number,
    top_tokens: Number = np.inf,
) -> Number:
    """Return the arithmetic of causal MLA with expanded keys and values (the expansion is a projection).

        F = 2 s h (d_nope + d_rope + d_v) pairs

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
    rope_head_dim : [-]
        d_rope.
    nope_head_dim : [-]
        d_nope.
    value_head_dim : [-]
        d_v.
    top_tokens : [-]
        keys that a sparse indexer leaves to each query; infinity without one.

    Returns
    -------
    [FLOP]
        F.

    Examples
    --------
    >>> float(mla_prefill_flop(1.0, 3.0, 0.0, 1.0, 1.0, 1.0, 1.0))
    36.0

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", section 2.1, https://arxiv.org/abs/2405.04434
    """
    pairs = attended_pairs(new_tokens, past_tokens, top_tokens)
    return 2.0 * sequences * query_heads * (nope_head_dim + rope_head_dim + value_head_dim) * pairs


def mla_prefill_bytes(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    rope_head_dim: Number,
    nope_head_dim: Number,
    value_head_dim: Number,
) -> Number:
    """Return the least traffic of prefill MLA: queries, expanded keys and values of all tokens, outputs.

        Q = 2 s h ((n + n + p)(d_nope + d_rope + d_v))

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
    rope_head_dim : [-]
        d_rope.
    nope_head_dim : [-]
        d_nope.
    value_head_dim : [-]
        d_v.

    Returns
    -------
    [B]
        Q, 2 bytes per element.

    Examples
    --------
    >>> mla_prefill_bytes(1.0, 3.0, 0.0, 1.0, 1.0, 1.0, 1.0)
    36.0

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", section 2.1, https://arxiv.org/abs/2405.04434
    """
    width = nope_head_dim + rope_head_dim + value_head_dim
    return 2.0 * sequences * query_heads * (2.0 * new_tokens + past_tokens) * width


def mla_decode_flop(
    sequences: Number,
    context_tokens: Number,
    query_heads: Number,
    kv_lora_rank: Number,
    rope_head_dim: Number,
    top_tokens: Number = np.inf,
    query_tokens: Number = 1.0,
) -> Number:
    """Return the arithmetic of absorbed decode MLA: scores over latent and rotary part, values over the latent.

        F = 2 s g h (2 r + d_rope) min(c, top)

    Parameters
    ----------
    sequences : [-]
        s.
    context_tokens : [-]
        c.
    query_heads : [-]
        h, on this rank.
    kv_lora_rank : [-]
        r.
    rope_head_dim : [-]
        d_rope.
    top_tokens : [-]
        keys that a sparse indexer leaves; infinity without one.
    query_tokens : [-]
        g, per sequence.

    Returns
    -------
    [FLOP]
        F.

    Examples
    --------
    >>> float(mla_decode_flop(1.0, 10.0, 1.0, 2.0, 1.0))
    100.0

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2 and appendix C, https://arxiv.org/abs/2405.04434
    """
    visible = np.minimum(context_tokens, top_tokens)
    return np.asarray(
        2.0 * sequences * query_tokens * query_heads * (2.0 * kv_lora_rank + rope_head_dim) * visible
    )[()]


def mla_decode_bytes(
    sequences: Number,
    context_tokens: Number,
    query_heads: Number,
    kv_lora_rank: Number,
    rope_head_dim: Number,
    kv_bytes_per_element: Number,
    top_tokens: Number = np.inf,
    query_tokens: Number = 1.0,
) -> Number:
    """Return the least traffic of absorbed decode MLA: the latent cache once for all heads, queries, outputs.

        Q = s (min(c, top) (r + d_rope) b + 2 g h (2 r + d_rope))

    Parameters
    ----------
    sequences : [-]
        s.
    context_tokens : [-]
        c.
    query_heads : [-]
        h, on this rank.
    kv_lora_rank : [-]
        r.
    rope_head_dim : [-]
        d_rope.
    kv_bytes_per_element : [B]
        b.
    top_tokens : [-]
        keys that a sparse indexer leaves; infinity without one.
    query_tokens : [-]
        g, per sequence.

    Returns
    -------
    [B]
        Q.

    Examples
    --------
    >>> float(mla_decode_bytes(1.0, 10.0, 1.0, 2.0, 1.0, 2.0))
    70.0

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2 and appendix C, https://arxiv.org/abs/2405.04434
    """
    cache = np.minimum(context_tokens, top_tokens) * (kv_lora_rank + rope_head_dim) * kv_bytes_per_element
    queries = 2.0 * query_tokens * query_heads * (2.0 * kv_lora_rank + rope_head_dim)
    return np.asarray(sequences * (cache + queries))[()]
