"""Results of the benchmark tools of engines: vLLM, SGLang, TensorRT-LLM and llama.cpp."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from capplan.errors import InputError
from capplan.recorded.results.record import (
    BenchmarkResult,
    Latency,
    RequestRecord,
    ResultValues,
    engine_of_backend,
    latency,
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
    tokens_per_s = document.number("avg_ts")
    result_kind: Any = "static_batch" if prompt and generated else "prefill" if prompt else "decode"
    mean_context = depth + generated / 2.0 if result_kind == "decode" else depth
    return BenchmarkResult(
        tool=LLAMA_BENCH,
        path=path,
        kind=result_kind,
        model=document.text("model_type", "model_filename"),
        engine="llama.cpp",
        hardware=document.text("gpu_info", "cpu_info"),
        concurrency=1.0,
        requests=1,
        input_tokens=prompt,
        output_tokens=generated,
        context_tokens=mean_context,
        ttft_s=latency(seconds) if result_kind == "prefill" else latency(),
        tpot_s=latency(seconds / generated) if result_kind == "decode" else latency(),
        e2e_s=latency(seconds) if result_kind == "static_batch" else latency(),
        output_tokens_per_s=tokens_per_s if result_kind == "decode" else None,
        total_tokens_per_s=tokens_per_s,
    )


TRTLLM_BENCH = "trtllm-bench"


def trtllm_report(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return the run of one report; latencies there are in milliseconds."""
    document = ResultValues(path, values)
    engine, world = document.at("engine"), document.at("world_info")
    requests, performance = document.at("request_info"), document.at("performance")
    streaming = document.at("streaming_metrics")
    count = requests.needed("num_requests", tool=TRTLLM_BENCH)
    if count == 0:
        raise InputError(f"{path}: request_info.num_requests is 0, so this run measured nothing")
    performance.needed("total_latency_ms", tool=TRTLLM_BENCH)
    rate = world.number("issue_rate", minimum=-1.0)
    return BenchmarkResult(
        tool=TRTLLM_BENCH,
        path=path,
        kind="serving" if streaming.values else "offline",
        model=engine.text("model"),
        engine="trtllm",
        engine_version=engine.text("version"),
        hardware=document.at("machine").text("name"),
        tensor_parallel=world.count("tp_size"),
        pipeline_parallel=world.count("pp_size"),
        expert_parallel=_positive(world.number("ep_size", minimum=-1.0)),
        concurrency=requests.number("avg_num_concurrent_requests"),
        request_rate_per_s=rate if rate and rate > 0 else None,
        requests=round(count),
        input_tokens=requests.number("avg_input_length"),
        output_tokens=requests.number("avg_output_length"),
        ttft_s=_spread(streaming, "avg_ttft_ms", "ttft_percentiles"),
        tpot_s=_spread(streaming, "avg_tpot_ms", "tpot_percentiles"),
        e2e_s=_spread(performance, "avg_request_latency_ms", "request_latency_percentiles_ms"),
        requests_per_s=performance.number("request_throughput_req_s"),
        output_tokens_per_s=performance.number("system_output_throughput_tok_s"),
        total_tokens_per_s=performance.number("system_total_throughput_tok_s"),
        accepted_tokens_per_step=document.at("decoding_stats", "acceptance_length_percentiles").number(
            "average"
        ),
    )


def _positive(value: float | None) -> int | None:
    return round(value) if value and value > 0 else None


def _spread(document: ResultValues, mean_name: str, percentiles_name: str) -> Latency:
    percentiles = document.at(percentiles_name)
    spread = percentiles.spread(1e-3, {p: (p,) for p in ("p50", "p90", "p95", "p99")})
    mean = document.number(mean_name)
    if mean is None:
        mean = percentiles.number("average")
    return latency(None if mean is None else mean * 1e-3, spread.p50, spread.p90, spread.p95, spread.p99)


SERVE = "vllm bench serve"
LATENCY = "vllm bench latency"
THROUGHPUT = "vllm bench throughput"


def latency_names(quantity: str) -> dict[str, tuple[str, ...]]:
    """Return the keys of vLLM and SGLang for one latency, such as ``ttft_ms``.

    Examples
    --------
    >>> latency_names("ttft_ms")["p50"]
    ('median_ttft_ms', 'p50_ttft_ms')
    """
    names = {"mean": (f"mean_{quantity}",), "p50": (f"median_{quantity}", f"p50_{quantity}")}
    return names | {p: (f"{p}_{quantity}", f"{p}.0_{quantity}") for p in ("p90", "p95", "p99")}


def vllm_serve(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one run of `vllm bench serve`, with or without details.

    Version 0.8.5 writes ``request_goodput:`` with a trailing colon; keys are read without it.
    """
    document = ResultValues(path, {key.rstrip(":"): value for key, value in values.items()})
    result = BenchmarkResult(
        **measures(document, SERVE),
        model=document.text("model_id"),
        engine=engine_of_backend(document.text("backend")),
        hardware=document.text("gpu", "hardware", "accelerator"),
        tensor_parallel=document.count("tp", "TP", "tensor_parallel", "tensor_parallel_size"),
        pipeline_parallel=document.count("pp", "PP", "pipeline_parallel", "pipeline_parallel_size"),
        expert_parallel=document.count("ep", "EP"),
        data_parallel=document.count("dp", "DP"),
        concurrency=document.number("max_concurrency"),
        e2e_s=document.spread(1e-3, latency_names("e2el_ms")),
        total_tokens_per_s=document.number("total_token_throughput"),
        accepted_tokens_per_step=document.number("spec_decode_acceptance_length"),
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
        "ttft_s": document.spread(1e-3, latency_names("ttft_ms")),
        "tpot_s": document.spread(1e-3, latency_names("tpot_ms")),
        "requests_per_s": document.number("request_throughput"),
        "output_tokens_per_s": document.number("output_throughput"),
    }


def request_log(document: ResultValues) -> tuple[RequestRecord, ...]:
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
        RequestRecord(start - first, round(tokens_in), round(tokens_out), ttft, total)
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
    percentiles = document.at("percentiles")
    names = {"p50": ("50",), "p90": ("90",), "p99": ("99",)}
    mean = document.needed("avg_latency", tool=LATENCY)
    return BenchmarkResult(
        tool=LATENCY,
        path=path,
        kind="static_batch",
        model=document.text("model_id", "model"),
        engine="vllm",
        e2e_s=replace(percentiles.spread(1.0, names), mean=mean),
        notes=("the file does not hold batch size, input and output tokens",),
    )


def vllm_throughput(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one run of `vllm bench throughput`: all requests at once, input and output tokens together."""
    document = ResultValues(path, values)
    elapsed = document.needed("elapsed_time", tool=THROUGHPUT)
    requests = document.needed("num_requests", tool=THROUGHPUT)
    if requests == 0 or elapsed == 0:
        raise InputError(f"{path}: no request was processed, so this run measured nothing")
    return BenchmarkResult(
        tool=THROUGHPUT,
        path=path,
        kind="offline",
        model=document.text("model_id", "model"),
        engine="vllm",
        requests=round(requests),
        requests_per_s=document.number("requests_per_second"),
        total_tokens_per_s=document.needed("tokens_per_second", tool=THROUGHPUT),
        notes=("tokens per second count input and output together; the file does not split them",),
    )


def inferencex_row(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one aggregated row of InferenceX (formerly InferenceMAX): vLLM's keys in seconds, rates per GPU."""
    document = ResultValues(path, values)
    tensor = document.count("tp")
    pipeline = document.count("pp") or 1
    devices = (tensor or 1) * pipeline * (document.count("pcp_size") or 1)
    data = tensor if document.text("dp_attention") in ("true", "True") else None
    per_device = document.needed("output_tput_per_gpu", "tput_per_gpu", tool="InferenceX")

    def spread(quantity: str) -> Latency:
        return document.spread(1.0, latency_names(quantity))

    total = document.number("tput_per_gpu")
    return BenchmarkResult(
        tool="InferenceX",
        path=path,
        model=document.text("model"),
        engine=document.text("framework"),
        hardware=document.text("hw"),
        tensor_parallel=1 if data else tensor,
        pipeline_parallel=pipeline,
        expert_parallel=document.count("ep"),
        data_parallel=data,
        concurrency=document.number("conc"),
        input_tokens=document.number("isl"),
        output_tokens=document.number("osl"),
        ttft_s=spread("ttft"),
        tpot_s=spread("tpot"),
        e2e_s=spread("e2el"),
        output_tokens_per_s=per_device * devices,
        total_tokens_per_s=None if total is None else total * devices,
        notes=("isl and osl are nominal: the lengths sent are uniform on 0.8 to 1 times them",),
    )


SERVING = "sglang bench_serving"
ONE_BATCH = "sglang bench_one_batch"


def sglang_serving(values: Mapping[str, Any], path: str) -> BenchmarkResult:
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


def sglang_one_batch(values: Mapping[str, Any], path: str) -> list[BenchmarkResult]:
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
    results = [replace(shared, kind="prefill", ttft_s=latency(prefill, prefill), context_tokens=0.0)]
    decode = document.number("median_decode_latency")
    if decode:
        step = latency(decode, decode)
        results.append(replace(shared, kind="decode", tpot_s=step, context_tokens=tokens_in + tokens_out / 2))
    return results


def _server_result(document: ResultValues, shared: BenchmarkResult) -> BenchmarkResult:
    seconds = document.needed("latency", tool="sglang bench_one_batch_server")
    ttft = document.number("last_ttft")
    gaps = (shared.output_tokens or 1.0) - 1.0
    tpot = None if ttft is None or gaps <= 0 else (seconds - ttft) / gaps
    return replace(
        shared,
        tool="sglang bench_one_batch_server",
        kind="static_batch",
        e2e_s=latency(seconds),
        ttft_s=latency(ttft),
        tpot_s=latency(tpot),
        output_tokens_per_s=document.number("output_throughput"),
        total_tokens_per_s=document.number("overall_throughput"),
        accepted_tokens_per_step=document.number("acc_length"),
    )
