"""Hedged requests: which copies are running, which one wins, what the others cost."""

from capplan.serving.engine_instance import EngineInstance
from capplan.serving.outcome import FINISHED, SHED, Ledger
from capplan.serving.replicas.fleet_terms import Hedging
from capplan.serving.requests import InFlight

FIRST_TOKEN = -1
"""Status of a report that is not the end of a request."""


class Hedges:
    """All requests in the fleet, each with its one or two copies."""

    __slots__ = ("_hedged", "cancelled_output_tokens", "copied_requests", "copies", "hedging", "live")

    def __init__(self, hedging: Hedging) -> None:
        """Start with none."""
        self.hedging = hedging
        self.copies: dict[int, list[tuple[EngineInstance, InFlight]]] = {}
        self.live = 0
        """Requests with two copies in the fleet."""
        self._hedged: set[int] = set()
        self.copied_requests = 0
        self.cancelled_output_tokens = 0

    def hedged(self, index: int) -> bool:
        """Return whether a request in the fleet has ever been copied."""
        return index in self._hedged

    def sent(self, instance: EngineInstance, flight: InFlight) -> bool:
        """Note where a request or its copy was sent; return whether the request is new."""
        new = flight.index not in self.copies
        copies = self.copies.setdefault(flight.index, [])
        copies.append((instance, flight))
        if len(copies) > 1:
            self.live += 1
            self._hedged.add(flight.index)
            self.copied_requests += 1
        return new

    def only_copy(self, index: int) -> tuple[EngineInstance, InFlight] | None:
        """Return where a request is if it has exactly one copy in the fleet."""
        copies = self.copies.get(index, [])
        return copies[0] if len(copies) == 1 else None

    def lost(self, flight: InFlight) -> bool:
        """Drop a copy whose replica has failed; return whether another copy remains, or none is needed."""
        copies = self.copies.get(flight.index)
        if copies is None:
            return True
        others = [entry for entry in copies if entry[1] is not flight]
        self.copies[flight.index] = others
        if others:
            self.live -= 1
            self.cancelled_output_tokens += flight.output_tokens - flight.remaining_tokens
        return bool(others)

    def settle(self, flight: InFlight, status: int, ledger: Ledger) -> tuple[bool, list[EngineInstance]]:
        """Process the report of a copy; return whether it ends the request, and where the other copy was cancelled."""
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

    def _cancel_others(
        self, flight: InFlight, copies: list[tuple[EngineInstance, InFlight]]
    ) -> list[EngineInstance]:
        where = []
        for instance, copy in copies:
            if copy is not flight:
                self.live -= 1
                if instance.cancel(copy):
                    self.cancelled_output_tokens += copy.output_tokens - copy.remaining_tokens
                    where.append(instance)
        self.copies[flight.index] = [entry for entry in copies if entry[1] is flight]
        return where


def copy_of(flight: InFlight) -> InFlight:
    """Return a copy of a request that has no token yet."""
    copy = InFlight(
        flight.index, flight.arrival_s, flight.enqueued_s, flight.prompt_tokens, flight.output_tokens
    )
    copy.key = flight.key
    copy.cached_tokens = flight.cached_tokens
    copy.class_index = flight.class_index
    copy.block_ids = flight.block_ids
    copy.output_ids = flight.output_ids
    copy.user_group = flight.user_group
    return copy
