"""Which kernel multiplies a weight format on a device: native, or weight-only with wider arithmetic."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from capplan.errors import InputError, unknown
from capplan.hardware.device import Device

WEIGHT_FORMATS = (
    "fp32", "bf16", "fp16", "fp8", "fp8_channel", "fp8_block", "fp8_w8a16", "fp8_channel_w8a16", "mxfp8", "int8",
    "int8_tensor", "int4", "nvfp4", "nvfp4_w4a16", "mxfp4", "nf4", "nf4_double", "w8a16", "w4a16", "w8a8", "w4a8",
)  # fmt: skip
"""Weight formats whose kernels are modelled; names such as w4a16-g128 count by the part before the dash."""

_KERNEL_FORMAT = {
    "fp16": "bf16", "fp8_channel": "fp8", "fp8_w8a16": "w8a16", "fp8_channel_w8a16": "w8a16", "int8_tensor": "int8", "mxfp8": "fp8_block", "int4": "w4a16", "nvfp4_w4a16": "w4a16",
    "nf4": "w4a16", "nf4_double": "w4a16", "w8a8": "int8", "w4a8": "w4a16",
}  # fmt: skip
"""Formats that run in the kernel of another format."""


@dataclass(frozen=True, slots=True)
class WeightKernel:
    """How a weight format is multiplied."""

    compute_dtype: str
    """Key of `Device.peak_flop_per_s`."""
    activation_bytes: float
    """Bytes per element of the activations as the kernel reads them."""
    formats: tuple[str, ...]
    """Names of the fits to look for, nearest first."""


def wide_dtype(device: Device) -> str:
    """Return the dtype that a device multiplies in where a format has no arithmetic of its own.

    Parameters
    ----------
    device : as the vendor states it, or as it was measured

    Returns
    -------
    bf16 or fp16; fp32 on a processor that emulates both
    """
    names: tuple[str, ...] = ("bf16", "fp16", "fp32") if device.emulated else ("bf16", "fp16")
    for dtype in names:
        if dtype in device.peak_flop_per_s and dtype not in device.emulated:
            return dtype
    raise InputError(
        f"{device.name}: no peak for bf16 or fp16\n"
        f"  known: {', '.join(sorted(device.peak_flop_per_s))}\n"
        f"  add peak_dense.bf16 to its hardware file"
    )


def multiplies(device: Device, dtype: str) -> bool:
    """Return whether a device has units for a weight dtype of four bits with scales of blocks; other dtypes are at least widened in their kernel.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> h100 = SimpleNamespace(peak_flop_per_s={"bf16": 1e15, "fp8": 2e15})
    >>> multiplies(h100, "int4"), multiplies(h100, "nvfp4")
    (True, False)
    """
    return dtype not in {"nvfp4", "mxfp4"} or "fp4" in device.peak_flop_per_s


def wide_fit(device: Device) -> str:
    """Return the format under which fits of `wide_dtype` are kept: bf16 stands for both formats of 16 bits."""
    return "fp32" if wide_dtype(device) == "fp32" else "bf16"


def emulated_reason(device: Device, formats: Iterable[str]) -> str:
    """Return why nothing is predicted in some formats on a device, because it only emulates them; empty if it does not.

    Parameters
    ----------
    device : as it was measured
    formats : of weights or of the cache

    Examples
    --------
    >>> old = Device("cpu", "An old processor", "cpu", "cpu", 8e9, None, 2e10, {"fp32": 1e11}, 1, None, None, None, None, 1, None, 1, None, {}, emulated=("bf16", "fp16"))
    >>> emulated_reason(old, ["fp32"]), emulated_reason(old, ["bf16"])[:47]
    ('', 'An old processor only emulates bf16, which its ')
    """
    named = dict.fromkeys(name.partition("-")[0] for name in formats)
    lacking = [name for name in named if name in device.emulated]
    if not lacking:
        return ""
    wide = wide_dtype(device)
    return (
        f"{device.title} only emulates {' and '.join(lacking)}, which its calibration did not time; run the model in {wide}: "
        f"--weight-dtype {wide} and --kv-dtype {wide}"
    )


_BLOCKS = re.compile(r"(?:i?q|tq)\d.*|(?:mx|nv)fp4_gguf.*|.*\*.*")
_STATED = re.compile(r"int2|w\da(16|8|4)(-.*)?|aqlm-.*|quip-.*")


def no_kernel_reason(weight_format: str) -> str:
    """Return why nothing but the memory of a weight format is modelled; empty where its kernels are.

    Parameters
    ----------
    weight_format : name of a format, or of a mixture of GGUF files

    Examples
    --------
    >>> no_kernel_reason("w4a16-g128"), no_kernel_reason("quip-2")
    ('', 'no engine here is known to have kernels for quip-2 weights')
    """
    if weight_format.partition("-")[0] in WEIGHT_FORMATS:
        return ""
    if all(part.partition("*")[0].partition("-")[0] in WEIGHT_FORMATS for part in weight_format.split("+")):
        return "engines hold q, k and v, and gate and up, as one matrix, and load it in one format only"
    if _BLOCKS.fullmatch(weight_format):
        return (
            "engines run GGUF weights through kernels that nobody has measured here; the documentation of vLLM calls them "
            "experimental and a way to save memory"
        )
    if _STATED.fullmatch(weight_format):
        return f"no engine here is known to have kernels for {weight_format} weights"
    return ""


def _kernel_format(weight_format: str) -> str:
    """Return the format whose kernel multiplies a weight format."""
    name = weight_format.partition("-")[0]
    why = no_kernel_reason(weight_format)
    if why:
        raise InputError(
            f"weight format {weight_format}: its speed is not modelled, only its memory: {why}\n"
            f"  modelled: {', '.join(WEIGHT_FORMATS)}\n"
            "  capplan fit, model and kv-size work with it"
        )
    if name not in WEIGHT_FORMATS:
        raise unknown("weight format", weight_format, WEIGHT_FORMATS, hint="or one such as w4a16-g128")
    return _KERNEL_FORMAT.get(name, name)


def matmul_kernel(device: Device, weight_format: str) -> WeightKernel:
    """Return how dense matmuls of a weight format run on a device.

    Parameters
    ----------
    device : as the vendor states it
    weight_format : one of WEIGHT_FORMATS

    Returns
    -------
    the kernel; weight-only (16-bit arithmetic, narrow weight reads) where the device lacks the format

    Examples
    --------
    An A100 has no fp8 arithmetic: it reads one byte per weight and multiplies in bf16.

    >>> a100 = Device("a", "A", "v", "ampere", 80e9, None, 2e12, {"bf16": 312e12}, 108, None, None, None, None, 1, None, 8, None, {})
    >>> matmul_kernel(a100, "fp8").compute_dtype, matmul_kernel(a100, "fp8").formats
    ('bf16', ('w8a16', 'w4a16', 'bf16'))
    """
    name = _kernel_format(weight_format)
    if why := emulated_reason(device, [weight_format]):
        raise InputError(f"{weight_format}: {why}")
    peaks = device.peak_flop_per_s
    wide, fit = wide_dtype(device), wide_fit(device)
    if name == "fp32":
        return WeightKernel("fp32" if "fp32" in peaks else wide, 4.0, ("fp32", "bf16"))
    if name == "bf16":
        return WeightKernel(wide, 2.0, (fit,))
    activation_bytes = 4.0 if wide == "fp32" else 2.0
    if name in {"w8a16", "w4a16"}:
        narrow = ("w8a16", "w4a16") if name == "w8a16" else ("w4a16", "w8a16")
        return WeightKernel(wide, activation_bytes, (*narrow, fit))
    if name in {"fp8", "fp8_block"} and "fp8" in peaks:
        return WeightKernel("fp8", 1.0, (name, "fp8", "fp8_block", fit))
    if name == "int8" and "int8" in peaks:
        return WeightKernel("int8", 1.0, ("int8", "fp8", fit))
    if name in {"nvfp4", "mxfp4"} and "fp4" in peaks:
        return WeightKernel("fp4", 0.5625, (name, "nvfp4", "fp8_block", "fp8", fit))
    narrow = ("w8a16", "w4a16") if name in {"fp8", "fp8_block", "int8"} else ("w4a16", "w8a16")
    return WeightKernel(wide, activation_bytes, (*narrow, fit))


def experts_kernel(device: Device, weight_format: str) -> WeightKernel:
    """Return how routed experts of a weight format run on a device.

    Like dense matmuls, except that mxfp4 experts (gpt-oss) run with mxfp8 activations where the device multiplies fp4
    natively, and with 16-bit activations elsewhere.

    Parameters
    ----------
    device : as the vendor states it
    weight_format : one of WEIGHT_FORMATS

    Examples
    --------
    >>> h100 = Device("h", "H", "v", "hopper", 80e9, None, 3e12, {"bf16": 989e12}, 132, None, None, None, None, 1, None, 8, None, {})
    >>> experts_kernel(h100, "mxfp4").formats[0], experts_kernel(h100, "bf16").formats[0]
    ('w4a16_mxfp4', 'bf16')
    """
    name = _kernel_format(weight_format)
    if name == "mxfp4" and "fp4" in device.peak_flop_per_s:
        formats = ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4", "nvfp4", "fp8_block", "fp8", "bf16")
        return WeightKernel("fp8", 1.03125, formats)
    if name == "mxfp4":
        wide = wide_dtype(device)
        return WeightKernel(wide, 4.0 if wide == "fp32" else 2.0, ("w4a16_mxfp4", "w4a16", wide_fit(device)))
    return matmul_kernel(device, weight_format)
