"""`capplan report`: the page for the planning review."""

import shlex
from datetime import date as day
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.groups import Group, grouped
from capplan.cli.kinds import one_of
from capplan.errors import InputError
from capplan.scenario.flags import OutputFlags

_FORMATS = ("table", "json", "csv", "markdown", "html")
_FORM = one_of(
    "--format",
    _FORMATS,
    metavar="FORMAT",
    says="table, json, csv, markdown or html; default: by the suffix of --output, else table.",
)


def _day(written: str | None) -> str | None:
    """Return a day as it was given; refuse what is none."""
    if written is not None:
        try:
            day.fromisoformat(written)
        except ValueError:
            raise InputError(f"--date: {written!r} is not a day; e.g. 2026-11-22") from None
    return written


Page = Annotated[OutputFlags, Group("Output", form=_FORM, file=o.OUTPUT["file"])]


Author = Annotated[
    str | None,
    typer.Option("--author", metavar="TEXT", help="Who answers for the page; printed below its title."),
]
WrittenOn = Annotated[
    str | None,
    typer.Option(
        "--date",
        metavar="YYYY-MM-DD",
        callback=_day,
        help="Printed below the title; the clock never is, so that the same inputs give the same page.",
    ),
]


@grouped
def command(
    *,
    scenario: o.ScenarioOfPlan = None,
    plan_file: o.PlanFile = None,
    settings: o.Settings = None,
    author: Author = None,
    date: WrittenOn = None,
    offline: o.Offline = False,
    to: Page,
) -> int:
    """Write the page for the planning review of a scenario: the decision first, then its evidence."""
    from capplan.questions.fleet import fleet_for
    from capplan.questions.identical_replicas import refuse_pools
    from capplan.questions.plan_file import asked_of_plan
    from capplan.readers.catalogue.model import model_source
    from capplan.report.show import row_progress
    from capplan.review.findings import Written, findings
    from capplan.review.page import review_of
    from capplan.review.show import review_output, show_review, written_with

    page = review_output(to)
    with written_with(page):
        asked, answer = asked_of_plan(scenario, plan_file, settings or (), offline=offline)
        with row_progress("plans") as progress:
            answer = answer or fleet_for(asked, progress)
    refuse_pools(asked.scenario, answer, "the page")
    words = ["capplan", "report", *([str(scenario)] if scenario else [])]
    words += ["--plan", str(plan_file)] if plan_file else []
    words += [part for setting in settings or () for part in ("--set", setting)]
    words += (["--author", author] if author else []) + (["--date", date] if date else [])
    words += [*(["--offline"] if offline else [])]
    words += (["--format", to.form] if to.form else []) + (["-o", str(to.file)] if to.file else [])
    source = model_source(asked.scenario.model, asked.scenario.revision)
    found = findings(asked, answer, shlex.join(words), source, Written(date, author))
    return show_review(review_of(found), page)
