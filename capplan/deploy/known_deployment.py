"""What is known of a deployment: `init --from` a trace, counters or the command of an engine, and the replica of `estimate --launch`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, Self

from capplan.assumption import Assumption
from capplan.deploy.command_line import (
    LEFT_OUT,
    WHOLE_TOWERS,
    launch_of_words,
    not_modelled,
    read_command_line,
)
from capplan.deploy.manifests import Deployed, deployed_engines
from capplan.deploy.replica_launch import ReplicaLaunch, engine_flags
from capplan.deploy.shell import engines_started
from capplan.errors import InputError, nearest, unknown
from capplan.model.network import LoraTerms
from capplan.numbers import GIB
from capplan.readers.catalogue.scenarios import shipped_scenarios
from capplan.readers.text_file import first_bytes, is_there, path_of, printable
from capplan.recorded.traces.prometheus_server import Observed, is_address, observed
from capplan.recorded.traces.trace import format_of, workload_of
from capplan.scenario.first_scenario import Known
from capplan.scenario.flags import LoadFlags, ServingFlags
from capplan.scenario.observed_traffic import counted_lengths, observed_traffic
from capplan.workload.statistics import DAY_S

MOST_BYTES = 1_048_576
"""Most bytes of a file with the command of an engine, or of a manifest."""
WEEK_S = 7 * DAY_S
"""Window of a server, if none is said: it has weekdays and a weekend."""
_NO_RATE = "one scrape states lengths and no rate: capplan workload BEFORE AFTER --interval TIME reads the rate of two"
_SCRIPTS = (
    "vllm serve",
    "sglang.launch_server",
    "sglang serve",
    "trtllm-serve",
    "llama-server",
    "vllm.entrypoints",
    "vllm-openai",
)
"""Words of a file that starts an engine."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What is read of a Prometheus server."""

    window_s: float | None = None
    """Up to now; None: a week."""
    model_name: str | None = None
    """Served model, where the server knows several."""

    def of(self, source: str | None) -> Self:
        """Return this; InputError if it says something and no source is named."""
        if source is None and (self.window_s is not None or self.model_name is not None):
            raise InputError(
                "--window and --model-name are of --from: name the server or the file they are read from"
            )
        return self


def known_deployment(
    source: str | None,
    folder: Path,
    *,
    model: str | None = None,
    engine: str | None = None,
    ignore_unmodelled: bool = False,
    watched: Watched | None = None,
    offline: bool = False,
) -> Known:
    """Return what is known of a deployment.

    Parameters
    ----------
    source : a file (a trace, a request log, Prometheus text, a manifest, a script with the command of an engine), the command, or
        the address of a Prometheus server; None: nothing is known
    folder : of the scenario, which a trace is named from
    model : that people name, for a command that names it by a variable
    engine : name of one of the engines that a manifest starts; None: it starts one, or pools of one model
    ignore_unmodelled : leave out what is not modelled of a command, and say so
    watched : what is read of a server; None: all of its only model, of the last week
    offline : never open a connection

    Raises
    ------
    InputError
        it is none of them
    """
    watched = watched or Watched()
    if source is None or is_address(source):
        _refuse_without_engine(engine, ignore_unmodelled=ignore_unmodelled)
        if source is None:
            return Known()
        seen = observed(source, "--from", watched.window_s or WEEK_S, watched.model_name, offline=offline)
        return _of_server(seen)
    if watched.window_s is not None:
        raise InputError(f"--window: is of the address of a Prometheus server, and --from is {source!r}")
    path = path_of(source) if not re.search(r"\s", source) else Path(source)
    if source.strip() and is_there(path):
        return _of_file(path, source, folder, model, engine, watched, ignore_unmodelled=ignore_unmodelled)
    if source.strip() and not re.search(r"\s", source.strip()):
        raise _no_such_source(path, source)
    _refuse_without_engine(engine, ignore_unmodelled=False)
    launch = read_command_line(source, "--from", ignore_unmodelled=ignore_unmodelled)
    planned = _as_planned(launch, "--from", model, ignore_unmodelled=ignore_unmodelled)
    return _of_launch(planned, "the command of an engine")


def _of_file(
    path: Path,
    source: str,
    folder: Path,
    model: str | None,
    engine: str | None,
    watched: Watched,
    *,
    ignore_unmodelled: bool,
) -> Known:
    """Return what a file says: a manifest, a script, Prometheus text, a log or a trace."""
    text = first_bytes(path, MOST_BYTES).decode("utf-8", "replace")
    deployed = deployed_engines(text, source)
    if deployed is not None:
        return _of_manifest(
            _named(deployed, engine), path, source, model, ignore_unmodelled=ignore_unmodelled
        )
    script = _script(text, path)
    _refuse_without_engine(engine, ignore_unmodelled=ignore_unmodelled and script is None)
    if script is not None:
        launch = read_command_line(script, source, path.parent, ignore_unmodelled=ignore_unmodelled)
        return _of_launch(_as_planned(launch, source, model, ignore_unmodelled=ignore_unmodelled), source)
    if (kind := _is_another_kind(text, path)) is not None:
        raise InputError(f"{source}: is {kind}")
    return _of_traffic(path, source, folder, watched.model_name)


def _refuse_without_engine(engine: str | None, *, ignore_unmodelled: bool) -> None:
    """Raise the error for an option that is for engines where there is none."""
    if engine is not None:
        raise InputError("--engine-name: is for a manifest that starts several engines; leave it out")
    if ignore_unmodelled:
        raise InputError("--ignore-unmodelled: is for the command of an engine or a manifest; leave it out")


_RECORDS = (".csv", ".tsv", ".json", ".jsonl", ".prom", ".parquet", ".gz")
"""Ends of the names of files with records, whose prompts may hold any command."""
_CODE_BLOCK = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)


def _script(text: str, path: Path) -> str | None:
    """Return the script of a file that starts an engine, of a page its blocks of code; None for a file that starts none."""
    unit = text.lstrip().startswith(("[Unit]", "[Service]", "[Container]"))  # of systemd
    records = path.suffix in _RECORDS or text.lstrip().startswith(("{", "[", "# HELP", "# TYPE"))
    records = records and not unit
    if records or not any(word in text for word in _SCRIPTS) or _is_dockerfile(text):
        return None
    if path.suffix in (".yaml", ".yml") and not engines_started(text, path.name):
        return None
    return "\n".join(_CODE_BLOCK.findall(text)) if path.suffix == ".md" else text


def _is_dockerfile(text: str) -> bool:
    return (
        re.search(r"^FROM \S+", text, re.MULTILINE) is not None
        and re.search(r"^(?:RUN|CMD|ENTRYPOINT|COPY) ", text, re.MULTILINE) is not None
    )


_YAML = (".yaml", ".yml")
_OPTIONS_ALONE = {
    "vllm serve OWNER/NAME": (
        "tensor-parallel-size",
        "max-model-len",
        "gpu-memory-utilization",
        "max-num-seqs",
    ),
    "trtllm-serve OWNER/NAME": ("kv_cache_config", "cuda_graph_config", "enable_attention_dp", "moe_config"),
    "python3 -m sglang.launch_server --model-path OWNER/NAME": (
        "tp-size",
        "mem-fraction-static",
        "context-length",
    ),
}
"""Command of an engine -> keys of the YAML that its --config names."""


def _is_another_kind(text: str, path: Path) -> str | None:
    """Return what a file is that says nothing of a deployment, and what reads it; None for one that may be a trace, a log or a script."""
    head = text.lstrip()
    if re.search(r"^(?:traffic|fleet):", text, re.MULTILINE) and re.search(r"^model:", text, re.MULTILINE):
        return f"a scenario already\n  answer it: capplan fleet {quote(str(path))}"
    if head.startswith("{") and '"plan_file"' in text:
        return f"a plan of capplan\n  what starts it: capplan export --plan {quote(str(path))} --target k8s"
    if head.startswith("{") and '"schemaVersion"' in text and '"panels"' in text:
        return "a Grafana dashboard, in which nothing starts an engine\n  give the export that starts it, such as: capplan export --target k8s"
    if head.startswith("{") and re.search(r'"(?:model_type|architectures)"\s*:', text):
        return f"the config.json of a model\n  give it as the model: --model {quote(str(path))}"
    if _is_dockerfile(text):
        return "a Dockerfile, which says how an image is made\n  give the command that runs in it: --from 'vllm serve OWNER/NAME'"
    for engine, keys in _OPTIONS_ALONE.items():
        if path.suffix in _YAML and any(re.search(rf"^{key}:", text, re.MULTILINE) for key in keys):
            return f"the options of an engine, without its command\n  give the command that reads them: --from '{engine} --config {quote(str(path))}'"
    if path.suffix in (".yaml", ".yml", ".toml", ".md", ".py", ".tf", ".html"):
        return (
            f"a {path.suffix[1:]} file in which no engine is started\n"
            "  give a trace, a log, Prometheus text, a manifest, or the command of an engine: --from 'vllm serve OWNER/NAME'"
        )
    return None


def _no_such_source(path: Path, source: str) -> InputError:
    """Return the error for one word that is no file, with the nearest name, or as the address of a server is written."""
    if re.fullmatch(r"[\w.-]+:\d+(?:/\S*)?", source):
        return InputError(
            f"--from: {source!r} is no file; a server is named with http://: --from http://{source}"
        )
    if not path.suffix and path.name == source:
        hint = "or a file, or the command of an engine: --from 'vllm serve OWNER/NAME'"
        return unknown("source", source, shipped_scenarios(), place="--from", hint=hint)
    beside = [one.name for one in path.parent.iterdir() if one.is_file()] if path.parent.is_dir() else []
    near = nearest(path.name, beside)[:1]
    question = f"; did you mean {printable(str(path.parent / near[0]))}?" if near else ""
    return InputError(f"--from: {printable(source)}: no such file{question}")


def _named(deployed: Sequence[Deployed], engine: str | None) -> Sequence[Deployed]:
    """Return the engines of a manifest of one name; all of them where none is named."""
    named = [one for one in deployed if engine in (None, one.name)]
    if not named:
        raise unknown("engine", str(engine), [one.name for one in deployed], place="--engine-name")
    return named


def _as_planned(
    launch: ReplicaLaunch, place: str, model: str | None, *, ignore_unmodelled: bool
) -> ReplicaLaunch:
    """Return a launch as a scenario can say it: with a model, and with an assumption where each GPU holds whole towers."""
    named = _model_of(launch, place, model, "--model OWNER/NAME")
    if launch.whole_towers:
        line = f"{engine_flags(launch.engine).flags['whole_towers'].names[0]} {WHOLE_TOWERS}"
        if not ignore_unmodelled:
            raise InputError(not_modelled(place, [line]))
        launch = replace(launch, assumed=(*launch.assumed, LEFT_OUT.format(line)))
    return replace(launch, model=named)


def _model_of(launch: ReplicaLaunch, place: str, model: str | None, way_out: str) -> str:
    """Return the model of a command; the one that people name if the command has a variable or a placeholder instead."""
    if "$" not in launch.model and not launch.model.startswith(("<", "[")):
        return launch.model
    if model is None:
        variable = f"the variable {launch.model}, which nothing before it sets"
        what = variable if "$" in launch.model else f"the placeholder {launch.model}"
        raise InputError(f"{place}: its model is {what}\n  name the model: {way_out}")
    return model


def _of_manifest(
    deployed: Sequence[Deployed], path: Path, source: str, model: str | None, *, ignore_unmodelled: bool
) -> Known:
    """Return what a manifest says of one engine, or of the pools of one model."""

    def read(one: Deployed) -> ReplicaLaunch:
        place = source if len(deployed) == 1 else f"{source}: {one.name}"
        launch = launch_of_words(one.started, place, path.parent, ignore_unmodelled=ignore_unmodelled)
        planned = _as_planned(launch, place, model, ignore_unmodelled=ignore_unmodelled)
        return replace(planned, role=one.role or planned.role)

    launches = [read(one) for one in deployed]
    if len(launches) > 1 and (
        len({launch.model for launch in launches}) > 1 or any(launch.role is None for launch in launches)
    ):
        listed = "".join(
            f"\n  {one.shown}: {launch.engine} {launch.model}"
            for one, launch in zip(deployed, launches, strict=True)
        )
        raise InputError(
            f"{source}: starts {len(launches)} engines, and a scenario is of one{listed}\n"
            f"  name one: --engine-name {deployed[0].name}"
        )
    remarks = tuple(f"it runs {one.shown}" for one in deployed)
    remarks += tuple(filter(None, map(_other_gpus, deployed, launches)))
    if len(launches) == 1:
        return _of_launch(launches[0], source, remarks)
    return _of_pools(launches, source, remarks)


def _other_gpus(one: Deployed, launch: ReplicaLaunch) -> str:
    """Return the remark on an engine that splits over another number of GPUs than its pods have; empty where it does not."""
    if one.gpus is None or one.gpus == launch.devices:
        return ""
    return (
        f"{one.name}: its command splits over {launch.devices} GPUs, and its manifest asks for {one.gpus:g}"
    )


_POOLS_APART = {"disaggregation": "only"}


def _of_pools(launches: Sequence[ReplicaLaunch], source: str, remarks: tuple[str, ...]) -> Known:
    """Return what is known of separate pools: a scenario in which only they are allowed."""
    parts = [_of_launch(replace(launch, role=None), source) for launch in launches]
    said = [
        f"the {launch.role} pool: {', '.join(f'{name} {count}' for name, count in launch.degrees.items())}"
        for launch in launches
        if launch.role != "either"
    ]
    common = {
        key: value for key, value in parts[0].top.items() if all(part.top.get(key) == value for part in parts)
    }
    more = tuple(dict.fromkeys(remark for part in parts for remark in part.remarks))
    return Known(source, common, fleet=_POOLS_APART, remarks=(*remarks, *said, *more))


def _of_launch(launch: ReplicaLaunch, source: str, remarks: tuple[str, ...] = ()) -> Known:
    if launch.role is not None:
        return _of_pools([launch], source, remarks)
    if launch.gpu_layers or launch.cpu_experts:
        raise InputError(
            f"{source}: keeps weights on the host, which a scenario does not state\n  capplan estimate --launch predicts one replica"
        )
    if launch.tensor_split or launch.main_gpu:
        raise InputError(
            f"{source}: says which card has which layers, where a scenario splits a machine of cards by their memory\n  capplan estimate --launch predicts one replica"
        )
    said = replace(launch, main_gpu=None, gpu_layers=None)
    top: dict[str, object] = {"model": launch.model, **said.stated}
    if launch.adapters is not None:
        top["lora"] = _lora(launch.adapters)
    if not launch.prefix_caching:
        top["prefix_caching"] = False
    if launch.host_cache_bytes is not None:
        top["kv_offload"] = [{"name": "host", "capacity": f"{launch.host_cache_bytes / GIB:g} GiB"}]
    notes = [f"not read: {', '.join(launch.unread)}"] if launch.unread else []
    notes += [f"assumed: {line}" for line in launch.assumed]
    if launch.drafts is not None:
        notes.append(
            f"it speculates by {launch.drafts.method} with {launch.drafts.draft_tokens} draft tokens: add the key speculation with the measured acceptance"
        )
    return Known(source, top, fleet=launch.degrees, remarks=(*remarks, *notes))


def _lora(adapters: LoraTerms) -> dict[str, object]:
    """Return the key lora of a scenario; what is its default is left out."""
    written: dict[str, object] = {
        "adapters": adapters.adapters,
        "max_loras": adapters.slots,
        "max_lora_rank": adapters.rank,
    }
    if adapters.modules is not None:
        written["modules"] = list(adapters.modules)
    if adapters.fully_sharded:
        written["fully_sharded"] = True
    return written


def _of_server(seen: Observed) -> Known:
    """Return the traffic that engines had, as keys of a scenario, and what they were like then."""
    said = list(seen.summary.notes)
    for name, mean in (seen.summary.measured or {}).items():
        if mean is not None:
            said.append(f"mean {name.removesuffix('_s').upper()} {mean:.3g} s")
    for name, gauge in (("running", seen.running), ("waiting", seen.waiting)):
        if gauge is not None:
            said.append(f"{gauge:.3g} requests {name} on average")
    return Known(seen.source, traffic=observed_traffic(seen.summary), remarks=tuple(said))


def _of_traffic(path: Path, source: str, folder: Path, model_name: str | None) -> Known:
    if format_of(path) == "prometheus":
        return Known(
            source, traffic=counted_lengths(workload_of([path], model=model_name)), remarks=(_NO_RATE,)
        )
    workload_of([path], model=model_name)
    near = path.resolve()
    trace = near.relative_to(folder) if near.is_relative_to(folder) else near
    return Known(source, traffic={"trace": str(trace)})


def launched_replica(
    model: str | None, launch: str, serving: ServingFlags, load: LoadFlags, *, ignore_unmodelled: bool = False
) -> tuple[str, ServingFlags, tuple[str, ...], tuple[Assumption, ...]]:
    """Return the replica of a command line.

    Parameters
    ----------
    model : whose config is read instead of that of the model that the command line names; None: the latter
    launch : command line of an engine
    serving : flags; those that stand for options of the command line must not be given together with it
    load : that it serves; prefixes hit only where they are cached
    ignore_unmodelled : leave out what is not modelled, as assumptions

    Returns
    -------
    the model, how it is served, a warning that names what was not read of the command line, and what is assumed instead of its options
    """
    read = read_command_line(launch, version=serving.engine_version, ignore_unmodelled=ignore_unmodelled)
    if load.prefix_hit_fraction and not read.prefix_caching:
        raise InputError(
            "--prefix-hit-fraction: --launch turns prefix caching off, so nothing hits; leave one of them out"
        )
    said = serving_flags(read, ignore_unmodelled=ignore_unmodelled)
    left_out = [LEFT_OUT.format(line) for line in _other_parts(read)]
    unread = (f"not read of --launch: {', '.join(read.unread)}",) if read.unread else ()
    assumed = tuple(Assumption(line, "--launch") for line in (*read.assumed, *left_out))
    model = model or _model_of(read, "--launch", None, "capplan estimate OWNER/NAME --launch ...")
    return model, replace(serving, **said), unread, assumed


def _other_parts(launch: ReplicaLaunch) -> list[str]:
    """Return what an estimate of one replica does not model of a launch."""
    parts = {
        "it speculates, which capplan spec predicts": launch.drafts is not None,
        "it keeps prefixes in host memory, which capplan simulate predicts": launch.host_cache_bytes
        is not None,
        "it serves one phase only, which capplan simulate predicts": launch.role is not None,
    }
    return [what for what, said in parts.items() if said]


def serving_flags(launch: ReplicaLaunch, *, ignore_unmodelled: bool = False) -> dict[str, Any]:
    """Return what a command line says in the words of capplan's own options; what is not said keeps their defaults.

    Raises
    ------
    InputError
        it drafts, keeps prefixes in host memory or serves one phase only, which an estimate of one replica does not model
    """
    if (parts := _other_parts(launch)) and not ignore_unmodelled:
        raise InputError(not_modelled("--launch", parts))
    return {
        **launch.degrees,
        **launch.stated,
        **_adapter_flags(launch.adapters),
        **({"whole_towers": True} if launch.whole_towers else {}),
    }


def _adapter_flags(adapters: LoraTerms | None) -> dict[str, Any]:
    """Return the slots for adapters in the words of capplan's own options; all of them are taken to be in use."""
    if adapters is None:
        return {}
    return {
        "max_loras": adapters.slots,
        "max_lora_rank": adapters.rank,
        "lora_modules": adapters.modules,
        "fully_sharded_loras": adapters.fully_sharded,
    }
