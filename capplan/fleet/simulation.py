"""A fleet under a stream of requests: replicas simulated separately, and their results combined."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.assumption import Assumption
from capplan.fleet.engine_options import EngineOptions, Engines, engines_of, with_named_blocks
from capplan.fleet.load.stream_split import split_at_random, split_by_prefix, split_crowd, split_round_robin
from capplan.fleet.search.target_values import target_values, undecided
from capplan.replica.replica import Replica
from capplan.serving.gauges import WeightedHistogram
from capplan.serving.outcome import (
    FINISHED,
    SHED,
    ClassTotals,
    Outcome,
    Spread,
    histogram_spread,
    slo_met,
    spread,
)
from capplan.serving.replicas.fleet_simulator import FleetRun
from capplan.serving.replicas.fleet_terms import Routing
from capplan.serving.requests import Admission, Crowd, Requests
from capplan.serving.simulator import simulate
from capplan.serving.terms import EngineSetup
from capplan.workload.slo import Slo, Target

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
    crowd: Crowd | None = None
    """Closed-loop users of the whole fleet, beside `requests`."""
    routing: Routing | None = None
    """Of the router; None: by prefix if prompts have block ids, else round-robin."""
    seed: int = 0
    """Of random routing."""

    @property
    def mean_input_tokens(self) -> float:
        """Return the mean prompt length."""
        return float(np.mean(self.representative.input_tokens))

    @property
    def requests_drawn(self) -> int:
        """Return the number of requests, those of users included."""
        asked = self.crowd.requests if self.crowd else None
        return len(self.requests or ()) + (len(asked) if isinstance(asked, Requests) else 0)

    @property
    def representative(self) -> Requests:
        """Return representative requests: `requests`, or else those of the users."""
        if self.requests is not None:
            return self.requests
        assert self.crowd is not None
        assert isinstance(self.crowd.requests, Requests)
        return self.crowd.requests


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts, latencies and rates of some of the requests."""

    requests: int
    finished: int
    shed: int
    unfinished: int
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    queue_s: Spread
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
    itl_s: Spread
    prefix_hit_fraction: float
    preemptions: int
    kv_occupancy_mean: float
    kv_occupancy_p99: float
    batch_mean: float
    busy_fraction: float
    replicas: int
    parts: tuple[Outcome, ...]
    run: FleetRun | None = None
    """The run behind a router; None if the replicas were simulated separately."""
    assumptions: tuple[Assumption, ...] = ()
    hit_fractions: dict[str, float] = field(default_factory=dict)
    """Fraction of prompt tokens that hit on the device and in each offload tier."""
    kv_blocks: int = 0
    """KV blocks of all replicas; under autoscaling, of the maximum number of replicas."""
    tokens_per_step: float = 1.0
    """Mean tokens per sequence and decode step: above 1 under speculation."""
    target_values: Mapping[Target, float] = field(default_factory=dict)
    """Values of the targets that were asked for [s]."""
    undecided: int = 0
    """Requests in flight when the run was stopped, whose latencies are unknown."""

    def value(self, target: Target) -> float:
        """Return the value that a target limits; requests without a response count as `capplan.fleet.search.target_values` says."""
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
) -> list[tuple[Requests | None, Crowd | None]]:
    """Return the requests and users of each replica; users stay with their replica, and idle replicas are left out."""
    requests: Sequence[Requests | None] = [None] * replicas
    crowds: list[Crowd | None] = [None] * replicas
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
    in a steady state; with all requests at once, prefill would come first and completions in a burst.
    """
    offered = replace(requests.part(0, CAPACITY_REQUESTS), arrival_s=None, block_ids=None, block_counts=None)
    offered = replace(offered, output_ids=None, output_counts=None)
    clients = max(1, min(engine.scheduling.max_num_seqs, len(offered) // 4))
    return middle_rate(simulate(offered, replace(engine, caching=None), concurrency=clients))


def middle_rate(outcome: Outcome) -> float:
    """Return finished requests per second over the middle half of the completions."""
    ends = np.sort((outcome.arrival_s + outcome.e2e_s)[outcome.finished])
    low, high = ends.size // 4, max(3 * ends.size // 4, ends.size // 4 + 1)
    if ends.size < 4 or ends[high] <= ends[low]:
        return outcome.requests_per_s
    return float((high - low) / (ends[high] - ends[low]))


def goodput_limits(slo: Slo) -> dict[str, float]:
    """Return the latency limits that count for goodput: per metric the loosest of its targets [s].

    Examples
    --------
    >>> goodput_limits(Slo((Target("ttft", "p95", 0.8), Target("ttft", "p99", 2.0))))
    {'ttft_s': 2.0, 'tpot_s': inf, 'e2e_s': inf}
    """
    return {
        f"{metric}_s": max((t.limit_s for t in slo.targets if t.metric == metric), default=inf)
        for metric in LIMITED
    }


def simulated_fleet(
    replica: Replica,
    stream: Stream,
    *,
    replicas: int = 1,
    slo: Slo,
    until_s: float = inf,
    admission: Admission | None = None,
    warm_share: float = 0.0,
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
    warm_share : [-]
        fraction of the requests, in order of arrival, that latencies leave out as warm-up
    use : options of the engines

    Returns
    -------
    latencies [s], rates [1/s], by class and overall
    """
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
    outcome = fleet_outcome(parts, stream.class_names, slo, warm_share, until_s)
    return replace(outcome, **simulation_summary(engines, outcome, parts, replicas))


_COLUMNS = ("status", "queue_s", "ttft_s", "tpot_s", "e2e_s", "output_tokens", "class_index", "arrival_s")


def fleet_outcome(
    parts: Sequence[Outcome],
    class_names: Sequence[str],
    slo: Slo,
    warm_share: float = 0.0,
    until_s: float = inf,
) -> FleetOutcome:
    """Return the combined results of several replicas."""
    seconds = max(part.seconds for part in parts)
    limits = goodput_limits(slo)
    met = np.concatenate([slo_met(part, **limits) for part in parts])
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    warm = np.zeros(met.size, dtype=bool)
    if warm_share > 0.0 and met.size:
        warm = columns["arrival_s"] < np.quantile(columns["arrival_s"], warm_share)
    histogram = WeightedHistogram()
    for part in parts:
        histogram.merge(part.itl)
    whole, totals = _totals(parts)
    busy_s = [part.busy_fraction * part.seconds for part in parts]
    there_s = len(parts) * seconds or 1.0
    itl_s = histogram_spread(histogram)

    def figures(rows: NDArray[np.bool_], of: ClassTotals) -> Figures:
        return _figures(columns, met, rows, warm, seconds, of)

    return FleetOutcome(
        all=figures(np.ones(met.size, dtype=bool), whole),
        classes={
            name: figures(columns["class_index"] == index, totals.get(index, ClassTotals()))
            for index, name in enumerate(class_names)
        },
        seconds=seconds,
        itl_s=itl_s,
        prefix_hit_fraction=whole.cached_tokens / whole.prompt_tokens if whole.prompt_tokens else 0.0,
        preemptions=whole.preemptions,
        kv_occupancy_mean=sum(part.kv_occupancy_mean * part.seconds for part in parts) / there_s,
        kv_occupancy_p99=max(part.kv_occupancy_p99 for part in parts),
        batch_mean=sum(part.batch_mean * busy for part, busy in zip(parts, busy_s, strict=True))
        / (sum(busy_s) or 1.0),
        busy_fraction=sum(busy_s) / there_s,
        replicas=len(parts),
        parts=tuple(parts),
        target_values=target_values(columns, ~warm, slo, until_s, itl_s),
        undecided=undecided(columns, slo, until_s),
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
        name: outcome.prefix_hit_fraction * float(count) / total if total else 0.0
        for name, count in zip(names, counts, strict=False)
    }
    return {
        "hit_fractions": hits,
        "kv_blocks": engines.setup.kv_blocks * replicas,
        "tokens_per_step": engines.setup.tokens_per_step,
        "assumptions": engines.assumptions,
    }


def _totals(parts: Sequence[Outcome]) -> tuple[ClassTotals, dict[int, ClassTotals]]:
    """Return the totals over all replicas, overall and by class."""
    cached = sum(part.cached_tokens for part in parts)
    prefilled = sum(part.prefill_tokens for part in parts)
    by_class: dict[int, ClassTotals] = {}
    for part in parts:
        for index, totals in part.class_totals.items():
            by_class.setdefault(index, ClassTotals()).add(totals)
    return ClassTotals(cached + prefilled, cached, sum(part.preemptions for part in parts)), by_class


def _figures(
    columns: dict[str, NDArray[Any]],
    met: NDArray[np.bool_],
    rows: NDArray[np.bool_],
    warm: NDArray[np.bool_],
    seconds: float,
    totals: ClassTotals,
) -> Figures:
    status = columns["status"][rows]
    finished = status == FINISHED
    count, total = int(finished.sum()), int(rows.sum())
    shed = int(np.count_nonzero(status == SHED))
    good = int(np.count_nonzero(met[rows]))
    per_s = 1.0 / seconds if seconds > 0 else 0.0
    seen = rows & ~warm
    return Figures(
        requests=total,
        finished=count,
        shed=shed,
        unfinished=total - count - shed,
        ttft_s=spread(columns["ttft_s"][seen]),
        tpot_s=spread(columns["tpot_s"][seen]),
        e2e_s=spread(columns["e2e_s"][seen]),
        queue_s=spread(columns["queue_s"][seen]),
        input_tokens_per_s=totals.prompt_tokens * per_s,
        output_tokens_per_s=float(columns["output_tokens"][rows][finished].sum()) * per_s,
        requests_per_s=count * per_s,
        goodput_requests_per_s=good * per_s,
        slo_met_fraction=good / total if total else 0.0,
        prefix_hit_fraction=totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 0.0,
        preemptions=totals.preemptions,
    )
