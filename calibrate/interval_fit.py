"""80 % prediction intervals from the residuals of rows that were predicted unseen.

    measured / predicted in [Q((1 - l) / 2), Q((1 + l) / 2)],   l = level (1 + 1 / n)

Q are weighted quantiles of the residuals of a regime, n its groups: results of one group err together, so it is groups that
the finite-sample correction of split-conformal prediction counts. Groups differ by more than chance, and thin regimes span
wider ones, so the nominal level is not the share that an interval holds: for each statistic and load the level is chosen at
which the intervals of all other groups hold 80 % of a group's values, whether its group or its whole model was left out.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from capplan.accuracy.intervals import Interval, Intervals, interval_of, widest
from capplan.accuracy.score import Prediction, weighted_quantile

LEVEL = 0.8
"""Share of measured values that an interval should hold."""

WIDEST_LEVEL = 0.96
"""Upper limit of the level after the correction for few groups."""

LEVELS = tuple(round(0.5 + 0.02 * place, 2) for place in range(23))
"""Nominal levels that are tried, narrowest first."""

FEW_VALUES = 30
"""With fewer values than this a statistic under a load takes the level of all."""

Residual: TypeAlias = tuple[tuple[str, ...], str, Prediction]
"""Regime keys, narrowest first; group; a prediction that was made without its group."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many values of one statistic under one load lie inside the interval that the other groups give."""

    values: int
    level: float
    """Nominal level of its intervals [-]."""
    held: float
    """Share of values inside [-]."""


def residual_intervals(residuals: Iterable[Residual], level: float = LEVEL) -> dict[str, Interval]:
    """Return the interval of every regime that occurs.

    Parameters
    ----------
    residuals : those that were refused are left out; a value that was predicted twice, without its group and without its
        model, has two and counts once
    level : [-]
        nominal share of values inside, before the correction for few groups; at most WIDEST_LEVEL after it

    Returns
    -------
    interval by regime key
    """
    ratios: dict[str, list[tuple[float, float, str, tuple[str, str]]]] = {}
    for keys, group, prediction in residuals:
        if prediction.predicted is None or prediction.measured <= 0 or prediction.predicted <= 0:
            continue
        name = (prediction.row, prediction.metric)
        entry = (prediction.measured / prediction.predicted, prediction.weight, group, name)
        for key in dict.fromkeys(keys):
            ratios.setdefault(key, []).append(entry)
    out = {}
    for key, entries in ratios.items():
        values, weights = np.array([e[0] for e in entries]), np.array([e[1] for e in entries])
        groups = len({e[2] for e in entries})
        wide = min(WIDEST_LEVEL, level * (1.0 + 1.0 / groups))
        low = weighted_quantile(values, weights, (1.0 - wide) / 2.0)
        high = weighted_quantile(values, weights, (1.0 + wide) / 2.0)
        count = len({e[3] for e in entries})
        out[key] = Interval(low, high, count, groups, weighted_quantile(values, weights, 0.5))
    return out


def share_inside(residuals: Iterable[Residual], intervals: Intervals) -> tuple[float, float]:
    """Return the weight of the values that lie inside their interval, and the weight of all."""
    held = total = 0.0
    for keys, _, prediction in residuals:
        if not prediction.predicted or prediction.measured <= 0:
            continue
        bounds = interval_of(intervals, keys) or widest(intervals)
        ratio = prediction.measured / prediction.predicted
        held += prediction.weight * (bounds.low_ratio <= ratio <= bounds.high_ratio)
        total += prediction.weight
    return held, total


Kinds: TypeAlias = Sequence[Sequence[Residual]]
"""Residuals by what was left out when they were predicted: their group, or their whole model."""


def left_out_coverage(kinds: Kinds, level: float = LEVEL) -> float:
    """Return the share of values that lie inside the interval of all other groups, by weight; the least of all kinds."""
    held = [[0.0, 0.0] for _ in kinds]
    for group in {group for own in kinds for _, group, _ in own}:
        others = (entry for own in kinds for entry in own if entry[1] != group)
        intervals = residual_intervals(others, level)
        for own, sums in zip(kinds, held, strict=True):
            inside, weight = share_inside((entry for entry in own if entry[1] == group), intervals)
            sums[0], sums[1] = sums[0] + inside, sums[1] + weight
    return min(inside / max(weight, 1e-12) for inside, weight in held)


def covering_level(kinds: Kinds) -> tuple[float, float]:
    """Return the smallest of LEVELS at which LEVEL of the left-out values of each kind lie inside, and the least share.

    Intervals of a higher level hold those of a lower one, so the share never falls: the level is found by halving.
    """
    place = bisect_left(LEVELS[:-1], LEVEL, key=lambda level: left_out_coverage(kinds, level))
    return LEVELS[place], left_out_coverage(kinds, LEVELS[place])


def covering_intervals(kinds: Kinds) -> tuple[dict[str, Interval], dict[str, Coverage]]:
    """Return the intervals of all regimes, and what those of each statistic and load hold of what was left out.

    Regimes of one statistic and load have a level of their own; those that several share, and those of few values or
    of one group, have the level of all values together.
    """
    level, _ = covering_level(kinds)
    intervals = residual_intervals((entry for own in kinds for entry in own), level)
    coverage = {}
    for name in sorted({keys[2] for own in kinds for keys, _, _ in own}):
        known = [[entry for entry in own if entry[0][2] == name and entry[2].predicted] for own in kinds]
        every = [entry for own in known for entry in own]
        values = len({(prediction.row, prediction.metric) for _, _, prediction in every})
        few = values < FEW_VALUES or len({group for _, group, _ in every}) < 2
        nominal, held = (level, left_out_coverage(known, level)) if few else covering_level(known)
        narrow = {key for keys, _, _ in every for key in keys[:3]}
        found = residual_intervals(every, nominal)
        intervals.update({key: found[key] for key in narrow})
        coverage[name] = Coverage(values, nominal, held)
    return intervals, coverage
