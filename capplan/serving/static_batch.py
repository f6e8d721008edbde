"""Static batching, and dynamic batching with a timeout: the sequences of a batch start and end together."""

from math import inf

from capplan.serving.engine_parts import Gauges
from capplan.serving.outcome import Ledger
from capplan.serving.queue import WaitingLine
from capplan.serving.requests import InFlight
from capplan.serving.step_table import StepClock
from capplan.serving.terms import EngineTerms


class StaticServer:
    """An engine without continuous batching.

    A batch starts when it is full, when its oldest request has waited for the timeout, or when no more requests can arrive.
    It is prefilled, then decodes until its longest output is done. Shorter sequences stay in the batch, and all responses
    return when it ends. Blocks for the full length of every sequence are reserved at the start.
    """

    __slots__ = ("_clock", "_gauges", "_ledger", "_line", "_terms", "_timeout_s", "now_s")

    def __init__(
        self, clock: StepClock, terms: EngineTerms, line: WaitingLine, ledger: Ledger, timeout_s: float
    ) -> None:
        """Start idle at zero."""
        self._clock = clock
        self._terms = terms
        self._line = line
        self._ledger = ledger
        self._timeout_s = timeout_s
        self._gauges = Gauges(terms.kv_blocks)
        self.now_s = 0.0

    @property
    def gauges(self) -> Gauges:
        """Return the measurements so far."""
        return self._gauges

    @property
    def load(self) -> int:
        """Return the number of waiting requests; between two calls no batch is running."""
        return self._line.count

    def advance(self, until_s: float = inf) -> None:
        """Run every batch that starts before a time; a running batch completes."""
        line = self._line
        while self.now_s < until_s:
            line.receive(self.now_s)
            start_s = self._start_s()
            if start_s <= self.now_s:
                self._run(self._batch())
                continue
            event_s = min(start_s, line.feed.next_s, line.next_expiry_s() if line.deadlines else inf)
            if event_s >= until_s:
                return
            self.now_s = event_s
        line.receive(self.now_s)

    def _start_s(self) -> float:
        """Return when the next batch starts if the queue does not change until then."""
        line = self._line
        if not line.count:
            return inf
        if line.count >= self._terms.max_num_seqs or line.feed.next_s == inf:
            return self.now_s
        return line.head().enqueued_s + self._timeout_s

    def _batch(self) -> list[InFlight]:
        """Take the waiting requests that fit."""
        line, terms = self._line, self._terms
        batch: list[InFlight] = []
        blocks = 0
        while line.count and len(batch) < terms.max_num_seqs:
            flight = line.head()
            private_tokens = flight.prompt_tokens - flight.shared_tokens + flight.output_tokens - 1
            flight.blocks = -(-private_tokens // terms.block_tokens)
            if blocks + flight.blocks > terms.kv_blocks:
                break
            blocks += flight.blocks
            flight.scheduled_s = self.now_s
            line.pop()
            batch.append(flight)
        return batch

    def _run(self, batch: list[InFlight]) -> None:
        """Prefill the batch, decode it to its longest output, and finish all its requests."""
        ledger, terms, start = self._ledger, self._terms, self.now_s
        self._prefill(batch)
        steps = max(terms.decode_steps(flight.output_tokens - 1) for flight in batch)
        if steps:
            context = sum(flight.prompt_tokens for flight in batch) / len(batch)
            row = self._clock.row(len(batch))
            _, first_s = row.run(context, 1, inf, terms.growth)
            _, all_s = row.run(context, steps, inf, terms.growth)
            for flight in batch:
                if flight.output_tokens > 1:
                    ledger.itl.add(self.now_s + first_s - flight.first_token_s, 1.0)
                if flight.output_tokens > 2:
                    ledger.itl.add(
                        (all_s - first_s) / (steps - 1) if steps > 1 else first_s, flight.output_tokens - 2
                    )
            self.now_s += all_s
        ledger.steps += steps
        self._gauges.add(start, self.now_s - start, len(batch), sum(flight.blocks for flight in batch))
        for flight in batch:
            ledger.finished(flight, self.now_s)
            self._line.feed.ended(flight, self.now_s)

    def _prefill(self, batch: list[InFlight]) -> None:
        """Run the prompts in order, in steps of at most the token budget."""
        terms, ledger = self._terms, self._ledger
        waiting, filled = list(reversed(batch)), 0.0
        for flight in batch:
            flight.done_tokens = flight.cached_tokens
            ledger.admitted(flight)
        while waiting:
            budget = terms.max_num_batched_tokens
            chunks: list[tuple[int, int]] = []
            done: list[InFlight] = []
            while waiting and budget > 0:
                flight = waiting[-1]
                new = flight.prompt_tokens - flight.done_tokens
                if new > budget and not terms.chunked:
                    break
                new = min(new, budget)
                chunks.append((new, flight.done_tokens))
                flight.done_tokens += new
                budget -= new
                if flight.done_tokens == flight.prompt_tokens:
                    done.append(waiting.pop())
            if self._clock.stages > 1:
                room = terms.stage_tokens(self._clock.stages)
                seconds, filled = self._clock.turn_s(0, 0.0, chunks, room, filled)
                self.now_s += seconds
            else:
                self.now_s += self._clock.mixed_step_s(0, 0.0, chunks)
            ledger.steps += 1
            ledger.prefill_tokens += terms.max_num_batched_tokens - budget
            for flight in done:
                flight.first_token_s = self.now_s
                ledger.first_token(flight)
