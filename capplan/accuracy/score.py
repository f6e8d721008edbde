"""How far predictions are from measurements, and what choosing by them costs against the best plan that was measured.

A question is a model in a precision, with lengths, and a limit on the time per output token. Its plans are all measured runs
of that model: devices, layouts, engines, clients. The pick has the most output tokens per second and GPU among the runs that are
predicted to keep the limit with a confidence; the best is the same among those that were measured to keep it. A run keeps a limit with
the probability with which `fleet` says so of a plan: its replica may be slower than predicted by the same distribution. At the centre a
run is taken at its predicted time, however slow it may be.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from capplan.accuracy.slowness import Slowness
from capplan.assumption import Assumption
from capplan.numbers import Array


@dataclass(frozen=True, slots=True)
class Prediction:
    """One measured value and its prediction, in the unit of the measured column."""

    row: str
    metric: str
    measured: float
    predicted: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    """Why there is no prediction."""
    does_not_fit: bool = False
    """Whether that is because the model does not fit, although it ran."""
    weight: float = 1.0
    groups: Mapping[str, str] | None = None
    """Name of a grouping -> group, such as device -> h100-sxm."""
    assumptions: tuple[Assumption, ...] = ()
    """What its row does not state, and what was taken in its place."""


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of one metric; every figure is weighted."""

    n: int
    predicted: int
    median_ape: float | None
    mean_ape: float | None
    p90_ape: float | None
    bias: float | None
    """Weighted median of predicted / measured - 1."""
    within_20: float | None
    """Share of the predicted values within 20 % of the measured one."""
    interval_coverage: float | None
    """Share of the measured values inside their interval."""


def weighted_quantile(values: Array, weights: Array, fraction: float) -> float:
    """Return the smallest value that at least `fraction` of the weight does not exceed.

        q = min { v_i : sum of w_j over v_j <= v_i  >=  f sum of w }

    Parameters
    ----------
    values : [-]
        v
    weights : [-]
        w, at least 0
    fraction : [-]
        f, 0 to 1

    Returns
    -------
    [-]
        q

    Examples
    --------
    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 1.0]), 0.5)
    2.0

    References
    ----------
    Hyndman, Fan 1996, "Sample Quantiles in Statistical Packages", definition 1, doi:10.2307/2684934.
    """
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    place = int(np.searchsorted(reached, fraction * reached[-1] * (1.0 - 1e-12)))
    return float(values[order][min(place, values.size - 1)])


def scored(predictions: Sequence[Prediction]) -> Score:
    """Return the errors of predictions of one metric; refused rows, and rows without weight, count in `n` only."""
    known = [p for p in predictions if p.predicted is not None and p.weight > 0.0]
    if not known:
        return Score(len(predictions), 0, None, None, None, None, None, None)
    measured = np.array([p.measured for p in known])
    predicted = np.array([float(p.predicted or 0.0) for p in known])
    weight = np.array([p.weight for p in known])
    # A measured zero (a refused start) is met exactly or missed by all of it.
    signed = np.where(measured > 0, predicted / np.where(measured > 0, measured, 1.0) - 1.0, predicted)
    error = np.abs(signed)
    bounded = [p for p in known if p.low is not None and p.high is not None]
    inside = sum(p.weight for p in bounded if (p.low or 0.0) <= p.measured <= (p.high or 0.0))
    return Score(
        n=len(predictions),
        predicted=len(known),
        median_ape=weighted_quantile(error, weight, 0.5),
        mean_ape=float(np.average(error, weights=weight)),
        p90_ape=weighted_quantile(error, weight, 0.9),
        bias=weighted_quantile(signed, weight, 0.5),
        within_20=float(np.average(error <= 0.2, weights=weight)),
        interval_coverage=inside / sum(p.weight for p in bounded) if bounded else None,
    )


def scores_by_metric(predictions: Iterable[Prediction]) -> dict[str, Score]:
    """Return the score of every metric, in order of first occurrence."""
    by_metric: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        by_metric.setdefault(prediction.metric, []).append(prediction)
    return {metric: scored(rows) for metric, rows in by_metric.items()}


def scores_by_group(predictions: Iterable[Prediction]) -> list[tuple[str, str, str, Score]]:
    """Return (grouping, group, metric, score) for every group that occurs."""
    by_group: dict[tuple[str, str, str], list[Prediction]] = {}
    for prediction in predictions:
        for grouping, group in (prediction.groups or {}).items():
            by_group.setdefault((grouping, group, prediction.metric), []).append(prediction)
    return [(*key, scored(rows)) for key, rows in sorted(by_group.items(), key=lambda item: item[0])]


TPOT_LIMITS_MS = (10.0, 20.0, 30.0, 50.0, 100.0)
"""Limits that every question is evaluated at."""
CLEARLY = 1.1
"""A pick above its limit by more than this breaks it clearly."""
PLANNED_CONFIDENCE = 0.8
"""Confidence that a pick keeps its limit: that of plans unless a scenario states another."""
CONFIDENCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Confidences by which limits broken are traded for regret."""
_LATENCIES = ("ttft_ms_mean", "tpot_ms_mean")

SlownessByStep: TypeAlias = Callable[[float], Slowness]
"""Predicted time per output token [s] -> how slow the replica may be."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured closed loop, and what was predicted of it."""

    row: str
    asked: tuple[str, ...]
    """Model, precision and lengths."""
    plan: tuple[str, ...]
    """Device, engine and layout."""
    clients: float
    tpot_ms: float
    predicted_tpot_ms: float
    tokens_per_s: float
    """Output tokens per second and GPU."""
    predicted_tokens_per_s: float
    slowness: Slowness
    """Distribution of how slow the replica may be, as `fleet` takes it for a limit on the mean time per output token."""

    @property
    def device(self) -> str:
        """The device of its plan."""
        return self.plan[0]

    def promised_ms(self, confidence: float | None) -> float:
        """Return the time per output token that the run keeps with a confidence; None is its predicted time."""
        slower = 1.0 if confidence is None else self.slowness.quantile(confidence)
        return self.predicted_tpot_ms * slower


@dataclass(frozen=True, slots=True)
class DecisionScore:
    """How good picks are."""

    questions: int
    """Questions with a limit that some run keeps and some is predicted to keep."""
    unanswered: int
    """Some run keeps the limit and none is predicted to."""
    broke_limit_fraction: float
    broke_by_10_fraction: float
    regret: Mapping[str, float]
    """Median, mean and 90th percentile, of picks that keep their limit."""
    right_device_fraction: float | None = None
    """Share of the picks among several devices that are of the device of the best run; None: no question has several."""
    confidence: float | None = None
    """Probability with which the picks are predicted to keep their limits; None: taken at the predicted time."""


def tokens_per_s_per_gpu(
    clients: float, output_tokens: float, ttft_s: float, tpot_s: float, gpus: float
) -> float:
    """Return the output tokens per second and GPU of a closed loop.

        r = C O / (TTFT + (O - 1) TPOT) / n

    Parameters
    ----------
    clients : [-]
        C, each with one request at a time.
    output_tokens : [tokens]
        O.
    ttft_s : [s]
        mean.
    tpot_s : [s]
        mean, after the first token.
    gpus : [-]
        n.

    Returns
    -------
    [tokens/s]
        r.

    Examples
    --------
    >>> tokens_per_s_per_gpu(4.0, 101.0, 1.0, 0.01, 2.0)
    101.0

    References
    ----------
    Little 1961, "A proof for the queuing formula L = lambda W", doi:10.1287/opre.9.3.383.
    """
    return clients * output_tokens / (ttft_s + (output_tokens - 1.0) * tpot_s) / gpus


def runs_of(
    rows: Iterable[tuple[Mapping[str, str], Sequence[Prediction], SlownessByStep]],
) -> list[Run]:
    """Return the closed loops whose mean latencies were measured and predicted; repeats of one as their median.

    Parameters
    ----------
    rows : text by column name, its predictions, and how slow its replica may be
    """
    runs = []
    for row, predictions, slowness in rows:
        own = {item.metric: item for item in predictions if item.metric in _LATENCIES and item.predicted}
        if (
            row.get("kind") != "online_conc"
            or len(own) < len(_LATENCIES)
            or not row.get("concurrency")
            or not row.get("osl")
        ):
            continue
        ttft, tpot = (own[metric] for metric in _LATENCIES)
        load = float(row["concurrency"]), float(row["osl"])
        gpus = float(row.get("num_gpus") or 1.0)
        asked = tuple(row.get(key) or "" for key in ("model_hf_id", "weights_dtype", "isl", "osl"))
        plan = tuple(row.get(key) or "" for key in ("gpu", "engine", "num_gpus", "tp", "pp", "ep", "dp"))
        measured = tokens_per_s_per_gpu(*load, 1e-3 * ttft.measured, 1e-3 * tpot.measured, gpus)
        predicted_s = [1e-3 * float(item.predicted or 0.0) for item in (ttft, tpot)]
        predicted = tokens_per_s_per_gpu(*load, predicted_s[0], predicted_s[1], gpus)
        runs.append(
            Run(
                ttft.row,
                asked,
                plan,
                load[0],
                tpot.measured,
                float(tpot.predicted or 0.0),
                measured,
                predicted,
                slowness(predicted_s[1]),
            )
        )
    return _medians(runs)


def _medians(runs: Iterable[Run]) -> list[Run]:
    """Return one run for all that repeat another: a plan at a load is one choice, with the median of each value."""
    alike: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        alike.setdefault((run.asked, run.plan, run.clients), []).append(run)
    names = ("tpot_ms", "predicted_tpot_ms", "tokens_per_s", "predicted_tokens_per_s")
    middle: list[Run] = []
    for own in alike.values():
        values: dict[str, Any] = {
            name: float(np.median([getattr(run, name) for run in own])) for name in names
        }
        middle.append(replace(own[0], **values))
    return middle


def _closed(runs: Iterable[Run]) -> dict[tuple[str, ...], list[Run]]:
    """Return the runs of every question that has several plans."""
    by_question: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        by_question.setdefault(run.asked, []).append(run)
    return {asked: own for asked, own in by_question.items() if len({run.plan for run in own}) > 1}


def decisions_of(
    runs: Iterable[Run], limits_ms: Sequence[float], confidence: float | None = None
) -> tuple[list[tuple[float, Run, Run]], int]:
    """Return what predictions pick for every question and limit, and how many have no pick.

    Parameters
    ----------
    runs : closed loops
    limits_ms : [ms]
        on the mean time per output token
    confidence : [-]
        with which a pick is predicted to keep the limit; None: at its predicted time

    Returns
    -------
    limit [ms], pick and best run of every decision, and the unanswered questions; a question is left out where no run keeps the limit, or only one plan was measured
    """
    decisions, unanswered = [], 0
    for own in _closed(runs).values():
        for limit in limits_ms:
            kept = [run for run in own if run.tpot_ms <= limit]
            promised = [run for run in own if run.promised_ms(confidence) <= limit]
            if not kept:
                continue
            if not promised:
                unanswered += 1
                continue
            picked = max(promised, key=lambda run: run.predicted_tokens_per_s)
            best = max(kept, key=lambda run: run.tokens_per_s)
            decisions.append((limit, picked, best))
    return decisions, unanswered


def decision_score(
    runs: Iterable[Run], limits_ms: Sequence[float] = TPOT_LIMITS_MS, confidence: float | None = None
) -> DecisionScore:
    """Return how good the decisions of `decisions_of` are, for the same runs, limits [ms] and confidence.

    Returns
    -------
    the score; fractions are 0 where no question was answered
    """
    runs = list(runs)
    decisions, unanswered = decisions_of(runs, limits_ms, confidence)
    count = max(len(decisions), 1)
    device_of_several = [
        picked.device == best.device
        for _, picked, best in decisions
        if any(run.asked == best.asked and run.device != best.device for run in runs)
    ]
    right = float(np.mean(device_of_several)) if device_of_several else None
    kept = (
        np.array(
            [
                1.0 - picked.tokens_per_s / best.tokens_per_s  # of the throughput that the pick gives up
                for limit, picked, best in decisions
                if picked.tpot_ms <= limit
            ]
        )
        if decisions
        else np.zeros(0)
    )
    regret = {"median": 0.0, "mean": 0.0, "p90": 0.0}
    if kept.size:
        regret = {
            "median": float(np.median(kept)),
            "mean": float(kept.mean()),
            "p90": float(np.quantile(kept, 0.9)),
        }
    clearly = sum(picked.tpot_ms > CLEARLY * limit for limit, picked, _ in decisions)
    broken = sum(picked.tpot_ms > limit for limit, picked, _ in decisions)
    return DecisionScore(
        len(decisions), unanswered, broken / count, clearly / count, regret, right, confidence
    )
