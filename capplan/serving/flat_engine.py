"""Discrete-event simulation of a serving engine on flat arrays: the order of its events, what joins each step, and the results.

Between two events (an arrival that can be admitted, the end of a prefill step, a completion, a shortage of blocks) the
batch is constant, so a run of decode steps is one closed-form sum; nothing is done per token or per sequence. Each step
follows the real engines:

1. The decoding sequences take the blocks for their next token. If there are too few, the one admitted last is preempted:
   it frees its blocks and goes back to the queue, to be recomputed together with its generated tokens.
2. A partly prefilled prompt continues, then waiting prompts are admitted in order, as long as sequence slots, token budget
   and blocks last; the head of the queue blocks those behind it. A step with a preemption admits nothing. A prompt whose
   prefix is in an offload tier takes its slot and its blocks and loads while others run; once loaded it comes next.
3. mixed: prompts and decoding sequences share the step. prefill_first: a step with prompts holds nothing else.

Requests are columns of arrays, so that Cython can compile this file and those below it: a .pxd gives the types of each, and
without a compiler they are ordinary Python. One engine is built up in four classes, each in its file: FlatQueue (who waits),
FlatBatch (who runs, and on which blocks), FlatSteps (how long a step takes), FlatEngine.
"""

from __future__ import annotations

from array import array

from capplan.serving.c_math import ceil, isnan, log, lrint
from capplan.serving.engine_parts import Gauges, PromptHold, grown
from capplan.serving.flat_batch import without
from capplan.serving.flat_input import Doubles, FlatLimits, FlatRequests
from capplan.serving.flat_queue import FINISHED, UNKNOWN_S
from capplan.serving.flat_steps import FlatSteps
from capplan.serving.flat_trees import NEVER_S

BINS_PER_E = 200
HISTOGRAM_ZERO = 12000
HISTOGRAM_BINS = 24000


class FlatEngine(FlatSteps):
    """One engine with its queue and its results, all in arrays; `advance` runs it."""

    def __init__(self, limits: FlatLimits, tables: list[Doubles], requests: FlatRequests) -> None:
        """Take limits, step tables and requests; see FlatQueue."""
        super().__init__(limits, tables, requests)
        self.shared_steps, self.hold = limits.terms.mixed, PromptHold(*limits.terms.hold)
        self.planned_s = self.credit = 0.0
        self.gauged, self.gauges = limits.gauged, Gauges(self.kv_blocks, limits.gauged)
        self.itl = array("d", bytes(8 * HISTOGRAM_BINS if self.gauged else 0))
        self.zero_bin = HISTOGRAM_ZERO
        self.itl_none = self.itl_weight = self.itl_total = 0.0
        self.judged_from, self.judged_until_s = limits.judged_from, limits.judged_until_s
        self.judged_metrics, self.judged_limits_s = limits.judged_metrics, limits.judged_limits_s
        self.judged_left, self.judged, self.missed = limits.judged_most[:], len(limits.judged_most), -1

    def advance(self, until_s: float) -> None:
        """Run every step that starts before a time, or until a limit is missed; a running step completes."""
        while self.now_s < until_s and self.missed < 0:
            self.receive(self.seen_s())
            preempted = (self.kv.sequences > 0 or self.partial >= 0) and self.make_room()
            self.chunks = 0
            if not self.paused:
                self.plan(preempted)
            freed = self.ended_sequences > 0
            if self.is_asynchronous and self.waits_for_output():
                pass
            elif self.chunks:
                self.work_on()
            elif self.kv.sequences:
                self.decode(until_s, preempted or (freed and self.waiting > 0))
            elif not preempted:
                event_s = min(self.next_s, self.loaded_s())
                if event_s >= until_s:
                    return
                self.now_s = max(event_s, self.now_s)
                self.filled = 0.0
            if self.paused:
                self.resume()
        self.receive(min(self.seen_s(), until_s))

    def expire_seen(self, until_s: float) -> None:
        """Let the deadlines pass that the plan of the next step sees, up to a time."""
        if self.has_deadlines:
            self.receive(min(self.seen_s(), until_s))

    def receive_arrived(self) -> None:
        """Receive what arrived while the last step ran: it counts as unfinished."""
        self.receive(self.now_s)

    def in_flight(self) -> int:
        """Return the number of requests that are waiting or running."""
        return self.waiting + self.kv.sequences + self.loading + (self.partial >= 0)

    def loaded_s(self) -> float:
        """Return when the next load from an offload tier ends; infinite if there is none."""
        earliest = NEVER_S
        for place in range(self.loading):
            earliest = min(earliest, self.ready[self.loading_rows[place]])
        return earliest

    def hit_blocks(self, block_ids: list[int], tiers: bool) -> int:
        """Return how many leading blocks of a prompt the prefix cache holds, on the device or also in its offload tiers."""
        return self.cache.match(block_ids)[0] if tiers else self.cache.on_device(block_ids)

    def hits_by_tier(self) -> list[int]:
        """Return the prefix-cache hits in blocks: on the device, then in each offload tier, then pulled from other engines."""
        return self.cache.hit_blocks

    def seen_s(self) -> float:
        """Return up to when requests must have arrived for the step that comes next."""
        return self.planned_s if self.is_asynchronous else self.now_s

    def plans_ahead(self) -> bool:
        """Return whether the next step is planned without what arrives as the last one ends."""
        return self.seen_s() < self.now_s and self.in_flight() > 0

    def waits_for_output(self) -> bool:
        """Note the plan of a step; return whether there was nothing to plan before the output of the running step."""
        idle = not (self.chunks or self.kv.sequences)
        waited = idle and (self.planned_s < self.now_s or self.ended_sequences > 0)
        self.planned_s = self.now_s
        for place in range(self.ended_sequences):
            self.held -= self.blocks[self.ended_rows[place]]
            self.close(self.ended_rows[place])
        self.ended_sequences = 0
        return waited

    def make_room(self) -> bool:
        """Preempt until every decoding sequence has room for its next token, and the next piece of a prompt for its blocks.

        Return whether any was preempted. With priorities, a request that was admitted before the one that lacks a block may be preempted.
        """
        preempted = False
        block = self.block_tokens
        while self.kv.sequences:
            after = grown(self.tokens_per_step, self.step + 1)
            room = self.capacity - self.held
            if self.kv.tokens + self.kv.sequences * (after + block) <= room * block:
                break
            if self.kv.blocks(after) <= room:
                break
            preempted = True
            if self.has_priorities and self.shared_steps:
                self.deal_blocks()
                break
            self.preempt()
        while self.partial >= 0 and not self.paused and not self.extends(self.partial):
            self.preempt()
            preempted = True
        return preempted

    def deal_blocks(self) -> None:
        """Give sequences the block for their next token in the order of admission; where none is left, the lowest priority is preempted.

        If that is the sequence itself, the plan of the step ends with it: those admitted after it miss the step.

        References
        ----------
        `Scheduler.schedule`, vllm/v1/core/sched/scheduler.py: https://github.com/vllm-project/vllm.
        """
        count, row, dealt = self.kv.sequences, self.last, 0
        for place in range(count):
            other, self.dealt_blocks[place] = count - place, 0
            while other < count and self.admission[self.dealt_rows[other]] < self.admission[row]:
                self.dealt_rows[other - 1] = self.dealt_rows[other]
                other += 1
            self.dealt_rows[other - 1], row = row, self.before[row]
        for place in range(count):
            row = self.dealt_rows[place]
            if self.serial[row] <= 0:
                continue
            more = self.blocks_at(row, grown(self.tokens_per_step, self.step + 1)) - self.blocks_at(
                row, self.counter
            )
            while more > self.capacity - self.held - self.kv.blocks(self.counter) - dealt:
                lowest = self.lowest()
                for other in range(place):
                    if self.dealt_rows[other] == lowest:
                        dealt -= self.dealt_blocks[other]
                self.preempt()
                if lowest == row:
                    self.pause(place + 1, count)
                    return
            self.dealt_blocks[place] = more
            dealt += more

    def blocks_at(self, row: int, counter: int) -> int:
        """Return the blocks of a decoding sequence at a value of the counter."""
        return -(-(self.base[row] + counter) // self.block_tokens)

    def pause(self, first: int, end: int) -> None:
        """Keep sequences that were to get blocks out of the next step, with the blocks they have."""
        for place in range(first, end):
            row = self.dealt_rows[place]
            if self.serial[row] > 0:
                self.paused_rows[self.paused], self.paused_since[self.paused] = row, self.gap_since_s(row)
                self.paused += 1
                self.forget_gap(row)
                self.leave(row)
                self.blocks[row] = self.blocks_at(row, self.counter)
                self.held += self.blocks[row]
                self.base[row] += self.counter
                self.end_step[row] -= self.step
                self.serial[row] = -1
        self.drop_stale()

    def resume(self) -> None:
        """Let the paused sequences decode again."""
        for place in range(self.paused):
            row = self.paused_rows[place]
            self.held -= self.blocks[row]
            if not self.groups:
                self.group(self.kv.sequences, self.now_s)
            self.group(1, self.paused_since[place])
            self.base[row] -= self.counter
            self.end_step[row] += self.step
            self.decode_from_here(row)
        self.paused = 0

    def extends(self, row: int) -> bool:
        """Take the blocks for the next piece of a prompt; return False if there are too few."""
        if not self.shared_steps:
            return True
        budget = max(self.budget - self.kv.sequences * self.query_tokens, 0)
        tokens = min(self.prompt_now[row], self.done[row] + budget) - self.shared[row]
        more = -(-max(tokens, 0) // self.block_tokens) - self.blocks[row]
        if more <= 0:
            return True
        used = self.private_blocks() + more
        if used > self.capacity:
            return False
        self.blocks[row] += more
        self.held += more
        self.trim(used)
        return True

    def piece(self, row: int, budget: int) -> int:
        """Return the prompt tokens that fit in the step; without chunking, a prompt that is the only one may exceed the budget."""
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

    def plan(self, preempted: bool) -> None:
        """Choose the prompts of the next step, each with the number of tokens to prefill; admit what fits, unless a request was just preempted."""
        row = self.partial
        if not (self.waiting or preempted):
            self.hold.end()
        is_open = not preempted and (self.waiting > 0 or self.loading > 0)
        is_held = self.hold.applies and row < 0 and not self.loading and is_open and self.waits()
        if row >= 0 or (is_open and not is_held):
            self.plan_prompts(row, preempted)

    def plan_prompts(self, row: int, preempted: bool) -> None:
        """Continue the prompt under way, then loaded ones, then admit what fits."""
        running, budget = self.kv.sequences + self.ended_sequences, self.step_budget()
        if row >= 0:
            running += 1
            if budget > 0:
                budget -= self.add_chunk(row, min(self.prompt_now[row] - self.done[row], budget))
        if not preempted:
            if self.loading:
                running += self.loading
                budget = self.plan_loaded(budget)
            self.admit_waiting(budget, running)

    def step_budget(self) -> int:
        """Return the tokens of a step that the decoding sequences leave to prompts."""
        return self.budget - (self.kv.sequences * self.query_tokens if self.shared_steps else 0)

    def add_chunk(self, row: int, new: int) -> int:
        """Add a piece of a prompt to the next step; return its tokens."""
        self.chunk_rows[self.chunks], self.chunk_tokens[self.chunks] = row, new
        self.chunks += 1
        self.number(row)
        return new

    def admit_waiting(self, budget: int, running: int) -> None:
        """Admit waiting requests in order while sequence slots, token budget and blocks last; add their pieces."""
        used = -1
        while self.waiting and running < self.max_num_seqs and budget > 0:
            row, pinned, new = self.queue_head(), 0, 0
            if self.kv_transferred_in[row]:
                if not self.take_over(row):
                    break
                running += 1
                used = -1
                continue
            is_named = self.has_cache and bool(self.ids[row])
            if used < 0:
                used = self.private_blocks()
                if is_named:
                    self.trim(used)
            if is_named:
                self.look_up(row)
                pinned = self.cache.to_pin(self.ids[row]) * self.id_blocks
            if not (is_named and self.ready[row] > self.now_s):
                new = self.piece(row, budget)
                if not new:
                    break
            blocks = -(-(self.prompt_now[row] - self.shared[row]) // self.block_tokens)
            commit = self.reserved_blocks(row)
            if used + blocks + pinned > self.capacity or self.committed + commit > self.capacity:
                break
            if new:
                blocks = self.piece_blocks(row, new, blocks)
            self.queue_pop()
            self.admit(row, blocks, commit)
            used += blocks
            self.trim(used)
            running += 1
            if new:
                budget -= self.add_chunk(row, new)
            else:
                self.loading_rows[self.loading] = row
                self.loading += 1

    def look_up(self, row: int) -> None:
        """Look up the leading blocks of a prompt in the prefix cache; at least one token is always computed."""
        self.hits[row], self.ready[row] = self.cache.match(self.ids[row], self.now_s)
        self.cached[row] = min(self.hits[row] * self.id_tokens, self.prompt_now[row] - 1)

    def plan_loaded(self, budget: int) -> int:
        """Add the prompts whose loads have ended, in order of admission; return the token budget that is left."""
        place = 0
        while place < self.loading:
            row = self.loading_rows[place]
            if self.ready[row] > self.now_s:
                place += 1
                continue
            new = self.piece(row, budget)
            if not new:
                return 0
            self.loading = without(row, self.loading_rows, self.loading)
            if self.has_cache:
                self.cache.reveal(self.ids[row], self.now_s)
            budget -= self.add_chunk(row, new)
        return budget

    def waits(self) -> bool:
        """Return whether waiting prompts stay out of this step."""
        sequences = self.kv.sequences
        if not sequences:
            self.hold.look(self.step)
            self.hold.end()
            return False
        if sequences >= self.max_num_seqs or self.kv_transferred_in[self.queue_head()]:
            return False
        tokens = 0
        if self.hold.hold_tokens:
            tokens = sequences * self.query_tokens + self.waiting_tokens()
        prompts, seats = self.waiting, self.max_num_seqs - sequences
        if self.data_groups > 1:  # each group needs a prompt that has a seat
            prompts = min(prompts, seats)
        return self.hold.keeps(self.step, prompts, tokens, seats)

    def take_over(self, row: int) -> bool:
        """Let a request that was prefilled elsewhere decode, if its blocks and its next token fit; return whether they do."""
        used = self.private_blocks()
        tokens = self.prompt_now[row] - self.shared[row] + lrint(ceil(self.tokens_per_step))
        commit = self.reserved_blocks(row)
        if used - (-tokens // self.block_tokens) > self.capacity or self.committed + commit > self.capacity:
            return False
        self.queue_pop()
        self.kv_transferred_in[row] = 0
        self.queue_s[row] = self.now_s - self.enqueued[row]
        if isnan(self.scheduled[row]):
            self.scheduled[row] = self.now_s
        self.commit[row] = commit
        self.committed += commit
        if not self.groups:
            self.group(self.kv.sequences, self.now_s)
        self.number(row)
        self.join(row)
        if self.draws_first:
            self.group(1, UNKNOWN_S)
            self.first_rows[self.firsts], self.first_token[row] = row, UNKNOWN_S
            self.firsts += 1
            self.prompt_now[row] -= 1  # its first step computes the last token of the prompt again
        else:
            self.group(1, self.now_s)
            self.stream(row)
        return True

    def begin(self, row: int) -> None:
        """Emit the first token of a request."""
        self.first_token[row] = self.now_s
        self.queue_s[row] = self.scheduled[row] - self.enqueued[row]
        self.shows(row)

    def stream(self, row: int) -> None:
        """Stream the first token of a request that was prefilled elsewhere."""
        self.first_token[row] = self.now_s
        self.shows(row)

    def shows(self, row: int) -> None:
        """Note that a client sees the first token of a request now."""
        self.ttft_s[row] = self.now_s - self.arrival[row]
        if self.judged:
            self.judge(row, 0, self.ttft_s[row])
        if self.announcing:
            self.report(-1 - row, self.now_s)

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
        self.count_admitted(row)
        if self.has_cache and self.ids[row]:
            self.pin(row)
        if isnan(self.scheduled[row]):
            self.scheduled[row] = self.now_s

    def count_admitted(self, row: int) -> None:
        """Count the prompt of an admitted request, again if it was preempted."""
        index = self.class_index[row]
        self.class_seen[index] = 1
        self.class_prompt[index] += self.prompt_now[row]
        self.class_cached[index] += self.cached[row]
        self.cached_tokens += self.cached[row]
        if self.gauged:
            self.admitted[row] += self.prompt_now[row]
            self.found[row] += self.cached[row]

    def pin(self, row: int) -> None:
        """Pin the blocks of a prompt in the prefix cache; those after blocks that load are hidden until the prompt is worked on."""
        ids, hits = self.ids[row], self.hits[row]
        self.capacity -= self.cache.pin(ids, hits, self.now_s) * self.id_blocks
        if self.ready[row] > self.now_s:
            self.cache.hide(ids[hits:])

    def work_on(self) -> None:
        """Run one step with prompts in it."""
        start, chunks = self.now_s, self.chunks
        decoding = self.kv.sequences if self.shared_steps or self.others_decode() else 0
        held = self.counted_blocks() + self.kv_blocks - self.capacity
        context = 0.0
        if decoding:
            context = (self.kv.tokens + self.shared_sum) / decoding + self.step * self.tokens_per_step
        seconds = (
            self.step_s(decoding, context) if self.stages == 1 else self.pipeline_pass_s(decoding, context)
        )
        self.gauges.add(start, seconds, self.kv.sequences + chunks, held)
        self.now_s = start + seconds
        self.steps += 1
        if decoding:
            if self.groups:
                self.end_groups()
            else:
                self.gap(seconds, decoding)
            self.step += 1
            self.counter = grown(self.tokens_per_step, self.step)
            self.trim(self.counted_blocks())
            self.complete()
        elif not self.groups:
            self.group(self.kv.sequences, start)
        self.partial = -1
        self.hold.look(self.step)
        joined = self.kv.sequences
        self.hold.note_step()
        for place in range(chunks):
            row = self.chunk_rows[place]
            self.hold.note_piece(self.chunk_tokens[place])
            self.done[row] += self.chunk_tokens[place]
            self.prefill_tokens += self.chunk_tokens[place]
            if self.done[row] < self.prompt_now[row]:
                self.partial = row
            else:
                self.prompt_ends(row)
        if self.groups:
            self.group(self.kv.sequences - joined, self.now_s)

    def counted_blocks(self) -> int:
        """Return the blocks that the running requests hold for themselves, where gauges or a prefix cache ask for them; else 0."""
        return self.kv.blocks(self.counter) + self.held if self.gauged or self.has_cache else 0

    def others_decode(self) -> bool:
        """Return whether sequences decode in a step with prompts that is not shared: those of groups of attention that have no prompt in it.

        Of g groups with prompts in k, a sequence gets (g - k) / g tokens in such a step, here a whole one in so many of the steps.
        """
        if self.data_groups > 1 and self.kv.sequences:
            busy = min(self.data_groups, self.chunks)
            self.credit += (self.data_groups - busy) / float(self.data_groups)
        if self.credit < 1.0:
            return False
        self.credit -= 1.0
        return True

    def group(self, sequences: int, since_s: float) -> None:
        """Add a group of sequences that wait for their next token: those that joined last."""
        if sequences:
            self.group_sequences[self.groups] = sequences
            self.group_since[self.groups] = since_s
            self.groups += 1

    def end_groups(self) -> None:
        """Record all gaps: every waiting sequence has its next token, some of them their first."""
        for place in range(self.groups):
            if not isnan(self.group_since[place]):
                self.gap(self.now_s - self.group_since[place], self.group_sequences[place])
        for place in range(self.firsts):
            self.stream(self.first_rows[place])
        self.groups = self.firsts = 0

    def prompt_ends(self, row: int) -> None:
        """Emit the token that ends a prefill; decoding starts unless it was the only one."""
        self.held -= self.blocks[row]
        self.remaining[row] -= 1
        if self.has_cache and self.cache.peers:
            self.cache.computed(self.ids[row], self.now_s)
        if isnan(self.first_token[row]):
            self.begin(row)
        else:
            self.gap(self.now_s - self.last_token[row], 1.0)
        if self.remaining[row]:
            self.join(row)
        else:
            self.joined_ends.added += 1
            self.serial[row] = self.joined_ends.added
            self.finish(row)

    def decode(self, until_s: float, one: bool) -> None:
        """Run decode steps up to the next event, or one."""
        start, sequences, first = self.now_s, self.kv.sequences, self.step
        self.filled = 0.0
        steps = self.end_step[self.joined_ends.values[0]] - first
        if one:
            steps = 1
        elif steps > 1:
            steps = max(
                self.kv.within(self.counter, self.capacity - self.held, self.tokens_per_step, first, steps), 1
            )
        if self.waiting and self.hold.applies:
            steps = min(steps, self.hold.steps_until_look(first))
        limit = until_s
        if self.loading:
            limit = min(limit, max(self.loaded_s(), start))
        if sequences + self.loading + (self.partial >= 0) < self.max_num_seqs:
            if not self.waiting or self.has_priorities or self.hold.hold_steps:
                limit = min(limit, self.next_s)
            if self.has_deadlines:
                limit = min(limit, self.next_expiry_s())
        before = self.counted_blocks()
        context = (self.kv.tokens + self.shared_sum) / sequences + first * self.tokens_per_step
        if self.groups:
            steps = 1
        seconds = self.run(sequences, context, steps, limit - start)
        awaited = self.is_asynchronous and limit == self.next_s and self.step - first < steps
        if awaited and start < limit <= start + seconds < until_s:
            seconds += self.decode_s(sequences, context + (self.step - first) * self.tokens_per_step)
            self.step += 1
        steps = self.step - first
        self.counter = grown(self.tokens_per_step, self.step)
        self.now_s = start + seconds
        if self.is_asynchronous and steps > 1:
            self.planned_s = self.now_s - self.decode_s(
                sequences, context + (steps - 1) * self.tokens_per_step
            )
        after = self.counted_blocks()
        self.trim(after)
        pinned = self.kv_blocks - self.capacity
        self.gauges.add(start, seconds, sequences + self.paused, 0.5 * (before + after) + pinned)
        self.steps += steps
        if self.groups:
            self.end_groups()
        else:
            self.gap(seconds / steps, sequences * steps)
        self.complete()

    def complete(self) -> None:
        """Finish every sequence that has its last token."""
        ends = self.joined_ends
        while ends.count and self.end_step[ends.values[0]] <= self.step:
            row = ends.pop()
            self.leave(row)
            self.blocks[row] = self.blocks_at(row, self.counter)
            self.finish(row)
            self.drop_stale()

    def finish(self, row: int) -> None:
        """Close a request that got all its tokens."""
        if self.is_asynchronous:
            self.held += self.blocks[row]
            self.ended_rows[self.ended_sequences] = row
            self.ended_sequences += 1
        else:
            self.close(row)
        self.e2e_s[row] = self.now_s - self.arrival[row]
        if self.judged:
            self.judge(row, 2, self.e2e_s[row])
            if self.output[row] > 1:
                self.judge(row, 1, (self.e2e_s[row] - self.ttft_s[row]) / (self.output[row] - 1))
        self.status[row] = FINISHED
        if self.now_s > self.last_over_s:
            self.last_over_s, self.last_over = self.now_s, 0
        self.over += 1
        self.last_over += 1
        if self.asked < self.count:
            self.ended(row, self.now_s)
        if self.reporting:
            self.report(row, self.now_s)

    def judge(self, row: int, metric: int, value_s: float) -> None:
        """Count a latency above its limit; note the limit once more requests exceed it than may. See EarlyEnd."""
        if row < self.judged_from or self.arrival[row] > self.judged_until_s:
            return
        if self.users and self.asked + self.ends_count >= self.count:
            return
        for place in range(self.judged):
            if self.judged_metrics[place] == metric and value_s > self.judged_limits_s[place]:
                self.judged_left[place] -= 1
                if self.judged_left[place] < 0:
                    self.missed = place

    def gap(self, value: float, weight: float) -> None:
        """Record a gap between tokens; see WeightedHistogram."""
        if not self.gauged:
            return
        if value > 0.0:
            self.itl[HISTOGRAM_ZERO + lrint(log(value) * BINS_PER_E)] += weight
        else:
            self.itl_none += weight
        self.itl_weight += weight
        self.itl_total += weight * value
