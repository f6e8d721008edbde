"""A plan and what follows from it: replicas over time, the cheapest mix of commitments, the months to come."""

from dataclasses import dataclass

from capplan.assumption import Assumption
from capplan.fleet.money.growth import Growth
from capplan.fleet.over_time import OverTime
from capplan.fleet.plan import FleetAnswer
from capplan.fleet.scenario import Scenario
from capplan.questions.commitments import AskedMix, asked_mix
from capplan.questions.growth import asked_growth, growth_assumptions
from capplan.questions.plan_over_time import plan_over_time
from capplan.questions.rate_line import rate_line


@dataclass(frozen=True, slots=True)
class Outlook:
    """What follows from the plans of a fleet."""

    over_time: OverTime | None = None
    """Of the recommended plan, where the load has a curve."""
    mixes: tuple[AskedMix, ...] = ()
    """Of the recommended plan first, then of the others; empty where the scenario names no commitments."""
    growth: Growth | None = None
    """Of the recommended plan, where the scenario states a growth."""
    assumptions: tuple[Assumption, ...] = ()
    """What all of this rests on, beside the plan."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the warnings of all mixes, each once."""
        return tuple(dict.fromkeys(text for item in self.mixes for text in item.warnings))


def outlook_of(scenario: Scenario, answer: FleetAnswer) -> Outlook:
    """Return what follows from the plans of a fleet; nothing where there is no plan."""
    chosen = answer.chosen
    if chosen is None:
        return Outlook()
    line = rate_line(scenario)
    over_time = plan_over_time(scenario, chosen, line)
    growth = asked_growth(scenario, chosen, line)
    assumed = growth_assumptions(scenario, growth) if growth else ()
    if scenario.commitments is None:
        return Outlook(over_time, growth=growth, assumptions=assumed)
    others = [plan for plan in answer.plans if plan != chosen]
    asked = [asked_mix(scenario, plan, plan_over_time(scenario, plan, line)) for plan in (chosen, *others)]
    mixes = tuple(item for item in asked if item is not None)
    return Outlook(over_time, mixes, growth, (*mixes[0].assumptions, *assumed))
