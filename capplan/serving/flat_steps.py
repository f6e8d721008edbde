"""How long the steps of one engine take, on flat arrays: prompts, decoding, both in one step, and many steps of decoding at once."""

from __future__ import annotations

from array import array

from capplan.serving.c_math import ceil, floor, lrint, sqrt
from capplan.serving.flat_batch import FlatBatch
from capplan.serving.flat_input import Doubles, FlatLimits, FlatRequests


class FlatSteps(FlatBatch):
    """The requests of one engine and the times of its steps."""

    def __init__(self, limits: FlatLimits, tables: list[Doubles], requests: FlatRequests) -> None:
        """Take limits, step tables and requests; see FlatQueue."""
        super().__init__(limits, requests)
        self.context_knots, self.decode_base, self.decode_values, self.decode_slopes = tables[:4]
        self.mixed, self.shared_mixed, self.head, self.launch = tables[4:8]
        self.chunk_knots, self.prefill = tables[8] + tables[9], tables[10]
        self.new_count, self.past_count = len(tables[8]), len(tables[9])
        self.data_groups, self.most_tokens = limits.data_groups, len(self.mixed) - 1
        self.own_tokens = array("q", bytes(8 * self.data_groups))
        self.own_s, self.chunks_s = array("d", bytes(8 * self.data_groups)), 0.0
        self.knots, self.last_knot = len(self.context_knots), 0
        self.stages, self.stage_tokens = limits.stages, limits.terms.stage_tokens(limits.stages)
        self.stage_fraction, self.filled, self.separate_prefill_pass = (
            limits.stage_fraction,
            0.0,
            limits.separate_prefill_pass,
        )
        self.chunk_rows = array("q", bytes(8 * (self.max_num_seqs + 2)))
        self.chunk_tokens = array("q", bytes(8 * (self.max_num_seqs + 2)))

    def step_s(self, decoding: int, context: float) -> float:
        """Return the time of the planned step; see StepClock.mixed_step_s."""
        if decoding and self.separate_prefill_pass:
            return self.step_s(0, 0.0) + self.decode_s(decoding, context)
        tokens, seconds = decoding * self.query_tokens, 0.0
        if self.data_groups > 1:
            return self.step_of_groups_s(decoding, context)
        for place in range(self.chunks):
            tokens += self.chunk_tokens[place]
            seconds += self.prefill_s(self.chunk_tokens[place], self.done[self.chunk_rows[place]])
        if decoding:
            seconds += self.attention_s(decoding, context)
        return max(seconds + self.mixed[tokens] + self.head[decoding + self.chunks], self.launch[tokens])

    def step_of_groups_s(self, decoding: int, context: float) -> float:
        """Return the time of the planned step of several groups of data-parallel attention, which lasts as long as the fullest of them."""
        beside = decoding * self.query_tokens
        tokens = self.deal(beside)
        fullest = beside + lrint(ceil(tokens * self.fill_ratio))
        tokens += beside
        seconds = self.chunks_s + self.head[decoding + self.chunks]
        if decoding:
            seconds += self.attention_s(decoding, context)
        seconds += self.own_mixed_s(fullest) + self.shared_mixed[tokens]
        return max(seconds, self.launch[min(fullest, self.most_tokens)])

    def own_mixed_s(self, tokens: int) -> float:
        """Return M without what all groups compute together, of a number of tokens that are spread over them; linear beyond the table."""
        last = self.most_tokens
        if tokens <= last:
            return self.mixed[tokens] - self.shared_mixed[tokens]
        end_s = self.mixed[last] - self.shared_mixed[last]
        return end_s + (tokens - last) * (end_s - self.mixed[last - 1] + self.shared_mixed[last - 1])

    def deal(self, beside: int) -> int:
        """Deal the prompts of the step to the groups, in turn; return their tokens, and note their attention and r, by which the fullest group has more than the mean.

        Prompts that do not fit into the step would be computed by groups that are less full: a step that is full is full in every group that
        has a prompt. See step_table.idle_ratio.
        """
        groups, tokens, most = self.data_groups, 0, 0
        whole_s = most_s = 0.0
        for group in range(groups):
            self.own_tokens[group], self.own_s[group] = 0, 0.0
        for place in range(self.chunks):
            group = place % groups
            seconds = self.prefill_s(self.chunk_tokens[place], self.done[self.chunk_rows[place]])
            self.own_tokens[group] += self.chunk_tokens[place]
            self.own_s[group] += seconds
            tokens += self.chunk_tokens[place]
            whole_s += seconds
            most = max(most, self.own_tokens[group])
            most_s = max(most_s, self.own_s[group])
        self.fill_ratio = groups * float(most) / tokens if tokens else 1.0
        self.chunks_s = groups * most_s
        if beside + tokens >= self.budget:
            self.fill_ratio = groups / float(min(groups, self.chunks + self.waiting))
            self.chunks_s = self.fill_ratio * whole_s
        return tokens

    def pipeline_pass_s(self, decoding: int, context: float) -> float:
        """Return the same for a pipeline, and note how many micro-batches hold prompts: see decode_pipeline_pass_s and pipeline_pass_ratio.

        A step with prompts never takes less than one without.
        """
        stages, beside, before = self.stages, -(-decoding // self.stages), self.filled
        longest, decode_s, attention_s = 0, 0.0, 0.0
        tokens = self.deal(decoding)
        for place in range(self.chunks):
            longest = max(longest, self.chunk_tokens[place])
        if decoding:
            attention_s = self.attention_s(decoding, context)
            decode_s = self.decode_s(decoding, context)
        room = max(self.stage_tokens - beside, 1.0)
        if longest > room:
            longest = lrint(floor(room))
        largest = max(-(-tokens // stages), longest)
        filled = self.filled = tokens / largest
        fullest = beside + lrint(ceil(largest * self.fill_ratio))
        seconds = self.chunks_s / filled + attention_s + self.shared_mixed[beside + largest]
        seconds = seconds + self.own_mixed_s(fullest) + self.head[decoding + self.chunks]
        seconds = max(seconds, self.launch[min(fullest, self.most_tokens)])
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
            rise = slope * self.tokens_per_step
            first = base + self.decode_values[offset + i] + slope * (context - self.context_knots[i])
            count = steps - done
            if i < last:
                count = min(
                    count, lrint(floor((self.context_knots[i + 1] - context) / self.tokens_per_step)) + 1
                )
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
            context += count * self.tokens_per_step
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
        knots, width = self.new_count, self.past_count
        i, j = self.place_below(0, knots, new_tokens), self.place_below(knots, width, past_tokens)
        u = v = 0.0
        if knots > 1 and new_tokens > self.chunk_knots[i]:
            u = (new_tokens - self.chunk_knots[i]) / (self.chunk_knots[i + 1] - self.chunk_knots[i])
        low, j = i * width + j, knots + j
        if width > 1 and past_tokens > self.chunk_knots[j]:
            v = (past_tokens - self.chunk_knots[j]) / (self.chunk_knots[j + 1] - self.chunk_knots[j])
        high = low + width if u else low
        if not v:
            return new_tokens * (self.prefill[low] + u * (self.prefill[high] - self.prefill[low]))
        at_low = self.prefill[low] + v * (self.prefill[low + 1] - self.prefill[low])
        at_high = self.prefill[high] + v * (self.prefill[high + 1] - self.prefill[high])
        return new_tokens * (at_low + u * (at_high - at_low))

    def place_below(self, first: int, count: int, value: float) -> int:
        """Return the place of the lower of the two knots around a value, of the knots from a first one on; 0 if there is only one."""
        if count < 2 or value < self.chunk_knots[first + 1]:
            return 0
        low, high = 2, count
        while low < high:
            middle = (low + high) // 2
            if value < self.chunk_knots[first + middle]:
                high = middle
            else:
                low = middle + 1
        return low - 1 if low < count else count - 2


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
