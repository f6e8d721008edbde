"""How much of the prompts of a trace was sent before, and how long ago: the hits of a cache with a time to live."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Array

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReuseByAge:
    """Prompt blocks that were sent before, by their age."""

    ages_s: Array
    """Of every leading block that was sent before, ascending: the longest time since the last use of it or of one before it."""
    blocks: int
    """Of all prompts."""
    request_rate: float
    """Of the trace [req/s]."""

    def hit_fraction(self, time_to_live_s: float) -> float:
        """Return the hit fraction, in blocks, of a cache that keeps each block for this time after its last use.

        Examples
        --------
        >>> ReuseByAge(np.array([1.0, 5.0, 9.0]), 6, 1.0).hit_fraction(5.0)
        0.3333333333333333
        """
        return float(np.searchsorted(self.ages_s, time_to_live_s, side="right")) / self.blocks


def reuse_by_age(block_ids: Counts, block_counts: Counts, arrival_s: Array) -> ReuseByAge:
    """Return the ages of the leading blocks of all prompts at their next use.

    A prompt finds its leading blocks up to the first one that is gone, and uses all of its blocks, found or not.

    Parameters
    ----------
    block_ids : [-]
        of all prompts, concatenated in order of arrival; equal ids stand for equal prefixes
    block_counts : [blocks]
        of each prompt
    arrival_s : [s]
        of each request, ascending

    Returns
    -------
    ReuseByAge

    Examples
    --------
    Two blocks, and 7 s later the same two and a new one:

    >>> reuse_by_age(np.array([1, 2, 1, 2, 3]), np.array([2, 3]), np.array([0.0, 7.0])).ages_s
    array([7., 7.])
    """
    last: dict[int, float] = {}
    ages: list[float] = []
    ids, start = block_ids.tolist(), 0
    for count, now in zip(block_counts.tolist(), arrival_s.tolist(), strict=True):
        longest, leading = 0.0, True
        for block in ids[start : start + count]:
            if leading:
                longest = max(longest, now - last.get(block, -math.inf))
                leading = longest < math.inf
                if leading:
                    ages.append(longest)
            last[block] = now
        start += count
    seconds = float(arrival_s[-1] - arrival_s[0])
    return ReuseByAge(np.sort(np.array(ages)), max(len(ids), 1), arrival_s.size / max(seconds, 1e-9))
