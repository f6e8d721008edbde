"""A calibration into the record of its device: kernels of engines are replaced by their own library, or scaled, never dropped.

torch runs one library where an engine runs another. A measured kernel replaces only the fits of the same library
(`SAME_LIBRARIES`). All other fits keep their shape and are scaled by the ratio of the card to its record (`device_ratio`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from capplan.assumption import Assumption
from capplan.hardware.device import Device
from capplan.hardware.efficiency import MERGED, Efficiency, Fit
from capplan.readers.calibration.measured_fit import (
    COMPUTE_FRACTIONS,
    NETWORK,
    NOT_MEASURED,
    RELATIVE_FRACTIONS,
    DeviceRatio,
    device_ratio,
    measured_fit,
    partial_note,
)
from capplan.readers.calibration.record import Calibration, KernelFit
from capplan.readers.catalogue.efficiency import efficiency_for

SCALED_COMPUTE = COMPUTE_FRACTIONS | {"chunk_fraction"}
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
    numbers = {number: _scaled(number, value, ratio) for number, value in fit.numbers.items()}
    return replace(fit, numbers=numbers, fitted_on=f"{source}, scaled by {name} ({ratio.words})", label=label)


def _scaled(number: str, value: float, ratio: DeviceRatio) -> float:
    if number in SCALED_COMPUTE:
        return min(value * ratio.compute, max(value, 1.0))
    if number.endswith("_fraction") and number not in RELATIVE_FRACTIONS:
        return min(value * ratio.memory, max(value, 1.0))
    return value * ratio.floor if number.endswith(("_floor_s", "_step_s")) or number == "floor_s" else value


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
