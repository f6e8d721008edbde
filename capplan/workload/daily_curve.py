"""How a rate changes over the hours of a day: named shapes, and the ratio of mean to peak."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from capplan.numbers import Number

HOURS = 24

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


def _follow_the_sun() -> tuple[float, ...]:
    return relative_to_peak(
        [sum(OFFICE[(hour + zone) % HOURS] for zone in TIME_ZONES) for hour in range(HOURS)]
    )


SHAPES: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "flat": (1.0,) * HOURS,
        "office": OFFICE,
        "evening": EVENING,
        "follow-the-sun": _follow_the_sun(),
    }
)
"""Name -> of every hour from midnight, the rate over the peak."""
