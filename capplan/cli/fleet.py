"""`capplan fleet`: which GPUs, how many, at what cost."""

from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.completion import devices
from capplan.cli.options import fraction, grouped

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

Full = Annotated[
    bool,
    typer.Option("--full", help="Show every table and assumption instead of the first screen."),
]


@grouped
def command(
    *,
    scenario: o.Scenario,
    hardware: Hardware = None,
    confidence: Confidence = None,
    calibration: o.Calibration = None,
    settings: o.Settings = None,
    offline: o.Offline = False,
    picture: o.Picture = None,
    full: Full = False,
    to: o.Output,
) -> int:
    """Find the cheapest fleet that serves a scenario, with the runners-up and what was rejected; -o plan.json keeps the plan."""
    from capplan.library.calls import planned
    from capplan.report.charts.static import chart_picture
    from capplan.report.show import row_progress, show, shown_anyway
    from capplan.scenario.reading import settings_of

    changed = settings_of(settings, hardware=hardware, confidence=confidence, calibration=calibration)
    with row_progress("plans") as progress:
        found, charts = planned(scenario, changed, progress, pictured=picture is not None, offline=offline)
    if picture and charts:
        with shown_anyway(found, to):
            chart_picture(picture, charts)
    return show(found, to, full=full)
