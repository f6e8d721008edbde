"""A request trace as a whole: arrivals, and input and output lengths."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from capplan.errors import InputError
from capplan.numbers import Array
from capplan.recorded.traces.read import TraceFile, prefix_reuse, trace_file
from capplan.recorded.traces.rows import LONGEST_S, YEAR_S, blocks_of
from capplan.serving.prefix_cache import hit_curve
from capplan.serving.requests import Requests
from capplan.workload.sessions import LARGEST_BLOCK_TOKENS, output_blocks
from capplan.workload.statistics import Counts, PrefixReuse, TracePart, cv_within_minutes, interarrival_cv

MAX_REQUESTS = 2_000_000
"""Limit of a trace that is held in memory; a longer one is summarised by `capplan workload` first."""
MOST_LINES = 2 * MAX_REQUESTS
"""A table with more lines is refused before its rows are read."""
WINDOW_S = 60.0
"""Peak rates are counted in windows of this length."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival."""

    name: str
    arrival_s: Array
    """Time since the first request."""
    input_tokens: Array
    output_tokens: Array
    block_ids: Counts
    """Block hashes of all prompts, prompt after prompt; empty where the file has none."""
    block_counts: Counts
    block_tokens: int
    remarks: tuple[str, ...]
    """Notes on requests left out and values normalised."""

    @property
    def seconds(self) -> float:
        """Time from the first request to the last."""
        return float(self.arrival_s[-1])

    @property
    def mean_request_rate_per_s(self) -> float:
        """Requests per second over the whole trace."""
        return len(self.arrival_s) / max(self.seconds, 1e-9)

    @property
    def peak_request_rate_per_s(self) -> float:
        """Requests per second in the busiest minute; the mean for a trace of under two minutes."""
        if self.seconds < 2 * WINDOW_S:
            return self.mean_request_rate_per_s
        edges = np.arange(0.0, self.seconds + WINDOW_S, WINDOW_S)
        counts = np.histogram(self.arrival_s, bins=edges)[0]
        whole = counts[:-1] if self.seconds % WINDOW_S else counts
        return float(whole.max()) / WINDOW_S

    @property
    def arrival_cv(self) -> float:
        """Coefficient of variation of the time between arrivals, within minutes; 1 where it cannot be determined."""
        return cv_within_minutes(self.arrival_s) or interarrival_cv(self.arrival_s)[0] or 1.0

    @property
    def reuse(self) -> PrefixReuse | None:
        """Return the prefix hits by cache size; None where the file has no block ids."""
        if not self.block_ids.size:
            return None
        tokens = self.input_tokens.astype(np.int64)
        return prefix_reuse(
            hit_curve(self.block_ids, self.block_counts, block_tokens=self.block_tokens, input_tokens=tokens)
        )

    def requests(self) -> Requests:
        """Return the requests as the simulator takes them."""
        prompts, outputs = self.input_tokens.astype(np.int64), self.output_tokens.astype(np.int64)
        hashed = self.block_ids.size > 0
        named = Requests(
            prompts,
            outputs,
            self.arrival_s,
            block_ids=self.block_ids if hashed else None,
            block_counts=self.block_counts if hashed else None,
        )
        if not hashed or self.block_tokens > LARGEST_BLOCK_TOKENS:
            return named
        ids, counts = output_blocks(self.block_ids, self.block_counts, prompts, outputs, self.block_tokens)
        return replace(named, output_ids=ids, output_counts=counts)


def read_trace(path: str | os.PathLike[str], *, strict: bool = True) -> Trace:
    """Return the requests in a trace file of any known format.

    Parameters
    ----------
    path : path
    strict : refuse a file with rows that are not requests; else they are left out and counted in `remarks`.
        Requests without an output token are left out in any case.

    Returns
    -------
    Trace, sorted by arrival, which starts at 0
    """
    name, key = os.fspath(path), _state_of(Path(path))
    if key in _last_read:
        file, trace = _last_read[key]
        if strict:
            _refuse_omissions(file, name)
        return replace(trace, name=name)
    file = trace_file(Path(path))
    if sum(block.count(b"\n") for _, block in blocks_of(Path(path))) > MOST_LINES:
        raise _too_many(name)
    parts: list[TracePart] = []
    held = 0
    for part in file.parts():
        parts.append(part)
        held += len(part)
        if held > MAX_REQUESTS:
            raise _too_many(name)
    if strict:
        _refuse_omissions(file, name)
    if held < 2:
        raise InputError(f"{name}: holds fewer than two requests with an output")
    trace = _sorted_trace(name, file, parts)
    _last_read.clear()
    _last_read[key] = file, trace
    return trace


def _too_many(name: str) -> InputError:
    return InputError(
        f"{name}: holds more than {MAX_REQUESTS:,} requests\n"
        f"  shorten it, or summarise it first: capplan workload {Path(name).name} -o workload.yaml"
    )


_last_read: dict[tuple[Path, int, int], tuple[TraceFile, Trace]] = {}
"""The trace read last, reused while its file is unchanged: a scenario and its replay read the same file."""


def _state_of(path: Path) -> tuple[Path, int, int]:
    """Return a file with its modification time and size; errors are left to the code that opens it."""
    try:
        state = path.stat()
        return path.resolve(), state.st_mtime_ns, state.st_size
    except (OSError, ValueError):
        return path, 0, -1


def _refuse_omissions(file: TraceFile, name: str) -> None:
    for reason, line in file.omissions.broken.items():
        raise InputError(f"{name}: line {line}: {reason}")


def _sorted_trace(name: str, file: TraceFile, parts: list[TracePart]) -> Trace:
    def column(of: str) -> Array:
        return np.concatenate([getattr(part, of) for part in parts])

    arrival = column("arrival_s")
    if not np.isfinite(arrival).all():
        raise InputError(f"{name}: has no time stamps, so it cannot be replayed\n  add a column arrival_s")
    if arrival.max() - arrival.min() > LONGEST_S:
        raise InputError(
            f"{name}: its time stamps span {(arrival.max() - arrival.min()) / YEAR_S:,.0f} years; at most ten can be replayed"
            "\n  are all of them in the same unit?"
        )
    order = np.argsort(arrival, kind="stable")
    counts = column("block_counts")
    ids = column("block_ids")
    remarks = [*file.omissions.lines(), *file.omissions.notes]
    late = int(np.count_nonzero(arrival < np.maximum.accumulate(arrival)))
    if late:
        remarks.append(f"{late:,} requests were out of order; sorted by arrival")
        if ids.size:
            pieces = np.split(ids, np.cumsum(counts)[:-1])
            ids = np.concatenate([pieces[index] for index in order])
    arrival = arrival[order]
    return Trace(
        name,
        arrival - arrival[0],
        column("input_tokens")[order].astype(np.float64),
        column("output_tokens")[order].astype(np.float64),
        ids.astype(np.int64),
        counts[order].astype(np.int64),
        file.block_tokens,
        tuple(remarks),
    )
