"""`capplan levers`: what each choice is worth, separately and combined."""

from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import grouped

Names = Annotated[
    list[str] | None,
    typer.Option(
        "--lever", metavar="NAME", help="Try only this lever, such as commitment; repeatable; default: all."
    ),
]


@grouped
def command(
    *,
    scenario: o.ScenarioOfPlan = None,
    plan_file: o.PlanFile = None,
    levers: Names = None,
    settings: o.Settings = None,
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Show what each change to a scenario is worth: GPUs, dollars, latency and risk of every lever separately, and of the best combination."""
    from capplan.questions.levers.answer import asked_levers, checked_names, levers_of
    from capplan.report.answers.levers import levers_answer
    from capplan.report.show import row_progress, show

    names = checked_names(levers)
    asking, base = asked_levers(scenario, plan_file, tuple(settings or ()), offline=offline)
    with row_progress("levers") as progress:
        answer = levers_of(asking, base, names, progress)
    return show(levers_answer(asking, base, answer), to)
