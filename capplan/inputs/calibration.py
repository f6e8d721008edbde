"""What other commands take from a calibration: the device as it was measured, and what its kernels reach."""

import math
import os
from dataclasses import replace
from pathlib import Path

from capplan.errors import InputError
from capplan.hardware.calibration import Calibration, KernelFit, Machine
from capplan.hardware.device import Device, Source
from capplan.hardware.efficiency import Efficiency, Fit
from capplan.inputs.calibration_file import read_calibration
from capplan.inputs.efficiency import efficiency_for

MEMORY_TOLERANCE_FRACTION = 0.12
"""Nominal and reported memory of one device differ by less than this."""

COMPUTE_FRACTIONS = frozenset(
    {"compute_fraction", "prefill_fraction", "decode_compute_fraction", "bmm_fraction"}
)
"""Fractions of the arithmetic peak; every other `_fraction` is one of the memory bandwidth."""
TAKEN_KERNELS = frozenset({"matmul", "attention", "latent_attention", "experts", "elementwise"})
"""Kernels that efficiency records name; launches and copies are shown, and used where said."""
_FORM_FACTORS = ("pcie", "nvl")


def same_device(machine: Machine, device: Device) -> bool:
    """Return whether a device of the catalogue is the one that was measured.

    Its name must be in the driver's name, the form factor the same, and the memory about as large.
    """
    if machine.device == "cpu" or device.architecture == "cpu":
        return machine.device == "cpu" and device.architecture == "cpu" and device.title == machine.name
    seen = set(machine.name.lower().replace("-", " ").split())
    wanted = [
        word
        for word in device.name.lower().split("-")
        if not word.startswith("sxm") and not word.endswith("gb")
    ]
    if not set(wanted) <= seen:
        return False
    for factor in _FORM_FACTORS:
        if (factor in seen) != (factor in wanted):
            return False
    reported = device.reported_memory_bytes or device.memory_bytes
    return math.isclose(machine.memory_bytes, reported, rel_tol=MEMORY_TOLERANCE_FRACTION)


def device_from_calibration(path: str | os.PathLike[str]) -> Device:
    """Return the measured machine as a device: its peaks are the best rates that were seen.

    Parameters
    ----------
    path : a calibration file, of a CPU or of a device that is not in the catalogue

    Returns
    -------
    the device; its figures are labelled measured, and what was not measured is unknown
    """
    calibration = read_calibration(path)
    machine = calibration.machine
    is_cpu = machine.device == "cpu"
    source = Source("calibration", f"capplan calibrate on {machine.name}", checked=calibration.date)
    measured = (
        "memory_bytes",
        "reported_memory_bytes",
        "memory_bytes_per_s",
        "peak_flop_per_s",
        "multiprocessors",
    )
    copies = [calibration.fit_of(f"{name}/int8") for name in ("host_to_device", "device_to_host")]
    return Device(
        name="cpu" if is_cpu else machine.name.lower().replace(" ", "-"),
        title=machine.name,
        vendor="cpu" if is_cpu else machine.name.partition(" ")[0],
        architecture="cpu" if is_cpu else "unknown",
        memory_bytes=machine.memory_bytes,
        reported_memory_bytes=machine.memory_bytes,
        memory_bytes_per_s=calibration.peaks.memory_bytes_per_s,
        peak_flop_per_s=calibration.peaks.flop_per_s,
        multiprocessors=machine.multiprocessors,
        l2_bytes=machine.l2_bytes,
        tdp_w=None,
        link=None,
        link_bytes_per_s=None,
        link_domain_devices=1,
        pcie_bytes_per_s=min((fit.numbers["bytes_per_s"].value for fit in copies if fit), default=None),
        node_devices=1,
        network_bytes_per_s=None,
        labels=dict.fromkeys(measured, "measured"),
        sources=(source,),
    )


def efficiency_from_calibration(path: str | os.PathLike[str], device: Device) -> Efficiency:
    """Return what kernels reach on a device, from a calibration of it.

    Parameters
    ----------
    path : a calibration file
    device : from the catalogue, or `device_from_calibration`; fractions are turned into those of its peaks

    Returns
    -------
    the fits: measured where they were measured, those of the device's family (labelled assumed) elsewhere
    """
    calibration = read_calibration(path)
    machine = calibration.machine
    if not same_device(machine, device):
        hint = "--hardware cpu" if machine.device == "cpu" else f"the hardware entry of {machine.name}"
        raise InputError(
            f"{os.fspath(path)}: was measured on {machine.name}, not on {device.name}\n"
            f"  use it with {hint}, or calibrate on {device.name}"
        )
    family = efficiency_for(device)
    fits = {
        key: replace(fit, label="assumed", fitted_on=f"{family.device}, not measured on {machine.name}")
        for key, fit in family.fits.items()
    }
    measured = [fit for fit in calibration.fits if fit.kernel in TAKEN_KERNELS]
    taken = {fit.key for fit in measured}
    fits = {key: fit for key, fit in fits.items() if key.partition("@")[0] not in taken}
    for fit in measured:
        fits[fit.key] = _taken(fit, calibration, device, family, Path(path).name)
    note = "interrupted before all shapes were measured" if calibration.partial else ""
    return Efficiency(device=machine.name, fits=fits, label="measured", note=note)


def _taken(fit: KernelFit, calibration: Calibration, device: Device, family: Efficiency, name: str) -> Fit:
    """Return a fit as numbers of the device's peaks, with launch and router skew from where they are known."""
    numbers = {
        key: number.value * _peak_ratio(key, fit, calibration, device) for key, number in fit.numbers.items()
    }
    relative = next((f.numbers for key, f in family.fits.items() if key.startswith(f"{fit.kernel}/")), {})
    launch = next((f.numbers["launch_s"].value for f in calibration.fits if f.kernel == "launch"), None)
    if "launch_s" in relative or fit.kernel in ("matmul", "elementwise"):
        numbers["launch_s"] = relative.get("launch_s", 0.0) if launch is None else launch
    if fit.kernel == "experts":
        numbers["router_skew"] = relative.get("router_skew", 0.0)
    held = [s.held_out_median_ape for s in fit.scores.values() if s.held_out_median_ape is not None]
    return Fit(
        numbers=numbers,
        label="measured",
        rows=sum(s.points for s in fit.scores.values()),
        median_error_fraction=max(s.median_ape for s in fit.scores.values()),
        held_out_median_error_fraction=max(held, default=None),
        fitted_on=f"{name}, {calibration.machine.name}, torch {calibration.machine.torch}, {calibration.date[:10]}",
    )


def _peak_ratio(number: str, fit: KernelFit, calibration: Calibration, device: Device) -> float:
    if not number.endswith("_fraction"):
        return 1.0
    if number not in COMPUTE_FRACTIONS:
        return calibration.peaks.memory_bytes_per_s / device.memory_bytes_per_s
    seen = calibration.peaks.flop_per_s
    # attention and experts multiply in the 16-bit dtype, which a device may list under the other name
    wanted = device.peak_flop_per_s.get(fit.dtype) or device.peak_flop_per_s.get("bf16")
    best = seen.get(fit.dtype) or max(seen.values(), default=0.0)
    return best / wanted if wanted and best else 1.0
