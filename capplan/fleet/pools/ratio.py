"""How many prefill and how many decode replicas: the cheapest pair that meets the targets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, floor, inf
from typing import Literal

Phase = Literal["prefill", "decode"]
Pair = tuple[int, int]
"""Prefill and decode replicas."""
Lacking = frozenset[Phase]
"""Pools to which a replica has to be added, one of them at least; empty where nothing is missing."""

FIRST_STRIDE = 1.0 / 16.0
"""The first stride adds this share of its replicas to a pool that is short; each later stride adds twice the share, up to all."""
MOST_GROWN = 64
"""A pool grows to at most this multiple of the replicas that its phase takes alone."""
MOST_TRIED = 100
"""After so many pairs the cheapest one so far counts, whatever is left to try."""
ALONGSIDE = 1e-9
"""Pairs whose costs differ by less than this fraction cost the same."""


def cheapest_pair(
    lacking: Callable[[Pair], Lacking],
    start: Pair,
    costs: tuple[float, float],
    *,
    joined: Callable[[Pair], bool] = lambda _: True,
    most_cost: float = inf,
    most_tried: int = MOST_TRIED,
) -> tuple[Pair | None, int]:
    """Return the cheapest pair of replica counts to which nothing is missing, and how many pairs were tried.

        min a P + b D   with nothing missing at (P, D), P >= 1, D >= 1

    The pool that is short grows by strides in proportion to its size until nothing is missing. Then either pool shrinks by
    bisection, and each cheaper pair that may still be enough is tried. What is missing with some replicas is missing with
    fewer of either pool; a pair that lacks prefill replicas alone lacks them with any number of decode replicas.

    Parameters
    ----------
    lacking : what a pair lacks
    start : [-]
        replicas that either phase takes alone; nothing is tried if they cost too much
    costs : [$/h] or [-]
        a, b of one replica, positive
    joined : whether the link joins a pair; if it does not, it joins no larger one
    most_cost : [$/h] or [-]
        of a pair that is tried
    most_tried : [-]
        after so many pairs the cheapest one so far counts; strides that find a first one are never cut short

    Returns
    -------
    P, D, or None; and the number of pairs

    Examples
    --------
    Three prefill and two decode replicas are needed, and a decode replica costs four times as much:

    >>> def lacks(pair: Pair) -> Lacking:
    ...     return frozenset([*["prefill"] * (pair[0] < 3), *["decode"] * (pair[1] < 2)])
    >>> cheapest_pair(lacks, (1, 1), (1.0, 4.0))[0]
    (3, 2)
    """
    walk = _Walk(lacking, joined, costs, (MOST_GROWN * start[0], MOST_GROWN * start[1]), most_cost)
    if walk.cost(start) > most_cost:
        return None, 0
    near = walk.grown(start) if joined(start) else start
    best = walk.shrunk(near) if near in walk.enough else None
    while len(walk.tried) < most_tried:
        cheaper = walk.open_below(best)
        if not cheaper:
            break
        middle = best[0] if best else near[0]
        pair = min(cheaper, key=lambda item: abs(item[0] - middle))
        if walk.meets(pair):
            best = walk.shrunk(pair)
    return best, len(walk.tried)


@dataclass(slots=True)
class _Walk:
    """Pairs that were tried, and what follows from them for others."""

    lacking: Callable[[Pair], Lacking]
    joined: Callable[[Pair], bool]
    costs: tuple[float, float]
    most: Pair
    most_cost: float
    tried: dict[Pair, Lacking] = field(default_factory=dict)

    @property
    def enough(self) -> set[Pair]:
        """Pairs to which nothing is missing."""
        return {pair for pair, missing in self.tried.items() if not missing}

    def cost(self, pair: Pair) -> float:
        """Return what a pair costs."""
        return self.costs[0] * pair[0] + self.costs[1] * pair[1]

    def meets(self, pair: Pair) -> bool:
        """Return whether nothing is missing to a pair."""
        if pair not in self.tried:
            self.tried[pair] = self.lacking(pair)
        return not self.tried[pair]

    def short(self, pair: Pair) -> bool:
        """Return whether a pair that was tried shows that something is missing to this one."""
        return any(
            missing
            and (pair[0] <= other[0] or missing == {"decode"})
            and (pair[1] <= other[1] or missing == {"prefill"})
            for other, missing in self.tried.items()
        )

    def grown(self, pair: Pair) -> Pair:
        """Return the first pair that is enough as the pool that is short grows, or the last one within all limits."""
        share = FIRST_STRIDE
        while not self.meets(pair):
            missing = self.tried[pair]
            larger = (
                _strode(pair[0], share if "prefill" in missing else 0.0, self.most[0]),
                _strode(pair[1], share if "decode" in missing else 0.0, self.most[1]),
            )
            if larger == pair or self.cost(larger) > self.most_cost or not self.joined(larger):
                return pair
            pair, share = larger, min(2.0 * share, 1.0)
        return pair

    def shrunk(self, pair: Pair) -> Pair:
        """Return the pair that is enough after either pool shrank as far as it can, the dearer one first."""
        for side in sorted((0, 1), key=lambda side: -self.costs[side] * pair[side]):
            low = 0  # replicas that are too few
            while pair[side] - low > 1:
                middle = (low + pair[side]) // 2
                fewer = (middle, pair[1]) if side == 0 else (pair[0], middle)
                if self.short(fewer) or not self.meets(fewer):
                    low = middle
                else:
                    pair = fewer
        return pair

    def open_below(self, best: Pair | None) -> list[Pair]:
        """Return, for each number of prefill replicas, the largest pair cheaper than the best that may be enough."""
        below = self.most_cost * (1.0 + ALONGSIDE) if best is None else self.cost(best) * (1.0 - ALONGSIDE)
        found = []
        for prefill in range(1, self.most[0] + 1):
            room = (below - self.costs[0] * prefill) / self.costs[1]
            if room < 1.0:
                break
            decode = self.most[1] if room > self.most[1] else floor(room)
            while decode and not self.joined((prefill, decode)):
                decode -= 1
            if decode and not self.short((prefill, decode)):
                found.append((prefill, decode))
        return found


def _strode(count: int, share: float, most: int) -> int:
    return min(count + ceil(share * count), most)
