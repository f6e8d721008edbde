"""The scale of loads of a search, and how the last step of it is found at which targets hold.

Loads are steps of a fixed scale, so the same ones are tried for all targets, traffics and layouts.
"""

from collections.abc import Callable, Sequence
from math import ceil, floor, log2

STEPS_PER_DOUBLING = 32
"""Steps of the scale of loads: 2.2 % each, about the uncertainty of a run."""
FIRST_STEP_DOWN, FIRST_STRIDE = STEPS_PER_DOUBLING, STEPS_PER_DOUBLING // 2
"""The search begins at half of the largest rate, and goes down by factors of 1.4 until the targets hold.

A run at a load that is far too high ends early, so going down from there costs less than one run at a load far below the limit.
"""
REGULARITY = (256, 128, 64, 32, 16, 8, 4, 2, 1)
"""Classes of replica counts, each twice the next: arrivals at each replica are as regular as behind a router with the least count of its class."""
REGULARITY_OF_BURSTS = tuple(
    sorted({*REGULARITY, *(3 * least // 4 for least in REGULARITY[:-2])}, reverse=True)
)
"""Classes for arrivals in bursts, each at most half as large again as the next smaller one: more replicas even out bursts, so each carries more."""
MANY_REPLICAS = 32
"""Replicas of a fleet from which a step of the scale of loads may be more than half of a replica."""
MOST_MISSED = 3
"""Numbers of replicas in a row that miss the targets before smaller ones are no longer tried."""
LIKELY_STRIDES = {True: 4, False: 2}
"""Steps between the likely largest load of users and the one that is tried next, halved: in short runs (True) and in full ones.

They double until the targets hold on one side only. Without users the number of replicas is known before a likely load would be.
"""
SLOWER_STEPS = 16
"""Where a replica is twice as slow, users' largest load falls by half, and usually by these steps more."""


def scale_rate(step: int) -> float:
    """Return the request rate at a step of the scale [1/s].

    Examples
    --------
    >>> scale_rate(0), scale_rate(STEPS_PER_DOUBLING)
    (1.0, 2.0)
    """
    return float(2.0 ** (step / STEPS_PER_DOUBLING))


def step_above(rate_per_s: float) -> int:
    """Return the lowest step of the scale whose rate is no lower than a rate [1/s].

    Examples
    --------
    >>> step_above(2.0), step_above(2.01)
    (32, 33)
    """
    return ceil(STEPS_PER_DOUBLING * log2(rate_per_s) - 1e-9)


def replicas_at(rate_per_s: float, limit_per_s: float) -> int:
    """Return how many replicas, each at its limit, carry a rate.

    Examples
    --------
    >>> replicas_at(20.0, 5.0), replicas_at(20.0, 4.9)
    (4, 5)
    """
    return ceil(rate_per_s / limit_per_s - 1e-9)


def regularity_class(replicas: int, classes: Sequence[int] = REGULARITY) -> int:
    """Return the smallest number of replicas in the same class of arrival regularity.

    Examples
    --------
    >>> [regularity_class(n) for n in (1, 3, 8, 100)]
    [1, 2, 8, 64]
    """
    return next(least for least in classes if replicas >= least)


def in_copies(needed: int, at_least: int, carries: Callable[[int, int], bool]) -> int:
    """Return the replicas of two or three fleets that each carry a half or a third of the load, if they are fewer than one fleet needs.

    One fleet carries as much: its arrivals are more regular. But its runs are others, and what they vary by is several of
    MANY_REPLICAS. So one part that does not carry its load does not end the walk to smaller ones; MOST_MISSED in a row do.
    Strides double while parts carry their load.

    Parameters
    ----------
    needed, at_least : [-]
        replicas of one fleet, and the fewest to return
    carries : whether some replicas carry one of some equal parts of the load

    Examples
    --------
    >>> in_copies(102, 1, carries=lambda part, copies: copies * part >= 98), in_copies(20, 1, carries=lambda part, copies: True)
    (98, 20)
    """
    for copies in (2, 3):
        missed, stride = 0, 1
        while needed >= MANY_REPLICAS and missed < MOST_MISSED:
            part = (needed - 1) // copies + 1 - stride - missed
            if copies * part < at_least and stride == 1:
                break
            if copies * part >= at_least and carries(part, copies):
                needed, missed, stride = copies * part, 0, 2 * stride
            elif stride > 1:
                stride = 1
            else:
                missed += 1
    return needed


def last_that_holds(
    holds: Callable[[int], bool],
    least: int,
    top: int,
    first: int,
    stride: int,
    growth: int = 1,
    known: Callable[[int, int], bool] = lambda low, high: high - low <= 1,
) -> tuple[int, int]:
    """Return two steps of a scale: targets hold at the lower one and not at the upper one. They are neighbours, or as close as need be known.

    Parameters
    ----------
    holds : whether targets hold at a step
    least, top : steps between which it is asked; the least counts as one that holds, the top as one that does not
    first : step to try first
    stride : steps to the next one, in the same direction until the answer changes; then the range is halved
    growth : factor on the stride each time
    known : whether the answer needs no closer steps

    Examples
    --------
    >>> last_that_holds(lambda step: step <= 37, 0, 100, first=30, stride=4)
    (37, 38)
    >>> last_that_holds(lambda step: step <= 37, 0, 100, first=30, stride=4, known=lambda low, high: low >= 34)
    (34, 100)
    """
    low, high, middle = least, top, first
    while not known(low, high):
        low, high = (middle, high) if holds(middle) else (low, middle)
        halfway, stride = (low + high) // 2, growth * stride
        if high == top:
            middle = min(low + stride, halfway)
        elif low == least:
            middle = max(high - stride, halfway)
        else:
            middle = halfway
    return low, high


def slower_step(step: int, slowness: float) -> int:
    """Return about the largest load of users that meets the targets at a slowness; `step` is that at the predicted speed."""
    return step - round(SLOWER_STEPS * log2(slowness))


def last_that_meets(excess: Callable[[int], float], least: int, top: int, first: int) -> tuple[int, int]:
    """Return two neighbouring steps of slowness: the lower one meets all targets, the upper one does not.

    Latencies grow at least as much as the slowness, so a value at half of its limit leaves one doubling at most.

    Parameters
    ----------
    excess : largest ratio of a value to its limit at a step
    least, top : steps between which it is asked; the least counts as one that meets them, the top as one that does not
    first : step to try first
    """
    low, high, most = least, top, top
    step, stride = min(max(first, low + 1), high - 1), LIKELY_STRIDES[False]
    while high - low > 1:
        ratio = excess(step)
        if ratio <= 1.0:
            low = step
            most = min(
                most if step < most else high, step + floor(STEPS_PER_DOUBLING * -log2(max(ratio, 1e-9))) + 1
            )
        else:
            high, stride = step, 2 * stride
        halfway = max((low + min(high, most)) // 2, low + 1)
        step = max(high - stride, halfway) if low == least else halfway
    return low, high


def fewest(counts: range, holds: Callable[[int], bool]) -> int | None:
    """Return the least of some counts at which something holds, which then holds at all above it; None if it does at none.

    Examples
    --------
    >>> fewest(range(1, 10), lambda count: count >= 4), fewest(range(1, 10), lambda count: False)
    (4, None)
    """
    if not counts or not holds(counts[-1]):
        return None
    low, high = counts[0], counts[-1]
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


def fewest_near(likely: int, counts: range, enough: Callable[[int], bool]) -> int | None:
    """Return the fewest of some counts that are enough, from a likely one; None if none is.

    From there they go up in strides that double, or down in strides, until one is enough and a lower one is not; then by halves.

    Examples
    --------
    >>> fewest_near(10, range(1, 100), lambda count: count >= 13), fewest_near(10, range(1, 13), lambda count: count >= 13)
    (13, None)
    """
    if not counts:
        return None
    found, too_few, count, doubled = None, counts[0] - 1, min(max(likely, counts[0]), counts[-1]), 1
    while found is None or found - too_few > 1:
        if enough(count):
            found = count
        else:
            too_few = count
            if found is None and count == counts[-1]:
                return None
        stride = max(1, count // 8)
        if found is None:
            count, doubled = min(count + min(ceil(doubled / 2), stride), counts[-1]), 2 * doubled
        elif too_few < counts[0]:
            count = max(found - stride, counts[0])
        else:
            count = (found + too_few) // 2
    return found
