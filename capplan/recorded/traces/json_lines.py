"""Traces as JSON lines, of trace players, gateways, benchmark tools and agents, and the rates of clients of ServeGen."""

import json
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from capplan.errors import InputError
from capplan.numbers import Array
from capplan.readers.text_file import is_there
from capplan.recorded.results.read import request_log
from capplan.recorded.results.record import NO_BLOCKS, ResultValues, Row, result_objects
from capplan.recorded.traces.rows import (
    ARRIVAL,
    INPUT,
    LATEST_S,
    LONGEST_S,
    OUTPUT,
    BadRows,
    columns_of,
    lines_of,
    no_requests,
    number_of,
    seconds_of,
    stamp_of,
    time_unit,
    unit_of_column,
)
from capplan.workload.statistics import (
    LONGEST_TOKENS,
    LengthSummary,
    Omissions,
    WorkloadSummary,
    length_summary,
    rates_by_window,
)

SCOPE_IDS = 2**40
"""Block ids of one session, where they are its own: a session's ids begin at a multiple of this."""
DEEPEST = 8
"""Sub-agents of sub-agents that are read."""


class _Seen:
    """What the sessions of a trace hold, for its notes."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self.gaps_s: list[float] = []
        self.children = 0
        self.most_parallel = 1

    def notes(self) -> list[str]:
        """Return what the trace holds, as people read it."""
        if not self.turns:
            return []
        gap = f", {median(self.gaps_s):.3g} s from turn to turn" if self.gaps_s else ""
        lines = [f"{len(self.turns):,} sessions of {median(self.turns):g} turns in the median{gap}"]
        if self.children:
            lines.append(f"{self.children:,} sub-agents, at most {self.most_parallel} at the same time")
        return lines


def weka_block_tokens(path: Path) -> int:
    """Return the tokens of a block of a Weka trace."""
    for number, line in lines_of(path):
        if line.strip():
            return int(_session(line, number, path)["block_size"])
    raise InputError(f"{path}: is empty")


def _session(line: str, number: int, path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: line {number}: is not a JSON object ({error})") from None
    size = value.get("block_size") if isinstance(value, dict) else None
    whole = isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= LONGEST_TOKENS
    if not whole or not isinstance(value.get("requests"), list):
        raise InputError(
            f"{path}: line {number}: a session needs block_size, a whole number of at most {LONGEST_TOKENS:,}, and requests, a list"
        )
    return dict(value)


def weka_rows(path: Path, omissions: Omissions) -> Iterator[Row]:
    """Yield the requests of all sessions, each at its recorded time; sessions start together, as no clock joins them."""
    seen = _Seen()
    for index, (number, line) in enumerate((n, text) for n, text in lines_of(path) if text.strip()):
        session = _session(line, number, path)
        base = 0 if session.get("hash_id_scope") == "global" else index * SCOPE_IDS
        turns = list(_turns(session["requests"], 0.0, base, number, omissions, seen, 0))
        seen.turns.append(len(turns))
        times = sorted(row.arrival_s for row in turns)
        seen.gaps_s += [later - earlier for earlier, later in pairwise(times)]
        yield from turns
    omissions.note("sessions start together: no clock joins them")
    for text in seen.notes():
        omissions.note(text)


def _turns(
    requests: object, start_s: float, base: int, number: int, omissions: Omissions, seen: _Seen, depth: int
) -> Iterator[Row]:
    """Yield the requests of one session or sub-agent, those of its sub-agents included."""
    running: list[tuple[float, float]] = []
    for own in requests if isinstance(requests, list) else []:
        if not isinstance(own, dict):
            omissions.drop("is not a request", number, broken=True)
            continue
        at_s = _number(own.get("t"))
        if own.get("type") == "subagent" and depth < DEEPEST:
            inner = own.get("requests")
            first = (
                min((_number(one.get("t")) for one in inner if isinstance(one, dict)), default=0.0)
                if isinstance(inner, list)
                else 0.0
            )
            # Times of a sub-agent count from its marker, or from the start of the whole session.
            offset = start_s + at_s if first < at_s else start_s
            rows = list(_turns(inner, offset, base, number, omissions, seen, depth + 1))
            seen.children += 1
            if rows:
                running.append((min(row.arrival_s for row in rows), max(row.arrival_s for row in rows)))
            yield from rows
            continue
        row = Row(
            number,
            start_s + at_s,
            _number(own.get("in")),
            _number(own.get("out")),
            _ids(own.get("hash_ids"), base),
            _number(own.get("ttft")),
            _number(own.get("api_time")),
        )
        if math.isnan(row.arrival_s + row.input_tokens + row.output_tokens):
            omissions.drop("is not a request", number, broken=True)
        else:
            yield row
    seen.most_parallel = max(seen.most_parallel, _together(running))


def _together(spans: list[tuple[float, float]]) -> int:
    """Return how many of these spans of time overlap at most; one that begins as another ends overlaps it.

    Examples
    --------
    >>> _together([(0.0, 5.0), (2.0, 3.0), (4.0, 9.0)])
    2
    """
    begins, ends = sorted(begin for begin, _ in spans), sorted(end for _, end in spans)
    return max((place - bisect_left(ends, begin) for place, begin in enumerate(begins, 1)), default=0)


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def _ids(value: object, base: int) -> list[int]:
    if not isinstance(value, list):
        return list(NO_BLOCKS)
    return [base + int(block) for block in value if isinstance(block, int) and 0 <= block < SCOPE_IDS]


class SessionClock:
    """Arrival times of turns that say how long after the turn before them they came."""

    def __init__(self) -> None:
        """Start without sessions."""
        self._last_s: dict[str, float] = {}
        self.delayed = 0

    def arrival_s(self, row: Mapping[str, Any], written: object, unit_s: float) -> float:
        """Return the time of a turn: its stamp as written, else that of the session's turn before it and its delay in ms.

        Examples
        --------
        >>> clock = SessionClock()
        >>> first = clock.arrival_s({"session_id": "a"}, 2000, 1e-3)
        >>> first, clock.arrival_s({"session_id": "a", "delay": 500}, None, 1e-3)
        (2.0, 2.5)
        """
        session = str(row.get("session_id"))
        if written is not None:
            stamp = _stamp(written, unit_s)
        else:
            stamp = self._last_s.get(session, 0.0) + max(0.0, _number(row.get("delay"))) * 1e-3
            self.delayed += 1
        self._last_s[session] = stamp
        return stamp


BLOCK_SIZES = (512, 16, 256, 128, 64, 32, 1024, 2048)
"""Block sizes that are recognised, in tokens: Mooncake hashes 512, Bailian and vLLM 16."""
SAMPLE = 200


def block_tokens_of(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the block size at which most prompts have one hash per block, with or without a partial last block.

    Examples
    --------
    >>> block_tokens_of([{"input_length": 1000, "hash_ids": [1, 2]}, {"input_length": 513, "hash_ids": [1, 3]}])
    512
    """
    hashed = [
        (int(row["input_length"]), len(row["hash_ids"]))
        for row in rows
        if isinstance(row.get("hash_ids"), list)
        and row["hash_ids"]
        and 0 < _number(row.get("input_length")) <= LONGEST_TOKENS
    ]

    def fitting(size: int) -> int:
        return sum(tokens // size <= blocks <= -(-tokens // size) for tokens, blocks in hashed)

    return max(BLOCK_SIZES, key=fitting) if hashed else 0


def sample_of(path: Path) -> list[dict[str, Any]]:
    """Return the first objects of a file of JSON lines, keys in lower case."""
    records: list[dict[str, Any]] = []
    for _, line in lines_of(path):
        try:
            value = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            records.append({str(key).lower(): item for key, item in value.items()})
        if len(records) >= SAMPLE:
            break
    return records


def object_rows(path: Path, omissions: Omissions) -> Iterator[Row]:
    """Yield the requests of JSON lines; other lines are counted.

    Raises
    ------
    InputError
        a key is missing, or most lines are not requests
    """
    sample = sample_of(path)
    if not sample:
        raise InputError(f"{path}: line 1: is not a JSON object; one request per line is expected")
    sessions = SessionClock() if "session_id" in sample[0] and any("delay" in row for row in sample) else None
    keys = {names[0]: _key(sample[0], names, path) for names in (ARRIVAL, INPUT, OUTPUT)}
    hashed = "hash_ids" in sample[0]
    first = _first_stamp(row.get(keys["arrival_s"]) for row in sample)
    unit = unit_of_column(keys["arrival_s"], first, {key for row in sample for key in row}, omissions)
    bad = BadRows(path, omissions)
    for number, line in lines_of(path):
        if not line.strip():
            continue
        bad.seen += 1
        try:
            row = {str(key).lower(): item for key, item in json.loads(line).items()}
            ttft, e2e = _measured(row)
            yield Row(
                number,
                sessions.arrival_s(row, row.get(keys["arrival_s"]), unit)
                if sessions
                else _stamp(row[keys["arrival_s"]], unit),
                number_of(row[keys["input_tokens"]]),
                number_of(row[keys["output_tokens"]]),
                _blocks(row.get("hash_ids")) if hashed else NO_BLOCKS,
                ttft,
                e2e,
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            bad.add(number, error)
    if sessions and sessions.delayed:
        omissions.note("turns without a time stamp follow the turn before them by their delay")


def _first_stamp(written: Iterable[object]) -> float | None:
    """Return the first time stamp that is one; None for a date, or where there is none."""
    for stamp in written:
        with suppress(ValueError, TypeError, OverflowError):
            return stamp_of(stamp)
    return None


def _stamp(written: object, unit_s: float) -> float:
    """Return a time stamp [s]; ValueError for one that is not a number."""
    seconds = seconds_of(written, unit_s)
    if math.isnan(seconds):
        raise ValueError("the time stamp is not a number")
    return seconds


def _blocks(written: object) -> Sequence[int]:
    """Return the block hashes of a prompt: 64-bit integers; an error for anything else."""
    if written is None:
        return NO_BLOCKS
    if not isinstance(written, list):
        raise TypeError("hash_ids is not a list")
    blocks = [int(block) for block in written]
    if any(block != was and str(block) != was for block, was in zip(blocks, written, strict=True)):
        raise ValueError("a hash is not a whole number")
    if blocks and not -(2**63) <= min(blocks) <= max(blocks) < 2**63:
        raise ValueError("a hash does not fit in 64 bits")
    return blocks


def _key(row: Mapping[str, Any], names: Sequence[str], path: Path) -> str:
    for name in names:
        if name in row:
            return name
    if not any(name in row for known in (ARRIVAL, INPUT, OUTPUT) for name in known):
        raise no_requests(path, list(row))
    raise InputError(
        f"{path}: has no key {names[0]!r}\n  also accepted: {', '.join(names[1:])}\n  found: {', '.join(map(str, list(row)[:12]))}"
    )


def _measured(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return TTFT and end-to-end latency [s] where the row has them."""
    if "queued_ts" in row and "first_token_ts" in row:
        start = float(row["queued_ts"])
        return float(row["first_token_ts"]) - start, float(row.get("last_token_ts", math.nan)) - start
    ttft = row.get("ttft_s", row.get("ttft"))
    e2e = row.get("e2e_s", row.get("e2e_latency", row.get("latency")))
    return _number(ttft), _number(e2e)


def log_rows(path: Path, omissions: Omissions) -> Iterator[Row]:
    """Yield the requests of a result file that recorded each of them, with times in seconds."""
    values = result_objects(path)
    first = values[0] if values else None
    if isinstance(first, Mapping) and "benchmarks" in first:
        yield from _guidellm(first, path, omissions)
    elif isinstance(first, Mapping) and "start_time" in first and "info" in first:
        yield from _inference_perf(values, path, omissions)
    else:
        for index, request in enumerate(request_log(path), 1):
            yield replace(request, line=index)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _guidellm(report: Mapping[str, Any], path: Path, omissions: Omissions) -> Iterator[Row]:
    """Yield the successful requests of every benchmark of a report; TTFT is in ms there, latency in s."""
    index = 0
    for benchmark in ResultValues(str(path), report).objects("benchmarks"):
        requests = benchmark.at("requests")
        for kind in ("errored", "incomplete"):
            for _ in requests.objects(kind):
                omissions.drop(f"{kind} request", index + 1)
        for row in requests.objects("successful"):
            index += 1
            ttft = row.number("time_to_first_token_ms")
            yield Row(
                index,
                row.needed("request_start_time", "start_time", tool="GuideLLM"),
                row.needed("prompt_tokens", "prompt_token_count", tool="GuideLLM"),
                row.needed("output_tokens", "output_token_count", tool="GuideLLM"),
                (),
                math.nan if ttft is None else ttft * 1e-3,
                _or_nan(row.number("request_latency")),
            )
    if not index:
        raise InputError(
            f"{path}: this GuideLLM report keeps no successful requests\n"
            "  run it with --sample-requests left at its default, which keeps all of them"
        )


def _inference_perf(values: list[Any], path: Path, omissions: Omissions) -> Iterator[Row]:
    """Yield the requests of per_request_lifecycle_metrics.json."""
    for index, value in enumerate(values, 1):
        if not isinstance(value, Mapping):
            omissions.drop("is not a request", index, broken=True)
            continue
        row = ResultValues(str(path), value, str(index - 1))
        if row.values.get("error"):
            omissions.drop("request with an error", index)
            continue
        info = row.at("info")
        start = row.needed("start_time", tool="inference-perf")
        end = row.number("end_time")
        times = info.numbers("output_token_times")
        yield Row(
            index,
            start * time_unit(start)[0],
            info.needed("input_tokens", tool="inference-perf"),
            info.needed("output_tokens", tool="inference-perf"),
            (),
            times[0] - start if times else math.nan,
            math.nan if end is None else end - start,
        )


WINDOW_S = 600.0
CLIENT_COLUMNS = ("client", "start_s", "rate_rps", "cv")
LENGTH_COLUMNS = ("field", "value", "prob")
LARGEST = 1e9
"""Upper limit of a rate, a coefficient of variation or a weight."""
LEAST = 1e-12
"""Smaller probabilities are taken as zero."""
INPUT_FIELDS = ("input_tokens", "text_tokens")


def lengths_beside(clients: Path) -> Path:
    """Return the length file that belongs to a client file, by its name."""
    name = clients.name.replace("_clients", "_length_hist")
    beside = clients.with_name(name)
    if name == clients.name or not is_there(beside):
        raise InputError(
            f"{clients}: has client rates but no lengths; {beside.name} is expected next to it\n"
            "  name the files NAME_clients.csv and NAME_length_hist.csv (columns field, value, prob)"
        )
    return beside


def servegen_summary(clients: Path) -> WorkloadSummary:
    """Return the traffic of all clients together."""
    omissions = Omissions()
    by_window: dict[float, float] = defaultdict(float)
    weighted_cv = total = 0.0
    for line, cells in _records(clients, CLIENT_COLUMNS):
        try:
            start, rate, cv = (float(cells[name]) for name in ("start_s", "rate_rps", "cv"))
        except (ValueError, KeyError):
            omissions.drop("is not the rate of a client", line)
            continue
        if not (0 <= rate <= LARGEST and 0 <= start <= LATEST_S and 0 <= cv <= LARGEST):
            omissions.drop("a rate, a time or a cv is negative or too large", line)
            continue
        by_window[start] += rate
        weighted_cv += rate * cv
        total += rate
    if total == 0.0:
        raise InputError(f"{clients}: no client sends any requests")
    lengths = _lengths(lengths_beside(clients), omissions)
    if max(by_window) - min(by_window) > LONGEST_S:
        raise InputError(f"{clients}: its windows lie more than ten years apart; is start_s in seconds?")
    rate_summary = rates_by_window(by_window, WINDOW_S, weighted_cv / total)
    return WorkloadSummary(
        name=clients.name.split(".")[0].removesuffix("_clients"),
        format="ServeGen clients",
        requests=round(total * WINDOW_S),
        rate=rate_summary,
        input_tokens=lengths["input"],
        output_tokens=lengths["output"],
        omissions=tuple(omissions.lines()),
        notes=(
            "rates are known by windows of 600 s, so the peak is that of the busiest window",
            "cv is the rate-weighted mean over clients; all clients together arrive more evenly",
            *omissions.notes,
        ),
    )


def _lengths(path: Path, omissions: Omissions) -> dict[str, LengthSummary]:
    fields: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for line, cells in _records(path, LENGTH_COLUMNS):
        try:
            name, value, share = cells["field"], float(cells["value"]), float(cells["prob"])
        except (ValueError, KeyError):
            raise InputError(f"{path}: line {line}: value and prob must be numbers") from None
        if not (0 <= value <= LONGEST_TOKENS and 0 <= share <= LARGEST):
            raise InputError(f"{path}: line {line}: value or prob is negative or too large")
        fields[name][value] += share
    if any("image" in name for name in fields):
        omissions.note("image tokens and the image encoder are not counted, only text")
    prompt = next((name for name in INPUT_FIELDS if name in fields), None)
    if prompt is None or "output_tokens" not in fields:
        raise InputError(
            f"{path}: has no lengths of input_tokens and output_tokens; found: {', '.join(fields) or 'none'}"
        )
    columns = {"input": prompt, "output": "output_tokens"}
    return {key: length_summary(*_sorted(fields[name], name, path)) for key, name in columns.items()}


def _sorted(histogram: Mapping[float, float], name: str, path: Path) -> tuple[Array, Array]:
    values = np.array(sorted(value for value, share in histogram.items() if share >= LEAST and value >= 1))
    if not values.size:
        raise InputError(f"{path}: no length of {name} of 1 or more has a probability")
    return values, np.array([histogram[value] for value in values])


def _records(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    lines = lines_of(path)
    _, header = next(lines, (1, ""))
    names = columns_of(header)
    missing = [name for name in columns if name not in names]
    if missing:
        raise InputError(f"{path}: has no column {missing[0]!r}\n  found: {', '.join(names[:12])}")
    for number, line in lines:
        if line.strip():
            yield number, dict(zip(names, line.split(","), strict=False))
