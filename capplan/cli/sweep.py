"""`capplan sweep`: throughput against latency over a range of loads."""

from pathlib import Path
from typing import Annotated

import typer

from capplan.cli.options import (
    Engine,
    Form,
    InputTokens,
    KvDtype,
    Offline,
    Output,
    OutputTokens,
    Picture,
    Seed,
    WeightDtype,
    refuse_unread,
    whole,
)

What = Annotated[
    str,
    typer.Argument(metavar="SCENARIO|MODEL", help="Scenario YAML with its traffic and targets, or a model."),
]
Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--hardware",
        metavar="NAME",
        help="Device to compare, several times; default for a scenario: the best plan on each of its devices.",
    ),
]
Cuts = Annotated[
    list[int] | None,
    typer.Option(
        "--tensor-parallel",
        "-tp",
        parser=whole("--tensor-parallel", "devices", most=4096),
        metavar="N",
        help="Devices that share every matrix, several times to compare.",
    ),
]
Plans = Annotated[
    int | None,
    typer.Option(
        "--plans",
        parser=whole("--plans", "plans", most=100),
        metavar="N",
        help="The N cheapest plans of the scenario instead of the best of each device.",
    ),
]
Rates = Annotated[
    str | None,
    typer.Option(
        "--request-rate",
        metavar="LIST",
        help="Arrivals at one replica, such as '1,2,4 req/s'; default for a scenario: up to what it can serve.",
    ),
]
Concurrencies = Annotated[
    str | None,
    typer.Option(
        "--concurrency",
        metavar="LIST",
        help="Requests in flight, such as 1,8,64 (closed loop); the default for a model.",
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--slo", metavar="TARGET", help="For a model: a target such as 'ttft_p95=800 ms', several times."
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        parser=whole("--workers", "processes", most=1024),
        metavar="N",
        help="Processes on this machine.",
    ),
]
Dask = Annotated[
    str | None,
    typer.Option(
        "--dask", metavar="ADDRESS", help="Scheduler of a Dask cluster, such as tcp://10.0.0.1:8786."
    ),
]
Points = Annotated[
    Path | None,
    typer.Option(
        "--points", metavar="FILE", help="Finished points, written as they finish; a rerun goes on from them."
    ),
]


_OF_A_MODEL = ("input_tokens", "output_tokens", "weight_dtype", "kv_dtype", "engine", "slo")


def command(
    context: typer.Context,
    what: What,
    hardware: Devices = None,
    tensor_parallel: Cuts = None,
    plans: Plans = None,
    request_rate: Rates = None,
    concurrency: Concurrencies = None,
    input_tokens: InputTokens = 1024,
    output_tokens: OutputTokens = 256,
    weight_dtype: WeightDtype = None,
    kv_dtype: KvDtype = None,
    engine: Engine = "vllm",
    slo: Targets = None,
    seed: Seed = 1,
    workers: Workers = 1,
    dask: Dask = None,
    points: Points = None,
    picture: Picture = None,
    offline: Offline = False,
    form: Form = None,
    output: Output = None,
) -> int:
    """Sweep plans over rates or concurrencies: throughput against latency, the knee, the last good load."""
    from capplan.fleet.executor import PointFile, executor, finished_points
    from capplan.questions.sweep import loads_of, model_sweep, scenario_sweep, slo_of
    from capplan.questions.workload_file import is_workload
    from capplan.report.picture import frontier_picture
    from capplan.report.progress import row_progress
    from capplan.report.show import show
    from capplan.report.sweep_answer import by_plan, sweep_answer

    loads = loads_of(request_rate, concurrency)
    if is_workload(what):
        refuse_unread(context, _OF_A_MODEL, "belongs to a MODEL; a scenario says it itself")
        if hardware or tensor_parallel:
            refuse_unread(
                context,
                ("plans",),
                "counts plans of the scenario, not those that --hardware and --tensor-parallel name",
            )
        asked = scenario_sweep(
            Path(what), loads, hardware=hardware or (), tensor_parallel=tensor_parallel or (), plans=plans, seed=seed,
            offline=offline,
        )  # fmt: skip
    else:
        refuse_unread(context, ("plans",), "counts the plans of a scenario, and a MODEL has none")
        asked = model_sweep(
            what, loads, hardware=hardware or (), tensor_parallel=tensor_parallel or (), input_tokens=input_tokens,
            output_tokens=output_tokens, weight_dtype=weight_dtype, kv_dtype=kv_dtype, engine=engine,
            slo=slo_of(slo or ()), seed=seed, offline=offline,
        )  # fmt: skip
    file = PointFile(points)
    with executor(workers, dask) as pool, row_progress("points") as progress:
        rows, interrupted = finished_points(
            asked.points, pool, file, progress, refine=bool(asked.slo.targets)
        )
    if picture and rows:
        frontier_picture(picture, by_plan(rows), asked.name)
    return show(sweep_answer(asked, rows, reused=file.reused, interrupted=interrupted), form, output)
