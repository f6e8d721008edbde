"""Lines of a file of traffic, and its rows, whatever their format: checked, and gathered into parts of columns."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from capplan.errors import InputError
from capplan.readers.text_file import numbered_lines
from capplan.workload.statistics import LONGEST_TOKENS
from capplan.workload.trace import PART_REQUESTS, Omissions, TracePart

NO_TOKENS: tuple[int, ...] = ()
HEAD_CHARACTERS = 65_536
KIND = "a request trace (.csv or .jsonl), a request log, or Prometheus text"


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of a file of traffic."""
    return numbered_lines(path, kind=KIND)


def head_of(path: Path) -> str:
    """Return the first characters of a file, unpacked; InputError where it is empty or cannot be read."""
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
    """One request as the file has it."""

    line: int
    arrival_s: float
    """nan where the file has no times."""
    input_tokens: float
    output_tokens: float
    block_ids: Sequence[int] = NO_TOKENS
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
    """Return the seconds of one unit of a time stamp, told by the size of an epoch, and its name.

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
    """It cannot be what the writer of the file meant: strict reading refuses the file."""


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
    if math.isinf(row.arrival_s) or row.arrival_s > 1e12:
        return Problem("the time stamp is out of range")
    return None


def noted_unit(first: float | None, omissions: Omissions) -> float:
    """Return the seconds of one unit of a time stamp, and note a unit that is not the second."""
    factor, name = (1.0, "s") if first is None else time_unit(first)
    if name != "s":
        omissions.note(f"time stamps are in {name} since 1970")
    return factor


def parts_of(rows: Iterable[Row], omissions: Omissions, name: str) -> Iterator[TracePart]:
    """Yield the usable rows in parts; the others are counted by reason.

    Raises
    ------
    InputError
        nothing in the file can be used
    """
    held: list[Row] = []
    blocks = 0
    used = 0
    for row in rows:
        problem = problem_of(row)
        if problem:
            omissions.drop(problem.words, row.line, broken=problem.broken)
            continue
        held.append(row)
        blocks += len(row.block_ids)
        if len(held) >= PART_REQUESTS or blocks >= 16 * PART_REQUESTS:
            used += len(held)
            yield part_of(held)
            held, blocks = [], 0
    used += len(held)
    if not used:
        reasons = "; ".join(omissions.lines()) or "it holds a header and no requests"
        raise InputError(f"{name}: no request can be used: {reasons}")
    if held:
        yield part_of(held)


def part_of(rows: Sequence[Row]) -> TracePart:
    """Return the columns of some rows."""
    return TracePart(
        arrival_s=np.array([row.arrival_s for row in rows]),
        input_tokens=np.rint([row.input_tokens for row in rows]).astype(np.int64),
        output_tokens=np.rint([row.output_tokens for row in rows]).astype(np.int64),
        block_counts=np.array([len(row.block_ids) for row in rows], dtype=np.int64),
        block_ids=np.array([block for row in rows for block in row.block_ids], dtype=np.int64),
        ttft_s=np.array([row.ttft_s for row in rows]),
        e2e_s=np.array([row.e2e_s for row in rows]),
    )
