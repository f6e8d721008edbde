"""Times between arrivals: every command draws the same ones, so that two answers to one question differ by nothing but what was asked."""

import numpy as np

from capplan.numbers import Array

SIMULATED_REQUESTS = 15_000
"""Requests of a simulated run. A tenth of them overstates the largest rate by 4 to 7 %; one long run beats several seeds."""
WARM_UP_SHARE = 0.15
"""Share of the requests of a run that latencies and rates leave out: the first ones meet empty replicas."""
STEADY_CV = 1e-3
"""Coefficient of variation below which times between arrivals are constant."""


def arrival_generator(seed: int) -> "np.random.Generator":
    """Return the generator of the times between arrivals, which nothing else is drawn from."""
    return np.random.default_rng([seed, 1])


def drawn_gaps(random: "np.random.Generator", cv: float, count: int) -> Array:
    """Return gamma-distributed times between arrivals with a mean of one; the first ones of a longer draw are those of a shorter one.

    Parameters
    ----------
    random : where they come from
    cv : [-]
        coefficient of variation: 1 for a Poisson process, 0 for a steady one
    count : [-]

    Examples
    --------
    >>> bool((drawn_gaps(arrival_generator(7), 1.0, 3) == drawn_gaps(arrival_generator(7), 1.0, 9)[:3]).all())
    True
    """
    if cv <= STEADY_CV:
        return np.ones(count)
    return random.gamma(1.0 / cv**2, cv**2, count)
