"""Predicted times of timed kernels, through the same operators that every step is summed from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from capplan.accuracy.kernel_rows import BYTES, DEEPSEEK, KernelCase, kernel_case, tile_name
from capplan.hardware.device import Device
from capplan.hardware.efficiency import Efficiency, fit_of
from capplan.numbers import Number
from capplan.operators import attention, collective, latent_attention, linear_attention
from capplan.operators.device_rates import kernel_rates
from capplan.operators.experts import EXPERT_TILES, ExpertLoads, grouped_experts_time_s
from capplan.operators.matmul import elementwise_time_s, matmul_bytes, matmul_time_s
from capplan.operators.roofline import soft_maximum

Arguments = Mapping[str, Any]
EAGER_SHARPNESS = 2.0
"""p of the soft maximum of device time and launch time where kernels are launched one by one."""
L2_USABLE = 0.9
"""Share of L2 that a loop over the same operands can keep."""
L2_EDGE = 0.2
"""Share of L2 over which it goes from all to nothing."""

NEVER_S = 1e3
"""Start time of an algorithm that a library does not have."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of timing: the numbers of a record that it determines, and its predicted time."""

    numbers: tuple[str, ...]
    time_s: Callable[[Arguments, Any], Number]
    read_bytes: Callable[[Arguments], Number] | None = None
    """Bytes that a loop over the same operands could keep in L2."""


def _applied(formula: Callable[..., Any], columns: Sequence[str | float], a: Arguments, *rates: Any) -> Any:
    """Return a formula of columns by name and of numbers, with the rates of the kernel for a time."""
    return formula(*(a[column] if isinstance(column, str) else column for column in columns), *rates)


def _of(formula: Callable[..., Any], *columns: str | float) -> Callable[..., Any]:
    """Return the formula as a function of the arguments of a case."""
    return partial(_applied, formula, columns)


def _experts_s(a: Arguments, rates: Any) -> Number:
    pairs = a["tokens"] * a["experts_per_token"]
    loads = ExpertLoads(
        a["tokens"], a["routed"], a["hit"], tuple(a[tile_name(rows)] for rows, _ in EXPERT_TILES),
        a["experts"], pairs / a["experts_on_rank"], pairs,
    )  # fmt: skip
    return grouped_experts_time_s(
        loads,
        a["inputs"],
        a["intermediate_size"],
        a["gated"],
        a["weight_bytes"],
        a["activation_bytes"],
        rates,
    )


def _experts_bytes(a: Arguments) -> Number:
    matrices = a["hit"] * (2.0 + a["gated"]) * a["inputs"] * a["intermediate_size"] * a["weight_bytes"]
    rows = a["routed"] * (a["inputs"] + a["intermediate_size"]) * (a["activation_bytes"] + 2.0)
    moved: Number = matrices + rows
    return moved


def _recurrent_bytes(a: Arguments) -> Number:
    state = a["value_heads"] * a["key_head_dim"] * a["value_head_dim"] * a["state_bytes"]
    moved: Number = 2.0 * a["sequences"] * state
    return moved


def _convolution_s(a: Arguments, rates: Any) -> Number:
    # prompts of any length ran the prompt kernel in the tables, single tokens the other
    new_tokens = np.maximum(a["new_tokens"], linear_attention.UPDATE_TOKENS + 1e-6)
    return linear_attention.short_convolution_time_s(
        a["sequences"], new_tokens, a["channels"], a["taps"], rates
    )


def _nccl_s(a: Arguments, rates: Any) -> Number:
    # the kernels of engines are not in NCCL
    rates = replace(rates, one_shot_floor_s=NEVER_S, two_shot_floor_s=NEVER_S)
    ranks, message = a["ranks"], a["message_bytes"]
    operation = a["operation"]
    gather_s = collective.all_gather_time_s(ranks, message, rates)
    scatter_s = collective.reduce_scatter_time_s(ranks, message, rates)
    exchange_s = collective.all_to_all_time_s(ranks, message, rates)
    other_s = np.where(operation == 1.0, gather_s, np.where(operation == 2.0, scatter_s, exchange_s))
    return np.where(operation == 0.0, collective.all_reduce_time_s(ranks, message, rates), other_s)


def _exchange_s(floor: str, a: Arguments, rates: Any) -> Any:
    columns = ("tokens", "ranks", "experts_per_token", "inputs", "sent_bytes")
    return _applied(collective.expert_exchange_time_s, columns, a, getattr(rates, floor), rates)


_MATMUL = ("rows", "inputs", "outputs", "weight_bytes", "activation_bytes")
_HEADS = ("query_heads", "kv_heads", "head_dim", "head_dim", "window_tokens", "kv_bytes")
_DECODED = ("sequences", "context_tokens", *_HEADS)
_LATENT = ("sequences", "context_tokens", "query_heads", DEEPSEEK["kv_lora"], DEEPSEEK["rope"], "kv_bytes")
_LATENT_WIDTHS = (DEEPSEEK["kv_lora"], DEEPSEEK["rope"], DEEPSEEK["nope"], DEEPSEEK["value"])
_DELTA = ("key_heads", "value_heads", "key_head_dim", "value_head_dim", "state_bytes")
_CONVOLUTION_BYTES = _of(
    linear_attention.short_convolution_bytes, "sequences", "new_tokens", "channels", "taps"
)
_TILED = (
    "compute_fraction", "memory_fraction", "sharpness", "floor_s", "tile_edge", "start_inputs", "wave_fraction",
    "starved_exponent",
)  # fmt: skip
_PREFILL = (
    "prefill_fraction", "prefill_memory_fraction", "prefill_ramp_tokens", "prefill_tail_fraction",
    "softmax_width", "prefill_sharpness", "prefill_floor_s",
)  # fmt: skip
_DECODE = (
    "decode_fraction", "decode_compute_fraction", "decode_tail_fraction", "decode_pad_tokens",
    "decode_split_tokens", "decode_query_passes", "decode_floor_s",
)  # fmt: skip

PARTS: dict[tuple[str, str], Part] = {
    ("matmul", "matmul"): Part((*_TILED, "sustained_loss", "quantise_passes"), _of(matmul_time_s, *_MATMUL), _of(matmul_bytes, *_MATMUL)),
    ("attention", "prefill"): Part((*_PREFILL, "wide_head_exponent"), _of(attention.prefill_attention_time_s, "sequences", "new_tokens", "past_tokens", *_HEADS)),
    ("attention", "decode"): Part(_DECODE, _of(attention.decode_attention_time_s, *_DECODED), _of(attention.decode_attention_bytes, *_DECODED)),
    ("latent_attention", "prefill"): Part(
        _PREFILL, _of(latent_attention.mla_prefill_time_s, "sequences", "new_tokens", "past_tokens", "query_heads", *_LATENT_WIDTHS, "kv_bytes")
    ),
    ("latent_attention", "decode"): Part(_DECODE, _of(latent_attention.mla_attention_decode_time_s, *_LATENT), _of(latent_attention.mla_decode_bytes, *_LATENT)),
    ("latent_bmm", "bmm"): Part(("bmm_fraction", "bmm_memory_fraction", "bmm_floor_s"), _of(latent_attention.mla_bmm_time_s, "tokens", "query_heads", "inputs", "outputs", "weight_bytes")),
    ("experts", "experts"): Part((*_TILED, "routed_passes", "token_passes", "expert_s", "pair_passes"), _experts_s, _experts_bytes),
    ("linear_attention", "chunk"): Part(
        ("chunk_fraction", "chunk_memory_fraction", "chunk_state_passes", "chunk_step_s", "chunk_floor_s"),
        _of(linear_attention.gated_delta_prefill_time_s, "sequences", "new_tokens", *_DELTA),
    ),
    ("linear_attention", "recurrent"): Part(("decode_fraction", "decode_floor_s"), _of(linear_attention.gated_delta_decode_time_s, "sequences", *_DELTA), _recurrent_bytes),
    ("linear_attention", "convolution"): Part(
        ("convolution_fraction", "convolution_pad_tokens", "convolution_floor_s"), _convolution_s, _CONVOLUTION_BYTES
    ),
    ("linear_attention", "update"): Part(("update_fraction", "update_floor_s"), _of(linear_attention.short_convolution_time_s, "sequences", 1.0, "channels", "taps"), _CONVOLUTION_BYTES),
    ("elementwise", "elementwise"): Part(("memory_fraction", "floor_s"), _of(elementwise_time_s, "moved_bytes"), itemgetter("moved_bytes")),
    ("link", "nccl"): Part(
        ("ring_fraction", "ring_step_s", "ring_floor_s", "ring_ramp_bytes", "crowding_exponent", "multicast_fraction",
         "multicast_floor_s", "all_to_all_fraction", "all_to_all_step_s"), _nccl_s,
    ),
    ("link", "direct"): Part(
        ("one_shot_fraction", "one_shot_step_s", "one_shot_floor_s", "two_shot_fraction", "two_shot_step_s",
         "two_shot_floor_s", "direct_crowding_exponent"), _of(collective.all_reduce_time_s, "ranks", "message_bytes"),
    ),
    ("link", "dispatch"): Part(("exchange_fraction", "dispatch_floor_s"), partial(_exchange_s, "dispatch_floor_s")),
    ("link", "combine"): Part(("combine_floor_s",), partial(_exchange_s, "combine_floor_s")),
}  # fmt: skip
"""Kernel and part -> the numbers that its timings determine, and the operator that is timed."""


def loop_rates(rates: Any, read_bytes: Number, l2_bytes: Number, l2_ratio: Number) -> Any:
    """Return rates for a benchmark loop that hits in L2 what the iteration before has read.

    The share of a set of Q bytes that stays falls from 1 at 0.7 L2 to 0 at 0.9 L2. A serving step reads
    gigabytes between two uses of the same bytes, so this never applies to it.
    """
    kept = np.clip((L2_USABLE * l2_bytes - read_bytes) / (L2_EDGE * np.maximum(l2_bytes, 1.0)), 0.0, 1.0)
    return replace(rates, bytes_per_s=rates.bytes_per_s / (1.0 - kept * (1.0 - 1.0 / l2_ratio)))


def part_time_s(part: Part, arguments: Arguments, rates: Any, l2_bytes: Number, l2_ratio: Number) -> Number:
    """Return the time of a timed kernel inside a CUDA graph, as its benchmark loop measures it."""
    if part.read_bytes is not None:
        rates = loop_rates(rates, part.read_bytes(arguments), l2_bytes, l2_ratio)
    return part.time_s(arguments, rates)


def eager_time_s(device_s: Number, launch_s: Number) -> Number:
    """Return the time of a kernel that is launched on its own: the launch, or the kernel where that is longer."""
    return soft_maximum(device_s, launch_s, EAGER_SHARPNESS)


def module_terms(case: KernelCase, device: Device, efficiency: Efficiency) -> tuple[float, float, float]:
    """Return the times of the parts of a whole MLA layer: projections, attention, and one pass between them.

    Parameters
    ----------
    case : of a module
    device : as the vendor states it
    efficiency : its fits

    Returns
    -------
    [s], [s], [s]
        time of matmuls, time of attention, time of moving activations once
    """
    a, d = case.arguments, DEEPSEEK
    fmt = list(BYTES)[int(a["matmul_format"])]
    heads, tokens = a["query_heads"], a["sequences"] * a["new_tokens"]
    prefill = case.part == "prefill_module"
    shapes = [
        (d["hidden"], d["q_lora"] + d["kv_lora"] + d["rope"]),
        (d["q_lora"], heads * (d["nope"] + d["rope"])),
        (heads * d["value"], d["hidden"]),
    ]
    if prefill:
        shapes.append((d["kv_lora"], heads * (d["nope"] + d["value"])))
    fit, fit_format = fit_of(efficiency, "matmul", (fmt, "bf16"), case.engine)
    rates = kernel_rates("matmul", device, fit_format, fit)
    total = sum(float(matmul_time_s(tokens, k, n, *BYTES[fmt], rates)) for k, n in shapes)
    inner = "prefill" if prefill else "decode"
    bare = KernelCase(case.device, "latent_attention", case.format, case.engine, case.variant, inner, a)
    attention_s = _bare_time_s(bare, device, efficiency)
    if not prefill:
        fit, fit_format = fit_of(efficiency, "latent_attention", (case.format, "bf16"), case.engine)
        latent_rates = kernel_rates("latent_attention", device, fit_format, fit)
        for k, n in ((d["nope"], d["kv_lora"]), (d["kv_lora"], d["value"])):
            total += float(latent_attention.mla_bmm_time_s(tokens, heads, k, n, 2.0, latent_rates))
    moved = tokens * (4.0 * d["hidden"] + 4.0 * heads * (d["nope"] + d["rope"]))
    return total, attention_s, moved / device.memory_bytes_per_s


def _module_s(case: KernelCase, device: Device, efficiency: Efficiency) -> float:
    """Return the time of a whole MLA layer: its projections, its attention, and the small kernels between."""
    known_s, attention_s, pass_s = module_terms(case, device, efficiency)
    between, _ = fit_of(efficiency, "latent_module", (case.part.partition("_")[0],), case.engine)
    return known_s + attention_s + between.numbers["floor_s"] + between.numbers["passes"] * pass_s


def _bare_time_s(case: KernelCase, device: Device, efficiency: Efficiency) -> float:
    fit, fmt = efficiency.fits.get(case.key), case.format
    if fit is None:
        fit, fmt = fit_of(efficiency, case.kernel, (case.format, "fp8", "fp8_query", "bf16"), case.engine)
    rates = kernel_rates(case.kernel, device, fmt, fit)
    part = PARTS[case.kernel, case.part]
    arguments = {name: np.float64(value) for name, value in case.arguments.items()}
    seconds = part_time_s(part, arguments, rates, device.l2_bytes or 0.0, fit.loop_l2_ratio)
    return float(eager_time_s(seconds, rates.launch_s) if case.eager else seconds)


def predicted_latency(
    row: Mapping[str, Any], device: Device, efficiency: Efficiency
) -> tuple[float | None, str]:
    """Return the predicted latency of one row of a kernel table, in the unit of its latency column.

    Parameters
    ----------
    row : columns by name
    device : the catalogue's entry for the row's `gpu`, see `kernel_rows.DEVICES`
    efficiency : its fits

    Returns
    -------
    the latency and an empty reason, or None and why capplan rejects it
    """
    case = kernel_case(row)
    if isinstance(case, str):
        return None, case
    module = case.part.endswith("_module")
    seconds = (_module_s if module else _bare_time_s)(case, device, efficiency)
    return seconds / case.unit_s, ""
