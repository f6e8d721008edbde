"""Traces as delimited text: Azure 2023 and 2024, BurstGPT, Vidur, and any table with times and token counts."""

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from capplan.errors import InputError
from capplan.recorded.traces.rows import (
    Columns,
    Row,
    TableLayout,
    blocks_of,
    columns_of_block,
    lines_of,
    lines_of_block,
    noted_unit,
    seconds_of,
)
from capplan.workload.statistics import Omissions

DELIMITERS = (",", ";", "\t", "|")
ARRIVAL = ("arrival_s", "arrived_at", "arrival_time_s", "arrival_time", "timestamp", "arrival", "time", "start_s", "start_time", "request_start_time", "arrival_ms", "timestamp_ms")  # fmt: skip
INPUT = ("input_tokens", "contexttokens", "input_toks", "input_length", "input_len", "num_prefill_tokens", "request tokens", "prompt_tokens", "prompt_len", "prompt tokens", "input")  # fmt: skip
OUTPUT = ("output_tokens", "generatedtokens", "output_toks", "output_length", "output_len", "num_decode_tokens", "response tokens", "completion_tokens", "generated_tokens", "output")  # fmt: skip
MOST_BAD_SHARE = 0.5
"""capplan rejects a file if a larger fraction of its rows are not requests."""


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
            return TableLayout(mark, 0, 0, 1, 2, 1.0, columns)
        raise InputError(
            f"{path}: has no header and {len(columns)} columns\n  add a header line: arrival_s,input_tokens,output_tokens"
        )

    def find(names: Sequence[str]) -> int | None:
        return next((columns.index(name) for name in names if name in columns), None)

    places = {names[0]: find(names) for names in (ARRIVAL, INPUT, OUTPUT)}
    no_times = places["arrival_s"] is None and "num_prefill_tokens" in columns
    for names in (ARRIVAL, INPUT, OUTPUT):
        if places[names[0]] is None and not (no_times and names is ARRIVAL):
            raise InputError(
                f"{path}: has no column {names[0]!r}\n  also accepted: {', '.join(names[1:])}\n  found: {', '.join(columns[:12])}"
            )
    arrival, tokens_in, tokens_out = places["arrival_s"], places["input_tokens"], places["output_tokens"]
    assert tokens_in is not None
    assert tokens_out is not None
    in_ms = arrival is not None and columns[arrival].endswith("_ms")
    return TableLayout(mark, 1, arrival, tokens_in, tokens_out, 1e-3 if in_ms else 1.0, columns)


def _number(cell: str, mark: str) -> float | None:
    text = cell.strip()
    try:
        return float(text.replace(",", ".") if mark == ";" else text)
    except ValueError:
        return None


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
    strict = _RowReader(path, layout, omissions, layout.unit_s if layout.unit_s != 1.0 else None)
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
            strict.seen += len(requests)
            yield requests


@dataclass(slots=True)
class _RowReader:
    """Reads a table line by line, and counts the lines that are not requests."""

    path: Path
    layout: TableLayout
    omissions: Omissions
    unit: float | None
    """Unit of the time stamps in seconds; None until the first one has been read."""
    seen: int = 0
    bad: int = 0

    def rows(self, lines: Iterable[tuple[int, str]]) -> Iterator[Row]:
        """Yield the requests of some lines."""
        layout = self.layout
        for number, line in lines:
            if not line.strip():
                continue
            self.seen += 1
            try:
                cells = line.split(layout.delimiter)
                if '"' in line:
                    cells = next(csv.reader([line], delimiter=layout.delimiter))
                if self.unit is None and layout.arrival is not None:
                    stamp = _number(cells[layout.arrival], layout.delimiter)
                    self.unit = noted_unit(stamp, self.omissions)
                yield _row(number, cells, layout, self.unit or 1.0)
            except (ValueError, IndexError, OverflowError, csv.Error) as error:
                self.bad += 1
                self.omissions.drop("is not a request", number, broken=True)
                if self.bad > MOST_BAD_SHARE * self.seen + 10:
                    raise InputError(f"{self.path}: line {number}: is not a request ({error})") from None


def _row(number: int, cells: Sequence[str], layout: TableLayout, unit: float) -> Row:
    if any("\r" in cell for cell in cells):
        raise ValueError("a carriage return inside the line")
    if len(cells) < len(layout.columns):
        raise ValueError(f"{len(cells)} cells where the header has {len(layout.columns)}")
    decimal_comma = layout.delimiter == ";"

    def cell(place: int) -> str:
        return cells[place].replace(",", ".") if decimal_comma else cells[place]

    arrival = math.nan if layout.arrival is None else seconds_of(cell(layout.arrival), unit)
    if math.isnan(arrival) and layout.arrival is not None:
        raise ValueError("the time stamp is not a number")
    return Row(number, arrival, float(cell(layout.input)), float(cell(layout.output)))
