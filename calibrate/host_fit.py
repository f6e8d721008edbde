"""Fit the host times of one era of an engine: robust least squares on logarithmic errors, linearised and repeated.

    min  sum_i w_i rho((e_i + J_i d) / n_i) + sum_k ((x_k + d_k - p_k) / s_k)^2 P

e_i are the logarithmic errors of the values that steer the fit at numbers x, J_i how they move with each number, d the
step, n_i what values of that kind are usually off by, p a prior (the median of all other eras), s its spread, rho the
Cauchy loss: a row that is wrong for another reason must not steer the host. Because the sum is linear in the rows, the
fit without one group of rows costs no further replay.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log

import numpy as np
from scipy.optimize import lsq_linear

from calibrate.host_rows import Item, predicted_columns, steering_columns
from capplan.accuracy.replay import requests_of
from capplan.accuracy.score import weighted_quantile
from capplan.accuracy.serving import LOADS, measured_columns, quantity_of
from capplan.engine.profile import EngineProfile, HostOverhead
from capplan.numbers import Array


@dataclass(frozen=True, slots=True)
class Number:
    """One fitted number: where the search starts, its range, and the step of a difference quotient."""

    name: str
    start: float
    spread: float
    largest: float
    step: float


NUMBERS = (
    Number("step_s", 1e-3, 1.5e-3, 2e-2, 2e-4),
    Number("sequence_s", 3e-6, 2e-5, 4e-4, 2e-6),
    Number("stream_s", 0.0, 1e-4, 1e-3, 1e-5),
    Number("request_s", 2e-2, 3e-2, 4e-1, 5e-3),
    Number("decode_excess_ratio", 0.6, 0.3, 1.5, 0.1),
    Number("prefill_excess_ratio", 1.0, 0.4, 2.2, 0.1),
)
"""None is below 0."""

ONLINE_ONLY = frozenset({"request_s", "stream_s"})
"""Numbers that do not apply to a run without a server."""

EAGER_LAYER_S = 2e-5
"""Launching one layer outside CUDA graphs: no measured row tells it apart from the rest of a step (an assumption)."""

LEAST_NOISE = 0.03
"""Least logarithmic error that values of a kind are taken to have: runs repeat themselves no better."""

NORMAL_DEVIATIONS = 1.4826
"""Standard deviation of normal errors over their median size."""

REWEIGHTINGS = 25
"""Rounds of reweighted least squares, which is how the Cauchy loss is minimised."""

PRIOR_ROWS = 4.0
"""Weight of rows, off by as much as their kind usually is where a number is off by its spread, that its prior counts as."""

MOST_REQUESTS = 1000
"""Requests of one run that slopes are taken with; errors are those of the whole run."""

LOST = 1.5
"""Logarithmic error of a value that a replay does not reach."""


@dataclass(frozen=True, slots=True)
class Slopes:
    """Errors of one row at given numbers, and their slopes."""

    group: str
    kinds: tuple[str, ...]
    """Load and quantity of each value that steers the fit."""
    weights: Array
    """Of these values, shape (values,)."""
    errors: Array
    """log(predicted / measured), shape (values,)."""
    slopes: Array
    """Their change with each number, shape (values, numbers)."""


def numbers_of(host: HostOverhead) -> Array:
    """Return the fitted numbers in the order of NUMBERS."""
    return np.array([getattr(host, number.name) for number in NUMBERS])


def host_of_numbers(values: Array) -> HostOverhead:
    """Return host times from fitted numbers."""
    fitted = {number.name: float(value) for number, value in zip(NUMBERS, values, strict=True)}
    return HostOverhead(eager_layer_s=EAGER_LAYER_S, **fitted)


def prior_host() -> HostOverhead:
    """Return the host times of an engine where no engine is measured."""
    return host_of_numbers(np.array([number.start for number in NUMBERS]))


def typical_host(hosts: Sequence[HostOverhead]) -> HostOverhead:
    """Return the median of each number: the prior for an engine."""
    return host_of_numbers(np.median([numbers_of(host) for host in hosts], axis=0)) if hosts else prior_host()


def errors_of(item: Item, host: HostOverhead, most_requests: int | None = None) -> Array:
    """Return the logarithmic errors of the values that steer the fit."""
    columns, measured = predicted_columns(item, host, most_requests), measured_columns(item.row)
    return np.array(
        [
            log(columns[name] / measured[name]) if columns.get(name, 0.0) > 0 else -LOST
            for name in steering_columns(item)
        ]
    )


def fitted_names(engine: EngineProfile, *, offline: bool = False) -> list[str]:
    """Return the numbers that a run of an engine determines."""
    names = [number.name for number in NUMBERS if not (offline and number.name in ONLINE_ONLY)]
    return [name for name in names if name != "stream_s" or engine.streams_in_engine]


def slopes_of(item: Item, host: HostOverhead) -> Slopes:
    """Return the errors of a row and their difference quotients."""
    errors = errors_of(item, host)
    shorter = requests_of(item.benchmark) > MOST_REQUESTS
    still = errors_of(item, host, MOST_REQUESTS) if shorter else errors
    spec = item.replica.spec
    told = fitted_names(spec.profile, offline=spec.offline)
    slopes = np.zeros((errors.size, len(NUMBERS)))
    for place, number in enumerate(NUMBERS):
        if number.name not in told:
            continue
        at = getattr(host, number.name)
        moved = replace(host, **{number.name: at + number.step})
        slopes[:, place] = (errors_of(item, moved, MOST_REQUESTS) - still) / number.step
    load = LOADS[item.benchmark.kind]
    kinds = tuple(f"{load}/{quantity_of(name)}" for name in steering_columns(item))
    return Slopes(item.group, kinds, np.full(errors.size, item.weight), errors, slopes)


Noise = Mapping[str, float]
"""Kind of value -> its usual logarithmic error."""


def noise_of(rows: Iterable[Slopes]) -> Noise:
    """Return the usual error of values of each kind where the slopes were taken, over all engines.

        n = 1.48 median |e|

    A burst repeats itself to 40 %, a time per token of a closed loop to 2 %: what is off by 10 % says little of a host in
    the one and much in the other.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for kind, error, weight in zip(row.kinds, row.errors, row.weights, strict=True):
            found.setdefault(kind, []).append((abs(float(error)), float(weight)))
    noise = {}
    for kind, entries in found.items():
        errors, weights = np.array(entries).T
        noise[kind] = max(LEAST_NOISE, NORMAL_DEVIATIONS * weighted_quantile(errors, weights, 0.5))
    return noise


def _noises(rows: Sequence[Slopes], noise: Noise) -> Array:
    return np.array([noise[kind] for row in rows for kind in row.kinds])


def loss_of(rows: Sequence[Slopes], noise: Noise) -> float:
    """Return the weighted mean of the robust loss where the slopes were taken."""
    weights = np.concatenate([row.weights for row in rows])
    errors = np.concatenate([row.errors for row in rows]) / _noises(rows, noise)
    return float((weights * np.log1p(errors**2)).sum() / weights.sum())


def solved(
    rows: Sequence[Slopes], host: HostOverhead, noise: Noise, prior: HostOverhead, trust: float = inf
) -> HostOverhead:
    """Return the best numbers for the rows, at most `trust` spreads away from where the slopes were taken.

    Parameters
    ----------
    rows : slopes at `host`; none gives the prior
    host : where the slopes were taken
    noise : of each kind of value
    prior : what is known without the rows
    trust : [-]
        in spreads of the prior

    Returns
    -------
    the numbers
    """
    if not rows:
        return prior
    start = numbers_of(host)
    spread = np.array([number.spread for number in NUMBERS])
    known_before = numbers_of(prior)
    usual = _noises(rows, noise)
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
        off = (errors + slopes @ step) / usual
        root = np.sqrt(weights / (1.0 + off**2)) / usual
        matrix = np.concatenate([root[:, None] * slopes, pull])
        target = np.concatenate([-root * errors, towards])
        step = lsq_linear(matrix, target, bounds).x
    return host_of_numbers(start + step * spread)
