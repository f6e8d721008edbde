"""Where demand meets supply: the only place in which FLOP and bytes become seconds."""

import numpy as np

from capplan.numbers import Number


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
    """Return the time of one operator whose arithmetic and traffic overlap, and which has to start.

        t = ((F / P)^p + (Q / B)^p)^(1/p) + t_0

    Parameters
    ----------
    flop : [FLOP]
        F, a multiply-add counts 2.
    moved_bytes : [B]
        Q, traffic to and from main memory.
    flop_per_s : [FLOP/s]
        P, rate that the operator reaches, not the datasheet peak.
    bytes_per_s : [B/s]
        B, rate that the operator reaches.
    sharpness : [-]
        p of the soft maximum.
    floor_s : [s]
        t_0, start and drain of a kernel that does nothing.

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
