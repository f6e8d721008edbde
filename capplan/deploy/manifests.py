"""Manifests of platforms, read back: which engines they start, how many replicas of each, and on how many GPUs.

Kubernetes workloads, sets of leaders and workers, KServe, Dynamo, Compose, and the Helm values of the vLLM production stack and of llm-d.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

from capplan.deploy.replica_launch import Role
from capplan.deploy.shell import Started, engines_in_container
from capplan.errors import LONGEST_SHOWN, InputError
from capplan.readers.yaml_file import yaml_values

_Map: TypeAlias = Mapping[str, Any]
_TOP = re.compile(
    r"^(apiVersion|kind|services|servingEngineSpec|modelArtifacts|releases|name|resources|decode|image|applications):",
    re.MULTILINE,
)
"""Keys at the top of a manifest, of Compose or of the values of a chart."""
_GPU = re.compile(
    r"(?:nvidia|amd|intel|habana|gpu\.intel|google)\.(?:com|ai)/(?:gpu|mig-[\w.]+|i915|xe|gaudi|tpu)|gpu"
)
_WORKLOADS = ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job")
_YAML = (".yaml", ".yml")
_ONE_REPLICA = 1
_MOST = 1_000_000
"""Most replicas, servers or GPUs of one object."""
_POOLS: Mapping[str, Role] = {"prefill": "prefill", "decode": "decode"}
"""What platforms call a pool -> its role."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """One engine of a manifest."""

    name: str
    started: Started
    replicas: int | None
    """Replicas that the manifest asks for, the fewest if it lets a scaler choose; None if it leaves them open, as a template does."""
    gpus: float | None
    """GPUs of one replica; None where the manifest does not say."""
    requests: Mapping[str, str]
    """Processor and main memory that one pod asks for."""
    role: Role | None = None
    """prefill or decode, where the platform and not the command says it."""

    @property
    def shown(self) -> str:
        """Return the engine with its replicas, GPUs and requests, for people."""
        gpus = "" if self.gpus is None else f" of {self.gpus:g} GPU{'s' if self.gpus != 1 else ''}"
        asked = "".join(f", {value} {name}" for name, value in self.requests.items())
        count = "an unstated number of" if self.replicas is None else self.replicas
        return f"{self.name}: {count} replica{'s' if count != 1 else ''}{gpus}{asked}"


def deployed_engines(text: str, place: str) -> tuple[Deployed, ...] | None:
    """Return the engines that a manifest starts; None for a file that is no manifest.

    Raises
    ------
    InputError
        it is a manifest that starts no engine, or a template that has to be rendered first
    """
    if not _TOP.search(text):
        return None
    try:
        documents = [value for value in yaml_values(text, place) if isinstance(value, dict)]
    except InputError:
        if "{{" not in text:
            if not place.endswith(_YAML):
                return None
            raise
        raise InputError(
            f"{place}: is a template, whose values are missing\n  render it, and give the result: helm template CHART -f VALUES"
        ) from None
    objects = [item for document in documents for item in _items(document)]
    kinds = list(dict.fromkeys(kind for one in objects if (kind := _kind(one)) is not None))
    if not kinds:
        return None
    mounted = {name: text for one in objects for name, text in _files(one)}
    found = tuple(_with_files(engine, mounted) for one in objects for engine in _engines(one, place))
    if not found:
        raise InputError(
            f"{place}: is {_listed(kinds)}, in which nothing starts vllm, sglang or trtllm-serve\n"
            f"  give {_wanted(kinds)}, or the command of the engine: --from 'vllm serve OWNER/NAME'"
        )
    return _alike(found)


def _files(one: _Map) -> Iterator[tuple[str, str]]:
    """Yield the files of a ConfigMap, or of the configs of a Compose file, by their names."""
    if one.get("kind") == "ConfigMap":
        yield from ((str(name), text) for name, text in _map(one, "data").items() if isinstance(text, str))
    contents = {
        str(name): _text(_map(config).get("content")) for name, config in _map(one, "configs").items()
    }
    for service in _map(one, "services").values():
        for config in _maps(_map(service).get("configs")):
            name = _text(config.get("target")).rpartition("/")[2]
            yield name, _compose_expanded(contents.get(str(config.get("source")), ""))


def _with_files(one: Deployed, mounted: Mapping[str, str]) -> Deployed:
    """Return an engine with the files of its manifest that its words name, wherever they are mounted."""
    named = (word.rpartition("=")[2] for word in one.started.words)
    files = {word: mounted[name] for word in named if (name := word.rpartition("/")[2]) in mounted}
    return replace(one, started=replace(one.started, files={**one.started.files, **files}))


def _items(document: _Map) -> Iterator[_Map]:
    """Yield the objects of a document: those of a list, and the values of the releases of a Helmfile."""
    listed = document.get("items") if str(document.get("kind", "")).endswith("List") else None
    if isinstance(listed, list):
        yield from (item for item in listed if isinstance(item, dict))
    elif isinstance(document.get("releases"), list):
        for release in _maps(document["releases"]):
            for values in _maps(release.get("values")):
                yield {"modelArtifacts": {}, **values, "_name": release.get("name")}
    else:
        yield document


def _kind(one: _Map) -> str | None:
    """Return what an object is, for people; None for one that is no manifest."""
    if isinstance(one.get("kind"), str) and "apiVersion" in one:
        return str(one["kind"])[:LONGEST_SHOWN]
    if isinstance(one.get("services"), dict):
        return "Compose file"
    if isinstance(one.get("servingEngineSpec"), dict):
        return "values of the vLLM production stack"
    if isinstance(one.get("modelArtifacts"), dict):
        return "values of llm-d-modelservice"
    if any("import_path" in app for app in _maps(one.get("applications"))):
        return "config of Ray Serve"
    if isinstance(one.get("resources"), dict) and {"run", "num_nodes"} & set(one):
        return "SkyPilot task"
    return None


def _listed(kinds: Sequence[str]) -> str:
    """Return the kinds of a file as a sentence names them."""
    shown = list(kinds[:4])
    names = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    article = "" if names.startswith("values") else "an " if names[0] in "AEIO" else "a "
    return f"{article}{names}"


def _wanted(kinds: Sequence[str]) -> str:
    if any(kind == "ScaledObject" for kind in kinds):
        return "the manifest of the Deployment that it scales"
    return "the manifest with the containers of the engines"


def _engines(one: _Map, place: str) -> Iterator[Deployed]:
    """Yield the engines of one object."""
    kind = _kind(one)
    spec = _map(one, "spec")
    name = str(_map(one, "metadata").get("name") or one.get("_name") or kind)
    if (read := _DOCUMENTS.get(str(kind))) is not None:
        yield from read(one, place)
    elif kind in _WORKLOADS:
        yield from _of_pod(name, _map(spec, "template", "spec"), _count(spec.get("replicas")), place)
    elif kind == "Pod":
        yield from _of_pod(name, spec, _ONE_REPLICA, place)
    elif kind == "LeaderWorkerSet":
        yield from _of_leaders(name, spec, place)
    elif kind == "InferenceService":
        yield from _of_predictor(name, _map(spec, "predictor"), place)
    elif kind in ("LLMInferenceService", "LLMInferenceServiceConfig"):
        yield from _of_llm_service(name, spec)
    elif kind == "DynamoGraphDeployment":
        yield from _of_graph(spec, place)
    elif kind == "VLLMRuntime":
        yield from _of_runtime(name, spec, place)
    elif kind == "RayService" and "llm_configs" in (config := _text(spec.get("serveConfigV2"))):
        for served in yaml_values(config, f"{place}: serveConfigV2"):
            yield from _of_ray_serve(_map(served), place)
    else:
        yield from _of_pods_inside(name, spec, _ONE_REPLICA, place)


def _of_pod(
    name: str,
    pod: _Map,
    replicas: int | None,
    place: str,
    *,
    servers: int | None = 1,
    role: Role | None = None,
) -> Iterator[Deployed]:
    """Yield the engines of the containers of a pod."""
    for container in _maps(pod.get("containers")):
        environment = _environment(container.get("env"))
        words = [*_words(container.get("command")), *_words(container.get("args"))]
        started = engines_in_container(
            _text(container.get("image")),
            [_kubernetes_expanded(word, environment) for word in words],
            environment,
            place,
            whole=bool(container.get("command")),
        )
        yield from _deployed(
            name, started, replicas, _map(container, "resources"), servers=servers, role=role
        )


def _of_pods_inside(name: str, value: object, replicas: int | None, place: str) -> Iterator[Deployed]:
    """Yield the engines of all pods in an object of another kind, with the replicas that stand nearest around each."""
    if isinstance(value, list):
        for inner in value:
            yield from _of_pods_inside(name, inner, replicas, place)
    elif isinstance(value, dict):
        title = str(value["name"]) if isinstance(value.get("name"), str) and "template" in value else name
        replicas = _count(value["replicas"]) if "replicas" in value else replicas
        runner = [value["runner"]] if isinstance(value.get("runner"), dict) else []  # of a runtime of OME
        containers = [*_maps(value.get("containers")), *runner]
        yield from _of_pod(title, {"containers": containers}, replicas, place)
        for key, inner in value.items():
            if key not in ("containers", "runner"):
                yield from _of_pods_inside(title, inner, replicas, place)


def _deployed(
    name: str,
    started: Iterable[Started],
    replicas: int | None,
    resources: _Map,
    *,
    servers: int | None = 1,
    role: Role | None = None,
) -> Iterator[Deployed]:
    limits = {**_map(resources, "requests"), **_map(resources, "limits")}
    gpus = [_number(value) for key, value in limits.items() if _GPU.fullmatch(str(key))]
    asked = _map(resources, "requests") or _map(resources, "limits")
    requests = {key: str(asked[key]) for key in ("cpu", "memory") if key in asked}
    each = gpus[0] * servers if gpus and gpus[0] is not None and servers else None
    yield from (Deployed(name, one, replicas, each, requests, role) for one in started)


def _of_leaders(name: str, spec: _Map, place: str) -> Iterator[Deployed]:
    """Yield the engine of a LeaderWorkerSet: that of the leader, over the pods of a group."""
    template = _map(spec, "leaderWorkerTemplate")
    servers, replicas = _count(template.get("size")), _count(spec.get("replicas"))
    for key in ("leaderTemplate", "workerTemplate"):
        pod = _map(_map(template.get(key)).get("spec"))
        found = list(_of_pod(name, pod, replicas, place, servers=servers))
        if found:
            yield from found
            return


def _of_predictor(name: str, predictor: _Map, place: str) -> Iterator[Deployed]:
    """Yield the engine of an InferenceService: a container of one's own, or vLLM of the Hugging Face runtime.

    References
    ----------
    https://kserve.github.io/website/docs/model-serving/generative-inference/overview (arguments of the Hugging Face runtime)
    """
    replicas = _count(predictor.get("minReplicas"))
    yield from _of_pod(name, predictor, replicas, place)
    model = _map(predictor, "model")
    if _map(model, "modelFormat").get("name") != "huggingface":
        return
    args = _words(model.get("args"))
    words = [part for word in args for part in (word.split("=", 1) if word.startswith("--") else [word])]
    said = dict(pairwise(words))
    if said.get("--backend") == "huggingface":
        raise InputError(
            f"{place}: {name} is served by transformers (--backend=huggingface), which is not modelled; vllm and sglang are"
        )
    served = said.get("--model_id") or _text(model.get("storageUri")).removeprefix("hf://")
    if served:
        revision = ["--revision", said["--model_revision"]] if "--model_revision" in said else []
        started = _vllm(served, [*revision, *_without(words, _OF_RUNTIME)])
        yield from _deployed(name, [started], replicas, _map(model, "resources"))


_OF_RUNTIME = ("--model_name", "--model_dir", "--model_id", "--backend", "--model_revision")
"""Options of the Hugging Face runtime of KServe that are not those of vLLM."""


def _without(words: Sequence[str], own: Sequence[str]) -> list[str]:
    """Return words without some options and the values that stand behind them."""
    kept, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if word in own:
            if rest and not rest[0].startswith("-"):
                rest.pop(0)
        else:
            kept.append(word)
    return kept


def _of_llm_service(name: str, spec: _Map) -> Iterator[Deployed]:
    """Yield the engines of an LLMInferenceService: that of its top level, and the prefill next to it."""
    model = _map(spec, "model")
    uri = _text(model.get("uri"))
    served = uri.removeprefix("hf://") if uri.startswith("hf://") else _text(model.get("name")) or uri
    prefill = _map(spec, "prefill")
    workloads: tuple[tuple[_Map, Role | None], ...] = (
        (prefill, "prefill"),
        (spec, "decode" if prefill else None),
    )
    for part, role in workloads:
        if not part or not served:
            continue
        containers = _maps(_map(part, "template").get("containers"))
        container = next((one for one in containers if one.get("name") == "main"), {})
        added = _environment(container.get("env")).get("VLLM_ADDITIONAL_ARGS", "").replace("$$", "$")
        words = [*_words(container.get("args")), *shlex.split(added)]
        started = _vllm(served, [*_parallelism(_map(part, "parallelism")), *words])
        title = f"{name}-{role}" if role else name
        yield from _deployed(
            title, [started], _count(part.get("replicas")), _map(container, "resources"), role=role
        )


_DEGREES = {
    "tensor": "--tensor-parallel-size",
    "pipeline": "--pipeline-parallel-size",
    "data": "--data-parallel-size",
}


def _parallelism(said: _Map) -> list[str]:
    """Return the options that a platform writes for the parallelism of its values."""
    words = [word for key, name in _DEGREES.items() if said.get(key) for word in (name, str(said[key]))]
    return [*words, *(["--enable-expert-parallel"] if said.get("expert") is True else [])]


def _of_graph(spec: _Map, place: str) -> Iterator[Deployed]:
    """Yield the engines of a DynamoGraphDeployment: its components, or its services in the older version."""
    parts = [(str(part.get("name")), part) for part in _maps(spec.get("components"))]
    parts += [(str(key), part) for key, part in _map(spec, "services").items() if isinstance(part, dict)]
    for name, part in parts:
        replicas, servers = _count(part.get("replicas")), _count(_map(part, "multinode").get("nodeCount"))
        role = _POOLS.get(str(part.get("subComponentType") or part.get("type")))
        pod = _map(part, "podTemplate", "spec")
        main = _map(part, "extraPodSpec", "mainContainer")
        if main:
            pod = {"containers": [{**main, "resources": part.get("resources", main.get("resources"))}]}
        yield from _of_pod(name, pod, replicas, place, servers=servers, role=role)


def _of_compose(document: _Map, place: str) -> Iterator[Deployed]:
    """Yield the engines of the services of a Compose file."""
    for name, stated in document["services"].items():
        service = _map(stated)
        environment = _environment(service.get("environment"))
        entry, command = (_words(service.get(key), split=True) for key in ("entrypoint", "command"))
        words = [_compose_expanded(word) for word in (*entry, *command)]
        deploy = _map(service, "deploy")
        devices = _maps(_map(deploy, "resources", "reservations").get("devices"))
        gpus = sum(len(one.get("device_ids") or ()) or _number(one.get("count")) or 0 for one in devices)
        started = engines_in_container(
            _compose_expanded(_text(service.get("image"))), words, environment, place, whole=bool(entry)
        )
        replicas = _count(deploy.get("replicas", service.get("scale")))
        resources = {"limits": {"gpu": gpus}} if gpus else {}
        yield from _deployed(str(name), started, replicas, resources)


_STACK = {
    "maxModelLen": "--max-model-len", "dtype": "--dtype", "tensorParallelSize": "--tensor-parallel-size", "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization", "maxLoras": "--max-loras", "runner": "--runner", "convert": "--convert",
    "pipelineParallelSize": "--pipeline-parallel-size",
}  # fmt: skip
"""Value of `vllmConfig` -> the option that the chart writes for it (helm/templates/deployment-vllm-multi.yaml)."""


def _of_stack(spec: _Map, place: str) -> Iterator[Deployed]:
    """Yield the engines of the vLLM production stack, one for each model."""
    for model in _maps(spec.get("modelSpec")):
        if not _text(model.get("modelURL")):
            raise InputError(f"{place}: servingEngineSpec.modelSpec {model.get('name')!r} names no modelURL")
        config = _map(model, "vllmConfig")
        words = ["--enable-lora"] if model.get("enableLoRA") else []
        if "enableChunkedPrefill" in config:
            words.append(_switched("enable-chunked-prefill", config["enableChunkedPrefill"]))
        if config:  # without its value the chart turns the prefix cache off
            words.append(_switched("enable-prefix-caching", config.get("enablePrefixCaching")))
        words += [word for key, name in _STACK.items() if key in config for word in (name, str(config[key]))]
        words += _words(config.get("extraArgs"))
        if model.get("modelRevision"):
            words += ["--revision", str(model["modelRevision"])]
        cache = _map(model, "lmcacheConfig")
        if cache.get("enabled"):
            role = str(cache.get("kvRole") or "kv_both") if cache.get("enablePD") else "kv_both"
            words += ["--kv-transfer-config", f'{{"kv_connector":"LMCacheConnectorV1","kv_role":"{role}"}}']
        tagged = f"{model.get('repository')}:{model.get('tag')}"
        (started,) = engines_in_container(
            tagged, ["vllm", "serve", str(model["modelURL"]), *words], {}, place, whole=True
        )
        head = _map(model, "raySpec", "headNode")
        servers = _count(model.get("pipelineParallelSize")) if head else 1
        requests = {"cpu": model.get("requestCPU"), "memory": model.get("requestMemory")}
        resources = {
            "limits": {"gpu": model["requestGPU"]} if "requestGPU" in model else {},
            "requests": {key: value for key, value in requests.items() if value is not None},
        }
        yield from _deployed(
            str(model.get("name")), [started], _count(model.get("replicaCount")), resources, servers=servers
        )


_IN_MODEL = ("maxModelLen", "dtype", "maxNumSeqs")
"""Keys of the model of a VLLMRuntime that the chart has in its `vllmConfig`."""


def _of_runtime(name: str, spec: _Map, place: str) -> Iterator[Deployed]:
    """Yield the engine of a VLLMRuntime of the vLLM production stack, whose operator turns off what it does not state (vllmruntime_controller.go)."""
    model, pod = _map(spec, "model"), _map(spec, "deploymentConfig")
    asked, image = _map(pod, "resources"), _text(_map(pod, "image").get("name"))
    off = {"enableChunkedPrefill": False, "enablePrefixCaching": False}
    stated = {key: model[key] for key in _IN_MODEL if key in model}
    as_values = {
        **model,
        "name": name,
        "vllmConfig": {**off, **_map(spec, "vllmConfig"), **stated},
        "lmcacheConfig": _map(spec, "lmCacheConfig"),
        "repository": image.partition(":")[0],
        "tag": image.partition(":")[2],
        "replicaCount": pod.get("replicas"),
        "requestCPU": asked.get("cpu"),
        "requestMemory": asked.get("memory"),
        **({"requestGPU": asked["gpu"]} if "gpu" in asked else {}),
    }
    yield from _of_stack({"modelSpec": [as_values]}, place)


def _switched(name: str, value: object) -> str:
    """Return the option that turns something on or off."""
    return f"--{name}" if value else f"--no-{name}"


def _of_modelservice(values: _Map, place: str) -> Iterator[Deployed]:
    """Yield the engines of the values of llm-d-modelservice: decode, and prefill where it is created."""
    artifacts = _map(values, "modelArtifacts")
    uri = _text(artifacts.get("uri"))
    served = _text(artifacts.get("name")) or uri.removeprefix("hf://")
    if not served:
        raise InputError(f"{place}: modelArtifacts has no name of a model")
    pools = {key: _map(values.get(key)) for key in ("prefill", "decode")}
    there = [key for key, part in pools.items() if part.get("create", bool(part)) and part.get("containers")]
    for key in there:
        part = pools[key]
        name = str(values.get("_name") or served)
        role = _POOLS[key] if len(there) > 1 else None
        for container in _maps(part.get("containers"))[:1]:
            words = _words(container.get("args"))
            options = _parallelism(_map(part, "parallelism"))
            workers = _count(_map(part, "parallelism").get("workers")) if values.get("multinode") else 1
            if container.get("modelCommand", "vllmServe") in ("vllmServe", "imageDefault"):
                started = [_vllm(served, [*options, *(word.replace("$$", "$") for word in words)])]
            else:
                command = [*_words(container.get("command")), *words]
                environment = _environment(container.get("env"))
                image = _text(container.get("image"))
                started = engines_in_container(image, command, environment, place, whole=True)
            title = f"{name}-{key}" if role else name
            yield from _deployed(
                title,
                started,
                _count(part.get("replicas")),
                _map(container, "resources"),
                servers=workers,
                role=role,
            )


def _of_ray_serve(config: _Map, _place: str) -> Iterator[Deployed]:
    """Yield the engines of Ray Serve LLM: each model with the options of vLLM as it is given them.

    References
    ----------
    https://docs.ray.io/en/latest/serve/llm/quick-start.html (llm_configs, engine_kwargs, deployment_config)
    """
    for app in _maps(config.get("applications")):
        for one in _maps(_map(app, "args").get("llm_configs")):
            model, kwargs = _map(one, "model_loading_config"), _map(one, "engine_kwargs")
            scaled = _map(one, "deployment_config")
            replicas = scaled.get(
                "num_replicas", _map(scaled, "autoscaling_config").get("min_replicas", _ONE_REPLICA)
            )
            name = str(model.get("model_id") or app.get("name"))
            words = [word for key, value in kwargs.items() for word in _option_of(str(key), value)]
            started = _vllm(_text(model.get("model_source")) or name, words)
            yield from _deployed(name, [started], _count(replicas), {})


def _option_of(key: str, value: object) -> list[str]:
    """Return an argument of the engine of vLLM as an option; nothing where it is not set."""
    name = key.replace("_", "-")
    if isinstance(value, bool):
        return [_switched(name, value)]
    if value is None:
        return []
    return [f"--{name}={json.dumps(value) if isinstance(value, (dict, list)) else value}"]


def _of_task(task: _Map, place: str) -> Iterator[Deployed]:
    """Yield the engines that the script of a SkyPilot task starts."""
    environment = {key: str(value) for key, value in _map(task, "envs").items() if value is not None}
    script = _text(task.get("run"))
    service, resources = _map(task, "service"), _map(task, "resources")
    policy = _map(service, "replica_policy")
    replicas = _count(policy.get("min_replicas", service.get("replicas")))
    _, _, count = _text(resources.get("accelerators")).partition(":")
    gpus = {"limits": {"gpu": count}} if count.isdigit() else {}
    started = engines_in_container("", ["bash", "-c", script], environment, place, whole=True)
    servers = _count(task.get("num_nodes"))
    yield from _deployed(str(task.get("name") or "task"), started, replicas, gpus, servers=servers)


def _alike(found: Sequence[Deployed]) -> tuple[Deployed, ...]:
    """Return the engines with those that are started alike counted as replicas of one."""
    merged: dict[tuple[object, ...], Deployed] = {}
    for one in found:
        started = replace(one.started, variables=(), files={})
        words = tuple(word for word in started.words if not word.isdigit() or int(word) < _FIRST_PORT)
        key = (started.engine, started.version, words, one.gpus, one.role)
        before = merged.get(key)
        merged[key] = (
            one if before is None else replace(before, replicas=_both(before.replicas, one.replicas))
        )
    return tuple(merged.values())


def _both(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


_FIRST_PORT = 1024
"""Numbers from here on may be the ports of services that are alike otherwise."""


def _vllm(model: str, words: Sequence[str]) -> Started:
    return Started("vllm", None, (), (model, *words))


def _environment(listed: object) -> dict[str, str]:
    """Return variables by name: of a list of names and values, of lines NAME=VALUE, or of a mapping."""
    if isinstance(listed, dict):
        return {str(key): str(value) for key, value in listed.items() if value is not None}
    found: dict[str, str] = {}
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and "value" in one:
            found[str(one.get("name"))] = str(one["value"])
        elif isinstance(one, str) and "=" in one:
            name, _, value = one.partition("=")
            found[name] = value
    return found


_KUBERNETES_VARIABLE = re.compile(r"\$\$|\$\((\w+)\)")
_COMPOSE_VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?::?-([^{}]*))?\}")


def _kubernetes_expanded(word: str, values: Mapping[str, str]) -> str:
    """Return a word of a container with the variables that Kubernetes puts in its place.

    Examples
    --------
    >>> _kubernetes_expanded("$(MODEL) $$(A) $(B)", {"MODEL": "o/n"})
    'o/n $(A) $(B)'
    """
    return _KUBERNETES_VARIABLE.sub(
        lambda match: "$" if match[0] == "$$" else values.get(match[1], match[0]), word
    )


def _compose_expanded(word: str) -> str:
    """Return a word of a Compose file with the defaults of its variables.

    Examples
    --------
    >>> _compose_expanded("${MODEL:-o/n} $$A ${B} ${LENGTH:-${CONTEXT:-8192}}")
    'o/n $A ${B} 8192'
    """
    for _ in range(word.count("${")):  # a default may be a variable with a default
        word = _NESTED.sub(lambda match: f"{match[1]}{match[2]}", word)
    return _COMPOSE_VARIABLE.sub(
        lambda match: "$" if match[0] == "$$" else match[0] if match[2] is None else match[2], word
    )


_NESTED = re.compile(r"(\$\{\w+:?-)\$\{\w+:?-([^{}]*)\}(?=\})")
"""A default that is itself the default of a variable."""


def _map(value: object, *keys: str) -> _Map:
    """Return a mapping, or the one behind keys inside it; an empty one where it is something else."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _maps(value: object) -> list[_Map]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _words(value: object, *, split: bool = False) -> list[str]:
    """Return the words of a command, which may be one text."""
    if isinstance(value, list):
        return [str(word) for word in value]
    if not isinstance(value, str):
        return []
    try:
        return shlex.split(value) if split else [value]
    except ValueError:
        return [value]


def _number(value: object) -> float | None:
    """Return an amount, which may be written as text; None for a template or nothing."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if 0.0 <= number <= _MOST else None


def _count(value: object) -> int | None:
    """Return a number of replicas or servers: one if it is not stated; None for a template and what is no whole number."""
    number = _number(_ONE_REPLICA if value is None else value)
    return int(number) if number is not None and number.is_integer() else None


_DOCUMENTS: Mapping[str, Callable[[_Map, str], Iterator[Deployed]]] = {
    "Compose file": _of_compose,
    "config of Ray Serve": _of_ray_serve,
    "values of the vLLM production stack": lambda one, place: _of_stack(
        _map(one["servingEngineSpec"]), place
    ),
    "values of llm-d-modelservice": _of_modelservice,
    "SkyPilot task": _of_task,
}
"""Kind of a document that is no object of Kubernetes -> what yields its engines."""
