"""How much of its traffic a scenario can serve within its budget, where the budget does not pay for all of it."""

from collections.abc import Callable
from dataclasses import replace

from capplan.fleet.load.demand import Demand, demand_of
from capplan.fleet.over_time import RateLine
from capplan.fleet.plan import CarriedTraffic, FleetPlan
from capplan.fleet.price import most_usd
from capplan.fleet.question import Question
from capplan.fleet.scenario import Scenario
from capplan.fleet.search.cheapest import Search, Terms
from capplan.fleet.search.confirmed import plan_of
from capplan.fleet.search.layouts import search
from capplan.fleet.search.search_cache import SearchCache
from capplan.questions.money.mixed_search import cheapest_by_mix
from capplan.scenario.rate_line import rate_line
from capplan.workload.request_class import RequestClass, busier

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
    budget = scenario.budget_usd_per_month
    assert budget is not None
    line = rate_line(scenario)

    def served(parts: int) -> tuple[FleetPlan, float] | None:
        share = parts / PARTS
        asked = replace(question, demand=_part_of(question.demand, scenario, share))
        trials = Search(asked, search(asked).candidates, terms, cache)
        if scenario.commitments is not None:
            return cheapest_by_mix(scenario, trials, _line_part(line, share), most_usd(budget))
        sized = trials.cheapest(question.slo.confidence)
        plan = None if sized is None else plan_of(sized, terms)
        return None if plan is None or plan.usd_per_month is None else (plan, plan.usd_per_month)

    parts, found = most_parts(served, int(PARTS * budget / usd_per_month))
    return None if found is None else CarriedTraffic(parts / PARTS, *found)


def most_parts(
    served: Callable[[int], tuple[FleetPlan, float] | None], guess: int
) -> tuple[int, tuple[FleetPlan, float] | None]:
    """Return the most parts that are served, and by what; tried around a guess, with strides that double, then by halves."""
    low, high, stride = 0, PARTS, 1
    best: tuple[FleetPlan, float] | None = None
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
    classes = tuple(_class_part(item, share) for item in demand.classes)
    return demand_of(replace(scenario, classes=classes))


def _class_part(item: RequestClass, share: float) -> RequestClass:
    """Return a class with a share of its traffic, with whole users where it has any."""
    part = busier(item, share)
    return part if part.users is None else replace(part, users=max(float(round(part.users)), 1.0))


def _line_part(line: RateLine | None, share: float) -> RateLine | None:
    return None if line is None else replace(line, rates_per_s=line.rates_per_s * share)
