"""Several engines on flat arrays: a router of requests whose times are known, and pools of engines that users share, with a link between them."""

from __future__ import annotations

from array import array

from capplan.serving.c_math import nextafter
from capplan.serving.flat_engine import FlatEngine
from capplan.serving.flat_input import Doubles, FlatLimits, FlatRequests, Integers
from capplan.serving.flat_queue import FINISHED, SHED, UNKNOWN_S, FlatQueue
from capplan.serving.flat_trees import NEVER_S, FlatEvents, FlatStarts


class FlatRouter:
    """Identical engines behind a router that sends each request to the least loaded one; one engine gets all requests."""

    def __init__(self, cores: list[FlatEngine]) -> None:
        """Take engines without requests."""
        self.cores = cores

    def serve(
        self,
        order: Integers,
        at_s: Doubles,
        arrival_s: Doubles,
        columns: tuple[Integers, Integers, Integers, Integers],
        first_token_s: Doubles,
    ) -> None:
        """Send requests at times that ascend in this order, and run all of them; each engine keeps which ones it got as their rank.

        The columns are prompt, output and cached tokens, and class; see FlatQueue.send.
        """
        prompt, output, cached, class_index = columns
        for place in range(len(order)):
            row = order[place]
            core = self.least_loaded(at_s[row])
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
            run(core, NEVER_S)

    def least_loaded(self, at_s: float) -> FlatEngine:
        """Return the first of the engines with the fewest requests."""
        best, least = self.cores[0], 0
        for place in range(len(self.cores) if len(self.cores) > 1 else 0):
            core = self.cores[place]
            run(core, at_s)
            load = core.unfinished(at_s)
            if not place or load < least:
                best, least = core, load
        return best


class FlatPools(FlatQueue):
    """Engines that users share: the next request of a user waits for the answer before, so all engines advance together.

    The same events in the same order as Dispatcher with a HandOver: engines that prefill, engines that decode, and a link for each
    engine that prefills. Without any that decode, the first ones do both. Its queue is that of the router: requests wait there while
    users think, its limits are those of the engines that decode, and it keeps the row of every request.
    """

    def __init__(
        self,
        limits: FlatLimits,
        requests: FlatRequests,
        cores: list[FlatEngine],
        prefills: int,
        by_load: tuple[bool, bool],
        link: tuple[float, float, float],
    ) -> None:
        """Take engines without requests, the first of which prefill, and of the link [B/token], [B/s], [s]."""
        super().__init__(limits, requests)
        self.cores, self.prefills = cores, prefills
        self.loaded_first, self.loaded_later = by_load
        self.bytes_per_token, self.bytes_per_s, self.latency_s = link
        self.turn_first, self.turn_later = 0, prefills
        self.e2e_s = array("d", [UNKNOWN_S]) * self.count
        self.load, self.stalled = (array("q", bytes(8 * len(cores))) for _ in range(2))
        self.link_free_s = array("d", bytes(8 * len(cores)))
        self.starts, self.done, self.moving = FlatStarts(len(cores)), FlatEvents(), FlatEvents()
        for core in cores:
            core.reporting = True

    def serve(self, until_s: float) -> None:
        """Handle all events and start all steps before a time; see Dispatcher.run."""
        while True:
            event_s = min(self.next_s, self.moving.next_s(), self.done.next_s(), until_s)
            place = self.starts.first()
            if self.starts.times[self.starts.leaves + place] < event_s:
                self.start(place)
                continue
            if event_s >= until_s:
                break
            self.now_s = max(event_s, self.now_s)
            self.handle(event_s)
        self.settle(NEVER_S)

    def start(self, place: int) -> None:
        """Run one step of an engine; see EngineInstance.step."""
        core = self.cores[place]
        start_s = self.starts.times[self.starts.leaves + place]
        core.advance(nextafter(start_s, NEVER_S))
        self.stalled[place] = core.now_s <= start_s
        self.note(place)

    def note(self, place: int) -> None:
        """Note what an engine reports, and when it starts its next step; see EngineInstance.next_start_s."""
        core = self.cores[place]
        for entry in range(core.reports):
            self.done.push(core.report_s[entry], (place << 32) | core.report_rows[entry])
        core.reports = 0
        start_s = core.now_s
        if self.stalled[place]:
            start_s = NEVER_S
        elif not (core.waiting or core.kv.sequences or core.partial >= 0):
            start_s = max(core.next_s, core.now_s)
        self.starts.set(place, start_s)

    def handle(self, at_s: float) -> None:
        """Handle the events of one time: ends first, then one KV cache that has arrived, or else one user; see Dispatcher."""
        self.settle(at_s)
        if self.moving.next_s() <= at_s:
            self.send_later(self.moving.pop())
        elif self.next_s > at_s:
            return
        elif self.ends_count and self.ends[self.first_end] <= self.next_s:
            self.think()
            self.find_next()
        else:
            row = self.arrive()
            self.kv_transferred_in[row] = self.prefills < len(self.cores)
            self.remaining[row] = self.output[row] - (self.kv_transferred_in[row] and not self.draws_first)
            if (self.kv_transferred_in[row] and self.output[row] == 1) or not self.too_long(row):
                self.send_first(row)
            else:
                self.close(row, at_s, SHED)

    def settle(self, until_s: float) -> None:
        """Settle the ends up to a time: a prompt that is done moves on, another request is closed."""
        while self.done.count and self.done.next_s() <= until_s:
            at_s = self.done.next_s()
            end = self.done.pop()
            place = end >> 32
            core, there = self.cores[place], end & 0xFFFFFFFF
            row = core.rank[there]
            self.load[place] -= 1
            if (
                core.status[there] == FINISHED
                and place < self.prefills < len(self.cores)
                and self.output[row] > 1
            ):
                self.first_token[row] = core.first_token[there]
                needs_s = self.prompt[row] * self.bytes_per_token / self.bytes_per_s
                self.link_free_s[place] = max(at_s, self.link_free_s[place]) + needs_s
                self.moving.push(max(self.link_free_s[place] + self.latency_s, self.now_s), row)
            else:
                self.close(row, at_s, core.status[there])

    def close(self, row: int, at_s: float, status: int) -> None:
        """End a request, and free its user."""
        self.status[row] = status
        if status == FINISHED:
            self.e2e_s[row] = at_s - self.arrival[row]
        self.ended(row, max(at_s, self.now_s))

    def send_first(self, row: int) -> None:
        """Send a request to an engine that prefills, with one token of output if another one decodes."""
        place = self.turn_first
        self.turn_first = (place + 1) % self.prefills
        if self.loaded_first:
            place = self.least_loaded(0, self.prefills)
        output = 1 if self.kv_transferred_in[row] else self.output[row]
        self.send_to(place, row, output, self.cached[row], UNKNOWN_S)

    def send_later(self, row: int) -> None:
        """Send a request whose first token is known to an engine that decodes."""
        place = self.turn_later
        self.turn_later = place + 1 if place + 1 < len(self.cores) else self.prefills
        if self.loaded_later:
            place = self.least_loaded(self.prefills, len(self.cores))
        self.send_to(place, row, self.output[row], 0, self.first_token[row])

    def least_loaded(self, first: int, end: int) -> int:
        """Return the first of some engines with the fewest requests, all of which have run up to now."""
        best = first
        for place in range(first, end):
            if self.load[place] < self.load[best]:
                best = place
        return best

    def send_to(self, place: int, row: int, output: int, cached: int, first_token_s: float) -> None:
        """Send a request to an engine now."""
        core = self.cores[place]
        core.send(
            self.now_s,
            self.arrival[row],
            self.prompt[row],
            output,
            cached,
            self.class_index[row],
            first_token_s,
            row,
        )
        self.load[place] += 1
        self.stalled[place] = 0
        self.note(place)


def run(core: FlatEngine, until_s: float) -> None:
    """Run every step that starts before a time; see EngineInstance.advance."""
    if core.arrivals > core.over and core.now_s < until_s:
        core.advance(until_s)


def link_arrivals(
    engines: int, engine: Integers, ends_s: Doubles, needs_s: Doubles, latency_s: float
) -> Doubles:
    """Return when KV caches arrive that each engine sends one after the other, in order of their requests; infinite where the engine is -1."""
    free_s = array("d", bytes(8 * engines))
    arrives_s = array("d", [NEVER_S]) * len(engine)
    for row in range(len(engine)):
        place = engine[row]
        if place >= 0:
            free_s[place] = max(free_s[place], ends_s[row]) + needs_s[row]
            arrives_s[row] = free_s[place] + latency_s
    return arrives_s
