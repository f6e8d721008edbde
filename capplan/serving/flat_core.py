"""The plain case of Server on flat arrays: continuous batching of one engine, first come first served, and routers of such engines.

The same events in the same order, with the same floating-point operations as Server, which is the readable reference and
runs everything else. `flat.eligible` says what this file may run; a randomised differential test compares the two.

Requests are columns of arrays instead of objects, so that Cython can compile this file: flat_core.pxd gives the types, and
without a compiler this is ordinary Python. Names follow Server and WaitingLine. One engine is built up in four
classes: FlatQueue (who waits), FlatBatch (who runs, and on which blocks), FlatSteps (how long a step takes), FlatEngine (the
order of events, and the results). FlatRouter sends requests whose times are known; FlatPools also those of users, who wait for answers.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple, TypeAlias

from capplan.serving.c_math import ceil, floor, isnan, log, lrint, nextafter, sqrt
from capplan.serving.engine_parts import Gauges, KvBlocks, PromptHold, grown

Doubles: TypeAlias = "array[float]"
Integers: TypeAlias = "array[int]"

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
          "base", "end_step", "serial", "before", "after", "status", "received", "rank", "admitted", "found")  # fmt: skip
"""Columns with one entry for each request."""
BINS_PER_E = 200
HISTOGRAM_ZERO = 12000
HISTOGRAM_BINS = 24000
FINISHED = 0
NEVER_S, UNKNOWN_S = float("inf"), float("nan")


class FlatLimits(NamedTuple):
    """The set-up of the engine."""

    delay_s: float
    begin_s: float
    """Time between the first requests of two users."""
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
    hold: tuple[int, int, int, int, int]
    """Limits of PromptHold."""
    classes: int
    """Number of traffic classes."""
    growth: float
    """Tokens that a sequence gains per decode step."""
    query_tokens: int
    """Tokens of a step's budget that a decoding sequence takes."""
    asynchronous: bool
    """A step is planned when the one before it begins."""
    draws_first: bool
    """A request that was prefilled elsewhere gets its first token from its first step here."""
    takes_over: bool
    """All requests were prefilled elsewhere."""
    gauged: bool
    """Batches, blocks, gaps between tokens and admitted tokens are recorded, not only the times of requests and of all steps."""
    judged_from: int
    """First request that counts, and when the last one arrives, where a run ends with the first limit that it has surely missed; see EarlyEnd."""
    judged_until_s: float
    judged_metrics: Integers
    """Latency that each limit is for: 0 for TTFT, 1 for TPOT, 2 for E2E."""
    judged_limits_s: Doubles
    judged_most: Integers
    """Requests that may exceed each limit."""


class FlatRequests(NamedTuple):
    """Requests as arrays: open-loop arrivals first, then those of closed-loop users, group after group."""

    columns: tuple[Doubles, Integers, Integers, Integers, Integers]
    """Arrival times, then think times; prompt, output and cached tokens; class."""
    arrivals: int
    turns: Integers
    """Group of each user, in the order in which they begin."""
    group_requests: Integers
    """Number of requests of each group."""
    most_asked: int
    """Requests that users of all groups send in a run."""


class FlatEvents:
    """Events in order of time; of equal times the one that was added first."""

    def __init__(self) -> None:
        """Start without events."""
        self.times = array("d", bytes(8 * 64))
        self.serials, self.values = array("q", bytes(8 * 64)), array("q", bytes(8 * 64))
        self.count = self.added = 0

    def next_s(self) -> float:
        """Return the time of the first event; infinite if there is none."""
        return self.times[0] if self.count else NEVER_S

    def push(self, at_s: float, value: int) -> None:
        """Add an event."""
        if self.count == len(self.times):
            more = bytes(8 * self.count)
            self.times = array("d", bytes(self.times) + more)
            self.serials = array("q", bytes(self.serials) + more)
            self.values = array("q", bytes(self.values) + more)
        times, place = self.times, self.count
        self.count += 1
        self.added += 1
        while place and times[(place - 1) // 2] > at_s:
            times[place] = times[(place - 1) // 2]
            self.serials[place] = self.serials[(place - 1) // 2]
            self.values[place] = self.values[(place - 1) // 2]
            place = (place - 1) // 2
        times[place] = at_s
        self.serials[place], self.values[place] = self.added, value

    def pop(self) -> int:
        """Remove the first event and return its value."""
        self.count -= 1
        times, serials, size, place = self.times, self.serials, self.count, 0
        value, at_s, serial = self.values[0], times[size], serials[size]
        while 2 * place + 1 < size:
            child = 2 * place + 1
            if child + 1 < size and (
                times[child + 1] < times[child]
                or (times[child + 1] == times[child] and serials[child + 1] < serials[child])
            ):
                child += 1
            if at_s < times[child] or (at_s == times[child] and serial < serials[child]):
                break
            times[place], serials[place] = times[child], serials[child]
            self.values[place] = self.values[child]
            place = child
        times[place], serials[place] = at_s, serial
        self.values[place] = self.values[size]
        return value


class FlatQueue:
    """The requests of one engine, and those of them that wait."""

    def __init__(self, limits: FlatLimits, requests: FlatRequests) -> None:
        """Take the limits and the requests; requests that users send, or another engine, get their rows when they arrive."""
        columns, arrivals, turns, group_requests, most_asked = requests
        users, count = len(turns), arrivals + most_asked if len(turns) else len(columns[0])
        self.count = count
        self.offered_s, self.offered_prompt, self.offered_output = columns[:3]
        self.offered_cached, self.offered_class = columns[3:]
        self.arrival, self.prompt, self.output, self.cached, self.class_index = columns
        zeros = bytes(8 * count)
        is_sent = not users and not arrivals
        if is_sent:
            self.offered_s = array("d", zeros)
        if users or is_sent:
            self.arrival = array("d", zeros)
            self.prompt, self.output = array("q", zeros), array("q", zeros)
            self.cached, self.class_index = array("q", zeros), array("q", zeros)
        self.users, self.arrivals, self.arrived = users, arrivals, 0
        self.asked = arrivals if users else count
        self.ends = array("d", [user * limits.begin_s for user in range(users)])
        self.first_end, self.ends_count = 0, users
        bounds, reached = array("q", [arrivals]), arrivals
        for rows in group_requests:
            reached += rows
            bounds.append(reached)
        self.ends_group, self.next_of_group, self.end_of_group = turns[:], bounds[:], bounds[1:]
        self.thinking, self.user_group = FlatEvents(), array("q", [-1]) * (count if users else 0)
        self.taken_row, self.taken_group = (
            array("q", bytes(8 * (most_asked if users else 0))) for _ in range(2)
        )
        self.delay_s = limits.delay_s
        self.max_num_seqs, self.budget = limits.max_num_seqs, limits.max_num_batched_tokens
        self.chunked, self.block_tokens, self.capacity = limits.chunked, limits.block_tokens, limits.kv_blocks
        self.growth = limits.growth
        self.draws_first, self.takes_over = limits.draws_first, limits.takes_over
        self.kv = KvBlocks(limits.block_tokens)
        self.remaining = array("q", zeros) if users else columns[2][:]
        self.prompt_now = array("q", zeros) if users else columns[1][:]
        self.shared, self.received, self.rank = (array("q", zeros) for _ in range(3))
        self.enqueued, self.first_token = (array("d", [UNKNOWN_S]) * count for _ in range(2))
        self.status = array("q", [UNFINISHED]) * count
        self.position = self.waiting = self.next_waiting = 0
        most_ranked = self.max_num_seqs + 2 + (count if is_sent or self.takes_over else 0)
        self.ranked_heap, self.ranked_count = array("q", bytes(8 * most_ranked)), 0
        self.over, self.last_over, self.last_over_s = 0, 0, -1.0
        self.reporting, self.reports = False, 0
        self.report_s, self.report_rows = array("d", bytes(8 * 8)), array("q", bytes(8 * 8))
        self.now_s, self.next_s = 0.0, NEVER_S
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

        Another engine may have computed its prompt at a time, else that is nan: then its KV cache is here, it decodes as
        soon as it fits, and is queued by rank, since such requests come in another order.
        """
        row = self.arrivals
        if row == len(self.offered_s):
            self.make_rows(row + 64)
        self.offered_s[row], self.arrival[row], self.first_token[row] = at_s, arrival_s, first_token_s
        self.received[row], self.rank[row] = not isnan(first_token_s), rank
        self.prompt[row] = self.prompt_now[row] = prompt
        self.output[row], self.remaining[row] = output, output
        if self.received[row] and not self.draws_first:
            self.remaining[row] -= 1
        self.cached[row], self.class_index[row] = cached, class_index
        self.status[row] = UNFINISHED
        self.arrivals += 1
        self.find_next()

    def make_rows(self, more: int) -> None:
        """Make room for more requests that are sent."""
        unknown = bytes(array("d", [UNKNOWN_S]) * more)
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
        next_s = NEVER_S
        if self.arrived < self.arrivals:
            next_s = self.offered_s[self.arrived]
        next_s = min(next_s, self.thinking.next_s())
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
        """Give the user who has been free the longest the next request of the user's group."""
        group = self.ends_group[self.first_end]
        taken, row = self.asked - self.arrivals, self.next_of_group[group]
        at_s = self.ends[self.first_end] + self.offered_s[row]
        self.taken_row[taken], self.taken_group[taken] = row, group
        self.next_of_group[group] = row + 1
        self.asked += 1
        self.first_end = (self.first_end + 1) % self.users
        self.ends_count = self.ends_count - 1 if self.asked < self.count else 0
        if row + 1 >= self.end_of_group[group]:
            self.drop_ends(group)
        self.thinking.push(at_s, taken)

    def bring(self, row: int) -> None:
        """Give the next request its row in order of arrival; of equal times the open-loop arrival is first."""
        place = self.arrived
        if self.thinking.count and (place >= self.arrivals or self.thinking.next_s() < self.offered_s[place]):
            self.arrival[row] = self.thinking.next_s()
            taken = self.thinking.pop()
            place = self.taken_row[taken]
            self.user_group[row] = self.taken_group[taken]
        else:
            self.arrived += 1
            self.arrival[row] = self.offered_s[place]
        self.prompt[row] = self.prompt_now[row] = self.offered_prompt[place]
        self.output[row] = self.remaining[row] = self.offered_output[place]
        self.cached[row] = self.offered_cached[place]
        self.class_index[row] = self.offered_class[place]

    def receive(self, until_s: float) -> None:
        """Enqueue the arrivals up to a time; shed those that cannot run even by themselves."""
        while self.next_s <= until_s:
            if self.ends_count and self.ends[self.first_end] <= self.next_s:
                self.think()
                self.find_next()
                continue
            row = self.arrive()
            if self.too_long(row):
                self.status[row] = SHED
                self.over += 1
                self.ended(row, self.enqueued[row])
                if self.reporting:
                    self.report(row, self.enqueued[row])
            elif self.received[row] or self.takes_over:
                self.queue_push(row)
                self.next_waiting = self.position
            else:
                self.waiting += 1

    def arrive(self) -> int:
        """Let the next request reach the queue, and return its row."""
        row = self.position
        self.enqueued[row] = self.next_s
        if self.users:
            self.bring(row)
        else:
            self.arrived += 1
        self.position += 1
        self.find_next()
        self.cached[row] = min(self.cached[row], self.prompt[row] - 1)
        if self.takes_over and not self.received[row] and (self.draws_first or self.output[row] > 1):
            self.received[row], self.cached[row] = 1, 0
            if not self.draws_first:
                self.remaining[row] -= 1
        self.shared[row] = self.cached[row] // self.block_tokens * self.block_tokens
        return row

    def report(self, row: int, at_s: float) -> None:
        """Note the end of a request for FlatPools, which sent it."""
        if self.reports == len(self.report_rows):
            self.report_s = array("d", bytes(self.report_s) + bytes(8 * self.reports))
            self.report_rows = array("q", bytes(self.report_rows) + bytes(8 * self.reports))
        self.report_s[self.reports], self.report_rows[self.reports] = at_s, row
        self.reports += 1

    def too_long(self, row: int) -> bool:
        """Return whether a request cannot run even by itself."""
        tokens = self.prompt[row] - self.shared[row] + self.output[row] - 1
        if self.received[row] and self.draws_first:
            tokens += 1
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


class FlatBatch(FlatQueue):
    """The running requests of one engine, and the KV blocks they hold."""

    def __init__(self, limits: FlatLimits, requests: FlatRequests) -> None:
        """Take the limits and the requests; see FlatQueue."""
        super().__init__(limits, requests)
        count = self.count
        self.reserved_output_fraction = limits.reserved_output_fraction
        self.query_tokens, self.counter = limits.query_tokens, 0
        zeros = bytes(8 * count)
        self.done, self.blocks, self.commit = (array("q", zeros) for _ in range(3))
        self.base, self.end_step, self.serial = (array("q", zeros) for _ in range(3))
        self.before, self.after = (array("q", zeros) for _ in range(2))
        self.admitted, self.found = (array("q", zeros if limits.gauged else b"") for _ in range(2))
        unknown = array("d", [UNKNOWN_S]) * count
        self.scheduled, self.last_token, self.queue_s = unknown[:], unknown[:], unknown[:]
        self.ttft_s, self.e2e_s = unknown[:], unknown
        self.shared_sum = self.held = self.committed = self.step = self.serials = 0
        self.partial, self.last = -1, -1
        self.group_sequences = array("q", bytes(8 * (self.max_num_seqs + 2)))
        self.group_since = array("d", bytes(8 * (self.max_num_seqs + 2)))
        self.first_rows, self.firsts = array("q", bytes(8 * (self.max_num_seqs + 2))), 0
        self.groups = 0
        self.end_keys, self.end_rows, self.end_count = array("q", bytes(8 * 64)), array("q", bytes(8 * 64)), 0
        self.ended_rows = array("q", bytes(8 * (self.max_num_seqs + 2)))
        self.ended_sequences = self.ended_blocks = self.ended_commit = 0
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

    def decode_steps(self, tokens: int) -> int:
        """Return the steps that produce this many tokens; see EngineTerms."""
        return tokens if self.growth == 1.0 else lrint(ceil(tokens / self.growth - 1e-9))

    def join(self, row: int) -> None:
        """Add a request to the decoding batch."""
        base = self.prompt_now[row] - self.shared[row] - self.counter
        self.base[row] = base
        self.end_step[row] = self.step + self.decode_steps(self.remaining[row])
        self.kv.join(base)
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
        self.kv.leave(self.base[row])
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
        if row < 0 and self.ended_sequences and self.lost_ended():
            return
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
            produced = min(grown(self.growth, self.step - joined), self.remaining[row] - 1)
            self.prompt_now[row] += 1 + produced
            self.remaining[row] -= produced
            self.last_token[row] = self.now_s
            self.serial[row] = -1
            self.drop_stale()
        self.committed -= self.commit[row]
        self.count_preempted(row)
        self.queue_push(row)

    def count_preempted(self, row: int) -> None:
        """Count a preemption."""
        self.preemptions += 1
        self.class_preempted[self.class_index[row]] += 1
        self.class_seen[self.class_index[row]] = 1

    def lost_ended(self) -> bool:
        """Take the blocks of the request that has ended and was admitted last, if that was after all that decode; return whether it was."""
        lost = -1
        for place in range(self.ended_sequences):
            row = self.ended_rows[place]
            if self.serial[row] > self.serial[self.last] and (
                lost < 0 or self.serial[row] > self.serial[lost]
            ):
                lost = row
        if lost < 0:
            return False
        self.held -= self.blocks[lost]
        self.ended_blocks -= self.blocks[lost]
        self.blocks[lost], self.serial[lost] = 0, -1
        self.count_preempted(lost)
        return True


class FlatSteps(FlatBatch):
    """The requests of one engine and the times of its steps."""

    def __init__(self, limits: FlatLimits, tables: list[Doubles], requests: FlatRequests) -> None:
        """Take limits, step tables and requests; see FlatQueue."""
        super().__init__(limits, requests)
        self.context_knots, self.decode_base, self.decode_values, self.decode_slopes = tables[:4]
        self.mixed, self.head, self.launch, self.new_knots, self.past_knots, self.prefill = tables[4:]
        self.knots, self.last_knot = len(self.context_knots), 0
        self.stages, self.stage_tokens = limits.stages, limits.stage_tokens
        self.stage_fraction, self.filled = limits.stage_fraction, 0.0
        self.chunk_rows = array("q", bytes(8 * (self.max_num_seqs + 2)))
        self.chunk_tokens = array("q", bytes(8 * (self.max_num_seqs + 2)))

    def step_s(self, decoding: int, context: float) -> float:
        """Return the time of the planned step; see StepClock.mixed_step_s."""
        tokens, seconds = decoding * self.query_tokens, 0.0
        for place in range(self.chunks):
            tokens += self.chunk_tokens[place]
            seconds += self.prefill_s(self.chunk_tokens[place], self.done[self.chunk_rows[place]])
        if decoding:
            seconds += self.attention_s(decoding, context)
        return max(seconds + self.mixed[tokens] + self.head[decoding + self.chunks], self.launch[tokens])

    def turn_s(self, decoding: int, context: float) -> float:
        """Return the same for a pipeline, and note how many micro-batches hold prompts; see StepClock.turn_s."""
        stages, beside, before = self.stages, -(-decoding // self.stages), self.filled
        tokens, longest, decode_s, attention_s, chunks_s = 0, 0, 0.0, 0.0, 0.0
        for place in range(self.chunks):
            tokens += self.chunk_tokens[place]
            longest = max(longest, self.chunk_tokens[place])
            chunks_s += self.prefill_s(self.chunk_tokens[place], self.done[self.chunk_rows[place]])
        if decoding:
            attention_s = self.attention_s(decoding, context)
            decode_s = self.decode_s(decoding, context)
        room = max(self.stage_tokens - beside, 1.0)
        if longest > room:
            longest = lrint(floor(room))
        largest = max(-(-tokens // stages), longest)
        filled = self.filled = tokens / largest
        seconds = chunks_s / filled + attention_s
        seconds = seconds + self.mixed[beside + largest] + self.head[decoding + self.chunks]
        seconds = max(seconds, self.launch[beside + largest])
        part = self.stage_fraction
        ratio = 1.0 + (filled - 1.0) * part - min((max(before, 1.0) - 1.0) * part, 1.0 - part)
        return max(seconds * ratio, decode_s)

    def run(self, sequences: int, context: float, steps: int, limit_s: float) -> float:
        """Run decode steps, all of them or the fewest that reach the time limit; return their time; see DecodeRow."""
        offset = sequences * self.knots
        last = self.knots - 1
        base = self.decode_base[sequences]
        i = self.knot_below(context)
        done, total = 0, 0.0
        while True:
            slope = self.decode_slopes[offset + i]
            rise = slope * self.growth
            first = base + self.decode_values[offset + i] + slope * (context - self.context_knots[i])
            count = steps - done
            if i < last:
                count = min(count, lrint(floor((self.context_knots[i + 1] - context) / self.growth)) + 1)
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
            context += count * self.growth
            while i < last and context >= self.context_knots[i + 1]:
                i += 1

    def knot_below(self, context: float) -> int:
        """Return the index of the last knot at or below a context."""
        low, high = self.last_knot, self.knots
        if context < self.context_knots[low]:
            low, high = 0, low
        elif low + 1 == high or context < self.context_knots[low + 1]:
            return low
        while low < high:
            middle = (low + high) // 2
            if context < self.context_knots[middle]:
                high = middle
            else:
                low = middle + 1
        self.last_knot = low - 1
        return low - 1

    def attention_s(self, sequences: int, context: float) -> float:
        """Return the time of decode attention of one step."""
        return self.decode_s(sequences, context) - self.decode_base[sequences]

    def decode_s(self, sequences: int, context: float) -> float:
        """Return the time of one decode step."""
        offset = sequences * self.knots
        i = self.knot_below(context)
        return (
            self.decode_base[sequences]
            + self.decode_values[offset + i]
            + self.decode_slopes[offset + i] * (context - self.context_knots[i])
        )

    def prefill_s(self, new_tokens: float, past_tokens: float) -> float:
        """Return the attention time of one chunk; see StepClock.prefill_attention_s."""
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


def place_below(knots: Doubles, value: float) -> int:
    """Return the index of the lower of the two knots around a value; 0 if there is only one knot."""
    if len(knots) < 2 or value < knots[1]:
        return 0
    low, high = 2, len(knots)
    while low < high:
        middle = (low + high) // 2
        if value < knots[middle]:
            high = middle
        else:
            low = middle + 1
    return low - 1 if low < len(knots) else len(knots) - 2


def steps_to_reach(first_s: float, rise_s: float, limit_s: float, most: int) -> int:
    """Return the fewest steps whose total time reaches a limit; see step_table.steps_to_reach."""
    half = rise_s * 0.5
    linear = first_s - half
    root = linear * linear + 4.0 * half * limit_s
    guess = 2.0 * limit_s / (linear + sqrt(root)) if root > 0.0 else float(most)
    steps = max(lrint(min(floor(guess), float(most))), 1)
    while steps < most and steps * (linear + half * steps) < limit_s:
        steps += 1
    while steps > 1 and (steps - 1) * (linear + half * (steps - 1)) >= limit_s:
        steps -= 1
    return steps


class FlatEngine(FlatSteps):
    """One engine with its queue and its results, all in arrays; `advance` runs it."""

    def __init__(self, limits: FlatLimits, tables: list[Doubles], requests: FlatRequests) -> None:
        """Take limits, step tables and requests; see FlatQueue."""
        super().__init__(limits, tables, requests)
        self.shared_steps, self.hold = limits.shared_steps, PromptHold(*limits.hold)
        self.asynchronous, self.planned_s = limits.asynchronous, 0.0
        self.gauged, self.gauges = limits.gauged, Gauges(limits.kv_blocks, limits.gauged)
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
            if not preempted and (self.waiting or self.partial >= 0 or self.hold.hold_steps):
                self.plan()
            freed = self.ended_sequences > 0
            if self.asynchronous and self.waits_for_output():
                continue
            if self.chunks:
                self.work_on()
            elif self.kv.sequences:
                self.decode(until_s, preempted or (freed and self.waiting > 0))
            elif preempted:
                continue
            elif self.next_s < until_s:
                self.now_s = max(self.next_s, self.now_s)
                self.filled = 0.0
            else:
                return
        self.receive(self.seen_s())

    def receive_arrived(self) -> None:
        """Receive what arrived while the last step ran: it counts as unfinished."""
        self.receive(self.now_s)

    def seen_s(self) -> float:
        """Return up to when requests must have arrived for the step that comes next."""
        return self.planned_s if self.asynchronous else self.now_s

    def waits_for_output(self) -> bool:
        """Note the plan of a step; return whether there was nothing to plan before the output of the running step."""
        idle = not (self.chunks or self.kv.sequences)
        waited = idle and (self.planned_s < self.now_s or self.ended_sequences > 0)
        self.planned_s = self.now_s
        self.held -= self.ended_blocks
        self.committed -= self.ended_commit
        self.ended_sequences = self.ended_blocks = self.ended_commit = 0
        return waited

    def make_room(self) -> bool:
        """Preempt until every decoding sequence has room for its next token, and the next piece of a prompt for its blocks."""
        preempted = False
        block = self.block_tokens
        while self.kv.sequences:
            after = grown(self.growth, self.step + 1)
            room = self.capacity - self.held
            if self.kv.tokens + self.kv.sequences * (after + block) <= room * block:
                break
            if self.kv.blocks(after) <= room:
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
        budget = max(self.budget - self.kv.sequences * self.query_tokens, 0)
        tokens = min(self.prompt_now[row], self.done[row] + budget) - self.shared[row]
        more = -(-max(tokens, 0) // self.block_tokens) - self.blocks[row]
        if more <= 0:
            return True
        if self.kv.blocks(grown(self.growth, self.step + 1)) + self.held + more > self.capacity:
            return False
        self.blocks[row] += more
        self.held += more
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

    def plan(self) -> None:
        """Admit what fits; choose the prompts of the next step, each with the number of tokens to prefill."""
        row = self.partial
        if not self.waiting:
            self.hold.end()
            if row < 0:
                return
        if self.hold.applies and row < 0 and self.waits():
            return
        running = self.kv.sequences + self.ended_sequences
        budget = self.budget
        if self.shared_steps:
            budget -= self.kv.sequences * self.query_tokens
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
                used = self.kv.blocks(grown(self.growth, self.step + 1)) + self.held
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
        """Return whether waiting prompts stay out of this step."""
        sequences = self.kv.sequences
        if not sequences:
            self.hold.look(self.step)
            self.hold.end()
            return False
        if sequences >= self.max_num_seqs or self.received[self.queue_head()]:
            return False
        tokens = 0
        if self.hold.hold_tokens:
            tokens = sequences * self.query_tokens + self.waiting_tokens()
        return self.hold.keeps(self.step, self.waiting, tokens)

    def take_over(self, row: int) -> bool:
        """Let a request that was prefilled elsewhere decode, if its blocks and its next token fit; return whether they do."""
        used = self.kv.blocks(grown(self.growth, self.step + 1)) + self.held
        blocks = -(-(self.prompt_now[row] + lrint(ceil(self.growth))) // self.block_tokens)
        commit = self.reserved_blocks(row)
        if used + blocks > self.capacity or self.committed + commit > self.capacity:
            return False
        self.queue_pop()
        self.received[row] = 0
        self.queue_s[row] = self.now_s - self.enqueued[row]
        self.commit[row] = commit
        self.committed += commit
        if not self.groups:
            self.group(self.kv.sequences, self.now_s)
        if self.draws_first:
            self.group(1, UNKNOWN_S)
            self.first_rows[self.firsts] = row
            self.firsts += 1
        else:
            self.group(1, self.now_s)
            self.stream(row)
        self.join(row)
        return True

    def stream(self, row: int) -> None:
        """Stream the first token of a request that was prefilled elsewhere."""
        self.first_token[row] = self.now_s
        self.ttft_s[row] = self.now_s - self.arrival[row]
        if self.judged:
            self.judge(row, 0, self.ttft_s[row])

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
        if self.gauged:
            self.admitted[row] += self.prompt_now[row]
            self.found[row] += self.cached[row]
        if isnan(self.scheduled[row]):
            self.scheduled[row] = self.now_s

    def work_on(self) -> None:
        """Run one step with prompts in it."""
        start, chunks = self.now_s, self.chunks
        decoding = self.kv.sequences if self.shared_steps else 0
        held = self.kv.blocks(self.counter) + self.held
        context = 0.0
        if decoding:
            context = (self.kv.tokens + self.shared_sum) / decoding + self.step * self.growth
        seconds = self.step_s(decoding, context) if self.stages == 1 else self.turn_s(decoding, context)
        self.gauges.add(start, seconds, self.kv.sequences + chunks, held)
        self.now_s = start + seconds
        self.steps += 1
        if decoding:
            if self.groups:
                self.end_groups()
            else:
                self.gap(seconds, decoding)
            self.step += 1
            self.counter = grown(self.growth, self.step)
            self.complete()
        elif not self.groups:
            self.group(self.kv.sequences, start)
        self.partial = -1
        self.hold.look(self.step)
        joined = self.kv.sequences
        for place in range(chunks):
            row = self.chunk_rows[place]
            self.done[row] += self.chunk_tokens[place]
            self.prefill_tokens += self.chunk_tokens[place]
            if self.done[row] < self.prompt_now[row]:
                self.partial = row
            else:
                self.prompt_ends(row)
        if self.groups:
            self.group(self.kv.sequences - joined, self.now_s)

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
        if isnan(self.first_token[row]):
            self.first_token[row] = self.now_s
            self.queue_s[row] = self.scheduled[row] - self.enqueued[row]
            self.ttft_s[row] = self.now_s - self.arrival[row]
            if self.judged:
                self.judge(row, 0, self.ttft_s[row])
        else:
            self.gap(self.now_s - self.last_token[row], 1.0)
        if self.remaining[row]:
            self.join(row)
        else:
            self.serials += 1
            self.serial[row] = self.serials
            self.finish(row)

    def decode(self, until_s: float, one: bool) -> None:
        """Run decode steps up to the next event, or one."""
        start, sequences = self.now_s, self.kv.sequences
        self.filled = 0.0
        steps = (self.end_keys[0] >> 32) - self.step
        if one:
            steps = 1
        elif steps > 1:
            steps = max(
                self.kv.within(self.counter, self.capacity - self.held, self.growth, self.step, steps), 1
            )
        if self.waiting and self.hold.applies:
            steps = min(steps, self.hold.steps_until_look(self.step))
        limit = until_s
        if sequences + (self.partial >= 0) < self.max_num_seqs and (not self.waiting or self.hold.hold_steps):
            limit = min(limit, self.next_s)
        before = self.kv.blocks(self.counter) + self.held
        context = (self.kv.tokens + self.shared_sum) / sequences + self.step * self.growth
        first = self.step
        if self.groups:
            steps = 1
        seconds = self.run(sequences, context, steps, limit - start)
        awaited = self.asynchronous and limit == self.next_s and self.step - first < steps
        if awaited and start < limit <= start + seconds < until_s:
            seconds += self.decode_s(sequences, context + (self.step - first) * self.growth)
            self.step += 1
        steps = self.step - first
        self.counter = grown(self.growth, self.step)
        self.now_s = start + seconds
        if self.asynchronous and steps > 1:
            self.planned_s = self.now_s - self.decode_s(sequences, context + (steps - 1) * self.growth)
        after = self.kv.blocks(self.counter) + self.held
        self.gauges.add(start, seconds, sequences, 0.5 * (before + after))
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
            self.blocks[row] = -(-(self.base[row] + self.counter) // self.block_tokens)
            self.finish(row)
            if self.preemptions:
                self.drop_stale()

    def finish(self, row: int) -> None:
        """Close a request that got all its tokens."""
        if self.asynchronous:
            self.held += self.blocks[row]
            self.ended_rows[self.ended_sequences] = row
            self.ended_sequences += 1
            self.ended_blocks += self.blocks[row]
            self.ended_commit += self.commit[row]
        else:
            self.committed -= self.commit[row]
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


class FlatRouter:
    """Identical engines behind a router that sends each request to the least loaded one; one engine gets all requests."""

    def __init__(self, cores: list[FlatEngine]) -> None:
        """Take engines without requests."""
        self.cores = cores

    def serve(
        self,
        order: Integers,
        at_s: Doubles,
        arrival_s: Doubles,
        columns: tuple[Integers, Integers, Integers, Integers],
        first_token_s: Doubles,
    ) -> None:
        """Send requests at times that ascend in this order, and run all of them; each engine keeps which ones it got as their rank.

        The columns are prompt, output and cached tokens, and class; see FlatQueue.send.
        """
        prompt, output, cached, class_index = columns
        for place in range(len(order)):
            row = order[place]
            core = self.least_loaded(at_s[row])
            run(core, at_s[row])
            core.send(
                at_s[row],
                arrival_s[row],
                prompt[row],
                output[row],
                cached[row],
                class_index[row],
                first_token_s[row],
                row,
            )
        for core in self.cores:
            run(core, NEVER_S)

    def least_loaded(self, at_s: float) -> FlatEngine:
        """Return the first of the engines with the fewest requests; see Router."""
        best, least = self.cores[0], 0
        for place in range(len(self.cores) if len(self.cores) > 1 else 0):
            core = self.cores[place]
            run(core, at_s)
            load = core.unfinished(at_s)
            if not place or load < least:
                best, least = core, load
        return best


class FlatStarts:
    """When each engine starts its next step, as a tree of which every node has the earlier time of the two below it."""

    def __init__(self, engines: int) -> None:
        """Start without steps."""
        self.leaves = 1
        while self.leaves < engines:
            self.leaves *= 2
        self.times = array("d", [NEVER_S]) * (2 * self.leaves)

    def first(self) -> int:
        """Return the engine that starts first; of equal times the first engine."""
        place = 1
        while place < self.leaves:
            place = 2 * place + (self.times[2 * place + 1] < self.times[2 * place])
        return place - self.leaves

    def set(self, engine: int, at_s: float) -> None:
        """Set when an engine starts its next step; infinite if it has none."""
        times, place = self.times, self.leaves + engine
        times[place] = at_s
        while place > 1:
            place //= 2
            times[place] = min(times[2 * place], times[2 * place + 1])


class FlatPools(FlatQueue):
    """Engines that users share: the next request of a user waits for the answer before, so all engines advance together.

    The same events in the same order as Dispatcher with a HandOver: engines that prefill, engines that decode, and a link for each
    engine that prefills. Without any that decode, the first ones do both. Its queue is that of the router: requests wait there while
    users think, its limits are those of the engines that decode, and it keeps the row of every request.
    """

    def __init__(
        self,
        limits: FlatLimits,
        requests: FlatRequests,
        cores: list[FlatEngine],
        prefills: int,
        by_load: tuple[bool, bool],
        link: tuple[float, float, float],
    ) -> None:
        """Take engines without requests, the first of which prefill, and of the link [B/token], [B/s], [s]."""
        super().__init__(limits, requests)
        self.cores, self.prefills = cores, prefills
        self.loaded_first, self.loaded_later = by_load
        self.bytes_per_token, self.bytes_per_s, self.latency_s = link
        self.turn_first, self.turn_later = 0, prefills
        self.e2e_s = array("d", [UNKNOWN_S]) * self.count
        self.load, self.stalled = (array("q", bytes(8 * len(cores))) for _ in range(2))
        self.link_free_s = array("d", bytes(8 * len(cores)))
        self.starts, self.done, self.moving = FlatStarts(len(cores)), FlatEvents(), FlatEvents()
        for core in cores:
            core.reporting = True

    def serve(self, until_s: float) -> None:
        """Handle all events and start all steps before a time; see Dispatcher.run."""
        while True:
            event_s = min(self.next_s, self.moving.next_s(), self.done.next_s(), until_s)
            place = self.starts.first()
            if self.starts.times[self.starts.leaves + place] < event_s:
                self.start(place)
                continue
            if event_s >= until_s:
                break
            self.now_s = max(event_s, self.now_s)
            self.handle(event_s)
        self.settle(NEVER_S)

    def start(self, place: int) -> None:
        """Run one step of an engine; see EngineInstance.step."""
        core = self.cores[place]
        start_s = self.starts.times[self.starts.leaves + place]
        core.advance(nextafter(start_s, NEVER_S))
        self.stalled[place] = core.now_s <= start_s
        self.note(place)

    def note(self, place: int) -> None:
        """Note what an engine reports, and when it starts its next step; see EngineInstance.next_start_s."""
        core = self.cores[place]
        for entry in range(core.reports):
            self.done.push(core.report_s[entry], (place << 32) | core.report_rows[entry])
        core.reports = 0
        start_s = core.now_s
        if self.stalled[place]:
            start_s = NEVER_S
        elif not (core.waiting or core.kv.sequences or core.partial >= 0):
            start_s = max(core.next_s, core.now_s)
        self.starts.set(place, start_s)

    def handle(self, at_s: float) -> None:
        """Handle the events of one time: ends first, then one KV cache that has arrived, or else one user; see Dispatcher."""
        self.settle(at_s)
        if self.moving.next_s() <= at_s:
            self.send_later(self.moving.pop())
        elif self.next_s > at_s:
            return
        elif self.ends_count and self.ends[self.first_end] <= self.next_s:
            self.think()
            self.find_next()
        else:
            row = self.arrive()
            self.received[row] = self.prefills < len(self.cores)
            if (self.received[row] and self.output[row] == 1) or not self.too_long(row):
                self.send_first(row)
            else:
                self.close(row, at_s, SHED)

    def settle(self, until_s: float) -> None:
        """Settle the ends up to a time: a prompt that is done moves on, another request is closed."""
        while self.done.count and self.done.next_s() <= until_s:
            at_s = self.done.next_s()
            end = self.done.pop()
            place = end >> 32
            core, there = self.cores[place], end & 0xFFFFFFFF
            row = core.rank[there]
            self.load[place] -= 1
            if (
                core.status[there] == FINISHED
                and place < self.prefills < len(self.cores)
                and self.output[row] > 1
            ):
                self.first_token[row] = core.first_token[there]
                needs_s = self.prompt[row] * self.bytes_per_token / self.bytes_per_s
                self.link_free_s[place] = max(at_s, self.link_free_s[place]) + needs_s
                self.moving.push(max(self.link_free_s[place] + self.latency_s, self.now_s), row)
            else:
                self.close(row, at_s, core.status[there])

    def close(self, row: int, at_s: float, status: int) -> None:
        """End a request, and free its user."""
        self.status[row] = status
        if status == FINISHED:
            self.e2e_s[row] = at_s - self.arrival[row]
        self.ended(row, max(at_s, self.now_s))

    def send_first(self, row: int) -> None:
        """Send a request to an engine that prefills, with one token of output if another one decodes."""
        place = self.turn_first
        self.turn_first = (place + 1) % self.prefills
        if self.loaded_first:
            place = self.least_loaded(0, self.prefills)
        output = 1 if self.received[row] else self.output[row]
        self.send_to(place, row, output, self.cached[row], UNKNOWN_S)

    def send_later(self, row: int) -> None:
        """Send a request whose first token is known to an engine that decodes."""
        place = self.turn_later
        self.turn_later = place + 1 if place + 1 < len(self.cores) else self.prefills
        if self.loaded_later:
            place = self.least_loaded(self.prefills, len(self.cores))
        self.send_to(place, row, self.output[row], 0, self.first_token[row])

    def least_loaded(self, first: int, end: int) -> int:
        """Return the first of some engines with the fewest requests, all of which have run up to now."""
        best = first
        for place in range(first, end):
            if self.load[place] < self.load[best]:
                best = place
        return best

    def send_to(self, place: int, row: int, output: int, cached: int, first_token_s: float) -> None:
        """Send a request to an engine now."""
        core = self.cores[place]
        core.send(
            self.now_s,
            self.arrival[row],
            self.prompt[row],
            output,
            cached,
            self.class_index[row],
            first_token_s,
            row,
        )
        self.load[place] += 1
        self.stalled[place] = 0
        self.note(place)


def run(core: FlatEngine, until_s: float) -> None:
    """Run every step that starts before a time; see EngineInstance.advance."""
    if core.arrivals > core.over and core.now_s < until_s:
        core.advance(until_s)


def link_arrivals(
    engines: int, engine: Integers, ends_s: Doubles, needs_s: Doubles, latency_s: float
) -> Doubles:
    """Return when KV caches arrive that each engine sends one after the other, in order of their requests; infinite where the engine is -1."""
    free_s = array("d", bytes(8 * engines))
    arrives_s = array("d", [NEVER_S]) * len(engine)
    for row in range(len(engine)):
        place = engine[row]
        if place >= 0:
            free_s[place] = max(free_s[place], ends_s[row]) + needs_s[row]
            arrives_s[row] = free_s[place] + latency_s
    return arrives_s


def counts_of_greater(ranks: Integers, span: int) -> Integers:
    """Return for each rank, from 0 to below `span`, how many earlier ones are greater; see prefix_cache.earlier_greater."""
    tree, counts = array("q", bytes(8 * (span + 1))), array("q", bytes(8 * len(ranks)))
    for row in range(len(ranks)):
        place, others = ranks[row] + 1, 0
        while place:
            others += tree[place]
            place &= place - 1
        counts[row] = row - others
        place = ranks[row] + 1
        while place <= span:
            tree[place] += 1
            place += place & -place
    return counts
