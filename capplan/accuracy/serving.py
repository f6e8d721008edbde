"""Predict the measured columns of one row of serving results."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf, isfinite

from capplan.accuracy.benchmark import Benchmark, benchmark_of, untold
from capplan.accuracy.bounded import (
    Intervals,
    engine_generation,
    interval_on,
    network_class,
    regime_keys,
)
from capplan.accuracy.cells import is_set
from capplan.accuracy.replay import STABLE, Servers, overloaded
from capplan.accuracy.score import Prediction
from capplan.errors import CapplanError, DoesNotFitError
from capplan.replica.replica import Replica

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
COLUMNS = (
    *(f"{name}_ms_{statistic}" for name in ("ttft", "tpot", "e2e") for statistic in STATISTICS),
    "output_tok_s", "total_tok_s", "req_s",
)  # fmt: skip
"""Columns of a measured row that are predicted, where the row has them."""
PER_GPU = ("output_tok_s_per_gpu", "input_tok_s_per_gpu")
"""Columns that are predicted where no total is measured; with separate pools by the GPUs of their pool."""
OF_KIND: dict[str, tuple[str, ...]] = {"prefill_only": ("input_tok_s",), "step_time": ("step_ms", "layer_us")}
"""Kind -> further columns that are predicted of it: with answers of any length the input follows from the output."""
TOTALS = ("output_tok_s", "total_tok_s", "input_tok_s")
RATE = "request_rate"
"""The one predicted column of `online_rate_slo`."""

LOADS = {
    "online_conc": "closed", "online_rate": "open", "online_burst": "burst", "offline_burst": "burst",
    "static_batch": "static", "first_token": "static", "offline_max": "offline", "online_rate_slo": "open",
    "decode_only": "closed", "prefill_only": "closed", "step_time": "static",
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
    if column in OF_KIND["step_time"]:
        return "tpot"
    return column.partition("_")[0] if "_ms_" in column else "throughput"


def measured_columns(row: Mapping[str, str]) -> dict[str, float]:
    """Return the measured values of a row by column."""
    kind = (row.get("kind") or "").strip()
    columns = (RATE,) if kind == "online_rate_slo" else (*COLUMNS, *OF_KIND.get(kind, ()))
    values = _positive(row, columns)
    if kind != "online_rate_slo" and not values.keys() & set(TOTALS):
        values |= _positive(row, () if row.get("input_tok_s") else PER_GPU)
    if kind == "online_rate" and row.get(STABLE):
        values[STABLE] = float(is_set(row[STABLE]))
    return values


def _positive(row: Mapping[str, str], columns: Iterable[str]) -> dict[str, float]:
    """Return the cells of some columns that hold a positive number."""
    values = {}
    for column in columns:
        try:
            value = float(row.get(column) or "nan")
        except ValueError:
            continue
        if 0 < value < inf:
            values[column] = value
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
    servers_of: Callable[[Benchmark], Servers],
    replay: Callable[[Benchmark], Mapping[str, float]],
    intervals: Intervals,
) -> list[Prediction]:
    """Return one prediction for each measured value of a row; a refusal is a prediction without a value.

    Parameters
    ----------
    row : text by column name
    number : of the row, its name where it has none
    servers_of : the engines that ran it
    replay : returns the columns that its engines would have produced
    intervals : by regime
    """
    name, weight = row.get("id") or str(number), row_weight(row)
    servers: Servers | None = None
    benchmark: Benchmark | None = None
    predicted: Mapping[str, float] = {}
    unfit = False
    try:
        benchmark = benchmark_of(row)
        servers = servers_of(benchmark)
        predicted = replay(benchmark)
        reason = (
            f"a replay of {benchmark.kind} has no such value; write the clients or the requests of the run"
        )
    except CapplanError as error:
        reason, unfit = in_one_line(error), isinstance(error, DoesNotFitError)
    groups = row_groups(row, servers.replica if servers else None, benchmark)
    unpredicted = [
        Prediction(name, column, value, None, reason=reason, does_not_fit=unfit, weight=weight, groups=groups)
        for column, value in measured_columns(row).items()
    ]
    if benchmark is None:
        return unpredicted
    hidden = untold(row, benchmark)
    return [
        replace(one, reason=hidden.reason)
        if hidden and hidden.hides(one.metric)
        else _predicted(one, predicted, benchmark, servers, intervals)
        for one in unpredicted
    ]


def _predicted(
    one: Prediction,
    predicted: Mapping[str, float],
    benchmark: Benchmark,
    servers: Servers | None,
    intervals: Intervals,
) -> Prediction:
    """Return a measured value with what a replay came to and its interval; as it is where the replay has no such value."""
    value = predicted.get(one.metric)
    if value is None or servers is None:
        return one
    if one.metric == STABLE:
        return replace(one, predicted=value, reason="")
    if value <= 0:
        return one
    keys = prediction_keys(one.metric, load_of(benchmark, predicted), servers.replica)
    spec = servers.replica.spec
    bounds = interval_on(intervals, keys, spec.device, spec.efficiency.unmeasured)
    return replace(
        one,
        predicted=value,
        low=value * bounds.low_ratio,
        high=value * bounds.high_ratio,
        reason="",
        assumptions=(*benchmark.assumptions, *servers.assumptions),
    )


def in_one_line(error: CapplanError) -> str:
    r"""Return what is wrong and the way out, which errors write under each other, on one line.

    Examples
    --------
    >>> in_one_line(CapplanError("tp: missing\n  write tp"))
    'tp: missing; write tp'
    """
    wrong, *ways = str(error).splitlines()
    return "; ".join([wrong.rstrip("."), *(way.strip() for way in ways[:1])])


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
