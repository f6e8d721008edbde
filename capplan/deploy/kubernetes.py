"""A plan as objects of Kubernetes: the containers of an engine, deployments, and sets of pods for replicas over several servers."""

from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import PurePosixPath
from typing import Any

from capplan.deploy.command_line import CONFIG_FILE, Command, command_of, unexpanded
from capplan.deploy.engine_options import option
from capplan.deploy.fleet_launch import FleetLaunch, Group
from capplan.errors import InputError

PORT = 8000
CONFIG_FOLDER = "/etc/capplan"
LEADER_PORT = 20000
HUB_ACCESS = "hf-token"
"""Secret that holds the token of the hub, where a checkpoint needs one."""
ANY_ADDRESS = str(IPv4Address(0))
SHARED_MEMORY = str(PurePosixPath("/dev", "shm"))
_PROGRAM_WORDS = {"vllm": 2, "sglang": 3, "trtllm": 1}


def container_command(group: Group) -> Command:
    """Return the command of an engine that others reach over the network; its config lies where it is mounted."""
    command = command_of(group.launch)
    words = [f"{CONFIG_FOLDER}/{CONFIG_FILE}" if word == CONFIG_FILE else word for word in command.arguments]
    return Command((*words, "--host", ANY_ADDRESS, "--port", str(PORT)), command.config, command.remarks)


def program_and_arguments(group: Group, words: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the words of the program, and those behind it."""
    count = _PROGRAM_WORDS[group.launch.engine]
    return list(words[:count]), list(words[count:])


def pod(
    fleet: FleetLaunch, group: Group, extra: tuple[str, ...] = (), *, serves: bool = True
) -> dict[str, Any]:
    """Return the pod of one server of a replica.

    Parameters
    ----------
    fleet : image, resource and devices per server
    group : what runs in it
    extra : further words of the command: which server of the replica it is
    serves : it answers requests, so that its health can be asked
    """
    command = container_command(group)
    program, arguments = program_and_arguments(group, (*unexpanded(command.arguments), *extra))
    devices = group.launch.devices // group.servers
    container: dict[str, Any] = {
        "name": "engine",
        "image": fleet.needed_image(group),
        "command": program,
        "args": arguments,
        "env": [
            {
                "name": "HF_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": HUB_ACCESS, "key": "token", "optional": True}},
            }
        ],
        "resources": {"limits": {group.resource: str(devices)}},
        "volumeMounts": [{"name": "shm", "mountPath": SHARED_MEMORY}],
    }
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if serves:
        container["ports"] = [{"name": "http", "containerPort": PORT}]
        container["readinessProbe"] = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10}
    if command.config:
        container["volumeMounts"].append({"name": "config", "mountPath": CONFIG_FOLDER})
        volumes.append({"name": "config", "configMap": {"name": group.name}})
    return {"containers": [container], "volumes": volumes}


def server_words(group: Group, servers: int, rank: str, leader: str) -> tuple[str, ...]:
    """Return the words that tell one server of a replica which one it is.

    Parameters
    ----------
    group : whose engine is asked
    servers : of one replica
    rank : of this server, from 0, or a variable of it
    leader : address of the first one
    """
    launch = group.launch
    if launch.engine == "trtllm" or (launch.engine == "vllm" and launch.data_parallel > 1):
        what = " with attention groups" if launch.data_parallel > 1 else ""
        raise InputError(
            f"{launch.engine}: a replica{what} over {servers} servers is not exported\n"
            "  plan with: --set fleet.max_gpus_per_replica=..., the devices of one server"
        )
    address = leader if launch.engine == "vllm" else f"{leader}:{LEADER_PORT}"
    words = [
        *option(launch, "nodes", servers, needed="replicas over servers"),
        *option(launch, "node_rank", rank),
    ]
    words += option(launch, "leader", address)
    if launch.engine == "vllm" and rank != "0":
        words += option(launch, "headless")
    return tuple(words)


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
        servers = group.servers
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
            **_update(fleet),
            "selector": {"matchLabels": _labels(group)},
            "template": {
                "metadata": {"labels": _labels(group)},
                "spec": pod(fleet, group) | _placement(fleet, group),
            },
        },
    }


def _update(fleet: FleetLaunch) -> dict[str, Any]:
    """Return how an update replaces pods: spare ones first, as no GPU is left for more; the default without spares."""
    if not fleet.max_unavailable:
        return {}
    return {
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 0, "maxUnavailable": fleet.max_unavailable},
        }
    }


INSTANCE_TYPE, HOST = "node.kubernetes.io/instance-type", "kubernetes.io/hostname"
"""Well-known labels of a node: the machine that a provider sells, and its name."""
_INSIDE = ("pcie", "nvlink", "xgmi")
"""Beginnings of the names of links between the GPUs of a server; some NVLink joins a rack of servers."""
ZONE = "topology.kubernetes.io/zone"
"""Well-known label of a node: its zone."""


def _placement(fleet: FleetLaunch, group: Group) -> dict[str, Any]:
    """Return on which machines the pods of a group run, that they are spread evenly over them, and that pools are near each other.

    Nothing says where they run without a sku. Pools whose link is inside a server share a server as far as it has room, pools that
    send over a network share a zone.

    References
    ----------
    https://kubernetes.io/docs/reference/labels-annotations-taints/, https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/
    """
    placed = on_its_machines(fleet, group)
    if fleet.link:
        busy = sum(one.busy_replicas * one.launch.devices for one in fleet.groups)
        in_server = fleet.link.startswith(_INSIDE) and busy <= group.devices_per_server
        near = {
            "weight": 100,
            "podAffinityTerm": {
                "labelSelector": {"matchLabels": _labels(fleet.groups[0])},
                "topologyKey": HOST if in_server else ZONE,
            },
        }
        pods = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [near]}}
        placed = {"affinity": {**placed.get("affinity", {}), **pods}}
        if in_server:
            return placed
    if not fleet.machines(group):
        return placed
    spread = {
        "maxSkew": 1,
        "topologyKey": HOST,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": _labels(group)},
    }
    return {**placed, "topologySpreadConstraints": [spread]}


def on_its_machines(fleet: FleetLaunch, group: Group) -> dict[str, Any]:
    """Return the part of a pod that keeps it on the instance types of its group; nothing without a sku."""
    machines = fleet.machines(group)
    if not machines:
        return {}
    chosen = {"key": INSTANCE_TYPE, "operator": "In", "values": list(machines)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [chosen]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


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
    if len(fleet.groups) > 1 and not fleet.is_mix:
        raise InputError(
            "keda: separate pools are not scaled by one rate; scale them with the planner of their platform"
        )
    if fleet.is_mix and (fleet.least_replicas or fleet.most_replicas):
        raise InputError(
            "keda: commitments.min_replicas and max_replicas count the replicas of one group, and the plan is a mix; leave them out"
        )
    for group in fleet.groups:
        yield _scaled_object(fleet, group)


def _scaled_object(fleet: FleetLaunch, group: Group) -> dict[str, Any]:
    """Return what KEDA scales a deployment by: the rate of the requests that its own pods finish."""
    rate = group.scaling_rate
    if not rate > 0.0:
        raise InputError("keda: the plan states no rate of requests that a replica serves within its targets")
    least = fleet.least_replicas or group.spare_replicas + 1
    target = (
        {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
        if group.servers > 1
        else {"apiVersion": "apps/v1", "kind": "Deployment"}
    )
    spares = f" + {group.spare_replicas} * {rate:.6g}" if group.spare_replicas else ""
    trigger = {
        "serverAddress": PROMETHEUS,
        "query": f'sum(rate({REQUESTS[fleet.engine]}{{service="{group.name}"}}[{WINDOW}])){spares}',
        "threshold": f"{rate:.6g}",
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": _meta(group.name),
        "spec": {
            "scaleTargetRef": {**target, "name": group.name},
            "minReplicaCount": least,
            "maxReplicaCount": max(least, fleet.most_replicas or group.replicas),
            "triggers": [{"type": "prometheus", "metricType": "AverageValue", "metadata": trigger}],
        },
    }
