"""`capplan explain`: how a number came about."""

from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.completion import plans_and_scenarios
from capplan.cli.options import grouped

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
        help="As in the JSON of fleet, such as ttft_s.p95 or certainty[2].gpus; or COMMAND.PATH, such as bill.classes[0].usd; left "
        "out, or a part of a path: all of them, listed.",
    ),
]
Api = Annotated[
    list[str] | None,
    typer.Option(
        "--api",
        metavar="PROVIDER/MODEL",
        help="Hosted API of compare, such as openai/gpt-5; repeatable; default: all listed ones that serve the scenario's model.",
    ),
]


@grouped
def command(
    *, plan_file: Plan, quantity: Quantity = None, api: Api = None, offline: o.Offline = False, to: o.Output
) -> int:
    """Explain a number that a command printed of a plan: its formula, what went into it, and where each of those is from."""
    from capplan.explain.plans import Planned
    from capplan.explain.printed import explain_answer
    from capplan.questions.plans.plan_file import answered
    from capplan.report.show import row_progress, show

    with row_progress("plans") as progress:
        planned = Planned(*answered(plan_file, progress, offline=offline), tuple(api or ()))
    return show(explain_answer(planned, quantity), to)
