"""State-space mixers: Mamba-1 (selective scan) and Mamba-2 (state-space duality)."""

import numpy as np

from capplan.numbers import Number
from capplan.operators.linear_attention import CHUNK_TOKENS, LinearAttentionRates, scan_time_s


def state_space_prefill_time_s(
    sequences: Number,
    new_tokens: Number,
    heads: Number,
    head_dim: Number,
    state_size: Number,
    groups: Number,
    state_bytes_per_element: Number,
    rates: LinearAttentionRates,
) -> Number:
    """Return the time of the chunked Mamba-2 scan over a prompt.

        F = 2 s n (h p (c + 3 N) + g c N), c = 64;  t as in `scan_time_s`

    Parameters
    ----------
    sequences : [-]
        s.
    new_tokens : [-]
        n, of each.
    heads : [-]
        h, on this rank.
    head_dim : [-]
        p; heads x head_dim is the inner width.
    state_size : [-]
        N.
    groups : [-]
        g, heads that share B and C.
    state_bytes_per_element : [B]
        of the recurrent state.
    rates : what the device achieves

    Returns
    -------
    [s]
        t, without convolution and projections.

    Examples
    --------
    >>> rates = LinearAttentionRates(1e3, 1e9, 1.0, 1.0, 0.0, 0.0, 0.5, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    >>> round(float(state_space_prefill_time_s(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0, rates)), 6)
    0.762

    References
    ----------
    Dao, Gu 2024, "Transformers are SSMs", section 6, https://arxiv.org/abs/2405.21060
    """
    chunk = CHUNK_TOKENS
    per_token = heads * head_dim * (chunk + 3.0 * state_size) + groups * chunk * state_size
    tokens_bytes = 4.0 * sequences * new_tokens * (heads * head_dim + groups * state_size)
    passes = 4.0 * rates.chunk_state_passes * np.ceil(new_tokens / chunk)
    state_bytes = sequences * heads * head_dim * state_size * (passes + 2.0 * state_bytes_per_element)
    flop = 2.0 * sequences * new_tokens * per_token
    return scan_time_s(flop, tokens_bytes + state_bytes, new_tokens, rates)


def selective_scan_prefill_time_s(
    sequences: Number,
    new_tokens: Number,
    inner_size: Number,
    state_size: Number,
    state_bytes_per_element: Number,
    rates: LinearAttentionRates,
) -> Number:
    """Return the time of the Mamba-1 selective scan over a prompt, which multiplies without tensor cores.

        F = 9 s n d N at the peak / 16;  Q = tokens once + state twice

    Parameters
    ----------
    sequences : [-]
        s.
    new_tokens : [-]
        n, of each.
    inner_size : [-]
        d, on this rank.
    state_size : [-]
        N.
    state_bytes_per_element : [B]
        of the recurrent state.
    rates : what the device achieves

    Returns
    -------
    [s]
        t, without convolution and projections. 16 is the ratio of tensor to vector rate on the
        A100 and H100 datasheets (312 / 19.5 and 989 / 67 TFLOP/s).

    Examples
    --------
    >>> rates = LinearAttentionRates(1.6e4, 1e9, 1.0, 1.0, 0.0, 0.0, 0.5, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    >>> round(float(selective_scan_prefill_time_s(1.0, 1.0, 1.0, 1.0, 4.0, rates)), 6)
    0.509

    References
    ----------
    Gu, Dao 2023, "Mamba", section 3.3.2 and appendix D, https://arxiv.org/abs/2312.00752
    """
    tokens_bytes = 2.0 * sequences * new_tokens * (4.0 * inner_size + 2.0 * state_size)
    state_bytes = 2.0 * sequences * inner_size * state_size * state_bytes_per_element
    compute_s = 9.0 * sequences * new_tokens * inner_size * state_size * 16.0 / rates.flop_per_s
    memory_s = (tokens_bytes + state_bytes) / (rates.bytes_per_s * rates.chunk_memory_fraction)
    return np.maximum(compute_s / rates.chunk_fraction, memory_s) + rates.chunk_floor_s


def state_space_decode_time_s(
    sequences: Number,
    inner_size: Number,
    state_size: Number,
    groups: Number,
    state_bytes_per_element: Number,
    rates: LinearAttentionRates,
    query_tokens: Number = 1.0,
) -> Number:
    """Return the time of one recurrent step of Mamba-1 or Mamba-2: every state is read and written.

        t = s (2 d N b + tokens) / (B e) + t_0

    Parameters
    ----------
    sequences : [-]
        s.
    inner_size : [-]
        d, on this rank (heads x head_dim).
    state_size : [-]
        N.
    groups : [-]
        that share B and C.
    state_bytes_per_element : [B]
        b.
    rates : what the device achieves
    query_tokens : [-]
        per sequence.

    Returns
    -------
    [s]
        t, inside a CUDA graph, without convolution and projections.

    Examples
    --------
    >>> rates = LinearAttentionRates(1e12, 1e3, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.5, 1.0, 0.0, 0.0, 1.0, 0.0)
    >>> round(float(state_space_decode_time_s(1.0, 10.0, 10.0, 1.0, 4.0, rates)), 6)
    1.4

    References
    ----------
    Gu, Dao 2023, "Mamba", section 2, equation 2a, https://arxiv.org/abs/2312.00752
    """
    state = inner_size * state_size * state_bytes_per_element
    tokens_bytes = 2.0 * query_tokens * (3.0 * inner_size + 2.0 * groups * state_size)
    moved_bytes = sequences * (state * (1.0 + query_tokens) + tokens_bytes)
    return moved_bytes / (rates.bytes_per_s * rates.decode_fraction) + rates.decode_floor_s
