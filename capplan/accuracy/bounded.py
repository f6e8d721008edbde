"""The interval around an estimate: the back test of its regime, or, where a fitted deployment is more certain, the loads that its fit did not see.

How the intervals were fitted is in calibrate/interval_fit.py.

A fit of a deployment leaves out each of its results in turn, and predicts it. The logarithms of measured over predicted time are a sample of what a
new load of this deployment will show. Results of one load err together, so that the sample is no larger than the loads are many.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import cos, exp, hypot, isnan, log, log2, nan, pi, sin, sqrt
from statistics import fmean, median
from typing import TypeVar

import numpy as np

from capplan.assumption import Label
from capplan.engine.left_out import LEAST_LOADS, LeftOutResult, Served
from capplan.engine.lookup import version_key
from capplan.engine.profile import EngineProfile
from capplan.hardware.device import HOST, Device
from capplan.model.network import Network, layer_counts
from capplan.numbers import Number, Spread
from capplan.operators.llamacpp import ENGINE as LLAMACPP
from capplan.replica.estimate import Estimate, estimate
from capplan.replica.load import Load
from capplan.replica.replica import Replica
from capplan.replica.spec import ReplicaSpec, deployed_as
from capplan.workload.length import standard_normal_quantile

NOISE = {"ttft": 0.033, "tpot": 0.02}
"""Least deviation of a repeat where repeats are too few to tell: published repeats of a time to first token differ by 4 to 29 %, of a time per token by 0.5 to 3.5 %."""
LEAST_REPEATS = 6
"""Results beyond one a load from which their own deviation counts instead."""
PER_DOUBLING = 0.03
"""Deviation that each doubling of a length or load beyond those of the results adds."""


@dataclass(frozen=True, slots=True)
class LeftOutSpread:
    """The distribution of the logarithm of measured over predicted time: Student's t, moved and stretched."""

    middle: float
    scale: float
    loads: int
    """Distinct loads; one less than they are the degrees of freedom."""
    results: int
    error_fraction: float
    """Median error of a result that was left out."""

    def log_quantile(self, probability: float, width: float = 1.0) -> float:
        """Return the logarithm that is not exceeded with a probability p; a width w stretches it about its middle.

            l = m + k w t(p, n - 1)

        Examples
        --------
        >>> spread = LeftOutSpread(0.0, 0.05, 9, 9, 0.03)
        >>> spread.log_quantile(0.5), round(spread.log_quantile(0.8), 4), round(LeftOutSpread(0.0, 0.05, 3, 3, 0.03).log_quantile(0.95), 3)
        (0.0, 0.0444, 0.146)

        References
        ----------
        Geisser 1993, "Predictive Inference", section 2.2 (a further value of a normal sample).
        """
        return self.middle + width * self.scale * student_quantile(probability, self.loads - 1)


@lru_cache(maxsize=512)
def student_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution.

        t = F_n^-1(p)

    Parameters
    ----------
    probability : [-]
        p, above 0 and below 1.
    freedom : [-]
        n, degrees of freedom, at least 1; exact for 1 and 2, with a relative error below 1e-3 from 3.

    Returns
    -------
    [-]
        t.

    Examples
    --------
    >>> [round(student_quantile(0.975, n), 3) for n in (1, 2, 3, 8, 1000)]
    [12.706, 4.303, 3.182, 2.306, 1.962]

    References
    ----------
    Hill 1970, "Algorithm 396: Student's t-quantiles", https://doi.org/10.1145/355598.355600.
    """
    if probability < 0.5:
        return -student_quantile(1.0 - probability, freedom)
    if probability == 0.5:
        return 0.0
    tails, n = 2.0 * (1.0 - probability), float(freedom)
    if freedom == 1:
        return cos(0.5 * pi * tails) / sin(0.5 * pi * tails)
    if freedom == 2:
        return sqrt(2.0 / (tails * (2.0 - tails)) - 2.0)
    a = 1.0 / (n - 0.5)
    b = 48.0 / a**2
    c = ((20700.0 * a / b - 98.0) * a - 16.0) * a + 96.36
    d = ((94.5 / (b + c) - 3.0) / b + 1.0) * sqrt(0.5 * a * pi) * n
    y = (d * tails) ** (2.0 / n)
    if y > 0.05 + a:
        x = float(standard_normal_quantile(0.5 * tails))
        y = x * x
        if freedom < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x
        y = exp(a * y * y) - 1.0
    else:
        y = (
            (1.0 / (((n + 6.0) / (n * y) - 0.089 * d - 0.822) * (n + 2.0) * 3.0) + 0.5 / (n + 4.0)) * y - 1.0
        ) * (n + 1.0) / (n + 2.0) + 1.0 / y
    return sqrt(n * y)


def doublings_beyond(values: Sequence[float], value: float) -> float:
    """Return how many doublings a value is above the largest of some values, or below the smallest; 0 between them.

    Examples
    --------
    >>> doublings_beyond((128.0, 1024.0), 4096.0), doublings_beyond((128.0, 1024.0), 64.0), doublings_beyond((128.0, 1024.0), 500.0)
    (2.0, 1.0, 0.0)
    """
    return max(log2(value / max(values)), log2(min(values) / value), 0.0)


def unseen_doublings(results: Sequence[LeftOutResult], served: Served) -> float:
    """Return how far what a replica serves is beyond the results: doublings of lengths, plus doublings of the load above the largest.

    Lengths are prompts and whole contexts, of which the further one counts: both are in the work of a step.
    """
    prompts = doublings_beyond([result.input_tokens for result in results], served.input_tokens)
    contexts = doublings_beyond(
        [result.input_tokens + result.output_tokens for result in results],
        served.input_tokens + served.output_tokens,
    )
    flying = log2(max(served.in_flight, 1.0) / max(result.in_flight for result in results))
    return max(prompts, contexts) + max(flying, 0.0)


def left_out_spread(results: Sequence[LeftOutResult], served: Served, latency: str) -> LeftOutSpread | None:
    """Return how far predictions of a fitted deployment are off; None if its results do not say.

        k^2 = max(s^2, s_0^2) (1 + 1/n) + d c^2

    Parameters
    ----------
    results : left out of the fit in turn
    served : what the replica serves; only results of the same deployment count
    latency : ttft or tpot

    Returns
    -------
    its scale is k: s is the deviation among n loads, s_0 that of repeats, d the doublings beyond the results, and c is PER_DOUBLING

    Examples
    --------
    >>> seen = [LeftOutResult("m", 128.0, 64.0, users, None, {"tpot": error}) for users, error in ((1, 0.05), (2, -0.05), (4, 0.04), (8, -0.04))]
    >>> inside, beyond = (left_out_spread(seen, Served("m", 128.0, 64.0, users), "tpot") for users in (4.0, 64.0))
    >>> round(inside.scale, 3), round(beyond.scale, 3), left_out_spread(seen, Served("other", 128.0, 64.0, 4.0), "tpot")
    (0.058, 0.078, None)

    References
    ----------
    Independent errors add in quadrature: JCGM 100:2008, "Guide to the expression of uncertainty in measurement", section 5.1.
    """
    own = [r for r in results if r.deployment == served.deployment and latency in r.log_ratios]
    by_load = defaultdict(list)
    for result in own:
        by_load[result.load].append(result.log_ratios[latency])
    loads, n = list(by_load.values()), len(by_load)
    if n < LEAST_LOADS:
        return None
    middle = fmean(fmean(errors) for errors in loads)
    variance = sum(fmean((error - middle) ** 2 for error in errors) for errors in loads) / (n - 1)
    floor = _noise(loads, NOISE[latency])
    known = max(sqrt(variance), floor) * sqrt(1.0 + 1.0 / n)
    unseen = PER_DOUBLING * sqrt(unseen_doublings(own, served))
    errors = [abs(exp(error) - 1.0) for of_load in loads for error in of_load]
    return LeftOutSpread(middle, hypot(known, unseen), n, len(errors), median(errors))


def _noise(loads: Sequence[Sequence[float]], least: float) -> float:
    """Return the deviation of repeats of one load: at least the usual one where few loads were repeated."""
    freedom = sum(len(errors) - 1 for errors in loads)
    if not freedom:
        return least
    squares = sum((error - fmean(errors)) ** 2 for errors in loads for error in errors)
    pooled = sqrt(squares / freedom)
    return pooled if freedom >= LEAST_REPEATS else max(pooled, least)


LEVELS = (0.5, 0.8, 0.95)
"""Shares of values that intervals hold."""
PROBABILITIES = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975)
"""Where the distribution of measured over predicted is known: the ends of these intervals, and the median."""
_KNOTS = np.asarray(standard_normal_quantile(np.array(PROBABILITIES)))

LEAST_POINTS = 12
"""A regime with fewer residuals than this takes the interval of the next wider one."""


LEAST_GROUPS = 5
"""Fewest models of a regime that is not thin: the interval of a thin one spans that of the next wider one as well, and says so."""
LEAST_SOURCES = 2
"""Fewest sources of a regime that is not thin: the runs of one source say what its setup repeats, not what another would measure."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Measured over predicted: its percentiles at the ends of the 80 % interval."""

    low_ratio: float
    high_ratio: float
    n: int
    groups: int
    """Models behind it."""
    median_ratio: float = 1.0
    """Its median: the typical bias of predictions, which are not corrected for it."""
    ratios: tuple[float, ...] = ()
    """Ratios at PROBABILITIES; empty: those of a lognormal distribution through the ends."""
    sources: int = LEAST_SOURCES
    """Sources behind it."""
    left_out_error_fraction: float | None = None
    """Median error of the results of this deployment that its fit did not see; None: the results are those of the back-test."""

    @property
    def rests_on(self) -> str:
        """Return in words what was measured."""
        if self.left_out_error_fraction is None:
            return f"{self.n} results in {self.groups} groups"
        return f"{self.n} results of this deployment, left-out error {self.left_out_error_fraction:.1%}"

    @property
    def few(self) -> bool:
        """Return whether it rests on few models, or on one source only."""
        return self.groups < LEAST_GROUPS or self.sources < LEAST_SOURCES

    def quantile(self, probability: float) -> float:
        """Return the ratio that is not exceeded with a probability, above 0 and below 1.

        Examples
        --------
        >>> Interval(0.5, 2.0, 30, 9).quantile(0.5), round(Interval(0.5, 2.0, 30, 9).quantile(0.9), 6)
        (1.0, 2.0)
        """
        knots, ratios = _KNOTS, self.ratios
        if not ratios:
            knots, ratios = _KNOTS[[1, 3, 5]], (self.low_ratio, self.median_ratio, self.high_ratio)
        z, logs = float(standard_normal_quantile(probability)), np.log(ratios)
        place = int(np.clip(np.searchsorted(knots, z) - 1, 0, knots.size - 2))
        share = (z - knots[place]) / (knots[place + 1] - knots[place])
        return exp(float(logs[place] + share * (logs[place + 1] - logs[place])))

    def at(self, level: float) -> tuple[float, float]:
        """Return the ends of the interval that holds a share of values.

        Examples
        --------
        >>> [round(end, 6) for end in Interval(0.5, 2.0, 30, 9).at(0.8)]
        [0.5, 2.0]
        """
        return self.quantile(0.5 - level / 2.0), self.quantile(0.5 + level / 2.0)


def interval_of_ratios(ratios: tuple[float, ...], values: int, models: int, sources: int) -> Interval:
    """Return an interval from the ratios at PROBABILITIES.

    Examples
    --------
    >>> interval_of_ratios((0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0), 30, 9, 2).at(0.95)
    (0.25, 4.0)
    """
    return Interval(ratios[1], ratios[5], values, models, ratios[3], ratios, sources)


Intervals = Mapping[str, Interval]
"""Regime key -> interval; see `regime_keys`."""


TODAY, FIRST_ENGINES = "today", "first"
"""Generations of engines: those whose host runs ahead of the device, and those that schedule between the steps."""

RESIDUALS_OF_STATISTIC = {"mean": "mean", "p50": "p50", "p90": "p95", "p95": "p95", "p99": "p99"}
"""Statistic of a latency -> the one whose residuals bound it."""
RESIDUALS_OF_METRIC = {"itl": "tpot"}
"""Latencies that no row measured -> the one whose residuals bound them."""


def network_class(network: Network) -> str:
    """Return dense, moe or mla: the class that decides which kernels dominate."""
    layers = [layer for layer, _ in layer_counts(network)]
    if any(mixer.description.expansion for layer in layers for mixer in layer.mixers):
        return "mla"
    return "moe" if any(layer.experts for layer in layers) else "dense"


AHEAD_SINCE = {"vllm": (0, 8, 0), "sglang": (0, 4, 0), "trtllm": (0, 20, 0)}
"""Version from which the host of an engine runs ahead of the device: vLLM's second engine, the PyTorch backend of TensorRT-LLM."""


def engine_generation(profile: EngineProfile) -> str:
    """Return whether the engine is one of today, whose host runs ahead of the device, or of the first generation."""
    key = version_key(profile.asked_version or profile.version)
    return FIRST_ENGINES if key is not None and key < AHEAD_SINCE[profile.engine] else TODAY


def regime_keys(
    metric: str, load: str, network: str, label: str, statistic: str = "mean", generation: str = TODAY
) -> tuple[str, ...]:
    """Return the names of the regimes that a prediction belongs to, narrowest first.

    Parameters
    ----------
    metric : ttft, tpot, itl, e2e, throughput, ...
    load : closed, open, burst, static, offline
    network : dense, moe, mla
    label : measured where the device was calibrated, else assumed
    statistic : of a latency
    generation : of the engine

    Returns
    -------
    keys to look up one after the other

    Examples
    --------
    >>> regime_keys("tpot", "closed", "moe", "measured", "p90")[0], regime_keys("throughput", "open", "moe", "measured")[0]
    ('tpot_p95/closed/moe/today/measured', 'throughput/open/moe/today/measured')
    """
    quantity = RESIDUALS_OF_METRIC.get(metric, metric)
    narrow = quantity if quantity == "throughput" else f"{quantity}_{RESIDUALS_OF_STATISTIC[statistic]}"
    middle = f"{quantity}_middle" if narrow.endswith(("_mean", "_p50")) else quantity
    return (
        f"{narrow}/{load}/{network}/{generation}/{label}",
        f"{narrow}/{load}/{network}/{generation}",
        f"{narrow}/{load}/{network}",
        f"{narrow}/{load}",
        f"{middle}/{load}",
        quantity,
    )


CLASS_PARTS = 2
"""Slashes in the name of a regime of one class of network: statistic/load/class."""


def regimes_spanned(intervals: Intervals, keys: Sequence[str]) -> list[Interval]:
    """Return the intervals that the one of a prediction spans; none where no regime has any.

    The narrowest regime of its class of network that rests on enough models and sources decides: one of few is a worse witness of its
    tails than the wider one that holds it. Without such a regime those of few are spanned together with the next wider ones; that of all
    loads only where few models were measured under its own.
    """
    spanned: list[Interval] = []
    for key in keys:
        entry = intervals.get(key)
        if entry is None or entry.n < LEAST_POINTS:
            continue
        if key == keys[-1] and any(own.groups >= LEAST_GROUPS for own in spanned):
            break
        if not entry.few and key.count("/") >= CLASS_PARTS:
            return [entry]
        spanned.append(entry)
        if not entry.few:
            break
    last = intervals.get(keys[-1])
    return spanned or ([last] if last else [])


def interval_of(intervals: Intervals, keys: Sequence[str]) -> Interval | None:
    """Return the interval of the narrowest regime that has enough residuals; None where none has any.

    A regime without data takes the widest interval of its metric, never a narrower one; one of few models or one source spans the next as well.
    """
    spanned = regimes_spanned(intervals, keys)
    return None if not spanned else _hull(spanned)


def _hull(spanned: Sequence[Interval]) -> Interval:
    """Return the first of several intervals, with its ends where the furthest of them are."""
    first = spanned[0]
    if not all(entry.ratios for entry in spanned):
        low, high = min(entry.low_ratio for entry in spanned), max(entry.high_ratio for entry in spanned)
        return replace(first, low_ratio=low, high_ratio=high)
    columns = list(zip(*(entry.ratios for entry in spanned), strict=True))
    half = len(PROBABILITIES) // 2
    ratios = (*map(min, columns[:half]), first.median_ratio, *map(max, columns[half + 1 :]))
    return interval_of_ratios(ratios, first.n, first.groups, first.sources)


def stretched(interval: Interval, width: float) -> Interval:
    """Return an interval whose ends are a multiple as far from its median, in logarithms.

    Examples
    --------
    >>> stretched(Interval(0.5, 2.0, 30, 9), 2.0).high_ratio
    4.0
    """
    middle = interval.median_ratio
    low, high = (middle * (end / middle) ** width for end in (interval.low_ratio, interval.high_ratio))
    ratios = tuple(middle * (ratio / middle) ** width for ratio in interval.ratios)
    return replace(interval, low_ratio=low, high_ratio=high, ratios=ratios)


def widest(intervals: Intervals) -> Interval:
    """Return an interval that spans all regimes, for those that were never measured."""
    lows = [entry.low_ratio for entry in intervals.values()]
    highs = [entry.high_ratio for entry in intervals.values()]
    return Interval(min(lows, default=0.5), max(highs, default=2.0), 0, 0)


@dataclass(frozen=True, slots=True)
class BoundedSpread(Spread[float]):
    """Mean and percentiles of a latency, and the 80 % interval of its mean, in seconds."""

    low: float
    high: float


def bounded(spread: Spread[float], interval: Interval) -> BoundedSpread:
    """Return a latency with the interval of its mean."""
    low, high = spread.mean * interval.low_ratio, spread.mean * interval.high_ratio
    return BoundedSpread(**asdict(spread), low=low, high=high)


MOST_WIDTH = 20.0
"""An interval that is as wide as this many times its mean says nothing: it is unknown (an assumption)."""


def bounded_latencies(
    ttft_s: Spread[float], tpot_s: Spread[float], e2e_s: Spread[float], intervals: Mapping[str, Interval]
) -> tuple[BoundedSpread, BoundedSpread, BoundedSpread]:
    """Return TTFT, TPOT and E2E latency with the intervals of their means, which add up at both ends.

        e_q = t_q + (e - t) o_q / o    q: the low or the high end

    An interval wider than MOST_WIDTH times its mean is unknown, nan. If that of TTFT is, the E2E latency
    has its own interval, and is at least as long as its tokens after the first.

    Parameters
    ----------
    ttft_s, tpot_s, e2e_s : [s]
        t, o and e, of the same requests
    intervals : measured over predicted means of `ttft`, `tpot` and `e2e`

    Examples
    --------
    >>> one = lambda mean: Spread(mean, mean, mean, mean, mean)
    >>> parts = {"ttft": Interval(0.5, 2.0, 9, 9), "tpot": Interval(0.9, 1.2, 9, 9), "e2e": Interval(0.9, 1.1, 9, 9)}
    >>> *_, whole = bounded_latencies(one(1.0), one(0.1), one(10.0), parts)
    >>> round(whole.low, 3), round(whole.high, 3)
    (8.6, 12.8)

    References
    ----------
    NVIDIA, "GenAI-Perf", metrics, https://docs.nvidia.com/deeplearning/triton-inference-server.
    """
    first, token = bounded(ttft_s, intervals["ttft"]), bounded(tpot_s, intervals["tpot"])
    rest_s, whole, unknown = e2e_s.mean - ttft_s.mean, bounded(e2e_s, intervals["e2e"]), _is_unknown(first)
    ends = []
    for part, end, own in ((token.low, first.low, whole.low), (token.high, first.high, whole.high)):
        after_s = rest_s * part / tpot_s.mean if rest_s > 0.0 and tpot_s.mean > 0.0 else 0.0
        ends.append(max(own, after_s) if unknown else end + after_s)
    summed = replace(whole, low=min(ends[0], e2e_s.mean) if unknown else ends[0], high=ends[1])
    return _known(first), _known(token), _known(summed)


def _is_unknown(latency: BoundedSpread) -> bool:
    """Return whether an interval is too wide to say anything, or rests on one that is."""
    return isnan(latency.high) or latency.high - latency.low >= MOST_WIDTH * latency.mean > 0.0


def _known(latency: BoundedSpread) -> BoundedSpread:
    return replace(latency, low=nan, high=nan) if _is_unknown(latency) else latency


@dataclass(frozen=True, slots=True)
class BoundedEstimate:
    """An estimate, with its prediction intervals."""

    estimate: Estimate
    ttft_s: BoundedSpread
    tpot_s: BoundedSpread
    e2e_s: BoundedSpread
    throughput: Interval
    """Measured over predicted throughput."""
    unmeasured: bool
    """No result of this regime was measured: the intervals are the widest there are."""
    fewest_models: int = LEAST_GROUPS
    """Models behind the thinnest of the intervals."""
    fewest_sources: int = LEAST_SOURCES
    """Sources behind the thinnest of the intervals."""
    rests_on: str = ""
    """Latencies whose intervals rest on results of this deployment, and these; empty: all rest on the back-test."""


SLICE_WIDTH = 1.85
"""Factor on the logarithm of an interval on a slice of a device: with it the intervals of whole devices hold 16 of the 19 runs on slices that
were measured (docs/evidence/kernels-and-memory.md); with 1.6, which was assumed before, they hold 14."""


UNMEASURED = 1.6
"""Factor on the width of a slowness, and of an interval on a device, for each thing that was not measured (an assumption): a class of networks or
slices of a device without an open loop, a generation of devices without timed kernels, a vendor without timed kernels or fitted runs. Closed loops are off
by 10 % with latent attention, the only such class, and on devices that borrow the kernels of a distant one; by 6 to 7 % with dense networks, and on
devices that borrow those of their own generation, most of the open loops."""


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
    JCGM 100:2008, section 5.1.
    """
    return sqrt(1.0 + grounds * (UNMEASURED**2 - 1.0))


def interval_on(intervals: Intervals, keys: Sequence[str], device: Device, unmeasured: int) -> Interval:
    """Return the interval of the narrowest regime that was measured; wider on a slice of a device, and far from the devices whose kernels were timed.

    Parameters
    ----------
    intervals : by regime
    keys : of the regimes, narrowest first
    device : of the replica
    unmeasured : [-]
        how far from it its kernels were timed: 0 on its generation, 1 on another one, 2 on another vendor's
    """
    interval = interval_of(intervals, keys) or widest(intervals)
    interval = stretched(interval, unmeasured_width(unmeasured))
    return interval if device.partition is None else stretched(interval, SLICE_WIDTH)


@dataclass(frozen=True, slots=True)
class Operation:
    """A replica as intervals know it."""

    network_class: str
    profile: EngineProfile
    label: Label
    """measured where the device was calibrated, else assumed."""
    device: Device
    served: Served | None = None
    """What it serves; None: it is not a deployment that a fit may have seen."""
    offloads: bool = False
    """Some of its weights are in the memory of the host."""
    unmeasured: int = 0
    """How far from the device its kernels were timed; see `interval_on`."""


def operation_of(replica: Replica, served: Served | None = None) -> Operation:
    """Return a replica as intervals know it; with drafts it is no deployment that a fit has seen."""
    spec = replica.spec
    kind, own = network_class(spec.network), None if replica.draft_tokens else served
    far, offloads = spec.efficiency.unmeasured, spec.offload is not None
    return Operation(kind, spec.profile, replica.label, spec.device, own, offloads, far)


def served_by(spec: ReplicaSpec, input_tokens: Number, output_tokens: Number, in_flight: float) -> Served:
    """Return what a replica serves."""
    name = deployed_as(spec.network, spec.sharding, spec.kv_format)
    return Served(name, float(input_tokens), float(output_tokens), in_flight)


def operation_interval(
    intervals: Intervals, quantity: str, load: str, operation: Operation, statistic: str = "mean"
) -> Interval:
    """Return the interval of a statistic of a quantity for a replica under a kind of load (closed, open).

    A fitted deployment has that of its own results where it is narrower than the one of the back-test.
    """
    if operation.profile.engine == LLAMACPP:
        kind = "prompt" if quantity == "ttft" else "generation"
        kind = f"processor_{kind}" if operation.device.architecture == HOST else kind
        kind = "offloaded" if operation.offloads else kind
        return interval_on(intervals, (f"{kind}/{LLAMACPP}",), operation.device, operation.unmeasured)
    generation = engine_generation(operation.profile)
    label, kind, device, far = (
        operation.label,
        operation.network_class,
        operation.device,
        operation.unmeasured,
    )
    keys = regime_keys(quantity, load, kind, label, statistic, generation)
    usual = interval_on(intervals, keys, device, far)
    left_out, served = operation.profile.left_out, operation.served
    if not left_out or served is None:
        return usual
    closed = regime_keys(quantity, "closed", kind, label, "mean", generation)
    middle = interval_on(intervals, closed, device, far)
    latency = (
        quantity if load == "closed" else "e2e"
    )  # in an open loop first tokens wait for steps of all kinds
    latency = quantity if quantity == "throughput" else latency
    width = max(_reach(usual) / _reach(middle), 1.0)
    return of_deployment(
        usual, lambda near: deployment_interval(latency, left_out, near, width), left_out, served, _reach
    )


Known = TypeVar("Known")


def of_deployment(
    usual: Known,
    own_at: Callable[[Served], Known | None],
    results: Sequence[LeftOutResult],
    served: Served,
    reach: Callable[[Known], float],
) -> Known:
    """Return how far off predictions of a fitted deployment are: by its own results where they say more than the back-test, else as usual.

    They say more if they are less spread, or more spread already at a load that was measured: then the deployment is less even than
    others. Far from its results its spread grows, and the back-test says more.

    Parameters
    ----------
    usual : of the back-test
    own_at : of the results of the deployment, at a load; None if they do not say
    results : each predicted without itself
    served : the load that is asked for
    reach : width of a spread
    """
    measured_at = next((one for one in results if one.deployment == served.deployment), served)
    own, measured = own_at(served), own_at(measured_at)
    if own is None or measured is None:
        return usual
    return own if reach(own) < reach(usual) or reach(measured) > reach(usual) else usual


def _reach(interval: Interval) -> float:
    """Return the ratio of the ends, as a logarithm."""
    return log(interval.high_ratio / interval.low_ratio)


def deployment_interval(
    quantity: str, left_out: Sequence[LeftOutResult], served: Served, width: float
) -> Interval | None:
    """Return the interval of a fitted deployment; None if its results do not say.

    Parameters
    ----------
    quantity : ttft, tpot, itl, e2e, throughput; the last two take the wider one of the latencies
    left_out : results, each predicted without itself
    served : what the replica serves
    width : [-]
        width of the statistic and load over that of a mean in a closed loop, which most results are
    """
    names = {"ttft": ("ttft",), "tpot": ("tpot",), "itl": ("tpot",)}.get(quantity, ("ttft", "tpot"))
    spreads = [spread for name in names if (spread := left_out_spread(left_out, served, name))]
    if len(spreads) < len(names):
        return None
    widest_spread = max(spreads, key=lambda spread: spread.scale)
    sign = -1.0 if quantity == "throughput" else 1.0
    logs = sorted(sign * widest_spread.log_quantile(probability, width) for probability in PROBABILITIES)
    ratios = tuple(map(exp, logs))
    interval = interval_of_ratios(ratios, widest_spread.results, LEAST_GROUPS, LEAST_SOURCES)
    return replace(interval, left_out_error_fraction=widest_spread.error_fraction)


def bounded_estimate(replica: Replica, load: Load, intervals: Intervals) -> BoundedEstimate:
    """Return what the replica delivers under the load, with 80 % intervals."""
    predicted = estimate(replica, load)
    kind = "closed" if load.concurrency is not None else "open"

    served = served_by(replica.spec, load.input_tokens, load.output_tokens, predicted.concurrency)
    operation = operation_of(replica, served)
    latencies = {
        name: operation_interval(intervals, name, kind, operation) for name in ("ttft", "tpot", "e2e")
    }

    throughput = operation_interval(intervals, "throughput", kind, operation)
    return BoundedEstimate(
        predicted,
        *bounded_latencies(predicted.ttft_s, predicted.tpot_s, predicted.e2e_s, latencies),
        throughput,
        throughput.n == 0,
        min(entry.groups for entry in (*latencies.values(), throughput)),
        min(entry.sources for entry in (*latencies.values(), throughput)),
        _rests_on(latencies),
    )


def _rests_on(latencies: Mapping[str, Interval]) -> str:
    """Return which latencies have intervals of results of this deployment, and which results; empty if none have."""
    own = {
        name.upper(): entry for name, entry in latencies.items() if entry.left_out_error_fraction is not None
    }
    return f"{', '.join(own)} from {own.popitem()[1].rests_on}" if own else ""
