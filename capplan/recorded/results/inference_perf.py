"""Results of kubernetes-sigs/inference-perf: lifecycle metrics of a stage or summary, and Prometheus metrics."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from capplan.errors import InputError
from capplan.recorded.results.record import BenchmarkResult, ResultValues, Spread

TOOL = "inference-perf"
NAMES = {"mean": ("mean",), "p50": ("median", "p50"), "p90": ("p90",), "p95": ("p95",), "p99": ("p99",)}
LARGEST_DISAGREEMENT_RATIO = 1.2
"""A mean TPOT further than this from (latency - TTFT) / (tokens - 1) of the means counted something else."""


def stage_result(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one stage or summary, as measured by the client or by the server's metrics."""
    successes = values["successes"]
    of_server = isinstance(successes, Mapping) and "rate" in successes
    return prometheus_result(values, path) if of_server else lifecycle_result(values, path)


def lifecycle_result(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one stage or summary; all its latencies are in seconds.

    ``time_per_output_token`` is the mean gap between chunks. Servers that send empty or split chunks make it
    smaller than the time per token; then TPOT is taken from the means of latency, TTFT and length.
    """
    document = ResultValues(path, values)
    successes = document.at("successes")
    count = successes.needed("count", tool=TOOL)
    if count == 0:
        raise InputError(f"{path}: successes.count is 0, so this run measured nothing")
    latency, throughput = successes.at("latency"), successes.at("throughput")
    load = document.at("load_summary")
    result = BenchmarkResult(
        tool=TOOL,
        path=path,
        concurrency=load.number("concurrency"),
        request_rate_per_s=load.number("requested_rate", "achieved_rate"),
        requests=round(count),
        input_tokens=successes.at("prompt_len").number("mean"),
        output_tokens=successes.at("output_len").number("mean"),
        ttft_s=latency.at("time_to_first_token").spread(1.0, NAMES),
        tpot_s=latency.at("time_per_output_token").spread(1.0, NAMES),
        e2e_s=latency.at("request_latency").spread(1.0, NAMES),
        requests_per_s=throughput.number("requests_per_sec"),
        output_tokens_per_s=throughput.number("output_tokens_per_sec"),
        total_tokens_per_s=throughput.number("total_tokens_per_sec"),
    )
    return with_consistent_tpot(result)


def with_consistent_tpot(result: BenchmarkResult) -> BenchmarkResult:
    """Return the result with TPOT from the means where the tool counted chunks instead of tokens."""
    e2e, ttft, tokens = result.e2e_s.mean, result.ttft_s.mean, result.output_tokens
    if e2e is None or ttft is None or tokens is None or tokens <= 1.0 or e2e <= ttft:
        return result
    derived = (e2e - ttft) / (tokens - 1.0)
    stated = result.tpot_s.mean
    if stated and 1 / LARGEST_DISAGREEMENT_RATIO <= derived / stated <= LARGEST_DISAGREEMENT_RATIO:
        return result
    shown = "absent" if not stated else f"{stated * 1e3:.4g} ms"
    note = (
        f"time_per_output_token ({shown}) is not (latency - TTFT) / (tokens - 1) = {derived * 1e3:.4g} ms, "
        "which is used: the tool counted chunks, not tokens"
    )
    return replace(result, tpot_s=Spread(derived), notes=(*result.notes, note))


def prometheus_result(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one stage as measured by the server's metrics."""
    document = ResultValues(path, values)
    successes = document.at("successes")
    if successes.needed("count", tool=TOOL) == 0:
        raise InputError(f"{path}: successes.count is 0, so this run measured nothing")
    notes = ["server-side metrics: lengths and rates are those of Prometheus"]
    if successes.at("kv_cache_usage_percentage").number("mean") == 0.0:
        notes.append("KV-cache usage reads 0: the metric was renamed upstream and is not used")
    return BenchmarkResult(
        tool=TOOL,
        path=path,
        requests=successes.count("count"),
        input_tokens=successes.at("prompt_len").number("mean"),
        output_tokens=successes.at("output_len").number("mean"),
        ttft_s=successes.at("time_to_first_token").spread(1.0, NAMES),
        tpot_s=successes.at("time_per_output_token").spread(1.0, NAMES),
        e2e_s=successes.at("request_latency").spread(1.0, NAMES),
        requests_per_s=successes.number("rate"),
        output_tokens_per_s=successes.at("output_len").number("rate"),
        notes=tuple(notes),
    )
