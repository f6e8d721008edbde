"""Tables read column by column: for blocks of plain lines, bit for bit the result of the row reader; None for others.

numpy reads a number as float() does, but accepts less: no underscores, no digits beyond ASCII. So whatever is read here
the row reader would read alike, and anything else (quotes, too many or too few cells, words, nan, bytes beyond ASCII)
goes to that reader, which names the line.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Array

Places = NDArray[np.int64]

DATE = "0000-00-00 00:00:00"
"""Digits stand at the zeros; T may stand for the space."""
LONGEST_FRACTION = 20
LATEST_US = 2**53
"""Microseconds up to which their number is a float exactly."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Requests of successive lines, as in the file."""

    first_line: int
    arrival_s: Array
    """nan where the file has no times."""
    input_tokens: Array
    output_tokens: Array

    def __len__(self) -> int:
        """Return the number of lines."""
        return int(self.input_tokens.size)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which columns of a table hold what."""

    delimiter: str
    columns: int
    arrival: int | None
    input: int
    output: int


def columns_of_block(block: bytes, first_line: int, wanted: Wanted, unit_s: float) -> Columns | None:
    """Return the requests of whole lines, times in units of so many seconds; None where they are not plain."""
    if block.count(b"\r"):
        block = block.replace(b"\r\n", b"\n")
    if not block.isascii() or any(mark in block for mark in (b'"', b"\r", b"\x00")):
        return None
    if not block.endswith(b"\n"):
        block += b"\n"
    if wanted.delimiter == ";":
        block = block.replace(b",", b".")
    letters = np.frombuffer(block, dtype=np.uint8)
    bounds = _bounds(letters, wanted)
    if bounds is None:
        return None
    lines = block.decode().split("\n")[:-1]
    starts = bounds[:, 0] + 1
    arrival: Array | None = np.full(len(lines), np.nan)
    numbers = [wanted.input, wanted.output]
    if wanted.arrival is not None:
        starts = bounds[:, wanted.arrival] + 1
        if letters[min(int(starts[0]) + 4, letters.size - 1)] == ord("-"):
            arrival = _dates(letters, starts, bounds[:, wanted.arrival + 1])
        else:
            numbers.append(wanted.arrival)
    try:
        found = np.loadtxt(lines, delimiter=wanted.delimiter, comments=None, usecols=numbers, ndmin=2)
    except ValueError:
        return None
    if arrival is None or found.shape[0] != len(lines) or not np.isfinite(found).all():
        return None
    if len(numbers) == 3:
        arrival = found[:, 2] * unit_s
    return Columns(first_line, arrival, found[:, 0].copy(), found[:, 1].copy())


def _bounds(letters: NDArray[np.uint8], wanted: Wanted) -> Places | None:
    """Return by line where each cell begins, less one, and where the line ends; None unless all lines have all cells."""
    ends = letters == ord("\n")
    marks = np.flatnonzero(ends | (letters == ord(wanted.delimiter)))
    if marks.size % wanted.columns:
        return None
    cells = marks.reshape(-1, wanted.columns)
    if np.count_nonzero(ends) != cells.shape[0] or not ends[cells[:, -1]].all():
        return None
    before = np.append(-1, cells[:-1, -1])
    return np.column_stack([before, cells])


def _dates(letters: NDArray[np.uint8], starts: Places, ends: Places) -> Array | None:
    """Return dates of ISO 8601 without a zone or in UTC as seconds since 1970; None where they are written otherwise."""
    lengths = ends - starts
    most = int(lengths.max()) - len(DATE)
    if lengths.min() < len(DATE) or most > LONGEST_FRACTION:
        return None
    digits = letters[starts[:, None] + np.arange(len(DATE))].astype(np.int64) - ord("0")
    for place, mark in enumerate(DATE):
        column = digits[:, place] + ord("0")
        fits = digits[:, place] // 10 == 0 if mark == "0" else column == ord(mark)
        if not np.all(fits | (column == ord("T")) if mark == " " else fits):
            return None
    year, month, day, hour, minute, second = (
        digits[:, first:last] @ 10 ** np.arange(last - first - 1, -1, -1)
        for first, last in ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19))
    )
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    first_day, past_day = (m.astype("datetime64[D]").astype(np.int64) for m in (months, months + 1))
    sound = (year >= 1970) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= past_day - first_day)
    if not np.all(sound & (hour < 24) & (minute < 60) & (second < 60)):
        return None
    fraction_us = _fractions_us(letters, starts + len(DATE), ends, most)
    if fraction_us is None:
        return None
    seconds = (first_day + day - 1) * 86_400 + hour * 3600 + minute * 60 + second
    if seconds.max() >= LATEST_US // 10**6:
        return None
    return np.asarray((seconds * 10**6 + fraction_us) / 1e6, dtype=np.float64)


def _fractions_us(letters: NDArray[np.uint8], starts: Places, ends: Places, most: int) -> Places | None:
    """Return the microseconds behind the seconds, further digits dropped; None where a zone follows that is not UTC."""
    tail = letters[np.minimum(starts[:, None] + np.arange(most + 1), letters.size - 1)].astype(np.int64)
    tail[starts[:, None] + np.arange(most + 1) >= ends[:, None]] = 0
    inside = tail[:, 0] == ord(".")
    pointed = inside.copy()
    result = np.zeros(starts.size, dtype=np.int64)
    counted = np.zeros(starts.size, dtype=np.int64)
    for place in range(1, most + 1):
        digit = tail[:, place] - ord("0")
        inside = inside & (digit >= 0) & (digit <= 9)
        counted += inside
        if place <= 6:
            result += np.where(inside, digit * 10 ** (6 - place), 0)
    if np.any(pointed & (counted == 0)):
        return None
    zone_at = starts + np.where(pointed, counted + 1, 0)
    zone = ends - zone_at
    length = int(zone[0])
    if np.any(zone != length) or length not in (0, 1, 6):
        return None
    text = np.frombuffer(b"Z" if length == 1 else b"+00:00", dtype=np.uint8)[:length]
    if length and not np.array_equal(
        letters[zone_at[:, None] + np.arange(length)], np.broadcast_to(text, (starts.size, length))
    ):
        return None
    return result
