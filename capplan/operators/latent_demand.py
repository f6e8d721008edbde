"""Work of multi-head latent attention (MLA): FLOP and bytes, exact and independent of the device."""

import numpy as np

from capplan.numbers import Number
from capplan.operators.attention_demand import attended_pairs


def mla_prefill_flop(
    sequences: Number,
    new_tokens: Number,
    past_tokens: Number,
    query_heads: Number,
    width: Number,
    top_tokens: Number = np.inf,
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
    top_tokens : [-]
        keys per query that a sparse indexer selects; infinity without one.

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
    pairs = attended_pairs(new_tokens, past_tokens, top_tokens)
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
