"""Rates of every kernel on one device: datasheet peaks and fitted efficiencies."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.hardware.device import Device, Efficiency, Fit, fit_of, not_measured
from capplan.hardware.weight_kernel import (
    WeightKernel,
    emulated_reason,
    experts_kernel,
    matmul_kernel,
    no_kernel_reason,
    wide_dtype,
    wide_fit,
)
from capplan.model.weight_format import KV_FORMATS
from capplan.operators import llamacpp
from capplan.operators.attention import AttentionRates
from capplan.operators.collective import LinkRates
from capplan.operators.experts import ExpertRates
from capplan.operators.latent_attention import LatentAttentionRates
from capplan.operators.linear_attention import LinearAttentionRates
from capplan.operators.matmul import ElementwiseRates, MatmulRates


def no_speed_reason(weight_formats: Iterable[str], engine: str) -> str:
    """Return why nothing but the memory of some weight formats is modelled with an engine; empty where their kernels are.

    Examples
    --------
    >>> no_speed_reason(["q4_k"], "llamacpp"), no_speed_reason(["q4_k"], "vllm")[:27]
    ('', 'engines run GGUF weights th')
    """
    if engine == llamacpp.ENGINE:
        return ""
    return next(filter(None, map(no_kernel_reason, weight_formats)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRates:
    """Rates of the kernels that do not depend on the format of a matrix."""

    attention: AttentionRates
    latent_attention: LatentAttentionRates
    linear_attention: LinearAttentionRates
    elementwise: ElementwiseRates
    link: LinkRates


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates(SharedRates):
    """What one device achieves with one weight format, cache format and engine."""

    matmul: MatmulRates
    """Rates of matrices that stay in 16 bits: LM head, router."""
    experts: ExpertRates
    matmul_activation_bytes: float
    """Bytes per element of the activations that the dense kernel reads."""
    expert_activation_bytes: float
    """Bytes per element of the activations that the expert kernel reads."""
    assumptions: tuple[Assumption, ...]
    """One for each kernel whose efficiencies are borrowed."""


def multiprocessors(device: Device) -> float:
    """Return the multiprocessors of the device, or of an H100 where the datasheet does not say."""
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


_DTYPE_OF_FORMAT = {
    "fp32": "fp32", "fp8": "fp8", "fp8_block": "fp8", "fp8_query": "fp8", "fp8_untuned": "fp8", "w4a8_mxfp4_mxfp8": "fp8", "int8": "int8",
    "nvfp4": "fp4", "mxfp4": "fp4",
}  # fmt: skip
"""Format of a fit -> compute dtype; all others multiply in 16 bits. An fp8 cache with wider queries is
widened before it is multiplied, so attention in the format fp8 computes in 16 bits too; fp8_query does not."""

RECORDS: dict[str, Any] = {
    "matmul": MatmulRates, "attention": AttentionRates, "latent_attention": LatentAttentionRates,
    "experts": ExpertRates, "linear_attention": LinearAttentionRates, "elementwise": ElementwiseRates,
    "latent_bmm": LatentAttentionRates, "link": LinkRates,
}  # fmt: skip
"""Kernel -> the record of its rates."""


def compute_dtype(kernel: str, fmt: str, device: Device) -> str:
    """Return the dtype that a kernel multiplies in.

    Parameters
    ----------
    kernel : matmul, attention, ...
    fmt : format of its fit
    device : as the vendor states it

    Returns
    -------
    key of `Device.peak_flop_per_s`

    Examples
    --------
    An fp8 product on a device without fp8 units is one of bf16:

    >>> from types import SimpleNamespace
    >>> a100 = SimpleNamespace(architecture="ampere", peak_flop_per_s={"bf16": 312e12}, emulated=())
    >>> compute_dtype("matmul", "fp8", a100)
    'bf16'
    """
    wide = wide_dtype(device)
    if kernel in {"attention", "latent_attention"} and fmt not in {"fp8_query", "fp32"}:
        return wide
    dtype = _DTYPE_OF_FORMAT.get(fmt, wide)
    return dtype if dtype in device.peak_flop_per_s else wide


NEXT_TO_PRODUCTS = ("tile_edge", "start_inputs", "softmax_width", "sustained_loss")
"""Numbers of a fit that state what a kernel does next to its products, in the time that these take: operands from shared memory, starts and ends of tiles,
softmax, and the clock that their power costs."""
OF_PEAK = ("compute_fraction", "prefill_fraction", "decode_compute_fraction", "bmm_fraction")
"""Fractions of the arithmetic peak; every other `_fraction` is one of the memory bandwidth, but for RELATIVE_FRACTIONS."""
RELATIVE_FRACTIONS = frozenset(
    {"wave_fraction", "prefill_tail_fraction", "decode_tail_fraction", "all_to_all_fraction"}
)
"""Fractions that are not shares of a peak."""


@dataclass(frozen=True, slots=True)
class DeviceRatio:
    """How fast a device is, over the one whose fits it takes, in three numbers."""

    compute: float = 1.0
    """Arithmetic rate."""
    memory: float = 1.0
    """Memory rate."""
    floor: float = 1.0
    """Fixed cost of a kernel."""
    shapes: int = 0
    """Shapes that the ratio rests on; 0: nothing to compare, everything stays."""

    @property
    def words(self) -> str:
        """The ratio in words."""
        return f"arithmetic x {self.compute:.2f}, memory x {self.memory:.2f}, fixed costs x {self.floor:.2f}"


def at_ratio(numbers: Mapping[str, float], ratio: DeviceRatio) -> dict[str, float]:
    """Return the numbers of a fit on a device whose kernels run at a ratio of those that were timed, no fraction above 1 but one that was.

    Examples
    --------
    >>> at_ratio({"compute_fraction": 0.8, "memory_fraction": 0.9, "floor_s": 2e-6}, DeviceRatio(0.5, 1.2, 1.5))
    {'compute_fraction': 0.4, 'memory_fraction': 1.0, 'floor_s': 3e-06}
    """

    def scaled(number: str, value: float) -> float:
        if number in OF_PEAK or number == "chunk_fraction":
            return min(value * ratio.compute, max(value, 1.0))
        if number.endswith("_fraction") and number not in RELATIVE_FRACTIONS:
            return min(value * ratio.memory, max(value, 1.0))
        return (
            value * ratio.floor if number.endswith(("_floor_s", "_step_s")) or number == "floor_s" else value
        )

    return {number: scaled(number, value) for number, value in numbers.items()}


def at_pace(fits: Mapping[str, Fit], device: Device, donor: Device) -> dict[str, Fit]:
    """Return the fits of a timed device for one of its generation whose multiprocessors multiply more slowly.

        1 / f' - 1 = p (1 / f - 1),  x' = p x,  p = min(1, (P' / S') / (P / S))

    What a multiprocessor does next to the products takes as long on either device, so slower tensor cores come nearer to their peak: those of
    an H20 have 0.25 of the rate of an H200's, in the same multiprocessor. A chip with faster ones has a faster rest too: NVIDIA doubled the
    exponentials of Blackwell Ultra (https://developer.nvidia.com/blog/inside-nvidia-blackwell-ultra-the-chip-powering-the-ai-factory-era/).

    Parameters
    ----------
    fits : by kernel and format, f one of `OF_PEAK`, x one of `NEXT_TO_PRODUCTS`
    device : P', dense peak of the dtype that the kernel computes in [FLOP/s], and S', multiprocessors
    donor : P and S, of the timed device

    Returns
    -------
    the same fits with f' and x'; as they are where a datasheet does not have the dtype

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> fast, slow = (SimpleNamespace(architecture="hopper", emulated=(), multiprocessors=100, peak_flop_per_s={"bf16": peak}) for peak in (8e14, 2e14))
    >>> fit = Fit({"compute_fraction": 0.5, "tile_edge": 20.0, "memory_fraction": 0.9}, "measured", 9, 0.1, 0.1)
    >>> at_pace({"matmul/bf16@vllm": fit}, slow, fast)["matmul/bf16@vllm"].numbers
    {'compute_fraction': 0.8, 'tile_edge': 5.0, 'memory_fraction': 0.9}
    """
    found = {}
    for key, fit in fits.items():
        kernel, _, rest = key.partition("/")
        rates = [
            one.peak_flop_per_s.get(compute_dtype(kernel, rest.partition("@")[0], one), 0.0)
            / multiprocessors(one)
            for one in (device, donor)
        ]
        pace = min(1.0, rates[0] / rates[1]) if all(rates) else 1.0
        changed = {name: pace * fit.numbers[name] for name in NEXT_TO_PRODUCTS if name in fit.numbers}
        for name in OF_PEAK:
            if (fraction := fit.numbers.get(name)) is not None:
                changed[name] = 1.0 / (1.0 + pace * (1.0 / fraction - 1.0))
        found[key] = replace(fit, numbers={**fit.numbers, **changed})
    return found


def kernel_rates(kernel: str, device: Device, fmt: str, fit: Fit, dtype: str | None = None) -> Any:
    """Return the rates of one kernel: figures of the datasheet and fitted numbers.

    Parameters
    ----------
    kernel : matmul, attention, latent_attention, experts, linear_attention, elementwise, link
    device : as the vendor states it
    fmt : format of the fit
    fit : its numbers
    dtype : compute dtype, where it differs from that of the format
    """
    if kernel == "link":
        return _link_rates(device, fit)
    record = RECORDS[kernel]
    sheet = {
        "flop_per_s": _peak(device, dtype or compute_dtype(kernel, fmt, device)),
        "bytes_per_s": device.memory_bytes_per_s,
        "multiprocessors": multiprocessors(device),
    }
    names = {field.name for field in fields(record)}
    return record(**({name: value for name, value in sheet.items() if name in names} | dict(fit.numbers)))


def _link_rates(device: Device, fit: Fit) -> LinkRates:
    """Return the link rates of one device; a device without a link or network falls back to PCIe.

    Parameters
    ----------
    device : as the vendor states it
    fit : its numbers
    """
    pcie_bytes_per_s = device.pcie_bytes_per_s or 32e9
    linked = device.link_bytes_per_s and device.link_domain_devices > 1
    domain = device.link_domain_devices if linked else max(device.node_devices, 1)
    return LinkRates(
        link_bytes_per_s=float(device.link_bytes_per_s or 0.0) if linked else pcie_bytes_per_s,
        network_bytes_per_s=device.network_bytes_per_s or min(25e9, pcie_bytes_per_s),
        domain_devices=float(domain),
        ring_cards=float(domain if domain >= device.node_devices else 1),
        **fit.numbers,
    )


ELEMENTWISE_ENGINE = "vllm"
"""Engine whose quantise kernel stands in for every kernel that only moves bytes: a single launch, like fused norms and
activations; the other engines' timings cover several."""
_EITHER_FORMAT = frozenset({"attention", "latent_attention", "elementwise"})
"""Kernels for which the fit of a neighbouring format serves as well: kernels of either query dtype read an fp8 cache."""


def _cache_formats(device: Device, kv_format: str, engine: str) -> tuple[str, ...]:
    """Return the fits to look for, nearest first: vLLM keeps queries in 16 bits over an fp8 cache."""
    if engine == llamacpp.ENGINE:
        return ("bf16",)
    if kv_format == "fp32":
        return ("fp32", "bf16", "fp8")
    if kv_format not in {"fp8", "int8", "int4", "nvfp4"}:
        return ("bf16", "fp8")
    wide = wide_fit(device)
    return ("fp8", "fp8_query", wide) if engine == "vllm" else ("fp8_query", "fp8", wide)


SCALES_TIMED = frozenset({"trtllm"})
"""Engines whose fp8 matmuls were timed together with the kernel that finds the scale of their inputs. Their floor is that of a
matmul in 16 bits plus those of `scale` and `quantise`, to 1 us; checkpoints state the scale."""


def _as_served(fit: Fit, efficiency: Efficiency, engine: str, *, fused: bool) -> Fit:
    """Return the fit of fp8 matmuls without the kernels that were timed with them and do not run in serving.

    Parameters
    ----------
    fit : of the matmuls
    efficiency : of the device
    engine : vllm, sglang, trtllm
    fused : the kernel before the matmul writes quantised inputs

    Returns
    -------
    the fit without the kernel that finds the scale (2 bytes read for each input), and, where fused, without the one that
    quantises
    """
    gone = [name for name, absent in (("scale", engine in SCALES_TIMED), ("quantise", fused)) if absent]
    floor_s, passes = fit.numbers["floor_s"], fit.numbers["quantise_passes"]
    for name in gone:
        kernel = efficiency.fits.get(f"elementwise/{name}@{engine}")
        if kernel is not None:
            floor_s -= kernel.numbers["floor_s"]
            passes -= 2.0 / kernel.numbers["memory_fraction"]
    passes = 0.0 if fused else max(passes, 0.0)
    floor_s = max(floor_s, LEAST_FLOOR_S) if gone else floor_s
    return replace(fit, numbers={**fit.numbers, "floor_s": floor_s, "quantise_passes": passes})


TUNED = frozenset({("nvfp4", "trtllm")})
"""Formats and engines that try the kernels for a product when they start (`AutoTuner`, tensorrt_llm/_torch/autotuner.py), others' among them, but whose
products were timed with the first of them."""


def _as_tuned(fit: Fit, fmt: str, efficiency: Efficiency) -> Fit:
    """Return the fit of matmuls whose long products lose no more speed than under the engine that loses least: clocks are those of the device."""
    prefix = f"matmul/{fmt}@"
    losses = [of.numbers["sustained_loss"] for key, of in efficiency.fits.items() if key.startswith(prefix)]
    return replace(
        fit, numbers={**fit.numbers, "sustained_loss": min([fit.numbers["sustained_loss"], *losses])}
    )


LEAST_FLOOR_S = 1e-6
"""Least floor of any kernel that runs: start and drain, in a CUDA graph."""


def _weight_kernels(
    device: Device, weight_format: str, expert_format: str, engine: str
) -> tuple[WeightKernel, WeightKernel]:
    """Return the kernels of dense matrices and of routed experts."""
    if engine == llamacpp.ENGINE:
        return llamacpp.block_kernel(weight_format), llamacpp.block_kernel(expert_format)
    return matmul_kernel(device, weight_format), experts_kernel(device, expert_format)


def _wanted_formats(
    device: Device, dense: WeightKernel, expert: WeightKernel, kv_format: str, engine: str
) -> dict[str, tuple[str, ...]]:
    """Return the formats of the fits that each kernel looks for, nearest first."""
    cache = _cache_formats(device, kv_format, engine)
    return {
        "matmul": dense.formats,
        "attention": cache,
        "latent_attention": cache,
        "experts": expert.formats,
        "linear_attention": ("bf16",),
        "elementwise": ("quantise",) if engine == llamacpp.ENGINE else ("quantise", wide_fit(device)),
        "link": ("bf16",),
    }


def device_rates(
    device: Device,
    efficiency: Efficiency,
    *,
    weight_format: str,
    kv_format: str,
    engine: str,
    expert_format: str | None = None,
    expert_kernel: str = "",
    fuses_quantise: bool = False,
) -> DeviceRates:
    """Return what one device achieves with one weight format, cache format and engine.

    Parameters
    ----------
    device : as the vendor states it
    efficiency : fitted numbers, of this device or of its nearest relative
    weight_format : of the quantised matrices, such as fp8 or w4a16-g128
    kv_format : of the cache, such as bf16 or fp8
    engine : vllm, sglang, trtllm
    expert_format : of the routed experts, where it differs
    expert_kernel : part of the name of the kernel for routed experts; empty: the engine's default
    fuses_quantise : inputs of fp8 matmuls arrive quantised, unlike in the timings

    Returns
    -------
    one record per kernel, and the assumptions behind them
    """
    if kv_format not in KV_FORMATS:
        raise InputError(f"unknown KV dtype {kv_format!r}\n  known: {', '.join(KV_FORMATS)}")
    if why := emulated_reason(device, [kv_format]):
        raise InputError(f"KV cache in {kv_format}: {why}")
    if not efficiency.fits:
        raise InputError(efficiency.note)
    dense, expert = _weight_kernels(device, weight_format, expert_format or weight_format, engine)
    wanted = _wanted_formats(device, dense, expert, kv_format, engine)
    dtypes = dict.fromkeys(wanted, dense.compute_dtype) if engine == llamacpp.ENGINE else {}
    dtypes |= {"matmul": dense.compute_dtype, "experts": expert.compute_dtype}
    engines, named = {"elementwise": ELEMENTWISE_ENGINE}, {"experts": expert_kernel}
    rates, assumptions = {}, [line for line in (efficiency.borrowed, efficiency.merged) if line]
    for kernel, formats in wanted.items():
        fit, fmt = fit_of(efficiency, kernel, formats, engines.get(kernel, engine), named.get(kernel, ""))
        # a format of 32 bits is read in other kernels than all narrower ones
        if fmt != formats[0] and (kernel not in _EITHER_FORMAT or formats[0] == "fp32"):
            other = f"{kernel} in {formats[0]}: efficiencies of {fmt} on {efficiency.device}"
            assumptions.append(not_measured(other))
        elif fit.label != "measured":
            assumptions.append(not_measured(f"{kernel} in {fmt}: {fit.fitted_on}"))
        if (kernel, fmt) == ("matmul", "fp8"):
            fit = _as_served(fit, efficiency, engine, fused=fuses_quantise)
        if kernel == "matmul" and (fmt, engine) in TUNED:
            fit = _as_tuned(fit, fmt, efficiency)
        rates[kernel] = kernel_rates(kernel, device, fmt, fit, dtypes.get(kernel))
    return DeviceRates(
        **rates,
        matmul_activation_bytes=dense.activation_bytes,
        expert_activation_bytes=expert.activation_bytes,
        assumptions=tuple(assumptions),
    )
