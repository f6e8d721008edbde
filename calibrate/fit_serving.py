"""Fit what the host adds to each step, by engine and version, and the prediction intervals, on measured results.

    python -m calibrate.fit_serving FOLDER [--again | --eras=ENGINE:VERSION,... [--numbers=NAME,...] | --intervals]

FOLDER holds serving_measured.csv.gz. Writes capplan/engine/host_times.json and the scores and intervals in
capplan/accuracy/data. A fitted number belongs to an engine and a range of versions; nothing is fitted to a model, a
device or a row. All rows steer. Scores are reported in sample and left out, by four rulers: a group (source, model, device),
a whole model, a whole device or a whole source is predicted with the numbers that all other rows ask for. Intervals rest on the
predictions of models and of groups left out: who asks may ask for a model that was measured on another device, or for a new one. The search starts from the same numbers for all engines; with --again from the standing
numbers, in fewer and smaller steps, after kernels have changed; with --eras= for some eras only, after their kernels have
changed: the numbers of all others stand, and with --numbers= those of other names, too. A full search takes half an hour on two cores.
"""

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import log
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

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
    LATER,
    RULERS,
    SHARED,
    STRANGER,
    Era,
    Item,
    PredictedRow,
    era_of,
    items_of,
    predicted_row,
    steering_columns,
)
from calibrate.interval_fit import UNITS, Residual, conformal_intervals
from calibrate.left_out import left_out_text
from calibrate.left_out_scores import LEFT_OUT_FILE
from calibrate.open_loops import OPEN_LOOPS_FILE, OpenValue, open_loops_text, open_values, runs_in_client
from calibrate.published_tables import published_claims, published_residuals, published_runs
from calibrate.slow_runs import SLOW_RUNS_FILE, SlowValue, slow_runs, slow_runs_text, slow_values
from calibrate.slowness_fit import P95, slowness_table, slowness_text
from capplan.accuracy.bounded import LEAST_POINTS, PROBABILITIES, Interval, unmeasured_width
from capplan.accuracy.score import Prediction, scored
from capplan.accuracy.serving import prediction_keys
from capplan.engine.lookup import HOST_TIMES_FILE, host_times
from capplan.engine.profile import HostOverhead
from capplan.errors import InputError
from capplan.readers.catalogue.efficiency import shipped_slowness
from capplan.recorded.measured import measured_table

GRAPH_TOKENS = {"vllm": {"0.8.0": 512.0, "0.11.1": 512.0, "0.19.0": 512.0}}
"""Largest mixed step under piecewise CUDA graphs: an engine default, not fitted."""

TABLES = ("serving_measured.csv.gz", "serving_open_2026_11.csv", "serving_mla_open.csv")
"""Tables of served runs in the folder."""
PUBLISHED_TABLE = "moe_published.csv"
"""Table of published runs of mixtures, to which nothing is fitted but the intervals."""

Result = TypeVar("Result")

PROCESSES = 2

ROUNDS = 6
ROUNDS_AGAIN = 2
TRUST = 1.5
TRUST_AGAIN = 0.4
"""How far the first round may go, in spreads of the prior; halved where a round made the loss larger."""

UNTOLD = frozenset({"stream_s", "ranks_s", "context_token_s"})
"""Numbers that are 0 where no run tells them."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Numbers of all engines, and the slopes of all rows there."""

    hosts: Hosts
    rows: list[Slopes]
    noise: Noise


_ROWS: list[Mapping[str, str]] = []
_ITEMS: list[Item] = []
_FITS: list[Fit] = []
"""What worker processes find as their parent has it when they are forked: measured rows, those that can be predicted, and the last fit."""


def in_processes(function: Callable[..., Result], *columns: Sequence[Any], chunk: int = 16) -> list[Result]:
    """Return what a function makes of each place of some columns, computed by worker processes."""
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("fork")) as pool:
        return list(pool.map(function, *columns, chunksize=chunk))


def _items_of_place(place: int) -> list[Item]:
    return items_of([_ROWS[place]])


def _slopes_of_place(place: int, host: HostOverhead) -> Slopes:
    return slopes_of(_ITEMS[place], host)


def _row_of_place(place: int, host: HostOverhead) -> tuple[str, tuple[Prediction, ...]]:
    row = predicted_row(_ITEMS[place], host)
    return row.load, row.predictions


def _hosts_without(ruler: str, part: str) -> Hosts:
    return hosts_without(_FITS[-1], ruler, part)


def _hosts_without_both(source: str, model: str) -> Hosts:
    fit = _FITS[-1]
    kept = [row for row in fit.rows if row.parts["source"] != source and row.parts["model"] != model]
    return solved(kept, fit.hosts, noise_of(kept))


def slopes_at(places: Sequence[int], hosts: Hosts) -> list[Slopes]:
    """Return the slopes of some rows at some numbers."""
    return in_processes(_slopes_of_place, places, [host_of(hosts, era_of(_ITEMS[place])) for place in places])


def predicted(places: Sequence[int], hosts: Sequence[HostOverhead]) -> list[PredictedRow]:
    """Return rows predicted with the host times given for each."""
    found = in_processes(_row_of_place, places, hosts)
    return [PredictedRow(_ITEMS[place], *row) for place, row in zip(places, found, strict=True)]


def told_alone(eras: Collection[Era], names: Collection[str]) -> frozenset[tuple[Era, str]]:
    """Return the numbers of these names that only these eras tell."""
    others = {era_of(item) for item in _ITEMS} - set(eras)
    return frozenset(key for key in keys_of(eras) - keys_of(others) if key[1] in names)


def along(rows: Sequence[Slopes], searched: Collection[tuple[Era, str]]) -> list[Slopes]:
    """Return the rows as they move with the searched numbers, where all others stand."""
    moves = {
        era: np.array([float((owner_of(era, number.name), number.name) in searched) for number in NUMBERS])
        for era in {row.era for row in rows}
    }
    return [replace(row, slopes=row.slopes * moves[row.era]) for row in rows]


def fitted(
    hosts: Hosts, rounds: int, trust: float, eras: Collection[Era], searched: Collection[tuple[Era, str]]
) -> Fit:
    """Return the best of the searched numbers after a few rounds, with the slopes of the rows of some eras there."""
    best: Fit | None = None
    places = [place for place, item in enumerate(_ITEMS) if era_of(item) in eras]
    for _ in range(rounds):
        rows = slopes_at(places, hosts)
        noise = noise_of(rows)
        if best is None or loss_of(rows, best.noise) < loss_of(best.rows, best.noise):
            best = Fit(hosts, rows, noise)
        else:
            trust *= 0.4
        moved = solved(along(best.rows, searched), best.hosts, best.noise, trust)
        hosts = {key: moved[key] if key in searched else value for key, value in best.hosts.items()}
        sys.stderr.write(f"loss {loss_of(best.rows, best.noise):.4f}\n")
    assert best is not None
    return best


def hosts_without(fit: Fit, ruler: str, part: str) -> Hosts:
    """Return the numbers that all other rows ask for, by their slopes; noise and priors leave the part out as well."""
    kept = [row for row in fit.rows if row.parts[ruler] != part]
    return solved(kept, fit.hosts, noise_of(kept))


def neighbour(era: Era) -> Era:
    """Return the era before one, of the same engine; of the first one the next, and of an only one itself."""
    engine, since = era
    known = [own for own in ERAS[engine] if (engine, own) not in SHARED]
    place = known.index(since)
    return engine, known[place - 1] if place else known[min(1, len(known) - 1)]


def hosts_without_parts(fit: Fit) -> dict[tuple[str, str], Hosts]:
    """Return the numbers without each group, model, device and source, by ruler and part."""
    parts = sorted(
        {(ruler, row.parts[ruler]) for row in fit.rows for ruler in RULERS if ruler != "generation"}
    )
    _FITS[:] = [fit]
    found = in_processes(_hosts_without, *zip(*parts, strict=True), chunk=4)
    return dict(zip(parts, found, strict=True))


def left_out(
    fit: Fit, own: Sequence[PredictedRow], ruler: str, others: Mapping[tuple[str, str], Hosts]
) -> list[PredictedRow]:
    """Return every row, predicted with numbers that never saw its group, model, device or source.

    The numbers are one step of the fit from those of all, and the predictions move along their slopes. A generation of an engine has
    the numbers of the one before it, as a version has that nobody measured yet, and the first one those of the next.
    """
    if ruler == "generation":
        hosts = [host_of(fit.hosts, neighbour(era_of(row.item))) for row in own]
        return predicted(range(len(own)), hosts)
    return [
        moved_row(row, slopes, fit.hosts, others[ruler, row.item.parts[ruler]])
        for row, slopes in zip(own, fit.rows, strict=True)
    ]


def strangers(fit: Fit, own: Sequence[PredictedRow]) -> dict[str, list[PredictedRow]]:
    """Return every row as the run of a stranger: with numbers that saw neither its source nor its model, of its own generation or the one next to it."""
    pairs = sorted({_stranger(row) for row in own})
    _FITS[:] = [fit]
    hosts = dict(
        zip(pairs, in_processes(_hosts_without_both, *zip(*pairs, strict=True), chunk=4), strict=True)
    )
    eras = [era_of(row.item) for row in own]
    return {
        ruler: predicted(
            range(len(own)),
            [host_of(hosts[_stranger(row)], era) for row, era in zip(own, of_rows, strict=True)],
        )
        for ruler, of_rows in ((STRANGER, eras), (LATER, list(map(neighbour, eras))))
    }


def _stranger(row: PredictedRow) -> tuple[str, str]:
    return row.item.parts["source"], row.item.parts["model"]


def moved_row(row: PredictedRow, slopes: Slopes, before: Hosts, after: Hosts) -> PredictedRow:
    """Return a row at other numbers of the host, by the slopes of its steering values; a value moves as the steering value of its kind."""
    change = np.array(
        [
            after[owner_of(slopes.era, n.name), n.name] - before[owner_of(slopes.era, n.name), n.name]
            for n in NUMBERS
        ]
    )
    factors = np.exp(slopes.slopes @ change)
    by_quantity = dict(
        zip((name.partition("_ms_")[0] for name in steering_columns(row.item)), factors, strict=True)
    )
    tpot = float(by_quantity.get("tpot", 1.0))
    speed = 1.0 / tpot if "output_tok_s" not in by_quantity else float(by_quantity["output_tok_s"])

    def factor(metric: str) -> float:
        quantity, separator, _ = metric.partition(":")[2].partition("_ms_")
        if not separator:
            return 1.0 if row.load == "open" else speed
        return tpot if quantity == "e2e" else float(by_quantity.get(quantity, 1.0))

    return replace(
        row,
        predictions=tuple(
            replace(p, predicted=p.predicted and p.predicted * factor(p.metric)) for p in row.predictions
        ),
    )


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


def _slow_values_of_place(place: int, host: HostOverhead) -> list[SlowValue]:
    return slow_values(_ITEMS[place], host)


def left_out_slowness(others: Mapping[tuple[str, str], Hosts]) -> list[SlowValue]:
    """Return the slowness of every run of a server whose engine has a process of its own, predicted with the numbers of the other groups."""
    places = [
        place
        for place, item in enumerate(_ITEMS)
        if item.benchmark.kind in ("online_rate", "online_conc") and not runs_in_client(item.row)
    ]
    hosts = [host_of(others["group", _ITEMS[place].group], era_of(_ITEMS[place])) for place in places]
    return [value for found in in_processes(_slow_values_of_place, places, hosts, chunk=1) for value in found]


def _host_of_item(hosts: Hosts, item: Item) -> HostOverhead:
    return host_of(hosts, era_of(item))


def _open_values_of_place(place: int, number: int, hosts: Hosts) -> list[OpenValue]:
    return open_values(_ROWS[place], number, partial(_host_of_item, hosts))


def left_out_open_loops(fit: Fit, others: Mapping[tuple[str, str], Hosts]) -> list[OpenValue]:
    """Return every value of all open loops, core rows or not, predicted with the numbers of the other sources."""
    places = [place for place, row in enumerate(_ROWS) if row.get("kind") == "online_rate"]
    hosts = [others.get(("source", _ROWS[place].get("source_family") or ""), fit.hosts) for place in places]
    found = in_processes(_open_values_of_place, places, range(len(places)), hosts, chunk=1)
    return [value for values in found for value in values]


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
    known = {
        (engine, since): host
        for engine, eras in times.items()
        for since, host in eras.items()
        if (engine, since) not in SHARED
    }
    owned = {
        (owner_of(era, number.name), number.name)
        for era, host in known.items()
        for number in NUMBERS
        if not (number.name in UNTOLD and getattr(host, number.name) == 0.0)
    } & keys_of(known)
    return len(owned)


def host_times_text(times: Mapping[str, Mapping[str, HostOverhead]]) -> str:
    """Return the file that holds the numbers by name; one that it lacks is that of a host that adds nothing."""
    nothing = HostOverhead()
    named = {
        engine: {
            since: {
                name: json.loads(f"{value:.4g}")
                for name, value in host.named.items()
                if value != getattr(nothing, name)
            }
            for since, host in eras.items()
        }
        for engine, eras in times.items()
    }
    return json.dumps(named, indent=2) + "\n"


def intervals_text(intervals: Mapping[str, Interval]) -> str:
    """Return the file of intervals."""
    lines = [
        f"# Measured over predicted at probabilities {', '.join(map(str, PROBABILITIES))}, values, models and sources behind them; written by",
        "# `python -m calibrate.fit_serving`.",
        "intervals:",
    ]
    for key, entry in sorted(intervals.items()):
        if entry.n >= LEAST_POINTS or "/" not in key:
            ratios = ", ".join(f"{ratio:.4f}" for ratio in entry.ratios)
            lines.append(f"  {key}: [{ratios}, {entry.n}, {entry.groups}, {entry.sources}]")
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
    """Return the residual of every measured value, and of 95th percentiles, which few rows have: between median and 99th by P95.

    A rate that repeats what was offered is none.
    """
    out = []
    for row in rows:
        known = {p.metric.partition(":")[2]: p for p in row.predictions if p.predicted and p.measured > 0.0}
        for name, prediction in known.items():
            if not (name == "req_s" and row.item.benchmark.offered_rate_reported):
                out.append(_residual(row, name, _log_ratio(prediction), prediction))
        for quantity in ("ttft", "tpot"):
            middle = known.get(f"{quantity}_ms_p50") or known.get(f"{quantity}_ms_mean")
            tail, column = known.get(f"{quantity}_ms_p99"), f"{quantity}_ms_p95"
            if middle is not None and tail is not None and column not in known:
                between = (1.0 - P95) * _log_ratio(middle) + P95 * _log_ratio(tail)
                out.append(_residual(row, column, between, tail))
    return out


def _log_ratio(prediction: Prediction) -> float:
    return log(prediction.measured / float(prediction.predicted or 1.0))


def _residual(row: PredictedRow, column: str, log_ratio: float, prediction: Prediction) -> Residual:
    replica = row.item.replica
    keys = prediction_keys(column, row.load, replica)
    own = log_ratio / unmeasured_width(replica.spec.efficiency.unmeasured)
    return Residual(keys, row.item.parts, (prediction.row, column), own, prediction.weight)


def main(arguments: Sequence[str]) -> int:
    """Refit, write and report; with --intervals only scores and intervals."""
    folder = Path(arguments[0])
    package = Path(__file__).resolve().parent.parent / "capplan"
    data = package / "accuracy" / "data"
    _ROWS[:] = [row for name in TABLES for row in measured_table(folder / name, "serving")[1]]
    _ITEMS[:] = [item for found in in_processes(_items_of_place, range(len(_ROWS))) for item in found]
    checked_eras(_ITEMS)
    refit, again = "--intervals" not in arguments, "--again" in arguments
    eras = [era_of(item) for item in _ITEMS]
    listed = {
        name: values.split(",")
        for name, _, values in (option.partition("=") for option in arguments)
        if values
    }
    known_eras = listed.get("--eras", [":".join(era) for era in eras])
    own_eras = {era for era in eras if ":".join(era) in known_eras}
    searched = told_alone(own_eras, listed.get("--numbers", [number.name for number in NUMBERS]))
    hosts = dict(standing_hosts(eras))
    if refit and not again:
        hosts |= {key: start for key, start in start_hosts(eras).items() if key in searched}
    rounds, trust = (ROUNDS_AGAIN, TRUST_AGAIN) if again else (ROUNDS, TRUST)
    fit = fitted(hosts, rounds if refit else 1, trust, own_eras if refit else set(eras), searched)
    if refit and own_eras != set(eras):
        fit = fitted(fit.hosts, 1, TRUST_AGAIN, set(eras), searched)
    own = predicted(range(len(_ITEMS)), [host_of(fit.hosts, era) for era in eras])
    others = hosts_without_parts(fit)
    unseen = {ruler: left_out(fit, own, ruler, others) for ruler in RULERS} | strangers(fit, own)
    if refit:
        HOST_TIMES_FILE.write_text(host_times_text(hosts_to_ship(fit)), encoding="utf-8")
    report("in sample", own)
    for ruler, unseen_rows in unseen.items():
        report(f"{ruler} left out", unseen_rows)
    SLOW_RUNS_FILE.write_text(slow_runs_text(left_out_slowness(others)), encoding="utf-8")
    slow = slow_runs()
    published = published_runs(folder / PUBLISHED_TABLE)
    table = slowness_table(slow)
    table = replace(table, published=published_claims(published, table))
    (data / "slowness.yaml").write_text(slowness_text(table), encoding="utf-8")
    shipped_slowness.cache_clear()
    never_fitted = published_residuals(published)
    residuals = {  # published runs are predicted without their model and source, and not without their generation
        ruler: [*regime_residuals(unseen[ruler]), *(() if ruler == "generation" else never_fitted)]
        for ruler in UNITS
    }
    intervals, coverage = conformal_intervals(residuals)
    LEFT_OUT_FILE.write_text(left_out_text(own, unseen, coverage), encoding="utf-8")
    (data / "intervals.yaml").write_text(intervals_text(intervals), encoding="utf-8")
    OPEN_LOOPS_FILE.write_text(open_loops_text(left_out_open_loops(fit, others)), encoding="utf-8")
    for (ruler, name), entry in sorted(coverage.items()):
        held = ", ".join(f"{100 * level:g} %: {100 * share:.1f} %" for level, share in entry.held.items())
        print(f"{ruler} left out, {name}: {held} of {entry.values} values")
    return 0


def standing_hosts(eras: Iterable[Era]) -> Hosts:
    """Return the numbers that the package ships; one that is taken from another era is that era's."""
    times, hosts = host_times(), {}
    for era in eras:
        for number in NUMBERS:
            owner = owner_of(era, number.name)
            engine, since = owner if owner[0] in ERAS else era
            if number.name != "ranks_s" or era in FIRST_GENERATION:
                hosts[owner, number.name] = getattr(times[engine][since], number.name)
    return hosts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
