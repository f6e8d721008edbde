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

from collections.abc import Sequence
from heapq import heappop
from math import ceil, inf, isnan

from capplan.serving.engine_state import EngineState
from capplan.serving.requests import InFlight


class Server(EngineState):
    """A continuous-batching engine that takes requests from a feed and writes results into a ledger."""

    __slots__ = ()

    def advance(self, until_s: float = inf) -> None:
        """Run every step that starts before a time; a running step completes."""
        feed, line = self._feed, self._line
        while self.now_s < until_s:
            seen_s = self._planned_s if self._terms.asynchronous else self.now_s
            if feed.next_s <= seen_s or line.deadlines:
                line.receive(seen_s)
            preempted = self._make_room()
            chunks = self._plan(admits=not preempted)
            if self._terms.asynchronous and self._waits_for_output(idle=not (chunks or self._decoding)):
                continue
            if chunks:
                self._work_on(chunks)
            elif self._decoding:
                self._decode(until_s, 1 if preempted else 0)
            elif preempted:
                continue
            elif min(feed.next_s, self.loaded_s) < until_s:
                self.now_s = max(min(feed.next_s, self.loaded_s), self.now_s)
                self._filled = 0.0
            else:
                return
        line.receive(self.now_s)

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

        Return whether any was preempted.
        """
        terms, kv, preempted = self._terms, self._kv, False
        while kv.sequences:
            after = int((self._step + 1) * terms.growth)
            block = kv.block_tokens
            if kv.tokens + kv.sequences * (after + block) <= (self._cap - self._held) * block:
                break
            if kv.blocks(after) + self._held <= self._cap:
                break
            self._preempt()
            preempted = True
        while self._partial is not None and not self._extends(self._partial):
            self._preempt()
            preempted = True
        return preempted

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

    def _preempt(self) -> None:
        """Preempt the request of the lowest priority that was admitted last: send it back to the queue."""
        flight = self._partial
        if self._line.priorities and self._decoding:
            last = max(self._decoding.values(), key=lambda running: running.key)
            if flight is None or last.key > flight.key:
                flight = last
        elif flight is None:
            flight = next(reversed(self._decoding.values()))
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
            self._hold_from, self._gather_from, self._released = -1, -1, False
            if partial is None and not self._loading:
                return []
        terms = self._terms
        if (terms.hold_steps or terms.poll_steps) and partial is None and not self._loading and self._waits():
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
        """Return whether waiting prompts stay out of this step: no poll of the queue is due, or they are held back."""
        terms, step = self._terms, self._step
        if not self._decoding:
            self._looked, self._hold_from, self._gather_from = step, -1, -1
            self._released = False
            return False
        if len(self._decoding) >= terms.max_num_seqs or self._line.head().received:
            return False
        if terms.poll_steps and (step - self._looked) % terms.poll_steps:
            return True
        if terms.hold_steps and not self._released:
            if self._hold_from < 0:
                self._hold_from = step
            if self._keeps_prompts_held():
                return True
            self._hold_from = self._gather_from = -1
            self._released = True
        return False

    def _keeps_prompts_held(self) -> bool:
        """Return whether held prompts keep waiting; note the step since which enough of them wait."""
        terms, step = self._terms, self._step
        if self._gather_from < 0 and 0 < terms.hold_prompts <= self._line.count:
            self._gather_from = step
        if self._gather_from >= 0:
            return step - self._gather_from < terms.gather_steps
        if step - self._hold_from >= terms.hold_steps:
            return False
        tokens = len(self._decoding) * terms.query_tokens + self._line.prompt_tokens()
        return terms.hold_prompts > 0 or tokens < terms.hold_tokens

    def _steps_until_look(self) -> int:
        """Return the number of steps after which waiting prompts may join at the latest."""
        terms, steps = self._terms, 1 << 60
        if terms.poll_steps:
            steps = terms.poll_steps - (self._step - self._looked) % terms.poll_steps
        if terms.hold_steps and self._hold_from >= 0:
            gathers = self._gather_from >= 0
            since = self._gather_from if gathers else self._hold_from
            steps = min(steps, (terms.gather_steps if gathers else terms.hold_steps) - (self._step - since))
        return max(steps, 1)

    def _piece(self, flight: InFlight, budget: int, *, alone: bool) -> int:
        """Return the prompt tokens that fit in the step; without chunking, a prompt that is alone may exceed the budget."""
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
        flight.commit_blocks = commit
        self._committed += commit
        if not self._gaps.groups:
            self._gaps.wait(len(self._decoding), self.now_s)
        self._gaps.wait(1, flight.first_token_s)
        self._join(flight)
        return True

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
                self._gaps.end(self.now_s, ledger.itl)
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
        self._looked = self._step
        self._released = False
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
        if self._line.count and (terms.hold_steps or terms.poll_steps):
            steps = min(steps, self._steps_until_look())
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
        row = self._clock.row(sequences)
        if self._gaps.groups or terms.asynchronous:
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
            self._ended.append(flight)
        else:
            self._close(flight)
        self._ledger.finished(flight, self.now_s)
        self._feed.ended(flight, self.now_s)

    def _close(self, flight: InFlight) -> None:
        """Give back the blocks of a request that has ended; with a prefix cache they stay cached."""
        if flight.output_ids and self._cache:
            self._cache.keep(flight.output_ids)
        self._release(flight)
