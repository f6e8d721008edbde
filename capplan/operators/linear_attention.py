"""Mixers with a recurrent state instead of a cache: gated delta nets, short convolutions, Mamba-1 (selective scan) and Mamba-2 (state-space duality)."""

from dataclasses import dataclass

import numpy as np

from capplan.numbers import Number
from capplan.operators.roofline import soft_maximum

CHUNK_TOKENS = 64.0
"""Chunk length of the gated delta rule in the kernels of flash-linear-attention; that of Mamba-2 is of the model."""
SCAN_FLOP = 9.0
"""FLOP of a selective scan for each token and element of the state."""
TENSOR_OVER_VECTOR_RATE = 16.0
"""Peak of tensor cores over that of vector units, by the datasheets of A100 and H100 (312 / 19.5 and 989 / 67 TFLOP/s)."""
SCAN_SHARPNESS = 4.0
"""p of the soft maximum of arithmetic, traffic and the chain of chunks."""
UPDATE_TOKENS = 8.0
"""Up to this many new tokens per sequence, convolutions use their decode kernel."""


@dataclass(frozen=True, slots=True)
class LinearAttentionRates:
    """What a device achieves in recurrent kernels: chunked scan, state update, short convolution."""

    flop_per_s: Number
    """Datasheet peak in bf16."""
    bytes_per_s: Number
    """Datasheet memory bandwidth."""
    chunk_fraction: Number
    """Achieved fraction of the peak in the chunked scan."""
    chunk_memory_fraction: Number
    """Achieved fraction of the bandwidth in the chunked scan."""
    chunk_state_passes: Number
    """Passes of 4 bytes over the state, per chunk."""
    chunk_step_s: Number
    """One sequential step from chunk to chunk."""
    chunk_floor_s: Number
    decode_fraction: Number
    """Achieved fraction of the bandwidth in the state update."""
    decode_floor_s: Number
    convolution_fraction: Number
    """Achieved fraction of the bandwidth in the short convolution over a prompt."""
    convolution_pad_tokens: Number
    """Prompt length below which such a convolution gets no faster."""
    convolution_floor_s: Number
    update_fraction: Number
    """Achieved fraction of the bandwidth in the short convolution of one token."""
    update_floor_s: Number


def scan_time_s(flop: Number, moved_bytes: Number, chunks: Number, rates: LinearAttentionRates) -> Number:
    """Return the time of a chunked scan: arithmetic, traffic, or the chain of chunks, whichever is longest.

        t = soft_maximum(F / P, Q / B, k t_c) + t_0

    Parameters
    ----------
    flop : [FLOP]
        F.
    moved_bytes : [B]
        Q.
    chunks : [-]
        k, of one sequence.
    rates : what the device achieves

    Returns
    -------
    [s]
        t.

    Examples
    --------
    Two chunks, three seconds each, and half a second to start:

    >>> rates = LinearAttentionRates(1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 0.5, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    >>> float(scan_time_s(0.0, 0.0, 2.0, rates))
    6.5

    References
    ----------
    Dao, Gu 2024, "Transformers are SSMs", section 6, https://arxiv.org/abs/2405.21060
    """
    compute_s = flop / (rates.flop_per_s * rates.chunk_fraction)
    memory_s = moved_bytes / (rates.bytes_per_s * rates.chunk_memory_fraction)
    chain_s = chunks * rates.chunk_step_s
    busy_s = soft_maximum(compute_s, memory_s, SCAN_SHARPNESS)
    return soft_maximum(busy_s, chain_s, SCAN_SHARPNESS) + rates.chunk_floor_s


def gated_delta_prefill_flop(
    sequences: Number,
    new_tokens: Number,
    value_heads: Number,
    key_head_dim: Number,
    value_head_dim: Number,
    chunk_tokens: Number,
    *,
    delta: bool = True,
) -> Number:
    """Return the arithmetic of the chunked gated delta rule.

        F = 2 s n h (c (3 d_k + 2 d_v) + c^2 / 6 + 3 d_k d_v)

    Products of a chunk, in the WY form: K K^T, the inverse T of the unit lower triangle I + tril(diag(beta) K K^T), W = T K, U = T V;
    U - W S, Q S, Q K^T, that times the former, and K^T times it into the state S.

    Parameters
    ----------
    sequences : [-]
        s.
    new_tokens : [-]
        n, of each.
    value_heads : [-]
        h, on this rank.
    key_head_dim : [-]
        d_k.
    value_head_dim : [-]
        d_v.
    chunk_tokens : [-]
        c, chunk length; scores are quadratic within a chunk.
    delta : a state is corrected by what it holds for a key already; False (lightning attention): keys and values are added to it
        as they are, F = 2 s n h (c (d_k + d_v) + 2 d_k d_v)

    Returns
    -------
    [FLOP]
        F.

    Examples
    --------
    >>> round(gated_delta_prefill_flop(1.0, 1.0, 1.0, 1.0, 1.0, 6.0), 6)
    78.0

    References
    ----------
    Yang et al. 2024, "Gated Delta Networks", section 3.3 (the extended WY form and its chunks), https://arxiv.org/abs/2412.06464; Golub, Van Loan, "Matrix Computations", section 3.1
    """
    if not delta:
        inside = chunk_tokens * (key_head_dim + value_head_dim)
        return 2.0 * sequences * new_tokens * value_heads * (inside + 2.0 * key_head_dim * value_head_dim)
    inside = chunk_tokens * (3.0 * key_head_dim + 2.0 * value_head_dim) + chunk_tokens**2 / 6.0
    return 2.0 * sequences * new_tokens * value_heads * (inside + 3.0 * key_head_dim * value_head_dim)


def gated_delta_prefill_time_s(
    sequences: Number,
    new_tokens: Number,
    key_heads: Number,
    value_heads: Number,
    key_head_dim: Number,
    value_head_dim: Number,
    state_bytes_per_element: Number,
    rates: LinearAttentionRates,
    *,
    delta: bool = True,
) -> Number:
    """Return the time of the chunked gated delta rule over a prompt.

        Q = tokens once + state once in and out and once per chunk;  t as in `scan_time_s`

    Parameters
    ----------
    sequences : [-]
        prefilled together.
    new_tokens : [-]
        n, of each.
    key_heads : [-]
        on this rank.
    value_heads : [-]
        on this rank.
    key_head_dim : [-]
        of queries and keys.
    value_head_dim : [-]
        of values.
    state_bytes_per_element : [B]
        of the recurrent state.
    rates : what the device achieves
    delta : as in `gated_delta_prefill_flop`

    Returns
    -------
    [s]
        t, without convolution and projections.

    Examples
    --------
    >>> rates = LinearAttentionRates(1e3, 1e9, 1.0, 1.0, 0.0, 0.0, 0.5, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    >>> round(float(gated_delta_prefill_time_s(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0, rates)), 6)
    2.511333

    References
    ----------
    Yang et al. 2024, "Gated Delta Networks", section 3.3, https://arxiv.org/abs/2412.06464
    """
    flop = gated_delta_prefill_flop(
        sequences, new_tokens, value_heads, key_head_dim, value_head_dim, CHUNK_TOKENS, delta=delta
    )
    token_width = 2.0 * key_heads * key_head_dim + 2.0 * value_heads * value_head_dim
    state = sequences * value_heads * key_head_dim * value_head_dim
    chunks = np.ceil(new_tokens / CHUNK_TOKENS)
    passes = 4.0 * rates.chunk_state_passes * chunks
    moved_bytes = 2.0 * sequences * new_tokens * token_width + state * (
        passes + 2.0 * state_bytes_per_element
    )
    return scan_time_s(flop, moved_bytes, chunks, rates)


def gated_delta_decode_time_s(
    sequences: Number,
    key_heads: Number,
    value_heads: Number,
    key_head_dim: Number,
    value_head_dim: Number,
    state_bytes_per_element: Number,
    rates: LinearAttentionRates,
    query_tokens: Number = 1.0,
) -> Number:
    """Return the time of one recurrent step: every state is read, updated and written.

        t = 2 s h d_k d_v b / (B e) + t_0

    Parameters
    ----------
    sequences : [-]
        s.
    key_heads : [-]
        on this rank.
    value_heads : [-]
        h, on this rank.
    key_head_dim : [-]
        d_k.
    value_head_dim : [-]
        d_v.
    state_bytes_per_element : [B]
        b.
    rates : what the device achieves
    query_tokens : [-]
        per sequence; the state is written once per token, to be able to roll back.

    Returns
    -------
    [s]
        t, inside a CUDA graph, without convolution and projections.

    Examples
    --------
    >>> rates = LinearAttentionRates(1e12, 1e3, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.5, 1.0, 0.0, 0.0, 1.0, 0.0)
    >>> round(float(gated_delta_decode_time_s(1.0, 1.0, 1.0, 10.0, 10.0, 4.0, rates)), 6)
    1.38

    References
    ----------
    Yang et al. 2024, "Gated Delta Networks", section 3.1, equation 10, https://arxiv.org/abs/2412.06464
    """
    state = value_heads * key_head_dim * value_head_dim * state_bytes_per_element
    tokens_bytes = 2.0 * query_tokens * 2.0 * (key_heads * key_head_dim + value_heads * value_head_dim)
    moved_bytes = sequences * (state * (1.0 + query_tokens) + tokens_bytes)
    return moved_bytes / (rates.bytes_per_s * rates.decode_fraction) + rates.decode_floor_s


def short_convolution_bytes(
    sequences: Number, new_tokens: Number, channels: Number, kernel: Number
) -> Number:
    """Return the traffic of a causal depthwise convolution, its state included.

        Q = 2 s c (2 n + 2 (w - 1)) + 2 c w

    Parameters
    ----------
    sequences : [-]
        s.
    new_tokens : [-]
        n, of each; 1 in decode.
    channels : [-]
        c, on this rank.
    kernel : [-]
        w, taps.

    Returns
    -------
    [B]
        Q, 2 bytes per element.

    Examples
    --------
    >>> short_convolution_bytes(1.0, 1.0, 1.0, 4.0)
    24.0

    References
    ----------
    Gu, Dao 2023, "Mamba", section 3.4, https://arxiv.org/abs/2312.00752
    """
    return 4.0 * sequences * channels * (new_tokens + kernel - 1.0) + 2.0 * channels * kernel


def short_convolution_time_s(
    sequences: Number, new_tokens: Number, channels: Number, kernel: Number, rates: LinearAttentionRates
) -> Number:
    """Return the time of a causal depthwise convolution.

        t = Q / (B e) + t_0, with the rates of the decode kernel up to 8 tokens

    Parameters
    ----------
    sequences : [-]
        s, together.
    new_tokens : [-]
        of each; 1 in decode.
    channels : [-]
        on this rank.
    kernel : [-]
        taps.
    rates : what the device achieves

    Returns
    -------
    [s]
        t, inside a CUDA graph.

    Examples
    --------
    >>> rates = LinearAttentionRates(1e12, 24.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.5, 0.0, 0.0, 1.0, 0.5)
    >>> float(short_convolution_time_s(1.0, 1.0, 1.0, 4.0, rates))
    1.5

    References
    ----------
    Gu, Dao 2023, "Mamba", section 3.4, https://arxiv.org/abs/2312.00752
    """
    moved_bytes = short_convolution_bytes(sequences, new_tokens, channels, kernel)
    update_s = moved_bytes / (rates.bytes_per_s * rates.update_fraction) + rates.update_floor_s
    padded = soft_maximum(new_tokens, rates.convolution_pad_tokens, SCAN_SHARPNESS)
    prompt_bytes = short_convolution_bytes(sequences, padded, channels, kernel)
    prompt_s = prompt_bytes / (rates.bytes_per_s * rates.convolution_fraction) + rates.convolution_floor_s
    return np.where(new_tokens <= UPDATE_TOKENS, update_s, np.maximum(prompt_s, update_s))


def state_space_prefill_flop(
    sequences: Number,
    new_tokens: Number,
    heads: Number,
    head_dim: Number,
    state_size: Number,
    groups: Number,
    chunk_tokens: Number,
) -> Number:
    """Return the arithmetic of the chunked Mamba-2 scan.

        F = 2 s n (g c N + h p c + h p N + h p N),  c = min(n, chunk)

    The four products of a chunk: C B^T of each group, that times X, B^T X into the state, and C times the state before.
    What passes a state on to the next chunk, once per chunk, is left out; the masked half of C B^T is counted.

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
    chunk_tokens : [-]
        of the model; a shorter prompt is one chunk.

    Returns
    -------
    [FLOP]
        F.

    Examples
    --------
    >>> float(state_space_prefill_flop(1.0, 256.0, 1.0, 1.0, 1.0, 1.0, 256.0))
    263168.0

    References
    ----------
    Dao, Gu 2024, "Transformers are SSMs", section 6.1 to 6.3, https://arxiv.org/abs/2405.21060
    """
    chunk = np.minimum(new_tokens, chunk_tokens)
    inner = heads * head_dim
    per_token = groups * chunk * state_size + inner * chunk + 2.0 * inner * state_size
    return 2.0 * sequences * new_tokens * per_token


def state_space_prefill_time_s(
    sequences: Number,
    new_tokens: Number,
    heads: Number,
    head_dim: Number,
    state_size: Number,
    groups: Number,
    chunk_tokens: Number,
    state_bytes_per_element: Number,
    rates: LinearAttentionRates,
) -> Number:
    """Return the time of the chunked Mamba-2 scan over a prompt.

        F as in `state_space_prefill_flop`;  Q = tokens once + state once in and out and once per chunk;  t as in `scan_time_s`

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
    chunk_tokens : [-]
        of the model.
    state_bytes_per_element : [B]
        of the recurrent state.
    rates : what the device achieves

    Returns
    -------
    [s]
        t, without convolution and projections.

    Examples
    --------
    Four multiply-adds at 1000 FLOP/s, and half a second to start:

    >>> rates = LinearAttentionRates(1e3, 1e9, 1.0, 1.0, 0.0, 0.0, 0.5, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    >>> round(float(state_space_prefill_time_s(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 256.0, 4.0, rates)), 6)
    0.508

    References
    ----------
    Dao, Gu 2024, "Transformers are SSMs", section 6, https://arxiv.org/abs/2405.21060
    """
    flop = state_space_prefill_flop(sequences, new_tokens, heads, head_dim, state_size, groups, chunk_tokens)
    chunks = np.ceil(new_tokens / chunk_tokens)
    tokens_bytes = 4.0 * sequences * new_tokens * (heads * head_dim + groups * state_size)
    passes = 4.0 * rates.chunk_state_passes * chunks
    state_bytes = sequences * heads * head_dim * state_size * (passes + 2.0 * state_bytes_per_element)
    return scan_time_s(flop, tokens_bytes + state_bytes, chunks, rates)


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
        t, without convolution and projections. 9 is `SCAN_FLOP`, 16 `TENSOR_OVER_VECTOR_RATE`.

    Examples
    --------
    >>> rates = LinearAttentionRates(1.6e4, 1e9, 1.0, 1.0, 0.0, 0.0, 0.5, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    >>> round(float(selective_scan_prefill_time_s(1.0, 1.0, 1.0, 1.0, 4.0, rates)), 6)
    0.509

    References
    ----------
    Gu, Dao 2023, "Mamba", section 3.3.2, https://arxiv.org/abs/2312.00752; the authors on 9 FLOP an
    element of the state, https://github.com/state-spaces/mamba/issues/110
    """
    tokens_bytes = 2.0 * sequences * new_tokens * (4.0 * inner_size + 2.0 * state_size)
    state_bytes = 2.0 * sequences * inner_size * state_size * state_bytes_per_element
    flop = SCAN_FLOP * sequences * new_tokens * inner_size * state_size
    compute_s = flop * TENSOR_OVER_VECTOR_RATE / rates.flop_per_s
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
