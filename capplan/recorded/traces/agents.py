"""Recorded sessions of agents: turns with block hashes, gaps between them, and sub-agents that run side by side.

Weka: one JSON object a line and session, with `block_size`, `hash_id_scope` and `requests`; a request has its time `t` since the session
began, `in` and `out` tokens and `hash_ids`, and one of type `subagent` holds the requests of a child session. Mooncake with sessions: one
request a line, whose later turns have a `delay` in ms instead of a `timestamp`.

References
----------
AIPerf, "Replaying Agentic Coding Sessions with Weka Traces" (both conventions for the times of sub-agents), https://docs.nvidia.com/aiperf/
tutorials/datasets-inputs/replay-weka-agentic-coding-traces; "Trace Replay with Mooncake Traces", https://github.com/ai-dynamo/aiperf.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from capplan.errors import InputError
from capplan.recorded.traces.rows import NO_BLOCKS, Row, lines_of
from capplan.workload.statistics import LONGEST_TOKENS, Omissions

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

    def arrival_s(self, row: Mapping[str, Any], unit_s: float) -> float:
        """Return the time of a turn: its stamp, else that of the session's turn before it and its delay in ms.

        Examples
        --------
        >>> clock = SessionClock()
        >>> first = clock.arrival_s({"session_id": "a", "timestamp": 2000}, 1e-3)
        >>> first, clock.arrival_s({"session_id": "a", "delay": 500}, 1e-3)
        (2.0, 2.5)
        """
        session = str(row.get("session_id"))
        stamp = _number(row.get("timestamp")) * unit_s
        if math.isnan(stamp):
            stamp = self._last_s.get(session, 0.0) + max(_number(row.get("delay")), 0.0) * 1e-3
            self.delayed += 1
        self._last_s[session] = stamp
        return stamp
