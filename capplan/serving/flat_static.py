"""An engine without continuous batching, on flat arrays."""

from __future__ import annotations

from array import array

from capplan.serving.flat_engine import FlatEngine
from capplan.serving.flat_input import Doubles, FlatLimits, FlatRequests
from capplan.serving.flat_trees import NEVER_S


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
            self.now_s += self.step_s(0, 0.0) if self.stages == 1 else self.pipeline_pass_s(0, 0.0)
            self.steps += 1
            self.prefill_tokens += self.budget - budget
            for place in range(self.chunks):
                row = self.chunk_rows[place]
                self.done[row] += self.chunk_tokens[place]
                if self.done[row] == self.prompt[row]:
                    first += 1
                    self.begin(row)
