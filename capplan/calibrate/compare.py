"""Two calibrations, or a calibration and the datasheet, side by side: rates in absolute units, fixed costs in seconds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from capplan.engine.lookup import profile
from capplan.engine.profile import HostOverhead
from capplan.hardware.device import Device, Efficiency
from capplan.operators.device_rates import OF_PEAK, RELATIVE_FRACTIONS
from capplan.readers.calibration.measured_fit import EFFICIENCY_KERNELS
from capplan.readers.calibration.record import (
    Calibration,
    CalibrationFile,
    Conditions,
    HostRefit,
    Machine,
    Measurement,
    Range,
)
from capplan.readers.calibration.refitted import refitted_overhead

SETTINGS = ("power.limit", "persistence_mode", "ecc.mode.current", "mig.mode.current", "clocks.max.sm")
"""Settings of the driver, compared where both runs have them."""
SENSORS = {
    "clock": ("clock_hz", "MHz", 1e-6),
    "memory clock": ("memory_clock_hz", "MHz", 1e-6),
    "power": ("power_w", "W", 1.0),
    "temperature": ("temperature_c", "C", 1.0),
}
"""Sensor -> field of `Conditions`, unit on screen, and its size in base units."""
REPEATABLE_FRACTION = 0.03
"""Repeated runs on an idle device agree within this."""


def unit_of(quantity: str) -> str:
    """Return the base unit of a compared quantity.

    Examples
    --------
    >>> unit_of("matmul/bf16 compute_flop_per_s"), unit_of("matmul/bf16 floor_s"), unit_of("matmul/bf16 sharpness")
    ('FLOP/s', 's', '')
    """
    for end, unit in (("flop_per_s", "FLOP/s"), ("bytes_per_s", "B/s"), ("_s", "s"), ("_tokens", "tokens")):
        if quantity.endswith(end):
            return unit
    return ""


def _reached(
    key: str, numbers: Mapping[str, float], flop_per_s: float | None, bytes_per_s: float
) -> dict[str, float]:
    """Return a kernel's numbers, with fractions converted to rates."""
    sides = {}
    for name, value in numbers.items():
        if not name.endswith("_fraction") or name in RELATIVE_FRACTIONS or key.startswith("link/"):
            sides[f"{key} {name}"] = value
        elif name in OF_PEAK:
            if flop_per_s:
                sides[f"{key} {name.removesuffix('fraction')}flop_per_s"] = value * flop_per_s
        else:
            sides[f"{key} {name.removesuffix('fraction')}bytes_per_s"] = value * bytes_per_s
    return sides


def calibration_side(calibration: Calibration) -> dict[str, float]:
    """Return a calibration as absolute quantities by name, in base units."""
    peaks = calibration.peaks
    quantities = {"peak memory bytes_per_s": peaks.memory_bytes_per_s}
    quantities |= {f"peak {dtype} flop_per_s": rate for dtype, rate in peaks.flop_per_s.items()}
    for key, fit in calibration.fitted.items():
        flop = peaks.flop_per_s.get(key.partition("@")[0].partition("/")[2]) or max(
            peaks.flop_per_s.values(), default=None
        )
        values = {name: number.value for name, number in fit.numbers.items()}
        quantities |= _reached(key, values, flop, peaks.memory_bytes_per_s)
    return quantities


def _host_quantities(engine: str, host: HostOverhead) -> dict[str, float]:
    """Return the host times of an engine, as quantities of a side."""
    return {f"host {engine} {name}": float(value) for name, value in host.named.items()}


def file_side(file: CalibrationFile) -> dict[str, float]:
    """Return a calibration file, of kernels, a host or both, as absolute quantities."""
    quantities = calibration_side(file.kernels) if file.kernels else {}
    if file.host:
        quantities |= _host_quantities(file.host.engine, refitted_overhead(file.host))
    return quantities


def shipped_side(device: Device, efficiency: Efficiency, host: HostRefit | None) -> dict[str, float]:
    """Return the catalogue's figures of a device, and the shipped host overhead of an engine where a refit is given."""
    side = datasheet_side(device, efficiency)
    if host is None:
        return side
    shipped = profile(host.engine, host.engine_version).host
    return side | _host_quantities(host.engine, shipped)


def datasheet_side(device: Device, efficiency: Efficiency) -> dict[str, float]:
    """Return the catalogue's figures of a device: datasheet peaks, and what kernels achieve by default."""
    quantities = {"peak memory bytes_per_s": device.memory_bytes_per_s}
    quantities |= {f"peak {dtype} flop_per_s": rate for dtype, rate in device.peak_flop_per_s.items()}
    for key, fit in efficiency.fits.items():
        kernel, _, dtype = key.partition("@")[0].partition("/")
        if kernel in EFFICIENCY_KERNELS and f"{kernel}/{dtype}" == key:
            flop = device.peak_flop_per_s.get(dtype) or device.peak_flop_per_s.get("bf16")
            quantities |= _reached(key, fit.numbers, flop, device.memory_bytes_per_s)
    return quantities


def differences(first: Mapping[str, float], second: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return every quantity that both sides have, in the order of the first, and whether both differ by no more than repeated runs."""
    rows = []
    for name, one in first.items():
        if (other := second.get(name)) is not None:
            ratio = one / other if other else None
            agrees = None if ratio is None else abs(ratio - 1.0) <= REPEATABLE_FRACTION
            row = {"quantity": name, "unit": unit_of(name), "first": one, "second": other}
            rows.append({**row, "ratio": ratio, "agrees": agrees})
    return rows


def machine_differences(first: Machine, second: Machine) -> Sequence[str]:
    """Return what differs between two machines, in words."""
    names = ("name", "uuid_hash", "driver", "cuda", "torch", "threads")
    notes = [
        f"{name}: {getattr(first, name)} against {getattr(second, name)}"
        for name in names
        if getattr(first, name) != getattr(second, name)
    ]
    shown = [name for name in SETTINGS if first.clocks.get(name) != second.clocks.get(name)]
    return notes + [
        f"{name}: {first.clocks.get(name, 'unknown')} against {second.clocks.get(name, 'unknown')}"
        for name in shown
    ]


def condition_notes(first: Calibration, second: Calibration) -> list[str]:
    """Return the clock records of two runs side by side: what differs there explains what differs in times."""
    if not first.conditions and not second.conditions:
        return []
    notes = []
    for name, (field_name, unit, scale) in SENSORS.items():
        sides = [_range_words(getattr(one.conditions, field_name, None), scale) for one in (first, second)]
        if any(sides):
            notes.append(f"{name} [{unit}]: {' against '.join(side or 'not read' for side in sides)}")
    both = [one.conditions for one in (first, second)]
    slowed = [_slowed_words(one) for one in both]
    notes.append(f"slowed down: {' against '.join(slowed)}")
    rates = [
        f"{one.sustained.flop_per_s / 1e12:.0f} TFLOP/s ({one.sustained.first_flop_per_s / 1e12:.0f} at first)"
        if one and one.sustained
        else "not measured"
        for one in both
    ]
    notes.append(f"sustained matmul: {' against '.join(rates)}")
    return notes


def _range_words(found: Range | None, scale: float) -> str:
    return (
        f"{found.median * scale:.0f} ({found.low * scale:.0f} to {found.high * scale:.0f})" if found else ""
    )


def _slowed_words(conditions: Conditions | None) -> str:
    if conditions is None or not conditions.readings:
        return "unknown"
    reasons = [f"{name} {share:.0%} of readings" for name, share in conditions.slowed_fraction.items()]
    return f"{', '.join(reasons) or 'never'}, {conditions.rejected_repeats} repeats rejected"


def repeat_notes(first: Calibration, second: Calibration) -> list[str]:
    """Return how well two runs on one machine agree: in the numbers that both constrain, and in the times of shared shapes."""
    pairs = [
        (number, other.numbers[name])
        for key, fit in first.fitted.items()
        if (other := second.fitted.get(key))
        for name, number in fit.numbers.items()
        if name in other.numbers and number.constrained and other.numbers[name].constrained and number.value
    ]
    within = sum(abs(b.value / a.value - 1.0) <= REPEATABLE_FRACTION for a, b in pairs)
    overlapping = sum(max(a.low, b.low) <= min(a.high, b.high) for a, b in pairs)
    notes = []
    if pairs:
        notes.append(
            f"of {len(pairs)} constrained numbers {within} agree within {REPEATABLE_FRACTION:.0%}, and the 95% intervals "
            f"of {overlapping} overlap"
        )
    theirs = {_shape(m): m for m in second.measurements}
    shared = [(m, theirs[_shape(m)]) for m in first.measurements if _shape(m) in theirs]
    for what, field in (("measured medians", "median_s"), ("fitted times", "fitted_s")):
        ratios = [abs(getattr(b, field) / getattr(a, field) - 1.0) for a, b in shared if getattr(a, field)]
        if ratios:
            middle, most = np.median(ratios), np.quantile(ratios, 0.9)
            notes.append(
                f"{what} of {len(ratios)} shared shapes differ by {middle:.1%} (median), {most:.1%} (90th)"
            )
    return notes


def _shape(m: Measurement) -> tuple[object, ...]:
    return m.operator, m.dtype, tuple(sorted(m.shape.items()))
