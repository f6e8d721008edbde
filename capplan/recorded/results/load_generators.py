"""Results of load generators that ask any endpoint: AIPerf, GuideLLM, inference-perf and reports of llm-d."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan, nan
from typing import Any

from capplan.errors import InputError
from capplan.recorded.results.record import (
    NO_BLOCKS,
    BenchmarkResult,
    ResultValues,
    Row,
    latency,
    stated,
    unit_seconds,
)

AIPERF = "AIPerf"
RELATIVE_MISMATCH = 0.02
"""Token counts of client and server that differ by more than this are corrected."""


def aiperf_summary(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return the run of `profile_export_aiperf.json` or `profile_export_genai_perf.json`.

    Where the server counted other output tokens than the client's tokenizer, the server's count is
    used, and the latency per token and the rate are corrected by it.
    """
    document = ResultValues(path, values)
    tool = AIPERF if document.text("schema_version", "aiperf_version") else "GenAI-Perf"
    document.at("request_throughput").needed("avg", tool=tool)
    counted = document.at("output_sequence_length").needed("avg", tool=tool)
    if counted <= 0:
        raise InputError(
            f"{document.where('output_sequence_length')}.avg is 0, so this run measured no answer"
        )
    served = document.at("usage_completion_tokens").number("avg")
    notes = [] if document.values.get("is_complete", True) else ["the run is marked incomplete"]
    tokens_out, gap_ratio, rate_ratio = counted, 1.0, 1.0
    if served and abs(served / counted - 1.0) > RELATIVE_MISMATCH and served > 1.0:
        tokens_out, gap_ratio, rate_ratio = served, (counted - 1.0) / (served - 1.0), served / counted
        notes.append(
            f"the client's tokenizer counted {counted:.4g} output tokens where the server counted {served:.4g}: "
            "time per token and rates are corrected to the server's count"
        )
    fields = stated(document, AIPERF)
    rate = fields["output_tokens_per_s"]
    return BenchmarkResult(
        tool=tool,
        path=path,
        model=_model(document),
        concurrency=_concurrency(document),
        request_rate_per_s=_inputs(document, "request_rate", "rate"),
        output_tokens=tokens_out,
        notes=tuple(notes),
        **fields
        | {
            "tpot_s": fields["tpot_s"].scaled(gap_ratio),
            "output_tokens_per_s": None if rate is None else rate * rate_ratio,
        },
    )


def aiperf_csv(rows: Sequence[Mapping[str, Any]], path: str) -> BenchmarkResult:
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
    return aiperf_summary({**metrics, "schema_version": "csv"}, path)


def aiperf_log(records: Sequence[Mapping[str, Any]], path: str) -> BenchmarkResult:
    """Return the run of `profile_export.jsonl`: one record per request, warm-up and errors left out."""
    log: list[Row] = []
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
    ends = [request.arrival_s + (0.0 if isnan(request.e2e_s) else request.e2e_s) for request in log]
    duration = max(ends) - min(request.arrival_s for request in log)
    gaps = [
        (request.e2e_s - request.ttft_s) / (request.output_tokens - 1)
        for request in log
        if request.output_tokens > 1
    ]
    return BenchmarkResult(
        tool=AIPERF,
        path=path,
        requests=len(log),
        input_tokens=sum(request.input_tokens for request in log) / len(log),
        output_tokens=sum(request.output_tokens for request in log) / len(log),
        ttft_s=latency(_mean([request.ttft_s for request in log])),
        tpot_s=latency(_mean(gaps)),
        e2e_s=latency(_mean([request.e2e_s for request in log])),
        requests_per_s=len(log) / duration if duration > 0 else None,
        output_tokens_per_s=sum(r.output_tokens for r in log) / duration if duration > 0 else None,
        notes=(f"{dropped} records of warm-up or with an error left out",) if dropped else (),
        log=tuple(log),
    )


def _request(metrics: ResultValues, arrival_s: float) -> Row:
    def value(*names: str) -> float | None:
        for name in names:
            number = metrics.at(name).number("value")
            if number is not None:
                return number
        return None

    def seconds(name: str) -> float:
        number = value(name)
        return (
            nan
            if number is None
            else number * unit_seconds(metrics.at(name), metrics.at(name).text("unit") or "ms")
        )

    tokens_out = value("usage_completion_tokens", "output_sequence_length")
    if tokens_out is None:
        raise InputError(
            f"{metrics.where('output_sequence_length')} is missing, so this is not a log of AIPerf"
        )
    tokens_in = round(value("usage_prompt_tokens", "input_sequence_length") or 0)
    times_s = seconds("time_to_first_token"), seconds("request_latency")
    return Row(0, arrival_s, tokens_in, round(tokens_out), NO_BLOCKS, *times_s)


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if not isnan(value)]
    return sum(known) / len(known) if known else None


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


def _model(document: ResultValues) -> str | None:
    config = document.at("input_config")
    models = config.values.get("models", config.values.get("model_names", config.values.get("model")))
    if isinstance(models, Mapping):
        models = models.get("items")
    if isinstance(models, list) and models:
        first = models[0]
        return str(first.get("name")) if isinstance(first, Mapping) else str(first)
    return str(models) if isinstance(models, str) else None


GUIDELLM = "GuideLLM"
VERSIONS = (1, 2)


def guidellm_report(values: Mapping[str, Any], path: str) -> list[BenchmarkResult]:
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
    if not document.at("metrics").values:
        raise InputError(
            f"{document.where('metrics')} is missing, so this is not a complete result of {GUIDELLM}"
        )
    fields, measured = stated(document, GUIDELLM), stated(document, "GuideLLM as measured")
    if measured["requests"] == 0:
        raise InputError(
            f"{document.where('metrics')}: no request was successful, so this run measured nothing"
        )
    tokens_out, ttft, e2e = measured["output_tokens"], fields["ttft_s"], measured["e2e_s"]
    notes = ["time_per_output_token_ms includes the first token and is not used"]
    if fields["tpot_s"].mean is None and None not in (e2e.mean, ttft.mean) and (tokens_out or 0.0) > 1.0:
        fields["tpot_s"] = latency((e2e.mean - ttft.mean) / (tokens_out - 1.0))
        notes.append("TPOT from the means of latency, TTFT and length")
    if fields["request_rate_per_s"] is not None or not fields["concurrency"]:
        fields["concurrency"] = measured["concurrency"]
    model = stated(report, "report of GuideLLM")["model"] or measured["model"]
    return BenchmarkResult(
        GUIDELLM, document.path, **measured | fields | {"model": model}, notes=tuple(notes)
    )


INFERENCE_PERF = "inference-perf"
LARGEST_DISAGREEMENT_RATIO = 1.2
"""A mean TPOT further than this from (latency - TTFT) / (tokens - 1) of the means counted something else."""


def inference_perf_stage(values: Mapping[str, Any], path: str) -> BenchmarkResult:
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
    if document.at("successes").needed("count", tool=INFERENCE_PERF) == 0:
        raise InputError(f"{path}: successes.count is 0, so this run measured nothing")
    fields = stated(document, "inference-perf of the client")
    return with_consistent_tpot(BenchmarkResult(INFERENCE_PERF, path, **fields))


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
    return replace(result, tpot_s=latency(derived), notes=(*result.notes, note))


LARGEST_CONTRADICTION_RATIO = 20.0
"""A mean further than this from tokens per second over requests per second is of other requests."""


def _contradiction(successes: ResultValues) -> str:
    """Return which mean length the rates of the same file contradict; empty if none."""
    for name in ("prompt_len", "output_len"):
        length = successes.at(name)
        mean, tokens, requests = length.number("mean"), length.number("rate"), successes.number("rate")
        if mean and tokens and requests:
            by_mean = mean * requests
            if not tokens <= LARGEST_CONTRADICTION_RATIO * by_mean <= LARGEST_CONTRADICTION_RATIO**2 * tokens:
                return f"{name}.mean is {mean:,.6g} tokens, but {name}.rate / rate is about {tokens / requests:,.2g}: give the lifecycle file of the same stage"
    return ""


def prometheus_result(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return one stage as measured by the server's metrics."""
    document = ResultValues(path, values)
    successes = document.at("successes")
    if successes.needed("count", tool=INFERENCE_PERF) == 0:
        raise InputError(f"{path}: successes.count is 0, so this run measured nothing")
    notes = ["server-side metrics: lengths and rates are those of Prometheus"]
    if successes.at("kv_cache_usage_percentage").number("mean") == 0.0:
        notes.append("KV-cache usage reads 0: the metric was renamed upstream and is not used")
    return BenchmarkResult(
        tool=INFERENCE_PERF,
        path=path,
        contradiction=_contradiction(successes),
        **stated(document, "inference-perf of the server"),
        notes=tuple(notes),
    )


LLMD_REPORT = "llm-d benchmark report"


def llmd_report(values: Mapping[str, Any], path: str) -> BenchmarkResult:
    """Return the run of one report, of either version."""
    document = ResultValues(path, values)
    version = document.text("version") or ""
    if version.startswith("0.1"):
        return _first_version(document)
    if version.startswith("0.2"):
        return _second_version(document)
    raise InputError(
        f"{path}: version: {version!r} of an llm-d benchmark report is not known; known: 0.1, 0.2"
    )


def _first_version(document: ResultValues) -> BenchmarkResult:
    scenario = document.at("scenario")
    hosts = _items(scenario.at("host"), "accelerator")
    engines = _items(scenario.at("platform"), "engine")
    notes = _unlike(hosts)
    roles = scenario.at("host").values.get("type")
    return BenchmarkResult(
        **_run(document, "llm-d 0.1", "metrics"),
        engine=_engine(engines, "name", roles if isinstance(roles, list) else [roles]),
        engine_version=engines[0].text("version") if engines else None,
        **_split(hosts, notes),
        notes=tuple(notes),
    )


def _second_version(document: ResultValues) -> BenchmarkResult:
    stack = [part.at("standardized") for part in _items(document.at("scenario"), "stack")]
    engines = [part for part in stack if part.text("kind") == "inference_engine"]
    hosts = [part.at("accelerator") for part in engines]
    notes = _unlike(hosts)
    replicas = max(engines[0].count("replicas") or 1, 1) if engines else 1
    if replicas > 1:
        notes.append(f"rates are over {replicas} replicas")
    return BenchmarkResult(
        **_run(document, "llm-d 0.2", "results", "request_performance", "aggregate"),
        model=engines[0].at("model").text("name") if engines else None,
        engine=_engine(engines, "tool", [part.text("role") for part in engines]),
        engine_version=engines[0].text("tool_version") if engines else None,
        **_split(hosts, notes),
        replicas=replicas,
        notes=tuple(notes),
    )


def _engine(engines: list[ResultValues], key: str, roles: Sequence[object]) -> str | None:
    """Return the name of the engine, with a mark where prefill ran on engines of its own; a `decode` engine by itself runs both."""
    name = engines[0].text(key) if engines else None
    return f"{name}-disagg" if name and "prefill" in roles else name


def _run(document: ResultValues, version: str, *measured: str) -> dict[str, Any]:
    """Return the fields that a report states in the words of its version; InputError if no request was measured."""
    requests = document.at(*measured, "requests")
    if requests.needed("total", tool=LLMD_REPORT) == 0:
        raise InputError(f"{requests.where('total')} is 0, so this run measured nothing")
    return {"tool": LLMD_REPORT, "path": document.path, **stated(document, version)}


def _items(document: ResultValues, key: str) -> list[ResultValues]:
    items = document.values.get(key) or []
    if not isinstance(items, list):
        raise InputError(f"{document.where(key)} is not a list")
    return [ResultValues(document.path, item, document.place) for item in items if isinstance(item, Mapping)]


def _split(hosts: list[ResultValues], notes: list[str]) -> dict[str, Any]:
    if not hosts or notes:
        return {"hardware": hosts[0].text("model") if hosts else None}
    return stated(hosts[0], "parallelism of llm-d")


def _unlike(hosts: list[ResultValues]) -> list[str]:
    splits = {(host.text("model"), str(dict(host.at("parallelism").values))) for host in hosts}
    return (
        [f"{len(hosts)} hosts that differ in device or split: the split is left out"]
        if len(splits) > 1
        else []
    )
