"""A plan as objects of Kubernetes: deployments, or sets of pods where a replica spans servers, with their services and scaling."""

from collections.abc import Iterator
from typing import Any

from capplan.deploy.command_words import CONFIG_FILE
from capplan.deploy.containers import PORT, container_command, pod, server_words
from capplan.deploy.fleet_launch import FleetLaunch, Group
from capplan.errors import InputError

REQUESTS = {
    "vllm": "vllm:request_success_total",
    "sglang": "sglang:num_requests_total",
    "trtllm": "trtllm_request_success_total",
}
"""Engine -> counter of finished requests."""
PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
WINDOW = "2m"
_LEADER = "$(LWS_LEADER_ADDRESS)"
_RANK = "$(LWS_WORKER_INDEX)"


def _meta(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "labels": {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "capplan"},
    }


def kubernetes_objects(fleet: FleetLaunch) -> Iterator[dict[str, Any]]:
    """Yield the objects that serve a plan."""
    for group in fleet.groups:
        yield from _config(group)
        servers = fleet.servers(group)
        yield _deployment(fleet, group) if servers == 1 else _leader_worker_set(fleet, group, servers)
        yield _service(group, leaders=servers > 1)


def _config(group: Group) -> Iterator[dict[str, Any]]:
    from capplan.readers.yaml_file import yaml_text

    command = container_command(group)
    if command.config:
        text = yaml_text(command.config, short=False)
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _meta(group.name),
            "data": {CONFIG_FILE: text},
        }


def _labels(group: Group) -> dict[str, str]:
    return {"app.kubernetes.io/name": group.name}


def _deployment(fleet: FleetLaunch, group: Group) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(group.name),
        "spec": {
            "replicas": group.replicas,
            "selector": {"matchLabels": _labels(group)},
            "template": {"metadata": {"labels": _labels(group)}, "spec": pod(fleet, group)},
        },
    }


def _leader_worker_set(fleet: FleetLaunch, group: Group, servers: int) -> dict[str, Any]:
    """Return the set of pods of replicas that span servers; its webhook tells each pod its rank and its leader."""
    leader = pod(fleet, group, server_words(group, servers, "0", _LEADER))
    worker = pod(fleet, group, server_words(group, servers, _RANK, _LEADER), serves=False)
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": _meta(group.name),
        "spec": {
            "replicas": group.replicas,
            "leaderWorkerTemplate": {
                "size": servers,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {
                    "metadata": {"labels": {**_labels(group), "role": "leader"}},
                    "spec": leader,
                },
                "workerTemplate": {
                    "metadata": {"labels": {**_labels(group), "role": "worker"}},
                    "spec": worker,
                },
            },
        },
    }


def _service(group: Group, *, leaders: bool) -> dict[str, Any]:
    selector = _labels(group) | ({"role": "leader"} if leaders else {})
    port = {"name": "http", "port": PORT, "targetPort": "http"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(group.name),
        "spec": {"selector": selector, "ports": [port]},
    }


def scaled_objects(fleet: FleetLaunch) -> Iterator[dict[str, Any]]:
    """Yield what KEDA scales the deployments by: the rate of requests, a replica for each that one is planned for, and the spares."""
    if len(fleet.groups) > 1:
        raise InputError(
            "keda: separate pools are not scaled by one rate; scale them with the planner of their platform"
        )
    (group,) = fleet.groups
    rate = group.planned_rate
    if not rate > 0.0:
        raise InputError("keda: the plan states no rate of requests that a replica serves within its targets")
    several = fleet.servers(group) > 1
    target = (
        {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
        if several
        else {"apiVersion": "apps/v1", "kind": "Deployment"}
    )
    spares = f" + {group.spare_replicas} * {rate:.6g}" if group.spare_replicas else ""
    trigger = {
        "serverAddress": PROMETHEUS,
        "query": f'sum(rate({REQUESTS[fleet.engine]}{{service="{group.name}"}}[{WINDOW}])){spares}',
        "threshold": f"{rate:.6g}",
    }
    yield {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": _meta(group.name),
        "spec": {
            "scaleTargetRef": {**target, "name": group.name},
            "minReplicaCount": fleet.least_replicas,
            "maxReplicaCount": fleet.most_replicas,
            "triggers": [{"type": "prometheus", "metricType": "AverageValue", "metadata": trigger}],
        },
    }
