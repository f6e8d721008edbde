"""Request logs of benchmark tools: vLLM and SGLang with details, AIPerf, GuideLLM, inference-perf."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from capplan.errors import InputError
from capplan.recorded.results.read import request_log
from capplan.recorded.results.record import ResultValues, result_objects
from capplan.recorded.traces.rows import Row, time_unit
from capplan.workload.statistics import Omissions


def log_rows(path: Path, omissions: Omissions) -> Iterator[Row]:
    """Yield the requests of a result file that recorded each of them, with times in seconds."""
    values = result_objects(path)
    first = values[0] if values else None
    if isinstance(first, Mapping) and "benchmarks" in first:
        yield from _guidellm(first, path, omissions)
    elif isinstance(first, Mapping) and "start_time" in first and "info" in first:
        yield from _inference_perf(values, path, omissions)
    else:
        for index, request in enumerate(request_log(path), 1):
            yield Row(
                index,
                request.arrival_s,
                request.input_tokens,
                request.output_tokens,
                (),
                _or_nan(request.ttft_s),
                _or_nan(request.e2e_s),
            )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _guidellm(report: Mapping[str, Any], path: Path, omissions: Omissions) -> Iterator[Row]:
    """Yield the successful requests of every benchmark of a report; TTFT is in ms there, latency in s."""
    index = 0
    for benchmark in ResultValues(str(path), report).objects("benchmarks"):
        requests = benchmark.at("requests")
        for kind in ("errored", "incomplete"):
            for _ in requests.objects(kind):
                omissions.drop(f"{kind} request", index + 1)
        for row in requests.objects("successful"):
            index += 1
            ttft = row.number("time_to_first_token_ms")
            yield Row(
                index,
                row.needed("request_start_time", "start_time", tool="GuideLLM"),
                row.needed("prompt_tokens", "prompt_token_count", tool="GuideLLM"),
                row.needed("output_tokens", "output_token_count", tool="GuideLLM"),
                (),
                math.nan if ttft is None else ttft * 1e-3,
                _or_nan(row.number("request_latency")),
            )
    if not index:
        raise InputError(
            f"{path}: this GuideLLM report keeps no successful requests\n"
            "  run it with --sample-requests left at its default, which keeps all of them"
        )


def _inference_perf(values: list[Any], path: Path, omissions: Omissions) -> Iterator[Row]:
    """Yield the requests of per_request_lifecycle_metrics.json."""
    for index, value in enumerate(values, 1):
        if not isinstance(value, Mapping):
            omissions.drop("is not a request", index, broken=True)
            continue
        row = ResultValues(str(path), value, str(index - 1))
        if row.values.get("error"):
            omissions.drop("request with an error", index)
            continue
        info = row.at("info")
        start = row.needed("start_time", tool="inference-perf")
        end = row.number("end_time")
        times = info.numbers("output_token_times")
        yield Row(
            index,
            start * time_unit(start)[0],
            info.needed("input_tokens", tool="inference-perf"),
            info.needed("output_tokens", tool="inference-perf"),
            (),
            times[0] - start if times else math.nan,
            math.nan if end is None else end - start,
        )
