"""One option of an engine with its value, for the versions that know it."""

from capplan.deploy.flag_table import engine_flags
from capplan.deploy.replica_launch import ReplicaLaunch
from capplan.errors import InputError


def option(launch: ReplicaLaunch, key: str, value: object = None, *, needed: str = "") -> list[str]:
    """Return an option with its value; InputError where the version does not know it.

    Parameters
    ----------
    launch : whose engine and version are asked
    key : of the table of flags
    value : None for a switch
    needed : what the plan wants of the option, for the error
    """
    table, version = engine_flags(launch.engine), str(launch.version)
    text = None if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)
    if not table.knows(key, version, text if key == "kv_dtype" else None):
        what = needed or key.replace("_", " ")
        raise InputError(
            f"{launch.engine} {version}: has no option for {what} of the plan\n  {newer_version(launch, key)}"
        )
    return [table.flags[key].names[0], *([] if text is None else [text])]


def newer_version(launch: ReplicaLaunch, key: str) -> str:
    """Return the way out where a version does not know an option: another version, and the first that knows it."""
    flag = engine_flags(launch.engine).flags.get(key)
    since = f"; {flag.names[0]} is known from {flag.first} on" if flag else ""
    return f"plan for another version: capplan fleet SCENARIO --set engine_version=... -o plan.json{since}"
