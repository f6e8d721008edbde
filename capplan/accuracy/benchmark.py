"""The benchmark behind one measured row: its requests, their arrivals, and the replica that served them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal, TypeAlias, get_args

import numpy as np

from capplan.accuracy.deployment import AGGREGATED, Deployment, deployment_of
from capplan.accuracy.shared_prompts import (
    Conversation,
    SharedPrompts,
    conversation_of,
    shared_prompts_of,
    stated_hit_fraction,
)
from capplan.engine.versions import named_engine, version_of
from capplan.errors import InputError, unknown
from capplan.model.sharding import Sharding
from capplan.numbers import Array

Kind: TypeAlias = Literal[
    "offline_max",
    "offline_burst",
    "online_burst",
    "static_batch",
    "first_token",
    "online_conc",
    "online_rate",
    "online_rate_slo",
]

Arrivals: TypeAlias = Literal["poisson", "constant"]


CHAT_LENGTHS = (1.1, 8.0, 0.9, 2.5)
"""Spread, and maximum over mean, of inputs and outputs: chat data without further detail (an assumption)."""

DATASETS = {
    "sharegpt_standard_v1": (1.17, 2100.0, 0.9, 512.0),
    "sharegpt_edge_v1": (1.19, 600.0, 0.9, 512.0),
    "sharegpt_longctx_v1": (0.02, 29932.0, 0.0, 256.0),
    "mlperf-deepseek-r1": (0.6, 3300.0, 1.08, 20000.0),
}
"""Log standard deviation and longest of inputs and of outputs; AccelMark's, in tokens: quartiles and 99th percentile of inputs and the limit of outputs in suites/suite_*/suite.json
and suites/README.md, https://github.com/FreedomIntelligence/AccelMark. MLPerf's reasoning set: mean over median of the response times in a submission
(mean 251 s, median 140 s), the limit of 20,000 tokens of its rules; the spread of its inputs is assumed."""

LIMITS = ("max_num_seqs", "max_num_batched_tokens", "kv_blocks")
"""Columns with the limits that the engine was started with."""

SEED = 20260101

MOST_FAILED = 0.1
"""Maximum fraction of failed requests at which the latencies of the others stand for all."""

UNCOUNTED_ANSWERS = "output_len_unreliable"
"""Flag of a row whose answers ended by themselves; without `osl` nobody counted them."""

MOST_REQUESTS = 1_000_000
"""Maximum requests of one run that are replayed."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """How one row was measured."""

    kind: Kind
    engine: str
    engine_version: str | None
    model: str
    weight_format: str
    kv_format: str
    device: str
    sharding: Sharding
    input_tokens: float
    output_tokens: float
    lengths: str
    concurrency: int | None
    request_rate: float | None
    requests: int | None
    static_batch: int | None
    limits: Mapping[str, int] = field(hash=False)
    """Those of `LIMITS` that the row states."""
    source: str = ""
    """Publisher of the row; some publish the launch settings of their servers elsewhere."""
    date: str = ""
    """Day or month of the run, or two months as `2025-12..2026-01`."""
    offered_rate_reported: bool = False
    """The request rate of the row counts requests sent, not finished."""
    deployment: Deployment = AGGREGATED
    """The engines behind the row; `sharding` is that of one replica, with separate pools of a prefill replica."""
    shared: SharedPrompts | None = None
    """Which prompts begin alike; None: none do, or prompts are not cached."""
    conversation: Conversation | None = None
    """The clients of a closed loop hold conversations of several turns."""
    cached_fraction: float = 0.0
    """Share of the prompt tokens that the row says were found in the cache."""
    stage_s: float | None = None
    """Time for which an open loop sends; with the number of requests both are fixed."""
    arrivals: Arrivals = "poisson"
    front_end_s: float = 0.0
    """Time that a request takes before it reaches an engine, as the row states it: a service that tokenises prompts."""
    slo_ttft_s: float | None = None
    """Limit on the 99th percentile of the TTFT, of `online_rate_slo`."""
    slo_tpot_s: float | None = None


def is_set(text: str | None) -> bool:
    """Return whether a cell with a flag is true.

    Examples
    --------
    >>> [is_set(text) for text in ("1", "True", "0.0", "none", "", None)]
    [True, True, False, False, False, False]
    """
    return (text or "").strip().lower() not in {"", "0", "0.0", "false", "none", "no"}


def source_of(row: Mapping[str, str]) -> str:
    """Return who published a row: its column, else the first part of its group.

    Examples
    --------
    >>> source_of({"group": "accelmark|llama3-8b|h20"})
    'accelmark'
    """
    return (row.get("source_family") or (row.get("group") or "").partition("|")[0]).strip()


def _number(row: Mapping[str, str], key: str) -> float | None:
    text = (row.get(key) or "").strip()
    try:
        value = float(text) if text else None
    except ValueError as error:
        raise InputError(f"{key}: {text!r} is not a number") from error
    return value if value is not None and np.isfinite(value) else None


def _needed(row: Mapping[str, str], key: str) -> float:
    value = _number(row, key)
    if value is None or value <= 0:
        raise InputError(f"{key}: missing or not positive ({row.get(key) or ''!r})")
    return value


def sharding_of(row: Mapping[str, str], replicas: int = 1) -> Sharding:
    """Return the parallelism of one of the identical replicas of a row.

    Engines count attention data parallelism in two ways: on top of tensor parallelism, or inside it
    (tp = dp = GPUs). Where tp x dp x pp exceeds the GPUs, attention is cut over GPUs / (dp x pp) ranks.
    """
    tensor, pipeline = _number(row, "tp") or 1.0, _number(row, "pp") or 1.0
    data, expert = _number(row, "dp") or 1.0, _number(row, "ep") or 1.0
    devices = (_number(row, "num_gpus") or tensor * pipeline * data * replicas) / replicas
    if is_set(row.get("attention_data_parallel")):
        # One size for both: attention over that many groups, experts spread over all.
        return Sharding(1.0, pipeline, tensor, tensor)
    if tensor * pipeline * data > devices:
        tensor = max(1.0, devices / (pipeline * data))
    elif tensor * pipeline * data < devices:
        each = f" of each of {replicas} replicas" if replicas > 1 else ""
        raise InputError(
            f"tp {tensor:g} x pp {pipeline:g} x dp {data:g} does not use all {devices:g} GPUs{each}"
        )
    return Sharding(tensor, pipeline, expert, data)


def _requests(row: Mapping[str, str], concurrency: int | None, rate: float | None) -> int | None:
    """Return the number of requests of a row: stated, per client, or from the duration of the run."""
    stated = _number(row, "requests") or _number(row, "n_requests")
    each, seconds = _number(row, "requests_per_client"), _number(row, "duration_s") or _number(row, "stage_s")
    if stated:
        return int(stated)
    if each and concurrency:
        return int(each * concurrency)
    return max(1, round(seconds * rate)) if seconds and rate else None


def benchmark_of(row: Mapping[str, str]) -> Benchmark:
    """Return the benchmark that a row of measured serving results describes; InputError where it cannot be known."""
    named = (row.get("kind") or "").strip()
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    if named not in kinds:
        raise unknown("kind", named, kinds)
    kind = kinds[named]
    if is_set(row.get("spec_decode")):
        raise InputError(
            f"spec_decode: {row['spec_decode']!r} is not replayed; only serving without drafts is"
        )
    conversation = conversation_of(row)
    input_tokens, output_tokens = _mean_lengths(row, conversation)
    deployment = deployment_of(row, split=is_set(row.get("disagg")))
    rate = _number(row, "request_rate")
    concurrency = _number(row, "concurrency")
    static = _number(row, "batch_static")
    limits = {key: int(value) for key in LIMITS if (value := _number(row, key))}
    engine, packaged = named_engine(row.get("engine") or "")
    date = (row.get("date") or "").strip()
    # NIM and Dynamo count their versions on their own: the date says which engine is inside.
    version = "" if packaged else (row.get("engine_version") or "").strip()
    model = (row.get("model_hf_id") or "").strip()
    if not model:
        raise InputError("model_hf_id: missing")
    requests = _requests(row, int(concurrency) if concurrency else None, rate)
    limit = {name: _number(row, f"slo_{name}_ms") for name in ("ttft", "tpot")}
    _refuse_unreplayable(kind, requests, limit)
    pools = deployment.pools
    replicas = deployment.replicas
    return Benchmark(
        kind=kind,
        engine=engine,
        engine_version=version or version_of(engine, date, candidates=not packaged),
        model=model,
        weight_format=(row.get("weights_dtype") or "auto").strip(),
        kv_format=(row.get("kv_dtype") or "auto").strip(),
        device=(row.get("gpu") or "").strip(),
        sharding=pools[0][1] if pools else sharding_of(row, replicas),
        input_tokens=input_tokens,
        output_tokens=1.0 if kind == "first_token" else output_tokens or _needed(row, "osl"),
        lengths=_lengths_named(row),
        concurrency=int(concurrency) if concurrency else None,
        request_rate=rate,
        requests=requests,
        static_batch=int(static) if static else None,
        limits=limits,
        source=source_of(row),
        date=date,
        offered_rate_reported=is_set(row.get("offered_rate_reported")),
        deployment=deployment,
        shared=None if conversation else shared_prompts_of(row),
        conversation=conversation,
        cached_fraction=stated_hit_fraction(row),
        stage_s=_number(row, "stage_s") if row.get("n_requests") else None,
        arrivals=arrivals_named(row),
        front_end_s=(_number(row, "front_end_ms") or 0.0) / 1e3,
        slo_ttft_s=limit["ttft"] and limit["ttft"] / 1e3,
        slo_tpot_s=limit["tpot"] and limit["tpot"] / 1e3,
    )


def untold(row: Mapping[str, str], requests: int | None) -> tuple[str, tuple[str, ...]] | None:
    """Return why a replay of a row tells less than the row has, and the beginnings of the columns that it tells; None if it tells all.

    Parameters
    ----------
    row : text by column name
    requests : of the run

    Examples
    --------
    >>> untold({"n_failed": "85"}, 100)[1], untold({"n_failed": "5"}, 100)
    (('stable',), None)
    """
    failed = (_number(row, "n_failed") or 0.0) / (requests or inf)
    if failed > MOST_FAILED:
        return f"n_failed: {failed:.0%} of the requests failed, and the latencies are those of the others", (
            "stable",
        )
    if _answers_uncounted(row):
        return (
            "osl: not stated, and answers ended by themselves: replayed with one token, which tells TTFT and saturation",
            ("stable", "ttft"),
        )
    return None


def _answers_uncounted(row: Mapping[str, str]) -> bool:
    return (
        (row.get("kind") or "").strip() == "online_rate"
        and not (row.get("osl") or "").strip()
        and UNCOUNTED_ANSWERS in (row.get("flags") or "")
    )


def _lengths_named(row: Mapping[str, str]) -> str:
    """Return how the lengths of the requests are spread."""
    return (row.get("length_distribution") or "fixed").strip()


def _mean_lengths(row: Mapping[str, str], conversation: Conversation | None) -> tuple[float, float | None]:
    """Return the mean input and output tokens of a row; no output where none is stated. InputError without an input."""
    if conversation is not None:
        return conversation.mean_input_tokens, conversation.output_tokens
    lengths = _lengths_named(row)
    if not row.get("isl") and lengths != "fixed":
        raise InputError(
            f"isl: no prompt length is stated ({lengths[:40]!r}); a recorded trace is replayed by capplan simulate --trace"
        )
    return _needed(row, "isl"), 1.0 if _answers_uncounted(row) else _number(row, "osl")


def _refuse_unreplayable(kind: Kind, requests: int | None, limit: Mapping[str, float | None]) -> None:
    """Raise the error for a run that is too long, or whose limits are not stated."""
    if requests and requests > MOST_REQUESTS and kind != "online_rate_slo":
        raise InputError(f"requests: {requests} exceed the {MOST_REQUESTS} that can be replayed")
    if kind == "online_rate_slo" and not any(limit.values()):
        raise InputError("slo_ttft_ms, slo_tpot_ms: missing; the largest rate is the one at which they hold")


def arrivals_named(row: Mapping[str, str]) -> Arrivals:
    """Return how the requests of an open loop come: Poisson unless the row says otherwise.

    Examples
    --------
    >>> arrivals_named({"arrivals": "poisson (fixed count)"}), arrivals_named({"arrivals": "constant"})
    ('poisson', 'constant')
    """
    text = (row.get("arrivals") or "").strip().lower()
    names: tuple[Arrivals, ...] = get_args(Arrivals)
    for name in names:
        if text.startswith(name):
            return name
    if text:
        raise unknown("arrivals", text, get_args(Arrivals))
    return "poisson"


def lengths_of(benchmark: Benchmark, requests: int) -> tuple[Array, Array]:
    """Return input and output lengths of the requests, in tokens.

    fixed : every request has the mean
    uniform[a,b] : uniform between a and b of the nominal length, whose mean the row gives
    sharegpt : lognormal with the mean of the row and the spread of chat data (an assumption)
    """
    random = np.random.default_rng(SEED)
    uniform = re.search(r"uniform\[([\d.]+),\s*([\d.]+)\]", benchmark.lengths)
    means = (benchmark.input_tokens, benchmark.output_tokens)
    if uniform:
        low, high = float(uniform.group(1)), float(uniform.group(2))
        draws = [random.uniform(low, high, requests) * (2.0 * mean / (low + high)) for mean in means]
    elif "sharegpt" in benchmark.lengths or benchmark.lengths in DATASETS:
        prompt, longest_prompt, output, longest_output = CHAT_LENGTHS
        usual = prompt, longest_prompt * means[0], output, longest_output * means[1]
        prompt, longest_prompt, output, longest_output = DATASETS.get(
            benchmark.lengths.partition(" ")[0], usual
        )
        draws = [
            _chat_lengths(random, requests, means[0], prompt, longest_prompt),
            _chat_lengths(random, requests, means[1], output, longest_output),
        ]
    else:
        draws = [np.full(requests, mean) for mean in means]
    prompts, outputs = (np.maximum(1.0, np.round(draw)) for draw in draws)
    return prompts, outputs


def _chat_lengths(
    random: "np.random.Generator", requests: int, mean: float, spread: float, longest: float
) -> Array:
    """Return lognormal lengths of a given mean, cut at a maximum."""
    if mean <= 1.0:
        return np.full(requests, mean)
    draw = random.lognormal(np.log(mean) - spread**2 / 2.0, spread, requests)
    for _ in range(3):
        draw = np.minimum(draw, longest)
        draw = draw * (mean / draw.mean())
    capped: Array = np.minimum(draw, longest)
    return capped
