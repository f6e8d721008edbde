"""The queue of the plain engine on flat arrays: requests that arrive by the clock, from users, or from another engine.

Requests are columns of arrays instead of objects, so that Cython can compile these files: flat_queue.pxd and the others give
the types, and without a compiler this is ordinary Python. Names follow Server, KvBlocks and WaitingLine.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from capplan.serving.c_math import ceil, isnan, lrint

if TYPE_CHECKING:
    Doubles: TypeAlias = array[float]
    Integers: TypeAlias = array[int]

SHED, UNFINISHED = 1, 2
TIMES = (
    "offered_s",
    "arrival",
    "enqueued",
    "scheduled",
    "first_token",
    "last_token",
    "queue_s",
    "ttft_s",
    "e2e_s",
)
COUNTS = ("prompt", "output", "cached", "class_index", "remaining", "prompt_now", "shared", "done", "blocks", "commit",
          "base", "end_step", "serial", "before", "after", "status", "received", "rank")  # fmt: skip
"""Columns with one entry for each request."""


class FlatLimits(NamedTuple):
    """The set-up of the engine."""

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
    classes: int
    """Number of traffic classes."""
    growth: float
    """Tokens that a sequence gains per decode step."""
    query_tokens: int
    """Tokens of a step's budget that a decoding sequence takes."""


class FlatRequests(NamedTuple):
    """Requests as arrays: open-loop arrivals first, then those of closed-loop users, group after group."""

    columns: tuple[Doubles, Integers, Integers, Integers, Integers]
    """Arrival times, then think times; prompt, output and cached tokens; class."""
    arrivals: int
    turns: Integers
    """Group of each user who takes a request at time zero, in order."""
    group_requests: Integers
    """Number of requests of each group."""
    most_asked: int
    """Requests that users of all groups send in a run."""


class FlatQueue:
    """The requests of one engine, and those of them that wait."""

    def __init__(self, limits: FlatLimits, requests: FlatRequests) -> None:
        """Take the limits and the requests. Without users nothing is copied; with users each request gets its row when it arrives."""
        columns, arrivals, turns, group_requests, most_asked = requests
        users, count = len(turns), arrivals + most_asked if len(turns) else len(columns[0])
        self.count = count
        self.offered_s, self.offered_prompt, self.offered_output = columns[:3]
        self.offered_cached, self.offered_class = columns[3:]
        self.arrival, self.prompt, self.output, self.cached, self.class_index = columns
        if users:
            self.arrival = array("d", bytes(8 * count))
            self.prompt, self.output = array("q", bytes(8 * count)), array("q", bytes(8 * count))
            self.cached, self.class_index = array("q", bytes(8 * count)), array("q", bytes(8 * count))
        self.users, self.arrivals, self.arrived, self.asked = users, arrivals, 0, arrivals
        self.ends, self.first_end, self.ends_count = array("d", bytes(8 * users)), 0, users
        bounds, reached = array("q", [arrivals]), arrivals
        for rows in group_requests:
            reached += rows
            bounds.append(reached)
        self.ends_group, self.next_of_group, self.end_of_group = turns[:], bounds[:], bounds[1:]
        self.thinking_s, self.thinking = array("d", bytes(8 * users)), array("q", bytes(8 * users))
        self.thinking_count, self.user_group = 0, array("q", [-1]) * (count if users else 0)
        self.taken_row, self.taken_group = (
            array("q", bytes(8 * (most_asked if users else 0))) for _ in range(2)
        )
        self.delay_s = limits.delay_s
        self.max_num_seqs, self.budget = limits.max_num_seqs, limits.max_num_batched_tokens
        self.chunked, self.block_tokens, self.capacity = limits.chunked, limits.block_tokens, limits.kv_blocks
        self.growth = limits.growth
        self.remaining = array("q", bytes(8 * count)) if users else columns[2][:]
        self.prompt_now = array("q", bytes(8 * count)) if users else columns[1][:]
        self.shared, self.received, self.rank = (array("q", bytes(8 * count)) for _ in range(3))
        self.enqueued, self.first_token = (array("d", [float("nan")]) * count for _ in range(2))
        self.status = array("q", [UNFINISHED]) * count
        self.position = self.waiting = self.next_waiting = 0
        self.ranked_heap, self.ranked_count = array("q", bytes(8 * (self.max_num_seqs + 2))), 0
        self.over, self.last_over, self.last_over_s = 0, 0, -1.0
        self.now_s, self.next_s = 0.0, float("inf")
        while self.ends_count:
            self.think()
        self.find_next()

    def send(
        self,
        at_s: float,
        arrival_s: float,
        prompt: int,
        output: int,
        cached: int,
        class_index: int,
        first_token_s: float,
        rank: int,
    ) -> None:
        """Append a request that reaches the queue at a time, no earlier than those before it.

        Another engine may have returned its first token at a time, else that is nan: then its KV cache is here, it decodes as
        soon as it fits, and is queued by rank, since such requests come in another order.
        """
        row = self.arrivals
        if row == len(self.offered_s):
            self.make_rows(row + 64)
        self.offered_s[row], self.arrival[row], self.first_token[row] = at_s, arrival_s, first_token_s
        self.received[row], self.rank[row] = not isnan(first_token_s), rank
        self.prompt[row] = self.prompt_now[row] = prompt
        self.output[row], self.remaining[row] = output, output - self.received[row]
        self.cached[row], self.class_index[row] = cached, class_index
        self.status[row] = UNFINISHED
        self.arrivals += 1
        self.find_next()

    def make_rows(self, more: int) -> None:
        """Make room for more requests that are sent."""
        unknown = bytes(array("d", [float("nan")]) * more)
        for name in TIMES:
            setattr(self, name, array("d", bytes(getattr(self, name)) + unknown))
        for name in COUNTS:
            setattr(self, name, array("q", bytes(getattr(self, name)) + bytes(8 * more)))
        self.ranked_heap = array("q", bytes(self.ranked_heap) + bytes(8 * more))

    def unfinished(self, at_s: float) -> int:
        """Return the requests here that have not ended by a time up to which all steps have begun."""
        return self.arrivals - self.over + (self.last_over if self.last_over_s > at_s else 0)

    def find_next(self) -> None:
        """Set the time at which the next request reaches the queue or a free user takes the next one."""
        next_s = float("inf")
        if self.arrived < self.arrivals:
            next_s = self.offered_s[self.arrived]
        if self.thinking_count and self.thinking_s[0] < next_s:
            next_s = self.thinking_s[0]
        next_s += self.delay_s
        if self.ends_count and self.ends[self.first_end] < next_s:
            next_s = self.ends[self.first_end]
        self.next_s = next_s

    def ended(self, row: int, at_s: float) -> None:
        """Free the user of a request that has ended, if it had one and requests of the user's group are left; see Feed."""
        if self.asked >= self.count or self.user_group[row] < 0:
            return
        group, size, first, place = self.user_group[row], self.users, self.first_end, self.ends_count
        if self.next_of_group[group] >= self.end_of_group[group]:
            return
        self.ends_count += 1
        while place and self.ends[(first + place - 1) % size] > at_s:
            self.ends[(first + place) % size] = self.ends[(first + place - 1) % size]
            self.ends_group[(first + place) % size] = self.ends_group[(first + place - 1) % size]
            place -= 1
        self.ends[(first + place) % size] = at_s
        self.ends_group[(first + place) % size] = group
        self.next_s = min(self.next_s, at_s)

    def drop_ends(self, group: int) -> None:
        """Forget the free users of a group whose requests have run out."""
        kept, size, first = 0, self.users, self.first_end
        for place in range(self.ends_count):
            if self.ends_group[(first + place) % size] != group:
                self.ends[(first + kept) % size] = self.ends[(first + place) % size]
                self.ends_group[(first + kept) % size] = self.ends_group[(first + place) % size]
                kept += 1
        self.ends_count = kept

    def think(self) -> None:
        """Give the user who has been free the longest the next request of the user's group; push it on a heap by time and order."""
        group, place = self.ends_group[self.first_end], self.thinking_count
        taken, row = self.asked - self.arrivals, self.next_of_group[group]
        at_s = self.ends[self.first_end] + self.offered_s[row]
        self.taken_row[taken], self.taken_group[taken] = row, group
        self.next_of_group[group] = row + 1
        self.asked += 1
        self.first_end = (self.first_end + 1) % self.users
        self.ends_count = self.ends_count - 1 if self.asked < self.count else 0
        if row + 1 >= self.end_of_group[group]:
            self.drop_ends(group)
        self.thinking_count += 1
        while place and self.thinking_s[(place - 1) // 2] > at_s:
            self.thinking_s[place] = self.thinking_s[(place - 1) // 2]
            self.thinking[place] = self.thinking[(place - 1) // 2]
            place = (place - 1) // 2
        self.thinking_s[place] = at_s
        self.thinking[place] = taken

    def thought(self) -> None:
        """Pop the request whose think time ends next; of equal times the one taken first."""
        self.thinking_count -= 1
        times, rows, size, place = self.thinking_s, self.thinking, self.thinking_count, 0
        at_s, row = times[size], rows[size]
        while 2 * place + 1 < size:
            child = 2 * place + 1
            if child + 1 < size and (
                times[child + 1] < times[child]
                or (times[child + 1] == times[child] and rows[child + 1] < rows[child])
            ):
                child += 1
            if at_s < times[child] or (at_s == times[child] and row < rows[child]):
                break
            times[place] = times[child]
            rows[place] = rows[child]
            place = child
        times[place] = at_s
        rows[place] = row

    def bring(self, row: int) -> None:
        """Give the next request its row in order of arrival; of equal times the open-loop arrival is first."""
        place = self.arrived
        if self.thinking_count and (place >= self.arrivals or self.thinking_s[0] < self.offered_s[place]):
            taken = self.thinking[0]
            place = self.taken_row[taken]
            self.arrival[row] = self.thinking_s[0]
            self.user_group[row] = self.taken_group[taken]
            self.thought()
        else:
            self.arrived += 1
            self.arrival[row] = self.offered_s[place]
        self.prompt[row] = self.prompt_now[row] = self.offered_prompt[place]
        self.output[row] = self.remaining[row] = self.offered_output[place]
        self.cached[row] = self.offered_cached[place]
        self.class_index[row] = self.offered_class[place]

    def receive(self) -> None:
        """Enqueue the arrivals up to now; shed those that cannot run even alone."""
        while self.next_s <= self.now_s:
            if self.ends_count and self.ends[self.first_end] <= self.next_s:
                self.think()
                self.find_next()
                continue
            row = self.position
            self.enqueued[row] = self.next_s
            if self.users:
                self.bring(row)
            else:
                self.arrived += 1
            self.position += 1
            self.find_next()
            self.cached[row] = min(self.cached[row], self.prompt[row] - 1)
            self.shared[row] = self.cached[row] // self.block_tokens * self.block_tokens
            if self.too_long(row):
                self.status[row] = SHED
                self.over += 1
                self.ended(row, self.enqueued[row])
            elif self.received[row]:
                self.queue_push(row)
                self.next_waiting = self.position
            else:
                self.waiting += 1

    def too_long(self, row: int) -> bool:
        """Return whether a request cannot run even alone."""
        tokens = self.prompt[row] - self.shared[row] + self.output[row] - 1
        if self.growth != 1.0:
            tokens += lrint(ceil(self.growth))
        if -(-tokens // self.block_tokens) > self.capacity:
            return True
        return not (self.chunked or self.received[row]) and self.prompt[row] - self.cached[row] > self.budget

    def queue_head(self) -> int:
        """Return the request at the head of the queue: preempted ones come before those that never ran."""
        if self.ranked_count:
            return self.ranked_heap[0] & 0xFFFFFFFF
        while self.status[self.next_waiting] == SHED:
            self.next_waiting += 1
        return self.next_waiting

    def queue_pop(self) -> None:
        """Remove the head of the queue."""
        self.waiting -= 1
        if not self.ranked_count:
            self.next_waiting += 1
            return
        self.ranked_count -= 1
        heap, size, place = self.ranked_heap, self.ranked_count, 0
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
        """Queue a request by rank, then by row: a preempted one, or one whose first token came from another engine."""
        self.waiting += 1
        heap, place, key = self.ranked_heap, self.ranked_count, (self.rank[row] << 32) | row
        self.ranked_count += 1
        while place and heap[(place - 1) // 2] > key:
            heap[place] = heap[(place - 1) // 2]
            place = (place - 1) // 2
        heap[place] = key

    def waiting_tokens(self) -> int:
        """Return the tokens of all waiting prompts."""
        tokens = 0
        for place in range(self.ranked_count):
            tokens += self.prompt_now[self.ranked_heap[place] & 0xFFFFFFFF]
        for row in range(self.next_waiting, self.position):
            if self.status[row] != SHED:
                tokens += self.prompt_now[row]
        return tokens
