"""Published deployments of large mixtures of experts against their predictions: `python -m calibrate.published_tables FILE` prints the section.

FILE is a table of serving results with the columns of docs/measured-results.md.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

import numpy as np

from calibrate.accuracy_tables import Judged, judged_table, percent, preferred
from calibrate.interval_fit import Residual, capped_weights, of_dense
from calibrate.targets import PUBLISHED
from capplan.accuracy.benchmark import benchmark_of
from capplan.accuracy.bounded import network_class, unmeasured_width
from capplan.accuracy.score import Prediction, scored
from capplan.accuracy.serving import LOADS, prediction_keys
from capplan.accuracy.slowness import CLAIMED, PublishedClaim, SlownessTable, replica_slowness
from capplan.questions.benchmark_spec import benchmark_servers
from capplan.questions.validation import serving_predictions, validation
from capplan.readers.catalogue.efficiency import shipped_intervals, shipped_slowness
from capplan.recorded.measured import measured_table
from capplan.replica.replica import Replica
from capplan.workload.request_class import Target
from docs.generators.page_tables import Page, Table

UNSCORED = "experimental token-position"
"""Words of sources that are listed and not judged: their runs are about twice as slow as others of one model and publisher."""
LOW_LOAD_CLIENTS = 4
"""Most clients of a run at low load: prompts seldom wait for each other."""
ONE_SERVER = "one server"
ONE_SERVER_GPUS = 8

LATENCIES = {
    f"{target.metric}_ms_{target.statistic}": target
    for target in (
        Target("ttft", "mean", 1.0),
        Target("ttft", "p50", 1.0),
        Target("tpot", "mean", 1.0),
        Target("tpot", "p50", 1.0),
    )
}
"""Columns of mean and median latencies -> a target on each."""

FURTHEST = 12
SHORT = 6
"""Lines of a table on the page whose others are in its file."""
PUBLISHED_HEAD = (
    "row", "source", "model", "GPUs", "engine", "kind", "clients or batch", "quantity",
    "predicted", "80 % interval, low", "80 % interval, high", "measured",
)  # fmt: skip
SHOWN = (
    ("TTFT [ms]", ("ttft_ms_mean", "ttft_ms_p50")),
    ("TPOT [ms]", ("tpot_ms_mean", "tpot_ms_p50")),
    ("output tokens/s", ("output_tok_s", "output_tok_s_per_gpu")),
    ("input tokens/s", ("input_tok_s", "input_tok_s_per_gpu")),
    ("all tokens/s", ("total_tok_s",)),
    ("layer [us]", ("layer_us", "step_ms")),
)
"""Heading -> columns of a row, the first that it has."""


def published_groups(row: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a published run counts as: its kind, one server or several, and low load.

    Examples
    --------
    >>> published_groups({"kind": "online_conc", "num_gpus": "8", "concurrency": "1"})
    ('one server', 'low load')
    >>> published_groups({"kind": "decode_only", "num_gpus": "72"})
    ('decode pool',)
    """
    kind, gpus = row.get("kind") or "", float(row.get("num_gpus") or 1.0)
    if kind in {"decode_only", "prefill_only"}:
        return (f"{kind.partition('_')[0]} pool",)
    if kind != "online_conc":
        return (kind,)
    pools = bool(row.get("prefill_gpus") and row.get("decode_gpus"))
    where = "separate pools" if pools else ONE_SERVER if gpus <= ONE_SERVER_GPUS else "several servers"
    clients = float(row.get("concurrency") or LOW_LOAD_CLIENTS + 1)
    return (where, "low load") if clients <= LOW_LOAD_CLIENTS else (where,)


def published_judgements(
    rows: Iterable[Mapping[str, str]], predictions: Sequence[Prediction]
) -> list[Judged]:
    """Return the scores of published runs against their targets.

    Parameters
    ----------
    rows : text by column name, each with its id
    predictions : of their values
    """
    groups = {row["id"]: published_groups(row) for row in rows if UNSCORED not in (row.get("source") or "")}
    out = []
    for target in PUBLISHED:
        own = [p for p in predictions if set(groups.get(p.row, ())) & set(target.groups)]
        out.append(Judged(target, scored(preferred(own, target.columns)), None))
    return out


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A run of one server at a number of clients, to which no number was fitted, and what is predicted of it."""

    replica: Replica
    model: str
    source: str
    predictions: Sequence[Prediction]
    """Of all its values that are predicted."""


def published_runs(path: Path) -> list[PublishedRun]:
    """Return the runs of one server that are scored and predicted."""
    _, every = measured_table(path, "serving")
    rows = [
        row
        for row in every
        if published_groups(row)[0] == ONE_SERVER and UNSCORED not in (row.get("source") or "")
    ]
    out = []
    for row, predictions in zip(rows, serving_predictions(rows, None, shipped_intervals()), strict=True):
        known = [one for one in predictions if one.predicted and one.measured > 0.0]
        if known:
            replica = benchmark_servers(benchmark_of(row)).replica
            model = row["model_hf_id"].rpartition("/")[2].lower()
            out.append(PublishedRun(replica, model, row.get("source") or "", known))
    return out


def published_residuals(runs: Iterable[PublishedRun]) -> list[Residual]:
    """Return how far off the predictions of published runs are: they stand for mixtures, and not for networks of all classes."""
    out = []
    for run in runs:
        width = unmeasured_width(run.replica.spec.efficiency.unmeasured)
        parts = {"model": run.model, "source": run.source, "generation": f"published by {run.source}"}
        for one in run.predictions:
            every = prediction_keys(one.metric, LOADS["online_conc"], run.replica)
            keys = tuple(key for key in every if of_dense(key) is not None)
            out.append(Residual(keys, parts, (one.row, one.metric), log(_ratio(one)) / width))
    return out


def _ratio(one: Prediction) -> float:
    return one.measured / float(one.predicted or 1.0)


def published_claims(runs: Iterable[PublishedRun], table: SlownessTable) -> dict[str, PublishedClaim]:
    """Return how many mean and median latencies of published runs were within the slowness that is claimed with CLAIMED, by class of network.

    A model weighs as much as its values, at most UNIT_ROWS of them.
    """
    held: dict[str, list[tuple[str, bool]]] = {}
    for run in runs:
        step_ms = next((one.predicted for one in run.predictions if one.metric.startswith("tpot_ms")), None)
        middles = [one for one in run.predictions if one.metric in LATENCIES]
        for one in middles if step_ms else ():
            name = network_class(run.replica.spec.network)
            usual = replica_slowness(
                table,
                (LATENCIES[one.metric],),
                network_class=name,
                step_s=float(step_ms or 0.0) / 1e3,
                device=run.replica.spec.device,
                efficiency=run.replica.spec.efficiency,
            )
            held.setdefault(name, []).append((run.model, _ratio(one) <= usual.quantile(CLAIMED)))
    out = {}
    for name, values in sorted(held.items()):
        models = np.unique([model for model, _ in values], return_inverse=True)[1]
        weights = capped_weights(np.ones(len(values)), models)
        share = float(weights @ np.array([kept for _, kept in values])) / float(weights.sum())
        out[name] = PublishedClaim(share, len(values), int(models.max()) + 1)
    return out


def published_table(rows: Sequence[Mapping[str, str]], predictions: Sequence[Prediction]) -> Table:
    """Return a line for each value of each published run that is predicted, with its 80 % interval and what was measured.

    Parameters
    ----------
    rows : text by column name, each with its id
    predictions : of their values
    """
    of_row: dict[str, dict[str, Prediction]] = {}
    for prediction in predictions:
        of_row.setdefault(prediction.row, {})[prediction.metric] = prediction
    lines = []
    for row in rows:
        own = of_row.get(row["id"], {})
        if not any(p.predicted for p in own.values()):
            continue
        load = row.get("concurrency") or row.get("batch_per_gpu") or row.get("request_rate") or "full"
        model = row.get("model_hf_id", "").rpartition("/")[2]
        gpus = f"{row.get('num_gpus') or 1} x {row.get('gpu')}"
        run = [row["id"], row.get("source") or "", model, gpus, row.get("engine") or ""]
        for name, columns in SHOWN:
            value = next((own[column] for column in columns if column in own), None)
            if value is not None:
                figures = (value.predicted, value.low, value.high, value.measured)
                cells = ("" if figure is None else f"{figure:.4g}" for figure in figures)
                lines.append([*run, published_groups(row)[0], load, name, *cells])
    return Table(PUBLISHED_HEAD, lines)


def furthest_published(table: Table) -> Table:
    """Return the values that are predicted furthest off, one of each source, model, engine and quantity."""

    def off(line: Sequence[str]) -> float:
        return abs(log(float(line[8]) / float(line[11])))

    own: dict[tuple[str, ...], Sequence[str]] = {}
    for line in sorted((line for line in table.rows if line[8]), key=off, reverse=True):
        own.setdefault((line[1], line[2], line[4], line[7]), line)
    lines = [[*line[:1], *line[2:9], line[11]] for line in list(own.values())[:FURTHEST]]
    return Table([*PUBLISHED_HEAD[:1], *PUBLISHED_HEAD[2:9], PUBLISHED_HEAD[11]], lines)


def published_refusals(predictions: Sequence[Prediction], rows: Sequence[Mapping[str, str]]) -> Table:
    """Return why published runs are not predicted at all, with the number of runs."""
    told = {p.row for p in predictions if p.predicted is not None}
    first = {p.row: p.reason for p in reversed(predictions) if p.row not in told}
    reasons = {
        row["id"]: first.get(row["id"], "no measured value in its columns")
        for row in rows
        if row["id"] not in told
    }
    counts = {reason: sum(one == reason for one in reasons.values()) for reason in reasons.values()}
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return Table(["reason", "rows"], [[reason, str(count)] for reason, count in ordered])


def published_section(path: Path) -> Page:
    """Return the scores, what was assumed, what is refused and what is furthest off; the files have all of it, run by run.

    Parameters
    ----------
    path : file of published deployments
    """
    _, rows = measured_table(path, "serving")
    found = validation([path], kind="serving", intervals=shipped_intervals())
    share = percent(found.predicted / max(found.rows, 1))
    taken = [[one.what, one.replace, str(count)] for one, count in found.assumptions.items()]
    assumed = Table(["taken", "column that replaces it", "rows"], taken)
    refused = published_refusals(found.predictions, rows)
    runs = published_table(rows, found.predictions)
    parts = (
        f"{found.predicted:,} of {found.rows:,} published runs are predicted, {share} ([run by run](published-deployments.csv)).",
        judged_table(published_judgements(rows, found.predictions), left_out=False),
        _claims_text(),
        "Furthest off, one value of each source, model, engine and quantity:",
        furthest_published(runs),
        f"What most rows do not state, and what was taken instead ([all {len(taken)}](published-assumed.csv)):",
        assumed.first(SHORT),
        f"Why most of the others are not predicted ([all {len(refused.rows)} reasons](published-refused.csv)):",
        refused.first(SHORT),
    )
    return Page(
        "\n\n".join(map(str, parts)),
        {"published-deployments": runs, "published-assumed": assumed, "published-refused": refused},
    )


def _claims_text() -> str:
    """Return what published runs kept of what plans claim."""
    kept = (
        f"{percent(own.held)} of {own.values} ({name}, {own.models} models)"
        for name, own in shipped_slowness().published.items()
    )
    return f"Mean and median latencies on one server within what plans claim with {percent(CLAIMED)}: {' and '.join(kept)}."


if __name__ == "__main__":
    sys.stdout.write(published_section(Path(sys.argv[1])).text + "\n")
