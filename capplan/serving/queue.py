"""Requests on their way into an engine: arrivals and closed-loop users in order of time, then the waiting line with its order, limits and deadlines."""

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from math import inf, isnan
from operator import itemgetter
from typing import Protocol, TypeAlias

import numpy as np

from capplan.errors import InputError
from capplan.numbers import Array
from capplan.serving.outcome import Ledger
from capplan.serving.requests import (
    BEGIN_S,
    NO_REQUESTS,
    Admission,
    Crowd,
    InFlight,
    Requests,
    check_requests,
)
from capplan.serving.terms import EngineTerms

Row: TypeAlias = tuple[float, int, int, int, int, list[int], list[int]]
"""Arrival or think time, prompt, output, cached tokens, class, block ids of the prompt and of the response."""
NO_ROW: Row = (inf, 0, 0, 0, 0, [], [])
"""Stands after the last request."""


class Feed:
    """Yields requests in the order in which they reach the queue: arrival time plus front-end delay.

    Users of a crowd begin one after the other, BEGIN_S apart, each with one request. When a request ends, its user takes the next
    request of the group, thinks for the time that goes with it, and sends it. Ends may be reported late (a shed request arrived before the step that
    just ended), so the user takes the next request only when the queue has reached the time of the end.
    """

    __slots__ = (
        "_delay_s",
        "_ends",
        "_left",
        "_next_arrival",
        "_next_asked",
        "_open",
        "_priority",
        "_taken",
        "_thinking",
        "_to_ask",
        "index",
        "next_s",
    )

    PART_REQUESTS = 32768

    def __init__(
        self,
        requests: Requests | Iterable[Requests] = NO_REQUESTS,
        *,
        delay_s: float = 0.0,
        crowd: Crowd | None = None,
        priority: tuple[int, ...] = (),
    ) -> None:
        """Open the first part of the requests; parts are read as they are needed."""
        self._delay_s = delay_s
        self._priority = priority
        self._open = _rows(requests, self.PART_REQUESTS)
        self._next_arrival = next(self._open, NO_ROW)
        parts = [] if crowd is None else crowd.parts
        self._to_ask = [_rows(part.requests, self.PART_REQUESTS, part) for part in parts]
        self._next_asked = [next(rows, NO_ROW) for rows in self._to_ask]
        self._left = inf if crowd is None or crowd.most_requests is None else float(crowd.most_requests)
        begins = [] if crowd is None else enumerate(crowd.first_turns().tolist())
        self._ends = deque((user * BEGIN_S, group) for user, group in begins if self._has_next(group))
        self._thinking: list[tuple[float, int, int, Row]] = []
        self._taken = 0
        self.index = 0
        self.next_s = inf
        self._find_next()

    def take(self) -> InFlight | None:
        """Remove and return the next request; None if the next event is a user who starts to think."""
        if self._ends and self._ends[0][0] <= self.next_s:
            self._think(*self._ends.popleft())
            self._find_next()
            return None
        enqueued, row = self.next_s, self._next_arrival
        arrival = row[0]
        group = -1
        if self._thinking and self._thinking[0][0] < arrival:
            arrival, _, group, row = heappop(self._thinking)
        else:
            self._next_arrival = next(self._open, NO_ROW)
        _, prompt, output, cached, class_index, block_ids, output_ids = row
        flight = InFlight(self.index, arrival, enqueued, prompt, output)
        flight.user_group = group
        if cached:
            flight.cached_tokens = cached
        flight.block_ids = block_ids
        flight.output_ids = output_ids
        if class_index:
            flight.class_index = class_index
        if self._priority:
            flight.key = (self._priority[class_index] << 48) + self.index
        self.index += 1
        self._find_next()
        return flight

    def ended(self, flight: InFlight, at_s: float) -> None:
        """Free the user of a request that has ended, if it had one and requests of the user's group are left."""
        if flight.user_group < 0 or not self._has_next(flight.user_group):
            return
        end = (at_s, flight.user_group)
        if self._ends and self._ends[-1][0] > at_s:
            insort(self._ends, end, key=itemgetter(0))
        else:
            self._ends.append(end)
        self.next_s = min(self.next_s, at_s)

    def _has_next(self, group: int) -> bool:
        return self._left > 0 and self._next_asked[group] is not NO_ROW

    def _think(self, free_s: float, group: int) -> None:
        """Give the next request of a group to a free user of this group."""
        row = self._next_asked[group]
        heappush(self._thinking, (free_s + row[0], self._taken, group, row))
        self._taken += 1
        self._left -= 1
        self._next_asked[group] = next(self._to_ask[group], NO_ROW)
        if not self._has_next(group):
            self._ends = deque(end for end in self._ends if self._has_next(end[1]))

    def _find_next(self) -> None:
        next_s = self._next_arrival[0]
        if self._thinking:
            next_s = min(next_s, self._thinking[0][0])
        next_s += self._delay_s
        self.next_s = min(next_s, self._ends[0][0]) if self._ends else next_s


def _rows(source: Requests | Iterable[Requests], most: int, crowd: Crowd | None = None) -> Iterator[Row]:
    """Check the requests and yield them one by one, converted to Python numbers in parts of bounded size."""
    first = 0
    latest_s = 0.0
    for chunk in (source,) if isinstance(source, Requests) else source:
        check_requests(chunk, first, timed=crowd is None)
        when = np.zeros(len(chunk)) if chunk.arrival_s is None else chunk.arrival_s
        if crowd is not None:
            when = _think_s(crowd, first, len(chunk))
        elif chunk.arrival_s is not None and len(chunk):
            if when[0] < latest_s:
                raise InputError(
                    f"request {first} arrives before its predecessor\n  sort the requests by arrival"
                )
            latest_s = float(when[-1])
        for start in range(0, len(chunk), most):
            yield from _part_rows(chunk.between(start, start + most), when[start : start + most])
        first += len(chunk)


def _think_s(crowd: Crowd, first: int, count: int) -> Array:
    if crowd.think_s is None:
        return np.zeros(count)
    if crowd.think_s.size < first + count:
        raise InputError(f"crowd: think_s has {crowd.think_s.size} entries for more requests")
    return crowd.think_s[first : first + count]


def _part_rows(part: Requests, when_s: Array) -> Iterator[Row]:
    zeros = [0] * len(part)
    nothing: list[list[int]] = [[]] * len(part)
    ids, outputs = (part.pieces(name) for name in ("block_ids", "output_ids"))
    yield from zip(
        when_s.tolist(),
        part.input_tokens.tolist(),
        part.output_tokens.tolist(),
        zeros if part.cached_tokens is None else part.cached_tokens.tolist(),
        zeros if part.class_index is None else part.class_index.tolist(),
        nothing if ids is None else [piece.tolist() for piece in ids],
        nothing if outputs is None else [piece.tolist() for piece in outputs],
        strict=True,
    )


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

    def take(self) -> InFlight:
        """Remove and return the head."""
        flight = self.head()
        self.pop()
        return flight

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
        if (
            self._terms.takes_over
            and not flight.received
            and (self._terms.draws_first or flight.output_tokens > 1)
        ):
            flight.received, flight.cached_tokens = True, 0
            flight.remaining_tokens -= not self._terms.draws_first
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
