"""The event loop of a fleet of engines whose replicas fail, start, stop, cache prefixes or get copies of requests."""

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from math import inf, isnan, nextafter
from random import Random
from typing import Protocol

from capplan.serving.block_cache import BlockCache
from capplan.serving.flat_engine import FlatEngine
from capplan.serving.flat_queue import FlatQueue
from capplan.serving.outcome import FINISHED, SHED, Ledger
from capplan.serving.requests import InFlight
from capplan.serving.terms import (
    BY_LOAD,
    BY_PREFIX,
    Autoscaling,
    EngineTerms,
    Failure,
    Hedging,
    KvLink,
    Routing,
    transfer_s,
    wanted_replicas,
)


class Report(Protocol):
    """Receives what happens in the engines of a fleet."""

    def first_token(self, instance: "EngineInstance", flight: InFlight) -> None:
        """Take note of a first token, at flight.first_token_s."""

    def ended(self, instance: "EngineInstance", flight: InFlight, at_s: float, status: int) -> None:
        """Take note that a request was finished or shed."""


class EngineInstance:
    """A replica from start to end; after a repair a new instance starts, with an empty cache."""

    __slots__ = (
        "_report",
        "_reported",
        "_rows",
        "_sent",
        "_stalled",
        "core",
        "draining",
        "flights",
        "from_s",
        "link_free_s",
        "load",
        "number",
        "until_s",
    )

    def __init__(self, number: int, from_s: float, core: FlatEngine, report: Report) -> None:
        """Start idle."""
        self.number = number
        self.from_s = from_s
        self.until_s = inf
        self.draining = False
        self.core = core
        core.reporting = core.announcing = True
        self.flights: dict[int, InFlight] = {}
        """Requests sent here that have not ended, at the time the engine has reached."""
        self.load = 0
        """Requests sent here that have not ended, at the time the fleet has reached."""
        self.link_free_s = 0.0
        self._report = report
        self._sent: list[InFlight] = []
        """Requests by their row in the core."""
        self._rows: dict[int, int] = {}
        """Rows by the number of the request."""
        self._reported = (-inf, 0)
        """When the last step ended, and the load at that time."""
        self._stalled = False

    @property
    def requests(self) -> int:
        """Return the requests sent here, copies and rerouted ones included."""
        return len(self._sent)

    @property
    def next_start_s(self) -> float:
        """Return when the next step starts, given the requests known now."""
        core = self.core
        if self._stalled:
            loaded_s, next_s = core.loaded_s(), core.next_s
            return min(loaded_s, next_s if next_s > core.now_s else inf) if loaded_s < inf else inf
        return core.now_s if core.in_flight() else max(core.next_s, core.now_s)

    def starts_before(self, event_s: float) -> bool:
        """Return whether the next step is planned before an event; one that is planned ahead does not know of what happens as it starts."""
        start_s = self.next_start_s
        return start_s < event_s or (start_s == event_s < inf and self.core.plans_ahead())

    @property
    def reported_load(self) -> int:
        """Return the load when the last step ended: engines publish their metrics then, and not while a step runs."""
        if self._reported[0] != self.core.now_s:
            self._reported = (self.core.now_s, self.load)
        return self._reported[1]

    def send(self, at_s: float, flight: InFlight) -> None:
        """Send a request here."""
        self._rows[flight.index] = self.core.take_in(at_s, flight)
        self._sent.append(flight)
        self.flights[flight.index] = flight
        self.load += 1
        self._stalled = False

    def advance(self, until_s: float) -> None:
        """Run every step that starts before a time."""
        if self.flights and self.core.now_s < until_s:
            self.core.advance(until_s)
            self._tell()

    def step(self) -> None:
        """Run one step."""
        start_s = self.next_start_s
        self.core.advance(nextafter(start_s, inf))
        self._tell()
        self._stalled = self.core.now_s <= start_s

    def sheds(self, until_s: float) -> bool:
        """Let the deadlines pass that the plan of the next step sees; return whether any did: its user may ask again before that step."""
        self.core.expire_seen(until_s)
        passed = self.core.reports > 0
        self._tell()
        return passed

    def _tell(self) -> None:
        """Report first tokens and ends since the last call."""
        core = self.core
        for place in range(core.reports):
            row = core.report_rows[place]
            flight = self._sent[row if row >= 0 else -1 - row]
            core.write(row if row >= 0 else -1 - row, flight)
            if row < 0:
                self._report.first_token(self, flight)
            else:
                del self.flights[flight.index]
                self._report.ended(self, flight, core.report_s[place], core.status[row])
        core.reports = 0

    def cancel(self, flight: InFlight) -> bool:
        """Cancel a request at the end of the running step; return False if it has ended before."""
        if self.flights.get(flight.index) is not flight:
            return False
        row = self._rows[flight.index]
        self.core.cancel(row)
        self.core.write(row, flight)
        del self.flights[flight.index]
        self.load -= 1
        return True

    def evacuate(self) -> list[InFlight]:
        """Remove and return all requests at the end of the running step, most urgent first."""
        self.core.receive_arrived()
        self._tell()
        flights = sorted(self.flights.values(), key=lambda flight: flight.key)
        for flight in flights:
            self.cancel(flight)
        return flights


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
        """Process the report of a copy; return whether it ends the request, and the engines at which other copies were cancelled."""
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
    return copy


PREFIX_SLACK_REQUESTS = 4
"""A replica chosen for its prefix cache may have this many requests more than the least loaded one (an assumption)."""
PREFIX_SLACK_RATIO = 1.5
"""A replica chosen for its prefix cache may have this many times the requests of the least loaded one, if that is more (an assumption)."""


class Router:
    """Chooses among the serving replicas by one rule."""

    __slots__ = ("_id_tokens", "_last", "_random", "needs_loads", "routing")

    def __init__(self, routing: Routing, id_tokens: int) -> None:
        """Start with replica 0."""
        self.routing = routing
        self.needs_loads = routing in BY_LOAD
        """Whether the engines must have run up to the time of the choice."""
        self._id_tokens = id_tokens
        self._last = -1
        self._random = Random(0)

    def choice(self, engines: Sequence[EngineInstance], flight: InFlight) -> EngineInstance:
        """Return one of these engines, given in order of their numbers; there must be at least one."""
        if self.routing == "round_robin":
            chosen = next((engine for engine in engines if engine.number > self._last), engines[0])
            self._last = chosen.number
            return chosen
        if self.routing == "random":
            return self._random.choice(engines)
        if self.routing == "reported_load":
            reports = [engine.reported_load for engine in engines]
            fewest = min(reports)
            return self._random.choice(
                [engine for engine, load in zip(engines, reports, strict=True) if load == fewest]
            )
        least = min(engine.load for engine in engines)
        if self.routing in BY_PREFIX and flight.block_ids:
            allowed = max(least + PREFIX_SLACK_REQUESTS, PREFIX_SLACK_RATIO * least)
            ids = flight.block_ids[: flight.prompt_tokens // self._id_tokens]
            tiers = self.routing == "prefix_aware"
            return max(
                (engine for engine in engines if engine.load <= allowed),
                key=lambda engine: (engine.core.hit_blocks(ids, tiers), -engine.load, -engine.number),
            )
        return next(engine for engine in engines if engine.load == least)


class EnginePool:
    """Identical replicas behind one router."""

    __slots__ = ("_new_core", "_peers", "_report", "alive", "held", "instances", "router", "serving", "terms")

    def __init__(
        self, new_core: Callable[[], FlatEngine], terms: EngineTerms, router: Router, report: Report
    ) -> None:
        """Start without replicas."""
        self._new_core = new_core
        self._report = report
        self.terms = terms
        self.router = router
        self._peers: list[BlockCache] | None = [] if terms.caching and terms.caching.pull else None
        """Caches of live replicas that pull blocks from each other; None: they do not."""
        self.instances: list[EngineInstance] = []
        """All of them, in order of start, ended ones included."""
        self.alive: list[EngineInstance] = []
        """Starting, serving or draining."""
        self.serving: list[EngineInstance] = []
        """Instances that receive requests, by number."""
        self.held: deque[InFlight] = deque()
        """Requests that arrived while no replica was serving."""

    @property
    def load(self) -> int:
        """Return the requests sent to replicas that have not ended."""
        return sum(instance.load for instance in self.alive)

    def start(self, number: int, at_s: float) -> EngineInstance:
        """Start a replica; it receives requests once it is admitted."""
        instance = EngineInstance(number, at_s, self._new_core(), self._report)
        if self._peers is not None:
            self._peers.append(instance.core.cache)
            instance.core.cache.peers = self._peers
        self.instances.append(instance)
        self.alive.append(instance)
        return instance

    def admit(self, instance: EngineInstance) -> bool:
        """Let a replica receive requests; return False if it has ended meanwhile."""
        if instance.until_s < inf:
            return False
        insort(self.serving, instance, key=lambda other: other.number)
        return True

    def end(self, instance: EngineInstance, at_s: float) -> None:
        """End a replica."""
        instance.until_s = at_s
        instance.draining = False
        if self._peers is not None:
            self._peers.remove(instance.core.cache)
            instance.core.cache.peers = ()
        self.alive.remove(instance)
        if instance in self.serving:
            self.serving.remove(instance)

    def drain(self, at_s: float) -> None:
        """Stop sending requests to the least loaded replica (the last one of a tie); it ends when it is empty."""
        instance = min(self.serving, key=lambda other: (other.load, -other.number))
        self.serving.remove(instance)
        instance.draining = True
        if not instance.load:
            self.end(instance, max(at_s, instance.core.now_s))  # a cancelled copy may have started a step

    def numbered(self, number: int) -> EngineInstance | None:
        """Return the live replica with this number."""
        return next((instance for instance in self.alive if instance.number == number), None)

    def free_number(self) -> int:
        """Return the lowest number that no live replica has."""
        taken = {instance.number for instance in self.alive}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def advance(self, until_s: float) -> None:
        """Run every step of every replica that starts before a time."""
        for instance in self.alive:
            instance.advance(until_s)


class Dispatcher:
    """Sends requests to pools of engines and records their results."""

    __slots__ = (
        "_closed_loop",
        "_ends",
        "_feed",
        "_serial",
        "_timers",
        "entry",
        "finished_requests",
        "hand_over",
        "hedges",
        "ledger",
        "now_s",
        "pools",
    )

    def __init__(self, feed: FlatQueue, ledger: Ledger, *, closed_loop: bool) -> None:
        """Start at zero without engines."""
        self._feed = feed
        self.ledger = ledger
        self._closed_loop = closed_loop
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._ends: list[tuple[float, int, EngineInstance, InFlight, int]] = []
        self._serial = 0
        self.finished_requests = 0
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
                if any(instance.sheds(event_s) for instance in instances):
                    continue
                first = min(instances, key=lambda instance: instance.next_start_s, default=None)
                if first is not None and first.starts_before(event_s):
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
        return max(instance.core.now_s for pool in self.pools for instance in pool.instances)

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
            flight = self._feed.next_flight()
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
                    self._end_if_drained(other, other.core.now_s)
                if not over:
                    continue
            if self.hand_over is None or status == SHED or not self.hand_over(instance, flight, at_s):
                self._close(flight, at_s, status)

    def _close(self, flight: InFlight, at_s: float, status: int) -> None:
        if status == SHED:
            self.ledger.shed(flight, at_s)
        else:
            self.finished_requests += 1
            self.ledger.finished(flight, at_s)
        # separate pools run ahead of each other; in one, only a deadline within a step is told later than it passed
        self._feed.ended(flight.index, at_s if self.hand_over is None else max(at_s, self.now_s))

    def _end_if_drained(self, instance: EngineInstance, at_s: float) -> None:
        if instance.draining and not instance.load:
            # a step of a copy that was cancelled meanwhile may still run
            ended_s = max(at_s, instance.core.now_s)
            next(pool for pool in self.pools if instance in pool.alive).end(instance, ended_s)

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


class HandOver:
    """Moves requests whose prefill is done from the first pool of a dispatcher to the second."""

    __slots__ = ("_dispatcher", "_link")

    def __init__(self, dispatcher: Dispatcher, link: KvLink) -> None:
        """Start with an idle link."""
        self._dispatcher = dispatcher
        self._link = link

    def prepare(self, flight: InFlight) -> bool:
        """Prepare a request for the prefill engines; return False if no decode engine could ever hold it."""
        flight.output_ids = []  # the response is generated on another engine than the prompt's blocks are on
        flight.remaining_tokens = self._to_decode(flight)
        cached, flight.kv_transferred_in = flight.cached_tokens, True
        fits = flight.output_tokens == 1 or not self._dispatcher.pools[1].terms.too_long(flight)
        flight.cached_tokens, flight.kv_transferred_in = cached, False
        flight.remaining_tokens = 1
        return fits

    def transfer(self, instance: EngineInstance, flight: InFlight, at_s: float) -> bool:
        """Send a prefilled request to a decode engine; return False if it is complete or was decoded already."""
        if flight.output_tokens == 1 or instance not in self._dispatcher.pools[0].instances:
            return False
        flight.remaining_tokens = self._to_decode(flight)
        flight.kv_transferred_in = True
        flight.block_ids = []
        flight.cached_tokens = 0
        link = self._link
        begin_s = max(at_s, instance.link_free_s)
        instance.link_free_s = begin_s + transfer_s(
            flight.prompt_tokens, link.bytes_per_token, link.bytes_per_s, 0.0
        )
        self._dispatcher.at(instance.link_free_s + link.latency_s, partial(self._arrives, flight))
        return True

    def _to_decode(self, flight: InFlight) -> int:
        """Return the tokens that a decode engine computes."""
        return flight.output_tokens - (not self._dispatcher.pools[1].terms.draws_first)

    def _arrives(self, flight: InFlight, at_s: float) -> None:
        del at_s
        self._dispatcher.dispatch(self._dispatcher.pools[1], flight)


class Operations:
    """Starts and stops the replicas of one pool."""

    __slots__ = ("_dispatcher", "_finished", "_pool", "_wishes", "rerouted_requests")

    def __init__(self, dispatcher: Dispatcher, pool: EnginePool, replicas: int) -> None:
        """Start replicas that serve from time zero."""
        self._dispatcher = dispatcher
        self._pool = pool
        self._finished: deque[tuple[float, int]] = deque([(0.0, 0)])
        """Times of decisions, and the requests that had finished by then."""
        self._wishes: deque[tuple[float, int]] = deque([(0.0, replicas)])
        """Times of decisions, and the replicas that the rate asked for."""
        self.rerouted_requests = 0
        for number in range(replicas):
            pool.admit(pool.start(number, 0.0))

    def plan(self, failures: Sequence[Failure], autoscaling: Autoscaling | None) -> None:
        """Schedule all failures, and the first decision of the autoscaler where there is one."""
        for failure in failures:
            self._dispatcher.at(failure.time_s, partial(self._fail, failure))
        if autoscaling is not None:
            self._dispatcher.at(autoscaling.interval_s, partial(self._autoscale, autoscaling))

    def _fail(self, failure: Failure, at_s: float) -> None:
        dispatcher, pool = self._dispatcher, self._pool
        instance = pool.numbered(failure.replica)
        if instance is None:
            return
        instance.advance(at_s)
        dispatcher.settle(at_s)
        if instance.until_s < inf:
            return
        end_s = max(at_s, instance.core.now_s)
        flights = instance.evacuate()
        pool.end(instance, end_s)
        for flight in flights:
            if dispatcher.hedges and dispatcher.hedges.lost(flight):
                continue
            self.rerouted_requests += 1
            dispatcher.at(end_s, partial(self._redispatch, flight))
        if failure.repair_s < inf:
            dispatcher.at(
                max(failure.time_s + failure.repair_s, end_s), partial(self._repaired, failure.replica)
            )

    def _redispatch(self, flight: InFlight, at_s: float) -> None:
        del at_s
        self._dispatcher.dispatch(self._pool, flight)

    def _repaired(self, number: int, at_s: float) -> None:
        if self._pool.numbered(number) is None:
            self._dispatcher.admit(self._pool, self._pool.start(number, at_s))

    def _ready(self, instance: EngineInstance, at_s: float) -> None:
        del at_s
        self._dispatcher.admit(self._pool, instance)

    def _autoscale(self, autoscaling: Autoscaling, at_s: float) -> None:
        """Scale the pool to the rate of finished requests and schedule the next decision; no replica is removed while another one starts."""
        dispatcher, pool = self._dispatcher, self._pool
        pool.advance(at_s)
        dispatcher.settle(at_s)
        draining = sum(instance.draining for instance in pool.alive)
        replicas = len(pool.alive) - draining
        self._finished.append((at_s, dispatcher.finished_requests))
        while len(self._finished) > 1 and self._finished[1][0] <= at_s - autoscaling.window_s:
            self._finished.popleft()
        before_s, before = self._finished[0]
        rate = (dispatcher.finished_requests - before) / (at_s - before_s)
        self._wishes.append((at_s, wanted_replicas(autoscaling, rate)))
        while self._wishes[0][0] < at_s - autoscaling.hold_s:
            self._wishes.popleft()
        wanted = max(wish for _, wish in self._wishes)
        for _ in range(wanted - replicas):
            instance = pool.start(pool.free_number(), at_s)
            dispatcher.at(at_s + autoscaling.start_s, partial(self._ready, instance))
        if len(pool.serving) == replicas:
            for _ in range(replicas - wanted):
                pool.drain(at_s)
        if not dispatcher.idle:
            dispatcher.at(at_s + autoscaling.interval_s, partial(self._autoscale, autoscaling))
