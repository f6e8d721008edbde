"""How a rate changes over the hours of a day: named shapes, and the ratio of mean to peak."""

from collections.abc import Mapping, Sequence
from math import floor
from types import MappingProxyType

import numpy as np

from capplan.numbers import Array, Number

HOURS = 24
LEAST_PART = 1e-3
"""Smallest part of its own peak that a class has in the busiest hour of all: none would leave its requests out."""

OFFICE = (0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.1, 0.25, 0.6, 0.9, 1.0, 1.0, 0.8, 0.9, 1.0, 1.0, 0.9, 0.6, 0.3, 0.2, 0.15, 0.1, 0.1, 0.05)  # fmt: skip
"""Offices of one time zone: morning and afternoon, a dip at noon, a little at night (an assumption)."""
EVENING = (0.35, 0.2, 0.1, 0.1, 0.1, 0.1, 0.15, 0.25, 0.35, 0.4, 0.45, 0.5, 0.55, 0.55, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0, 1.0, 0.85, 0.6)  # fmt: skip
"""People at home in one time zone: it rises through the day to nine in the evening (an assumption)."""
TIME_ZONES = (0, 8, 16)
"""Hours by which the offices of follow-the-sun are shifted: the Americas, Europe and Asia (an assumption)."""


def relative_to_peak(rates: Sequence[float]) -> tuple[float, ...]:
    """Return the hours of a curve as fractions of the busiest one.

    Parameters
    ----------
    rates : rates of the hours in any one unit, the largest above zero

    Returns
    -------
    [-]
        in their order, the largest 1

    Examples
    --------
    >>> relative_to_peak([1.0, 4.0, 2.0])
    (0.25, 1.0, 0.5)
    """
    peak = max(rates)
    return tuple(rate / peak for rate in rates)


def active_for(hours: float) -> tuple[float, ...]:
    """Return the curve of traffic that is at its peak for the first hours of a day and zero in the others.

    Parameters
    ----------
    hours : [h]
        of a day; the last one may be a part of an hour

    Returns
    -------
    [-]
        of every hour, the rate over the peak

    Examples
    --------
    >>> active_for(1.5)[:3]
    (1.0, 0.5, 0.0)
    """
    return tuple(min(max(hours - hour, 0.0), 1.0) for hour in range(HOURS))


def mean_rate_fraction(mean_rate_per_s: Number, peak_rate_per_s: Number) -> Number:
    """Return the mean rate over the peak rate: machines are sized for the peak and paid for at all hours.

        f = min(m / p, 1)

    Parameters
    ----------
    mean_rate_per_s : [request/s]
        m, over all the time that is paid.
    peak_rate_per_s : [request/s]
        p, above zero.

    Returns
    -------
    [-]
        f.

    Examples
    --------
    >>> mean_rate_fraction(6.0, 20.0)
    np.float64(0.3)

    References
    ----------
    The load factor of power engineering, https://en.wikipedia.org/wiki/Load_factor_(electrical).
    """
    return np.minimum(mean_rate_per_s / peak_rate_per_s, 1.0)


def in_utc(curve: Sequence[float], ahead_hours: float) -> tuple[float, ...]:
    """Return a curve of local hours by the hours of UTC.

        u_h = (1 - p) l_(h + k) + p l_(h + k + 1)

    Parameters
    ----------
    curve : [-]
        l, of every hour of local time
    ahead_hours : [h]
        k + p, by which local time is ahead of UTC: whole hours and the part of an hour

    Returns
    -------
    [-]
        u, with the mean of l

    Examples
    --------
    Nine to ten in a place two hours ahead is seven to eight in UTC:

    >>> local = tuple(float(hour == 9) for hour in range(24))
    >>> in_utc(local, 2.0)[7], in_utc(local, -5.0)[14], in_utc(local, 5.5)[3:5]
    (1.0, 1.0, (0.5, 0.5))

    References
    ----------
    ITU-R TF.460-6, annex 1 (time zones differ from UTC by hours and parts of an hour).
    """
    whole = floor(ahead_hours)
    part = ahead_hours - whole
    return tuple(
        (1.0 - part) * curve[(hour + whole) % HOURS] + part * curve[(hour + whole + 1) % HOURS]
        for hour in range(HOURS)
    )


def together_at_peak(curves: Array, work: Array) -> tuple[Array, int | None]:
    """Return the share of its own peak that each class has in the busiest hour of all classes together.

    W_wh is the work of kind w (requests, input or output tokens) of all classes k in hour h. The shares of an hour H are raised by one
    factor until no hour has more work of any kind; H is the hour that takes the smallest factor:

        W_wh = sum_k w_k f_kh,   g_H = max_w max_h W_wh / W_wH,   a_k = min(g_H f_kH, 1)

    If parts up to 1 do not suffice, all classes have their peaks at once.

    Parameters
    ----------
    curves : [-]
        f, by class and hour, each with a largest value of 1
    work : [1/s]
        w, of each class at its own peak, by kind

    Returns
    -------
    [-], [h]
        a, at least LEAST_PART, and H; None if all classes have their peaks at once

    Examples
    --------
    Two classes that are busy in turn, half as much in the hour of the other:

    >>> parts, hour = together_at_peak(np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([[4.0, 40.0], [2.0, 20.0]]))
    >>> parts.tolist(), hour
    ([1.0, 0.5], 0)

    References
    ----------
    The coincidence factor, https://en.wikipedia.org/wiki/Diversity_factor.
    """
    totals = work.T @ curves
    least = totals.max(axis=1, keepdims=True)
    factors = np.max(least / np.maximum(totals, 1e-300), axis=0)
    hour = int(np.argmin(factors))
    parts = np.clip(factors[hour] * curves[:, hour], LEAST_PART, 1.0)
    if np.all(work.T @ parts >= least[:, 0] * (1.0 - 1e-9)):
        return parts, hour
    return np.ones(len(curves)), None


SHAPES: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "flat": (1.0,) * HOURS,
        "office": OFFICE,
        "evening": EVENING,
        "follow-the-sun": relative_to_peak(
            [sum(OFFICE[(hour + zone) % HOURS] for zone in TIME_ZONES) for hour in range(HOURS)]
        ),
    }
)
"""Name -> of every hour from midnight, the rate over the peak."""
