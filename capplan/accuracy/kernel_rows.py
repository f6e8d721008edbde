"""Rows of kernel timings, read as calls of `operators`: which kernel, in which format, with which arguments.

Columns are those of the published kernel tables (AIConfigurator's names): family, op or op_name, dtype,
kv_dtype, backend, kernel and the shape. A row that is not modelled gives a reason instead.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from capplan.accuracy.expert_router import POWER_LAWS, rank_load
from capplan.operators.experts import EXPERT_TILES

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


def _with(case: KernelCase, **changes: Any) -> KernelCase:
    values = {name: getattr(case, name) for name in KernelCase.__slots__}
    return KernelCase(**{**values, **changes})


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
        return _with(case, engine="")
    eager = fmt == "fp8_block" and case.engine == "vllm"
    variant = "flashinfer" if _text(row, "kernel").startswith("FlashInferFp8") else ""
    return _with(case, eager=eager, variant=variant)


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
    return _with(case, variant=variant)


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
    return _with(_case(row, "latent_attention", fmt, part, **shape), variant=variant)


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
    load = rank_load(int(tokens), int(experts), int(chosen), int(ranks), router)
    tiles = {tile_name(rows): count for (rows, _), count in zip(EXPERT_TILES, load.row_tiles, strict=True)}
    case = _case(
        row, "experts", fmt, "experts", tokens=tokens, experts=experts, experts_on_rank=experts / ranks,
        experts_per_token=chosen, routed=load.routed, hit=load.hit, **tiles, inputs=_number(row, "hidden_size"),
        intermediate_size=_number(row, "inter_size") / _number(row, "moe_tp_size", 1.0),
        gated=0.0 if kernel.endswith("nongated") else 1.0, weight_bytes=weight, activation_bytes=activation,
    )  # fmt: skip
    return _with(case, variant=kernel.removeprefix(f"{case.engine}_").lower())


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
    return _with(case, variant="triton" if kernel.endswith("_triton") else "")


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
        return _with(case, unit_s=1e-9)
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
        return _with(case, engine="nccl")
    return _with(
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

    Returns
    -------
    the call, or a reason

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
