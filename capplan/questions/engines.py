"""Other engines that may serve a scenario for clearly less, by closed-form bounds."""

from dataclasses import replace
from math import inf

from capplan.engine.lookup import ANY_OF
from capplan.errors import CapplanError
from capplan.fleet.plan import Plan
from capplan.fleet.pools.search import least_usd_of_pools
from capplan.fleet.search.candidates import is_large_mixture
from capplan.fleet.search.cheapest import search_of
from capplan.questions.fleet import AskedFleet, asked_fleet, terms_of

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
