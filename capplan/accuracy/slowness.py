"""How much slower than predicted a real replica may be: the one uncertain number behind every latency of a plan.

A replica whose every step takes s times as long does at r requests per second what the predicted one does at r s, s times
as slowly: so a slow replica saturates earlier, and one number moves all latencies of a plan at once. A plan meets its
targets with the probability that s is at most s*, the largest slowness at which all of them are still met.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from capplan.accuracy.bounded import PROBABILITIES as INTERVAL_PROBABILITIES
from capplan.accuracy.bounded import LeftOutSpread, left_out_spread, of_deployment
from capplan.engine.left_out import LeftOutResult, Served
from capplan.hardware.device import Device, Efficiency
from capplan.numbers import Array
from capplan.workload.length import standard_normal_quantile
from capplan.workload.request_class import Target

Latencies: TypeAlias = Literal["ttft", "tpot", "both"]
"""Latencies with a limit; both: the slower of the two decides."""
Part: TypeAlias = Literal["middle", "p95", "p99"]
"""Mean and median are the middle; no 95th percentile was measured: it lies between median and 99th by its normal quantile."""

FEW_GROUPS = 12
"""Groups of runs (source, model, device) below which a distribution is called thin."""
FEW_OF_CLASS = 5
"""Groups with networks of one class below which the distribution of that class is called thin."""
UNMEASURED = 1.6
"""Factor on the width for each thing that was not measured (an assumption): a class of networks or slices of a device without an open loop, a generation
of devices without timed kernels, a vendor without any. Closed loops are off by 10 % with latent attention, the only such class, and on devices that borrow
the kernels of a distant one; by 6 to 7 % with dense networks, and on devices that borrow those of their own generation, most of the open loops."""
PROBABILITIES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Where the distributions of the back-test are known; between and beyond them the logarithm is linear in the normal quantile."""
OWN_PROBABILITIES = (0.005, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.995)
"""Where the distribution of a fitted deployment is known, whose tails are longer than those of a normal one."""


@dataclass(frozen=True, slots=True)
class Slowness:
    """Measured over predicted step time of a replica: its distribution."""

    log_quantiles: tuple[float, ...]
    """Logarithms at PROBABILITIES, ascending."""
    rows: int
    """Measured runs behind it."""
    groups: int
    """Sources, models and devices of these runs."""
    thin: bool
    """Few runs, or none, were measured with networks of this class."""
    left_out_error_fraction: float | None = None
    """Median error of the results of this deployment that its fit did not see; None: the runs are those of the back-test."""
    probabilities: tuple[float, ...] = PROBABILITIES
    """Where the logarithms are known."""

    @property
    def rests_on(self) -> str:
        """Return in words what was measured."""
        if self.left_out_error_fraction is None:
            return f"{self.rows} measured runs in {self.groups} groups"
        return f"{self.rows} results of this deployment, left-out error {self.left_out_error_fraction:.1%}"

    def quantile(self, confidence: float) -> float:
        """Return the slowness that is not exceeded with a confidence, above 0 and below 1.

        Examples
        --------
        >>> usual = Slowness((-0.1, 0.0, 0.1, 0.2, 0.4), 36, 22, False)
        >>> round(usual.quantile(0.5), 2), round(usual.quantile(0.9), 2)
        (1.11, 1.49)
        """
        return self._at(_normal_quantile(confidence))

    def probability(self, slowness: float) -> float:
        """Return the probability that a replica is at most this slow: that of a plan which meets its targets up to there.

        Examples
        --------
        >>> usual = Slowness((-0.1, 0.0, 0.1, 0.2, 0.4), 36, 22, False)
        >>> usual.probability(0.0), round(usual.probability(1.0), 3), round(usual.probability(usual.quantile(0.8)), 6)
        (0.0, 0.3, 0.8)
        """
        if slowness <= 0.0:
            return 0.0
        if math.isinf(slowness):
            return 1.0
        return 0.5 * (1.0 + math.erf(self.normal_quantile(slowness) / math.sqrt(2.0)))

    def as_likely_as(self, other: "Slowness", slowness: float) -> float:
        """Return the slowness that is as likely not to be exceeded as one of other replicas.

        Examples
        --------
        >>> wide, narrow = (Slowness((-x, -x / 2.0, 0.0, x / 2.0, x), 36, 22, False) for x in (0.4, 0.2))
        >>> round(narrow.as_likely_as(wide, 1.44), 3), round(wide.as_likely_as(wide, 3.0), 3)
        (1.2, 3.0)
        """
        return self._at(other.normal_quantile(slowness))

    def _at(self, z: float) -> float:
        """Return the slowness at a normal quantile."""
        return math.exp(
            float(piecewise_linear_beyond(_knots(self.probabilities), np.array(self.log_quantiles), z))
        )

    def normal_quantile(self, slowness: float) -> float:
        """Return the quantile of a standard normal distribution that is as likely not to be exceeded as a slowness."""
        knots = _knots(self.probabilities)
        return float(piecewise_linear_beyond(np.array(self.log_quantiles), knots, math.log(slowness)))


def latency_at_slowness(predicted_s: float, slowness: float, limit_s: float, slowest: float) -> float:
    """Return a latency of a plan whose every step takes some times as long as predicted.

        t_s = t s^b,   b = ln(l / t) / ln(s_max) on the side of s_max, 1 on the other side of 1

    A queue makes a latency grow faster than the steps. The curve goes through the prediction and the
    slowness at which the latency reaches its limit.

    Parameters
    ----------
    predicted_s : [s]
        t
    slowness : [-]
        s
    limit_s : [s]
        l
    slowest : [-]
        s_max, at which the latency is l; zero or infinite where it is not known

    Returns
    -------
    [s]
        t_s

    Examples
    --------
    >>> latency_at_slowness(0.04, 1.5, 0.05, 1.5), latency_at_slowness(0.04, 0.5, 0.05, 1.5)
    (0.05, 0.02)
    >>> latency_at_slowness(0.04, 1.2, 0.05, math.inf)
    0.048

    References
    ----------
    docs/accuracy.md; for queues near saturation Kleinrock 1975, "Queueing Systems", volume 1, section 5.6.
    """
    known = 0.0 < slowest < math.inf and slowest != 1.0 and limit_s != predicted_s
    same_side = known and (slowness > 1.0) == (slowest > 1.0)
    if not same_side or (limit_s > predicted_s) != (slowest > 1.0):
        return predicted_s * slowness
    power = math.log(limit_s / predicted_s) / math.log(slowest)
    return float(predicted_s * slowness**power)


@lru_cache(maxsize=8)
def _knots(probabilities: tuple[float, ...]) -> Array:
    """Return the normal quantiles at which a distribution is known."""
    return np.asarray(standard_normal_quantile(np.array(probabilities)))


@lru_cache(maxsize=256)
def _normal_quantile(probability: float) -> float:
    """Return the quantile of a standard normal distribution; cached, since the same few confidences recur."""
    return float(standard_normal_quantile(probability))


def piecewise_linear_beyond(knots: Array, values: Array, x: float) -> float:
    """Return the value at x of a table that is linear between its knots and extrapolated with the outer slopes.

    Parameters
    ----------
    knots : [-]
        ascending, at least two
    values : [-]
        at the knots
    x : [-]
        anywhere

    Returns
    -------
    [-]
        value

    Examples
    --------
    >>> table = np.array([0.0, 1.0]), np.array([0.0, 2.0])
    >>> piecewise_linear_beyond(*table, -1.0), piecewise_linear_beyond(*table, 0.5), piecewise_linear_beyond(*table, 3.0)
    (-2.0, 1.0, 6.0)

    References
    ----------
    Press et al. 2007, "Numerical Recipes", section 3.2.
    """
    place = int(np.clip(np.searchsorted(knots, x) - 1, 0, knots.size - 2))
    share = (x - knots[place]) / (knots[place + 1] - knots[place])
    return float(values[place] + share * (values[place + 1] - values[place]))


@dataclass(frozen=True, slots=True)
class SlownessRegime:
    """Logarithm of the slowness over its scale, among left-out runs of one kind; see `slowness_scale`."""

    quantiles: tuple[float, ...]
    """Quantiles at PROBABILITIES, ascending."""
    rows: int
    groups: int

    @property
    def reach(self) -> float:
        """Return the distance of the outer quantiles."""
        return self.quantiles[-1] - self.quantiles[0]

    def scaled(self, scale: float, width: float = 1.0, *, thin: bool = False) -> Slowness:
        """Return the slowness where the scale is known; a width other than 1 stretches it about its median."""
        middle = self.quantiles[len(self.quantiles) // 2]
        logs = tuple(scale * (middle + width * (quantile - middle)) for quantile in self.quantiles)
        return Slowness(logs, self.rows, self.groups, thin)


@dataclass(frozen=True, slots=True)
class SlownessTable:
    """The slowness distributions of the back-test."""

    relative: float
    """Part of the scale that is proportional to the step time."""
    host_s: float
    """Part that is not: time by which the host is slower or faster."""
    regimes: Mapping[str, SlownessRegime]
    """Distribution by latencies/part."""
    classes: Mapping[str, int]
    """Class of network -> groups of open-loop runs."""


def slowness_scale(step_s: float, relative: float, host_s: float) -> float:
    """Return the scale of the logarithm of the slowness of a replica.

        w = sqrt(r^2 + ln(1 + h / t)^2)

    Parameters
    ----------
    step_s : [s]
        t, predicted time per output token
    relative : [-]
        r, relative error of kernel times
    host_s : [s]
        h, error of host time, whatever the step

    Returns
    -------
    [-]
        w

    Examples
    --------
    A host that takes 8 ms more is 40 % of a step of 20 ms, little of one of 200 ms:

    >>> round(slowness_scale(0.02, 0.25, 0.008), 2), round(slowness_scale(0.2, 0.25, 0.008), 2)
    (0.42, 0.25)

    References
    ----------
    Independent errors add in quadrature: JCGM 100:2008, "Guide to the expression of uncertainty in measurement", section 5.1.
    """
    return math.hypot(relative, math.log1p(host_s / step_s))


def unmeasured_width(grounds: int) -> float:
    """Return the factor on the width of a distribution for several things that were not measured.

        f = sqrt(1 + n (u^2 - 1))

    Parameters
    ----------
    grounds : [-]
        n, things that were not measured, each independent of the others

    Returns
    -------
    [-]
        f; u is UNMEASURED

    Examples
    --------
    >>> unmeasured_width(0), unmeasured_width(1), round(unmeasured_width(2), 2)
    (1.0, 1.6, 2.03)

    References
    ----------
    Independent errors add in quadrature: JCGM 100:2008, "Guide to the expression of uncertainty in measurement", section 5.1.
    """
    return math.sqrt(1.0 + grounds * (UNMEASURED**2 - 1.0))


def latencies_of_targets(targets: Iterable[Target]) -> tuple[Latencies, Part]:
    """Return the latencies that targets limit, and the furthest part of their distributions.

    Examples
    --------
    >>> latencies_of_targets([Target("ttft", "p95", 0.8), Target("tpot", "mean", 0.05)])
    ('both', 'p95')
    """
    asked = list(targets)
    first = any(target.metric == "ttft" for target in asked)
    later = any(target.metric != "ttft" for target in asked)
    latencies: Latencies = "both" if first and later else "ttft" if first else "tpot"
    statistics = {target.statistic for target in asked}
    part: Part = "p99" if "p99" in statistics else "p95" if statistics & {"p90", "p95"} else "middle"
    return latencies, part


def slowness_of(
    table: SlownessTable,
    targets: Iterable[Target],
    *,
    network_class: str,
    step_s: float,
    on_slice: bool = False,
    unmeasured_kernels: int = 0,
) -> Slowness:
    """Return the slowness distribution that decides whether a replica meets some targets.

    Parameters
    ----------
    table : of the back-test
    targets : all of a plan for their joint probability, or a single one
    network_class : dense, moe, mla
    step_s : [s]
        predicted mean time per output token of the replica at its load
    on_slice : the replica is on a slice of a device, on which no open loop was measured
    unmeasured_kernels : [-]
        0 where kernels were timed on the device or on one of its generation; 1 where they were on another generation; 2 of another vendor
    """
    latencies, part = latencies_of_targets(targets)
    regime = table.regimes[f"{latencies}/{part}"]
    of_class = table.classes.get(network_class, 0)
    return regime.scaled(
        slowness_scale(step_s, table.relative, table.host_s),
        unmeasured_width(max(not of_class, on_slice) + unmeasured_kernels),
        thin=on_slice or unmeasured_kernels > 0 or regime.groups < FEW_GROUPS or of_class < FEW_OF_CLASS,
    )


def replica_slowness(
    table: SlownessTable,
    targets: Iterable[Target],
    *,
    network_class: str,
    step_s: float,
    device: Device,
    efficiency: Efficiency,
    left_out: Sequence[LeftOutResult] = (),
    served: Served | None = None,
) -> Slowness:
    """Return the slowness distribution of a replica on a device, within capacity: that of plans and of measured runs.

    Parameters
    ----------
    table : of the back-test
    targets : all of a plan for their joint probability, or a single one
    network_class : dense, moe, mla
    step_s : [s]
        predicted mean time per output token of the replica at its load
    device : the replica's, or the slice that it is on
    efficiency : fitted numbers that it is predicted with
    left_out : results of fitted deployments on this device and engine, each predicted without itself
    served : what the replica serves; None: it is not a deployment that a fit may have seen

    Returns
    -------
    that of its deployment where one was fitted and its results say more than the back-test, else that of the back-test
    """
    asked = list(targets)
    if efficiency.spreads:
        return _own_slowness(efficiency.spreads, latencies_of_targets(asked)[0])
    usual = slowness_of(
        table,
        asked,
        network_class=network_class,
        step_s=step_s,
        on_slice=device.partition is not None,
        unmeasured_kernels=efficiency.unmeasured,
    )
    if not left_out or served is None:
        return usual
    return of_deployment(
        usual, lambda near: deployment_slowness(table, asked, left_out, near), left_out, served, _reach
    )


def _own_slowness(spreads: Mapping[str, tuple[float, ...]], latencies: Latencies) -> Slowness:
    """Return the distribution of numbers that have their own spread: of prompts, of generation, or of the slower of both."""
    kinds = {"ttft": ("prompt",), "tpot": ("generation",)}.get(latencies, ("prompt", "generation"))
    *ratios, rows, devices, _ = map(max, zip(*(spreads[kind] for kind in kinds), strict=True))
    logs = tuple(map(math.log, ratios))
    return Slowness(logs, int(rows), int(devices), devices < FEW_GROUPS, probabilities=INTERVAL_PROBABILITIES)


def _reach(slowness: Slowness) -> float:
    """Return the 90 % point over the 10 % point, as a logarithm."""
    return math.log(slowness.quantile(PROBABILITIES[-1]) / slowness.quantile(PROBABILITIES[0]))


def deployment_slowness(
    table: SlownessTable, targets: Iterable[Target], left_out: Sequence[LeftOutResult], served: Served
) -> Slowness | None:
    """Return the slowness distribution of a fitted deployment; None if its results do not say.

    A result is a mean. The tails of latencies are as much less certain than their means as in the open loops of the back-test. All targets
    are met with no more probability than those of either latency.
    """
    latencies, part = latencies_of_targets(targets)
    kinds = {"both": (("ttft",), ("tpot",), ("ttft", "tpot"))}.get(latencies, ((latencies,),))
    spreads: list[tuple[LeftOutSpread, float]] = []
    for names in kinds:
        spread = left_out_spread(left_out, served, names)
        if spread is None:
            return None
        name = names[0] if len(names) == 1 else "both"
        regimes = (table.regimes[f"{name}/{at}"] for at in (part, "middle"))
        further, middle = (regime.reach for regime in regimes)
        spreads.append((spread, max(further / middle, 1.0)))
    logs = tuple(
        max(spread.log_quantile(probability, width) for spread, width in spreads)
        for probability in OWN_PROBABILITIES
    )
    last = spreads[-1][0]
    return Slowness(logs, last.results, last.loads, False, last.error_fraction, OWN_PROBABILITIES)
