"""Matrix products in torch, in every format that a card multiplies: dense ones, and routed experts (sorted, one product per matrix and expert, combined).

Experts run in one of three ways, by what a card can do: one grouped product (Hopper, Blackwell), a batched product over padded experts, or one
product for each expert that tokens were routed to. The last two need the routing on the host, where the benchmark drew it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from capplan.calibrate.kernels.case import Kernel, Shape, Way
from capplan.calibrate.machine import Abilities, unpublished
from capplan.calibrate.timing import ELEMENT_BYTES, SEED, Call, random_operand, torch_dtype
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


MOST_SEPARATE = 64
"""Experts that are multiplied one by one, at most: each product is a launch of its own."""
MOST_PADDED_RATIO = 8.0
"""Rows of a batched product over the rows that were routed, at most."""
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Routing:
    """Which expert every token goes to, drawn on the host."""

    scores: torch.Tensor
    """(tokens, experts), on the device."""
    counts: tuple[int, ...]
    """Tokens of each expert."""
    starts: torch.Tensor
    """First row of each expert, on the device: a CUDA graph cannot copy it there."""


def draw_routing(tokens: int, experts: int, chosen: int, device: torch.device, number: int = 0) -> Routing:
    """Return random scores of a router and how many tokens each expert gets.

    Parameters
    ----------
    tokens : routed together [-]
    experts : of the layer [-]
    chosen : experts of a token [-]
    device : of the scores
    number : of the routing; each is another one, the same in every run
    """
    drawn = np.random.default_rng((SEED, number)).standard_normal((tokens, experts), dtype=np.float32)
    best = np.argpartition(-drawn, chosen - 1, axis=1)[:, :chosen]
    counts = np.bincount(best.ravel(), minlength=experts)
    return Routing(torch.from_numpy(drawn).to(device), tuple(counts.tolist()), first_rows(counts, device))


def first_rows(counts: Any, device: torch.device) -> torch.Tensor:
    """Return where the rows of each expert start, on the device."""
    return torch.from_numpy(np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int64)).to(device)


def read_routing(scores: torch.Tensor, chosen: int) -> Routing:
    """Return the routing that scores on the device decide; copies the choice to the host."""
    expert = torch.topk(scores, chosen, dim=-1).indices.flatten()
    counts = torch.bincount(expert, minlength=scores.shape[1]).tolist()
    return Routing(scores, tuple(counts), first_rows(np.array(counts), scores.device))


def routed_experts(
    tokens: torch.Tensor,
    scores: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    experts_per_token: int,
    *,
    way: str = "",
    routing: Routing | None = None,
) -> torch.Tensor:
    """Return the output of the routed experts of one layer.

    Parameters
    ----------
    tokens : (tokens, width)
    scores : (tokens, experts), of the router
    gate_up : (experts, width, 2 x inner)
    down : (experts, inner, width)
    experts_per_token : chosen by the router [-]
    way : one of `WAYS`; empty: one product for each expert
    routing : what the host knows of the choice; None: read back from the device, unless the way needs none

    Returns
    -------
    (tokens, width)
    """
    weight, expert = torch.topk(scores, experts_per_token, dim=-1)
    weight = torch.softmax(weight, dim=-1).to(tokens.dtype)
    chosen = expert.flatten()
    order = torch.argsort(chosen)
    source = order // experts_per_token
    rows = tokens[source]
    known = routing or (None if way == GROUPED else read_routing(scores, experts_per_token))
    routed = _multiplied(rows, chosen[order], gate_up, down, way, known)
    combined = torch.zeros_like(tokens)
    return combined.index_add_(0, source, routed * weight.flatten()[order].unsqueeze(-1))


def _multiplied(
    rows: torch.Tensor,
    expert: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    way: str,
    routing: Routing | None,
) -> torch.Tensor:
    """Return the rows, sorted by expert, after both products of their expert."""
    if routing is None or way == GROUPED:
        ends = torch.searchsorted(expert, torch.arange(gate_up.shape[0], device=rows.device), right=True)
        product = _grouped(ends.to(torch.int32))
    elif way == PADDED:
        product = _padded(expert, routing)
    else:
        product = _separate(routing.counts)
    hidden = product(rows, gate_up)
    gate, up = hidden.chunk(2, dim=-1)
    return product(functional.silu(gate) * up, down)


def _grouped(ends: torch.Tensor) -> Product:
    grouped_mm = getattr(functional, "grouped_mm", None) or unpublished("_grouped_mm")  # before torch 2.10
    return lambda rows, weights: grouped_mm(rows, weights, offs=ends)


def _padded(expert: torch.Tensor, routing: Routing) -> Product:
    """Return a batched product over all experts, each padded to the rows of the busiest."""
    most = max(routing.counts)
    place = torch.arange(expert.shape[0], device=expert.device) - routing.starts[expert]

    def product(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        spread = torch.zeros((len(routing.counts), most, rows.shape[1]), dtype=rows.dtype, device=rows.device)
        spread[expert, place] = rows
        return torch.bmm(spread, weights)[expert, place]

    return product


def _separate(counts: Sequence[int]) -> Product:
    """Return one product for each expert with tokens."""

    def product(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        result = torch.empty((rows.shape[0], weights.shape[2]), dtype=rows.dtype, device=rows.device)
        start = 0
        for number, count in enumerate(counts):
            if count:
                torch.mm(rows[start : start + count], weights[number], out=result[start : start + count])
            start += count
        return result

    return product


def _bytes(shape: Shape, dtype: str) -> float:
    weights = 3.0 * shape["experts"] * shape["inputs"] * shape["intermediate"]
    routed = (
        shape["tokens"] * shape["experts_per_token"] * (2.0 * shape["inputs"] + 3.0 * shape["intermediate"])
    )
    return (weights + routed) * ELEMENT_BYTES[dtype]


def touched_bytes(shape: Shape, dtype: str) -> float:
    """Return the bytes of weights that one routing reads: those of the experts that get a token, on average."""
    missed: float = (1.0 - shape["experts_per_token"] / shape["experts"]) ** shape["tokens"]
    hit = shape["experts"] * (1.0 - missed)
    return 3.0 * hit * shape["inputs"] * shape["intermediate"] * ELEMENT_BYTES[dtype]


def _routed(way: str) -> Callable[[Shape, str, torch.device, range], list[Call]]:
    def routed(shape: Shape, dtype: str, device: torch.device, numbers: range) -> list[Call]:
        experts, width, inner = (int(shape[name]) for name in ("experts", "inputs", "intermediate"))
        count, chosen = int(shape["tokens"]), int(shape["experts_per_token"])
        tokens = random_operand((count, width), dtype, device)
        gate_up = random_operand((experts, width, 2 * inner), dtype, device)
        down = random_operand((experts, inner, width), dtype, device)
        drawn = [draw_routing(count, experts, chosen, device, number) for number in numbers]
        return [
            partial(routed_experts, tokens, one.scores, gate_up, down, chosen, way=way, routing=one)
            for one in drawn
        ]

    return routed


def _way(name: str, suits: Callable[[Abilities, Shape], bool]) -> Way:
    routed = _routed(name)
    return Way(lambda shape, dtype, device: routed(shape, dtype, device, range(1))[0], suits, routed)


def can_group(able: Abilities, _shape: Shape) -> bool:
    """Return whether torch multiplies all experts in one kernel."""
    return able.grouped_products and (hasattr(functional, "grouped_mm") or hasattr(torch, "_grouped_mm"))


def _worth_padding(able: Abilities, shape: Shape) -> bool:
    mean = shape["tokens"] * shape["experts_per_token"] / shape["experts"]
    return able.is_card and mean >= 1.0 and mean + 3.0 * mean**0.5 <= MOST_PADDED_RATIO * mean


def _worth_separating(able: Abilities, shape: Shape) -> bool:
    hit = touched_bytes(shape, "int8") / (3.0 * shape["inputs"] * shape["intermediate"])
    return hit <= MOST_SEPARATE or not (can_group(able, shape) or _worth_padding(able, shape))


GROUPED, PADDED, SEPARATE = "grouped_mm", "padded bmm", "one mm each"
WAYS = {
    GROUPED: _way(GROUPED, can_group),
    PADDED: _way(PADDED, _worth_padding),
    SEPARATE: _way(SEPARATE, _worth_separating),
}
EXPERTS = Kernel(_bytes, WAYS, ("experts", "tokens"), touched_bytes)
