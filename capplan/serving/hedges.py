"""Copies of requests: which of them are under way, which one answers, what the others cost."""

from capplan.serving.engine_life import EngineLife
from capplan.serving.fleet_terms import Hedging
from capplan.serving.outcome import FINISHED, SHED, Ledger
from capplan.serving.requests import InFlight

FIRST_TOKEN = -1
"""Status of a report that is not yet an end."""


class Hedges:
    """All requests in the fleet with their copies, one or two of each."""

    __slots__ = ("_hedged", "cancelled_output_tokens", "copied_requests", "copies", "hedging", "live")

    def __init__(self, hedging: Hedging) -> None:
        """Start with none."""
        self.hedging = hedging
        self.copies: dict[int, list[tuple[EngineLife, InFlight]]] = {}
        self.live = 0
        """Requests of which two copies are under way."""
        self._hedged: set[int] = set()
        self.copied_requests = 0
        self.cancelled_output_tokens = 0

    def hedged(self, index: int) -> bool:
        """Return whether a request in the fleet ever had a copy."""
        return index in self._hedged

    def sent(self, life: EngineLife, flight: InFlight) -> bool:
        """Keep where a request is; return whether it is a new one."""
        new = flight.index not in self.copies
        copies = self.copies.setdefault(flight.index, [])
        copies.append((life, flight))
        if len(copies) > 1:
            self.live += 1
            self._hedged.add(flight.index)
            self.copied_requests += 1
        return new

    def only_copy(self, index: int) -> tuple[EngineLife, InFlight] | None:
        """Return where a request is that has one copy under way."""
        copies = self.copies.get(index, [])
        return copies[0] if len(copies) == 1 else None

    def lost(self, flight: InFlight) -> bool:
        """Learn that a copy is without a replica; return whether another one goes on."""
        copies = self.copies.get(flight.index)
        if copies is None:
            return True
        others = [entry for entry in copies if entry[1] is not flight]
        self.copies[flight.index] = others
        if others:
            self.live -= 1
            self.cancelled_output_tokens += flight.output_tokens - flight.remaining_tokens
        return bool(others)

    def settle(self, flight: InFlight, status: int, ledger: Ledger) -> tuple[bool, list[EngineLife]]:
        """Take a report of a copy; return whether it ends the request, and where another copy was cancelled."""
        copies = self.copies.get(flight.index, [])
        if all(copy is not flight for _, copy in copies):
            if status == FINISHED:
                self.cancelled_output_tokens += flight.output_tokens
            return False, []
        if status == FIRST_TOKEN:
            if self.hedging.settled_by == "finish":
                return False, []
            ledger.first_token(flight)
            return False, self._cancel_others(flight, copies)
        if status == SHED and len(copies) > 1:
            self.lost(flight)
            return False, []
        cancelled = self._cancel_others(flight, copies)
        if status == FINISHED and self.hedged(flight.index):
            ledger.first_token(flight)
        del self.copies[flight.index]
        self._hedged.discard(flight.index)
        return True, cancelled

    def _cancel_others(self, flight: InFlight, copies: list[tuple[EngineLife, InFlight]]) -> list[EngineLife]:
        where = []
        for life, copy in copies:
            if copy is not flight:
                self.live -= 1
                if life.cancel(copy):
                    self.cancelled_output_tokens += copy.output_tokens - copy.remaining_tokens
                    where.append(life)
        self.copies[flight.index] = [entry for entry in copies if entry[1] is flight]
        return where


def copy_of(flight: InFlight) -> InFlight:
    """Return a copy of a request that has not got a token yet."""
    copy = InFlight(
        flight.index, flight.arrival_s, flight.enqueued_s, flight.prompt_tokens, flight.output_tokens
    )
    copy.key = flight.key
    copy.cached_tokens = flight.cached_tokens
    copy.class_index = flight.class_index
    copy.block_ids = flight.block_ids
    copy.answer_ids = flight.answer_ids
    copy.asked = flight.asked
    return copy
