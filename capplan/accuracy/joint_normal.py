"""Normal scores that rise together: the probability that each of two stays within its own limit."""

from collections.abc import Sequence
from functools import lru_cache
from math import asin, erf, exp, inf, pi, sin, sqrt

FAR = 12.0
"""Normal quantile beyond which nothing lies, to double precision."""
INTERVALS = 32
"""Parts of the integral of Simpson's rule; its error is below 1e-8 up to a correlation of 0.8."""


def normal_probability(z: float) -> float:
    """Return the probability that a standard normal variable is at most z.

    Examples
    --------
    >>> normal_probability(0.0), round(normal_probability(1.2816), 4), normal_probability(float("inf"))
    (0.5, 0.9, 1.0)
    """
    return 0.5 * (1.0 + erf(z / sqrt(2.0)))


def both_within(first: float, second: float, correlation: float) -> float:
    """Return the probability that two standard normal variables are within their limits at once.

        P = F(h) F(k) + 1/(2 pi) int_0^asin(r) exp(-(h^2 + k^2 - 2 h k sin t) / (2 cos^2 t)) dt

    Parameters
    ----------
    first, second : [-]
        h and k, limits of the variables
    correlation : [-]
        r of both variables, from 0 to 0.8

    Returns
    -------
    [-]
        P, at most F of the smaller limit, and at least F(h) + F(k) - 1

    Examples
    --------
    Two that are within their medians, by Sheppard's 1/4 + asin(r) / (2 pi), and a limit that always holds:

    >>> round(both_within(0.0, 0.0, 0.5), 6), round(both_within(1.0, float("inf"), 0.5) - normal_probability(1.0), 6)
    (0.333333, 0.0)

    References
    ----------
    Drezner, Wesolowsky 1990, "On the computation of the bivariate normal integral", doi:10.1080/00949659008811236, equation 3.
    """
    h, k = (min(max(limit, -FAR), FAR) for limit in (first, second))
    end = asin(correlation)

    def density(angle: float) -> float:
        sine = sin(angle)
        return exp(-(h * h + k * k - 2.0 * h * k * sine) / (2.0 * (1.0 - sine * sine)))

    weights = (1.0, *((4.0, 2.0) * (INTERVALS // 2))[:-1], 1.0)
    total = sum(weight * density(end * place / INTERVALS) for place, weight in enumerate(weights))
    apart = normal_probability(h) * normal_probability(k)
    return min(max(apart + total * end / (6.0 * pi * INTERVALS), 0.0), normal_probability(min(h, k)))


def all_within(limits: Sequence[float], correlation: float) -> float:
    """Return the probability that one standard normal variable, or two, are within their limits."""
    if len(limits) == 1:
        return normal_probability(limits[0])
    first, second = limits
    return both_within(first, second, correlation)


def other_limit(first: float, correlation: float, probability: float) -> float:
    """Return the limit of a normal variable that holds at once with another limit, with a probability; infinite if none does.

    Examples
    --------
    >>> round(other_limit(1.5, 0.5, 0.8), 3), other_limit(0.8, 0.5, 0.8)
    (0.968, inf)
    """
    low, high = -FAR, FAR
    if both_within(first, high, correlation) < probability:
        return inf
    for _ in range(44):
        middle = (low + high) / 2.0
        enough = both_within(first, middle, correlation) >= probability
        low, high = (low, middle) if enough else (middle, high)
    return high


FURTHEST = 3.0
"""Normal score from which a variable counts as one that is always within its limit, where what is required of both is shared out."""


def shared_out(scores: Sequence[float], correlation: float, probability: float) -> tuple[float, ...]:
    """Return limits on normal variables that hold at once with a probability: all scores fall or rise by the same.

    Examples
    --------
    One that is surely within its limit leaves what is required to the other:

    >>> first, second = shared_out((float("inf"), 1.0), 0.5, 0.8)
    >>> first > 2.0, round(normal_probability(second), 3)
    (True, 0.8)
    """
    near = tuple(min(max(score, -FURTHEST), FURTHEST) for score in scores)
    shift = shift_to(near, correlation, probability)
    return tuple(score - shift for score in near)


@lru_cache(maxsize=256)
def shift_to(limits: tuple[float, ...], correlation: float, probability: float) -> float:
    """Return by how much limits on normal variables may all fall, so that they hold at once with a probability; negative if they have to rise.

    Examples
    --------
    Two limits at the median hold together in a third of the cases; each has to hold in 88 % for both to hold in 80 %:

    >>> rise = -shift_to((0.0, 0.0), 0.5, 0.8)
    >>> round(normal_probability(rise), 3)
    0.879
    """
    low, high = -FAR, FAR
    for _ in range(44):
        middle = (low + high) / 2.0
        enough = all_within([limit - middle for limit in limits], correlation) >= probability
        low, high = (middle, high) if enough else (low, middle)
    return low
