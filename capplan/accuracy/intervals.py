"""80 % prediction intervals from the residuals of the back-test, by statistic, load and regime."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from capplan.accuracy.score import Prediction, weighted_quantile

LEVEL = 0.8
"""Share of measured values that an interval should hold."""

WIDEST_LEVEL = 0.96
"""Upper limit of the level after the correction for few groups."""

LEVELS = (0.66, 0.68, 0.7, 0.72, 0.74, 0.76, 0.78, 0.8, 0.82, 0.84, 0.86, 0.88, 0.9, 0.92)
"""Nominal levels that are tried until LEVEL of the left-out values lie inside: groups differ more than by chance, and the
correction for few groups widens more than necessary."""

LEAST_POINTS = 12
"""A regime with fewer residuals than this takes the interval of the next wider one."""


LEAST_GROUPS = 6
"""With fewer groups than this a regime is thin: its interval spans that of the next wider one as well."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Measured over predicted: its percentiles at the ends of the nominal level."""

    low_ratio: float
    high_ratio: float
    n: int
    groups: int
    median_ratio: float = 1.0
    """Its median: the typical bias of predictions, which are not corrected for it."""


Intervals = Mapping[str, Interval]
"""Regime key -> interval; see `regime_keys`."""


OF_STATISTICS = {"mean": "mean", "p50": "p50", "p90": "p95", "p95": "p95", "p99": "p99"}
"""Statistic of a latency -> the one whose residuals bound it."""
OF_METRICS = {"itl": "tpot"}
"""Latencies that no row measured -> the one whose residuals bound them."""


def regime_keys(metric: str, load: str, network: str, label: str, statistic: str = "mean") -> tuple[str, ...]:
    """Return the names of the regimes that a prediction belongs to, narrowest first.

    Parameters
    ----------
    metric : ttft, tpot, itl, e2e, throughput, ...
    load : closed, open, burst, static, offline
    network : dense, moe, mla
    label : measured where the device was calibrated, else assumed
    statistic : of a latency

    Returns
    -------
    keys to look up one after the other

    Examples
    --------
    >>> regime_keys("tpot", "closed", "moe", "measured", "p90")[0], regime_keys("throughput", "open", "moe", "measured")[0]
    ('tpot_p95/closed/moe/measured', 'throughput/open/moe/measured')
    """
    quantity = OF_METRICS.get(metric, metric)
    narrow = quantity if quantity == "throughput" else f"{quantity}_{OF_STATISTICS[statistic]}"
    middle = f"{quantity}_middle" if narrow.endswith(("_mean", "_p50")) else quantity
    return (
        f"{narrow}/{load}/{network}/{label}",
        f"{narrow}/{load}/{network}",
        f"{narrow}/{load}",
        f"{middle}/{load}",
        quantity,
    )


def interval_of(intervals: Intervals, keys: Sequence[str]) -> Interval | None:
    """Return the interval of the narrowest regime that has enough residuals; None where none has any.

    A regime without data takes the widest interval of its metric, never a narrower one; a thin one spans the next as well.
    """
    found: Interval | None = None
    for key in keys:
        entry = intervals.get(key)
        if entry is None or entry.n < LEAST_POINTS:
            continue
        found = entry if found is None else _spanning(found, entry)
        if entry.groups >= LEAST_GROUPS:
            return found
    return found or intervals.get(keys[-1])


def _spanning(thin: Interval, wider: Interval) -> Interval:
    low, high = min(thin.low_ratio, wider.low_ratio), max(thin.high_ratio, wider.high_ratio)
    return replace(thin, low_ratio=low, high_ratio=high)


def widest(intervals: Intervals) -> Interval:
    """Return an interval that spans all regimes, for those that were never measured."""
    lows = [entry.low_ratio for entry in intervals.values()]
    highs = [entry.high_ratio for entry in intervals.values()]
    return Interval(min(lows, default=0.5), max(highs, default=2.0), 0, 0)


def residual_intervals(
    predictions: Iterable[tuple[tuple[str, ...], str, Prediction]], level: float = LEVEL
) -> dict[str, Interval]:
    """Return the interval of every regime that occurs.

    Quantiles are taken at (1 +- level (1 + 1/n)) / 2, the finite-sample correction of split-conformal prediction, with n the
    number of groups (results of one group, the same source, model and device, err together), at most WIDEST_LEVEL.

    Parameters
    ----------
    predictions : regime keys, group, prediction; those that were refused are left out
    level : [-]
        nominal share of values inside

    Returns
    -------
    interval by regime key
    """
    ratios: dict[str, list[tuple[float, float, str]]] = {}
    for keys, group, prediction in predictions:
        if prediction.predicted is None or prediction.measured <= 0 or prediction.predicted <= 0:
            continue
        entry = (prediction.measured / prediction.predicted, prediction.weight, group)
        for key in dict.fromkeys(keys):
            ratios.setdefault(key, []).append(entry)
    out = {}
    for key, entries in ratios.items():
        values, weights = np.array([e[0] for e in entries]), np.array([e[1] for e in entries])
        groups = len({e[2] for e in entries})
        wide = min(WIDEST_LEVEL, level * (1.0 + 1.0 / groups))
        low = weighted_quantile(values, weights, (1.0 - wide) / 2.0)
        high = weighted_quantile(values, weights, (1.0 + wide) / 2.0)
        out[key] = Interval(low, high, len(entries), groups, weighted_quantile(values, weights, 0.5))
    return out


def left_out_coverage(
    predictions: Sequence[tuple[tuple[str, ...], str, Prediction]], level: float = LEVEL
) -> float:
    """Return the share of values that lie inside the interval of all other groups.

    Parameters
    ----------
    predictions : regime keys, group, prediction; weighted, refusals left out
    level : [-]
        nominal share of values inside

    Returns
    -------
    [-]
        share of the weight
    """
    held = total = 0.0
    for group in {group for _, group, _ in predictions}:
        intervals = residual_intervals((entry for entry in predictions if entry[1] != group), level)
        members = [entry for entry in predictions if entry[1] == group]
        weight = sum(prediction.weight for _, _, prediction in members if prediction.predicted)
        held += weight * share_inside(members, intervals)
        total += weight
    return held / max(total, 1e-12)


def share_inside(
    predictions: Sequence[tuple[tuple[str, ...], str, Prediction]], intervals: Intervals
) -> float:
    """Return the share of values that lie inside their interval.

    Parameters
    ----------
    predictions : regime keys, group, prediction; weighted, refusals left out
    intervals : by regime

    Returns
    -------
    [-]
        share of the weight
    """
    held = total = 0.0
    for keys, _, prediction in predictions:
        if not prediction.predicted or prediction.measured <= 0:
            continue
        bounds = interval_of(intervals, keys) or widest(intervals)
        ratio = prediction.measured / prediction.predicted
        held += prediction.weight * (bounds.low_ratio <= ratio <= bounds.high_ratio)
        total += prediction.weight
    return held / max(total, 1e-12)


def covering_level(predictions: Sequence[tuple[tuple[str, ...], str, Prediction]]) -> tuple[float, float]:
    """Return the smallest of LEVELS at which LEVEL of the left-out values lie inside, and their share.

    Parameters
    ----------
    predictions : regime keys, group, prediction, each made without its group

    Returns
    -------
    nominal level, share inside [-]
    """
    for level in LEVELS:
        share = left_out_coverage(predictions, level)
        if share >= LEVEL:
            break
    return level, share
