"""Scalar lookups in the step table for the simulator, on plain Python lists.

A numpy call on single numbers costs microseconds; a simulated request needs several step times and has a budget of about
forty microseconds. Rows of the table are computed once per number of sequences and cached.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from math import inf, sqrt

import numpy as np

from capplan.numbers import Array
from capplan.serving.step_table import (
    StepTable,
    bilinear,
    check_step_table,
    piecewise_linear,
    prefill_attention_per_token_s,
)


class DecodeRow:
    """Decode steps of one number of sequences: t(c) = base + attention(c), linear between the knots of c."""

    __slots__ = ("base_s", "knots", "slopes_s", "values_s")

    def __init__(self, base_s: float, knots: list[float], values_s: list[float]) -> None:
        """Store knots, values and the slope after each knot; the last slope is extrapolated."""
        if knots[0] > 0.0:
            knots, values_s = [0.0, *knots], [values_s[0], *values_s]
        slopes = [(values_s[i + 1] - values_s[i]) / (knots[i + 1] - knots[i]) for i in range(len(knots) - 1)]
        self.base_s = base_s
        self.knots = knots
        self.values_s = values_s
        self.slopes_s = [*slopes, slopes[-1] if slopes else 0.0]

    def step_s(self, context: float) -> float:
        """Return the time of one step at mean context c."""
        i = bisect_right(self.knots, context) - 1
        return self.base_s + self.values_s[i] + self.slopes_s[i] * (context - self.knots[i])

    def run(self, context: float, steps: int, limit_s: float = inf, growth: float = 1.0) -> tuple[int, float]:
        """Return how many steps run and how long they take: all of them, or the fewest that reach the time limit.

        Contexts grow by `growth` tokens per step. At least one step runs; the last one may end after the limit.
        """
        knots = self.knots
        last = len(knots) - 1
        i = bisect_right(knots, context) - 1
        done = 0
        total = 0.0
        while True:
            rise = self.slopes_s[i] * growth
            first = self.base_s + self.values_s[i] + self.slopes_s[i] * (context - knots[i])
            count = steps - done
            if i < last:
                count = min(count, int((knots[i + 1] - context) / growth) + 1)
            seconds = count * (first + rise * (count - 1) * 0.5)
            if total + seconds >= limit_s:
                count, seconds = steps_to_reach(first, rise, limit_s - total, count)
                return done + count, total + seconds
            done += count
            total += seconds
            if done >= steps:
                return done, total
            context += count * growth
            while i < last and context >= knots[i + 1]:
                i += 1


def steps_to_reach(first_s: float, rise_s: float, limit_s: float, most: int) -> tuple[int, float]:
    """Return the fewest steps whose total time reaches a limit, and that time.

        k (a + d (k - 1) / 2) >= L

    Parameters
    ----------
    first_s : [s]
        a, time of the first step.
    rise_s : [s]
        d, by which each step is longer than the previous one.
    limit_s : [s]
        L.
    most : [-]
        a number of steps that is enough.

    Returns
    -------
    steps [-], at least one, and their time [s]

    Examples
    --------
    >>> steps_to_reach(first_s=1.0, rise_s=1.0, limit_s=6.0, most=10)
    (3, 6.0)

    References
    ----------
    Knuth 1997, "The Art of Computer Programming" vol. 1, section 1.2.3, equation 15, solved for k.
    """
    half = rise_s * 0.5
    linear = first_s - half
    root = linear * linear + 4.0 * half * limit_s
    guess = 2.0 * limit_s / (linear + sqrt(root)) if root > 0.0 else float(most)
    steps = min(max(int(guess), 1), most)
    while steps < most and steps * (linear + half * steps) < limit_s:
        steps += 1
    while steps > 1 and (steps - 1) * (linear + half * (steps - 1)) >= limit_s:
        steps -= 1
    return steps, steps * (linear + half * steps)


class StepClock:
    """Times of single steps and runs of steps; see StepTable for the formulas."""

    __slots__ = (
        "_head",
        "_mixed",
        "_new",
        "_past",
        "_prefill",
        "_rows",
        "flat_tables",
        "request_s",
        "stage_fraction",
        "stages",
        "table",
    )

    def __init__(self, table: StepTable) -> None:
        """Check the table and convert what the simulator needs to lists."""
        check_step_table(table)
        self.table = table
        self._rows: list[DecodeRow | None] = [None] * 64
        self._mixed: list[float] = []
        self._head: list[float] = []
        new, past, each = prefill_attention_per_token_s(table)
        self._new: list[float] = new.tolist()
        self._past: list[float] = past.tolist()
        self._prefill: list[list[float]] = each.tolist()
        self.request_s = float(table.request_s)
        self.stages, self.stage_fraction = int(table.stages), float(table.stage_fraction)
        self.flat_tables: dict[tuple[int, int], list[array[float]]] = {}
        """Cached tables of the flat core, by number of sequences and tokens."""

    def row(self, sequences: int) -> DecodeRow:
        """Return the decode steps of this number of sequences."""
        rows = self._rows
        if sequences >= len(rows):
            rows.extend([None] * (2 * sequences - len(rows)))
        row = rows[sequences]
        if row is None:
            table = self.table
            base = float(piecewise_linear(table.sequence_knots, table.decode_s, float(sequences)))
            values = bilinear(
                table.sequence_knots,
                table.context_knots,
                table.decode_attention_s,
                float(sequences),
                table.context_knots,
            )
            row = rows[sequences] = DecodeRow(base, table.context_knots.tolist(), values.tolist())
        return row

    def prefill_attention_s(self, new_tokens: int, past_tokens: int) -> float:
        """Return P(n, p): n times the interpolated time per token."""
        new, past = self._new, self._past
        i, j = bisect_right(new, new_tokens) - 1, bisect_right(past, past_tokens) - 1
        i, j = min(max(i, 0), max(len(new) - 2, 0)), min(max(j, 0), max(len(past) - 2, 0))
        u = v = 0.0
        if new_tokens > new[i] and len(new) > 1:
            u = (new_tokens - new[i]) / (new[i + 1] - new[i])
        if past_tokens > past[j] and len(past) > 1:
            v = (past_tokens - past[j]) / (past[j + 1] - past[j])
        low = self._prefill[i]
        high = self._prefill[i + 1] if u else low
        if not v:
            return new_tokens * (low[j] + u * (high[j] - low[j]))
        at_low = low[j] + v * (low[j + 1] - low[j])
        return new_tokens * (at_low + u * (high[j] + v * (high[j + 1] - high[j]) - at_low))

    def mixed_step_s(
        self, sequences: int, context: float, chunks: Sequence[tuple[int, int]], query_tokens: int = 1
    ) -> float:
        """Return the time of a step with prefill chunks of (new, past) tokens and decoding sequences of `query_tokens` each."""
        tokens = sequences * query_tokens
        seconds = 0.0
        for new_tokens, past_tokens in chunks:
            tokens += new_tokens
            seconds += self.prefill_attention_s(new_tokens, past_tokens)
        if sequences:
            row = self.row(sequences)
            seconds += row.step_s(context) - row.base_s
        return seconds + self._mixed_s(tokens) + self._head_s(sequences + len(chunks))

    def turn_s(
        self,
        sequences: int,
        context: float,
        chunks: Sequence[tuple[int, int]],
        room_tokens: float,
        before: float,
    ) -> tuple[float, float]:
        """Return the time of a pipeline step with prompts, and how many of its micro-batches hold prompts.

        See pipeline.py for the formulas. A turn never takes less than one without prompts.
        """
        stages, beside = self.stages, -(-sequences // self.stages)
        tokens, longest, decode_s, attention_s, chunks_s = 0, 0, 0.0, 0.0, 0.0
        for new_tokens, past_tokens in chunks:
            tokens += new_tokens
            longest = max(longest, new_tokens)
            chunks_s += self.prefill_attention_s(new_tokens, past_tokens)
        if sequences:
            row = self.row(sequences)
            decode_s = row.step_s(context)
            attention_s = decode_s - row.base_s
        room = max(room_tokens - beside, 1.0)
        largest = max(-(-tokens // stages), int(room) if longest > room else longest)
        filled = tokens / largest
        seconds = chunks_s / filled + attention_s
        seconds = seconds + self._mixed_s(beside + largest) + self._head_s(sequences + len(chunks))
        part = self.stage_fraction
        ratio = 1.0 + (filled - 1.0) * part - min((max(before, 1.0) - 1.0) * part, 1.0 - part)
        return max(seconds * ratio, decode_s), filled

    def _mixed_s(self, tokens: int) -> float:
        if tokens >= len(self._mixed):
            self._mixed = _dense(self.table.token_knots, self.table.mixed_s, max(2 * tokens, 1024))
        return self._mixed[tokens]

    def _head_s(self, logits: int) -> float:
        if logits >= len(self._head):
            self._head = _dense(self.table.sequence_knots, self.table.head_s, max(2 * logits, 64))
        return self._head[logits]


def _dense(knots: Array, values: Array, size: int) -> list[float]:
    """Return a table of one variable at every whole number below size."""
    result: list[float] = piecewise_linear(knots, values, np.arange(size, dtype=np.float64)).tolist()
    return result
