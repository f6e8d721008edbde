"""Formats that a device only emulates: torch runs them, after it converted every element."""

from collections.abc import Mapping

from capplan.readers.calibration.record import Machine, Peaks

NARROW = ("bf16", "fp16", "int8")
"""Formats with fewer bits than fp32, which units of their own multiply at least as fast."""
LEAST_NATIVE_RATIO = 0.5
"""Rate of a product over that of fp32 at which a format counts as native. Native units are one to ten times as fast as fp32;
emulation was seen at 0.08 to 0.25."""
WITHOUT_16_BITS = frozenset({"NO AVX", "AVX2"})
"""What torch calls processors that have no units for 16 bits."""


def emulated_formats(flop_per_s: Mapping[str, float]) -> tuple[str, ...]:
    """Return the formats that a processor emulates, from the rate of products in each.

    Parameters
    ----------
    flop_per_s : [FLOP/s] by format; without fp32 there is nothing to compare with

    Examples
    --------
    >>> emulated_formats({"fp32": 100e9, "bf16": 20e9, "int8": 200e9})
    ('bf16',)
    """
    least = LEAST_NATIVE_RATIO * flop_per_s.get("fp32", 0.0)
    return tuple(name for name in NARROW if name in flop_per_s and flop_per_s[name] < least)


def emulated_before(machine: Machine, peaks: Peaks) -> tuple[str, ...]:
    """Return the formats that the device of an older file emulates, which its record does not say.

    Parameters
    ----------
    machine : as it was recorded
    peaks : best rates seen
    """
    if machine.capability and not machine.capability.startswith("gfx"):
        return ("bf16",) if int(machine.capability.partition(".")[0]) < 8 else ()
    if machine.device != "cpu":
        return ()
    if machine.clocks.get("capability") in WITHOUT_16_BITS:
        return ("bf16", "fp16")
    return emulated_formats(peaks.flop_per_s)
