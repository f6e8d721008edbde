"""The fleets that serve a scenario within its budget, of one kind, of several kinds or with separate pools; and other engines that may cost less."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

from capplan.engine.lookup import ANY_OF
from capplan.errors import CapplanError
from capplan.fleet.answer import DEAR, SUREST_WITHIN, CarriedTraffic, FleetAnswer, Uneconomical
from capplan.fleet.decision import fleet_decision
from capplan.fleet.plan import Plan
from capplan.fleet.pools.search import least_usd_of_pools, pools_decision
from capplan.fleet.pools.sizing import smaller_chunks, with_certainty_of_pools, with_pools
from capplan.fleet.review import Question
from capplan.fleet.search.cheapest import Search, Terms, search_of
from capplan.fleet.search.search_cache import SearchCache
from capplan.model.parameters import is_large_mixture
from capplan.questions.fleet import AskedFleet, asked_fleet, replicas_by_group, terms_of
from capplan.questions.money.budget import carried_traffic, paid_by_mix, rented_within_budget, within_budget
from capplan.scenario.one_line import ANY


def fleet_for(
    asked: AskedFleet,
    progress: Callable[[int, int], None] | None = None,
    found: Callable[[Plan], None] | None = None,
) -> FleetAnswer:
    """Return the fleets that serve a scenario within its limits, cheapest first, and what was rejected.

    Parameters
    ----------
    asked : the question
    progress : takes how many plans are done, and all of them
    found : takes plans that the search has found so far; the answer leaves out those that cost far more than its cheapest
    """
    answer = _within_limits(asked, progress, found)
    return replace(
        answer,
        by_commitments=asked.scenario.file.commitments is not None,
        engines=engines_that_may_save(asked, answer.chosen),
    )


def _within_limits(
    asked: AskedFleet, progress: Callable[[int, int], None] | None, found: Callable[[Plan], None] | None
) -> FleetAnswer:
    terms, cache = terms_of(asked), asked.cache
    budget = asked.scenario.budget_usd_per_month
    if asked.scenario.fleet.mix != "off":
        from capplan.questions.mix import with_mix

        free = replace(asked, scenario=replace(asked.scenario, budget=None))
        answer = with_mix(free, _either_way(free, terms_of(free), progress, cache, found))
        return answer if budget is None else rented_within_budget(answer, budget)
    answer = _either_way(asked, terms, progress, cache, found)
    if budget is None:
        return answer if answer.plans or terms.max_devices is None else _carried_by_gpus(asked, answer, terms)
    if asked.scenario.file.commitments is not None:
        trials = partial(search_of, asked.question, terms, cache)
        answer = within_budget(asked.scenario, answer, trials, partial(replicas_by_group, asked))
    elif answer.chosen is None:
        over = _either_way(asked, replace(terms, max_usd_per_hour=None), progress, cache)
        least = next(iter(over.plans), None)
        usd = None if least is None else least.usd_per_month
        answer = replace(answer, over_budget=least, over_budget_usd_per_month=usd)
    usd = answer.over_budget_usd_per_month
    if usd is None or answer.over_budget is None or answer.over_budget.has_pools:
        return answer
    return replace(answer, carried=carried_traffic(asked.scenario, asked.question, terms, cache, usd))


def _carried_by_gpus(asked: AskedFleet, answer: FleetAnswer, terms: Terms) -> FleetAnswer:
    """Return an answer without a plan with how much of the traffic the allowed GPUs carry; as it is where only separate pools are allowed."""
    from capplan.questions.largest_load import LoadSearch

    pools = asked.scenario.fleet.pools
    found = None if pools is not None and pools.only else LoadSearch(asked, terms).largest(most=1.0)
    if found is None:
        return answer
    return replace(answer, carried=CarriedTraffic(found.ratio, found.plan, found.plan.usd_per_month))


SCREENED_COST = 2.0
"""Devices that cost so many times as much as the cheapest fleet, or more, are not compared where any hardware may be bought."""
FAR_DEARER = f"none of its fleets costs less than {SCREENED_COST:g} times as much as the cheapest fleet"


def _screened(
    asked: AskedFleet, terms: Terms, cache: SearchCache
) -> tuple[Question, tuple[Uneconomical, ...]]:
    """Return the question about the devices that are searched, and a line for each of the others: of any hardware those that cost far more.

    The cheapest fleet of all devices is found first, and then whether each device has one below a multiple of its cost.
    """
    question = asked.question
    if asked.scenario.file.fleet.hardware != [ANY]:
        return question, ()
    trials, sure = search_of(question, terms, cache), question.slo.confidence
    best = trials.cheapest(sure)
    cost = None if best is None else terms.usd_per_hour(best.layout, best.busy)
    if not cost:
        return question, ()
    most = SCREENED_COST * cost
    dear = [item.name for item in question.devices if not _may_cost(trials, item.name, most)]
    searched = tuple(item for item in question.devices if item.name not in dear)
    lines = tuple(Uneconomical(name, reason=FAR_DEARER) for name in dear)
    return replace(question, devices=searched), lines


def _may_cost(trials: Search, device: str, most_usd_per_hour: float) -> bool:
    """Return whether a device has a fleet below a cost, or none at any: what is in its way is then looked for."""
    mine = trials.of(device)
    if not mine or not trials.terms.priced(device):
        return True
    return trials.among(mine).cheapest(trials.question.slo.confidence, under=most_usd_per_hour) is not None


def _either_way(
    asked: AskedFleet,
    terms: Terms,
    progress: Callable[[int, int], None] | None,
    cache: SearchCache,
    found: Callable[[Plan], None] | None = None,
) -> FleetAnswer:
    """Return the fleets of identical replicas, and those with separate pools, as far as a scenario allows either."""
    limits = asked.scenario.fleet.pools
    paid = paid_by_mix(asked.scenario, partial(replicas_by_group, asked))
    if limits is not None and limits.only:
        alike = FleetAnswer((), (), 0)
    else:
        question, dear = _screened(asked, terms, cache)
        alike = fleet_decision(question, terms, progress, cache, paid, found)
        alike = replace(alike, uneconomical=(*alike.uneconomical, *dear))
    unsold = (Uneconomical(name, reason=reason) for name, reason in asked.unsold.items())
    alike = replace(alike, uneconomical=(*alike.uneconomical, *unsold))
    if limits is None:
        return alike
    least = None if alike.choices is None else alike.choices.cheapest.usd_per_hour
    worth = 1.0 if limits.screened else DEAR
    plans, searched = pools_decision(
        asked.question,
        limits,
        terms,
        progress=progress,
        cache=cache,
        most_usd_per_hour=worth * (least or inf),
    )
    if alike.chosen is not None and not limits.screened:
        chunked = smaller_chunks(asked.question, terms, alike.chosen, cache)
        searched = replace(searched, chunked=chunked)
    answer = with_pools(replace(alike, pools=searched), plans, SUREST_WITHIN)
    return with_certainty_of_pools(answer, asked.question, terms, cache)


WORTH_NAMING = 0.9
"""An engine is named if it may cost less than this times the plan that was found."""


def other_engines(scenario_engine: str) -> tuple[str, ...]:
    """Return the engines that capplan knows besides one."""
    return tuple(name for name in ANY_OF if name != scenario_engine)


def engines_that_may_save(asked: AskedFleet, plan: Plan | None) -> tuple[str, ...]:
    """Return the engines that may serve a large mixture of experts for over a tenth less than a plan, if the scenario names none.

    No plan of an engine costs less than its closed-form bound, so an engine that is not named here cannot save as much; one that is named
    may not save anything. Whether it does takes a search of its own.
    """
    file, usd = asked.scenario.file, None if plan is None else plan.usd_per_hour
    large = any(is_large_mixture(network) for network in asked.question.networks.values())
    if file.engine is not None or file.engine_version is not None or not large or not usd:
        return ()
    return tuple(
        name
        for name in other_engines(asked.scenario.engine)
        if _least_usd_per_hour(asked, name) < WORTH_NAMING * usd
    )


def _least_usd_per_hour(asked: AskedFleet, engine: str) -> float:
    """Return a closed-form lower bound on the cost of any plan of another engine [$/h]; infinite if it does not serve the scenario."""
    try:
        other = asked_fleet(replace(asked.scenario, engine=engine), offline=True)
    except CapplanError:
        return inf
    question, terms, pools = other.question, terms_of(other), other.scenario.fleet.pools
    trials = search_of(question, terms)
    bounds = [
        trials.least_usd_per_hour(device.name, question.slo.confidence)
        for device in question.devices
        if terms.priced(device.name)
    ]
    if pools is not None:
        bounds.append(least_usd_of_pools(question, pools, terms))
    return min(bounds, default=inf)
