"""Tables read column by column: the same to the bit as the row reader for blocks of plain lines, None for others.

numpy parses numbers as float() does but accepts fewer forms: no underscores, ASCII digits only. So the row reader would
read whatever is read here in the same way, and anything else (quotes, too many or too few cells, words, nan, bytes
beyond ASCII) goes to that reader, which names the line.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Array

Places = NDArray[np.int64]

DATE = "0000-00-00 00:00:00"
"""Digits stand where the zeros are, and T or a space between date and time."""
LONGEST_FRACTION = 20
LATEST_US = 2**53
"""Number of microseconds up to which every count is exact as a float."""


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
    """The positions of the wanted columns of a table."""

    delimiter: str
    columns: int
    arrival: int | None
    input: int
    output: int


def columns_of_block(block: bytes, first_line: int, wanted: Wanted, unit_s: float) -> Columns | None:
    """Return the requests of whole lines, with times in a unit of `unit_s`; None where a line is not plain."""
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
        values = np.loadtxt(lines, delimiter=wanted.delimiter, comments=None, usecols=numbers, ndmin=2)
    except ValueError:
        return None
    if arrival is None or values.shape[0] != len(lines) or not np.isfinite(values).all():
        return None
    if len(numbers) == 3:
        arrival = values[:, 2] * unit_s
    return Columns(first_line, arrival, values[:, 0].copy(), values[:, 1].copy())


def _bounds(letters: NDArray[np.uint8], wanted: Wanted) -> Places | None:
    """Return, for each line, the position before each cell and the end of the line; None unless every line has all cells."""
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
    """Return dates of ISO 8601 without a zone or in UTC as seconds since 1970; None for any other form."""
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
    """Return the fractions of the seconds in microseconds, further digits dropped; None for a zone other than UTC."""
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
