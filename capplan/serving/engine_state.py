"""The state of an engine between two steps (batch, KV blocks, queue), and how a request joins and leaves it."""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf, isnan

from capplan.serving.block_cache import BlockCache, KvBlocks
from capplan.serving.gauges import Gauges, TokenGaps
from capplan.serving.outcome import Ledger
from capplan.serving.queue import WaitingLine
from capplan.serving.requests import InFlight
from capplan.serving.step_table import StepClock
from capplan.serving.terms import EngineTerms


class EngineState:
    """The requests in an engine and the blocks they hold; Server runs the steps."""

    __slots__ = (
        "_cache",
        "_cap",
        "_clock",
        "_committed",
        "_counter",
        "_decoding",
        "_ended",
        "_ends",
        "_feed",
        "_filled",
        "_gaps",
        "_gather_from",
        "_held",
        "_hold_from",
        "_kv",
        "_ledger",
        "_line",
        "_loading",
        "_looked",
        "_partial",
        "_planned_s",
        "_released",
        "_serial",
        "_shared",
        "_step",
        "_terms",
        "gauges",
        "now_s",
    )

    def __init__(self, clock: StepClock, terms: EngineTerms, line: WaitingLine, ledger: Ledger) -> None:
        """Start idle at zero."""
        self._clock = clock
        self._terms = terms
        self._line = line
        self._feed = line.feed
        self._ledger = ledger
        self._cap = terms.kv_blocks
        self._cache = BlockCache(terms.caching.tiers, terms.caching.pull) if terms.caching else None
        self._loading: list[InFlight] = []
        """Admitted requests that wait for blocks from an offload tier, or for their turn once those are loaded."""
        self.gauges = Gauges(terms.kv_blocks)
        self.now_s = 0.0
        self._step = 0
        self._counter = 0
        self._kv = KvBlocks(terms.block_tokens)
        self._shared = 0
        self._held = 0
        self._committed = 0
        self._partial: InFlight | None = None
        self._decoding: dict[int, InFlight] = {}
        self._ends: list[tuple[int, int, InFlight]] = []
        self._serial = 0
        self._looked = 0
        """Step at which the queue was polled last."""
        self._hold_from = -1
        """Step since which new prompts are held back for a larger batch; -1 if none is."""
        self._gather_from = -1
        """Step since which enough of them wait; -1 before that."""
        self._released = False
        """The hold is over, even if none of the prompts has been admitted yet."""
        self._filled = 0.0
        """Micro-batches of the pipeline that held prompts in the previous step."""
        self._gaps = TokenGaps()
        self._planned_s = 0.0
        """When the step that comes next is planned, with asynchronous scheduling: when the one before it began."""
        self._ended: list[InFlight] = []
        """Requests that ended with the last step and keep seat and blocks while the next one is planned."""

    @property
    def load(self) -> int:
        """Return the number of requests that are waiting or running."""
        return self._line.count + len(self._decoding) + len(self._loading) + (self._partial is not None)

    @property
    def waiting(self) -> int:
        """Return the requests in the queue."""
        return self._line.count

    @property
    def loaded_s(self) -> float:
        """Return when the next load from an offload tier ends; infinite if there is none."""
        return min((flight.ready_s for flight in self._loading), default=inf)

    def hit_blocks(self, block_ids: Sequence[int], *, tiers: bool = True) -> int:
        """Return how many leading blocks of a prompt the prefix cache holds, on the device or also in its offload tiers."""
        if not self._cache:
            return 0
        return self._cache.match(block_ids)[0] if tiers else self._cache.on_device(block_ids)

    def join_peers(self, peers: list[BlockCache]) -> None:
        """Add the cache of this engine to those of its fleet, and pull blocks from the others."""
        if self._cache:
            peers.append(self._cache)
            self._cache.peers = peers

    def leave_peers(self, peers: list[BlockCache]) -> None:
        """Remove the cache of this engine, which has ended, from those of its fleet."""
        if self._cache:
            peers.remove(self._cache)
            self._cache.peers = ()

    @property
    def hits_by_tier(self) -> list[int]:
        """Return the prefix-cache hits in blocks: on the device, then in each offload tier, then pulled from other engines."""
        return self._cache.hit_blocks if self._cache else [0]

    def evacuate(self) -> list[InFlight]:
        """Remove and return all running and waiting requests, most urgent first; generated tokens are kept."""
        line = self._line
        line.receive(self.now_s)
        running = [*self._decoding.values(), *self._loading, *([self._partial] if self._partial else [])]
        for flight in running:
            self.cancel(flight)
        while line.count:
            running.append(line.head())
            line.pop()
        return sorted(running, key=lambda flight: flight.key)

    def cancel(self, flight: InFlight) -> None:
        """Cancel one request, running or waiting, between two steps."""
        if flight is self._partial or flight in self._loading:
            self._give_up(flight)
        elif flight.index in self._decoding:
            place = list(self._decoding).index(flight.index)
            since_s = self._gaps.since_s(place, self.now_s)
            self._gaps.forget(place)
            self._give_up(flight)
            flight.last_token_s = since_s
        else:
            self._line.remove(flight)

    def _give_up(self, flight: InFlight) -> None:
        """Remove a running request from the batch; its generated tokens become part of its prompt."""
        if flight.index not in self._decoding:
            if flight is self._partial:
                self._partial = None
            else:
                self._loading.remove(flight)
            self._held -= flight.blocks
            self._release(flight, flight.done_tokens // self._terms.id_tokens)
        else:
            self._leave(flight)
            joined = flight.end_step - self._terms.decode_steps(flight.remaining_tokens)
            produced = min(int((self._step - joined) * self._terms.growth), flight.remaining_tokens - 1)
            flight.prompt_tokens += 1 + produced
            flight.remaining_tokens -= produced
            flight.last_token_s = self.now_s
            flight.received = False
            flight.serial = -1
            self._drop_stale()
            self._release(flight)

    def _release(self, flight: InFlight, worked_on: int | None = None) -> None:
        """Release the reserved and shared blocks of a request; `worked_on` leading ones of an unfinished prompt stay cached."""
        self._committed -= flight.commit_blocks
        if self._cache and flight.block_ids:
            self._cap += self._cache.unpin(flight.block_ids, worked_on) * self._terms.id_blocks

    def _trim(self, private: int) -> None:
        """Evict cached blocks to make room for the `private` blocks of the running requests."""
        if self._cache:
            self._cache.trim((self._cap - private) // self._terms.id_blocks)

    def _join(self, flight: InFlight) -> None:
        flight.base = flight.prompt_tokens - flight.shared_tokens - self._counter
        flight.end_step = self._step + self._terms.decode_steps(flight.remaining_tokens)
        self._kv.join(flight.base)
        self._shared += flight.shared_tokens
        self._decoding[flight.index] = flight
        self._serial += 1
        flight.serial = self._serial
        heappush(self._ends, (flight.end_step, self._serial, flight))

    def _leave(self, flight: InFlight) -> None:
        del self._decoding[flight.index]
        self._kv.leave(flight.base)
        self._shared -= flight.shared_tokens

    def _look_up(self, flight: InFlight) -> None:
        """Look up the leading blocks of a prompt in the prefix cache; at least one token is always computed."""
        if self._cache:
            flight.hit_blocks, flight.ready_s = self._cache.match(flight.block_ids, self.now_s)
            cached = flight.hit_blocks * self._terms.id_tokens
            flight.cached_tokens = min(cached, flight.prompt_tokens - 1)

    def _start(self, flight: InFlight, blocks: int, commit: int) -> None:
        flight.blocks = blocks
        flight.commit_blocks = commit
        flight.done_tokens = flight.cached_tokens
        self._held += blocks
        self._committed += commit
        self._ledger.admitted(flight)
        if self._cache and flight.block_ids:
            ids, hits = flight.block_ids, flight.hit_blocks
            self._cap -= self._cache.pin(ids, hits, self.now_s) * self._terms.id_blocks
            if flight.ready_s > self.now_s:
                self._cache.hide(ids[hits:])
        if isnan(flight.scheduled_s):
            flight.scheduled_s = self.now_s

    def _drop_stale(self) -> None:
        """Drop heap entries of sequences that were preempted."""
        ends = self._ends
        while ends and ends[0][2].serial != ends[0][1]:
            heappop(ends)
