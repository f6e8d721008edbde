"""Prompt caching at a hosted API: idle gaps against the time to live, the write premium, and what is stored in between."""

import math

import numpy as np

from capplan.numbers import Array, Number

MOST_TERMS = 100_000
"""Terms of the series of the gamma distribution; it has converged long before."""


def gamma_share(shape: float, x: float) -> float:
    """Return the distribution function of a gamma variable with scale 1: its regularised lower incomplete gamma function.

        P(a, x) = x^a e^-x / G(a + 1) (1 + x / (a + 1) + x^2 / ((a + 1) (a + 2)) + ...)

    Parameters
    ----------
    shape : [-]
        a, above zero.
    x : [-]
        at least zero.

    Returns
    -------
    [-]
        P, from 0 to 1.

    Examples
    --------
    Shape 1 is the exponential distribution, 1 - e^-x:

    >>> round(gamma_share(1.0, 2.0), 12), gamma_share(1.0, 0.0)
    (0.864664716763, 0.0)

    References
    ----------
    NIST Digital Library of Mathematical Functions, 8.7.1, https://dlmf.nist.gov/8.7#E1.
    """
    if x <= 0.0:
        return 0.0
    if x > shape + 40.0 * math.sqrt(shape) + 60.0:
        return 1.0
    term = total = 1.0
    for n in range(1, MOST_TERMS):
        term *= x / (shape + n)
        total += term
        if term < 1e-17 * total:
            break
    return min(1.0, total * math.exp(shape * math.log(x) - x - math.lgamma(shape + 1.0)))


def reused_fraction(rate_per_s: float, time_to_live_s: float, arrival_cv: float = 1.0) -> float:
    """Return the share of requests that find a prefix in a cache that forgets it some time after its last use.

        f = P(X <= T) = P(1 / c^2, r T / c^2);   Poisson arrivals: 1 - e^(-r T)

    Parameters
    ----------
    rate_per_s : [1/s]
        r, requests with this prefix.
    time_to_live_s : [s]
        T, since the last use; infinite: never forgotten.
    arrival_cv : [-]
        c, coefficient of variation of the gamma-distributed time X between such requests.

    Returns
    -------
    [-]
        f, in the long run; the first request of all always misses.

    Examples
    --------
    One request in five minutes on average, and five minutes to live:

    >>> round(reused_fraction(1 / 300, 300.0), 4), reused_fraction(1 / 300, math.inf)
    (0.6321, 1.0)

    References
    ----------
    Cox 1962, "Renewal Theory", section 1.3.
    """
    if rate_per_s <= 0.0:
        return 0.0
    if math.isinf(time_to_live_s):
        return 1.0
    shape = 1.0 / arrival_cv**2
    return gamma_share(shape, rate_per_s * time_to_live_s * shape)


def stored_fraction(rate_per_s: float, time_to_live_s: float, arrival_cv: float = 1.0) -> float:
    """Return the share of the time in which a prefix is stored: after every request for the time to live, or until the next one.

        s = r E[min(X, T)] = P(a + 1, a r T) + r T (1 - P(a, a r T)),   a = 1 / c^2

    Parameters
    ----------
    rate_per_s : [1/s]
        r, requests with this prefix.
    time_to_live_s : [s]
        T, since the last use; infinite: stored for ever.
    arrival_cv : [-]
        c, coefficient of variation of the gamma-distributed time X between such requests.

    Returns
    -------
    [-]
        s, never above 1 nor above r T.

    Examples
    --------
    Poisson arrivals: 1 - e^(-r T):

    >>> round(stored_fraction(1 / 300, 300.0), 4)
    0.6321

    References
    ----------
    Cox 1962, "Renewal Theory", section 7.4, alternating renewal processes; the mean of a gamma variable cut at T.
    """
    if rate_per_s <= 0.0:
        return 0.0
    if math.isinf(time_to_live_s):
        return 1.0
    shape = 1.0 / arrival_cv**2
    most = rate_per_s * time_to_live_s
    return gamma_share(shape + 1.0, shape * most) + most * (1.0 - gamma_share(shape, shape * most))


def renewals(rate_per_s: float, time_s: float, arrival_cv: float = 1.0) -> float:
    """Return the mean number of requests within some time after one of them.

        m(T) = P(a, a r T) + P(2 a, a r T) + P(3 a, a r T) + ...,   a = 1 / c^2;   Poisson arrivals: r T

    Parameters
    ----------
    rate_per_s : [1/s]
        r, requests in the long run.
    time_s : [s]
        T, from a request on, which is not counted.
    arrival_cv : [-]
        c, coefficient of variation of the gamma-distributed time between requests.

    Returns
    -------
    [-]
        m; beyond 200 requests its limit r T + (c^2 - 1) / 2.

    Examples
    --------
    >>> round(renewals(0.01, 300.0), 12), renewals(10.0, 300.0, 2.0)
    (3.0, 3001.5)

    References
    ----------
    Cox 1962, "Renewal Theory", sections 4.2 and 4.5: the renewal function of gamma intervals, and its limit.
    """
    mean = rate_per_s * time_s
    if arrival_cv == 1.0:
        return mean
    if mean > 200.0:
        return mean + (arrival_cv**2 - 1.0) / 2.0
    shape, total = 1.0 / arrival_cv**2, 0.0
    for n in range(1, MOST_TERMS):
        term = gamma_share(n * shape, shape * mean)
        total += term
        if term < 1e-12:
            break
    return total


def fixed_life_fractions(
    rates_per_s: Array, time_to_live_s: float, arrival_cv: float = 1.0
) -> tuple[Array, Array]:
    """Return the share of requests that find a prefix that lives for some time from its creation, and the share of the time it is stored.

        f = m / (1 + m),   s = r T / (1 + m)

    The request that finds nothing creates the prefix, and m requests find it.

    Parameters
    ----------
    rates_per_s : [1/s]
        r, requests with the prefix, by hour.
    time_to_live_s : [s]
        T, from creation.
    arrival_cv : [-]
        of the time between them.

    Returns
    -------
    f, s [-]
        both from 0 to 1.

    Examples
    --------
    >>> [float(round(part[0], 4)) for part in fixed_life_fractions(np.array([1 / 300]), 300.0)]
    [0.5, 0.5]

    References
    ----------
    Ross 2014, "Introduction to Probability Models", section 7.4, renewal reward.
    """
    if math.isinf(time_to_live_s):
        return np.where(rates_per_s > 0.0, 1.0, 0.0), np.where(rates_per_s > 0.0, 1.0, 0.0)
    means = np.array(
        [renewals(float(rate), time_to_live_s, arrival_cv) if rate else 0.0 for rate in rates_per_s]
    )
    stored = rates_per_s * time_to_live_s / (1.0 + means)
    return means / (1.0 + means), np.minimum(stored, 1.0)


def cached_prefix_usd(
    prefix_tokens: Number, hit_fraction: Number, usd_per_million_read: Number, usd_per_million_write: Number
) -> Number:
    """Return what the cached prefix of a request costs on average: a read where it is found, else a write.

        c = 10^-6 p (f k + (1 - f) w)

    Parameters
    ----------
    prefix_tokens : [tokens]
        p.
    hit_fraction : [-]
        f, share of the requests that find it.
    usd_per_million_read : [$/10^6 token]
        k.
    usd_per_million_write : [$/10^6 token]
        w; at providers without a write premium the price of input.

    Returns
    -------
    [$]
        c, without what follows the prefix, and without storage.

    Examples
    --------
    A million tokens, found half of the time, read at 0.1 and written at 1.25 of a price of $1:

    >>> round(cached_prefix_usd(1e6, 0.5, 0.1, 1.25), 12)
    0.675

    References
    ----------
    https://platform.claude.com/docs/en/build-with-claude/prompt-caching, "Pricing".
    """
    return (
        1e-6
        * prefix_tokens
        * (hit_fraction * usd_per_million_read + (1.0 - hit_fraction) * usd_per_million_write)
    )


def breakeven_requests(write_ratio: float, read_ratio: float, storage_ratio: float = 0.0) -> float:
    """Return the requests within one time to live at which caching costs as much as sending the prefix again.

        w + (n - 1) k + s = n  ->  n = (w - k + s) / (1 - k)

    Parameters
    ----------
    write_ratio : [-]
        w, price of a cache write over that of input.
    read_ratio : [-]
        k, price of a cache read over that of input.
    storage_ratio : [-]
        s, price of storing a token for the time to live over that of its input.

    Returns
    -------
    [-]
        n, caching pays from the next whole number on; infinite where a read costs no less than input.

    Examples
    --------
    >>> round(breakeven_requests(1.25, 0.1), 3), breakeven_requests(1.0, 0.1, 3.6)
    (1.278, 5.0)

    References
    ----------
    Setting the cost of one write, n - 1 reads and the storage equal to n inputs; prices as on
    https://platform.claude.com/docs/en/build-with-claude/prompt-caching.
    """
    if read_ratio >= 1.0:
        return math.inf
    return (write_ratio - read_ratio + storage_ratio) / (1.0 - read_ratio)


def hit_fractions(rates_per_s: Array, time_to_live_s: float, arrival_cv: float) -> tuple[Array, Array]:
    """Return the reused share of the requests and the stored share of the time, hour by hour.

    Parameters
    ----------
    rates_per_s : [1/s]
        requests with the prefix, by hour
    time_to_live_s : [s]
        since the last use
    arrival_cv : [-]
        of the time between them

    Returns
    -------
    reused, stored [-]
    """
    reused = [reused_fraction(float(rate), time_to_live_s, arrival_cv) for rate in rates_per_s]
    stored = [stored_fraction(float(rate), time_to_live_s, arrival_cv) for rate in rates_per_s]
    return np.array(reused), np.array(stored)
