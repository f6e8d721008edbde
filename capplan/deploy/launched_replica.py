"""`estimate --launch`: the replica that a command line starts, in the flags that every command takes."""

from dataclasses import dataclass, replace
from typing import Any

from capplan.deploy.command_line import ReadLaunch, read_command_line
from capplan.deploy.replica_launch import Adapters
from capplan.errors import InputError
from capplan.scenario.flags import LoadFlags, ServingFlags


@dataclass(frozen=True, slots=True)
class LaunchedReplica:
    """A model and how it is served."""

    model: str
    serving: ServingFlags
    warnings: tuple[str, ...] = ()


def launched_replica(
    model: str | None, launch: str | None, serving: ServingFlags, load: LoadFlags
) -> LaunchedReplica:
    """Return the replica of a command line, else that of a model and flags.

    Parameters
    ----------
    model : whose config is read; beside a command line instead of the model that it names
    launch : command line of an engine
    serving : flags; those that stand for options of the command line must not be given beside it
    load : that it serves; prefixes hit only where they are cached

    Returns
    -------
    the replica, and a warning that names what was not read of the command line
    """
    if launch is None:
        if model is None:
            raise InputError(
                "no model is given\n  name one, or the command of an engine: --launch 'vllm serve OWNER/NAME'"
            )
        return LaunchedReplica(model, serving)
    read = read_command_line(launch)
    if load.prefix_hit_fraction and not read.launch.prefix_caching:
        raise InputError(
            "--prefix-hit-fraction: --launch turns prefix caching off, so nothing hits; leave one of them out"
        )
    said = serving_flags(read)
    if serving.engine_version is not None:
        said["engine_version"] = serving.engine_version
    unread = (f"not read of --launch: {', '.join(read.unread)}",) if read.unread else ()
    return LaunchedReplica(model or read.launch.model, replace(serving, **said), unread)


def serving_flags(read: ReadLaunch) -> dict[str, Any]:
    """Return what a command line says in the words of capplan's own options; what is not said keeps their defaults.

    Raises
    ------
    InputError
        it drafts, keeps prefixes in host memory or serves one phase alone, which an estimate of one replica does not model
    """
    launch = read.launch
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
            "--launch: it serves one phase alone, which an estimate does not model; see: capplan simulate --help"
        )
    return {**launch.degrees, **launch.stated, **_adapter_flags(launch.adapters)}


def _adapter_flags(adapters: Adapters | None) -> dict[str, Any]:
    """Return the slots for adapters in the words of capplan's own options; all of them are taken to be in use."""
    if adapters is None:
        return {}
    return {
        "max_loras": adapters.slots,
        "max_lora_rank": adapters.rank,
        "lora_modules": adapters.modules,
        "fully_sharded_loras": adapters.fully_sharded,
    }
