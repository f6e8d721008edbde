"""Waiting times of classical queues: Poisson arrivals, one or several servers.

Letters: lambda arrivals per second, s mean service time, c servers, rho = lambda s / c, a = lambda s offered load.
A queue with rho >= 1 has no steady state; its waiting time is infinite.
"""

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Array, Number


def utilisation(arrival_per_s: Number, service_s: Number, servers: Number = 1.0) -> Array:
    """Return the share of time that a server is busy, if the queue has a steady state.

        rho = lambda s / c

    Parameters
    ----------
    arrival_per_s : [1/s]
        lambda.
    service_s : [s]
        s, mean.
    servers : [-]
        c.

    Returns
    -------
    [-]
        rho; 1 or more means that the queue grows without end.

    Examples
    --------
    >>> float(utilisation(2.0, 0.25))
    0.5

    References
    ----------
    Kleinrock 1975, "Queueing Systems" vol. 1, equation 2.33.
    """
    return np.asarray(np.asarray(arrival_per_s) * service_s / servers, dtype=np.float64)


def erlang_b(offered: Number, servers: NDArray[np.int64] | int) -> Array:
    """Return the probability that an arrival finds all servers busy and is lost (M/G/c/c).

        B(0) = 1,   1 / B(c) = 1 + (c / a) / B(c - 1)

    Parameters
    ----------
    offered : [-]
        a = lambda s, above zero.
    servers : [-]
        c, whole.

    Returns
    -------
    [-]
        B.

    Examples
    --------
    >>> round(float(erlang_b(1.0, 2)), 9)
    0.2

    References
    ----------
    Messerli 1972, "Proof of a convexity property of the Erlang B formula", doi:10.1002/j.1538-7305.1972.tb01956.x.
    """
    load, count = np.broadcast_arrays(np.asarray(offered, dtype=np.float64), np.asarray(servers))
    inverse = np.ones(load.shape)
    for server in range(1, int(count.max(initial=0)) + 1):
        grown = np.minimum(1.0 + server / load * inverse, 1e300)
        inverse = np.where(server <= count, grown, inverse)
    return np.asarray(1.0 / inverse)


def erlang_c(offered: Number, servers: NDArray[np.int64] | int) -> Array:
    """Return the probability that an arrival has to wait (M/M/c).

        C = B / (1 - rho (1 - B)),   1 where rho >= 1

    Parameters
    ----------
    offered : [-]
        a = lambda s, above zero.
    servers : [-]
        c, whole.

    Returns
    -------
    [-]
        C.

    Examples
    --------
    >>> round(float(erlang_c(1.0, 2)), 9)
    0.333333333

    References
    ----------
    Kleinrock 1975, "Queueing Systems" vol. 1, equation 3.43; from Erlang B: Cooper 1981, "Introduction to Queueing
    Theory", equation 4.8 of chapter 3.
    """
    lost = erlang_b(offered, servers)
    load = np.minimum(np.asarray(offered) / np.asarray(servers), 1.0)
    return np.asarray(lost / (1.0 - load * (1.0 - lost)))


def mmc_wait_s(arrival_per_s: Number, service_s: Number, servers: NDArray[np.int64] | int = 1) -> Array:
    """Return the mean wait with exponential service times on several servers (M/M/c); M/M/1 by default.

        W = C s / (c (1 - rho))

    Parameters
    ----------
    arrival_per_s : [1/s]
        lambda.
    service_s : [s]
        s, mean.
    servers : [-]
        c, whole.

    Returns
    -------
    [s]
        W, without service.

    Examples
    --------
    >>> float(mmc_wait_s(0.5, 1.0))
    1.0

    References
    ----------
    Kleinrock 1975, "Queueing Systems" vol. 1, section 3.5.
    """
    load = utilisation(arrival_per_s, service_s, np.asarray(servers, dtype=np.float64))
    waits = erlang_c(np.asarray(arrival_per_s) * service_s, servers)
    spare = np.where(load < 1.0, np.asarray(servers) * (1.0 - load), 1.0)
    return np.where(load < 1.0, waits * service_s / spare, np.inf)


def mg1_wait_s(arrival_per_s: Number, service_s: Number, service_cv: Number) -> Array:
    """Return the mean wait with any service times on one server (M/G/1).

        W = rho s (1 + v^2) / (2 (1 - rho))

    Parameters
    ----------
    arrival_per_s : [1/s]
        lambda.
    service_s : [s]
        s, mean.
    service_cv : [-]
        v, standard deviation over mean: 0 for equal services (M/D/1), 1 for exponential ones (M/M/1).

    Returns
    -------
    [s]
        W, without service.

    Examples
    --------
    >>> float(mg1_wait_s(0.5, 1.0, 0.0))
    0.5

    References
    ----------
    Kleinrock 1975, "Queueing Systems" vol. 1, equation 5.70 (Pollaczek-Khinchine).
    """
    load = utilisation(arrival_per_s, service_s)
    spare = np.where(load < 1.0, 2.0 * (1.0 - load), 1.0)
    return np.where(load < 1.0, load * service_s * (1.0 + np.square(service_cv)) / spare, np.inf)


def ggc_wait_s(
    arrival_per_s: Number,
    service_s: Number,
    servers: Number,
    arrival_cv: Number = 1.0,
    service_cv: Number = 1.0,
) -> Array:
    """Return about the mean wait with any arrivals and services on several servers (G/G/c).

        W = s (u^2 + v^2) / 2 x rho^(sqrt(2 (c + 1)) - 1) / (c (1 - rho))

    Closed and smooth in c, so that one call serves plans with a thousand seats beside plans with one.

    Parameters
    ----------
    arrival_per_s : [1/s]
        lambda.
    service_s : [s]
        s, mean.
    servers : [-]
        c, may be a fraction.
    arrival_cv : [-]
        u, of the times between arrivals; 1 for Poisson.
    service_cv : [-]
        v.

    Returns
    -------
    [s]
        W, without service; exact for M/M/1 and M/G/1.

    Examples
    --------
    >>> float(ggc_wait_s(0.5, 1.0, 1.0))
    1.0

    References
    ----------
    Sakasegawa 1977, "An approximation formula L_q = alpha beta^rho / (1 - rho)", doi:10.1007/BF02532496;
    Allen 1990, "Probability, Statistics and Queueing Theory", section 5.4 (Allen-Cunneen).
    """
    load = utilisation(arrival_per_s, service_s, servers)
    inside = np.clip(load, 0.0, 1.0)
    spare = np.where(load < 1.0, servers * (1.0 - inside), 1.0)
    scale = service_s * (np.square(arrival_cv) + np.square(service_cv)) / 2.0
    wait = scale * inside ** (np.sqrt(2.0 * (np.asarray(servers) + 1.0)) - 1.0) / spare
    return np.where(load < 1.0, wait, np.inf)


def wait_percentile_s(waiting_fraction: Number, mean_wait_s: Number, fraction: Number) -> Array:
    """Return a percentile of the wait, if those who wait do so for an exponential time.

        W_q = max(0, W / C ln(C / (1 - q)))

    Exact for M/M/c, close for M/G/1 in the tail.

    Parameters
    ----------
    waiting_fraction : [-]
        C, share of arrivals that wait at all (rho on one server).
    mean_wait_s : [s]
        W, mean over all arrivals.
    fraction : [-]
        q, such as 0.95.

    Returns
    -------
    [s]
        W_q.

    Examples
    --------
    Half wait, on average 2 s: none at the median, 2 s x ln(5) at 90 %:

    >>> wait_percentile_s(0.5, 1.0, np.array([0.5, 0.9])).round(3)
    array([0.   , 3.219])

    References
    ----------
    Kleinrock 1975, "Queueing Systems" vol. 1, section 5.7 and problem 3.16 (distribution of the wait in M/M/c).
    """
    waits = np.asarray(waiting_fraction, dtype=np.float64)
    some = waits > 0.0
    ratio = np.where(some, waits, 1.0) / (1.0 - np.asarray(fraction))
    scale = np.where(some, mean_wait_s / np.where(some, waits, 1.0), 0.0)
    return np.asarray(np.where(ratio > 1.0, scale * np.log(np.maximum(ratio, 1.0)), 0.0))


def md1_wait_at_most(arrival_per_s: float, service_s: float, wait_s: float) -> float:
    """Return the probability to wait at most so long with equal service times on one server (M/D/1).

        P(W <= t) = (1 - rho) sum_{k=0}^{floor(t/s)} (lambda (k s - t))^k / k!  exp(-lambda (k s - t))

    Parameters
    ----------
    arrival_per_s : [1/s]
        lambda.
    service_s : [s]
        s.
    wait_s : [s]
        t, up to about 20 s: the terms alternate and lose digits beyond that.

    Returns
    -------
    [-]
        P.

    Examples
    --------
    >>> md1_wait_at_most(0.5, 1.0, 0.0)
    0.5

    References
    ----------
    Erlang 1909; Crommelin 1932, in the form of Tijms 2003, "A First Course in Stochastic Models", section 9.6.2.
    """
    total, factorial = 0.0, 1.0
    for k in range(int(wait_s / service_s) + 1):
        factorial *= max(k, 1)
        ahead = arrival_per_s * (k * service_s - wait_s)
        total += ahead**k / factorial * float(np.exp(-ahead))
    return (1.0 - arrival_per_s * service_s) * total
