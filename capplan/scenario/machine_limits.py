"""The keys of a scenario about machines -> which may be ordered, and which are there already."""

import re

from capplan.errors import InputError, unknown
from capplan.fleet.order import OWN, Machine, MachineLimits
from capplan.readers.catalogue.hardware import catalogue_name
from capplan.readers.catalogue.machine_catalogue import known_machines
from capplan.readers.catalogue.machines import (
    machine,
    refuse_unknown_provider,
    refuse_unknown_region,
    sku_of,
)
from capplan.readers.yaml_file import KeyPath
from capplan.scenario.reading import Reading
from capplan.scenario.scenario_file import Fleet

_BY_GPUS = re.compile(r"\s*(\d{1,4})\s*x\s*(\S{1,60})\s*")


def machine_limits(reading: Reading, fleet: Fleet) -> MachineLimits:
    """Return which machines a scenario may order, and which it has; mistakes are noted."""
    for key, names, check in (
        ("machines", fleet.machines, _refuse_unknown_machine),
        ("providers", fleet.providers, refuse_unknown_provider),
        ("regions", fleet.regions, refuse_unknown_region),
        ("max_machines", list(fleet.max_machines or ()), _refuse_unknown_machine),
    ):
        for name in names or ():
            at: KeyPath = ("fleet", key)
            try:
                check(name, "")
            except InputError as error:
                reading.note(reading.refuse(at, str(error)), at)
    own = []
    for name, count in (fleet.own or {}).items():
        at = ("fleet", "own")
        try:
            own.append(_owned(name, count))
        except InputError as error:
            reading.note(reading.refuse(at, str(error)), at)
    return MachineLimits(
        tuple(fleet.machines or ()),
        tuple(fleet.providers or ()),
        tuple(fleet.regions or ()),
        tuple(own),
        tuple((fleet.max_machines or {}).items()),
    )


def _refuse_unknown_machine(name: str, place: str) -> None:
    machine(name, place)


def _owned(name: str, count: int) -> Machine:
    """Return machines that are there already, by sku or as GPUS x DEVICE."""
    listed = sku_of(name)
    if listed is not None:
        return Machine(OWN, listed.record.sku, listed.record.device, listed.record.gpus, 0.0, most=count)
    match = _BY_GPUS.fullmatch(name)
    device = catalogue_name(match[2]) if match else None
    if match is None or device is None or not int(match[1]):
        names = {item.record.sku for item in known_machines()}
        raise unknown("machine", name, names, hint="or GPUS x DEVICE, such as 8 x h100-sxm")
    return Machine(OWN, f"{int(match[1])} x {device}", device, int(match[1]), 0.0, most=count)
