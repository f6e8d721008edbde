"""SGLang: prompts first, in chunks; memory by one static fraction.

Defaults: `python/sglang/srt/server_args.py` (chunk and graph sizes by device memory, the reserve behind
mem_fraction_static). Memory outside the fraction: one logged start, hence more assumed than fitted.
"""

from dataclasses import replace

from capplan.engine.dtypes import CUDA_KV_DTYPES, SGLANG_WEIGHT_DTYPES
from capplan.engine.memory_rules import MemoryRules
from capplan.engine.profile import EngineProfile, Tier
from capplan.numbers import GIB

_MEMORY = MemoryRules(
    budget="static_fraction",
    default_fraction=None,
    sampler_bytes=8.0,
    hidden_copies=4.3,
    resident_copies=1.24,
    activation_base_bytes=0.038 * GIB,
    expert_workspace_resident=False,
    non_torch_bytes=0.6 * GIB,
    collective_bytes=1.7 * GIB,
    late_collective_bytes=0.15 * GIB,
    graph_bytes_per_layer=1.62e-4 * GIB,
    graph_base_bytes=0.35 * GIB,
    graph_expert_bytes=7.4e-3 * GIB,
    warmup_sampler_bytes=0.0,
    warmup_expert_bytes=0.0,
    vision_bytes_per_token=9.6e3,
    budgeted_graph_fraction=0.0,
    layer_groups=False,
    tokens_from_concurrency=False,
    window_tokens_ratio=0.8,
    state_pool_ratio=0.9,
    recurrent_format="fp32",
)

_TIERS = (
    Tier(160 * GIB, 2048, 16384, 16384, graph_max_sequences=512, wide_graph_max_sequences=512),
    Tier(60 * GIB, 2048, 8192, 8192, graph_max_sequences=256, wide_graph_max_sequences=512),
    Tier(35 * GIB, 2048, 4096, 4096, graph_max_sequences=32, wide_graph_max_sequences=160),
    Tier(20 * GIB, 2048, 2048, 2048, graph_max_sequences=24, wide_graph_max_sequences=80),
    Tier(0.0, 2048, 2048, 2048, graph_max_sequences=8, wide_graph_max_sequences=8),
)

_TIERS_0_5_23 = (
    *_TIERS[:3],
    Tier(20 * GIB, 2048, 4096, 4096, graph_max_sequences=48, wide_graph_max_sequences=160),
    _TIERS[-1],
)
"""`python/sglang/srt/arg_groups/memory_hook.py` of 0.5.23: cards of 20 to 35 GiB have twice the chunk and the graphs."""

_BASE = EngineProfile(
    engine="sglang",
    version="0.4.0",
    policy="prefill_first",
    chunked=True,
    block_tokens=1,
    derives_context=False,
    reserved_output_fraction=0.4,  # new_token_ratio falls from 0.7 to 0.1 while requests run
    tiers=_TIERS,
    memory=_MEMORY,
    weight_dtypes=SGLANG_WEIGHT_DTYPES,
    kv_dtypes=CUDA_KV_DTYPES,
)

SGLANG: tuple[EngineProfile, ...] = (
    _BASE,
    replace(_BASE, version="0.5.0"),
    replace(_BASE, version="0.5.23", tiers=_TIERS_0_5_23),
)
"""Profiles of SGLang, oldest first; each applies until the next."""


def reserved_bytes(
    chunk_tokens: float, graph_max_sequences: float, tensor_pipeline_ranks: float, device_memory_bytes: float
) -> float:
    """Return the memory that SGLang keeps out of weights and KV cache when no fraction is given.

        R = 512 + 1.5 max(c, 2048) + 2 g + 1024 r / 8   [MiB], at least 10 GiB on devices above 60 GiB

    Parameters
    ----------
    chunk_tokens : [tokens]
        c, chunked_prefill_size
    graph_max_sequences : [-]
        g, largest captured batch
    tensor_pipeline_ranks : [-]
        r, tensor x pipeline ranks
    device_memory_bytes : [B]
        as the driver reports it

    Returns
    -------
    [B]
        R

    Examples
    --------
    512 + 1.5 x 8192 + 2 x 256 + 128 MiB:

    >>> reserved_bytes(8192.0, 256.0, 1.0, 79.2 * 2**30) / 2**30
    13.125

    References
    ----------
    SGLang, python/sglang/srt/server_args.py: https://github.com/sgl-project/sglang/pull/10975.
    """
    mebibytes = (
        512.0 + 1.5 * max(chunk_tokens, 2048.0) + 2.0 * graph_max_sequences + 128.0 * tensor_pipeline_ranks
    )
    least = 10240.0 if device_memory_bytes > 60 * GIB else 0.0
    return max(mebibytes, least) * 2.0**20


def static_fraction(reserved: float, device_memory_bytes: float) -> float:
    """Return mem_fraction_static as SGLang chooses it.

        f = round((M - R) / M, 3)

    Parameters
    ----------
    reserved : [B]
        R, kept for activations and graphs
    device_memory_bytes : [B]
        M

    Returns
    -------
    [-]
        f

    Examples
    --------
    >>> static_fraction(10.0, 80.0)
    0.875

    References
    ----------
    SGLang, python/sglang/srt/server_args.py: https://github.com/sgl-project/sglang/pull/10975.
    """
    return round((device_memory_bytes - reserved) / device_memory_bytes, 3)
