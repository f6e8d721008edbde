"""`capplan verify-plan`: whether a plan holds in reality."""

from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.groups import grouped
from capplan.cli.kinds import measure, whole

Results = Annotated[
    list[Path],
    typer.Option(
        "--results",
        metavar="FILE",
        help="Result of a benchmark tool, or Prometheus text of a server; given twice: two scrapes, the earlier one first.",
    ),
]
Interval = Annotated[
    float | None, measure("--interval", says="Between two scrapes of Prometheus, such as '10 min'.")
]
Replicas = Annotated[int, whole("--replicas", of="replicas", says="Replicas that the results are of.")]


@grouped
def command(
    *,
    plan_file: o.NeededPlan,
    results: Results,
    interval: Interval = None,
    replicas: Replicas = 1,
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Verify a plan with measured results: predicted beside measured, what to recalibrate, the scenario's next version; exits 4 if it does not hold."""
    from capplan.questions.plans.plan_verification import measured_result, planned, verified
    from capplan.readers.catalogue.intervals import shipped_intervals
    from capplan.report.answers.verify_plan import verify_plan_answer
    from capplan.report.show import show

    asked, plan = planned(plan_file, offline=offline)
    verification = verified(asked, plan, *measured_result(results, interval), replicas, shipped_intervals())
    return show(verify_plan_answer(asked, plan, verification, tuple(results)), to)
