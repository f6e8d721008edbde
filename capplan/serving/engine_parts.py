"""What every engine with continuous batching keeps, on arrays or with objects: blocks of its sequences, prompts that it holds back, and gauges.

Cython can compile this file: engine_parts.pxd gives the types, and without a compiler this is ordinary Python.
"""

from __future__ import annotations

from array import array

from capplan.serving.c_math import floor, lrint

TIMELINE_BINS = 512
OCCUPANCY_BINS = 400


class KvBlocks:
    """The number of blocks that the decoding sequences hold, as a function of the step counter.

    A sequence that holds x_i + u tokens at counter u leaves pad_i = (-x_i - u) mod b slots of its last block empty, so

        sum_i ceil((x_i + u) / b) = (sum_i x_i + n u + sum_i pad_i) / b

    and the pads follow from the number of sequences at each phase (-x_i) mod b, which does not depend on u.

    Examples
    --------
    Two sequences of 16 and 17 tokens in blocks of 16, now and sixteen steps later:

    >>> held = KvBlocks(16)
    >>> held.join(16)
    >>> held.join(17)
    >>> held.blocks(0), held.blocks(16)
    (3, 5)

    Four blocks last for fifteen more tokens:

    >>> held.within(0, 4, 1.0, 0, 100)
    15
    """

    def __init__(self, block_tokens: int) -> None:
        """Start without sequences."""
        self.block_tokens = block_tokens
        self.sequences = self.tokens = self.phase_sum = 0
        self.phases = array("q", bytes(8 * block_tokens))
        self.part = self.below = 0  # phases[0] + ... + phases[part - 1] sequences are below a part of a block

    def join(self, base: int) -> None:
        """Add a sequence that holds base + u tokens at counter u; base may be negative."""
        phase = -base % self.block_tokens
        self.sequences += 1
        self.tokens += base
        self.phases[phase] += 1
        self.below += phase < self.part
        self.phase_sum += phase

    def leave(self, base: int) -> None:
        """Remove a sequence that joined with this base."""
        phase = -base % self.block_tokens
        self.sequences -= 1
        self.tokens -= base
        self.phases[phase] -= 1
        self.below -= phase < self.part
        self.phase_sum -= phase

    def blocks(self, counter: int) -> int:
        """Return the blocks held at counter u."""
        block = self.block_tokens
        part = counter % block
        while self.part < part:
            self.below += self.phases[self.part]
            self.part += 1
        while self.part > part:
            self.part -= 1
            self.below -= self.phases[self.part]
        pads = self.phase_sum - self.sequences * part + block * self.below
        return (self.tokens + self.sequences * counter + pads) // block

    def within(self, counter: int, capacity: int, tokens_per_step: float, step: int, most: int) -> int:
        """Return for how many more steps, up to `most`, the blocks stay within a capacity.

        Parameters
        ----------
        counter : [tokens]
            u now, floor(tokens_per_step x step).
        capacity : [blocks]
        tokens_per_step : [tokens]
            that a sequence gains per step.
        step : [-]
            number of the current step.
        most : [-]
            upper limit of the result.
        """
        reach = counter + grown(tokens_per_step, most) + 1
        if self.tokens + self.sequences * (reach + self.block_tokens) <= capacity * self.block_tokens:
            return most
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks(grown(tokens_per_step, step + middle)) <= capacity:
                low = middle
            else:
                high = middle - 1
        return low


def grown(tokens_per_step: float, steps: int) -> int:
    """Return the tokens that a sequence gains in some steps, in whole tokens."""
    return steps if tokens_per_step == 1.0 else lrint(floor(steps * tokens_per_step))


class PromptHold:
    """Which steps waiting prompts stay out of: the engine polls its queue at intervals, or holds prompts back for a larger batch."""

    def __init__(
        self,
        hold_steps: int,
        hold_tokens: int,
        hold_prompts: int,
        gather_steps: int,
        poll_steps: int,
        hold_seats: int,
        group_tokens: int,
    ) -> None:
        """Hold back nothing yet; see Scheduling for the limits."""
        self.hold_steps, self.hold_tokens, self.hold_prompts = hold_steps, hold_tokens, hold_prompts
        self.gather_steps, self.poll_steps = gather_steps, poll_steps
        self.hold_seats, self.group_tokens = hold_seats, group_tokens
        self.most_pieces = 0  # pieces of prompts in the step of one group at most so far
        self.pieces = self.tokens_left = 0  # of the group whose part of the present step is filled
        self.lacks_seats = False  # enough prompts wait, but not enough sequences may join
        self.applies = hold_steps > 0 or poll_steps > 0
        self.looked = 0  # step at which the queue was polled last
        self.hold_from = -1  # step since which new prompts are held back for a larger batch; -1 if none is
        self.gather_from = -1  # step since which enough of them wait; -1 before that
        self.released = False  # the hold is over, even if none of the prompts has been admitted yet

    def end(self) -> None:
        """Hold back nothing: no prompt waits, or nothing runs."""
        self.hold_from, self.gather_from, self.released = -1, -1, False

    def look(self, step: int) -> None:
        """Note a step that was open to prompts."""
        self.looked, self.released = step, False

    def note_step(self) -> None:
        """Note that a step with prompts begins."""
        self.pieces = self.tokens_left = 0

    def note_piece(self, tokens: int) -> None:
        """Note a piece of a prompt in a step: pieces fill the parts of the groups in turn."""
        if tokens > self.tokens_left:
            self.pieces, self.tokens_left = 0, self.group_tokens
        self.pieces += 1
        self.tokens_left -= tokens
        self.most_pieces = max(self.most_pieces, self.pieces)

    def keeps(self, step: int, waiting: int, tokens: int, seats: int) -> bool:
        """Return whether waiting prompts stay out of a step: how many wait, the tokens of a step with all of them, and sequences that may join."""
        self.lacks_seats = False
        if self.poll_steps and (step - self.looked) % self.poll_steps:
            return True
        if self.hold_steps and not self.released:
            if self.hold_from < 0:
                self.hold_from = step
            if self.lacks_company(step, waiting, tokens):
                return True
            if self.hold_prompts <= waiting and seats < self.hold_seats * self.most_pieces:
                self.lacks_seats = True
                return True
            self.hold_from = self.gather_from = -1
            self.released = True
        return False

    def lacks_company(self, step: int, waiting: int, tokens: int) -> bool:
        """Return whether held prompts keep waiting; note the step since which enough of them wait."""
        if self.gather_from < 0 and 0 < self.hold_prompts <= waiting:
            self.gather_from = step
        if self.gather_from >= 0:
            return step - self.gather_from < self.gather_steps
        if step - self.hold_from >= self.hold_steps:
            return False
        return self.hold_prompts > 0 or tokens < self.hold_tokens

    def steps_until_look(self, step: int) -> int:
        """Return the number of steps after which waiting prompts may join at the latest."""
        steps = 1 << 60
        if self.poll_steps:
            steps = self.poll_steps - (step - self.looked) % self.poll_steps
        if self.hold_steps and self.hold_from >= 0 and not self.lacks_seats:
            if self.gather_from >= 0:
                steps = min(steps, self.gather_steps - (step - self.gather_from))
            else:
                steps = min(steps, self.hold_steps - (step - self.hold_from))
        return max(steps, 1)


class Gauges:
    """Batch size and KV blocks in use, weighted by time, in bins; and in spans of time, of a bounded number."""

    def __init__(self, capacity_blocks: int, recorded: bool = True) -> None:
        """Start at zero with spans of one millisecond, which double whenever the timeline is full; without bins if only busy time is recorded."""
        self.capacity, self.recorded = max(capacity_blocks, 1), recorded
        self.batch_s = array("d", bytes(8 * 64))
        self.occupancy_s = array("d", bytes(8 * (OCCUPANCY_BINS * recorded + 1)))
        self.block_seconds = self.busy_s = 0.0
        self.span_s = 1e-3
        spans = bytes(8 * TIMELINE_BINS * recorded)
        self.by_batch, self.by_blocks, self.by_busy = array("d", spans), array("d", spans), array("d", spans)

    def add(self, start_s: float, seconds: float, sequences: int, blocks: float) -> None:
        """Add a period with a constant batch and a mean number of blocks in use."""
        self.busy_s += seconds
        if not self.recorded:
            return
        if sequences >= len(self.batch_s):
            more = bytes(8 * (2 * sequences - len(self.batch_s)))
            self.batch_s = array("d", bytes(self.batch_s) + more)
        self.batch_s[sequences] += seconds
        place = min(lrint(floor(blocks * OCCUPANCY_BINS / self.capacity)), OCCUPANCY_BINS)
        self.occupancy_s[place] += seconds
        self.block_seconds += blocks * seconds
        end = start_s + seconds
        while end >= self.span_s * TIMELINE_BINS:
            self.double_span()
        span = self.span_s
        first = lrint(floor(start_s / span))
        if end < (first + 1) * span:
            self.count_span(first, seconds, sequences, blocks)
            return
        for place in range(first, lrint(floor(end / span)) + 1):
            part = min(end, (place + 1) * span) - max(start_s, place * span)
            if part > 0.0:
                self.count_span(place, part, sequences, blocks)

    def count_span(self, place: int, seconds: float, sequences: int, blocks: float) -> None:
        """Add to one span of the timeline."""
        self.by_batch[place] += sequences * seconds
        self.by_blocks[place] += blocks * seconds
        self.by_busy[place] += seconds

    def double_span(self) -> None:
        """Merge neighbouring spans, so that half of them are free."""
        for bins in (self.by_batch, self.by_blocks, self.by_busy):
            for place in range(TIMELINE_BINS // 2):
                bins[place] = bins[2 * place] + bins[2 * place + 1]
            for place in range(TIMELINE_BINS // 2, TIMELINE_BINS):
                bins[place] = 0.0
        self.span_s *= 2.0
