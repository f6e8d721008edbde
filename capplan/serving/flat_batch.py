"""Queue, batch and blocks of the plain engine on flat arrays; flat_core.py takes its steps.

Every column is an array by request instead of an object, so that both files also compile: flat_batch.pxd and flat_core.pxd
give the types to Cython, and without a compiler this is ordinary Python. Letters follow Server, KvBlocks and WaitingLine.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    Doubles: TypeAlias = array[float]
    Integers: TypeAlias = array[int]

SHED, UNFINISHED = 1, 2


class FlatLimits(NamedTuple):
    """What the engine was started with."""

    delay_s: float
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked: bool
    block_tokens: int
    kv_blocks: int
    reserved_output_fraction: float
    stages: int
    stage_tokens: float
    stage_fraction: float
    shared_steps: bool
    """Prompts and decoding sequences share a step."""
    hold_steps: int
    hold_tokens: int
    hold_prompts: int
    gather_steps: int
    poll_steps: int


class FlatBatch:
    """The requests of one engine: those that wait, those that run, and the blocks they hold."""

    def __init__(
        self,
        limits: FlatLimits,
        columns: tuple[Doubles, Integers, Integers, Integers, Integers],
        releases: Doubles,
    ) -> None:
        """Take limits and the requests as arrays; nothing is copied."""
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
        self.partial, self.last = -1, -1
        self.group_sequences = array("q", bytes(8 * (self.max_num_seqs + 2)))
        self.group_since = array("d", bytes(8 * (self.max_num_seqs + 2)))
        self.groups = 0
        self.position = self.waiting = self.next_waiting = 0
        self.preempted_heap, self.preempted_count = array("q", bytes(8 * (self.max_num_seqs + 2))), 0
        self.end_keys, self.end_rows, self.end_count = array("q", bytes(8 * 64)), array("q", bytes(8 * 64)), 0
        self.chunks = 0
        self.now_s = 0.0
        self.next_s = float("inf")
        self.steps = self.preemptions = self.prefill_tokens = self.cached_tokens = 0
        classes = max(self.class_index, default=0) + 1
        self.class_prompt, self.class_cached = array("q", bytes(8 * classes)), array("q", bytes(8 * classes))
        self.class_preempted = array("q", bytes(8 * classes))
        self.class_seen = array("q", bytes(8 * classes))
        self.find_next()

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

    def waiting_tokens(self) -> int:
        """Return the tokens of all waiting prompts."""
        tokens = 0
        for place in range(self.preempted_count):
            tokens += self.prompt_now[self.preempted_heap[place]]
        for row in range(self.next_waiting, self.position):
            if self.status[row] != SHED:
                tokens += self.prompt_now[row]
        return tokens

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
            if self.groups:
                self.group_sequences[self.groups - 1] -= 1
                self.groups -= self.group_sequences[self.groups - 1] == 0
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
