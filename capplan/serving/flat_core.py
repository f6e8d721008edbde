"""The plain case of Server on flat arrays: continuous batching with mixed steps, first come first served, one engine.

The same events in the same order with the same floating-point operations as Server, which stays the readable reference and
runs everything else; `flat.eligible` says what this file may run, and a random differential test holds the two together.
"""

from __future__ import annotations

from array import array
from math import ceil, isnan, log, sqrt
from typing import TYPE_CHECKING, TypeAlias

from capplan.serving.flat_batch import FlatBatch

if TYPE_CHECKING:
    from capplan.serving.flat_batch import FlatLimits

    Doubles: TypeAlias = array[float]
    Integers: TypeAlias = array[int]

BINS_PER_E = 200
HISTOGRAM_ZERO = 12000
HISTOGRAM_BINS = 24000
TIMELINE_BINS = 512
OCCUPANCY_BINS = 400
FINISHED = 0


class FlatEngine(FlatBatch):
    """One engine with its queue and its results, all of it in arrays; `advance` runs it."""

    def __init__(
        self,
        limits: FlatLimits,
        tables: list[Doubles],
        columns: tuple[Doubles, Integers, Integers, Integers, Integers],
        arrivals: int,
        users: int,
    ) -> None:
        """Take limits, step tables, and the requests as FlatBatch does."""
        super().__init__(limits, columns, arrivals, users)
        self.context_knots, self.decode_base, self.decode_values, self.decode_slopes = tables[:4]
        self.mixed, self.head, self.new_knots, self.past_knots, self.prefill = tables[4:]
        self.knots = len(self.context_knots)
        self.chunk_rows = array("q", bytes(8 * (self.max_num_seqs + 2)))
        self.chunk_tokens = array("q", bytes(8 * (self.max_num_seqs + 2)))
        self.itl, self.zero_bin = array("d", bytes(8 * HISTOGRAM_BINS)), HISTOGRAM_ZERO
        self.itl_none = self.itl_weight = self.itl_total = 0.0
        self.batch_s, self.batch_size = array("d", bytes(8 * (2 * self.max_num_seqs + 64))), 64
        self.occupancy_s = array("d", bytes(8 * (OCCUPANCY_BINS + 1)))
        self.block_seconds = self.busy_s = 0.0
        self.span_s = 1e-3
        self.by_batch, self.by_blocks, self.by_busy = (array("d", bytes(8 * TIMELINE_BINS)) for _ in range(3))

    def advance(self, until_s: float) -> None:
        """Run every step that starts before a time; a step that is under way is finished."""
        while self.now_s < until_s:
            if self.next_s <= self.now_s:
                self.receive()
            preempted = self.make_room()
            self.chunks = 0
            if not preempted:
                self.plan()
            if self.chunks:
                self.work_on()
            elif self.sequences:
                self.decode(until_s, preempted)
            elif preempted:
                continue
            elif self.next_s < until_s:
                self.now_s = max(self.next_s, self.now_s)
            else:
                return
        self.receive()

    def piece(self, row: int, budget: int) -> int:
        """Return the tokens of a prompt that the step has room for, 0 if none; an uncut one may exceed the budget alone."""
        new = self.prompt_now[row] - self.cached[row]
        if new <= budget:
            return new
        if self.chunked:
            return max(budget, 0)
        return new if not self.chunks and new > self.budget else 0

    def plan(self) -> None:
        """Choose the prompts of the next step, each with the tokens to work on; admit what fits."""
        row = self.partial
        if not self.waiting and row < 0:
            return
        running = self.sequences
        budget = self.budget - running
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
            new = self.piece(row, budget)
            if not new:
                break
            if used < 0:
                used = self.blocks_at(self.step + 1) + self.held
            private = self.prompt_now[row] - self.shared[row]
            blocks, commit = -(-private // self.block_tokens), 0
            if self.reserved_output_fraction:
                reserved = private + self.reserved_output_fraction * (self.remaining[row] - 1)
                commit = ceil(reserved / self.block_tokens)
            if used + blocks > self.capacity or self.committed + commit > self.capacity:
                break
            self.queue_pop()
            self.admit(row, blocks, commit)
            used += blocks
            running += 1
            budget -= new
            self.chunk_rows[self.chunks], self.chunk_tokens[self.chunks] = row, new
            self.chunks += 1

    def admit(self, row: int, blocks: int, commit: int) -> None:
        """Give a request its blocks."""
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
        start, decoding, chunks = self.now_s, self.sequences, self.chunks
        held = self.blocks_at(self.step) + self.held
        context = 0.0
        if decoding:
            context = (self.tokens + self.shared_sum) / decoding + self.step
        tokens, seconds = decoding, 0.0
        for place in range(chunks):
            tokens += self.chunk_tokens[place]
            seconds += self.prefill_s(self.chunk_tokens[place], self.done[self.chunk_rows[place]])
        if decoding:
            seconds += self.attention_s(decoding, context)
        seconds = seconds + self.mixed[tokens] + self.head[decoding + chunks]
        self.gauge(start, seconds, decoding + chunks, held)
        self.now_s = start + seconds
        self.steps += 1
        if decoding:
            self.gap(seconds, decoding)
            self.step += 1
            self.complete()
        self.partial = -1
        for place in range(chunks):
            row = self.chunk_rows[place]
            self.done[row] += self.chunk_tokens[place]
            self.prefill_tokens += self.chunk_tokens[place]
            if self.done[row] < self.prompt_now[row]:
                self.partial = row
            else:
                self.prompt_ends(row)

    def prompt_ends(self, row: int) -> None:
        """Hand out the token that ends a prompt; decoding begins unless it was the only one."""
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
        steps = (self.end_keys[0] >> 32) - self.step
        if preempted:
            steps = 1
        elif steps > 1:
            steps = max(self.within(self.capacity - self.held, steps), 1)
        limit = until_s
        if sequences + (self.partial >= 0) < self.max_num_seqs and not self.waiting:
            limit = min(limit, self.next_s)
        before = self.blocks_at(self.step) + self.held
        context = (self.tokens + self.shared_sum) / sequences + self.step
        first = self.step
        seconds = self.run(sequences, context, steps, limit - start)
        steps = self.step - first
        self.now_s = start + seconds
        after = self.blocks_at(self.step) + self.held
        self.gauge(start, seconds, sequences, 0.5 * (before + after))
        self.steps += steps
        self.gap(seconds / steps, sequences * steps)
        self.complete()

    def run(self, sequences: int, context: float, steps: int, limit_s: float) -> float:
        """Take decode steps, all of them or the first few that reach the limit, and return their time; see DecodeRow."""
        offset = sequences * self.knots
        last = self.knots - 1
        base = self.decode_base[sequences]
        i = self.knot_below(context)
        done, total = 0, 0.0
        while True:
            rise = self.decode_slopes[offset + i]
            first = base + self.decode_values[offset + i] + rise * (context - self.context_knots[i])
            count = steps - done
            if i < last:
                count = min(count, int(self.context_knots[i + 1] - context) + 1)
            seconds = count * (first + rise * (count - 1) * 0.5)
            if total + seconds >= limit_s:
                count = steps_to_reach(first, rise, limit_s - total, count)
                half = rise * 0.5
                self.step += done + count
                return total + count * (first - half + half * count)
            done += count
            total += seconds
            if done >= steps:
                self.step += done
                return total
            context += count
            while i < last and context >= self.context_knots[i + 1]:
                i += 1

    def knot_below(self, context: float) -> int:
        """Return the place of the last knot at or below a context."""
        low, high = 0, self.knots
        while low < high:
            middle = (low + high) // 2
            if context < self.context_knots[middle]:
                high = middle
            else:
                low = middle + 1
        return low - 1

    def attention_s(self, sequences: int, context: float) -> float:
        """Return the attention over the cache of one step."""
        offset = sequences * self.knots
        i = self.knot_below(context)
        base = self.decode_base[sequences]
        step_s = (
            base
            + self.decode_values[offset + i]
            + self.decode_slopes[offset + i] * (context - self.context_knots[i])
        )
        return step_s - base

    def prefill_s(self, new_tokens: float, past_tokens: float) -> float:
        """Return the attention of one chunk, as StepClock.prefill_attention_s."""
        new, past = self.new_knots, self.past_knots
        width = len(past)
        i, j = place_below(new, new_tokens), place_below(past, past_tokens)
        u = v = 0.0
        if new_tokens > new[i] and len(new) > 1:
            u = (new_tokens - new[i]) / (new[i + 1] - new[i])
        if past_tokens > past[j] and width > 1:
            v = (past_tokens - past[j]) / (past[j + 1] - past[j])
        low = i * width + j
        high = low + width if u else low
        if not v:
            return new_tokens * (self.prefill[low] + u * (self.prefill[high] - self.prefill[low]))
        at_low = self.prefill[low] + v * (self.prefill[low + 1] - self.prefill[low])
        at_high = self.prefill[high] + v * (self.prefill[high + 1] - self.prefill[high])
        return new_tokens * (at_low + u * (at_high - at_low))

    def complete(self) -> None:
        """Let go of every sequence whose last token has come."""
        while self.end_count and self.end_keys[0] >> 32 <= self.step:
            row = self.end_rows[0]
            self.ends_pop()
            self.leave(row)
            self.finish(row)
            self.drop_stale()

    def finish(self, row: int) -> None:
        """Close a request that got all its tokens."""
        self.committed -= self.commit[row]
        self.e2e_s[row] = self.now_s - self.arrival[row]
        self.status[row] = FINISHED
        self.ended(row, self.now_s)

    def gap(self, value: float, weight: float) -> None:
        """Count a gap between tokens, as WeightedHistogram does."""
        if value > 0.0:
            self.itl[HISTOGRAM_ZERO + round(log(value) * BINS_PER_E)] += weight
        else:
            self.itl_none += weight
        self.itl_weight += weight
        self.itl_total += weight * value

    def gauge(self, start_s: float, seconds: float, sequences: int, blocks: float) -> None:
        """Count a stretch of time with a constant batch, as Gauges does."""
        if sequences >= self.batch_size:
            self.batch_size = 2 * sequences
        self.batch_s[sequences] += seconds
        place = min(int(blocks * OCCUPANCY_BINS / self.capacity), OCCUPANCY_BINS)
        self.occupancy_s[place] += seconds
        self.block_seconds += blocks * seconds
        self.busy_s += seconds
        while start_s + seconds >= self.span_s * TIMELINE_BINS:
            self.double_span()
        span = self.span_s
        first = int(start_s / span)
        end = start_s + seconds
        if end < (first + 1) * span:
            self.count_span(first, seconds, sequences, blocks)
            return
        for place in range(first, int(end / span) + 1):
            part = min(end, (place + 1) * span) - max(start_s, place * span)
            if part > 0.0:
                self.count_span(place, part, sequences, blocks)

    def count_span(self, place: int, seconds: float, sequences: int, blocks: float) -> None:
        """Add to one span of the timeline."""
        self.by_batch[place] += sequences * seconds
        self.by_blocks[place] += blocks * seconds
        self.by_busy[place] += seconds

    def double_span(self) -> None:
        """Halve the number of spans in use by joining neighbours."""
        for bins in (self.by_batch, self.by_blocks, self.by_busy):
            for place in range(TIMELINE_BINS // 2):
                bins[place] = bins[2 * place] + bins[2 * place + 1]
            for place in range(TIMELINE_BINS // 2, TIMELINE_BINS):
                bins[place] = 0.0
        self.span_s *= 2.0


def place_below(knots: Doubles, value: float) -> int:
    """Return the place of the knot at or below a value, such that another one follows where there are two."""
    low, high = 0, len(knots)
    while low < high:
        middle = (low + high) // 2
        if value < knots[middle]:
            high = middle
        else:
            low = middle + 1
    return min(max(low - 1, 0), max(len(knots) - 2, 0))


def steps_to_reach(first_s: float, rise_s: float, limit_s: float, most: int) -> int:
    """Return the fewest steps whose sum reaches a limit; see step_clock.steps_to_reach."""
    half = rise_s * 0.5
    linear = first_s - half
    root = linear * linear + 4.0 * half * limit_s
    guess = 2.0 * limit_s / (linear + sqrt(root)) if root > 0.0 else float(most)
    steps = min(max(int(guess), 1), most)
    while steps < most and steps * (linear + half * steps) < limit_s:
        steps += 1
    while steps > 1 and (steps - 1) * (linear + half * (steps - 1)) >= limit_s:
        steps -= 1
    return steps
