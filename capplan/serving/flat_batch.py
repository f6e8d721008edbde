"""Batch and KV blocks of the plain engine on flat arrays; flat_core.py runs the steps."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from capplan.serving.c_math import ceil, floor, lrint
from capplan.serving.flat_queue import FlatQueue

if TYPE_CHECKING:
    from capplan.serving.flat_queue import FlatLimits, FlatRequests


class FlatBatch(FlatQueue):
    """The running requests of one engine, and the KV blocks they hold."""

    def __init__(self, limits: FlatLimits, requests: FlatRequests) -> None:
        """Take the limits and the requests; see FlatQueue."""
        super().__init__(limits, requests)
        count = self.count
        self.reserved_output_fraction = limits.reserved_output_fraction
        self.query_tokens, self.counter = limits.query_tokens, 0
        self.done, self.blocks, self.commit = (array("q", bytes(8 * count)) for _ in range(3))
        self.base, self.end_step, self.serial = (array("q", bytes(8 * count)) for _ in range(3))
        self.before, self.after = (array("q", bytes(8 * count)) for _ in range(2))
        unknown = array("d", [float("nan")]) * count
        self.scheduled, self.last_token, self.queue_s = array("d", unknown), array("d", unknown), unknown[:]
        self.ttft_s, self.e2e_s = array("d", unknown), array("d", unknown)
        self.phases = array("q", bytes(8 * self.block_tokens))
        self.phase_sum = self.sequences = self.tokens = self.shared_sum = 0
        self.held = self.committed = self.step = self.serials = 0
        self.partial, self.last = -1, -1
        self.group_sequences = array("q", bytes(8 * (self.max_num_seqs + 2)))
        self.group_since = array("d", bytes(8 * (self.max_num_seqs + 2)))
        self.groups = 0
        self.end_keys, self.end_rows, self.end_count = array("q", bytes(8 * 64)), array("q", bytes(8 * 64)), 0
        self.chunks = 0
        self.steps = self.preemptions = self.prefill_tokens = self.cached_tokens = 0
        self.class_prompt, self.class_cached, self.class_preempted, self.class_seen = (
            array("q", bytes(8 * limits.classes)) for _ in range(4)
        )

    def ends_push(self, key: int, row: int) -> None:
        """Push the end of a sequence; a key is end step and serial in one number."""
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
        """Pop the next end."""
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
        """Drop heap entries of sequences that were preempted."""
        while self.end_count and self.serial[self.end_rows[0]] != self.end_keys[0] & 0xFFFFFFFF:
            self.ends_pop()

    def grown(self, step: int) -> int:
        """Return the tokens that a sequence has gained up to a step, in whole tokens."""
        return lrint(floor(step * self.growth))

    def decode_steps(self, tokens: int) -> int:
        """Return the steps that produce this many tokens; see EngineTerms."""
        return tokens if self.growth == 1.0 else lrint(ceil(tokens / self.growth - 1e-9))

    def blocks_at(self, counter: int) -> int:
        """Return the blocks that decoding sequences hold at a step; see KvBlocks."""
        block = self.block_tokens
        part = counter % block
        below = 0
        for phase in range(part):
            below += self.phases[phase]
        pads = self.phase_sum - self.sequences * part + block * below
        return (self.tokens + self.sequences * counter + pads) // block

    def within(self, capacity: int, most: int) -> int:
        """Return for how many more steps, up to `most`, the blocks stay within a capacity."""
        reach = self.counter + self.grown(most) + 1
        block = self.block_tokens
        if self.tokens + self.sequences * (reach + block) <= capacity * block:
            return most
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_at(self.grown(self.step + middle)) <= capacity:
                low = middle
            else:
                high = middle - 1
        return low

    def join(self, row: int) -> None:
        """Add a request to the decoding batch."""
        base = self.prompt_now[row] - self.shared[row] - self.counter
        self.base[row] = base
        self.end_step[row] = self.step + self.decode_steps(self.remaining[row])
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
        """Remove a request from the decoding batch."""
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

    def preempt(self) -> None:
        """Preempt the request admitted last: send it back to the queue, to be recomputed with its generated tokens."""
        row = self.partial
        if row >= 0:
            self.partial = -1
            self.held -= self.blocks[row]
            self.done[row] = 0
        else:
            row = self.last
            if self.groups:
                self.group_sequences[self.groups - 1] -= 1
                self.groups -= self.group_sequences[self.groups - 1] == 0
            self.leave(row)
            joined = self.end_step[row] - self.decode_steps(self.remaining[row])
            produced = min(self.grown(self.step - joined), self.remaining[row] - 1)
            self.prompt_now[row] += 1 + produced
            self.remaining[row] -= produced
            self.last_token[row] = self.now_s
            self.serial[row] = -1
            self.drop_stale()
        self.committed -= self.commit[row]
        self.preemptions += 1
        self.class_preempted[self.class_index[row]] += 1
        self.class_seen[self.class_index[row]] = 1
        self.queue_push(row)
