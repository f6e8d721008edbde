"""A plan for platforms that start engines themselves: Docker Compose, KServe, llm-d, Dynamo; and its machines for SkyPilot."""

from collections.abc import Iterator
from typing import Any

from capplan.deploy.command_line import CONFIG_FILE
from capplan.deploy.fleet_launch import FleetLaunch, Group
from capplan.deploy.kubernetes import CONFIG_FOLDER, PORT, container_command, pod, program_and_arguments
from capplan.deploy.written_text import refuse_variables, unexpanded
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
    """Return a Compose file of one server: a service for each replica that it holds, each with devices of its own."""
    from capplan.readers.yaml_file import yaml_text

    _refuse_mix(fleet, "compose")
    if fleet.vendor != "nvidia":
        raise InputError(
            f"compose: reserves NVIDIA devices, and the plan has those of {fleet.vendor}; try --target k8s"
        )
    if fleet.slice:
        raise InputError(
            "compose: reserves whole GPUs by their number, and the plan has MIG slices; try --target k8s"
        )
    services: dict[str, Any] = {}
    configs: dict[str, Any] = {}
    taken = 0
    for group in fleet.groups:
        if fleet.servers(group) > 1:
            raise InputError(
                f"compose: starts one server, and a replica of {group.name} spans {fleet.servers(group)}; try --target k8s"
            )
        command = container_command(group)
        program, arguments = program_and_arguments(group, tuple(unexpanded(command.arguments)))
        if command.config:
            configs[group.name] = {"content": unexpanded([yaml_text(command.config, short=False)])[0]}
        for index in range(min(group.replicas, (fleet.devices_per_server - taken) // group.launch.devices)):
            devices = [str(taken + place) for place in range(group.launch.devices)]
            taken += group.launch.devices
            reserved = {"driver": "nvidia", "device_ids": devices, "capabilities": ["gpu"]}
            services[f"{group.name}-{index}"] = {
                "image": unexpanded([fleet.needed_image()])[0],
                "entrypoint": program,
                "command": arguments,
                "ports": [f"{PORT + len(services)}:{PORT}"],
                "ipc": "host",
                "environment": {"HF_TOKEN": "${HF_TOKEN:-}", "HF_HOME": _MODELS},
                "volumes": [f"huggingface:{_MODELS}"],
                "deploy": {"resources": {"reservations": {"devices": [reserved]}}},
            } | (
                {"configs": [{"source": group.name, "target": f"{CONFIG_FOLDER}/{CONFIG_FILE}"}]}
                if command.config
                else {}
            )
    return {"services": services, "volumes": {"huggingface": None}} | (
        {"configs": configs} if configs else {}
    )


def _refuse_mix(fleet: FleetLaunch, platform: str) -> None:
    """Raise the error for groups with different requests on a platform whose router does not know which is whose."""
    if fleet.groups[0].rule:
        raise InputError(
            f"{platform}: one service has one group of replicas, and the plan is a mix whose groups get different requests; try --target k8s"
        )


def _of_vllm(fleet: FleetLaunch, platform: str) -> None:
    _refuse_mix(fleet, platform)
    if fleet.engine != "vllm":
        raise InputError(
            f"{platform}: starts vLLM, and the plan is for {fleet.engine}\n  plan with: --set engine=vllm"
        )
    for group in fleet.groups:
        if fleet.servers(group) > 1:
            raise InputError(
                f"{platform}: a replica over {fleet.servers(group)} servers is not exported; try --target k8s"
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


def inference_service(fleet: FleetLaunch) -> dict[str, Any]:
    """Return the LLMInferenceService of KServe; with pools, its prefill beside the decode of its top level."""
    import shlex

    _of_vllm(fleet, "kserve")
    refuse_variables("kserve", fleet.groups[-1].launch.model)

    def workload(group: Group) -> dict[str, Any]:
        launch = group.launch
        parallelism: dict[str, Any] = {"tensor": launch.tensor_parallel}
        if launch.data_parallel > 1:
            parallelism |= {"data": launch.data_parallel, "dataLocal": launch.data_parallel}
        if launch.expert_parallel > 1:
            parallelism["expert"] = True
        container = {
            "name": "main",
            "image": fleet.needed_image(),
            "env": [
                {"name": "VLLM_ADDITIONAL_ARGS", "value": unexpanded([shlex.join(_additional(group))])[0]}
            ],
            "resources": {"limits": {fleet.resource: str(launch.devices)}},
        }
        return {
            "replicas": group.replicas,
            "parallelism": parallelism,
            "template": {"containers": [container]},
        }

    *prefill, decode = fleet.groups
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
        "metadata": {"name": fleet.name},
        "spec": spec,
    }


def chart_values(fleet: FleetLaunch) -> dict[str, Any]:
    """Return the values of the Helm chart llm-d-modelservice."""
    _of_vllm(fleet, "llm-d")
    refuse_variables("llm-d", fleet.groups[-1].launch.model)

    def workload(group: Group) -> dict[str, Any]:
        launch = group.launch
        container = {
            "name": "vllm",
            "image": fleet.needed_image(),
            "modelCommand": "vllmServe",
            "args": [
                *unexpanded(_additional(group)),
                *(["--enable-expert-parallel"] if launch.expert_parallel > 1 else []),
            ],
            "resources": {"limits": {fleet.resource: str(launch.devices)}},
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

    *prefill, decode = fleet.groups
    model = decode.launch.model
    return {
        "multinode": False,
        "modelArtifacts": {"name": model, "uri": f"hf://{model}"},
        "accelerator": {"type": fleet.vendor},
        "decode": workload(decode),
        "prefill": workload(prefill[0]) if prefill else {"create": False},
    }


def dynamo_graph(fleet: FleetLaunch) -> dict[str, Any]:
    """Return the DynamoGraphDeployment: a frontend, and the workers of each group."""
    _refuse_mix(fleet, "dynamo")
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
    components: list[dict[str, Any]] = [
        {
            "name": "Frontend",
            "type": "frontend",
            "replicas": 1,
            "podTemplate": {"spec": {"containers": [{"name": "main", "image": fleet.image}]}},
        }
    ]
    for group in fleet.groups:
        if fleet.servers(group) > 1:
            raise InputError(
                f"dynamo: a replica over {fleet.servers(group)} servers is not exported; try --target k8s"
            )
        spec = pod(fleet, group, serves=False)
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
        "metadata": {"name": fleet.name},
        "spec": {"components": components},
    }


def _dynamo_words(group: Group) -> list[str]:
    """Return the options of a worker of Dynamo, which takes the model as an option and listens to its frontend alone."""
    options = [*container_command(group).options[: -2 * len(_OWN)]]
    if group.launch.engine == "vllm":
        options = ["--model", group.launch.model, *options]
        options += ["--disaggregation-mode", group.launch.role] if group.launch.role else []
    return options
