"""How much slower than predicted a real replica may be: the uncertain numbers behind every latency of a plan.

A replica whose every step takes s times as long does at r requests per second what the predicted one does at r s, s times
as slowly: so a slow replica saturates earlier. A plan meets the targets of one latency with the probability that s is at most s*, the
largest slowness at which all of them are still met. First tokens and later ones are not equally uncertain: each has a slowness of its
own, and the two rise together.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from capplan.accuracy.bounded import PROBABILITIES as INTERVAL_PROBABILITIES
from capplan.accuracy.bounded import left_out_spread, of_deployment, unmeasured_width
from capplan.accuracy.joint_normal import all_within, normal_probability, other_limit, shared_out
from capplan.engine.left_out import LeftOutResult, Served
from capplan.hardware.device import Device, Efficiency
from capplan.numbers import Array
from capplan.workload.length import standard_normal_quantile
from capplan.workload.request_class import Target

Latency: TypeAlias = Literal["ttft", "tpot"]
"""Which slowness decides about a target: that of first tokens, or that of all that comes later."""
Part: TypeAlias = Literal["middle", "p95", "p99"]
"""Mean and median are the middle; no 95th percentile was measured: it lies between median and 99th by its normal quantile."""

FEW_GROUPS = 12
"""Groups of runs (source, model, device) below which a distribution is called thin."""
FEW_OF_CLASS = 5
"""Groups with networks of one class below which the distribution of that class is called thin."""
PROBABILITIES = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95)
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
        >>> usual = Slowness((-0.1, 0.0, 0.1, 0.2, 0.4, 0.5), 36, 22, False)
        >>> round(usual.quantile(0.5), 2), round(usual.quantile(0.9), 2)
        (1.11, 1.49)
        """
        return self.at_normal_quantile(_normal_quantile(confidence))

    def probability(self, slowness: float) -> float:
        """Return the probability that a replica is at most this slow: that of a plan which meets its targets up to there.

        Examples
        --------
        >>> usual = Slowness((-0.1, 0.0, 0.1, 0.2, 0.4, 0.5), 36, 22, False)
        >>> usual.probability(0.0), round(usual.probability(1.0), 3), round(usual.probability(usual.quantile(0.8)), 6)
        (0.0, 0.3, 0.8)
        """
        return float(normal_probability(self.normal_quantile(slowness)))

    def as_likely_as(self, other: "Slowness", slowness: float) -> float:
        """Return the slowness that is as likely not to be exceeded as one of other replicas.

        Examples
        --------
        >>> wide, narrow = (Slowness((-x, -x / 2.0, 0.0, x / 2.0, x, 1.25 * x), 36, 22, False) for x in (0.4, 0.2))
        >>> round(narrow.as_likely_as(wide, 1.44), 3), round(wide.as_likely_as(wide, 3.0), 3)
        (1.2, 3.0)
        """
        return self.at_normal_quantile(other.normal_quantile(slowness))

    def at_normal_quantile(self, z: float) -> float:
        """Return the slowness that is as likely not to be exceeded as a normal quantile."""
        return math.exp(
            float(piecewise_linear_beyond(_knots(self.probabilities), np.array(self.log_quantiles), z))
        )

    def normal_quantile(self, slowness: float) -> float:
        """Return the quantile of a standard normal distribution that is as likely not to be exceeded as a slowness."""
        if slowness <= 0.0 or math.isinf(slowness):
            return math.copysign(math.inf, slowness - 0.5)
        knots = _knots(self.probabilities)
        return float(piecewise_linear_beyond(np.array(self.log_quantiles), knots, math.log(slowness)))


def latency_at_slowness(predicted_s: float, slowness: float, limit_s: float, slowest: float) -> float:
    """Return a latency of a plan whose every step takes some times as long as predicted.

        t_s = t s^b,   b = ln(l / t) / ln(s_max) on the side of s_max, 1 on the other side of 1

    A queue makes a latency grow faster than the steps.

    Parameters
    ----------
    predicted_s : [s]
        t
    slowness : [-]
        s
    limit_s : [s]
        l
    slowest : [-]
        s_max, at which the latency is l; zero or infinite: unknown

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
    Kleinrock 1975, "Queueing Systems", volume 1, section 5.6: queues near saturation.
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
    def median(self) -> float:
        """Return the median."""
        return self.quantiles[PROBABILITIES.index(0.5)]

    @property
    def reach(self) -> float:
        """Return the distance of the outer quantiles."""
        return self.quantiles[-1] - self.quantiles[0]

    def scaled(self, scale: float, width: float = 1.0, *, thin: bool = False) -> Slowness:
        """Return the slowness where the scale is known; a width other than 1 stretches it about its median."""
        middle = self.median
        logs = tuple(scale * (middle + width * (quantile - middle)) for quantile in self.quantiles)
        return Slowness(logs, self.rows, self.groups, thin)


CLAIMED = 0.8
"""Probability whose claim is held against published runs: that of plans by default."""


@dataclass(frozen=True, slots=True)
class PublishedClaim:
    """How many latencies of published runs, to which nothing was fitted, were within the slowness that is claimed with CLAIMED."""

    held: float
    """Share of them; a model weighs as much as its values, a few at most."""
    values: int
    models: int


@dataclass(frozen=True, slots=True)
class SlownessTable:
    """The slowness distributions of the back-test."""

    relative: float
    """Part of the scale that is proportional to the step time."""
    host_s: float
    """Part that is not: time by which the host is slower or faster."""
    regimes: Mapping[str, SlownessRegime]
    """Distribution by latency/part."""
    correlation: float
    """Correlation of the normal scores of both latencies of a run."""
    classes: Mapping[str, int]
    """Class of network -> groups of open-loop runs."""
    published: Mapping[str, PublishedClaim]
    """Class of network -> what published runs kept."""


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


def latency_of(target: Target) -> Latency:
    """Return which slowness decides about a target.

    Examples
    --------
    >>> latency_of(Target("ttft", "p95", 0.8)), latency_of(Target("e2e", "p95", 20.0))
    ('ttft', 'tpot')
    """
    return "ttft" if target.metric == "ttft" else "tpot"


def by_latency(targets: Iterable[Target]) -> dict[Latency, tuple[Target, ...]]:
    """Return targets by the latency that decides about them; without any target, the time of steps decides whether queues grow.

    Examples
    --------
    >>> {name: len(own) for name, own in by_latency([Target("ttft", "p95", 0.8), Target("tpot", "p95", 0.05)]).items()}, by_latency([])
    ({'ttft': 1, 'tpot': 1}, {'tpot': ()})
    """
    found: dict[Latency, tuple[Target, ...]] = {}
    for target in targets:
        name = latency_of(target)
        found[name] = (*found.get(name, ()), target)
    return found or {"tpot": ()}


def _part_of(targets: Iterable[Target]) -> Part:
    """Return the furthest part of the distribution of a latency that its targets limit."""
    statistics = {target.statistic for target in targets}
    return "p99" if "p99" in statistics else "p95" if statistics & {"p90", "p95"} else "middle"


def normal_score(probability: float) -> float:
    """Return the normal quantile of a probability, infinite at its ends.

    Examples
    --------
    >>> normal_score(0.5), normal_score(1.0)
    (0.0, inf)
    """
    if 0.0 < probability < 1.0:
        return _normal_quantile(probability)
    return math.copysign(math.inf, probability - 0.5)


def jointly(probabilities: Iterable[float], correlation: float) -> float:
    """Return the probability of one event, or of two whose normal scores have a correlation: see `JointSlowness.probability`."""
    return all_within([normal_score(probability) for probability in probabilities], correlation)


def equal_share(probability: float, latencies: int, correlation: float) -> float:
    """Return the probability that each of some latencies has to hold with, so that all hold with one.

    Examples
    --------
    >>> equal_share(0.8, 1, 0.5), round(equal_share(0.8, 2, 0.5), 3)
    (0.8, 0.879)
    """
    if latencies == 1:
        return probability
    return float(normal_probability(shared_out([0.0] * latencies, correlation, probability)[0]))


@dataclass(frozen=True, slots=True)
class JointSlowness:
    """How slow a replica may be: as its first tokens show it, and as its later ones do."""

    by_latency: Mapping[Latency, Slowness]
    """Distribution of each latency that targets limit."""
    correlation: float
    """Correlation of their normal scores."""

    @property
    def thin(self) -> bool:
        """Return whether few runs, or none, were measured with networks of this class."""
        return any(slowness.thin for slowness in self.by_latency.values())

    def probability(self, slowest: Mapping[Latency, float]) -> float:
        """Return the probability that no latency of a replica is slower than this.

            P = G(z(F(s)) of first tokens, z(F(s)) of later ones; r)

        F is the distribution of the slowness of a latency, s its limit, z the normal quantile, and G the distribution of two normal variables with
        a correlation r. With a single latency P = F(s).

        Examples
        --------
        First tokens keep their target in 90 % of the cases, and later ones in 80 %; one that is always kept changes nothing:

        >>> usual = Slowness((-0.2, -0.1, 0.0, 0.1, 0.2, 0.3), 36, 22, False)
        >>> both, (first, later) = JointSlowness({"ttft": usual, "tpot": usual}, 0.5), map(usual.quantile, (0.9, 0.8))
        >>> round(both.probability({"ttft": first, "tpot": later}), 3), round(both.probability({"ttft": first, "tpot": math.inf}), 3)
        (0.751, 0.9)

        References
        ----------
        Nelsen 2006, "An Introduction to Copulas", 2nd edition, section 2.3.
        """
        scores = [of.normal_quantile(slowest[name]) for name, of in self.by_latency.items()]
        return all_within(scores, self.correlation)

    def other_needed(self, name: Latency, slowest: float, probability: float) -> float:
        """Return the slowness up to which the other latency has to keep its targets, where one keeps them up to `slowest`; infinite if nothing is enough."""
        (slowness,) = (of for key, of in self.by_latency.items() if key != name)
        score = self.by_latency[name].normal_quantile(slowest)
        return slowness.at_normal_quantile(other_limit(score, self.correlation, probability))

    def each(self, probability: float) -> dict[Latency, float]:
        """Return the slowness of each latency that it does not exceed with a probability, whatever the other: what is required at least."""
        return {name: of.quantile(probability) for name, of in self.by_latency.items()}

    def equally(self, probability: float) -> dict[Latency, float]:
        """Return slownesses that are equally likely not to be exceeded, and that are not with a probability for all of them."""
        return self.each(equal_share(probability, len(self.by_latency), self.correlation))

    def shared_out(self, slowest: Mapping[Latency, float], probability: float) -> dict[Latency, float]:
        """Return slownesses that are not exceeded with a probability for all of them: a latency with more room than the other keeps it.

        Parameters
        ----------
        slowest : [-]
            up to which each keeps its targets
        probability : [-]
        """
        if len(self.by_latency) == 1:
            return self.each(probability)
        scores = [of.normal_quantile(slowest[name]) for name, of in self.by_latency.items()]
        shared = zip(self.by_latency.items(), shared_out(scores, self.correlation, probability), strict=True)
        return {name: of.at_normal_quantile(score) for (name, of), score in shared}


def slowness_of(
    table: SlownessTable,
    targets: Iterable[Target],
    *,
    network_class: str,
    step_s: float,
    on_slice: bool = False,
    unmeasured_kernels: int = 0,
) -> Slowness:
    """Return the slowness distribution that decides whether a replica meets some targets on one latency.

    Parameters
    ----------
    table : of the back-test
    targets : on one latency
    network_class : dense, moe, mla
    step_s : [s]
        predicted mean time per output token of the replica at its load
    on_slice : the replica is on a slice of a device, on which no open loop was measured
    unmeasured_kernels : [-]
        0 where kernels were timed on the device or on one of its generation; 1 where they were on another generation; 2 of another vendor
    """
    regime = table.regimes[_regime(targets)]
    of_class = table.classes.get(network_class, 0)
    return regime.scaled(
        slowness_scale(step_s, table.relative, table.host_s),
        unmeasured_width(max(not of_class, on_slice) + unmeasured_kernels),
        thin=on_slice or unmeasured_kernels > 0 or regime.groups < FEW_GROUPS or of_class < FEW_OF_CLASS,
    )


def _regime(targets: Iterable[Target]) -> str:
    ((name, own),) = by_latency(targets).items()
    return f"{name}/{_part_of(own)}"


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
    targets : on one latency
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
        return _own_slowness(efficiency.spreads, next(iter(by_latency(asked))))
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


def _own_slowness(spreads: Mapping[str, tuple[float, ...]], latency: Latency) -> Slowness:
    """Return the distribution of numbers that have their own spread: of prompts, or of generation."""
    *ratios, rows, devices, _ = spreads["prompt" if latency == "ttft" else "generation"]
    logs = tuple(map(math.log, ratios))
    return Slowness(logs, int(rows), int(devices), devices < FEW_GROUPS, probabilities=INTERVAL_PROBABILITIES)


def _reach(slowness: Slowness) -> float:
    """Return the 90 % point over the 10 % point, as a logarithm."""
    return math.log(slowness.quantile(PROBABILITIES[-1]) / slowness.quantile(PROBABILITIES[0]))


def deployment_slowness(
    table: SlownessTable, targets: Iterable[Target], left_out: Sequence[LeftOutResult], served: Served
) -> Slowness | None:
    """Return the slowness distribution of a fitted deployment; None if its results do not say.

    A result is a mean. The tails of latencies are as much less certain than their means as in the open loops of the back-test.
    """
    regime = _regime(targets)
    latency = regime.partition("/")[0]
    spread = left_out_spread(left_out, served, latency)
    if spread is None:
        return None
    further, middle = (table.regimes[name].reach for name in (regime, f"{latency}/middle"))
    width = max(further / middle, 1.0)
    logs = tuple(spread.log_quantile(probability, width) for probability in OWN_PROBABILITIES)
    return Slowness(logs, spread.results, spread.loads, False, spread.error_fraction, OWN_PROBABILITIES)
