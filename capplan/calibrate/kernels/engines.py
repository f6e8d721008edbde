"""Kernels of serving engines where their libraries are installed, copies to and from the host, and an empty launch.

No version of these libraries is pinned. A call that a version does not know fails in its first shapes; the kernel is
then dropped with the reason, and everything else is measured.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn import functional

from capplan.calibrate.kernels.attention import PAGE_TOKENS, shuffled_pages, tokens_of
from capplan.calibrate.kernels.case import Kernel, Shape, Way
from capplan.calibrate.kernels.matmul import draw_routing
from capplan.calibrate.machine import Abilities
from capplan.calibrate.timing import ELEMENT_BYTES, LARGEST_DRAW, Call, random_operand, result_space

FLASHINFER, FLASH_ATTENTION_3, FLASH_MLA = "flashinfer", "flash_attn_interface", "flash_mla"
DEEP_GEMM, VLLM = "deep_gemm", "vllm"
WORKSPACE_BYTES = 256 * 2**20
FLASHINFER_PAGE_TOKENS, MLA_PAGE_TOKENS = 16, 64
NEEDED_FORMAT = {FLASH_ATTENTION_3: "fp8_block", FLASH_MLA: "fp8_block", DEEP_GEMM: "fp8_block", VLLM: "bf16"}
"""Library -> format of the cards it is built for: only Hopper multiplies fp8 in 128-blocks."""


def is_installed(library: str) -> bool:
    """Return whether a library can be imported, without importing it."""
    try:
        return find_spec(library.partition(" ")[0]) is not None
    except (ImportError, ValueError):
        return False


def _attention_sizes(shape: Shape) -> tuple[int, int, int, int]:
    return (
        int(shape["sequences"]), int(shape["query_heads"]), int(shape["kv_heads"]), int(shape["head_dim"]),
    )  # fmt: skip


def _flashinfer_decode(shape: Shape, dtype: str, device: torch.device) -> Call:
    flashinfer = import_module(FLASHINFER)
    sequences, query_heads, kv_heads, head_dim = _attention_sizes(shape)
    context, page = int(shape["context_tokens"]), FLASHINFER_PAGE_TOKENS
    pages = -(-context // page)
    query = random_operand((sequences, query_heads, head_dim), "bf16", device)
    cache = random_operand((sequences * pages, 2, page, kv_heads, head_dim), dtype, device)
    starts = torch.arange(0, (sequences + 1) * pages, pages, dtype=torch.int32, device=device)
    table = shuffled_pages(sequences, pages, device).flatten()
    last = torch.full((sequences,), context - (pages - 1) * page, dtype=torch.int32, device=device)
    space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        space, "NHD", use_cuda_graph=True, use_tensor_cores=query_heads >= 4 * kv_heads,
        paged_kv_indptr_buffer=starts, paged_kv_indices_buffer=table, paged_kv_last_page_len_buffer=last,
    )  # fmt: skip
    wrapper.plan(
        starts, table, last, query_heads, kv_heads, head_dim, page,
        q_data_type=query.dtype, kv_data_type=cache.dtype,
    )  # fmt: skip
    return lambda: wrapper.run(query, cache)


def _flashinfer_prefill(shape: Shape, dtype: str, device: torch.device) -> Call:
    flashinfer = import_module(FLASHINFER)
    sequences, query_heads, kv_heads, head_dim = _attention_sizes(shape)
    new, keys = (int(size) for size in tokens_of(shape))
    query = random_operand((sequences * new, query_heads, head_dim), dtype, device)
    key = random_operand((sequences * keys, kv_heads, head_dim), dtype, device)
    value = random_operand((sequences * keys, kv_heads, head_dim), dtype, device)
    space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(space, "NHD")
    starts, key_starts = (
        torch.arange(0, (sequences + 1) * size, size, dtype=torch.int32, device=device)
        for size in (new, keys)
    )
    window = int(shape.get("window_tokens", 0.0))
    wrapper.plan(
        starts, key_starts, query_heads, kv_heads, head_dim,
        causal=True, window_left=window - 1 if window else -1, q_data_type=query.dtype,
    )  # fmt: skip
    return lambda: wrapper.run(query, key, value)


def _flash_attention_3(shape: Shape, dtype: str, device: torch.device) -> Call:
    library = import_module(FLASH_ATTENTION_3)
    sequences, query_heads, kv_heads, head_dim = _attention_sizes(shape)
    new, keys = (int(size) for size in tokens_of(shape))
    pages = -(-keys // PAGE_TOKENS)
    query = random_operand((sequences, new, query_heads, head_dim), dtype, device)
    pool = (sequences * pages, PAGE_TOKENS, kv_heads, head_dim)
    key, value = random_operand(pool, dtype, device), random_operand(pool, dtype, device)
    table = shuffled_pages(sequences, pages, device)
    lengths = torch.full((sequences,), keys, dtype=torch.int32, device=device)
    window = int(shape.get("window_tokens", 0.0))
    words: dict[str, Any] = {"window_size": (window - 1 if window else -1, 0 if window else -1)}
    return lambda: library.flash_attn_with_kvcache(
        query, key, value, cache_seqlens=lengths, page_table=table, causal=True, **words
    )


def _flash_mla(shape: Shape, dtype: str, device: torch.device) -> Call:
    library = import_module(FLASH_MLA)
    sequences, heads, context = (int(shape[name]) for name in ("sequences", "query_heads", "context_tokens"))
    latent, width = int(shape["latent"]), int(shape["latent"] + shape["rope"])
    pages = -(-context // MLA_PAGE_TOKENS)
    query = random_operand((sequences, 1, heads, width), dtype, device)
    cache = random_operand((sequences * pages, MLA_PAGE_TOKENS, 1, width), dtype, device)
    table = shuffled_pages(sequences, pages, device)
    lengths = torch.full((sequences,), context, dtype=torch.int32, device=device)
    schedule, splits = library.get_mla_metadata(lengths, heads, 1)
    return lambda: library.flash_mla_with_kvcache(
        query, cache, table, lengths, latent, schedule, splits, causal=True
    )


def _deep_gemm(shape: Shape, _dtype: str, device: torch.device) -> Call:
    library = import_module(DEEP_GEMM)
    m, k, n = int(shape["rows"]), int(shape["inputs"]), int(shape["outputs"])
    activations = random_operand((m, k), "fp8", device)
    weights = random_operand((n, k), "fp8", device)
    row_scales = torch.ones((m, -(-k // 128)), device=device)
    block_scales = torch.ones((-(-n // 128), -(-k // 128)), device=device)
    result = torch.empty((m, n), dtype=torch.bfloat16, device=device)
    return lambda: library.fp8_gemm_nt((activations, row_scales), (weights, block_scales), result)


def _vllm_scaled_mm(shape: Shape, _dtype: str, device: torch.device) -> Call:
    kernels = import_module("vllm._custom_ops")
    m, k, n = int(shape["rows"]), int(shape["inputs"]), int(shape["outputs"])
    wide = random_operand((m, k), "bf16", device)
    weights = random_operand((n, k), "fp8", device).t()
    one = torch.ones((1,), device=device)

    def call() -> Any:
        narrow, scale = kernels.scaled_fp8_quant(wide, one)
        return kernels.cutlass_scaled_mm(narrow, weights, scale, one, torch.bfloat16)

    return call


def _vllm_experts(shape: Shape, dtype: str, device: torch.device, numbers: range) -> list[Call]:
    layer = import_module("vllm.model_executor.layers.fused_moe")
    experts, width, inner = (int(shape[name]) for name in ("experts", "inputs", "intermediate"))
    count, chosen = int(shape["tokens"]), int(shape["experts_per_token"])
    tokens = random_operand((count, width), dtype, device)
    gate_up = random_operand((experts, 2 * inner, width), dtype, device)
    down = random_operand((experts, width, inner), dtype, device)

    def call(scores: torch.Tensor) -> Callable[[], Any]:
        def run() -> Any:
            weight, expert = torch.topk(scores, chosen, dim=-1)
            ids = expert.to(torch.int32)
            return layer.fused_experts(tokens, gate_up, down, torch.softmax(weight, dim=-1), ids)

        return run

    return [call(draw_routing(count, experts, chosen, device, number).scores) for number in numbers]


ENGINES: Mapping[tuple[str, str], Way] = {
    ("prefill_attention", FLASHINFER): Way(
        _flashinfer_prefill, lambda _able, shape: not shape.get("page_tokens")
    ),
    ("decode_attention", FLASHINFER): Way(_flashinfer_decode),
    ("prefill_attention", FLASH_ATTENTION_3): Way(_flash_attention_3),
    ("decode_attention", FLASH_ATTENTION_3): Way(_flash_attention_3),
    ("latent_decode", FLASH_MLA): Way(_flash_mla),
    ("matmul", DEEP_GEMM): Way(_deep_gemm),
    ("matmul", VLLM): Way(_vllm_scaled_mm),
    ("experts", VLLM): Way(
        lambda shape, dtype, device: _vllm_experts(shape, dtype, device, range(1))[0], routed=_vllm_experts
    ),
}
"""Operator and library -> how it is run."""
ENGINE_FORMATS = {DEEP_GEMM: ("fp8_block",), VLLM: ("fp8",)}
"""Formats of matmuls that a library is timed in."""
FP8_CACHE = (FLASHINFER,)
"""Libraries whose decode attention is timed on an fp8 cache too, with queries in 16 bits."""


def engines_on(able: Abilities, *, has: Callable[[str], bool] = is_installed) -> list[tuple[str, str]]:
    """Return the operators and libraries that this installation and card have.

    Parameters
    ----------
    able : of the card
    has : whether a library is installed
    """
    return [
        (operator, library)
        for operator, library in ENGINES
        if able.is_card and not able.is_amd and has(library)
        and NEEDED_FORMAT.get(library, able.wide) in (*able.formats, able.wide)
    ]  # fmt: skip


def _moved_bytes(shape: Shape, _dtype: str) -> float:
    return shape["moved_bytes"]


def _copy(shape: Shape, _dtype: str, device: torch.device) -> Call:
    source = random_operand((shape["moved_bytes"] // 4,), "bf16", device)
    sink = result_space(source, device)
    return lambda: sink.copy_(source)


def _read(shape: Shape, _dtype: str, device: torch.device) -> Call:
    source = random_operand((shape["moved_bytes"] // 4,), "fp32", device)
    result = torch.empty((), device=device)
    return lambda: torch.sum(source, dim=0, out=result)


def _activation(shape: Shape, dtype: str, device: torch.device) -> Call:
    """Residual addition: two tensors read, one written."""
    count = shape["moved_bytes"] // (3 * ELEMENT_BYTES[dtype])
    first, second = random_operand((count,), dtype, device), random_operand((count,), dtype, device)
    result = result_space(first, device)
    return lambda: torch.add(first, second, out=result)


def _norm(shape: Shape, dtype: str, device: torch.device) -> Call:
    columns = int(shape["columns"])
    rows = int(shape["moved_bytes"] // (2 * ELEMENT_BYTES[dtype] * columns))
    values = random_operand((rows, columns), dtype, device)
    weight = random_operand((columns,), dtype, device)
    # layer norm stands in for the fused norms of engines: torch has a single kernel for it on every device
    return lambda: functional.layer_norm(values, (columns,), weight)


def _host_copy(*, to_device: bool) -> Callable[[Shape, str, torch.device], Call]:
    def built(shape: Shape, _dtype: str, device: torch.device) -> Call:
        size = int(shape["moved_bytes"])
        host = torch.empty(size, dtype=torch.int8, pin_memory=device.type == "cuda")
        some = torch.randint(-127, 128, (min(size, LARGEST_DRAW),), dtype=torch.int8)
        for start in range(0, size, len(some)):  # one draw, repeated: a host draws 512 MB in four seconds
            host[start : start + len(some)].copy_(some[: size - start])
        on_device = torch.empty(size, dtype=torch.int8, device=device)
        if to_device:
            return lambda: on_device.copy_(host, non_blocking=True)
        return lambda: host.copy_(on_device, non_blocking=True)

    return built


def _launch(_shape: Shape, _dtype: str, device: torch.device) -> Call:
    one = torch.zeros(1, device=device)
    return lambda: one.add_(1.0)


READ = Kernel(_moved_bytes, {"torch.sum": Way(_read)}, ("moved_bytes",))
COPY = Kernel(_moved_bytes, {"copy_": Way(_copy)}, ("moved_bytes",))
LAUNCH = Kernel(lambda _shape, _dtype: 4.0, {"add_": Way(_launch)})
ELEMENTWISE = Kernel(_moved_bytes, {"torch.add": Way(_activation)}, ("moved_bytes",))
NORM = Kernel(_moved_bytes, {"layer_norm": Way(_norm)}, ("moved_bytes",))
TO_DEVICE = Kernel(_moved_bytes, {"pinned copy": Way(_host_copy(to_device=True))}, ("moved_bytes",))
TO_HOST = Kernel(_moved_bytes, {"pinned copy": Way(_host_copy(to_device=False))}, ("moved_bytes",))
