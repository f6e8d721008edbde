"""`capplan report`: the page for the planning review."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date as day
from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import Group, grouped, one_of
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


@dataclass(frozen=True, slots=True)
class PageFlags:
    """What a page has in addition to its plan."""

    author: str | None = None
    date: str | None = None
    levers: bool = False
    levers_file: Path | None = None


Beside = Annotated[
    PageFlags,
    Group(
        "The page",
        author=typer.Option(
            "--author", metavar="TEXT", help="Who answers for the page; printed below its title."
        ),
        date=typer.Option(
            "--date",
            metavar="YYYY-MM-DD",
            callback=_day,
            help="Printed below the title; the clock never is, so that the same inputs give the same page.",
        ),
        levers=typer.Option(
            "--levers",
            help="Say what every lever is worth, separately and combined; takes a search for each of them.",
        ),
        levers_file=typer.Option(
            "--levers-file",
            metavar="FILE",
            help="The same from a file that capplan levers --plan plan.json -o levers.json wrote.",
        ),
    ),
]


@grouped
def command(
    *,
    scenario: o.ScenarioOfPlan = None,
    plan_file: o.PlanFile = None,
    settings: o.Settings = None,
    page: Beside,
    offline: o.Offline = False,
    to: Page,
) -> int:
    """Write the page for the planning review of a scenario: the decision first, then its evidence."""
    from capplan.questions.fleet import fleet_for
    from capplan.questions.levers.answer import asking_of
    from capplan.questions.plans.plan_file import asked_of_plan
    from capplan.readers.catalogue.models import model_source
    from capplan.report.show import row_progress
    from capplan.review.findings import Written, findings
    from capplan.review.levers import wanted_levers
    from capplan.review.page import review_of, review_output, show_review, written_with

    if page.levers and page.levers_file:
        raise InputError("--levers and --levers-file: give one of them")
    to_page = review_output(to)
    with written_with(to_page):
        asked, answer = asked_of_plan(scenario, plan_file, settings or (), offline=offline)
        with row_progress("plans") as progress:
            answer = answer or fleet_for(asked, progress)
    asking = asking_of(scenario, plan_file, tuple(settings or ()), offline=offline) if page.levers else None
    levers = wanted_levers(asking, page.levers_file, asked, answer)
    source = model_source(asked.scenario.model, asked.scenario.file.revision)
    words = _command_line(scenario, plan_file, settings or (), page, offline=offline, to=to)
    written, others = Written(page.date, page.author), to_page.form != "markdown"
    found = findings(asked, answer, words, source, written, levers=levers, others=others)
    return show_review(review_of(found), to_page)


def _command_line(
    scenario: Path | None,
    plan_file: Path | None,
    settings: Sequence[str],
    page: PageFlags,
    *,
    offline: bool,
    to: OutputFlags,
) -> str:
    """Return the command as it is typed."""
    words = ["capplan", "report", *([str(scenario)] if scenario else [])]
    words += ["--plan", str(plan_file)] if plan_file else []
    words += [part for setting in settings for part in ("--set", setting)]
    words += (["--author", page.author] if page.author else []) + (["--date", page.date] if page.date else [])
    words += ["--levers"] if page.levers else []
    words += ["--levers-file", str(page.levers_file)] if page.levers_file else []
    words += [*(["--offline"] if offline else [])]
    words += (["--format", to.form] if to.form else []) + (["-o", str(to.file)] if to.file else [])
    return shlex.join(words)
