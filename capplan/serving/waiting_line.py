"""The queue of an engine: order, limits, deadlines."""

from collections import deque
from heapq import heappop, heappush
from math import inf, isnan
from typing import Protocol

from capplan.serving.outcome import Ledger
from capplan.serving.requests import Admission, InFlight
from capplan.serving.terms import EngineTerms


class Source(Protocol):
    """A source of requests."""

    next_s: float
    """When the next request reaches the queue; infinite if none is known."""

    def take(self) -> InFlight | None:
        """Remove and return the next request; None if the next event is not an arrival."""

    def ended(self, flight: InFlight, at_s: float) -> None:
        """Take note that a request was finished or shed."""


class WaitingLine:
    """The queue of one engine: by priority, then by arrival; a preempted request keeps its original place."""

    __slots__ = (
        "_expiry",
        "_heap",
        "_ledger",
        "_limit",
        "_limits_s",
        "_terms",
        "count",
        "deadlines",
        "feed",
        "priorities",
    )

    def __init__(self, feed: Source, terms: EngineTerms, ledger: Ledger, admission: Admission) -> None:
        """Start empty."""
        self.feed = feed
        self._terms = terms
        self._ledger = ledger
        self._limit = inf if admission.queue_limit is None else admission.queue_limit
        self._limits_s = admission.deadline_s
        self._expiry: list[deque[InFlight]] = [deque() for _ in admission.deadline_s]
        self._heap: list[tuple[int, InFlight]] = []
        self.count = 0
        self.deadlines = bool(admission.deadline_s)
        self.priorities = bool(admission.priority)

    def receive(self, now_s: float) -> None:
        """Process arrivals and expired deadlines up to now, in order of time."""
        feed = self.feed
        while True:
            expiry_s = self.next_expiry_s() if self.deadlines else inf
            if expiry_s <= now_s and expiry_s <= feed.next_s:
                self._expire(expiry_s)
            elif feed.next_s <= now_s:
                flight = feed.take()
                if flight is not None:
                    self._enqueue(flight)
            else:
                return

    def head(self) -> InFlight:
        """Return the request at the head of the queue, which must not be empty."""
        heap = self._heap
        while heap[0][1].end_step == -2:
            heappop(heap)
        return heap[0][1]

    def pop(self) -> None:
        """Remove the head."""
        self.head()
        heappop(self._heap)
        self.count -= 1

    def push(self, flight: InFlight) -> None:
        """Put a preempted request back."""
        self.count += 1
        heappush(self._heap, (flight.key, flight))

    def remove(self, flight: InFlight) -> None:
        """Remove a waiting request."""
        flight.end_step = -2
        flight.scheduled_s = 0.0
        self.count -= 1

    def prompt_tokens(self) -> int:
        """Return the tokens of all waiting prompts."""
        return sum(flight.prompt_tokens for _, flight in self._heap if flight.end_step != -2)

    def next_expiry_s(self) -> float:
        """Return when the next deadline expires; forget those of requests that have started."""
        earliest = inf
        for limit_s, line in zip(self._limits_s, self._expiry, strict=True):
            while line and not isnan(line[0].scheduled_s):
                line.popleft()
            if line:
                earliest = min(earliest, line[0].enqueued_s + limit_s)
        return earliest

    def _enqueue(self, flight: InFlight) -> None:
        self._ledger.arrived(flight)
        if flight.block_ids:
            whole = flight.prompt_tokens // self._terms.id_tokens if self._terms.caching else 0
            flight.block_ids = flight.block_ids[:whole]
        if self._terms.too_long(flight) or self.count >= self._limit:
            self._ledger.shed(flight, flight.enqueued_s)
            self.feed.ended(flight, flight.enqueued_s)
            return
        flight.shared_tokens = self._terms.shared_tokens(flight)
        self.count += 1
        heappush(self._heap, (flight.key, flight))
        if self.deadlines and isnan(flight.scheduled_s):
            line = self._expiry[flight.class_index]
            place = len(line)
            while place and line[place - 1].enqueued_s > flight.enqueued_s:
                place -= 1
            line.insert(place, flight)

    def _expire(self, at_s: float) -> None:
        for limit_s, line in zip(self._limits_s, self._expiry, strict=True):
            if line and line[0].enqueued_s + limit_s <= at_s:
                flight = line.popleft()
                flight.end_step = -2
                self.count -= 1
                self._ledger.shed(flight, at_s)
                self.feed.ended(flight, at_s)
                return
