"""How many prefill and how many decode replicas: the cheapest pair that meets the targets."""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Literal

Phase = Literal["prefill", "decode"]
Pair = tuple[int, int]
"""Prefill and decode replicas."""
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
