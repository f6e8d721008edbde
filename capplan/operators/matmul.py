"""Dense matrix products: every linear layer."""

from dataclasses import dataclass

from capplan.numbers import Number
from capplan.operators.roofline import roofline_time_s


@dataclass(frozen=True, slots=True)
class MatmulRates:
    """What a device reaches in matmuls of one weight format."""

    flop_per_s: Number
    """Datasheet peak of the compute dtype, dense."""
    bytes_per_s: Number
    """Datasheet memory bandwidth."""
    multiprocessors: Number
    l2_bytes: Number
    compute_fraction: Number
    """Reached share of the peak in a large product."""
    memory_fraction: Number
    """Reached share of the bandwidth."""
    sharpness: Number
    """p of the soft maximum."""
    floor_s: Number
    """Start of one kernel inside a CUDA graph."""
    launch_s: Number = 0.0
    """Further cost of one launch outside a CUDA graph; not charged by `matmul_time_s`."""


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
    """Return the least traffic of one matrix product: weights and inputs read, outputs written, once each.

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
    """Return the time of one matrix product.

        t = ((F / P e_c)^p + (Q / B e_m)^p)^(1/p) + t_0

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
    rates : what the device reaches

    Returns
    -------
    [s]
        t, inside a CUDA graph.

    Examples
    --------
    >>> rates = MatmulRates(1e12, 1e9, 100.0, 1e6, 1.0, 1.0, 8.0, 0.0)
    >>> round(float(matmul_time_s(1.0, 1000.0, 1000.0, 1.0, 1.0, rates)), 6)
    0.001003

    References
    ----------
    Williams, Waterman, Patterson 2009, "Roofline", doi:10.1145/1498765.1498785.
    """
    return roofline_time_s(
        matmul_flop(rows, inputs, outputs),
        matmul_bytes(rows, inputs, outputs, weight_bytes_per_element, activation_bytes_per_element),
        rates.flop_per_s * rates.compute_fraction,
        rates.bytes_per_s * rates.memory_fraction,
        rates.sharpness,
        rates.floor_s,
    )
