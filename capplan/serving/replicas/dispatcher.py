"""The event loop of a fleet: arrivals, completions, transfers and timers between the steps of its engines.

Engines run independently between two events. While a completion in one engine can affect another at once (closed loop,
hedged requests), only the engine with the earliest next step runs, one step at a time; otherwise all run up to the next
event. Either way all engines have reached the time of an event when it is handled. A running step always completes:
failures and cancellations take effect at its end.
"""

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from math import inf, isnan

from capplan.serving.engine_instance import EngineInstance
from capplan.serving.outcome import SHED, Ledger
from capplan.serving.replicas.engine_pool import EnginePool
from capplan.serving.replicas.hedges import FIRST_TOKEN, Hedges, copy_of
from capplan.serving.requests import InFlight
from capplan.serving.waiting_line import Source


class Dispatcher:
    """Sends requests to pools of engines and records their results."""

    __slots__ = (
        "_closed_loop",
        "_ends",
        "_feed",
        "_serial",
        "_timers",
        "entry",
        "hand_over",
        "hedges",
        "ledger",
        "now_s",
        "pools",
    )

    def __init__(self, feed: Source, ledger: Ledger, *, closed_loop: bool) -> None:
        """Start at zero without engines."""
        self._feed = feed
        self.ledger = ledger
        self._closed_loop = closed_loop
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._ends: list[tuple[float, int, EngineInstance, InFlight, int]] = []
        self._serial = 0
        self.now_s = 0.0
        self.pools: list[EnginePool] = []
        """The first pool receives arrivals, the others only requests that are handed over."""
        self.entry: Callable[[InFlight], bool] | None = None
        """Says whether to accept an arrival; None: accept all."""
        self.hand_over: Callable[[EngineInstance, InFlight, float], bool] | None = None
        """Hands a request that an engine has finished to the next pool; returns False if it is complete."""
        self.hedges: Hedges | None = None

    @property
    def idle(self) -> bool:
        """Return whether no request is in the fleet and none is known to arrive."""
        return not self.ledger.in_flight and self._feed.next_s == inf

    def at(self, time_s: float, action: Callable[[float], None]) -> None:
        """Schedule an action, now at the earliest."""
        self._serial += 1
        heappush(self._timers, (max(time_s, self.now_s), self._serial, action))

    # --- reports of engines ---

    def first_token(self, instance: EngineInstance, flight: InFlight) -> None:
        """Record a first token; for a hedged request, once all earlier events are handled."""
        if self.hedges and self.hedges.hedged(flight.index):
            self._report(flight.first_token_s, instance, flight, FIRST_TOKEN)
        else:
            self.ledger.first_token(flight)

    def ended(self, instance: EngineInstance, flight: InFlight, at_s: float, status: int) -> None:
        """Note the end of a request, to be settled when the fleet reaches that time."""
        self._report(at_s, instance, flight, status)

    def _report(self, at_s: float, instance: EngineInstance, flight: InFlight, status: int) -> None:
        self._serial += 1
        heappush(self._ends, (at_s, self._serial, instance, flight, status))

    # --- time ---

    def run(self, until_s: float) -> float:
        """Handle all events and start all steps before a time; return when the last step ended."""
        while True:
            event_s = min(self._timers[0][0] if self._timers else inf, self._feed.next_s, until_s)
            if self._closed_loop or (self.hedges and self.hedges.live):
                event_s = min(event_s, self._ends[0][0] if self._ends else inf)
                instances = [instance for pool in self.pools for instance in pool.alive]
                first = min(instances, key=lambda instance: instance.next_start_s, default=None)
                if first is not None and first.next_start_s < event_s:
                    first.step()
                    continue
            elif self._upstream(event_s):
                continue
            if event_s >= until_s:
                break
            self.now_s = max(event_s, self.now_s)
            self._event(event_s)
        for pool in self.pools:
            pool.advance(until_s)
        self.settle(inf)
        return max(instance.server.now_s for pool in self.pools for instance in pool.instances)

    def _upstream(self, event_s: float) -> bool:
        """Run the pools that hand requests over; return whether that scheduled an earlier event, after which nothing is settled."""
        for pool in self.pools[:-1]:
            pool.advance(event_s)
            while self._ends and self._ends[0][0] <= min(
                event_s, self._timers[0][0] if self._timers else inf
            ):
                self.settle(self._ends[0][0])
        return bool(self._timers) and self._timers[0][0] < event_s

    def _event(self, at_s: float) -> None:
        """Handle the events of one time: ends first, then one timer or else one arrival."""
        self.settle(at_s)
        if self._timers and self._timers[0][0] <= at_s:
            heappop(self._timers)[2](self.now_s)
        elif self._feed.next_s <= at_s:
            flight = self._feed.take()
            if flight is None:
                return
            self.ledger.arrived(flight)
            if self.entry is None or self.entry(flight):
                self.dispatch(self.pools[0], flight)
            else:
                self._close(flight, at_s, SHED)

    def settle(self, until_s: float) -> None:
        """Settle the ends up to a time."""
        ends = self._ends
        while ends and ends[0][0] <= until_s:
            at_s, _, instance, flight, status = heappop(ends)
            if status != FIRST_TOKEN:
                instance.load -= 1
                self._end_if_drained(instance, at_s)
            if self.hedges:
                over, cancelled = self.hedges.settle(flight, status, self.ledger)
                for other in cancelled:
                    self._end_if_drained(other, other.server.now_s)
                if not over:
                    continue
            if self.hand_over is None or status == SHED or not self.hand_over(instance, flight, at_s):
                self._close(flight, at_s, status)

    def _close(self, flight: InFlight, at_s: float, status: int) -> None:
        if status == SHED:
            self.ledger.shed(flight, at_s)
        else:
            self.ledger.finished(flight, at_s)
        self._feed.ended(flight, max(at_s, self.now_s))

    def _end_if_drained(self, instance: EngineInstance, at_s: float) -> None:
        if instance.draining and not instance.load:
            next(pool for pool in self.pools if instance in pool.alive).end(instance, at_s)

    # --- sending ---

    def dispatch(self, pool: EnginePool, flight: InFlight) -> None:
        """Send a request to one of the serving replicas, or hold it until there is one."""
        if not pool.serving:
            pool.held.append(flight)
            return
        instance = self._choice(pool, pool.serving, flight)
        instance.send(self.now_s, flight)
        if self.hedges and self.hedges.sent(instance, flight):
            self.at(self.now_s + self.hedges.hedging.after_s, partial(self._hedge, flight.index))

    def _choice(
        self, pool: EnginePool, instances: Sequence[EngineInstance], flight: InFlight
    ) -> EngineInstance:
        if pool.router.needs_loads:
            pool.advance(self.now_s)
            self.settle(self.now_s)
        instance = pool.router.choice(instances, flight)
        instance.advance(self.now_s)
        return instance

    def admit(self, pool: EnginePool, instance: EngineInstance) -> None:
        """Let a replica serve, and dispatch the requests that were held."""
        if pool.admit(instance):
            held = list(pool.held)
            pool.held.clear()
            for flight in held:
                self.dispatch(pool, flight)

    def _hedge(self, index: int, at_s: float) -> None:
        """Send a copy of a request that has no token yet to another replica."""
        hedges, pool = self.hedges, self.pools[0]
        only = hedges.only_copy(index) if hedges else None
        if only is None:
            return
        only[0].advance(at_s)
        self.settle(at_s)
        others = [instance for instance in pool.serving if instance is not only[0]]
        if hedges is None or not others or only is not hedges.only_copy(index):
            return
        instance, flight = only
        if flight.first_token_s <= at_s:
            return
        copy = copy_of(flight)
        target = self._choice(pool, others, copy)
        target.send(at_s, copy)
        hedges.sent(target, copy)
        if not isnan(flight.first_token_s):
            self._report(flight.first_token_s, instance, flight, FIRST_TOKEN)
