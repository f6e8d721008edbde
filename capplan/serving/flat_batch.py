"""The running requests of one engine on flat arrays: how they join and leave, the KV blocks that they hold, and who is preempted."""

from __future__ import annotations

from array import array

from capplan.serving.block_cache import BlockCache
from capplan.serving.c_math import ceil, lrint, sqrt
from capplan.serving.engine_parts import grown
from capplan.serving.flat_input import FlatLimits, FlatRequests, Integers
from capplan.serving.flat_queue import FINISHED, MOVED, UNKNOWN_S, FlatQueue
from capplan.serving.flat_trees import FlatEvents
from capplan.serving.requests import InFlight


class FlatBatch(FlatQueue):
    """The running requests of one engine, and the KV blocks they hold."""

    def __init__(self, limits: FlatLimits, requests: FlatRequests) -> None:
        """Take the limits and the requests; see FlatQueue."""
        super().__init__(limits, requests)
        count, terms = self.count, limits.terms
        self.reserved_output_fraction = terms.reserved_output_fraction
        self.query_tokens, self.counter, self.luck = terms.query_tokens, 0, limits.luck
        self.kv_blocks = self.capacity = terms.kv_blocks
        self.is_asynchronous = terms.asynchronous
        self.has_cache, caching = self.is_caching, terms.caching
        self.cache = BlockCache(caching.tiers, caching.pull) if caching else BlockCache()
        zeros = bytes(8 * count)
        self.done, self.blocks, self.commit = (array("q", zeros) for _ in range(3))
        self.base, self.end_step, self.serial = (array("q", zeros) for _ in range(3))
        self.before, self.after, self.admission = (array("q", zeros) for _ in range(3))
        self.hits = array("q", zeros if self.is_caching else b"")
        self.admitted, self.found = (array("q", zeros if limits.gauged else b"") for _ in range(2))
        unknown = array("d", [UNKNOWN_S]) * count
        self.last_token, self.queue_s, self.ttft_s, self.e2e_s = unknown[:], unknown[:], unknown[:], unknown
        self.shared_sum = self.held = self.committed = self.step = self.admissions = 0
        self.partial, self.last = -1, -1
        seats = bytes(8 * (self.max_num_seqs + 2))
        self.group_sequences, self.group_since, self.groups = array("q", seats), array("d", seats), 0
        self.first_rows, self.firsts = array("q", seats), 0
        self.loading_rows, self.loading = array("q", seats), 0
        self.ended_rows, self.ended_sequences = array("q", seats), 0
        self.paused_rows, self.paused_since, self.paused = array("q", seats), array("d", seats), 0
        self.dealt_rows, self.dealt_blocks = array("q", seats), array("q", seats)
        self.joined_ends = FlatEvents()
        self.chunks = 0
        self.steps = self.preemptions = self.prefill_tokens = self.cached_tokens = 0
        self.class_prompt, self.class_cached, self.class_preempted, self.class_seen = (
            array("q", bytes(8 * limits.classes)) for _ in range(4)
        )

    def drop_stale(self) -> None:
        """Drop the ends of sequences that were preempted."""
        ends = self.joined_ends
        while ends.count and self.serial[ends.values[0]] != ends.serials[0]:
            ends.pop()

    def decode_steps(self, row: int, tokens: int) -> int:
        """Return the steps in which a request gets so many tokens: as many as the mean yield takes, and with drafts more or fewer by its luck."""
        if self.tokens_per_step == 1.0:
            return tokens
        extra = 0.0
        if len(self.luck):
            extra = self.luck[(self.rank[row] if self.is_sent else row) % len(self.luck)] * sqrt(tokens)
        steps = lrint(ceil((tokens + extra) / self.tokens_per_step - 1e-9))
        return max(steps, -(-tokens // self.query_tokens) if self.query_tokens > 1 else min(tokens, 1))

    def join(self, row: int) -> None:
        """Add a request to the decoding batch."""
        base = self.prompt_now[row] - self.shared[row] - self.counter
        self.base[row] = base
        self.end_step[row] = self.step + self.decode_steps(row, self.remaining[row])
        self.decode_from_here(row)

    def decode_from_here(self, row: int) -> None:
        """Append a request to the decoding batch."""
        self.kv.join(self.base[row])
        self.shared_sum += self.shared[row]
        self.before[row], self.after[row] = self.last, -1
        if self.last >= 0:
            self.after[self.last] = row
        self.last = row
        self.joined_ends.push(float(self.end_step[row]), row)
        self.serial[row] = self.joined_ends.added

    def leave(self, row: int) -> None:
        """Remove a request from the decoding batch."""
        self.kv.leave(self.base[row])
        self.shared_sum -= self.shared[row]
        if self.before[row] >= 0:
            self.after[self.before[row]] = self.after[row]
        if self.after[row] >= 0:
            self.before[self.after[row]] = self.before[row]
        else:
            self.last = self.before[row]

    def lowest(self) -> int:
        """Return the running request of the lowest priority; without priorities, the one that was admitted last."""
        lowest, row = self.partial, self.last
        while row >= 0:
            if lowest < 0 or self.standing(row) > self.standing(lowest):
                lowest = row
            row = self.before[row]
        return lowest

    def standing(self, row: int) -> int:
        """Return a number by which requests are preempted: the highest first."""
        return self.key(row) if self.has_priorities else self.admission[row]

    def number(self, row: int) -> None:
        """Note that a request enters a step after those that entered it, or one before, already."""
        self.admissions += 1
        self.admission[row] = self.admissions

    def preempt(self) -> None:
        """Preempt the request of the lowest priority that was admitted last: send it back to the queue, to be recomputed with its generated tokens.

        With asynchronous scheduling that may be one that has ended, whose last token is on its way: it gives up its blocks.
        """
        row = self.lowest()
        if self.has_priorities or not (self.ended_sequences and self.lost_ended(row)):
            if row != self.partial:
                self.forget_gap(row)
            self.give_up(row)
            self.count_preempted(row)
            self.queue_push(row)

    def give_up(self, row: int) -> None:
        """Remove a running request from the batch; its generated tokens become part of its prompt."""
        worked_on = -1
        if self.serial[row] <= 0:
            if row == self.partial:
                self.partial = -1
            else:
                self.loading = without(row, self.loading_rows, self.loading)
            self.held -= self.blocks[row]
            worked_on = self.done[row] // self.id_tokens
        else:
            self.leave(row)
            self.firsts = without(row, self.first_rows, self.firsts)
            joined = self.end_step[row] - self.decode_steps(row, self.remaining[row])
            produced = min(grown(self.tokens_per_step, self.step - joined), self.remaining[row] - 1)
            self.prompt_now[row] += 1 + produced
            self.remaining[row] -= produced
            self.last_token[row] = self.now_s
            self.serial[row] = -1
            self.drop_stale()
        self.release(row, worked_on)

    def take_in(self, at_s: float, flight: InFlight) -> int:
        """Append a request that reaches the queue at a time, with what other engines did for it; return its row."""
        row = self.arrivals
        self.send(
            at_s,
            flight.arrival_s,
            flight.prompt_tokens,
            flight.output_tokens,
            flight.cached_tokens,
            flight.class_index,
            UNKNOWN_S,
            flight.index,
        )
        self.kv_transferred_in[row], self.remaining[row] = flight.kv_transferred_in, flight.remaining_tokens
        self.enqueued[row], self.scheduled[row] = flight.enqueued_s, flight.scheduled_s
        self.first_token[row], self.last_token[row] = flight.first_token_s, flight.last_token_s
        if self.is_caching:
            self.ids[row], self.output_ids[row] = flight.block_ids, flight.output_ids
        return row

    def write(self, row: int, flight: InFlight) -> None:
        """Write into a request that was taken in what was done for it here."""
        flight.prompt_tokens, flight.remaining_tokens = self.prompt_now[row], self.remaining[row]
        flight.kv_transferred_in, flight.cached_tokens = bool(self.kv_transferred_in[row]), self.cached[row]
        flight.scheduled_s, flight.first_token_s = self.scheduled[row], self.first_token[row]
        flight.last_token_s = self.last_token[row]
        if self.is_caching and self.status[row] != FINISHED:
            flight.block_ids = self.ids[row]

    def cancel(self, row: int) -> None:
        """Cancel a request, running or waiting, between two steps."""
        if not self.runs(row):
            self.waiting -= row < self.position
        elif self.serial[row] <= 0:
            self.give_up(row)
        else:
            since_s = self.gap_since_s(row)
            self.forget_gap(row)
            self.give_up(row)
            self.last_token[row] = since_s
        self.status[row] = MOVED
        self.over += 1
        self.find_next()

    def runs(self, row: int) -> bool:
        """Return whether a request is in the batch, or loads blocks for it."""
        for place in range(self.loading):
            if self.loading_rows[place] == row:
                return True
        return self.serial[row] > 0 or row == self.partial

    def group_place(self, row: int) -> int:
        """Return the group of a decoding sequence, of those that wait for their next token; -1 if it waits in none."""
        later, place = 0, self.groups - 1
        while self.after[row] >= 0:
            row = self.after[row]
            later += 1
        while place >= 0 and later >= self.group_sequences[place]:
            later -= self.group_sequences[place]
            place -= 1
        return place

    def gap_since_s(self, row: int) -> float:
        """Return when a decoding sequence got its latest token."""
        place = self.group_place(row)
        return self.group_since[place] if place >= 0 else self.now_s

    def forget_gap(self, row: int) -> None:
        """Remove a decoding sequence from those that wait for their next token."""
        place = self.group_place(row)
        if place < 0:
            return
        self.group_sequences[place] -= 1
        if not self.group_sequences[place]:
            self.groups -= 1
            for later in range(place, self.groups):
                self.group_sequences[later] = self.group_sequences[later + 1]
                self.group_since[later] = self.group_since[later + 1]

    def release(self, row: int, worked_on: int) -> None:
        """Release the reserved and shared blocks of a request; `worked_on` leading ones of an unfinished prompt stay cached, or -1 for all."""
        self.committed -= self.commit[row]
        if self.has_cache and self.ids[row]:
            left = None if worked_on < 0 else worked_on
            self.capacity += self.cache.unpin(self.ids[row], left) * self.id_blocks

    def close(self, row: int) -> None:
        """Give back the blocks of a request that has ended; with a prefix cache they stay cached."""
        if self.has_cache and self.output_ids[row]:
            self.cache.keep(self.output_ids[row])
        self.release(row, -1)
        if self.is_caching:
            self.ids[row] = self.output_ids[row] = []

    def trim(self, private: int) -> None:
        """Evict cached blocks to make room for the `private` blocks of the running requests."""
        if self.has_cache:
            self.cache.trim((self.capacity - private) // self.id_blocks)

    def private_blocks(self) -> int:
        """Return the blocks that the running requests hold for themselves once each decoding one has its next token."""
        return self.kv.blocks(grown(self.tokens_per_step, self.step + 1)) + self.held

    def count_preempted(self, row: int) -> None:
        """Count a preemption."""
        self.preemptions += 1
        self.class_preempted[self.class_index[row]] += 1
        self.class_seen[self.class_index[row]] = 1

    def lost_ended(self, last: int) -> bool:
        """Take the blocks of the request that has ended and was admitted last, if that was after the last that runs; return whether it was."""
        lost = last
        for place in range(self.ended_sequences):
            if self.admission[self.ended_rows[place]] > self.admission[lost]:
                lost = self.ended_rows[place]
        if lost == last:
            return False
        self.held -= self.blocks[lost]
        self.blocks[lost], self.admission[lost] = 0, -1
        self.count_preempted(lost)
        return True


def without(row: int, rows: Integers, count: int) -> int:
    """Remove a request from the first `count` rows; return how many are left."""
    kept = 0
    for place in range(count):
        if rows[place] != row:
            rows[kept] = rows[place]
            kept += 1
    return kept
