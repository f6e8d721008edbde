"""Requests of a trace in parts of bounded size, and the rows that were left out."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Array

Counts = NDArray[np.int64]

PART_REQUESTS = 65_536
"""Requests in one part: the most that is held in memory while a long trace is read."""


@dataclass(frozen=True, slots=True)
class TracePart:
    """Consecutive requests, as columns of equal length, in the order of the file."""

    arrival_s: Array
    """Arrival times on the clock of the file; nan where it has none."""
    input_tokens: Counts
    output_tokens: Counts
    block_counts: Counts
    """Blocks of each prompt; 0 where the file names none."""
    block_ids: Counts
    """Identities of those blocks, one prompt after the other."""
    ttft_s: Array
    """Measured; nan where the file has none."""
    e2e_s: Array

    def __len__(self) -> int:
        """Return the number of requests."""
        return int(self.input_tokens.size)


@dataclass(slots=True)
class Omissions:
    """Rows that are not used, counted by reason, with the line where each reason first occurred."""

    counts: Counter[str] = field(default_factory=Counter)
    first_line: dict[str, int] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)
    """The reasons for which strict reading refuses the file, with their first line."""
    notes: list[str] = field(default_factory=list)
    """What was normalised, such as a unit of time."""

    def drop(self, reason: str, line: int, *, broken: bool = False) -> None:
        """Count one row that is left out; a broken row cannot be what its writer meant."""
        self.counts[reason] += 1
        self.first_line.setdefault(reason, line)
        if broken:
            self.broken.setdefault(reason, line)

    def note(self, text: str) -> None:
        """Record once what was done to the file."""
        if text not in self.notes:
            self.notes.append(text)

    def lines(self) -> list[str]:
        """Return the reasons as people read them, most frequent first.

        Examples
        --------
        >>> omissions = Omissions()
        >>> omissions.drop("no output token", 3)
        >>> omissions.lines()
        ['1 row left out: no output token (first in line 3)']
        """
        return [
            f"{count:,} row{'s' if count > 1 else ''} left out: {reason} (first in line {self.first_line[reason]})"
            for reason, count in self.counts.most_common()
        ]
