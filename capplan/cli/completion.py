"""What a shell completes: models, devices, dtypes, scenarios and plan files. Nothing heavy is imported for it."""

from collections.abc import Iterable
from pathlib import Path

WEIGHT_DTYPES = (
    "fp32", "bf16", "fp16", "fp8", "int8", "int4", "int2", "nvfp4", "mxfp4", "w4a16-g128", "w8a16", "q4_k_m", "q8_0",
)  # fmt: skip
KV_DTYPES = ("fp32", "bf16", "fp16", "fp8", "int8", "int4")


def beginning_with(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that begin with what is typed so far, whatever the case, as they are written.

    Examples
    --------
    >>> beginning_with(["h100-sxm", "h200-sxm", "L4"], "h1"), beginning_with(["L4"], "l")
    (['h100-sxm'], ['L4'])
    """
    typed = incomplete.lower()
    return [name for name in names if name.lower().startswith(typed)]


def models(incomplete: str) -> list[str]:
    """Return the shipped models by id, and by name where no owner is typed, and config files and folders that lie here."""
    from capplan.readers.catalogue.models import shipped_names

    ids = [name for name in shipped_names() if " " not in name]
    short = sorted({name.rpartition("/")[2].lower() for name in ids})
    return [*beginning_with([*ids, *short], incomplete), *files(incomplete, (".json", ".gguf"))]


def devices(incomplete: str) -> list[str]:
    """Return the devices of the catalogue, and hardware files that lie here."""
    from capplan.readers.catalogue.hardware import device_names
    from capplan.readers.catalogue.workstations import workstation_names

    names = (*device_names(), *workstation_names())
    return [*beginning_with(names, incomplete), *files(incomplete, (".yaml", ".yml"))]


def scenarios(incomplete: str) -> list[str]:
    """Return scenario files, and folders that may hold some."""
    return files(incomplete, (".yaml", ".yml"))


def plan_files(incomplete: str) -> list[str]:
    """Return plan files, and folders that may hold some."""
    return files(incomplete, (".json",))


def plans_and_scenarios(incomplete: str) -> list[str]:
    """Return plan files and scenario files, and folders that may hold some."""
    return files(incomplete, (".json", ".yaml", ".yml"))


def models_and_scenarios(incomplete: str) -> list[str]:
    """Return scenario files, then models."""
    return list(dict.fromkeys([*scenarios(incomplete), *models(incomplete)]))


def weight_dtypes(incomplete: str) -> list[str]:
    """Return the weight dtypes."""
    return beginning_with(WEIGHT_DTYPES, incomplete)


def kv_dtypes(incomplete: str) -> list[str]:
    """Return the dtypes of a KV cache."""
    return beginning_with(KV_DTYPES, incomplete)


def files(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files of some suffixes and the folders, which end in a slash, that begin with what is typed so far."""
    folder, slash, start = incomplete.rpartition("/")
    try:
        found = sorted(Path(folder or slash or ".").iterdir())
    except OSError:
        return []
    named = [item for item in found if item.name.startswith(start) and not item.name.startswith(".")]
    return [
        f"{folder}{slash}{item.name}{'/' if item.is_dir() else ''}"
        for item in named
        if item.is_dir() or item.suffix.lower() in suffixes
    ]
