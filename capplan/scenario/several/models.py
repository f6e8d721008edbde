"""A scenario of several models: one cascade or models that share devices, or slices of them, and the ordinary scenario of one of their fleets."""

from collections.abc import Sequence
from dataclasses import replace

from capplan.errors import InputError
from capplan.fleet.scenario import CascadeTerms, SharingTerms
from capplan.hardware.device import Device
from capplan.readers.catalogue.hardware import partitioned_devices, slices
from capplan.readers.yaml_file import Document, KeyPath
from capplan.scenario.reading import Reading, key_of
from capplan.scenario.scenario_file import Scenario, ScenarioFile
from capplan.scenario.several import cascade, sharing
from capplan.workload.request_class import RequestClass

OF_ONE_FLEET = {cascade.AT: ("budget", "energy"), sharing.AT: ("budget", "growth", "energy")}
"""Section -> keys that are answered for one of its fleets at a time."""
OF_ONE_MODEL = ("name", "description", "model", "revision", "traffic", sharing.SHARE, cascade.AT, sharing.AT)
"""Keys that --set changes for the model of the scenario only."""


def one_by_one(section: str) -> str:
    """Return how to ask for one of the fleets of a section."""
    parts = "first, second or alone" if section == cascade.AT else "NAME"
    return f"one fleet at a time: {section}.part={parts}, in the file or with --set"


def several_terms(
    reading: Reading, file: ScenarioFile, classes: Sequence[RequestClass]
) -> CascadeTerms | SharingTerms | None:
    """Return what a scenario says of further models; None where it has only one.

    Raises
    ------
    InputError
        of what is not modelled with several
    """
    section = file.cascade or file.sharing
    if section is None:
        return None
    at = cascade.AT if file.cascade is not None else sharing.AT
    if file.cascade is not None and file.sharing is not None:
        raise reading.refuse((sharing.AT,), "is not modelled with a cascade; leave one of them out")
    given = [key for key in OF_ONE_FLEET[at] if getattr(file, key) is not None]
    given += ["fleet.max_gpus"] if file.fleet.max_gpus is not None else []
    if given and section.part is None:
        raise reading.refuse((at,), f"has several fleets, and {given[0]} is of one; {one_by_one(at)}")
    if file.cascade is not None:
        return cascade.cascade_terms(reading, file, file.cascade, classes)
    assert file.sharing is not None
    return sharing.sharing_terms(reading, file, file.sharing, classes)


def refuse_several(scenario: Scenario) -> None:
    """Raise the error for a scenario of several fleets where a question is about one."""
    if scenario.several is not None:
        section = cascade.AT if isinstance(scenario.several, CascadeTerms) else sharing.AT
        raise InputError(
            f"{scenario.path}: {section}: has several fleets, which capplan fleet plans together; every command answers for\n"
            f"  {one_by_one(section)}"
        )


def asks_for_a_part(document: Document) -> bool:
    """Return whether a document has several fleets and asks for one of them."""
    return any(_part(document, section) is not None for section in (cascade.AT, sharing.AT))


def _part(document: Document, section: str) -> str | None:
    written = document.value.get(section) if isinstance(document.value, dict) else None
    return written.get("part") if isinstance(written, dict) else None


def part_document(document: Document, scenario: Scenario) -> Document:
    """Return the ordinary scenario of the fleet that a document asks for; `scenario` was read from it without mistakes."""
    if isinstance(scenario.several, CascadeTerms):
        return cascade.part_document(document, scenario, document.value[cascade.AT]["part"])
    return sharing.model_document(document, scenario, document.value[sharing.AT]["part"])


def of_all(settings: Sequence[str]) -> list[str]:
    """Return the overrides, each KEY=VALUE, that hold for all models, whatever differs for one of them in the file."""
    return [item for item in settings if key_of(item.partition("=")[0].strip())[0] not in OF_ONE_MODEL]


def refuse_with_slices(reading: Reading, file: ScenarioFile, hardware: Sequence[Device]) -> None:
    """Note the mistakes of a scenario that asks of slices what is counted in whole GPUs."""
    cut = next((device.name for device in hardware if device.partition), None)
    if cut is None:
        return
    asked: dict[str, tuple[KeyPath, object]] = {
        "energy": (("energy",), file.energy),
        "commitments.owned": (("commitments", "owned"), file.commitments and file.commitments.owned),
        "fleet.disaggregation": (
            ("fleet", "disaggregation"),
            file.fleet.disaggregation not in (None, "off"),
        ),
    }
    for key, (at, given) in asked.items():
        if given:
            why = (
                f"is counted in whole GPUs, and {cut} is a slice of one; leave {key} out, or give whole GPUs"
            )
            reading.note(reading.refuse(at, why), at)


def in_slices(scenario: Scenario) -> Scenario:
    """Return a scenario whose whole devices are taken apart into all of their slices; replicas are of one slice each.

    Raises
    ------
    InputError
        a device cannot be cut
    """
    hardware: list[Device] = []
    for device in scenario.fleet.hardware:
        parts = (device,) if device.partition else slices(device)
        if not parts:
            raise InputError(
                f"{scenario.path}: fleet.hardware: no MIG slices of {device.name} are known\n"
                f"  known: {', '.join(partitioned_devices())}"
            )
        hardware += [part for part in parts if part not in hardware]
    limits = replace(scenario.fleet, hardware=tuple(hardware), max_devices_per_replica=1)
    return replace(scenario, fleet=limits)
