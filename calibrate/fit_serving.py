"""Fit what the host adds to each step, by engine and version, and the prediction intervals, on measured results.

    python -m capplan.calibrate.fit_serving FOLDER [--intervals]

FOLDER holds serving_measured.csv.gz. Writes capplan/engine/host_times.py and capplan/accuracy/data/intervals.yaml.
A fitted number belongs to an engine and a range of versions; nothing is fitted to a model, a device or a row.
Scores are reported in sample and left out: groups (source, model, device) are dealt into folds, each fold is
predicted with numbers fitted on the others.
"""

import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, replace
from math import log
from multiprocessing import get_context
from pathlib import Path

from capplan.accuracy.benchmark import Benchmark, benchmark_of
from capplan.accuracy.intervals import Interval, residual_intervals
from capplan.accuracy.replay import replayed_columns, requests_of
from capplan.accuracy.score import Prediction, scored
from capplan.accuracy.serving import load_of, measured_columns, prediction_keys
from capplan.calibrate.left_out import left_out_text
from capplan.engine.host_times import HOST_TIMES
from capplan.engine.lookup import version_key
from capplan.engine.profile import HostOverhead
from capplan.errors import CapplanError
from capplan.inputs.benchmark_spec import benchmark_spec
from capplan.inputs.measured import measured_rows
from capplan.inputs.validation import is_core
from capplan.replica.replica import Replica, replica_of
from capplan.replica.tables import table_of_plan, with_host

ERAS: dict[str, tuple[str, ...]] = {
    "vllm": ("0.5.0", "0.7.0", "0.8.0", "0.13.0", "0.18.0"),
    "sglang": ("0.4.0",),
    "trtllm": ("0.7.0", "0.11.0", "0.14.0", "0.20.0", "1.2.0"),
}
"""Versions from which a set of numbers holds: where an engine's stack changed."""

GRAPH_TOKENS = {"vllm": {"0.8.0": 512.0, "0.13.0": 512.0, "0.18.0": 512.0}}
"""Largest mixed step under piecewise CUDA graphs: an engine default, not fitted."""

GRID: dict[str, tuple[float, ...]] = {
    "step_s": (0.0, 1e-4, 2e-4, 4e-4, 7e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 4.5e-3, 7e-3, 1e-2, 1.5e-2),
    "sequence_s": (0.0, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 4e-5, 8e-5, 1.6e-4),
    "prefill_token_s": (0.0, 3e-7, 1e-6, 2e-6, 4e-6, 8e-6, 1.5e-5, 3e-5),
    "request_s": (0.0, 3e-3, 6e-3, 1.2e-2, 2e-2, 3e-2, 4.5e-2, 6.5e-2, 1e-1, 1.5e-1, 2.2e-1),
    "decode_excess_ratio": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5),
    "prefill_excess_ratio": (0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0, 1.2, 1.5, 1.8, 2.2),
    "eager_layer_s": (0.0, 5e-5, 1e-4, 2e-4, 3e-4, 4.5e-4, 7e-4, 1e-3),
}
"""Values tried for each number."""

FINER = (1.2, 0.83)
"""Factors tried on each number after the grid."""

WORST = 0.7
"""Logarithmic errors count up to this: a row that is wrong for another reason must not steer the host."""

PROCESSES = 2

START = HostOverhead(
    step_s=1e-3,
    sequence_s=2e-6,
    prefill_token_s=2e-6,
    request_s=2e-2,
    decode_excess_ratio=0.5,
    prefill_excess_ratio=1.0,
)
"""Where every search starts, those of left-out folds too."""

FIRST_TOKEN_SHARE = 0.6
"""What an error of the time to first token counts: it repeats itself to 4 to 29 % only, time per token to 0.5 to 3.5 %."""

FOLDS = 2
MOST_ROWS = 50
"""Rows per era that steer the fit."""

JUDGED_ROWS = 200
"""Rows that choose between the results of several starts: a search along one number at a time ends where it ends."""

MOST_REQUESTS = 1000
"""Longer runs do not steer the fit, for the sake of its time; all rows are scored."""


@dataclass(frozen=True, slots=True)
class Item:
    """One row, ready to be predicted with any host times."""

    row: Mapping[str, str]
    benchmark: Benchmark
    replica: Replica
    layers: int
    weight: float
    group: str


def items_of(rows: Iterable[Mapping[str, str]]) -> list[Item]:
    """Return the core rows that can be predicted."""
    items = []
    for row in rows:
        if not is_core(row):
            continue
        try:
            benchmark = benchmark_of(row)
            spec = benchmark_spec(benchmark)
            replica = replica_of(spec)
        except CapplanError:
            continue
        layers = len(spec.network.layers)
        items.append(
            Item(row, benchmark, replica, layers, float(row.get("weight") or 1), row.get("group") or "")
        )
    return items


def era_of(item: Item) -> tuple[str, str]:
    """Return the engine and the version from which its numbers hold."""
    engine = item.replica.spec.profile.engine
    key = version_key(item.benchmark.engine_version or "") or (999, 0, 0)
    older = [since for since in ERAS[engine] if (version_key(since) or (0, 0, 0)) <= key]
    return engine, older[-1] if older else ERAS[engine][0]


def predicted_columns(item: Item, host: HostOverhead) -> dict[str, float]:
    """Return the columns of a row with some host times."""
    offline = item.replica.spec.offline
    table = table_of_plan(with_host(item.replica.device_tables, host, item.layers, offline=offline), 0)
    replica = replace(item.replica, table=table)
    try:
        return replayed_columns(item.benchmark, replica)
    except CapplanError:
        return {}


def steering_columns(item: Item) -> list[str]:
    """Return the columns that steer the fit: mean latencies of a server, throughput of a batch."""
    measured = measured_columns(item.row)
    latency = [c for c in ("ttft_ms_mean", "tpot_ms_mean") if c in measured]
    middle = [c for c in ("ttft_ms_p50", "tpot_ms_p50") if c in measured]
    whole = [c for c in ("output_tok_s",) if c in measured]
    return latency or middle or whole


def loss(items: Sequence[Item], host: HostOverhead) -> float:
    """Return the mean of the capped logarithmic errors of rows that were drawn by weight."""
    total = weight = 0.0
    for item in items:
        columns, measured = predicted_columns(item, host), measured_columns(item.row)
        for name in steering_columns(item):
            found = columns.get(name, 0.0)
            error = abs(log(found / measured[name])) if found > 0 else WORST
            share = FIRST_TOKEN_SHARE if name.startswith("ttft") else 1.0
            total += share * min(error, WORST)
            weight += share
    return total / max(weight, 1e-12)


def drawn(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most so many rows, drawn without replacement in proportion to their weights, with a fixed seed."""
    order = random.Random(0)  # noqa: S311  (a sample, not a secret)
    keyed = [(order.random() ** (1.0 / max(item.weight, 1e-6)), place) for place, item in enumerate(items)]
    return [items[place] for _, place in sorted(keyed, reverse=True)[:most]]


def fitted_host(items: Sequence[Item], start: HostOverhead, rounds: int = 2) -> HostOverhead:
    """Return host times from a search along one number at a time: over the values of GRID, then in finer steps."""
    chosen = drawn(
        [item for item in items if requests_of(item.benchmark) <= MOST_REQUESTS] or items, MOST_ROWS
    )
    best, score = start, loss(chosen, start)
    for _ in range(rounds):
        before = score
        for name, values in GRID.items():
            best, score = _along_grid(chosen, best, score, name, values)
        if before - score < 1e-3:
            break
    for name in GRID:
        for factor in FINER:
            tried = replace(best, **{name: getattr(best, name) * factor})
            found = loss(chosen, tried)
            if found < score - 1e-5:
                best, score = tried, found
    return best


def _along_grid(
    chosen: Sequence[Item], best: HostOverhead, score: float, name: str, values: Sequence[float]
) -> tuple[HostOverhead, float]:
    """Return the best value of one number, walking up and then down from where it is."""
    now = getattr(best, name)
    place = min(range(len(values)), key=lambda i: abs(values[i] - now))
    for way in (1, -1):
        at = place + way
        while 0 <= at < len(values):
            tried = replace(best, **{name: values[at]})
            found = loss(chosen, tried)
            if found >= score - 1e-5:
                break
            best, score, at = tried, found, at + way
    return best, score


def predictions_with(items: Sequence[Item], host: HostOverhead) -> list[tuple[Item, Prediction]]:
    """Return one prediction for each measured value."""
    out = []
    for item in items:
        columns = predicted_columns(item, host)
        for name, value in measured_columns(item.row).items():
            found = columns.get(name)
            kind = item.row.get("kind", "")
            out.append(
                (item, Prediction(item.row.get("id", ""), f"{kind}:{name}", value, found, weight=item.weight))
            )
    return out


def fit_era(
    key: tuple[str, str], members: Sequence[Item]
) -> tuple[HostOverhead, list[tuple[Item, Prediction]]]:
    """Return the numbers of one era, and predictions of its rows with numbers fitted on other groups."""
    engine, since = key
    graphs = GRAPH_TOKENS.get(engine, {}).get(since, 0.0)
    start = replace(START, graph_tokens=graphs)
    standing = HOST_TIMES[engine].get(since)
    tried = [fitted_host(members, one) for one in (start, standing) if one]
    tried += [standing] if standing else []
    judged = drawn(members, JUDGED_ROWS)
    host = min(tried, key=lambda one: loss(judged, one))
    print(f"{engine} {since}: {len(members)} rows, {astuple(host)}", file=sys.stderr, flush=True)
    groups = sorted({item.group for item in members})
    left_out: list[tuple[Item, Prediction]] = []
    for fold in range(FOLDS):
        held = set(groups[fold::FOLDS])
        rest = [item for item in members if item.group not in held]
        own = fitted_host(rest, start, rounds=1) if rest and held else host
        left_out += predictions_with([item for item in members if item.group in held], own)
    return host, left_out


def fit_all(
    items: Sequence[Item],
) -> tuple[dict[str, dict[str, HostOverhead]], list[tuple[Item, Prediction]]]:
    """Return the numbers of every era, and predictions of rows left out of the fit that made them."""
    by_era: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        by_era.setdefault(era_of(item), []).append(item)
    order = sorted(by_era, key=lambda key: -len(by_era[key]))
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("fork")) as pool:
        fits = {key: pool.submit(fit_era, key, by_era[key]) for key in order}
        found = {key: fit.result() for key, fit in fits.items()}
    times: dict[str, dict[str, HostOverhead]] = {engine: {} for engine in ERAS}
    left_out: list[tuple[Item, Prediction]] = []
    for key in sorted(found, key=lambda k: (k[0], version_key(k[1]) or (0, 0, 0))):
        times[key[0]][key[1]] = found[key][0]
        left_out += found[key][1]
    return times, left_out


def host_times_text(times: Mapping[str, Mapping[str, HostOverhead]]) -> str:
    """Return the module that holds the numbers."""
    lines = [
        '"""What the host adds to the steps of an engine, by version: fitted on measured serving results.',
        "",
    ]
    lines += [
        "Written by `python -m capplan.calibrate.fit_serving`; the method and the scores are in docs/accuracy.md."
    ]
    lines += ['"""', "", "from capplan.engine.profile import HostOverhead", ""]
    lines += ["HOST_TIMES: dict[str, dict[str, HostOverhead]] = {"]
    count = 0
    for engine, eras in times.items():
        lines.append(f'    "{engine}": {{')
        for since, host in eras.items():
            numbers = ", ".join(f"{value:g}" for value in astuple(host))
            lines.append(f'        "{since}": HostOverhead({numbers}),')
            count += len(GRID)
        lines.append("    },")
    lines += ["}", '"""Engine -> version from which the numbers hold -> numbers."""', ""]
    lines += [
        f"FITTED = {count}",
        '"""Count of the numbers above that were fitted; the last of each row is an engine default."""',
        "",
    ]
    return "\n".join(lines)


def intervals_text(intervals: Mapping[str, Interval]) -> str:
    """Return the file of intervals."""
    lines = [
        "# Measured over predicted, 10th and 90th percentile, by regime, widened for the number of groups;"
    ]
    lines += ["# written by `python -m capplan.calibrate.fit_serving`."]
    lines += ["# regime: [low ratio, high ratio, values, groups]", "intervals:"]
    for key, entry in sorted(intervals.items()):
        lines.append(f"  {key}: [{entry.low_ratio:.4f}, {entry.high_ratio:.4f}, {entry.n}, {entry.groups}]")
    return "\n".join(lines) + "\n"


def report(title: str, predictions: Iterable[tuple[Item, Prediction]]) -> None:
    """Print the scores by kind and column."""
    by_metric: dict[str, list[Prediction]] = {}
    for _, prediction in predictions:
        by_metric.setdefault(prediction.metric, []).append(prediction)
    print(title)
    for metric, rows in sorted(by_metric.items()):
        score = scored(rows)
        if score.median_ape is not None and score.within_20 is not None and score.bias is not None:
            print(
                f"  {metric:28s} n {score.n:5d}  median {100 * score.median_ape:5.1f} %  "
                f"within 20 % {100 * score.within_20:5.1f} %  bias {100 * score.bias:+6.1f} %"
            )


def regime_residuals(
    items: Sequence[Item], times: Mapping[str, Mapping[str, HostOverhead]]
) -> list[tuple[tuple[str, ...], str, Prediction]]:
    """Return regime keys, group and prediction of every measured value, with the numbers of its era."""
    out = []
    for item in items:
        engine, since = era_of(item)
        columns = predicted_columns(item, times[engine][since])
        load = load_of(item.benchmark, columns)
        for name, value in measured_columns(item.row).items():
            found = Prediction(item.row.get("id", ""), name, value, columns.get(name), weight=item.weight)
            out.append((prediction_keys(name, load, item.replica), item.group, found))
    return out


def main(arguments: Sequence[str]) -> int:
    """Refit, write and report; with --intervals leave the numbers and write the intervals anew."""
    folder = Path(arguments[0])
    package = Path(__file__).resolve().parent.parent / "capplan"
    data = package / "accuracy" / "data"
    items = items_of(measured_rows(folder / "serving_measured.csv.gz"))
    times: Mapping[str, Mapping[str, HostOverhead]] = HOST_TIMES
    if "--intervals" not in arguments:
        fitted, left_out = fit_all(items)
        times = fitted
        (package / "engine" / "host_times.py").write_text(host_times_text(fitted), encoding="utf-8")
        own = [
            pair
            for item in items
            for pair in predictions_with([item], fitted[era_of(item)[0]][era_of(item)[1]])
        ]
        report("in sample", own)
        report("left out", left_out)
        (data / "left_out.yaml").write_text(left_out_text(own, left_out), encoding="utf-8")
    intervals = residual_intervals(regime_residuals(items, times))
    (data / "intervals.yaml").write_text(intervals_text(intervals), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
