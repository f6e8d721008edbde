"""Traffic: `capplan workload`, `simulate`, `sweep` and `validate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capplan.cli import options as o
from capplan.cli.completion import models_and_scenarios
from capplan.cli.options import Group, declared, grouped, measure, one_of
from capplan.ranges import Whole
from capplan.scenario.command_flags import (
    EngineFlags,
    OperationFlags,
    PlanFlags,
    RequestFlags,
    ScenarioFlags,
    SpeculationFlags,
    SweepFlags,
)
from capplan.scenario.flags import OutputFlags, ServingFlags, option

if TYPE_CHECKING:
    from capplan.report.charts.of_answers import Chart

_TRACE_FILES = typer.Argument(
    metavar="FILE...",
    help="Request trace, request log or Prometheus text; two scrapes of Prometheus give their difference; or a scenario YAML or name.",
)
_INTERVAL = measure("--interval", says="Time between two scrapes of Prometheus, such as '5 min'.")
_EVICTION = one_of(
    "--eviction",
    ("lru", "lfu", "prefix"),
    metavar="POLICY",
    says="Run the prefix cache block by block with lru, lfu or prefix (leaves first); repeatable.",
)
_FILE = typer.Option("--output", "-o", metavar="FILE", help="A .yaml is written as a workload for scenarios.")
Output = Annotated[OutputFlags, Group("Output", form=o.OUTPUT["form"], file=_FILE)]


@grouped
def workload_command(
    *,
    files: Annotated[list[Path], _TRACE_FILES],
    interval: Annotated[float | None, _INTERVAL] = None,
    model_name: o.ModelName = None,
    eviction: Annotated[list[str] | None, _EVICTION] = None,
    picture: o.Picture = None,
    to: Output,
) -> int:
    """Read a trace, a request log or Prometheus text, or draw a scenario's traffic; write it as a workload for scenarios."""
    from capplan.recorded.traces.trace import workload_of
    from capplan.report.answers.simulate import workload_answer
    from capplan.report.show import send, show_drawn
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

    def charts() -> "list[Chart]":
        from capplan.report.charts.of_answers import workload_charts

        return workload_charts(summary)

    return show_drawn(answer, to, picture, charts)


Requests = Annotated[RequestFlags, declared(RequestFlags, "Requests")]
Plan = Annotated[PlanFlags, declared(PlanFlags, "Plan")]
Running = Annotated[OperationFlags, declared(OperationFlags, "Operation")]
Engine = Annotated[EngineFlags, declared(EngineFlags, "Engine")]
Speculation = Annotated[SpeculationFlags, declared(SpeculationFlags, "Speculation")]
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


_WHAT = typer.Argument(
    metavar="SCENARIO|MODEL",
    help="Scenario YAML with its traffic and targets, or a model.",
    autocompletion=models_and_scenarios,
)
Swept = Annotated[SweepFlags, declared(SweepFlags, "What to sweep")]
_SERVING = o.SERVING.only("weight_dtype", "kv_dtype", "engine", "calibration", "offline")


@dataclass(frozen=True, slots=True)
class Work:
    """Where points are computed, and the file that keeps them."""

    workers: int = option("Processes on this machine.", Whole("processes", most=1024), default=1)
    dask: str | None = option("Scheduler of a Dask cluster, such as tcp://10.0.0.1:8786.", metavar="ADDRESS")
    points: Path | None = option(
        "File of finished points, written as they finish; a rerun continues from it.", metavar="FILE"
    )


Working = Annotated[Work, declared(Work, "Work")]
_OF_A_MODEL = ("input_tokens", "output_tokens", "weight_dtype", "kv_dtype", "engine")


@grouped
def sweep_command(
    context: typer.Context,
    *,
    what: Annotated[str, _WHAT],
    flags: Swept,
    lengths: o.Lengths,
    serving: Annotated[ServingFlags, _SERVING],
    work: Working,
    picture: o.Picture = None,
    to: o.Output,
) -> int:
    """Sweep plans over rates or concurrencies: throughput against latency, the knee, the largest load within the targets."""
    from capplan.fleet.search.workers import LostWorkersError, executor, finished_points
    from capplan.questions.sweep import asked_sweep
    from capplan.readers.point_file import PointFile
    from capplan.report.answers.simulate import by_plan, sweep_answer
    from capplan.report.charts.of_answers import frontier_charts
    from capplan.report.show import row_progress, say, show_drawn, shown_anyway

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
    return show_drawn(
        answer, to, picture if rows else None, lambda: frontier_charts(by_plan(rows), asked.name)
    )


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


_MEASURED_FILES = typer.Argument(
    metavar="[FILE]...", help="CSV files of measured results; default: the built-in points."
)
_KIND = one_of(
    "--kind",
    ("serving", "memory", "kernel", "llamacpp"),
    metavar="KIND",
    says="serving, memory, kernel or llamacpp (speeds of GGUF models); default: inferred from the columns.",
)
_PREDICTIONS = typer.Option(
    "--predictions", metavar="OUT.csv", help="Write one line per measured value here."
)
_DECISIONS = typer.Option(
    "--decisions",
    help="Also score choices: the plan that predictions pick under a limit on TPOT, against the best measured one.",
)


@grouped
def validate_command(
    *,
    files: Annotated[list[Path] | None, _MEASURED_FILES] = None,
    kind: Annotated[str | None, _KIND] = None,
    predictions: Annotated[Path | None, _PREDICTIONS] = None,
    decisions: Annotated[bool, _DECISIONS] = False,
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
