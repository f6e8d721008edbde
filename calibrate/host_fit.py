"""Fit the host times of one era of an engine: robust least squares on logarithmic errors, linearised and repeated.

    min  sum_i w_i rho(e_i + J_i d) + sum_k ((x_k + d_k - p_k) / s_k)^2 P

e_i are the logarithmic errors of the values that steer the fit at numbers x, J_i how they move with each number, d the
step, p a prior (what the engine's other versions ask for), s its spread, rho the Cauchy loss: a row that is wrong for another reason must not steer
the host. Because the sum is linear in the rows, the fit without one group of rows costs no further replay.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np
from scipy.optimize import lsq_linear

from capplan.accuracy.replay import requests_of
from capplan.accuracy.serving import measured_columns
from capplan.calibrate.host_rows import Item, predicted_columns, steering_columns
from capplan.engine.profile import HostOverhead
from capplan.numbers import Array


@dataclass(frozen=True, slots=True)
class Number:
    """One fitted number: the prior that all engines share, its range, and the step of a difference quotient."""

    name: str
    prior: float
    spread: float
    largest: float
    step: float


NUMBERS = (
    Number("step_s", 1e-3, 1.5e-3, 2e-2, 2e-4),
    Number("sequence_s", 3e-6, 2e-5, 4e-4, 2e-6),
    Number("request_s", 2e-2, 3e-2, 4e-1, 5e-3),
    Number("eager_layer_s", 2e-5, 8e-5, 1e-3, 4e-5),
    Number("decode_excess_ratio", 0.6, 0.3, 1.5, 0.1),
    Number("prefill_excess_ratio", 1.0, 0.4, 2.2, 0.1),
)
"""None is below 0."""

ONLINE_ONLY = frozenset({"request_s"})
"""Numbers that a run without a server does not have."""

LOSS_SCALE = 0.08
"""Logarithmic error from which a row counts less and less."""

REWEIGHTINGS = 25
"""Rounds of reweighted least squares, which is how the Cauchy loss is minimised."""

PRIOR_ROWS = 2.0
"""Rows that the prior of one number counts as."""

FIRST_TOKEN_SHARE = 0.6
"""What an error of the time to first token counts: it repeats itself to 4 to 29 % only, time per token to 0.5 to 3.5 %."""

MOST_REQUESTS = 1000
"""Requests of one run that slopes are taken with; errors are those of the whole run."""

LOST = 1.5
"""Logarithmic error of a value that a replay does not reach."""


@dataclass(frozen=True, slots=True)
class Slopes:
    """Errors of one row at some numbers, and how they move."""

    group: str
    weights: Array
    """Of the values that steer the fit, shape (values,)."""
    errors: Array
    """log(predicted / measured), shape (values,)."""
    slopes: Array
    """Their change with each number, shape (values, numbers)."""


def numbers_of(host: HostOverhead) -> Array:
    """Return the fitted numbers in the order of NUMBERS."""
    return np.array([getattr(host, number.name) for number in NUMBERS])


def host_of_numbers(values: Array) -> HostOverhead:
    """Return host times from fitted numbers."""
    return HostOverhead(**{number.name: float(value) for number, value in zip(NUMBERS, values, strict=True)})


def prior_host() -> HostOverhead:
    """Return the host times of an engine of which nothing is measured."""
    return host_of_numbers(np.array([number.prior for number in NUMBERS]))


def mean_host(hosts: Sequence[HostOverhead]) -> HostOverhead:
    """Return what the other versions of an engine say of one; the prior of all engines counts as one of them."""
    return host_of_numbers(np.mean([numbers_of(host) for host in (*hosts, prior_host())], axis=0))


def errors_of(item: Item, host: HostOverhead, most_requests: int | None = None) -> Array:
    """Return the logarithmic errors of the values that steer the fit."""
    columns, measured = predicted_columns(item, host, most_requests), measured_columns(item.row)
    return np.array(
        [
            log(columns[name] / measured[name]) if columns.get(name, 0.0) > 0 else -LOST
            for name in steering_columns(item)
        ]
    )


def slopes_of(item: Item, host: HostOverhead) -> Slopes:
    """Return the errors of a row and their difference quotients."""
    errors = errors_of(item, host)
    shorter = requests_of(item.benchmark) > MOST_REQUESTS
    still = errors_of(item, host, MOST_REQUESTS) if shorter else errors
    offline = item.replica.spec.offline
    slopes = np.zeros((errors.size, len(NUMBERS)))
    for place, number in enumerate(NUMBERS):
        if offline and number.name in ONLINE_ONLY:
            continue
        at = getattr(host, number.name)
        moved = replace(host, **{number.name: at + number.step})
        slopes[:, place] = (errors_of(item, moved, MOST_REQUESTS) - still) / number.step
    share = [FIRST_TOKEN_SHARE if name.startswith("ttft") else 1.0 for name in steering_columns(item)]
    return Slopes(item.group, item.weight * np.array(share), errors, slopes)


def loss_of(rows: Sequence[Slopes]) -> float:
    """Return the weighted mean of the robust loss where the slopes were taken."""
    weights = np.concatenate([row.weights for row in rows])
    errors = np.concatenate([row.errors for row in rows]) / LOSS_SCALE
    return float((weights * np.log1p(errors**2)).sum() / weights.sum())


def solved(
    rows: Sequence[Slopes], host: HostOverhead, trust: float, prior: HostOverhead | None = None
) -> HostOverhead:
    """Return the numbers that the rows ask for, at most `trust` spreads away from where the slopes were taken.

    Parameters
    ----------
    rows : slopes at `host`; none gives the prior
    host : where the slopes were taken
    trust : [-]
        in spreads of the prior
    prior : what is known without the rows; None: the prior of all engines

    Returns
    -------
    the numbers
    """
    if not rows:
        return prior or prior_host()
    start = numbers_of(host)
    spread = np.array([number.spread for number in NUMBERS])
    known_before = numbers_of(prior or prior_host())
    weights = np.concatenate([row.weights for row in rows])
    errors = np.concatenate([row.errors for row in rows])
    slopes = np.concatenate([row.slopes for row in rows]) * spread
    low = np.maximum(-trust, -start / spread)
    high = np.minimum(trust, (np.array([number.largest for number in NUMBERS]) - start) / spread)
    bounds = (low, np.maximum(high, low + 1e-9))
    pull = np.sqrt(PRIOR_ROWS) * np.eye(start.size)
    towards = np.sqrt(PRIOR_ROWS) * (known_before - start) / spread
    step = np.zeros(start.size)
    for _ in range(REWEIGHTINGS):
        off = (errors + slopes @ step) / LOSS_SCALE
        root = np.sqrt(weights / (1.0 + off**2)) / LOSS_SCALE
        matrix = np.concatenate([root[:, None] * slopes, pull])
        target = np.concatenate([-root * errors, towards])
        step = lsq_linear(matrix, target, bounds).x
    return host_of_numbers(start + step * spread)
