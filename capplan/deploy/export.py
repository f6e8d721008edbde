"""A plan file as the text that starts its fleet: command lines, a Compose file, manifests, values of a chart."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from capplan import __version__
from capplan.deploy.command_words import CONFIG_FILE, Command, command_of, shell_text
from capplan.deploy.fleet_launch import FleetLaunch, Group
from capplan.deploy.grafana import grafana_objects
from capplan.deploy.kubernetes import container_command, kubernetes_objects, scaled_objects, server_words
from capplan.deploy.platforms import (
    chart_values,
    compose_file,
    dynamo_graph,
    inference_service,
    skypilot_tasks,
)
from capplan.deploy.written_text import comment
from capplan.errors import InputError, unknown
from capplan.readers.catalogue.scenarios import scenario_word
from capplan.readers.plan_file import PlanFile
from capplan.readers.plan_record import OrderedRow

ENGINES = ("vllm", "sglang", "trtllm")
GRAFANA = "grafana"
_OBJECTS: Mapping[str, Callable[[FleetLaunch], Iterable[Mapping[str, Any]]]] = {
    "compose": lambda fleet: [compose_file(fleet)],
    "k8s": kubernetes_objects,
    "kserve": lambda fleet: [inference_service(fleet)],
    "llm-d": lambda fleet: [chart_values(fleet)],
    "dynamo": lambda fleet: [dynamo_graph(fleet)],
    "keda": scaled_objects,
    "skypilot": skypilot_tasks,
}
TARGETS = (*ENGINES, *_OBJECTS, GRAFANA)
_APPLY = {
    "compose": "docker compose -f FILE up -d",
    "k8s": "kubectl apply -f FILE",
    "kserve": "kubectl apply -f FILE",
    "llm-d": "helm install NAME llm-d-modelservice/llm-d-modelservice -f FILE",
    "dynamo": "kubectl apply -f FILE",
    "keda": "kubectl apply -f FILE, beside the objects of --target k8s",
    "skypilot": "sky launch FILE, one task for each kind of machine",
    GRAFANA: "kubectl apply -f FILE, where the Prometheus operator and the dashboard sidecar of Grafana run",
}
_LEADER = "LEADER_ADDRESS"
_WITHOUT_CONTAINERS = (*ENGINES, "keda", "skypilot", GRAFANA)


def export_text(file: PlanFile, fleet: FleetLaunch, target: str) -> str:
    """Return what a target starts the fleet of a plan with, behind comments that say what it is and what it leaves out.

    Parameters
    ----------
    file : the plan file
    fleet : what its recommended plan starts
    target : one of `TARGETS`

    Raises
    ------
    InputError
        the target, or the engine's version, cannot express the plan
    """
    if fleet.image is not None and target in _WITHOUT_CONTAINERS:
        raise InputError(f"--image: --target {target} starts no container; leave it out")
    if target in ENGINES:
        if target != fleet.engine:
            raise InputError(
                f"--target {target}: the plan is for {fleet.engine} {fleet.groups[0].launch.version}\n"
                f"  plan with: capplan fleet {scenario_word(file.scenario)} --set engine={target} -o plan.json"
            )
        body = "\n".join(_commands(fleet))
    elif target in TARGETS:
        from capplan.readers.yaml_file import yaml_text

        objects = grafana_objects(file, fleet) if target == GRAFANA else _OBJECTS[target](fleet)
        body = "---\n".join(yaml_text(value, short=False) for value in objects)
    else:
        raise unknown("target", target, TARGETS, place="--target")
    return "".join(f"{comment(line)}\n" for line in _header(file, fleet, target)) + body


def _header(file: PlanFile, fleet: FleetLaunch, target: str) -> Iterator[str]:
    inputs = file.inputs
    yield f"{inputs.content.get('name')}: {_purchase(file)}; written by capplan {__version__} from {file.path.name}"
    yield f"{inputs.engine.name} {inputs.engine.version}, {inputs.model.name}, at a peak of {inputs.request_rate:.4g} req/s"
    limits = ", ".join(f"{key} {limit * 1e3:.4g} ms" for key, limit in inputs.targets.items())
    if limits:
        yield f"targets: {limits}, required confidence {inputs.confidence:.0%}"
    for line in fleet.order:
        yield _ordered(line)
    for group in fleet.groups:
        yield from _load(file, group)
    yield from dict.fromkeys(
        (*fleet.remarks, *(remark for group in fleet.groups for remark in command_of(group.launch).remarks))
    )
    yield from _left_out(fleet, target)
    if target in _APPLY:
        yield f"apply: {_APPLY[target]}"


def _purchase(file: PlanFile) -> str:
    chosen = file.answer.chosen
    return f"{chosen.gpus} x {chosen.hardware} in {chosen.replicas} replicas, {chosen.spare_replicas} of them spare"


def _ordered(line: OrderedRow) -> str:
    machine = f"{line.count} x {line.sku or line.hardware}" + (
        f" of {line.gpus} x {line.hardware}" if line.sku else ""
    )
    place = f"{line.provider}{f', {line.region}' if line.region else ''}"
    return f"order: {machine} at {place}, ${line.usd_per_hour:.2f} an hour each, price of {line.date or 'an unknown day'}"


def _load(file: PlanFile, group: Group) -> Iterator[str]:
    if group.planned_rate:
        rate = file.inputs.request_rate * group.request_fraction / group.busy_replicas
        yield (
            f"a replica serves {rate:.4g} req/s at the peak and counts as full at {group.planned_rate:.4g} req/s, "
            "headroom and required confidence included"
        )
    if group.predicted_rate:
        yield f"as predicted, a replica meets its targets up to {group.predicted_rate:.4g} req/s"


def _left_out(fleet: FleetLaunch, target: str) -> Iterator[str]:
    """Yield what a target does not say of the fleet."""
    group = fleet.groups[0]
    if target in ENGINES:
        yield (
            f"start it {group.replicas} times, behind a router"
            if len(fleet.groups) == 1
            else f"start each {'group' if group.rule else 'pool'} as often as it says"
        )
        if fleet.slice:
            yield "each on a slice of its own: CUDA_VISIBLE_DEVICES=MIG-..., as nvidia-smi -L lists it"
    if target == "compose":
        held = sum(min(g.replicas, fleet.devices_per_server // g.launch.devices) for g in fleet.groups)
        total = sum(g.replicas for g in fleet.groups)
        if held < total:
            yield f"one server of {fleet.devices_per_server} x {group.hardware}; {total} replicas need several, each started with its part of this file"
    for one in {one.hardware: one for one in fleet.groups}.values():
        if target == "k8s" and fleet.machines(one):
            yield f"pods run on {', '.join(fleet.machines(one))}, by the label of the instance type, spread over the machines as planned"
        elif target in ("k8s", "kserve", "llm-d", "dynamo"):
            yield f"the cluster has to have {one.hardware}; where it has other devices too, add a nodeSelector for them"
    if fleet.slice and target in ("k8s", "kserve", "llm-d", "dynamo"):
        yield f"MIG slices are called {fleet.resource} with mig.strategy=mixed of NVIDIA's device plugin"
    if target == GRAFANA:
        yield "service is the label that the scrape of Prometheus gives the pods; pod is their name"
    if target == "keda":
        yield "serverAddress is that of your Prometheus; service is the label that its scrape gives the pods"
        yield "finished requests are counted: a queue that grows shows in them only once it is served"
    if target == "kserve" and fleet.usd_per_hour is not None:
        each = fleet.usd_per_hour / sum(g.replicas for g in fleet.groups)
        yield f"a replica costs ${each:.4g} an hour: scaling.wva.variantCost, where the workload variant autoscaler is used"


def _commands(fleet: FleetLaunch) -> Iterator[str]:
    for group in fleet.groups:
        command, servers = command_of(group.launch), fleet.servers(group)
        if len(fleet.groups) > 1:
            yield (
                comment(f"{group.launch.role or group.name}: {group.replicas} replicas on {group.hardware}")
                + "\n"
            )
        if command.config:
            yield _here(command)
        if servers == 1:
            yield shell_text(command)
            continue
        for rank in range(servers):
            words = (*container_command(group).words, *server_words(group, servers, str(rank), _LEADER))
            yield f"{comment(f'server {rank} of {servers}; {_LEADER} is server 0')}\n{shell_text(Command(words))}"


def _here(command: Command) -> str:
    from capplan.readers.yaml_file import yaml_text

    return f"cat > {CONFIG_FILE} <<'EOF'\n{yaml_text(command.config, short=False)}EOF\n"
