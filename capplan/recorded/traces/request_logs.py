"""Request logs of gateways, tracing tools and providers, as CSV, JSON or Parquet: `logs.json` says what each of them calls its fields."""

import csv
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from capplan.errors import InputError
from capplan.readers.text_file import MAX_RESULT_BYTES, first_bytes, json_values, mapped, read_json, read_text
from capplan.recorded.results.record import Row
from capplan.recorded.traces.rows import (
    ARRIVAL,
    INPUT,
    KIND,
    LATEST_S,
    LONGEST_S,
    OUTPUT,
    BadRows,
    columns_of,
    delimiter_of,
    lines_of,
    number_of,
    seconds_of,
    stamp_of,
    unit_of_column,
)
from capplan.workload.statistics import (
    DAY_S,
    LONGEST_TOKENS,
    WINDOW_S,
    Omissions,
    WorkloadSummary,
    length_summary,
    rates_by_window,
)

PARQUET = b"PAR1"
"""First bytes of a Parquet file (https://parquet.apache.org/docs/file-format/)."""
LONGEST_CELL = 32_000_000
"""Logs hold prompts, so a cell may be as long as a line."""
MOST_NESTED = 8
BUCKETS = "usage by bucket"
"""Logs of providers that add up the requests of an hour or a day."""
SPANS = "OpenTelemetry spans"
_QUOTED = re.compile(r'"([\w. ]{1,80})"')
_USAGE = re.compile(r'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')

Entry = Mapping[str, Any]
"""One request with flat keys: lower case, without underscores and spaces, a dot between the parts."""


@dataclass(frozen=True, slots=True)
class LogFormat:
    """What a log calls the fields of a request; the first name with a value is read."""

    name: str
    known_by: tuple[tuple[str, ...], ...]
    """Sets of keys; a file with all keys of one set is of this format."""
    arrival: tuple[str, ...]
    input: tuple[str, ...]
    output: tuple[str, ...]
    end: tuple[str, ...] = ()
    first_token: tuple[str, ...] = ()
    """Time stamps of the first token; equal to the end if the answer was not streamed."""
    ttft: Mapping[str, float] = field(default_factory=dict)
    """Name of a duration -> its unit in seconds."""
    e2e: Mapping[str, float] = field(default_factory=dict)
    only: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """What an entry is that is left out -> key -> values that a request has."""
    without: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """What an entry is that is left out -> key -> values that such an entry has."""
    requests: tuple[str, ...] = ()
    """Number of requests in a bucket."""
    cached: tuple[str, ...] = ()
    """Input tokens of a bucket that were read from a cache."""


@cache
def log_formats() -> Mapping[str, LogFormat]:
    """Return the known formats by name, in the order in which they are looked for."""
    table = read_json(Path(__file__).parent / "logs.json")
    return {
        name: _format(name, {key: value for key, value in keys.items() if key != "source"})
        for name, keys in table.items()
    }


def _format(name: str, keys: Mapping[str, Any]) -> LogFormat:
    known_by = tuple(map(tuple, keys["known_by"]))
    lists = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
    return LogFormat(name, **lists | {"known_by": known_by})


def plain_key(written: str) -> str:
    """Return a key as `logs.json` writes it.

    Examples
    --------
    >>> plain_key("gen_ai.usage.input_tokens"), plain_key("startTime")
    ('genai.usage.inputtokens', 'starttime')
    """
    return written.lower().replace("_", "").replace(" ", "")


TABLE = "table of requests"
_TABLE = LogFormat(
    TABLE,
    known_by=(),
    arrival=tuple(map(plain_key, ARRIVAL)),
    input=tuple(map(plain_key, INPUT)),
    output=tuple(map(plain_key, OUTPUT)),
)


def log_format_of(keys: Iterable[str]) -> str | None:
    """Return the format of a log that has these keys; None if it is none of the known ones."""
    present = {plain_key(key) for key in keys}
    return next(
        (
            name
            for name, log in log_formats().items()
            if any(present.issuperset(known) for known in log.known_by)
        ),
        None,
    )


def has_requests(keys: Iterable[str]) -> bool:
    """Return whether keys name a time and both lengths of a request, as those of traces do."""
    present = {plain_key(key) for key in keys}
    names = (_TABLE.arrival, _TABLE.input, _TABLE.output)
    return all(present.intersection(alternatives) for alternatives in names)


def quoted_words(head: str) -> set[str]:
    """Return the short texts in quotes at the beginning of a JSON file; its keys are among them."""
    return set(_QUOTED.findall(head))


def is_parquet(path: Path) -> bool:
    """Return whether a file is Parquet."""
    return first_bytes(path, len(PARQUET)) == PARQUET


def parquet_format(path: Path) -> str:
    """Return the format of the log in a Parquet file; InputError if its columns are none of a known log."""
    _, columns = _parquet(path)
    known = log_format_of(columns) or (TABLE if has_requests(columns) else None)
    if known is None:
        raise InputError(
            f"{path}: its columns are those of no known log: {', '.join(columns[:12])}\n"
            "  name them arrival_s, input_tokens and output_tokens"
        )
    return known


def request_log_rows(path: Path, name: str, omissions: Omissions) -> Iterator[Row]:
    """Yield the requests of a log; entries that are none are counted.

    Raises
    ------
    InputError
        the entries have no times or token counts, or most of them are not requests
    """
    log = _TABLE if name == TABLE else log_formats()[name]
    entries: Iterable[tuple[int, Entry]] = _entries(path, log, omissions)
    if name == SPANS:
        entries = _outer_spans(list(entries), log, omissions)
    bad, unit = BadRows(path, omissions), None
    for number, entry in entries:
        bad.seen += 1
        if _left_out(log, entry, number, omissions):
            continue
        if "hashids" in entry:
            omissions.note("hash_ids are read from JSON lines only, so the reuse of prefixes is not known")
        try:
            if unit is None:
                unit = _unit(log, entry, omissions)
            row = _row(number, entry, log, unit)
        except (ValueError, TypeError, OverflowError) as error:
            bad.add(number, error)
            continue
        if row is None:
            omissions.drop("no token counts", number)
        else:
            yield row


def _left_out(log: LogFormat, entry: Entry, number: int, omissions: Omissions) -> bool:
    """Return whether an entry is no request of the engine, and count it."""
    for reason, keys in log.only.items():
        if any(_text(entry, key) not in {"", *values} for key, values in keys.items()):
            omissions.drop(reason, number)
            return True
    for reason, keys in log.without.items():
        if any(_text(entry, key) in values for key, values in keys.items()):
            omissions.drop(reason, number)
            return True
    return False


def _text(entry: Entry, key: str) -> str:
    value = entry.get(key)
    return "" if value is None else str(value).strip().lower()


def _unit(log: LogFormat, entry: Entry, omissions: Omissions) -> float:
    key = next((key for key in log.arrival if _text(entry, key)), None)
    if key is None:
        raise ValueError(f"no time stamp; expected: {', '.join(log.arrival)}")
    written = {plain_key(name): name for name in (*ARRIVAL, *INPUT, *OUTPUT)} if log is _TABLE else {}
    return unit_of_column(
        written.get(key, key), stamp_of(entry[key]), [written.get(name, name) for name in entry], omissions
    )


def _row(number: int, entry: Entry, log: LogFormat, unit: float) -> Row | None:
    """Return the request of an entry; None without token counts."""
    arrival = _stamp(entry, log.arrival, unit)
    if math.isnan(arrival):
        raise ValueError(f"no time stamp; expected: {', '.join(log.arrival)}")
    tokens = _count(entry, log.input), _count(entry, log.output)
    if tokens[0] is None or tokens[1] is None:
        return None
    end, first = _stamp(entry, log.end, unit), _stamp(entry, log.first_token, unit)
    ttft, e2e = _duration(entry, log.ttft), _duration(entry, log.e2e)
    if math.isnan(e2e) and end > arrival:
        e2e = end - arrival
    if math.isnan(ttft) and arrival < first < end:
        ttft = first - arrival
    return Row(number, arrival, tokens[0], tokens[1], (), ttft, e2e)


def _stamp(entry: Entry, names: Sequence[str], unit: float) -> float:
    key = next((name for name in names if _text(entry, name)), None)
    return math.nan if key is None else seconds_of(entry[key], unit)


def _duration(entry: Entry, units: Mapping[str, float]) -> float:
    key = next((name for name in units if _text(entry, name)), None)
    return math.nan if key is None else number_of(entry[key]) * units[key]


def _count(entry: Entry, names: Sequence[str]) -> float | None:
    """Return a number of tokens: that of the first name, or the sum over names with a `*`; None where there is none."""
    for name in names:
        found = [key for key in entry if fnmatchcase(key, name)] if "*" in name else [name]
        values = [number_of(entry[key]) for key in found if _text(entry, key)]
        if values:
            return sum(values)
    return None


def _outer_spans(
    entries: Sequence[tuple[int, Entry]], log: LogFormat, omissions: Omissions
) -> Iterator[tuple[int, Entry]]:
    """Yield spans without those inside the span of a request, which state its tokens a second time."""
    inside = "a span inside the span of its request"
    unseen = Omissions()
    requests = {
        _text(entry, "spanid") or _text(entry, "context.spanid")
        for number, entry in entries
        if any(_text(entry, name) for name in log.output) and not _left_out(log, entry, number, unseen)
    }
    for number, entry in entries:
        parent = _text(entry, "parentspanid") or _text(entry, "parentid")
        if parent and parent in requests and any(_text(entry, name) for name in log.output):
            omissions.drop(inside, number)
        else:
            yield number, entry


def _entries(path: Path, log: LogFormat, omissions: Omissions) -> Iterator[tuple[int, Entry]]:
    """Yield the entries of a log with flat keys, each with its line, or with its number where lines say nothing."""
    if is_parquet(path):
        omissions.counted_in = "row"
        yield from _parquet_entries(path, log)
        return
    lines = ((number, line) for number, line in lines_of(path) if line.strip())
    first = next(lines, (1, ""))
    if not first[1].lstrip().startswith(("{", "[")):
        yield from _table_entries(first, lines, path)
    elif _is_object(first[1]):
        yield from _line_entries(chain([first], lines), path, omissions)
    else:
        omissions.counted_in = "entry"
        text = read_text(path, kind=KIND, max_bytes=MAX_RESULT_BYTES, unpacked=True)
        found = (entry for value in json_values(text, str(path)) for entry in _unpacked(value))
        yield from ((number, dict(_flat(entry))) for number, entry in enumerate(found, 1))


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _line_entries(
    lines: Iterable[tuple[int, str]], path: Path, omissions: Omissions
) -> Iterator[tuple[int, Entry]]:
    bad = BadRows(path, omissions)
    for number, line in lines:
        bad.seen += 1
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            bad.add(number, error)
            continue
        for entry in _unpacked(value):
            yield number, dict(_flat(entry))


def _table_entries(
    header: tuple[int, str], lines: Iterable[tuple[int, str]], path: Path
) -> Iterator[tuple[int, Entry]]:
    """Yield the rows of a table, whose cells may go over several lines."""
    mark, names = delimiter_of(header[1]), [plain_key(name) for name in columns_of(header[1])]
    before = csv.field_size_limit(LONGEST_CELL)
    last = header[0]

    def texts() -> Iterator[str]:
        nonlocal last
        for number, line in lines:
            last = number
            yield line + "\n"

    try:
        rows = csv.reader(texts(), delimiter=mark)
        for cells in rows:
            yield last, dict(_flat(dict(zip(names, cells, strict=False))))
    except csv.Error as error:
        raise InputError(f"{path}: line {last}: is not CSV ({error})") from None
    finally:
        csv.field_size_limit(before)


def _parquet(path: Path) -> tuple[Any, list[str]]:
    """Return an open Parquet file and the names of its columns."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"{path}: is a Parquet file, which pyarrow reads: pip install 'capplan[parquet]'"
        ) from None
    with mapped(path, KIND) as content:
        held = bytes(content)
    try:
        file = parquet.ParquetFile(pa.BufferReader(held))
        return file, list(file.schema_arrow.names)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def _parquet_entries(path: Path, log: LogFormat) -> Iterator[tuple[int, Entry]]:
    """Yield the rows of a Parquet file, only of columns that are used; times without a zone are UTC."""
    import pyarrow as pa

    groups = (
        log.arrival,
        log.input,
        log.output,
        log.end,
        log.first_token,
        log.ttft,
        log.e2e,
        log.requests,
        log.cached,
    )
    used = {name.partition(".")[0] for group in groups for name in group}
    used |= {"hashids", "delay"}
    used |= {key for rule in (log.only, log.without) for keys in rule.values() for key in keys}
    file, names = _parquet(path)
    columns = [name for name in names if plain_key(name).partition(".")[0] in used]
    number = 0
    try:
        for batch in file.iter_batches(columns=columns):
            for row in batch.to_pylist():
                number += 1
                yield number, dict(_flat(row))
    except (pa.ArrowException, OSError, OverflowError, ValueError) as error:
        raise InputError(f"{path}: row {number + 1}: cannot be read ({error})") from None


def _unpacked(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a page, of a bucket or of the spans of a resource; anything else as it is."""
    if isinstance(value, list):
        yield from chain.from_iterable(map(_unpacked, value))
    elif not isinstance(value, Mapping):
        yield {}
    elif "resourceSpans" in value:
        for resource in _objects(value, "resourceSpans"):
            for scope in (
                *_objects(resource, "scopeSpans"),
                *_objects(resource, "instrumentationLibrarySpans"),
            ):
                yield from _objects(scope, "spans")
    elif isinstance(value.get("data"), list):
        yield from chain.from_iterable(map(_unpacked, value["data"]))
    elif isinstance(value.get("data"), Mapping):
        yield value["data"]
    elif isinstance(value.get("results"), list):
        yield from ({**value, **result} for result in _objects(value, "results") or [{}])
    elif isinstance(value.get("responses"), list):
        yield {**value, "usage": _usage(value["responses"])}
    else:
        yield value


def _objects(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = value.get(key)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def _usage(responses: Sequence[Any]) -> Any:
    """Return the token counts in the last response that has some; empty where the server reported none."""
    for response in reversed(responses):
        texts = [json.dumps(response), *_strings(response)]
        for text in texts:
            found = _USAGE.findall(text)
            if found:
                try:
                    return json.loads(found[-1])
                except ValueError:
                    continue
    return {}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from chain.from_iterable(map(_strings, value))
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(map(_strings, value.values()))


def _flat(value: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings by flat key; attributes of a span, and of its context, without what holds them."""
    for written, stated in value.items():
        key = prefix + plain_key(str(written))
        inner = _of_cell(stated) if key.endswith("details") else stated
        if key == "attributes" and isinstance(inner, list):
            for item in _objects(value, written):
                held = item.get("value")
                if isinstance(held, Mapping):
                    yield plain_key(str(item.get("key"))), next(iter(held.values()), None)
        elif isinstance(inner, Mapping) and depth < MOST_NESTED:
            yield from _flat(inner, "" if key == "attributes" else f"{key}.", depth + 1)
        elif not isinstance(inner, (Mapping, list)) or key == "hashids":
            yield key, inner


def _of_cell(stated: Any) -> Any:
    """Return what a cell of a table states as JSON; anything else as it is."""
    try:
        return json.loads(stated) if isinstance(stated, str) and stated.startswith("{") else stated
    except (ValueError, RecursionError):
        return stated


def bucket_summary(path: Path) -> WorkloadSummary:
    """Return the traffic of a log that adds up the requests of each hour or day: rates by window, and mean lengths.

    Raises
    ------
    InputError
        a bucket is broken, or how long the buckets are is not known
    """
    log, omissions = log_formats()[BUCKETS], Omissions()
    totals = np.zeros(4)
    by_start: dict[float, float] = defaultdict(float)
    widths: set[float] = set()
    unit: float | None = None
    for number, entry in _entries(path, log, omissions):
        if _left_out(log, entry, number, omissions):
            continue
        try:
            unit = _unit(log, entry, omissions) if unit is None else unit
            start, end = _stamp(entry, log.arrival, unit), _stamp(entry, log.end, unit)
            counted = [
                _count(entry, names) or 0.0 for names in (log.requests, log.input, log.output, log.cached)
            ]
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(f"{path}: {omissions.counted_in} {number}: is not a bucket ({error})") from None
        sound = 0 <= start <= LATEST_S and (math.isnan(end) or 0 <= end <= LATEST_S)
        if not (sound and all(0 <= value <= 1e15 for value in counted)):
            raise InputError(f"{path}: {omissions.counted_in} {number}: a time or a count is out of range")
        by_start[start] += counted[0]
        totals += counted
        widths |= {end - start} if end > start else set()
    return _bucket_summary(path, by_start, widths, totals, omissions)


def _bucket_summary(
    path: Path, by_start: Mapping[float, float], widths: set[float], totals: Any, omissions: Omissions
) -> WorkloadSummary:
    requests, prompts, outputs, cached = totals.tolist()
    starts = sorted(by_start)
    if not requests or not prompts or not outputs:
        raise InputError(f"{path}: its buckets hold no requests with input and output tokens")
    steps = np.diff(starts)
    width = min(widths) if widths else float(steps.min()) if steps.size else 0.0
    unsure = not widths and width > DAY_S  # of weeks, or of days with none between them
    if unsure or width < WINDOW_S or len({round(w) for w in widths}) > 1:
        raise InputError(
            f"{path}: does not state how long its buckets are, or they differ, or are shorter than a minute; export them with one width, such as 1h"
        )
    if starts[-1] - starts[0] > LONGEST_S:
        raise InputError(f"{path}: its buckets lie more than ten years apart")
    means = [np.array([min(total / requests, float(LONGEST_TOKENS))]) for total in (prompts, outputs)]
    return WorkloadSummary(
        name=path.name.split(".")[0],
        format=BUCKETS,
        requests=round(requests),
        rate=rates_by_window({start: count / width for start, count in by_start.items()}, width, None),
        input_tokens=length_summary(means[0], np.array([requests])),
        output_tokens=length_summary(means[1], np.array([requests])),
        prefix_hit_fraction=min(cached / prompts, 1.0) if cached else None,
        omissions=tuple(omissions.lines()),
        notes=(
            f"rates are known by windows of {width:,.0f} s, so the peak is that of the busiest window: the busiest minute is higher",
            "lengths are means only: longer requests are not in them; state a p95, or give a log of single requests",
            *omissions.notes,
        ),
    )
