"""Input and output lengths: distributions of token counts as quantile functions."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Array, Number

Kind: TypeAlias = Literal["fixed", "lognormal", "uniform", "empirical"]


def standard_normal_quantile(probability: Number) -> Number:
    """Return the quantile of the standard normal distribution.

        z = F^-1(p)

    Parameters
    ----------
    probability : [-]
        p, above 0 and below 1.

    Returns
    -------
    [-]
        z, with a relative error below 1.2e-9.

    Examples
    --------
    >>> f"{float(standard_normal_quantile(0.95)):.6f}"
    '1.644854'

    References
    ----------
    Acklam 2003, "An algorithm for computing the inverse normal cumulative distribution function",
    https://web.archive.org/web/20151030215612/http://home.online.no/~pjacklam/notes/invnorm/
    """
    p = np.asarray(probability, dtype=np.float64)
    a = (-3.969683028665376e1, 2.209460984245205e2, -2.759285104469687e2, 1.383577518672690e2, -3.066479806614716e1, 2.506628277459239)  # fmt: skip
    b = (-5.447609879822406e1, 1.615858368580409e2, -1.556989798598866e2, 6.680131188771972e1, -1.328068155288572e1, 1.0)  # fmt: skip
    c = (-7.784894002430293e-3, -3.223964580411365e-1, -2.400758277161838, -2.549732539343734, 4.374664141464968, 2.938163982698783)  # fmt: skip
    d = (7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416, 1.0)
    middle = p - 0.5
    square = middle * middle
    inner = middle * np.polyval(a, square) / np.polyval(b, square)
    tail = np.minimum(p, 1.0 - p)
    root = np.sqrt(-2.0 * np.log(tail))
    outer = np.sign(0.5 - p) * np.polyval(c, root) / np.polyval(d, root)
    z: Array = np.where(tail < 0.02425, outer, inner)
    return z


def lognormal_sigma(mean: Number, quantile: Number, probability: Number) -> Number:
    """Return the shape of the lognormal distribution with a given mean and one given quantile.

        s = z - sqrt(z^2 - 2 ln(Q / M))

    Parameters
    ----------
    mean : [token]
        M.
    quantile : [token]
        Q; at most M exp(z^2 / 2), which is 3.87 times the mean for a p95 (NaN above).
    probability : [-]
        p of the quantile, above 0.5; z is its standard normal quantile.

    Returns
    -------
    [-]
        s, the standard deviation of the logarithm; the smaller of the two solutions.

    Examples
    --------
    >>> f"{float(lognormal_sigma(1.0, 1.0, 0.95)):.3f}"
    '0.000'

    References
    ----------
    Johnson, Kotz, Balakrishnan 1994, Continuous Univariate Distributions, volume 1, chapter 14:
    mean exp(m + s^2 / 2), quantile exp(m + s z); m eliminated.
    """
    z = standard_normal_quantile(probability)
    with np.errstate(invalid="ignore"):
        return np.asarray(z - np.sqrt(z * z - 2.0 * np.log(quantile / np.asarray(mean))))


def lognormal_quantile(mean: Number, sigma: Number, probability: Number) -> Number:
    """Return a quantile of the lognormal distribution with a given mean.

        Q = M exp(s z - s^2 / 2)

    Parameters
    ----------
    mean : [token]
        M.
    sigma : [-]
        s, standard deviation of the logarithm.
    probability : [-]
        p; z is its standard normal quantile.

    Returns
    -------
    [token]
        Q.

    Examples
    --------
    Without spread every quantile is the mean:

    >>> float(lognormal_quantile(100.0, 0.0, 0.95))
    100.0

    References
    ----------
    Johnson, Kotz, Balakrishnan 1994, Continuous Univariate Distributions, volume 1, chapter 14.
    """
    return np.asarray(mean * np.exp(sigma * standard_normal_quantile(probability) - sigma * sigma / 2.0))


def clipped_lognormal_mean(mean: float, sigma: float, low: float, high: float) -> float:
    """Return the mean of a lognormal length that is clipped to a range.

        m = l F(a) + M (F(b - s) - F(a - s)) + h (1 - F(b)),   a, b = (ln(l, h / M) + s^2 / 2) / s

    Parameters
    ----------
    mean : [token]
        M, before clipping.
    sigma : [-]
        s, above zero; F is the standard normal distribution.
    low : [token]
        l, may be 0.
    high : [token]
        h, may be infinite.

    Returns
    -------
    [token]
        m.

    Examples
    --------
    >>> round(clipped_lognormal_mean(100.0, 0.5, 0.0, math.inf), 9)
    100.0

    References
    ----------
    Johnson, Kotz, Balakrishnan 1994, Continuous Univariate Distributions, volume 1, chapter 14:
    partial expectations.
    """

    def share_below(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2.0))

    a = ((math.log(low) - math.log(mean)) / sigma + sigma / 2.0) if low > 0 else -math.inf
    b = (math.log(high / mean) / sigma + sigma / 2.0) if high < math.inf else math.inf
    inside = mean * (share_below(b - sigma) - share_below(a - sigma))
    below = low * share_below(a) if low > 0 else 0.0
    above = high * share_below(-b) if high < math.inf else 0.0
    return below + inside + above


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts, created by `fixed`, `lognormal`, `uniform` or `empirical`."""

    kind: Kind
    mean_tokens: float
    sigma: float = 0.0
    """lognormal: standard deviation of the logarithm."""
    unclipped_mean_tokens: float = 0.0
    """lognormal: mean before clipping to `low_tokens` and `high_tokens`."""
    low_tokens: float = 0.0
    high_tokens: float = math.inf
    values: tuple[float, ...] = ()
    """empirical: sorted observations."""

    def quantile(self, probability: Number) -> Array:
        """Return the token count that this fraction of requests does not exceed; broadcasts."""
        p = np.asarray(probability, dtype=np.float64)
        if self.kind == "fixed":
            return np.full_like(p, self.mean_tokens)
        if self.kind == "uniform":
            return self.low_tokens + p * (self.high_tokens - self.low_tokens)
        if self.kind == "empirical":
            return np.asarray(np.quantile(np.asarray(self.values), p, method="linear"))
        inside = np.clip(p, 1e-12, 1 - 1e-12)
        drawn = lognormal_quantile(self.unclipped_mean_tokens, self.sigma, inside)
        return np.asarray(np.clip(drawn, self.low_tokens, self.high_tokens))

    def midpoints(self, count: int) -> Array:
        """Return `count` lengths of equal weight that stand for the distribution, ascending.

        They are the quantiles in the middle of `count` equal slices, scaled to keep the mean.

        Examples
        --------
        >>> Lengths("uniform", 100.0, low_tokens=0.0, high_tokens=200.0).midpoints(4)
        array([ 25.,  75., 125., 175.])
        """
        points = _quantiles_of_slices(self, count)
        return np.asarray(points * (self.mean_tokens / points.mean()))

    def whole_tokens(self, count: int) -> Array:
        """Return lengths of equal weight that stand for what `sample` draws: whole tokens, at least one; `count` or all values."""
        points = np.asarray(self.values) if self.kind == "empirical" else _quantiles_of_slices(self, count)
        return np.asarray(np.maximum(np.rint(points), 1.0))

    def sample(self, count: int, seed: "int | np.random.Generator") -> NDArray[np.int64]:
        """Return random whole token counts of at least one."""
        generator = np.random.default_rng(seed)
        if self.kind == "empirical":
            drawn = generator.choice(np.asarray(self.values), size=count)
        else:
            drawn = self.quantile(generator.random(count))
        return np.asarray(np.maximum(np.rint(drawn), 1.0), dtype=np.int64)


@lru_cache(maxsize=64)
def _quantiles_of_slices(lengths: Lengths, count: int) -> Array:
    """Return the quantiles in the middle of `count` equal slices of a distribution, not to be written to: a search asks for few of them often."""
    points = lengths.quantile((np.arange(count) + 0.5) / count)
    points.flags.writeable = False
    return points


def fixed(tokens: float) -> Lengths:
    """Return the distribution in which every length is the same.

    Examples
    --------
    >>> float(fixed(512.0).quantile(0.95))
    512.0
    """
    return Lengths("fixed", tokens, low_tokens=tokens, high_tokens=tokens)


def uniform(low: float, high: float) -> Lengths:
    """Return the distribution in which all lengths between two are equally likely.

    Examples
    --------
    >>> float(uniform(100.0, 300.0).quantile(0.95)), uniform(100.0, 300.0).mean_tokens
    (290.0, 200.0)
    """
    return Lengths("uniform", (low + high) / 2.0, low_tokens=low, high_tokens=high)


def lognormal(mean: float, sigma: float, *, low: float = 0.0, high: float = math.inf) -> Lengths:
    """Return the lognormal distribution with a mean and a spread, clipped to a range.

    Clipping moves the mean; `mean_tokens` is the mean after it.

    Examples
    --------
    >>> round(lognormal(100.0, 0.5).mean_tokens, 6), lognormal(100.0, 0.5, high=120.0).mean_tokens < 100.0
    (100.0, True)
    """
    cut = clipped_lognormal_mean(mean, sigma, low, high) if sigma > 0 else min(max(mean, low), high)
    return Lengths("lognormal", cut, sigma, mean, low, high)


def empirical(values: Array) -> Lengths:
    """Return the distribution of observed lengths.

    Examples
    --------
    >>> observed = empirical(np.array([30.0, 10.0, 20.0]))
    >>> observed.mean_tokens, float(observed.quantile(0.75))
    (20.0, 25.0)
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    return Lengths("empirical", float(ordered.mean()), values=tuple(ordered.tolist()))
