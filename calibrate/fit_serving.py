"""Fit what the host adds to each step, by engine and version, and the prediction intervals, on measured results.

    python -m calibrate.fit_serving FOLDER [--again | --intervals]

FOLDER holds serving_measured.csv.gz. Writes capplan/engine/host_times.py and the scores and intervals in
capplan/accuracy/data. A fitted number belongs to an engine and a range of versions; nothing is fitted to a model, a
device or a row. All rows steer. Scores are reported in sample and left out: each group (source, model, device) is
predicted with the numbers that the other groups ask for. Intervals rest on the left-out predictions. The search starts
from the same numbers for all engines; with --again from the standing numbers, in fewer and smaller steps, after kernels
have changed. A full search takes half an hour on two cores.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from calibrate.host_fit import (
    NUMBERS,
    Slopes,
    loss_of,
    noise_of,
    prior_host,
    slopes_of,
    solved,
    typical_host,
)
from calibrate.host_rows import ERAS, SHARED, Item, PredictedRow, era_of, items_of, predicted_row
from calibrate.left_out import left_out_text
from calibrate.left_out_scores import LEFT_OUT_FILE
from calibrate.slow_runs import SLOW_RUNS_FILE, SlowValue, slow_runs, slow_runs_text, slow_values
from calibrate.slowness_fit import P95, fitted_host_s, questions, slowness_table, slowness_text
from capplan.accuracy.intervals import (
    LEAST_POINTS,
    Interval,
    covering_level,
    residual_intervals,
    share_inside,
)
from capplan.accuracy.score import Prediction, scored
from capplan.accuracy.serving import prediction_keys
from capplan.engine.host_times import HOST_TIMES
from capplan.engine.profile import HostOverhead
from capplan.errors import InputError
from capplan.readers.measured.table import measured_table

GRAPH_TOKENS = {"vllm": {"0.8.0": 512.0, "0.11.1": 512.0, "0.19.0": 512.0}}
"""Largest mixed step under piecewise CUDA graphs: an engine default, not fitted."""

PROCESSES = 2
ROUNDS = 6
ROUNDS_AGAIN = 3
TRUST = 1.5
TRUST_AGAIN = 0.4
"""How far the first round may go, in spreads of the prior; halved where a round made the loss larger."""

Era = tuple[str, str]
"""Engine, and the version from which the numbers hold."""


@dataclass(slots=True)
class EraFit:
    """Numbers of one era while they are fitted."""

    items: list[Item]
    host: HostOverhead
    best: HostOverhead
    rows: list[Slopes]
    """Slopes at the best numbers."""
    trust: float = TRUST
    """How far the next round may go, in spreads of the prior."""


_ITEMS: list[Item] = []
"""Rows that the worker processes share with their parent."""


def _slopes_of_place(place: int, host: HostOverhead) -> Slopes:
    return slopes_of(_ITEMS[place], host)


def _row_of_place(place: int, host: HostOverhead) -> tuple[str, tuple[Prediction, ...]]:
    row = predicted_row(_ITEMS[place], host)
    return row.load, row.predictions


def fit_round(fits: Mapping[Era, EraFit], places: Mapping[int, int], pool: ProcessPoolExecutor) -> None:
    """Take the slopes of every era where it stands, keep what got better, and take one step on."""
    asked = {
        key: [pool.submit(_slopes_of_place, places[id(item)], fit.host) for item in fit.items]
        for key, fit in fits.items()
        if fit.trust > 0.05
    }
    found = {key: [job.result() for job in jobs] for key, jobs in asked.items()}
    noise = noise_of(row for key, fit in fits.items() for row in found.get(key, fit.rows))
    for key, rows in found.items():
        fit = fits[key]
        if not fit.rows or loss_of(rows, noise) < loss_of(fit.rows, noise):
            fit.best, fit.rows = fit.host, rows
        else:
            fit.trust *= 0.4
        loss = loss_of(fit.rows, noise)
        others = [other.best for era, other in fits.items() if era != key]
        fit.host = solved(fit.rows, fit.best, noise, typical_host(others), fit.trust)
        print(
            f"{key[0]} {key[1]}: loss {loss:.4f}, {', '.join(f'{x:.3g}' for x in astuple(fit.best))}",
            file=sys.stderr,
            flush=True,
        )


def fit_all(
    items: Sequence[Item], rounds: int, trust: float, *, anew: bool
) -> tuple[dict[Era, EraFit], list[PredictedRow], list[PredictedRow]]:
    """Return the fit of every era, and all rows predicted: with its numbers, and with those of the other groups."""
    by_era: dict[Era, list[Item]] = {}
    for item in items:
        by_era.setdefault(era_of(item), []).append(item)
    missing = [
        f"{engine} {since}"
        for engine, eras in ERAS.items()
        for since in eras
        if SHARED.get((engine, since), (engine, since)) not in by_era
    ]
    if missing:
        raise InputError(f"no measured row tells the host of {', '.join(missing)}")
    fits = {}
    for key, members in by_era.items():
        start = prior_host() if anew else HOST_TIMES[key[0]].get(key[1], prior_host())
        fits[key] = EraFit(members, start, start, [], trust=trust)
    _ITEMS[:] = items
    places = {id(item): place for place, item in enumerate(items)}
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("fork")) as pool:
        for _ in range(rounds):
            fit_round(fits, places, pool)
        eras = [era_of(item) for item in items]
        without = {group: hosts_without(fits, group) for group in {item.group for item in items}}
        count = range(len(items))
        own = pool.map(_row_of_place, count, [fits[era].best for era in eras], chunksize=16)
        others = [without[item.group][era] for era, item in zip(eras, items, strict=True)]
        left_out = pool.map(_row_of_place, count, others, chunksize=16)
        rows = [
            [PredictedRow(item, *found) for item, found in zip(items, results, strict=True)]
            for results in (own, left_out)
        ]
    return fits, rows[0], rows[1]


def hosts_without(fits: Mapping[Era, EraFit], group: str) -> dict[Era, HostOverhead]:
    """Return the numbers fitted to all other groups, by era; noise and priors leave the group out as well."""
    kept = {key: [row for row in fit.rows if row.group != group] for key, fit in fits.items()}
    noise = noise_of(row for rows in kept.values() for row in rows)
    alone = {key: solved(kept[key], fit.best, noise, prior_host()) for key, fit in fits.items()}
    told = {key: host for key, host in alone.items() if kept[key]}
    return {
        key: solved(
            kept[key], fit.best, noise, typical_host([host for era, host in told.items() if era != key])
        )
        for key, fit in fits.items()
    }


def left_out_slowness(items: Iterable[Item], fits: Mapping[Era, EraFit]) -> list[SlowValue]:
    """Return the slowness of every open-loop run, predicted with the numbers of the other groups."""
    open_loops = [item for item in items if item.benchmark.kind == "online_rate"]
    without = {group: hosts_without(fits, group) for group in {item.group for item in open_loops}}
    return [value for item in open_loops for value in slow_values(item, without[item.group][era_of(item)])]


def host_to_ship(fit: EraFit, engine: str, since: str) -> HostOverhead:
    """Return the numbers of an era with its engine defaults; none for streams where no run determines it."""
    embedded = any(item.replica.spec.profile.streams_in_engine for item in fit.items)
    graphs = GRAPH_TOKENS.get(engine, {}).get(since, 0.0)
    return replace(fit.best, graph_tokens=graphs, stream_s=fit.best.stream_s if embedded else 0.0)


def host_times_text(times: Mapping[str, Mapping[str, HostOverhead]]) -> str:
    """Return the module that holds the numbers."""
    lines = [
        '"""What the host adds to the steps of an engine, by version: fitted on measured serving results.',
        "",
    ]
    lines += [
        "Written by `python -m calibrate.fit_serving`; the method and the scores are in docs/accuracy.md."
    ]
    lines += ['"""', "", "from capplan.engine.profile import HostOverhead", ""]
    lines += ["HOST_TIMES: dict[str, dict[str, HostOverhead]] = {"]
    fitted = 0
    for engine, eras in times.items():
        lines.append(f'    "{engine}": {{')
        for since, host in eras.items():
            numbers = ", ".join(f"{value:.4g}" for value in astuple(host))
            fitted += 0 if (engine, since) in SHARED else len(NUMBERS) - (host.stream_s == 0.0)
            lines.append(f'        "{since}": HostOverhead({numbers}),')
        lines.append("    },")
    lines += ["}", '"""Engine -> version from which the numbers hold -> numbers."""', ""]
    lines += [
        f"FITTED = {fitted}",
        '"""Count of the numbers above that were fitted: not eager_layer_s and graph_tokens, nor a row that repeats another."""',
        "",
    ]
    return "\n".join(lines)


def intervals_text(intervals: Mapping[str, Interval]) -> str:
    """Return the file of intervals."""
    lines = [
        "# Measured over predicted: 10th percentile, median, 90th percentile, the ends widened for the number of groups;"
    ]
    lines += ["# written by `python -m calibrate.fit_serving`."]
    lines += ["# regime: [low ratio, median ratio, high ratio, values, groups]", "intervals:"]
    for key, entry in sorted(intervals.items()):
        if entry.n >= LEAST_POINTS or "/" not in key:
            ratios = f"{entry.low_ratio:.4f}, {entry.median_ratio:.4f}, {entry.high_ratio:.4f}"
            lines.append(f"  {key}: [{ratios}, {entry.n}, {entry.groups}]")
    return "\n".join(lines) + "\n"


def report(title: str, rows: Iterable[PredictedRow]) -> None:
    """Print the scores by kind and column."""
    by_metric: dict[str, list[Prediction]] = {}
    for row in rows:
        for prediction in row.predictions:
            by_metric.setdefault(prediction.metric, []).append(prediction)
    print(title)
    for metric, predictions in sorted(by_metric.items()):
        score = scored(predictions)
        if score.median_ape is not None and score.within_20 is not None and score.bias is not None:
            print(
                f"  {metric:28s} n {score.n:5d}  median {100 * score.median_ape:5.1f} %  "
                f"within 20 % {100 * score.within_20:5.1f} %  bias {100 * score.bias:+6.1f} %"
            )


def regime_residuals(rows: Iterable[PredictedRow]) -> list[tuple[tuple[str, ...], str, Prediction]]:
    """Return regime keys, group and prediction of every measured value; a rate that repeats what was offered is none."""
    out = []
    for row in rows:
        for prediction in row.predictions:
            name = prediction.metric.partition(":")[2]
            if name == "req_s" and row.item.benchmark.offered_rate_reported:
                continue
            keys = prediction_keys(name, row.load, row.item.replica)
            out.append((keys, row.item.group, replace(prediction, metric=name)))
    return out


def p95_residuals(rows: Iterable[PredictedRow]) -> list[tuple[tuple[str, ...], str, Prediction]]:
    """Return regime keys, group and prediction of 95th percentiles, which no row has: between median and 99th by P95."""
    out = []
    for row in rows:
        known = {p.metric.partition(":")[2]: p for p in row.predictions if p.predicted}
        for quantity in ("ttft", "tpot"):
            middle = known.get(f"{quantity}_ms_p50") or known.get(f"{quantity}_ms_mean")
            tail = known.get(f"{quantity}_ms_p99")
            if middle is None or tail is None:
                continue
            both = [float(p.measured) / float(p.predicted or 1.0) for p in (middle, tail)]
            ratio = both[0] ** (1.0 - P95) * both[1] ** P95
            keys = prediction_keys(f"{quantity}_ms_p95", row.load, row.item.replica)
            own = Prediction(tail.row, f"{quantity}_ms_p95", ratio, 1.0, weight=tail.weight)
            out.append((keys[:3], row.item.group, own))
    return out


def main(arguments: Sequence[str]) -> int:
    """Refit, write and report; with --again from the standing numbers, with --intervals only scores and intervals."""
    folder = Path(arguments[0])
    package = Path(__file__).resolve().parent.parent / "capplan"
    data = package / "accuracy" / "data"
    items = items_of(measured_table(folder / "serving_measured.csv.gz", "serving")[1])
    refit, again = "--intervals" not in arguments, "--again" in arguments
    rounds = ROUNDS_AGAIN if again else ROUNDS if refit else 1
    trust = TRUST if refit and not again else TRUST_AGAIN
    fits, own, left_out = fit_all(items, rounds, trust, anew=refit and not again)
    if refit:
        times = {
            engine: {
                since: host_to_ship(fits[SHARED.get((engine, since), (engine, since))], engine, since)
                for since in eras
            }
            for engine, eras in ERAS.items()
        }
        (package / "engine" / "host_times.py").write_text(host_times_text(times), encoding="utf-8")
    report("in sample", own)
    report("left out", left_out)
    residuals = regime_residuals(left_out)
    level, coverage = covering_level(residuals)
    LEFT_OUT_FILE.write_text(left_out_text(own, left_out, coverage), encoding="utf-8")
    intervals = residual_intervals(residuals + p95_residuals(left_out), level)
    (data / "intervals.yaml").write_text(intervals_text(intervals), encoding="utf-8")
    SLOW_RUNS_FILE.write_text(slow_runs_text(left_out_slowness(items, fits)), encoding="utf-8")
    slow = slow_runs()
    table = slowness_table(slow, fitted_host_s(questions(slow)))
    (data / "slowness.yaml").write_text(slowness_text(table), encoding="utf-8")
    inside = regime_residuals(own)
    print(
        f"80 % interval at level {level:.2f}: holds {100 * coverage:.1f} % of left-out values with the intervals of the "
        f"other groups, {100 * share_inside(inside, intervals):.1f} % of all values in sample"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
