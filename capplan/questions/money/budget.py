"""A budget against what a plan is really paid, and how much of its traffic a scenario can serve within it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.fleet.answer import CarriedTraffic, Certainty, Choices, FleetAnswer, Uneconomical
from capplan.fleet.load.demand import Demand, demand_of
from capplan.fleet.over_time import RateLine, ReplicasAt
from capplan.fleet.plan import Plan, whole_gpus
from capplan.fleet.review import Question
from capplan.fleet.search.candidates import Rejection
from capplan.fleet.search.cheapest import OVER_BUDGET, Search, Terms, search_of
from capplan.fleet.search.recommended import Paid, plan_of
from capplan.fleet.search.search_cache import SearchCache
from capplan.model.network import Network
from capplan.model.parameters import weight_bytes
from capplan.money.hosted import hosted_traffic, tokens_of
from capplan.money.ledger import service_entries
from capplan.money.price import HOURS_PER_MONTH, most_usd, usd_per_month
from capplan.questions.money.commitments import asked_mix, cheapest_by_mix
from capplan.scenario.scenario_file import Scenario
from capplan.scenario.traffic import rate_line
from capplan.workload.request_class import RequestClass, with_scaled_rate


def budgeted(
    scenario: Scenario, demand: Demand, networks: Mapping[str, Network]
) -> tuple[Scenario, tuple[Assumption, ...]]:
    """Return a scenario with what its budget leaves for machines, by the lines of its total cost, and what that assumes.

    Users ask most if no response takes any time, and of several weight formats the largest checkpoint is kept, so no plan
    costs more than the budget. Egress may leave nothing for machines: then the budget pays for a share of the traffic at most.

    Parameters
    ----------
    scenario : with the budget as it is stated
    demand : whose output leaves the provider
    networks : of the checkpoints that may be kept
    """
    budget, own = scenario.budget, scenario.file.prices
    if budget is None or not budget.includes:
        return scenario, ()
    traffic = tuple(hosted_traffic(item, 0.0) for item in demand.classes)
    inputs, outputs = tokens_of(traffic, HOURS_PER_MONTH)
    entries = service_entries(own, 1.0, inputs, outputs, max(map(weight_bytes, networks.values())), 1.0)
    known = replace(budget, entries=tuple(entry for entry in entries if entry.kind in budget.includes))
    names = " and ".join(budget.includes)
    if known.machines_usd_per_month(0.0) <= 0.0:
        raise InputError(
            f"{scenario.path}: budget.includes: {names} cost more than the budget of ${budget.usd_per_month:,.0f}, "
            "which leaves nothing for machines"
        )
    what = f"the budget of ${budget.usd_per_month:,.0f} per month includes {names}, which leaves {known.left_text()} for machines"
    return replace(scenario, budget=known), (Assumption(what, "budget.includes"),)


GroupsAt = Callable[[Plan], Sequence[ReplicasAt]]
"""A plan -> what finds the replicas of each of its groups at another request rate."""


def mix_usd_per_month(
    scenario: Scenario, plan: Plan, line: RateLine | None, replicas_at: Sequence[ReplicasAt]
) -> float | None:
    """Return the cost of a plan by its cheapest mix under a load curve [$]; None where no commitments are named."""
    asked = asked_mix(scenario, plan, line, replicas_at)
    return None if asked is None else float(usd_per_month(asked.mix.usd_per_hour))


def paid_by_mix(scenario: Scenario, groups_at: GroupsAt) -> Paid | None:
    """Return what finds the monthly cost of a plan by its cheapest mix [$]; None where no commitments are named."""
    if scenario.file.commitments is None:
        return None
    return lambda plan: (
        mix_usd_per_month(scenario, plan, rate_line(scenario, plan.responses_s), groups_at(plan)) or 0.0
    )


def mix_within_budget(scenario: Scenario, groups_at: GroupsAt) -> Callable[[Plan], bool]:
    """Return whether the cheapest mix of a plan is within the budget; any is where no budget or no commitments are stated."""
    budget, paid = scenario.budget_usd_per_month, paid_by_mix(scenario, groups_at)
    if budget is None or paid is None:
        return lambda _: True
    return lambda plan: paid(plan) <= most_usd(budget)


def mixed_plan(scenario: Scenario, trials: Search) -> Plan | None:
    """Return the plan of the cheapest mix within the budget, of all layouts; None without a budget or commitments, or where none is."""
    budget = scenario.budget_usd_per_month
    if budget is None or scenario.file.commitments is None:
        return None
    found = cheapest_by_mix(scenario, trials, rate_line(scenario), most_usd(budget))
    return None if found is None else found[0]


def within_budget(
    scenario: Scenario, answer: FleetAnswer, trials: Callable[[], Search], groups_at: GroupsAt
) -> FleetAnswer:
    """Return an answer without the plans whose cheapest mix of commitments is over the budget.

    Where none of them is within it, every layout is looked at: one with more devices may have the cheaper mix.

    Parameters
    ----------
    scenario : with a budget and commitments
    answer : of a search without a budget, for the price of `prices.commitment` says nothing about a mix
    trials : the search that it is from
    groups_at : a plan -> what finds its replicas at other rates

    Returns
    -------
    FleetAnswer; where no plan is left, `over_budget` is the one of the cheapest mix
    """
    if not answer.plans:
        return answer
    affordable, line = mix_within_budget(scenario, groups_at), rate_line(scenario)
    left = _affordable(answer, affordable, "mix of commitments")
    if left.chosen is not None:
        return left
    paid = [mix_usd_per_month(scenario, plan, line, groups_at(plan)) or 0.0 for plan in answer.plans]
    best, least = min(zip(answer.plans, paid, strict=True), key=lambda pair: pair[1])
    found = cheapest_by_mix(scenario, trials(), line, least) if answer.alike else None
    if found is not None and affordable(found[0]):
        why = "its mix of commitments is the cheapest of all layouts"
        best = found[0]
        lines = tuple(row for row in left.uneconomical if row.hardware != best.hardware)
        return replace(left, plans=(best,), choices=Choices(best, best, best, best, why), uneconomical=lines)
    best, least = found or (best, least)
    return replace(left, over_budget=best, over_budget_usd_per_month=least)


def rented_within_budget(answer: FleetAnswer, usd_per_month: float) -> FleetAnswer:
    """Return an answer without the plans that cost more than a budget; where none is left, `over_budget` is the cheapest of them."""

    def within(row: Plan | Certainty) -> bool:
        return (row.usd_per_month or inf) <= most_usd(usd_per_month)

    certainty = (
        row if within(row) else Certainty(row.confidence, None, None, None) for row in answer.certainty
    )
    left = _affordable(replace(answer, certainty=tuple(certainty)), within, "price")
    least = next(iter(answer.plans), None)
    if left.chosen is not None or least is None:
        return left
    return replace(left, over_budget=least, over_budget_usd_per_month=least.usd_per_month)


def _affordable(answer: FleetAnswer, affordable: Callable[[Plan], bool], what: str) -> FleetAnswer:
    """Return an answer without the plans that cost too much, whose costs are called by a word."""
    kept = tuple(plan for plan in answer.plans if affordable(plan))
    choices = answer.choices
    left = replace(
        answer,
        plans=kept,
        choices=_affordable_choices(choices, kept, affordable, what) if kept and choices else None,
        rejected=(*answer.rejected, *_dropped(answer.plans, kept)),
        uneconomical=(*answer.uneconomical, *_over_budget(answer.alike, kept, what)),
    )
    return left if left.chosen == answer.chosen else replace(left, tight=None, next_steps=None)


def _affordable_choices(
    choices: Choices, kept: Sequence[Plan], affordable: Callable[[Plan], bool], what: str
) -> Choices:
    """Return the choices among the plans that are left, at least one."""
    best, why = kept[0], f"it is the cheapest of those whose {what} is within the budget"
    if affordable(choices.recommended):
        best, why = choices.recommended, choices.why
    surest: Plan = max(kept, key=lambda plan: plan.slo_met_probability)
    if affordable(choices.surest):
        surest = choices.surest
    return Choices(kept[0], surest, min(kept, key=whole_gpus), best, why)


def _over_budget(plans: Sequence[Plan], kept: Sequence[Plan], what: str) -> tuple[Uneconomical, ...]:
    """Return the lines of devices that have no plan left."""
    left = {plan.hardware for plan in kept}
    reason = f"the {what} of each of its plans is over the budget"
    names = dict.fromkeys(plan.hardware for plan in plans if plan.hardware not in left)
    return tuple(Uneconomical(name, reason=reason) for name in names)


def _dropped(plans: Sequence[Plan], kept: Sequence[Plan]) -> tuple[Rejection, ...]:
    """Return the rejections of the plans that are over the budget."""
    names = Counter(plan.hardware for plan in plans if plan not in kept)
    return tuple(Rejection(name, OVER_BUDGET.words, count, OVER_BUDGET.code) for name, count in names.items())


PARTS = 100
"""The share of the traffic is found to one of so many parts."""


def carried_traffic(
    scenario: Scenario, question: Question, terms: Terms, cache: SearchCache, usd_per_month: float
) -> CarriedTraffic | None:
    """Return the largest part of the traffic that the budget pays for, each part searched like the whole; None where none is.

    Parameters
    ----------
    scenario : with a budget
    question : of the whole traffic
    terms : with the budget, unless the scenario names commitments
    cache : of the search of the whole
    usd_per_month : [$/month]
        of the cheapest plan for all of the traffic, above the budget
    """
    stated = scenario.budget
    assert stated is not None
    line = rate_line(scenario)

    def served(parts: int) -> tuple[Plan, float] | None:
        share = parts / PARTS
        budget = stated.machines_usd_per_month(share)
        asked = replace(question, demand=_part_of(question.demand, scenario, share))
        paid = (
            terms
            if terms.max_usd_per_hour is None
            else replace(terms, max_usd_per_hour=budget / HOURS_PER_MONTH)
        )
        trials = search_of(asked, paid, cache)
        if scenario.file.commitments is not None:
            part = line and replace(line, rates_per_s=line.rates_per_s * share)
            return cheapest_by_mix(scenario, trials, part, most_usd(budget))
        sized = trials.cheapest(question.slo.confidence)
        plan = None if sized is None else plan_of(sized, paid)
        return None if plan is None or plan.usd_per_month is None else (plan, plan.usd_per_month)

    fitting = stated.machines_usd_per_month() / usd_per_month if usd_per_month else 1.0
    parts, found = most_parts(served, int(PARTS * fitting))
    return None if found is None else CarriedTraffic(parts / PARTS, *found)


def most_parts(
    served: Callable[[int], tuple[Plan, float] | None], guess: int
) -> tuple[int, tuple[Plan, float] | None]:
    """Return the most parts that are served, and by what; tried around a guess, with strides that double, then by halves."""
    low, high, stride = 0, PARTS, 1
    best: tuple[Plan, float] | None = None
    at = min(max(guess, 1), PARTS - 1)
    while high - low > 1:
        found = served(at)
        low, high, best = (at, high, found) if found else (low, at, best)
        halves = low > 0 and high < PARTS
        at = (low + high) // 2 if halves else max(high - stride, 1) if low == 0 else low + stride
        at, stride = min(at, PARTS - 1), 2 * stride
    return low, best


def _part_of(demand: Demand, scenario: Scenario, share: float) -> Demand:
    """Return a share of all traffic, with the hits in prefix caches that it has."""
    classes = tuple(class_part(item, share) for item in demand.classes)
    return demand_of(replace(scenario, classes=classes))


def class_part(item: RequestClass, share: float) -> RequestClass:
    """Return a class with a share, or a multiple, of its traffic, with whole users where it has any."""
    part = with_scaled_rate(item, share)
    return part if part.users is None else replace(part, users=max(float(round(part.users)), 1.0))
