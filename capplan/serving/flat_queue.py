"""The requests of one engine on flat arrays: who arrives, from a file or from users who think, and who waits until when."""

from __future__ import annotations

from array import array

from capplan.serving.c_math import ceil, isnan, lrint
from capplan.serving.engine_parts import KvBlocks
from capplan.serving.flat_input import FlatLimits, FlatRequests, Integers
from capplan.serving.flat_trees import NEVER_S, FlatEvents
from capplan.serving.requests import InFlight

FINISHED, SHED, UNFINISHED, MOVED = 0, 1, 2, 3
"""Status of a request; MOVED: it was cancelled here."""
UNKNOWN_S = float("nan")
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
          "base", "end_step", "serial", "before", "after", "status", "kv_transferred_in", "rank", "hits", "admitted", "found", "admission")  # fmt: skip
"""Columns with one entry for each request."""


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
        self.chunked, self.block_tokens, self.tokens_per_step = (
            terms.chunked,
            terms.block_tokens,
            terms.tokens_per_step,
        )
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
        self.shared, self.kv_transferred_in, self.rank = (array("q", zeros) for _ in range(3))
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
        self.kv_transferred_in[row], self.rank[row] = not isnan(first_token_s), rank
        self.prompt[row] = self.prompt_now[row] = prompt
        self.output[row], self.remaining[row] = output, output
        if self.kv_transferred_in[row] and not self.draws_first:
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
        if self.kv_transferred_in[row] or self.is_ranked:
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
        if self.takes_over and not self.kv_transferred_in[row] and (self.draws_first or self.output[row] > 1):
            self.kv_transferred_in[row], self.cached[row] = 1, 0
            if not self.draws_first:
                self.remaining[row] -= 1
        self.shared[row] = 0
        if self.is_caching:
            whole = 0 if self.kv_transferred_in[row] else self.prompt_now[row] // self.id_tokens
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
        tokens = self.prompt_now[row] + self.remaining[row] - 1 + self.kv_transferred_in[row]
        if not (self.is_caching and self.ids[row]):
            tokens -= self.shared[row]
        if self.tokens_per_step != 1.0:
            tokens += lrint(ceil(self.tokens_per_step))
        if -(-tokens // self.block_tokens) > self.sequence_blocks:
            return True
        if self.chunked or self.kv_transferred_in[row] or not isnan(self.first_token[row]):
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
