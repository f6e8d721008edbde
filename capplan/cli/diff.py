"""`capplan diff`: what changed between two scenarios or plans."""

from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.completion import plans_and_scenarios
from capplan.cli.options import grouped

Before = Annotated[
    Path,
    typer.Argument(
        metavar="A",
        help="Scenario YAML, or plan written by capplan fleet -o plan.json: before.",
        autocompletion=plans_and_scenarios,
    ),
]
After = Annotated[
    Path, typer.Argument(metavar="B", help="The same: after.", autocompletion=plans_and_scenarios)
]


@grouped
def command(*, before: Before, after: After, offline: o.Offline = False, to: o.Output) -> int:
    """Show what changed between two scenarios or plans: inputs, GPUs, dollars, latency and SLO attainment."""
    from capplan.questions.plans.plan_check import both_sides
    from capplan.report.answers.plan_files import diff_answer
    from capplan.report.show import row_progress, show

    with row_progress("plans") as progress:
        sides = both_sides(before, after, progress, offline=offline)
    return show(diff_answer(*sides), to)
