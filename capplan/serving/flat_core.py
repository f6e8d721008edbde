"""Discrete-event simulation of serving engines on flat arrays, and of pools of such engines.

Between two events (an arrival that can be admitted, the end of a prefill step, a completion, a shortage of blocks) the
batch is constant, so a run of decode steps is one closed-form sum; nothing is done per token or per sequence. Each step
follows the real engines:

1. The decoding sequences take the blocks for their next token. If there are too few, the one admitted last is preempted:
   it frees its blocks and goes back to the queue, to be recomputed together with its generated tokens.
2. A partly prefilled prompt continues, then waiting prompts are admitted in order, as long as sequence slots, token budget
   and blocks last; the head of the queue blocks those behind it. A step with a preemption admits nothing. A prompt whose
   prefix is in an offload tier takes its slot and its blocks and loads while others run; once loaded it comes next.
3. mixed: prompts and decoding sequences share the step. prefill_first: a step with prompts holds nothing else.

Requests are columns of arrays, so that Cython can compile this file: flat_core.pxd gives the types, and without a compiler this is
ordinary Python. One engine is built up in four classes: FlatQueue (who waits), FlatBatch (who runs, and on which blocks), FlatSteps (how
long a step takes), FlatEngine (the order of events, and the results). FlatRouter sends requests whose times are known; FlatPools also
those of users, who wait for answers.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from capplan.serving.block_cache import BlockCache
from capplan.serving.c_math import ceil, floor, isnan, log, lrint, nextafter, sqrt
from capplan.serving.engine_parts import Gauges, KvBlocks, PromptHold, grown
from capplan.serving.requests import InFlight

if TYPE_CHECKING:
    from capplan.serving.requests import Counts
    from capplan.serving.terms import EngineTerms

Doubles: TypeAlias = "array[float]"
Integers: TypeAlias = "array[int]"

SHED, UNFINISHED, MOVED = 1, 2, 3
"""Status of a request besides FINISHED; MOVED: it was cancelled here."""
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
    "ready",
)
COUNTS = ("prompt", "output", "cached", "class_index", "remaining", "prompt_now", "shared", "done", "blocks", "commit",
          "base", "end_step", "serial", "before", "after", "status", "received", "rank", "hits", "admitted", "found", "admission")  # fmt: skip
"""Columns with one entry for each request."""
BINS_PER_E = 200
HISTOGRAM_ZERO = 12000
HISTOGRAM_BINS = 24000
FINISHED = 0
NEVER_S, UNKNOWN_S = float("inf"), float("nan")
LEAST_SIMILARITY = 0.1
"""Part of a prompt that a slot of llama.cpp's server must hold to be chosen for it."""


class FlatLimits(NamedTuple):
    """The set-up of an engine."""

    terms: EngineTerms
    delay_s: float
    """A request reaches the queue so long after it is sent, and the delay of a token longer for each token of its prompt."""
    token_delay_s: float
    begin_s: float
    """Time between the first requests of two users."""
    stages: int
    stage_fraction: float
    two_passes: bool
    """A step with prompts computes them and then its decoding sequences, each by themselves."""
    classes: int
    """Number of traffic classes."""
    queue_limit: int
    """A request that arrives when this many are waiting is shed."""
    deadline_s: Doubles
    """Longest wait of each class; empty: no deadlines."""
    level: Integers
    """Place of each class in the order of priorities; empty: first come, first served."""
    is_ranked: bool
    """Requests are queued by rank, since they come in another order."""
    batch_timeout_s: float
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
    luck: Doubles
    """Tokens that a request needs rounds for beyond its own, over the root of its own, in turn for each request; empty where every step yields as much."""


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
    visits: int
    """Groups of one user each, who begins at time zero; they come first."""
    block_ids: list[Counts]
    """Blocks of each prompt, and blocks that its response fills; empty without prefix cache."""
    output_ids: list[Counts]


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
        columns, arrivals, turns, group_requests, most_asked, visits, block_ids, output_ids = requests
        terms = limits.terms
        users, count = len(turns), arrivals + most_asked if len(turns) else len(columns[0])
        self.count = count
        self.offered_s, self.offered_prompt, self.offered_output = columns[:3]
        self.offered_cached, self.offered_class = columns[3:]
        self.arrival, self.prompt, self.output, self.cached, self.class_index = columns
        zeros = bytes(8 * count)
        self.is_sent = is_sent = not users and not arrivals
        if is_sent:
            self.offered_s = array("d", zeros)
        if users or is_sent:
            self.arrival = array("d", zeros)
            self.prompt, self.output = array("q", zeros), array("q", zeros)
            self.cached, self.class_index = array("q", zeros), array("q", zeros)
        self.users, self.arrivals, self.arrived = users, arrivals, 0
        self.asked = arrivals if users else count
        self.visits = visits
        self.seat_users(limits.begin_s, turns, group_requests, most_asked)
        self.delay_s, self.token_delay_s, self.reached_s = limits.delay_s, limits.token_delay_s, 0.0
        self.max_num_seqs, self.budget = terms.max_num_seqs, terms.max_num_batched_tokens
        self.chunked, self.block_tokens, self.growth = terms.chunked, terms.block_tokens, terms.growth
        self.sequence_blocks, self.in_slots = terms.sequence_blocks, terms.policy == "slots"
        self.draws_first, self.takes_over = terms.draws_first, terms.takes_over
        self.queue_limit, self.deadline_s, self.level = limits.queue_limit, limits.deadline_s, limits.level
        self.has_deadlines, self.has_priorities = len(limits.deadline_s) > 0, len(limits.level) > 0
        self.is_ranked = limits.is_ranked or self.takes_over or self.has_priorities
        self.expiring = [FlatEvents() for _ in limits.deadline_s]
        self.id_tokens, self.id_blocks = terms.id_tokens, terms.id_blocks
        self.is_caching = terms.caching is not None
        self.offered_ids, self.offered_output_ids = block_ids, output_ids
        self.ids: list[list[int]] = [[]] * count if self.is_caching else []
        self.output_ids: list[list[int]] = self.ids[:]
        self.kv = KvBlocks(terms.block_tokens)
        self.remaining = array("q", zeros) if users else columns[2][:]
        self.prompt_now = array("q", zeros) if users else columns[1][:]
        self.shared, self.received, self.rank = (array("q", zeros) for _ in range(3))
        self.enqueued, self.scheduled, self.first_token = (array("d", [UNKNOWN_S]) * count for _ in range(3))
        self.status, self.ready = (
            array("q", [UNFINISHED]) * count,
            array("d", zeros if self.is_caching else b""),
        )
        self.position = self.waiting = self.next_waiting = 0
        self.ranked = FlatEvents()
        self.over, self.last_over, self.last_over_s = 0, 0, -1.0
        self.reporting, self.announcing, self.reports = False, False, 0
        self.report_s, self.report_rows = array("d", bytes(8 * 8)), array("q", bytes(8 * 8))
        self.now_s, self.next_s = 0.0, NEVER_S
        self.find_next()

    def seat_users(self, begin_s: float, turns: Integers, group_requests: Integers, most_asked: int) -> None:
        """Let users begin one after the other, each with the next request of the user's group; visitors wait from time zero."""
        users, reached = self.users, self.arrivals
        self.ends = array("d", [max(user - self.visits, 0) * begin_s for user in range(users)])
        self.first_end, self.ends_count = 0, users
        bounds = array("q", [reached])
        for rows in group_requests:
            reached += rows
            bounds.append(reached)
        self.ends_group, self.next_of_group, self.end_of_group = turns[:], bounds[:], bounds[1:]
        self.thinking, self.user_group = FlatEvents(), array("q", [-1]) * (self.count if users else 0)
        self.taken_row, self.taken_group = (
            array("q", bytes(8 * (most_asked if users else 0))) for _ in range(2)
        )

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

    def next_flight(self) -> InFlight | None:
        """Let the next request reach the queue, and return it; None if the next event is a user who starts to think."""
        if self.ends_count and self.ends[self.first_end] <= self.next_s:
            self.think()
            self.find_next()
            return None
        row = self.arrive()
        flight = InFlight(row, self.arrival[row], self.enqueued[row], self.prompt[row], self.output[row])
        flight.key, flight.class_index = self.key(row), self.class_index[row]
        flight.cached_tokens = self.cached[row]
        if self.is_caching:
            flight.block_ids, flight.output_ids = self.ids[row], self.output_ids[row]
        return flight

    def make_rows(self, more: int) -> None:
        """Make room for more requests that are sent."""
        unknown = bytes(array("d", [UNKNOWN_S]) * more)
        for name in TIMES:
            setattr(self, name, array("d", bytes(getattr(self, name)) + unknown))
        for name in COUNTS:
            setattr(self, name, array("q", bytes(getattr(self, name)) + bytes(8 * more)))
        if self.is_caching:
            self.ids = self.ids + [[]] * more
            self.output_ids = self.output_ids + [[]] * more

    def unfinished(self, at_s: float) -> int:
        """Return the requests here that have not ended by a time up to which all steps have begun."""
        return self.arrivals - self.over + (self.last_over if self.last_over_s > at_s else 0)

    def find_next(self) -> None:
        """Set the time at which the next request reaches the queue, none before one that was sent earlier, or a free user takes the next one."""
        next_s, place = NEVER_S, -1
        while not self.users and self.arrived < self.arrivals and self.status[self.arrived] == MOVED:
            self.arrived += 1
            self.position += 1
        if self.arrived < self.arrivals:
            next_s, place = self.offered_s[self.arrived], -1 if self.is_sent else self.arrived
        if self.thinking.next_s() < next_s:
            next_s, place = self.thinking.next_s(), self.taken_row[self.thinking.values[0]]
        next_s += self.delay_s
        if place >= 0:
            next_s = max(next_s + self.token_delay_s * self.offered_prompt[place], self.reached_s)
        if self.ends_count and self.ends[self.first_end] < next_s:
            next_s = self.ends[self.first_end]
        self.next_s = next_s

    def ended(self, row: int, at_s: float) -> None:
        """Free the user of a request that has ended, if it had one and requests of the user's group are left."""
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
        if row + 1 >= self.end_of_group[group] and group >= self.visits:
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
        if self.is_caching:
            self.name(row, place)

    def name(self, row: int, place: int) -> None:
        """Give a request its block ids."""
        self.ids[row], self.output_ids[row] = (
            self.offered_ids[place].tolist(),
            self.offered_output_ids[place].tolist(),
        )

    def receive(self, until_s: float) -> None:
        """Enqueue the arrivals up to a time; shed those that cannot run even by themselves, and those whose deadline has passed."""
        while True:
            expiry_s = self.next_expiry_s() if self.has_deadlines else NEVER_S
            if expiry_s <= until_s and expiry_s <= self.next_s:
                self.expire(expiry_s)
            elif self.next_s > until_s:
                break
            elif self.ends_count and self.ends[self.first_end] <= self.next_s:
                self.think()
                self.find_next()
            else:
                self.enqueue(self.arrive())

    def enqueue(self, row: int) -> None:
        """Let a request that has arrived wait, or shed it."""
        if self.too_long(row) or self.waiting >= self.queue_limit:
            self.shed(row, self.enqueued[row])
            return
        self.waiting += 1
        if self.received[row] or self.is_ranked:
            self.ranked.push(float(self.key(row)), row)
            self.next_waiting = self.position
        if self.has_deadlines and isnan(self.scheduled[row]):
            self.expiring_of(self.class_index[row]).push(self.enqueued[row], row)

    def shed(self, row: int, at_s: float) -> None:
        """End a request that gets no token."""
        self.status[row] = SHED
        self.over += 1
        self.ended(row, at_s)
        if self.reporting:
            self.report(row, at_s)

    def expiring_of(self, of_class: int) -> FlatEvents:
        """Return the requests of a class that a deadline waits for, in the order in which they reached the queue."""
        return self.expiring[of_class]

    def next_expiry_s(self) -> float:
        """Return when the next deadline expires; forget those of requests that have started."""
        earliest = NEVER_S
        for of_class in range(len(self.deadline_s)):
            line = self.expiring_of(of_class)
            while line.count and not self.awaits(line.values[0]):
                line.pop()
            if line.count:
                earliest = min(earliest, line.times[0] + self.deadline_s[of_class])
        return earliest

    def awaits(self, row: int) -> bool:
        """Return whether a request waits for its first step."""
        return isnan(self.scheduled[row]) and self.status[row] == UNFINISHED

    def expire(self, at_s: float) -> None:
        """Shed the request whose deadline expires now."""
        for of_class in range(len(self.deadline_s)):
            line = self.expiring_of(of_class)
            if line.count and line.times[0] + self.deadline_s[of_class] <= at_s:
                self.waiting -= 1
                self.shed(line.pop(), at_s)
                return

    def arrive(self) -> int:
        """Let the next request reach the queue, and return its row."""
        row = self.position
        if isnan(self.enqueued[row]):
            self.enqueued[row] = self.next_s
        if self.users:
            self.bring(row)
        else:
            if self.is_caching and not self.is_sent:
                self.name(row, row)
            self.arrived += 1
        self.position += 1
        self.reached_s = self.enqueued[row]
        self.find_next()
        self.cached[row] = min(self.cached[row], self.prompt[row] - 1)
        if self.takes_over and not self.received[row] and (self.draws_first or self.output[row] > 1):
            self.received[row], self.cached[row] = 1, 0
            if not self.draws_first:
                self.remaining[row] -= 1
        self.shared[row] = 0
        if self.is_caching:
            whole = 0 if self.received[row] else self.prompt_now[row] // self.id_tokens
            self.ids[row] = self.ids[row][:whole]
            if not self.in_slots:
                self.shared[row] = len(self.ids[row]) * self.id_tokens
        if not (self.shared[row] or self.in_slots):
            self.shared[row] = self.cached[row] // self.block_tokens * self.block_tokens
        return row

    def report(self, row: int, at_s: float) -> None:
        """Note the end of a request for whoever sent it, or of the one before -1 - row its first token."""
        if self.reports == len(self.report_rows):
            self.report_s = array("d", bytes(self.report_s) + bytes(8 * self.reports))
            self.report_rows = array("q", bytes(self.report_rows) + bytes(8 * self.reports))
        self.report_s[self.reports], self.report_rows[self.reports] = at_s, row
        self.reports += 1

    def too_long(self, row: int) -> bool:
        """Return whether a request cannot run even by itself."""
        tokens = self.prompt_now[row] + self.remaining[row] - 1 + self.received[row]
        if not (self.is_caching and self.ids[row]):
            tokens -= self.shared[row]
        if self.growth != 1.0:
            tokens += lrint(ceil(self.growth))
        if -(-tokens // self.block_tokens) > self.sequence_blocks:
            return True
        if self.chunked or self.received[row] or not isnan(self.first_token[row]):
            return False
        return self.prompt_now[row] - self.cached[row] > self.budget

    def key(self, row: int) -> int:
        """Return the place of a request in the queue: by priority, then by arrival."""
        rank = self.rank[row] if self.is_sent else row
        return rank + (self.level[self.class_index[row]] << 32) if self.has_priorities else rank

    def queue_head(self) -> int:
        """Return the request at the head of the queue: preempted ones come before those that never ran."""
        while self.ranked.count:
            if self.status[self.ranked.values[0]] == UNFINISHED:
                return self.ranked.values[0]
            self.ranked.pop()
        while self.status[self.next_waiting] != UNFINISHED:
            self.next_waiting += 1
        return self.next_waiting

    def queue_pop(self) -> None:
        """Remove the head of the queue."""
        self.waiting -= 1
        if self.ranked.count:
            self.ranked.pop()
        else:
            self.next_waiting += 1

    def queue_push(self, row: int) -> None:
        """Queue a request that was preempted."""
        self.waiting += 1
        self.ranked.push(float(self.key(row)), row)

    def waiting_tokens(self) -> int:
        """Return the tokens of all waiting prompts."""
        tokens = 0
        for place in range(self.ranked.count):
            if self.status[self.ranked.values[place]] == UNFINISHED:
                tokens += self.prompt_now[self.ranked.values[place]]
        for row in range(self.next_waiting, self.position):
            if self.status[row] == UNFINISHED:
                tokens += self.prompt_now[row]
        return tokens


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
        if self.growth == 1.0:
            return tokens
        extra = 0.0
        if len(self.luck):
            extra = self.luck[(self.rank[row] if self.is_sent else row) % len(self.luck)] * sqrt(tokens)
        steps = lrint(ceil((tokens + extra) / self.growth - 1e-9))
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
            produced = min(grown(self.growth, self.step - joined), self.remaining[row] - 1)
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
        self.received[row], self.remaining[row] = flight.received, flight.remaining_tokens
        self.enqueued[row], self.scheduled[row] = flight.enqueued_s, flight.scheduled_s
        self.first_token[row], self.last_token[row] = flight.first_token_s, flight.last_token_s
        if self.is_caching:
            self.ids[row], self.output_ids[row] = flight.block_ids, flight.output_ids
        return row

    def write(self, row: int, flight: InFlight) -> None:
        """Write into a request that was taken in what was done for it here."""
        flight.prompt_tokens, flight.remaining_tokens = self.prompt_now[row], self.remaining[row]
        flight.received, flight.cached_tokens = bool(self.received[row]), self.cached[row]
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
        return self.kv.blocks(grown(self.growth, self.step + 1)) + self.held

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


class FlatSteps(FlatBatch):
    """The requests of one engine and the times of its steps."""

    def __init__(self, limits: FlatLimits, tables: list[Doubles], requests: FlatRequests) -> None:
        """Take limits, step tables and requests; see FlatQueue."""
        super().__init__(limits, requests)
        self.context_knots, self.decode_base, self.decode_values, self.decode_slopes = tables[:4]
        self.mixed, self.head, self.launch, self.new_knots, self.past_knots, self.prefill = tables[4:]
        self.knots, self.last_knot = len(self.context_knots), 0
        self.stages, self.stage_tokens = limits.stages, limits.terms.stage_tokens(limits.stages)
        self.stage_fraction, self.filled, self.two_passes = limits.stage_fraction, 0.0, limits.two_passes
        self.chunk_rows = array("q", bytes(8 * (self.max_num_seqs + 2)))
        self.chunk_tokens = array("q", bytes(8 * (self.max_num_seqs + 2)))

    def step_s(self, decoding: int, context: float) -> float:
        """Return the time of the planned step; see StepClock.mixed_step_s."""
        if decoding and self.two_passes:
            return self.step_s(0, 0.0) + self.decode_s(decoding, context)
        tokens, seconds = decoding * self.query_tokens, 0.0
        for place in range(self.chunks):
            tokens += self.chunk_tokens[place]
            seconds += self.prefill_s(self.chunk_tokens[place], self.done[self.chunk_rows[place]])
        if decoding:
            seconds += self.attention_s(decoding, context)
        return max(seconds + self.mixed[tokens] + self.head[decoding + self.chunks], self.launch[tokens])

    def turn_s(self, decoding: int, context: float) -> float:
        """Return the same for a pipeline, and note how many micro-batches hold prompts: see decode_turn_s and turn_ratio.

        A step with prompts never takes less than one without.
        """
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
        """Run decode steps, all of them or the fewest that reach the time limit, at least one; return their time."""
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


def without(row: int, rows: Integers, count: int) -> int:
    """Remove a request from the first `count` rows; return how many are left."""
    kept = 0
    for place in range(count):
        if rows[place] != row:
            rows[kept] = rows[place]
            kept += 1
    return kept


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
    """Return the fewest steps k whose total time reaches a limit L, k (a + d (k - 1) / 2) >= L.

    The first step takes a, each further one d more; `most` steps are enough, and at least one runs.

    References
    ----------
    Knuth 1997, "The Art of Computer Programming" vol. 1, section 1.2.3, equation 15, solved for k.
    """
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
        self.shared_steps, self.hold = limits.terms.mixed, PromptHold(*limits.terms.hold)
        self.planned_s = 0.0
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
        self.receive(self.seen_s())

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
            after = grown(self.growth, self.step + 1)
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
            more = self.blocks_at(row, grown(self.growth, self.step + 1)) - self.blocks_at(row, self.counter)
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
            if self.received[row]:
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
        if sequences >= self.max_num_seqs or self.received[self.queue_head()]:
            return False
        tokens = 0
        if self.hold.hold_tokens:
            tokens = sequences * self.query_tokens + self.waiting_tokens()
        return self.hold.keeps(self.step, self.waiting, tokens)

    def take_over(self, row: int) -> bool:
        """Let a request that was prefilled elsewhere decode, if its blocks and its next token fit; return whether they do."""
        used = self.private_blocks()
        tokens = self.prompt_now[row] - self.shared[row] + lrint(ceil(self.growth))
        commit = self.reserved_blocks(row)
        if used - (-tokens // self.block_tokens) > self.capacity or self.committed + commit > self.capacity:
            return False
        self.queue_pop()
        self.received[row] = 0
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
        decoding = self.kv.sequences if self.shared_steps else 0
        held = self.kv.blocks(self.counter) + self.held + self.kv_blocks - self.capacity
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
            self.trim(self.kv.blocks(self.counter) + self.held)
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
            steps = max(self.kv.within(self.counter, self.capacity - self.held, self.growth, first, steps), 1)
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
        before = self.kv.blocks(self.counter) + self.held
        context = (self.kv.tokens + self.shared_sum) / sequences + first * self.growth
        if self.groups:
            steps = 1
        seconds = self.run(sequences, context, steps, limit - start)
        awaited = self.is_asynchronous and limit == self.next_s and self.step - first < steps
        if awaited and start < limit <= start + seconds < until_s:
            seconds += self.decode_s(sequences, context + (self.step - first) * self.growth)
            self.step += 1
        steps = self.step - first
        self.counter = grown(self.growth, self.step)
        self.now_s = start + seconds
        if self.is_asynchronous and steps > 1:
            self.planned_s = self.now_s - self.decode_s(sequences, context + (steps - 1) * self.growth)
        after = self.kv.blocks(self.counter) + self.held
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


class FlatSlots(FlatEngine):
    """llama.cpp's server: a request takes a slot with a part of the cache for itself, and pieces of prompts go in the order of slots.

    A request that finds no slot is deferred. Each slot that is released calls one deferred request to the front of the queue, so
    that of those called after one step the last goes first; what arrived during the step comes after them. A request takes the
    free slot that holds most of its prompt if that is more than a tenth of it, otherwise the one that was released first.

    References
    ----------
    `get_available_slot`, `update_slots` and `pop_deferred_task`, tools/server: https://github.com/ggml-org/llama.cpp.
    """

    def __init__(self, limits: FlatLimits, tables: list[Doubles], requests: FlatRequests) -> None:
        """Start with empty slots, which were never taken."""
        super().__init__(limits, tables, requests)
        seats = self.max_num_seqs
        self.has_cache = False
        self.slot_rows, self.left_at = (array("q", [-1]) * seats for _ in range(2))
        self.vacated_slots, self.vacated, self.releases = array("q", bytes(8 * seats)), 0, 0
        self.kept_ids: list[list[int]] = [[] for _ in range(seats)]
        self.began_s, self.found_blocks = 0.0, 0

    def hits_by_tier(self) -> list[int]:
        """Return the blocks that prompts found in their slots."""
        return [self.found_blocks]

    def hit_blocks(self, block_ids: list[int], tiers: bool) -> int:
        """Return how many leading blocks of a prompt a slot holds, the best one that is free."""
        del tiers
        free = [slot for slot in range(self.max_num_seqs) if self.slot_rows[slot] < 0]
        return max((self.common_blocks(slot, block_ids) for slot in free), default=0)

    def common_blocks(self, slot: int, block_ids: list[int]) -> int:
        """Return how many leading blocks of a prompt a slot holds, or held last."""
        count, kept = 0, self.kept_ids[slot]
        while count < min(len(kept), len(block_ids)) and kept[count] == block_ids[count]:
            count += 1
        return count

    def plan(self, preempted: bool) -> None:
        """Give the prompts in slots the tokens of the next step, in the order of slots; nothing is ever preempted."""
        self.empty_slots()
        self.seat()
        budget, self.loading = 0 if preempted else self.step_budget(), 0
        for slot in range(self.max_num_seqs):
            row = self.slot_rows[slot]
            if row >= 0 and self.serial[row] <= 0:
                self.loading_rows[self.loading] = row
                self.loading += 1
                if budget > 0:
                    budget -= self.add_chunk(row, min(self.prompt_now[row] - self.done[row], budget))

    def empty_slots(self) -> None:
        """Note the slots that were released by the last step, in their order."""
        for slot in range(self.max_num_seqs):
            for place in range(self.vacated):
                if self.vacated_slots[place] == slot:
                    self.slot_rows[slot], self.left_at[slot] = -1, self.releases
                    self.releases += 1

    def seat(self) -> None:
        """Give free slots to waiting requests: first to those that the released slots call, then to the others in order."""
        called: list[int] = []
        while (
            len(called) < self.vacated and self.waiting and self.enqueued[self.queue_head()] <= self.began_s
        ):
            called.append(self.queue_head())
            self.queue_pop()
        self.vacated = 0
        free = [slot for slot in range(self.max_num_seqs) if self.slot_rows[slot] < 0]
        while free and (called or self.waiting):
            if called:
                row = called.pop()
            else:
                row = self.queue_head()
                self.queue_pop()
            free.remove(self.take(row, free))

    def take(self, row: int, free: list[int]) -> int:
        """Let a request take one of the free slots; return it."""
        slot, found, prompt = free[len(free) - 1], 0, self.prompt_now[row]
        ids = self.ids[row] if self.is_caching else []
        for other in free:
            common = self.common_blocks(other, ids)
            if common > found and common * self.id_tokens > LEAST_SIMILARITY * prompt:
                slot, found = other, common
        if found:
            self.cached[row] = min(found * self.id_tokens, prompt - 1)
            self.found_blocks += found
        else:
            for other in reversed(free):
                if self.left_at[other] < self.left_at[slot]:
                    slot = other
        self.slot_rows[slot], self.kept_ids[slot] = row, list(ids)
        self.admit(row, -(-prompt // self.block_tokens), self.reserved_blocks(row))
        return slot

    def work_on(self) -> None:
        """Run one step with prompts in it; those that are not done keep their slots."""
        self.began_s = self.now_s
        FlatEngine.work_on(self)
        self.partial = -1
        for place in range(self.loading - 1, -1, -1):
            row = self.loading_rows[place]
            if self.done[row] >= self.prompt_now[row]:
                self.loading = without(row, self.loading_rows, self.loading)

    def decode(self, until_s: float, one: bool) -> None:
        """Run decode steps up to the next event, or one; note when the last of them began."""
        start_s, step = self.now_s, self.step
        FlatEngine.decode(self, until_s, one)
        self.began_s = self.now_s - (self.now_s - start_s) / (self.step - step)

    def close(self, row: int) -> None:
        """Let the slot of a request that has ended hold its response too."""
        if self.is_caching:
            self.kept_ids[self.slot_of(row)] += self.output_ids[row]
        self.release(row, -1)

    def release(self, row: int, worked_on: int) -> None:
        """Release the slot of a request; it holds the `worked_on` leading blocks of an unfinished prompt."""
        self.committed -= self.commit[row]
        slot = self.slot_of(row)
        if worked_on >= 0:
            self.kept_ids[slot] = self.kept_ids[slot][:worked_on]
        self.vacated_slots[self.vacated] = slot
        self.vacated += 1

    def slot_of(self, row: int) -> int:
        """Return the slot of a request."""
        slot = 0
        while self.slot_rows[slot] != row:
            slot += 1
        return slot


class FlatStatic(FlatEngine):
    """An engine without continuous batching.

    A batch starts when it is full, when its oldest request has waited for the timeout, or when no more requests can arrive.
    It is prefilled, then decodes until its longest output is done. Shorter sequences stay in the batch, and all responses
    return when it ends. Blocks for the full length of every sequence are reserved at the start.
    """

    def __init__(self, limits: FlatLimits, tables: list[Doubles], requests: FlatRequests) -> None:
        """Start idle at zero."""
        super().__init__(limits, tables, requests)
        self.timeout_s, self.is_asynchronous = limits.batch_timeout_s, False
        self.batch_rows, self.batch = array("q", bytes(8 * self.max_num_seqs)), 0

    def advance(self, until_s: float) -> None:
        """Run every batch that starts before a time; a running batch completes."""
        while self.now_s < until_s:
            self.receive(self.now_s)
            start_s = self.start_s()
            if start_s <= self.now_s:
                self.run_batch(self.fill_batch())
                continue
            event_s = min(start_s, self.next_s)
            if self.has_deadlines:
                event_s = min(event_s, self.next_expiry_s())
            if event_s >= until_s:
                return
            self.now_s = event_s
        self.receive(self.now_s)

    def start_s(self) -> float:
        """Return when the next batch starts if the queue does not change until then."""
        if not self.waiting:
            return NEVER_S
        if self.waiting >= self.max_num_seqs or self.next_s == NEVER_S:
            return self.now_s
        return self.enqueued[self.queue_head()] + self.timeout_s

    def fill_batch(self) -> int:
        """Take the waiting requests that fit; return their blocks."""
        total, self.batch = 0, 0
        while self.waiting and self.batch < self.max_num_seqs:
            row = self.queue_head()
            tokens = self.prompt[row] - self.shared[row] + self.output[row] - 1
            blocks = -(-tokens // self.block_tokens)
            if total + blocks > self.kv_blocks:
                break
            total += blocks
            self.scheduled[row] = self.now_s
            self.queue_pop()
            self.batch_rows[self.batch] = row
            self.batch += 1
        return total

    def run_batch(self, blocks: int) -> None:
        """Prefill the batch, decode it to its longest output, and finish all its requests."""
        start, steps, prompts = self.now_s, 0, 0
        self.prefill_batch()
        for place in range(self.batch):
            row = self.batch_rows[place]
            steps = max(steps, self.decode_steps(row, self.output[row] - 1))
            prompts += self.prompt[row]
        if steps:
            context = prompts / self.batch
            first_s = self.run(self.batch, context, 1, NEVER_S)
            all_s = self.run(self.batch, context, steps, NEVER_S)
            later_s = (all_s - first_s) / (steps - 1) if steps > 1 else first_s
            for place in range(self.batch):
                row = self.batch_rows[place]
                if self.output[row] > 1:
                    self.gap(self.now_s + first_s - self.first_token[row], 1.0)
                if self.output[row] > 2:
                    self.gap(later_s, self.output[row] - 2)
            self.now_s += all_s
        self.steps += steps
        self.gauges.add(start, self.now_s - start, self.batch, blocks)
        for place in range(self.batch):
            self.finish(self.batch_rows[place])

    def prefill_batch(self) -> None:
        """Run the prompts in order, in steps of at most the token budget."""
        first, self.filled = 0, 0.0
        for place in range(self.batch):
            row = self.batch_rows[place]
            self.done[row] = self.cached[row]
            self.count_admitted(row)
        while first < self.batch:
            budget, self.chunks = self.budget, 0
            while first + self.chunks < self.batch and budget > 0:
                row = self.batch_rows[first + self.chunks]
                new = self.prompt[row] - self.done[row]
                if new > budget and not self.chunked:
                    break
                budget -= self.add_chunk(row, min(new, budget))
            self.now_s += self.step_s(0, 0.0) if self.stages == 1 else self.turn_s(0, 0.0)
            self.steps += 1
            self.prefill_tokens += self.budget - budget
            for place in range(self.chunks):
                row = self.chunk_rows[place]
                self.done[row] += self.chunk_tokens[place]
                if self.done[row] == self.prompt[row]:
                    first += 1
                    self.begin(row)


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
        """Return the first of the engines with the fewest requests."""
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
            self.remaining[row] = self.output[row] - (self.received[row] and not self.draws_first)
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
