"""Results of NVIDIA AIPerf and of its predecessor GenAI-Perf: the summary and the log of requests."""

from collections.abc import Mapping, Sequence
from typing import Any

from capplan.errors import InputError
from capplan.recorded.results.record import BenchmarkResult, RequestRecord, ResultValues, Spread, unit_seconds

NAMES = {"mean": ("avg",), "p50": ("p50",), "p90": ("p90",), "p95": ("p95",), "p99": ("p99",)}
RELATIVE_MISMATCH = 0.02
"""Token counts of client and server that differ by more than this are corrected."""


def summary_result(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return the run of `profile_export_aiperf.json` or `profile_export_genai_perf.json`.

    Where the server counted other output tokens than the client's tokenizer, the server's count is
    used, and the latency per token and the rate are corrected by it.
    """
    document = ResultValues(path, values)
    tool = "AIPerf" if document.text("schema_version", "aiperf_version") else "GenAI-Perf"
    document.at("request_throughput").needed("avg", tool=tool)
    counted = document.at("output_sequence_length").needed("avg", tool=tool)
    if counted <= 0:
        raise InputError(
            f"{document.where('output_sequence_length')}.avg is 0, so this run measured no answer"
        )
    served = document.at("usage_completion_tokens").number("avg")
    tokens_in = document.at("usage_prompt_tokens").number("avg") or document.at(
        "input_sequence_length"
    ).number("avg")
    notes = [] if document.values.get("is_complete", True) else ["the run is marked incomplete"]
    tokens_out, gap_ratio, rate_ratio = counted, 1.0, 1.0
    if served and abs(served / counted - 1.0) > RELATIVE_MISMATCH and served > 1.0:
        tokens_out, gap_ratio, rate_ratio = served, (counted - 1.0) / (served - 1.0), served / counted
        notes.append(
            f"the client's tokenizer counted {counted:.4g} output tokens where the server counted {served:.4g}: "
            "time per token and rates are corrected to the server's count"
        )
    rate = document.at("output_token_throughput").number("avg")
    ttft, e2e = _latency(document, "time_to_first_token"), _latency(document, "request_latency")
    return BenchmarkResult(
        tool=tool,
        path=path,
        model=_model(document),
        concurrency=_concurrency(document),
        request_rate_per_s=_request_rate(document),
        requests=document.at("request_count").count("avg"),
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        ttft_s=ttft,
        tpot_s=_latency(document, "inter_token_latency").scaled(gap_ratio),
        e2e_s=e2e,
        requests_per_s=document.at("request_throughput").number("avg"),
        output_tokens_per_s=None if rate is None else rate * rate_ratio,
        notes=tuple(notes),
    )


def csv_result(rows: Sequence[Mapping[str, Any]], path: str) -> BenchmarkResult:
    """Return the run of `profile_export_aiperf.csv`: the same metrics, with the unit in the name."""
    metrics: dict[str, dict[str, Any]] = {}
    for row in rows:
        title = str(row.get("Metric") or "")
        if title.endswith(")") and " (" in title:
            name, _, unit = title[:-1].rpartition(" (")
        else:
            name, unit = title, ""
        cells = {
            cell: value for cell, value in row.items() if isinstance(cell, str) and value not in (None, "")
        }
        metrics[name.strip().lower().replace(" ", "_")] = {**cells, "unit": unit}
    if "request_throughput" not in metrics:
        raise InputError(f"{path}: no row 'Request Throughput', so this is not a complete result of AIPerf")
    return summary_result({**metrics, "schema_version": "csv"}, path)


def log_result(records: Sequence[Mapping[str, Any]], path: str) -> BenchmarkResult:
    """Return the run of `profile_export.jsonl`: one record per request, warm-up and errors left out."""
    log: list[RequestRecord] = []
    dropped = 0
    starts = [
        ResultValues(path, record).at("metadata").number("request_start_ns") or 0.0 for record in records
    ]
    first = min(starts, default=0.0)
    for start, record in zip(starts, records, strict=True):
        document = ResultValues(path, record)
        phase = document.at("metadata").text("benchmark_phase")
        if phase not in (None, "profiling") or record.get("error") is not None:
            dropped += 1
            continue
        log.append(_request(document.at("metrics"), (start - first) * 1e-9))
    if not log:
        raise InputError(f"{path}: no finished request of the profiling phase in {len(records)} records")
    ends = [request.arrival_s + (request.e2e_s or 0.0) for request in log]
    duration = max(ends) - min(request.arrival_s for request in log)
    gaps = [
        (request.e2e_s - request.ttft_s) / (request.output_tokens - 1)
        for request in log
        if request.e2e_s is not None and request.ttft_s is not None and request.output_tokens > 1
    ]
    return BenchmarkResult(
        tool="AIPerf",
        path=path,
        requests=len(log),
        input_tokens=sum(request.input_tokens for request in log) / len(log),
        output_tokens=sum(request.output_tokens for request in log) / len(log),
        ttft_s=Spread(_mean([request.ttft_s for request in log])),
        tpot_s=Spread(_mean(gaps)),
        e2e_s=Spread(_mean([request.e2e_s for request in log])),
        requests_per_s=len(log) / duration if duration > 0 else None,
        output_tokens_per_s=sum(r.output_tokens for r in log) / duration if duration > 0 else None,
        notes=(f"{dropped} records of warm-up or with an error left out",) if dropped else (),
        log=tuple(log),
    )


def _request(metrics: ResultValues, arrival_s: float) -> RequestRecord:
    def value(*names: str) -> float | None:
        for name in names:
            number = metrics.at(name).number("value")
            if number is not None:
                return number
        return None

    def seconds(name: str) -> float | None:
        number = value(name)
        return (
            None
            if number is None
            else number * unit_seconds(metrics.at(name), metrics.at(name).text("unit") or "ms")
        )

    tokens_out = value("usage_completion_tokens", "output_sequence_length")
    if tokens_out is None:
        raise InputError(
            f"{metrics.where('output_sequence_length')} is missing, so this is not a log of AIPerf"
        )
    return RequestRecord(
        arrival_s,
        round(value("usage_prompt_tokens", "input_sequence_length") or 0),
        round(tokens_out),
        seconds("time_to_first_token"),
        seconds("request_latency"),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _latency(document: ResultValues, name: str) -> Spread:
    metric = document.at(name)
    if not metric.values:
        return Spread()
    return metric.spread(unit_seconds(metric, metric.text("unit") or "ms"), NAMES)


def _inputs(document: ResultValues, *keys: str) -> float | None:
    configs = [document.at("input_config"), document.at("input_config", "loadgen")]
    phases = document.at("input_config").values.get("phases")
    if isinstance(phases, list):
        configs += [
            ResultValues(document.path, phase, "input_config.phases")
            for phase in phases
            if isinstance(phase, Mapping)
        ]
    for config in configs:
        for key in keys:
            if isinstance(config.values.get(key), (int, float)):
                return config.number(key)
    return None


def _concurrency(document: ResultValues) -> float | None:
    stated = _inputs(document, "concurrency")
    return document.at("effective_concurrency").number("avg") if stated is None else stated


def _request_rate(document: ResultValues) -> float | None:
    return _inputs(document, "request_rate", "rate")


def _model(document: ResultValues) -> str | None:
    config = document.at("input_config")
    models = config.values.get("models", config.values.get("model_names", config.values.get("model")))
    if isinstance(models, Mapping):
        models = models.get("items")
    if isinstance(models, list) and models:
        first = models[0]
        return str(first.get("name")) if isinstance(first, Mapping) else str(first)
    return str(models) if isinstance(models, str) else None
