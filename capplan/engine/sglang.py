"""SGLang: prompts first, in chunks; memory by one static fraction.

Defaults: `python/sglang/srt/server_args.py` (chunk and graph sizes by device memory, the reserve behind
mem_fraction_static). Memory outside the fraction: one logged start, hence more assumed than fitted.
"""

from dataclasses import replace

from capplan.engine.dtypes import (
    CUDA_KV_DTYPES,
    SGLANG_DSA_CACHE,
    SGLANG_V4_CACHE,
    SGLANG_WEIGHT_DTYPES,
)
from capplan.engine.memory_rules import MemoryRules, PrefillCapture, PrefillGraphs
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
    asynchronous=True,
)

_PIECEWISE = PrefillCapture(latent=True, grouped=False, delta=True)
_QWEN3_5 = frozenset({"qwen3_5", "qwen3_5_moe"})
_TOWERS_0_5_20 = _QWEN3_5 | {
    "cohere2_vision",
    "glm5_next",
    "kimi_k25",
    "kimi_k3",
    "muse_glimmer",
    "paddleocr_vl",
}
_TOWERS_0_5_22 = _TOWERS_0_5_20 | {"minimax_m3_vl", "qwen4_exp"}


def _capturing(version: str, capture: PrefillCapture) -> EngineProfile:
    memory, rules = replace(_MEMORY, prefill_capture=capture), (SGLANG_DSA_CACHE, SGLANG_V4_CACHE)
    return replace(
        _BASE,
        version=version,
        memory=memory,
        cache_rules=rules,
        model_sequences=dict.fromkeys(SGLANG_V4_CACHE.models, 256),  # srt/arg_groups/deepseek_v4_hook.py
        drafting_sequences=48,  # srt/arg_groups/speculative_hook.py, and server_args.py of 0.5.9
    )


SGLANG: tuple[EngineProfile, ...] = (
    _BASE,
    replace(_BASE, version="0.5.0"),
    _capturing("0.5.10", _PIECEWISE),
    _capturing("0.5.15", replace(_PIECEWISE, latent=False)),
    _capturing("0.5.17", replace(_PIECEWISE, delta=False, towers=_QWEN3_5)),
    _capturing("0.5.20", replace(_PIECEWISE, delta=False, towers=_TOWERS_0_5_20)),
    _capturing("0.5.22", PrefillCapture(latent=True, grouped=True, delta=False, towers=_TOWERS_0_5_22)),
    replace(
        _capturing("0.5.23", PrefillCapture(latent=True, grouped=True, delta=False, towers=_TOWERS_0_5_22)),
        tiers=_TIERS_0_5_23,
    ),
)
"""Profiles of SGLang, oldest first; each applies until the next. Its scheduler without overhead, which plans ahead, came with 0.4; not with pipeline
stages (`srt/arg_groups/overrides.py`)."""


def captured_prefill_sizes(most_tokens: float) -> int:
    """Return how many sizes of prefill steps SGLang captures up to a number of tokens.

    Examples
    --------
    >>> [captured_prefill_sizes(tokens) for tokens in (2048.0, 8192.0, 16384.0)]
    [42, 58, 74]

    References
    ----------
    `generate_prefill_cuda_graph_batch_sizes`, sglang/srt/arg_groups/cuda_graph_hook.py: https://github.com/sgl-project/sglang.
    """
    steps = (
        (4, 33, 4),
        (48, 257, 16),
        (288, 513, 32),
        (576, 1025, 64),
        (1280, 4097, 256),
        (4608, int(most_tokens) + 1, 512),
    )
    return sum(size <= most_tokens for step in steps for size in range(*step))


def reserved_bytes(
    chunk_tokens: float,
    graph_max_sequences: float,
    tensor_pipeline_ranks: float,
    device_memory_bytes: float,
    *,
    attention_groups: float = 1.0,
    prefill_graphs: PrefillGraphs = "none",
) -> float:
    """Return the memory that SGLang keeps out of weights and KV cache when no fraction is given.

        R = 512 + 1.5 max(c, 2048) + 2 g + 1024 r / 8 + d + p   [MiB], at least 10 GiB on devices above 60 GiB
        d = 3 g a, or 4.5 g a for g > 300, with attention data parallelism;   p = 8 n(c), or 1536 with latents, of captured prefill steps

    Parameters
    ----------
    chunk_tokens : [tokens]
        c, chunked_prefill_size
    graph_max_sequences : [-]
        g, largest captured batch
    tensor_pipeline_ranks : [-]
        r, ranks of the engine: tensor, attention-data-parallel and pipeline
    device_memory_bytes : [B]
        as the driver reports it
    attention_groups : [-]
        a, of attention data parallelism
    prefill_graphs : [-]
        whether prefill steps are captured, at n(c) sizes, and of which attention

    Returns
    -------
    [B]
        R

    Examples
    --------
    512 + 1.5 x 8192 + 2 x 256 + 128 MiB:

    >>> reserved_bytes(8192.0, 256.0, 1.0, 79.2 * 2**30) / 2**30
    13.125

    464 MiB more for 58 captured sizes of prefill steps, 1.5 GiB more with latents:

    >>> [reserved_bytes(8192.0, 256.0, 1.0, 79.2 * 2**30, prefill_graphs=kind) / 2**20 - 13440 for kind in ("plain", "latent")]
    [464.0, 1536.0]

    References
    ----------
    SGLang, python/sglang/srt/server_args.py: https://github.com/sgl-project/sglang/pull/10975; `reserve_for_graph_mb`,
    sglang/srt/arg_groups/memory_hook.py of 0.5.23.
    """
    mebibytes = (
        512.0 + 1.5 * max(chunk_tokens, 2048.0) + 2.0 * graph_max_sequences + 128.0 * tensor_pipeline_ranks
    )
    if attention_groups > 1:
        mebibytes += (4.5 if graph_max_sequences > 300 else 3.0) * graph_max_sequences * attention_groups
    if prefill_graphs != "none":
        mebibytes += 1536.0 if prefill_graphs == "latent" else 8.0 * captured_prefill_sizes(chunk_tokens)
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
