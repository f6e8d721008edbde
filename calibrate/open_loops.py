"""Open loops predicted without their source: which saturate, and how far latencies are off, as a section of docs/accuracy.md.

`calibrate/open_loops.csv` holds every value of an open loop, core row or not, predicted with the host numbers that all other sources ask
for; written by `python -m calibrate.fit_serving`.
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from calibrate.accuracy_tables import markdown, percent
from calibrate.host_rows import Item, replica_with
from calibrate.slow_runs import records_text
from calibrate.targets import OPEN_LOOPS, SATURATION, AccuracyTarget
from capplan.accuracy.benchmark import Benchmark, benchmark_of, source_of
from capplan.accuracy.replay import STABLE, Servers, replayed_columns
from capplan.accuracy.score import Prediction, scored
from capplan.accuracy.serving import measured_columns, predict_row, row_weight
from capplan.engine.profile import HostOverhead
from capplan.errors import CapplanError
from capplan.questions.benchmark_spec import benchmark_servers
from capplan.readers.catalogue.efficiency import shipped_intervals
from capplan.readers.catalogue.recipes import recipe_settings

OPEN_LOOPS_FILE = Path(__file__).parent / "open_loops.csv"

LOADS = ("within capacity", "saturated")

IN_CLIENT = ", engine in the client's process"
"""Ending of the source of such runs: what they measure is the client's processor."""


@dataclass(frozen=True, slots=True)
class OpenValue:
    """One measured value of an open loop and its prediction."""

    row: str
    source: str
    """Publisher; runs with the engine in the client's process apart."""
    load: str
    """One of LOADS: as the row says, else as predicted."""
    column: str
    measured: float
    predicted: float | None
    """None: refused."""
    weight: float

    @property
    def ratio(self) -> float:
        """Return predicted over measured."""
        return (self.predicted or 0.0) / self.measured


def open_values(
    row: Mapping[str, str], number: int, host_of: Callable[[Item], HostOverhead]
) -> list[OpenValue]:
    """Return every value of an open loop, predicted with some host times.

    Parameters
    ----------
    row : text by column name
    number : of the row
    host_of : host times of a row
    """
    columns: dict[str, float] = {}

    @lru_cache(maxsize=1)
    def servers(benchmark: Benchmark) -> Servers:
        usual = benchmark_servers(benchmark)
        item = Item(row, benchmark, usual.replica, row_weight(row), row.get("group") or "")
        host = host_of(item)
        decode = usual.decode and replica_with(replace(item, replica=usual.decode), host)
        return replace(usual, replica=replica_with(item, host), decode=decode)

    def replay(benchmark: Benchmark) -> Mapping[str, float]:
        columns.update(replayed_columns(benchmark, servers(benchmark)))
        return columns

    predictions = predict_row(
        row, number, lambda benchmark: servers(benchmark).replica, replay, shipped_intervals()
    )
    stable = measured_columns(row).get(STABLE, columns.get(STABLE, 1.0))
    source = source_of(row) + (IN_CLIENT if runs_in_client(row) else "")
    return [
        OpenValue(p.row, source, LOADS[stable == 0.0], p.metric, p.measured, p.predicted, p.weight)
        for p in predictions
    ]


def runs_in_client(row: Mapping[str, str]) -> bool:
    """Return whether the client of a row runs the engine in its own process, by the scripts of its source."""
    try:
        return bool(recipe_settings(benchmark_of(row)).embedded)
    except CapplanError:
        return False


def open_loops_text(values: Iterable[OpenValue]) -> str:
    """Return the file of open loops."""
    return records_text(OpenValue, values)


def open_loops(path: Path = OPEN_LOOPS_FILE) -> list[OpenValue]:
    """Return the open loops of the last fit."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            OpenValue(
                row["row"],
                row["source"],
                row["load"],
                row["column"],
                float(row["measured"]),
                float(row["predicted"]) if row["predicted"] else None,
                float(row["weight"]),
            )
            for row in csv.DictReader(file)
        ]


def _first_columns(values: Sequence[OpenValue], columns: Sequence[str]) -> list[OpenValue]:
    """Return one value of each row: of the first of these columns that it has."""
    found: dict[str, OpenValue] = {}
    for column in reversed(columns):
        found.update({value.row: value for value in values if value.column == column})
    return [value for value in found.values() if value.predicted]


def _error(values: Sequence[OpenValue]) -> float | None:
    """Return the weighted median error; None of no value."""
    return scored(
        [Prediction(v.row, v.column, v.measured, v.predicted, weight=v.weight) for v in values]
    ).median_ape


def _cell(values: Sequence[OpenValue], target: AccuracyTarget) -> str:
    own = _first_columns(values, target.columns)
    error = _error(own)
    return "" if error is None else f"{percent(error)} of {len(own)}"


def saturation_of(values: Sequence[OpenValue]) -> tuple[int, int]:
    """Return how many rows say whether they saturate, and for how many of them the prediction is right; a refused row is not."""
    own = [value for value in values if value.column == STABLE]
    return len(own), sum(value.predicted == value.measured for value in own)


def source_table(values: Sequence[OpenValue]) -> str:
    """Return the errors by source and load: median error and number of values."""
    rows = []
    for source in sorted({value.source for value in values}):
        for load in LOADS:
            own = [value for value in values if (value.source, value.load) == (source, load)]
            stated, right = saturation_of(own)
            cells = [_cell(own, target) for target in OPEN_LOOPS]
            if stated or any(cells):
                told = f"{right} of {stated}" if stated else ""
                rows.append(
                    [
                        source,
                        load,
                        f"{len({value.row for value in own if value.predicted is not None}):,}",
                        told,
                        *cells,
                    ]
                )
    titles = [target.title for target in OPEN_LOOPS]
    return markdown(["source, left out", "load", "rows", "saturates: right", *titles], rows)


def target_table(values: Sequence[OpenValue]) -> str:
    """Return the targets of open loops with what was reached within capacity, over sources and of the source in the middle."""
    stated, right = saturation_of(values)
    share = right / stated if stated else 0.0
    rows = [
        [
            "saturates or not",
            f"{stated:,}",
            f"right in {percent(SATURATION)}",
            percent(share),
            "",
            "yes" if share >= SATURATION else "**no**",
        ]
    ]
    within = [value for value in values if value.load == LOADS[0]]
    for target in OPEN_LOOPS:
        own = _first_columns(within, target.columns)
        error = _error(own)
        sources = sorted({value.source for value in own})
        each = ", ".join(
            f"{name} {percent(_error([v for v in own if v.source == name]))}" for name in sources
        )
        rows.append(
            [
                target.title,
                f"{len(own):,}",
                percent(target.limit),
                percent(error),
                each,
                "yes" if target.met(error) else "**no**",
            ]
        )
    return markdown(
        ["what, within capacity", "values", "target", "source left out", "by source", "met"], rows
    )


def wrong_table(values: Sequence[OpenValue], known: Mapping[str, str]) -> str:
    """Return the rows whose saturation is predicted wrongly, with what is known of them."""
    rows = []
    for value in values:
        if value.column == STABLE and value.predicted != value.measured:
            told = "refused" if value.predicted is None else "stable" if value.predicted else "saturated"
            rows.append(
                [value.row, "stable" if value.measured else "saturated", told, known.get(value.row, "")]
            )
    return markdown(["row", "measured", "predicted", "known"], rows)


def beyond_table(values: Sequence[OpenValue], known: Sequence[tuple[str, str]]) -> str:
    """Return every row within capacity that misses a target, with predicted over measured of each, and what is known of it.

    Parameters
    ----------
    values : of open loops
    known : beginnings of the source or name of a row -> what is known; the first that fits
    """
    within = [value for value in values if value.load == LOADS[0]]
    by_target = [
        {value.row: value for value in _first_columns(within, target.columns)} for target in OPEN_LOOPS
    ]
    rows = []
    for row, source in sorted({(value.row, value.source) for value in within}, key=lambda own: own[::-1]):
        cells, missed = [], False
        for target, found in zip(OPEN_LOOPS, by_target, strict=True):
            value = found.get(row)
            off = value is not None and abs(value.ratio - 1.0) > target.limit
            missed = missed or off
            cells.append("" if value is None else f"**{value.ratio:.2f}**" if off else f"{value.ratio:.2f}")
        if missed:
            told = next((why for start, why in known if row.startswith(start) or source.endswith(start)), "")
            rows.append([row, *cells, told])
    titles = [target.title for target in OPEN_LOOPS]
    return markdown(["row", *titles, "known"], rows)
