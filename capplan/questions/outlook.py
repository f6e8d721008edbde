"""A plan and what follows from it: replicas over time, the cheapest mix of commitments, the months to come."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from capplan.assumption import Assumption
from capplan.fleet.money.energy import Energy
from capplan.fleet.money.growth import Growth
from capplan.fleet.over_time import OverTime, RateLine
from capplan.fleet.plan import FleetAnswer, FleetPlan
from capplan.fleet.scenario import Scenario
from capplan.questions.commitments import AskedMix, asked_mix
from capplan.questions.energy import AskedEnergy, asked_energy
from capplan.questions.fleet import AskedFleet
from capplan.questions.growth import asked_growth, growth_assumptions
from capplan.questions.plan_over_time import plan_over_time
from capplan.questions.price_age import rent_warnings
from capplan.questions.rate_line import rate_line


@dataclass(frozen=True, slots=True)
class Outlook:
    """What follows from the plans of a fleet."""

    over_time: OverTime | None = None
    """Of the recommended plan, where the load has a curve."""
    mixes: tuple[AskedMix, ...] = ()
    """Of the recommended plan first, then of the others; empty where the scenario names no commitments."""
    energy: Energy | None = None
    """Of the recommended plan, where the scenario asks for it."""
    growth: Growth | None = None
    """Of the recommended plan, where the scenario states a growth."""
    assumptions: tuple[Assumption, ...] = ()
    """What all of this rests on, beside the plan."""
    warnings: tuple[str, ...] = ()


def outlook_of(asked: AskedFleet, answer: FleetAnswer, today: date | None = None) -> Outlook:
    """Return what follows from the plans of a fleet; nothing where there is no plan. Prices are judged old by a day, if one is given."""
    scenario, chosen = asked.scenario, answer.chosen
    if answer.chosen_pools is not None:
        return Outlook(warnings=_left_out(scenario))
    if chosen is None:
        return Outlook()
    line = rate_line(scenario)
    growth = asked_growth(scenario, chosen, line)
    power = asked_energy(scenario, asked.question, chosen) or AskedEnergy(None)
    mixes = _mixes(scenario, (chosen, *(plan for plan in answer.plans if plan != chosen)), line)
    return Outlook(
        plan_over_time(scenario, chosen, line),
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
    )


def _left_out(scenario: Scenario) -> tuple[str, ...]:
    """Return the warning for what a scenario asks for and a plan with separate pools has no answer to."""
    given = {
        "commitments": scenario.commitments,
        "energy": scenario.power,
        "growth": scenario.growth,
        "replicas over time": any(item.hourly_rate_fractions or item.trace for item in scenario.classes),
    }
    names = ", ".join(name for name, value in given.items() if value)
    said = f"{names}: worked out for identical replicas alone; --set fleet.disaggregation=off"
    return (said,) if names else ()


def _mixes(scenario: Scenario, plans: Sequence[FleetPlan], line: RateLine | None) -> tuple[AskedMix, ...]:
    asked = [asked_mix(scenario, plan, plan_over_time(scenario, plan, line)) for plan in plans]
    return tuple(item for item in asked if item is not None)
