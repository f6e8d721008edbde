"""A plan file as the text that starts its fleet (command lines, a Compose file, manifests, values of a chart) and as the dashboard that watches it."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from shlex import quote
from typing import Any

from capplan import __version__
from capplan.deploy.command_line import CONFIG_FILE, Command, checked_name, command_of, comment, shell_text
from capplan.deploy.fleet_launch import FleetLaunch, Group
from capplan.deploy.llamacpp import (
    LM_STUDIO,
    OLLAMA,
    gguf_file,
    launch_of_replica,
    lmstudio_settings,
    modelfile,
)
from capplan.deploy.llamacpp import TARGETS as LLAMACPP_TARGETS
from capplan.deploy.platforms import (
    chart_values,
    compose_file,
    container_command,
    dynamo_graphs,
    inference_services,
    kubernetes_objects,
    scaled_objects,
    server_words,
    skypilot_tasks,
)
from capplan.deploy.replica_launch import ReplicaLaunch
from capplan.errors import InputError, unknown
from capplan.money.order import OWN, Machine, owned_price_text
from capplan.operators.llamacpp import ENGINE as LLAMACPP
from capplan.readers.catalogue.scenarios import scenario_word
from capplan.readers.plan_file import OrderedRow, PlanFile
from capplan.recorded.traces.prometheus import metric_names
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica

WINDOW = "5m"
"""Rates and latencies are those of so long."""
_LATENCIES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End-to-end latency"}
_WATCHED = ("vllm", "sglang")
"""Engines whose metrics have all that is watched."""


def _drift_panel(file: PlanFile, fleet: FleetLaunch) -> dict[str, Any]:
    """Return what is measured over what the plan says, one line for each quantity that may drift."""
    queries = [(f"{seen} / {planned:.6g}", what) for what, planned, seen in _drifting(file, fleet)]
    return _panel("Measured over planned (1: as planned)", "short", queries)


def _drifting(file: PlanFile, fleet: FleetLaunch) -> Iterator[tuple[str, float, str]]:
    """Yield what may drift from the plan: its name, its value in the plan, and the query of what engines report."""
    inputs, of = file.inputs, _of_fleet(fleet)
    (finished,) = metric_names("finished", f"{fleet.engine}:")
    yield "request rate over the peak", inputs.request_rate, f"sum(rate({finished}{of}[{WINDOW}]))"
    for kind, metric, planned in (
        ("input tokens", "prompt_tokens", inputs.input_tokens),
        ("output tokens", "output_tokens", inputs.output_tokens),
    ):
        (name,) = metric_names(metric, f"{fleet.engine}:")
        yield kind, planned, _statistic(name, "mean", of)
    if inputs.cached_tokens:
        hits, queries = (metric_names(f"prefix_{key}", f"{fleet.engine}:")[0] for key in ("hits", "queries"))
        share = f"sum(rate({hits}{of}[{WINDOW}])) / sum(rate({queries}{of}[{WINDOW}]))"
        yield "prefix-cache hits", inputs.cached_tokens / inputs.input_tokens, share


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


def grafana_dashboard(file: PlanFile, fleet: FleetLaunch, about: Iterable[str] = ()) -> dict[str, Any]:
    """Return a dashboard that Grafana imports: the plan over what its engines report to Prometheus.

    Parameters
    ----------
    file : the plan file
    fleet : what its recommended plan starts
    about : lines of comment that describe the dashboard

    References
    ----------
    https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
    """
    if fleet.engine not in _WATCHED:
        raise InputError(
            f"grafana: reads what vLLM and SGLang report, and the plan is for {fleet.engine}\n  plan with: --set engine=vllm"
        )
    latencies = (_latency_panel(file, fleet, key) for key in file.inputs.targets)
    panels = [*_load_panels(file, fleet), *latencies, _drift_panel(file, fleet)]
    for place, panel in enumerate(panels):
        position = {"x": 12 * (place % 2), "y": 8 * (place // 2), "w": 12, "h": 8}
        panel.update({"id": place + 1, "gridPos": position})
    datasource = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "title": f"{fleet.name}: plan and measurement",
        "description": "\n".join(line.removeprefix("# ") for line in about),
        "uid": f"capplan-{fleet.name}"[:40],
        "tags": ["capplan"],
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": [datasource]},
        "panels": panels,
    }


def _load_panels(file: PlanFile, fleet: FleetLaunch) -> Iterator[dict[str, Any]]:
    of = _of_fleet(fleet)
    (finished,), (running,), (waiting,) = (
        metric_names(key, f"{fleet.engine}:") for key in ("finished", "running", "waiting")
    )
    served = f"sum(rate({finished}{of}[{WINDOW}]))"
    peak = f"vector({file.inputs.request_rate:.6g})"
    yield _panel("Requests per second", "reqps", [(served, "measured"), (peak, "planned peak")])
    started = f"count(count by (pod) ({running}{of}))"
    planned = f"vector({file.result['chosen']['replicas']})"
    yield _panel("Replicas", "short", [(started, "running"), (planned, "planned, spares included")])
    queues = [(f"sum({running}{of})", "running"), (f"sum({waiting}{of})", "waiting")]
    yield _panel("Requests in the engines", "short", queues)


def _latency_panel(file: PlanFile, fleet: FleetLaunch, key: str) -> dict[str, Any]:
    """Return a latency as measured, as predicted and as its SLO target."""
    metric, _, statistic = key.partition("_")
    metric = "tpot" if metric == "itl" else metric
    names = metric_names(metric, f"{fleet.engine}:")
    queries = [(" or ".join(_statistic(name, statistic, _of_fleet(fleet)) for name in names), "measured")]
    spread = file.result["chosen"][f"{metric}_s"]
    if statistic in spread:
        queries.append((f"vector({spread[statistic]:.6g})", "predicted at the peak"))
    queries.append((f"vector({file.inputs.targets[key]:.6g})", "SLO target"))
    return _panel(f"{_LATENCIES[metric]}, {statistic}", "s", queries)


def _of_fleet(fleet: FleetLaunch) -> str:
    """Return the selector of the series of a fleet."""
    return f'{{service=~"{"|".join(group.name for group in fleet.groups)}"}}'


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


ENGINES = ("vllm", "sglang", "trtllm", *LLAMACPP_TARGETS)
GRAFANA = "grafana"
_OBJECTS: Mapping[str, Callable[[FleetLaunch], Iterable[Mapping[str, Any]]]] = {
    "compose": lambda fleet: [compose_file(fleet)],
    "k8s": kubernetes_objects,
    "kserve": inference_services,
    "llm-d": lambda fleet: [chart_values(fleet)],
    "dynamo": dynamo_graphs,
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
    "keda": "kubectl apply -f FILE, next to the objects of --target k8s",
    "skypilot": "sky launch FILE, one task for each kind of machine",
    GRAFANA: "in Grafana: Dashboards, New, Import, with FILE",
}
_APPLY_MIX = {
    "compose": "docker compose -f FILE --profile NAME up -d, on each server the group NAME that its GPUs are of",
    "llm-d": "helmfile apply -f FILE",
}
"""Target -> how a mix is applied, if not as other plans."""
_LEADER = "LEADER_ADDRESS"
_WITHOUT_CONTAINERS = (*ENGINES, "keda", "skypilot", GRAFANA)


def replica_text(launch: ReplicaLaunch, target: str, layers: int = 1) -> str:
    """Return what a target starts one replica of llama.cpp with.

    Parameters
    ----------
    launch : the replica
    target : one of `LLAMACPP_TARGETS`
    layers : [-]
        of the model
    """
    if target == OLLAMA:
        return modelfile(launch)
    if target == LM_STUDIO:
        return lmstudio_settings(launch, layers)
    return shell_text(command_of(launch))


def exported_replica(
    model: str, hardware: str | None, flags: ServingFlags, target: str, checkpoint: str | None = None
) -> str:
    """Return what a target starts one replica of llama.cpp with, behind comments that say what it is, where the target has comments.

    Parameters
    ----------
    model : as commands name it
    hardware : name of the device
    flags : of the replica
    target : one of `LLAMACPP_TARGETS`
    checkpoint : GGUF file of the weights, or a repository of such files

    Raises
    ------
    InputError
        the replica does not fit, or the target cannot express it
    """
    if target not in LLAMACPP_TARGETS:
        raise InputError(
            f"--target {target}: exports a plan; --model goes with {', '.join(LLAMACPP_TARGETS)}"
        )
    if hardware is None:
        raise InputError("--model: the device decides what fits\n  name it: --hardware rtx-3090")
    checked_name("--checkpoint", checkpoint)
    spec = asked_replica(model, hardware, replace(flags, engine=LLAMACPP)).spec
    launch = launch_of_replica(spec, flags, checkpoint or (model if model.endswith(".gguf") else None))
    text = replica_text(launch, target, spec.layers)
    if target == LM_STUDIO:
        return text
    held = f", {spec.offload.weight_bytes / 1e9:.1f} GB of weights on the host" if spec.offload else ""
    sequences = spec.max_num_seqs or 1
    about = [
        f"{spec.network.name} on {spec.devices} x {spec.device.name}; written by capplan {__version__}",
        f"cache of {sequences} x {launch.max_model_len:,} tokens in {spec.kv_format}{held}",
        *(
            []
            if launch.model.endswith(".gguf") or checkpoint
            else [f"{gguf_file(launch)} is a name: give your file with --checkpoint"]
        ),
        *(
            [f"cards in the order of llama-server --list-devices: {spec.device.name}"]
            if spec.device.cards
            else []
        ),
        *(command_of(launch).remarks if target == LLAMACPP else ()),
    ]
    return "".join(f"{comment(line)}\n" for line in about) + text


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
    about = (comment(line) for line in _header(file, fleet, target))
    if fleet.engine == LLAMACPP and target not in ENGINES:
        raise InputError(
            f"--target {target}: starts no llama.cpp; known for it: {', '.join(LLAMACPP_TARGETS)}"
        )
    if target in ENGINES:
        engine = LLAMACPP if target in LLAMACPP_TARGETS else target
        if engine != fleet.engine:
            changed = "".join(f" --set {quote(setting)}" for setting in file.settings)
            raise InputError(
                f"--target {target}: the plan is for {fleet.engine} {fleet.groups[0].launch.version}\n"
                f"  plan with: capplan fleet {scenario_word(file.scenario)}{changed} --set engine={engine} -o plan.json"
            )
        if target == LM_STUDIO:  # JSON has no comments
            return "".join(replica_text(group.launch, target) for group in fleet.groups)
        body = "\n".join(_commands(fleet, target))
    elif target == GRAFANA:
        return json.dumps(grafana_dashboard(file, fleet, about), indent=2) + "\n"
    elif target in TARGETS:
        from capplan.readers.yaml_file import yaml_text

        body = "---\n".join(yaml_text(value, short=False) for value in _OBJECTS[target](fleet))
    else:
        raise unknown("target", target, TARGETS, place="--target")
    return "".join(f"{line}\n" for line in about) + body


def _header(file: PlanFile, fleet: FleetLaunch, target: str) -> Iterator[str]:
    inputs, plan = file.inputs, file.answer.chosen
    bought = f"{plan.gpus} x {plan.hardware} in {plan.replicas} replicas, {plan.spare_replicas} of them spare"
    yield f"{inputs.content.get('name')}: {bought}; written by capplan {__version__} from {file.path.name}"
    yield f"{inputs.engine.name} {inputs.engine.version}, {inputs.model.name}, at a peak of {inputs.request_rate:.4g} req/s"
    limits = ", ".join(f"{key} {limit * 1e3:.4g} ms" for key, limit in inputs.targets.items())
    if limits:
        yield f"targets: {limits}, required confidence {inputs.confidence:.0%}"
    for line in fleet.order:
        yield _ordered(line, powered=bool(plan.energy_usd_per_hour))
    for group in fleet.groups:
        yield from _load(file, group)
    yield from dict.fromkeys(
        (*fleet.remarks, *(remark for group in fleet.groups for remark in command_of(group.launch).remarks))
    )
    yield from _left_out(fleet, target)
    if target in _APPLY:
        of_mix = fleet.is_mix and target in _APPLY_MIX
        yield f"apply: {(_APPLY_MIX if of_mix else _APPLY)[target]}"


def _ordered(line: OrderedRow, *, powered: bool) -> str:
    if line.provider == OWN:
        name = Machine(OWN, line.sku or "", line.hardware, line.gpus, 0.0).name
        return (
            f"use: {line.count} x {name} of your own, {owned_price_text(line.usd_per_hour, powered=powered)}"
        )
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
        if any(one.slice for one in fleet.groups):
            yield "each on a slice of its own: CUDA_VISIBLE_DEVICES=MIG-..., as nvidia-smi -L lists it"
    if target == "compose":
        yield from _more_servers(fleet)
    for one in {one.hardware: one for one in fleet.groups}.values():
        if target in ("k8s", "kserve", "dynamo") and fleet.machines(one):
            spread = ", spread over the machines as planned" if target == "k8s" else ""
            yield f"pods run on {', '.join(fleet.machines(one))}, by the label of the instance type{spread}"
        elif target in ("k8s", "kserve", "llm-d", "dynamo"):
            yield f"the cluster has to have {one.hardware}; where it has other devices too, add a nodeSelector for them"
    for resource in dict.fromkeys(one.resource for one in fleet.groups if one.slice):
        if target in ("k8s", "kserve", "llm-d", "dynamo"):
            yield f"MIG slices are called {resource} with mig.strategy=mixed of NVIDIA's device plugin"
    if target == GRAFANA:
        yield "service is the label that the scrape of Prometheus gives the pods; pod is their name"
    if target == "keda":
        yield "serverAddress is that of your Prometheus; service is the label that its scrape gives the pods"
        yield "finished requests are counted: a queue that grows shows in them only once it is served"
    if target == "kserve" and fleet.usd_per_hour is not None:
        each = fleet.usd_per_hour / sum(g.replicas for g in fleet.groups)
        yield f"a replica costs ${each:.4g} an hour: scaling.wva.variantCost, where the workload variant autoscaler is used"


def _more_servers(fleet: FleetLaunch) -> Iterator[str]:
    """Yield how many replicas a Compose file leaves to more servers: of each group of a mix, or of all groups on one server."""
    for groups in ([group] for group in fleet.groups) if fleet.is_mix else (fleet.groups,):
        each, total = groups[0].devices_per_server, sum(group.replicas for group in groups)
        held = sum(min(group.replicas, each // group.launch.devices) for group in groups)
        if held < total:
            of = f" of {groups[0].name}" if fleet.is_mix else ""
            yield f"one server of {each} x {groups[0].hardware}; {total} replicas{of} need several, each started with its part of this file"


def _commands(fleet: FleetLaunch, target: str) -> Iterator[str]:
    if target == OLLAMA:
        yield from (replica_text(group.launch, target) for group in fleet.groups)
        return
    for group in fleet.groups:
        command, servers = command_of(group.launch), group.servers
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
            words = (*container_command(group).arguments, *server_words(group, servers, str(rank), _LEADER))
            yield f"{comment(f'server {rank} of {servers}; {_LEADER} is server 0')}\n{shell_text(Command(words))}"


def _here(command: Command) -> str:
    from capplan.readers.yaml_file import yaml_text

    return f"cat > {CONFIG_FILE} <<'EOF'\n{yaml_text(command.config, short=False)}EOF\n"
