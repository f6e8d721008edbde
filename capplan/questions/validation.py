"""Files of measured results, timed kernels and logged starts -> predictions of every measured value."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import isclose, isfinite
from pathlib import Path
from typing import Any, TypeAlias

from capplan.accuracy.benchmark import Benchmark
from capplan.accuracy.bounded import Intervals, interval_of
from capplan.accuracy.cells import is_set
from capplan.accuracy.kernels import DEVICES, kernel_case, predicted_latency
from capplan.accuracy.memory import memory_predictions, predict_memory_row
from capplan.accuracy.replay import Servers, replayed_columns
from capplan.accuracy.score import (
    Prediction,
    Run,
    Score,
    SlownessByStep,
    runs_of,
    scores_by_group,
    scores_by_metric,
)
from capplan.accuracy.serving import predict_row, refused_row
from capplan.accuracy.slowness import Slowness, replica_slowness
from capplan.assumption import Assumption
from capplan.engine.versions import named_engine
from capplan.errors import CapplanError, InputError
from capplan.hardware.device import BORROWED, Device, Efficiency
from capplan.questions.benchmark_spec import benchmark_servers
from capplan.questions.gguf_speeds import gguf_row_predictions
from capplan.readers.calibration.refitted import efficiency_by
from capplan.readers.catalogue.efficiency import shipped_slowness, timed_efficiency
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import read_model
from capplan.recorded.measured import MeasuredKind, impossible_number, measured_table
from capplan.recorded.results.read import completed, read_results
from capplan.recorded.results.record import BenchmarkResult
from capplan.replica.spec import ReplicaSpec
from capplan.scenario.command_flags import StatedResult
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.workload.request_class import Target

MOST_RESULTS = 500
"""Results that are replayed together; a refit replays each of them some hundred times."""
MOST_KEPT_RUNS = 1000
"""Simulated runs of a file that are kept for rows with the same settings."""
SAME_NUMBER = 0.01
"""Relative difference up to which an option is the rounded number of a file."""
_LOAD = ("input_tokens", "output_tokens", "concurrency")
LAYOUT = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel")
"""Degrees of parallelism that a result may state."""


def results_with_replicas(
    paths: Iterable[Path], stated: StatedResult, serving: ServingFlags
) -> list[tuple[BenchmarkResult, ReplicaSpec]]:
    """Return the results of files with the replica of each; stated settings fill in those a file lacks.

    Parameters
    ----------
    paths : files of benchmark results
    stated : model, hardware and load
    serving : of all results

    Returns
    -------
    in the order of the files
    """
    said = {name: getattr(serving, name) for name in (*LAYOUT, "engine", "engine_version")} | asdict(stated)
    results = []
    for path in paths:
        found = read_results(path)
        _refuse_contradictions(found, stated, serving)
        results += [completed(result, **said) for result in found]
    if len(results) > MOST_RESULTS:
        raise InputError(
            f"{results[MOST_RESULTS].path}: {len(results):,} results are given, and capplan replays at most {MOST_RESULTS}\n"
            "  give results of different concurrencies and lengths, and of repeats only one"
        )
    return [(result, replica_of_result(result, serving)) for result in results]


def _refuse_contradictions(
    results: Iterable[BenchmarkResult], stated: StatedResult, serving: ServingFlags
) -> None:
    """Raise the error for an option that says otherwise than the file: the replay would not be of the run that was measured."""
    options = {name: getattr(serving, name) for name in LAYOUT if getattr(serving, name) != 1}
    options |= {name: value for name in _LOAD if (value := getattr(stated, name)) is not None}
    for result in results:
        for name, value in options.items():
            own = getattr(result, name)
            if own is not None and not isclose(own, value, rel_tol=SAME_NUMBER):
                raise InputError(
                    f"{result.path}: states {name} {own:g}, and --{name.replace('_', '-')} is {value:g}\n"
                    "  leave the option out, or correct the file"
                )


def replica_of_result(result: BenchmarkResult, serving: ServingFlags) -> ReplicaSpec:
    """Return the replica that a result was measured on.

    Parameters
    ----------
    result : with model, hardware, parallelism and engine, from its file or stated together with it
    serving : everything else
    """
    missing = [
        flag for flag, value in (("--model", result.model), ("--hardware", result.hardware)) if value is None
    ]
    if missing:
        raise InputError(
            f"{result.path}: a result of {result.tool} does not name all settings\n  give {' and '.join(missing)} as well"
        )
    engine = named_engine(result.engine or "vllm")[0]
    layout: dict[str, Any] = {name: getattr(result, name) or 1 for name in LAYOUT}
    said = replace(serving, **layout, engine=engine, engine_version=result.engine_version)
    return asked_replica(result.model or "", result.hardware or "", said).spec


_Supply: TypeAlias = Callable[[str], tuple[Device, Efficiency]]

METRIC = "latency_us"


def kernel_groups(row: Mapping[str, str]) -> dict[str, str]:
    """Return the groups that a timing is reported under.

    Small and large messages are separate groups: below 64 KiB latency dominates a collective.

    Examples
    --------
    >>> kernel_groups({"family": "gemm", "gpu": "h100_sxm", "dtype": "fp8", "backend": "vllm"})["family"]
    'gemm fp8'
    """
    family = row.get("family") or "unknown"
    if family == "gemm":
        family = f"gemm {row.get('dtype') or ''}".strip()
    elif row.get("message_bytes"):
        family += " >= 64 KiB" if (_number(row, "message_bytes") or 0.0) >= 65536.0 else " < 64 KiB"
    return {
        "family": family,
        "gpu": row.get("gpu") or "unknown",
        "dtype": row.get("dtype") or "unknown",
        "backend": row.get("backend") or "unknown",
    }


def _number(row: Mapping[str, str], key: str) -> float | None:
    try:
        value = float(row.get(key) or "nan")
    except ValueError:
        return None
    return value if isfinite(value) else None


def kernel_row_predictions(
    rows: Sequence[Mapping[str, str]], calibration: Path | None, intervals: Intervals
) -> Iterator[list[Prediction]]:
    """Return the prediction of each timed kernel, in order; a refusal is one without a value.

    Parameters
    ----------
    rows : of a kernel table, text by column name
    calibration : fitted numbers for the rows of the device that it was measured on
    intervals : by regime, for kernels whose fit has none
    """

    @lru_cache(maxsize=64)
    def supply(name: str) -> tuple[Device, Efficiency]:
        gpu = device(DEVICES.get(name, name))
        return gpu, efficiency_by(calibration, gpu) if calibration else timed_efficiency(gpu)

    for number, row in enumerate(rows):
        name, groups = row.get("id") or str(number), kernel_groups(row)
        measured = _number(row, METRIC)
        if measured is None or measured <= 0.0:
            yield []
            continue
        predicted, reason = _predicted(row, supply)
        prediction = Prediction(name, METRIC, measured, predicted, reason=reason, groups=groups)
        yield [
            prediction
            if predicted is None
            else _bounded(prediction, predicted, _ratios(row, supply, intervals))
        ]


def _bounded(prediction: Prediction, predicted: float, ratios: tuple[float, float] | None) -> Prediction:
    return (
        prediction
        if ratios is None
        else replace(prediction, low=predicted * ratios[0], high=predicted * ratios[1])
    )


def _ratios(row: Mapping[str, str], supply: _Supply, intervals: Intervals) -> tuple[float, float] | None:
    """Return the 80 % interval of measured over predicted values: that of the fit, else of the fit that stands in for it, else of all kernels."""
    case = kernel_case(row)
    if isinstance(case, str):
        return None
    key = case.key
    if case.part.endswith("_module"):
        key = f"latent_module/{case.part.partition('_')[0]}@{case.engine}"
    efficiency = supply(row.get("gpu") or "")[1]
    if efficiency.kinship:
        return BORROWED[efficiency.kinship].interval
    fits = efficiency.fits
    near = [fit for name, fit in fits.items() if name.partition("/")[0] == key.partition("/")[0]]
    for part in (case.part, case.part.partition("_")[0]):  # absorbed prompts are prompts
        for fit in [fits[key], *near] if key in fits else near:
            if part in fit.intervals:
                return fit.intervals[part]
    bounds = interval_of(intervals, ("kernel",))
    return None if bounds is None else (bounds.low_ratio, bounds.high_ratio)


def _predicted(row: Mapping[str, str], supply: _Supply) -> tuple[float | None, str]:
    wrong = impossible_number(row, "kernel")
    if wrong:
        return None, wrong
    try:
        value, reason = predicted_latency(row, *supply(row.get("gpu") or ""))
    except CapplanError as error:
        return None, str(error).partition("\n")[0]
    if value is None or not isfinite(value) or value <= 0.0:
        return None, reason or "the shape lacks a column that this kernel needs"
    return value, ""


MEASURED = ("weights_gib", "available_kv_gib", "kv_cache_tokens", "max_concurrency")
"""Columns that an engine logs; a cell without a number was not measured."""


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


def memory_row_predictions(
    rows: Sequence[Mapping[str, str]], intervals: Intervals
) -> Iterator[list[Prediction]]:
    """Return the predictions of each logged start, in order."""
    for number, given in enumerate(rows):
        name = given.get("id") or str(number)
        row = {key: text for key, text in given.items() if key not in MEASURED or _is_number(text)}
        wrong = impossible_number(row, "memory")
        if wrong:
            yield memory_predictions(row, name, None, wrong)
            continue
        try:
            if not row.get("model_hf_id"):
                raise InputError("model_hf_id: missing")
            network = read_model(row["model_hf_id"], offline=True)
            predicted = predict_memory_row(row, network, device(row["gpu"]))
        except CapplanError as error:
            yield memory_predictions(row, name, None, str(error).partition("\n")[0])
            continue
        yield [
            _bounded_start(prediction, intervals) for prediction in memory_predictions(row, name, predicted)
        ]


def _bounded_start(prediction: Prediction, intervals: Intervals) -> Prediction:
    bounds = interval_of(intervals, (prediction.metric,))
    if prediction.predicted is None or bounds is None:
        return prediction
    return replace(
        prediction, low=prediction.predicted * bounds.low_ratio, high=prediction.predicted * bounds.high_ratio
    )


BUILT_IN_POINTS = Path(__file__).parent.parent / "accuracy" / "data" / "measured_points.csv"
"""Measured results that come with the package, each with its source."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Predictions of one or several files, and how good they are."""

    rows: int
    predictions: tuple[Prediction, ...]
    scored: tuple[Prediction, ...]
    """Predictions of core rows, where the file marks them; else all."""
    runs: tuple[Run, ...]
    """Closed loops of core rows, as plans to choose from."""

    @property
    def predicted(self) -> int:
        """Return how many rows have a prediction."""
        return len({p.row for p in self.predictions if p.predicted is not None})

    @property
    def refused(self) -> dict[str, int]:
        """Return the number of values without a prediction by reason, most frequent first; see `misfits` for those that are none of these."""
        own = (p.reason for p in self.predictions if p.predicted is None and not p.does_not_fit)
        return dict(Counter(own).most_common())

    @property
    def misfits(self) -> dict[str, int]:
        """Return the number of rows that ran and that capplan says do not fit, by what it says: errors, not refusals."""
        rows = {p.row: p.reason for p in self.predictions if p.does_not_fit}
        return dict(Counter(rows.values()).most_common())

    @property
    def assumptions(self) -> dict[Assumption, int]:
        """Return what rows do not state and what was taken in its place, with the number of rows, most frequent first."""
        rows = {p.row: p.assumptions for p in self.predictions if p.assumptions}
        return dict(Counter(one for own in rows.values() for one in own).most_common())

    @property
    def metrics(self) -> dict[str, Score]:
        """Return the score of every column."""
        return scores_by_metric(self.scored)

    @property
    def groups(self) -> list[tuple[str, str, str, Score]]:
        """Return (grouping, group, column, score)."""
        return scores_by_group(self.scored)


def is_core(row: Mapping[str, str]) -> bool:
    """Return whether a row counts in the score: marked as core, or confidence A or B, or not marked at all."""
    core, confidence = row.get("core"), row.get("confidence")
    if core:
        return is_set(core)
    return confidence is None or confidence.strip() in {"", "A", "B"}


def serving_predictions(
    rows: Iterable[Mapping[str, str]], calibration: Path | None, intervals: Intervals
) -> Iterator[list[Prediction]]:
    """Return the predictions of each row of serving results, in order; runs with the same settings are simulated once."""

    @lru_cache(maxsize=MOST_KEPT_RUNS)
    def servers(benchmark: Benchmark) -> Servers:
        return benchmark_servers(benchmark, calibration)

    @lru_cache(maxsize=MOST_KEPT_RUNS)
    def replay(benchmark: Benchmark) -> Mapping[str, float]:
        return replayed_columns(benchmark, servers(benchmark))

    for number, row in enumerate(rows):
        wrong = impossible_number(row, "serving")
        yield (
            refused_row(row, number, wrong) if wrong else predict_row(row, number, servers, replay, intervals)
        )


def run_slowness(network_class: str, gpu: Device, efficiency: Efficiency, step_s: float) -> Slowness:
    """Return how slow the replica of a run may be, as `fleet` takes it for a limit on the mean time per output token.

    Parameters
    ----------
    network_class : dense, moe, mla
    gpu : of the replica
    efficiency : fitted numbers that it was predicted with
    step_s : [s]
        predicted mean time per output token
    """
    return replica_slowness(
        shipped_slowness(),
        (Target("tpot", "mean", step_s),),
        network_class=network_class,
        step_s=step_s,
        device=gpu,
        efficiency=efficiency,
    )


def _slowness_of_row(predictions: Sequence[Prediction], calibration: Path | None) -> SlownessByStep:
    """Return how slow the replica of a row may be, by the predicted time of a step; only predicted rows state their device and class."""
    groups = next((p.groups for p in predictions if p.groups), {})

    def slowness(step_s: float) -> Slowness:
        gpu = device(groups["device"])
        return run_slowness(groups["class"], gpu, efficiency_by(calibration, gpu), step_s)

    return slowness


def validation(
    paths: Sequence[Path],
    *,
    kind: str | None = None,
    calibration: Path | None = None,
    intervals: Intervals,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Return predictions of every measured value of the files.

    Parameters
    ----------
    paths : CSV files, gzipped or not
    kind : serving, memory, kernel or llamacpp; None infers it from the columns
    calibration : fitted numbers for the rows of the device that it was measured on
    intervals : by regime
    progress : called with rows done and the total, after each row
    """
    files = [measured_table(path, kind) for path in paths]
    if calibration is not None and {file_kind for file_kind, _ in files} <= {"memory", "llamacpp"}:
        raise InputError(
            "--calibration: concerns kernel and host times; predictions of memory and of llama.cpp do not use it"
        )
    total = sum(len(rows) for _, rows in files)
    done = 0
    every: list[Prediction] = []
    scored: list[Prediction] = []
    runs: list[Run] = []
    for file_kind, rows in files:
        core: list[tuple[dict[str, str], list[Prediction], SlownessByStep]] = []
        for row, of_row in zip(rows, _predictions(file_kind, rows, calibration, intervals), strict=True):
            every += of_row
            if is_core(row):
                scored += of_row
                core.append((row, of_row, _slowness_of_row(of_row, calibration)))
            done += 1
            if progress:
                progress(done, total)
        if file_kind == "serving":
            runs += runs_of(core)
    return Validation(total, tuple(every), tuple(scored), tuple(runs))


def _predictions(
    kind: MeasuredKind, rows: list[dict[str, str]], calibration: Path | None, intervals: Intervals
) -> Iterator[list[Prediction]]:
    if kind == "serving":
        return serving_predictions(rows, calibration, intervals)
    if kind == "memory":
        return memory_row_predictions(rows, intervals)
    if kind == "llamacpp":
        return gguf_row_predictions(rows, intervals)
    return kernel_row_predictions(rows, calibration, intervals)
