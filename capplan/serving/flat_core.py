"""The plain case of Server on flat arrays: continuous batching with mixed steps, first come first served, one engine.

The same events in the same order with the same floating-point operations as Server, which stays the readable reference and
runs everything else; `flat.eligible` says what this file may run, and a random differential test holds the two together.
Every column is an array by request instead of an object, so that the file also compiles: flat_core.pxd gives the types to
Cython, and without a compiler this is ordinary Python. Letters follow Server and KvBlocks.
"""

from __future__ import annotations

from array import array
from math import ceil, isnan, log, sqrt
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    Doubles: TypeAlias = array[float]
    Integers: TypeAlias = array[int]

BINS_PER_E = 200
HISTOGRAM_ZERO = 12000
HISTOGRAM_BINS = 24000
TIMELINE_BINS = 512
OCCUPANCY_BINS = 400
FINISHED, SHED, UNFINISHED = 0, 1, 2


class FlatLimits(NamedTuple):
    """What the engine was started with."""

    delay_s: float
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked: bool
    block_tokens: int
    kv_blocks: int
    reserved_output_fraction: float


class FlatEngine:
    """One engine with its queue and its results, all of it in arrays; `advance` runs it."""

    def __init__(
        self,
        limits: FlatLimits,
        tables: list[Doubles],
        columns: tuple[Doubles, Integers, Integers, Integers, Integers],
        releases: Doubles,
    ) -> None:
        """Take limits (a record of numbers), step tables, and the requests as arrays; nothing is copied."""
        count = len(columns[0])
        self.count = count
        self.arrival, self.prompt, self.output, self.cached, self.class_index = columns
        self.releases = releases
        self.closed = len(releases) > 0
        self.first_release, self.release_count = 0, len(releases)
        self.delay_s = limits.delay_s
        self.max_num_seqs, self.budget = limits.max_num_seqs, limits.max_num_batched_tokens
        self.chunked, self.block_tokens, self.capacity = limits.chunked, limits.block_tokens, limits.kv_blocks
        self.reserved_output_fraction = limits.reserved_output_fraction
        self.context_knots, self.decode_base, self.decode_values, self.decode_slopes = tables[:4]
        self.mixed, self.head, self.new_knots, self.past_knots, self.prefill = tables[4:]
        self.knots = len(self.context_knots)
        self.remaining = array("q", self.output)
        self.prompt_now = array("q", self.prompt)
        self.shared, self.done, self.blocks, self.commit = (array("q", bytes(8 * count)) for _ in range(4))
        self.base, self.end_step, self.serial = (array("q", bytes(8 * count)) for _ in range(3))
        self.before, self.after = (array("q", bytes(8 * count)) for _ in range(2))
        unknown = array("d", [float("nan")]) * count
        self.enqueued, self.scheduled, self.first_token = array("d", unknown), array("d", unknown), unknown[:]
        self.last_token, self.queue_s, self.ttft_s, self.e2e_s = (array("d", unknown) for _ in range(4))
        self.status = array("q", [UNFINISHED]) * count
        self.phases = array("q", bytes(8 * self.block_tokens))
        self.phase_sum = self.sequences = self.tokens = self.shared_sum = 0
        self.held = self.committed = self.step = self.serials = 0
        self.partial, self.last, self.oldest = -1, -1, -1
        self.position = self.waiting = self.next_waiting = 0
        self.preempted_heap, self.preempted_count = array("q", bytes(8 * (self.max_num_seqs + 2))), 0
        self.end_keys, self.end_rows, self.end_count = array("q", bytes(8 * 64)), array("q", bytes(8 * 64)), 0
        self.chunk_rows = array("q", bytes(8 * (self.max_num_seqs + 2)))
        self.chunk_tokens = array("q", bytes(8 * (self.max_num_seqs + 2)))
        self.chunks = 0
        self.now_s = 0.0
        self.next_s = float("inf")
        self.steps = self.preemptions = self.prefill_tokens = self.cached_tokens = 0
        classes = max(self.class_index, default=0) + 1
        self.class_prompt, self.class_cached = array("q", bytes(8 * classes)), array("q", bytes(8 * classes))
        self.class_preempted = array("q", bytes(8 * classes))
        self.class_seen = array("q", bytes(8 * classes))
        self.itl, self.zero_bin = array("d", bytes(8 * HISTOGRAM_BINS)), HISTOGRAM_ZERO
        self.itl_none = self.itl_weight = self.itl_total = 0.0
        self.batch_s, self.batch_size = array("d", bytes(8 * (2 * self.max_num_seqs + 64))), 64
        self.occupancy_s = array("d", bytes(8 * (OCCUPANCY_BINS + 1)))
        self.block_seconds = self.busy_s = 0.0
        self.span_s = 1e-3
        self.by_batch, self.by_blocks, self.by_busy = (array("d", bytes(8 * TIMELINE_BINS)) for _ in range(3))
        self.find_next()

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

    def find_next(self) -> None:
        """Find when the next request reaches the queue."""
        if self.position >= self.count:
            self.next_s = float("inf")
        elif not self.closed:
            self.next_s = self.arrival[self.position] + self.delay_s
        elif self.release_count:
            self.next_s = self.releases[self.first_release] + self.delay_s
        else:
            self.next_s = float("inf")

    def ended(self, at_s: float) -> None:
        """Let the client of a request that ended send its next one; releases stay in order of time."""
        if not self.closed:
            return
        size = len(self.releases)
        place = self.release_count
        self.release_count += 1
        while place and self.releases[(self.first_release + place - 1) % size] > at_s:
            self.releases[(self.first_release + place) % size] = self.releases[
                (self.first_release + place - 1) % size
            ]
            place -= 1
        self.releases[(self.first_release + place) % size] = at_s
        self.find_next()

    def receive(self) -> None:
        """Let requests join the queue up to now, or turn away those that could not run even alone."""
        while self.next_s <= self.now_s:
            row = self.position
            self.enqueued[row] = self.next_s
            if self.closed:
                self.arrival[row] = self.releases[self.first_release]
                self.first_release = (self.first_release + 1) % len(self.releases)
                self.release_count -= 1
            self.position += 1
            self.find_next()
            self.cached[row] = min(self.cached[row], self.prompt[row] - 1)
            self.shared[row] = self.cached[row] // self.block_tokens * self.block_tokens
            if self.too_long(row):
                self.status[row] = SHED
                self.ended(self.enqueued[row])
            else:
                self.waiting += 1

    def too_long(self, row: int) -> bool:
        """Return whether a request could not run even alone."""
        tokens = self.prompt[row] - self.shared[row] + self.output[row] - 1
        if -(-tokens // self.block_tokens) > self.capacity:
            return True
        return not self.chunked and self.prompt[row] - self.cached[row] > self.budget

    def queue_head(self) -> int:
        """Return the request that goes next: preempted ones came before all that never ran."""
        if self.preempted_count:
            return self.preempted_heap[0]
        while self.status[self.next_waiting] == SHED:
            self.next_waiting += 1
        return self.next_waiting

    def queue_pop(self) -> None:
        """Remove the head of the queue."""
        self.waiting -= 1
        if not self.preempted_count:
            self.next_waiting += 1
            return
        self.preempted_count -= 1
        heap, size, place = self.preempted_heap, self.preempted_count, 0
        moved = heap[size]
        while 2 * place + 1 < size:
            child = 2 * place + 1
            if child + 1 < size and heap[child + 1] < heap[child]:
                child += 1
            if heap[child] >= moved:
                break
            heap[place] = heap[child]
            place = child
        heap[place] = moved

    def queue_push(self, row: int) -> None:
        """Put a preempted request back."""
        self.waiting += 1
        heap, place = self.preempted_heap, self.preempted_count
        self.preempted_count += 1
        while place and heap[(place - 1) // 2] > row:
            heap[place] = heap[(place - 1) // 2]
            place = (place - 1) // 2
        heap[place] = row

    def ends_push(self, key: int, row: int) -> None:
        """Note when a sequence ends; keys are end step and serial in one number."""
        if self.end_count == len(self.end_keys):
            self.end_keys = array("q", bytes(self.end_keys) + bytes(8 * self.end_count))
            self.end_rows = array("q", bytes(self.end_rows) + bytes(8 * self.end_count))
        keys, rows, place = self.end_keys, self.end_rows, self.end_count
        self.end_count += 1
        while place and keys[(place - 1) // 2] > key:
            keys[place] = keys[(place - 1) // 2]
            rows[place] = rows[(place - 1) // 2]
            place = (place - 1) // 2
        keys[place] = key
        rows[place] = row

    def ends_pop(self) -> None:
        """Drop the next end."""
        self.end_count -= 1
        keys, rows, size, place = self.end_keys, self.end_rows, self.end_count, 0
        key, row = keys[size], rows[size]
        while 2 * place + 1 < size:
            child = 2 * place + 1
            if child + 1 < size and keys[child + 1] < keys[child]:
                child += 1
            if keys[child] >= key:
                break
            keys[place] = keys[child]
            rows[place] = rows[child]
            place = child
        keys[place] = key
        rows[place] = row

    def drop_stale(self) -> None:
        """Forget the ends of sequences that were preempted."""
        while self.end_count and self.serial[self.end_rows[0]] != self.end_keys[0] & 0xFFFFFFFF:
            self.ends_pop()

    def blocks_at(self, counter: int) -> int:
        """Return the blocks that decoding sequences hold at a step, as KvBlocks does."""
        block = self.block_tokens
        part = counter % block
        below = 0
        for phase in range(part):
            below += self.phases[phase]
        pads = self.phase_sum - self.sequences * part + block * below
        return (self.tokens + self.sequences * counter + pads) // block

    def within(self, capacity: int, most: int) -> int:
        """Return how many further steps, up to most, the blocks stay within a capacity."""
        reach = self.step + most + 1
        block = self.block_tokens
        if self.tokens + self.sequences * (reach + block) <= capacity * block:
            return most
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_at(self.step + middle) <= capacity:
                low = middle
            else:
                high = middle - 1
        return low

    def join(self, row: int) -> None:
        """Let a request decode."""
        base = self.prompt_now[row] - self.shared[row] - self.step
        self.base[row] = base
        self.end_step[row] = self.step + self.remaining[row]
        phase = -base % self.block_tokens
        self.sequences += 1
        self.tokens += base
        self.phases[phase] += 1
        self.phase_sum += phase
        self.shared_sum += self.shared[row]
        self.before[row], self.after[row] = self.last, -1
        if self.last >= 0:
            self.after[self.last] = row
        self.last = row
        self.serials += 1
        self.serial[row] = self.serials
        self.ends_push((self.end_step[row] << 32) | self.serials, row)

    def leave(self, row: int) -> None:
        """Take a decoding request out of the batch."""
        base = self.base[row]
        phase = -base % self.block_tokens
        self.sequences -= 1
        self.tokens -= base
        self.phases[phase] -= 1
        self.phase_sum -= phase
        self.shared_sum -= self.shared[row]
        if self.before[row] >= 0:
            self.after[self.before[row]] = self.after[row]
        if self.after[row] >= 0:
            self.before[self.after[row]] = self.before[row]
        else:
            self.last = self.before[row]

    def make_room(self) -> bool:
        """Preempt until every decoding sequence can take its next token; return whether anyone was."""
        preempted = False
        block = self.block_tokens
        while self.sequences:
            after = self.step + 1
            room = self.capacity - self.held
            if self.tokens + self.sequences * (after + block) <= room * block:
                return preempted
            if self.blocks_at(after) <= room:
                return preempted
            self.preempt()
            preempted = True
        return preempted

    def preempt(self) -> None:
        """Send the latest admitted request back to the queue, to be recomputed with what it has generated."""
        row = self.partial
        if row >= 0:
            self.partial = -1
            self.held -= self.blocks[row]
            self.done[row] = 0
        else:
            row = self.last
            self.leave(row)
            joined = self.end_step[row] - self.remaining[row]
            produced = min(self.step - joined, self.remaining[row] - 1)
            self.prompt_now[row] += 1 + produced
            self.remaining[row] -= produced
            self.last_token[row] = self.now_s
            self.serial[row] = -1
            self.drop_stale()
        self.committed -= self.commit[row]
        self.preemptions += 1
        self.class_preempted[self.class_index[row]] += 1
        self.queue_push(row)

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
            return self.prefill[low] + u * (self.prefill[high] - self.prefill[low])
        at_low = self.prefill[low] + v * (self.prefill[low + 1] - self.prefill[low])
        at_high = self.prefill[high] + v * (self.prefill[high + 1] - self.prefill[high])
        return at_low + u * (at_high - at_low)

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
        self.ended(self.now_s)

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
