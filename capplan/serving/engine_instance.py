"""One engine of a fleet from start to end: the requests sent to it, those it holds, and what it reports."""

from collections import deque
from math import inf, nextafter
from typing import Protocol

from capplan.serving.outcome import FINISHED, SHED, Ledger
from capplan.serving.queue import WaitingLine
from capplan.serving.requests import Admission, InFlight
from capplan.serving.server import Server
from capplan.serving.step_table import StepClock
from capplan.serving.terms import EngineTerms


class Inbox:
    """Requests sent to an engine that it has not received yet, in order of time."""

    __slots__ = ("_flights", "next_s")

    def __init__(self) -> None:
        """Start empty."""
        self._flights: deque[tuple[float, InFlight]] = deque()
        self.next_s = inf

    def put(self, at_s: float, flight: InFlight) -> None:
        """Append a request, no earlier than those already here."""
        self._flights.append((at_s, flight))
        self.next_s = self._flights[0][0]

    def take(self) -> InFlight:
        """Remove and return the next request."""
        flight = self._flights.popleft()[1]
        self.next_s = self._flights[0][0] if self._flights else inf
        return flight

    def ended(self, flight: InFlight, at_s: float) -> None:
        """Do nothing: the ledger of the engine reports the end."""

    def remove(self, flight: InFlight) -> bool:
        """Remove a request; return whether it was still here."""
        kept = [entry for entry in self._flights if entry[1] is not flight]
        removed = len(kept) < len(self._flights)
        self._flights = deque(kept)
        self.next_s = kept[0][0] if kept else inf
        return removed

    def __len__(self) -> int:
        """Return how many requests wait here."""
        return len(self._flights)


class Report(Protocol):
    """Receives what happens in the engines of a fleet."""

    def first_token(self, instance: "EngineInstance", flight: InFlight) -> None:
        """Take note of a first token, at flight.first_token_s."""

    def ended(self, instance: "EngineInstance", flight: InFlight, at_s: float, status: int) -> None:
        """Take note that a request was finished or shed."""


class EngineLedger(Ledger):
    """Totals of one engine; per-request events are reported to the fleet, which keeps the rows."""

    __slots__ = ("_instance", "_report")

    def __init__(self, instance: "EngineInstance", report: Report) -> None:
        """Start empty."""
        super().__init__()
        self._instance = instance
        self._report = report

    def arrived(self, flight: InFlight) -> None:
        """Do nothing: the fleet opened the row before it sent the request."""

    def first_token(self, flight: InFlight) -> None:
        """Report a first token."""
        self._report.first_token(self._instance, flight)

    def finished(self, flight: InFlight, at_s: float) -> None:
        """Report a last token."""
        del self._instance.flights[flight.index]
        self._report.ended(self._instance, flight, at_s, FINISHED)

    def shed(self, flight: InFlight, at_s: float) -> None:
        """Report a request that is shed."""
        del self._instance.flights[flight.index]
        self._report.ended(self._instance, flight, at_s, SHED)


class EngineInstance:
    """A replica from start to end; after a repair a new instance starts, with an empty cache."""

    __slots__ = (
        "_inbox",
        "_stalled",
        "draining",
        "flights",
        "from_s",
        "ledger",
        "link_free_s",
        "load",
        "number",
        "requests",
        "server",
        "until_s",
    )

    def __init__(
        self,
        number: int,
        from_s: float,
        clock: StepClock,
        terms: EngineTerms,
        admission: Admission,
        report: Report,
    ) -> None:
        """Start idle."""
        self.number = number
        self.from_s = from_s
        self.until_s = inf
        self.draining = False
        self.ledger = EngineLedger(self, report)
        self.flights: dict[int, InFlight] = {}
        """Requests sent here that have not ended, at the time the engine has reached."""
        self.load = 0
        """Requests sent here that have not ended, at the time the fleet has reached."""
        self.requests = 0
        self.link_free_s = 0.0
        self._inbox = Inbox()
        self._stalled = False
        self.server = Server(
            clock, terms, WaitingLine(self._inbox, terms, self.ledger, admission), self.ledger
        )

    @property
    def next_start_s(self) -> float:
        """Return when the next step starts, given the requests known now."""
        if self._stalled:
            loaded_s, next_s = self.server.loaded_s, self._inbox.next_s
            return min(loaded_s, next_s if next_s > self.server.now_s else inf) if loaded_s < inf else inf
        return self.server.now_s if self.server.load else max(self._inbox.next_s, self.server.now_s)

    @property
    def waiting(self) -> int:
        """Return the requests in the queue."""
        return self.server.waiting + len(self._inbox)

    def send(self, at_s: float, flight: InFlight) -> None:
        """Send a request here."""
        self._inbox.put(at_s, flight)
        self.flights[flight.index] = flight
        self.load += 1
        self.requests += 1
        self._stalled = False

    def advance(self, until_s: float) -> None:
        """Run every step that starts before a time."""
        if self.flights and self.server.now_s < until_s:
            self.server.advance(until_s)

    def step(self) -> None:
        """Run one step."""
        start_s = self.next_start_s
        self.server.advance(nextafter(start_s, inf))
        self._stalled = self.server.now_s <= start_s

    def cancel(self, flight: InFlight) -> bool:
        """Cancel a request at the end of the running step; return False if it has ended before."""
        if self.flights.get(flight.index) is not flight:
            return False
        if not self._inbox.remove(flight):
            self.server.cancel(flight)
        del self.flights[flight.index]
        self.load -= 1
        return True

    def evacuate(self) -> list[InFlight]:
        """Remove and return all requests at the end of the running step, most urgent first."""
        late = [self._inbox.take() for _ in range(len(self._inbox))]
        flights = sorted([*self.server.evacuate(), *late], key=lambda flight: flight.key)
        self.flights.clear()
        self.load -= len(flights)
        return flights
