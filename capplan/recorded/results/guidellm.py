"""Results of GuideLLM: report versions 1 and 2, one result per benchmark of the sweep."""

from collections.abc import Mapping
from typing import Any

from capplan.errors import InputError
from capplan.recorded.results.record import BenchmarkResult, ResultValues, Spread

TOOL = "GuideLLM"
VERSIONS = (1, 2)


def report_results(values: Mapping[str, Any], path: str) -> list[BenchmarkResult]:
    """Return every benchmark of one report.

    Request latency is in seconds in these files and all other latencies in milliseconds. TPOT is read
    from ``inter_token_latency_ms``, for ``time_per_output_token_ms`` includes the first token.
    """
    document = ResultValues(path, values)
    version = document.at("metadata").count("version") or 1
    if version not in VERSIONS:
        raise InputError(
            f"{path}: metadata.version: {version} of a GuideLLM report is not known; known: 1, 2"
        )
    benchmarks = values.get("benchmarks")
    if not isinstance(benchmarks, list) or not benchmarks:
        raise InputError(f"{path}: benchmarks is empty, so this report measured nothing")
    results = []
    for index, benchmark in enumerate(benchmarks):
        if not isinstance(benchmark, Mapping):
            raise InputError(f"{path}: benchmarks.{index} is not a mapping")
        results.append(_benchmark(ResultValues(path, benchmark, f"benchmarks.{index}"), document))
    return results


def _benchmark(document: ResultValues, report: ResultValues) -> BenchmarkResult:
    metrics = document.at("metrics")
    if not metrics.values:
        raise InputError(
            f"{document.where('metrics')} is missing, so this is not a complete result of {TOOL}"
        )
    requests = _requests(document, metrics)
    if requests == 0:
        raise InputError(
            f"{document.where('metrics')}: no request was successful, so this run measured nothing"
        )

    def good(name: str) -> ResultValues:
        metric = metrics.at(name)
        return metric.at("successful") if "successful" in metric.values else metric

    tokens_out = good("output_token_count").number("mean")
    ttft, e2e = _spread(good("time_to_first_token_ms"), 1e-3), _spread(good("request_latency"), 1.0)
    tpot = _spread(good("inter_token_latency_ms"), 1e-3)
    notes = ["time_per_output_token_ms includes the first token and is not used"]
    if tpot.mean is None and None not in (e2e.mean, ttft.mean, tokens_out) and (tokens_out or 0.0) > 1.0:
        tpot = Spread(((e2e.mean or 0.0) - (ttft.mean or 0.0)) / ((tokens_out or 2.0) - 1.0))
        notes.append("TPOT from the means of latency, TTFT and length")
    strategy = _strategy(document)
    concurrency = strategy.number("streams", "max_concurrency") if "rate" not in strategy.values else None
    return BenchmarkResult(
        tool=TOOL,
        path=document.path,
        model=_model(document, report),
        concurrency=concurrency or good("request_concurrency").number("mean"),
        request_rate_per_s=strategy.number("rate"),
        requests=requests,
        input_tokens=good("prompt_token_count").number("mean"),
        output_tokens=tokens_out,
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=e2e,
        requests_per_s=good("requests_per_second").number("mean"),
        output_tokens_per_s=good("output_tokens_per_second").number("mean"),
        total_tokens_per_s=good("tokens_per_second").number("mean"),
        notes=tuple(notes),
    )


def _requests(document: ResultValues, metrics: ResultValues) -> int | None:
    for place, name in (
        (document.at("scheduler_metrics", "requests_made"), "successful"),
        (metrics.at("request_totals"), "successful"),
        (document.at("request_totals"), "successful"),
        (document.at("run_stats", "requests_made"), "successful"),
        (metrics.at("request_latency", "successful"), "count"),
    ):
        count = place.count(name)
        if count is not None:
            return count
    return None


def _strategy(document: ResultValues) -> ResultValues:
    for place in (
        document.at("config", "strategy"),
        document.at("scheduler", "strategy"),
        document.at("args", "strategy"),
    ):
        if place.values:
            return place
    return document.at("strategy")


def _model(document: ResultValues, report: ResultValues) -> str | None:
    for place in (
        report.at("config", "spec", "backend"),
        document.at("config", "backend"),
        report.at("args"),
        document.at("worker"),
        document.at("benchmarker", "backend"),
    ):
        model = place.text("model", "backend_model")
        if model:
            return model
    return None


def _spread(metric: ResultValues, seconds: float) -> Spread:
    ranks = metric.at("percentiles").spread(seconds, {p: (p,) for p in ("p50", "p90", "p95", "p99")})
    mean = metric.number("mean")
    median = metric.number("median")
    return Spread(
        None if mean is None else mean * seconds,
        ranks.p50 if ranks.p50 is not None else None if median is None else median * seconds,
        ranks.p90,
        ranks.p95,
        ranks.p99,
    )
