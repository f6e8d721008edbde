"""A plan over what its engines report: recording rules for Prometheus, and a Grafana dashboard that draws both."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from capplan.deploy.fleet_launch import FleetLaunch
from capplan.errors import InputError
from capplan.readers.plan_file import PlanFile
from capplan.recorded.traces.prometheus import E2E, FINISHED, TPOT, TTFT

WINDOW = "5m"
"""Rates and latencies are those of so long."""
_LATENCIES: Mapping[str, tuple[str, Sequence[str]]] = {
    "ttft": ("Time to first token", TTFT),
    "tpot": ("Time per output token", TPOT),
    "e2e": ("End-to-end latency", E2E),
}
_RUNNING = {"vllm": "vllm:num_requests_running", "sglang": "sglang:num_running_reqs"}
_WAITING = {"vllm": "vllm:num_requests_waiting", "sglang": "sglang:num_queue_reqs"}
_PLAN = "capplan:plan_{}"
_SEEN = "capplan:measured_{}"


def grafana_objects(file: PlanFile, fleet: FleetLaunch) -> Iterator[dict[str, Any]]:
    """Yield a PrometheusRule, and a ConfigMap that Grafana's sidecar loads as a dashboard.

    Parameters
    ----------
    file : the plan file
    fleet : what its recommended plan starts

    References
    ----------
    https://prometheus-operator.dev/docs/api-reference/api/#monitoring.coreos.com/v1.PrometheusRule,
    https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
    """
    if fleet.engine not in _RUNNING:
        raise InputError(
            f"grafana: reads what vLLM and SGLang report, and the plan is for {fleet.engine}\n  plan with: --set engine=vllm"
        )
    rules = [*_planned_rules(file, fleet), *_measured_rules(file, fleet)]
    labels = {"app.kubernetes.io/managed-by": "capplan"}
    named = {"name": f"{fleet.name}-capplan", "labels": labels}
    yield {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": named,
        "spec": {"groups": [{"name": named["name"], "rules": rules}]},
    }
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**named, "labels": {**labels, "grafana_dashboard": "1"}},
        "data": {f"{fleet.name}.json": json.dumps(_dashboard(file, fleet), indent=1)},
    }


def _rule(record: str, expr: str, fleet: FleetLaunch, **labels: str) -> dict[str, Any]:
    return {"record": record, "expr": expr, "labels": {"plan": fleet.name, **labels}}


def _planned_rules(file: PlanFile, fleet: FleetLaunch) -> Iterator[dict[str, Any]]:
    """Yield what the plan says: its peak, its replicas, and each latency as predicted and as its SLO target."""
    chosen = file.result["chosen"]
    yield _rule(_PLAN.format("requests_per_second"), f"vector({file.inputs.request_rate:.6g})", fleet)
    yield _rule(_PLAN.format("replicas"), f"vector({chosen['replicas']})", fleet)
    for key, limit_s in file.inputs.targets.items():
        metric, _, statistic = key.partition("_")
        spread = chosen["tpot_s" if metric == "itl" else f"{metric}_s"]
        labels = {"latency": key}
        yield _rule(_PLAN.format("latency_target_seconds"), f"vector({limit_s:.6g})", fleet, **labels)
        if statistic in spread:
            value = f"vector({spread[statistic]:.6g})"
            yield _rule(_PLAN.format("latency_seconds"), value, fleet, **labels)


def _measured_rules(file: PlanFile, fleet: FleetLaunch) -> Iterator[dict[str, Any]]:
    """Yield what the engines report, under names of the same form."""
    of = _selector(fleet)
    (finished,) = _of_engine(FINISHED, fleet)
    yield _rule(_SEEN.format("requests_per_second"), f"sum(rate({finished}{of}[{WINDOW}]))", fleet)
    running = _RUNNING[fleet.engine]
    yield _rule(_SEEN.format("replicas"), f"count(count by (pod) ({running}{of}))", fleet)
    yield _rule(_SEEN.format("requests_running"), f"sum({running}{of})", fleet)
    yield _rule(_SEEN.format("requests_waiting"), f"sum({_WAITING[fleet.engine]}{of})", fleet)
    for key in file.inputs.targets:
        metric, _, statistic = key.partition("_")
        names = _of_engine(_LATENCIES["tpot" if metric == "itl" else metric][1], fleet)
        value = " or ".join(_statistic(name, statistic, of) for name in names)
        yield _rule(_SEEN.format("latency_seconds"), value, fleet, latency=key)


def _selector(fleet: FleetLaunch) -> str:
    names = "|".join(group.name for group in fleet.groups)
    return f'{{service=~"{names}"}}'


def _of_engine(names: Sequence[str], fleet: FleetLaunch) -> list[str]:
    return [name for name in names if name.startswith(f"{fleet.engine}:")]


def _statistic(histogram: str, statistic: str, of: str) -> str:
    """Return the query of a mean or a percentile of a histogram.

    Examples
    --------
    >>> _statistic("x", "p95", "")
    'histogram_quantile(0.95, sum by (le) (rate(x_bucket[5m])))'
    """
    if statistic == "mean":
        return f"sum(rate({histogram}_sum{of}[{WINDOW}])) / sum(rate({histogram}_count{of}[{WINDOW}]))"
    quantile = int(statistic.removeprefix("p")) / 100.0
    return f"histogram_quantile({quantile:g}, sum by (le) (rate({histogram}_bucket{of}[{WINDOW}])))"


def _dashboard(file: PlanFile, fleet: FleetLaunch) -> dict[str, Any]:
    of = f'{{plan="{fleet.name}"}}'
    panels = [
        _panel("Requests per second", "reqps", [
            (f"{_SEEN.format('requests_per_second')}{of}", "measured"),
            (f"{_PLAN.format('requests_per_second')}{of}", "planned peak"),
        ]),
        _panel("Replicas", "short", [
            (f"{_SEEN.format('replicas')}{of}", "running"), (f"{_PLAN.format('replicas')}{of}", "planned, spares included"),
        ]),
        _panel("Requests in the engines", "short", [
            (f"{_SEEN.format('requests_running')}{of}", "running"), (f"{_SEEN.format('requests_waiting')}{of}", "waiting"),
        ]),
    ]  # fmt: skip
    for key in file.inputs.targets:
        metric, _, statistic = key.partition("_")
        title = f"{_LATENCIES['tpot' if metric == 'itl' else metric][0]}, {statistic}"
        chosen = f'{{plan="{fleet.name}", latency="{key}"}}'
        panels.append(
            _panel(
                title,
                "s",
                [
                    (f"{_SEEN.format('latency_seconds')}{chosen}", "measured"),
                    (f"{_PLAN.format('latency_seconds')}{chosen}", "predicted at the peak"),
                    (f"{_PLAN.format('latency_target_seconds')}{chosen}", "SLO target"),
                ],
            )
        )
    for place, panel in enumerate(panels):
        position = {"x": 12 * (place % 2), "y": 8 * (place // 2), "w": 12, "h": 8}
        panel.update({"id": place + 1, "gridPos": position})
    datasource = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "title": f"{fleet.name}: plan and measurement",
        "uid": f"capplan-{fleet.name}"[:40],
        "tags": ["capplan"],
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": [datasource]},
        "panels": panels,
    }


def _panel(title: str, unit: str, queries: Sequence[tuple[str, str]]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    targets = [
        {"refId": chr(ord("A") + place), "expr": expr, "legendFormat": legend, "datasource": source}
        for place, (expr, legend) in enumerate(queries)
    ]
    return {
        "type": "timeseries",
        "title": title,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": targets,
    }
