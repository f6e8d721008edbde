"""Open loops predicted without their source: which saturate, and how far latencies are off, as docs/evidence/open-loops.md.

`calibrate/open_loops.csv` holds every value of an open loop, core row or not, predicted with the host numbers that all other sources ask
for; written by `python -m calibrate.fit_serving`.
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import median

from calibrate.accuracy_tables import percent
from calibrate.host_rows import Item, replica_with
from calibrate.open_loop_causes import Cause, Known
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
from docs.generators.page_tables import Table

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

    predictions = predict_row(row, number, servers, replay, shipped_intervals())
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


def set_of(value: OpenValue) -> str:
    """Return the set of runs that a row belongs to: its name without the number, runs of an engine in the client's process separately.

    Examples
    --------
    >>> set_of(OpenValue("llmd-p2p-kv-0017", "llm-d", LOADS[0], "stable", 1.0, 1.0, 1.0))
    'llmd-p2p-kv'
    """
    return value.row.rpartition("-")[0] + (IN_CLIENT if value.source.endswith(IN_CLIENT) else "")


def set_table(values: Sequence[OpenValue], known: Known) -> Table:
    """Return the errors by set of runs and load: median error and number of values, within capacity whether it meets the target, and causes of what does not."""
    rows = []
    for name in sorted({set_of(value) for value in values}):
        for load in LOADS:
            own = [value for value in values if (set_of(value), value.load) == (name, load)]
            stated, right = saturation_of(own)
            cells = [_judged_cell(own, target, load) for target in OPEN_LOOPS]
            if not stated and not any(cells):
                continue
            missed = [
                m
                for target in OPEN_LOOPS
                if "**" in _judged_cell(own, target, load)
                for m in _misses(own, target)
            ]
            causes = [known.cause_of(value.row, value.source) for value in missed]
            names = ", ".join(dict.fromkeys(cause.name for cause in causes if cause))
            count = len({value.row for value in own if value.predicted is not None})
            told = f"{right} of {stated}" if stated else ""
            rows.append([name, load, f"{count:,}", told, *cells, names])
    titles = [target.title for target in OPEN_LOOPS]
    head = ["runs, source left out", "load", "rows", "saturates: right", *titles, "causes of what is missed"]
    return Table(head, rows)


def _judged_cell(values: Sequence[OpenValue], target: AccuracyTarget, load: str) -> str:
    cell = _cell(values, target)
    if not cell or load != LOADS[0]:
        return cell
    met = target.met(_error(_first_columns(values, target.columns)))
    return f"{cell}, met" if met else f"**{cell}, missed**"


def _misses(values: Sequence[OpenValue], target: AccuracyTarget) -> list[OpenValue]:
    """Return the values of a target that are off by more than its limit."""
    return [
        value for value in _first_columns(values, target.columns) if abs(value.ratio - 1.0) > target.limit
    ]


def causes_told(values: Sequence[OpenValue], known: Known) -> list[tuple[Cause, str]]:
    """Return each cause of rows within capacity that miss a target, with their number and the median of predicted over measured of what misses."""
    within = [value for value in values if value.load == LOADS[0]]
    missed = {target.title: _misses(within, target) for target in OPEN_LOOPS}
    told = []
    for cause in known.causes:
        own = {
            title: [value for value in found if known.cause_of(value.row, value.source) is cause]
            for title, found in missed.items()
        }
        count = len({value.row for found in own.values() for value in found})
        if count:
            ratios = [
                f"{title} {median(value.ratio for value in found):.2f} of what was measured in {len(found)}"
                for title, found in own.items()
                if found
            ]
            told.append((cause, f"{count} row{'s' if count > 1 else ''}: {'; '.join(ratios)}"))
    return told


def own_process_table(values: Sequence[OpenValue]) -> Table:
    """Return the errors within capacity of open loops whose engine has a process of its own, and of all."""
    within = [value for value in values if value.load == LOADS[0]]
    served = [value for value in within if not value.source.endswith(IN_CLIENT)]
    rows = [
        [target.title, *(percent(_error(_first_columns(part, target.columns))) for part in (served, within))]
        for target in OPEN_LOOPS
    ]
    return Table(["what, source left out", "engine in a process of its own", "all runs"], rows)


def target_table(values: Sequence[OpenValue]) -> Table:
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
    served = [value for value in within if not value.source.endswith(IN_CLIENT)]
    for target in OPEN_LOOPS:
        for title, part in (
            (target.title, within),
            (f"{target.title}, engine in a process of its own", served),
        ):
            own = _first_columns(part, target.columns)
            if part is served and len(own) == len(_first_columns(within, target.columns)):
                continue
            error = _error(own)
            sources = sorted({value.source for value in own})
            each = ", ".join(
                f"{name} {percent(_error([v for v in own if v.source == name]))}" for name in sources
            )
            met = "yes" if target.met(error) else "**no**"
            rows.append([title, f"{len(own):,}", percent(target.limit), percent(error), each, met])
    return Table(["what, within capacity", "values", "target", "source left out", "by source", "met"], rows)


def wrong_table(values: Sequence[OpenValue], known: Mapping[str, str]) -> Table:
    """Return the rows whose saturation is predicted wrongly, with what is known of them."""
    rows = []
    for value in values:
        if value.column == STABLE and value.predicted != value.measured:
            told = "refused" if value.predicted is None else "stable" if value.predicted else "saturated"
            rows.append(
                [value.row, "stable" if value.measured else "saturated", told, known.get(value.row, "")]
            )
    return Table(["row", "measured", "predicted", "known"], rows)


def beyond_table(values: Sequence[OpenValue], known: Known) -> Table:
    """Return every row within capacity that misses a target, with predicted over measured of each, and its cause."""
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
            cause = known.cause_of(row, source)
            told = "not explained" if cause is None else f"{cause.name} (explained: {cause.explained})"
            rows.append([row, *cells, told])
    titles = [target.title for target in OPEN_LOOPS]
    return Table(["row", *(f"{title}, predicted over measured" for title in titles), "cause"], rows)
