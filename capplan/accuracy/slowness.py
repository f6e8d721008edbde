"""How much slower than predicted a real replica may be: the one uncertain number behind every latency of a plan.

A replica whose every step takes s times as long does at r requests per second what the predicted one does at r s, s times
as slowly: so a slow replica saturates earlier, and one number moves all latencies of a plan at once. A plan holds its
targets with the probability that s is at most s*, the largest slowness at which they all still hold.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from capplan.workload.length import standard_normal_quantile
from capplan.workload.slo import Target

Latencies: TypeAlias = Literal["ttft", "tpot", "both"]
"""Which latencies are limited; both: the slower of the two decides."""
Part: TypeAlias = Literal["middle", "p95", "p99"]
"""Mean and median are the middle; no 95th percentile was measured: it lies between median and 99th by its normal quantile."""
Load: TypeAlias = Literal["open", "overload"]

FEW_GROUPS = 12
"""Groups of runs (source, model, device) below which a distribution is called thin."""


@dataclass(frozen=True, slots=True)
class Slowness:
    """Measured over predicted step time of a replica: a normal distribution of its logarithm in two halves."""

    median: float
    below: float
    """Standard deviation of the logarithm below the median."""
    above: float
    rows: int
    """Measured open-loop runs behind it."""
    groups: int
    """Sources, models and devices of these runs."""
    thin: bool
    """Few runs or none of this kind were measured: the distribution is a wider one."""

    def quantile(self, confidence: float) -> float:
        """Return the slowness that is not exceeded with a confidence, above 0 and below 1.

        Examples
        --------
        >>> usual = Slowness(1.1, 0.1, 0.3, 36, 22, False)
        >>> usual.quantile(0.5), round(usual.quantile(0.9), 2)
        (1.1, 1.62)
        """
        z = float(standard_normal_quantile(confidence))
        return self.median * math.exp(z * (self.above if z > 0.0 else self.below))

    def probability(self, slowness: float) -> float:
        """Return the probability that a replica is at most so slow: that a plan holds which holds up to there.

        Examples
        --------
        >>> usual = Slowness(1.1, 0.1, 0.3, 36, 22, False)
        >>> usual.probability(0.0), usual.probability(1.1), round(usual.probability(usual.quantile(0.8)), 6)
        (0.0, 0.5, 0.8)
        """
        if slowness <= 0.0:
            return 0.0
        if math.isinf(slowness):
            return 1.0
        distance = math.log(slowness / self.median)
        z = distance / (self.above if distance > 0.0 else self.below)
        return 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))


@dataclass(frozen=True, slots=True)
class SlownessRegime:
    """Logarithm of the slowness over its scale, among left-out runs of one kind; see `slowness_scale`."""

    median: float
    below: float
    above: float
    rows: int
    groups: int


@dataclass(frozen=True, slots=True)
class SlownessTable:
    """What the back-test says of slowness."""

    relative: float
    """Part of the scale that goes with the time of a step."""
    host_s: float
    """Part that does not: a host that takes this much longer or shorter."""
    regimes: Mapping[str, SlownessRegime]
    """By latencies/part/load."""
    classes: Mapping[str, tuple[float, int]]
    """Class of network -> factor on the width, groups of open-loop runs."""


def slowness_scale(step_s: float, relative: float, host_s: float) -> float:
    """Return the scale of the logarithm of the slowness of a replica.

        w = sqrt(r^2 + ln(1 + h / t)^2)

    Parameters
    ----------
    step_s : [s]
        t, predicted time per output token
    relative : [-]
        r, what kernels are off by
    host_s : [s]
        h, what a host is off by, whatever the step

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


def latencies_of_targets(targets: Iterable[Target]) -> tuple[Latencies, Part]:
    """Return which latencies targets limit, and the furthest part of their distributions.

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
    load: Load = "open",
) -> Slowness:
    """Return the slowness of a replica as far as it decides whether it holds some targets.

    Parameters
    ----------
    table : what the back-test says
    targets : all of a plan for their joint probability, one of them for its own
    network_class : dense, moe, mla
    step_s : [s]
        predicted mean time per output token of the replica at its load
    load : open; overload where requests come faster than they are served

    Returns
    -------
    its distribution
    """
    latencies, part = latencies_of_targets(targets)
    regime = table.regimes[f"{latencies}/{part}/{load}"]
    factor, groups = table.classes.get(network_class, max(table.classes.values()))
    scale = slowness_scale(step_s, table.relative, table.host_s)
    return Slowness(
        math.exp(scale * regime.median),
        scale * factor * regime.below,
        scale * factor * regime.above,
        regime.rows,
        regime.groups,
        regime.groups < FEW_GROUPS or groups < 2,
    )
