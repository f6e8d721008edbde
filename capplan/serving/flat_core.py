"""The plain case of Server on flat arrays: continuous batching of one engine, first come first served.

The same events in the same order, with the same floating-point operations as Server, which is the readable reference and
runs everything else. `flat.eligible` says what this file may run; a randomised differential test compares the two.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeAlias

from capplan.serving.c_math import ceil, floor, isnan, log, lrint
from capplan.serving.flat_steps import FlatSteps

if TYPE_CHECKING:
    from capplan.serving.flat_queue import FlatLimits, FlatRequests

    Doubles: TypeAlias = array[float]

BINS_PER_E = 200
HISTOGRAM_ZERO = 12000
HISTOGRAM_BINS = 24000
TIMELINE_BINS = 512
OCCUPANCY_BINS = 400
FINISHED = 0


class FlatEngine(FlatSteps):
    """One engine with its queue and its results, all in arrays; `advance` runs it."""

    def __init__(self, limits: FlatLimits, tables: list[Doubles], requests: FlatRequests) -> None:
        """Take limits, step tables and requests; see FlatQueue."""
        super().__init__(limits, tables, requests)
        self.shared_steps, self.poll_steps = limits.shared_steps, limits.poll_steps
        self.hold_steps, self.hold_tokens = limits.hold_steps, limits.hold_tokens
        self.hold_prompts, self.gather_steps = limits.hold_prompts, limits.gather_steps
        self.looked, self.hold_from, self.gather_from, self.released = 0, -1, -1, False
        self.itl, self.zero_bin = array("d", bytes(8 * HISTOGRAM_BINS)), HISTOGRAM_ZERO
        self.itl_none = self.itl_weight = self.itl_total = 0.0
        self.batch_s, self.batch_size = array("d", bytes(8 * (2 * self.max_num_seqs + 64))), 64
        self.occupancy_s = array("d", bytes(8 * (OCCUPANCY_BINS + 1)))
        self.block_seconds = self.busy_s = 0.0
        self.span_s = 1e-3
        self.by_batch, self.by_blocks, self.by_busy = (array("d", bytes(8 * TIMELINE_BINS)) for _ in range(3))

    def advance(self, until_s: float) -> None:
        """Run every step that starts before a time; a running step completes."""
        while self.now_s < until_s:
            if self.next_s <= self.now_s:
                self.receive()
            preempted = (self.sequences > 0 or self.partial >= 0) and self.make_room()
            self.chunks = 0
            if not preempted and (self.waiting or self.partial >= 0 or self.hold_steps):
                self.plan()
            if self.chunks:
                self.work_on()
            elif self.sequences:
                self.decode(until_s, preempted)
            elif preempted:
                continue
            elif self.next_s < until_s:
                self.now_s = max(self.next_s, self.now_s)
                self.filled = 0.0
            else:
                return
        self.receive()

    def make_room(self) -> bool:
        """Preempt until every decoding sequence has room for its next token, and the next piece of a prompt for its blocks."""
        preempted = False
        block = self.block_tokens
        while self.sequences:
            after = self.grown(self.step + 1)
            room = self.capacity - self.held
            if self.tokens + self.sequences * (after + block) <= room * block:
                break
            if self.blocks_at(after) <= room:
                break
            self.preempt()
            preempted = True
        while self.partial >= 0 and not self.extends(self.partial):
            self.preempt()
            preempted = True
        return preempted

    def extends(self, row: int) -> bool:
        """Take the blocks for the next piece of a prompt; return False if there are too few."""
        if not self.shared_steps:
            return True
        budget = max(self.budget - self.sequences * self.query_tokens, 0)
        tokens = min(self.prompt_now[row], self.done[row] + budget) - self.shared[row]
        more = -(-max(tokens, 0) // self.block_tokens) - self.blocks[row]
        if more <= 0:
            return True
        if self.blocks_at(self.grown(self.step + 1)) + self.held + more > self.capacity:
            return False
        self.blocks[row] += more
        self.held += more
        return True

    def piece(self, row: int, budget: int) -> int:
        """Return the prompt tokens that fit in the step; without chunking, a prompt that is alone may exceed the budget."""
        new = self.prompt_now[row] - self.cached[row]
        if new <= budget:
            return new
        if self.chunked:
            return max(budget, 0)
        return new if not self.chunks and new > self.budget else 0

    def piece_blocks(self, row: int, new: int, whole: int) -> int:
        """Return the blocks of the first piece of a prompt; engines with separate prefill steps take all `whole` at once."""
        if not self.shared_steps:
            return whole
        return -(-max(self.cached[row] + new - self.shared[row], 0) // self.block_tokens)

    def plan(self) -> None:
        """Admit what fits; choose the prompts of the next step, each with the number of tokens to prefill."""
        row = self.partial
        if not self.waiting:
            self.hold_from, self.gather_from, self.released = -1, -1, False
            if row < 0:
                return
        if (self.hold_steps or self.poll_steps) and row < 0 and self.waits():
            return
        running = self.sequences
        budget = self.budget
        if self.shared_steps:
            budget -= running * self.query_tokens
        if row >= 0:
            running += 1
            if budget > 0:
                self.chunk_rows[0] = row
                self.chunk_tokens[0] = min(self.prompt_now[row] - self.done[row], budget)
                budget -= self.chunk_tokens[0]
                self.chunks = 1
        used = -1
        while self.waiting and running < self.max_num_seqs and budget > 0:
            row = self.queue_head()
            if self.received[row]:
                if not self.take_over(row):
                    break
                running += 1
                used = -1
                continue
            new = self.piece(row, budget)
            if not new:
                break
            if used < 0:
                used = self.blocks_at(self.grown(self.step + 1)) + self.held
            blocks = -(-(self.prompt_now[row] - self.shared[row]) // self.block_tokens)
            commit = self.reserved_blocks(row)
            if used + blocks > self.capacity or self.committed + commit > self.capacity:
                break
            blocks = self.piece_blocks(row, new, blocks)
            self.queue_pop()
            self.admit(row, blocks, commit)
            used += blocks
            running += 1
            budget -= new
            self.chunk_rows[self.chunks], self.chunk_tokens[self.chunks] = row, new
            self.chunks += 1

    def waits(self) -> bool:
        """Return whether waiting prompts stay out of this step: no poll of the queue is due, or they are held back."""
        if not self.sequences:
            self.looked, self.hold_from, self.gather_from = self.step, -1, -1
            self.released = False
            return False
        if self.sequences >= self.max_num_seqs or self.received[self.queue_head()]:
            return False
        if self.poll_steps and (self.step - self.looked) % self.poll_steps:
            return True
        if self.hold_steps and not self.released:
            if self.hold_from < 0:
                self.hold_from = self.step
            if self.lacks_company():
                return True
            self.hold_from = self.gather_from = -1
            self.released = True
        return False

    def lacks_company(self) -> bool:
        """Return whether held prompts keep waiting; note the step since which enough of them wait."""
        if self.gather_from < 0 and 0 < self.hold_prompts <= self.waiting:
            self.gather_from = self.step
        if self.gather_from >= 0:
            return self.step - self.gather_from < self.gather_steps
        if self.step - self.hold_from >= self.hold_steps:
            return False
        if self.hold_prompts > 0:
            return True
        return self.sequences * self.query_tokens + self.waiting_tokens() < self.hold_tokens

    def steps_until_look(self) -> int:
        """Return the number of steps after which waiting prompts may join at the latest."""
        steps = 1 << 60
        if self.poll_steps:
            steps = self.poll_steps - (self.step - self.looked) % self.poll_steps
        if self.hold_steps and self.hold_from >= 0:
            if self.gather_from >= 0:
                steps = min(steps, self.gather_steps - (self.step - self.gather_from))
            else:
                steps = min(steps, self.hold_steps - (self.step - self.hold_from))
        return max(steps, 1)

    def take_over(self, row: int) -> bool:
        """Let a request that was prefilled elsewhere decode, if its blocks and its next token fit; return whether they do."""
        used = self.blocks_at(self.grown(self.step + 1)) + self.held
        blocks = -(-(self.prompt_now[row] + lrint(ceil(self.growth))) // self.block_tokens)
        commit = self.reserved_blocks(row)
        if used + blocks > self.capacity or self.committed + commit > self.capacity:
            return False
        self.queue_pop()
        self.received[row] = 0
        self.commit[row] = commit
        self.committed += commit
        if not self.groups:
            self.group(self.sequences, self.now_s)
        self.group(1, self.first_token[row])
        self.join(row)
        return True

    def reserved_blocks(self, row: int) -> int:
        """Return the blocks reserved for the prompt and the output of a request."""
        if not self.reserved_output_fraction:
            return 0
        private = self.prompt_now[row] - self.shared[row]
        reserved = private + self.reserved_output_fraction * (self.remaining[row] - 1)
        return lrint(ceil(reserved / self.block_tokens))

    def admit(self, row: int, blocks: int, commit: int) -> None:
        """Admit a request: take its blocks."""
        self.blocks[row] = blocks
        self.commit[row] = commit
        self.done[row] = self.cached[row]
        self.held += blocks
        self.committed += commit
        index = self.class_index[row]
        self.class_seen[index] = 1
        self.class_prompt[index] += self.prompt_now[row]
        self.class_cached[index] += self.cached[row]
        self.cached_tokens += self.cached[row]
        if isnan(self.scheduled[row]):
            self.scheduled[row] = self.now_s

    def work_on(self) -> None:
        """Run one step with prompts in it."""
        start, chunks = self.now_s, self.chunks
        decoding = self.sequences if self.shared_steps else 0
        held = self.blocks_at(self.counter) + self.held
        context = 0.0
        if decoding:
            context = (self.tokens + self.shared_sum) / decoding + self.step * self.growth
        seconds = self.step_s(decoding, context) if self.stages == 1 else self.turn_s(decoding, context)
        self.gauge(start, seconds, self.sequences + chunks, held)
        self.now_s = start + seconds
        self.steps += 1
        if decoding:
            if self.groups:
                self.end_groups()
            else:
                self.gap(seconds, decoding)
            self.step += 1
            self.counter = self.grown(self.step)
            self.complete()
        elif not self.groups:
            self.group(self.sequences, start)
        self.partial = -1
        self.looked, self.released = self.step, False
        joined = self.sequences
        for place in range(chunks):
            row = self.chunk_rows[place]
            self.done[row] += self.chunk_tokens[place]
            self.prefill_tokens += self.chunk_tokens[place]
            if self.done[row] < self.prompt_now[row]:
                self.partial = row
            else:
                self.prompt_ends(row)
        if self.groups:
            self.group(self.sequences - joined, self.now_s)

    def group(self, sequences: int, since_s: float) -> None:
        """Add a group of sequences that wait for their next token: those that joined last."""
        if sequences:
            self.group_sequences[self.groups] = sequences
            self.group_since[self.groups] = since_s
            self.groups += 1

    def end_groups(self) -> None:
        """Record all gaps: every waiting sequence has its next token."""
        for place in range(self.groups):
            self.gap(self.now_s - self.group_since[place], self.group_sequences[place])
        self.groups = 0

    def prompt_ends(self, row: int) -> None:
        """Emit the token that ends a prefill; decoding starts unless it was the only one."""
        self.held -= self.blocks[row]
        self.remaining[row] -= 1
        if isnan(self.first_token[row]):
            self.first_token[row] = self.now_s
            self.queue_s[row] = self.scheduled[row] - self.enqueued[row]
            self.ttft_s[row] = self.now_s - self.arrival[row]
        else:
            self.gap(self.now_s - self.last_token[row], 1.0)
        if self.remaining[row]:
            self.join(row)
        else:
            self.finish(row)

    def decode(self, until_s: float, preempted: bool) -> None:
        """Run decode steps up to the next event."""
        start, sequences = self.now_s, self.sequences
        self.filled = 0.0
        steps = (self.end_keys[0] >> 32) - self.step
        if preempted:
            steps = 1
        elif steps > 1:
            steps = max(self.within(self.capacity - self.held, steps), 1)
        if self.waiting and (self.hold_steps or self.poll_steps):
            steps = min(steps, self.steps_until_look())
        limit = until_s
        if sequences + (self.partial >= 0) < self.max_num_seqs and (not self.waiting or self.hold_steps):
            limit = min(limit, self.next_s)
        before = self.blocks_at(self.counter) + self.held
        context = (self.tokens + self.shared_sum) / sequences + self.step * self.growth
        first = self.step
        if self.groups:
            steps = 1
        seconds = self.run(sequences, context, steps, limit - start)
        steps = self.step - first
        self.counter = self.grown(self.step)
        self.now_s = start + seconds
        after = self.blocks_at(self.counter) + self.held
        self.gauge(start, seconds, sequences, 0.5 * (before + after))
        self.steps += steps
        if self.groups:
            self.end_groups()
        else:
            self.gap(seconds / steps, sequences * steps)
        self.complete()

    def complete(self) -> None:
        """Finish every sequence that has its last token."""
        while self.end_count and self.end_keys[0] >> 32 <= self.step:
            row = self.end_rows[0]
            self.ends_pop()
            self.leave(row)
            self.finish(row)
            if self.preemptions:
                self.drop_stale()

    def finish(self, row: int) -> None:
        """Close a request that got all its tokens."""
        self.committed -= self.commit[row]
        self.e2e_s[row] = self.now_s - self.arrival[row]
        self.status[row] = FINISHED
        if self.now_s > self.last_over_s:
            self.last_over_s, self.last_over = self.now_s, 0
        self.over += 1
        self.last_over += 1
        if self.asked < self.count:
            self.ended(row, self.now_s)

    def gap(self, value: float, weight: float) -> None:
        """Record a gap between tokens; see WeightedHistogram."""
        if value > 0.0:
            self.itl[HISTOGRAM_ZERO + lrint(log(value) * BINS_PER_E)] += weight
        else:
            self.itl_none += weight
        self.itl_weight += weight
        self.itl_total += weight * value

    def gauge(self, start_s: float, seconds: float, sequences: int, blocks: float) -> None:
        """Record a period with a constant batch; see Gauges."""
        if sequences >= self.batch_size:
            self.batch_size = 2 * sequences
        self.batch_s[sequences] += seconds
        place = min(lrint(floor(blocks * OCCUPANCY_BINS / self.capacity)), OCCUPANCY_BINS)
        self.occupancy_s[place] += seconds
        self.block_seconds += blocks * seconds
        self.busy_s += seconds
        end = start_s + seconds
        while end >= self.span_s * TIMELINE_BINS:
            self.double_span()
        span = self.span_s
        first = lrint(floor(start_s / span))
        if end < (first + 1) * span:
            self.by_batch[first] += sequences * seconds
            self.by_blocks[first] += blocks * seconds
            self.by_busy[first] += seconds
            return
        for place in range(first, lrint(floor(end / span)) + 1):
            part = min(end, (place + 1) * span) - max(start_s, place * span)
            if part > 0.0:
                self.count_span(place, part, sequences, blocks)

    def count_span(self, place: int, seconds: float, sequences: int, blocks: float) -> None:
        """Add to one span of the timeline."""
        self.by_batch[place] += sequences * seconds
        self.by_blocks[place] += blocks * seconds
        self.by_busy[place] += seconds

    def double_span(self) -> None:
        """Merge neighbouring spans, so that half of them are free."""
        for bins in (self.by_batch, self.by_blocks, self.by_busy):
            for place in range(TIMELINE_BINS // 2):
                bins[place] = bins[2 * place] + bins[2 * place + 1]
            for place in range(TIMELINE_BINS // 2, TIMELINE_BINS):
                bins[place] = 0.0
        self.span_s *= 2.0
