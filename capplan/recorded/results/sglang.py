"""Results of SGLang: `bench_serving`, `bench_one_batch` and `bench_one_batch_server` (JSON lines)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from capplan.recorded.results.record import BenchmarkResult, ResultValues, Spread, engine_of_backend
from capplan.recorded.results.vllm import latency_names, measures, request_log

SERVING = "sglang bench_serving"
ONE_BATCH = "sglang bench_one_batch"


def serving_result(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one run of `bench_serving`."""
    document = ResultValues(path, values)
    limited = document.number("max_concurrency")
    result = BenchmarkResult(
        **measures(document, SERVING),
        model=document.text("model_id", "model"),
        engine=engine_of_backend(document.text("backend")),
        concurrency=document.number("concurrency") if limited is None else limited,
        e2e_s=document.spread(1e-3, latency_names("e2e_latency_ms")),
        total_tokens_per_s=document.number("total_throughput"),
        accepted_tokens_per_step=document.number("accept_length"),
    )
    return replace(result, log=request_log(document))


def one_batch_results(values: Mapping[str, Any], path: str) -> list[BenchmarkResult]:
    """Return the prefill and the decode of one line of `bench_one_batch`: no server, no scheduler.

    The line of `bench_one_batch_server` has the whole latency instead; it is one static batch.
    """
    document = ResultValues(path, values)
    batch = document.needed("batch_size", tool=ONE_BATCH)
    tokens_in = document.needed("input_len", tool=ONE_BATCH)
    tokens_out = document.needed("output_len", tool=ONE_BATCH)
    shared = BenchmarkResult(
        tool=ONE_BATCH,
        path=path,
        engine="sglang",
        model=document.text("model_path", "model"),
        concurrency=batch,
        requests=round(batch),
        input_tokens=tokens_in,
        output_tokens=tokens_out,
    )
    if document.number("prefill_latency") is None:
        return [_server_result(document, shared)]
    prefill = document.needed("prefill_latency", tool=ONE_BATCH)
    results = [replace(shared, kind="prefill", ttft_s=Spread(prefill, prefill), context_tokens=0.0)]
    decode = document.number("median_decode_latency")
    if decode:
        step = Spread(decode, decode)
        results.append(replace(shared, kind="decode", tpot_s=step, context_tokens=tokens_in + tokens_out / 2))
    return results


def _server_result(document: ResultValues, shared: BenchmarkResult) -> BenchmarkResult:
    latency = document.needed("latency", tool="sglang bench_one_batch_server")
    ttft = document.number("last_ttft")
    gaps = (shared.output_tokens or 1.0) - 1.0
    tpot = None if ttft is None or gaps <= 0 else (latency - ttft) / gaps
    return replace(
        shared,
        tool="sglang bench_one_batch_server",
        kind="static_batch",
        e2e_s=Spread(latency),
        ttft_s=Spread(ttft),
        tpot_s=Spread(tpot),
        output_tokens_per_s=document.number("output_throughput"),
        total_tokens_per_s=document.number("overall_throughput"),
        accepted_tokens_per_step=document.number("acc_length"),
    )
