"""A plan as the files of platforms: Kubernetes, Docker Compose, KServe, llm-d, Dynamo and SkyPilot."""

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address
from math import inf
from pathlib import PurePosixPath
from typing import Any

from capplan.deploy.command_line import CONFIG_FILE, Command, command_of, refuse_variables, unexpanded
from capplan.deploy.engine_options import option
from capplan.deploy.fleet_launch import FleetLaunch, Group
from capplan.engine.lookup import profile
from capplan.errors import InputError
from capplan.model.sharding import Sharding
from capplan.money.order import ANY_REGION, OWN
from capplan.operators.expert_exchange import exchange_kernels
from capplan.readers.catalogue.hardware import device
from capplan.recorded.traces.prometheus import metric_names
from capplan.serving.terms import SCALING_WINDOW_S

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
    grouped = launch.engine == "vllm" and launch.data_parallel > 1
    if launch.engine == "trtllm" or (grouped and launch.pipeline_parallel > 1):
        what = " with stages of attention groups" if grouped else ""
        raise InputError(
            f"{launch.engine}: a replica{what} over {servers} servers is not exported\n"
            "  plan with: --set fleet.max_gpus_per_replica=..., the devices of one server"
        )
    address = leader if launch.engine == "vllm" else f"{leader}:{LEADER_PORT}"
    words = [*option(launch, "nodes", servers), *option(launch, "node_rank", rank)]
    words += option(launch, "leader", address)
    if grouped:
        words += option(launch, "data_parallel_leader", address)
        words += option(launch, "exchange", _exchange(group))
        words += option(launch, "balance")
    elif launch.data_parallel > 1:
        words += option(launch, "exchange", "deepep")
    if launch.engine == "vllm" and rank != "0":
        words += option(launch, "headless")
    return tuple(words)


_EXCHANGES = {
    "deepep_low_latency": "deepep_low_latency",
    "deepep_normal": "deepep_high_throughput",
    "nvlink_one_sided": "flashinfer_nvlink_one_sided",
}
"""Kernel that sends tokens to their experts -> the value of vLLM's --all2all-backend (vllm/config/parallel.py)."""


def _exchange(group: Group) -> str:
    """Return the all-to-all backend that vLLM is started with over several servers: it has one for all steps, that of small ones if its steps are."""
    launch = group.launch
    degrees = (launch.tensor_parallel, launch.pipeline_parallel, launch.expert_parallel, launch.data_parallel)
    _, kernel = exchange_kernels(
        profile(launch.engine, launch.version),
        device(group.hardware),
        Sharding(*map(float, degrees)),
        launch.max_num_batched_tokens or inf,
    )
    return _EXCHANGES.get(kernel, "allgather_reducescatter")


PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
WINDOW = f"{SCALING_WINDOW_S / 60.0:g}m"
_LEADER = "$(LWS_LEADER_ADDRESS)"
_RANK = "$(LWS_WORKER_INDEX)"


def _meta(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "labels": {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "capplan"},
    }


def _object(version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": _meta(name), "spec": spec}


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
    template = {
        "metadata": {"labels": _labels(group)},
        "spec": pod(fleet, group) | _placement(fleet, group),
    }
    chosen = {"selector": {"matchLabels": _labels(group)}, "template": template}
    spec = {"replicas": group.replicas, **_update(fleet), **chosen}
    return _object("apps/v1", "Deployment", group.name, spec)


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
    template: dict[str, Any] = {"size": servers, "restartPolicy": "RecreateGroupOnPodRestart"}
    for role, spec in (("leader", leader), ("worker", worker)):
        template[f"{role}Template"] = {
            "metadata": {"labels": {**_labels(group), "role": role}},
            "spec": spec,
        }
    whole = {"replicas": group.replicas, "leaderWorkerTemplate": template}
    return _object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", group.name, whole)


def _service(group: Group, *, leaders: bool) -> dict[str, Any]:
    selector = _labels(group) | ({"role": "leader"} if leaders else {})
    port = {"name": "http", "port": PORT, "targetPort": "http"}
    return _object("v1", "Service", group.name, {"selector": selector, "ports": [port]})


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
    (finished,) = metric_names("finished", fleet.engine)
    trigger = {
        "serverAddress": PROMETHEUS,
        "query": f'sum(rate({finished}{{service="{group.name}"}}[{WINDOW}])){spares}',
        "threshold": f"{rate:.6g}",
    }
    spec = {
        "scaleTargetRef": {**target, "name": group.name},
        "minReplicaCount": least,
        "maxReplicaCount": max(least, fleet.most_replicas or group.replicas),
        "triggers": [{"type": "prometheus", "metricType": "AverageValue", "metadata": trigger}],
    }
    return _object("keda.sh/v1alpha1", "ScaledObject", group.name, spec)


_TAKEN = ("--tensor-parallel-size", "--data-parallel-size")
"""Options of vLLM that a platform writes itself, from its keys for parallelism."""
_MODELS = "/models"
"""Where the hub's files lie in a container."""
_OWN = ("--host", "--port")
_DYNAMO = {"vllm": "dynamo.vllm", "sglang": "dynamo.sglang"}


SKYPILOT = {
    "aws": "aws", "azure": "azure", "gcp": "gcp", "oci": "oci", "lambda": "lambda", "runpod": "runpod", "nebius": "nebius",
    "hyperstack": "hyperstack", "vast.ai": "vast", "paperspace": "paperspace", "cudo": "cudo", "digitalocean": "do",
}  # fmt: skip
"""Provider -> SkyPilot's name of it."""


def skypilot_tasks(fleet: FleetLaunch) -> Iterator[dict[str, Any]]:
    """Yield a SkyPilot task for the machines of each kind in the order of a plan.

    References
    ----------
    https://docs.skypilot.co/en/latest/reference/yaml-spec.html
    """
    bought = [line for line in fleet.order if line.provider != OWN]
    if not bought:
        raise InputError(
            "skypilot: the plan has no order of machines\n  plan with: --set fleet.providers=[AWS], or another provider"
        )
    for number, line in enumerate(bought, start=1):
        cloud = SKYPILOT.get(line.provider.lower())
        if line.sku is None or cloud is None:
            raise InputError(
                f"skypilot: {line.sku or 'GPUs by the piece'} at {line.provider} is not a machine that SkyPilot starts; it knows "
                f"{', '.join(SKYPILOT)}\n  plan with: --set fleet.providers=[AWS], or another of these"
            )
        infra = cloud if line.region in (None, ANY_REGION) else f"{cloud}/{line.region}"
        yield {
            "name": f"{fleet.name}-{number}",
            "resources": {"infra": infra, "instance_type": line.sku}
            | ({"use_spot": True} if fleet.on_spot else {}),
            "num_nodes": line.count,
        }


def compose_file(fleet: FleetLaunch) -> dict[str, Any]:
    """Return a Compose file of one server: a service for each replica that it holds, each with devices of its own.

    The groups of a mix are on servers of their own, and each has a profile of its name.
    """
    from capplan.readers.yaml_file import yaml_text

    services: dict[str, Any] = {}
    configs: dict[str, Any] = {}
    taken = 0
    for group in fleet.groups:
        if group.vendor != "nvidia":
            raise InputError(
                f"compose: reserves NVIDIA devices, and the plan has those of {group.vendor}; try --target k8s"
            )
        if group.slice:
            raise InputError(
                "compose: reserves whole GPUs by their number, and the plan has MIG slices; try --target k8s"
            )
        if group.servers > 1:
            raise InputError(
                f"compose: starts one server, and a replica of {group.name} spans {group.servers}; try --target k8s"
            )
        command = container_command(group)
        program, arguments = program_and_arguments(group, tuple(unexpanded(command.arguments)))
        more: dict[str, Any] = {"profiles": [group.name]} if fleet.is_mix else {}
        if command.config:
            configs[group.name] = {"content": unexpanded([yaml_text(command.config, short=False)])[0]}
            more["configs"] = [{"source": group.name, "target": f"{CONFIG_FOLDER}/{CONFIG_FILE}"}]
        first = len(services)
        if fleet.is_mix:
            taken = 0
        for index in range(min(group.replicas, (group.devices_per_server - taken) // group.launch.devices)):
            devices = [str(taken + place) for place in range(group.launch.devices)]
            taken += group.launch.devices
            reserved = {"driver": "nvidia", "device_ids": devices, "capabilities": ["gpu"]}
            port = PORT + index if fleet.is_mix else PORT + first + index
            services[f"{group.name}-{index}"] = {
                "image": unexpanded([fleet.needed_image(group)])[0],
                "entrypoint": program,
                "command": arguments,
                "ports": [f"{port}:{PORT}"],
                "ipc": "host",
                "environment": {"HF_TOKEN": "${HF_TOKEN:-}", "HF_HOME": _MODELS},
                "volumes": [f"huggingface:{_MODELS}"],
                "deploy": {"resources": {"reservations": {"devices": [reserved]}}},
                **more,
            }
    return {"services": services, "volumes": {"huggingface": None}} | (
        {"configs": configs} if configs else {}
    )


def _parts(fleet: FleetLaunch) -> Iterator[tuple[str, tuple[Group, ...]]]:
    """Yield what a platform starts as one service, with its name: each group of a mix, or all groups together."""
    if fleet.is_mix:
        yield from ((group.name, (group,)) for group in fleet.groups)
    else:
        yield fleet.name, fleet.groups


def _of_vllm(fleet: FleetLaunch, platform: str) -> None:
    if fleet.engine != "vllm":
        raise InputError(
            f"{platform}: starts vLLM, and the plan is for {fleet.engine}\n  plan with: --set engine=vllm"
        )
    for group in fleet.groups:
        if group.servers > 1:
            raise InputError(
                f"{platform}: a replica over {group.servers} servers is not exported; try --target k8s"
            )


def _additional(group: Group) -> list[str]:
    """Return the options that a platform does not write itself: all but the model, parallelism, host and port."""
    options = list(container_command(group).options)
    kept: list[str] = []
    while options:
        words = [options.pop(0)]
        while options and not options[0].startswith("--"):
            words.append(options.pop(0))
        if words[0] not in (*_TAKEN, *_OWN, "--enable-expert-parallel"):
            kept += words
    return kept


def inference_services(fleet: FleetLaunch) -> Iterator[dict[str, Any]]:
    """Yield the LLMInferenceService of KServe; with pools, its prefill next to the decode of its top level; one for each group of a mix."""
    _of_vllm(fleet, "kserve")
    for name, groups in _parts(fleet):
        yield _inference_service(fleet, name, groups)


def _inference_service(fleet: FleetLaunch, name: str, groups: Sequence[Group]) -> dict[str, Any]:
    import shlex

    refuse_variables("kserve", groups[-1].launch.model)

    def workload(group: Group) -> dict[str, Any]:
        launch = group.launch
        parallelism: dict[str, Any] = {"tensor": launch.tensor_parallel}
        if launch.data_parallel > 1:
            parallelism |= {"data": launch.data_parallel, "dataLocal": launch.data_parallel}
        if launch.expert_parallel > 1:
            parallelism["expert"] = True
        container = {
            "name": "main",
            "image": fleet.needed_image(group),
            "env": [
                {"name": "VLLM_ADDITIONAL_ARGS", "value": unexpanded([shlex.join(_additional(group))])[0]}
            ],
            "resources": {"limits": {group.resource: str(launch.devices)}},
        }
        return {
            "replicas": group.replicas,
            "parallelism": parallelism,
            "template": {"containers": [container], **on_its_machines(fleet, group)},
        }

    *prefill, decode = groups
    launch = decode.launch
    spec: dict[str, Any] = {
        "model": {"uri": f"hf://{launch.model}", "name": launch.model},
        **workload(decode),
    }
    if prefill:
        spec["prefill"] = workload(prefill[0])
    spec["router"] = {"gateway": {}, "route": {}} | ({} if launch.pooling else {"scheduler": {}})
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": name},
        "spec": spec,
    }


_CHARTS = {"name": "llm-d-modelservice", "url": "https://llm-d-incubation.github.io/llm-d-modelservice/"}


def chart_values(fleet: FleetLaunch) -> dict[str, Any]:
    """Return the values of the Helm chart llm-d-modelservice; for a mix a Helmfile with a release of the chart for each group.

    References
    ----------
    https://helmfile.readthedocs.io/en/latest/#configuration
    """
    _of_vllm(fleet, "llm-d")
    releases = [(name, _values(fleet, groups)) for name, groups in _parts(fleet)]
    if not fleet.is_mix:
        return releases[0][1]
    chart = f"{_CHARTS['name']}/llm-d-modelservice"
    return {
        "repositories": [_CHARTS],
        "releases": [{"name": name, "chart": chart, "values": [values]} for name, values in releases],
    }


def _values(fleet: FleetLaunch, groups: Sequence[Group]) -> dict[str, Any]:
    refuse_variables("llm-d", groups[-1].launch.model)

    def workload(group: Group) -> dict[str, Any]:
        launch = group.launch
        container = {
            "name": "vllm",
            "image": fleet.needed_image(group),
            "modelCommand": "vllmServe",
            "args": [
                *unexpanded(_additional(group)),
                *(["--enable-expert-parallel"] if launch.expert_parallel > 1 else []),
            ],
            "resources": {"limits": {group.resource: str(launch.devices)}},
            "mountModelVolume": True,
        }
        parallelism = {
            "tensor": launch.tensor_parallel,
            "data": launch.data_parallel,
            "dataLocal": launch.data_parallel,
        }
        return {
            "create": True,
            "replicas": group.replicas,
            "parallelism": parallelism,
            "containers": [container],
        }

    *prefill, decode = groups
    model = decode.launch.model
    return {
        "multinode": False,
        "modelArtifacts": {"name": model, "uri": f"hf://{model}"},
        "accelerator": {"type": decode.vendor},
        "decode": workload(decode),
        "prefill": workload(prefill[0]) if prefill else {"create": False},
    }


def dynamo_graphs(fleet: FleetLaunch) -> Iterator[dict[str, Any]]:
    """Yield the DynamoGraphDeployment: a frontend, and the workers of each group; one for each group of a mix."""
    if fleet.engine not in _DYNAMO:
        raise InputError(
            f"dynamo: is exported for {' and '.join(_DYNAMO)}, and the plan is for {fleet.engine}"
        )
    if fleet.groups[0].launch.pooling:
        raise InputError(
            "dynamo: its workers generate tokens, and the plan is for vectors or scores; try --target k8s"
        )
    if fleet.image is None:
        raise InputError(
            f"dynamo: its images count their versions on their own; name the one that holds {fleet.engine} "
            f"{fleet.groups[0].launch.version}\n  e.g. --image nvcr.io/nvidia/ai-dynamo/{fleet.engine}-runtime:TAG"
        )
    for name, groups in _parts(fleet):
        yield _dynamo_graph(fleet, name, groups)


def _dynamo_graph(fleet: FleetLaunch, name: str, groups: Sequence[Group]) -> dict[str, Any]:
    components: list[dict[str, Any]] = [
        {
            "name": "Frontend",
            "type": "frontend",
            "replicas": 1,
            "podTemplate": {
                "spec": {"containers": [{"name": "main", "image": fleet.needed_image(groups[0])}]}
            },
        }
    ]
    for group in groups:
        if group.servers > 1:
            raise InputError(
                f"dynamo: a replica over {group.servers} servers is not exported; try --target k8s"
            )
        spec = pod(fleet, group, serves=False) | on_its_machines(fleet, group)
        (container,) = spec["containers"]
        role = group.launch.role
        container |= {
            "name": "main",
            "command": ["python3", "-m", _DYNAMO[fleet.engine]],
            "args": unexpanded(_dynamo_words(group)),
        }
        title = "Worker" if role is None else f"{role.title()}Worker"
        components.append(
            {
                "name": title,
                "type": role or "worker",
                "replicas": group.replicas,
                "podTemplate": {"spec": spec},
            }
        )
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"components": components},
    }


def _dynamo_words(group: Group) -> list[str]:
    """Return the options of a worker of Dynamo, which takes the model as an option and listens only to its frontend."""
    options = [*container_command(group).options[: -2 * len(_OWN)]]
    if group.launch.engine == "vllm":
        options = ["--model", group.launch.model, *options]
        options += ["--disaggregation-mode", group.launch.role] if group.launch.role else []
    return options
