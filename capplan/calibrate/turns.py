"""The order in which cases are timed: kinds of kernels interleaved, the most informative shapes of each first."""

from collections.abc import Sequence

import numpy as np

from capplan.calibrate.kernels.case import Case
from capplan.numbers import Array

FIRST = ("copy", "read", "launch")
"""Bandwidth and launches: every fit needs them."""


def interleaved(planned: Sequence[Case]) -> list[Case]:
    """Return the cases with their kinds interleaved, so that every kind gets its share of a limited time.

    Parameters
    ----------
    planned : in any order

    Returns
    -------
    bandwidth and launches first, then the first shape of every kernel and dtype, the second of each, ...; within
    a kind each shape is the one furthest from those before it

    Examples
    --------
    >>> sizes = [Case("norm", "bf16", {"moved_bytes": float(2**p)}) for p in range(5)] + [Case("launch", "fp32", {})]
    >>> [case.shape.get("moved_bytes") for case in interleaved(sizes)]
    [None, 1.0, 16.0, 4.0, 2.0, 8.0]
    """
    first = [case for case in planned if case.operator in FIRST]
    kinds: dict[tuple[str, str], list[Case]] = {}
    for case in planned:
        if case.operator not in FIRST:
            kinds.setdefault((case.operator, case.dtype), []).append(case)
    lines = [[line[place] for place in furthest_first(_places(line))] for line in kinds.values()]
    longest = max((len(line) for line in lines), default=0)
    return first + [line[turn] for turn in range(longest) for line in lines if turn < len(line)]


def _places(cases: Sequence[Case]) -> Array:
    """Return the shapes as points: the logarithm of every size."""
    names = sorted(cases[0].shape)
    return np.log([[max(case.shape[name], 1.0) for name in names] for case in cases]).reshape(len(cases), -1)


def furthest_first(points: Array) -> list[int]:
    """Return the order of points in which each is as far as possible from all before it, starting with the smallest.

    Examples
    --------
    >>> furthest_first(np.array([[0.0], [1.0], [2.0], [4.0]]))
    [0, 3, 2, 1]

    References
    ----------
    Gonzalez 1985, "Clustering to minimize the maximum intercluster distance", section 2, doi:10.1016/0304-3975(85)90224-5.
    """
    order = [int(np.argmin(points.sum(axis=1)))]
    nearest = np.abs(points - points[order[0]]).sum(axis=1)
    while len(order) < len(points):
        nearest[order] = -1.0
        order.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, np.abs(points - points[order[-1]]).sum(axis=1))
    return order
