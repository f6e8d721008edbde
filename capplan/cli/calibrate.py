"""`capplan calibrate`: measure the device in front of us, fit the efficiencies, prove the fit."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capplan.cli.options import (
    Calibration,
    DataParallel,
    Engine,
    EngineVersion,
    ExpertParallel,
    Form,
    KvDtype,
    Offline,
    PipelineParallel,
    TensorParallel,
    WeightDtype,
    refuse_unread,
    whole,
)
from capplan.errors import InputError

if TYPE_CHECKING:
    from capplan.readers.calibration.record import Calibration as Measured
    from capplan.report.answer import Answer

Files = Annotated[
    list[Path] | None, typer.Argument(metavar="FILE", help="More files of --from.", show_default=False)
]
DeviceName = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE", help="cpu, cuda or cuda:N; default: cuda where there is one."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer shapes and repeats: under 3 minutes.")]
Minutes = Annotated[
    float | None, typer.Option("--minutes", metavar="N", min=0.01, max=600.0, help="Time to measure for.")
]
Threads = Annotated[
    int,
    typer.Option(
        "--threads", parser=whole("--threads", "threads"), metavar="N", help="Of a CPU; one is steadiest."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Measure although others use the device.")]
Verify = Annotated[
    str | None,
    typer.Option("--verify", metavar="MODEL", help="Run real layers of MODEL against their prediction."),
]
From = Annotated[
    Path | None,
    typer.Option("--from", metavar="FILE", help="Refit from result files of a benchmark tool instead."),
]
Compare = Annotated[
    tuple[str, str] | None,
    typer.Option("--compare", metavar="A B", help="Two calibration files, or one and the name of a device."),
]
Model = Annotated[
    str | None, typer.Option("--model", metavar="MODEL", help="Of --from, where the files do not say.")
]
Hardware = Annotated[
    str | None, typer.Option("--hardware", metavar="NAME", help="Of --from, where the files do not say.")
]
Tokens = Annotated[
    float | None,
    typer.Option("--input-tokens", metavar="TOKENS", help="Of --from, where the files do not say.", min=1),
]
OutputTokens = Annotated[
    float | None,
    typer.Option("--output-tokens", metavar="TOKENS", help="Of --from, where the files do not say.", min=1),
]
Concurrency = Annotated[
    float | None,
    typer.Option("--concurrency", metavar="N", help="Of --from, where the files do not say.", min=1),
]
Written = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Calibration file to write (also of --from, where it ends in .yaml); with --compare, --verify the answer.",
    ),
]
SUFFIXES = (".yaml", ".yml")

_MEASURED = ("device", "quick", "threads", "force", "verify", "offline")
_READ = {
    "--compare": ("compare",),
    "--from": (
        "results", "files", "model", "hardware", "tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel",
        "weight_dtype", "kv_dtype", "engine", "engine_version", "input_tokens", "output_tokens", "concurrency", "calibration",
        "offline",
    ),
    "--verify with --calibration": (*_MEASURED, "calibration"),
    "a measurement": (*_MEASURED, "minutes", "files"),
}  # fmt: skip
"""What is asked -> the parameters that it reads, besides the form of its output."""


def command(
    context: typer.Context,
    files: Files = None,
    device: DeviceName = None,
    quick: Quick = False,
    minutes: Minutes = None,
    threads: Threads = 1,
    force: Force = False,
    verify: Verify = None,
    results: From = None,
    compare: Compare = None,
    model: Model = None,
    hardware: Hardware = None,
    tensor_parallel: TensorParallel = 1,
    pipeline_parallel: PipelineParallel = 1,
    expert_parallel: ExpertParallel = 1,
    data_parallel: DataParallel = 1,
    weight_dtype: WeightDtype = None,
    kv_dtype: KvDtype = None,
    engine: Engine = "vllm",
    engine_version: EngineVersion = None,
    input_tokens: Tokens = None,
    output_tokens: OutputTokens = None,
    concurrency: Concurrency = None,
    calibration: Calibration = None,
    offline: Offline = False,
    form: Form = None,
    output: Written = None,
) -> int:
    """Measure a device and write what its kernels reach, or prove, refit or compare a calibration."""
    from capplan.report.show import show

    proof = "--verify with --calibration" if verify and calibration else "a measurement"
    _refuse_unread(context, "--compare" if compare else "--from" if results else proof)
    if compare:
        return show(_compared(*compare), form, output)
    if results:
        stated = {
            "model": model, "hardware": hardware, "engine": engine, "tensor_parallel": tensor_parallel,
            "pipeline_parallel": pipeline_parallel, "expert_parallel": expert_parallel, "data_parallel": data_parallel,
            "input_tokens": input_tokens, "output_tokens": output_tokens, "concurrency": concurrency,
            "engine_version": engine_version,
        }  # fmt: skip
        flags = {
            "weight_dtype": weight_dtype,
            "kv_dtype": kv_dtype,
            "calibration": calibration,
            "offline": offline,
        }
        calibrated = output if output and output.suffix in SUFFIXES else None
        refit = _refitted([results, *(files or [])], stated, flags, calibrated)
        return show(refit, form, None if calibrated else output)
    if files:
        raise InputError(f"{files[0]}: files are read with --from\n  see: capplan calibrate --help")
    if verify and calibration:
        return show(
            _verified(verify, calibration, device, threads, quick=quick, force=force, offline=offline),
            form,
            output,
        )
    answer = _calibrated(device, threads, minutes, output, verify, quick=quick, force=force, offline=offline)
    return 0 if answer is None else show(answer, form)


def _refuse_unread(context: typer.Context, asked: str) -> None:
    unread = {p.name or "" for p in context.command.params}.difference(_READ[asked], ("form", "output"))
    refuse_unread(context, unread, f"is not read by {asked}")


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _require(*libraries: str) -> None:
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise InputError(
            f"calibrate needs {' and '.join(missing)}, which this installation lacks\n"
            "  install the extra: pip install 'capplan[calibrate]'"
        )


def _opened(device: str | None, threads: int, *, force: bool) -> Any:
    _require("torch", "scipy")
    from capplan.calibrate.collectives import own_device
    from capplan.calibrate.machine import default_device, opened

    return opened(own_device(device or default_device()), threads=threads, force=force)


def _calibrated(
    device: str | None,
    threads: int,
    minutes: float | None,
    output: Path | None,
    verify: str | None,
    *,
    quick: bool,
    force: bool,
    offline: bool,
) -> "Answer | None":
    """Measure, write the file, and return what to show; None on the other ranks of a group."""
    if output is None:
        raise InputError("calibrate writes a file: name it with -o FILE.calibration.yaml")
    if not output.resolve().parent.is_dir():
        raise InputError(f"--output: the folder of {str(output)!r} does not exist; nothing was measured")
    from capplan.readers.calibration.file import calibration_text
    from capplan.readers.catalogue.model import read_model
    from capplan.report.calibrate_answer import calibration_answer
    from capplan.report.show import write_whole

    network = read_model(verify, offline=offline) if verify else None
    target = _opened(device, threads, force=force)
    from capplan.calibrate.measure import Run, calibrated

    run = Run()
    measured: Measured | None = calibrated(target, quick=quick, minutes=minutes, run=run, tell=_tell)
    if measured is None:
        return None
    write_whole(output, calibration_text(measured))
    proof = _proof(network, target, output, quick=quick) if network else []
    return calibration_answer(measured, output, proof, interrupted=run.stopped)


def _proof(network: Any, target: Any, path: Path, *, quick: bool) -> list[dict[str, Any]]:
    from capplan.calibrate.verify import verified
    from capplan.readers.calibration.measured_device import (
        device_from_calibration,
        efficiency_from_calibration,
    )
    from capplan.report.calibrate_answer import proof_rows

    device = device_from_calibration(path)
    efficiency = efficiency_from_calibration(path, device)
    return proof_rows(verified(network, target, device, efficiency, quick=quick, tell=_tell))


def _verified(
    model: str,
    calibration: Path,
    device: str | None,
    threads: int,
    *,
    quick: bool,
    force: bool,
    offline: bool,
) -> "Answer":
    from capplan.readers.calibration.file import read_calibration
    from capplan.readers.calibration.measured_device import refuse_other_machine
    from capplan.readers.catalogue.model import read_model
    from capplan.report.calibrate_answer import proof_answer

    network = read_model(model, offline=offline)
    own = read_calibration(calibration)
    target = _opened(device or own.machine.device, own.machine.threads or threads, force=force)
    refuse_other_machine(calibration, own.machine, target.machine)
    return proof_answer(
        network.name, own.machine.name, _proof(network, target, calibration, quick=quick), own.remarks
    )


def _refitted(
    paths: Sequence[Path], stated: dict[str, Any], flags: dict[str, Any], output: Path | None
) -> "Answer":
    """Refit, write the file where its name is one of a calibration, and return what to show."""
    _require("scipy")
    from capplan.calibrate.refit import refitted
    from capplan.questions.measured_replica import replica_of_result
    from capplan.readers.calibration.file import calibration_text, read_calibration_file
    from capplan.readers.results.read import read_results
    from capplan.report.calibrate_answer import refit_answer
    from capplan.report.show import write_whole

    kernels = read_calibration_file(flags["calibration"]).kernels if flags["calibration"] else None
    results = [result for path in paths for result in read_results(path, **stated)]
    found = refitted([(result, replica_of_result(result, **flags)) for result in results])
    if output:
        write_whole(output, calibration_text(kernels, found))
    return refit_answer(found, output)


def _is_calibration(name: str) -> bool:
    """Return whether a name is that of a calibration file, not of a device or of its hardware YAML."""
    path = Path(name)
    return ".calibration" in path.suffixes or (path.suffix in SUFFIXES and "hardware_specs" not in path.parts)


def _compared(first: str, second: str) -> "Answer":
    from capplan.calibrate.compare import (
        differences,
        file_side,
        machine_differences,
        repeat_notes,
        shipped_side,
    )
    from capplan.readers.calibration.file import read_calibration_file
    from capplan.readers.catalogue.efficiency import efficiency_for
    from capplan.readers.catalogue.hardware import device
    from capplan.report.calibrate_answer import comparison_answer

    own = read_calibration_file(first)
    if not _is_calibration(second):
        sheet = device(second)
        sides = file_side(own, first), shipped_side(sheet, efficiency_for(sheet), own.host)
        return comparison_answer(first, sheet.title, differences(*sides), own.notes)
    other = read_calibration_file(second)
    sides = file_side(own, first), file_side(other, second)
    notes = [*own.notes, *other.notes]
    if own.kernels and other.kernels:
        notes += machine_differences(own.kernels.machine, other.kernels.machine)
        notes += repeat_notes(own.kernels, other.kernels)
    return comparison_answer(first, second, differences(*sides), notes)
