"""The rates of every kernel on one device: datasheet peaks beside what was fitted."""

from dataclasses import dataclass

from capplan.errors import InputError
from capplan.hardware.device import Device
from capplan.hardware.efficiency import Efficiency, Fit, fit_of
from capplan.hardware.weight_kernel import WeightKernel, experts_kernel, matmul_kernel
from capplan.operators.attention import AttentionRates
from capplan.operators.collective import LinkRates
from capplan.operators.elementwise import ElementwiseRates
from capplan.operators.experts import ExpertRates
from capplan.operators.latent_attention import LatentAttentionRates
from capplan.operators.linear_attention import LinearAttentionRates
from capplan.operators.matmul import MatmulRates

KV_FORMATS = ("fp32", "bf16", "fp16", "fp8", "int8", "int4", "nvfp4")
"""Cache formats whose attention kernels are modelled."""


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """What one device reaches with one weight format, cache format and engine."""

    matmul: MatmulRates
    head_matmul: MatmulRates
    """For matrices that stay in 16 bit: LM head, router."""
    attention: AttentionRates
    latent_attention: LatentAttentionRates
    experts: ExpertRates
    linear_attention: LinearAttentionRates
    elementwise: ElementwiseRates
    link: LinkRates
    matmul_activation_bytes: float
    """Bytes per element of the activations that the dense kernel reads."""
    expert_activation_bytes: float
    """Bytes per element of the activations that the expert kernel reads."""
    label: str
    """measured where all numbers were fitted on this device, else assumed."""
    assumptions: tuple[str, ...] = ()
    """Kernels whose numbers were taken over from something else, in words."""


def _multiprocessors(device: Device) -> float:
    """Return the multiprocessors, or as many as an H100 has per FLOP/s where the datasheet is silent."""
    if device.multiprocessors:
        return float(device.multiprocessors)
    return 132.0


def _peak(device: Device, dtype: str) -> float:
    if dtype not in device.peak_flop_per_s:
        raise InputError(
            f"{device.name}: no peak for {dtype}\n"
            f"  known: {', '.join(sorted(device.peak_flop_per_s))}\n"
            f"  add peak_dense.{dtype} to its hardware file"
        )
    return device.peak_flop_per_s[dtype]


def matmul_rates(device: Device, kernel: WeightKernel, fit: Fit) -> MatmulRates:
    """Return the matmul record of one device and kernel.

    Parameters
    ----------
    device : as the vendor states it
    kernel : how the weight format is multiplied
    fit : its numbers

    Returns
    -------
    the record
    """
    return MatmulRates(
        flop_per_s=_peak(device, kernel.compute_dtype),
        bytes_per_s=device.memory_bytes_per_s,
        multiprocessors=_multiprocessors(device),
        l2_bytes=device.l2_bytes or 0.0,
        **fit.numbers,
    )


def link_rates(device: Device, fit: Fit) -> LinkRates:
    """Return the link record of one device; a device without a link or network talks over PCIe.

    Parameters
    ----------
    device : as the vendor states it
    fit : its numbers

    Returns
    -------
    the record
    """
    pcie_bytes_per_s = device.pcie_bytes_per_s or 32e9
    linked = device.link_bytes_per_s and device.link_domain_devices > 1
    return LinkRates(
        link_bytes_per_s=float(device.link_bytes_per_s or 0.0) if linked else pcie_bytes_per_s,
        network_bytes_per_s=device.network_bytes_per_s or min(25e9, pcie_bytes_per_s),
        domain_devices=float(device.link_domain_devices if linked else max(device.node_devices, 1)),
        **fit.numbers,
    )


def device_rates(
    device: Device,
    efficiency: Efficiency,
    *,
    weight_format: str,
    kv_format: str,
    engine: str,
    expert_format: str | None = None,
) -> DeviceRates:
    """Return what one device reaches with one weight format, cache format and engine.

    Parameters
    ----------
    device : as the vendor states it
    efficiency : fitted numbers, of this device or of its nearest relative
    weight_format : of the quantised matrices, such as fp8 or w4a16-g128
    kv_format : of the cache, such as bf16 or fp8
    engine : vllm, sglang, trtllm
    expert_format : of the routed experts, where it differs

    Returns
    -------
    one record per kernel, and where the numbers come from
    """
    if kv_format not in KV_FORMATS:
        raise InputError(f"unknown KV dtype {kv_format!r}\n  known: {', '.join(KV_FORMATS)}")
    dense = matmul_kernel(device, weight_format)
    head = matmul_kernel(device, "bf16")
    expert = experts_kernel(device, expert_format or weight_format)
    cache = ("fp8", "bf16") if kv_format in {"fp8", "int8", "int4", "nvfp4"} else ("bf16", "fp8")
    wanted = {
        "matmul": dense.formats,
        "attention": cache,
        "latent_attention": cache,
        "experts": expert.formats,
        "linear_attention": ("bf16",),
        "elementwise": ("bf16",),
        "link": ("bf16",),
    }
    fits, assumptions = {}, [efficiency.note] if efficiency.label != "measured" else []
    for kernel, formats in wanted.items():
        fits[kernel], exact = fit_of(efficiency, kernel, formats, engine)
        if not exact:
            assumptions.append(f"{kernel} in {formats[0]}: numbers of another format on {efficiency.device}")
        elif fits[kernel].label != "measured":
            assumptions.append(f"{kernel} in {formats[0]}: {fits[kernel].fitted_on}")
    wide_flop_per_s = _peak(device, head.compute_dtype)
    sheet = {"flop_per_s": wide_flop_per_s, "bytes_per_s": device.memory_bytes_per_s}
    spread = {**sheet, "multiprocessors": _multiprocessors(device)}
    expert_sheet = {**spread, "flop_per_s": _peak(device, expert.compute_dtype)}
    return DeviceRates(
        matmul=matmul_rates(device, dense, fits["matmul"]),
        head_matmul=matmul_rates(device, head, fit_of(efficiency, "matmul", head.formats, engine)[0]),
        attention=AttentionRates(**spread, **fits["attention"].numbers),
        latent_attention=LatentAttentionRates(**spread, **fits["latent_attention"].numbers),
        experts=ExpertRates(**expert_sheet, **fits["experts"].numbers),
        linear_attention=LinearAttentionRates(**sheet, **fits["linear_attention"].numbers),
        elementwise=ElementwiseRates(bytes_per_s=device.memory_bytes_per_s, **fits["elementwise"].numbers),
        link=link_rates(device, fits["link"]),
        matmul_activation_bytes=dense.activation_bytes,
        expert_activation_bytes=expert.activation_bytes,
        label="assumed" if assumptions else "measured",
        assumptions=tuple(assumptions),
    )
