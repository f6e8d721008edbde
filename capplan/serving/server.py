"""One serving engine, event by event: continuous batching with paged cache and preemption by recompute.

Between two events (an arrival that can be admitted, the end of a prefill step, a completion, a lack of blocks) the
batch is constant, so a run of decode steps is one closed-form sum; nothing is done token by token or sequence by
sequence. Each step goes as in the engines:

1. The decoding sequences take the blocks for their next token. If there are too few, the latest admitted one is
   preempted: it gives up its blocks and goes back to the queue, to be recomputed with what it has generated.
2. A prompt that was cut goes on, then waiting prompts are admitted in order, while sequences, token budget and blocks
   last; the head of the queue blocks those behind it. A step that preempted admits nobody.
3. mixed: prompts and decoding sequences share the step. prefill_first: if there are prompts, the step is theirs alone.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import ceil, inf, isnan

from capplan.serving.block_cache import BlockCache
from capplan.serving.gauges import Gauges
from capplan.serving.kv_blocks import KvBlocks
from capplan.serving.outcome import Ledger
from capplan.serving.requests import InFlight
from capplan.serving.step_clock import StepClock
from capplan.serving.terms import EngineTerms
from capplan.serving.token_gaps import TokenGaps
from capplan.serving.waiting_line import WaitingLine


class Server:
    """A continuous-batching engine that takes requests from a feed and writes results into a ledger."""

    __slots__ = (
        "_cache",
        "_cap",
        "_clock",
        "_committed",
        "_counter",
        "_decoding",
        "_ends",
        "_feed",
        "_gaps",
        "_held",
        "_kv",
        "_ledger",
        "_line",
        "_loading_s",
        "_partial",
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
        self._cache = BlockCache(terms.caching.tiers) if terms.caching else None
        self._loading_s = 0.0
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
        self._gaps = TokenGaps()

    @property
    def load(self) -> int:
        """Return the requests that are waiting or running."""
        return self._line.count + len(self._decoding) + (self._partial is not None)

    @property
    def waiting(self) -> int:
        """Return the requests in the queue."""
        return self._line.count

    def found_blocks(self, block_ids: Sequence[int]) -> int:
        """Return how many leading blocks of a prompt the prefix cache holds."""
        return self._cache.match(block_ids)[0] if self._cache else 0

    def advance(self, until_s: float = inf) -> None:
        """Run every step that starts before a time; a step that is under way is finished."""
        feed, line = self._feed, self._line
        while self.now_s < until_s:
            if feed.next_s <= self.now_s or line.deadlines:
                line.receive(self.now_s)
            preempted = self._make_room()
            chunks = [] if preempted else self._plan()
            if chunks:
                self._work_on(chunks)
            elif self._decoding:
                self._decode(until_s, 1 if preempted else 0)
            elif feed.next_s < until_s:
                self.now_s = max(feed.next_s, self.now_s)
            else:
                return
        line.receive(self.now_s)

    def evacuate(self) -> list[InFlight]:
        """Give up everything that is running or waiting, in order of urgency; generated tokens are kept."""
        line = self._line
        line.receive(self.now_s)
        running = [*self._decoding.values(), *([self._partial] if self._partial else [])]
        for flight in running:
            self.cancel(flight)
        while line.count:
            running.append(line.head())
            line.pop()
        return sorted(running, key=lambda flight: flight.key)

    def cancel(self, flight: InFlight) -> None:
        """Give up one request, running or waiting, between two steps."""
        if flight is self._partial:
            self._give_up(flight)
        elif flight.index in self._decoding:
            place = list(self._decoding).index(flight.index)
            since_s = self._gaps.since_s(place, self.now_s)
            self._gaps.forget(place)
            self._give_up(flight)
            flight.last_token_s = since_s
        else:
            self._line.remove(flight)

    # --- blocks ---

    def _make_room(self) -> bool:
        """Preempt until every decoding sequence can take its next token; return whether anyone was."""
        terms, kv, preempted = self._terms, self._kv, False
        while kv.sequences:
            after = int((self._step + 1) * terms.growth)
            block = kv.block_tokens
            if kv.tokens + kv.sequences * (after + block) <= (self._cap - self._held) * block:
                return preempted
            if kv.blocks(after) + self._held <= self._cap:
                return preempted
            self._preempt()
            preempted = True
        return preempted

    def _preempt(self) -> None:
        """Send the latest admitted request of the least urgent class back to the queue."""
        flight = self._partial
        if self._line.priorities and self._decoding:
            last = max(self._decoding.values(), key=lambda running: running.key)
            if flight is None or last.key > flight.key:
                flight = last
        elif flight is None:
            flight = next(reversed(self._decoding.values()))
        if self._gaps.groups and flight is not self._partial:
            self._gaps.forget_last()
        self._give_up(flight)
        self._ledger.preemptions += 1
        self._line.push(flight)

    def _give_up(self, flight: InFlight) -> None:
        """Take a running request out of the batch; what it has generated becomes part of its prompt."""
        if flight is self._partial:
            self._partial = None
            self._held -= flight.blocks
            flight.done_tokens = 0
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

    def _release(self, flight: InFlight) -> None:
        """Give up what a request has reserved and shared."""
        self._committed -= flight.commit_blocks
        if self._cache and flight.block_ids:
            self._cap += self._cache.unpin(flight.block_ids) * self._terms.id_blocks

    def _trim(self, private: int) -> None:
        """Let go of cached blocks that the blocks of the running requests have overwritten."""
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

    def _plan(self) -> list[tuple[InFlight, int]]:
        """Return the prompts of the next step, each with the tokens to work on; admit what fits."""
        partial = self._partial
        line = self._line
        if partial is None and not line.count:
            return []
        terms = self._terms
        running = len(self._decoding)
        budget = terms.max_num_batched_tokens - (running if terms.mixed else 0)
        chunks = []
        if partial is not None and budget > 0:
            new = min(partial.prompt_tokens - partial.done_tokens, budget)
            chunks.append((partial, new))
            budget -= new
        running += partial is not None
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
                self._look_up(flight)
            new = flight.prompt_tokens - flight.cached_tokens
            if new > budget:
                if not terms.chunked and (chunks or new <= terms.max_num_batched_tokens):
                    break
                new = budget if terms.chunked else new
            if used < 0:
                used = self._kv.blocks(int((self._step + 1) * terms.growth)) + self._held
            blocks, commit = terms.blocks_of(flight)
            pinned = self._cache.to_pin(flight.block_ids) * terms.id_blocks if self._cache else 0
            if used + blocks + pinned > self._cap or self._committed + commit > self._cap:
                break
            line.pop()
            self._start(flight, blocks, commit)
            used += blocks
            self._trim(used)
            budget -= new
            running += 1
            chunks.append((flight, new))
        return chunks

    def _take_over(self, flight: InFlight) -> bool:
        """Let a request whose prompt was worked on elsewhere decode, if its blocks and its next token fit."""
        terms = self._terms
        own = flight.prompt_tokens - flight.shared_tokens
        used = self._kv.blocks(int((self._step + 1) * terms.growth)) + self._held
        blocks = -(-(own + ceil(terms.growth)) // terms.block_tokens)
        commit = terms.blocks_of(flight)[1]
        if used + blocks > self._cap or self._committed + commit > self._cap:
            return False
        self._line.pop()
        flight.commit_blocks = commit
        self._committed += commit
        if not self._gaps.groups:
            self._gaps.wait(len(self._decoding), self.now_s)
        self._gaps.wait(1, flight.first_token_s)
        self._join(flight)
        return True

    def _look_up(self, flight: InFlight) -> None:
        """Find the leading blocks of a prompt in the cache; at least one token is always worked on."""
        if self._cache:
            found, flight.load_s = self._cache.match(flight.block_ids)
            flight.cached_tokens = min(found * self._terms.id_tokens, flight.prompt_tokens - 1)

    def _start(self, flight: InFlight, blocks: int, commit: int) -> None:
        flight.blocks = blocks
        flight.commit_blocks = commit
        flight.done_tokens = flight.cached_tokens
        self._held += blocks
        self._committed += commit
        self._ledger.cached_tokens += flight.cached_tokens
        if self._cache and flight.block_ids:
            self._cap -= self._cache.pin(flight.block_ids) * self._terms.id_blocks
            self._loading_s += flight.load_s
        if isnan(flight.scheduled_s):
            flight.scheduled_s = self.now_s

    def _work_on(self, chunks: Sequence[tuple[InFlight, int]]) -> None:
        """Run one step with prompts in it."""
        ledger, start = self._ledger, self.now_s
        decoding = len(self._decoding) if self._terms.mixed else 0
        held = self._kv.blocks(self._counter) + self._held + self._terms.kv_blocks - self._cap
        context = (self._kv.tokens + self._shared) / decoding + self._counter if decoding else 0.0
        seconds = self._clock.mixed_step_s(
            decoding, context, [(new, flight.done_tokens) for flight, new in chunks]
        )
        if self._loading_s:
            seconds += self._loading_s
            self._loading_s = 0.0
        self.gauges.add(start, seconds, len(self._decoding) + len(chunks), held)
        self.now_s = start + seconds
        ledger.steps += 1
        if decoding:
            if self._gaps.groups:
                self._gaps.end(self.now_s, ledger.itl)
            else:
                ledger.itl.add(seconds, decoding)
            self._step += 1
            self._counter = int(self._step * self._terms.growth)
            self._complete()
        elif not self._gaps.groups:
            self._gaps.wait(len(self._decoding), start)
        self._partial = None
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
        """Hand out the token that ends a prompt; decoding begins unless it was the only one."""
        self._held -= flight.blocks
        flight.remaining_tokens -= 1
        if isnan(flight.first_token_s):
            flight.first_token_s = self.now_s
            self._ledger.first_token(flight)
        else:
            self._ledger.itl.add(self.now_s - flight.last_token_s, 1.0)
        if flight.remaining_tokens:
            self._join(flight)
        else:
            self._finish(flight)

    def _decode(self, until_s: float, most: int) -> None:
        """Run decode steps up to the next event."""
        terms, kv, start = self._terms, self._kv, self.now_s
        sequences = len(self._decoding)
        steps = self._ends[0][0] - self._step
        if most:
            steps = most
        elif steps > 1:
            steps = max(kv.within(self._counter, self._cap - self._held, terms.growth, self._step, steps), 1)
        limit = until_s
        if sequences + (self._partial is not None) < terms.max_num_seqs:
            if not self._line.count or self._line.priorities:
                limit = min(limit, self._feed.next_s)
            if self._line.deadlines:
                limit = min(limit, self._line.next_expiry_s())
        before = kv.blocks(self._counter) + self._held
        context = (kv.tokens + self._shared) / sequences + self._counter
        row = self._clock.row(sequences)
        if self._gaps.groups:
            steps = 1
        steps, seconds = row.run(context, steps, limit - start, terms.growth)
        self.now_s = start + seconds
        self._step += steps
        self._counter = int(self._step * terms.growth)
        after = kv.blocks(self._counter) + self._held
        self._trim(after)
        pinned = self._terms.kv_blocks - self._cap
        self.gauges.add(start, seconds, sequences, 0.5 * (before + after) + pinned)
        self._ledger.steps += steps
        if self._gaps.groups:
            self._gaps.end(self.now_s, self._ledger.itl)
        else:
            self._ledger.itl.add(seconds / steps, sequences * steps)
        self._complete()

    def _complete(self) -> None:
        """Let go of every sequence whose last token has come."""
        ends, step = self._ends, self._step
        while ends and ends[0][0] <= step:
            flight = heappop(ends)[2]
            self._leave(flight)
            self._finish(flight)
            self._drop_stale()

    def _drop_stale(self) -> None:
        """Forget the ends of sequences that were preempted."""
        ends = self._ends
        while ends and ends[0][2].serial != ends[0][1]:
            heappop(ends)

    def _finish(self, flight: InFlight) -> None:
        self._release(flight)
        self._ledger.finished(flight, self.now_s)
        self._feed.ended(self.now_s)
