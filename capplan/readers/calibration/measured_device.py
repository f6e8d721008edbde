"""What other commands take from a calibration: the measured device, and its kernel efficiencies.

Kernels of engines are replaced by their own library, or scaled, never dropped: torch runs one library where an engine runs another. A measured
kernel replaces only the fits of the same library (`SAME_LIBRARIES`). All other fits keep their shape and are scaled by the ratio of the card
to its record (`device_ratio`).
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.hardware.device import MERGED, Device, Efficiency, Fit, Source
from capplan.operators.device_rates import DeviceRatio, at_ratio
from capplan.readers.calibration.file import read_calibration, read_calibration_file, same_device
from capplan.readers.calibration.measured_fit import (
    EFFICIENCY_KERNELS,
    NETWORK,
    NOT_MEASURED,
    device_ratio,
    measured_fit,
    partial_note,
)
from capplan.readers.calibration.record import Calibration, KernelFit, Machine
from capplan.readers.catalogue.efficiency import efficiency_for

BMM = ("bmm_fraction", "bmm_memory_fraction", "bmm_floor_s")
_OF_BOTH = ("softmax_width", "wide_head_exponent")
HOPPER = ("hopper", "grace-hopper")


def _numbers_of(operator: str) -> Callable[[str], bool]:
    """Return whether a number of attention is determined by the shapes of an operator."""
    part = "prefill_" if "prefill" in operator else "decode_"
    return lambda name: name.startswith(part) or (part == "prefill_" and name in _OF_BOTH)


@dataclass(frozen=True, slots=True)
class SameLibrary:
    """A measured kernel, and the fits of the record that ran the same library."""

    fitted: str
    """Key in the calibration."""
    is_same: Callable[[str], bool]
    """Whether a key of the record is the same library."""
    library: str
    """Its name, for messages."""
    hopper_only: bool = False
    by_operator: bool = False
    """Numbers of one operator are taken only where that operator was timed."""
    numbers: tuple[str, ...] = ()
    """The numbers that the measured kernel determines; empty: all."""
    untouched: tuple[str, ...] = ()
    """Numbers that keep the value of the record."""


def _plain(*keys: str) -> Callable[[str], bool]:
    return lambda key: key in keys


SAME_LIBRARIES = (
    SameLibrary("matmul/bf16", _plain("matmul/bf16"), "cuBLAS or hipBLASLt"),
    SameLibrary("matmul/fp16", _plain("matmul/bf16"), "cuBLAS in fp16, on a card without bf16"),
    SameLibrary("matmul/fp8@vllm", _plain("matmul/fp8@vllm"), "vLLM's CUTLASS product"),
    SameLibrary("matmul/fp8_block@deep_gemm", _plain("matmul/fp8_block@vllm", "matmul/fp8_block@sglang"), "DeepGEMM", hopper_only=True),
    SameLibrary("attention/bf16@flashinfer", lambda key: key.startswith("attention/bf16@") and key.endswith(":flashinfer"), "FlashInfer", by_operator=True),
    SameLibrary("attention/fp8@flashinfer", lambda key: key.startswith("attention/fp8@") and key.endswith(":flashinfer"), "FlashInfer", by_operator=True),
    SameLibrary("attention/bf16@flash_attn_interface", _plain("attention/bf16@vllm:flash", "attention/bf16@sglang:flash"), "FlashAttention 3", hopper_only=True, by_operator=True),
    SameLibrary("latent_attention/bf16", lambda key: key.startswith("latent_attention/bf16@"), "the batched products of absorbed MLA, cuBLAS", numbers=BMM),
    SameLibrary("latent_attention/fp16", lambda key: key.startswith("latent_attention/bf16@"), "the batched products of absorbed MLA, in fp16", numbers=BMM),
    SameLibrary("latent_attention/bf16@flash_mla", _plain("latent_attention/bf16@vllm", "latent_attention/bf16@sglang"), "FlashMLA", hopper_only=True, by_operator=True),
    SameLibrary("experts/bf16@vllm", lambda key: key.startswith("experts/bf16@vllm:") and ("triton" in key or key.endswith("fused_moe")) and "trtllm" not in key, "vLLM's Triton experts"),
    SameLibrary("link/bf16", lambda key: key.startswith("link/bf16@"), "NCCL or RCCL", untouched=(*NOT_MEASURED, *NETWORK)),
)  # fmt: skip
"""Kernels that ran the same library on both sides; all others are scaled. The order decides where two measured kernels stand for one fit."""


def merged_efficiency(calibration: Calibration, device: Device, name: str, path: str) -> Efficiency:
    """Return the record of a device with what a calibration of one card says about it.

    Parameters
    ----------
    calibration : of a card
    device : its catalogue entry, or `device_from_calibration`
    name : of the file, for the source of the fits
    path : of the file, for errors

    Returns
    -------
    every fit of the record: replaced by a measurement of the same library, or scaled to the card; and what was done, in words
    """
    family = efficiency_for(device)
    ratio = device_ratio(calibration, device, family)
    fits = {
        key: scaled_fit(key, fit, ratio, name, borrowed=family.borrowed is not None)
        for key, fit in family.fits.items()
    }
    replaced: dict[str, list[str]] = {}
    for same in SAME_LIBRARIES:
        if same.fitted not in calibration.fitted or (same.hopper_only and device.architecture not in HOPPER):
            continue
        if same.fitted.endswith("/fp16") and same.fitted.replace("/fp16", "/bf16") in calibration.fitted:
            continue
        library_fit = measured_fit(same.fitted, calibration, device, family, name, path)
        for key in [key for key in fits if same.is_same(key)]:
            changed = _replaced(fits[key], library_fit, same, calibration.fitted[same.fitted])
            if changed is not None:
                fits[key] = changed
                replaced.setdefault(same.library, []).append(key)
    text = statement_of(name, ratio, family, replaced, calibration)
    statement = Assumption(text, "capplan calibrate where the libraries of the engine are installed", MERGED)
    machine = calibration.machine
    return Efficiency(machine.name, fits, note=partial_note(calibration), merged=statement)


def _replaced(fit: Fit, library_fit: Fit, same: SameLibrary, measured: KernelFit) -> Fit | None:
    """Return a fit of the record with the measured numbers of the same library; None if none of them was measured."""
    names = (
        set(library_fit.numbers) & set(fit.numbers)
        if same.numbers or same.by_operator
        else set(library_fit.numbers)
    )
    if same.numbers:
        names &= set(same.numbers) if "latent_bmm" in measured.operators else set()
    if same.by_operator:
        parts = [_numbers_of(operator) for operator in measured.operators]
        names = {name for name in names if any(part(name) for part in parts)}
    names -= set(same.untouched)
    if not names:
        return None
    numbers = {**fit.numbers, **{name: library_fit.numbers[name] for name in names}}
    if same.numbers or same.by_operator:
        source = f"{fit.fitted_on}; {same.library} from {library_fit.fitted_on}"
        return replace(fit, numbers=numbers, fitted_on=source)
    return replace(library_fit, numbers=numbers, label="measured")


def scaled_fit(key: str, fit: Fit, ratio: DeviceRatio, name: str, *, borrowed: bool) -> Fit:
    """Return a fit of the record scaled to the card that was measured.

    Parameters
    ----------
    key : of the fit; links are left as they are
    fit : of the record
    ratio : of the card to the record
    name : of the calibration file
    borrowed : whether the record is that of a relative
    """
    kernel = key.partition("/")[0]
    source = f"{fit.fitted_on}, of a related device" if borrowed else fit.fitted_on
    label = "assumed" if borrowed else fit.label
    if kernel == "link" or not ratio.shapes:
        return replace(fit, fitted_on=source, label=label)
    return replace(
        fit,
        numbers=at_ratio(fit.numbers, ratio),
        fitted_on=f"{source}, scaled by {name} ({ratio.words})",
        label=label,
    )


def statement_of(
    name: str,
    ratio: DeviceRatio,
    family: Efficiency,
    replaced: Mapping[str, list[str]],
    calibration: Calibration,
) -> str:
    """Return what a calibration changes in the record of its device, in words.

    Parameters
    ----------
    name : of the file
    ratio : of the card to the record
    family : the record
    replaced : library -> fits that it replaced
    calibration : the measurements
    """
    gone = {key for keys in replaced.values() for key in keys}
    kept = [key for key in family.fits if key not in gone and not key.startswith("link/")]
    text = f"{name}: measured and replaced: {', '.join(replaced) or 'nothing'}"
    if ratio.shapes:
        text += f"; {len(kept)} kernels of engines are kept and scaled to this card ({ratio.words}, from {ratio.shapes} matmuls)"
    else:
        text += f"; {len(kept)} kernels of engines are kept as they are: too few matmuls to compare this card with its record"
    if not any(key.startswith("link/") for key in gone):
        text += "; links were not measured"
    return text + (f"; partial: {partial_note(calibration)}" if calibration.partial else "")


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
