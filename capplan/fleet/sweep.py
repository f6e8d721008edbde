"""Plans over a range of loads, with the knee and the largest good load of each, and the layout of a plan with one thing changed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np

from capplan import __version__
from capplan.errors import Reason
from capplan.fleet.group import sized_groups
from capplan.fleet.load.demand import Demand, drawn_requests
from capplan.fleet.load.offered import SamplePath
from capplan.fleet.load.routed import Operation, run_fleet
from capplan.fleet.load.waits import waits_of
from capplan.fleet.plan import Plan
from capplan.fleet.pools.link import LinkTerms
from capplan.fleet.pools.sizing import pools_sizing
from capplan.fleet.review import Question
from capplan.fleet.search.cheapest import Terms, busy_replicas
from capplan.fleet.search.one_layout import replicas_of_layout, trial_of
from capplan.fleet.search.recommended import replicas_at_speed
from capplan.fleet.search.search_cache import SearchCache, content_key
from capplan.fleet.search.simulated_layout import demand_at_replica, with_load_time
from capplan.fleet.simulation import FleetOutcome, Stream, capacity_per_s, middle_rate, simulated_fleet
from capplan.money.price import Side, usd_per_million_tokens
from capplan.numbers import Number
from capplan.replica.estimate import closed_loop_requests
from capplan.replica.replica import Replica, replica_of
from capplan.replica.spec import ReplicaSpec, served_context_tokens
from capplan.serving.terms import Routing
from capplan.workload.request_class import SIMULATED_REQUESTS, WARM_UP_SHARE, Slo

WHAT_IF_RATIOS = tuple(2.0 ** (step / 4.0) for step in range(-8, 9))
"""Traffic over today's, from a quarter to four times."""
FEW_RATIOS = (0.5, 0.8, 1.0, 1.2, 2.0)
"""Traffic over today's where each ratio needs simulations of its own: for separate pools, and for sessions."""
Busy = tuple[int, ...]
"""Replicas in service, by group."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The fleet after one change."""

    change: str
    """Change in words, such as `-20 %`."""
    gpus: int | None
    """None: no number of replicas meets the targets."""
    usd: float | None
    """Cost of a month, or of the job; None where no price is known or no fleet is enough."""


@dataclass(frozen=True, slots=True)
class Swing:
    """One thing that may turn out otherwise, in both directions."""

    what: str
    low: Turn
    high: Turn

    @property
    def width(self) -> float:
        """Return how far apart the ends are: in dollars, in GPUs without a price, endless where an end has no fleet."""
        if self.low.gpus is None or self.high.gpus is None:
            return float("inf")
        if self.low.usd is None or self.high.usd is None:
            return float(abs(self.high.gpus - self.low.gpus))
        return abs(self.high.usd - self.low.usd)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A plan at another traffic."""

    traffic_ratio: float
    request_rate: float
    """Request rate at the peak [req/s]."""
    gpus: int
    usd: float | None
    """Cost of a month, or of the job."""


def turned(change: str, plan: Plan, busy: Busy | None, side: Side = "likely") -> Turn:
    """Return the fleet of a plan with other numbers of replicas, or at other offers.

    Parameters
    ----------
    change : in words
    plan : its layouts stay, and what it survives
    busy : replicas in service, by group; None: no number of them is enough
    side : of the offers
    """
    if busy is None:
        return Turn(change, None, None)
    groups = sized_groups(plan.groups, busy)
    known = [
        usd
        for group, count in zip(groups, busy, strict=True)
        if (usd := group.usd_per_hour_of(count, side)) is not None
    ]
    usd = plan.paid_hours * sum(known) if len(known) == len(groups) else None
    return Turn(change, sum(group.gpus for group in groups), usd)


def resized(question: Question, plan: Plan, terms: Terms, cache: SearchCache | None = None) -> Busy | None:
    """Return the replicas in service that the layouts of a plan take for a question; None if no number is enough."""
    if plan.has_pools:
        sizing = pools_sizing(question, plan, terms, cache)
        return None if isinstance(sizing, Reason) else sizing.at_confidence(question.slo.confidence)
    busy = replicas_of_layout(question, plan.single.layout, terms, cache)
    return None if busy is None else (busy,)


def busy_at_speed(
    question: Question, plan: Plan, terms: Terms, cache: SearchCache, part: float
) -> Busy | None:
    """Return the replicas in service of a plan of one layout or of pools, if all are as fast as in a part of the cases."""
    if plan.has_pools:
        sizing = pools_sizing(question, plan, terms, cache)
        return None if isinstance(sizing, Reason) else sizing.at_speed(part)
    trial = trial_of(question, plan.single.layout, terms, cache)
    busy = None if isinstance(trial, Reason) else replicas_at_speed(trial, part, terms)
    return None if busy is None else (busy,)


def by_traffic(
    question: Question, plan: Plan, terms: Terms, cache: SearchCache, ratios: Sequence[float]
) -> list[Busy | None]:
    """Return the replicas in service that a plan's layout takes at other traffic, each counted by simulation.

    A replica is simulated at a share of the traffic, so the runs of one question serve every multiple of it.

    Parameters
    ----------
    question : of today
    plan : its layout stays
    terms : headroom
    cache : runs of the same question before
    ratios : [-]
        traffic over today's

    Returns
    -------
    by ratio; None where no number of replicas is enough
    """
    trial = trial_of(question, plan.single.layout, terms, cache)
    if isinstance(trial, Reason):
        return [None] * len(ratios)
    counts = (
        busy_replicas(trial, trial.limits, question.slo.confidence, terms, traffic_ratio=ratio)
        for ratio in ratios
    )
    return [None if busy is None else (busy,) for busy in counts]


SHARES_OF_CAPACITY = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REFINEMENTS = 4
"""Loads tried between the last one that meets the targets and the first one that does not."""

Row = dict[str, Any]
Runner = Callable[[Sequence["Point"]], Iterator[tuple["Point", Row]]]


@dataclass(frozen=True, slots=True)
class DecodePool:
    """What a plan with separate pools has in addition to its prefill replicas."""

    spec: ReplicaSpec
    replicas: tuple[int, int]
    """Replicas in service: prefill, decode."""
    link: LinkTerms


@dataclass(frozen=True, slots=True)
class Contender:
    """One plan of the sweep."""

    name: str
    spec: ReplicaSpec
    """One replica of the plan; a prefill replica where the plan has separate pools."""
    usd_per_hour: float | None = None
    """Price of one replica, or of the replicas in service of both pools."""
    decode: DecodePool | None = None
    """A load is then that of both pools together."""
    planned_requests_per_s: float | None = None
    """Load that `fleet` plans for: less than a replica carries as predicted, by headroom and required confidence."""

    @property
    def devices(self) -> int:
        """Return the devices that carry a load: of one replica, or of both pools."""
        if self.decode is None:
            return self.spec.devices
        prefill, decode = self.decode.replicas
        return prefill * self.spec.devices + decode * self.decode.spec.devices


@dataclass(frozen=True, slots=True)
class Point:
    """One plan at one load: everything a worker needs, and nothing that changes from run to run."""

    contender: Contender
    demand: Demand
    slo: Slo
    seed: int
    request_rate: float | None = None
    """Open loop, requests per second of one replica."""
    concurrency: int | None = None
    """Closed loop, requests in the replica at any time."""
    routing: Routing = "round_robin"
    """Policy of the router in front of as many such replicas as the whole traffic needs."""

    @property
    def key(self) -> str:
        """Return a unique key of this point, the same in every process and run."""
        return content_key(__version__, self)


def knee(requests_per_s: Number, response_s: Number) -> int:
    """Return the index of the load at which throughput over response time is largest.

        i = argmax X / R

    Parameters
    ----------
    requests_per_s : [1/s]
        X, by load
    response_s : [s]
        R, mean from arrival to the last token

    Returns
    -------
    [-]
        i

    Examples
    --------
    >>> knee(np.array([1.0, 2.0, 2.1]), np.array([1.0, 1.5, 4.0]))
    1

    References
    ----------
    Kleinrock 1979, "Power and deterministic rules of thumb for probabilistic problems in computer communications",
    Proc. ICC 79, 43.1.1-43.1.10.
    """
    return int(np.argmax(np.asarray(requests_per_s) / np.asarray(response_s)))


@lru_cache(maxsize=8)
def _built(key: str) -> list[Replica]:
    """Return the list in which a worker caches one replica from point to point."""
    del key
    return []


def _replica(point: Point) -> Replica:
    place = _built(content_key(point.contender.spec))
    if not place:
        place.append(replica_of(point.contender.spec))
    return place[0]


def offered_rates(contender: Contender, demand: Demand, seed: int) -> list[float]:
    """Return rates from near zero up to the capacity of one replica of a plan [1/s]."""
    replica = replica_of(contender.spec)
    sample = drawn_requests(
        demand_at_replica(demand, replica), 1500, seed, served_context_tokens(contender.spec)
    )
    most = capacity_per_s(replica.engine, sample)
    return [float(f"{share * most:.3g}") for share in SHARES_OF_CAPACITY]


def point_result(point: Point) -> Row:
    """Simulate one replica of a plan at one load; runs in any process."""
    if point.contender.decode is not None:
        outcome = _outcome_of_pools(point, point.contender.decode)
        rate = middle_rate(outcome.parts[0])
        return _row(point, outcome, rate)
    replica = _replica(point)
    total = sum(point.demand.rates_per_s(0.0))
    outcome = _outcome(point, replica, (point.request_rate or total) / total)
    rate = middle_rate(outcome.parts[0])
    if point.demand.has_sessions:
        outcome = _outcome(point, replica, rate / total, outcome.all.e2e_s.mean)
        rate = middle_rate(outcome.parts[0])
    return _row(point, outcome, rate)


def _row(point: Point, outcome: FleetOutcome, rate: float) -> Row:
    """Return the figures of a load; a closed loop serves its requests in flight over the mean time of each, an open loop no more than it is offered."""
    mean_output = outcome.all.output_tokens_per_s / max(outcome.all.requests_per_s, 1e-12)
    if point.concurrency is not None and outcome.all.e2e_s.mean > 0.0:
        rate = point.concurrency / outcome.all.e2e_s.mean
    elif point.request_rate is not None:
        rate = min(rate, point.request_rate)
    hourly = point.contender.usd_per_hour
    tokens_per_s = rate * mean_output
    return {
        "plan": point.contender.name,
        "gpus": point.contender.devices,
        "request_rate": point.request_rate,
        "concurrency": point.concurrency,
        "requests_per_s": rate,
        "output_tokens_per_s": tokens_per_s,
        "output_tokens_per_s_per_gpu": tokens_per_s / point.contender.devices,
        "ttft_s": _known(asdict(outcome.all.ttft_s)),
        "tpot_s": _known(asdict(outcome.all.tpot_s)),
        "e2e_s": _known(asdict(outcome.all.e2e_s)),
        "goodput_requests_per_s": outcome.all.slo_met_fraction * rate,
        "slo_met_fraction": outcome.all.slo_met_fraction,
        "holds": not outcome.missed(point.slo),
        "usd_per_million_output_tokens": (
            float(usd_per_million_tokens(hourly, tokens_per_s)) if hourly and tokens_per_s else None
        ),
        "preemptions": outcome.all.preemptions,
    }


def _outcome(point: Point, replica: Replica, share: float, response_s: float = 0.0) -> FleetOutcome:
    """Simulate one replica with the prefix hits that its share of the traffic leaves."""
    demand = demand_at_replica(point.demand, replica, share, response_s)
    replica = with_load_time(replica, demand)
    stream = _stream(point, demand, served_context_tokens(point.contender.spec))
    return simulated_fleet(replica, stream, slo=point.slo)


def _outcome_of_pools(point: Point, decode: DecodePool) -> FleetOutcome:
    """Simulate both pools and the link between them, as the search for their plan does."""
    replica = _replica(point)
    demand = demand_at_replica(point.demand, replica)
    prefill_replicas, decode_replicas = decode.replicas
    operation = Operation(
        prefill_replicas=prefill_replicas,
        decode_replicas=decode_replicas,
        kv_link=decode.link,
        decode=replica_of(decode.spec),
    )
    stream = _stream(point, demand, served_context_tokens(point.contender.spec), split=False)
    return run_fleet(
        with_load_time(replica, demand), stream, operation, replicas=sum(decode.replicas), slo=point.slo
    )


def _stream(point: Point, demand: Demand, longest: int, *, split: bool = True) -> Stream:
    """Return the stream of one replica at the load of a point, or of a whole fleet, which is not split among replicas."""
    names = tuple(request_class.name for request_class in demand.classes)
    if point.concurrency is not None:
        clients = point.concurrency
        count = clients + closed_loop_requests(clients)
        requests = drawn_requests(demand, count, point.seed, longest)
        return Stream(
            requests,
            names,
            concurrency=clients,
            unseen_ends=clients,
            waits=waits_of(demand.classes).at_the_peak,
        )
    total = sum(demand.rates_per_s(0.0))
    share = (point.request_rate or 1.0) / total
    path = SamplePath(
        demand, count=SIMULATED_REQUESTS, seed=point.seed, longest=longest, routing=point.routing
    )
    offered = path.offered(share, replicas=1.0 / share if split else 1.0)
    return Stream(
        offered.requests,
        names,
        crowd=offered.crowd,
        warm_up_share=WARM_UP_SHARE,
        waits=waits_of(demand.classes).at_the_peak,
    )


def _known(values: Mapping[str, float]) -> dict[str, float | None]:
    return {key: value if isfinite(value) else None for key, value in values.items()}


def load_of(row: Row) -> float:
    """Return the load of a point: its rate, or its concurrency."""
    return float(row["request_rate"] if row["request_rate"] is not None else row["concurrency"])


def between(rows: Sequence[Row], *, whole: bool) -> float | None:
    """Return a load halfway between the last one that meets the targets and the first one that does not; None if there is none.

    Examples
    --------
    >>> rows = [{"request_rate": rate, "holds": rate < 2.0} for rate in (1.0, 2.0, 4.0)]
    >>> between(rows, whole=False)
    1.5
    """
    ordered = sorted(rows, key=load_of)
    held = [load_of(row) for row in ordered if row["holds"]]
    missed = [load_of(row) for row in ordered if not row["holds"] and (not held or load_of(row) > held[-1])]
    if not held or not missed:
        return None
    middle = (held[-1] + missed[0]) / 2.0
    if whole:
        middle = float(int(middle))
    return middle if held[-1] * 1.01 < middle < missed[0] else None


def swept(points: Sequence[Point], run: Runner, *, refine: bool = True) -> list[Row]:
    """Return the rows of all points, and of further loads that close in on the largest one that meets the targets."""
    rows: dict[str, list[Row]] = {}
    last: dict[str, Point] = {}

    def take(results: Iterable[tuple[Point, Row]]) -> None:
        for point, row in results:
            rows.setdefault(point.contender.name, []).append(row)
            last[point.contender.name] = point

    take(run(points))
    for _ in range(REFINEMENTS if refine else 0):
        more = []
        for name, point in last.items():
            load = between(rows[name], whole=point.concurrency is not None)
            if load is not None and point.concurrency is not None:
                more.append(replace(point, concurrency=int(load)))
            elif load is not None:
                more.append(replace(point, request_rate=float(f"{load:.4g}")))
        if not more:
            break
        take(run(more))
    order = {point.contender.name: place for place, point in enumerate(points)}
    return sorted(
        (row for of_plan in rows.values() for row in of_plan), key=lambda r: (order[r["plan"]], load_of(r))
    )


def summaries(
    rows: Sequence[Row], slo: Slo, planned: Mapping[str, float | None], *, of_users: bool = False
) -> list[Row]:
    """Return for each plan the knee, the largest load that meets the targets as predicted, and the load that `fleet` plans for.

    Parameters
    ----------
    rows : all points
    slo : its targets
    planned : [1/s]
        by plan; None or left out where no fleet was planned
    of_users : the largest load within the targets is what users send then, as in a plan, and not what they would send if
        responses took no time
    """
    result = []
    for name in dict.fromkeys(row["plan"] for row in rows):
        plan_rows = [row for row in rows if row["plan"] == name]
        means_s = [row["e2e_s"]["mean"] for row in plan_rows]  # None where no request ended
        responses_s = np.array([np.inf if mean_s is None else mean_s for mean_s in means_s])
        best = plan_rows[knee(np.array([row["requests_per_s"] for row in plan_rows]), responses_s)]
        held = [row for row in plan_rows if row["holds"]] if slo.targets else []
        top = max(held, key=lambda row: float(row["requests_per_s"]), default=None)
        largest = top and (top["requests_per_s"] if of_users and top["concurrency"] is None else load_of(top))
        result.append(
            {
                "plan": name,
                "gpus": plan_rows[0]["gpus"],
                "knee_requests_per_s": best["requests_per_s"],
                "knee_e2e_s": best["e2e_s"]["mean"],
                "knee_load": load_of(best),
                "largest_load_that_holds": largest,
                "planned_requests_per_s": planned.get(name),
                "largest_goodput_requests_per_s": top["goodput_requests_per_s"] if top else None,
                "output_tokens_per_s_per_gpu": top["output_tokens_per_s_per_gpu"]
                if top
                else best["output_tokens_per_s_per_gpu"],
                "usd_per_million_output_tokens": (top or best)["usd_per_million_output_tokens"],
                "most_requests_per_s": max(float(row["requests_per_s"]) for row in plan_rows),
            }
        )
    return result
