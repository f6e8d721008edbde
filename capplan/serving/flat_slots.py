"""llama.cpp's server on flat arrays: each request has a slot with a part of the cache for itself."""

from __future__ import annotations

from array import array

from capplan.serving.flat_batch import without
from capplan.serving.flat_engine import FlatEngine
from capplan.serving.flat_input import Doubles, FlatLimits, FlatRequests

LEAST_SIMILARITY = 0.1
"""Part of a prompt that a slot of llama.cpp's server must hold to be chosen for it."""


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
