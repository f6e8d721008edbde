"""Published deployments of large mixtures of experts against their predictions: `python -m calibrate.published_tables FILE` prints the section.

FILE is a table of serving results with the columns of docs/measured-results.md.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from calibrate.accuracy_tables import Judged, judged_table, markdown, percent, preferred
from calibrate.targets import PUBLISHED
from capplan.accuracy.score import Prediction, scored
from capplan.questions.validation import validation
from capplan.readers.catalogue.efficiency import shipped_intervals
from capplan.recorded.measured import measured_table

UNSCORED = "experimental token-position"
"""Words of sources that are listed and not judged: their runs are about twice as slow as others of one model and publisher."""
LOW_LOAD_CLIENTS = 4
"""Most clients of a run at low load: prompts seldom wait for each other."""
ONE_SERVER_GPUS = 8

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
    where = "separate pools" if pools else "one server" if gpus <= ONE_SERVER_GPUS else "several servers"
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


def _cell(prediction: Prediction | None) -> str:
    if prediction is None:
        return ""
    if prediction.predicted is None:
        return f"refused / {prediction.measured:,.4g}"
    ends = f" ({prediction.low:,.3g} to {prediction.high:,.3g})" if prediction.low and prediction.high else ""
    return f"{prediction.predicted:,.4g}{ends} / {prediction.measured:,.4g}"


def published_table(rows: Sequence[Mapping[str, str]], predictions: Sequence[Prediction]) -> str:
    """Return one line for each published run that is predicted: predicted, its 80 % interval, and measured.

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
        cells = [
            _cell(next((own[column] for column in columns if column in own), None)) for _, columns in SHOWN
        ]
        what = f"{row.get('model_hf_id', '').rpartition('/')[2]}, {row.get('num_gpus') or 1} x {row.get('gpu')}, {row.get('engine')}"
        lines.append(
            [row["id"], row.get("source") or "", what, f"{published_groups(row)[0]}, {load}", *cells]
        )
    return markdown(
        ["row", "source", "model, GPUs, engine", "kind, load", *(name for name, _ in SHOWN)], lines
    )


def published_refusals(predictions: Sequence[Prediction], rows: Sequence[Mapping[str, str]]) -> str:
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
    return markdown(["reason", "rows"], [[reason, str(count)] for reason, count in ordered])


def published_section(path: Path) -> str:
    """Return the scores, the runs one by one, what was assumed and what is refused.

    Parameters
    ----------
    path : file of published deployments
    """
    _, rows = measured_table(path, "serving")
    found = validation([path], kind="serving", intervals=shipped_intervals())
    share = percent(found.predicted / max(found.rows, 1))
    assumed = [[one.what, one.replace, str(count)] for one, count in found.assumptions.items()]
    return "\n\n".join(
        (
            f"{found.predicted:,} of {found.rows:,} published runs are predicted, {share}.",
            judged_table(published_judgements(rows, found.predictions), left_out=False),
            "What rows do not state, and what was taken instead:",
            markdown(["taken", "column that replaces it", "rows"], assumed),
            "Not predicted:",
            published_refusals(found.predictions, rows),
            "Run by run, predicted (80 % interval) / measured:",
            published_table(rows, found.predictions),
        )
    )


if __name__ == "__main__":
    sys.stdout.write(published_section(Path(sys.argv[1])) + "\n")
