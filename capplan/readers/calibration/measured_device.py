"""What other commands take from a calibration: the measured device, and its kernel efficiencies."""

import os
from dataclasses import replace
from pathlib import Path

from capplan.errors import InputError
from capplan.hardware.device import Device, Source
from capplan.hardware.efficiency import Efficiency
from capplan.readers.calibration.file import read_calibration, read_calibration_file, same_device
from capplan.readers.calibration.measured_fit import EFFICIENCY_KERNELS, measured_fit, partial_note
from capplan.readers.calibration.merge import merged_efficiency
from capplan.readers.calibration.record import Machine
from capplan.readers.catalogue.efficiency import efficiency_for


def refuse_other_machine(path: str | os.PathLike[str], measured: Machine, present: Machine) -> None:
    """Refuse a calibration of a machine other than this one."""
    if measured.uuid_hash != present.uuid_hash:
        raise InputError(
            f"{os.fspath(path)}: was measured on {measured.name} ({measured.uuid_hash}), and this is "
            f"{present.name} ({present.uuid_hash})\n  measure this one with: capplan calibrate -o FILE"
        )


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
    copies = [calibration.fitted.get(f"{name}/int8") for name in ("host_to_device", "device_to_host")]
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
        link="measured" if calibration.peaks.link_bytes_per_s else None,
        link_bytes_per_s=calibration.peaks.link_bytes_per_s,
        link_domain_devices=calibration.peaks.node_ranks,
        pcie_bytes_per_s=min((fit.numbers["bytes_per_s"].value for fit in copies if fit), default=None),
        node_devices=calibration.peaks.node_ranks,
        network_bytes_per_s=None,
        labels=dict.fromkeys(measured, "measured"),
        sources=(source,),
        emulated=machine.emulated,
    )


def efficiency_from_calibration(path: str | os.PathLike[str], device: Device) -> Efficiency:
    """Return the kernel efficiencies of a device, from a calibration of it.

    Parameters
    ----------
    path : a calibration file
    device : from the catalogue, or `device_from_calibration`; fractions are turned into those of its peaks

    Returns
    -------
    the fits: measured where they were measured, those of the device's family (labelled assumed) elsewhere
    """
    calibration_file = read_calibration_file(path)
    if calibration_file.kernels is None:
        return efficiency_for(device)  # host times alone: the shipped kernel efficiencies apply
    calibration = calibration_file.kernels
    machine = calibration.machine
    if not same_device(machine, device):
        hint = "--hardware cpu" if machine.device == "cpu" else f"the hardware entry of {machine.name}"
        raise InputError(
            f"{os.fspath(path)}: was measured on {machine.name}, not on {device.name}\n"
            f"  use it with {hint}, or calibrate on {device.name}"
        )
    if machine.device == "cpu":
        return torch_efficiency(path, device)
    return merged_efficiency(calibration, device, Path(path).name, os.fspath(path))


def torch_efficiency(path: str | os.PathLike[str], device: Device) -> Efficiency:
    """Return the efficiencies of torch's own kernels on the measured device.

    A processor serves with these kernels, and `--verify` runs them.

    Parameters
    ----------
    path : a calibration file
    device : the one that was measured

    Returns
    -------
    the fits: measured for kernels that were measured, those of the device's family (labelled assumed) for all others
    """
    calibration = read_calibration(path)
    family = efficiency_for(device)
    measured = [
        key for key in calibration.fitted if key.partition("/")[0] in EFFICIENCY_KERNELS and "@" not in key
    ]
    # the kernels of another device say nothing where torch's own were timed, in whatever format
    timed = {key.partition("/")[0] for key in measured}
    fits = {
        key: replace(
            fit, label="assumed", fitted_on=f"{family.device}, not measured on {calibration.machine.name}"
        )
        for key, fit in family.fits.items()
        if key.partition("/")[0] not in timed
    }
    fits |= {
        key: measured_fit(key, calibration, device, family, Path(path).name, os.fspath(path))
        for key in measured
    }
    if "bf16" in calibration.machine.emulated:  # fits of bf16 stand for 16 bits, which are fp16 here
        fits |= {key.replace("/fp16", "/bf16"): fit for key, fit in fits.items() if key.endswith("/fp16")}
    return Efficiency(device=calibration.machine.name, fits=fits, note=partial_note(calibration))
