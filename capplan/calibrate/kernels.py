"""The kernels that are timed: operands, one call, and a smaller version of each."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from capplan.calibrate.attention import absorbed_attention, attention, expanded_attention
from capplan.calibrate.timing import Call

Shape = Mapping[str, float]
LARGEST_DRAW = 2**20
"""Random elements generated at once; larger operands repeat them."""
ALIGNED = 1024
"""Operands start at multiples of this many elements."""
LARGEST_SETS = 256
"""Rotated copies of the operands, at most."""


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of one kernel to time."""

    operator: str
    dtype: str
    shape: Shape
    graph: bool = True
    """Timed under a CUDA graph, on devices that have them."""

    @property
    def title(self) -> str:
        """The case in one line."""
        sizes = " ".join(f"{name}={value:g}" for name, value in self.shape.items())
        return f"{self.operator} {self.dtype} {sizes}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """How one operator is run."""

    operand_bytes: Callable[[Shape, str], float]
    """Bytes of one set of operands and results."""
    built: Callable[[Shape, str, torch.device], Call]
    shrinks: tuple[str, ...]
    """Sizes that may be halved if memory does not suffice."""


TORCH_DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
ELEMENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}


@dataclass(slots=True)
class Arena:
    """Random data of one dtype, of which operands are consecutive slices.

    A pass over all slices reads the whole arena, so none of them is still in the cache when its turn comes, and
    creating operands costs nothing.
    """

    values: torch.Tensor
    position: int = 0

    def cut(self, count: int) -> torch.Tensor | None:
        """Return the next `count` elements; None where the arena is shorter than that."""
        size = self.values.numel()
        if count > size:
            return None
        if self.position + count > size:
            self.position = 0
        start = self.position
        self.position += -(-count // ALIGNED) * ALIGNED
        return self.values[start : start + count]


_ARENAS: dict[tuple[torch.device, str], Arena] = {}
_RESULTS = "results"
"""Name of the arena that large results are written to."""


def prepare_arenas(device: torch.device, dtypes: Iterable[str], arena_bytes: float) -> None:
    """Fill the arenas of a run with random data, and drop those of an earlier run."""
    _ARENAS.clear()
    for dtype in dtypes:
        with suppress(RuntimeError):  # a dtype that cannot be generated is skipped and reported case by case
            _ARENAS[device, dtype] = Arena(_drawn(int(arena_bytes / ELEMENT_BYTES[dtype]), dtype, device))
    _ARENAS[device, _RESULTS] = Arena(_drawn(int(arena_bytes / 2.0), "bf16", device))


def random_operand(sizes: Sequence[float], dtype: str, device: torch.device) -> torch.Tensor:
    """Return random data: with zeros or ones the device would draw less power and clock higher."""
    whole = tuple(int(size) for size in sizes)
    arena = _ARENAS.get((device, dtype))
    values = arena.cut(math.prod(whole)) if arena else None
    return (_drawn(math.prod(whole), dtype, device) if values is None else values).reshape(whole)


def _result_space(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return memory for a result that is as cold as the operands."""
    arena = _ARENAS.get((device, _RESULTS))
    values = arena.cut(like.numel()) if arena else None
    return torch.empty_like(like) if values is None else values.reshape(like.shape)


def _drawn(count: int, dtype: str, device: torch.device) -> torch.Tensor:
    kind = TORCH_DTYPES[dtype]
    some = min(count, LARGEST_DRAW)
    if dtype == "int8":
        drawn = torch.randint(-127, 128, (some,), dtype=kind, device=device)
    else:
        drawn = torch.randn(some, dtype=torch.bfloat16 if dtype == "fp8" else kind, device=device).to(kind)
    return drawn if some == count else drawn.repeat(-(-count // some))[:count]


def _matmul_bytes(shape: Shape, dtype: str) -> float:
    m, k, n = shape["rows"], shape["inputs"], shape["outputs"]
    return (k * n + m * k) * ELEMENT_BYTES[dtype] + 4.0 * m * n


def _matmul(shape: Shape, dtype: str, device: torch.device) -> Call:
    m, k, n = shape["rows"], shape["inputs"], shape["outputs"]
    activations = random_operand((m, k), dtype, device)
    weights = random_operand((n, k), dtype, device).t()  # as a linear layer keeps them
    if dtype == "fp8":
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(  # noqa: SLF001 - torch has no public name for it
            activations, weights, scale_a=one, scale_b=one, out_dtype=torch.bfloat16
        )
    if dtype == "int8":
        return lambda: torch._int_mm(activations, weights)  # noqa: SLF001 - torch has no public name for it
    result = torch.empty((int(m), int(n)), dtype=TORCH_DTYPES[dtype], device=device)
    return lambda: torch.mm(activations, weights, out=result)


def _heads(shape: Shape) -> tuple[float, float, float, float]:
    return shape["sequences"], shape["query_heads"], shape["kv_heads"], shape["head_dim"]


def _prefill_bytes(shape: Shape, dtype: str) -> float:
    sequences, query_heads, kv_heads, head_dim = _heads(shape)
    return sequences * shape["new_tokens"] * head_dim * 2.0 * (query_heads + kv_heads) * ELEMENT_BYTES[dtype]


def _prefill(shape: Shape, dtype: str, device: torch.device) -> Call:
    sequences, query_heads, kv_heads, head_dim = _heads(shape)
    tokens = shape["new_tokens"]
    query = random_operand((sequences, query_heads, tokens, head_dim), dtype, device)
    key = random_operand((sequences, kv_heads, tokens, head_dim), dtype, device)
    value = random_operand((sequences, kv_heads, tokens, head_dim), dtype, device)
    return lambda: attention(query, key, value, causal=True)


def _decode_bytes(shape: Shape, dtype: str) -> float:
    sequences, query_heads, kv_heads, head_dim = _heads(shape)
    width = 2.0 * (query_heads + kv_heads * shape["context_tokens"])
    return sequences * head_dim * width * ELEMENT_BYTES[dtype]


def _decode(shape: Shape, dtype: str, device: torch.device) -> Call:
    sequences, query_heads, kv_heads, head_dim = _heads(shape)
    context = shape["context_tokens"]
    query = random_operand((sequences, query_heads, 1, head_dim), dtype, device)
    key = random_operand((sequences, kv_heads, context, head_dim), dtype, device)
    value = random_operand((sequences, kv_heads, context, head_dim), dtype, device)
    return lambda: attention(query, key, value, causal=False)


def _moved_bytes(shape: Shape, _dtype: str) -> float:
    return shape["moved_bytes"]


def _copy(shape: Shape, _dtype: str, device: torch.device) -> Call:
    source = random_operand((shape["moved_bytes"] // 4,), "bf16", device)
    sink = _result_space(source, device)
    return lambda: sink.copy_(source)


def _read(shape: Shape, _dtype: str, device: torch.device) -> Call:
    source = random_operand((shape["moved_bytes"] // 4,), "fp32", device)
    result = torch.empty((), device=device)
    return lambda: torch.sum(source, dim=0, out=result)


def _activation(shape: Shape, _dtype: str, device: torch.device) -> Call:
    """Residual addition: two tensors read, one written."""
    first = random_operand((shape["moved_bytes"] // 6,), "bf16", device)
    second = random_operand((shape["moved_bytes"] // 6,), "bf16", device)
    result = _result_space(first, device)
    return lambda: torch.add(first, second, out=result)


def _norm(shape: Shape, _dtype: str, device: torch.device) -> Call:
    columns = int(shape["columns"])
    rows = int(shape["moved_bytes"] // (4 * columns))
    values = random_operand((rows, columns), "bf16", device)
    weight = random_operand((columns,), "bf16", device)
    # layer norm stands in for the fused norms of engines: torch has a single kernel for it on every device
    return lambda: functional.layer_norm(values, (columns,), weight)


def _expert_bytes(shape: Shape, dtype: str) -> float:
    weights = 3.0 * shape["experts"] * shape["inputs"] * shape["intermediate"]
    routed = (
        shape["tokens"] * shape["experts_per_token"] * (2.0 * shape["inputs"] + 3.0 * shape["intermediate"])
    )
    return (weights + routed) * ELEMENT_BYTES[dtype]


def _experts(shape: Shape, dtype: str, device: torch.device) -> Call:
    from capplan.calibrate.experts import routed_experts

    experts, width, inner = (int(shape[name]) for name in ("experts", "inputs", "intermediate"))
    tokens = random_operand((shape["tokens"], width), dtype, device)
    gate_up = random_operand((experts, width, 2 * inner), dtype, device)
    down = random_operand((experts, inner, width), dtype, device)
    scores = torch.randn((int(shape["tokens"]), experts), device=device)
    chosen = int(shape["experts_per_token"])
    return lambda: routed_experts(tokens, scores, gate_up, down, chosen)


def _latent_bytes(shape: Shape, dtype: str) -> float:
    cached = shape["sequences"] * shape["context_tokens"] * (shape["latent"] + shape["rope"])
    return cached * ELEMENT_BYTES[dtype]


def _latent_decode(shape: Shape, dtype: str, device: torch.device) -> Call:
    latent, rope, heads = shape["latent"], shape["rope"], shape["query_heads"]
    query = random_operand((shape["sequences"], heads, latent + rope), dtype, device)
    cache = random_operand((shape["sequences"], shape["context_tokens"], latent + rope), dtype, device)
    return lambda: absorbed_attention(query, cache, int(latent))


def _latent_prefill_bytes(shape: Shape, dtype: str) -> float:
    width = 2.0 * (shape["nope"] + shape["rope"]) + 2.0 * shape["value"]
    return shape["sequences"] * shape["new_tokens"] * shape["query_heads"] * width * ELEMENT_BYTES[dtype]


def _latent_prefill(shape: Shape, dtype: str, device: torch.device) -> Call:
    sizes = (shape["sequences"], shape["query_heads"], shape["new_tokens"])
    query = random_operand((*sizes, shape["nope"] + shape["rope"]), dtype, device)
    key = random_operand((*sizes, shape["nope"] + shape["rope"]), dtype, device)
    value = random_operand((*sizes, shape["value"]), dtype, device)
    return lambda: expanded_attention(query, key, value)


def _latent_bmm_bytes(shape: Shape, dtype: str) -> float:
    sizes = shape["inputs"] * shape["outputs"] + shape["tokens"] * (shape["inputs"] + shape["outputs"])
    return shape["query_heads"] * sizes * ELEMENT_BYTES[dtype]


def _latent_bmm(shape: Shape, dtype: str, device: torch.device) -> Call:
    heads, tokens, inputs, outputs = (shape[name] for name in ("query_heads", "tokens", "inputs", "outputs"))
    activations = random_operand((heads, tokens, inputs), dtype, device)
    weights = random_operand((heads, inputs, outputs), dtype, device)
    result = torch.empty((int(heads), int(tokens), int(outputs)), dtype=TORCH_DTYPES[dtype], device=device)
    return lambda: torch.bmm(activations, weights, out=result)


def _host_copy(*, to_device: bool) -> Callable[[Shape, str, torch.device], Call]:
    def built(shape: Shape, _dtype: str, device: torch.device) -> Call:
        size = (int(shape["moved_bytes"]),)
        host = torch.randint(-127, 128, size, dtype=torch.int8, pin_memory=device.type == "cuda")
        on_device = torch.empty(size, dtype=torch.int8, device=device)
        if to_device:
            return lambda: on_device.copy_(host, non_blocking=True)
        return lambda: host.copy_(on_device, non_blocking=True)

    return built


def _launch(_shape: Shape, _dtype: str, device: torch.device) -> Call:
    one = torch.zeros(1, device=device)
    return lambda: one.add_(1.0)


KERNELS: dict[str, Kernel] = {
    "read": Kernel(_moved_bytes, _read, ("moved_bytes",)),
    "copy": Kernel(_moved_bytes, _copy, ("moved_bytes",)),
    "launch": Kernel(lambda _shape, _dtype: 4.0, _launch, ()),
    "matmul": Kernel(_matmul_bytes, _matmul, ("outputs", "inputs", "rows")),
    "prefill_attention": Kernel(_prefill_bytes, _prefill, ("sequences", "new_tokens")),
    "decode_attention": Kernel(_decode_bytes, _decode, ("context_tokens", "sequences")),
    "elementwise": Kernel(_moved_bytes, _activation, ("moved_bytes",)),
    "norm": Kernel(_moved_bytes, _norm, ("moved_bytes",)),
    "experts": Kernel(_expert_bytes, _experts, ("experts", "tokens")),
    "latent_prefill": Kernel(_latent_prefill_bytes, _latent_prefill, ("new_tokens",)),
    "latent_decode": Kernel(_latent_bytes, _latent_decode, ("context_tokens", "sequences")),
    "latent_bmm": Kernel(_latent_bmm_bytes, _latent_bmm, ("tokens",)),
    "host_to_device": Kernel(_moved_bytes, _host_copy(to_device=True), ("moved_bytes",)),
    "device_to_host": Kernel(_moved_bytes, _host_copy(to_device=False), ("moved_bytes",)),
}
"""By operator."""


def case_bytes(case: Case, cold_bytes: float) -> float:
    """Return the device memory of a case with its rotated operands [B].

    Examples
    --------
    >>> case_bytes(Case("copy", "bf16", {"moved_bytes": 1000.0}), cold_bytes=4000.0)
    4000.0
    """
    one = KERNELS[case.operator].operand_bytes(case.shape, case.dtype)
    return one * operand_sets(one, cold_bytes)


def operand_sets(operand_bytes: float, cold_bytes: float) -> int:
    """Return how many sets of operands to rotate: as many as the arena holds without sharing memory.

    One more would overlap the first, which the end of a pass would leave in the cache for the next pass.

    Examples
    --------
    >>> operand_sets(25.0, 100.0), operand_sets(30.0, 100.0), operand_sets(1e9, 100.0)
    (4, 3, 1)
    """
    return int(min(max(cold_bytes // operand_bytes, 1), LARGEST_SETS))


def calls_of(case: Case, device: torch.device, cold_bytes: float) -> list[Call]:
    """Return one call per rotated set of operands."""
    kernel = KERNELS[case.operator]
    sets = operand_sets(kernel.operand_bytes(case.shape, case.dtype), cold_bytes)
    for arena in _ARENAS.values():
        arena.position = 0
    return [kernel.built(case.shape, case.dtype, device) for _ in range(sets)]


def shrunk(case: Case) -> Case | None:
    """Return the case with its largest shrinkable size halved; None if nothing is left to halve.

    Examples
    --------
    >>> shrunk(Case("copy", "bf16", {"moved_bytes": 4096.0})).shape
    {'moved_bytes': 2048.0}
    """
    sizes = {name: case.shape[name] for name in KERNELS[case.operator].shrinks if case.shape[name] >= 64}
    if not sizes:
        return None
    largest = max(sizes, key=lambda name: sizes[name])
    return replace(case, shape={**case.shape, largest: sizes[largest] // 2})
