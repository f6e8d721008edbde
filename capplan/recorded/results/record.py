"""One measured result of a serving benchmark, and the values of a result file whatever its container."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from capplan.errors import InputError
from capplan.numbers import Spread
from capplan.readers.text_file import MAX_RESULT_BYTES, csv_rows, json_values, read_json, read_text
from capplan.readers.yaml_file import yaml_values
from capplan.recorded.results.llamacpp import is_markdown, markdown_objects

Kind: TypeAlias = Literal["serving", "offline", "static_batch", "prefill", "decode"]


Latency: TypeAlias = Spread[float | None]
"""A measured latency: its mean and the percentiles that the tool wrote, in seconds."""


def latency(
    mean: float | None = None,
    p50: float | None = None,
    p90: float | None = None,
    p95: float | None = None,
    p99: float | None = None,
) -> Latency:
    """Return a measured latency of which a file states a part, or nothing."""
    return Spread(mean, p50, p90, p95, p99)


CLOCK_STEP_S = 1e-3
"""Time by which a first token may be recorded after the end of its request: some tools round to milliseconds (an assumption)."""


NO_BLOCKS: tuple[int, ...] = ()


@dataclass(slots=True, unsafe_hash=True)
class Row:
    """One request of a trace or of the log of a result, as in the file."""

    line: int
    arrival_s: float
    """nan where the file has no times; in the log of a result since its first request."""
    input_tokens: float
    output_tokens: float
    block_ids: Sequence[int] = NO_BLOCKS
    ttft_s: float = math.nan
    e2e_s: float = math.nan


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """One run of one benchmark; None where the file does not say.

    Times are in seconds and rates in tokens per second over all devices. TPOT is the mean over requests
    of (end-to-end - TTFT) / (output tokens - 1): the first token is never part of it.
    """

    tool: str
    path: str
    kind: Kind = "serving"
    model: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    hardware: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    expert_parallel: int | None = None
    data_parallel: int | None = None
    concurrency: float | None = None
    """Requests in flight: the configured limit, or the measured mean."""
    request_rate_per_s: float | None = None
    """Offered rate; None for a closed loop or all at once."""
    requests: int | None = None
    input_tokens: float | None = None
    """Mean per request."""
    output_tokens: float | None = None
    """Mean per request."""
    context_tokens: float | None = None
    """Tokens already in the cache before a bare prefill or decode."""
    replicas: int = 1
    """Identical replicas that served the run; concurrency, requests and rates are over all of them."""
    ttft_s: Latency = field(default_factory=latency)
    tpot_s: Latency = field(default_factory=latency)
    e2e_s: Latency = field(default_factory=latency)
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    accepted_tokens_per_step: float | None = None
    """Accepted tokens per step of speculative decoding; None without it."""
    notes: tuple[str, ...] = ()
    """Notes on values that were normalised, corrected or left out."""
    log: tuple[Row, ...] = ()
    contradiction: str = ""
    """Field that the rest of the file contradicts, for which no fit and no verification takes the result; empty if there is none."""

    def of_one_replica(self) -> "BenchmarkResult":
        """Return what one of the replicas had of the run, each an equal part.

        Examples
        --------
        >>> BenchmarkResult("t", "p", concurrency=64.0, requests=800, replicas=8).of_one_replica().concurrency
        8.0
        """
        parts = {
            name: value / self.replicas
            for name in ("concurrency", *_RATES)
            if (value := getattr(self, name)) is not None
        }
        requests = self.requests and max(1, round(self.requests / self.replicas))
        return replace(self, **parts, requests=requests, replicas=1)


_RATES = ("request_rate_per_s", "requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
"""Fields of a result that grow with its replicas."""


KIND = "a result of a benchmark"
LARGEST = 1e20
"""Largest number; the time since 1970 in nanoseconds is 2e18."""

SECONDS_PER_UNIT = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "ms": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3,
    "us": 1e-6, "microseconds": 1e-6, "ns": 1e-9, "nanoseconds": 1e-9,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResultValues:
    """A mapping of a result file with its place, so that a missing or wrong value can be named."""

    path: str
    values: Mapping[str, Any]
    place: str = ""

    def where(self, key: str) -> str:
        """Return the place of a key, for an error."""
        return f"{self.path}: {self.place + '.' if self.place else ''}{key}"

    def at(self, *keys: str) -> "ResultValues":
        """Return the mapping below `keys`; an absent or null one is empty."""
        values: Any = self.values
        for depth, key in enumerate(keys):
            values = values.get(key)
            if values is None:
                values = {}
                continue
            if not isinstance(values, Mapping):
                place = ResultValues(self.path, {}, self.place).where(".".join(keys[: depth + 1]))
                raise InputError(f"{place} is not a mapping but {type(values).__name__}")
        return ResultValues(self.path, values, ".".join(part for part in (self.place, *keys) if part))

    def number(self, *names: str, minimum: float = 0.0) -> float | None:
        """Return the first of `names` that is present, as a finite number; None where none is."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            try:
                number = math.nan if isinstance(value, bool) else float(value)
            except (ValueError, TypeError, OverflowError):
                raise InputError(f"{self.where(name)}: {value!r:.60} is not a number") from None
            if number == math.inf:
                return None
            if math.isnan(number) or number < minimum:
                raise InputError(f"{self.where(name)}: {value!r} is not a number of at least {minimum:g}")
            if number > LARGEST:
                raise InputError(
                    f"{self.where(name)}: {number:g} is out of range; at most {LARGEST:g} is read"
                )
            return number
        return None

    def count(self, *names: str) -> int | None:
        """Return the first of `names` that is present, as a whole number; None where none is."""
        value = self.number(*names)
        return None if value is None else round(value)

    def needed(self, *names: str, tool: str) -> float:
        """Return a number that this tool always writes, or refuse the file."""
        value = self.number(*names)
        if value is None:
            raise InputError(
                f"{self.where(names[0])} is missing, so this is not a complete result of {tool}\n"
                "  it may have been cut short, or written by a version that this reader does not know"
            )
        return value

    def text(self, *names: str) -> str | None:
        """Return the first of `names` that is present and not empty, as text."""
        for name in names:
            value = self.values.get(name)
            if value not in (None, "", "NA"):
                return str(value)
        return None

    def numbers(self, name: str) -> list[float]:
        """Return a list of numbers; empty where it is absent."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise InputError(f"{self.where(name)} is not a list")
        return [ResultValues(self.path, {name: item}, self.place).number(name) or 0.0 for item in value]

    def objects(self, name: str) -> "list[ResultValues]":
        """Return a list of mappings; empty where it is absent."""
        items = self.values.get(name)
        if items is None:
            return []
        if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
            raise InputError(f"{self.where(name)} is not a list of mappings")
        place = f"{self.place}.{name}" if self.place else name
        return [ResultValues(self.path, item, f"{place}.{index}") for index, item in enumerate(items)]

    def named(self, path: str) -> "tuple[ResultValues, list[str]]":
        """Return the mapping that a path such as `load/rate|qps` leads to, and the names of its last part."""
        *keys, names = path.split("/")
        return self.at(*keys), names.split("|")


@cache
def _tools() -> dict[str, Any]:
    """Return how each tool names what it measures; a path is of the keys down to a value, `|` stands between other names of a key."""
    return read_json(Path(__file__).parent / "tools.json")


def stated(document: ResultValues, tool: str) -> dict[str, Any]:
    """Return the fields of `BenchmarkResult` that a file states in the words of a tool; InputError where one is missing that it always writes."""
    table = _tools()[tool]
    for path in table.get("needed", ()):
        place, names = document.named(path)
        place.needed(*names, tool=tool)
    return {
        field: _latency(document, table, places) if field in _LATENCIES else _first(document, field, places)
        for field, places in table["fields"].items()
    }


def _first(document: ResultValues, field: str, places: str | list[str]) -> Any:
    """Return the first value that is there: a text, a whole number or a number, as the field is."""
    read = (
        ResultValues.text
        if field in _TEXTS
        else ResultValues.count
        if field in _COUNTS
        else ResultValues.number
    )
    found = [document.named(path) for path in ([places] if isinstance(places, str) else places)]
    values = (read(place, *names) for place, names in found)
    return next((value for value in values if value is not None), None)


def _latency(document: ResultValues, table: Mapping[str, Any], places: str | list[str]) -> Latency:
    """Return mean and percentiles in seconds, whose names follow from those of the metric."""
    of = [places] if isinstance(places, str) else places
    found = {}
    for statistic, written in _tools()["statistics"][table["statistics"]].items():
        paths = [written] if isinstance(written, str) else written
        value = _first(document, statistic, [path.format(*of) for path in paths])
        found[statistic] = None if value is None else value * _unit_of(document, table, of[0])
    return latency(**found)


def _unit_of(document: ResultValues, table: Mapping[str, Any], metric: str) -> float:
    """Return the unit of a latency in seconds: that of the tool, or the one that its metric states where the tool writes it there."""
    if "unit_key" not in table:
        return SECONDS_PER_UNIT[table["unit"]]
    place = document.at(*metric.split("/"))
    unit = place.text(table["unit_key"]) or table.get("unit")
    if unit is None:
        raise InputError(f"{place.where(table['unit_key'])} is missing, so this is not a complete result")
    return unit_seconds(place, unit)


_LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
_TEXTS = ("model", "engine", "engine_version", "hardware")
_COUNTS = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel", "requests")


def engine_of_backend(backend: str | None) -> str | None:
    """Return the engine that the backend of a benchmark client names; None for a mere protocol, which any engine speaks.

    Examples
    --------
    >>> engine_of_backend("tensorrt-llm"), engine_of_backend("openai-chat")
    ('tensorrt-llm', None)
    """
    return None if backend is None or backend.startswith("openai") else backend


def unit_seconds(document: ResultValues, unit: str) -> float:
    """Return the seconds of a unit of time as result files write it; `ms/token` counts as ms.

    Examples
    --------
    >>> unit_seconds(ResultValues("f", {}), "ms/token")
    0.001
    """
    factor = SECONDS_PER_UNIT.get(unit.split("/")[0].strip().lower())
    if factor is None:
        raise InputError(f"{document.where('units')}: {unit!r} is not a unit of time; known: s, ms, us, ns")
    return factor


def result_objects(path: str | Path) -> list[Any]:
    """Return the objects of a result file: one JSON or YAML value, or one per line, CSV row or row of a table of llama.cpp.

    Parameters
    ----------
    path : the file, plain or gzipped

    Returns
    -------
    its top-level values in order; a JSON list is returned as its items
    """
    text = read_text(path, kind=KIND, max_bytes=MAX_RESULT_BYTES, unpacked=True)
    name = str(path)
    suffix = Path(name.removesuffix(".gz")).suffix
    if suffix in (".yaml", ".yml"):
        return [value for value in yaml_values(text, name) if value is not None]
    if suffix == ".csv":
        return [*csv_rows(text, name)]
    if is_markdown(text):
        return [*markdown_objects(text, name)]
    return json_values(text, name)
