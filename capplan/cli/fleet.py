"""`capplan fleet`: which GPUs, how many, at what cost."""

from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.completion import devices
from capplan.cli.groups import grouped
from capplan.cli.kinds import fraction

Hardware = Annotated[
    list[str] | None,
    typer.Option(
        "--hardware",
        metavar="NAME",
        help="Devices instead of the scenario's; repeatable.",
        autocompletion=devices,
    ),
]
Confidence = Annotated[
    float | None,
    fraction("--confidence", says="Probability with which all targets must be met, such as 90%."),
]


@grouped
def command(
    *,
    scenario: o.Scenario,
    hardware: Hardware = None,
    confidence: Confidence = None,
    settings: o.Settings = None,
    offline: o.Offline = False,
    picture: o.Picture = None,
    to: o.Output,
) -> int:
    """Find the cheapest fleet that serves a scenario, with the runners-up and what was rejected; -o plan.json keeps the plan."""
    from capplan.questions.fleet import asked_fleet, fleet_for
    from capplan.questions.outlook import outlook_of
    from capplan.questions.price_age import current_day
    from capplan.report.answers.fleet import fleet_answer
    from capplan.report.charts.fleet import fleet_charts
    from capplan.report.charts.picture import chart_picture
    from capplan.report.show import row_progress, show, shown_anyway
    from capplan.scenario.overrides import settings_of
    from capplan.scenario.scenario import read_scenario

    changed = settings_of(hardware, confidence, settings)
    asked = asked_fleet(read_scenario(scenario, changed), offline=offline)
    with row_progress("plans") as progress:
        answer = fleet_for(asked, progress)
    outlook = outlook_of(asked, answer, current_day())
    found = fleet_answer(asked, answer, outlook, changed)
    if picture and (charts := fleet_charts(answer, outlook)):
        with shown_anyway(found, to):
            chart_picture(picture, charts)
    return show(found, to)
