"""The layout whose cheapest mix of commitments costs least, among all layouts of a search."""

from collections.abc import Callable
from math import inf

import numpy as np

from capplan.fleet.over_time import RateLine
from capplan.fleet.plan import FleetPlan
from capplan.fleet.price import usd_per_month
from capplan.fleet.scenario import Scenario
from capplan.fleet.search.cheapest import Search, Sized, busy_bound
from capplan.fleet.search.confirmed import plan_of
from capplan.fleet.search.layouts import ScreenedLayout
from capplan.money.commitments import least_usd_per_hour
from capplan.questions.money.commitments import asked_mix, offers_for
from capplan.readers.catalogue.prices import records_of


def cheapest_by_mix(
    scenario: Scenario, trials: Search, line: RateLine | None, under_usd_per_month: float = inf
) -> tuple[FleetPlan, float] | None:
    """Return the plan of the cheapest mix, and what it costs a month [$]; None where none costs less than that.

    Parameters
    ----------
    scenario : with commitments
    trials : of its layouts, without a budget: the price of `prices.commitment` says nothing about a mix
    line : load curve; None: every replica runs at all hours
    under_usd_per_month : [$/month]
    """
    confidence, plans = trials.question.slo.confidence, dict[int, FleetPlan]()

    def paid(sized: Sized) -> float:
        plans[id(sized)] = plan_of(sized, trials.terms)
        asked = asked_mix(scenario, plans[id(sized)], line)
        return inf if asked is None else float(usd_per_month(asked.mix.usd_per_hour))

    least = least_usd_per_month(scenario, trials, line)
    found = trials.cheapest_paid(confidence, least, paid, under_usd_per_month)
    return None if found is None else (plans[id(found[0])], found[1])


def least_usd_per_month(
    scenario: Scenario, trials: Search, line: RateLine | None
) -> Callable[[ScreenedLayout], float]:
    """Return a lower bound on what a layout costs a month by any mix [$], from the closed form of the load that its replicas carry."""
    terms, demand, confidence = trials.terms, trials.question.demand, trials.question.slo.confidence
    records, _ = records_of(scenario)
    devices = {candidate.layout.device.name: candidate.layout.device for candidate in trials.candidates}
    offers = {name: offers_for(scenario, device, records)[0] for name, device in devices.items()}
    peak = sum(demand.rates_per_s(0.0))
    scaling = scenario.commitments
    assert scaling is not None
    most = scaling.max_replicas or inf

    def least(candidate: ScreenedLayout) -> float:
        predicted = candidate.share_bound * (1.0 - terms.headroom_fraction)
        share = min(predicted, candidate.sure_share_bounds[confidence])
        if demand.users or share <= 0.0:
            return 0.0 if demand.users else inf
        if line is None:
            running = busy_bound(candidate, confidence, terms)
        else:
            needed = line.rates_per_s / (share * peak)
            running = float(np.clip(needed, scaling.min_replicas, max(most, scaling.min_replicas)).mean())
        layout = candidate.layout
        hourly = least_usd_per_hour(
            running + terms.spare_replicas, offers[layout.device.name], layout.devices
        )
        return float(usd_per_month(hourly))

    return least
