"""Files of measured results -> predictions of every measured value in them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capplan.accuracy.benchmark import Benchmark, is_set
from capplan.accuracy.decisions import Run, runs_of
from capplan.accuracy.intervals import Intervals
from capplan.accuracy.score import Prediction, Score, scores_by_group, scores_by_metric
from capplan.accuracy.serving import predict_row, refused_row
from capplan.errors import InputError
from capplan.questions.benchmark_spec import benchmark_spec
from capplan.recorded.measured.row_ranges import impossible_number
from capplan.recorded.measured.table import MeasuredKind, measured_table
from capplan.replica.replica import Replica, replica_of

BUILT_IN_POINTS = Path(__file__).parent.parent / "accuracy" / "data" / "measured_points.csv"
"""Measured results that come with the package, each with its source."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Predictions of one or several files, and how good they are."""

    rows: int
    predictions: tuple[Prediction, ...]
    scored: tuple[Prediction, ...]
    """Those of core rows, where the file marks them; else all."""
    runs: tuple[Run, ...]
    """Closed loops of core rows, as plans to choose from."""

    @property
    def predicted(self) -> int:
        """Return how many rows have a prediction."""
        return len({p.row for p in self.predictions if p.predicted is not None})

    @property
    def refused(self) -> dict[str, int]:
        """Return the number of values without a prediction by reason, most frequent first."""
        return dict(Counter(p.reason for p in self.predictions if p.predicted is None).most_common())

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
    """Return the predictions of each row of serving results, in order."""

    def replica(benchmark: Benchmark) -> Replica:
        return replica_of(benchmark_spec(benchmark, calibration))

    for number, row in enumerate(rows):
        wrong = impossible_number(row, "serving")
        yield refused_row(row, number, wrong) if wrong else predict_row(row, number, replica, intervals)


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
    kind : serving, memory or kernel; None infers it from the columns
    calibration : fitted numbers for the rows of the device that it was measured on
    intervals : by regime
    progress : called with rows done and the total, after each row
    """
    files = [measured_table(path, kind) for path in paths]
    if calibration is not None and {file_kind for file_kind, _ in files} == {"memory"}:
        raise InputError("--calibration: concerns kernel and host times; memory predictions do not use it")
    total = sum(len(rows) for _, rows in files)
    done = 0
    every: list[Prediction] = []
    scored: list[Prediction] = []
    runs: list[Run] = []
    for file_kind, rows in files:
        core: list[tuple[dict[str, str], list[Prediction]]] = []
        for row, of_row in zip(rows, _predictions(file_kind, rows, calibration, intervals), strict=True):
            every += of_row
            if is_core(row):
                scored += of_row
                core.append((row, of_row))
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
        from capplan.questions.memory_rows import memory_row_predictions

        return memory_row_predictions(rows, intervals)
    from capplan.questions.kernel_rows import kernel_row_predictions

    return kernel_row_predictions(rows, calibration, intervals)
