"""The fleets of the months to come, as a scenario's traffic grows."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from capplan.assumption import Assumption
from capplan.fleet.over_time import RateLine
from capplan.fleet.plan import Plan
from capplan.fleet.scenario import Scenario
from capplan.money.commitments import Mix
from capplan.money.growth import Growth, growth_of
from capplan.questions.money.commitments import asked_mix


def asked_growth(scenario: Scenario, plan: Plan, line: RateLine | None) -> Growth | None:
    """Return the fleets of the months to come; None where the scenario states no growth."""
    if not scenario.growth:
        return None
    mix = partial(_mix_of_month, scenario, line)
    return growth_of(plan, np.array(scenario.growth), mix)


def _mix_of_month(scenario: Scenario, line: RateLine | None, ratio: float, plan: Plan) -> Mix | None:
    """Return the cheapest mix of a month, at some times the traffic; None without commitments."""
    grown = None if line is None else replace(line, rates_per_s=line.rates_per_s * ratio)
    asked = asked_mix(scenario, plan, grown)
    return None if asked is None else asked.mix


def growth_assumptions(scenario: Scenario, growth: Growth) -> tuple[Assumption, ...]:
    """Return what the months to come rest on."""
    falls = any(later.replicas < before.replicas for before, later in pairwise(growth.months))
    kept = "; where it falls, replicas are given back whatever their term" if falls else ""
    stated = [
        Assumption(
            f"all traffic grows alike, prices stay, and the layout stays that of today's plan{kept}",
            "growth.rates",
        )
    ]
    if any(row.pool_replicas for row in growth.months):
        what = "all groups of replicas grow alike, by the load that they carry together"
        stated.append(Assumption(what, "growth.rates"))
    if scenario.commitments is not None:
        what = "each month has the cheapest mix for its own load; what is reserved or owned once stays, for the load grows"
        stated.append(Assumption(what, "commitments"))
    return tuple(stated)
