"""Slowness of measured servers: for each value of a run, the slowness of the replica at which the replay reproduces it.

Runs of servers whose engine has a process of its own, within capacity: plans are made for such. In a closed loop everything takes
longer by the slowness, so it is measured over predicted; its slowest first tokens hold cold starts and the first burst, and say nothing.
`calibrate/slowness.csv` holds them, each run predicted with the host numbers of the other groups; written by
`python -m calibrate.fit_serving`.
"""

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.host_rows import Item, replica_with
from capplan.accuracy.benchmark import Benchmark
from capplan.accuracy.bounded import network_class
from capplan.accuracy.replay import Servers, overloaded, replayed_columns
from capplan.accuracy.serving import measured_columns
from capplan.engine.profile import HostOverhead
from capplan.errors import CapplanError
from capplan.numbers import Array
from capplan.replica.replica import Replica

SLOW_RUNS_FILE = Path(__file__).parent / "slowness.csv"

SLOWNESSES: Array = np.geomspace(0.3, 3.5, 21)
"""Slownesses of a replica that a run is replayed with."""
LATEST = 1e12
"""Latency that stands for an infinite one."""


@dataclass(frozen=True, slots=True)
class SlowValue:
    """One measured latency of a run."""

    row: str
    group: str
    """Source, model and device."""
    network_class: str
    is_open: bool
    """Requests arrive at a rate; else clients send them one after the other."""
    step_s: float
    """Predicted time per output token."""
    column: str
    ratio: float
    """Measured over predicted."""
    slowness: float
    """Slowness of the replica at which the replay reproduces the measured value."""


def slowed_columns(benchmark: Benchmark, replica: Replica, slowness: float) -> dict[str, float]:
    """Return the latency columns of an open loop on a replica whose every step takes longer.

    Slowing everything stretches time: s times as slow at r requests per second behaves as the original at r s, stretched by s.

    Parameters
    ----------
    benchmark : an open loop
    replica : as it is predicted
    slowness : [-]
        s

    Returns
    -------
    columns in milliseconds
    """
    rate = benchmark.request_rate or 0.0
    sent_s = benchmark.stage_s and benchmark.stage_s / slowness
    faster = replace(benchmark, request_rate=rate * slowness, stage_s=sent_s)
    columns = replayed_columns(faster, Servers(replica))
    return {name: value * slowness for name, value in columns.items() if "_ms_" in name}


def slowness_at(slownesses: Array, latencies: Array, latency: float) -> float:
    """Return the slowness at which a replica has a latency: for a measured one, how slow it was; for a limit, how slow it may be.

    Log-log interpolation; beyond the first and last slowness, latencies are taken as proportional to it, which is true where
    nothing queues: the last slowness should reach the limit.

    Parameters
    ----------
    slownesses : [-]
        ascending
    latencies : [s]
        there; infinite where the replica no longer keeps up
    latency : [s]
        any unit that is that of the latencies

    Returns
    -------
    [-]
        slowness

    Examples
    --------
    Latencies that grow as the slowness does:

    >>> round(slowness_at(np.array([1.0, 2.0]), np.array([10.0, 20.0]), 15.0), 3)
    1.5

    References
    ----------
    Press et al. 2007, "Numerical Recipes", section 3.2.
    """
    reached = np.maximum.accumulate(np.log(np.minimum(latencies, LATEST)))
    reached = reached + 1e-9 * np.arange(reached.size)
    wanted = math.log(latency)
    beyond = min(wanted - reached[0], 0.0) + max(wanted - reached[-1], 0.0)
    return math.exp(float(np.interp(wanted, reached, np.log(slownesses))) + beyond)


def slow_values(item: Item, host: HostOverhead) -> list[SlowValue]:
    """Return every measured latency of a run with its slowness, predicted with some host times; none of an open loop beyond capacity."""
    replica, is_open = replica_with(item, host), item.benchmark.request_rate is not None
    try:
        usual = replayed_columns(item.benchmark, Servers(replica))
        if overloaded(item.benchmark, usual):
            return []
        replays = [slowed_columns(item.benchmark, replica, float(s)) for s in SLOWNESSES if is_open]
    except CapplanError:
        return []
    own = partial(
        SlowValue,
        row=item.row.get("id", ""),
        group=item.group,
        network_class=network_class(replica.spec.network),
        is_open=is_open,
        step_s=usual["tpot_ms_mean"] / 1e3,
    )
    return [
        own(
            column=column,
            ratio=measured / usual[column],
            slowness=slowness_at(SLOWNESSES, np.array([columns[column] for columns in replays]), measured)
            if is_open
            else measured / usual[column],
        )
        for column, measured in measured_columns(item.row).items()
        if column.startswith(("ttft_", "tpot_") if is_open else ("ttft_ms_mean", "ttft_ms_p50", "tpot_"))
    ]


def records_text(kind: type[Any], values: Iterable[Any]) -> str:
    """Return a file of records of one kind, with five significant digits; empty cells are None."""
    lines = StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    names = [field.name for field in fields(kind)]
    writer.writerow(names)
    for value in values:
        cells = (getattr(value, name) for name in names)
        writer.writerow("" if x is None else f"{x:.5g}" if isinstance(x, float) else x for x in cells)
    return lines.getvalue()


def slow_runs_text(values: Iterable[SlowValue]) -> str:
    """Return the file of slownesses."""
    return records_text(SlowValue, values)


def slow_runs(path: Path = SLOW_RUNS_FILE) -> list[SlowValue]:
    """Return the slownesses of the last fit."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            SlowValue(
                row["row"],
                row["group"],
                row["network_class"],
                row["is_open"] == "True",
                float(row["step_s"]),
                row["column"],
                float(row["ratio"]),
                float(row["slowness"]),
            )
            for row in csv.DictReader(file)
        ]
