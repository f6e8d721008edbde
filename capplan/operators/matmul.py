"""Dense matrix products, the two low-rank ones of LoRA adapters, and kernels that move bytes and hardly compute: norms, rotary embedding, activation."""

from dataclasses import dataclass

import numpy as np

from capplan.numbers import Number
from capplan.operators.roofline import (
    SPLITS,
    TILES,
    TiledKernelRates,
    TiledProduct,
    quicker_vector_s,
    tiled_time_s,
)


@dataclass(frozen=True, slots=True)
class MatmulRates(TiledKernelRates):
    """What a device achieves in matmuls of one weight format."""

    tile_edge: Number = 0.0
    start_inputs: Number = 0.0
    wave_fraction: Number = 0.0
    starved_exponent: Number = 0.0
    sustained_loss: Number = 0.0
    """Slow-down of long products from lower clocks."""
    quantise_passes: Number = 0.0
    """Traffic of the kernel that quantises activations first, in bytes per input element at full bandwidth; 0 without one."""
    launch_s: Number = 0.0
    """Time between two launches outside a CUDA graph; not included in `matmul_time_s`."""
    tile_row_halvings: Number = 0.0
    """How often the rows of every tile are halved: 0 on a GPU, 2 (tiles from 16 rows) on a processor."""
    largest_split: Number = 4.0
    """Maximum number of parts that the library splits the summed dimension into: 4 in 16 bits, 1 in formats with scales."""


def matmul_flop(rows: Number, inputs: Number, outputs: Number) -> Number:
    """Return the arithmetic of one matrix product.

        F = 2 m k n

    Parameters
    ----------
    rows : [-]
        m, tokens.
    inputs : [-]
        k, what is summed over.
    outputs : [-]
        n.

    Returns
    -------
    [FLOP]
        F.

    Examples
    --------
    >>> matmul_flop(2.0, 3.0, 5.0)
    60.0

    References
    ----------
    NVIDIA, "Matrix Multiplication Background User's Guide", section 2,
    https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/
    """
    return 2.0 * rows * inputs * outputs


def matmul_bytes(
    rows: Number,
    inputs: Number,
    outputs: Number,
    weight_bytes_per_element: Number,
    activation_bytes_per_element: Number,
) -> Number:
    """Return the minimum traffic of one matrix product: weights and inputs read, outputs written, once each.

        Q = k n w + m k a + 2 m n

    Parameters
    ----------
    rows : [-]
        m, tokens.
    inputs : [-]
        k.
    outputs : [-]
        n.
    weight_bytes_per_element : [B]
        w, scales included.
    activation_bytes_per_element : [B]
        a, as the kernel reads them; outputs are written in 2 bytes.

    Returns
    -------
    [B]
        Q.

    Examples
    --------
    >>> matmul_bytes(1.0, 10.0, 20.0, 1.0, 1.0)
    250.0

    References
    ----------
    NVIDIA, "Matrix Multiplication Background User's Guide", section 2,
    https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/
    """
    weights = inputs * outputs * weight_bytes_per_element
    return weights + rows * inputs * activation_bytes_per_element + 2.0 * rows * outputs


def matmul_time_s(
    rows: Number,
    inputs: Number,
    outputs: Number,
    weight_bytes_per_element: Number,
    activation_bytes_per_element: Number,
    rates: MatmulRates,
) -> Number:
    """Return the time of one matrix product as the engine calls it, quantisation of its inputs included.

        t = tiled(m, k, n, Q) + x m k / B + t_0

    Parameters
    ----------
    rows : [-]
        m, tokens.
    inputs : [-]
        k.
    outputs : [-]
        n, on this rank.
    weight_bytes_per_element : [B]
        scales included.
    activation_bytes_per_element : [B]
        as the kernel reads them.
    rates : what the device achieves; x is its `quantise_passes`

    Returns
    -------
    [s]
        t, inside a CUDA graph.

    Examples
    --------
    A million weights of one byte, and three thousand activations, at 1 GB/s:

    >>> rates = MatmulRates(1e15, 1e9, 4.0, 1.0, 1.0, 8.0, 0.0)
    >>> round(float(matmul_time_s(1.0, 1000.0, 1000.0, 1.0, 1.0, rates)), 6)
    0.001003

    References
    ----------
    Osama et al. 2023, "Stream-K", sections 2 and 3, https://arxiv.org/abs/2301.03598
    """
    tiles = tuple((tile * 0.5**rates.tile_row_halvings, columns) for tile, columns in TILES)
    product = TiledProduct(
        tuple(np.ceil(rows / tile) for tile, _ in tiles),
        inputs,
        outputs,
        row_bytes=rows * inputs * activation_bytes_per_element,
        column_bytes=matmul_bytes(rows, inputs, outputs, weight_bytes_per_element, 0.0),
        partial_bytes=4.0 * rows * outputs,
    )
    product_s = tiled_time_s(product, tiles, SPLITS, rates, rates.sustained_loss, rates.largest_split)
    flop = matmul_flop(rows, inputs, outputs)
    product_s = quicker_vector_s(product_s, flop, product.row_bytes + product.column_bytes, rates)
    quantise_s = rates.quantise_passes * rows * inputs / rates.bytes_per_s
    return product_s + quantise_s + rates.floor_s


@dataclass(frozen=True, slots=True)
class ElementwiseRates:
    """What a device achieves in kernels that only move bytes."""

    bytes_per_s: Number
    """Datasheet memory bandwidth."""
    memory_fraction: Number
    floor_s: Number
    """One kernel inside a CUDA graph."""
    launch_s: Number = 0.0
    """Additional cost of one launch outside a CUDA graph; not included in `elementwise_time_s`."""


def elementwise_time_s(moved_bytes: Number, rates: ElementwiseRates) -> Number:
    """Return the time of one kernel that only moves bytes.

        t = Q / (B e) + t_0

    Parameters
    ----------
    moved_bytes : [B]
        Q, read plus written.
    rates : what the device reaches

    Returns
    -------
    [s]
        t, inside a CUDA graph.

    Examples
    --------
    500 bytes at 1000 B/s, and half a second to start:

    >>> elementwise_time_s(500.0, ElementwiseRates(1000.0, 1.0, 0.5))
    1.0

    References
    ----------
    Williams, Waterman, Patterson 2009, "Roofline", doi:10.1145/1498765.1498785.
    """
    return moved_bytes / (rates.bytes_per_s * rates.memory_fraction) + rates.floor_s


def adapters_in_step(sequences: Number, adapters: Number, adapted_fraction: Number = 1.0) -> Number:
    """Return how many different adapters the sequences of a step use, if all adapters are equally popular.

        D = A (1 - (1 - 1 / A)^(s n))

    Parameters
    ----------
    sequences : [-]
        n.
    adapters : [-]
        A, of the traffic, at least 1.
    adapted_fraction : [-]
        s, of the sequences that use one.

    Returns
    -------
    [-]
        D, in the mean; the most for this many sequences, because popular adapters would be met again.

    Examples
    --------
    >>> float(adapters_in_step(2.0, 2.0)), float(adapters_in_step(1.0, 8.0))
    (1.5, 1.0)

    References
    ----------
    Johnson, Kotz 1977, "Urn Models and Their Application", section 3.1: the classical occupancy problem.
    """
    return adapters * (
        1.0 - (1.0 - 1.0 / np.asarray(adapters, dtype=np.float64)) ** (adapted_fraction * sequences)
    )


def sequences_with_slots(adapters: Number, slots: Number, adapted_fraction: Number = 1.0) -> Number:
    """Return the sequences that use as many different adapters as there are slots, in the mean.

        n = ln(1 - S / A) / (s ln(1 - 1 / A))

    Parameters
    ----------
    adapters : [-]
        A, of the traffic, equally popular.
    slots : [-]
        S, resident on a replica.
    adapted_fraction : [-]
        s, of the sequences that use an adapter, above 0.

    Returns
    -------
    [-]
        n; infinite where every adapter has its slot.

    Examples
    --------
    >>> float(sequences_with_slots(2.0, 1.0)), float(sequences_with_slots(4.0, 4.0))
    (1.0, inf)

    References
    ----------
    Johnson, Kotz 1977, "Urn Models and Their Application", section 3.1, solved for the number of draws.
    """
    share = np.minimum(np.asarray(slots, dtype=np.float64) / adapters, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.log1p(-share) / (
            adapted_fraction * np.log1p(-1.0 / np.asarray(adapters, dtype=np.float64))
        )
    return np.where(share >= 1.0, np.inf, drawn)[()]


def adapter_flop(tokens: Number, elements: Number) -> Number:
    """Return the arithmetic of the low-rank matrices next to one matrix.

        F = 2 T e

    Parameters
    ----------
    tokens : [-]
        T, with an adapter.
    elements : [-]
        e, of one adapter next to this matrix, on this rank.

    Returns
    -------
    [FLOP]
        F.

    Examples
    --------
    >>> adapter_flop(3.0, 100.0)
    600.0

    References
    ----------
    Hu et al. 2021, "LoRA", section 4.1, arXiv:2106.09685.
    """
    return 2.0 * tokens * elements


def adapter_bytes(
    tokens: Number,
    adapters: Number,
    elements: Number,
    inputs: Number,
    outputs: Number,
    rank: Number,
    bytes_per_element: Number,
) -> Number:
    """Return the traffic of the low-rank matrices next to one matrix.

        Q = D e b + T (2 k + 8 r + 4 n)

    Every adapter in the step is read once; a token reads its inputs in 2 bytes, writes and reads what is between the two in 4,
    and adds to the outputs of the matrix, which reads and writes 2.

    Parameters
    ----------
    tokens : [-]
        T, with an adapter.
    adapters : [-]
        D, different ones in the step.
    elements : [-]
        e, of one adapter next to this matrix, on this rank.
    inputs, outputs : [-]
        k and n of the rank.
    rank : [-]
        r, of all parts together.
    bytes_per_element : [B]
        b.

    Returns
    -------
    [B]
        Q.

    Examples
    --------
    >>> adapter_bytes(1.0, 2.0, 100.0, 10.0, 20.0, 4.0, 2.0)
    532.0

    References
    ----------
    Chen et al. 2023, "Punica", sections 4 and 5, arXiv:2310.18547.
    """
    return adapters * elements * bytes_per_element + tokens * (2.0 * inputs + 8.0 * rank + 4.0 * outputs)


def adapter_time_s(
    flop: Number, moved_bytes: Number, elementwise: ElementwiseRates, matmul: MatmulRates
) -> Number:
    """Return the time of the two kernels of the adapters next to one matrix.

        t = max(F / (P c), Q / (B e)) + 2 t_0

    An assumption: nobody measured these kernels here; their rates are those of kernels that move bytes, and of plain products.

    Parameters
    ----------
    flop : [FLOP]
        F.
    moved_bytes : [B]
        Q.
    elementwise : bandwidth B, reached fraction e and start t_0
    matmul : rate P of 16-bit products, and reached fraction c

    Returns
    -------
    [s]
        t, inside a CUDA graph.

    Examples
    --------
    >>> from capplan.operators.matmul import ElementwiseRates
    >>> rates = MatmulRates(1e15, 1e9, 4.0, 1.0, 1.0, 8.0, 0.0)
    >>> float(adapter_time_s(10.0, 500.0, ElementwiseRates(1000.0, 1.0, 0.25), rates))
    1.0

    References
    ----------
    Chen et al. 2023, "Punica", section 4 (one kernel that shrinks, one that expands), arXiv:2310.18547.
    """
    reached_s = moved_bytes / (elementwise.bytes_per_s * elementwise.memory_fraction)
    return (
        np.maximum(flop / (matmul.flop_per_s * matmul.compute_fraction), reached_s)
        + 2.0 * elementwise.floor_s
    )
