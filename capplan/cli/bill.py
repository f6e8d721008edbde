"""`capplan bill`: who pays for a fleet."""

from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import grouped
from capplan.errors import unknown

ROWS = ("class", "machine")

Focus = Annotated[
    Path | None,
    typer.Option(
        "--focus",
        metavar="FILE",
        help="Also write the bill as CSV in the columns of FOCUS 1.2, for FinOps tools.",
    ),
]
Month = Annotated[
    str | None,
    typer.Option(
        "--month",
        metavar="YYYY-MM",
        help="Month of the bill, with its own hours; default: the mean month, for --focus the next one.",
    ),
]

By = Annotated[
    str,
    typer.Option("--by", metavar="ROWS", help="Rows of the FOCUS bill: class or machine."),
]


@grouped
def command(
    context: typer.Context,
    *,
    scenario: o.ScenarioOfPlan = None,
    plan_file: o.PlanFile = None,
    settings: o.Settings = None,
    focus: Focus = None,
    month: Month = None,
    by: By = "class",
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Show who pays for a scenario's fleet, by class and tenant, by request, user and conversation; --focus exports it."""
    from capplan.questions.fleet import fleet_for
    from capplan.questions.money.who_pays import asked_bill, bill_month
    from capplan.questions.plans.plan_check import current_day
    from capplan.questions.plans.plan_file import asked_of_plan
    from capplan.report.answers.compare import bill_answer
    from capplan.report.focus import focus_text
    from capplan.report.show import row_progress, send, show

    if focus is None:
        o.refuse_unread(context, ("by",), "is what the rows of the FOCUS bill are of; give --focus FILE")
    if by not in ROWS:
        raise unknown("row", by, ROWS, place="--by")
    asked, answer = asked_of_plan(scenario, plan_file, settings or (), offline=offline)
    place = "--month" if month else "--focus"
    period = bill_month(month, asked.scenario.classes, place) if focus or month else None
    with row_progress("plans") as progress:
        bill = asked_bill(asked, answer or fleet_for(asked, progress), current_day(), period)
    if focus and period:
        text = focus_text(
            bill, asked.scenario.name, asked.scenario.model, period, asked.scenario.file.currency, by
        )
        send(text, focus, option="--focus")
    written = str(focus) if focus else None
    return show(bill_answer(bill, asked.scenario.name, written, asked.scenario.file.currency, period), to)
