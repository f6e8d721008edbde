"""Slowness of measured open-loop runs: for each value, the slowness of the replica at which the replay reproduces it.

`calibrate/slowness.csv` holds them, each run predicted with the host numbers of the other groups; written by
`python -m calibrate.fit_serving`.
"""

import csv
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np

from calibrate.host_rows import Item, replica_with
from capplan.accuracy.replay import overloaded, replayed_columns, slowed_columns
from capplan.accuracy.serving import measured_columns, network_class
from capplan.accuracy.slowness import Load, slowness_at
from capplan.engine.profile import HostOverhead
from capplan.errors import CapplanError
from capplan.numbers import Array

SLOW_RUNS_FILE = Path(__file__).parent / "slowness.csv"

SLOWNESSES: Array = np.geomspace(0.3, 3.5, 21)
"""Slownesses of a replica that a run is replayed with."""


@dataclass(frozen=True, slots=True)
class SlowValue:
    """One measured latency of an open-loop run."""

    row: str
    group: str
    """Source, model and device."""
    network_class: str
    load: Load
    step_s: float
    """Predicted time per output token."""
    column: str
    ratio: float
    """Measured over predicted."""
    slowness: float
    """Slowness of the replica at which the replay reproduces the measured value."""


def slow_values(item: Item, host: HostOverhead) -> list[SlowValue]:
    """Return every measured latency of an open-loop run with its slowness, predicted with some host times."""
    replica = replica_with(item, host)
    try:
        usual = replayed_columns(item.benchmark, replica)
        replays = [slowed_columns(item.benchmark, replica, float(s)) for s in SLOWNESSES]
    except CapplanError:
        return []
    own = partial(
        SlowValue,
        row=item.row.get("id", ""),
        group=item.group,
        network_class=network_class(replica.spec.network),
        load="overload" if overloaded(item.benchmark, usual) else "open",
        step_s=usual["tpot_ms_mean"] / 1e3,
    )
    return [
        own(
            column=column,
            ratio=measured / usual[column],
            slowness=slowness_at(SLOWNESSES, np.array([columns[column] for columns in replays]), measured),
        )
        for column, measured in measured_columns(item.row).items()
        if column.partition("_")[0] in {"ttft", "tpot"}
    ]


def slow_runs_text(values: Iterable[SlowValue]) -> str:
    """Return the file of slownesses."""
    lines = StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(field.name for field in fields(SlowValue))
    for value in values:
        writer.writerow(f"{x:.5g}" if isinstance(x, float) else x for x in astuple(value))
    return lines.getvalue()


def slow_runs(path: Path = SLOW_RUNS_FILE) -> list[SlowValue]:
    """Return the slownesses of the last fit."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            SlowValue(
                row["row"],
                row["group"],
                row["network_class"],
                "overload" if row["load"] == "overload" else "open",
                float(row["step_s"]),
                row["column"],
                float(row["ratio"]),
                float(row["slowness"]),
            )
            for row in csv.DictReader(file)
        ]
