"""How far predictions are from measurements."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

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
    weight: float = 1.0
    groups: Mapping[str, str] | None = None
    """Name of a grouping -> group, such as device -> h100-sxm."""


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
