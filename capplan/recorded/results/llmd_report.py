"""The llm-d benchmark report, versions 0.1 and 0.2: units are written next to every statistic."""

from collections.abc import Mapping, Sequence
from typing import Any

from capplan.errors import InputError
from capplan.recorded.results.record import BenchmarkResult, ResultValues, Spread, unit_seconds

TOOL = "llm-d benchmark report"
NAMES = {"mean": ("mean",), "p50": ("p50",), "p90": ("p90",), "p95": ("p95",), "p99": ("p99",)}


def report_result(values: Mapping[str, Any], path: str) -> BenchmarkResult:
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
    metrics, scenario = document.at("metrics"), document.at("scenario")
    throughput, requests = metrics.at("throughput"), metrics.at("requests")
    hosts = _items(scenario.at("host"), "accelerator")
    engines = _items(scenario.at("platform"), "engine")
    load = scenario.at("load", "args")
    notes = _unlike(hosts)
    roles = scenario.at("host").values.get("type")
    return BenchmarkResult(
        **_performance(requests, metrics.at("latency"), document),
        model=scenario.at("model").text("name"),
        engine=_engine(engines, "name", roles if isinstance(roles, list) else [roles]),
        engine_version=engines[0].text("version") if engines else None,
        **_split(hosts, notes),
        concurrency=load.number("max_concurrency", "concurrency"),
        request_rate_per_s=load.number("request_rate"),
        requests_per_s=throughput.number("requests_per_sec"),
        output_tokens_per_s=throughput.number("output_tokens_per_sec"),
        total_tokens_per_s=throughput.number("total_tokens_per_sec"),
        notes=tuple(notes),
    )


def _second_version(document: ResultValues) -> BenchmarkResult:
    aggregate = document.at("results", "request_performance", "aggregate")
    throughput = aggregate.at("throughput")
    load = document.at("scenario", "load", "standardized")
    stack = [part.at("standardized") for part in _items(document.at("scenario"), "stack")]
    engines = [part for part in stack if part.text("kind") == "inference_engine"]
    hosts = [part.at("accelerator") for part in engines]
    notes = _unlike(hosts)
    if engines and (engines[0].number("replicas") or 1.0) > 1.0:
        notes.append(f"rates are over {engines[0].count('replicas')} replicas")
    return BenchmarkResult(
        **_performance(aggregate.at("requests"), aggregate.at("latency"), document),
        model=engines[0].at("model").text("name") if engines else None,
        engine=_engine(engines, "tool", [part.text("role") for part in engines]),
        engine_version=engines[0].text("tool_version") if engines else None,
        **_split(hosts, notes),
        concurrency=load.number("concurrency"),
        request_rate_per_s=load.number("rate_qps"),
        requests_per_s=throughput.at("request_rate").number("mean"),
        output_tokens_per_s=throughput.at("output_token_rate").number("mean"),
        total_tokens_per_s=throughput.at("total_token_rate").number("mean"),
        notes=tuple(notes),
    )


def _engine(engines: list[ResultValues], key: str, roles: Sequence[object]) -> str | None:
    """Return the name of the engine, with a mark where prefill ran on engines of its own; a `decode` engine by itself runs both."""
    name = engines[0].text(key) if engines else None
    return f"{name}-disagg" if name and "prefill" in roles else name


def _performance(requests: ResultValues, latency: ResultValues, document: ResultValues) -> dict[str, Any]:
    total = requests.needed("total", tool=TOOL)
    if total == 0:
        raise InputError(f"{requests.where('total')} is 0, so this run measured nothing")
    return {
        "tool": TOOL,
        "path": document.path,
        "requests": round(total),
        "input_tokens": requests.at("input_length").number("mean"),
        "output_tokens": requests.at("output_length").number("mean"),
        "ttft_s": _latency(latency, "time_to_first_token"),
        "tpot_s": _latency(latency, "time_per_output_token"),
        "e2e_s": _latency(latency, "request_latency"),
    }


def _latency(document: ResultValues, name: str) -> Spread:
    metric = document.at(name)
    if not metric.values:
        return Spread()
    units = metric.text("units")
    if units is None:
        raise InputError(f"{metric.where('units')} is missing, so this is not a complete {TOOL}")
    return metric.spread(unit_seconds(metric, units), NAMES)


def _items(document: ResultValues, key: str) -> list[ResultValues]:
    items = document.values.get(key) or []
    if not isinstance(items, list):
        raise InputError(f"{document.where(key)} is not a list")
    return [ResultValues(document.path, item, document.place) for item in items if isinstance(item, Mapping)]


def _split(hosts: list[ResultValues], notes: list[str]) -> dict[str, Any]:
    if not hosts or notes:
        return {"hardware": hosts[0].text("model") if hosts else None}
    parallelism = hosts[0].at("parallelism")
    return {
        "hardware": hosts[0].text("model"),
        "tensor_parallel": parallelism.count("tp"),
        "pipeline_parallel": parallelism.count("pp"),
        "expert_parallel": parallelism.count("ep"),
        "data_parallel": parallelism.count("dp"),
    }


def _unlike(hosts: list[ResultValues]) -> list[str]:
    splits = {(host.text("model"), str(dict(host.at("parallelism").values))) for host in hosts}
    return (
        [f"{len(hosts)} hosts that differ in device or split: the split is left out"]
        if len(splits) > 1
        else []
    )
