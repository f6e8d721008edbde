"""Plans from sized layouts: latencies and probabilities at the peak, and the recommended one, the surest of those that cost about as much as the cheapest."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

from capplan.accuracy.bounded import Interval, bounded_latencies, operation_interval, operation_of, served_by
from capplan.fleet.answer import CLEARLY_SURER, SMALL_EXTRA, Bought
from capplan.fleet.group import Group, Role
from capplan.fleet.load.demand import Demand
from capplan.fleet.plan import RANGE, Plan, with_cost_range
from capplan.fleet.search.cheapest import LayoutName, Search, Sized, Terms
from capplan.fleet.search.layouts import CONFIDENCES, rate_slack
from capplan.fleet.search.trial import Trial, limits_by_latency
from capplan.fleet.unit_costs import unit_costs_at_mean, usd_per_million
from capplan.money.price import HOURS_PER_MONTH, usd_per_month
from capplan.numbers import Spread
from capplan.replica.estimate import bottleneck_of, breakdown_of
from capplan.replica.load import Load
from capplan.workload.request_class import outside_use

MOST_ADDED = 16
"""Replicas, one by one, that a plan may get to reach the required confidence at its own load."""


def planned_rate_limit(
    predicted: float, sure: float, headroom_fraction: float, at_peak: float = 0.0
) -> float:
    """Return the largest request rate that a replica is planned for.

        r = max(min(r_p (1 - h), r_c), r_0)

    A simulated plan may carry a little more, because both limits rest on loads of a scale.

    Parameters
    ----------
    predicted : [req/s]
        r_p, the largest rate at which the targets are met, as predicted
    sure : [req/s]
        r_c, the same for a replica as slow as the required confidence allows for
    headroom_fraction : [-]
        h
    at_peak : [req/s]
        r_0, what a replica of the plan carries at the peak

    Returns
    -------
    [req/s]
        r

    Examples
    --------
    >>> planned_rate_limit(5.0, 4.5, 0.2)
    4.0

    References
    ----------
    docs/methodology.md, "Numbers of replicas".
    """
    return max(min(predicted * (1.0 - headroom_fraction), sure), at_peak)


def _bottleneck(sized: Sized, terms: Terms, of_time: str) -> str:
    """Return what limits a plan: the operators that a replica spends its time on, behind prefix caches where these decide the number of replicas."""
    trial, busy = sized.trial, sized.busy
    slower = trial.sure_slowness(busy)
    more_traffic = 1.0 / (1.0 - terms.headroom_fraction)
    if not trial.caches_decide(busy, 1.0, trial.limits, more_traffic) or not all(
        trial.caches_decide(busy, slower[name], own) for name, own in limits_by_latency(trial.limits).items()
    ):
        return of_time
    half = max(1, busy // 2)
    here = trial.demand_of(busy).hit_fraction
    there = trial.with_hits(1.0 / half, trial.fleet(busy).responses_s).hit_fraction
    return (
        f"prefix caches, whose hits decide the number of replicas: {here:.0%} of the prompt tokens with {busy} in service, "
        f"{'at most ' if there else ''}{there:.0%} with {half}; the time of a replica goes to {of_time}"
    )


def group_of(sized: Sized, terms: Terms, role: Role, replicas: int, **figures: Any) -> Group:
    """Return replicas of a layout with what follows from the layout and the terms; the figures are those of its requests."""
    candidate, question = sized.trial.candidate, sized.trial.question
    return Group(
        role=role,
        model=question.networks[sized.layout.weight_format].name,
        layout=sized.layout,
        weight_dtype=sized.layout.weight_format,
        replicas=replicas,
        survive=terms.survive,
        headroom_fraction=terms.headroom_fraction,
        kv_cache_tokens=candidate.kv_cache_tokens,
        label=candidate.label,
        price=terms.prices.get(sized.hardware),
        **figures,
    )


def plan_at_peak(
    groups: tuple[Group, ...],
    usd_per_hour: float | None,
    demand: Demand,
    responses_s: tuple[float, ...],
    spreads: tuple[Spread[float], Spread[float], Spread[float]],
    intervals: Mapping[str, Interval],
    tokens_per_s: tuple[float, float],
    **figures: Any,
) -> Plan:
    """Return a plan with what follows from its groups and from what its requests see at the peak.

    Parameters
    ----------
    groups : with their replicas
    usd_per_hour : of their order; None without a price
    demand : traffic of all groups
    responses_s : [s]
        mean response of each class
    spreads : TTFT, TPOT and E2E [s]
    intervals : of the means of these latencies
    tokens_per_s : output tokens, and input and output tokens [1/s]
    figures : other fields of the plan
    """
    ttft_s, tpot_s, e2e_s = bounded_latencies(*spreads, intervals)
    return Plan(
        groups=groups,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=e2e_s,
        usd_per_hour=usd_per_hour,
        usd_per_million_output_tokens=usd_per_million(usd_per_hour, tokens_per_s[0]),
        usd_per_million_tokens=usd_per_million(usd_per_hour, tokens_per_s[1]),
        money=None if usd_per_hour is None else unit_costs_at_mean(demand, usd_per_hour, responses_s),
        outside=outside_use(demand.classes, responses_s, HOURS_PER_MONTH),
        class_e2e_mean_s=responses_s if len(demand.classes) > 1 else (),
        **figures,
    )


def plan_of(sized: Sized, terms: Terms) -> Plan:
    """Return the plan, with latencies simulated at the peak."""
    trial, busy, question = sized.trial, sized.busy, sized.trial.question
    latencies, demand = trial.fleet(busy), trial.demand_of(busy)
    lengths, in_replica, each = demand.lengths, latencies.concurrency, latencies.requests_per_s
    load = Load(int(lengths.input_tokens), int(lengths.output_tokens), request_rate=each)
    rows = breakdown_of(trial.replica, load, in_replica)
    spares = terms.spares(sized.layout, busy)
    output_rate, input_rate = each * busy * demand.generated_tokens, each * busy * float(lengths.input_tokens)
    limit, sure_limit = trial.rate_limit(busy, 1.0, trial.limits), trial.sure_rate_limit(busy)
    group = group_of(
        sized,
        terms,
        "serve",
        busy + spares,
        spare_replicas=spares,
        concurrency_per_replica=in_replica,
        request_rate_per_replica=each,
        planned_request_rate_limit_per_replica=planned_rate_limit(
            limit, sure_limit, terms.headroom_fraction, each
        ),
        request_rate_limit_per_replica=limit,
        sure_request_rate_limit_per_replica=sure_limit,
        draft_tokens=trial.replica.draft_tokens,
        class_prefix_hit_fractions=demand.class_hit_fractions,
    )
    return plan_at_peak(
        (group,),
        terms.usd_per_hour(sized.layout, busy),
        demand,
        latencies.responses_s,
        (latencies.ttft_s, latencies.tpot_s, latencies.e2e_s),
        {name: latency_interval(trial, name, in_replica) for name in ("ttft", "tpot", "e2e")},
        (output_rate, output_rate + input_rate),
        prefix_hit_fraction=demand.hit_fraction,
        class_prefix_hit_fractions=demand.class_hit_fractions,
        slo_met_probability=trial.probability(busy),
        few_open_loops_measured=trial.candidate.slowness.thin,
        target_probabilities={
            target.key: trial.target_probability(busy, target) for target in question.slo.targets
        },
        bottleneck=_bottleneck(sized, terms, bottleneck_of(rows, load.output_tokens, in_replica)),
        routing=question.routing or "round_robin",
        unlike_waits=latencies.seen,
    )


@dataclass(frozen=True)
class Confirmed:
    """A sized layout that reaches the required confidence at its own load; its plan is simulated where it is asked for."""

    sized: Sized
    terms: Terms
    ranged: bool = False
    """Whether its plan states the range of its cost."""

    @cached_property
    def usd_per_hour(self) -> float | None:
        """Cost of its order; None without a price."""
        return self.terms.usd_per_hour(self.sized.layout, self.sized.busy)

    @property
    def gpus(self) -> int:
        """Devices of all replicas, with spares."""
        return self.sized.gpus

    @property
    def cost(self) -> float:
        """Dollars per hour, or GPUs where no price is known."""
        return float(self.gpus) if self.usd_per_hour is None else self.usd_per_hour

    @cached_property
    def chance(self) -> float:
        """Probability that all targets hold at the peak."""
        return self.sized.trial.probability(self.sized.busy)

    @cached_property
    def plan(self) -> Plan:
        """The plan, with latencies simulated at the peak."""
        plan = plan_of(self.sized, self.terms)
        costs = cost_range(self.sized, self.terms) if self.ranged else None
        return plan if costs is None else with_cost_range(plan, *costs)


def confirmed(fleet: Sized, terms: Terms, *, ranged: bool = False) -> Confirmed | None:
    """Return a sized layout that reaches the required confidence at its own load; None if the limits on GPUs forbid that.

    A size rests on loads of a scale, so a few replicas may be missing.
    """
    trial, confidence = fleet.trial, fleet.trial.question.slo.confidence
    layout = trial.candidate.layout
    for busy in range(fleet.busy, fleet.busy + MOST_ADDED):
        if busy > fleet.busy and (busy > terms.busy_allowed(layout) or terms.too_large(layout, busy)):
            return None
        larger = Confirmed(terms.sized(trial, busy), terms, ranged)
        if not trial.limits or larger.chance >= confidence:
            return larger
    return None


def cost_range(sized: Sized, terms: Terms) -> tuple[float, float] | None:
    """Return the monthly cost [$] of this layout if its replicas are as fast or as slow as RANGE; None without a price.

    Headroom and spares stay the same.
    """
    trial, layout = sized.trial, sized.layout
    costs = []
    for part in RANGE:
        busy = replicas_at_speed(trial, part, terms)
        hourly = terms.usd_per_hour(layout, inf if busy is None else busy)
        if hourly is None:
            return None
        costs.append(float(usd_per_month(hourly)))
    return costs[0], costs[1]


def replicas_at_speed(trial: Trial, part: float, terms: Terms) -> int | None:
    """Return the replicas that carry the peak with headroom if they are as slow as in this part of the cases; None if none do."""
    peak = trial.total_rate / (1.0 - terms.headroom_fraction)
    return trial.sure_replicas(peak, part, trial.limits)


def latency_interval(trial: Trial, quantity: str, in_flight: float) -> Interval:
    """Return the interval of the mean of a latency of a replica with some requests in flight."""
    lengths = trial.question.demand.lengths
    served = served_by(trial.replica.spec, lengths.input_tokens, lengths.output_tokens, in_flight)
    return operation_interval(trial.question.intervals, quantity, "open", operation_of(trial.replica, served))


TIGHT_SHARE = 0.1
"""A recommended plan that uses less than this fraction of the throughput of its GPUs is shown with the target that decides."""

Paid = Callable[[Plan], float]
"""A plan -> what it costs by its cheapest mix of commitments."""


def rank(fleet: Sized, terms: Terms) -> tuple[float, int, int, str]:
    """Return the sort key of sized layouts: cost if known, then GPUs."""
    layout = fleet.layout
    hourly = terms.usd_per_hour(layout, fleet.busy)
    words = replace(layout, weight_format="").in_words()
    return inf if hourly is None else hourly, fleet.gpus, fleet.busy, words


def bought_of(fleet: Sized, busy: int, terms: Terms) -> Bought:
    """Return a layout with some replicas that carry the peak, and what these cost."""
    hourly = terms.usd_per_hour(fleet.layout, busy)
    usd = None if hourly is None else float(usd_per_month(hourly))
    return Bought(fleet.hardware, terms.gpus(fleet.layout, busy), usd)


def by_cost(fleet: Confirmed) -> tuple[float, int, float]:
    """Return the sort key of plans: cost if known, then GPUs, then certainty."""
    cost = inf if fleet.usd_per_hour is None else fleet.usd_per_hour
    return cost, fleet.gpus, -fleet.chance


def surest_within(fleets: Sequence[Confirmed], terms: Terms, ratio: float) -> Confirmed:
    """Return the surest plan for at most `ratio` times the cost of the first; replicas may be added up to that cost."""
    cheapest = fleets[0]
    best = cheapest
    for confirmed_fleet in fleets:
        if (confirmed_fleet.usd_per_hour is None) != (cheapest.usd_per_hour is None):
            continue
        fleet = confirmed_fleet.sized
        layout = fleet.layout
        most = _busy_within(confirmed_fleet, terms, ratio * cheapest.cost)
        while most >= fleet.busy and terms.too_large(layout, most):
            most -= 1
        if most < fleet.busy:
            continue
        top = fleet.trial.probability(most)
        if top <= best.chance + 0.01:
            continue
        numbers = range(fleet.busy, most)  # more replicas are never less sure
        busy = fleet.busy + bisect_left(numbers, top - 0.01, key=fleet.trial.probability)
        if terms.too_large(layout, busy):
            busy = most
        best = Confirmed(terms.sized(fleet.trial, busy), terms)
    return best


def _busy_within(fleet: Confirmed, terms: Terms, cost: float) -> int:
    """Return how many replicas of a layout in addition to the spares a cost pays for, in dollars per hour or in GPUs, within its limits."""
    layout, priced = fleet.sized.layout, fleet.usd_per_hour is not None
    most = terms.most_busy(layout, cost) if priced else terms.busy_within(layout, cost)
    return int(min(most, terms.busy_allowed(layout)))


def recommended(fleets: Sequence[Confirmed], terms: Terms, paid: Paid | None = None) -> tuple[Confirmed, str]:
    """Return the recommended plan and why.

    Parameters
    ----------
    fleets : at least one, cheapest first, with all that cost less than SMALL_EXTRA times as much
    terms : prices
    paid : what a plan costs by its mix of commitments; None: what its order costs

    Returns
    -------
    the cheapest, unless another costs under 5 % more and is at least 5 points surer to meet its targets
    """
    how = " with its mix of commitments" if paid else ""

    def cost(fleet: Confirmed) -> float:
        return paid(fleet.plan) if paid else fleet.cost

    costs = [cost(fleet) for fleet in fleets]
    first = costs.index(min(costs)) if paid else 0
    cheapest, least = fleets[first], costs[first]
    if not cheapest.sized.trial.limits:
        return cheapest, f"it is the cheapest{how}; no target could be missed"

    def about_as_cheap(fleet: Confirmed, usd: float) -> bool:
        same = (fleet.usd_per_hour is None) == (cheapest.usd_per_hour is None)
        return same and (usd < SMALL_EXTRA * least or usd == least)

    known = [(fleet, usd) for fleet, usd in zip(fleets, costs, strict=True) if about_as_cheap(fleet, usd)]
    surer = surest_within([fleet for fleet, _ in known], terms, SMALL_EXTRA)
    more = [] if any(fleet is surer for fleet, _ in known) else [(surer, cost(surer))]
    best, usd = max(
        (*known, *((fleet, usd) for fleet, usd in more if about_as_cheap(fleet, usd))),
        key=lambda item: item[0].chance,
    )
    if best.chance >= cheapest.chance + CLEARLY_SURER:
        gain = 100.0 * (best.chance - cheapest.chance)
        if usd == least:
            return (
                best,
                f"it costs no more than the cheapest{how}, and its chance to meet the SLO is {gain:.0f} points higher",
            )
        return (
            best,
            f"it costs {usd / least - 1.0:.1%} more than the cheapest{how}, and its chance to meet the SLO is {gain:.0f} points higher",
        )
    return (
        cheapest,
        f"it is the cheapest{how}, and no plan that costs under 5% more has a clearly higher chance to meet the SLO",
    )


def best_plan(trials: Search, fleet: Sized) -> Sized:
    """Return the surest of the layouts of a device that need as few GPUs as its best; the same whatever other devices there are."""
    ties = trials.as_many(fleet, trials.question.slo.confidence)
    if len(ties) < 2 or not fleet.trial.limits:
        return fleet
    return min(ties, key=lambda other: (-other.trial.probability(other.busy), rank(other, trials.terms)[2:]))


def used_fraction(fleet: Sized, trials: Search) -> float:
    """Return the throughput of a fleet under the targets over the largest throughput of its GPUs without any target."""
    mine, slack = fleet.layout, rate_slack(trials.question)
    most = max(other.share_ceiling / slack / other.layout.devices for other in trials.of(fleet.hardware))
    return 1.0 / (fleet.busy * mine.devices * most)


def near_cheapest(trials: Search, likely: LayoutName | None, under: float = inf) -> list[Confirmed]:
    """Return the fleets that `recommended` chooses from, cheapest first, without the rest of a fleet's answer; empty if none.

    The `likely` layout is sized first, which changes no answer, only how soon others are left out. Nothing is sized if the
    cheapest costs `under` or more.
    """
    terms, confidence = trials.terms, trials.question.slo.confidence
    first = trials.cheapest(confidence, under, likely)
    if first is None:
        return []
    if rank(first, terms)[0] < inf:
        fleets = trials.within(SMALL_EXTRA * rank(first, terms)[0], confidence)
    else:
        names = dict.fromkeys(fleet.layout.device.name for fleet in trials.candidates)
        best = (trials.best_of(name, confidence, Counter()) for name in names)
        fleets = [best_plan(trials, fleet) for fleet in best if fleet is not None]
    surer = _surer_for_less(trials, first)
    fleets += [surer] if surer else []
    return sorted((sure for sure in (confirmed(fleet, terms) for fleet in fleets) if sure), key=by_cost)


def _surer_for_less(trials: Search, first: Sized) -> Sized | None:
    """Return a surer fleet that costs less: users are simulated again at each slowness, with separate noise."""
    terms, least = trials.terms, trials.question.slo.confidence
    users = any(fleet.demand.users for fleet in trials.candidates)
    surer = [trials.cheapest(level) for level in CONFIDENCES if level > least] if users else []
    less = [fleet for fleet in surer if fleet and rank(fleet, terms)[0] < rank(first, terms)[0]]
    return min(less, key=lambda fleet: rank(fleet, terms)[:2], default=None)
