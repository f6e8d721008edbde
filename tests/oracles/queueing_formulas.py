"""Queues whose theory is known: what the simulator is held against.

Letters: lambda arrivals per second, s mean service, rho = lambda s; X(n) is the rate at which n requests in the system end.
"""

from math import exp

import numpy as np


def number_probabilities(arrival_per_s, ended_per_s):
    """Return p(0), p(1), ... of the requests in a system whose speed depends on how many there are.

        p(n) ~ prod_{k<=n} lambda / X(k)

    Exact for Poisson arrivals and exponential services whatever the order of service (a birth-death chain), and for
    services of any kind where those in service share the speed equally (processor sharing). The last rate given holds
    for all larger numbers.

    Kleinrock 1975, "Queueing Systems" vol. 1, equation 3.11; Bonald, Proutiere 2002, "Insensitivity in
    processor-sharing networks", doi:10.1016/S0166-5316(02)00127-X.

    One server at half its rate, p(n) = 0.5^(n + 1):

    >>> number_probabilities(0.5, np.ones(1))[:3].round(3)
    array([0.5  , 0.25 , 0.125])
    """
    rates = np.append(ended_per_s, np.full(4000, ended_per_s[-1]))
    log_mass = np.concatenate([[0.0], np.cumsum(np.log(arrival_per_s / rates))])
    mass = np.exp(log_mass - log_mass.max())
    return mass / mass.sum()


def mmc_rates(service_s, servers):
    """Return X(n) of equal servers, n = 1 ... servers."""
    return np.arange(1, servers + 1) / service_s


def mmc_wait_s(arrival_per_s, service_s, servers):
    """Return the mean wait with exponential services on several servers (M/M/c): Little's law of those who wait.

    Hillier, Lieberman, "Introduction to Operations Research", the county hospital: two patients an hour, three an hour
    per doctor; they wait 2/3 h for one doctor and 1/24 h for two:

    >>> [round(float(mmc_wait_s(2.0, 1 / 3, doctors)) * 24, 6) for doctors in (1, 2)]
    [16.0, 1.0]
    """
    number = number_probabilities(arrival_per_s, mmc_rates(service_s, servers))
    return np.maximum(np.arange(number.size) - servers, 0) @ number / arrival_per_s


def mmc_wait_beyond(arrival_per_s, service_s, servers, wait_s):
    """Return the probability to wait longer, first come first served, with exponential services (M/M/c).

        P(W > t) = C exp(-(c / s - lambda) t),   C the probability that all servers are busy

    Kleinrock 1975, "Queueing Systems" vol. 1, section 3.5 and problem 3.16. The same hospital: 40.4 % wait longer than
    half an hour for one doctor, 2.3 % for two:

    >>> [round(float(mmc_wait_beyond(2.0, 1 / 3, doctors, 0.5)), 3) for doctors in (1, 2)]
    [0.404, 0.023]
    """
    busy = number_probabilities(arrival_per_s, mmc_rates(service_s, servers))[servers:].sum()
    return busy * exp(-(servers / service_s - arrival_per_s) * wait_s)


def mg1_wait_s(arrival_per_s, service_s, service_cv):
    """Return the mean wait with services of any kind on one server (M/G/1).

        W = rho s (1 + v^2) / (2 (1 - rho)),   v standard deviation over mean

    Kleinrock 1975, "Queueing Systems" vol. 1, equation 5.70 (Pollaczek-Khinchine). Erlang's table of equal services
    at 80 % (1909):

    >>> round(mg1_wait_s(0.8, 1.0, 0.0), 9)
    2.0
    """
    load = arrival_per_s * service_s
    return load * service_s * (1.0 + service_cv**2) / (2.0 * (1.0 - load))


def md1_wait_at_most(arrival_per_s, service_s, wait_s):
    """Return the probability to wait at most so long with equal services on one server (M/D/1).

        P(W <= t) = (1 - rho) sum_{k=0}^{floor(t/s)} (lambda (k s - t))^k / k!  exp(-lambda (k s - t))

    Erlang 1909; Crommelin 1932, in the form of Tijms 2003, "A First Course in Stochastic Models", section 9.6.2. The
    terms alternate and lose digits beyond some twenty services.

    >>> md1_wait_at_most(0.5, 1.0, 0.0)
    0.5
    """
    total, factorial = 0.0, 1.0
    for k in range(int(wait_s / service_s) + 1):
        factorial *= max(k, 1)
        ahead = arrival_per_s * (k * service_s - wait_s)
        total += ahead**k / factorial * exp(-ahead)
    return (1.0 - arrival_per_s * service_s) * total


def shared_time_s(arrival_per_s, service_s):
    """Return the mean time in a server that all requests share equally, services of any kind (M/G/1-PS).

        T = s / (1 - rho)

    Kleinrock 1976, "Queueing Systems" vol. 2, equation 4.17.

    >>> shared_time_s(0.5, 1.0)
    2.0
    """
    return service_s / (1.0 - arrival_per_s * service_s)
