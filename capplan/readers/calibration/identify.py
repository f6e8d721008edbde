"""Which catalogue entry a measured card is: by its name, its multiprocessors and its memory."""

import math
import re

from capplan.hardware.device import Device
from capplan.readers.calibration.record import Machine

MEMORY_TOLERANCE_FRACTION = 0.12
"""Nominal and reported memory of one device differ by less than this."""
_FORM_FACTORS = ("pcie", "nvl")
_MEANINGLESS = re.compile(
    r"nvidia|amd|geforce|tesla|quadro|instinct|radeon|graphics|gpu|generation|blackwell|edition|oam|hgx|dgx|"
    r"sxm\d?|hbm\d?e?|\d+gb|\d+g|vf"
)
"""Words of a driver's name that distinguish no two cards of the catalogue."""
_VARIANT = re.compile(r"(\d{4}) (d|ti|super)\b")
"""A variant of a consumer card is another card: RTX 4090 D, RTX 3090 Ti."""


def words_of(name: str) -> set[str]:
    """Return the words of a device's name that say which it is.

    Examples
    --------
    >>> sorted(words_of("NVIDIA GeForce RTX 4090 D")), sorted(words_of("NVIDIA H100 80GB HBM3"))
    (['4090d', 'rtx'], ['h100'])
    """
    plain = _VARIANT.sub(r"\1\2", re.sub(r"[-_/()]", " ", name.lower()))
    return {word for word in plain.split() if not _MEANINGLESS.fullmatch(word)}


def same_device(machine: Machine, device: Device) -> bool:
    """Return whether a device of the catalogue is the one that was measured.

    Both names say the same (no word such as Ti, Max-Q or MIG on one side alone), the form factor is the same, the
    multiprocessors are as many where the catalogue knows them, and the memory is about as large.

    Parameters
    ----------
    machine : measured
    device : of the catalogue
    """
    if machine.device == "cpu" or device.architecture == "cpu":
        return machine.device == "cpu" and device.architecture == "cpu" and device.title == machine.name
    seen, wanted = words_of(machine.name), words_of(device.name)
    if not wanted <= seen or seen - wanted - words_of(device.title):
        return False
    if any((factor in seen) != (factor in wanted) for factor in _FORM_FACTORS):
        return False
    if device.multiprocessors and machine.multiprocessors != device.multiprocessors:
        return False
    reported = device.reported_memory_bytes or device.memory_bytes
    return math.isclose(machine.memory_bytes, reported, rel_tol=MEMORY_TOLERANCE_FRACTION)
