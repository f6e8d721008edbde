"""Where demand meets supply: the only place in which FLOP and bytes become seconds."""

from dataclasses import dataclass, field

import numpy as np

from capplan.numbers import Number

TILES = ((64.0, 64.0), (128.0, 128.0), (256.0, 128.0))
"""Output tiles (rows, columns) that a matmul library chooses from; CUTLASS and cuBLAS have more, which
changes no prediction by more than 1 %."""
SPLITS = (1.0, 4.0)
"""Parts that a library splits the summed dimension into when there are fewer tiles than multiprocessors."""
SUSTAINED_S = 500e-6
"""Compute time after which half of the loss to lower clocks has set in."""


def soft_maximum(first: Number, second: Number, sharpness: Number) -> Number:
    """Return a smooth maximum: two resources that overlap, but not perfectly.

        m = (a^p + b^p)^(1/p)

    Parameters
    ----------
    first : [-]
        a, not negative; any unit, the same as `second`.
    second : [-]
        b, not negative.
    sharpness : [-]
        p, at least 1; 1 is the sum (no overlap), infinity the maximum (perfect overlap).

    Returns
    -------
    [-]
        m, never below the larger of both.

    Examples
    --------
    >>> float(soft_maximum(3.0, 4.0, 2.0))
    5.0

    References
    ----------
    p-norm as a smooth maximum: https://en.wikipedia.org/wiki/Smooth_maximum, section "p-norm".
    """
    larger = np.maximum(first, second)
    ratio = np.minimum(first, second) / np.maximum(larger, 1e-300)
    return np.asarray(larger * (1.0 + ratio**sharpness) ** (1.0 / sharpness))[()]


def roofline_time_s(
    flop: Number,
    moved_bytes: Number,
    flop_per_s: Number,
    bytes_per_s: Number,
    sharpness: Number,
    floor_s: Number,
) -> Number:
    """Return the time of one operator whose arithmetic and traffic overlap, start included.

        t = ((F / P)^p + (Q / B)^p)^(1/p) + t_0

    Parameters
    ----------
    flop : [FLOP]
        F, a multiply-add counts 2.
    moved_bytes : [B]
        Q, traffic to and from main memory.
    flop_per_s : [FLOP/s]
        P, rate that the operator achieves, not the datasheet peak.
    bytes_per_s : [B/s]
        B, rate that the operator achieves.
    sharpness : [-]
        p of the soft maximum.
    floor_s : [s]
        t_0, launch and drain of an empty kernel.

    Returns
    -------
    [s]
        t.

    Examples
    --------
    At 1000 FLOP/s and 10 B/s, 3 s of arithmetic and 4 s of traffic and half a second to start:

    >>> float(roofline_time_s(3000.0, 40.0, 1000.0, 10.0, 2.0, 0.5))
    5.5

    References
    ----------
    Williams, Waterman, Patterson 2009, "Roofline", doi:10.1145/1498765.1498785.
    """
    return soft_maximum(flop / flop_per_s, moved_bytes / bytes_per_s, sharpness) + floor_s


def waves(blocks: Number, multiprocessors: Number, wave_fraction: Number) -> Number:
    """Return how many waves a grid of equal blocks takes, at least one.

        w = max(1, (1 - q) b / S + q ceil(b / S))

    Parameters
    ----------
    blocks : [-]
        b.
    multiprocessors : [-]
        S.
    wave_fraction : [-]
        q, 1 where the last wave waits for its last block, 0 where work is spread evenly.

    Returns
    -------
    [-]
        w.

    Examples
    --------
    >>> float(waves(150.0, 100.0, 1.0)), float(waves(150.0, 100.0, 0.0))
    (2.0, 1.5)

    References
    ----------
    NVIDIA, "Matrix Multiplication Background User's Guide", section "Wave Quantization",
    https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/
    """
    even = blocks / multiprocessors
    return np.maximum(1.0, (1.0 - wave_fraction) * even + wave_fraction * np.ceil(even))


def scheduled_flop(
    total_flop: Number, longest_flop: Number, multiprocessors: Number, tail_fraction: Number
) -> Number:
    """Return the work of unequal blocks with the idle time they cause, as work of the whole device.

        F' = F + q F_max S

    Parameters
    ----------
    total_flop : [FLOP]
        F, of all blocks.
    longest_flop : [FLOP]
        F_max, of the longest block, which runs on one multiprocessor.
    multiprocessors : [-]
        S.
    tail_fraction : [-]
        q, fraction of the longest block that is not hidden; Graham's bound for list scheduling has 1 - 1/S.

    Returns
    -------
    [FLOP]
        F'.

    Examples
    --------
    >>> scheduled_flop(100.0, 5.0, 10.0, 0.5)
    125.0

    References
    ----------
    Graham 1969, "Bounds on multiprocessing timing anomalies", theorem 2, doi:10.1137/0117039.
    """
    return total_flop + tail_fraction * longest_flop * multiprocessors


@dataclass(frozen=True, slots=True)
class TiledKernelRates:
    """What a device achieves in one kernel of tiled matrix products."""

    flop_per_s: Number
    """P_0, datasheet peak of the compute dtype, dense."""
    bytes_per_s: Number
    """B_0, datasheet memory bandwidth."""
    multiprocessors: Number
    """S."""
    compute_fraction: Number
    """P / P_0, achieved fraction of the peak in large tiles."""
    memory_fraction: Number
    """B / B_0, achieved fraction of the bandwidth on a fully busy device."""
    sharpness: Number
    """p of `soft_maximum`."""
    floor_s: Number
    """Fixed cost of one kernel inside a CUDA graph."""
    tile_edge: Number
    """h, rows (or columns) of a tile at which it achieves half the rate of a very large one: small tiles reuse operands less."""
    start_inputs: Number
    """k_0, prologue and epilogue of a tile, in inputs."""
    wave_fraction: Number
    """q of `waves`: 1 where the last wave waits for its last tile, 0 where work is spread evenly."""
    starved_exponent: Number
    """z, bandwidth lost to multiprocessors without a column of 128 outputs: 0 none, 1 their whole share."""
    vector_fraction: Number = field(default=0.0, kw_only=True)
    """v, achieved fraction of the peak one row after the other, without matrix units; 0: the library has no such kernel."""


@dataclass(frozen=True, slots=True)
class TiledProduct:
    """One matrix product, or a group of them in one kernel, as tiles see it."""

    row_tiles: tuple[Number, ...]
    """r, tiles along the rows, for each tile size."""
    inputs: Number
    """k, what is summed over."""
    outputs: Number
    """n."""
    row_bytes: Number
    """Q_r, inputs, once."""
    column_bytes: Number
    """Q_c, weights and outputs, once."""
    groups: Number = 1.0
    """g, matrices that are multiplied together: 1, or the experts hit."""
    partial_bytes: Number = 0.0
    """Bytes of one part of a split product, written and summed again."""


def tiled_time_s(
    product: TiledProduct,
    tiles: tuple[tuple[Number, float], ...],
    splits: tuple[float, ...],
    rates: TiledKernelRates,
    sustained_loss: Number = 0.0,
    largest_split: Number = np.inf,
) -> Number:
    """Return the time of a tiled matrix product, with the best tile and split as a library would choose.

        b = r ceil(n / t_n) s;  t_c = w(b) 2 t_m t_n (k / s + k_0) S / P (1 + h (1 / t_m + 1 / t_n))
        t_b = (Q_r + Q_c / min(1, g n s / (128 S))^z) / B
        t = soft_maximum(t_c (1 + d t_c / (t_c + 0.5 ms)), t_b)

    Parameters
    ----------
    product : r, k, n, g, Q_r and Q_c
    tiles : [-]
        tile sizes t_m x t_n, in the order of `row_tiles`.
    splits : [-]
        values of s, parts that the summed dimension may be cut into.
    rates : P, B, S and the terms that keep small products below them
    sustained_loss : [-]
        d, slow-down of long products by lower clocks; 0: products are too short for it
    largest_split : [-]
        most parts that the library cuts the summed dimension into

    Returns
    -------
    [s]
        t, without the start of the kernel.

    Examples
    --------
    One full wave of 100 tiles, each 2 x 128 x 128 x 1000 FLOP at 1 GFLOP/s per multiprocessor:

    >>> product = TiledProduct((10.0,), 1000.0, 1280.0, row_bytes=1.0, column_bytes=0.0)
    >>> rates = TiledKernelRates(1e11, 1e9, 100.0, 1.0, 1.0, 8.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    >>> round(float(tiled_time_s(product, ((128.0, 128.0),), (1.0,), rates)), 6)
    0.032768

    References
    ----------
    Osama et al. 2023, "Stream-K", sections 2 and 3, https://arxiv.org/abs/2301.03598
    """
    best_s: Number = np.inf
    flop_per_s = rates.flop_per_s * rates.compute_fraction
    for (rows, columns), tiles_down in zip(tiles, product.row_tiles, strict=True):
        grid = tiles_down * np.ceil(product.outputs / columns)
        tile_s = 2.0 * rows * columns * rates.multiprocessors / flop_per_s
        tile_s = tile_s * (1.0 + rates.tile_edge * (1.0 / rows + 1.0 / columns))
        for split in splits:
            split_s = _split_time_s(product, split, grid, tile_s, rates, sustained_loss)
            best_s = np.minimum(best_s, np.where(split <= largest_split, split_s, np.inf))
    return best_s


def _split_time_s(
    product: TiledProduct,
    split: float,
    grid: Number,
    tile_s: Number,
    rates: TiledKernelRates,
    sustained_loss: Number,
) -> Number:
    """Return the time t of `tiled_time_s` with one tile and one split [s]; `grid`: tiles of the product, `tile_s`: time of one for each input [s]."""
    bytes_per_s = rates.bytes_per_s * rates.memory_fraction
    wave_count = waves(grid * split, rates.multiprocessors, rates.wave_fraction)
    compute_s = wave_count * tile_s * (product.inputs / split + rates.start_inputs)
    if split > 1.0:
        compute_s = compute_s + split * product.partial_bytes / bytes_per_s
    throttled_s = compute_s * (1.0 + sustained_loss * compute_s / (compute_s + SUSTAINED_S))
    busy = np.minimum(1.0, product.groups * product.outputs * split / (128.0 * rates.multiprocessors))
    column_bytes = product.column_bytes / busy**rates.starved_exponent
    memory_s = (product.row_bytes + column_bytes) / bytes_per_s
    return soft_maximum(throttled_s, memory_s, rates.sharpness)


def quicker_vector_s(tiled_s: Number, flop: Number, moved_bytes: Number, rates: TiledKernelRates) -> Number:
    """Return the time of a product by tiles, or of one row after the other without matrix units where that is quicker.

        t = min(t_tiles, soft_maximum(F / (P v), Q / (B m)))

    Parameters
    ----------
    tiled_s : [s]
        t_tiles, of `tiled_time_s`.
    flop : [FLOP]
        F, of the rows there are, without those that fill tiles.
    moved_bytes : [B]
        Q.
    rates : P, B and m; v is `vector_fraction`, 0 where a library has no such kernel

    Returns
    -------
    [s]
        t, without the start of the kernel.

    Examples
    --------
    >>> rates = TiledKernelRates(100.0, 10.0, 1.0, 1.0, 1.0, 64.0, 0.0, 0.0, 0.0, 0.0, 0.0, vector_fraction=0.5)
    >>> float(quicker_vector_s(9.0, 100.0, 10.0, rates)), float(quicker_vector_s(1.5, 100.0, 10.0, rates))
    (2.0, 1.5)

    References
    ----------
    llama.cpp, `ggml_cuda_mul_mat` (vector kernels for up to eight rows): https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-cuda/ggml-cuda.cu.
    """
    if not np.any(np.asarray(rates.vector_fraction) > 0.0):
        return tiled_s
    compute_s = flop / (rates.flop_per_s * rates.vector_fraction)
    memory_s = moved_bytes / (rates.bytes_per_s * rates.memory_fraction)
    return np.minimum(tiled_s, soft_maximum(compute_s, memory_s, rates.sharpness))
