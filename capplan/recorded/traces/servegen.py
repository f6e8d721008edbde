"""ServeGen: rates of clients in windows, and the distribution of lengths next to them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from capplan.errors import InputError
from capplan.numbers import Array
from capplan.readers.text_file import is_there
from capplan.recorded.traces.delimited import columns_of
from capplan.recorded.traces.rows import LATEST_S, LONGEST_S, lines_of
from capplan.workload.statistics import (
    HOUR_S,
    LONGEST_TOKENS,
    MOST_HOURS,
    LengthSummary,
    Omissions,
    RateSummary,
    WorkloadSummary,
    length_summary,
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
    rate_summary = _rates(by_window, weighted_cv / total)
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


def _rates(by_window: Mapping[float, float], cv: float) -> RateSummary:
    starts = np.array(sorted(by_window))
    index = np.rint((starts - starts[0]) / WINDOW_S).astype(np.int64)
    rates = np.zeros(int(index[-1]) + 1)
    np.add.at(rates, index, [by_window[start] for start in starts])
    seconds = rates.size * WINDOW_S
    hour = (np.arange(rates.size) * WINDOW_S // HOUR_S).astype(np.int64)
    hour = hour % 24 if seconds > MOST_HOURS * HOUR_S else hour
    by_hour = np.bincount(hour, weights=rates) / np.bincount(hour)
    return RateSummary(
        seconds=seconds,
        mean=float(rates.mean()),
        peak_60s=float(rates.max()),
        cv=cv,
        dispersion_60s=None,
        by_hour=tuple(by_hour.tolist()),
        by_window=tuple(rates.tolist()),
        window_s=WINDOW_S,
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
