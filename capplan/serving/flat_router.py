"""The router of a pool of flat engines: where each request goes, and how far its engines run before."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from capplan.serving.flat_core import FlatEngine

    Doubles: TypeAlias = array[float]
    Integers: TypeAlias = array[int]


class FlatRouter:
    """Identical engines behind one router, least loaded or in turn."""

    def __init__(self, cores: list[FlatEngine], *, by_load: bool) -> None:
        """Take engines without requests."""
        self.cores, self.by_load, self.turn = cores, by_load, 0

    def serve(
        self,
        order: Integers,
        at_s: Doubles,
        arrival_s: Doubles,
        columns: tuple[Integers, Integers, Integers, Integers],
        first_token_s: Doubles,
    ) -> Integers:
        """Send requests at times that ascend in this order, run all of them, and return the engine of each place in the order.

        The columns are prompt, output and cached tokens, and class; see FlatQueue.send.
        """
        prompt, output, cached, class_index = columns
        chosen = array("q", bytes(8 * len(order)))
        for place in range(len(order)):
            row = order[place]
            chosen[place] = self.choice(at_s[row])
            core = self.cores[chosen[place]]
            run(core, at_s[row])
            core.send(
                at_s[row],
                arrival_s[row],
                prompt[row],
                output[row],
                cached[row],
                class_index[row],
                first_token_s[row],
                row,
            )
        for core in self.cores:
            run(core, float("inf"))
        return chosen

    def choice(self, at_s: float) -> int:
        """Return the engine whose turn it is, or the first of those with the fewest requests; see Router."""
        if not self.by_load:
            turn = self.turn
            self.turn = (turn + 1) % len(self.cores)
            return turn
        best, least = 0, 0
        for place in range(len(self.cores)):
            core = self.cores[place]
            run(core, at_s)
            load = core.unfinished(at_s)
            if not place or load < least:
                best, least = place, load
        return best


def run(core: FlatEngine, until_s: float) -> None:
    """Run every step that starts before a time; see EngineInstance.advance."""
    if core.arrivals > core.over and core.now_s < until_s:
        core.advance(until_s)
