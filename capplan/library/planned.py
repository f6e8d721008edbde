"""What `capplan fleet` answers: one fleet with its charts, or those of several models."""

import os
from collections.abc import Callable, Sequence

from capplan.errors import InputError
from capplan.fleet.scenario import SharingTerms
from capplan.questions.fleet import asked_fleet, fleet_for
from capplan.questions.money.price_check import current_day
from capplan.questions.outlook import outlook_of
from capplan.questions.several_models import PartsAsked, cascade_for, sharing_for
from capplan.report.answer import Answer
from capplan.report.answers.fleet import fleet_answer
from capplan.report.answers.several_models import cascade_answer, sharing_answer
from capplan.report.charts.of_answers import fleet_charts
from capplan.report.charts.records import Chart
from capplan.scenario.scenario import read_scenario


def planned(
    path: str | os.PathLike[str],
    settings: Sequence[str],
    progress: Callable[[int, int], None] | None = None,
    *,
    pictured: bool,
    offline: bool,
) -> tuple[Answer, list[Chart]]:
    """Return the fleets that serve a scenario, and their charts.

    Parameters
    ----------
    path : of the scenario
    settings : keys that are overridden, each KEY=VALUE
    progress : of each search; called with the plans that are done, and all of them
    pictured : whether charts are asked for, which only one fleet has
    offline : never open a connection
    """
    scenario = read_scenario(path, settings)
    if scenario.several is not None:
        if pictured:
            raise InputError(f"--plot: draws one fleet, and {scenario.path} has several")
        parts = PartsAsked(path, tuple(settings), current_day(), progress, offline)
        if isinstance(scenario.several, SharingTerms):
            return sharing_answer(sharing_for(parts)), []
        return cascade_answer(cascade_for(parts)), []
    asked = asked_fleet(scenario, offline=offline)
    answer = fleet_for(asked, progress)
    outlook = outlook_of(asked, answer, current_day())
    return fleet_answer(asked, answer, outlook, settings), fleet_charts(answer, outlook)
