"""A fleet under a stream of requests: replicas simulated separately, and their results combined. Requests that were shed or never finished count."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isinf, nan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capplan.assumption import Assumption
from capplan.fleet.engine_options import EngineOptions, Engines, engines_of, with_named_blocks
from capplan.fleet.load.offered import (
    load_ends_s,
    split_at_random,
    split_by_prefix,
    split_crowd,
    split_round_robin,
    users_idle_from_s,
)
from capplan.fleet.load.waits import WaitedTimes, Waits, seen_by_users
from capplan.numbers import Array, Spread
from capplan.replica.estimate import closed_loop_time_s
from capplan.replica.replica import Replica
from capplan.replica.spec import ReplicaSpec
from capplan.serving.outcome import (
    FINISHED,
    SHED,
    ClassTotals,
    Outcome,
    SeenByUsers,
    WeightedHistogram,
    histogram_spread,
    joint_timeline,
    slo_met,
    spread,
)
from capplan.serving.requests import Admission, ClosedLoopUsers, Requests, in_order_of_arrival
from capplan.serving.terms import EngineSetup, Routing
from capplan.workload.request_class import Slo, Target

if TYPE_CHECKING:
    from capplan.serving.fleet_simulator import FleetRun

_AGED = ("ttft", "e2e")
"""Metrics that the age of an unfinished request is compared with."""
LARGEST_AGE_S = 1e18
"""An age above every real one: only a request that would never finish is this old."""


def target_values(
    columns: Mapping[str, NDArray[Any]], rows: NDArray[np.bool_], slo: Slo, until_s: float, gaps: Any
) -> dict[Target, float]:
    """Return the value of each target that is compared with its limit; infinite where too many requests were lost.

    A request that was shed, or that would never finish, missed every target. One that was running when the simulation
    stopped missed a target if it is already older than the limit; otherwise its outcome is unknown, and it is left out.

    Parameters
    ----------
    columns : by request: status, arrival_s, latencies [s] that are nan where there are none, and wait_s outside where any class waits
    rows : which requests count
    slo : the targets
    until_s : [s]
        when the run was stopped; infinite where it ran to its end
    gaps : mean and percentiles of the time between tokens [s], known only of finished requests

    Returns
    -------
    [s], by target; nan where no request has a value
    """
    status, age = columns["status"][rows], until_s - columns["arrival_s"][rows]
    is_open = (status != FINISHED) & (status != SHED)
    result = {}
    for target in slo.targets:
        spared_s = spared_time_s(columns, target)[rows]
        patience = target.limit_s + spared_s if target.metric in _AGED else LARGEST_AGE_S
        lost = (status == SHED) | (is_open & (age > patience))
        if target.metric == "itl":
            share = statistic_of(np.where(lost, inf, 0.0), target)
            result[target] = inf if isinf(share) else float(getattr(gaps, target.statistic))
            continue
        values = columns[f"{target.metric}_s"][rows] - spared_s
        result[target] = statistic_of(np.where(np.isnan(values) & lost, inf, values), target)
    return result


def spared_time_s(columns: Mapping[str, NDArray[Any]], target: Target) -> Array:
    """Return how much more time than its limit a target leaves the engine for each request, as it waits less outside than others [s]."""
    wait_s = columns.get("wait_s")
    if wait_s is None or not target.outside_s:
        return np.zeros(columns["status"].size)
    return target.outside_s - wait_s


def undecided(columns: Mapping[str, NDArray[Any]], rows: NDArray[np.bool_], slo: Slo, until_s: float) -> int:
    """Return how many of some requests were running when the simulation stopped and had not missed a target yet."""
    patience: Any = LARGEST_AGE_S
    for target in slo.targets:
        if target.metric in _AGED:
            patience = np.minimum(patience, target.limit_s + spared_time_s(columns, target))
    is_open = (columns["status"] != FINISHED) & (columns["status"] != SHED)
    return int(np.count_nonzero(rows & is_open & (until_s - columns["arrival_s"] <= patience)))


def statistic_of(values: Array, target: Target) -> float:
    """Return the statistic that a target names; some of the values may be infinite.

    Parameters
    ----------
    values : [s]
        nan entries are left out.
    target : names mean or a percentile

    Returns
    -------
    [s]

    Examples
    --------
    >>> from capplan.workload.request_class import Target
    >>> values = np.array([1.0, 2.0, 3.0, np.inf])
    >>> [statistic_of(values, Target("ttft", name, 1.0)) for name in ("p50", "p90", "mean")]
    [2.5, inf, inf]

    References
    ----------
    Hyndman, Fan 1996, "Sample quantiles in statistical packages", definition 7, doi:10.2307/2684934.
    """
    known = np.sort(values[~np.isnan(values)])
    if not known.size:
        return nan
    if target.statistic == "mean":
        return float(known.mean())
    share = int(target.statistic[1:]) / 100.0
    if isinf(known[int(np.ceil(share * (known.size - 1)))]):
        return inf
    finite = known[np.isfinite(known)]
    return float(np.quantile(finite, share * (known.size - 1) / max(finite.size - 1, 1)))


ENGINE_DEFAULTS = EngineOptions()
LIMITED = ("ttft", "tpot", "e2e")
CAPACITY_REQUESTS = 2000
"""Requests from which the capacity of a replica is measured."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The load of a fleet, in order of arrival."""

    requests: Requests | None
    """Open-loop arrivals, or the requests of a closed loop with a concurrency; None: only `crowd` sends requests."""
    class_names: tuple[str, ...]
    block_tokens: int = 0
    """Tokens per block id; 0 if prompts have none."""
    concurrency: int | None = None
    """Closed loop: requests at any time in the whole fleet."""
    crowd: ClosedLoopUsers | None = None
    """Closed-loop users of the whole fleet, in addition to `requests`."""
    routing: Routing | None = None
    """Routing policy; None: by prefix if prompts have block ids, else round-robin."""
    seed: int = 0
    """Seed of random routing."""
    warm_up_s: float = 0.0
    """Time from the start that figures leave out."""
    warm_up_share: float = 0.0
    """Share of the requests, in order of arrival, that figures leave out, if their time is longer."""
    load_ends_s: float = inf
    """Time after which no session begins, and that figures leave out."""
    unseen_ends: int = 0
    """Requests of a closed loop, both the first and the last in order of arrival, that figures leave out: its ramp and its drain."""
    waits: Waits | None = None
    """Wait of each class before its prompts are sent; None where all wait as long as the targets include."""

    @property
    def mean_input_tokens(self) -> float:
        """Return the mean prompt length."""
        return float(np.mean(self.representative.input_tokens))

    @property
    def requests_drawn(self) -> int:
        """Return the number of requests, those of users included."""
        return len(self.requests or ()) + (len(self.crowd.asked) if self.crowd else 0)

    def of_users(self, class_index: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which requests users send, by their classes; those who come and leave are none of them."""
        if self.crowd is None or not self.crowd.users:
            return np.zeros(class_index.size, dtype=np.bool_)
        if self.requests is None and self.crowd.visits is None:
            return np.ones(class_index.size, dtype=np.bool_)
        return np.isin(class_index, self.crowd.requests.column("class_index"))

    @property
    def representative(self) -> Requests:
        """Return representative requests: those with times, or else those of the users."""
        visits = None if self.crowd is None else self.crowd.visits
        timed = [
            part for part in (self.requests, None if visits is None else visits.requests) if part is not None
        ]
        if timed:
            return in_order_of_arrival(timed)
        assert self.crowd is not None
        return self.crowd.requests


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts, latencies and rates of some of the requests."""

    requests: int
    finished: int
    shed: int
    unfinished: int
    ttft_s: Spread[float]
    tpot_s: Spread[float]
    e2e_s: Spread[float]
    queue_s: Spread[float]
    input_tokens_per_s: float
    """Prompts, whether computed or found in a cache."""
    output_tokens_per_s: float
    requests_per_s: float
    goodput_requests_per_s: float
    slo_met_fraction: float
    prefix_hit_fraction: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """The result of a fleet simulation."""

    all: Figures
    classes: dict[str, Figures]
    seconds: float
    """Time of the whole run, until the last step ended."""
    from_s: float
    """Start of the time that rates and latencies are of: the end of the warm-up."""
    until_s: float
    """End of that time: the last arrival, or when the first user found no request left; what follows is the drain."""
    itl_s: Spread[float]
    kv_occupancy_mean: float
    kv_occupancy_p99: float
    batch_mean: float
    busy_fraction: float
    replicas: int
    requests: "MeasuredRequests"
    run: "FleetRun | None" = None
    """The run behind a router; None if the replicas were simulated separately."""
    assumptions: tuple[Assumption, ...] = ()
    hit_fractions: dict[str, float] = field(default_factory=dict)
    """Fraction of prompt tokens that hit on the device and in each offload tier."""
    kv_blocks: int = 0
    """KV blocks of all replicas; under autoscaling, of the maximum number of replicas."""
    tokens_per_step: float = 1.0
    """Mean tokens per sequence and decode step: above 1 under speculation."""
    draft: ReplicaSpec | None = None
    """The draft model of the prefill replicas of separate pools, whose KV cache is sent too."""
    target_values: Mapping[Target, float] = field(default_factory=dict)
    """Values of the targets that were asked for [s]."""
    undecided: int = 0
    """Requests in flight when the run was stopped, whose latencies are unknown."""
    seen: SeenByUsers | None = None
    """Latencies with the wait of each request outside; None if all wait equally long."""

    @property
    def parts(self) -> Sequence[Outcome]:
        """Runs of the engines."""
        return self.requests.parts

    def value(self, target: Target) -> float:
        """Return the value that a target limits.

        It is the latency of the engine; where classes wait differently long outside, that of users less the longest wait. Requests
        without a response count as `capplan.fleet.simulation` says.
        """
        if target in self.target_values:
            return self.target_values[target]
        if target.metric == "itl":
            return float(getattr(self.itl_s, target.statistic))
        return float(getattr(getattr(self.all, f"{target.metric}_s"), target.statistic))

    def missed(self, slo: Slo) -> tuple[Target, ...]:
        """Return the targets that were missed."""
        return tuple(target for target in slo.targets if not self.value(target) <= target.limit_s)


def split_stream(
    stream: Stream, replicas: int, *, by_prefix: bool
) -> list[tuple[Requests | None, ClosedLoopUsers | None]]:
    """Return the requests and users of each replica; users stay with their replica, and idle replicas are left out."""
    requests: Sequence[Requests | None] = [None] * replicas
    crowds: list[ClosedLoopUsers | None] = [None] * replicas
    if stream.requests is not None:
        if stream.routing == "random":
            requests = split_at_random(stream.requests, replicas, stream.seed)
        elif by_prefix:
            requests = split_by_prefix(stream.requests, replicas)
        else:
            requests = split_round_robin(stream.requests, replicas)
    if stream.crowd is not None:
        parts = split_crowd(stream.crowd, replicas)
        crowds[: len(parts)] = parts
    return [pair for pair in zip(requests, crowds, strict=True) if pair[0] or pair[1]]


def capacity_per_s(engine: EngineSetup, requests: Requests) -> float:
    """Return the maximum requests per second of one engine: the middle half of a closed-loop run.

    A quarter of the requests are in flight at any time (or as many as the engine admits), so that prefill and decode mix as
    in a steady state; with all requests at once, prefill would come first and completions in a burst. Prompts with block ids
    find in the prefix cache what this run leaves there.
    """
    from capplan.serving.simulator import simulate

    offered = replace(requests.between(0, CAPACITY_REQUESTS), arrival_s=None)
    clients = max(1, min(engine.scheduling.max_num_seqs, len(offered) // 4))
    return middle_rate(simulate(offered, engine, concurrency=clients))


def middle_rate(outcome: Outcome) -> float:
    """Return finished requests per second over the middle half of the completions."""
    ends = np.sort((outcome.arrival_s + outcome.e2e_s)[outcome.finished])
    low, high = ends.size // 4, max(3 * ends.size // 4, ends.size // 4 + 1)
    if ends.size < 4 or ends[high] <= ends[low]:
        return outcome.requests_per_s
    return float((high - low) / (ends[high] - ends[low]))


def goodput_limits(slo: Slo, columns: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Any]:
    """Return the latency limits that count for goodput: per metric the loosest of its targets [s].

    With columns of requests, some of which wait longer outside than others, a limit is that of each request.

    Examples
    --------
    >>> goodput_limits(Slo((Target("ttft", "p95", 0.8), Target("ttft", "p99", 2.0))))
    {'ttft_s': 2.0, 'tpot_s': inf, 'e2e_s': inf}
    """
    loosest = {
        metric: max((t for t in slo.targets if t.metric == metric), key=lambda t: t.limit_s, default=None)
        for metric in LIMITED
    }
    return {
        f"{metric}_s": inf
        if target is None
        else target.limit_s
        if columns is None
        else target.limit_s + spared_time_s(columns, target)
        for metric, target in loosest.items()
    }


def simulated_fleet(
    replica: Replica,
    stream: Stream,
    *,
    replicas: int = 1,
    slo: Slo,
    until_s: float = inf,
    admission: Admission | None = None,
    use: EngineOptions = ENGINE_DEFAULTS,
) -> FleetOutcome:
    """Simulate identical replicas separately, on a stream that is split beforehand.

    Parameters
    ----------
    replica : one of them
    stream : the load
    replicas : [-]
    slo : limits for goodput
    until_s : [s]
        stop at this time
    admission : admission rules; None: admit all
    use : options of the engines

    Returns
    -------
    latencies [s], rates [1/s], by class and overall
    """
    from capplan.serving.simulator import simulate

    stream = stream_with_block_ids(stream, replica, use)
    engines = engines_of(replica, use, stream.block_tokens, stream.mean_input_tokens)
    setup = engines.setup
    concurrency = stream.concurrency
    parts = [
        simulate(
            requests,
            setup,
            until_s=until_s,
            concurrency=None if concurrency is None else max(round(concurrency / replicas), 1),
            crowd=crowd,
            admission=admission or Admission(),
        )
        for requests, crowd in split_stream(
            stream, replicas, by_prefix=bool(setup.caching) and not use.reuse_preempted
        )
    ]
    outcome = fleet_outcome(parts, stream, slo, until_s)
    return replace(outcome, **simulation_summary(engines, outcome, parts, replicas))


_COLUMNS = ("status", "queue_s", "ttft_s", "tpot_s", "e2e_s", "input_tokens", "output_tokens", "class_index", "arrival_s")  # fmt: skip


def fleet_outcome(
    parts: Sequence[Outcome],
    stream: Stream,
    slo: Slo,
    until_s: float = inf,
) -> FleetOutcome:
    """Return the combined results of several replicas.

    Requests count if they arrived in the measured time, from the end of the warm-up until the load ends; rates are what
    finished in that time, over its length. Gauges of the engines are means over the same time.

    Parameters
    ----------
    parts : by replica
    stream : the load, with its warm-up
    slo : limits for goodput
    until_s : [s]
        when the run was stopped
    """
    seconds = max(part.seconds for part in parts)
    requests = _measured(parts, stream, slo, until_s)
    columns, seen = requests.columns, requests.seen
    histogram = WeightedHistogram()
    for part in parts:
        histogram.merge(part.itl)
    itl_s = histogram_spread(histogram)
    busy, batch, kv_occupancy = _gauges(parts, seconds, requests.from_s, requests.until_s)
    every = requests.figures(np.ones(seen.size, dtype=bool))
    return FleetOutcome(
        all=every,
        classes={
            name: requests.figures(columns["class_index"] == index) if len(stream.class_names) > 1 else every
            for index, name in enumerate(stream.class_names)
        },
        seconds=seconds,
        from_s=requests.from_s,
        until_s=requests.until_s,
        itl_s=itl_s,
        kv_occupancy_mean=kv_occupancy,
        kv_occupancy_p99=max(part.kv_occupancy_p99 for part in parts),
        batch_mean=batch,
        busy_fraction=busy,
        replicas=len(parts),
        requests=requests,
        target_values=target_values(columns, seen, slo, until_s, itl_s),
        seen=_seen_by_users(columns, seen, every, stream.waits),
        undecided=undecided(columns, seen, slo, until_s),
    )


def _measured(parts: Sequence[Outcome], stream: Stream, slo: Slo, until_s: float) -> "MeasuredRequests":
    """Return the requests of several replicas, and which of them count."""
    met = np.concatenate(
        [slo_met(part, **goodput_limits(slo, request_columns([part], stream.waits))) for part in parts]
    )
    columns = request_columns(parts, stream.waits)
    # Replicas that are down do not see the rest of the load, which belongs to the run.
    over_s = max(*(part.seconds for part in parts), float(np.max(columns["arrival_s"], initial=0.0)))
    by_users = [part.arrival_s[stream.of_users(part.class_index)] for part in parts]
    last_s = [float(arrival.max()) for arrival in by_users if arrival.size]
    begin, end = measured_time(columns, stream, min(over_s, until_s), last_s)
    done = finished_in(columns, begin, end)
    if not done.any():  # shorter than one response: the time until the last of them counts
        end = over_s
        done = finished_in(columns, begin, end)
    return MeasuredRequests(columns, met, arrived_in(columns, begin, end), done, begin, end, tuple(parts))


def request_columns(parts: Sequence[Outcome], waits: Waits | None) -> dict[str, NDArray[Any]]:
    """Return the requests of several replicas by name of the column, with the wait of each outside if any class waits."""
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    if waits is None or not any(waits.seconds):
        return columns
    return columns | {"wait_s": np.array(waits.seconds)[columns["class_index"]]}


def _seen_by_users(
    columns: Mapping[str, NDArray[Any]], rows: NDArray[np.bool_], engine: Figures, waits: Waits | None
) -> SeenByUsers | None:
    """Return the latencies of some requests with the wait of each; None if all wait equally long."""
    if waits is None or not waits.are_unlike:
        return None
    of_class = columns["class_index"][rows]
    return seen_by_users(
        WaitedTimes(waits, columns["ttft_s"][rows], of_class, engine.ttft_s),
        WaitedTimes(waits, columns["e2e_s"][rows], of_class, engine.e2e_s),
    )


def stream_with_block_ids(stream: Stream, replica: Replica, use: EngineOptions) -> Stream:
    """Return the stream, with unique block ids if preempted requests reuse their cached blocks."""
    block = replica.scheduling.block_tokens
    if stream.requests is None or not use.reuse_preempted or stream.block_tokens:
        return stream
    if replica.scheduling.policy == "static":
        return stream
    return replace(stream, requests=with_named_blocks(stream.requests, block), block_tokens=block)


def simulation_summary(
    engines: Engines, outcome: FleetOutcome, parts: Sequence[Outcome], replicas: int
) -> dict[str, Any]:
    """Return the fields of FleetOutcome that depend on the engine options."""
    counts = np.sum([list(part.hit_blocks) or [0] for part in parts], axis=0)
    caching = engines.setup.caching
    names = ["device", *(tier.name for tier in caching.tiers)] if caching else []
    total = float(counts.sum())
    hits = {
        name: outcome.all.prefix_hit_fraction * float(count) / total if total else 0.0
        for name, count in zip(names, counts, strict=False)
    }
    return {
        "hit_fractions": hits,
        "kv_blocks": engines.setup.kv_blocks * replicas,
        "tokens_per_step": engines.setup.tokens_per_step,
        "assumptions": engines.assumptions,
    }


def measured_time(
    columns: Mapping[str, NDArray[Any]], stream: Stream, stopped_s: float, last_s: Sequence[float] = ()
) -> tuple[float, float]:
    """Return from when until when a run is measured [s].

    It begins when the warm-up of the stream is over, and ends when a part of the load that matters is over: at the last open-loop
    arrival, when no session begins any more, or when the first user found no request left. Users who stay at a replica run out of requests there, those of
    busier replicas later than others: the run ends when the first replica has none left. A closed loop may leave out requests at both ends.

    Parameters
    ----------
    columns : of the requests, by name: arrival_s, e2e_s, class_index, input_tokens, output_tokens
    stream : the load
    stopped_s : [s]
        when the run ended
    last_s : [s]
        last request of a user at each replica whose load is its own
    """
    arrival = columns["arrival_s"]
    if not arrival.size:
        return 0.0, stopped_s
    of_users = stream.of_users(columns["class_index"])
    tokens = columns["input_tokens"] + columns["output_tokens"]
    idle_s = min(last_s, default=0.0)
    if stream.crowd is not None and of_users.any() and len(last_s) < 2:
        users = stream.crowd.first_turns().size
        idle_s = users_idle_from_s(arrival[of_users], columns["e2e_s"][of_users], users)
    end = min(load_ends_s(arrival, of_users, tokens, idle_s), stream.load_ends_s)
    if 0 < 2 * stream.unseen_ends < arrival.size:
        return closed_loop_time_s(arrival, stream.unseen_ends)
    begin = max(stream.warm_up_s, float(np.quantile(arrival[arrival <= end], stream.warm_up_share)))
    end = min(end, stopped_s)
    return (begin, end) if begin < end else (0.0, stopped_s)


def arrived_in(columns: Mapping[str, NDArray[Any]], begin: float, end: float) -> NDArray[np.bool_]:
    """Return which requests arrived in a time, both ends included."""
    arrival: Array = columns["arrival_s"]
    return (arrival >= begin) & (arrival <= end)


def finished_in(columns: Mapping[str, NDArray[Any]], begin: float, end: float) -> NDArray[np.bool_]:
    """Return which requests got their last token in a time, its beginning excluded."""
    ends = columns["arrival_s"] + columns["e2e_s"]
    finished: NDArray[np.bool_] = (columns["status"] == FINISHED) & (ends > begin) & (ends <= end)
    return finished


def _gauges(parts: Sequence[Outcome], seconds: float, begin: float, end: float) -> tuple[float, float, float]:
    """Return busy fraction, batch and KV occupancy of the whole run, scaled to the measured time by the timeline of all replicas together."""
    busy_s = [part.busy_fraction * part.seconds for part in parts]
    there_s = len(parts) * seconds or 1.0
    batches = sum(part.batch_mean * busy for part, busy in zip(parts, busy_s, strict=True))
    occupancy = sum(part.kv_occupancy_mean * part.seconds for part in parts) / there_s
    line = joint_timeline([part.timeline for part in parts])
    ends = np.minimum(line.start_s + line.span_s, seconds)
    spans = np.maximum(ends - line.start_s, 0.0)
    inside = np.maximum(np.minimum(ends, end) - np.maximum(line.start_s, begin), 0.0)

    def ratio(values: Array) -> float:
        """Return the mean over the measured time over the mean of the whole run."""
        there, all_of_it = float(values @ inside), float(values @ spans)
        return there / all_of_it * spans.sum() / inside.sum() if all_of_it and inside.any() else 1.0

    busy = ratio(line.busy_fraction)
    return (
        min(sum(busy_s) / there_s * busy, 1.0),
        batches / (sum(busy_s) or 1.0) * (ratio(line.batch_sequences) / busy if busy else 1.0),
        min(occupancy * ratio(line.kv_blocks), 1.0),
    )


@dataclass(frozen=True, slots=True)
class MeasuredRequests:
    """The requests of a run, and which of them count."""

    columns: Mapping[str, NDArray[Any]]
    met: NDArray[np.bool_]
    """Requests that met all limits."""
    seen: NDArray[np.bool_]
    """Requests that arrived in the measured time."""
    done: NDArray[np.bool_]
    """Requests that finished in it."""
    from_s: float
    """Time from which the run is measured [s]."""
    until_s: float
    """Time until which it is [s]."""
    parts: Sequence[Outcome]

    def _totals(self, rows: NDArray[np.bool_]) -> ClassTotals:
        """Return the totals of the engines over some of the requests that arrived in the measured time."""
        classes = np.unique(self.columns["class_index"][rows]).tolist()
        total, first = ClassTotals(), 0
        for part in self.parts:
            mine = (rows & self.seen)[first : first + part.status.size]
            first += part.status.size
            of_classes = [part.class_totals.get(index, ClassTotals()) for index in classes]
            preemptions = sum(each.preemptions for each in of_classes)
            if part.admitted_tokens is None or part.found_tokens is None:
                for each in of_classes:
                    total.add(each)
            else:
                admitted, found = (
                    int(tokens[mine].sum()) for tokens in (part.admitted_tokens, part.found_tokens)
                )
                total.add(ClassTotals(admitted, found, preemptions))
        return total

    def figures(self, rows: NDArray[np.bool_]) -> Figures:
        """Return the figures of some of the requests."""
        columns, seen = self.columns, rows & self.seen
        status = columns["status"][seen]
        finished, shed = (int(np.count_nonzero(status == kind)) for kind in (FINISHED, SHED))
        done, count = rows & self.done, int(np.count_nonzero(seen))
        seconds = self.until_s - self.from_s
        per_s = 1.0 / seconds if seconds > 0 else 0.0
        totals = self._totals(rows)
        return Figures(
            requests=count,
            finished=finished,
            shed=shed,
            unfinished=count - finished - shed,
            ttft_s=spread(columns["ttft_s"][seen]),
            tpot_s=spread(columns["tpot_s"][seen]),
            e2e_s=spread(columns["e2e_s"][seen]),
            queue_s=spread(columns["queue_s"][seen]),
            input_tokens_per_s=float(columns["input_tokens"][done].sum()) * per_s,
            output_tokens_per_s=float(columns["output_tokens"][done].sum()) * per_s,
            requests_per_s=int(np.count_nonzero(done)) * per_s,
            goodput_requests_per_s=int(np.count_nonzero(done & self.met)) * per_s,
            slo_met_fraction=int(np.count_nonzero(self.met[seen])) / count if count else 0.0,
            prefix_hit_fraction=totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 0.0,
            preemptions=totals.preemptions,
        )
