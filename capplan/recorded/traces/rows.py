"""Lines, rows and columns of a traffic file, read the same to the bit either way, and traces as delimited text (Azure, BurstGPT, Vidur, any table)."""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from capplan.errors import LONGEST_SHOWN, InputError
from capplan.numbers import Array
from capplan.readers.text_file import numbered_blocks, numbered_lines, numbered_lines_of_block
from capplan.recorded.results.record import CLOCK_STEP_S, Row
from capplan.workload.statistics import LONGEST_TOKENS, PART_REQUESTS, Omissions, TracePart

_DATE = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:\.\d{1,6})?)\d*(?:Z|\+00:00)?")
"""A date of ISO 8601 in UTC; digits beyond the microsecond are left out."""
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
class TableLayout:
    """Positions of the columns of a table."""

    delimiter: str
    header_lines: int
    arrival: int | None
    input: int
    output: int
    columns: tuple[str, ...]


def columns_of_block(block: bytes, first_line: int, layout: TableLayout, unit_s: float) -> Columns | None:
    """Return the requests of whole lines, with times in a unit of `unit_s`; None where a line is not plain."""
    if block.count(b"\r"):
        block = block.replace(b"\r\n", b"\n")
    if not block.isascii() or any(mark in block for mark in (b'"', b"\r", b"\x00")):
        return None
    if not block.endswith(b"\n"):
        block += b"\n"
    if layout.delimiter == ";":
        block = block.replace(b",", b".")
    lines = block.decode().split("\n")[:-1]
    if any(line.count(layout.delimiter) != len(layout.columns) - 1 for line in lines):
        return None
    arrival: Array | None = np.full(len(lines), np.nan)
    numbers = [layout.input, layout.output]
    if layout.arrival is not None:
        stamps = [line.split(layout.delimiter)[layout.arrival] for line in lines]
        if stamps[0][4:5] == "-":
            arrival = _dates(stamps)
        else:
            numbers.append(layout.arrival)
    try:
        values = np.loadtxt(lines, delimiter=layout.delimiter, comments=None, usecols=numbers, ndmin=2)
    except ValueError:
        return None
    if arrival is None or values.shape[0] != len(lines) or not np.isfinite(values).all():
        return None
    if len(numbers) == 3:
        arrival = values[:, 2] * unit_s
    return Columns(first_line, arrival, values[:, 0].copy(), values[:, 1].copy())


def _dates(stamps: Iterable[str]) -> Array | None:
    """Return dates of ISO 8601 without a zone or in UTC as seconds since 1970; None for any other form."""
    found = [_DATE.fullmatch(stamp) for stamp in stamps]
    try:
        texts = np.array([f"{match[1]}T{match[2]}" for match in found if match])
        counts_us = texts.astype("datetime64[us]").astype(np.int64)
    except ValueError:
        return None
    if counts_us.size < len(found) or counts_us.min() < 0 or counts_us.max() >= LATEST_US:
        return None
    return np.asarray(counts_us / 1e6, dtype=np.float64)


LARGEST_STAMP = 1e24
"""A larger time stamp says nothing about the unit of its column."""
LATEST_S = 1e12
"""A later time stamp is an error in the file."""
YEAR_S = 365.25 * 86_400.0
LONGEST_S = 10 * YEAR_S
"""Longest traffic that is analysed minute by minute; time stamps further apart are not in the same unit."""
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


def number_of(written: Any) -> float:
    """Return a number as a file writes it, its thousands apart by commas or not; TypeError for true and false, which Python counts as 1 and 0.

    Examples
    --------
    >>> number_of("1500"), number_of("12,345")
    (1500.0, 12345.0)
    """
    if isinstance(written, (bool, dict, list)):
        raise TypeError(f"{json.dumps(written)[:LONGEST_SHOWN]} is not a number")
    if isinstance(written, str) and _THOUSANDS.fullmatch(written.strip()):
        return float(written.replace(",", ""))
    try:
        return float(written)
    except ValueError:
        raise ValueError(f"{str(written)[:LONGEST_SHOWN]!r} is not a number") from None


_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")


def seconds_of(value: object, factor: float = 1.0) -> float:
    """Return a time stamp in seconds: a number times its unit, or a date of ISO 8601, with a zone by its offset or name (UTC where it names none).

    Examples
    --------
    >>> seconds_of("1500", 1e-3), seconds_of("1970-01-01 00:00:02.5000000"), seconds_of("1970-01-01 01:00:00 Europe/Paris")
    (1.5, 2.5, 0.0)
    """
    if isinstance(value, (int, float)):
        return number_of(value) * factor
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    text = str(value).strip().strip('"')
    try:
        return float(text) * factor
    except ValueError:
        pass
    if text[:2].isdigit() and text[2:3] in "/.":
        raise ValueError(
            f"{text[:LONGEST_SHOWN]!r} does not say which is the month: write a date such as 2026-03-30 02:00:00"
        )
    text, zone = _with_zone(text)
    main, dot, rest = text.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    try:
        stamp = datetime.fromisoformat(f"{main}{dot}{rest[: min(digits, 6)]}{rest[digits:]}")
    except ValueError:
        raise ValueError(
            f"{text[:LONGEST_SHOWN]!r} is no time: write a number, or a date such as 2026-03-30 02:00:00"
        ) from None
    return (stamp if stamp.tzinfo else stamp.replace(tzinfo=zone)).timestamp()


_ZONED = re.compile(r"(.*?\d)\s*([+-]\d{2}:?\d{2})?\s+([A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*)\s*$")
"""A date, an offset, and the name of a zone."""


def _with_zone(text: str) -> tuple[str, tzinfo]:
    """Return a date without the name of its zone, and the zone; an offset next to a name decides, as Go writes both.

    Examples
    --------
    >>> _with_zone("2026-03-30 02:00:00 +0200 CEST")
    ('2026-03-30 02:00:00+0200', datetime.timezone.utc)
    """
    named = _ZONED.fullmatch(text)
    if named is None:
        return text, UTC
    date, offset, name = named.groups()
    if offset:
        return date + offset, UTC
    if name.upper() in ("UTC", "GMT", "Z"):
        return date, UTC
    try:
        return date, ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"time zone {name!r} is not known; write an offset such as +02:00, UTC, or a name such as Europe/Paris"
        ) from None


def stamp_of(written: object) -> float | None:
    """Return a time stamp that the unit of its column follows from: a number, or None for a date.

    Examples
    --------
    >>> stamp_of("1500"), stamp_of("1970-01-01 00:00:02")
    (1500.0, None)

    Raises
    ------
    ValueError
        it is neither, or out of range, so it says nothing of the unit
    """
    if not abs(seconds_of(written)) <= LARGEST_STAMP:
        raise ValueError("the time stamp is not a number, or out of range")
    try:
        return number_of(written)
    except (ValueError, TypeError):
        return None


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


def problem_of(row: Row) -> tuple[str, bool] | None:
    """Return why a row cannot be used, and whether it is broken, so that strict reading rejects the file; None where it can be used."""
    if not (math.isfinite(row.input_tokens) and math.isfinite(row.output_tokens)):
        return "a token count is not a finite number", True
    if row.input_tokens < 0 or row.output_tokens < 0:
        return "a token count is negative", True
    if row.output_tokens < 1:
        return "no output token", False
    if row.input_tokens < 1:
        return "no prompt token", False
    if row.input_tokens > LONGEST_TOKENS or row.output_tokens > LONGEST_TOKENS:
        return f"more than {LONGEST_TOKENS:,} tokens", False
    if row.arrival_s < 0:
        return "the time stamp is negative", True
    if math.isinf(row.arrival_s) or row.arrival_s > LATEST_S:
        return "the time stamp is out of range", False
    if row.ttft_s > row.e2e_s + CLOCK_STEP_S:
        return "the first token is later than the end", False
    return None


MOONCAKE = {"timestamp", "input_length", "output_length"}
"""Columns of Mooncake and AIPerf, whose time stamps are milliseconds from the start.

Source: https://github.com/ai-dynamo/aiperf/blob/main/docs/tutorials/fixed-schedule.md"""
SUFFIXES = {"_s": 1.0, "_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9}
"""Units at the end of a column's name."""
OLDEST_EPOCH_S = 1e9
"""A larger time stamp counts since 1970, so its size states its unit; this is September 2001."""
LEAST_RATE, MOST_RATE = 1e-3, 1e3
"""Mean requests per second that are 1,000 times less and more than the plausible 1 req/s: beyond them a unit is questioned."""


def unit_of_column(column: str, first: float | None, columns: Iterable[str], omissions: Omissions) -> float:
    """Return the unit of a column of time stamps in seconds, and note what the file does not state.

    Its size as an epoch states it, or its name, or other columns of the tool that wrote it; otherwise seconds are assumed.

    Parameters
    ----------
    column : its name, in lower case
    first : the first time stamp; None for a date
    columns : names of all columns
    omissions : gets the note, and the unit if it is assumed
    """
    if first is None:
        return 1.0
    factor, name = time_unit(first)
    named = next((seconds for suffix, seconds in SUFFIXES.items() if column.endswith(suffix)), None)
    if name != "s" and named in (None, 1.0, factor):
        omissions.note(f"time stamps are in {name} since 1970")
    elif named is not None:
        return named
    elif abs(first) < OLDEST_EPOCH_S:
        others = set(columns)
        in_ms = others >= MOONCAKE and "chat_id" not in others and not any(c.endswith("_s") for c in others)
        factor, name = (1e-3, "ms") if in_ms or "delay" in others else (1.0, "s")
        omissions.assumed_unit = name
        if in_ms or "chat_id" in others:
            omissions.note(f"time stamps are in {name}")
    return factor


def question_rate(requests: int, seconds: float, omissions: Omissions, name: str) -> None:
    """Note a mean rate that no service has; refuse it if the file does not state the unit of its time stamps.

    Parameters
    ----------
    requests : with a time stamp
    seconds : [s] from the first of them to the last
    omissions : of the file; gets the note
    name : of the file
    """
    rate = (requests - 1) / seconds if requests > 1 and seconds > 0.0 else 1.0
    if LEAST_RATE <= rate <= MOST_RATE:
        return
    if omissions.assumed_unit:
        raise InputError(
            f"{name}: its time stamps, read as {omissions.assumed_unit}, give {rate:,.3g} requests per second, and the file does not state their unit\n"
            "  name it: call the column arrival_s, arrival_ms, arrival_us or arrival_ns"
        )
    omissions.note(
        f"{rate:,.3g} requests per second on average is a rare rate: is the unit of the time stamps right?"
    )


def parts_of(rows: Iterable[Row | Columns], omissions: Omissions, name: str) -> Iterator[TracePart]:
    """Yield the usable rows in parts; the others are counted by reason.

    Raises
    ------
    InputError
        nothing in the file can be used, or its rate cannot be and it does not state the unit of its time stamps
    """
    used, earliest, latest = 0, math.inf, -math.inf
    for part in _even_parts(_usable_parts(rows, omissions)):
        used += len(part)
        earliest = min(earliest, float(part.arrival_s.min()))
        latest = max(latest, float(part.arrival_s.max()))
        yield part
    question_rate(used, latest - earliest, omissions, name)
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
            omissions.drop(problem[0], row.line, broken=problem[1])
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
            omissions.drop(problem[0], row.line, broken=problem[1])
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


DELIMITERS = (",", ";", "\t", "|")
ARRIVAL = ("arrival_s", "arrived_at", "arrival_time_s", "arrival_time", "timestamp", "arrival", "time", "start_s", "start_time", "request_start_time", "arrival_ms", "timestamp_ms", "arrival_us", "timestamp_us", "arrival_ns", "timestamp_ns", "timestamp_s")  # fmt: skip
INPUT = ("input_tokens", "contexttokens", "input_toks", "input_length", "input_len", "num_prefill_tokens", "request tokens", "prompt_tokens", "prompt_len", "prompt tokens", "input")  # fmt: skip
OUTPUT = ("output_tokens", "generatedtokens", "output_toks", "output_length", "output_len", "num_decode_tokens", "response tokens", "completion_tokens", "generated_tokens", "output")  # fmt: skip
MOST_BAD_SHARE = 0.5
"""capplan rejects a file if a larger fraction of its rows are not requests."""


@dataclass(slots=True)
class BadRows:
    """Counts the rows that are not requests, and rejects a file that consists of them by the first one."""

    path: Path
    omissions: Omissions
    seen: int = 0
    bad: int = 0
    first: str = ""

    def add(self, number: int, error: Exception) -> None:
        """Count a row that is not a request."""
        self.bad += 1
        self.first = self.first or f"{self.omissions.counted_in} {number}: is not a request ({error})"
        self.omissions.drop(
            "is not a request", number, broken=True, cause="" if isinstance(error, csv.Error) else str(error)
        )
        if self.bad > MOST_BAD_SHARE * self.seen + 10:
            raise InputError(f"{self.path}: {self.first}")


def delimiter_of(header: str) -> str:
    """Return the delimiter that splits a line into the most parts.

    Examples
    --------
    >>> delimiter_of("timestamp;input;output")
    ';'
    """
    return max(DELIMITERS, key=lambda mark: header.count(mark))


def columns_of(header: str) -> tuple[str, ...]:
    """Return the names in a header line, lower case."""
    mark = delimiter_of(header)
    try:
        cells = next(csv.reader([header], delimiter=mark), [])
    except csv.Error:
        cells = header.split(mark)
    return tuple(cell.strip().lower() for cell in cells)


def tool_of(columns: Sequence[str]) -> str:
    """Return the name of the published trace with these columns, or 'table of requests'."""
    known = {
        "Azure LLM inference trace": {"timestamp", "contexttokens", "generatedtokens"},
        "BurstGPT": {"timestamp", "request tokens", "response tokens"},
        "Vidur": {"num_prefill_tokens", "num_decode_tokens"},
    }
    return next((name for name, needed in known.items() if needed <= set(columns)), "table of requests")


def layout_of(path: Path, header: str) -> TableLayout:
    """Return the positions of times and token counts, by the names of the columns."""
    mark = delimiter_of(header)
    columns = columns_of(header)
    if len(columns) >= 2 and all(_number(cell, mark) is not None for cell in columns):
        if len(columns) == 3:
            return TableLayout(mark, 0, 0, 1, 2, columns)
        raise InputError(
            f"{path}: has no header and {len(columns)} columns\n  add a header line: arrival_s,input_tokens,output_tokens"
        )

    plain = [name.replace(" ", "_") for name in columns]

    def find(names: Sequence[str]) -> int | None:
        return next((plain.index(name) for each in names if (name := each.replace(" ", "_")) in plain), None)

    places = {names[0]: find(names) for names in (ARRIVAL, INPUT, OUTPUT)}
    if not any(place is not None for place in places.values()):
        if len(columns) > 1:
            raise no_requests(path, columns)
        raise InputError(
            f"{path}: is a text without columns, in which no engine is started; {KIND} is expected\n"
            "  or a manifest, or a script with the command of an engine: capplan init FILE --from SCRIPT"
        )
    no_times = places["arrival_s"] is None and "num_prefill_tokens" in columns
    for names in (ARRIVAL, INPUT, OUTPUT):
        if places[names[0]] is None and not (no_times and names is ARRIVAL):
            raise InputError(
                f"{path}: has no column {names[0]!r}\n  also accepted: {', '.join(names[1:])}\n  found: {', '.join(columns[:12])}"
            )
    arrival, tokens_in, tokens_out = places["arrival_s"], places["input_tokens"], places["output_tokens"]
    assert tokens_in is not None
    assert tokens_out is not None
    return TableLayout(mark, 1, arrival, tokens_in, tokens_out, columns)


def no_requests(path: Path, names: Sequence[str]) -> InputError:
    """Return the error for a file that has neither times nor lengths of requests by any name that is known."""
    hint = "\n  name them arrival_s, input_tokens and output_tokens" if len(names) > 1 else ""
    return InputError(
        f"{path}: has neither times nor lengths of requests by a name that is known; {KIND} is expected{hint}\n"
        f"  found: {', '.join(map(str, names[:12]))}"
    )


def _number(cell: str, mark: str) -> float | None:
    try:
        return float(_written(cell.strip(), mark))
    except ValueError:
        return None


def _written(cell: str, mark: str) -> str:
    """Return a cell with a decimal point; tables with a semicolon between cells may have a comma there."""
    return cell.replace(",", ".") if mark == ";" else cell


def table_rows(path: Path, omissions: Omissions) -> Iterator[Row | Columns]:
    """Yield the requests of a table, plain blocks of lines as columns; other rows are counted.

    Raises
    ------
    InputError
        a column is missing, or most rows are not requests
    """
    first_number, header = next(pair for pair in lines_of(path) if pair[1].strip())
    if "\r" in header:
        raise InputError(
            f"{path}: line {first_number} contains a carriage return; save the file with Unix or Windows line endings"
        )
    layout = layout_of(path, header)
    if layout.arrival is None:
        omissions.note("the file has no time stamps: lengths only")
    if not layout.header_lines:
        omissions.note("no header: columns are taken as arrival, input tokens, output tokens")
    strict = _RowReader(layout, None, BadRows(path, omissions))
    begin = first_number + layout.header_lines
    blocks = blocks_of(path)
    while True:
        try:
            number, block = next(blocks, (0, b""))
        except InputError:
            yield from strict.rows(pair for pair in lines_of(path) if pair[0] >= begin)
            return
        if not block:
            return
        start = 0
        while start < len(block) and (number < begin or (strict.unit is None and layout.arrival is not None)):
            end = block.find(b"\n", start) + 1 or len(block)
            if number >= begin:
                yield from strict.rows(lines_of_block(block[start:end], number, path))
            start, number = end, number + 1
        begin = max(begin, number + block.count(b"\n", start) + (not block.endswith(b"\n")))
        if start == len(block):
            continue
        requests = columns_of_block(block[start:], number, layout, strict.unit or 1.0)
        if requests is None:
            yield from strict.rows(lines_of_block(block[start:], number, path))
        else:
            strict.bad.seen += len(requests)
            yield requests


@dataclass(slots=True)
class _RowReader:
    """Reads a table line by line, and counts the lines that are not requests."""

    layout: TableLayout
    unit: float | None
    """Unit of the time stamps in seconds; None until the first one has been read."""
    bad: BadRows

    def rows(self, lines: Iterable[tuple[int, str]]) -> Iterator[Row]:
        """Yield the requests of some lines."""
        layout = self.layout
        for number, line in lines:
            if not line.strip():
                continue
            self.bad.seen += 1
            try:
                cells = line.split(layout.delimiter)
                if '"' in line:
                    cells = next(csv.reader([line], delimiter=layout.delimiter))
                if self.unit is None and layout.arrival is not None:
                    stamp = stamp_of(_written(cells[layout.arrival], layout.delimiter))
                    names = layout.columns if layout.header_lines else ("", "", "")
                    self.unit = unit_of_column(names[layout.arrival], stamp, names, self.bad.omissions)
                yield _row(number, cells, layout, self.unit or 1.0)
            except (ValueError, IndexError, OverflowError, csv.Error) as error:
                self.bad.add(number, error)


def _row(number: int, cells: Sequence[str], layout: TableLayout, unit: float) -> Row:
    if any("\r" in cell for cell in cells):
        raise ValueError("a carriage return inside the line")
    if len(cells) < len(layout.columns):
        raise ValueError(f"{len(cells)} cells where the header has {len(layout.columns)}")

    def cell(place: int) -> str:
        return _written(cells[place], layout.delimiter)

    arrival = math.nan if layout.arrival is None else seconds_of(cell(layout.arrival), unit)
    if math.isnan(arrival) and layout.arrival is not None:
        raise ValueError("the time stamp is not a number")
    return Row(number, arrival, number_of(cell(layout.input)), number_of(cell(layout.output)))
