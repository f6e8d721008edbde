"""The results of a simulation, one row per request and totals of the engines, and what measures them in memory that does not grow with the requests."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, floor, inf, log, nan
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Array, Number, Spread
from capplan.serving.engine_parts import Gauges
from capplan.serving.requests import InFlight

BINS_PER_E = 200
"""Bins of a weighted histogram per factor of e: values are exact to half a bin, 0.25 %."""


class WeightedHistogram:
    """Weighted values in logarithmic bins: percentiles to 0.25 %, the mean exactly."""

    __slots__ = ("total", "weight", "weight_by_bin")

    def __init__(self) -> None:
        """Start empty."""
        self.weight_by_bin: dict[int, float] = {}
        self.weight = 0.0
        self.total = 0.0

    @classmethod
    def of(
        cls, weights: dict[int, float], of_zero: float, weight: float, total: float
    ) -> "WeightedHistogram":
        """Return a histogram with these weights by bin, and the weight of values of zero."""
        histogram = cls()
        histogram.weight_by_bin = {-(10**9): of_zero} | weights if of_zero else weights
        histogram.weight, histogram.total = weight, total
        return histogram

    def add(self, value: float, weight: float) -> None:
        """Add a value with a weight."""
        key = round(log(value) * BINS_PER_E) if value > 0.0 else -(10**9)
        weights = self.weight_by_bin
        weights[key] = weights.get(key, 0.0) + weight
        self.weight += weight
        self.total += weight * value

    def merge(self, other: "WeightedHistogram", ratio: float = 1.0) -> None:
        """Add all values of another histogram, with some times their weights."""
        for key, weight in other.weight_by_bin.items():
            self.weight_by_bin[key] = self.weight_by_bin.get(key, 0.0) + ratio * weight
        self.weight += ratio * other.weight
        self.total += ratio * other.total

    def mean(self) -> float:
        """Return the weighted mean, nan when empty."""
        return self.total / self.weight if self.weight else float("nan")

    def percentile(self, fraction: float) -> float:
        """Return the smallest value below which at least this fraction of the weight lies, nan when empty.

        Examples
        --------
        >>> histogram = WeightedHistogram()
        >>> histogram.add(1.0, 99.0)
        >>> histogram.add(5.0, 1.0)
        >>> histogram.percentile(0.5)
        1.0
        """
        reached = 0.0
        for key in sorted(self.weight_by_bin):
            reached += self.weight_by_bin[key]
            if reached >= fraction * self.weight * (1.0 - 1e-12):
                return exp(key / BINS_PER_E) if key > -(10**9) else 0.0
        return float("nan")


@dataclass(frozen=True, slots=True)
class Timeline:
    """Means over equal spans of time."""

    start_s: Array
    span_s: float
    batch_sequences: Array
    """Sequences in the engine, prefilling or decoding."""
    kv_blocks: Array
    busy_fraction: Array


def timeline_of(gauges: Gauges, until_s: float) -> Timeline:
    """Return the means over time, from zero to the last span that began."""
    span_s = gauges.span_s
    count = min(int(until_s / span_s) + 1, len(gauges.by_busy))
    sums = (np.array(bins[:count]) / span_s for bins in (gauges.by_batch, gauges.by_blocks, gauges.by_busy))
    return Timeline(np.arange(count, dtype=np.float64) * span_s, span_s, *sums)


@dataclass(frozen=True, slots=True)
class ReplicaUse:
    """What one replica did from start to end."""

    replica: int
    from_s: float
    until_s: float
    requests: int
    """Sent to it, copies and rerouted ones included."""
    preemptions: int
    gauges: Gauges
    pool: Literal["prefill", "decode"] | None = None
    """Pool of this replica, if prefill and decode replicas are separate; each pool is numbered from 0."""


def weighted_percentile(weights: Array, fraction: float) -> int:
    """Return the smallest index up to which at least this fraction of the weight lies.

    Examples
    --------
    >>> weighted_percentile(np.array([1.0, 2.0, 1.0]), 0.5)
    1
    """
    total = np.cumsum(weights)
    return int(np.searchsorted(total, fraction * total[-1] * (1.0 - 1e-12))) if total[-1] > 0.0 else 0


FINISHED, SHED, UNFINISHED = 0, 1, 2
PERCENTILES = (0.5, 0.9, 0.95, 0.99)
NEGLIGIBLE_FRACTION = 1e-9
"""An engine that runs for less than this fraction of a span counts as absent: the rest is rounding error."""


@dataclass(frozen=True, slots=True)
class SeenByUsers:
    """Latencies from the moment that users ask: with what each request waits before its prompt is sent."""

    ttft_s: Spread[float]
    e2e_s: Spread[float]
    by_class: tuple[tuple[Spread[float], ...], tuple[Spread[float], ...]] = ((), ())
    """TTFT and E2E of the requests of each class at the peak; empty if all wait equally long."""


@dataclass(slots=True)
class ClassTotals:
    """Totals of one traffic class."""

    prompt_tokens: int = 0
    """Prompt tokens of admitted requests; a request admitted again after a preemption counts again."""
    cached_tokens: int = 0
    """Prompt tokens of admitted requests that hit in the prefix cache."""
    preemptions: int = 0

    def add(self, other: "ClassTotals") -> None:
        """Add the totals of another engine."""
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.preemptions += other.preemptions


class LatencyLimit(NamedTuple):
    """A latency that few requests of a run may exceed."""

    metric: Literal["ttft", "tpot", "e2e"]
    limit_s: float
    most_above: int
    """Requests that may exceed it."""


@dataclass(frozen=True, slots=True)
class EarlyEnd:
    """A run may end as soon as it has missed one of these limits, whatever comes after."""

    limits: tuple[LatencyLimit, ...]
    from_row: int
    """First request that counts."""
    until_s: float = inf
    """Last arrival that counts [s]; none counts once users have taken all of their requests."""

    def missed_by(self, arrival_s: Array, ttft_s: Array) -> LatencyLimit | None:
        """Return the first limit that the first tokens of a run without users have missed; None if there is none."""
        counts = (np.arange(arrival_s.size) >= self.from_row) & (arrival_s <= self.until_s)
        for limit in self.limits:
            late = int(np.count_nonzero(counts & (ttft_s > limit.limit_s)))
            if limit.metric == "ttft" and late > limit.most_above:
                return limit
        return None


FULL_RUN = EarlyEnd((), 0)


def most_above(quantile: float, count: int) -> int:
    """Return how many of some values may exceed a limit that their quantile does not exceed.

        m = n - 1 - floor(q (n - 1))

    With one more, the lower of the two values that the quantile lies between exceeds the limit too.

    Parameters
    ----------
    quantile : [-]
        q
    count : [-]
        n, values

    Returns
    -------
    [-]
        m

    Examples
    --------
    >>> most_above(0.95, 101), most_above(0.5, 2)
    (5, 1)

    References
    ----------
    Hyndman, Fan 1996, "Sample quantiles in statistical packages", definition 7, doi:10.2307/2684934.
    """
    return count - 1 - floor(quantile * (count - 1))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results by request (nan if missing), in order of arrival, and totals."""

    status: NDArray[np.uint8]
    """FINISHED, SHED or UNFINISHED."""
    arrival_s: Array
    queue_s: Array
    """Time from reaching the queue to the first step that works on the request."""
    ttft_s: Array
    """Time from arrival to the first token."""
    tpot_s: Array
    """(e2e - ttft) / (output - 1): without the first token; nan for a single token."""
    e2e_s: Array
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    class_index: NDArray[np.int64]
    seconds: float
    """When the last step ended."""
    steps: int
    preemptions: int
    prefill_tokens: int
    """Prompt tokens computed: with recomputation, without prefix-cache hits."""
    cached_tokens: int
    """Prompt tokens of admitted requests that hit in the prefix cache."""
    itl: WeightedHistogram
    """Gaps between successive tokens of a sequence."""
    batch_mean: float
    """Sequences in the engine, mean over its busy time."""
    kv_occupancy_mean: float
    """Fraction of the blocks in use, mean over the whole time."""
    kv_occupancy_p99: float
    busy_fraction: float
    timeline: Timeline
    class_totals: dict[int, ClassTotals]
    """Totals of each traffic class, by its index."""
    admitted_tokens: NDArray[np.int64] | None = None
    """Prompt tokens of each request, once for each admission; None where the engine keeps only the sum."""
    found_tokens: NDArray[np.int64] | None = None
    """Prompt tokens of each request that hit in the prefix cache, once for each admission."""
    hit_blocks: tuple[int, ...] = ()
    """Prefix-cache hits of admitted prompts, in block ids: on the device, then in each offload tier."""
    missed: LatencyLimit | None = None
    """The limit that so many requests exceed that the run ended early; None: the run did not end early."""

    def count(self, status: int) -> int:
        """Return how many requests have this status."""
        return int(np.count_nonzero(self.status == status))

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Return which requests got all their tokens."""
        result: NDArray[np.bool_] = self.status == FINISHED
        return result

    @property
    def requests_per_s(self) -> float:
        """Return the finished requests per second of the whole run."""
        return self.count(FINISHED) / self.seconds if self.seconds else 0.0


def spread(values: Array) -> Spread[float]:
    """Return mean and percentiles of the finite values.

    Parameters
    ----------
    values : [any]
        nan and infinite entries are ignored.

    Returns
    -------
    Spread[float] in the unit of the values

    Examples
    --------
    >>> spread(np.array([1.0, 2.0, 3.0, np.nan])).mean
    2.0

    References
    ----------
    Hyndman, Fan 1996, "Sample quantiles in statistical packages", definition 7, doi:10.2307/2684934.
    """
    known = values[np.isfinite(values)]
    if not known.size:
        return Spread(nan, nan, nan, nan, nan)
    mean = float(known.mean())  # first: the quantiles change the order
    places = [divmod(fraction * (known.size - 1), 1.0) for fraction in PERCENTILES]
    pairs = [(int(below), min(int(below) + 1, known.size - 1), part) for below, part in places]
    known.partition(sorted({place for below, above, _ in pairs for place in (below, above)}))
    return Spread(
        mean, *(_between(float(known[below]), float(known[above]), part) for below, above, part in pairs)
    )


def _between(low: float, high: float, part: float) -> float:
    """Return the value a part of the way from one value to another, reckoned from the nearer one, as numpy.quantile does.

    Examples
    --------
    >>> values = np.array([3.0, 1.0, 4.0, 1.5])
    >>> spread(values).p95 == float(np.quantile(values, 0.95))
    True
    """
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1.0 - part)


def weighted_spread(values: Array, weights: Array) -> Spread[float]:
    """Return mean and percentiles of the finite values, each of which stands for `weights` of its kind.

        q_i = (w_1 + ... + w_(i-1)) / (w_1 + ... + w_(n-1)),   linear in between

    Parameters
    ----------
    values : [any]
        nan and infinite entries are ignored.
    weights : [-]
        w, above zero.

    Returns
    -------
    Spread[float] in the unit of the values

    Examples
    --------
    >>> three, twice = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0])
    >>> weighted_spread(three, twice) == spread(three)
    True

    References
    ----------
    Hyndman, Fan 1996, "Sample quantiles in statistical packages", definition 7, doi:10.2307/2684934, whose steps are equal weights.
    """
    known = np.isfinite(values)
    if not known.any():
        return Spread(nan, nan, nan, nan, nan)
    order = np.argsort(values[known], kind="stable")
    ordered, share = values[known][order], weights[known][order]
    below = np.concatenate([[0.0], np.cumsum(share)[:-1]])
    middle = np.interp(np.array(PERCENTILES) * max(below[-1], 1e-300), below, ordered)
    return Spread(float(np.average(ordered, weights=share)), *(float(q) for q in middle))


def histogram_spread(histogram: WeightedHistogram) -> Spread[float]:
    """Return mean and percentiles of a weighted histogram."""
    return Spread(histogram.mean(), *(histogram.percentile(fraction) for fraction in PERCENTILES))


def slo_met(
    outcome: Outcome, *, ttft_s: Number = np.inf, tpot_s: Number = np.inf, e2e_s: Number = np.inf
) -> NDArray[np.bool_]:
    """Return which requests finished within all limits, each one for all or one by request; a single output token has no TPOT and meets any limit on it.

    Examples
    --------
    Two prompts in turn, a step of 1 s for each prompt and 0.5 s for each further token; the second waits for the first:

    >>> from capplan.engine.profile import Scheduling
    >>> from capplan.serving.requests import Requests
    >>> from capplan.serving.simulator import simulate
    >>> from capplan.serving.step_table import StepTable
    >>> from capplan.serving.terms import EngineSetup
    >>> one = np.array([1.0])
    >>> table = StepTable(one, 0.5 * one, 0 * one, one, np.array([[0.0]]), one, one, one, one, np.array([[0.0]]))
    >>> engine = EngineSetup(table, Scheduling("mixed", 1, 64), kv_blocks=10)
    >>> run = simulate(Requests(np.array([9, 9]), np.array([3, 1])), engine)
    >>> run.ttft_s, slo_met(run, ttft_s=1.0), slo_met(run, tpot_s=0.5)
    (array([1., 3.]), array([ True, False]), array([ True,  True]))
    """
    tpot = np.where(np.isnan(outcome.tpot_s), 0.0, outcome.tpot_s)
    within = (outcome.ttft_s <= ttft_s) & (tpot <= tpot_s) & (outcome.e2e_s <= e2e_s)
    return outcome.finished & within


class Ledger:
    """Collects results by request, in compact arrays, and totals."""

    __slots__ = (
        "_arrival",
        "_class",
        "_e2e",
        "_input",
        "_output",
        "_queue",
        "_status",
        "_ttft",
        "cached_tokens",
        "class_totals",
        "counted_tokens",
        "in_flight",
        "itl",
        "preemptions",
        "prefill_tokens",
        "steps",
    )

    def __init__(self) -> None:
        """Start empty."""
        self._arrival, self._queue, self._ttft, self._e2e = (array("d") for _ in range(4))
        self._input, self._output = array("l"), array("l")
        self._class = array("l")
        self.counted_tokens: tuple[NDArray[np.int64] | None, NDArray[np.int64] | None] = (None, None)
        """Prompt tokens of each request that were admitted, and that hit in the prefix cache; None where they are not counted."""
        self._status = bytearray()
        self.itl = WeightedHistogram()
        self.preemptions = 0
        self.prefill_tokens = 0
        self.cached_tokens = 0
        self.class_totals: dict[int, ClassTotals] = {}
        self.steps = 0
        self.in_flight = 0

    @classmethod
    def of_columns(cls, *, status: NDArray[np.int64], **columns: NDArray[Any]) -> "Ledger":
        """Return a ledger with these columns, named as in Outcome, which uses them without a copy."""
        ledger = cls()
        for name, column in columns.items():
            setattr(
                ledger, "_" + name.removesuffix("_s").removesuffix("_tokens").removesuffix("_index"), column
            )
        ledger._status = bytearray(status.astype(np.uint8).tobytes())
        ledger.in_flight = int(np.count_nonzero(status == UNFINISHED))
        return ledger

    @property
    def rows(self) -> int:
        """Return the number of requests."""
        return len(self._status)

    def arrived(self, flight: InFlight) -> None:
        """Open the row of a request; rows come in order of arrival."""
        self._arrival.append(flight.arrival_s)
        self._queue.append(nan)
        self._ttft.append(nan)
        self._e2e.append(nan)
        self._input.append(flight.prompt_tokens)
        self._output.append(flight.output_tokens)
        self._class.append(flight.class_index)
        self._status.append(UNFINISHED)
        self.in_flight += 1

    def first_token(self, flight: InFlight) -> None:
        """Record queue time and TTFT of a request at its first token."""
        index = flight.index
        self._queue[index] = flight.scheduled_s - flight.enqueued_s
        self._ttft[index] = flight.first_token_s - flight.arrival_s

    def finished(self, flight: InFlight, at_s: float) -> None:
        """Close the row of a request that got all its tokens."""
        self._e2e[flight.index] = at_s - flight.arrival_s
        self._status[flight.index] = FINISHED
        self.in_flight -= 1

    def shed(self, flight: InFlight, at_s: float) -> None:
        """Close the row of a request that is shed; the time is not recorded."""
        del at_s
        self._status[flight.index] = SHED
        self.in_flight -= 1

    def add_totals(self, other: "Ledger") -> None:
        """Add the totals of another ledger, without its rows."""
        self.preemptions += other.preemptions
        self.prefill_tokens += other.prefill_tokens
        self.cached_tokens += other.cached_tokens
        self.steps += other.steps
        for index, totals in other.class_totals.items():
            self.class_totals.setdefault(index, ClassTotals()).add(totals)
        self.itl.merge(other.itl)

    def outcome(
        self,
        seconds: float,
        gauges: Sequence[Gauges],
        lifetimes_s: Sequence[tuple[float, float]] | None = None,
    ) -> Outcome:
        """Return the outcome, with the gauges of one or more engines and the start and end of each (None: the whole run)."""
        spans_s = (
            [seconds] * len(gauges)
            if lifetimes_s is None
            else [until - begin for begin, until in lifetimes_s]
        )
        ttft, e2e, output = _column(self._ttft), _column(self._e2e), _column(self._output)
        with np.errstate(invalid="ignore"):
            tpot = np.where(output > 1, (e2e - ttft) / np.maximum(output - 1, 1), nan)
        batch = _summed([gauge.batch_s for gauge in gauges])
        occupancy = _summed([gauge.occupancy_s for gauge in gauges])
        busy = sum(gauge.busy_s for gauge in gauges)
        occupancy[0] += max(sum(spans_s) - busy, 0.0)
        capacity_seconds = sum(span_s * gauge.capacity for span_s, gauge in zip(spans_s, gauges, strict=True))
        return Outcome(
            status=np.frombuffer(bytes(self._status), dtype=np.uint8),
            arrival_s=_column(self._arrival),
            queue_s=_column(self._queue),
            ttft_s=ttft,
            tpot_s=tpot,
            e2e_s=e2e,
            input_tokens=_column(self._input),
            output_tokens=output,
            class_index=_column(self._class),
            seconds=seconds,
            steps=self.steps,
            preemptions=self.preemptions,
            prefill_tokens=self.prefill_tokens,
            cached_tokens=self.cached_tokens,
            itl=self.itl,
            batch_mean=float(batch @ np.arange(batch.size)) / busy if busy else 0.0,
            kv_occupancy_mean=sum(g.block_seconds for g in gauges) / capacity_seconds
            if capacity_seconds
            else 0.0,
            kv_occupancy_p99=weighted_percentile(occupancy, 0.99) / max(occupancy.size - 1, 1),
            busy_fraction=busy / sum(spans_s) if sum(spans_s) else 0.0,
            timeline=joint_timeline([timeline_of(gauge, seconds) for gauge in gauges], lifetimes_s),
            class_totals=self.class_totals,
            admitted_tokens=self.counted_tokens[0],
            found_tokens=self.counted_tokens[1],
        )


def _column(values: Any) -> NDArray[Any]:
    """Return a column as a numpy array: a copy if it is still growing, else the column itself."""
    kind = np.float64 if isinstance(values, array) and values.typecode == "d" else np.int64
    return np.array(values, dtype=kind) if isinstance(values, array) else values


def _summed(rows: "Sequence[array[float]]") -> Array:
    total = np.zeros(max(len(row) for row in rows))
    for row in rows:
        total[: len(row)] += row
    return total


def joint_timeline(
    timelines: Sequence[Timeline], lifetimes_s: Sequence[tuple[float, float]] | None = None
) -> Timeline:
    """Return the sum of the timelines of several engines, on the coarsest spans.

    Parameters
    ----------
    timelines : of the engines; their spans differ by powers of two
    lifetimes_s : [s]
        start and end of each engine; None: all of them run all the time

    Returns
    -------
    sequences and blocks summed over the engines, and the busy fraction of those that run
    """
    widest = max(timelines, key=lambda timeline: (timeline.span_s, timeline.start_s.size))
    if len(timelines) == 1:
        return widest
    sums = []
    for name in ("batch_sequences", "kv_blocks", "busy_fraction"):
        total = np.zeros(widest.start_s.size)
        for timeline in timelines:
            middle_s = timeline.start_s + timeline.span_s / 2.0  # a start may be rounded into the span before
            place = (middle_s / widest.span_s).astype(np.int64)
            np.add.at(total, place, getattr(timeline, name) * (timeline.span_s / widest.span_s))
        sums.append(total)
    engines = np.full(widest.start_s.size, float(len(timelines)))
    if lifetimes_s is not None:
        engines = _engines_alive(widest, lifetimes_s)
    busy = np.divide(sums[2], engines, out=np.zeros_like(sums[2]), where=engines > NEGLIGIBLE_FRACTION)
    return Timeline(widest.start_s, widest.span_s, sums[0], sums[1], busy)


def _engines_alive(line: Timeline, lifetimes_s: Sequence[tuple[float, float]]) -> Array:
    """Return the mean number of running engines in each span."""
    ends = line.start_s + line.span_s
    parts = [
        np.clip(np.minimum(until, ends) - np.maximum(begin, line.start_s), 0.0, None)
        for begin, until in lifetimes_s
    ]
    return np.asarray(np.sum(parts, axis=0) / line.span_s)
