"""A budget against what a plan is really paid: where a scenario names commitments, its cheapest mix of them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from capplan.fleet.candidates import Rejection
from capplan.fleet.cheapest import OVER_BUDGET
from capplan.fleet.over_time import RateLine
from capplan.fleet.plan import Choices, FleetAnswer, FleetPlan
from capplan.fleet.price import usd_per_month
from capplan.fleet.scenario import Scenario
from capplan.questions.commitments import asked_mix
from capplan.questions.plan_over_time import plan_over_time
from capplan.questions.rate_line import rate_line


def mix_usd_per_month(scenario: Scenario, plan: FleetPlan, line: RateLine | None) -> float | None:
    """Return the cost of a plan by its cheapest mix under a load curve [$]; None where no commitments are named."""
    asked = asked_mix(scenario, plan, plan_over_time(scenario, plan, line))
    return None if asked is None else float(usd_per_month(asked.mix.usd_per_hour))


def mix_within_budget(scenario: Scenario) -> Callable[[FleetPlan], bool]:
    """Return whether the cheapest mix of a plan is within the budget; any is where no budget or no commitments are stated."""
    budget = scenario.budget_usd_per_month
    if budget is None or scenario.commitments is None:
        return lambda _: True
    line = rate_line(scenario)
    return lambda plan: (mix_usd_per_month(scenario, plan, line) or 0.0) <= budget


def within_budget(scenario: Scenario, answer: FleetAnswer) -> FleetAnswer:
    """Return an answer without the plans whose cheapest mix of commitments is over the budget.

    Parameters
    ----------
    scenario : with or without a budget and commitments; without one of them nothing changes
    answer : of a search without a budget, for the price of `prices.commitment` says nothing about a mix

    Returns
    -------
    FleetAnswer; where no plan is left, `over_budget` is the one of the cheapest mix
    """
    budget, choices = scenario.budget_usd_per_month, answer.choices
    if budget is None or scenario.commitments is None or choices is None:
        return answer
    affordable = mix_within_budget(scenario)
    kept = tuple(plan for plan in answer.plans if affordable(plan))
    dropped = Counter(plan.layout.device.name for plan in answer.plans if plan not in kept)
    rejected = (
        *answer.rejected,
        *(Rejection(name, OVER_BUDGET.words, count, OVER_BUDGET.code) for name, count in dropped.items()),
    )
    if not kept:
        line = rate_line(scenario)
        paid = [mix_usd_per_month(scenario, plan, line) or 0.0 for plan in answer.plans]
        least = min(paid)
        cheapest = answer.plans[paid.index(least)]
        return replace(
            answer, plans=(), choices=None, rejected=rejected, over_budget=cheapest, over_budget_usd_per_month=least
        )  # fmt: skip
    best, why = kept[0], "it is the cheapest of those whose mix of commitments is within the budget"
    if affordable(choices.recommended):
        best, why = choices.recommended, choices.why
    surest = max(kept, key=lambda plan: plan.slo_met_probability)
    if affordable(choices.surest):
        surest = choices.surest
    left = Choices(kept[0], surest, min(kept, key=lambda plan: plan.gpus), best, why)
    return replace(answer, plans=kept, choices=left, rejected=rejected)
