"""`capplan fleet`: which GPUs, how many, at what cost."""

from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.groups import grouped
from capplan.cli.kinds import fraction

Hardware = Annotated[
    list[str] | None,
    typer.Option("--hardware", metavar="NAME", help="Devices instead of the scenario's; repeatable."),
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
    to: o.Output,
) -> int:
    """Find the cheapest fleet that serves a scenario, with the runners-up and what was rejected; -o plan.json keeps the plan."""
    from capplan.fleet.over_time import fleet_over_time
    from capplan.questions.fleet import asked_fleet, fleet_for
    from capplan.questions.overrides import settings_of
    from capplan.questions.rate_line import rate_line
    from capplan.questions.scenario import read_scenario
    from capplan.report.answers.fleet import fleet_answer
    from capplan.report.show import row_progress, show

    changed = settings_of(hardware, confidence, settings)
    asked = asked_fleet(read_scenario(scenario, changed), offline=offline)
    limits = asked.scenario.fleet
    with row_progress("plans") as progress:
        answer = fleet_for(asked, progress)
    line = rate_line(asked.scenario) if answer.chosen else None
    over_time = None
    if answer.chosen and line:
        over_time = fleet_over_time(
            answer.chosen, line, headroom_fraction=limits.headroom_fraction, start_up_s=limits.start_up_s,
            burst_ratio=limits.burst_ratio,
        )  # fmt: skip
    return show(fleet_answer(asked, answer, over_time, changed), to)
