"""A plan and what follows from it: replicas over time, and the cheapest mix of commitments."""

from dataclasses import dataclass

from capplan.assumption import Assumption
from capplan.fleet.over_time import OverTime, RateLine, fleet_over_time
from capplan.fleet.plan import FleetAnswer, FleetPlan
from capplan.fleet.scenario import Scenario
from capplan.questions.commitments import AskedMix, asked_mix
from capplan.questions.rate_line import rate_line


@dataclass(frozen=True, slots=True)
class Outlook:
    """What follows from the plans of a fleet."""

    over_time: OverTime | None = None
    """Of the recommended plan, where the load has a curve."""
    mixes: tuple[AskedMix, ...] = ()
    """Of the recommended plan first, then of the others; empty where the scenario names no commitments."""

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Return what the mix of the recommended plan rests on."""
        return self.mixes[0].assumptions if self.mixes else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the warnings of all mixes, each once."""
        return tuple(dict.fromkeys(text for item in self.mixes for text in item.warnings))


def plan_over_time(scenario: Scenario, plan: FleetPlan, line: RateLine | None) -> OverTime | None:
    """Return the replicas of a plan over a load curve; None without one."""
    if line is None:
        return None
    limits = scenario.fleet
    return fleet_over_time(
        plan, line, headroom_fraction=limits.headroom_fraction, start_up_s=limits.start_up_s, burst_ratio=limits.burst_ratio
    )  # fmt: skip


def outlook_of(scenario: Scenario, answer: FleetAnswer) -> Outlook:
    """Return what follows from the plans of a fleet; nothing where there is no plan."""
    chosen = answer.chosen
    if chosen is None:
        return Outlook()
    line = rate_line(scenario)
    over_time = plan_over_time(scenario, chosen, line)
    if scenario.commitments is None:
        return Outlook(over_time)
    others = [plan for plan in answer.plans if plan != chosen]
    asked = [asked_mix(scenario, plan, plan_over_time(scenario, plan, line)) for plan in (chosen, *others)]
    return Outlook(over_time, tuple(item for item in asked if item is not None))
