"""Scores of serving predictions, in sample and with the group of a row left out of the fit.

`left_out_text(own, unseen, coverage)` is the file calibrate/left_out.yaml, which docs/evidence/ is written from.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from calibrate.host_rows import PredictedRow
from calibrate.interval_fit import UNITS, Coverage
from calibrate.left_out_scores import CLASS_AND_ERA, OPEN_LOOP, OWN_PROCESS
from calibrate.open_loops import runs_in_client
from capplan.accuracy.bounded import LEVELS, network_class
from capplan.accuracy.score import DecisionScore, Prediction, Score, runs_of, scored
from capplan.accuracy.serving import row_groups
from capplan.questions.validation import run_slowness
from capplan.report.answers.simulate import decision_scores

HEAD = (
    "# Errors of serving predictions, in sample and with the row's group left out of the fit, core rows, weighted;\n"
    "# written by `python -m calibrate.fit_serving`.\n"
    "# scores: [grouping, group, column, values, median error, within 20 %, bias] twice: in sample, group left out\n"
    "# coverage: what was left out, regime (all/all: every statistic and load), values, models, shares inside the intervals of all other units\n"
    "# for 50, 80 and 95 %\n"
    "# rulers: what was left out, then as above, once, and the models\n"
    "# choices: what was left out, confidence (null: at the predicted time), questions, of them without a pick, share above the limit,\n"
    "# by over a tenth, regret: median, mean, 90th percentile, share of picks on the GPU of the best run\n"
)
RULED = frozenset({"load", "class", "engine", OPEN_LOOP})
"""Groupings that the scores of every ruler are told by."""
CELL = "cell"
"""Engine, class of model and device, by which models left out are told: is a cell one-sided?"""
TOLD_BY = {(CELL, "model"), *((CLASS_AND_ERA, ruler) for ruler in UNITS)}
"""Groupings that only the scores of some rulers are told by."""
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
        own = replace(prediction, metric=column, groups={"model": row.item.parts["model"]})
        groups = row_groups(row.item.row, row.item.replica, None)
        cell = " ".join((row.item.replica.spec.profile.engine, groups["class"], groups["device"]))
        era = f"{groups['class']} {row.item.parts['generation']}"
        for grouping, group in (groups | {CELL: cell, CLASS_AND_ERA: era}).items():
            if grouping != "ranks":
                out.setdefault((grouping, group, column), []).append(own)
        mean = column.replace("_p50", "_mean")
        stands_in = column != mean and any(p.metric.endswith(mean) for p in row.predictions)
        if groups["load"] == "online_rate" and not stands_in and not runs_in_client(row.item.row):
            out.setdefault((OPEN_LOOP, OWN_PROCESS, mean), []).append(own)
    return out


def _figures(score: Score) -> str:
    values = (score.median_ape, score.within_20, score.bias)
    return ", ".join("null" if value is None else f"{value:.4f}" for value in values)


def left_out_text(
    own: Sequence[PredictedRow],
    unseen: Mapping[str, Sequence[PredictedRow]],
    coverage: Mapping[tuple[str, str], Coverage],
) -> str:
    """Return the file of scores by load, source, device, engine and model class, and by ruler, load and class.

    Parameters
    ----------
    own : rows and their predictions with numbers fitted on all rows
    unseen : by ruler, the same rows with numbers fitted without their group, model, device or source
    coverage : by what was left out and regime, how many left-out values lie in the interval which the other units give

    Returns
    -------
    YAML
    """
    by_ruler = {ruler: _by_group(rows) for ruler, rows in unseen.items()}
    seen, groups = _by_group(own), by_ruler["group"]
    lines = ["coverage:\n"]
    for regime, entry in sorted(coverage.items()):
        held = ", ".join(f"{entry.held[level]:.4f}" for level in LEVELS)
        lines.append(f"  - [{_quoted(regime)}, {entry.values}, {entry.models}, {held}]\n")
    lines.append("scores:\n")
    for key in sorted(set(seen) & set(groups)):
        if key[0] in {CELL, CLASS_AND_ERA}:
            continue
        first, second = scored(seen[key]), scored(groups[key])
        lines.append(f"  - [{_quoted(key)}, {first.n}, {_figures(first)}, {second.n}, {_figures(second)}]\n")
    lines.append("rulers:\n")
    for ruler, scores in by_ruler.items():
        for key in sorted(scores):
            if key[0] in RULED or (key[0], ruler) in TOLD_BY:
                score, models = scored(scores[key]), {p.groups["model"] for p in scores[key] if p.groups}
                lines.append(f"  - [{_quoted((ruler, *key))}, {score.n}, {_figures(score)}, {len(models)}]\n")
    lines.append("choices:\n")
    for ruler in UNITS:
        lines += choices_lines(ruler, choices_of(unseen.get(ruler, ())))
    return HEAD + "".join(lines)


def choices_of(rows: Iterable[PredictedRow]) -> list[DecisionScore]:
    """Return the score of choices among closed loops that were predicted unseen, at each confidence."""
    chosen = []
    for row in rows:
        spec = row.item.replica.spec
        named = [replace(p, metric=p.metric.partition(":")[2]) for p in row.predictions]
        slowness = partial(run_slowness, network_class(spec.network), spec.device, spec.efficiency)
        chosen.append((row.item.row, named, slowness))
    return decision_scores(runs_of(chosen))


def choices_lines(ruler: str, scores: Iterable[DecisionScore]) -> list[str]:
    """Return the lines of scores of choices, by what was left out."""
    lines = []
    for score in scores:
        confidence = "null" if score.confidence is None else f"{score.confidence:g}"
        shares = (score.broke_limit_fraction, score.broke_by_10_fraction, *score.regret.values())
        figures = ", ".join(f"{share:.4f}" for share in (*shares, score.right_device_fraction or 0.0))
        lines.append(
            f"  - [{_quoted([ruler])}, {confidence}, {score.questions}, {score.unanswered}, {figures}]\n"
        )
    return lines


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
