"""A request trace as a whole: the format of its file by its content, arrivals, input and output lengths."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from capplan.errors import InputError
from capplan.numbers import Array, Counts
from capplan.recorded.results.record import Row
from capplan.recorded.traces import json_lines, prometheus, request_logs
from capplan.recorded.traces.rows import (
    LONGEST_S,
    YEAR_S,
    Columns,
    blocks_of,
    columns_of,
    head_of,
    parts_of,
    table_rows,
    tool_of,
)
from capplan.serving.prefix_cache import HitCurve, hit_curve, policy_hit_fractions
from capplan.serving.requests import Requests
from capplan.workload.reuse import PrefixReuse
from capplan.workload.sessions import LARGEST_BLOCK_TOKENS, output_blocks
from capplan.workload.statistics import (
    ArrivalCounts,
    Omissions,
    RateSummary,
    TokenCounts,
    TracePart,
    WorkloadSummary,
    cv_within_minutes,
    interarrival_cv,
)

MOST_BLOCKS = 8_000_000
"""Prefix reuse is computed from this many block accesses at most, the first ones of a trace."""
CURVE_BLOCKS = (
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
)
_SUMMED = {
    "prometheus": "the counters of a server",
    "servegen": "client rates",
    request_logs.BUCKETS: "the sums of hours or days",
}
"""Formats without single requests, and what they have."""
LISTED = "JSON list"
"""A list of requests with the keys of a table."""
LOG_KEYS = {"input_lens", "benchmarks", "completed", "successes", "num_prompts"}


def format_of(path: Path) -> str:
    """Return the format of a file: prometheus, servegen, log, json lines, or the name of a table.

    Raises
    ------
    InputError
        it is none of them
    """
    if request_logs.is_parquet(path):
        return request_logs.parquet_format(path)
    head = head_of(path).lstrip()
    first = head.split("\n", 1)[0].strip()
    lines = [line for line in head.split("\n") if line.strip()][:20]
    if (
        kind := next((kind for kind, mark in _LOGS.items() if any(map(mark.search, lines))), None)
    ) is not None:
        raise InputError(f"{path}: is {kind}")
    if head.startswith(("{", "[")):
        return _json_format(path, first, request_logs.quoted_words(head))
    if lines[0].startswith(("# HELP", "# TYPE")) or all(
        line.startswith("#") or prometheus.SAMPLE.match(line) for line in lines
    ):
        return "prometheus"
    if (kind := _deployed(lines)) is not None:
        raise InputError(
            f"{path}: is {kind}, no trace and no log\n  what it says of a deployment: capplan init FILE --from {quote(str(path))}"
        )
    columns = columns_of(first)
    if {"client", "rate_rps"} <= set(columns):
        return "servegen"
    if tuple(columns) == json_lines.LENGTH_COLUMNS:
        raise InputError(f"{path}: is the length file of a ServeGen workload; give its client file instead")
    return request_logs.log_format_of(columns) or tool_of(columns)


_METRICS = "give its metrics as Prometheus text (curl http://HOST:PORT/metrics), twice with some time between, or the address of a Prometheus server"
_LOGS = {
    f"the log of vLLM, which has averages of the engine and no requests\n  {_METRICS}": re.compile(
        r"^(?!\{).*Avg prompt throughput: "
    ),
    "the log of an engine's start, in which no command stands\n  give the command that started it: capplan init FILE --from 'vllm serve OWNER/NAME ...'": re.compile(
        r"^(?!\{).*(?:non-default args: |server_args=ServerArgs\()"
    ),
    f"the log of SGLang, which has steps of the engine and no requests\n  {_METRICS}": re.compile(
        r"^\[[^]{}]*\].*(?:#running-req|#new-seq|#cached-token)"
    ),
    "the access log of a server, which has no token counts\n  give the request log of the gateway, or the metrics of the engine as Prometheus text": re.compile(
        r'^(?!\{).*"(?:GET|POST|PUT|HEAD|OPTIONS) \S+ HTTP/\d'
    ),
}
"""What a log without requests is, and what to give instead -> what its lines have."""
_MANIFEST = re.compile(r"(?:apiVersion|kind|services|servingEngineSpec|modelArtifacts)\s*:")
_STARTS = re.compile(
    r"(?:^|\s)(?:vllm serve|trtllm-serve|sglang serve|docker run)\s|-m (?:sglang\.launch_server|vllm\.entrypoints)"
)
_KEYS = re.compile(r"#|---|\s*(?:- )?[\w.-]+:(?:\s|$)|\s*- ")


def _deployed(lines: list[str]) -> str | None:
    """Return what a file says of a deployment instead of requests; None for one that may be a table.

    Examples
    --------
    >>> _deployed(["kind: Pod"]), _deployed(["vllm serve o/n"]), _deployed(["a,b", "1,2"])
    ('a manifest', 'the command of an engine', None)
    """
    if any(map(_MANIFEST.match, lines)):
        return "a manifest"
    if lines[0].startswith("#!") or _STARTS.search(lines[0]):
        return "the command of an engine"
    return "YAML" if all(map(_KEYS.match, lines)) else None


_PROMPTS = (
    (frozenset(("conversations", "from", "value")), "is a dataset of conversations"),
    (frozenset(("custom_id", "method", "url", "body")), "is the input of a batch API"),
)
"""Keys of a file of prompts -> what it is."""


def _json_format(path: Path, first: str, quoted: set[str]) -> str:
    """Return the format of a JSON file by its first line, or by the words in quotes at its beginning."""
    if {"payloads", "session_id"} <= quoted and "metadata" not in quoted:
        raise InputError(
            f"{path}: is AIPerf's inputs.json, which has prompts as text, without lengths and times\n"
            "  give profile_export.jsonl of the same folder, or the trace that AIPerf was started with"
        )
    if {"status", "data", "resultType"} <= quoted:
        raise InputError(
            f"{path}: is an answer of Prometheus' API, of one query\n  give the address of the server: capplan init FILE --from http://HOST:9090, or what the engine's /metrics prints"
        )
    for named, kind in _PROMPTS:
        if named <= quoted and not {"usage", "response"} & quoted:
            raise InputError(
                f"{path}: {kind}, which has prompts as text, without lengths and times\n  give the log of the requests, or state the lengths: capplan init --input-tokens 1500,4500 --output-tokens 300"
            )
    known = None if quoted & LOG_KEYS else request_logs.log_format_of(quoted)
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        if '"block_size"' in first and '"requests"' in first:
            return "Weka"
        value = None
    if not isinstance(value, dict):
        listed = first.startswith("[") and not quoted & LOG_KEYS and "info" not in quoted
        return known or (LISTED if listed and request_logs.has_requests(quoted) else "log")
    keys = frozenset(str(key).lower() for key in value)
    if {"block_size", "requests"} <= keys:
        return "Weka"
    if ("metadata" in keys and "metrics" in keys) or keys & LOG_KEYS or {"info", "start_time"} <= keys:
        return "log"
    if "chat_id" in keys:
        return "Qwen-Bailian"
    if "hash_ids" in keys:
        return "Mooncake"
    return known or "JSON lines"


@dataclass(slots=True)
class TraceFile:
    """A trace that is read in parts, and what was left out of it so far."""

    path: Path
    format: str
    omissions: Omissions = field(default_factory=Omissions)

    def parts(self) -> Iterator[TracePart]:
        """Yield the requests in parts, in the order of the file."""
        rows: Iterable[Row | Columns]
        if self.format == "log":
            rows = json_lines.log_rows(self.path, self.omissions)
        elif self.format in request_logs.log_formats():
            rows = request_logs.request_log_rows(self.path, self.format, self.omissions)
        elif self.format == LISTED or request_logs.is_parquet(self.path):
            rows = request_logs.request_log_rows(self.path, request_logs.TABLE, self.omissions)
        elif self.format == "Weka":
            rows = json_lines.weka_rows(self.path, self.omissions)
        elif self.format in ("Mooncake", "Qwen-Bailian", "JSON lines"):
            rows = json_lines.object_rows(self.path, self.omissions)
        else:
            rows = table_rows(self.path, self.omissions)
        return parts_of(rows, self.omissions, str(self.path))

    @property
    def block_tokens(self) -> int:
        """Return the tokens of one hashed block; 0 where the file has no hashes."""
        if self.format == "Weka":
            return json_lines.weka_block_tokens(self.path)
        if self.format not in ("Mooncake", "Qwen-Bailian"):
            return 0
        return json_lines.block_tokens_of(json_lines.sample_of(self.path))


def trace_file(path: Path) -> TraceFile:
    """Return a trace that is ready to be read; InputError for a file without individual requests."""
    kind = format_of(path)
    if kind in _SUMMED:
        raise InputError(
            f"{path}: has {_SUMMED[kind]}, not individual requests\n"
            f"  give a workload of it instead, made with: capplan workload {quote(str(path))} -o workload.yaml"
        )
    return TraceFile(path, kind)


def workload_of(
    paths: list[Path],
    *,
    interval_s: float | None = None,
    policies: Sequence[str] = (),
    model: str | None = None,
) -> WorkloadSummary:
    """Return the traffic that a file (or two Prometheus scrapes) describes.

    Parameters
    ----------
    paths : one file; two for Prometheus text, the earlier one first
    interval_s : [s]
        between the two scrapes, or since the start of the server
    policies : rules of eviction under which the prefix cache is run block by block
    model : served model whose counters are read from Prometheus text; None if there is one

    Returns
    -------
    lengths, rates, prefix reuse, and what was left out
    """
    kinds = [format_of(path) for path in paths]
    if policies and (len(paths) != 1 or kinds[0] in _SUMMED):
        raise _no_blocks(paths[0])
    if all(kind == "prometheus" for kind in kinds) and len(paths) <= 2:
        return prometheus.prometheus_summary(paths, interval_s, model)
    if interval_s is not None:
        raise InputError(f"--interval: applies to Prometheus text only; {paths[0]} has time stamps")
    if model is not None:
        raise InputError(f"--model-name: applies to Prometheus text only; {paths[0]} has single requests")
    if len(paths) != 1:
        raise InputError(
            "more than one FILE is accepted only for two Prometheus scrapes, the earlier one first"
        )
    if kinds[0] == "servegen":
        return json_lines.servegen_summary(paths[0])
    if kinds[0] == request_logs.BUCKETS:
        return request_logs.bucket_summary(paths[0])
    file = TraceFile(paths[0], kinds[0])
    return trace_summary(
        file.path, file.format, file.parts(), lambda: file.block_tokens, policies, file.omissions
    )


def _no_blocks(path: Path) -> InputError:
    return InputError(
        f"--eviction: {path} has no ids of prompt blocks, so nothing can be evicted\n"
        "  give a trace with hash_ids, such as Mooncake's or Qwen-Bailian's"
    )


def trace_summary(
    path: Path,
    kind: str,
    parts: Iterable[TracePart],
    block_tokens_of: Callable[[], int],
    policies: Sequence[str],
    omissions: Omissions,
) -> WorkloadSummary:
    """Return the summary of requests, which are read once, part by part.

    Parameters
    ----------
    path : of the file that they come from
    kind : its format, or what the requests were drawn from
    parts : the requests
    block_tokens_of : tokens of one block id, asked for requests that have some
    policies : rules of eviction under which the prefix cache is run block by block
    omissions : rows that are left out while the parts are read
    """
    inputs, outputs, arrivals = TokenCounts(), TokenCounts(), ArrivalCounts()
    blocks: list[tuple[Counts, Counts, Counts]] = []
    latency = np.zeros((3, 2))
    touched = 0
    timed = True
    for part in parts:
        inputs.add(part.input_tokens)
        outputs.add(part.output_tokens)
        timed = timed and bool(np.isfinite(part.arrival_s).all())
        if timed:
            arrivals.add(part.arrival_s)
        if touched < MOST_BLOCKS and part.block_ids.size:
            blocks.append((part.block_ids, part.block_counts, part.input_tokens))
            touched += int(part.block_ids.size)
        latency += _latency_sums(part)
    if policies and not blocks:
        raise _no_blocks(path)
    notes = list(omissions.notes)
    if arrivals.unsorted:
        notes.append(f"{arrivals.unsorted:,} requests were out of order; sorted by arrival")
    rate = arrivals.summary() if timed else RateSummary(0.0, None, None, None, None, ())
    if rate.quantised:
        notes.append(
            "most requests share their time stamp with others; the cv is that of the number of requests per time stamp"
        )
    if arrivals.kept < arrivals.total:
        notes.append(f"inter-arrival times are those of the first {arrivals.kept:,} requests")
    if touched >= MOST_BLOCKS:
        notes.append(f"prefix reuse is that of the first {touched:,} blocks")
    return WorkloadSummary(
        name=path.name.split(".")[0],
        format="request log" if kind == "log" else kind,
        requests=inputs.total,
        rate=rate,
        input_tokens=inputs.summary(),
        output_tokens=outputs.summary(),
        prefix=prefix_reuse(_curve(blocks, block_tokens_of())) if blocks else None,
        evictions=_evictions(blocks, block_tokens_of(), policies) if policies else (),
        measured=_measured(latency),
        omissions=tuple(omissions.lines()),
        notes=tuple(notes),
    )


def _curve(blocks: list[tuple[Counts, Counts, Counts]], block_tokens: int) -> HitCurve:
    ids, counts, tokens = (np.concatenate(column) for column in zip(*blocks, strict=True))
    return hit_curve(ids, counts, block_tokens=block_tokens, input_tokens=tokens)


def _evictions(
    blocks: list[tuple[Counts, Counts, Counts]], block_tokens: int, policies: Sequence[str]
) -> tuple[dict[str, Any], ...]:
    """Return the hits of caches of round sizes, smaller than all blocks together, under each rule of eviction."""
    ids, counts, tokens = (np.concatenate(column) for column in zip(*blocks, strict=True))
    distinct = np.unique(ids).size
    sizes = [size for size in CURVE_BLOCKS if size < distinct] or [distinct]
    return tuple(
        {"policy": policy, "blocks": size, "cache_tokens": size * block_tokens, "hit_fraction": fraction}
        for policy in dict.fromkeys(policies)
        for size, fraction in zip(
            sizes,
            policy_hit_fractions(ids, counts, sizes, policy, block_tokens=block_tokens, input_tokens=tokens),
            strict=True,
        )
    )


def prefix_reuse(curve: HitCurve) -> PrefixReuse:
    """Return the reuse at round cache sizes up to that beyond which more cache adds no hits."""
    sizes = [size for size in CURVE_BLOCKS if size < curve.distinct_blocks]
    sizes.append(max(curve.distinct_blocks, 1))
    shares = curve.hit_fraction(np.array(sizes, dtype=np.float64))
    return PrefixReuse(
        block_tokens=curve.block_tokens,
        unlimited_hit_fraction=float(curve.block_hit_fraction(np.inf)),
        unlimited_token_hit_fraction=float(curve.hit_fraction(np.inf)),
        curve=tuple(zip(sizes, shares.tolist(), strict=True)),
    )


def _latency_sums(part: TracePart) -> Array:
    """Return sum and count of TTFT, TPOT and end-to-end latency."""
    with np.errstate(invalid="ignore", divide="ignore"):
        gaps = part.output_tokens - 1
        tpot = np.where(gaps > 0, np.maximum(part.e2e_s - part.ttft_s, 0.0) / np.maximum(gaps, 1), np.nan)
    columns = (part.ttft_s, tpot, part.e2e_s)
    return np.array([[np.nansum(column), np.count_nonzero(~np.isnan(column))] for column in columns])


def _measured(sums: Array) -> dict[str, float | None] | None:
    ttft, tpot, e2e = (float(total / count) if count else None for total, count in sums)
    means = {"ttft_s": ttft, "tpot_s": tpot, "e2e_s": e2e, "queue_s": None}
    return means if ttft or e2e else None


MAX_REQUESTS = 2_000_000
"""Limit of a trace that is held in memory; a longer one is summarised by `capplan workload` first."""
MOST_LINES = 2 * MAX_REQUESTS
"""capplan rejects a table with more lines before its rows are read."""
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
        f"  shorten it, or summarise it first: capplan workload {quote(name)} -o workload.yaml"
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
        raise InputError(f"{name}: {file.omissions.counted_in} {line}: {reason}")


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
