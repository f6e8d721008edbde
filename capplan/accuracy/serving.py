"""Predict the measured columns of one row of serving results."""

from collections.abc import Callable, Mapping
from math import inf, isfinite

from capplan.accuracy.benchmark import Benchmark, benchmark_of, is_set, untold
from capplan.accuracy.bounded import (
    Intervals,
    engine_generation,
    interval_of,
    network_class,
    regime_keys,
    widest,
)
from capplan.accuracy.replay import STABLE, overloaded
from capplan.accuracy.score import Prediction
from capplan.errors import CapplanError
from capplan.replica.replica import Replica

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
COLUMNS = (
    *(f"{name}_ms_{statistic}" for name in ("ttft", "tpot", "e2e") for statistic in STATISTICS),
    "output_tok_s", "total_tok_s", "req_s",
)  # fmt: skip
"""Columns of a measured row that are predicted, where the row has them."""
RATE = "request_rate"
"""The one predicted column of `online_rate_slo`."""

LOADS = {
    "online_conc": "closed", "online_rate": "open", "online_burst": "burst", "offline_burst": "burst",
    "static_batch": "static", "first_token": "static", "offline_max": "offline", "online_rate_slo": "open",
}  # fmt: skip
"""Kind of a row -> load of its regime."""


IN_CLIENT = "_in_client"
"""Ending of the load of runs whose client runs the engine in its own process; no plan does."""
TIMED_LOADS = ("open", "overload")
"""Loads with intervals of their own for such runs: the process also sends requests at their times, which delays the engine."""


def quantity_of(column: str) -> str:
    """Return the quantity whose interval a column takes.

    Examples
    --------
    >>> quantity_of("tpot_ms_p50"), quantity_of("total_tok_s")
    ('tpot', 'throughput')
    """
    return column.partition("_")[0] if "_ms_" in column else "throughput"


def measured_columns(row: Mapping[str, str]) -> dict[str, float]:
    """Return the measured values of a row by column."""
    kind = (row.get("kind") or "").strip()
    values = {}
    for column in (RATE,) if kind == "online_rate_slo" else COLUMNS:
        try:
            value = float(row.get(column) or "nan")
        except ValueError:
            continue
        if 0 < value < inf:
            values[column] = value
    if kind == "online_rate" and row.get(STABLE):
        values[STABLE] = float(is_set(row[STABLE]))
    return values


def row_groups(
    row: Mapping[str, str], replica: Replica | None, benchmark: Benchmark | None
) -> dict[str, str]:
    """Return the groups that a row is reported under."""
    groups = {
        "source": row.get("source_family") or row.get("source") or "unknown",
        "device": replica.spec.device.name if replica else (row.get("gpu") or "unknown"),
        "engine": f"{row.get('engine', '')} {row.get('engine_version', '')}".strip(),
        "load": row.get("kind") or "unknown",
    }
    if replica:
        groups["class"] = network_class(replica.spec.network)
    if benchmark:
        groups["ranks"] = f"tp{benchmark.sharding.tensor:g}"
    return groups


def row_weight(row: Mapping[str, str]) -> float:
    """Return the weight of a row; 1 where it has no number.

    Examples
    --------
    >>> row_weight({"weight": "0.25"}), row_weight({"weight": "many"})
    (0.25, 1.0)
    """
    try:
        weight = float(row.get("weight") or 1.0)
    except ValueError:
        return 1.0
    return weight if isfinite(weight) and weight >= 0.0 else 1.0


def refused_row(row: Mapping[str, str], number: int, reason: str) -> list[Prediction]:
    """Return one refusal for each measured value of a row."""
    name, weight, groups = row.get("id") or str(number), row_weight(row), row_groups(row, None, None)
    return [
        Prediction(name, column, value, None, reason=reason, weight=weight, groups=groups)
        for column, value in measured_columns(row).items()
    ]


def predict_row(
    row: Mapping[str, str],
    number: int,
    replica_of_benchmark: Callable[[Benchmark], Replica],
    replay: Callable[[Benchmark], Mapping[str, float]],
    intervals: Intervals,
) -> list[Prediction]:
    """Return one prediction for each measured value of a row; a refusal is a prediction without a value.

    Parameters
    ----------
    row : text by column name
    number : of the row, its name where it has none
    replica_of_benchmark : the replica that ran it
    replay : returns the columns that its engines would have produced
    intervals : by regime
    """
    name, weight = row.get("id") or str(number), row_weight(row)
    measured = measured_columns(row)
    replica: Replica | None = None
    benchmark: Benchmark | None = None
    predicted: Mapping[str, float] = {}
    try:
        benchmark = benchmark_of(row)
        replica = replica_of_benchmark(benchmark)
        predicted = replay(benchmark)
        reason = "the simulated run has no such value"
    except CapplanError as error:
        reason = str(error).partition("\n")[0]
    groups = row_groups(row, replica, benchmark)
    hidden = untold(row, benchmark.requests) if benchmark else None
    out = []
    for column, value in measured.items():
        prediction = predicted.get(column)
        if hidden and not column.startswith(hidden[1]):
            out.append(Prediction(name, column, value, None, reason=hidden[0], weight=weight, groups=groups))
            continue
        if column == STABLE and prediction is not None:
            out.append(Prediction(name, column, value, prediction, weight=weight, groups=groups))
            continue
        if prediction is None or prediction <= 0 or replica is None or benchmark is None:
            out.append(Prediction(name, column, value, None, reason=reason, weight=weight, groups=groups))
            continue
        load = load_of(benchmark, predicted)
        keys = prediction_keys(column, load, replica)
        bounds = interval_of(intervals, keys) or widest(intervals)
        low, high = prediction * bounds.low_ratio, prediction * bounds.high_ratio
        out.append(Prediction(name, column, value, prediction, low, high, weight=weight, groups=groups))
    return out


def load_of(benchmark: Benchmark, columns: Mapping[str, float]) -> str:
    """Return the load of a row's regime; an overloaded open loop is a separate one."""
    return "overload" if overloaded(benchmark, columns) else LOADS[benchmark.kind]


def prediction_keys(column: str, load: str, replica: Replica) -> tuple[str, ...]:
    """Return the regimes of one predicted value, narrowest first; open loops of an engine that their client runs have regimes of their own."""
    statistic = column.rpartition("_")[2] if "_ms_" in column else "mean"
    inside = load in TIMED_LOADS and replica.spec.profile.streams_in_engine and not replica.spec.offline
    return regime_keys(
        quantity_of(column),
        f"{load}{IN_CLIENT}" if inside else load,
        network_class(replica.spec.network),
        replica.label,
        statistic,
        engine_generation(replica.spec.profile),
    )
