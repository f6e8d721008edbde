"""What other commands take from a calibration: the measured device, and its kernel efficiencies."""

import math
import os
from dataclasses import MISSING, fields, replace
from pathlib import Path

from capplan.errors import InputError
from capplan.hardware.device import Device, Source
from capplan.hardware.efficiency import Efficiency, Fit
from capplan.operators.device_rates import RECORDS
from capplan.operators.roofline import TILES
from capplan.readers.calibration.file import read_calibration, read_calibration_file
from capplan.readers.calibration.record import Calibration, Machine
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device

MEMORY_TOLERANCE_FRACTION = 0.12
"""Nominal and reported memory of one device differ by less than this."""

COMPUTE_FRACTIONS = frozenset(
    {"compute_fraction", "prefill_fraction", "decode_compute_fraction", "bmm_fraction"}
)
"""Fractions of the arithmetic peak; every other `_fraction` is one of the memory bandwidth."""
TAKEN_KERNELS = frozenset({"matmul", "attention", "latent_attention", "experts", "elementwise", "link"})
"""Kernels of efficiency records; launches and copies are shown, and used only where stated."""
NOT_MEASURED = (
    "launch_s", "router_skew", "quantise_passes", "one_shot_fraction", "one_shot_step_s", "one_shot_floor_s",
    "two_shot_fraction", "two_shot_step_s", "two_shot_floor_s", "direct_crowding_exponent", "exchange_fraction",
    "dispatch_floor_s", "combine_floor_s",
)  # fmt: skip
"""Numbers that the benchmarks leave out: uneven routers, quantisation before a matmul, kernels specific to engines."""
NETWORK = ("network_fraction", "network_step_s")
"""Numbers that need ranks on several machines."""
LINK_FRACTIONS = frozenset({"ring_fraction", "multicast_fraction"})
"""Fractions of the link between devices."""
RELATIVE_FRACTIONS = frozenset(
    {"wave_fraction", "prefill_tail_fraction", "decode_tail_fraction", "all_to_all_fraction"}
)
"""Fractions that are not shares of a peak."""
SHEET = frozenset(
    {"flop_per_s", "bytes_per_s", "multiprocessors", "l2_bytes"}
    | {"link_bytes_per_s", "network_bytes_per_s", "domain_devices"}
)
"""Numbers of a kernel that come from the datasheet, or from the best rate seen."""
MEASURED_NAMES = ("cpu", "measured")
"""Names for the device of a calibration, which need not be in the catalogue."""
_FORM_FACTORS = ("pcie", "nvl")


def tile_row_halvings(machine: Machine, dtype: str) -> float:
    """Return how often the rows of the tiles of `operators` are halved to be those of a machine.

    Examples
    --------
    >>> cpu = Machine("cpu", "a processor", "0" * 12, None, None, "2", 1, 1e9, 1, 1e6, tile_rows={"bf16": 16.0})
    >>> tile_row_halvings(cpu, "bf16"), tile_row_halvings(cpu, "fp32")
    (2.0, 0.0)
    """
    rows = machine.tile_rows.get(dtype)
    return math.log2(TILES[0][0] / rows) if rows else 0.0


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


def refuse_other_machine(path: str | os.PathLike[str], measured: Machine, present: Machine) -> None:
    """Refuse a calibration of a machine other than this one."""
    if measured.uuid_hash != present.uuid_hash:
        raise InputError(
            f"{os.fspath(path)}: was measured on {measured.name} ({measured.uuid_hash}), and this is "
            f"{present.name} ({present.uuid_hash})\n  measure this one with: capplan calibrate -o FILE"
        )


def named_device(hardware: str, calibration: str | os.PathLike[str] | None) -> Device:
    """Return the device of the catalogue, or the one that a calibration measured where it is called `cpu`.

    Parameters
    ----------
    hardware : name or path; cpu (or measured) means the device of the calibration
    calibration : file, if any

    Returns
    -------
    the device
    """
    if hardware.lower() in MEASURED_NAMES:
        if calibration is None:
            raise InputError(
                f"hardware {hardware!r} is known from a calibration only\n"
                "  measure it: capplan calibrate --device cpu -o cpu.calibration.yaml, then give it with --calibration"
            )
        return device_from_calibration(calibration)
    return device(hardware)


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
    family = efficiency_for(device)
    fits = {
        key: replace(fit, label="assumed", fitted_on=f"{family.device}, not measured on {machine.name}")
        for key, fit in family.fits.items()
    }
    measured = [key for key in calibration.fitted if key.partition("/")[0] in TAKEN_KERNELS]
    fits = {key: fit for key, fit in fits.items() if key.partition("@")[0] not in measured}
    for key in measured:
        fits[key] = _taken(key, calibration, device, family, Path(path).name)
        _refuse_other_numbers(f"{os.fspath(path)}: fitted.{key}.numbers", key.partition("/")[0], fits[key])
    note = "interrupted before all shapes were measured" if calibration.partial else ""
    return Efficiency(device=machine.name, fits=fits, note=note)


def _taken(fitted: str, calibration: Calibration, device: Device, family: Efficiency, name: str) -> Fit:
    """Return a fit as numbers of the device's peaks, with what is not measured from the device's family."""
    fit = calibration.fitted[fitted]
    kernel, _, dtype = fitted.partition("/")
    numbers = {
        key: number.value * _peak_ratio(key, kernel, dtype, calibration, device)
        for key, number in fit.numbers.items()
    }
    relatives = [f.numbers for key, f in family.fits.items() if key.partition("@")[0] == fitted]
    relatives += [f.numbers for key, f in family.fits.items() if key.startswith(f"{kernel}/")]
    near = relatives[0] if relatives else {}
    unseen = [*NOT_MEASURED, *(NETWORK if calibration.peaks.ranks == calibration.peaks.node_ranks else ())]
    numbers |= {key: near[key] for key in unseen if key in near}
    if kernel == "matmul":
        numbers["tile_row_halvings"] = tile_row_halvings(calibration.machine, dtype)
    launch = next((f for key, f in calibration.fitted.items() if key.startswith("launch/")), None)
    if "launch_s" in near and launch is not None:
        numbers["launch_s"] = launch.numbers["launch_s"].value
    scores = fit.operators.values()
    held = [score.held_out_median_ape for score in scores if score.held_out_median_ape is not None]
    return Fit(
        numbers=numbers,
        label="measured",
        rows=sum(score.points for score in scores),
        median_error_fraction=max(score.median_ape for score in scores),
        held_out_median_error_fraction=max(held, default=None),
        fitted_on=f"{name}, {calibration.machine.name}, torch {calibration.machine.torch}, {calibration.date[:10]}",
    )


def _refuse_other_numbers(place: str, kernel: str, fit: Fit) -> None:
    """Refuse a fit whose numbers are not those that this version of capplan prices the kernel with."""
    known = {f.name: f.default is MISSING for f in fields(RECORDS[kernel]) if f.name not in SHEET}
    missing = [name for name, is_needed in known.items() if is_needed and name not in fit.numbers]
    odd = [name for name in fit.numbers if name not in known]
    if missing or odd:
        why = f"{missing[0]} is missing" if missing else f"{odd[0]} is not known"
        raise InputError(
            f"{place}: {why}\n  known: {', '.join(known)}\n"
            "  another version of capplan fitted them; measure again with: capplan calibrate -o FILE"
        )


def _peak_ratio(number: str, kernel: str, dtype: str, calibration: Calibration, device: Device) -> float:
    if not number.endswith("_fraction") or number in RELATIVE_FRACTIONS:
        return 1.0
    if kernel == "link":
        link = device.link_bytes_per_s or device.pcie_bytes_per_s
        link_rate = calibration.peaks.link_bytes_per_s
        return link_rate / link if link_rate and link and number in LINK_FRACTIONS else 1.0
    if number not in COMPUTE_FRACTIONS:
        return calibration.peaks.memory_bytes_per_s / device.memory_bytes_per_s
    seen = calibration.peaks.flop_per_s
    # attention and experts multiply in the 16-bit dtype, which a device may list under the other name
    wanted = device.peak_flop_per_s.get(dtype) or device.peak_flop_per_s.get("bf16")
    best = seen.get(dtype) or max(seen.values(), default=0.0)
    return best / wanted if wanted and best else 1.0
