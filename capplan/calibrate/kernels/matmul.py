"""Dense matrix products in torch, in every format that a card multiplies."""

from collections.abc import Callable

import torch

from capplan.calibrate.abilities import Abilities
from capplan.calibrate.kernels.arena import random_operand, torch_dtype
from capplan.calibrate.kernels.case import Kernel, Shape, Way, unpublished
from capplan.calibrate.timing import Call
from capplan.readers.calibration.file import MATMUL_BYTES

BLOCK = 128
"""Elements that share a scale, in fp8 with block scales."""
INT4_GROUP = 128
INNER_TILES = 8
"""Inner tiles of the packing of 4-bit weights in torch."""
SWIZZLED_ROWS, SWIZZLED_COLUMNS = 128, 4
"""Scales of narrow formats come in tiles of this size."""


def matmul_bytes(shape: Shape, dtype: str) -> float:
    """Return the bytes of weights, inputs and results."""
    m, k, n = shape["rows"], shape["inputs"], shape["outputs"]
    weight, activation = MATMUL_BYTES[dtype]
    return k * n * weight + m * k * max(activation, 2.0) + 4.0 * m * n


def _sizes(shape: Shape) -> tuple[int, int, int]:
    return int(shape["rows"]), int(shape["inputs"]), int(shape["outputs"])


def _plain(shape: Shape, dtype: str, device: torch.device) -> Call:
    m, k, n = _sizes(shape)
    activations = random_operand((m, k), dtype, device)
    weights = random_operand((n, k), dtype, device).t()  # as a linear layer keeps them
    if dtype == "int8":
        int_mm = unpublished("_int_mm")
        return lambda: int_mm(activations, weights)
    result = torch.empty((m, n), dtype=torch_dtype(dtype, device), device=device)
    return lambda: torch.mm(activations, weights, out=result)


def _scaled(
    a: torch.Tensor, b: torch.Tensor, scales: tuple[torch.Tensor, torch.Tensor], *, fast: bool
) -> torch.Tensor:
    scaled_mm = unpublished("_scaled_mm")
    return scaled_mm(
        a, b, scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def _fp8(
    scales: Callable[[int, int, int, torch.device], tuple[torch.Tensor, torch.Tensor]], *, fast: bool
) -> Callable[[Shape, str, torch.device], Call]:
    """Return a product of fp8 weights and 16-bit inputs, which are cast first, as engines do in one kernel."""

    def built(shape: Shape, _dtype: str, device: torch.device) -> Call:
        m, k, n = _sizes(shape)
        wide = random_operand((m, k), "bf16", device)
        weights = random_operand((n, k), "fp8", device).t()
        both, narrow = scales(m, k, n, device), weights.dtype
        return lambda: _scaled(wide.to(narrow), weights, both, fast=fast)

    return built


def _per_tensor(_m: int, _k: int, _n: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    one = torch.ones((), device=device)
    return one, one


def _per_row(m: int, _k: int, n: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones((m, 1), device=device), torch.ones((1, n), device=device)


def _per_block(m: int, k: int, n: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    parts = -(-k // BLOCK)
    return torch.ones((parts, m), device=device).t(), torch.ones((-(-n // BLOCK), parts), device=device).t()


def _tiled_scales(rows: int, columns: int, kind: torch.dtype, device: torch.device) -> torch.Tensor:
    padded = -(-rows // SWIZZLED_ROWS) * SWIZZLED_ROWS * (-(-columns // SWIZZLED_COLUMNS) * SWIZZLED_COLUMNS)
    return torch.ones(padded, device=device).to(kind)


def _per_32(m: int, k: int, n: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    kind = torch.float8_e8m0fnu
    return _tiled_scales(m, k // 32, kind, device), _tiled_scales(n, k // 32, kind, device)


def _nvfp4(shape: Shape, _dtype: str, device: torch.device) -> Call:
    """Return a product whose inputs arrive in 4 bits: torch has no kernel that quantises them."""
    m, k, n = _sizes(shape)
    narrow = torch.float4_e2m1fn_x2
    activations = random_operand((m, k // 2), "int8", device).view(narrow)
    weights = random_operand((n, k // 2), "int8", device).view(narrow).t()
    kind = torch.float8_e4m3fn
    both = _tiled_scales(m, k // 16, kind, device), _tiled_scales(n, k // 16, kind, device)
    return lambda: _scaled(activations, weights, both, fast=False)


def _int4(shape: Shape, _dtype: str, device: torch.device) -> Call:
    """Return a product of 4-bit weights with 16-bit inputs: torch's own kernel, not the Marlin of engines."""
    m, k, n = _sizes(shape)
    activations = random_operand((m, k), "bf16", device)
    packed = random_operand((n, k // 2), "int8", device).view(torch.uint8)
    weights = unpublished("_convert_weight_to_int4pack")(packed, INNER_TILES)
    scales = torch.ones((k // INT4_GROUP, n, 2), dtype=torch.bfloat16, device=device)
    int4_mm = unpublished("_weight_int4pack_mm")
    return lambda: int4_mm(activations, weights, INT4_GROUP, scales)


def _has(name: str) -> Callable[[Abilities, Shape], bool]:
    return lambda _able, _shape: hasattr(torch, name)


PLAIN = {"torch.mm": Way(_plain)}
BY_FORMAT = {
    "fp8": {"torch._scaled_mm tensor": Way(_fp8(_per_tensor, fast=True))},
    "fp8_row": {"torch._scaled_mm row": Way(_fp8(_per_row, fast=True))},
    "fp8_block": {"torch._scaled_mm 128 block": Way(_fp8(_per_block, fast=False))},
    "mxfp8": {"torch._scaled_mm mx": Way(_fp8(_per_32, fast=False), _has("float8_e8m0fnu"))},
    "nvfp4": {"torch._scaled_mm nvfp4": Way(_nvfp4, _has("float4_e2m1fn_x2"))},
    "w4a16": {"torch._weight_int4pack_mm": Way(_int4, _has("_weight_int4pack_mm"))},
    "int8": {"torch._int_mm": Way(_plain)},
}
"""How each format is multiplied; every other dtype is `PLAIN`."""
MATMUL = Kernel(matmul_bytes, PLAIN, ("outputs", "inputs", "rows"))
