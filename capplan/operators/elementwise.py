"""Kernels that move bytes and hardly compute: norms, rotary embedding, activation, residual, quantise."""

from dataclasses import dataclass

from capplan.numbers import Number


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
