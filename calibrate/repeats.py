"""How well published runs repeat themselves: `python -m calibrate.repeats FOLDER`.

FOLDER holds serving_measured.csv.gz. Core rows that state the same run are compared; no prediction of a run can be closer to it than its repeats are
to one another.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from calibrate.accuracy_tables import percent
from capplan.accuracy.serving import measured_columns
from capplan.questions.validation import is_core
from capplan.recorded.measured import measured_table
from docs.generators.page_tables import Table

RUN = (
    "kind", "engine", "engine_version", "model_hf_id", "weights_dtype", "kv_dtype", "gpu", "num_gpus", "tp", "pp", "ep", "dp", "isl", "osl",
    "length_distribution", "concurrency", "request_rate", "batch_static", "spec_decode", "disagg", "source_family",
)  # fmt: skip
"""Columns that say which run a row is of."""
COLUMNS = ("tpot_ms_mean", "ttft_ms_mean", "ttft_ms_p50", "output_tok_s")


def repeats(rows: Iterable[Mapping[str, str]]) -> dict[tuple[str, str], list[list[float]]]:
    """Return the values of every run that was published more than once, by kind of load and column."""
    runs: dict[tuple[str, ...], list[Mapping[str, float]]] = defaultdict(list)
    for row in rows:
        if is_core(row):
            runs[tuple(row.get(name) or "" for name in RUN)].append(measured_columns(row))
    found: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for run, measured in runs.items():
        for column in COLUMNS:
            values = [value for each in measured if (value := each.get(column))]
            if len(values) > 1:
                found[run[0], column].append(values)
    return found


def floor_of(values: Sequence[float]) -> float:
    """Return the median distance of a run's values from their mean, as a share of it.

    Examples
    --------
    >>> round(floor_of([9.0, 11.0]), 3)
    0.1
    """
    mean = sum(values) / len(values)
    return median(abs(value / mean - 1.0) for value in values)


def main(arguments: Sequence[str]) -> int:
    """Print the table of repeats."""
    rows = measured_table(Path(arguments[0]) / "serving_measured.csv.gz", "serving")[1]
    lines = []
    for (kind, column), runs in sorted(repeats(rows).items()):
        floors = sorted(floor_of(values) for values in runs)
        tenth = floors[min(len(floors) - 1, int(0.9 * len(floors)))]
        lines.append([kind, column, str(len(runs)), percent(median(floors)), percent(tenth)])
    print(Table(["load", "column", "runs with repeats", "off their mean, median", "nine of ten"], lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
