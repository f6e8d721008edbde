"""`capplan verify-plan`: whether a plan holds in reality."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import grouped, measure, whole
from capplan.errors import InputError

Results = Annotated[
    list[Path] | None,
    typer.Option(
        "--results",
        metavar="FILE",
        help="Result of a benchmark tool, or Prometheus text of a server; given twice: two scrapes, the earlier one first.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="URL",
        help="One running replica, which gets the traffic of the plan instead: an OpenAI-compatible address.",
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes", metavar="N", min=0.01, max=600.0, help="With --endpoint: time to send traffic for."
    ),
]
Interval = Annotated[
    float | None, measure("--interval", says="Between two scrapes of Prometheus, such as '10 min'.")
]
Replicas = Annotated[int, whole("--replicas", of="replicas", says="Replicas that the results are of.")]

MixGroup = Annotated[
    int | None,
    whole("--group", of="a group of a mix", says="Group of a mix that the results are of, from 1."),
]


@grouped
def command(
    *,
    plan_file: o.NeededPlan,
    results: Results = None,
    endpoint: Url = None,
    minutes: Minutes = None,
    interval: Interval = None,
    replicas: Replicas = 1,
    group: MixGroup = None,
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Verify a plan with measured results: predicted next to measured, what to recalibrate, the scenario's next version; exits 4 if it does not hold."""
    from capplan.questions.plans.plan_verification import measured_result, planned, verified
    from capplan.readers.catalogue.efficiency import shipped_intervals
    from capplan.report.answers.plan_files import verify_plan_answer
    from capplan.report.show import show

    _refuse_other_source(results, endpoint, minutes, interval, replicas)
    asked, plan = planned(plan_file, group, offline=offline)
    if endpoint:
        from capplan.calibrate.endpoint.client import endpoint_of
        from capplan.calibrate.endpoint.plan_traffic import measured_plan

        measurement = measured_plan(endpoint_of(endpoint), asked, plan, minutes=minutes, tell=_tell), 0.0
    else:
        measurement = measured_result(results or [], interval)
    intervals = shipped_intervals()
    verification = verified(asked, plan, *measurement, replicas, intervals, own_traffic=bool(endpoint))
    return show(verify_plan_answer(asked, plan, verification, tuple(results or ())), to)


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _refuse_other_source(
    results: list[Path] | None,
    endpoint: str | None,
    minutes: float | None,
    interval: float | None,
    replicas: int,
) -> None:
    """Refuse none or both of results and a server, and what the given one does not read."""
    if bool(results) == bool(endpoint):
        raise InputError(
            "verify-plan needs what was measured: --results FILE, or --endpoint URL of one running replica"
        )
    if endpoint and (interval is not None or replicas != 1):
        raise InputError("--interval and --replicas are of --results: an endpoint is one replica")
    if results and minutes is not None:
        raise InputError("--minutes is of --endpoint: results were measured before")
