"""The certainty of a fitted deployment: how far its fit was off on loads that it did not see, and how much wider that is elsewhere.

A fit of a deployment leaves out each of its results in turn, and predicts it. The logarithms of measured over predicted time are a sample of what a
new load of this deployment will show. Results of one load err together, so that the sample is no larger than the loads are many.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import cos, exp, hypot, log2, pi, sin, sqrt
from statistics import fmean, median

from capplan.engine.profile import LEAST_LOADS, LeftOutResult
from capplan.workload.length import standard_normal_quantile

NOISE = {"ttft": 0.033, "tpot": 0.02}
"""Least deviation of a repeat where repeats are too few to tell: published repeats of a time to first token differ by 4 to 29 %, of a time per token by 0.5 to 3.5 %."""
LEAST_REPEATS = 6
"""Results beyond one a load from which their own deviation counts instead."""
PER_DOUBLING = 0.03
"""Deviation that each doubling of a length or load beyond those of the results adds."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a replica is asked to serve."""

    deployment: str
    """Model with its parallelism and formats; see `replica.spec.deployed_as`."""
    input_tokens: float
    output_tokens: float
    in_flight: float
    """Requests in flight [-]."""


@dataclass(frozen=True, slots=True)
class LeftOutSpread:
    """The distribution of the logarithm of measured over predicted time: Student's t, moved and stretched."""

    middle: float
    scale: float
    loads: int
    """Distinct loads; one less than they are the degrees of freedom."""
    results: int
    error_fraction: float
    """Median error of a result that was left out."""

    def log_quantile(self, probability: float, width: float = 1.0) -> float:
        """Return the logarithm that is not exceeded with a probability, above 0 and below 1; a width other than 1 stretches it about its middle.

            l = m + k w t(p, n - 1)

        Examples
        --------
        >>> spread = LeftOutSpread(0.0, 0.05, 9, 9, 0.03)
        >>> spread.log_quantile(0.5), round(spread.log_quantile(0.8), 4), round(LeftOutSpread(0.0, 0.05, 3, 3, 0.03).log_quantile(0.95), 3)
        (0.0, 0.0444, 0.146)

        References
        ----------
        Geisser 1993, "Predictive Inference", section 2.2 (a further value of a normal sample).
        """
        return self.middle + width * self.scale * student_quantile(probability, self.loads - 1)


@lru_cache(maxsize=512)
def student_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution.

        t = F_n^-1(p)

    Parameters
    ----------
    probability : [-]
        p, above 0 and below 1.
    freedom : [-]
        n, degrees of freedom, at least 1; exact for 1 and 2, with a relative error below 1e-3 from 3.

    Returns
    -------
    [-]
        t.

    Examples
    --------
    >>> [round(student_quantile(0.975, n), 3) for n in (1, 2, 3, 8, 1000)]
    [12.706, 4.303, 3.182, 2.306, 1.962]

    References
    ----------
    Hill 1970, "Algorithm 396: Student's t-quantiles", https://doi.org/10.1145/355598.355600.
    """
    if probability < 0.5:
        return -student_quantile(1.0 - probability, freedom)
    if probability == 0.5:
        return 0.0
    tails, n = 2.0 * (1.0 - probability), float(freedom)
    if freedom == 1:
        return cos(0.5 * pi * tails) / sin(0.5 * pi * tails)
    if freedom == 2:
        return sqrt(2.0 / (tails * (2.0 - tails)) - 2.0)
    a = 1.0 / (n - 0.5)
    b = 48.0 / a**2
    c = ((20700.0 * a / b - 98.0) * a - 16.0) * a + 96.36
    d = ((94.5 / (b + c) - 3.0) / b + 1.0) * sqrt(0.5 * a * pi) * n
    y = (d * tails) ** (2.0 / n)
    if y > 0.05 + a:
        x = float(standard_normal_quantile(0.5 * tails))
        y = x * x
        if freedom < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x
        y = exp(a * y * y) - 1.0
    else:
        y = (
            (1.0 / (((n + 6.0) / (n * y) - 0.089 * d - 0.822) * (n + 2.0) * 3.0) + 0.5 / (n + 4.0)) * y - 1.0
        ) * (n + 1.0) / (n + 2.0) + 1.0 / y
    return sqrt(n * y)


def doublings_beyond(values: Sequence[float], value: float) -> float:
    """Return how many doublings a value is above the largest of some values, or below the smallest; 0 between them.

    Examples
    --------
    >>> doublings_beyond((128.0, 1024.0), 4096.0), doublings_beyond((128.0, 1024.0), 64.0), doublings_beyond((128.0, 1024.0), 500.0)
    (2.0, 1.0, 0.0)
    """
    return max(log2(value / max(values)), log2(min(values) / value), 0.0)


def unseen_doublings(results: Sequence[LeftOutResult], served: Served) -> float:
    """Return how far what a replica serves is beyond the results: doublings of lengths, plus doublings of the load above the largest.

    Lengths are prompts and whole contexts, of which the further one counts: both are in the work of a step.
    """
    prompts = doublings_beyond([result.input_tokens for result in results], served.input_tokens)
    contexts = doublings_beyond(
        [result.input_tokens + result.output_tokens for result in results],
        served.input_tokens + served.output_tokens,
    )
    flying = log2(max(served.in_flight, 1.0) / max(result.in_flight for result in results))
    return max(prompts, contexts) + max(flying, 0.0)


def left_out_spread(
    results: Sequence[LeftOutResult], served: Served, latencies: Sequence[str]
) -> LeftOutSpread | None:
    """Return how far predictions of a fitted deployment are off; None if its results do not say.

        k^2 = max(s^2, s_0^2) (1 + 1/n) + d c^2

    Parameters
    ----------
    results : left out of the fit in turn
    served : what the replica serves; only results of the same deployment count
    latencies : ttft, tpot; of several the slower one counts

    Returns
    -------
    its scale is k: s is the deviation among n loads, s_0 that of repeats, d the doublings beyond the results, and c is PER_DOUBLING

    Examples
    --------
    >>> seen = [LeftOutResult("m", users, 128.0, 64.0, None, {"tpot": error}) for users, error in ((1, 0.05), (2, -0.05), (4, 0.04), (8, -0.04))]
    >>> inside, beyond = (left_out_spread(seen, Served("m", 128.0, 64.0, users), ["tpot"]) for users in (4.0, 64.0))
    >>> round(inside.scale, 3), round(beyond.scale, 3), left_out_spread(seen, Served("other", 128.0, 64.0, 4.0), ["tpot"])
    (0.058, 0.078, None)

    References
    ----------
    Independent errors add in quadrature: JCGM 100:2008, "Guide to the expression of uncertainty in measurement", section 5.1.
    """
    own = [
        r for r in results if r.deployment == served.deployment and all(n in r.log_ratios for n in latencies)
    ]
    by_load = defaultdict(list)
    for result in own:
        by_load[result.load].append(max(result.log_ratios[name] for name in latencies))
    loads, n = list(by_load.values()), len(by_load)
    if n < LEAST_LOADS:
        return None
    middle = fmean(fmean(errors) for errors in loads)
    variance = sum(fmean((error - middle) ** 2 for error in errors) for errors in loads) / (n - 1)
    floor = _noise(loads, max(NOISE[name] for name in latencies))
    known = max(sqrt(variance), floor) * sqrt(1.0 + 1.0 / n)
    unseen = PER_DOUBLING * sqrt(unseen_doublings(own, served))
    errors = [abs(exp(error) - 1.0) for of_load in loads for error in of_load]
    return LeftOutSpread(middle, hypot(known, unseen), n, len(errors), median(errors))


def _noise(loads: Sequence[Sequence[float]], least: float) -> float:
    """Return the deviation of repeats of one load: at least the usual one where few loads were repeated."""
    freedom = sum(len(errors) - 1 for errors in loads)
    if not freedom:
        return least
    squares = sum((error - fmean(errors)) ** 2 for errors in loads for error in errors)
    pooled = sqrt(squares / freedom)
    return pooled if freedom >= LEAST_REPEATS else max(pooled, least)
