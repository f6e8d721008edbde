"""Run a series against a server and return results, as if a benchmark tool had written them.

What a server says of itself while a series runs: what it counted, and how full it was at most, by the names that engines give these numbers.

The calibration of a running server: a series of requests, and the numbers with which replays come closest to their times.
"""

import json
import random
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from capplan.calibrate.endpoint.client import Answered, Endpoint, Question, answered, fetched
from capplan.calibrate.endpoint.series import (
    MOST_REQUESTS,
    OPEN_SHARE,
    OPEN_TIME_SHARE,
    Point,
    Series,
    designed,
    open_loop,
    shared_loop,
)
from capplan.calibrate.refit import refitted
from capplan.engine.lookup import with_slots
from capplan.errors import InputError
from capplan.questions.validation import replica_of_result
from capplan.readers.calibration.file import read_calibration_file
from capplan.readers.calibration.record import Calibration, HostRefit
from capplan.readers.catalogue.models import called_alike, shipped_id
from capplan.recorded.results.record import BenchmarkResult, Latency, latency
from capplan.scenario.flags import ServingFlags, StatedResult
from capplan.workload.statistics import LONGEST_TOKENS

PATHS = ("/metrics", "/prometheus/metrics")
"""The second one is that of TensorRT-LLM, whose first one holds no counters."""
EVERY_S = 1.0
COUNTED: Mapping[str, Sequence[Sequence[str]]] = {
    "steps": (
        ("vllm:iteration_tokens_total_count",),
        ("llamacpp:n_decode_total",),
        ("tgi_batch_inference_count",),
    ),
    "preemptions": (("vllm:num_preemptions_total",),),
    "prefix_queries": (
        ("vllm:prefix_cache_queries_total",),
        ("vllm:gpu_prefix_cache_queries_total",),
        ("sglang:prompt_tokens_total",),
        ("trtllm_kv_cache_reused_blocks_total", "trtllm_kv_cache_missed_blocks_total"),
        ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
    ),
    "prefix_hits": (
        ("vllm:prefix_cache_hits_total",),
        ("vllm:gpu_prefix_cache_hits_total",),
        ("sglang:cached_tokens_total",),
        ("trtllm_kv_cache_reused_blocks_total",),
        ("llamacpp:prompt_tokens_cached_total",),
    ),
    "accepted_drafts": (
        ("vllm:spec_decode_num_accepted_tokens_total",),
        ("trtllm_spec_decode_num_accepted_tokens_total",),
        ("llamacpp:spec_decode_num_accepted_tokens_total",),
    ),
}
"""Counters: the first ones that a server has, added up where there are several."""
FULLEST: Mapping[str, Sequence[str]] = {
    "running": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "trtllm_num_requests_running",
        "llamacpp:requests_processing",
        "tgi_batch_current_size",
    ),
    "waiting": (
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "trtllm_num_requests_waiting",
        "llamacpp:requests_deferred",
        "tgi_queue_size",
    ),
    "cache_use": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "trtllm_kv_cache_utilization",
    ),
}
"""Readings of the moment, of which the highest one counts; the last one is a share of the cache."""

_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{[^}]*\})?\s+([0-9.eE+-]+)", re.MULTILINE)


def samples(text: str) -> dict[str, list[float]]:
    """Return the numbers of a page of metrics by name, one for each set of labels.

    Examples
    --------
    >>> samples('vllm:num_requests_running{engine="0"} 3.0')
    {'vllm:num_requests_running': [3.0]}
    """
    found = defaultdict(list)
    for name, value in _SAMPLE.findall(text):
        try:
            found[name].append(float(value))
        except ValueError:
            continue
    return dict(found)


class OwnCounters:
    """Reads the metrics of a server when a block begins, once a second within it, and when it ends."""

    def __init__(self, server: Endpoint, every_s: float = EVERY_S) -> None:
        """Read nothing yet."""
        self._server, self._every_s = server, every_s
        self._path = ""
        self._before: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.counted: dict[str, float] = {}
        """Growth of each counter within the block."""
        self.fullest: dict[str, float] = {}
        """The highest reading of each kind."""

    def __enter__(self) -> "OwnCounters":
        """Start to read, where the server has something to be read."""
        for path in PATHS:
            self._path = path
            self._before = self._read()
            if self._before or self.fullest:
                self._thread.start()
                break
        return self

    def __exit__(self, *_: object) -> None:
        """Read for the last time."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
            after = self._read()
            self.counted = {
                name: after[name] - before for name, before in self._before.items() if name in after
            }

    def _watch(self) -> None:
        while not self._ended.wait(self._every_s):
            self._read()

    def _read(self) -> dict[str, float]:
        """Return the counters, and keep the highest readings."""
        found = samples(fetched(self._server, self._path))
        for kind, names in FULLEST.items():
            values = next((found[name] for name in names if name in found), None)
            if values:
                now = max(values) if kind == "cache_use" else sum(values)
                self.fullest[kind] = max(self.fullest.get(kind, 0.0), now)
        sums = {}
        for kind, alternatives in COUNTED.items():
            known = next((names for names in alternatives if all(name in found for name in names)), ())
            if known:
                sums[kind] = sum(sum(found[name]) for name in known)
        return sums


TOOL = "capplan calibrate --endpoint"
IDS = (1000, 20000)
"""Range of the token ids that are sent: in the vocabulary of every model of today, and none of them special."""
WORDS = ("river", "stone", "cloud", "paper", "light", "garden", "winter", "metal", "harbor", "signal")
LLAMACPP = "llamacpp"
"""Owner that llama.cpp's server states for its models."""
MOST_WRONG_SHARE = 0.5
"""Share of failed requests above which a point does not count."""
LEAST_ANSWERS = 2


@dataclass(slots=True)
class Probed:
    """What a series brought."""

    results: list[BenchmarkResult] = field(default_factory=list)
    answers: list[tuple[str, list[Answered]]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    counted: dict[str, float] = field(default_factory=dict)
    """Growth of the server's own counters over the series."""
    fullest: dict[str, float] = field(default_factory=dict)
    """The highest numbers of running and waiting requests and share of the cache in use that the server stated."""
    stopped: bool = False
    """Ended by Ctrl-C."""


class Served(NamedTuple):
    """What a server serves."""

    server: Endpoint
    """The server, with the name that it has for the model."""
    longest: int | None = None
    """Longest context, if the server says so."""
    notice: str = ""
    """What is uncertain about the model; empty if nothing is."""
    has_slots: bool = False
    """It is llama.cpp's server."""


def served_model(server: Endpoint, model: str) -> Served:
    """Return what a server serves: the only model, or of several the one that is called like the expected one.

    Parameters
    ----------
    server : that lists its models
    model : that is expected there

    Raises
    ------
    InputError
        nothing answers, or it serves another model
    """
    rows = _listed_models(fetched(server, "/v1/models"))
    if not rows:
        raise InputError(
            f"--endpoint: {server.shown}/v1/models does not answer, or names no model\n  give the address of an OpenAI-compatible server that runs"
        )
    named = [
        name for name, row in rows.items() if any(called_alike(word, model) for word in (name, row["root"]))
    ]
    if len(rows) > 1 and len(named) != 1:
        raise InputError(
            f"--endpoint: {server.shown} serves several models: {', '.join(list(rows)[:5])}\n"
            f"  {len(named) or 'none'} of them called like {model}; a series needs a server with one"
        )
    name = named[0] if named else next(iter(rows))
    known = shipped_id(name) or shipped_id(rows[name]["root"])
    if not named and known:
        raise InputError(
            f"--endpoint: {server.shown} serves {known}, and {model} is expected there\n  name the model that it serves, or give the address of another server"
        )
    notice = "" if named else f"the server calls its model {name!r}, which is taken for {model}"
    longest = rows[name]["longest"]
    stated = isinstance(longest, int) and not isinstance(longest, bool) and 0 < longest <= LONGEST_TOKENS
    has_slots = rows[name]["owner"] == LLAMACPP
    return Served(replace(server, model=name), longest if stated else None, notice, has_slots)


def _listed_models(text: str) -> dict[str, dict[str, Any]]:
    """Return the models of a list by their names: where each was loaded from, and its longest context."""
    try:
        return {
            str(row["id"]): {
                "root": str(row.get("root") or ""),
                "longest": row.get("max_model_len"),
                "owner": row.get("owned_by"),
            }
            for row in json.loads(text)["data"]
            if isinstance(row, dict) and "id" in row
        }
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


Pieces: TypeAlias = Sequence[int] | Sequence[str]
"""Pieces of a prompt: token ids, or words."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """How to write prompts for a server."""

    takes_ids: bool
    words_per_token: float = 1.0
    returns_ids: bool = False
    """The server returns the ids of what it generates."""

    def pieces_of(self, tokens: int) -> int:
        """Return the pieces that make up a number of tokens."""
        return tokens if self.takes_ids else max(round(tokens * self.words_per_token), 1)

    def drawn(self, draw: random.Random, pieces: int) -> Pieces:
        """Return random pieces."""
        if self.takes_ids:
            return [draw.randrange(*IDS) for _ in range(pieces)]
        return [draw.choice(WORDS) for _ in range(pieces)]

    def question(self, pieces: Pieces, output_tokens: int) -> Question:
        """Return a request with this prompt."""
        if self.takes_ids:
            return Question(tuple(map(int, pieces)), output_tokens, returns_ids=self.returns_ids)
        return Question(" ".join(map(str, pieces)), output_tokens)

    def unlike(self, draw: random.Random, point: Point) -> Question:
        """Return a request whose prompt is like no other."""
        return self.question(self.drawn(draw, self.pieces_of(point.input_tokens)), point.output_tokens)

    def pieces_of_response(self, answer: Answered) -> Pieces:
        """Return the pieces of a response; none if the server takes token ids and returns none."""
        return answer.ids if self.takes_ids else answer.text.split()


def prompts_for(server: Endpoint, draw: random.Random, *, whole_sessions: bool = False) -> Prompts:
    """Return how the server takes prompts; the requests that find it out also warm it.

    Parameters
    ----------
    server : with the name of its model
    draw : of prompts
    whole_sessions : turns continue responses, so the server is asked for the ids of what it generates

    Raises
    ------
    InputError
        it answers neither token ids nor text
    """
    point = Point(1, 64, 8)
    ways = (Prompts(takes_ids=True, returns_ids=True), Prompts(takes_ids=True), Prompts(takes_ids=False))
    for way in ways if whole_sessions else ways[1:]:
        first = answered(server, way.unlike(draw, point))
        if first.error or (way.returns_ids and not first.ids):
            continue
        if way.takes_ids or not first.input_tokens:
            return way
        return replace(way, words_per_token=point.input_tokens / first.input_tokens)
    raise InputError(f"--endpoint: {server.shown} does not answer: {first.error}")


def probed(server: Endpoint, series: Series, tell: Callable[[str], None], seed: int = 0) -> Probed:
    """Send a series; what was measured before Ctrl-C is kept.

    Parameters
    ----------
    server : with the name of its model
    series : of `designed`
    tell : receives a line for each point
    seed : of prompts and arrivals

    Returns
    -------
    results by point, and what the server counted
    """
    draw = random.Random(seed)  # prompts and arrivals
    found = Probed()
    prompts = prompts_for(server, draw)
    if not prompts.takes_ids:
        found.remarks.append(
            "the server takes no token ids: prompts are words, and their lengths those that it counted"
        )
    start_s = time.monotonic()
    with OwnCounters(server) as own:
        try:
            for number, point in enumerate(series.points):
                tell(f"{number + 1} of {len(series.points) + 1}: {point.name}")
                _closed(server, point, prompts, draw, series, found)
                if _late(series, number, start_s):
                    skipped = len(series.points) - number - 1
                    found.remarks.append(
                        f"out of time: {skipped} of {len(series.points)} closed loops were left out"
                    )
                    break
            _open(server, prompts, draw, series, found, tell)
        except KeyboardInterrupt:
            found.stopped = True
            found.remarks.append(
                f"stopped by Ctrl-C after {len(found.results)} of {len(series.points) + 1} points"
            )
    found.counted, found.fullest = own.counted, own.fullest
    return found


def _late(series: Series, number: int, start_s: float) -> bool:
    """Return whether the points so far took so long that the next one would end after the time."""
    spent_s = time.monotonic() - start_s
    left = number + 1 < len(series.points)
    return left and spent_s + spent_s / (number + 1) > series.seconds * (1.0 - 0.5 * OPEN_TIME_SHARE)


def _closed(
    server: Endpoint, point: Point, prompts: Prompts, draw: random.Random, series: Series, found: Probed
) -> None:
    asked = [prompts.unlike(draw, point) for _ in range(point.most_requests)]
    answers = shared_loop(server, asked, point.concurrency, until_s=time.monotonic() + series.point_s)
    _keep(found, point.name, answers, BenchmarkResult(TOOL, point.name, concurrency=float(point.concurrency)))


def _open(
    server: Endpoint,
    prompts: Prompts,
    draw: random.Random,
    series: Series,
    found: Probed,
    tell: Callable[[str], None],
) -> None:
    """Send requests at random times, at a share of the highest rate that a closed loop with short prompts had."""
    rated = [result for result in found.results if result.requests_per_s]
    if not rated:
        return
    best = max(rated, key=lambda result: result.requests_per_s or 0.0)
    rate = OPEN_SHARE * (best.requests_per_s or 0.0)
    count = int(min(max(rate * series.seconds * OPEN_TIME_SHARE, LEAST_ANSWERS), MOST_REQUESTS))
    point = Point(1, round(best.input_tokens or 1), round(best.output_tokens or 1))
    name = f"{rate:.3g} requests per s, {point.input_tokens} tokens in, {point.output_tokens} out"
    tell(f"{len(series.points) + 1} of {len(series.points) + 1}: open loop, {name}")
    times = np.cumsum([draw.expovariate(rate) for _ in range(count)]).tolist()
    answers = open_loop(server, [prompts.unlike(draw, point) for _ in times], times)
    _keep(found, name, answers, BenchmarkResult(TOOL, name, request_rate_per_s=rate))


def _keep(found: Probed, name: str, answers: Sequence[Answered], bare: BenchmarkResult) -> None:
    """Keep the result of a point, unless too many of its requests failed."""
    good = [answer for answer in answers if not answer.error]
    wrong = [answer for answer in answers if answer.error]
    found.answers.append((name, list(answers)))
    if wrong:
        busy = sum(answer.busy for answer in wrong)
        limited = f", {busy} because the server limits its load" if busy else ""
        found.remarks.append(
            f"{name}: {len(wrong)} of {len(answers)} requests failed{limited}: {wrong[0].error}"
        )
    if len(good) < LEAST_ANSWERS or len(wrong) > MOST_WRONG_SHARE * len(answers):
        found.remarks.append(f"{name}: left out, {len(good)} of {len(answers)} requests count")
        return
    found.results.append(summary(good, bare))


def summary(good: Sequence[Answered], bare: BenchmarkResult) -> BenchmarkResult:
    """Return a result with the latencies and rates of answers.

    Parameters
    ----------
    good : answers without an error
    bare : the result without them
    """
    seconds = max(answer.ended_s for answer in good) - min(answer.sent_s for answer in good)
    outputs = sum(answer.output_tokens for answer in good)
    tpot = [
        (answer.token_s[-1] - answer.token_s[0]) / (answer.output_tokens - 1)
        for answer in good
        if answer.output_tokens > 1 and len(answer.token_s) > 1
    ]
    return replace(
        bare,
        requests=len(good),
        input_tokens=float(np.mean([answer.input_tokens for answer in good])) or None,
        output_tokens=outputs / len(good),
        ttft_s=_spread([answer.token_s[0] - answer.sent_s for answer in good]),
        tpot_s=_spread(tpot),
        e2e_s=_spread([answer.token_s[-1] - answer.sent_s for answer in good]),
        requests_per_s=len(good) / seconds if seconds > 0.0 else None,
        output_tokens_per_s=outputs / seconds if seconds > 0.0 else None,
    )


def _spread(values: Sequence[float]) -> Latency:
    if not values:
        return latency()
    return latency(float(np.mean(values)), *(float(np.percentile(values, part)) for part in (50, 90, 95, 99)))


MINUTES = 3.0
"""Time of a series where none is given."""
LEAST_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """What was measured of a server, and the numbers that explain it."""

    address: str
    probed: Probed
    kernels: Calibration | None
    """Calibration that was the prior."""
    refit: HostRefit


def planned_series(minutes: float | None, most: int, longest: int | None = None) -> Series:
    """Return the series for a time and a number of requests in flight."""
    return designed(minutes or MINUTES, most, longest)


def measured_deployment(
    server: Endpoint,
    stated: StatedResult,
    serving: ServingFlags,
    *,
    minutes: float | None,
    most: int,
    tell: Callable[[str], None],
) -> Deployment:
    """Measure a server and fit the rates of its device and its host times.

    Parameters
    ----------
    server : its address
    stated : the model that it serves, as capplan reads it, and the device
    serving : how it was started
    minutes : [min]
        for the series; None: as usual
    most : [-]
        requests in flight
    tell : receives a line for each point

    Raises
    ------
    InputError
        nothing answers, or too little was measured; model or device is not named
    """
    bare = BenchmarkResult(
        server.shown, server.shown, model=stated.model, hardware=stated.hardware,
        engine=serving.engine, engine_version=serving.engine_version,
        tensor_parallel=serving.tensor_parallel, pipeline_parallel=serving.pipeline_parallel,
        expert_parallel=serving.expert_parallel, data_parallel=serving.data_parallel,
    )  # fmt: skip
    spec = replica_of_result(bare, serving)
    server, longest, notice, has_slots = served_model(server, stated.model or "")
    if has_slots:
        spec = replace(spec, profile=with_slots(spec.profile))
    series = planned_series(minutes, most, longest or serving.max_model_len)
    patience_s = max(series.seconds, LEAST_ANSWER_S)
    server = replace(
        server, answer_s=min(server.answer_s, patience_s), silence_s=min(server.silence_s, patience_s)
    )
    tell(
        f"{server.shown} serves {server.model}: {len(series.points)} closed loops and an open loop, {series.seconds / 60:.3g} min"
    )
    found = probed(server, series, tell)
    if not found.results:
        why = "".join(f"\n  {remark}" for remark in found.remarks[:5])
        raise InputError(f"--endpoint: {server.shown}: nothing was measured{why}")
    kernels = read_calibration_file(serving.calibration).kernels if serving.calibration else None
    refit = refitted([(_stated(result, bare), spec) for result in found.results])
    notices = [notice] if notice else []
    if has_slots:
        notices.append("the server is llama.cpp's: requests are replayed with its slots")
    remarks = (*notices, *found.remarks, *refit.remarks)
    return Deployment(server.shown, found, kernels, replace(refit, remarks=remarks))


def _stated(result: BenchmarkResult, bare: BenchmarkResult) -> BenchmarkResult:
    return replace(result, model=bare.model, hardware=bare.hardware, engine=bare.engine)
