"""`capplan report`: the page for the planning review."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from capplan.cli.options import Offline, Output, one_of

_FORMS = ("table", "json", "csv", "markdown", "html")

Scenario = Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario YAML; see scenarios/.")]
ReportForm = Annotated[
    str | None,
    typer.Option(
        "--format",
        parser=one_of("--format", "format", _FORMS),
        help="table, json, csv, markdown or html; default: by the suffix of --output, else table.",
        metavar="FORMAT",
        autocompletion=lambda: list(_FORMS),
    ),
]


def command(
    scenario: Scenario, offline: Offline = False, form: ReportForm = None, output: Output = None
) -> int:
    """Write the page for the planning review of a scenario: the decision first, then everything it rests on."""
    from capplan.questions.fleet import asked_fleet, fleet_for
    from capplan.questions.scenario import read_scenario
    from capplan.readers.catalogue.model import model_source
    from capplan.report.progress import row_progress
    from capplan.report.review import findings
    from capplan.report.review_page import review_of
    from capplan.report.show_review import review_form, show_review

    chosen = review_form(form, output)
    asked = asked_fleet(read_scenario(scenario), offline=offline)
    with row_progress("plans") as progress:
        found = fleet_for(asked, progress)
    words = ["capplan", "report", str(scenario), *(["--offline"] if offline else [])]
    words += (["--format", form] if form else []) + (["-o", str(output)] if output else [])
    source = model_source(asked.scenario.model, asked.scenario.revision)
    return show_review(review_of(findings(asked, found, shlex.join(words), source)), chosen, output)
