"""The values that targets limit: latencies of all requests, including those that were shed or never finished."""

from collections.abc import Mapping
from math import inf, isinf, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Array
from capplan.serving.outcome import FINISHED, SHED
from capplan.workload.request_class import Slo, Target

_AGED = ("ttft", "e2e")
"""Metrics that the age of an unfinished request is compared with."""
LARGEST_AGE_S = 1e18
"""An age above every real one: only a request that would never finish is this old."""


def target_values(
    columns: dict[str, NDArray[Any]], rows: NDArray[np.bool_], slo: Slo, until_s: float, gaps: Any
) -> dict[Target, float]:
    """Return the value of each target that is compared with its limit; infinite where too many requests were lost.

    A request that was shed, or that would never finish, missed every target. One that was running when the simulation
    stopped missed a target if it is already older than the limit; otherwise its outcome is unknown, and it is left out.

    Parameters
    ----------
    columns : by request: status, arrival_s, latencies [s] that are nan where there are none, and wait_s outside where any class waits
    rows : which requests count
    slo : the targets
    until_s : [s]
        when the run was stopped; infinite where it ran to its end
    gaps : mean and percentiles of the time between tokens [s], known only of finished requests

    Returns
    -------
    [s], by target; nan where no request has a value
    """
    status, age = columns["status"][rows], until_s - columns["arrival_s"][rows]
    is_open = (status != FINISHED) & (status != SHED)
    result = {}
    for target in slo.targets:
        spared_s = spared_time_s(columns, target)[rows]
        patience = target.limit_s + spared_s if target.metric in _AGED else LARGEST_AGE_S
        lost = (status == SHED) | (is_open & (age > patience))
        if target.metric == "itl":
            share = statistic_of(np.where(lost, inf, 0.0), target)
            result[target] = inf if isinf(share) else float(getattr(gaps, target.statistic))
            continue
        values = columns[f"{target.metric}_s"][rows] - spared_s
        result[target] = statistic_of(np.where(np.isnan(values) & lost, inf, values), target)
    return result


def spared_time_s(columns: Mapping[str, NDArray[Any]], target: Target) -> Array:
    """Return how much more time than its limit a target leaves the engine for each request, as it waits less outside than others [s]."""
    wait_s = columns.get("wait_s")
    if wait_s is None or not target.outside_s:
        return np.zeros(columns["status"].size)
    return target.outside_s - wait_s


def undecided(columns: dict[str, NDArray[Any]], rows: NDArray[np.bool_], slo: Slo, until_s: float) -> int:
    """Return how many of some requests were running when the simulation stopped and had not missed a target yet."""
    patience: Any = LARGEST_AGE_S
    for target in slo.targets:
        if target.metric in _AGED:
            patience = np.minimum(patience, target.limit_s + spared_time_s(columns, target))
    is_open = (columns["status"] != FINISHED) & (columns["status"] != SHED)
    return int(np.count_nonzero(rows & is_open & (until_s - columns["arrival_s"] <= patience)))


def statistic_of(values: Array, target: Target) -> float:
    """Return the statistic that a target names; some of the values may be infinite.

    Parameters
    ----------
    values : [s]
        nan entries are left out.
    target : names mean or a percentile

    Returns
    -------
    [s]

    Examples
    --------
    >>> from capplan.workload.request_class import Target
    >>> values = np.array([1.0, 2.0, 3.0, np.inf])
    >>> [statistic_of(values, Target("ttft", name, 1.0)) for name in ("p50", "p90", "mean")]
    [2.5, inf, inf]

    References
    ----------
    Hyndman, Fan 1996, "Sample quantiles in statistical packages", definition 7, doi:10.2307/2684934.
    """
    known = np.sort(values[~np.isnan(values)])
    if not known.size:
        return nan
    if target.statistic == "mean":
        return float(known.mean())
    share = int(target.statistic[1:]) / 100.0
    if isinf(known[int(np.ceil(share * (known.size - 1)))]):
        return inf
    return float(
        np.quantile(known[np.isfinite(known)], share * (known.size - 1) / max(_finite(known) - 1, 1))
    )


def _finite(values: Array) -> int:
    return int(np.count_nonzero(np.isfinite(values)))
