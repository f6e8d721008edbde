"""`capplan calibrate`: measure a device, fit its efficiencies, verify the fit."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capplan.cli import options as o
from capplan.cli.options import Group, grouped, whole
from capplan.errors import InputError
from capplan.scenario.command_flags import StatedResult
from capplan.scenario.flags import OutputFlags, ServingFlags

if TYPE_CHECKING:
    from capplan.readers.calibration.record import Calibration as Measured
    from capplan.report.answer import Answer


@dataclass(frozen=True, slots=True)
class Measuring:
    """What to measure, and for how long."""

    device: str | None = None
    quick: bool = False
    minutes: float | None = None
    threads: int = 1
    force: bool = False
    dry_run: bool = False
    endpoint: str | None = None
    max_concurrency: int = 16


_FILES = typer.Argument(metavar="FILE", help="More files for --from or --results.", show_default=False)
_MEASURE = Group(
    "Measurement",
    device=typer.Option(
        "--device", metavar="DEVICE", help="cpu, cuda or cuda:N; default: cuda if there is one."
    ),
    quick=typer.Option("--quick", help="Fewer shapes and repeats: under 3 minutes."),
    minutes=typer.Option("--minutes", metavar="N", min=0.01, max=600.0, help="Time to measure for."),
    threads=whole("--threads", of="threads", says="CPU threads; one gives the steadiest times."),
    force=typer.Option("--force", help="Measure even if the device is in use."),
    dry_run=typer.Option(
        "--dry-run", help="Only say what would be measured or sent, how long and with how much memory."
    ),
    endpoint=typer.Option(
        "--endpoint",
        metavar="URL",
        help="Measure a running server instead, with streamed requests: an OpenAI-compatible address such as http://localhost:8000.",
    ),
    max_concurrency=whole(
        "--max-concurrency", of="requests", says="With --endpoint: the most requests in flight."
    ),
)
_VERIFY = typer.Option(
    "--verify", metavar="MODEL", help="Run real layers of MODEL and compare with the prediction."
)
_RESULTS = typer.Option(
    "--results",
    metavar="FILE",
    help="With --verify and --calibration: compare with results of an engine instead.",
)
_FROM = typer.Option("--from", metavar="FILE", help="Refit from result files of a benchmark tool instead.")
_COMPARE = typer.Option(
    "--compare", metavar="A B", help="Two calibration files, or one and the name of a device."
)
_UNSAID = "With --from, if the files do not state it."
_STATED = Group(
    "What the files of --from do not state",
    model=typer.Option("--model", metavar="MODEL", help=_UNSAID),
    hardware=typer.Option("--hardware", metavar="NAME", help=_UNSAID),
    input_tokens=typer.Option("--input-tokens", metavar="TOKENS", help=_UNSAID, min=1),
    output_tokens=typer.Option("--output-tokens", metavar="TOKENS", help=_UNSAID, min=1),
    concurrency=typer.Option("--concurrency", metavar="N", help=_UNSAID, min=1),
)
_SERVING = o.SERVING.only(
    "tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel", "weight_dtype", "kv_dtype", "engine",
    "engine_version", "calibration", "offline", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "gpu_memory_utilization", "revision",
)  # fmt: skip
Stated = Annotated[StatedResult, _STATED]
Serving = Annotated[ServingFlags, _SERVING]
_FILE = typer.Option(
    "--output",
    "-o",
    metavar="FILE",
    help="Calibration file to write (also with --from, if it ends in .yaml); with --compare or --verify, file for the answer.",
)
Written = Annotated[OutputFlags, Group("Output", form=o.OUTPUT["form"], file=_FILE)]
SUFFIXES = (".yaml", ".yml")

_MEASURED = ("device", "quick", "threads", "force", "verify", "offline")
_OF_ENGINE = "--verify with --results"
_READ = {
    "--compare": ("compare",),
    "--endpoint": ("endpoint", "max_concurrency", "minutes", "dry_run", "model", "hardware", *_SERVING),
    "--from": ("results", "files", *_STATED, *_SERVING),
    "--verify with --calibration": (*_MEASURED, "calibration"),
    _OF_ENGINE: ("verify", "engine_results", "files", *_STATED, *_SERVING),
    "--dry-run": ("dry_run", "device", "quick", "minutes", "threads", "force"),
    "a measurement": (*_MEASURED, "minutes", "files"),
}
"""Mode -> the parameters that it reads, besides those of the output."""


@grouped
def calibrate_command(
    context: typer.Context,
    *,
    files: Annotated[list[Path] | None, _FILES] = None,
    measuring: Annotated[Measuring, _MEASURE],
    verify: Annotated[str | None, _VERIFY] = None,
    engine_results: Annotated[Path | None, _RESULTS] = None,
    results: Annotated[Path | None, _FROM] = None,
    compare: Annotated[tuple[str, str] | None, _COMPARE] = None,
    stated: Stated,
    serving: Serving,
    to: Written,
) -> int:
    """Measure a device and write its kernel efficiencies, or verify, refit or compare a calibration."""
    from capplan.report.show import show

    asked = _asked(measuring, verify, engine_results, results, compare, serving)
    _refuse_unread(context, asked)
    if measuring.endpoint:
        return show(_of_endpoint(measuring, stated, serving, to.file), OutputFlags(to.form))
    more = [*(files or [])]
    if compare:
        return show(_compared(*compare), to)
    if results:
        calibrated = to.file if to.file and to.file.suffix in SUFFIXES else None
        refit = _refitted([results, *more], stated, serving, calibrated)
        return show(refit, OutputFlags(to.form) if calibrated else to)
    if asked == _OF_ENGINE and verify and engine_results:
        return show(_proven(verify, [engine_results, *more], stated, serving), to)
    if files:
        raise InputError(
            f"{files[0]}: files are read only with --from or --results\n  see: capplan calibrate --help"
        )
    if measuring.dry_run:
        return show(_planned(measuring), to)
    if verify and serving.calibration:
        return show(_verified(verify, serving.calibration, measuring, offline=serving.offline), to)
    answer = _calibrated(measuring, to.file, verify, offline=serving.offline)
    return 0 if answer is None else show(answer, OutputFlags(to.form))


def _asked(
    measuring: Measuring,
    verify: str | None,
    engine_results: Path | None,
    results: Path | None,
    compare: tuple[str, str] | None,
    serving: ServingFlags,
) -> str:
    """Return the mode, a key of `_READ`."""
    if measuring.endpoint:
        return "--endpoint"
    if compare or results:
        return "--compare" if compare else "--from"
    if measuring.dry_run:
        return "--dry-run"
    if engine_results:
        if not verify or not serving.calibration:
            raise InputError(
                "--results: needs --verify MODEL and --calibration FILE, whose predictions it judges"
            )
        return _OF_ENGINE
    return "--verify with --calibration" if verify and serving.calibration else "a measurement"


def _refuse_unread(context: typer.Context, asked: str) -> None:
    unread = {p.name or "" for p in context.command.params}.difference(_READ[asked], o.OUTPUT)
    o.refuse_unread(context, unread, f"is not used by {asked}")


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _require(*libraries: str) -> None:
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        extra = "install the extra: pip install 'capplan[calibrate]'"
        raise InputError(
            f"calibrate needs {' and '.join(missing)}, which this installation lacks\n"
            f"  {'install it: pip install scipy' if missing == ['scipy'] else extra}"
        )


def _opened(measuring: Measuring) -> Any:
    _require("torch", "scipy")
    from capplan.calibrate.collectives import own_device
    from capplan.calibrate.machine import opened

    return opened(own_device(measuring.device), threads=measuring.threads, force=measuring.force)


def _of_endpoint(
    measuring: Measuring, stated: StatedResult, serving: ServingFlags, output: Path | None
) -> "Answer":
    """Measure a running server and write its calibration, or say what would be sent."""
    from capplan.calibrate.endpoint.client import endpoint_of
    from capplan.calibrate.endpoint.deployment import measured_deployment, planned_series
    from capplan.report.answers.calibrate import deployment_answer, series_answer

    server = endpoint_of(measuring.endpoint or "")
    if measuring.dry_run:
        return series_answer(server.shown, planned_series(measuring.minutes, measuring.max_concurrency))
    if output is None or output.suffix not in SUFFIXES:
        raise InputError("calibrate writes a file: name it with -o FILE.calibration.yaml")
    if not output.resolve().parent.is_dir():
        raise InputError(f"--output: the folder of {str(output)!r} does not exist; nothing was sent")
    _require("scipy")
    found = measured_deployment(
        server, stated, serving, minutes=measuring.minutes, most=measuring.max_concurrency, tell=_tell
    )
    from capplan.readers.calibration.file import calibration_text
    from capplan.report.show import send

    send(calibration_text(found.kernels, found.refit), output)
    return deployment_answer(found, output, _replica(stated, serving))


def _planned(measuring: Measuring) -> "Answer":
    target = _opened(replace(measuring, force=True))
    from capplan.calibrate.measure import planned_run
    from capplan.report.answers.calibrate import plan_answer

    plan, rows = planned_run(target, quick=measuring.quick, minutes=measuring.minutes)
    return plan_answer(target.machine, plan, rows, target.busy)


def _proven(model: str, paths: Sequence[Path], stated: StatedResult, serving: ServingFlags) -> "Answer":
    """Replay results of an engine with a calibration, and return how far off it is."""
    from capplan.calibrate.verify import engine_proofs
    from capplan.questions.validation import results_with_replicas
    from capplan.report.answers.calibrate import engine_proof_answer

    pairs = results_with_replicas(paths, replace(stated, model=stated.model or model), serving)
    return engine_proof_answer(model, str(serving.calibration), engine_proofs(pairs))


def _calibrated(
    measuring: Measuring, output: Path | None, verify: str | None, *, offline: bool
) -> "Answer | None":
    """Measure, write the file, and return what to show; None on the other ranks of a group."""
    if output is None:
        raise InputError("calibrate writes a file: name it with -o FILE.calibration.yaml")
    if not output.resolve().parent.is_dir():
        raise InputError(f"--output: the folder of {str(output)!r} does not exist; nothing was measured")
    from capplan.readers.calibration.file import calibration_text
    from capplan.readers.catalogue.models import read_model
    from capplan.report.answers.calibrate import calibration_answer
    from capplan.report.show import send

    network = read_model(verify, offline=offline) if verify else None
    target = _opened(measuring)
    from capplan.calibrate.measure import calibrated
    from capplan.calibrate.run import Run

    run = Run()
    measured: Measured | None = calibrated(
        target, quick=measuring.quick, minutes=measuring.minutes, run=run, tell=_tell
    )
    if measured is None:
        return None
    send(calibration_text(measured), output)
    proof = _proof(network, target, output, quick=measuring.quick) if network else []
    return calibration_answer(measured, output, proof, interrupted=run.stopped)


def _proof(network: Any, target: Any, path: Path, *, quick: bool) -> list[dict[str, Any]]:
    from capplan.calibrate.verify import verified
    from capplan.readers.calibration.measured_device import (
        device_from_calibration,
        torch_efficiency,
    )

    device = device_from_calibration(path)
    efficiency = torch_efficiency(path, device)
    return verified(network, target, device, efficiency, quick=quick, tell=_tell)


def _verified(model: str, calibration: Path, measuring: Measuring, *, offline: bool) -> "Answer":
    from capplan.readers.calibration.file import read_calibration
    from capplan.readers.calibration.measured_device import refuse_other_machine
    from capplan.readers.catalogue.models import read_model
    from capplan.report.answers.calibrate import proof_answer

    network = read_model(model, offline=offline)
    own = read_calibration(calibration)
    target = _opened(
        replace(
            measuring,
            device=measuring.device or own.machine.device,
            threads=own.machine.threads or measuring.threads,
        )
    )
    refuse_other_machine(calibration, own.machine, target.machine)
    return proof_answer(
        network.name,
        own.machine.name,
        _proof(network, target, calibration, quick=measuring.quick),
        own.remarks,
    )


def _refitted(
    paths: Sequence[Path], stated: StatedResult, serving: ServingFlags, output: Path | None
) -> "Answer":
    """Refit, write the file where its name is one of a calibration, and return what to show."""
    _require("scipy")
    from capplan.calibrate.refit import refitted
    from capplan.questions.validation import LAYOUT, results_with_replicas
    from capplan.readers.calibration.file import calibration_text, read_calibration_file
    from capplan.report.answers.calibrate import refit_answer
    from capplan.report.show import send

    kernels = read_calibration_file(serving.calibration).kernels if serving.calibration else None
    pairs = results_with_replicas(paths, stated, serving)
    refit = refitted(pairs)
    if output:
        send(calibration_text(kernels, refit), output)
    first = pairs[0][0]
    layout: dict[str, Any] = {name: getattr(first, name) or 1 for name in LAYOUT}
    served = replace(serving, **layout, engine=refit.engine, engine_version=refit.engine_version)
    return refit_answer(
        refit, output, _replica(replace(stated, model=first.model, hardware=refit.hardware), served)
    )


def _replica(stated: StatedResult, serving: ServingFlags) -> list[str]:
    """Return model and options of a replica that was measured, all but the calibration that replaces them."""
    words = [stated.model or "", "--hardware", stated.hardware or ""]
    return [*words, *replace(serving, calibration=None).words]


def _is_calibration(name: str) -> bool:
    """Return whether a name is that of a calibration file, not of a device or of its hardware YAML."""
    path = Path(name)
    return ".calibration" in path.suffixes or (path.suffix in SUFFIXES and "hardware_specs" not in path.parts)


def _compared(first: str, second: str) -> "Answer":
    from capplan.calibrate.compare import (
        condition_notes,
        differences,
        file_side,
        machine_differences,
        repeat_notes,
        shipped_side,
    )
    from capplan.readers.calibration.file import read_calibration_file
    from capplan.readers.catalogue.efficiency import efficiency_for
    from capplan.readers.catalogue.hardware import device
    from capplan.report.answers.calibrate import comparison_answer

    own = read_calibration_file(first)
    if not _is_calibration(second):
        sheet = device(second)
        sides = file_side(own), shipped_side(sheet, efficiency_for(sheet), own.host)
        return comparison_answer(first, sheet.title, differences(*sides), ())
    other = read_calibration_file(second)
    sides = file_side(own), file_side(other)
    notes: list[str] = []
    if own.kernels and other.kernels:
        notes += machine_differences(own.kernels.machine, other.kernels.machine)
        notes += repeat_notes(own.kernels, other.kernels)
        notes += condition_notes(own.kernels, other.kernels)
    return comparison_answer(first, second, differences(*sides), notes)
