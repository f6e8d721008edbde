"""Request traces: when requests came, and how long prompt and answer were."""

import csv
import gzip
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from capplan.errors import InputError
from capplan.numbers import Array

MAX_REQUESTS = 2_000_000
WINDOW_S = 60.0
"""Peak rates are counted in windows of this length."""

_ARRIVAL = ("arrival_s", "arrived_at", "arrival_time_s", "arrival_time", "timestamp", "time", "start_s")
_INPUT = ("input_tokens", "contexttokens", "input_toks", "input_length", "num_prefill_tokens", "request tokens", "prompt_tokens")  # fmt: skip
_OUTPUT = ("output_tokens", "generatedtokens", "output_toks", "output_length", "num_decode_tokens", "response tokens", "completion_tokens")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival."""

    name: str
    arrival_s: Array
    """From the first request on."""
    input_tokens: Array
    output_tokens: Array

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
        """Coefficient of variation of the time between arrivals."""
        gaps = np.diff(self.arrival_s)
        mean = float(gaps.mean()) if len(gaps) else 0.0
        return float(gaps.std()) / mean if mean > 0 else 1.0


def _is_gzip(path: Path, name: str) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"\x1f\x8b"
    except FileNotFoundError:
        raise InputError(f"{name}: no such file; a request trace (.csv or .jsonl) is expected") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({(error.strerror or 'error').lower()})") from None


def _rows(path: Path, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    packed = _is_gzip(path, name)
    with gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8") as stream:
        if ".jsonl" in path.name:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise InputError(f"{name}: line {number}: is not an object")
                    yield number, {str(key).lower(): value for key, value in row.items()}
            return
        for number, row in enumerate(csv.DictReader(stream), 2):
            yield number, {str(key).strip().lower(): value for key, value in row.items()}


def _column(row: Mapping[str, Any], names: tuple[str, ...], name: str) -> str:
    for candidate in names:
        if candidate in row:
            return candidate
    raise InputError(
        f"{name}: has no column {names[0]!r}\n  read instead: {', '.join(names[1:])}\n  found: {', '.join(map(str, row))}"
    )


def _seconds(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        return datetime.fromisoformat(str(value)[:26]).timestamp()


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Return the requests in a trace file.

    CSV or JSON lines, plain or gzip, with a column each for arrival (seconds or a date; Mooncake's
    `timestamp` beside `hash_ids` is in milliseconds), input tokens and output tokens, by the names
    of the public traces. Requests without an output token are left out.

    Parameters
    ----------
    path : path

    Returns
    -------
    Trace, sorted by arrival, which starts at 0
    """
    name = os.fspath(path)
    table: list[tuple[float, float, float]] = []
    number = 0
    try:
        for number, row in _rows(Path(path), name):
            if not table:
                arrival, tokens_in, tokens_out = (
                    _column(row, names, name) for names in (_ARRIVAL, _INPUT, _OUTPUT)
                )
                unit_s = 1e-3 if "hash_ids" in row and arrival == "timestamp" else 1.0
            values = (_seconds(row[arrival]) * unit_s, float(row[tokens_in]), float(row[tokens_out]))
            if not all(np.isfinite(values)) or values[1] < 0 or values[2] < 0:
                raise InputError(f"{name}: line {number}: a time or a token count is negative or not finite")
            table.append(values)
            if len(table) > MAX_REQUESTS:
                raise InputError(f"{name}: holds more than {MAX_REQUESTS:,} requests; cut it")
    except (ValueError, KeyError, TypeError, csv.Error, EOFError, OSError) as error:
        raise InputError(
            f"{name}: line {number + 1 if number < 2 else number}: is not a request ({error})"
        ) from None
    kept = np.array([row for row in table if row[2] > 0], dtype=np.float64).reshape(-1, 3)
    if len(kept) < 2:
        raise InputError(f"{name}: holds fewer than two requests with an output")
    kept = kept[np.argsort(kept[:, 0], kind="stable")]
    return Trace(name, kept[:, 0] - kept[0, 0], kept[:, 1], kept[:, 2])
