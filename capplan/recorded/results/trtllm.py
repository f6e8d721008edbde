"""Results of `trtllm-bench throughput|latency --report_json`: the one format that records the machine and the parallelism."""

from collections.abc import Mapping
from typing import Any

from capplan.errors import InputError
from capplan.recorded.results.record import BenchmarkResult, ResultValues, Spread

TOOL = "trtllm-bench"


def report_result(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return the run of one report; latencies there are in milliseconds."""
    document = ResultValues(path, values)
    engine, world = document.at("engine"), document.at("world_info")
    requests, performance = document.at("request_info"), document.at("performance")
    streaming = document.at("streaming_metrics")
    count = requests.needed("num_requests", tool=TOOL)
    if count == 0:
        raise InputError(f"{path}: request_info.num_requests is 0, so this run measured nothing")
    performance.needed("total_latency_ms", tool=TOOL)
    rate = world.number("issue_rate", minimum=-1.0)
    return BenchmarkResult(
        tool=TOOL,
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


def _spread(document: ResultValues, mean_name: str, percentiles_name: str) -> Spread:
    percentiles = document.at(percentiles_name)
    spread = percentiles.spread(1e-3, {p: (p,) for p in ("p50", "p90", "p95", "p99")})
    mean = document.number(mean_name)
    if mean is None:
        mean = percentiles.number("average")
    return Spread(None if mean is None else mean * 1e-3, spread.p50, spread.p90, spread.p95, spread.p99)
