"""Prediction intervals from rows that were predicted unseen, conformal over models and sources as units.

Rows of one model under one source err together, so units vote, not rows: within a unit rows are weighted, and a unit weighs as much as
its rows, at most UNIT_ROWS of them. A regime (statistic, load, class of network, generation of engine, kernels timed or not) has the
quantiles of measured over predicted of its units, its ends moved away from the median by 1 + 1 / m for m models. A left-out value has a
score, the factor by which the ends of the regime that all other units give would have to move for it to lie inside:

    s = max( min_r (m_r - x) / a_r,  min_r (x - m_r) / b_r,  0 )

over the regimes r that its interval spans, with medians m_r and distances a_r, b_r to their ends. The intervals of a statistic and load, of
dense networks and of mixtures apart, are stretched by the quantile of the scores at their level, so that they hold that share of what was
left out: models, sources and generations of engines in turn, each predicted with numbers that never saw it, if there are two or more of it.
An interval holds the prediction itself, so that of a biased regime begins or ends there (the score of a value between prediction and median
is 0): the bias is that of the sources which were measured, and a reader's installation may not have it.

References
----------
Vovk, Gammerman, Shafer 2005, "Algorithmic Learning in a Random World", section 2.2 (conformal scores); Dunn, Wasserman, Ramdas 2023,
"Distribution-Free Prediction Sets for Two-Layer Hierarchical Models", doi:10.1080/01621459.2022.2060112 (units that are exchangeable).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capplan.accuracy.bounded import (
    LEVELS,
    PROBABILITIES,
    Interval,
    interval_of_ratios,
    regimes_spanned,
)
from capplan.accuracy.score import weighted_quantile
from capplan.numbers import Array

UNIT_ROWS = 8.0
"""Rows that a unit weighs as much as at most."""
LEAST_WIDTH = 0.01
"""Logarithmic distance of an end from its median: repeated runs differ by as much."""
FEW_VALUES = 20
"""With fewer values than this a statistic under a load takes the stretch of its quantity under the load, else of all."""
FEW_UNITS = 6
"""Of fewer units than this dense networks, or mixtures, are stretched as all networks are."""
UNITS = ("model", "source", "generation")
"""What is left out in turn."""


@dataclass(frozen=True, slots=True)
class Residual:
    """One value that was predicted unseen."""

    keys: tuple[str, ...]
    """Regimes, narrowest first."""
    parts: Mapping[str, str]
    """Name of the model, source and generation that it belongs to, by unit."""
    name: tuple[str, str]
    """Row and column."""
    log_ratio: float
    """Logarithm of measured over predicted; on a device whose kernels were not timed, over `unmeasured_width`, by which its intervals are wider."""
    weight: float = 1.0

    @property
    def unit(self) -> tuple[str, str]:
        """Return its model and source."""
        return self.parts["model"], self.parts["source"]

    @property
    def statistic(self) -> str:
        """Return its statistic and load."""
        return "/".join(self.keys[0].split("/")[:2])

    @property
    def is_dense(self) -> bool:
        """Return whether its network routes nothing to experts."""
        return of_dense(self.keys[0]) is True


def of_dense(key: str) -> bool | None:
    """Return whether a regime is of dense networks; None where it is of all.

    Examples
    --------
    >>> of_dense("tpot_mean/open/dense/today"), of_dense("tpot_mean/open/moe"), of_dense("tpot")
    (True, False, None)
    """
    network = key.split("/")[2:]
    return network[0] == "dense" if network else None


Kinds: TypeAlias = Mapping[str, Sequence[Residual]]
"""Residuals by what was left out when they were predicted."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many values of one regime lie inside the interval that all other units give."""

    values: int
    models: int
    """Models that the values are of."""
    held: Mapping[float, float]
    """Claimed level -> share inside."""


def capped_weights(weights: Array, units: NDArray[Any]) -> Array:
    """Return weights with which units weigh as much as their rows, at most UNIT_ROWS of them.

    Examples
    --------
    >>> capped_weights(np.array([8.0, 8.0, 1.0]), np.array([0, 0, 1])).tolist()
    [4.0, 4.0, 1.0]
    """
    if not weights.size:
        return weights
    whole = np.bincount(units, weights=weights)
    capped: Array = weights * np.minimum(1.0, UNIT_ROWS / np.maximum(whole, 1e-12))[units]
    return capped


def _codes(names: Sequence[object]) -> Array:
    known: dict[object, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Regime:
    """The residuals of one regime as columns, in ascending order of their ratio."""

    values: Array
    weights: Array
    units: Array
    models: Array
    sources: Array
    names: Array
    parts: Mapping[str, Array]
    """Ruler -> part of each residual."""

    def interval(self, kept: Array) -> Interval | None:
        """Return the distribution of some of the residuals, before its stretch; None where none is left."""
        values = self.values[kept]
        if not values.size:
            return None
        reached = np.cumsum(capped_weights(self.weights[kept], self.units[kept]))
        models = np.unique(self.models[kept]).size
        places = np.searchsorted(reached, np.array(PROBABILITIES) * reached[-1] * (1.0 - 1e-12))
        quantiles = values[np.minimum(places, values.size - 1)]
        middle = quantiles[len(PROBABILITIES) // 2]
        away = (quantiles - middle) * (1.0 + 1.0 / models)
        floor = LEAST_WIDTH * np.sign(np.array(PROBABILITIES) - 0.5)
        ratios = np.exp(middle + np.where(np.abs(away) < LEAST_WIDTH, floor, away))
        values_behind, sources = (int(np.unique(column[kept]).size) for column in (self.names, self.sources))
        return interval_of_ratios(tuple(ratios.tolist()), values_behind, models, sources)


def regimes_of(residuals: Sequence[Residual]) -> dict[str, Regime]:
    """Return the regimes that occur; a value that was predicted several times counts once as a value."""
    values = np.array([own.log_ratio for own in residuals])
    weights = np.array([own.weight for own in residuals])
    units, models, sources, names = (
        _codes([own.unit for own in residuals]),
        _codes([own.parts["model"] for own in residuals]),
        _codes([own.parts["source"] for own in residuals]),
        _codes([own.name for own in residuals]),
    )
    parts = {ruler: np.array([own.parts[ruler] for own in residuals]) for ruler in UNITS}
    by_key: dict[str, list[int]] = {}
    for place in np.argsort(values, kind="stable").tolist():
        for key in dict.fromkeys(residuals[place].keys):
            by_key.setdefault(key, []).append(place)
    return {
        key: Regime(
            values[own], weights[own], units[own], models[own], sources[own], names[own],
            {ruler: every[own] for ruler, every in parts.items()},
        )
        for key, own in by_key.items()
    }  # fmt: skip


def regime_intervals(residuals: Sequence[Residual]) -> dict[str, Interval]:
    """Return the distribution of every regime that occurs, before its stretch."""
    found = {
        key: regime.interval(np.ones(regime.values.size, dtype=bool))
        for key, regime in regimes_of(residuals).items()
    }
    return {key: entry for key, entry in found.items() if entry is not None}


def score_of(log_ratio: float, spanned: Sequence[Interval], level: float) -> float:
    """Return the factor by which the ends of an interval would have to move for a value to lie inside; 0 without any regime.

    Examples
    --------
    A value between the prediction and the median of a biased regime is inside:

    >>> biased = interval_of_ratios((1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7), 30, 9, 2)
    >>> score_of(log(1.05), [biased], 0.8), round(score_of(log(1.6), [biased], 0.8), 6)
    (0.0, 1.0)
    """
    if not spanned:
        return 0.0
    outer = sorted(LEVELS, reverse=True).index(level)
    below, above = [], []
    for entry in spanned:
        middle = log(entry.median_ratio)
        below.append((middle - log_ratio) / (middle - log(entry.ratios[outer])) if log_ratio < 0.0 else 0.0)
        above.append(
            (log_ratio - middle) / (log(entry.ratios[-1 - outer]) - middle) if log_ratio > 0.0 else 0.0
        )
    return max(min(below), min(above), 0.0)


@dataclass(frozen=True, slots=True)
class Scores:
    """Values that were left out in one way, and their scores."""

    residuals: Sequence[Residual]
    units: Array
    weights: Array
    statistics: Array
    dense: Array
    """Whether the network of each is dense."""
    of_all: Array
    """Whether each stands for networks of all classes too."""
    parts: Array
    by_level: Mapping[float, Array]


def left_out_scores(kinds: Kinds) -> dict[str, Scores]:
    """Return the scores of all values by what was left out: each against the regimes of all other units."""
    every = [own for kind in kinds.values() for own in kind]
    regimes = regimes_of(every)
    out = {}
    for ruler, residuals in kinds.items():
        by_level: dict[float, list[float]] = {level: [] for level in LEVELS}
        known: dict[tuple[str, str], Interval | None] = {}
        for own in residuals:
            part = own.parts[ruler]
            others: dict[str, Interval] = {}
            for key in own.keys:
                if (part, key) not in known:
                    regime = regimes[key]
                    known[part, key] = regime.interval(regime.parts[ruler] != part)
                entry = known[part, key]
                if entry is not None:
                    others[key] = entry
            spanned = regimes_spanned(others, own.keys)
            for level in LEVELS:
                by_level[level].append(score_of(own.log_ratio, spanned, level))
        out[ruler] = Scores(
            residuals,
            _codes([own.unit for own in residuals]),
            np.array([own.weight for own in residuals]),
            np.array([own.statistic for own in residuals]),
            np.array([own.is_dense for own in residuals], dtype=bool),
            np.array([of_dense(own.keys[-1]) is None for own in residuals], dtype=bool),
            np.array([own.parts[ruler] for own in residuals]),
            {level: np.array(scores) for level, scores in by_level.items()},
        )
    return out


def _stretch(scores: Mapping[str, Scores], level: float, kept: Mapping[str, Array]) -> float:
    """Return the quantile of the scores of all rulers at a level, of those that leave something of what is kept.

    Where all was measured by one source, nothing is left without it: such values were held against wider regimes.
    """
    tried = [ruler for ruler, own in scores.items() if np.unique(own.parts[kept[ruler]]).size > 1] or list(
        scores
    )
    values = np.concatenate([scores[ruler].by_level[level][kept[ruler]] for ruler in tried])
    weights = np.concatenate(
        [
            capped_weights(scores[ruler].weights[kept[ruler]], scores[ruler].units[kept[ruler]])
            for ruler in tried
        ]
    )
    return weighted_quantile(values, weights, level)


def conformal_intervals(kinds: Kinds) -> tuple[dict[str, Interval], dict[tuple[str, str], Coverage]]:
    """Return the intervals of all regimes, and what those of each statistic and load hold of what was left out.

    Parameters
    ----------
    kinds : residuals by ruler (UNITS)

    Returns
    -------
    intervals by regime key; coverage by ruler and regime (`coverage_masks`), where the stretch comes from the other units too
    """
    scores = left_out_scores(kinds)
    found = regime_intervals([own for kind in kinds.values() for own in kind])
    every = {ruler: np.ones(own.weights.size, dtype=bool) for ruler, own in scores.items()}
    intervals = {}
    for key, entry in found.items():
        pool = _pool(scores, "/".join(key.split("/")[:2]), every, of_dense(key))
        intervals[key] = stretched_by(entry, {level: _stretch(scores, level, pool) for level in LEVELS})
    coverage: dict[tuple[str, str], Coverage] = {}
    for ruler, own in scores.items():
        inside = _inside(scores, ruler)
        for name, kept in coverage_masks(own.residuals).items():
            coverage[ruler, name] = _coverage(own, kept, inside)
    reached = within_reach(intervals, kinds)
    return {key: with_prediction(entry) for key, entry in reached.items()}, coverage


def _pool(
    scores: Mapping[str, Scores], name: str, left: Mapping[str, Array], dense: bool | None
) -> dict[str, Array]:
    """Return which scores stretch a regime: those of its statistic and load, of its quantity under the load if they are few, else all.

    Mixtures stretch the intervals of mixtures, and dense networks those of dense ones, where they are enough.

    Parameters
    ----------
    scores : by ruler
    name : statistic and load, several statistics of a quantity and a load (`tpot_middle/open`), or a quantity
    left : by ruler, the scores that there are
    dense : whether the regime is of dense networks; None: of all
    """
    statistic, _, load = name.partition("/")
    quantity = statistic.partition("_")[0]

    def named(*wanted: str) -> dict[str, Array]:
        return {
            ruler: np.logical_and(left[ruler], np.isin(own.statistics, wanted))
            for ruler, own in scores.items()
        }

    of_quantity = tuple(
        {
            own
            for entry in scores.values()
            for own in np.unique(entry.statistics).tolist()
            if own.partition("/")[0].partition("_")[0] == quantity and own.partition("/")[2] == load
        }
    )
    middle = (f"{quantity}_mean/{load}", f"{quantity}_p50/{load}")
    alike = {ruler: own.of_all if dense is None else own.dense == dense for ruler, own in scores.items()}
    for among in (alike, None):
        for pool in (named(*middle) if statistic.endswith("_middle") else named(name), named(*of_quantity)):
            own = {
                ruler: np.logical_and(kept, among[ruler]) if among else kept for ruler, kept in pool.items()
            }
            values = max(int(kept.sum()) for kept in own.values())
            units = max(np.unique(scores[ruler].units[kept]).size for ruler, kept in own.items())
            if values >= FEW_VALUES and (among is None or units >= FEW_UNITS):
                return own
    return dict(left)


def with_prediction(entry: Interval) -> Interval:
    """Return a distribution whose ends enclose 1, the prediction itself, by the LEAST_WIDTH, and whose median is as it was.

    Examples
    --------
    >>> wider = with_prediction(interval_of_ratios((0.5, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6), 30, 9, 2))
    >>> [round(ratio, 2) for ratio in wider.ratios]
    [0.5, 0.99, 0.99, 1.3, 1.4, 1.5, 1.6]
    """
    half = len(PROBABILITIES) // 2
    below, above = entry.ratios[:half], entry.ratios[half + 1 :]
    low, high = exp(-LEAST_WIDTH), exp(LEAST_WIDTH)
    ratios = (*(min(x, low) for x in below), entry.median_ratio, *(max(x, high) for x in above))
    return interval_of_ratios(ratios, entry.n, entry.groups, entry.sources)


def within_reach(intervals: Mapping[str, Interval], kinds: Kinds) -> dict[str, Interval]:
    """Return intervals that reach no further than the furthest value that was left out in the regime, however far they were stretched."""
    reach: dict[str, tuple[float, float]] = {}
    for own in (residual for kind in kinds.values() for residual in kind):
        for key in own.keys:
            low, high = reach.get(key, (0.0, 0.0))
            reach[key] = min(low, own.log_ratio), max(high, own.log_ratio)
    return {
        key: interval_of_ratios(
            tuple(
                float(np.clip(ratio, np.exp(reach[key][0]), np.exp(reach[key][1]))) for ratio in entry.ratios
            ),
            entry.n,
            entry.groups,
            entry.sources,
        )
        for key, entry in intervals.items()
    }


EVERY = "all/all"
"""Stands for a statistic and load in the names of classes over all of them."""


def coverage_masks(residuals: Sequence[Residual]) -> dict[str, Array]:
    """Return which residuals belong to each statistic and load, to its classes and their engine generations, and to these over all statistics.

    Examples
    --------
    >>> own = Residual(("tpot_mean/open/moe/today", "tpot_mean/open"), {}, ("row", "column"), 0.0)
    >>> sorted(coverage_masks([own]))
    ['all/all/moe', 'all/all/moe/today', 'tpot_mean/open', 'tpot_mean/open/moe', 'tpot_mean/open/moe/today']
    """
    places: dict[str, list[int]] = {}
    for place, own in enumerate(residuals):
        names = {own.statistic}
        for key in own.keys:
            network = key.split("/")[2:4]
            for prefix in (own.statistic, EVERY):
                names |= {"/".join((prefix, *network[:count])) for count in range(1, len(network) + 1)}
        for name in names:
            places.setdefault(name, []).append(place)
    masks = {name: np.zeros(len(residuals), dtype=bool) for name in places}
    for name, found in places.items():
        masks[name][found] = True
    return masks


def _inside(scores: Mapping[str, Scores], ruler: str) -> dict[float, Array]:
    """Return which left-out values lie inside at each level, each with the stretch that all other units ask for.

    What stretches them is chosen among what is left without them, as for an interval of those who have measured no more: where nearly all values
    of a statistic are of one source, the two of another source stretch nothing.
    """
    own = scores[ruler]
    inside = {level: np.zeros(own.weights.size, dtype=bool) for level in LEVELS}
    for part in np.unique(own.parts):
        left = {
            name: np.array([residual.parts[ruler] != part for residual in entry.residuals])
            for name, entry in scores.items()
        }
        for statistic, dense in {
            (own.residuals[place].statistic, own.residuals[place].is_dense)
            for place in np.flatnonzero(own.parts == part).tolist()
        }:
            others = _pool(scores, statistic, left, dense)
            theirs = (own.statistics == statistic) & (own.parts == part) & (own.dense == dense)
            for level in LEVELS:
                inside[level][theirs] = own.by_level[level][theirs] <= _stretch(scores, level, others)
    return inside


def _coverage(own: Scores, kept: Array, inside: Mapping[float, Array]) -> Coverage:
    """Return the share of some left-out values that lie inside, units weighted as in the intervals."""
    weights = capped_weights(own.weights[kept], own.units[kept])
    models = {own.residuals[place].parts["model"] for place in np.flatnonzero(kept).tolist()}
    held = {level: float(weights[inside[level][kept]].sum() / weights.sum()) for level in LEVELS}
    return Coverage(int(kept.sum()), len(models), held)


def stretched_by(entry: Interval, stretch: Mapping[float, float]) -> Interval:
    """Return a distribution whose ends at each level are a multiple as far from its median, in logarithms, and do not cross.

    Examples
    --------
    >>> plain = interval_of_ratios((0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0), 30, 9, 2)
    >>> stretched_by(plain, {0.5: 1.0, 0.8: 2.0, 0.95: 1.0}).ratios[1]
    0.25
    """
    middle = log(entry.median_ratio)
    factors = [stretch[level] for level in sorted(LEVELS, reverse=True)]
    logs = np.log(entry.ratios) - middle
    half = len(factors)
    below = -np.maximum.accumulate((-logs[:half] * factors)[::-1])[::-1]
    above = np.maximum.accumulate(logs[half + 1 :] * factors[::-1])
    ratios = np.exp(middle + np.concatenate([below, [0.0], above]))
    return interval_of_ratios(tuple(ratios.tolist()), entry.n, entry.groups, entry.sources)
