"""Discrete-event simulation of one serving engine: continuous batching with a paged KV cache and preemption by recompute.

Between two events (an arrival that can be admitted, the end of a prefill step, a completion, a shortage of blocks) the
batch is constant, so a run of decode steps is one closed-form sum; nothing is done per token or per sequence. Each step
follows the real engines:

1. The decoding sequences take the blocks for their next token. If there are too few, the one admitted last is preempted:
   it frees its blocks and goes back to the queue, to be recomputed together with its generated tokens.
2. A partly prefilled prompt continues, then waiting prompts are admitted in order, as long as sequence slots, token budget
   and blocks last; the head of the queue blocks those behind it. A step with a preemption admits nothing. A prompt whose
   prefix is in an offload tier takes its slot and its blocks and loads while others run; once loaded it comes next.
3. mixed: prompts and decoding sequences share the step. prefill_first: a step with prompts holds nothing else.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from heapq import heappop, heappush
from itertools import takewhile
from math import ceil, inf, isnan, nan

from capplan.errors import InputError
from capplan.serving.block_cache import BlockCache
from capplan.serving.engine_parts import Gauges, KvBlocks, PromptHold
from capplan.serving.flat import FULL_RUN, eligible, flat_outcome
from capplan.serving.outcome import EarlyEnd, Ledger, Outcome, TokenGaps
from capplan.serving.queue import Feed, Source, WaitingLine
from capplan.serving.requests import Admission, Crowd, InFlight, Requests, check_admission, offered
from capplan.serving.static_batch import StaticServer
from capplan.serving.step_table import StepClock
from capplan.serving.terms import EngineSetup, EngineTerms, engine_terms


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
        "_first",
        "_gaps",
        "_held",
        "_hold",
        "_kv",
        "_ledger",
        "_line",
        "_loading",
        "_partial",
        "_paused",
        "_planned_s",
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
        self._hold = PromptHold(*terms.hold)
        self._filled = 0.0
        """Micro-batches of the pipeline that held prompts in the previous step."""
        self._gaps = TokenGaps()
        self._first: list[InFlight] = []
        """Requests prefilled elsewhere whose first token the running step draws."""
        self._planned_s = 0.0
        """When the step that comes next is planned, with asynchronous scheduling: when the one before it began."""
        self._paused: list[tuple[InFlight, float]] = []
        """Sequences that miss the step that comes next, with the time of their latest token."""
        self._ended: list[InFlight] = []
        """Copies of requests that ended with the last step and keep seat and blocks while the next one is planned; another engine may
        decode the requests meanwhile."""

    @property
    def load(self) -> int:
        """Return the number of requests that are waiting or running."""
        return self._line.count + len(self._decoding) + len(self._loading) + (self._partial is not None)

    @property
    def waiting(self) -> int:
        """Return the requests in the queue."""
        return self._line.count

    @property
    def seen_s(self) -> float:
        """Return up to when requests must have arrived for the step that comes next."""
        return self._planned_s if self._terms.asynchronous else self.now_s

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
            running.append(line.take())
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
        self._decode_from_here(flight)

    def _decode_from_here(self, flight: InFlight) -> None:
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


class Server(EngineState):
    """A continuous-batching engine that takes requests from a feed and writes results into a ledger."""

    __slots__ = ()

    def advance(self, until_s: float = inf) -> None:
        """Run every step that starts before a time; a running step completes."""
        feed, line = self._feed, self._line
        while self.now_s < until_s:
            if feed.next_s <= self.seen_s or line.deadlines:
                line.receive(self.seen_s)
            preempted = self._make_room()
            chunks = [] if self._paused else self._plan(admits=not preempted)
            freed = bool(self._ended)
            if self._terms.asynchronous and self._waits_for_output(idle=not (chunks or self._decoding)):
                pass
            elif chunks:
                self._work_on(chunks)
            elif self._decoding:
                self._decode(until_s, 1 if preempted or (freed and line.count) else 0)
            elif preempted:
                pass
            elif min(feed.next_s, self.loaded_s) < until_s:
                self.now_s = max(min(feed.next_s, self.loaded_s), self.now_s)
                self._filled = 0.0
            else:
                return
            self._resume()
        line.receive(self.seen_s)

    def receive_arrived(self) -> None:
        """Receive what arrived while the last step ran: it counts as unfinished."""
        self._line.receive(self.now_s)

    def _waits_for_output(self, *, idle: bool) -> bool:
        """Note the plan of a step; return whether there was nothing to plan before the output of the running step."""
        late = self._planned_s < self.now_s
        self._planned_s = self.now_s
        for flight in self._ended:
            self._held -= flight.blocks
            self._close(flight)
        waited = idle and (late or bool(self._ended))
        self._ended.clear()
        return waited

    def _make_room(self) -> bool:
        """Preempt until every decoding sequence has room for its next token, and the next piece of a prompt for its blocks.

        Return whether any was preempted. With priorities, a request that was admitted before the one that lacks a block may be preempted.
        """
        terms, kv, preempted = self._terms, self._kv, False
        while kv.sequences:
            after = int((self._step + 1) * terms.growth)
            block = kv.block_tokens
            if kv.tokens + kv.sequences * (after + block) <= (self._cap - self._held) * block:
                break
            if kv.blocks(after) + self._held <= self._cap:
                break
            preempted = True
            if self._line.priorities and terms.mixed:
                self._deal_blocks()
                break
            self._preempt()
        while self._partial is not None and not self._paused and not self._extends(self._partial):
            self._preempt()
            preempted = True
        return preempted

    def _deal_blocks(self) -> None:
        """Give sequences the block for their next token in the order of admission; where none is left, the lowest priority is preempted.

        If that is the sequence itself, the plan of the step ends with it: those admitted after it miss the step.

        References
        ----------
        `Scheduler.schedule`, vllm/v1/core/sched/scheduler.py: https://github.com/vllm-project/vllm.
        """
        after = int((self._step + 1) * self._terms.growth)
        dealt: dict[int, int] = {}
        decoding = list(self._decoding.values())
        for place, flight in enumerate(decoding):
            if flight.index not in self._decoding:
                continue
            lacks = self._blocks_of(flight, after) - self._blocks_of(flight, self._counter)
            while lacks > self._cap - self._held - self._kv.blocks(self._counter) - sum(dealt.values()):
                lowest = self._lowest()
                dealt.pop(lowest.index, None)
                self._preempt()
                if lowest is flight:
                    self._pause(decoding[place + 1 :])
                    return
            dealt[flight.index] = lacks

    def _blocks_of(self, flight: InFlight, counter: int) -> int:
        """Return the blocks of a decoding sequence at a value of the counter."""
        return -(-(flight.base + counter) // self._kv.block_tokens)

    def _pause(self, flights: Sequence[InFlight]) -> None:
        """Keep sequences out of the next step, with their blocks."""
        for flight in flights:
            if flight.index in self._decoding:
                place = list(self._decoding).index(flight.index)
                self._paused.append((flight, self._gaps.since_s(place, self.now_s)))
                self._gaps.forget(place)
                self._leave(flight)
                flight.blocks = self._blocks_of(flight, self._counter)
                self._held += flight.blocks
                flight.base += self._counter
                flight.end_step -= self._step
                flight.serial = -1
        self._drop_stale()

    def _resume(self) -> None:
        """Let the paused sequences decode again."""
        for flight, since_s in self._paused:
            self._held -= flight.blocks
            if not self._gaps.groups:
                self._gaps.wait(len(self._decoding), self.now_s)
            self._gaps.wait(1, since_s)
            flight.base -= self._counter
            flight.end_step += self._step
            self._decode_from_here(flight)
        self._paused.clear()

    def _extends(self, flight: InFlight) -> bool:
        """Take the blocks for the next piece of a prompt; return False if there are too few."""
        terms = self._terms
        new = min(flight.prompt_tokens - flight.done_tokens, max(self._budget(), 0))
        whole = terms.blocks_of(flight)[0]
        more = terms.piece_blocks(flight, flight.done_tokens + new, whole) - flight.blocks
        if more <= 0:
            return True
        used = self._kv.blocks(int((self._step + 1) * terms.growth)) + self._held + more
        if used > self._cap:
            return False
        flight.blocks += more
        self._held += more
        self._trim(used)
        return True

    def _budget(self) -> int:
        """Return the tokens of a step that the decoding sequences leave to prompts."""
        terms = self._terms
        return terms.max_num_batched_tokens - (len(self._decoding) * terms.query_tokens if terms.mixed else 0)

    def _lowest(self) -> InFlight:
        """Return the running request of the lowest priority that was admitted last."""
        partial = self._partial
        if self._line.priorities and self._decoding:
            last = max(self._decoding.values(), key=lambda running: running.key)
            return last if partial is None or last.key > partial.key else partial
        return next(reversed(self._decoding.values())) if partial is None else partial

    def _preempt(self) -> None:
        """Preempt the request of the lowest priority that was admitted last: send it back to the queue.

        With asynchronous scheduling that may be one that has ended, whose last token is on its way: it gives up its blocks.
        """
        flight = self._lowest()
        if self._ended and flight is not self._partial and not self._line.priorities:
            ended = max(self._ended, key=lambda one: one.serial)
            if ended.serial > flight.serial:
                self._held -= ended.blocks
                ended.blocks, ended.serial = 0, -1
                self._ledger.preempted(ended)
                return
        if self._gaps.groups and flight is not self._partial:
            self._gaps.forget(list(self._decoding).index(flight.index))
        self._give_up(flight)
        self._ledger.preempted(flight)
        self._line.push(flight)

    def _plan(self, *, admits: bool) -> list[tuple[InFlight, int]]:
        """Admit what fits, unless a request was just preempted; return the prompts of the next step, each with the tokens to prefill."""
        partial = self._partial
        line = self._line
        if not admits and partial is None:
            return []
        if not line.count:
            self._hold.end()
            if partial is None and not self._loading:
                return []
        if self._hold.applies and partial is None and not self._loading and self._waits():
            return []
        running = len(self._decoding) + len(self._ended)
        budget = self._budget()
        chunks: list[tuple[InFlight, int]] = []
        if partial is not None and budget > 0:
            new = min(partial.prompt_tokens - partial.done_tokens, budget)
            chunks.append((partial, new))
            budget -= new
        running += partial is not None
        if not admits:
            return chunks
        if self._loading:
            running += len(self._loading)
            budget = self._plan_loaded(chunks, budget)
        self._admit(chunks, budget, running)
        return chunks

    def _admit(self, chunks: list[tuple[InFlight, int]], budget: int, running: int) -> None:
        """Admit waiting requests in order while sequence slots, token budget and blocks last; add their pieces."""
        line, terms = self._line, self._terms
        used = -1
        while line.count and running < terms.max_num_seqs and budget > 0:
            flight = line.head()
            if flight.received:
                if not self._take_over(flight):
                    break
                running += 1
                used = -1
                continue
            if self._cache and flight.block_ids:
                if used < 0:
                    used = self._kv.blocks(int((self._step + 1) * terms.growth)) + self._held
                    self._trim(used)
                self._look_up(flight)
            loads = flight.ready_s > self.now_s
            new = 0 if loads else self._piece(flight, budget, alone=not chunks)
            if not new and not loads:
                break
            if used < 0:
                used = self._kv.blocks(int((self._step + 1) * terms.growth)) + self._held
            blocks, commit = terms.blocks_of(flight)
            pinned = self._cache.to_pin(flight.block_ids) * terms.id_blocks if self._cache else 0
            if used + blocks + pinned > self._cap or self._committed + commit > self._cap:
                break
            line.pop()
            taken = blocks if loads else terms.piece_blocks(flight, flight.cached_tokens + new, blocks)
            self._start(flight, taken, commit)
            used += taken
            self._trim(used)
            running += 1
            budget -= new
            (self._loading.append(flight) if loads else chunks.append((flight, new)))

    def _waits(self) -> bool:
        """Return whether waiting prompts stay out of this step."""
        hold, line, decoding = self._hold, self._line, len(self._decoding)
        if not decoding:
            hold.look(self._step)
            hold.end()
            return False
        if decoding >= self._terms.max_num_seqs or line.head().received:
            return False
        tokens = decoding * self._terms.query_tokens + line.prompt_tokens() if hold.hold_tokens else 0
        return hold.keeps(self._step, line.count, tokens)

    def _piece(self, flight: InFlight, budget: int, *, alone: bool) -> int:
        """Return the prompt tokens that fit in the step; without chunking, a prompt that is the only one may exceed the budget."""
        new = flight.prompt_tokens - flight.cached_tokens
        if new <= budget:
            return new
        if self._terms.chunked:
            return max(budget, 0)
        return new if alone and new > self._terms.max_num_batched_tokens else 0

    def _plan_loaded(self, chunks: list[tuple[InFlight, int]], budget: int) -> int:
        """Add the prompts whose loads have ended, in order of admission; return the token budget that is left."""
        for flight in [flight for flight in self._loading if flight.ready_s <= self.now_s]:
            new = self._piece(flight, budget, alone=not chunks)
            if not new:
                return 0
            self._loading.remove(flight)
            if self._cache:
                self._cache.reveal(flight.block_ids, self.now_s)
            budget -= new
            chunks.append((flight, new))
        return budget

    def _take_over(self, flight: InFlight) -> bool:
        """Let a request that was prefilled elsewhere decode, if its blocks and its next token fit."""
        terms = self._terms
        private_tokens = flight.prompt_tokens - flight.shared_tokens
        used = self._kv.blocks(int((self._step + 1) * terms.growth)) + self._held
        blocks = -(-(private_tokens + ceil(terms.growth)) // terms.block_tokens)
        commit = terms.blocks_of(flight)[1]
        if used + blocks > self._cap or self._committed + commit > self._cap:
            return False
        self._line.pop()
        if isnan(flight.scheduled_s):
            flight.scheduled_s = self.now_s
        flight.commit_blocks = commit
        self._committed += commit
        if not self._gaps.groups:
            self._gaps.wait(len(self._decoding), self.now_s)
        if terms.draws_first:
            self._first.append(flight)
        else:
            self._streamed(flight)
        self._gaps.wait(1, nan if terms.draws_first else self.now_s)
        self._join(flight)
        return True

    def _streamed(self, flight: InFlight) -> None:
        """Stream the first token of a request that was prefilled elsewhere."""
        flight.first_token_s = self.now_s
        self._ledger.first_token(flight)

    def _end_gaps(self) -> None:
        """Record the gaps of all sequences that waited, and the first tokens that were drawn."""
        self._gaps.end(self.now_s, self._ledger.itl)
        for flight in self._first:
            self._streamed(flight)
        self._first.clear()

    def _work_on(self, chunks: Sequence[tuple[InFlight, int]]) -> None:
        """Run one step with prompts in it."""
        ledger, start = self._ledger, self.now_s
        decoding = len(self._decoding) if self._terms.mixed else 0
        held = self._kv.blocks(self._counter) + self._held + self._terms.kv_blocks - self._cap
        context = 0.0
        if decoding:
            context = (self._kv.tokens + self._shared) / decoding + self._step * self._terms.growth
        pieces = [(new, flight.done_tokens) for flight, new in chunks]
        if self._clock.stages > 1:
            room = self._terms.stage_tokens(self._clock.stages)
            seconds, self._filled = self._clock.turn_s(decoding, context, pieces, room, self._filled)
        else:
            seconds = self._clock.mixed_step_s(decoding, context, pieces, self._terms.query_tokens)
        self.gauges.add(start, seconds, len(self._decoding) + len(chunks), held)
        self.now_s = start + seconds
        ledger.steps += 1
        if decoding:
            if self._gaps.groups:
                self._end_gaps()
            else:
                ledger.itl.add(seconds, decoding)
            self._step += 1
            self._counter = int(self._step * self._terms.growth)
            if self._cache:
                self._trim(self._kv.blocks(self._counter) + self._held)
            self._complete()
        elif not self._gaps.groups:
            self._gaps.wait(len(self._decoding), start)
        self._partial = None
        self._hold.look(self._step)
        joined = len(self._decoding)
        for flight, new in chunks:
            flight.done_tokens += new
            ledger.prefill_tokens += new
            if flight.done_tokens < flight.prompt_tokens:
                self._partial = flight
            else:
                self._first_token(flight)
        if self._gaps.groups:
            self._gaps.wait(len(self._decoding) - joined, self.now_s)

    def _first_token(self, flight: InFlight) -> None:
        """Emit the token that ends a prefill; decoding starts unless it was the only one."""
        self._held -= flight.blocks
        flight.remaining_tokens -= 1
        if self._cache and self._cache.peers:
            self._cache.computed(flight.block_ids, self.now_s)
        if isnan(flight.first_token_s):
            flight.first_token_s = self.now_s
            self._ledger.first_token(flight)
        else:
            self._ledger.itl.add(self.now_s - flight.last_token_s, 1.0)
        if flight.remaining_tokens:
            self._join(flight)
        else:
            self._serial += 1
            flight.serial = self._serial
            self._finish(flight)

    def _decode(self, until_s: float, most: int) -> None:
        """Run decode steps up to the next event."""
        terms, kv, start = self._terms, self._kv, self.now_s
        sequences = len(self._decoding)
        self._filled = 0.0
        steps = self._ends[0][0] - self._step
        if most:
            steps = most
        elif steps > 1:
            steps = max(kv.within(self._counter, self._cap - self._held, terms.growth, self._step, steps), 1)
        if self._line.count and self._hold.applies:
            steps = min(steps, self._hold.steps_until_look(self._step))
        limit = until_s
        if self._loading:
            limit = min(limit, max(self.loaded_s, start))
        if sequences + len(self._loading) + (self._partial is not None) < terms.max_num_seqs:
            if not self._line.count or self._line.priorities or terms.hold_steps:
                limit = min(limit, self._feed.next_s)
            if self._line.deadlines:
                limit = min(limit, self._line.next_expiry_s())
        before = kv.blocks(self._counter) + self._held
        context = (kv.tokens + self._shared) / sequences + self._step * terms.growth
        if self._gaps.groups:
            steps = 1
        steps, seconds = self._run(context, steps, limit, until_s)
        self._step += steps
        self._counter = int(self._step * terms.growth)
        after = kv.blocks(self._counter) + self._held
        self._trim(after)
        pinned = self._terms.kv_blocks - self._cap
        self.gauges.add(start, seconds, sequences, 0.5 * (before + after) + pinned)
        self._ledger.steps += steps
        if self._gaps.groups:
            self._end_gaps()
        else:
            self._ledger.itl.add(seconds / steps, sequences * steps)
        self._complete()

    def _run(self, context: float, most: int, limit_s: float, until_s: float) -> tuple[int, float]:
        """Run decode steps up to a time, and return how many and how long; a request that comes during one joins the step after the next."""
        row, start, growth = self._clock.row(len(self._decoding)), self.now_s, self._terms.growth
        steps, seconds = row.run(context, most, limit_s - start, growth)
        awaited = self._terms.asynchronous and limit_s == self._feed.next_s and steps < most
        if awaited and start < limit_s <= start + seconds < until_s:
            seconds += row.step_s(context + steps * growth)
            steps += 1
        self.now_s = start + seconds
        if steps > 1:
            self._planned_s = self.now_s - row.step_s(context + (steps - 1) * growth)
        return steps, seconds

    def _complete(self) -> None:
        """Finish every sequence that has its last token."""
        ends, step = self._ends, self._step
        while ends and ends[0][0] <= step:
            flight = heappop(ends)[2]
            self._leave(flight)
            flight.blocks = -(-(flight.base + self._counter) // self._terms.block_tokens)
            self._finish(flight)
            self._drop_stale()

    def _finish(self, flight: InFlight) -> None:
        if self._terms.asynchronous:
            self._held += flight.blocks
            self._ended.append(copy(flight))
        else:
            self._close(flight)
        self._ledger.finished(flight, self.now_s)
        self._feed.ended(flight, self.now_s)

    def _close(self, flight: InFlight) -> None:
        """Give back the blocks of a request that has ended; with a prefix cache they stay cached."""
        if flight.output_ids and self._cache:
            self._cache.keep(flight.output_ids)
        self._release(flight)


class _Slot:
    """One slot of a SlotServer."""

    __slots__ = ("flight", "kept", "left_at")

    def __init__(self) -> None:
        self.flight: InFlight | None = None
        """The request that has the slot."""
        self.kept: list[int] = []
        """Blocks of the prompt and response that the slot holds, or held last."""
        self.left_at = -1
        """Releases of slots before the last one of this slot; -1: it was never taken."""

    def common_blocks(self, block_ids: Sequence[int]) -> int:
        """Return how many leading blocks of a prompt the slot holds."""
        same = (own == asked for own, asked in zip(self.kept, block_ids, strict=False))
        return sum(takewhile(bool, same))


class SlotServer(Server):
    """llama.cpp's server: a request takes a slot with a part of the cache for itself, and pieces of prompts go in the order of slots.

    A request that finds no slot is deferred. Each slot that is released calls one deferred request to the front of the queue, so
    that of those called after one step the last goes first; what arrived during the step comes after them. A request takes the
    free slot that holds most of its prompt if that is more than a tenth of it, otherwise the one that was released first.

    References
    ----------
    `get_available_slot`, `update_slots` and `pop_deferred_task`, tools/server: https://github.com/ggml-org/llama.cpp.
    """

    __slots__ = ("_began_s", "_found_blocks", "_releases", "_slots", "_vacated")

    LEAST_SIMILARITY = 0.1

    def __init__(self, clock: StepClock, terms: EngineTerms, line: WaitingLine, ledger: Ledger) -> None:
        """Start with empty slots."""
        super().__init__(clock, terms, line, ledger)
        self._cache = None
        self._slots = [_Slot() for _ in range(terms.max_num_seqs)]
        self._vacated: list[_Slot] = []
        """Slots whose requests left since the last step was planned."""
        self._releases = 0
        self._began_s = 0.0
        """When the last step began."""
        self._found_blocks = 0

    @property
    def hits_by_tier(self) -> list[int]:
        """Return the blocks that prompts found in their slots."""
        return [self._found_blocks]

    def hit_blocks(self, block_ids: Sequence[int], *, tiers: bool = True) -> int:  # noqa: ARG002  # there are none
        """Return how many leading blocks of a prompt a slot holds, the best one that is free."""
        return max((slot.common_blocks(block_ids) for slot in self._slots if slot.flight is None), default=0)

    def _plan(self, *, admits: bool) -> list[tuple[InFlight, int]]:  # noqa: ARG002  # nothing is ever preempted
        self._seat()
        budget = self._budget()
        chunks: list[tuple[InFlight, int]] = []
        for flight in self._loading:
            new = min(flight.prompt_tokens - flight.done_tokens, budget)
            if new > 0:
                chunks.append((flight, new))
                budget -= new
        return chunks

    def _seat(self) -> None:
        """Give free slots to waiting requests: first to those that the released slots call, then to the others in order."""
        for slot in self._slots:
            if slot in self._vacated:
                slot.flight, slot.left_at = None, self._releases
                self._releases += 1
        line = self._line
        called: list[InFlight] = []
        while len(called) < len(self._vacated) and line.count and line.head().enqueued_s <= self._began_s:
            called.append(line.take())
        self._vacated.clear()
        free = [slot for slot in self._slots if slot.flight is None]
        while free and (called or line.count):
            free.remove(self._take(called.pop() if called else line.take(), free))
        self._loading = [
            slot.flight
            for slot in self._slots
            if slot.flight is not None and slot.flight.index not in self._decoding
        ]

    def _take(self, flight: InFlight, free: Sequence[_Slot]) -> _Slot:
        """Let a request take one of the free slots; return it."""
        common = [slot.common_blocks(flight.block_ids) for slot in free]
        found = max(common)
        if found * self._terms.id_tokens > self.LEAST_SIMILARITY * flight.prompt_tokens:
            slot = free[common.index(found)]
            flight.cached_tokens = min(found * self._terms.id_tokens, flight.prompt_tokens - 1)
            self._found_blocks += found
        else:
            slot = min(reversed(free), key=lambda candidate: candidate.left_at)
        slot.flight, slot.kept = flight, list(flight.block_ids)
        self._start(flight, *self._terms.blocks_of(flight))
        return slot

    def _work_on(self, chunks: Sequence[tuple[InFlight, int]]) -> None:
        self._began_s = self.now_s
        super()._work_on(chunks)
        self._partial = None
        self._loading = [flight for flight in self._loading if flight.done_tokens < flight.prompt_tokens]

    def _decode(self, until_s: float, most: int) -> None:
        start_s, step = self.now_s, self._step
        super()._decode(until_s, most)
        self._began_s = self.now_s - (self.now_s - start_s) / (self._step - step)

    def _close(self, flight: InFlight) -> None:
        self._slot_of(flight).kept.extend(flight.output_ids)
        super()._close(flight)

    def _release(self, flight: InFlight, worked_on: int | None = None) -> None:
        super()._release(flight, worked_on)
        slot = self._slot_of(flight)
        if worked_on is not None:
            del slot.kept[worked_on:]
        self._vacated.append(slot)

    def _slot_of(self, flight: InFlight) -> _Slot:
        return next(slot for slot in self._slots if slot.flight is flight)


ADMIT_ALL = Admission()


def simulate(
    requests: Requests | Iterable[Requests] | None,
    engine: EngineSetup,
    *,
    concurrency: int | None = None,
    crowd: Crowd | None = None,
    until_s: float = inf,
    admission: Admission = ADMIT_ALL,
    gauged: bool = True,
    early_end: EarlyEnd = FULL_RUN,
) -> Outcome:
    """Simulate one engine.

    Parameters
    ----------
    requests : columns in order of arrival, or the parts of a long trace, of which only one is in memory at a time.
        Without arrival times all come at once (offline). None: only the crowd sends requests.
    engine : step times, scheduling and cache
    concurrency : [-]
        closed loop with this many requests at any time, the next one sent as soon as one ends: a crowd of users without
        think time. Arrival times are not used then. None: open loop.
    crowd : closed-loop users, in addition to the open-loop arrivals
    until_s : [s]
        stop at the first end of a step from then on; requests that have arrived and are not done are unfinished, those that
        have not arrived are not in the outcome.
    admission : queue limit, deadlines, priorities
    gauged : record batches, blocks in use and gaps between tokens; a run that the compiled core takes is quicker without them, and
        leaves them empty
    early_end : a run that the compiled core takes may end once it has missed one of these limits

    Raises
    ------
    InputError
        names what cannot be simulated

    Examples
    --------
    One request of 10 prompt and 3 output tokens; a prefill of 1 s and decode steps of 0.5 s:

    >>> import numpy as np
    >>> from capplan.engine.profile import Scheduling
    >>> from capplan.serving.step_table import StepTable
    >>> one = np.array([1.0])
    >>> table = StepTable(one, 0.5 * one, 0 * one, one, np.array([[0.0]]), one, one, one, one, np.array([[0.0]]))
    >>> engine = EngineSetup(table, Scheduling("mixed", 8, 64), kv_blocks=10)
    >>> outcome = simulate(Requests(np.array([10]), np.array([3])), engine)
    >>> outcome.ttft_s, outcome.e2e_s, outcome.tpot_s
    (array([1.]), array([2.]), array([0.5]))
    """
    requests, crowd = offered(requests, concurrency, crowd)
    _check(engine, until_s)
    check_admission(admission, crowd)
    engine = replace(engine, table=engine.clock)
    if isinstance(requests, Requests) and eligible(requests, engine, admission, crowd):
        return flat_outcome(
            requests, engine, crowd=crowd, until_s=until_s, gauged=gauged, early_end=early_end
        )
    return served(requests, engine, crowd=crowd, until_s=until_s, admission=admission)


def _check(engine: EngineSetup, until_s: float) -> None:
    if not until_s > 0.0:
        raise InputError(f"until_s is {until_s}; it must be positive")
    if not engine.batch_timeout_s >= 0.0:
        raise InputError(f"batch_timeout_s is {engine.batch_timeout_s}; it must be at least 0")
    if engine.caching is not None and engine.scheduling.policy == "static":
        raise InputError(
            "a prefix cache with block ids is not modelled for static batching; give cached_tokens instead"
        )


def served(
    requests: Requests | Iterable[Requests],
    engine: EngineSetup,
    *,
    crowd: Crowd | None = None,
    until_s: float = inf,
    admission: Admission = ADMIT_ALL,
) -> Outcome:
    """Run Server or StaticServer, which handle every case; `simulate` checks the arguments and may take the flat core."""
    clock, ledger = engine.clock, Ledger()
    feed = Feed(requests, delay_s=clock.request_s, crowd=crowd, priority=admission.priority)
    server = new_server(replace(engine, table=clock), feed, ledger, admission)
    server.advance(until_s)
    hits: list[int] = []
    if isinstance(server, Server):
        server.receive_arrived()
        hits = server.hits_by_tier
    return replace(ledger.outcome(server.now_s, [server.gauges]), hit_blocks=tuple(hits))


def new_server(
    engine: EngineSetup, feed: Source, ledger: Ledger, admission: Admission
) -> Server | StaticServer:
    """Return the server for the engine's scheduling policy, idle and with an empty queue."""
    terms = engine_terms(engine)
    line = WaitingLine(feed, terms, ledger, admission)
    if engine.scheduling.policy == "static":
        return StaticServer(engine.clock, terms, line, ledger, engine.batch_timeout_s)
    return continuous_server(engine.clock, terms, line, ledger)


def continuous_server(clock: StepClock, terms: EngineTerms, line: WaitingLine, ledger: Ledger) -> Server:
    """Return the server of a policy with continuous batching, idle."""
    kind = SlotServer if terms.policy == "slots" else Server
    return kind(clock, terms, line, ledger)
