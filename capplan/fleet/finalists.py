"""The cheapest plans, confirmed by simulating the scenario's own traffic on them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, isfinite, sqrt

import numpy as np

from capplan.accuracy.bounded import BoundedSpread, load_interval
from capplan.accuracy.intervals import Interval, Intervals
from capplan.fleet.demand import Demand, sampled_requests
from capplan.fleet.plan import FleetPlan
from capplan.fleet.price import ChosenPrice, usd_per_million_tokens, usd_per_month
from capplan.fleet.probability import needed_ratio, within_probability
from capplan.fleet.search import Question, SizedLayout, spec_of_layout
from capplan.replica.estimate import bottleneck_of, breakdown_of
from capplan.replica.load import Load
from capplan.replica.replica import Replica, replica_of
from capplan.serving.outcome import Outcome, Spread, spread
from capplan.serving.simulator import simulate
from capplan.serving.step_clock import StepClock
from capplan.workload.slo import Target

SIMULATED_REQUESTS = 1500
WARM_SHARE = 0.15
"""Part of the simulated requests that is left out while the replica fills."""

LIGHTEST = 0.05
"""A plan that misses a target at this share of the rate of its closed form is dropped."""

FINE = 0.1
"""The largest rate is found to this share."""

SEED = 7


@dataclass(frozen=True, slots=True)
class Latencies:
    """Spreads of one simulated or computed load."""

    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    in_replica: float


def replicas_needed(rate_per_s: float, limit_per_s: float, headroom_fraction: float) -> int:
    """Return the replicas that carry a rate with headroom, spares not counted.

        n = ceil(r / (l (1 - h)))

    Parameters
    ----------
    rate_per_s : [1/s]
        r, of all requests at peak
    limit_per_s : [1/s]
        l, largest rate at which one replica holds the targets
    headroom_fraction : [-]
        h, share of l that stays unused

    Returns
    -------
    [-]
        n, at least 1

    Examples
    --------
    >>> replicas_needed(20.0, 5.0, 0.2)
    5

    References
    ----------
    Beyer et al. 2016, "Site Reliability Engineering", chapter 18 (N + 2 provisioning above measured capacity).
    """
    return max(1, ceil(rate_per_s / (limit_per_s * (1.0 - headroom_fraction)) - 1e-9))


def with_load_time(replica: Replica, demand: Demand) -> Replica:
    """Return a replica whose requests wait for their blocks from offload tiers, each for the mean time."""
    table = replica.table
    return replace(replica, table=replace(table, request_s=table.request_s + demand.load_s))


def simulated(replica: Replica, clock: StepClock, demand: Demand, rate_per_s: float, longest: int) -> Outcome:
    """Return what the replica does with the scenario's traffic at a rate."""
    requests = sampled_requests(demand, rate_per_s, SIMULATED_REQUESTS, SEED, longest, dealt=True)
    return simulate(requests, replace(replica.engine, table=clock))


def latencies_of(outcome: Outcome, rate_per_s: float) -> Latencies:
    """Return latencies after the warm-up, and the requests in the replica by Little's law."""
    warm = int(WARM_SHARE * outcome.ttft_s.size)
    whole = spread(outcome.e2e_s[warm:])
    return Latencies(
        spread(outcome.ttft_s[warm:]), spread(outcome.tpot_s[warm:]), whole, rate_per_s * whole.mean
    )


def target_value(latencies: Latencies, target: Target) -> float:
    """Return what a target limits."""
    spreads = {
        "ttft": latencies.ttft_s,
        "tpot": latencies.tpot_s,
        "itl": latencies.tpot_s,
        "e2e": latencies.e2e_s,
    }
    return float(getattr(spreads[target.metric], target.statistic))


def holds(replica: Replica, clock: StepClock, question: Question, rate_per_s: float) -> bool:
    """Return whether a simulation at a rate holds all targets with the confidence asked for."""
    outcome = simulated(replica, clock, question.demand, rate_per_s, question.max_model_len)
    latencies = latencies_of(outcome, rate_per_s)
    return all(
        target_value(latencies, target)
        * needed_ratio(
            load_interval(question.intervals, target.metric, "open", replica), question.slo.confidence
        )
        <= target.limit_s
        for target in question.slo.targets
    )


def confirmed_rate(replica: Replica, clock: StepClock, question: Question, rate_per_s: float) -> float:
    """Return the largest rate, to a tenth, at which the simulation holds the targets; 0 where none does."""
    if holds(replica, clock, question, rate_per_s):
        return rate_per_s
    low, high = LIGHTEST * rate_per_s, rate_per_s
    if not holds(replica, clock, question, low):
        return 0.0
    while high / low > 1.0 + FINE:
        middle = sqrt(low * high)
        if holds(replica, clock, question, middle):
            low = middle
        else:
            high = middle
    return low


def confirmed_plan(
    candidate: SizedLayout,
    question: Question,
    *,
    headroom_fraction: float,
    spare_replicas: int,
    prices: Mapping[str, ChosenPrice | None],
) -> FleetPlan | None:
    """Return the plan with its latencies simulated at peak, or None where simulation cannot hold the targets."""
    question = replace(question, demand=candidate.demand)
    replica = with_load_time(
        replica_of(spec_of_layout(candidate.layout, candidate.weight_dtype, question)), question.demand
    )
    clock = StepClock(replica.table)
    limit = confirmed_rate(replica, clock, question, candidate.request_rate_limit)
    if limit <= 0:
        return None
    response = candidate.response_s
    for _ in range(3):
        total = float(question.demand.request_rate_per_s(np.asarray(response)))
        busy = replicas_needed(total, limit, headroom_fraction)
        rate = total / busy
        latencies = latencies_of(
            simulated(replica, clock, question.demand, rate, question.max_model_len), rate
        )
        if isfinite(latencies.e2e_s.mean) and abs(latencies.e2e_s.mean - response) < 0.02 * response:
            break
        response = latencies.e2e_s.mean
    return _priced(candidate, question, replica, limit, busy, spare_replicas, rate, latencies, prices)


def _priced(
    candidate: SizedLayout,
    question: Question,
    replica: Replica,
    limit: float,
    busy: int,
    spares: int,
    rate: float,
    latencies: Latencies,
    prices: Mapping[str, ChosenPrice | None],
) -> FleetPlan:
    lengths = question.demand.lengths
    load = Load(int(lengths.input_tokens), int(lengths.output_tokens), request_rate=rate)
    rows = breakdown_of(replica, load, latencies.in_replica)
    price = prices.get(candidate.layout.device.name)
    replicas = busy + spares
    devices = replicas * candidate.layout.devices
    hourly = price.total_usd_per_hour * devices if price else None
    output_rate = rate * busy * float(lengths.output_tokens)
    total_rate = output_rate + rate * busy * float(lengths.input_tokens)
    tdp = candidate.layout.device.tdp_w
    chances = [
        within_probability(
            target_value(latencies, target),
            target.limit_s,
            load_interval(question.intervals, target.metric, "open", replica),
        )
        for target in question.slo.targets
    ]
    return FleetPlan(
        layout=candidate.layout,
        weight_dtype=candidate.weight_dtype,
        replicas=replicas,
        spare_replicas=spares,
        concurrency_per_replica=latencies.in_replica,
        request_rate_per_replica=rate,
        request_rate_limit_per_replica=limit,
        ttft_s=_bounded(latencies.ttft_s, "ttft", question.intervals, replica),
        tpot_s=_bounded(latencies.tpot_s, "tpot", question.intervals, replica),
        e2e_s=_bounded(latencies.e2e_s, "e2e", question.intervals, replica),
        slo_met_probability=min(chances, default=1.0),
        usd_per_hour=hourly,
        usd_per_month=float(usd_per_month(hourly)) if hourly is not None else None,
        usd_per_million_output_tokens=(
            float(usd_per_million_tokens(hourly, output_rate)) if hourly is not None else None
        ),
        usd_per_million_tokens=float(usd_per_million_tokens(hourly, total_rate))
        if hourly is not None
        else None,
        watts=tdp * devices if tdp else None,
        bottleneck=bottleneck_of(rows, load.output_tokens, latencies.in_replica),
        label=candidate.label,
        kv_cache_tokens=candidate.kv_cache_tokens,
        checked="simulated",
        price=price,
    )


def _bounded(values: Spread, quantity: str, intervals: Intervals, replica: Replica) -> BoundedSpread:
    interval: Interval = load_interval(intervals, quantity, "open", replica)
    low, high = values.mean * interval.low_ratio, values.mean * interval.high_ratio
    return BoundedSpread(values.mean, values.p50, values.p90, values.p95, values.p99, low, high)
