"""`capplan sweep`: throughput against latency over a range of loads."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.completion import devices, models_and_scenarios
from capplan.cli.options import Group, grouped, whole
from capplan.scenario.flags import ServingFlags, SweepFlags

What = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO|MODEL",
        help="Scenario YAML with its traffic and targets, or a model.",
        autocompletion=models_and_scenarios,
    ),
]
Swept = Annotated[
    SweepFlags,
    Group(
        "What to sweep",
        hardware=typer.Option(
            "--hardware",
            metavar="NAME",
            help="Device to compare, repeatable; default for a scenario: the best plan on each of its devices.",
            autocompletion=devices,
        ),
        tensor_parallel=whole(
            "--tensor-parallel",
            "-tp",
            of="devices",
            most=4096,
            says="Devices that every matrix is split over; repeatable, to compare.",
        ),
        plans=whole(
            "--plans",
            of="plans",
            most=100,
            says="The N cheapest plans of the scenario instead of the best of each device.",
        ),
        request_rate=typer.Option(
            "--request-rate",
            metavar="LIST",
            help="Arrivals at one replica, such as '1,2,4 req/s'; default for a scenario: up to what it can serve.",
        ),
        concurrency=typer.Option(
            "--concurrency",
            metavar="LIST",
            help="Requests in flight, such as 1,8,64 (closed loop); the default for a model.",
        ),
        slo=typer.Option(
            "--slo",
            metavar="TARGET",
            help="For a model: a target such as 'ttft_p95=800 ms'; repeatable.",
        ),
        settings=o.SET,
        seed=o.SEED,
    ),
]
Serving = Annotated[
    ServingFlags, o.SERVING.only("weight_dtype", "kv_dtype", "engine", "calibration", "offline")
]


@dataclass(frozen=True, slots=True)
class Work:
    """Where points are computed, and the file that keeps them."""

    workers: int = 1
    dask: str | None = None
    points: Path | None = None


Working = Annotated[
    Work,
    Group(
        "Work",
        workers=whole("--workers", of="processes", most=1024, says="Processes on this machine."),
        dask=typer.Option(
            "--dask", metavar="ADDRESS", help="Scheduler of a Dask cluster, such as tcp://10.0.0.1:8786."
        ),
        points=typer.Option(
            "--points",
            metavar="FILE",
            help="File of finished points, written as they finish; a rerun continues from it.",
        ),
    ),
]


_OF_A_MODEL = ("input_tokens", "output_tokens", "weight_dtype", "kv_dtype", "engine", "slo")


@grouped
def command(
    context: typer.Context,
    *,
    what: What,
    flags: Swept,
    lengths: o.Lengths,
    serving: Serving,
    work: Working,
    picture: o.Picture = None,
    to: o.Output,
) -> int:
    """Sweep plans over rates or concurrencies: throughput against latency, the knee, the largest load within the targets."""
    from capplan.fleet.search.workers import LostWorkersError, executor, finished_points
    from capplan.questions.sweep import asked_sweep
    from capplan.readers.point_file import PointFile
    from capplan.report.answers.simulate import by_plan, sweep_answer
    from capplan.report.charts.static import frontier_picture
    from capplan.report.show import row_progress, say, show, shown_anyway

    _refuse_unread(context, what, named=bool(flags.hardware or flags.tensor_parallel))
    file = PointFile(work.points)
    with executor(work.workers, work.dask, say) as pool, row_progress("points") as progress:
        asked = asked_sweep(what, flags, lengths, serving)
        rows, ended = finished_points(asked.points, pool, file, progress, refine=bool(asked.slo.targets))
    if isinstance(ended, LostWorkersError) and not rows:
        raise ended
    answer = sweep_answer(asked, rows, reused=file.reused, interrupted=ended is not None)
    if isinstance(ended, LostWorkersError):
        with shown_anyway(answer, to):
            raise ended
    if picture and rows:
        with shown_anyway(answer, to):
            frontier_picture(picture, by_plan(rows), asked.name)
    return show(answer, to)


def _refuse_unread(context: typer.Context, what: str, *, named: bool) -> None:
    from capplan.scenario.workload_file import is_workload

    if not is_workload(what):
        o.refuse_unread(context, ("plans",), "counts the plans of a scenario, and a MODEL has none")
        o.refuse_unread(context, ("settings",), "overrides a key of a scenario, and a MODEL has none")
        return
    o.refuse_unread(context, _OF_A_MODEL, "belongs to a MODEL; a scenario states it itself")
    if named:
        why = "counts plans of the scenario, not those that --hardware and --tensor-parallel name"
        o.refuse_unread(context, ("plans",), why)
