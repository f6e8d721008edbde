"""Rows of kernel timings, predicted through the same operators that every step is summed from.

A timing of experts is of the rank with the most tokens; five draws of a power law were averaged.

Columns are those of the published kernel tables (AIConfigurator's names): family, op or op_name, dtype,
kv_dtype, backend, kernel and the shape. A row that is not modelled gives a reason instead.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np

from capplan.hardware.device import Device, Efficiency, fit_of
from capplan.numbers import Array, Number
from capplan.operators import attention, collective, latent_attention, linear_attention
from capplan.operators.device_rates import kernel_rates
from capplan.operators.experts import EXPERT_TILES, ExpertLoads, grouped_experts_time_s
from capplan.operators.matmul import elementwise_time_s, matmul_bytes, matmul_time_s
from capplan.operators.roofline import soft_maximum

POWER_LAWS = {"power_law_1.01": 1.01, "power_law_1.2": 1.2}
"""Router of a timing -> exponent of the density of popularities."""
LARGEST_POPULARITY = 0.8
"""Step of the quantiles of the power laws, in tokens; at least one token."""
FEW = (0.01, 2.0)
"""Least and largest popularity where there are fewer choices than experts."""
DRAWS = 5


def _even_counts(tokens: int, experts: int, experts_per_token: int) -> Array:
    """Return the tokens of each expert where consecutive tokens take consecutive experts."""
    stride = -(-experts // experts_per_token)
    first = np.arange(tokens, dtype=np.float64)[:, None]
    if tokens < stride:
        first = first * stride / tokens
    chosen = np.floor(first + stride * np.arange(experts_per_token)).astype(np.int64) % experts
    return np.bincount(chosen.ravel(), minlength=experts).astype(np.float64)


def _uneven_counts(tokens: int, experts_per_token: int, exponent: float, quantiles: Array) -> Array:
    """Return the tokens of each expert for popularities at these quantiles (ranks, experts) of the power law.

    The remainder of rounding goes to the ranks in turn, to their experts with the fewest tokens.
    """
    choices = tokens * experts_per_token
    low, high = (1.0, LARGEST_POPULARITY * tokens) if choices > quantiles.size else FEW
    power = 1.0 - exponent
    popularity = (low**power + quantiles * (high**power - low**power)) ** (1.0 / power)
    counts = np.minimum(np.round(popularity / popularity.sum() * choices), tokens)
    in_turn = np.arange(counts.size) % counts.shape[0]
    while (missing := int(choices - counts.sum())) != 0:
        sign = np.sign(missing)
        place = np.argsort(sign * counts, axis=1, kind="stable").T.ravel()
        taken = counts[in_turn, place]
        (able,) = (taken < tokens if missing > 0 else taken > 0).nonzero()
        turn = able[: abs(missing)]
        counts[in_turn[turn], place[turn]] += sign
    return np.asarray(counts, dtype=np.float64)


@lru_cache(maxsize=20000)
def rank_load(
    tokens: int, experts: int, experts_per_token: int, ranks: int, router: str
) -> tuple[float, float, tuple[float, ...]]:
    """Return the mean load of the timed rank.

    Parameters
    ----------
    tokens : routed in the whole group [-]
    experts : of the layer [-]
    experts_per_token : chosen by the router [-]
    ranks : that hold the experts [-]
    router : balanced, power_law_1.01, power_law_1.2

    Returns
    -------
    tokens, one for each expert that a token chose; experts that get a token; tiles that the rows of all experts fill, by tile of `EXPERT_TILES`

    Examples
    --------
    >>> rank_load(64, 8, 2, 1, "balanced")
    (128.0, 8.0, (16.0, 8.0, 8.0, 8.0, 8.0))
    """
    random = np.random.default_rng(0)
    if router in POWER_LAWS:
        quantiles = (np.arange(experts) + 0.5) / experts
        drawn = [random.permutation(quantiles).reshape(ranks, -1) for _ in range(DRAWS if ranks > 1 else 1)]
        per_draw = [
            max(_uneven_counts(tokens, experts_per_token, POWER_LAWS[router], each), key=np.sum)
            for each in drawn
        ]
    else:
        per_draw = [_even_counts(tokens, experts, experts_per_token).reshape(ranks, -1)[0]]
    return (
        float(np.mean([counts.sum() for counts in per_draw])),
        float(np.mean([(counts > 0).sum() for counts in per_draw])),
        tuple(
            float(np.mean([np.ceil(counts / rows).sum() for counts in per_draw])) for rows, _ in EXPERT_TILES
        ),
    )


DEVICES = {
    "a100_sxm": "a100-sxm-80gb", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200",
    "gb200": "gb200", "l40s": "l40s",
}  # fmt: skip
"""Device names of the tables -> catalogue names, which any other row uses itself."""

FORMATS = {
    "bfloat16": "bf16", "half": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4",
    "int4_wo": "w4a16", "int8_wo": "w8a16", "sq": "int8", "w4a16_mxfp4": "w4a16_mxfp4",
    "w4a8_mxfp4_mxfp8": "w4a8_mxfp4_mxfp8", "default": "bf16", "fp4": "nvfp4",
}  # fmt: skip

BYTES = {
    "bf16": (2.0, 2.0), "fp8": (1.0, 1.0), "fp8_block": (1.0, 1.0), "nvfp4": (0.5625, 0.5625), "int8": (1.0, 1.0),
    "w4a16": (0.515625, 2.0), "w8a16": (1.0, 2.0), "w4a16_plugin": (0.515625, 2.0), "w8a16_plugin": (1.0, 2.0), "w4a16_mxfp4": (0.53125, 2.0),
    "w4a8_mxfp4_mxfp8": (0.53125, 1.03125), "fp8_untuned": (1.0, 1.0),
}  # fmt: skip
"""Format -> bytes per element of weights (scales included) and of activations."""

ATTENTION_VARIANTS = {
    "vllm_flash_attn": "flash", "vllm_flash_attn_fa2": "flash", "vllm_flash_attn_fa3": "flash", "fa3": "flash",
    "vllm_flash_attn_fa4": "fa4", "flash_attention": "flash", "triton": "triton", "vllm_triton_attn": "triton",
    "torch_flow": "own", "torch_flow_flashinfer": "flashinfer", "flashinfer": "flashinfer", "trtllm_mha": "trtllm",
    "vllm_flashinfer_trtllmprefill": "trtllm", "vllm_flashinfer_trtllmdecode": "trtllm",
    "vllm_flashinfer_fiprefill": "flashinfer", "vllm_flashinfer_fidecode": "flashinfer",
}  # fmt: skip

LARGEST_GROUP = 32.0
"""Query heads of one KV head that TensorRT-LLM decodes together; beyond them it reads the cache for every head."""

DEEPSEEK = {"hidden": 7168.0, "q_lora": 1536.0, "kv_lora": 512.0, "rope": 64.0, "nope": 128.0, "value": 128.0}
"""Widths of the MLA layers that were timed (DeepSeek-V3, arXiv:2412.19437, section 4.2)."""


ABSORBED_PROMPTS = frozenset(product(("sglang",), ("h100_sxm", "h200_sxm")))
"""Engines and devices whose prompts were timed with keys and values folded into the latent, 3.4 times the arithmetic. The engine computes a prompt so only
behind cached tokens (`forward_batch_info` and `dispatch_attn_forward_method` of sglang, models/deepseek_v2.py); else it expands keys and values and
runs FlashAttention 3."""


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One timing as a call: the fit it needs, and the arguments."""

    device: str
    """Catalogue name."""
    kernel: str
    format: str
    engine: str
    """Empty where engines share the kernel."""
    variant: str
    """One of several kernels of an engine; empty for the only one."""
    part: str
    """Which numbers of the record the timing determines; see `accuracy.kernels.PARTS`."""
    arguments: Mapping[str, float]
    eager: bool = False
    """Timed outside a CUDA graph."""
    unit_s: float = 1e-6
    """Seconds of one unit of the latency column."""

    @property
    def key(self) -> str:
        """Name of the fit."""
        engine = f"@{self.engine}" if self.engine else ""
        return f"{self.kernel}/{self.format}{engine}{':' + self.variant if self.variant else ''}"


def _number(row: Mapping[str, Any], name: str, default: float = math.nan) -> float:
    """Return a number of a row, the default where it is empty."""
    value = row.get(name)
    if value is None or value == "":
        return default
    number = float(value)
    return default if math.isnan(number) else number


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    empty = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if empty else str(value)


def _case(row: Mapping[str, Any], kernel: str, fmt: str, part: str, **arguments: float) -> KernelCase:
    return KernelCase(
        DEVICES.get(_text(row, "gpu"), _text(row, "gpu")),
        kernel,
        fmt,
        _text(row, "backend"),
        "",
        part,
        arguments,
    )


def _matmul(row: Mapping[str, Any]) -> KernelCase | str:
    fmt = FORMATS.get(_text(row, "dtype"), "")
    if fmt in {"w4a16", "w8a16"}:
        fmt += (
            "_plugin"  # TensorRT's plugin and torchao, not the Marlin kernels that serve such weights today
        )
    if fmt not in BYTES:
        return f"matmul in {_text(row, 'dtype')} is not modelled"
    weight, activation = BYTES[fmt]
    case = _case(
        row, "matmul", fmt, "matmul", rows=_number(row, "m"), inputs=_number(row, "k"), outputs=_number(row, "n"),
        weight_bytes=weight, activation_bytes=activation,
    )  # fmt: skip
    if fmt == "bf16":
        return replace(case, engine="")
    eager = fmt == "fp8_block" and case.engine == "vllm"
    variant = "flashinfer" if _text(row, "kernel").startswith("FlashInferFp8") else ""
    return replace(case, eager=eager, variant=variant)


def _attention_format(row: Mapping[str, Any]) -> str:
    if _text(row, "dtype") == "fp8":
        return "fp8_query"
    return "fp8" if _text(row, "kv_dtype") == "fp8" else "bf16"


def _attention(row: Mapping[str, Any]) -> KernelCase | str:
    prefill = _text(row, "family") in {"attention_context", "context_attention"}
    fmt, kernel = _attention_format(row), _text(row, "kernel")
    variant = ATTENTION_VARIANTS.get(kernel, kernel)
    if prefill and kernel in {"vllm_flashinfer_trtllmdecode", "vllm_flashinfer_fidecode"}:
        variant += "-mixed"
    head_dim, heads = _number(row, "head_dim", 128.0), _number(row, "num_heads")
    if (
        not prefill
        and variant == "own"
        and heads > LARGEST_GROUP * (_number(row, "num_kv_heads", 0.0) or heads)
    ):
        variant += "-ungrouped"
    shape = {
        "sequences": _number(row, "batch"),
        "query_heads": heads,
        "kv_heads": _number(row, "num_kv_heads", 0.0) or heads,
        "head_dim": head_dim,
        "window_tokens": _number(row, "window_size", 0.0) or math.inf,
        "kv_bytes": 2.0 if fmt == "bf16" else 1.0,
    }
    if prefill:
        shape["new_tokens"] = _number(row, "query_tokens", _number(row, "seq"))
        shape["past_tokens"] = _number(row, "past_tokens", 0.0)
    else:
        shape["context_tokens"] = _number(row, "past_tokens", _number(row, "seq") - 1.0) + 1.0
    case = _case(row, "attention", fmt, "prefill" if prefill else "decode", **shape)
    return replace(case, variant=variant)


def _latent(row: Mapping[str, Any]) -> KernelCase | str:
    operation = _text(row, "op_name")
    prefill, module = "context" in operation, operation.endswith("module")
    fmt, kernel = _attention_format(row), _text(row, "kernel")
    variant = "" if kernel in {"default", "flash_attention", "trtllm_mla"} else kernel.lower()
    new, past = _number(row, "query_tokens", 1.0), _number(row, "past_tokens", 0.0)
    shape = {
        "sequences": _number(row, "batch"),
        "new_tokens": new,
        "past_tokens": past if prefill else 0.0,
        "context_tokens": past + new,
        "query_heads": _number(row, "num_heads"),
        "kv_bytes": 2.0 if fmt == "bf16" else 1.0,
    }
    part = (
        ("prefill" if prefill else "decode")
        if not module
        else ("prefill_module" if prefill else "decode_module")
    )
    if module:
        gemm = FORMATS.get(_text(row, "gemm_type"), "bf16")
        shape["matmul_format"] = float(list(BYTES).index(gemm))
    if part == "prefill" and (_text(row, "backend"), _text(row, "gpu")) in ABSORBED_PROMPTS:
        part = "prefill_absorbed"
    return replace(_case(row, "latent_attention", fmt, part, **shape), variant=variant)


def _bmm(row: Mapping[str, Any]) -> KernelCase | str:
    before = _text(row, "op_name") == "mla_gen_pre"
    fmt = "fp8" if _text(row, "dtype") == "fp8" else "bf16"
    return _case(
        row, "latent_bmm", fmt, "bmm", tokens=_number(row, "num_tokens"), query_heads=_number(row, "num_heads"),
        inputs=DEEPSEEK["nope"] if before else DEEPSEEK["kv_lora"],
        outputs=DEEPSEEK["kv_lora"] if before else DEEPSEEK["value"], weight_bytes=1.0 if fmt == "fp8" else 2.0,
    )  # fmt: skip


UNTUNED = {"vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts"}
"""Kernels that were timed without the tuning that engines ship: a quarter of the bandwidth or less."""


def tile_name(rows: float) -> str:
    """Return the name of the argument with the number of tiles of this many rows."""
    return f"tiles_of_{rows:.0f}"


def _experts(row: Mapping[str, Any]) -> KernelCase | str:
    fmt = FORMATS.get(_text(row, "dtype"), "")
    if fmt not in BYTES:
        return f"experts in {_text(row, 'dtype')} are not modelled"
    kernel = _text(row, "kernel").replace("_situ_as_silu", "")
    if fmt == "w4a16_mxfp4" and kernel == "sglang_fused_moe_triton":
        fmt = (
            "bf16"  # the weights were widened before: four times the bytes, and the numbers of 16-bit weights
        )
    if fmt == "fp8" and kernel in UNTUNED:
        fmt = "fp8_untuned"
    weight, activation = BYTES[fmt]
    ranks, router = _number(row, "moe_ep_size", 1.0), _text(row, "distribution")
    if router != "balanced" and router not in POWER_LAWS:
        return f"router distribution {router!r} is not modelled"
    tokens, experts, chosen = (_number(row, name) for name in ("num_tokens", "num_experts", "topk"))
    routed, hit, row_tiles = rank_load(int(tokens), int(experts), int(chosen), int(ranks), router)
    tiles = {tile_name(rows): count for (rows, _), count in zip(EXPERT_TILES, row_tiles, strict=True)}
    case = _case(
        row, "experts", fmt, "experts", tokens=tokens, experts=experts, experts_on_rank=experts / ranks,
        experts_per_token=chosen, routed=routed, hit=hit, **tiles, inputs=_number(row, "hidden_size"),
        intermediate_size=_number(row, "inter_size") / _number(row, "moe_tp_size", 1.0),
        gated=0.0 if kernel.endswith("nongated") else 1.0, weight_bytes=weight, activation_bytes=activation,
    )  # fmt: skip
    return replace(case, variant=kernel.removeprefix(f"{case.engine}_").lower())


def _linear(row: Mapping[str, Any]) -> KernelCase | str:
    kernel, mamba = _text(row, "kernel"), _text(row, "op_name") == "mamba2"
    if mamba:
        groups = _number(row, "n_groups") * _number(row, "d_state")
        channels = _number(row, "nheads") * _number(row, "head_dim") + 2.0 * groups
    else:
        keys = _number(row, "num_k_heads") * _number(row, "head_k_dim")
        channels = 2.0 * keys + _number(row, "num_v_heads") * _number(row, "head_v_dim")
        if _text(row, "backend") == "trtllm":
            channels = (
                keys  # its times do not change with the value heads: one third of the convolution was timed
            )
    parts = {"causal_conv1d_fn": "convolution", "causal_conv1d_update": "update"}
    part = parts.get(kernel, "recurrent" if kernel.startswith("fused_recurrent") else "chunk")
    case = _case(
        row, "linear_attention", "bf16", part, sequences=_number(row, "batch"), new_tokens=_number(row, "seq_len"),
        channels=channels, taps=_number(row, "d_conv", 4.0), key_heads=_number(row, "num_k_heads", 0.0),
        value_heads=_number(row, "num_v_heads", 0.0), key_head_dim=_number(row, "head_k_dim", 0.0),
        value_head_dim=_number(row, "head_v_dim", 0.0),
        state_bytes=2.0 if _text(row, "backend") == "trtllm" else 4.0,
    )  # fmt: skip
    return replace(case, variant="triton" if kernel.endswith("_triton") else "")


def _quantise(row: Mapping[str, Any]) -> KernelCase | str:
    operation, engine = _text(row, "op_name"), _text(row, "backend")
    if operation == "compute_scale" and engine != "trtllm":
        return "not a timing but the difference of two, mostly below its noise"
    fmt = "scale" if operation == "compute_scale" else "quantise"
    written = 0.0 if fmt == "scale" else 1.0
    moved = _number(row, "m") * _number(row, "k") * (2.0 + written)
    return _case(row, "elementwise", fmt, "elementwise", moved_bytes=moved)


_COLLECTIVES = {
    "all_reduce": "all_reduce", "nccl_all_reduce": "all_reduce", "custom_all_reduce": "all_reduce",
    "all_gather": "all_gather", "nccl_all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "nccl_alltoall": "all_to_all",
}  # fmt: skip


def _collective(row: Mapping[str, Any]) -> KernelCase | str:
    operation = _text(row, "op_name") or _text(row, "op")
    kernel = _text(row, "kernel")
    if operation == "moe_a2a":
        sent = {"fp8": 1.0, "nvfp4": 0.5625, "fp4": 0.5625}.get(_text(row, "dtype"), 2.0)
        dispatch = _text(row, "phase") == "dispatch"
        case = _case(
            row, "link", "bf16", "dispatch" if dispatch else "combine", tokens=_number(row, "num_tokens"),
            ranks=_number(row, "ep_size"), experts_per_token=_number(row, "topk"),
            inputs=_number(row, "hidden_size"), sent_bytes=sent if dispatch else 2.0,
        )  # fmt: skip
        return replace(case, unit_s=1e-9)
    if operation not in _COLLECTIVES:
        return f"collective {operation!r} is not modelled"
    message = _number(row, "message_bytes")
    if _text(row, "backend") == "nccl" and _text(row, "dtype") == "int8":
        message /= 2.0  # the column counts two bytes for every element, whatever its type
    name = _COLLECTIVES[operation]
    part = "nccl" if _text(row, "backend") == "nccl" else "direct"
    case = _case(row, "link", "bf16", part, ranks=_number(row, "num_gpus"), message_bytes=message,
                 operation=float(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"].index(name)))  # fmt: skip
    if part == "nccl":
        return replace(case, engine="nccl")
    return replace(
        case,
        engine="trtllm" if kernel in {"TRTLLM", "all_reduce"} else case.engine,
        eager=kernel.endswith("eager"),
    )


_READERS: dict[str, Callable[[Mapping[str, Any]], KernelCase | str]] = {
    "gemm": _matmul, "attention_context": _attention, "attention_decode": _attention,
    "context_attention": _attention, "generation_attention": _attention, "moe": _experts, "mla": _latent,
    "mla_bmm": _bmm, "linear_attention": _linear, "quantize": _quantise, "comm": _collective,
}  # fmt: skip


def kernel_case(row: Mapping[str, Any]) -> KernelCase | str:
    """Return the kernel call that a row of a kernel table timed, or why it is not modelled.

    Parameters
    ----------
    row : columns by name, as a CSV reader gives them

    Examples
    --------
    >>> row = {"gpu": "h100_sxm", "family": "gemm", "dtype": "fp8", "backend": "vllm", "m": 8, "n": 4096, "k": 64}
    >>> kernel_case(row).key
    'matmul/fp8@vllm'
    """
    reader = _READERS.get(_text(row, "family"))
    if reader is None:
        return f"family {_text(row, 'family')!r} is not modelled"
    return reader(row)


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


def of_columns(formula: Callable[..., Any], *columns: str | float) -> Callable[..., Any]:
    """Return a formula as a function of arguments by name, and of rates for a time; numbers among the columns stand for themselves."""
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
_ABSORBED_WIDTHS = (DEEPSEEK["kv_lora"], DEEPSEEK["rope"], DEEPSEEK["kv_lora"], DEEPSEEK["kv_lora"])
_DELTA = ("key_heads", "value_heads", "key_head_dim", "value_head_dim", "state_bytes")
_CONVOLUTION_BYTES = of_columns(
    linear_attention.short_convolution_bytes, "sequences", "new_tokens", "channels", "taps"
)
_TILED = (
    "compute_fraction", "memory_fraction", "sharpness", "floor_s", "tile_edge", "start_inputs", "wave_fraction",
    "starved_exponent",
)  # fmt: skip
PROMPT_NUMBERS = (
    "prefill_fraction", "prefill_memory_fraction", "prefill_ramp_tokens", "prefill_tail_fraction",
    "softmax_width", "prefill_sharpness", "prefill_floor_s",
)  # fmt: skip
"""Numbers of a fit that attention over prompts is computed with."""
_DECODE = (
    "decode_fraction", "decode_compute_fraction", "decode_tail_fraction", "decode_pad_tokens",
    "decode_split_tokens", "decode_query_passes", "decode_floor_s",
)  # fmt: skip

PARTS: dict[tuple[str, str], Part] = {
    ("matmul", "matmul"): Part((*_TILED, "sustained_loss", "quantise_passes"), of_columns(matmul_time_s, *_MATMUL), of_columns(matmul_bytes, *_MATMUL)),
    ("attention", "prefill"): Part((*PROMPT_NUMBERS, "wide_head_exponent"), of_columns(attention.prefill_attention_time_s, "sequences", "new_tokens", "past_tokens", *_HEADS)),
    ("attention", "decode"): Part(_DECODE, of_columns(attention.decode_attention_time_s, *_DECODED), of_columns(attention.decode_attention_bytes, *_DECODED)),
    ("latent_attention", "prefill"): Part(
        PROMPT_NUMBERS, of_columns(latent_attention.mla_prefill_time_s, "sequences", "new_tokens", "past_tokens", "query_heads", *_LATENT_WIDTHS, "kv_bytes")
    ),
    ("latent_attention", "prefill_absorbed"): Part(
        PROMPT_NUMBERS, of_columns(latent_attention.mla_prefill_time_s, "sequences", "new_tokens", "past_tokens", "query_heads", *_ABSORBED_WIDTHS, "kv_bytes")
    ),
    ("latent_attention", "decode"): Part(_DECODE, of_columns(latent_attention.mla_attention_decode_time_s, *_LATENT), of_columns(latent_attention.mla_decode_bytes, *_LATENT)),
    ("latent_bmm", "bmm"): Part(("bmm_fraction", "bmm_memory_fraction", "bmm_floor_s"), of_columns(latent_attention.mla_bmm_time_s, "tokens", "query_heads", "inputs", "outputs", "weight_bytes")),
    ("experts", "experts"): Part((*_TILED, "routed_passes", "token_passes", "expert_s", "pair_passes"), _experts_s, _experts_bytes),
    ("linear_attention", "chunk"): Part(
        ("chunk_fraction", "chunk_memory_fraction", "chunk_state_passes", "chunk_step_s", "chunk_floor_s"),
        of_columns(linear_attention.gated_delta_prefill_time_s, "sequences", "new_tokens", *_DELTA),
    ),
    ("linear_attention", "recurrent"): Part(("decode_fraction", "decode_floor_s"), of_columns(linear_attention.gated_delta_decode_time_s, "sequences", *_DELTA), _recurrent_bytes),
    ("linear_attention", "convolution"): Part(
        ("convolution_fraction", "convolution_pad_tokens", "convolution_floor_s"), _convolution_s, _CONVOLUTION_BYTES
    ),
    ("linear_attention", "update"): Part(("update_fraction", "update_floor_s"), of_columns(linear_attention.short_convolution_time_s, "sequences", 1.0, "channels", "taps"), _CONVOLUTION_BYTES),
    ("elementwise", "elementwise"): Part(("memory_fraction", "floor_s"), of_columns(elementwise_time_s, "moved_bytes"), itemgetter("moved_bytes")),
    ("link", "nccl"): Part(
        ("ring_fraction", "ring_step_s", "ring_floor_s", "ring_ramp_bytes", "crowding_exponent", "multicast_fraction",
         "multicast_floor_s", "all_to_all_fraction", "all_to_all_step_s"), _nccl_s,
    ),
    ("link", "direct"): Part(
        ("one_shot_fraction", "one_shot_step_s", "one_shot_floor_s", "two_shot_fraction", "two_shot_step_s",
         "two_shot_floor_s", "direct_crowding_exponent"), of_columns(collective.all_reduce_time_s, "ranks", "message_bytes"),
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
        fit, fit_format = fit_of(efficiency, "latent_bmm", ("bf16",), case.engine)
        latent_rates = kernel_rates("latent_bmm", device, fit_format, fit)
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
