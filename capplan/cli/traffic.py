"""Traffic: `capplan workload`, `simulate`, `sweep` and `validate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.completion import devices, models, models_and_scenarios
from capplan.cli.options import Group, fraction, grouped, measure, one_of, whole
from capplan.scenario.command_flags import (
    PLAN_RANGES,
    REQUEST_RANGES,
    EngineFlags,
    OperationFlags,
    PlanFlags,
    RequestFlags,
    ScenarioFlags,
    SpeculationFlags,
    SweepFlags,
)
from capplan.scenario.flags import OutputFlags, ServingFlags

TraceFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Request trace, request log or Prometheus text; two scrapes of Prometheus give their difference; or a scenario YAML or name.",
    ),
]
Interval = Annotated[
    float | None,
    measure("--interval", says="Between two scrapes of Prometheus, such as '5 min'."),
]
Eviction = Annotated[
    list[str] | None,
    one_of(
        "--eviction",
        ("lru", "lfu", "prefix"),
        metavar="POLICY",
        says="Run the prefix cache block by block with lru, lfu or prefix (leaves first); repeatable.",
    ),
]
_FILE = typer.Option("--output", "-o", metavar="FILE", help="A .yaml is written as a workload for scenarios.")
Output = Annotated[OutputFlags, Group("Output", form=o.OUTPUT["form"], file=_FILE)]


@grouped
def workload_command(
    *,
    files: TraceFiles,
    interval: Interval = None,
    model_name: o.ModelName = None,
    eviction: Eviction = None,
    picture: o.Picture = None,
    to: Output,
) -> int:
    """Read a trace, a request log or Prometheus text, or draw a scenario's traffic; write it as a workload for scenarios."""
    from capplan.recorded.traces.trace import workload_of
    from capplan.report.answers.simulate import workload_answer
    from capplan.report.charts.static import workload_picture
    from capplan.report.show import send, show, shown_anyway
    from capplan.scenario.drawn_workload import drawn_workload, names_a_scenario
    from capplan.scenario.workload_file import is_workload, workload_text

    policies = tuple(eviction or ())
    if len(files) == 1 and interval is None and model_name is None and names_a_scenario(files[0]):
        summary = drawn_workload(files[0], policies)
    else:
        summary = workload_of(files, interval_s=interval, policies=policies, model=model_name)
    written = to.file if to.file and is_workload(to.file.name) else None
    if written:
        send(workload_text(summary), written)
    answer = workload_answer(summary, str(written) if written else None)
    to = OutputFlags(to.form) if written else to
    if picture:
        with shown_anyway(answer, to):
            workload_picture(picture, summary)
    return show(answer, to)


SEED = whole("--seed", allowed=REQUEST_RANGES["seed"], says="Seed of the random draws.")
Requests = Annotated[
    RequestFlags,
    Group(
        "Requests",
        trace=typer.Option(
            "--trace", metavar="FILE", help="Replay these requests instead of the scenario's traffic."
        ),
        until_s=measure(
            "--until",
            says="Stop after this simulated time, such as '10 min'; default: when all requests are done.",
        ),
        seed=SEED,
        warm_up_s=measure(
            "--warm-up",
            says="Leave requests that arrive before this time out of all figures; default: the first 15% of drawn requests, the time in which sessions fill the caches, nothing of a trace.",
            or_zero=True,
        ),
    ),
]
Plan = Annotated[
    PlanFlags,
    Group(
        "Plan",
        hardware=typer.Option(
            "--hardware",
            metavar="NAME",
            help="Device; default: the plan that capplan fleet chooses.",
            autocompletion=devices,
        ),
        tensor_parallel=o.SERVING["tensor_parallel"],
        pipeline_parallel=o.SERVING["pipeline_parallel"],
        replicas=whole(
            "--replicas",
            allowed=PLAN_RANGES["replicas"],
            says="Replicas in service; default: the plan's, without spares.",
        ),
    ),
]
Running = Annotated[
    OperationFlags,
    Group(
        "Operation",
        queue_limit=whole(
            "--queue-limit",
            of="requests",
            least=0,
            says="Requests that arrive at a replica with this many waiting are shed.",
        ),
        deadline_s=measure("--deadline", says="Requests that waited longer than this are shed."),
        routing=one_of(
            "--routing",
            ("round_robin", "random", "least_loaded", "reported_load", "prefix_aware", "gpu_prefix_aware"),
            says="Router before the replicas: round_robin, random, least_loaded, reported_load, prefix_aware or gpu_prefix_aware.",
        ),
        fail=typer.Option(
            "--fail",
            metavar="REPLICA@TIME",
            help="A replica (from 0) and the time at which it fails, such as '1@5 min'; its requests are rerouted; repeatable.",
        ),
        autoscale=typer.Option(
            "--autoscale",
            metavar="MIN:MAX",
            help="Autoscale the replicas with the load; the start-up time is that of the scenario.",
        ),
        hedge_s=measure(
            "--hedge", says="A request without a token after this time is copied to another replica."
        ),
        prefill_replicas=whole(
            "--prefill-replicas",
            of="replicas",
            most=100_000,
            says="Replicas for prefill only; with --decode-replicas and --kv-link.",
        ),
        decode_replicas=whole(
            "--decode-replicas",
            of="replicas",
            most=100_000,
            says="Replicas for decode: all tokens but the first.",
        ),
        kv_link=typer.Option(
            "--kv-link",
            metavar="NAME",
            help="Link for the transfer of the KV cache: network, pcie or the device's link, such as nvlink4.",
        ),
    ),
]
Engine = Annotated[
    EngineFlags,
    Group(
        "Engine",
        scheduling=one_of(
            "--scheduling",
            ("static", "dynamic", "continuous", "chunked", "prefill-first", "slots"),
            says="static, dynamic (with a timeout), continuous (prompts not split), chunked, prefill-first or slots (llama.cpp); default: the engine's.",
        ),
        batch_timeout_s=measure(
            "--batch-timeout",
            says="A dynamic batch starts once its oldest request has waited this long; default: 100 ms.",
        ),
        kv_offload=typer.Option(
            "--kv-offload",
            metavar="NAME:SIZE[@RATE]",
            help="Memory of a replica for prefixes that no longer fit on its devices, such as 'host:512 GB' or "
            "'nvme:8 TB@14 GB/s'; repeatable, fastest first; for a trace with block hashes.",
        ),
        reuse_preempted=typer.Option(
            "--reuse-preempted",
            help="A preempted request reuses its blocks that were not overwritten, as with a prefix cache.",
        ),
    ),
]
Speculation = Annotated[
    SpeculationFlags,
    Group(
        "Speculation",
        draft=typer.Option(
            "--draft",
            metavar="MODEL",
            help="Speculative decoding with this draft model.",
            autocompletion=models,
        ),
        draft_step_s=measure(
            "--draft-step-time", says="One step of the draft, such as '1 ms', instead of --draft."
        ),
        draft_tokens=whole(
            "--draft-tokens",
            of="tokens",
            most=64,
            says="Draft tokens per round; default: the scenario's, else 4.",
        ),
        acceptance_fraction=fraction(
            "--acceptance", says="Probability that a draft token is accepted, given that all before it were."
        ),
    ),
]


Changed = Annotated[ScenarioFlags, o.ASKED.only("settings", "calibration")]


@grouped
def simulate_command(
    *,
    scenario: o.ScenarioOfPlan = None,
    plan_file: o.PlanFile = None,
    requests: Requests,
    plan: Plan,
    running: Running,
    engine: Engine,
    speculation: Speculation,
    changed: Changed,
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Simulate a scenario's fleet, request by request, under its traffic or a trace."""
    from capplan.library.simulated_fleet import SimulationRecords, simulated
    from capplan.questions.plans.plan_file import asked_of_plan
    from capplan.report.show import row_progress, show
    from capplan.scenario.reading import settings_of

    settings = settings_of(changed)
    asked, answer = asked_of_plan(scenario, plan_file, settings, offline=offline)
    records = SimulationRecords(requests, plan, running, engine, speculation)
    with row_progress("plans") as progress:
        found = simulated(asked, answer, records, progress, offline=offline)
    return show(found, to)


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
            "--tp",
            of="devices",
            most=4096,
            says="Devices that every matrix is split over; repeatable, to compare.",
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
        settings=o.SET,
        seed=SEED,
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


_OF_A_MODEL = ("input_tokens", "output_tokens", "weight_dtype", "kv_dtype", "engine")


@grouped
def sweep_command(
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
    from capplan.scenario.drawn_workload import names_a_scenario

    if not names_a_scenario(Path(what)):
        o.refuse_unread(context, ("plans",), "counts the plans of a scenario, and a MODEL has none")
        o.refuse_unread(context, ("settings",), "overrides a key of a scenario, and a MODEL has none")
        return
    o.refuse_unread(context, _OF_A_MODEL, "belongs to a MODEL; a scenario states it itself")
    if named:
        why = "counts plans of the scenario, not those that --hardware and --tensor-parallel name"
        o.refuse_unread(context, ("plans",), why)


MeasuredFiles = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", help="CSV files of measured results; default: the built-in points."),
]
Kind = Annotated[
    str | None,
    one_of(
        "--kind",
        ("serving", "memory", "kernel", "llamacpp"),
        metavar="KIND",
        says="serving, memory, kernel or llamacpp (speeds of GGUF models); default: inferred from the columns.",
    ),
]
Predictions = Annotated[
    Path | None,
    typer.Option("--predictions", metavar="OUT.csv", help="Write one line per measured value here."),
]
Decisions = Annotated[
    bool,
    typer.Option(
        "--decisions",
        help="Also score the choices: the plan that predictions pick under limits on TPOT, against the best that was measured.",
    ),
]


@grouped
def validate_command(
    *,
    files: MeasuredFiles = None,
    kind: Kind = None,
    predictions: Predictions = None,
    decisions: Decisions = False,
    calibration: o.Calibration = None,
    to: o.Output,
) -> int:
    """Predict measured results with the code that every command uses, and score the predictions."""
    from capplan.questions.validation import BUILT_IN_POINTS, validation
    from capplan.readers.catalogue.efficiency import shipped_intervals
    from capplan.report.answers.simulate import predictions_csv, validate_answer
    from capplan.report.show import row_progress, show, shown_anyway, write_whole

    with row_progress("rows") as progress:
        checked = validation(
            files or [BUILT_IN_POINTS],
            kind=kind,
            calibration=calibration,
            intervals=shipped_intervals(),
            progress=progress,
        )
    answer = validate_answer(checked, decisions=decisions)
    if predictions:
        with shown_anyway(answer, to):
            write_whole(predictions, predictions_csv(checked.predictions), "--predictions")
    return show(answer, to)
