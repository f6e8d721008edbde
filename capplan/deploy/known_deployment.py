"""What is known of a deployment: `init --from` a trace, counters or the command of an engine, and the replica of `estimate --launch`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from capplan.deploy.command_line import read_command_line
from capplan.deploy.replica_launch import ReplicaLaunch
from capplan.errors import InputError, unknown
from capplan.model.network import LoraTerms
from capplan.numbers import GIB
from capplan.readers.catalogue.scenarios import shipped_scenarios
from capplan.readers.text_file import first_bytes, is_there, path_of
from capplan.recorded.traces.prometheus_server import DAY_S, Observed, is_address, observed
from capplan.recorded.traces.trace import format_of, workload_of
from capplan.scenario.first_scenario import Known
from capplan.scenario.flags import LoadFlags, ServingFlags
from capplan.scenario.observed_traffic import counted_lengths, observed_traffic

MOST_BYTES = 65_536
"""Most bytes of a file with the command of an engine."""
WEEK_S = 7 * DAY_S
"""Window of a server, if none is said: it has weekdays and a weekend."""
_NO_RATE = "one scrape states lengths and no rate: capplan workload BEFORE AFTER --interval TIME reads the rate of two"


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
    source: str, folder: Path, watched: Watched | None = None, *, offline: bool = False
) -> Known:
    """Return what is known of a deployment.

    Parameters
    ----------
    source : a file (a trace, a request log, Prometheus text, a script with the command of an engine), the command, or the address of
        a Prometheus server
    folder : of the scenario, which a trace is named from
    watched : what is read of a server; None: all of its only model, of the last week
    offline : never open a connection

    Raises
    ------
    InputError
        it is none of them
    """
    watched = watched or Watched()
    if is_address(source):
        seen = observed(source, "--from", watched.window_s or WEEK_S, watched.model_name, offline=offline)
        return _of_server(seen)
    if watched.window_s is not None:
        raise InputError(f"--window: is of the address of a Prometheus server, and --from is {source!r}")
    path = path_of(source) if " " not in source else Path(source)
    if not is_there(path):
        if " " not in source.strip():
            raise unknown(
                "source",
                source,
                shipped_scenarios(),
                place="--from",
                hint="or a file, or the command of an engine: --from 'vllm serve OWNER/NAME'",
            )
        return _of_launch(read_command_line(source, "--from"), "the command of an engine")
    text = first_bytes(path, MOST_BYTES).decode("utf-8", "replace")
    if any(
        word in text for word in ("vllm serve", "sglang.launch_server", "trtllm-serve", "vllm.entrypoints")
    ):
        return _of_launch(read_command_line(text, source, path.parent), source)
    return _of_traffic(path, source, folder, watched.model_name)


def _of_launch(launch: ReplicaLaunch, source: str) -> Known:
    top: dict[str, object] = {"model": launch.model, **launch.stated}
    if launch.adapters is not None:
        top["lora"] = _lora(launch.adapters)
    if not launch.prefix_caching:
        top["prefix_caching"] = False
    if launch.host_cache_bytes is not None:
        top["kv_offload"] = [{"name": "host", "capacity": f"{launch.host_cache_bytes / GIB:g} GiB"}]
    remarks = [f"not read: {', '.join(launch.unread)}"] if launch.unread else []
    if launch.drafts is not None:
        remarks.append(
            f"it speculates by {launch.drafts.method} with {launch.drafts.draft_tokens} draft tokens: add the key speculation with the measured acceptance"
        )
    if launch.role is not None:
        raise InputError(
            "--from: it serves one phase only, in a separate pool; write their scenario with fleet.disaggregation: only"
        )
    return Known(source, top, fleet=launch.degrees, remarks=tuple(remarks))


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
    model: str | None, launch: str, serving: ServingFlags, load: LoadFlags
) -> tuple[str, ServingFlags, tuple[str, ...]]:
    """Return the replica of a command line.

    Parameters
    ----------
    model : whose config is read instead of that of the model that the command line names; None: the latter
    launch : command line of an engine
    serving : flags; those that stand for options of the command line must not be given together with it
    load : that it serves; prefixes hit only where they are cached

    Returns
    -------
    the model, how it is served, and a warning that names what was not read of the command line
    """
    read = read_command_line(launch)
    if load.prefix_hit_fraction and not read.prefix_caching:
        raise InputError(
            "--prefix-hit-fraction: --launch turns prefix caching off, so nothing hits; leave one of them out"
        )
    said = serving_flags(read)
    if serving.engine_version is not None:
        said["engine_version"] = serving.engine_version
    unread = (f"not read of --launch: {', '.join(read.unread)}",) if read.unread else ()
    return model or read.model, replace(serving, **said), unread


def serving_flags(launch: ReplicaLaunch) -> dict[str, Any]:
    """Return what a command line says in the words of capplan's own options; what is not said keeps their defaults.

    Raises
    ------
    InputError
        it drafts, keeps prefixes in host memory or serves one phase only, which an estimate of one replica does not model
    """
    if launch.drafts is not None:
        raise InputError(
            "--launch: it speculates, which an estimate does not model; leave it out, or see: capplan spec --help"
        )
    if launch.host_cache_bytes is not None:
        raise InputError(
            "--launch: it keeps prefixes in host memory, which an estimate does not model; see: capplan simulate --help"
        )
    if launch.role is not None:
        raise InputError(
            "--launch: it serves one phase only, which an estimate does not model; see: capplan simulate --help"
        )
    return {**launch.degrees, **launch.stated, **_adapter_flags(launch.adapters)}


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
