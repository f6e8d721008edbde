"""The fleets of a scenario of several models, each asked as an ordinary scenario."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date

from capplan.assumption import Assumption
from capplan.questions.fleet import AskedFleet, asked_fleet
from capplan.questions.money.paid_plan import PaidPlan
from capplan.scenario.scenario import read_scenario
from capplan.scenario.scenario_file import Scenario


@dataclass(frozen=True, slots=True)
class PartsAsked:
    """A scenario of several models, and how it is asked."""

    path: str | os.PathLike[str]
    settings: tuple[str, ...]
    """Keys that are overridden, each KEY=VALUE."""
    today: date
    """Day that the age of prices is judged by."""
    progress: Callable[[int, int], None] | None
    """Progress of each search; called with the plans that are done, and all of them."""
    offline: bool
    """Never open a connection."""

    def scenario(self) -> Scenario:
        """Return the scenario of all models."""
        return read_scenario(self.path, self.settings)

    def part(self, *settings: str) -> AskedFleet:
        """Return the question of one fleet, which some more settings ask for."""
        return asked_fleet(read_scenario(self.path, (*self.settings, *settings)), offline=self.offline)


def assumptions_and_warnings(
    scenario: Scenario, parts: Iterable[tuple[AskedFleet, PaidPlan | None]], stated: Iterable[Assumption]
) -> tuple[tuple[Assumption, ...], tuple[str, ...]]:
    """Return the assumptions and warnings of all fleets without repeats; an idle model has no PaidPlan."""
    assumptions, warnings = [*scenario.assumptions], [*scenario.warnings]
    for asked, paid in parts:
        assumptions += [*asked.assumptions, *(paid.assumptions if paid else ())]
        warnings += [*(paid.warnings if paid else ()), *asked.warnings]
    return tuple(dict.fromkeys((*assumptions, *stated))), tuple(dict.fromkeys(warnings))
