"""The cheapest of all ways to divide requests over several fleets."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Generic, TypeVar

MOST_CLASSES = 6
"""Classes of which every partition is tried: 203 of six."""


Item = TypeVar("Item")
Found = TypeVar("Found")


def partitions(items: Sequence[Item]) -> Iterator[tuple[tuple[Item, ...], ...]]:
    """Yield every partition of some items into groups; the whole comes first.

    Examples
    --------
    >>> [len(list(partitions(range(n)))) for n in (1, 2, 3, 4, 5)]
    [1, 2, 5, 15, 52]
    >>> list(partitions("ab"))
    [(('a', 'b'),), (('a',), ('b',))]
    """
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for smaller in partitions(rest):
        for place, group in enumerate(smaller):
            yield (*smaller[:place], (first, *group), *smaller[place + 1 :])
        yield ((first,), *smaller)


class Costs(Generic[Item, Found]):
    """What groups cost: bounds first, and the cost itself only of those that may be in a cheapest division."""

    def __init__(
        self,
        bound: Callable[[Item], float],
        find: Callable[[Item, float], tuple[float, Found] | None],
    ) -> None:
        """Take a lower bound on the cost of a group, and what finds the cheapest fleet of a group below a cost."""
        self._bound, self._find = bound, find
        self._bounds: dict[Item, float] = {}
        self._found: dict[Item, tuple[float, Found]] = {}

    def bound(self, group: Item) -> float:
        """Return a lower bound on the cost of a group."""
        if group not in self._bounds:
            self._bounds[group] = self._bound(group)
        return self._bounds[group]

    def below(self, group: Item, most: float) -> tuple[float, Found] | None:
        """Return the cost of a group and its fleet, if it is below some cost."""
        if group not in self._found:
            if self.bound(group) >= most:
                return None
            found = self._find(group, most)
            if found is None:
                self._bounds[group] = most
                return None
            self._found[group], self._bounds[group] = found, found[0]
        known = self._found[group]
        return known if known[0] < most else None


def cheapest_division(
    divisions: Sequence[tuple[Item, ...]], costs: Costs[Item, Found], under: float
) -> tuple[tuple[Item, ...], tuple[Found, ...]] | None:
    """Return the division whose groups cost least together, and their fleets; None if none costs less than `under`.

        c = min over divisions d of sum_{g in d} c(g)

    The search sizes the division with the lowest sum of bounds next, and ends when that sum is the cost of
    a division that is known.

    Parameters
    ----------
    divisions : each a tuple of groups
    costs : of groups
    under : only cheaper divisions are looked for

    Returns
    -------
    divisions d of groups g and fleets; c, what they cost, is the least of all
    """
    best: tuple[tuple[Item, ...], tuple[Found, ...]] | None = None
    left = list(divisions)
    while left:
        division = min(left, key=lambda groups: sum(map(costs.bound, groups)))
        if sum(map(costs.bound, division)) >= under:
            break
        left.remove(division)
        fleets: list[Found] = []
        spent = 0.0
        for place, group in enumerate(division):
            later = sum(map(costs.bound, division[place + 1 :]))
            found = costs.below(group, under - spent - later)
            if found is None:
                spent = inf
                break
            spent += found[0]
            fleets.append(found[1])
        if spent < under - 1e-9:
            best, under = (division, tuple(fleets)), spent
    return best
