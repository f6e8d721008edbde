"""What changed between two scenarios or plans: keys of the scenario, prices, versions, and what follows from them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan import __version__
from capplan.assumption import Assumption
from capplan.readers.plan_file import is_plan_file, read_plan_file
from capplan.readers.yaml_file import KeyPath, key_path

if TYPE_CHECKING:
    from capplan.fleet.plan import Plan
    from capplan.questions.fleet import AskedFleet


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: what was asked, and the plan that answers it."""

    path: Path
    version: str
    """Version of capplan that found the plan."""
    inputs: Mapping[str, Any]
    """As a plan file holds them."""
    record: Mapping[str, Any]
    """The keys of the scenario in base units."""
    chosen: Mapping[str, Any] | None
    """The recommended plan, with the keys of `capplan fleet`; None where no plan meets the targets."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """An input that differs."""

    path: str
    """Key of the scenario; below `inputs`, what was looked up for it."""
    before: Any
    """As written; None where it is not."""
    after: Any


def both_sides(
    before: Path, after: Path, progress: Callable[[int, int], None] | None = None, *, offline: bool = False
) -> tuple[Side, Side]:
    """Return what is compared: plans from plan files, and for scenarios those that `fleet` recommends.

    Parameters
    ----------
    before, after : each a scenario YAML or a plan file
    progress : of a search
    offline : never open a connection

    Returns
    -------
    both sides; a file that is given twice is searched once
    """
    first = _side(before, progress, offline=offline)
    same = before.resolve() == after.resolve()
    return first, first if same else _side(after, progress, offline=offline)


def _side(path: Path, progress: Callable[[int, int], None] | None, *, offline: bool) -> Side:
    if is_plan_file(path):
        file = read_plan_file(path)
        record = _record(file.inputs.content, file.scenario)
        return Side(
            path, file.version, file.inputs.model_dump(), record, file.result["chosen"], file.assumptions
        )
    from capplan.questions.fleet import asked_fleet, fleet_for
    from capplan.scenario.scenario import read_scenario

    asked = asked_fleet(read_scenario(path), offline=offline)
    return side_of(path, asked, fleet_for(asked, progress).chosen)


def side_of(path: Path, asked: "AskedFleet", plan: "Plan | None") -> Side:
    """Return the side of a scenario and of the plan that answers it."""
    from capplan.questions.plans.plan_row import plan_inputs, plan_row

    return Side(
        path,
        __version__,
        plan_inputs(asked, plan),
        _record(asked.scenario.written, path),
        plan_row(plan) if plan else None,
        asked.assumptions,
        asked.warnings,
    )


def _record(written: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    from capplan.readers.yaml_file import Document
    from capplan.scenario.reading import scenario_record

    record, _ = scenario_record(Document(str(path), dict(written), {}), path.resolve().parent)
    return record.model_dump(exclude_unset=True)


def changes(before: Side, after: Side) -> tuple[Change, ...]:
    """Return the inputs that differ: keys of the scenario as written, then what was looked up for them.

    A key that says the same in another unit, such as 0.8 s for 800 ms, has not changed.
    """
    was, now = (dict(_leaves(side.inputs["content"])) for side in (before, after))
    found = [
        Change(key_path(path), was.get(path), now.get(path))
        for path in dict.fromkeys((*was, *now))
        if was.get(path) != now.get(path) and not _same(_at(before.record, path), _at(after.record, path))
    ]
    traced = before.inputs["files"] != after.inputs["files"]
    priced = [{row["hardware"] for row in side.inputs["prices"]} for side in (before, after)]
    devices = set.intersection(*priced)
    was, now = (dict(_leaves(_looked_up(side, devices, traced=traced))) for side in (before, after))
    return (
        *found,
        *(
            Change(key_path(path), was.get(path), now.get(path))
            for path in dict.fromkeys((*was, *now))
            if was.get(path) != now.get(path)
        ),
    )


def _looked_up(side: Side, devices: set[str], *, traced: bool) -> dict[str, Any]:
    """Return what is no key of the scenario: versions, files and the traffic in them, prices, what engines are started with."""
    inputs = side.inputs
    return {
        "capplan": side.version,
        "inputs": {
            "model": inputs["model"]["source"],
            "engine_version": inputs["engine"]["version"],
            "traffic": {
                key: inputs[key] for key in ("request_rate", "input_tokens", "output_tokens") if traced
            },
            "files": {row["key"]: row["sha256"] for row in inputs["files"]},
            "prices": {
                row["hardware"]: {"usd_per_gpu_hour": row["usd_per_gpu_hour"], "dates": row["dates"]}
                for row in inputs["prices"]
                if row["hardware"] in devices
            },
            "launch": inputs["launch"],
        },
    }


def _leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the values of nested mappings, and of lists of mappings, by key path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for at, inner in enumerate(value):
            yield from _leaves(inner, (*path, at))
    else:
        yield path, value


_ABSENT = object()


def _at(record: Any, path: KeyPath) -> Any:
    """Return the value of a record at a path, or at the part of it that the record resolves to one value."""
    value = record
    for part in path:
        if isinstance(value, Mapping):
            value = value.get(str(part), _ABSENT)
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part] if part < len(value) else _ABSENT
        else:
            break
    return value


def _same(before: Any, after: Any) -> bool:
    """Return whether two values of records are equal, whatever they are made of."""
    from capplan.fleet.search.search_cache import content_key

    if before is _ABSENT or after is _ABSENT:
        return before is after
    return content_key(before) == content_key(after)
