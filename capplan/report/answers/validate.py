"""What `capplan validate` shows: the scoreboard, the groups, the worst values, and the file of predictions."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from capplan.accuracy.decisions import (
    CONFIDENCES,
    PLANNED_CONFIDENCE,
    TPOT_LIMITS_MS,
    DecisionScore,
    Run,
    decision_score,
)
from capplan.accuracy.score import Prediction
from capplan.assumption import Assumption
from capplan.questions.validation import Validation
from capplan.report.answer import Answer, Table
from capplan.report.safe_text import spreadsheet_text

_SHOWN = (
    "metric",
    "n",
    "predicted",
    "median_ape",
    "mean_ape",
    "p90_ape",
    "bias",
    "within_20",
    "interval_coverage",
)
_TITLES = {"n": "measured"}  # fmt: skip
WORST = 12
"""Rows of the list of worst predictions."""


def predictions_csv(predictions: Sequence[Prediction]) -> str:
    """Return one line per measured value: id, metric, measured, predicted, low, high, reason."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["id", "metric", "measured", "predicted", "low", "high", "reason"])
    for p in predictions:
        known = ("" if value is None else repr(float(value)) for value in (p.predicted, p.low, p.high))
        writer.writerow(
            [spreadsheet_text(p.row), p.metric, repr(p.measured), *known, spreadsheet_text(p.reason)]
        )
    return out.getvalue()


def _worst(validation: Validation) -> list[dict[str, Any]]:
    """Return the values with the largest errors, one per row of the file."""
    known = [p for p in validation.scored if p.predicted and p.measured > 0]
    known.sort(key=lambda p: -max(float(p.predicted or 1) / p.measured, p.measured / float(p.predicted or 1)))
    rows: dict[str, dict[str, Any]] = {}
    for p in known:
        if p.row not in rows and len(rows) < WORST:
            group = p.groups or {}
            rows[p.row] = {
                "id": p.row,
                "metric": p.metric,
                "measured": p.measured,
                "predicted": p.predicted,
                "ratio": float(p.predicted or 0) / p.measured,
                "where": ", ".join(
                    v for k, v in group.items() if k in {"engine", "device", "gpu", "load", "op"} and v
                ),
            }
    return list(rows.values())


def decision_scores(runs: Sequence[Run]) -> list[DecisionScore]:
    """Return the score of choices at each confidence, and at the predicted times."""
    return [decision_score(runs, confidence=confidence) for confidence in (*CONFIDENCES, None)]


def decisions_result(scores: Sequence[DecisionScore]) -> dict[str, Any]:
    """Return the score at the confidence of plans, with those of the other confidences and of the predicted times next to it."""
    planned = next(score for score in scores if score.confidence == PLANNED_CONFIDENCE)
    return asdict(planned) | {"by_confidence": [asdict(score) for score in scores]}


def decision_table(scores: Sequence[DecisionScore]) -> Table:
    """Return the scores of choices as a table."""
    limits = ", ".join(f"{limit:g}" for limit in TPOT_LIMITS_MS)
    rows = [
        {
            "confidence of a pick": "predicted time"
            if score.confidence is None
            else f"{score.confidence:.0%}",
            "questions": score.questions,
            "unanswered": score.unanswered,
            "pick broke its limit": score.broke_limit_fraction,
            "by over 10 %": score.broke_by_10_fraction,
            **{f"regret, {name}": value for name, value in score.regret.items()},
        }
        for score in scores
    ]
    return Table(
        rows,
        title=f"Choices by prediction: most output tokens/s per GPU under a TPOT of {limits} ms (regret: share of the best measured plan's)",
    )


def validate_answer(validation: Validation, *, decisions: bool) -> Answer:
    """Return the scores of a back-test."""
    metrics = {name: asdict(score) for name, score in validation.metrics.items()}
    groups = [
        {"grouping": grouping, "group": group, "metric": metric, **asdict(score)}
        for grouping, group, metric, score in validation.groups
    ]
    result = {
        "rows": validation.rows,
        "predicted": validation.predicted,
        "refused": validation.refused,
        "metrics": metrics,
        "groups": groups,
    }
    headline = (
        f"{validation.predicted} of {validation.rows} rows predicted; {len(validation.scored)} values scored"
    )
    board = [{"metric": name, **metrics[name]} for name in sorted(metrics)]
    refused = [{"reason": reason, "values": count} for reason, count in validation.refused.items()]
    tables = [
        Table(
            board,
            title="Scoreboard (weighted; errors in % of the measured value)",
            shown=_SHOWN,
            titles=_TITLES,
        ),
        Table(
            groups,
            title="By group",
            shown=("grouping", "group", *_SHOWN),
            titles=_TITLES,
        ),
        Table(_worst(validation), title="Largest errors"),
    ]
    if refused:
        tables.append(Table(refused, title="Refused"))
    if decisions:
        scores = decision_scores(validation.runs)
        result["decisions"] = decisions_result(scores)
        tables.insert(1, decision_table(scores))
    note = Assumption(
        "rows marked core (or of confidence A and B) are scored, weighted as the file says", "the file"
    )
    return Answer("validate", result, tuple(tables), headline=headline, assumptions=(note,))
