"""A plan for platforms that start engines themselves: Docker Compose, KServe, llm-d, Dynamo; and its machines for SkyPilot."""

from collections.abc import Iterator, Sequence
from typing import Any

from capplan.deploy.command_line import CONFIG_FILE, refuse_variables, unexpanded
from capplan.deploy.fleet_launch import FleetLaunch, Group
from capplan.deploy.kubernetes import (
    CONFIG_FOLDER,
    PORT,
    container_command,
    on_its_machines,
    pod,
    program_and_arguments,
)
from capplan.errors import InputError
from capplan.fleet.order import ANY_REGION, OWN

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
            "resources": {"infra": infra, "instance_type": line.sku},
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
