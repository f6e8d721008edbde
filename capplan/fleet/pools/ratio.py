"""How many prefill and how many decode replicas: the cheapest pair that meets the targets."""

from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil, inf
from typing import Literal

Phase = Literal["prefill", "decode"]
Pair = tuple[int, int]
"""Prefill and decode replicas."""
PHASES: tuple[Phase, Phase] = ("prefill", "decode")
MOST_EXCHANGED = 8
"""Replicas of the cheaper pool that are tried for one of the dearer pool."""
Lacking = frozenset[Phase]
"""Pools to which a replica has to be added, one of them at least; empty where nothing is missing."""


def cheapest_pair(
    lacking: Callable[[Pair], Lacking],
    least: Pair,
    costs: tuple[float, float],
    *,
    most_cost: float = inf,
    most_tried: int,
) -> tuple[Pair | None, int]:
    """Return the cheapest pair of replica counts to which nothing is missing, and how many pairs were tried.

        min a P + b D   with nothing missing at (P, D), P >= P_0, D >= D_0

    Pairs are tried in order of their cost. What is missing with some replicas is missing with fewer of either pool; a
    pair that lacks prefill replicas alone lacks them with any number of decode replicas, so those are left out.

    Parameters
    ----------
    lacking : what a pair lacks
    least : [-]
        P_0, D_0
    costs : [$/h] or [-]
        a, b of one replica, positive
    most_cost : [$/h] or [-]
        of a pair that is tried
    most_tried : [-]
        the search gives up after so many pairs

    Returns
    -------
    P, D, or None; and the number of pairs

    Examples
    --------
    Three prefill and two decode replicas are needed, and a decode replica costs four times as much:

    >>> def lacks(pair: Pair) -> Lacking:
    ...     return frozenset([*["prefill"] * (pair[0] < 3), *["decode"] * (pair[1] < 2)])
    >>> cheapest_pair(lacks, (1, 1), (1.0, 4.0), most_tried=20)
    ((3, 2), 6)

    References
    ----------
    Dijkstra 1959, "A note on two problems in connexion with graphs", doi:10.1007/BF01386390: the next of a sorted frontier.
    """
    frontier = [(costs[0] * least[0] + costs[1] * least[1], least)]
    seen = {least}
    tried = 0
    while frontier and frontier[0][0] <= most_cost and tried < most_tried:
        _, (prefill, decode) = heappop(frontier)
        tried += 1
        missing = lacking((prefill, decode))
        if not missing:
            return (prefill, decode), tried
        steps: dict[Phase, Pair] = {"prefill": (prefill + 1, decode), "decode": (prefill, decode + 1)}
        for phase, pair in steps.items():
            if phase in missing and pair not in seen:
                seen.add(pair)
                heappush(frontier, (costs[0] * pair[0] + costs[1] * pair[1], pair))
    return None, tried


def cheap_pair_in_strides(
    lacking: Callable[[Pair], Lacking],
    start: Pair,
    costs: tuple[float, float],
    *,
    most_cost: float = inf,
    largest: Pair,
) -> tuple[Pair | None, int]:
    """Return a cheap pair of large replica counts to which nothing is missing, and how many pairs were tried.

    Pools that lack replicas grow by an eighth until nothing is missing; then each pool shrinks by halving the interval
    between what is enough and what is not, and a dearer replica is exchanged for cheaper ones while that saves something. So
    neither pool can lose a replica, nor exchange one; among hundreds of replicas another pair may still cost a little less.

    Parameters
    ----------
    lacking : what a pair lacks
    start : [-]
        where to begin, such as what either phase takes alone
    costs : [$/h] or [-]
        of one replica of either pool, positive
    most_cost : [$/h] or [-]
        of the pair that is returned
    largest : [-]
        replicas of either pool beyond which the search ends

    Returns
    -------
    P, D, or None; and the number of pairs

    Examples
    --------
    >>> def lacks(pair: Pair) -> Lacking:
    ...     return frozenset([*["prefill"] * (pair[0] < 90), *["decode"] * (pair[1] < 33)])
    >>> cheap_pair_in_strides(lacks, (60, 40), (1.0, 4.0), largest=(240, 160))[0]
    (90, 33)

    References
    ----------
    Nelder, Mead 1965, "A simplex method for function minimization", doi:10.1093/comjnl/7.4.308, for searches by comparison alone;
    here one coordinate at a time.
    """
    known: dict[Pair, Lacking] = {}

    def missing(pair: Pair) -> Lacking:
        if pair not in known:
            known[pair] = lacking(pair)
        return known[pair]

    pair = start
    while lacks := missing(pair):
        if pair[0] > largest[0] or pair[1] > largest[1]:
            return None, len(known)
        grown = [
            count + (max(1, count // 8) if phase in lacks else 0)
            for phase, count in zip(PHASES, pair, strict=True)
        ]
        pair = grown[0], grown[1]
    while True:
        shrunk = _exchanged(missing, _shrunk(missing, pair, costs), costs)
        if shrunk == pair:
            break
        pair = shrunk
    cost = costs[0] * pair[0] + costs[1] * pair[1]
    return (pair if cost <= most_cost else None), len(known)


def _shrunk(missing: Callable[[Pair], Lacking], pair: Pair, costs: tuple[float, float]) -> Pair:
    """Return the pair with as few replicas of the dearer pool, and then of the other, as are enough."""
    for side in sorted((0, 1), key=lambda of: -costs[of]):
        short, enough = 0, pair[side]
        for less in (
            1,
            max(2, pair[side] // 8),
        ):  # most often a few replicas are too many, seldom half of them
            fewer = pair[side] - less
            if fewer > 0 and missing(_with(pair, side, fewer)):
                short = fewer
                break
            enough = max(fewer, 1) if fewer > 0 else enough
        while enough - short > 1:
            middle = (enough + short) // 2
            if missing(_with(pair, side, middle)):
                short = middle
            else:
                enough = middle
        pair = _with(pair, side, enough)
    return pair


def _exchanged(missing: Callable[[Pair], Lacking], pair: Pair, costs: tuple[float, float]) -> Pair:
    """Return the pair with one replica of the dearer pool less, and fewer dollars of the other pool more; the same if none is enough."""
    dear = 0 if costs[0] >= costs[1] else 1
    for more in range(1, min(ceil(costs[dear] / costs[1 - dear]), MOST_EXCHANGED)):
        other = _with(_with(pair, dear, pair[dear] - 1), 1 - dear, pair[1 - dear] + more)
        if pair[dear] > 1 and not missing(other):
            return other
    return pair


def _with(pair: Pair, side: int, count: int) -> Pair:
    return (count, pair[1]) if side == 0 else (pair[0], count)
