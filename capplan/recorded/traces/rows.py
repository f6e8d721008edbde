"""Lines and rows of a traffic file of any format: checked, and collected into parts of columns."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from capplan.errors import InputError
from capplan.numbers import Array
from capplan.readers.text_file import numbered_blocks, numbered_lines, numbered_lines_of_block
from capplan.recorded.traces.columns import Columns
from capplan.workload.statistics import LONGEST_TOKENS
from capplan.workload.trace import PART_REQUESTS, Omissions, TracePart

LATEST_S = 1e12
"""A later time stamp is an error in the file."""
YEAR_S = 365.25 * 86_400.0
LONGEST_S = 10 * YEAR_S
"""Longest traffic that is analysed minute by minute; time stamps further apart are not in the same unit."""
NO_BLOCKS: tuple[int, ...] = ()
HEAD_CHARACTERS = 65_536
KIND = "a request trace (.csv or .jsonl), a request log, or Prometheus text"


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of a file of traffic."""
    return numbered_lines(path, kind=KIND)


def blocks_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines of a file of traffic in blocks, unchecked, each with the number of its first line."""
    return numbered_blocks(path, kind=KIND)


def lines_of_block(block: bytes, first_line: int, path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbers and lines of one block, as lines_of does for a file."""
    return numbered_lines_of_block(block, first_line, path, kind=KIND)


def head_of(path: Path) -> str:
    """Return the first characters of a file, decompressed; InputError where it is empty or cannot be read."""
    text = ""
    for _, line in lines_of(path):
        text += line[:HEAD_CHARACTERS] + "\n"
        if len(text) >= HEAD_CHARACTERS:
            break
    if not text.strip():
        raise InputError(f"{path}: is empty; {KIND} is expected")
    return text


@dataclass(slots=True)
class Row:
    """One request, as in the file."""

    line: int
    arrival_s: float
    """nan where the file has no times."""
    input_tokens: float
    output_tokens: float
    block_ids: Sequence[int] = NO_BLOCKS
    ttft_s: float = math.nan
    e2e_s: float = math.nan


def seconds_of(value: object, factor: float = 1.0) -> float:
    """Return a time stamp in seconds: a number times its unit, or a date of ISO 8601 (UTC where it names no zone).

    Examples
    --------
    >>> seconds_of("1500", 1e-3), seconds_of("1970-01-01 00:00:02.5000000")
    (1.5, 2.5)
    """
    if isinstance(value, (int, float)):
        return float(value) * factor
    text = str(value).strip().strip('"')
    try:
        return float(text) * factor
    except ValueError:
        pass
    main, dot, rest = text.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    stamp = datetime.fromisoformat(f"{main}{dot}{rest[: min(digits, 6)]}{rest[digits:]}")
    return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()


def time_unit(first: float) -> tuple[float, str]:
    """Return the seconds of one unit of a time stamp, inferred from its size as an epoch, and the unit's name.

    Examples
    --------
    >>> time_unit(1795219776301.0)
    (0.001, 'ms')
    """
    for least, factor, name in ((1e17, 1e-9, "ns"), (1e14, 1e-6, "us"), (1e11, 1e-3, "ms")):
        if abs(first) >= least:
            return factor, name
    return 1.0, "s"


class Problem(NamedTuple):
    """Why a row cannot be used."""

    words: str
    broken: bool = False
    """The row is broken, not just unusable: strict reading refuses the file."""


def problem_of(row: Row) -> Problem | None:
    """Return why a row cannot be used; None where it can."""
    if not (math.isfinite(row.input_tokens) and math.isfinite(row.output_tokens)):
        return Problem("a token count is not a finite number", broken=True)
    if row.input_tokens < 0 or row.output_tokens < 0:
        return Problem("a token count is negative", broken=True)
    if row.output_tokens < 1:
        return Problem("no output token")
    if row.input_tokens < 1:
        return Problem("no prompt token")
    if row.input_tokens > LONGEST_TOKENS or row.output_tokens > LONGEST_TOKENS:
        return Problem(f"more than {LONGEST_TOKENS:,} tokens")
    if row.arrival_s < 0:
        return Problem("the time stamp is negative", broken=True)
    if math.isinf(row.arrival_s) or row.arrival_s > LATEST_S:
        return Problem("the time stamp is out of range")
    return None


def noted_unit(first: float | None, omissions: Omissions) -> float:
    """Return the unit of a time stamp in seconds, and note any unit other than the second."""
    factor, name = (1.0, "s") if first is None else time_unit(first)
    if name != "s":
        omissions.note(f"time stamps are in {name} since 1970")
    return factor


def parts_of(rows: Iterable[Row | Columns], omissions: Omissions, name: str) -> Iterator[TracePart]:
    """Yield the usable rows in parts; the others are counted by reason.

    Raises
    ------
    InputError
        nothing in the file can be used
    """
    used = 0
    for part in _even_parts(_usable_parts(rows, omissions)):
        used += len(part)
        yield part
    if not used:
        reasons = "; ".join(omissions.lines()) or "it holds a header and no requests"
        raise InputError(f"{name}: no request can be used: {reasons}")


def _usable_parts(rows: Iterable[Row | Columns], omissions: Omissions) -> Iterator[TracePart]:
    held: list[Row] = []
    blocks = 0
    for row in rows:
        if isinstance(row, Columns):
            yield part_of(held)
            yield _part_of_columns(row, omissions)
            held, blocks = [], 0
            continue
        problem = problem_of(row)
        if problem:
            omissions.drop(problem.words, row.line, broken=problem.broken)
            continue
        held.append(row)
        blocks += len(row.block_ids)
        if len(held) >= PART_REQUESTS or blocks >= 16 * PART_REQUESTS:
            yield part_of(held)
            held, blocks = [], 0
    yield part_of(held)


def _part_of_columns(columns: Columns, omissions: Omissions) -> TracePart:
    """Return the rows that problem_of has nothing against."""
    arrival, prompt, output = columns.arrival_s, columns.input_tokens, columns.output_tokens
    usable = (prompt >= 1) & (output >= 1) & (prompt <= LONGEST_TOKENS) & (output <= LONGEST_TOKENS)
    usable &= ~((arrival < 0.0) | (arrival > LATEST_S))
    for place in np.flatnonzero(~usable).tolist():
        row = Row(
            columns.first_line + place, float(arrival[place]), float(prompt[place]), float(output[place])
        )
        problem = problem_of(row)
        if problem:
            omissions.drop(problem.words, row.line, broken=problem.broken)
    count = int(np.count_nonzero(usable))
    unknown = np.full(count, np.nan)
    return TracePart(
        arrival_s=arrival[usable],
        input_tokens=np.rint(prompt[usable]).astype(np.int64),
        output_tokens=np.rint(output[usable]).astype(np.int64),
        block_counts=np.zeros(count, dtype=np.int64),
        block_ids=np.zeros(0, dtype=np.int64),
        ttft_s=unknown,
        e2e_s=unknown,
    )


def _even_parts(parts: Iterable[TracePart]) -> Iterator[TracePart]:
    """Yield parts of PART_REQUESTS each and the rest; parts with block hashes stay as they are."""
    held: list[TracePart] = []
    count = 0
    for part in parts:
        held.append(part)
        count += len(part)
        cut = count if part.block_ids.size else count // PART_REQUESTS * PART_REQUESTS
        if cut:
            whole = _joined(held)
            step = cut if part.block_ids.size else PART_REQUESTS
            yield from (_piece(whole, start, start + step) for start in range(0, cut, step))
            held, count = [_piece(whole, cut, count)], count - cut
    if count:
        yield _joined(held)


def _joined(parts: Sequence[TracePart]) -> TracePart:
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(TracePart)]
    return TracePart(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _piece(part: TracePart, start: int, stop: int) -> TracePart:
    if start == 0 and stop == len(part):
        return part
    names = [field.name for field in fields(TracePart) if field.name != "block_ids"]
    return replace(part, **{name: getattr(part, name)[start:stop] for name in names})


def part_of(rows: Sequence[Row]) -> TracePart:
    """Return the columns of some rows."""
    return TracePart(
        arrival_s=np.array([row.arrival_s for row in rows]),
        input_tokens=np.rint([row.input_tokens for row in rows]).astype(np.int64),
        output_tokens=np.rint([row.output_tokens for row in rows]).astype(np.int64),
        block_counts=np.array([len(row.block_ids) for row in rows], dtype=np.int64),
        block_ids=np.array([block for row in rows for block in row.block_ids], dtype=np.int64),
        ttft_s=_latencies([row.ttft_s for row in rows]),
        e2e_s=_latencies([row.e2e_s for row in rows]),
    )


def _latencies(seconds: Sequence[float]) -> Array:
    """Return measured times, with nan (unknown) for impossible ones."""
    times = np.array(seconds)
    return np.where((times >= 0) & (times <= LATEST_S), times, np.nan)
