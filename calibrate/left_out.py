"""Scores of serving predictions, in sample and with the group of a row left out of the fit.

`left_out_text(own, left_out)` is the file calibrate/left_out.yaml, which docs/accuracy.md is written from.
Both arguments are what `fit_serving.fit_all` returns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from calibrate.host_rows import PredictedRow
from capplan.accuracy.score import Prediction, Score, scored
from capplan.accuracy.serving import row_groups

HEAD = (
    "# Errors of serving predictions, in sample and with the row's group left out of the fit, core rows, weighted;\n"
    "# written by `python -m calibrate.fit_serving`.\n"
    "# [grouping, group, column, values, median error, within 20 %, bias] twice: in sample, left out\n"
)
COLUMNS = frozenset(
    {"ttft_ms_mean", "ttft_ms_p50", "tpot_ms_mean", "tpot_ms_p50", "e2e_ms_mean", "output_tok_s"}
)


def _by_group(
    rows: Iterable[PredictedRow],
) -> dict[tuple[str, str, str], list[Prediction]]:
    out: dict[tuple[str, str, str], list[Prediction]] = {}
    for row, prediction in ((one, prediction) for one in rows for prediction in one.predictions):
        column = prediction.metric.partition(":")[2] or prediction.metric
        if column not in COLUMNS:
            continue
        own = replace(prediction, metric=column)
        for grouping, group in row_groups(row.item.row, row.item.replica, None).items():
            if grouping != "ranks":
                out.setdefault((grouping, group, column), []).append(own)
    return out


def _figures(score: Score) -> str:
    values = (score.median_ape, score.within_20, score.bias)
    return ", ".join("null" if value is None else f"{value:.4f}" for value in values)


def left_out_text(
    own: Sequence[PredictedRow], left_out: Sequence[PredictedRow], interval_coverage: float
) -> str:
    """Return the file of scores by load, source, device, engine and model class.

    Parameters
    ----------
    own : rows and their predictions with numbers fitted on all rows
    left_out : the same rows with numbers fitted without their group
    interval_coverage : [-]
        share of left-out values that lie in the interval which the other groups give

    Returns
    -------
    YAML
    """
    seen, unseen = _by_group(own), _by_group(left_out)
    lines = []
    for key in sorted(set(seen) & set(unseen)):
        name = ", ".join(f'"{part}"' for part in key)
        first, second = scored(seen[key]), scored(unseen[key])
        lines.append(f"  - [{name}, {first.n}, {_figures(first)}, {second.n}, {_figures(second)}]\n")
    return f"{HEAD}interval_coverage: {interval_coverage:.4f}\nscores:\n" + "".join(lines)
