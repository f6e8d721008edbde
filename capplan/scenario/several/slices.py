"""Slices of GPUs among the hardware of a scenario: what is not asked of them, and all slices of its devices."""

from collections.abc import Sequence
from dataclasses import replace

from capplan.errors import InputError
from capplan.fleet.scenario import Scenario
from capplan.hardware.device import Device
from capplan.readers.catalogue.hardware import slices
from capplan.readers.catalogue.partitions import partitioned_devices
from capplan.readers.yaml_file import KeyPath
from capplan.scenario.reading import Reading
from capplan.scenario.scenario_file import ScenarioFile


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
