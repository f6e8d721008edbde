"""Three trees on flat arrays: a heap of events, a tournament of the times at which engines start, and counts over ranges of ranks."""

from __future__ import annotations

from array import array

from capplan.serving.flat_input import Integers

NEVER_S = float("inf")


class FlatEvents:
    """Events in order of time; of equal times the one that was added first."""

    def __init__(self) -> None:
        """Start without events."""
        self.times = array("d", bytes(8 * 64))
        self.serials, self.values = array("q", bytes(8 * 64)), array("q", bytes(8 * 64))
        self.count = self.added = 0

    def next_s(self) -> float:
        """Return the time of the first event; infinite if there is none."""
        return self.times[0] if self.count else NEVER_S

    def push(self, at_s: float, value: int) -> None:
        """Add an event."""
        if self.count == len(self.times):
            more = bytes(8 * self.count)
            self.times = array("d", bytes(self.times) + more)
            self.serials = array("q", bytes(self.serials) + more)
            self.values = array("q", bytes(self.values) + more)
        place = self.count
        self.count += 1
        self.added += 1
        while place and self.times[(place - 1) // 2] > at_s:
            self.times[place] = self.times[(place - 1) // 2]
            self.serials[place] = self.serials[(place - 1) // 2]
            self.values[place] = self.values[(place - 1) // 2]
            place = (place - 1) // 2
        self.times[place] = at_s
        self.serials[place], self.values[place] = self.added, value

    def pop(self) -> int:
        """Remove the first event and return its value."""
        self.count -= 1
        size, place = self.count, 0
        value, at_s, serial = self.values[0], self.times[size], self.serials[size]
        while 2 * place + 1 < size:
            child = 2 * place + 1
            if child + 1 < size and (
                self.times[child + 1] < self.times[child]
                or (
                    self.times[child + 1] == self.times[child]
                    and self.serials[child + 1] < self.serials[child]
                )
            ):
                child += 1
            if at_s < self.times[child] or (at_s == self.times[child] and serial < self.serials[child]):
                break
            self.times[place], self.serials[place] = self.times[child], self.serials[child]
            self.values[place] = self.values[child]
            place = child
        self.times[place], self.serials[place] = at_s, serial
        self.values[place] = self.values[size]
        return value


class FlatStarts:
    """When each engine starts its next step, as a tree of which every node has the earlier time of the two below it."""

    def __init__(self, engines: int) -> None:
        """Start without steps."""
        self.leaves = 1
        while self.leaves < engines:
            self.leaves *= 2
        self.times = array("d", [NEVER_S]) * (2 * self.leaves)

    def first(self) -> int:
        """Return the engine that starts first; of equal times the first engine."""
        place = 1
        while place < self.leaves:
            place = 2 * place + (self.times[2 * place + 1] < self.times[2 * place])
        return place - self.leaves

    def set(self, engine: int, at_s: float) -> None:
        """Set when an engine starts its next step; infinite if it has none."""
        place = self.leaves + engine
        self.times[place] = at_s
        while place > 1:
            place //= 2
            self.times[place] = min(self.times[2 * place], self.times[2 * place + 1])


def counts_of_greater(ranks: Integers, span: int) -> Integers:
    """Return for each rank, from 0 to below `span`, how many earlier ones are greater; see prefix_cache.earlier_greater."""
    tree, counts = array("q", bytes(8 * (span + 1))), array("q", bytes(8 * len(ranks)))
    for row in range(len(ranks)):
        place, others = ranks[row] + 1, 0
        while place:
            others += tree[place]
            place &= place - 1
        counts[row] = row - others
        place = ranks[row] + 1
        while place <= span:
            tree[place] += 1
            place += place & -place
    return counts
