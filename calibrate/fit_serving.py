"""Fit what the host adds to each step, by engine and version, and the prediction intervals, on measured results.

    python -m calibrate.fit_serving FOLDER [--again | --eras=ENGINE:VERSION,... | --intervals]

FOLDER holds serving_measured.csv.gz. Writes capplan/engine/versions.py and the scores and intervals in
capplan/accuracy/data. A fitted number belongs to an engine and a range of versions; nothing is fitted to a model, a
device or a row. All rows steer. Scores are reported in sample and left out, by four rulers: a group (source, model, device),
a whole model, a whole device or a whole source is predicted with the numbers that all other rows ask for. Intervals rest on the
predictions of models and of groups left out: who asks may ask for a model that was measured on another device, or for a new one. The search starts from the same numbers for all engines; with --again from the standing
numbers, in fewer and smaller steps, after kernels have changed; with --eras= for some eras alone, after their kernels have
changed: the numbers of all others stand. A full search takes half an hour on two cores.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from calibrate.host_fit import (
    NUMBERS,
    Hosts,
    Noise,
    Slopes,
    host_of,
    keys_of,
    loss_of,
    noise_of,
    owner_of,
    slopes_of,
    solved,
    start_hosts,
)
from calibrate.host_rows import (
    ERAS,
    FIRST_GENERATION,
    RULERS,
    SHARED,
    Era,
    Item,
    PredictedRow,
    era_of,
    items_of,
    predicted_row,
)
from calibrate.interval_fit import Residual, covering_intervals, share_inside
from calibrate.left_out import left_out_text
from calibrate.left_out_scores import LEFT_OUT_FILE
from calibrate.slow_runs import SLOW_RUNS_FILE, SlowValue, slow_runs, slow_runs_text, slow_values
from calibrate.slowness_fit import P95, fitted_host_s, questions, slowness_table, slowness_text
from capplan.accuracy.intervals import LEAST_POINTS, Interval
from capplan.accuracy.score import Prediction, scored
from capplan.accuracy.serving import prediction_keys
from capplan.engine.host_times import HOST_TIMES
from capplan.engine.profile import HostOverhead
from capplan.errors import InputError
from capplan.recorded.measured.table import measured_table

GRAPH_TOKENS = {"vllm": {"0.8.0": 512.0, "0.11.1": 512.0, "0.19.0": 512.0}}
"""Largest mixed step under piecewise CUDA graphs: an engine default, not fitted."""

PROCESSES = 2
ROUNDS = 6
ROUNDS_AGAIN = 3
TRUST = 1.5
TRUST_AGAIN = 0.4
"""How far the first round may go, in spreads of the prior; halved where a round made the loss larger."""

UNTOLD = frozenset({"stream_s", "ranks_s"})
"""Numbers that are 0 where no run tells them."""

MOVED = 0.1
"""Spreads that a number moves by when rows are left out, from which slopes are taken anew."""
REFIT_TRUST = 1.0
"""How far the second step may go then."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Numbers of all engines, and the slopes of all rows there."""

    hosts: Hosts
    rows: list[Slopes]
    noise: Noise


_ITEMS: list[Item] = []
"""Rows that the worker processes share with their parent."""


def _slopes_of_place(place: int, host: HostOverhead) -> Slopes:
    return slopes_of(_ITEMS[place], host)


def _row_of_place(place: int, host: HostOverhead) -> tuple[str, tuple[Prediction, ...]]:
    row = predicted_row(_ITEMS[place], host)
    return row.load, row.predictions


def slopes_at(places: Sequence[int], hosts: Hosts, pool: ProcessPoolExecutor) -> list[Slopes]:
    """Return the slopes of some rows at some numbers."""
    own = [host_of(hosts, era_of(_ITEMS[place])) for place in places]
    return list(pool.map(_slopes_of_place, places, own, chunksize=16))


def predicted(
    places: Sequence[int], hosts: Sequence[HostOverhead], pool: ProcessPoolExecutor
) -> list[PredictedRow]:
    """Return rows predicted with the host times given for each."""
    found = pool.map(_row_of_place, places, hosts, chunksize=16)
    return [PredictedRow(_ITEMS[place], *row) for place, row in zip(places, found, strict=True)]


def fitted(hosts: Hosts, rounds: int, trust: float, pool: ProcessPoolExecutor, eras: Collection[Era]) -> Fit:
    """Return the best numbers of a few rounds, those that some eras alone tell, with the slopes of their rows there."""
    best: Fit | None = None
    searched = keys_of(eras) - keys_of({era_of(item) for item in _ITEMS} - set(eras))
    places = [place for place, item in enumerate(_ITEMS) if era_of(item) in eras]
    for _ in range(rounds):
        rows = slopes_at(places, hosts, pool)
        noise = noise_of(rows)
        if best is None or loss_of(rows, best.noise) < loss_of(best.rows, best.noise):
            best = Fit(hosts, rows, noise)
        else:
            trust *= 0.4
        moved = solved(best.rows, best.hosts, best.noise, trust)
        hosts = {key: moved[key] if key in searched else value for key, value in best.hosts.items()}
        sys.stderr.write(f"loss {loss_of(best.rows, best.noise):.4f}\n")
    assert best is not None
    return best


def hosts_without(fit: Fit, ruler: str, part: str) -> Hosts:
    """Return the numbers that all other rows ask for, by their slopes; noise and priors leave the part out as well."""
    kept = [row for row in fit.rows if row.parts[ruler] != part]
    return solved(kept, fit.hosts, noise_of(kept))


def refitted_without(fit: Fit, ruler: str, part: str, pool: ProcessPoolExecutor) -> Hosts:
    """Return the same, fitted once more where that led: slopes are taken anew in the eras whose numbers moved."""
    hosts = hosts_without(fit, ruler, part)
    spreads = {number.name: number.spread for number in NUMBERS}
    moved = {key for key in hosts if abs(hosts[key] - fit.hosts[key]) > MOVED * spreads[key[1]]}
    kept = [place for place, row in enumerate(fit.rows) if row.parts[ruler] != part]
    if not moved:
        return hosts
    changed = [
        place
        for place in kept
        if any((owner_of(fit.rows[place].era, name), name) in moved for name in spreads)
    ]
    anew = dict(zip(changed, slopes_at(changed, hosts, pool), strict=True))
    rows = [anew.get(place) or _moved(fit.rows[place], fit.hosts, hosts) for place in kept]
    return solved(rows, hosts, noise_of(rows), REFIT_TRUST)


def _moved(row: Slopes, before: Hosts, after: Hosts) -> Slopes:
    """Return a row at other numbers, by its slopes."""
    change = [
        after[owner_of(row.era, n.name), n.name] - before[owner_of(row.era, n.name), n.name] for n in NUMBERS
    ]
    return replace(row, errors=row.errors + row.slopes @ np.array(change))


def left_out(fit: Fit, ruler: str, pool: ProcessPoolExecutor) -> list[PredictedRow]:
    """Return every row, predicted with numbers that never saw its group, model, device or source.

    Groups are many and small, so theirs are one step from the numbers of all; the others are fitted anew.
    """
    places: dict[str, list[int]] = {}
    for place, item in enumerate(_ITEMS):
        places.setdefault(item.parts[ruler], []).append(place)
    out: dict[int, PredictedRow] = {}
    for part, own in places.items():
        hosts = (
            hosts_without(fit, ruler, part) if ruler == "group" else refitted_without(fit, ruler, part, pool)
        )
        rows = predicted(own, [host_of(hosts, era_of(_ITEMS[place])) for place in own], pool)
        out.update(zip(own, rows, strict=True))
    return [out[place] for place in range(len(_ITEMS))]


def checked_eras(items: Sequence[Item]) -> None:
    """Refuse rows that leave an era without any."""
    known = {era_of(item) for item in items}
    missing = [
        f"{engine} {since}"
        for engine, eras in ERAS.items()
        for since in eras
        if SHARED.get((engine, since), (engine, since)) not in known
    ]
    if missing:
        raise InputError(f"no measured row tells the host of {', '.join(missing)}")


def left_out_slowness(fit: Fit) -> list[SlowValue]:
    """Return the slowness of every open-loop run, predicted with the numbers of the other groups."""
    open_loops = [item for item in _ITEMS if item.benchmark.kind == "online_rate"]
    without = {group: hosts_without(fit, "group", group) for group in {item.group for item in open_loops}}
    return [
        value
        for item in open_loops
        for value in slow_values(item, host_of(without[item.group], era_of(item)))
    ]


def hosts_to_ship(fit: Fit) -> dict[str, dict[str, HostOverhead]]:
    """Return the numbers of every era with its engine defaults; none for streams where no run determines it."""
    embedded = {era_of(item) for item in _ITEMS if item.replica.spec.profile.streams_in_engine}
    times: dict[str, dict[str, HostOverhead]] = {}
    for engine, eras in ERAS.items():
        for since in eras:
            era = SHARED.get((engine, since), (engine, since))
            host = host_of(fit.hosts, era)
            graphs = GRAPH_TOKENS.get(engine, {}).get(since, 0.0)
            own = replace(host, graph_tokens=graphs, stream_s=host.stream_s if era in embedded else 0.0)
            times.setdefault(engine, {})[since] = own
    return times


def count_fitted(times: Mapping[str, Mapping[str, HostOverhead]]) -> int:
    """Return how many numbers were fitted: one that several eras share counts once, one that is not told not at all."""
    owned = {
        (owner_of((engine, since), number.name), number.name)
        for engine, eras in times.items()
        for since, host in eras.items()
        for number in NUMBERS
        if (engine, since) not in SHARED and not (number.name in UNTOLD and getattr(host, number.name) == 0.0)
    }
    return len(owned)


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
    for engine, eras in times.items():
        lines.append(f'    "{engine}": {{')
        for since, host in eras.items():
            numbers = ", ".join(f"{value:.4g}" for value in host.of_version())
            lines.append(f'        "{since}": HostOverhead({numbers}),')
        lines.append("    },")
    lines += ["}", '"""Engine -> version from which the numbers hold -> numbers."""', ""]
    lines += [
        f"FITTED = {count_fitted(times)}",
        '"""Count of the fitted numbers above, shared ones once: without eager_layer_s and graph_tokens."""',
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


def regime_residuals(rows: Iterable[PredictedRow]) -> list[Residual]:
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


def p95_residuals(rows: Iterable[PredictedRow]) -> list[Residual]:
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
    """Refit, write and report; with --intervals only scores and intervals."""
    folder = Path(arguments[0])
    package = Path(__file__).resolve().parent.parent / "capplan"
    data = package / "accuracy" / "data"
    items = items_of(measured_table(folder / "serving_measured.csv.gz", "serving")[1])
    checked_eras(items)
    _ITEMS[:] = items
    refit, again = "--intervals" not in arguments, "--again" in arguments
    eras = [era_of(item) for item in items]
    alone = [
        option.removeprefix("--eras=").split(",") for option in arguments if option.startswith("--eras=")
    ]
    searched = {era for era in eras if not alone or ":".join(era) in alone[0]}
    hosts = dict(standing_hosts(eras))
    if refit and not again:
        hosts |= {key: start for key, start in start_hosts(eras).items() if key in keys_of(searched)}
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("fork")) as pool:
        if refit:
            rounds, trust = (ROUNDS_AGAIN, TRUST_AGAIN) if again else (ROUNDS, TRUST)
            hosts = dict(fitted(hosts, rounds, trust, pool, searched).hosts)
        fit = fitted(hosts, 1, TRUST_AGAIN, pool, set(eras))
        places = range(len(items))
        own = predicted(places, [host_of(fit.hosts, era) for era in eras], pool)
        unseen = {ruler: left_out(fit, ruler, pool) for ruler in RULERS}
    if refit:
        text = host_times_text(hosts_to_ship(fit))
        (package / "engine" / "host_times.py").write_text(text, encoding="utf-8")
    report("in sample", own)
    for ruler, rows in unseen.items():
        report(f"{ruler} left out", rows)
    kinds = [regime_residuals(unseen[ruler]) + p95_residuals(unseen[ruler]) for ruler in ("group", "model")]
    intervals, coverage = covering_intervals(kinds)
    LEFT_OUT_FILE.write_text(left_out_text(own, unseen, coverage), encoding="utf-8")
    (data / "intervals.yaml").write_text(intervals_text(intervals), encoding="utf-8")
    SLOW_RUNS_FILE.write_text(slow_runs_text(left_out_slowness(fit)), encoding="utf-8")
    slow = slow_runs()
    table = slowness_table(slow, fitted_host_s(questions(slow)))
    (data / "slowness.yaml").write_text(slowness_text(table), encoding="utf-8")
    for name, entry in coverage.items():
        print(f"80 % interval of {name}: holds {100 * entry.held:.1f} % of {entry.values} left-out values")
    held, total = share_inside(regime_residuals(own), intervals)
    print(f"80 % intervals hold {100 * held / total:.1f} % of all values in sample")
    return 0


def standing_hosts(eras: Iterable[Era]) -> Hosts:
    """Return the numbers that the package ships."""
    return {
        (owner_of(era, number.name), number.name): getattr(HOST_TIMES[era[0]][era[1]], number.name)
        for era in eras
        for number in NUMBERS
        if number.name != "ranks_s" or era in FIRST_GENERATION
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
