"""Results of the benchmark tools of engines: vLLM, SGLang, TensorRT-LLM and llama.cpp."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from capplan.errors import InputError
from capplan.readers.catalogue.hardware import catalogue_name
from capplan.readers.catalogue.workstations import machine_parts
from capplan.recorded.results.record import (
    NO_BLOCKS,
    BenchmarkResult,
    ResultValues,
    Row,
    engine_of_backend,
    latency,
    stated,
)

LLAMA_BENCH = "llama-bench"


def llama_bench_result(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one row; ``avg_ns`` is the time of the whole test, ``n_depth`` the context already in the cache."""
    document = ResultValues(path, values)
    prompt = document.needed("n_prompt", tool=LLAMA_BENCH)
    generated = document.needed("n_gen", tool=LLAMA_BENCH)
    if not prompt and not generated:
        raise InputError(f"{document.where('n_prompt')} and n_gen are 0, so this row measured nothing")
    seconds = document.needed("avg_ns", tool=LLAMA_BENCH) * 1e-9
    depth = document.number("n_depth") or 0.0
    result_kind: Any = "static_batch" if prompt and generated else "prefill" if prompt else "decode"
    result = BenchmarkResult(
        tool=LLAMA_BENCH,
        path=path,
        kind=result_kind,
        engine="llama.cpp",
        concurrency=1.0,
        requests=1,
        input_tokens=prompt,
        output_tokens=generated,
        context_tokens=depth + generated / 2.0 if result_kind == "decode" else depth,
        ttft_s=latency(seconds) if result_kind == "prefill" else latency(),
        tpot_s=latency(seconds / generated) if result_kind == "decode" else latency(),
        e2e_s=latency(seconds) if result_kind == "static_batch" else latency(),
        **stated(document, LLAMA_BENCH),
    )
    result = replace(result, hardware=_one_device(result.hardware))
    return (
        replace(result, output_tokens_per_s=result.total_tokens_per_s) if result_kind == "decode" else result
    )


def _one_device(printed: str | None) -> str | None:
    """Return a printed name that is one device of the catalogue; None for any other, for which --hardware has to be given."""
    parts = machine_parts(printed or "")
    return parts[0][0] if len(parts) == 1 and catalogue_name(parts[0][0]) else None


BATCHED_BENCH = "llama-batched-bench"


def batched_bench_result(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one row of llama-batched-bench: prompts that are computed together, then sequences that generate together."""
    document = ResultValues(path, values)
    generated = document.needed("tg", tool=BATCHED_BENCH)
    prompts_s = document.needed("t_pp", tool=BATCHED_BENCH)
    steps_s = document.needed("t_tg", tool=BATCHED_BENCH)
    return BenchmarkResult(
        tool=BATCHED_BENCH,
        path=path,
        kind="static_batch",
        engine="llama.cpp",
        ttft_s=latency(prompts_s),
        tpot_s=latency(steps_s / generated if generated else None),
        e2e_s=latency(prompts_s + steps_s),
        **stated(document, BATCHED_BENCH),
    )


TRTLLM_BENCH = "trtllm-bench"


def trtllm_report(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return the run of one report; latencies there are in milliseconds."""
    document = ResultValues(path, values)
    if document.at("request_info").needed("num_requests", tool=TRTLLM_BENCH) == 0:
        raise InputError(f"{path}: request_info.num_requests is 0, so this run measured nothing")
    document.at("performance").needed("total_latency_ms", tool=TRTLLM_BENCH)
    world = document.at("world_info")
    rate, experts = world.number("issue_rate", minimum=-1.0), world.number("ep_size", minimum=-1.0)
    return BenchmarkResult(
        tool=TRTLLM_BENCH,
        path=path,
        kind="serving" if document.at("streaming_metrics").values else "offline",
        engine="trtllm",
        expert_parallel=round(experts) if experts and experts > 0 else None,
        request_rate_per_s=rate if rate and rate > 0 else None,
        **stated(document, TRTLLM_BENCH),
    )


SERVE = "vllm bench serve"
LATENCY = "vllm bench latency"
THROUGHPUT = "vllm bench throughput"
INFERENCEX = "InferenceX"


def vllm_serve(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one run of `vllm bench serve`, with or without details.

    Version 0.8.5 writes ``request_goodput:`` with a trailing colon; keys are read without it.
    """
    document = ResultValues(path, {key.rstrip(":"): value for key, value in values.items()})
    result = BenchmarkResult(
        **measures(document, SERVE),
        **stated(document, SERVE),
        engine=engine_of_backend(document.text("backend")),
    )
    return replace(result, log=request_log(document), notes=_notes(document))


def measures(document: ResultValues, tool: str) -> dict[str, Any]:
    """Return the fields that results of vLLM and SGLang share."""
    completed = document.needed("completed", tool=tool)
    if completed == 0:
        raise InputError(
            f"{document.path}: none of the requests of this run completed, so it measured nothing"
        )
    for name in ("mean_ttft_ms", "duration"):
        document.needed(name, tool=tool)
    endless = document.values.get("request_rate") in ("inf", "trace")
    return {
        "tool": tool,
        "path": document.path,
        "request_rate_per_s": None if endless else document.number("request_rate"),
        "requests": round(completed),
        "input_tokens": document.needed("total_input_tokens", tool=tool) / completed,
        "output_tokens": document.needed("total_output_tokens", tool=tool) / completed,
        **stated(document, "vllm and sglang"),
    }


def request_log(document: ResultValues) -> tuple[Row, ...]:
    """Return the requests of a detailed result of vLLM or SGLang; empty without the lists.

    TTFT and gaps are in seconds in these lists. A request with an error is left out.
    """
    columns = [document.numbers(name) for name in ("input_lens", "output_lens", "ttfts")]
    inputs, outputs, ttfts = columns
    if not all(columns):
        return ()
    if len({len(column) for column in columns}) != 1:
        raise InputError(f"{document.where('ttfts')} and input_lens, output_lens differ in length")
    starts = document.numbers("start_times") or [0.0] * len(inputs)
    totals = document.numbers("latencies") or _totals(document, ttfts)
    errors = document.values.get("errors") or [""] * len(inputs)
    first = min(starts, default=0.0)
    return tuple(
        Row(0, start - first, round(tokens_in), round(tokens_out), NO_BLOCKS, ttft, total)
        for start, tokens_in, tokens_out, ttft, total, error in zip(
            starts, inputs, outputs, ttfts, totals, errors, strict=False
        )
        if not error and tokens_out > 0
    )


def _totals(document: ResultValues, ttfts: list[float]) -> list[float]:
    gaps = document.values.get("itls") or [[] for _ in ttfts]
    return [ttft + sum(gap) for ttft, gap in zip(ttfts, gaps, strict=False)]


def _notes(document: ResultValues) -> tuple[str, ...]:
    notes = []
    if document.number("failed"):
        notes.append(f"{document.count('failed')} requests failed")
    if document.values.get("max_concurrency") is None and document.number("max_concurrent_requests"):
        notes.append("max_concurrent_requests is a peak of one-second buckets and is not used as concurrency")
    return tuple(notes)


def vllm_latency(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one run of `vllm bench latency`: batches that start and end together.

    The file holds neither batch size nor lengths; they have to be given separately.
    """
    document = ResultValues(path, values)
    fields = stated(document, LATENCY)
    return BenchmarkResult(
        tool=LATENCY,
        path=path,
        kind="static_batch",
        engine="vllm",
        **fields | {"e2e_s": replace(fields["e2e_s"], mean=document.number("avg_latency"))},
        notes=("the file does not hold batch size, input and output tokens",),
    )


def vllm_throughput(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one run of `vllm bench throughput`: all requests at once, input and output tokens together."""
    document = ResultValues(path, values)
    fields = stated(document, THROUGHPUT)
    if fields["requests"] == 0 or document.number("elapsed_time") == 0:
        raise InputError(f"{path}: no request was processed, so this run measured nothing")
    document.needed("tokens_per_second", tool=THROUGHPUT)
    return BenchmarkResult(
        tool=THROUGHPUT,
        path=path,
        kind="offline",
        engine="vllm",
        **fields,
        notes=("tokens per second count input and output together; the file does not split them",),
    )


def inferencex_row(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one aggregated row of InferenceX (formerly InferenceMAX): vLLM's keys in seconds, rates per GPU."""
    document = ResultValues(path, values)
    output, total = document.number("output_tput_per_gpu", "tput_per_gpu"), document.number("tput_per_gpu")
    fields = stated(document, INFERENCEX)
    tensor, pipeline = fields["tensor_parallel"], fields["pipeline_parallel"] or 1
    devices = (tensor or 1) * pipeline * (document.count("pcp_size") or 1)
    data = tensor if document.text("dp_attention") in ("true", "True") else None
    return BenchmarkResult(
        tool=INFERENCEX,
        path=path,
        **fields | {"tensor_parallel": 1 if data else tensor, "pipeline_parallel": pipeline},
        data_parallel=data,
        output_tokens_per_s=None if output is None else output * devices,
        total_tokens_per_s=None if total is None else total * devices,
        notes=("isl and osl are nominal: the lengths sent are uniform on 0.8 to 1 times them",),
    )


SERVING = "sglang bench_serving"
ONE_BATCH = "sglang bench_one_batch"
ONE_BATCH_SERVER = "sglang bench_one_batch_server"


def sglang_serving(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one run of `bench_serving`."""
    document = ResultValues(path, values)
    result = BenchmarkResult(
        **measures(document, SERVING),
        **stated(document, SERVING),
        engine=engine_of_backend(document.text("backend")),
    )
    return replace(result, log=request_log(document))


def sglang_one_batch(values: Mapping[str, Any], path: str) -> list[BenchmarkResult]:
    """Return the prefill and the decode of one line of `bench_one_batch`: no server, no scheduler.

    The line of `bench_one_batch_server` has the whole latency instead; it is one static batch.
    """
    document = ResultValues(path, values)
    shared = BenchmarkResult(ONE_BATCH, path, engine="sglang", **stated(document, ONE_BATCH))
    if document.number("prefill_latency") is None:
        return [_server_result(document, shared)]
    prefill = document.needed("prefill_latency", tool=ONE_BATCH)
    results = [replace(shared, kind="prefill", ttft_s=latency(prefill, prefill), context_tokens=0.0)]
    decode = document.number("median_decode_latency")
    if decode:
        step = latency(decode, decode)
        context = (shared.input_tokens or 0.0) + (shared.output_tokens or 0.0) / 2
        results.append(replace(shared, kind="decode", tpot_s=step, context_tokens=context))
    return results


def _server_result(document: ResultValues, shared: BenchmarkResult) -> BenchmarkResult:
    fields = stated(document, ONE_BATCH_SERVER)
    seconds = document.number("latency") or 0.0
    ttft = document.number("last_ttft")
    gaps = (shared.output_tokens or 1.0) - 1.0
    tpot = None if ttft is None or gaps <= 0 else (seconds - ttft) / gaps
    return replace(
        shared,
        tool=ONE_BATCH_SERVER,
        kind="static_batch",
        e2e_s=latency(seconds),
        ttft_s=latency(ttft),
        tpot_s=latency(tpot),
        **fields,
    )
