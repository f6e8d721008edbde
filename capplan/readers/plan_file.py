"""The plan file that `capplan fleet -o plan.json` writes: its content, refused if edited, what it was made from, and which shipped data changed since."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan import __version__
from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.readers.catalogue.efficiency import INTERVALS_FILE, SLOWNESS_FILE, efficiency_folder
from capplan.readers.catalogue.models import shipped_config
from capplan.readers.text_file import MAX_BYTES, data_folder, digest, first_bytes, is_there, read_json
from capplan.readers.yaml_file import Document

if TYPE_CHECKING:
    from capplan.readers.plan_record import InputsRow, ResultRow

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


SCHEMA = 2
"""Number of the form of plan files, raised when an older capplan could misread a new one, or a new one has what older files lack."""
AGAIN = "write it again with: capplan fleet SCENARIO -o plan.json"
_ORIGIN = ("scenario", "settings", "scenario_sha256", "prices", "prices_sha256", "inputs", "result_sha256")


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The result of a fleet search, and what it was made from."""

    path: Path
    version: str
    scenario: Path
    """Where it was, or else the file of this name next to the plan file."""
    settings: tuple[str, ...]
    """Keys of the scenario that were overridden, each KEY=VALUE."""
    result: Mapping[str, Any]
    """As it was written."""
    answer: "ResultRow"
    """What is read of it."""
    inputs: "InputsRow"
    """What it was made from, as it was then."""
    assumptions: tuple[Assumption, ...]
    remarks: tuple[str, ...]
    """What has changed since it was written, the shipped data included."""
    data_remarks: tuple[str, ...]
    """Remarks that say which of the shipped data changed."""

    @property
    def document(self) -> Document:
        """Return the scenario that the plan was made for, as it was then, overridden keys included."""
        return Document(str(self.scenario), self.inputs.content, {})


def file_digest(path: str | os.PathLike[str] | None) -> str | None:
    """Return a digest of the content of a file; None without a path or without a file there."""
    return None if path is None else digest(path, MAX_BYTES)


def result_digest(result: Mapping[str, Any]) -> str:
    """Return a digest of a result and of what it was made from, which reveals an edit."""
    body = {key: value for key, value in result.items() if key != "plan_file"} | {
        "origin": {key: value for key, value in result.get("plan_file", {}).items() if key != "result_sha256"}
    }
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def plan_origin(
    scenario: str,
    settings: Sequence[str],
    price_file: str | None,
    result: Mapping[str, Any],
    inputs: Mapping[str, Any],
    data: Mapping[str, str],
) -> dict[str, Any]:
    """Return the origin of a plan file: what it was made from, shipped data included, and the digest of both."""
    origin = {
        "schema": SCHEMA,
        "data": dict(data),
        "scenario": os.fspath(scenario),
        "settings": list(settings),
        "scenario_sha256": file_digest(scenario),
        "prices": price_file,
        "prices_sha256": file_digest(price_file),
        "inputs": inputs,
    }
    return {**origin, "result_sha256": result_digest({**result, "plan_file": origin})}


def is_plan_file(path: Path) -> bool:
    """Return whether a file is a plan file rather than a scenario YAML: JSON by its name, else by how it begins."""
    suffix = path.suffix.lower()
    return suffix == ".json" or (suffix not in {".yaml", ".yml"} and first_bytes(path, 1) == b"{")


def read_plan_file(path: Path) -> PlanFile:
    """Return a plan file.

    Raises
    ------
    InputError
        It is not a plan file, was edited, or its search found no plan.
    """
    envelope = read_json(path, kind="a plan file (capplan fleet SCENARIO -o plan.json writes one)")
    result = envelope.get("result")
    origin = result.get("plan_file") if isinstance(result, dict) else None
    if envelope.get("command") != "fleet" or not isinstance(result, dict) or not isinstance(origin, dict):
        raise InputError(f"{path}: is not a plan file\n  {AGAIN}")
    _refuse_other_schema(path, envelope, origin)
    missing = next((key for key in _ORIGIN if key not in origin), None) or _wrong(origin)
    if missing is not None:
        raise InputError(
            f"{path}: plan_file.{missing} is missing or malformed, so the file was edited\n  {AGAIN}"
        )
    if not _same(result, origin["result_sha256"]):
        raise InputError(
            f"{path}: was edited after it was written, so its numbers may be inconsistent\n  {AGAIN}"
        )
    if not result.get("chosen"):
        raise InputError(f"{path}: has no plan: no fleet meets the targets of {origin['scenario']}")
    from capplan.readers.plan_record import checked_result

    answer, inputs = checked_result(path, result)
    changed = ", ".join(changed_data(origin.get("data", {})))
    data_remarks = (f"{path}: data of capplan changed since: {changed}; {AGAIN}",) if changed else ()
    scenario = Path(origin["scenario"])
    if file_digest(scenario) is None and file_digest(path.parent / scenario.name) is not None:
        scenario = path.parent / scenario.name
    return PlanFile(
        path,
        str(envelope.get("capplan")),
        scenario,
        tuple(origin["settings"]),
        result,
        answer,
        inputs,
        tuple(_assumptions(envelope)),
        (*_remarks(path, envelope, origin, scenario, inputs), *data_remarks),
        data_remarks,
    )


def _refuse_other_schema(path: Path, envelope: Mapping[str, Any], origin: Mapping[str, Any]) -> None:
    """Raise the error for a plan file whose form this version does not know, or no longer knows."""
    schema, version = origin.get("schema", 0), envelope.get("capplan")
    if not isinstance(schema, int) or isinstance(schema, bool):
        return
    if schema > SCHEMA:
        raise InputError(
            f"{path}: is a plan file of schema {schema}, and capplan {__version__} reads schema {SCHEMA}\n"
            f"  read it with the capplan that wrote it ({version}) or a newer one, or {AGAIN}"
        )
    if schema < SCHEMA:
        raise InputError(
            f"{path}: is a plan file of schema {schema}, which capplan {version} wrote, and capplan {__version__} reads schema {SCHEMA}\n  {AGAIN}"
        )


def _assumptions(envelope: Mapping[str, Any]) -> Iterator[Assumption]:
    """Yield the assumptions of a plan; lines that an editor made of something else are left out."""
    rows = envelope.get("assumptions")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("assumption"), str):
            yield Assumption(row["assumption"], str(row.get("replace") or ""))


def _same(result: Mapping[str, Any], written: object) -> bool:
    """Return whether a result matches the digest that was written."""
    try:
        return result_digest(result) == written
    except (OverflowError, UnicodeError):
        return False


def _wrong(origin: Mapping[str, Any]) -> str | None:
    """Return the first key of the origin whose value has the wrong type."""
    for key in ("scenario", "scenario_sha256", "prices", "prices_sha256", "result_sha256"):
        value = origin[key]
        if not isinstance(value, str) and (value is not None or key == "scenario"):
            return key
    schema, data = origin.get("schema", 0), origin.get("data", {})
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 0:
        return "schema"
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        return "data"
    settings = origin["settings"]
    sound = isinstance(settings, list) and all(isinstance(setting, str) for setting in settings)
    return None if sound else "settings"


def _remarks(
    path: Path, envelope: Mapping[str, Any], origin: Mapping[str, Any], scenario: Path, inputs: "InputsRow"
) -> list[str]:
    remarks = []
    if envelope.get("capplan") != __version__:
        remarks.append(f"was written by capplan {envelope.get('capplan')}; this is {__version__}")
    if file_digest(scenario) != origin["scenario_sha256"]:
        remarks.append(f"{scenario} has changed since")
    if origin["prices"] and file_digest(origin["prices"]) != origin["prices_sha256"]:
        remarks.append(f"{origin['prices']} has changed since")
    remarks += [
        f"{file.path} has changed since" for file in inputs.files if file_digest(file.path) != file.sha256
    ]
    return [f"{path}: {remark}; {AGAIN}" for remark in dict.fromkeys(remarks)]
