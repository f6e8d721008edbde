"""How likely a limit holds, given a prediction and the interval of its regime."""

import math

import numpy as np

from capplan.accuracy.intervals import LEVEL, Interval
from capplan.numbers import Number
from capplan.workload.length import standard_normal_quantile

_TAIL_Z = float(standard_normal_quantile(0.5 + LEVEL / 2.0))


def _sigmas(interval: Interval) -> tuple[float, float]:
    """Return the standard deviations of the logarithm below and above the prediction."""
    below = max(-math.log(max(interval.low_ratio, 1e-9)) / _TAIL_Z, 1e-6)
    above = max(math.log(interval.high_ratio) / _TAIL_Z, 1e-6)
    return below, above


def within_probability(predicted: float, limit: float, interval: Interval) -> float:
    """Return the probability that the measured value stays within a limit.

        P = Phi(ln(L / x) / s),   s = ln(high) / z_0.9 above the prediction, -ln(low) / z_0.9 below

    Parameters
    ----------
    predicted : [s]
        x
    limit : [s]
        L
    interval : measured over predicted, 10th and 90th percentile

    Returns
    -------
    [-]
        P; 0 where x is infinite

    Examples
    --------
    >>> round(within_probability(1.0, 2.0, Interval(0.5, 2.0, 10, 2)), 2)
    0.9

    References
    ----------
    Two-piece normal distribution: Wallis 2014, "The two-piece normal, binormal, or double Gaussian distribution",
    doi:10.1214/13-STS417.
    """
    if not math.isfinite(predicted) or predicted <= 0:
        return 0.0
    below, above = _sigmas(interval)
    distance = math.log(limit / predicted)
    z = distance / (above if distance > 0 else below)
    return 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))


def needed_ratio(interval: Interval, confidence: float) -> float:
    """Return measured over predicted that is not exceeded with a confidence.

        r = exp(z_c s)

    Parameters
    ----------
    interval : measured over predicted, 10th and 90th percentile
    confidence : [-]
        c

    Returns
    -------
    [-]
        r, 1 at a confidence of one half

    Examples
    --------
    >>> round(needed_ratio(Interval(0.5, 2.0, 10, 2), 0.9), 2), needed_ratio(Interval(0.5, 2.0, 10, 2), 0.5)
    (2.0, 1.0)

    References
    ----------
    Wallis 2014, doi:10.1214/13-STS417.
    """
    below, above = _sigmas(interval)
    z: Number = standard_normal_quantile(confidence)
    return float(np.exp(z * (above if float(z) > 0 else below)))
