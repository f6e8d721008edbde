"""`capplan explain`: how a number came about."""

from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.completion import plans_and_scenarios
from capplan.cli.groups import grouped

Plan = Annotated[
    Path,
    typer.Argument(
        metavar="PLAN",
        help="Plan written by capplan fleet -o plan.json, or a scenario YAML.",
        autocompletion=plans_and_scenarios,
    ),
]
Quantity = Annotated[
    str | None,
    typer.Argument(
        metavar="[QUANTITY]",
        help="As in the JSON of fleet, such as ttft_s.p95; left out: all of them, listed.",
    ),
]


@grouped
def command(*, plan_file: Plan, quantity: Quantity = None, offline: o.Offline = False, to: o.Output) -> int:
    """Explain a number of a plan: its formula, what went into it, and where each of those is from."""
    from capplan.explain.answer import explain_answer
    from capplan.explain.quantities import subject_of
    from capplan.questions.plan_file import answered
    from capplan.report.show import row_progress, show

    with row_progress("plans") as progress:
        asked, plan = answered(plan_file, progress, offline=offline)
    return show(explain_answer(subject_of(asked, plan), quantity), to)
