"""Measurements of a running simulation, in memory that does not grow with the number of requests: histograms, means, gaps between tokens."""

from dataclasses import dataclass
from math import exp, log

import numpy as np

from capplan.numbers import Array

BINS_PER_E = 200
"""Bins of a weighted histogram per factor of e: values are exact to half a bin, 0.25 %."""
TIMELINE_BINS = 512
OCCUPANCY_BINS = 400


class WeightedHistogram:
    """Weighted values in logarithmic bins: percentiles to 0.25 %, the mean exactly."""

    __slots__ = ("total", "weight", "weight_by_bin")

    def __init__(self) -> None:
        """Start empty."""
        self.weight_by_bin: dict[int, float] = {}
        self.weight = 0.0
        self.total = 0.0

    @classmethod
    def of(
        cls, weights: dict[int, float], of_zero: float, weight: float, total: float
    ) -> "WeightedHistogram":
        """Return a histogram with these weights by bin, and the weight of values of zero."""
        histogram = cls()
        histogram.weight_by_bin = {-(10**9): of_zero} | weights if of_zero else weights
        histogram.weight, histogram.total = weight, total
        return histogram

    def add(self, value: float, weight: float) -> None:
        """Add a value with a weight."""
        key = round(log(value) * BINS_PER_E) if value > 0.0 else -(10**9)
        weights = self.weight_by_bin
        weights[key] = weights.get(key, 0.0) + weight
        self.weight += weight
        self.total += weight * value

    def merge(self, other: "WeightedHistogram", ratio: float = 1.0) -> None:
        """Add all values of another histogram, with some times their weights."""
        for key, weight in other.weight_by_bin.items():
            self.weight_by_bin[key] = self.weight_by_bin.get(key, 0.0) + ratio * weight
        self.weight += ratio * other.weight
        self.total += ratio * other.total

    def mean(self) -> float:
        """Return the weighted mean, nan when empty."""
        return self.total / self.weight if self.weight else float("nan")

    def percentile(self, fraction: float) -> float:
        """Return the smallest value below which at least this fraction of the weight lies, nan when empty.

        Examples
        --------
        >>> histogram = WeightedHistogram()
        >>> histogram.add(1.0, 99.0)
        >>> histogram.add(5.0, 1.0)
        >>> histogram.percentile(0.5)
        1.0
        """
        reached = 0.0
        for key in sorted(self.weight_by_bin):
            reached += self.weight_by_bin[key]
            if reached >= fraction * self.weight * (1.0 - 1e-12):
                return exp(key / BINS_PER_E) if key > -(10**9) else 0.0
        return float("nan")


@dataclass(frozen=True, slots=True)
class Timeline:
    """Means over equal spans of time."""

    start_s: Array
    span_s: float
    batch_sequences: Array
    """Sequences in the engine, prefilling or decoding."""
    kv_blocks: Array
    busy_fraction: Array


class Gauges:
    """Batch size and KV blocks in use, weighted by time: means, percentiles and a timeline of bounded length."""

    __slots__ = (
        "_bins",
        "_span_s",
        "batch_s",
        "block_seconds",
        "busy_s",
        "capacity",
        "occupancy_s",
    )

    def __init__(self, capacity_blocks: int) -> None:
        """Start at zero with spans of one millisecond, which double whenever the timeline is full."""
        self.capacity = max(capacity_blocks, 1)
        self.batch_s: list[float] = [0.0] * 64
        self.occupancy_s: list[float] = [0.0] * (OCCUPANCY_BINS + 1)
        self.block_seconds = 0.0
        self.busy_s = 0.0
        self._span_s = 1e-3
        self._bins: list[list[float]] = [[0.0] * TIMELINE_BINS for _ in range(3)]

    def add(self, start_s: float, seconds: float, sequences: int, blocks: float) -> None:
        """Add a period with a constant batch and a mean number of blocks in use."""
        batch = self.batch_s
        if sequences >= len(batch):
            batch.extend([0.0] * (2 * sequences - len(batch)))
        batch[sequences] += seconds
        self.occupancy_s[min(int(blocks * OCCUPANCY_BINS / self.capacity), OCCUPANCY_BINS)] += seconds
        self.block_seconds += blocks * seconds
        self.busy_s += seconds
        while start_s + seconds >= self._span_s * TIMELINE_BINS:
            self._double()
        span = self._span_s
        first = int(start_s / span)
        if start_s + seconds < (first + 1) * span:
            self._count(first, seconds, sequences, blocks)
            return
        end = start_s + seconds
        for place in range(first, int(end / span) + 1):
            part = min(end, (place + 1) * span) - max(start_s, place * span)
            if part > 0.0:
                self._count(place, part, sequences, blocks)

    def _count(self, place: int, seconds: float, sequences: int, blocks: float) -> None:
        by_batch, by_blocks, by_busy = self._bins
        by_batch[place] += sequences * seconds
        by_blocks[place] += blocks * seconds
        by_busy[place] += seconds

    def _double(self) -> None:
        half = [0.0] * (TIMELINE_BINS // 2)
        self._bins = [
            [a + b for a, b in zip(bins[::2], bins[1::2], strict=True)] + half for bins in self._bins
        ]
        self._span_s *= 2.0

    def set_timeline(self, span_s: float, bins: list[list[float]]) -> None:
        """Set the sums per span, counted elsewhere."""
        self._span_s, self._bins = span_s, bins

    def timeline(self, until_s: float) -> Timeline:
        """Return the means over time, from zero to the last span that began."""
        count = min(int(until_s / self._span_s) + 1, TIMELINE_BINS)
        sums: Array = np.asarray(self._bins, dtype=np.float64)[:, :count] / self._span_s
        start: Array = np.arange(count, dtype=np.float64) * self._span_s
        return Timeline(start, self._span_s, sums[0], sums[1], sums[2])


def weighted_percentile(weights: Array, fraction: float) -> int:
    """Return the smallest index up to which at least this fraction of the weight lies.

    Examples
    --------
    >>> weighted_percentile(np.array([1.0, 2.0, 1.0]), 0.5)
    1
    """
    total = np.cumsum(weights)
    return int(np.searchsorted(total, fraction * total[-1] * (1.0 - 1e-12))) if total[-1] > 0.0 else 0


class TokenGaps:
    """Groups of decoding sequences, in the order in which they joined, and since when each waits for its next token."""

    __slots__ = ("groups",)

    def __init__(self) -> None:
        """Start without waiting sequences."""
        self.groups: list[tuple[int, float]] = []

    def wait(self, sequences: int, since_s: float) -> None:
        """Add a group of sequences that wait: those that joined last."""
        if sequences:
            self.groups.append((sequences, since_s))

    def since_s(self, place: int, now_s: float) -> float:
        """Return when the sequence at this place in the order of joining got its latest token.

        Examples
        --------
        >>> gaps = TokenGaps()
        >>> gaps.wait(2, 1.0)
        >>> gaps.wait(1, 3.0)
        >>> gaps.since_s(1, 4.0), gaps.since_s(2, 4.0)
        (1.0, 3.0)
        """
        for count, since in self.groups:
            if place < count:
                return since
            place -= count
        return now_s

    def forget(self, place: int) -> None:
        """Remove the sequence at this place in the order of joining."""
        for group, (count, since) in enumerate(self.groups):
            if place < count:
                self.groups[group : group + 1] = [(count - 1, since)] if count > 1 else []
                return
            place -= count

    def end(self, now_s: float, into: WeightedHistogram) -> None:
        """Record all gaps: every waiting sequence has its next token."""
        for count, since in self.groups:
            into.add(now_s - since, count)
        self.groups.clear()
