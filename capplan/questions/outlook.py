"""A plan and what follows from it: replicas over time, the cheapest mix of commitments, the fleets of the months to come."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from itertools import pairwise

import numpy as np

from capplan.assumption import Assumption
from capplan.fleet.over_time import OverTime, RateLine, ReplicasAt
from capplan.fleet.plan import FleetAnswer, Plan
from capplan.money.cash import Cash, cash_of
from capplan.money.commitments import Mix
from capplan.money.energy import Energy
from capplan.money.growth import Growth, growth_of
from capplan.money.total_cost import CostLine
from capplan.questions.fleet import AskedFleet, replicas_by_group
from capplan.questions.money.commitments import AskedMix, asked_mix, group_over_time, paid_terms
from capplan.questions.money.energy import AskedEnergy, asked_energy
from capplan.questions.money.price_check import rent_warnings
from capplan.questions.money.total_cost import total_cost
from capplan.scenario.scenario_file import Scenario
from capplan.scenario.traffic import rate_line


def asked_growth(asked: AskedFleet, plan: Plan, line: RateLine | None) -> Growth | None:
    """Return the fleets of the months to come; None where the scenario states no growth."""
    scenario = asked.scenario
    if not scenario.growth:
        return None
    replicas_at = replicas_by_group(asked, plan)
    mix = partial(_mix_of_month, scenario, line, replicas_at)
    return growth_of(plan, np.array(scenario.growth), mix, replicas_at)


def _mix_of_month(
    scenario: Scenario, line: RateLine | None, replicas_at: Sequence[ReplicasAt], ratio: float, plan: Plan
) -> Mix | None:
    """Return the cheapest mix of a month, at some times the traffic; None without commitments."""
    grown = None if line is None else replace(line, rates_per_s=line.rates_per_s * ratio)
    asked = asked_mix(scenario, plan, grown, replicas_at)
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
    if scenario.file.commitments is not None:
        what = "each month has the cheapest mix for its own load; what is reserved or owned once stays, for the load grows"
        stated.append(Assumption(what, "commitments"))
    return tuple(stated)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What follows from the plans of a fleet."""

    over_time: OverTime | None = None
    """Load of the recommended plan over the day, where the load has a curve and all replicas are alike."""
    mixes: tuple[AskedMix, ...] = ()
    """Mix of the recommended plan first, then of the others; empty where the scenario names no commitments."""
    energy: Energy | None = None
    """Energy of the recommended plan, where the scenario asks for it."""
    growth: Growth | None = None
    """Growth of the recommended plan, where the scenario states a growth."""
    assumptions: tuple[Assumption, ...] = ()
    """What all of this rests on, in addition to the plan."""
    warnings: tuple[str, ...] = ()
    cash: Cash | None = None
    """What the recommended plan pays in which month, where the scenario names commitments."""
    total: tuple[CostLine, ...] = ()
    """Every line of what the recommended plan costs; empty without a price."""
    pools_over_time: tuple[OverTime, ...] = ()
    """Load of each group over the day, where the load has a curve and the recommended plan has several groups."""
    group_names: tuple[str, ...] = ()
    """Names of these groups."""


def outlook_of(asked: AskedFleet, answer: FleetAnswer, today: date | None = None) -> Outlook:
    """Return what follows from the plans of a fleet; nothing where there is no plan. Prices are judged old by a day, if one is given."""
    scenario, chosen = asked.scenario, answer.chosen
    if chosen is None:
        return Outlook()
    line = rate_line(scenario, chosen.responses_s)
    growth = asked_growth(asked, chosen, line)
    power = asked_energy(asked, chosen) or AskedEnergy(None)
    plans = (chosen, *(plan for plan in answer.plans if plan != chosen))
    mixed = (asked_mix(scenario, plan, line, replicas_by_group(asked, plan)) for plan in plans)
    mixes = tuple(mix for mix in mixed if mix is not None)
    needs = zip(chosen.groups, replicas_by_group(asked, chosen), strict=True)
    by_group = [group_over_time(scenario, group, line, replicas_at) for group, replicas_at in needs]
    over_time = tuple(item for item in by_group if item is not None)
    return Outlook(
        over_time[0] if len(over_time) == 1 else None,
        mixes,
        power.energy,
        growth,
        assumptions=(
            *(mixes[0].assumptions if mixes else ()),
            *(growth_assumptions(scenario, growth) if growth else ()),
            *power.assumptions,
        ),
        warnings=tuple(
            dict.fromkeys(
                (
                    *(text for item in mixes for text in item.warnings),
                    *power.warnings,
                    *(rent_warnings(chosen, today) if today else ()),
                )
            )
        ),
        cash=asked_cash(scenario, mixes[0].mix, growth) if mixes else None,
        total=total_cost(asked, chosen, mixes[0].mix if mixes else None),
        pools_over_time=over_time if len(over_time) > 1 else (),
        group_names=chosen.group_names,
    )


CASH_MONTHS = 12
"""Months to look ahead where the scenario states no growth."""


def asked_cash(scenario: Scenario, mix: Mix, growth: Growth | None) -> Cash | None:
    """Return what is paid in which month: by the mixes of a growth, else by today's for a year; None if every month pays alike."""
    assert scenario.file.commitments is not None
    mixes = growth.mixes if growth is not None else (mix,) * CASH_MONTHS
    terms = paid_terms(scenario.file.commitments, mixes)
    return cash_of(mixes, terms) if terms else None
