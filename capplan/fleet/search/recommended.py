"""The recommended fleet: the surest of those that cost about as much as the cheapest."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import partial
from math import floor, inf

from capplan.fleet.plan import FleetPlan, cost_of
from capplan.fleet.search.cheapest import LayoutName, Search, Sized, Terms
from capplan.fleet.search.confirmed import confirmed, met_probability, plan_of
from capplan.fleet.search.layouts import CONFIDENCES, rate_slack

SMALL_EXTRA = 1.05
"""A plan that costs less than this times as much as the cheapest is recommended ..."""
CLEARLY_SURER = 0.05
"""... if its probability to meet the targets is higher by at least this."""
DEAR = 4.0
"""A device whose best plan costs more than this times the cheapest plan is a line of text, not a row of the table."""
TIGHT_SHARE = 0.1
"""A recommended plan that uses less than this fraction of the throughput of its GPUs is shown with the target that decides."""

Pair = tuple[Sized, FleetPlan]


def rank(fleet: Sized, terms: Terms) -> tuple[float, int, int, str]:
    """Return the sort key of sized layouts: cost if known, then GPUs."""
    hourly = terms.hourly(fleet.trial.candidate.layout.device.name)
    cost = inf if hourly is None else hourly * fleet.gpus
    return cost, fleet.gpus, fleet.busy, fleet.trial.candidate.layout.in_words("")


def by_cost(pair: Pair) -> tuple[float, int, float]:
    """Return the sort key of plans: cost if known, then GPUs, then certainty."""
    plan = pair[1]
    cost = inf if plan.usd_per_hour is None else plan.usd_per_hour
    return cost, plan.gpus, -plan.slo_met_probability


def surest_within(pairs: Sequence[Pair], terms: Terms, ratio: float) -> FleetPlan:
    """Return the surest plan for at most `ratio` times the cost of the first; replicas may be added up to that cost."""
    cheapest = pairs[0][1]
    best = cheapest
    for fleet, plan in pairs:
        if (plan.usd_per_hour is None) != (cheapest.usd_per_hour is None):
            continue
        each = cost_of(plan) / plan.replicas
        most = floor(ratio * cost_of(cheapest) / each + 1e-9) - terms.spare_replicas
        limit = terms.most_devices(plan.layout.device.name)
        if limit < inf:
            most = min(most, int(limit) // plan.layout.devices - terms.spare_replicas)
        if most < fleet.busy:
            continue
        top = met_probability(fleet.trial, most)
        if top <= best.slo_met_probability + 0.01:
            continue
        numbers = range(fleet.busy, most)  # more replicas are never less sure
        busy = fleet.busy + bisect_left(numbers, top - 0.01, key=partial(met_probability, fleet.trial))
        gpus = (busy + terms.spare_replicas) * plan.layout.devices
        best = plan_of(Sized(fleet.trial, busy, gpus), terms)
    return best


def recommended(pairs: Sequence[Pair], terms: Terms) -> tuple[FleetPlan, str]:
    """Return the recommended plan and why.

    Parameters
    ----------
    pairs : at least one, cheapest first, with all that cost less than SMALL_EXTRA times as much
    terms : prices

    Returns
    -------
    the cheapest, unless another costs under 5 % more and is at least 5 points surer to meet its targets
    """
    cheapest = pairs[0][1]
    if not pairs[0][0].trial.limits:
        return cheapest, "it is the cheapest; no target could be missed"
    near = [pair for pair in pairs if _about_as_cheap(pair[1], cheapest)]
    plans = [plan for _, plan in near] + [surest_within(near, terms, SMALL_EXTRA)]
    best = max(
        (plan for plan in plans if _about_as_cheap(plan, cheapest)), key=lambda plan: plan.slo_met_probability
    )
    if best.slo_met_probability >= cheapest.slo_met_probability + CLEARLY_SURER:
        extra = cost_of(best) / cost_of(cheapest) - 1.0
        gain = 100.0 * (best.slo_met_probability - cheapest.slo_met_probability)
        return best, f"it costs {extra:.1%} more than the cheapest and is {gain:.0f} points surer"
    return cheapest, "it is the cheapest, and none that costs under 5 % more is clearly surer"


def _about_as_cheap(plan: FleetPlan, cheapest: FleetPlan) -> bool:
    same = (plan.usd_per_hour is None) == (cheapest.usd_per_hour is None)
    return same and cost_of(plan) < SMALL_EXTRA * cost_of(cheapest)


def best_plan(trials: Search, fleet: Sized) -> Sized:
    """Return the surest of the layouts of a device that need as few GPUs as its best; the same whatever other devices there are."""
    ties = trials.as_many(fleet, trials.question.slo.confidence)
    if len(ties) < 2 or not fleet.trial.limits:
        return fleet
    return min(
        ties, key=lambda other: (-met_probability(other.trial, other.busy), rank(other, trials.terms)[2:])
    )


def used_fraction(fleet: Sized, trials: Search) -> float:
    """Return the throughput of a fleet under the targets over the largest throughput of its GPUs without any target."""
    mine, slack = fleet.trial.candidate.layout, rate_slack(trials.question)
    most = max(
        other.share_ceiling / slack / other.layout.devices
        for other in trials.candidates
        if other.layout.device.name == mine.device.name
    )
    return 1.0 / (fleet.busy * mine.devices * most)


def near_cheapest(trials: Search, likely: LayoutName | None) -> list[Pair]:
    """Return the plans that `recommended` chooses from, cheapest first, without the rest of a fleet's answer; empty if none.

    The `likely` layout is sized first, which changes no answer, only how soon others are left out.
    """
    terms, confidence = trials.terms, trials.question.slo.confidence
    first = trials.cheapest(confidence, likely=likely)
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
    return sorted((pair for pair in (confirmed(fleet, terms) for fleet in fleets) if pair), key=by_cost)


def _surer_for_less(trials: Search, first: Sized) -> Sized | None:
    """Return a surer fleet that costs less: users are simulated anew at each slowness, with separate noise."""
    terms, least = trials.terms, trials.question.slo.confidence
    users = any(fleet.demand.users for fleet in trials.candidates)
    surer = [trials.cheapest(level) for level in CONFIDENCES if level > least] if users else []
    less = [fleet for fleet in surer if fleet and rank(fleet, terms)[0] < rank(first, terms)[0]]
    return min(less, key=lambda fleet: rank(fleet, terms)[:2], default=None)
