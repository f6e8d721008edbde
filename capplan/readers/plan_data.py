"""The shipped data that a plan is made from, and a digest of each part: a plan file says which of them changed since."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from capplan.readers.catalogue.efficiency import INTERVALS_FILE, SLOWNESS_FILE, efficiency_folder
from capplan.readers.catalogue.models import shipped_config
from capplan.readers.data_folder import data_folder
from capplan.readers.text_file import MAX_BYTES, first_bytes, is_there

_DEVICE, _MODEL = "device ", "model "
SHARED = ("efficiencies", "intervals", "partitions", "prices", "slowness")
"""Parts that every plan is made from."""


def data_digests(devices: Iterable[str], model: str) -> dict[str, str]:
    """Return a digest of every part of the shipped data that a plan on these devices uses, by its name.

    A device or a model that is not shipped has its own file, which the plan file lists among the files of the scenario.
    """
    names = [*(f"{_DEVICE}{name}" for name in sorted(set(devices))), f"{_MODEL}{model}", *SHARED]
    found = {name: _digest(name) for name in names}
    return {name: digest for name, digest in found.items() if digest is not None}


def changed_data(written: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the parts whose content is no longer what it was when a plan was written."""
    return tuple(name for name, digest in written.items() if _digest(name) != digest)


def _digest(name: str) -> str | None:
    if name.startswith(_MODEL):
        found = shipped_config(name.removeprefix(_MODEL))
        return found and hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]
    content = hashlib.sha256()
    paths = _paths(name)
    for path in paths:
        content.update(first_bytes(path, MAX_BYTES))
    return content.hexdigest()[:16] if paths else None


def _paths(name: str) -> tuple[Path, ...]:
    specs = data_folder("hardware_specs")
    if name.startswith(_DEVICE):
        path = specs / f"{name.removeprefix(_DEVICE)}.yaml"
        return (path,) if path.parent == specs and is_there(path) else ()
    return {
        "efficiencies": tuple(sorted(efficiency_folder().glob("*.yaml"))),
        "intervals": (INTERVALS_FILE,),
        "partitions": (specs / "partitions.yaml",),
        "prices": (specs / "prices.yaml",),
        "slowness": (SLOWNESS_FILE,),
    }.get(name, ())
