"""The versions of vLLM, SGLang and TensorRT-LLM, as data."""

from dataclasses import replace
from math import inf

from capplan.engine.profile import (
    FIRST_GROUP_EXPONENT,
    EngineProfile,
    ExpertKernel,
    MemoryRules,
    PrefillCapture,
    PrefillGraphs,
    Tier,
    TiledHeads,
)
from capplan.engine.versions import (
    CUDA_KV_DTYPES,
    LLAMACPP_KV_DTYPES,
    LLAMACPP_WEIGHT_DTYPES,
    SGLANG_DSA_CACHE,
    SGLANG_V4_CACHE,
    SGLANG_WEIGHT_DTYPES,
    TRTLLM_KV_DTYPES,
    TRTLLM_WEIGHT_DTYPES,
    VLLM_CACHE_RULES,
    VLLM_V4_CACHE,
    VLLM_WEIGHT_DTYPES,
)
from capplan.numbers import GIB

_V0_MEMORY = MemoryRules(
    budget="utilisation",
    default_fraction=0.9,
    sampler_bytes=36.0,
    hidden_copies=2.9,
    resident_copies=1.24,
    activation_base_bytes=0.038 * GIB,
    expert_workspace_resident=False,
    non_torch_bytes=0.35 * GIB,
    collective_bytes=1.85 * GIB,
    late_collective_bytes=0.15 * GIB,
    graph_bytes_per_layer=1.62e-4 * GIB,
    graph_base_bytes=0.35 * GIB,
    graph_expert_bytes=7.4e-3 * GIB,
    warmup_sampler_bytes=22.0,
    warmup_expert_bytes=1.35 * 2.0**20,
    vision_bytes_per_token=9.6e3,
    budgeted_graph_fraction=0.0,
    layer_groups=False,
    tokens_from_concurrency=False,
)
_V1_MEMORY = replace(
    _V0_MEMORY,
    hidden_copies=4.3,
    non_torch_bytes=0.13 * GIB,
)
_GROUPED_MEMORY = replace(_V1_MEMORY, layer_groups=True)
_SHORT_WORKSPACE_MEMORY = replace(_GROUPED_MEMORY, latent_workspace_tokens=65536.0)
"""`MLACommonMetadataBuilder.determine_chunked_prefill_workspace_size` of 0.11 and later has 64 x 1024 tokens, 0.10 had 128 x 1024."""
_LEAN_SAMPLER_MEMORY = replace(_SHORT_WORKSPACE_MEMORY, sampler_bytes=12.49, expert_workspace_resident=True)
_WORKSPACE_MEMORY = replace(_LEAN_SAMPLER_MEMORY, non_torch_bytes=0.25 * GIB)
_GRAPHS_MEMORY = replace(
    _WORKSPACE_MEMORY,
    default_fraction=0.92,
    blocks_bound_sequences=True,
    budgeted_graph_fraction=0.81,
    graph_base_bytes=0.0,
    graph_expert_bytes=0.0,
)
"""VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS is 1 in `vllm/envs.py` of 0.20.0 (0 in 0.19.1), although it is announced there for 0.21.

For models of 28, 36 and 48 layers 0.20.2 printed graphs of 0.43, 0.67 and 0.80 GiB, and estimates of 0.37, 0.50 and 0.64 GiB
(docs/evidence/live.md).

`blocks_bound_sequences`: pull request 38270, merged on 2026-03-31, raises "max_num_seqs exceeds available Mamba cache blocks"; 0.19.0 still captured
its graphs (vllm-project/recipes, pull request 551)."""
_CONCURRENCY_MEMORY = replace(_GRAPHS_MEMORY, tokens_from_concurrency=True)
"""vllm issue 43308: 0.20.0 printed blocks x block size of a Gemma-4 (about 55,000 tokens), 0.21.0 concurrency x context (about 525,000)."""

_SMALL = Tier(
    0.0, max_num_seqs=256, server_batched_tokens=2048, offline_batched_tokens=8192, graph_max_sequences=512
)
_LARGE = Tier(
    70 * GIB,
    max_num_seqs=1024,
    server_batched_tokens=8192,
    offline_batched_tokens=16384,
    excluded=("ampere", "gb10"),
)
_HUGE = Tier(
    160 * GIB,
    max_num_seqs=1024,
    server_batched_tokens=16384,
    offline_batched_tokens=16384,
    excluded=("gb10",),
)

_OVERLAPPED = frozenset({"decode", "prefill"})
"""SGLang's two-batch overlap (`--enable-two-batch-overlap`, since 0.4.6), as in LMSYS's deployment. vLLM's dual batch overlap (`--enable-dbo`) is off by
default; decode rates that were published with it on 32 to 96 H200 are met without it (tests/oracles/test_expert_exchange.py)."""
_DEEPEP = ("deepep_low_latency", "deepep_normal")
_ONE_SIDED = ("nvlink_one_sided", "nvlink_one_sided")
"""All-to-all kernels for experts over several servers.

vLLM: by default allgather_reducescatter (`vllm/config/parallel.py`); recipes choose DeepEP, which 0.9 has, and over one NVLink domain FlashInfer's
one-sided kernel (`--all2all-backend`; before 0.17 its two-sided one, for which that stands in). SGLang: recipes choose `--moe-a2a-backend deepep`,
whose mode is by default low-latency kernels for decode steps and normal ones for prompts (`layers/moe/token_dispatcher/deepep.py`). TensorRT-LLM: its
one-sided kernel over one NVLink domain (pull request 9329), else DeepEP with TRTLLM_CAN_USE_DEEP_EP=1 (pull request 5881). vLLM has room for
VLLM_MOE_DP_CHUNK_SIZE (256) tokens in low-latency buffers until pull request 39107 of April 2026, then for those of a step; SGLang for
SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK, 128 unless set, 256 in its recipes."""

_PROCESSOR = Tier(
    0.0, max_num_seqs=128, server_batched_tokens=2048, offline_batched_tokens=4096, only=("cpu",)
)

_HOPPER = frozenset({"hopper"})
_GPT_OSS_GRAPHS = (("gpt_oss", 1024),)
_BLACKWELL = frozenset({"blackwell", "grace-blackwell", "blackwell-ultra"})
_WIDE_GRAPHS = (*_GPT_OSS_GRAPHS, *((name, 1024) for name in sorted(_BLACKWELL)))
"""vLLM pull request 49390 of 2026-07-22 captures up to 1,024 tokens on data-centre Blackwell; taken as part of 0.27.0, the first minor version
that began after it (0.26.0 is three days younger)."""
_MXFP4_MARLIN = ExpertKernel("marlin", _HOPPER, frozenset({"mxfp4"}))
"""The wheel brings OpenAI's Triton kernels since 0.12 (`quantization/mxfp4.py`, `get_mxfp4_backend`)."""
_BLOCKS_TRITON = ExpertKernel("triton", _HOPPER, frozenset({"fp8_block"}))
"""DeepGEMM from 128 tokens on, which nobody timed, else Triton; FlashInfer only if asked for (`quantization/fp8.py`, `get_fp8_moe_backend`)."""
_BLOCKS_FLASHINFER = replace(_BLOCKS_TRITON, name="flashinfer_cutlass")
"""0.15 and 0.16 take the first kernel of a list that runs (`fused_moe/oracle/fp8.py`); their users saw it chosen (issue 34249)."""
_SPLIT_BLOCKS_TRITON = replace(_BLOCKS_TRITON, spread=False)
"""Triton where each rank has a part of every expert, FlashInfer's CUTLASS kernel where experts are spread (`fused_moe/oracle/fp8.py`)."""
_WIDE_TRITON = ExpertKernel("triton", _BLACKWELL, frozenset({"bf16"}))
"""VLLM_USE_FLASHINFER_MOE_FP16 is 0 (`vllm/envs.py`) and decides to 0.19; 0.20 takes the first kernel of its list that runs."""
_WITHOUT_FLASHINFER = (
    _WIDE_TRITON,
    ExpertKernel("triton", _BLACKWELL, frozenset({"fp8_block"})),
    ExpertKernel("flashinfer_cutlass", _BLACKWELL, frozenset({"nvfp4"})),
)
"""VLLM_USE_FLASHINFER_MOE_FP8 and _FP4 are 0 up to 0.14: DeepGEMM and vLLM's CUTLASS kernel run, which nobody timed; the nearest timed ones stand in."""
_SIGMOID = frozenset({"sigmoid"})
_UNROUTED = (
    ExpertKernel("triton", _BLACKWELL, frozenset({"fp8_block"}), routings=_SIGMOID),
    ExpertKernel("flashinfer_cutlass", _BLACKWELL, frozenset({"nvfp4"}), routings=_SIGMOID),
)
"""trtllm-gen's kernel routes by groups and by softmax; a sigmoid without groups falls to DeepGEMM (Triton stands in) and FlashInfer's CUTLASS kernel.
SGLang takes trtllm-gen's by itself for models of DeepSeek's kind and Triton's else (`srt/server_args.py`)."""
_EXPERT_KERNELS = {
    "0.14.0": (_BLOCKS_TRITON, *_WITHOUT_FLASHINFER),
    "0.15.0": (_BLOCKS_FLASHINFER, _WIDE_TRITON, *_UNROUTED),
    "0.17.0": (_SPLIT_BLOCKS_TRITON, _WIDE_TRITON, _UNROUTED[0]),
    "0.18.0": (_SPLIT_BLOCKS_TRITON, _WIDE_TRITON),
}
"""Version -> kernels for routed experts that are not the first one timed, until the next version; read in the sources of 0.11.2, 0.13, 0.14.1,
0.16 to 0.20, 0.22, 0.24, 0.26 and 0.33 (0.15 as 0.16). From 0.18 to 0.21 trtllm-gen's kernel runs without its router where it cannot route;
left-out models are not predicted better so (docs/evidence/what-was-tried.md). On Hopper 0.20 prefers FlashInfer's CUTLASS kernel in bf16 by its list; an
engine of 0.20.2 took the time of Triton's (docs/evidence/live.md)."""

_HOPPER = frozenset({"hopper"})
_FLASHMLA_HOPPER = TiledHeads(64, _HOPPER)
_VLLM_TILES = (_FLASHMLA_HOPPER, TiledHeads(128, _BLACKWELL, frozenset({"bf16", "fp16"}), above=16))
"""FlashMLA's sparse kernel takes 64 heads on Hopper and 128 on Blackwell, and pads fewer (vllm/v1/attention/backends/mla/flashmla_sparse.py); on
Blackwell FlashInfer's runs for caches in fp8 and for at most 16 heads (vllm/platforms/cuda.py)."""
_SGLANG_TILES = (_FLASHMLA_HOPPER, TiledHeads(128, _BLACKWELL))
"""`_forward_flashmla_sparse`, sglang/srt/layers/attention/nsa_backend.py."""
_COMPRESSED_TILES = (TiledHeads(64, _HOPPER | _BLACKWELL),)
"""Kernels for compressed attention come with 64 and with 128 heads, whatever the cache (`padded_heads`, vllm/models/deepseek_v4)."""

_V0 = EngineProfile(
    engine="vllm",
    version="0.5.0",
    policy="prefill_first",
    chunked=False,
    draws_first=True,
    captured_tokens=8192.0,
    block_tokens=16,
    tiers=(Tier(0.0, 256, 2048, 2048, graph_max_sequences=256, wide_graph_max_sequences=256),),
    memory=_V0_MEMORY,
    weight_dtypes=VLLM_WEIGHT_DTYPES,
    kv_dtypes=CUDA_KV_DTYPES,
    long_chunked_tokens=32768,
    expert_kernels=(_MXFP4_MARLIN, _BLOCKS_TRITON, *_WITHOUT_FLASHINFER),
)
_VLLM_V1 = replace(
    _V0,
    version="0.8.0",
    policy="mixed",
    chunked=True,
    captured_tokens=0.0,
    tiers=(replace(_SMALL, max_num_seqs=1024),),
    memory=_V1_MEMORY,
    doubles_graph_sequences=True,
    long_chunked_tokens=None,
    graph_tokens_of=_GPT_OSS_GRAPHS,
)

_VLLM_WIDE = replace(_VLLM_V1, servers_exchange=_DEEPEP, one_exchange=True)

_VLLM_RACKS = replace(
    _VLLM_WIDE, rack_exchange=_ONE_SIDED, tiled_heads=_VLLM_TILES, compressed_tiles=_COMPRESSED_TILES
)

_EXPANDING = frozenset({"0.27.0", "0.33.0"})
"""Pull requests 47327 and 48770 of July 2026: dense attention for short prompts of sparse models, and masked attention by FlashAttention 4."""

VLLM: tuple[EngineProfile, ...] = (
    _V0,
    replace(_V0, version="0.6.0"),
    replace(_V0, version="0.7.0"),
    _VLLM_V1,
    replace(_VLLM_WIDE, version="0.9.0", tiers=(_PROCESSOR, _LARGE, _SMALL)),
    replace(_VLLM_WIDE, version="0.10.0", tiers=(_PROCESSOR, _LARGE, _SMALL), memory=_GROUPED_MEMORY),
    replace(
        _VLLM_RACKS,
        version="0.12.0",
        tiers=(_PROCESSOR, _LARGE, _SMALL),
        memory=_SHORT_WORKSPACE_MEMORY,
        expert_kernels=(_BLOCKS_TRITON, *_WITHOUT_FLASHINFER),
    ),
    *(
        replace(
            _VLLM_RACKS,
            version=version,
            tiers=tiers,
            memory=memory,
            expert_kernels=_EXPERT_KERNELS.get(version, (_SPLIT_BLOCKS_TRITON,)),
            asynchronous=True,
        )
        for version, tiers, memory in (
            ("0.14.0", (_PROCESSOR, _LARGE, _SMALL), _SHORT_WORKSPACE_MEMORY),
            ("0.15.0", (_PROCESSOR, _LARGE, _SMALL), _SHORT_WORKSPACE_MEMORY),
            ("0.17.0", (_PROCESSOR, _LARGE, _SMALL), _LEAN_SAMPLER_MEMORY),
            ("0.18.0", (_PROCESSOR, _LARGE, _SMALL), _WORKSPACE_MEMORY),
        )
    ),
    *(
        replace(
            _VLLM_RACKS,
            version=version,
            tiers=tiers,
            memory=_GRAPHS_MEMORY if version == "0.20.0" else _CONCURRENCY_MEMORY,
            expert_kernels=(_SPLIT_BLOCKS_TRITON,),
            low_latency_tokens=inf,
            cache_rules=rules,
            asynchronous=True,
            expands_short_prompts=version in _EXPANDING,
            masks_prompts=_BLACKWELL if version in _EXPANDING else frozenset(),
            graph_tokens_of=graphs,
        )
        for version, tiers, rules, graphs in (
            ("0.20.0", (_PROCESSOR, _LARGE, _SMALL), (VLLM_V4_CACHE,), _GPT_OSS_GRAPHS),
            ("0.21.0", (_PROCESSOR, _LARGE, _SMALL), (VLLM_V4_CACHE,), _GPT_OSS_GRAPHS),
            ("0.26.0", (_PROCESSOR, _HUGE, _LARGE, _SMALL), (VLLM_V4_CACHE,), _GPT_OSS_GRAPHS),
            ("0.27.0", (_PROCESSOR, _HUGE, _LARGE, _SMALL), (VLLM_V4_CACHE,), _WIDE_GRAPHS),
            ("0.33.0", (_PROCESSOR, _HUGE, _LARGE, _SMALL), VLLM_CACHE_RULES, _WIDE_GRAPHS),
        )
    ),
)
"""Profiles of vLLM, oldest first; each applies until the next. 0.5 to 0.7 schedule with the first engine (V0), 0.8 and later with the second (V1).
Defaults: `vllm/engine/arg_utils.py` and `vllm/config` of each release. Memory rules: fitted on logged starts by `calibrate/fit_memory.py`; host
times: on measured serving results. mxfp4 experts on Hopper run with Marlin until 0.12, which brings OpenAI's Triton kernels (pull request
28788). Asynchronous since 0.14.0 (pull request 27614; not on processors or with pipeline
stages: `vllm/config/vllm.py`, `vllm/platforms/cpu.py`)."""


_SGLANG_MEMORY = replace(
    _V1_MEMORY,
    budget="static_fraction",
    default_fraction=None,
    sampler_bytes=8.0,
    non_torch_bytes=0.6 * GIB,
    collective_bytes=1.7 * GIB,
    warmup_sampler_bytes=0.0,
    warmup_expert_bytes=0.0,
    window_tokens_ratio=0.8,
    state_pool_ratio=0.9,
    recurrent_format="fp32",
    sent_fraction=0.835,
    pads_mixed_experts=False,
)
"""`pads_mixed_experts`: `DeepSeekMxfp4MoEMethod` of mxfp4_deepseek.py keeps the widths of the checkpoint. `sent_fraction`:
`--mem-fraction-static` of the decode servers of LMSYS's deployment on 96 H100 (https://github.com/sgl-project/sglang/issues/6017);
the default would keep 4.5 MiB for each captured sequence of each attention group, 37 GB for 16 groups."""

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

_SGLANG_BASE = EngineProfile(
    engine="sglang",
    version="0.4.0",
    policy="prefill_first",
    chunked=True,
    block_tokens=1,
    derives_context=False,
    reserved_output_fraction=0.4,  # new_token_ratio falls from 0.7 to 0.1 while requests run
    tiers=_TIERS,
    memory=_SGLANG_MEMORY,
    weight_dtypes=SGLANG_WEIGHT_DTYPES,
    expert_kernels=(_UNROUTED[0],),
    kv_dtypes=CUDA_KV_DTYPES,
    asynchronous=True,
    tiled_heads=_SGLANG_TILES,
    compressed_tiles=_COMPRESSED_TILES,
    expands_short_prompts=True,  # pull request 11892, which came with the first versions that serve such models well
)

_DRAFTING = 48
"""`max_running_requests` with drafts: srt/server_args.py of 0.4.6 to 0.5.9, srt/arg_groups/speculative_hook.py after."""

_SGLANG_WIDE = replace(
    _SGLANG_BASE,
    version="0.4.6",
    servers_exchange=_DEEPEP,
    overlapped_steps=_OVERLAPPED,
    drafting_sequences=_DRAFTING,
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
    memory = replace(_SGLANG_MEMORY, prefill_capture=capture, compressed_window_ratio=0.1)
    rules = (SGLANG_DSA_CACHE, SGLANG_V4_CACHE)
    return replace(
        _SGLANG_WIDE,
        version=version,
        memory=memory,
        cache_rules=rules,
        model_sequences=dict.fromkeys(SGLANG_V4_CACHE.models, 256),  # srt/arg_groups/deepseek_v4_hook.py
    )


SGLANG: tuple[EngineProfile, ...] = (
    _SGLANG_BASE,
    _SGLANG_WIDE,
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
"""Profiles of SGLang, oldest first; each applies until the next. Prompts come first, in chunks; one static fraction of memory.
Defaults: `python/sglang/srt/server_args.py` (chunk and graph sizes by device memory, the reserve behind mem_fraction_static). Memory outside
the fraction: one logged start, hence more assumed than fitted. Its scheduler without overhead, which plans ahead, came with 0.4; not with pipeline
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


_TRTLLM_MEMORY = replace(
    _V1_MEMORY,
    budget="free_fraction",
    sampler_bytes=8.0,
    expert_workspace_resident=True,
    non_torch_bytes=0.8 * GIB,
    collective_bytes=1.5 * GIB,
    warmup_sampler_bytes=0.0,
    warmup_expert_bytes=0.0,
    whole_windows=True,
    vocabulary_multiple=1,
)

_TRTLLM_BASE = EngineProfile(
    engine="trtllm",
    version="0.7.0",
    policy="mixed",
    chunked=False,
    block_tokens=64,
    reserved_output_fraction=1.0,  # GUARANTEED_NO_EVICT, the default capacity scheduler policy
    tiers=(Tier(0.0, 2048, 8192, 8192, graph_max_sequences=128, wide_graph_max_sequences=128),),
    memory=_TRTLLM_MEMORY,
    weight_dtypes=TRTLLM_WEIGHT_DTYPES,
    kv_dtypes=TRTLLM_KV_DTYPES,
    window_kernels=False,
    derives_context=False,
    fuses_quantise=True,
    decode_group_exponent=FIRST_GROUP_EXPONENT,
    expert_kernels=(ExpertKernel("cutlass", frozenset({"blackwell", "grace-blackwell", "blackwell-ultra"})),),
)

_PYTORCH = replace(
    _TRTLLM_BASE, version="0.19.0", fuses_quantise=False, gathers_quantised=True, decode_group_exponent=0.0
)
_TRTLLM_V1 = replace(
    _PYTORCH,
    version="1.0.0",
    rack_exchange=_ONE_SIDED,
    servers_exchange=_DEEPEP,
    window_kernels=True,
    block_tokens=32,
)

TRTLLM: tuple[EngineProfile, ...] = (
    _TRTLLM_BASE,
    replace(_TRTLLM_BASE, version="0.14.0"),
    _PYTORCH,
    _TRTLLM_V1,
    replace(_TRTLLM_V1, version="1.2.0"),
)
"""Profiles of TensorRT-LLM, oldest first; each applies until the next. In-flight batching, unchunked prompts by default, a fraction of the memory left
by weights for the cache. Defaults: `tensorrt_llm/llmapi/llm_args.py` and `trtllm-serve`, the same in the candidates of 1.4 (2,048 sequences,
8,192 tokens, 0.9 of the memory that is free, blocks of 32 tokens, no chunks). CUTLASS runs all experts except those in mxfp4
(`resolve_moe_backend`). Compiled engines, to 0.18, quantise the inputs of fp8 matmuls in the kernel before; the PyTorch backend does so in a
separate one. No start was logged: the runtime memory is assumed."""


_LLAMACPP_MEMORY = replace(
    _V1_MEMORY,
    default_fraction=1.0,
    sampler_bytes=4.0,
    non_torch_bytes=0.4 * GIB,
    collective_bytes=0.0,
    late_collective_bytes=0.0,
    graph_bytes_per_layer=0.0,
    graph_base_bytes=0.0,
    graph_expert_bytes=0.0,
    warmup_sampler_bytes=0.0,
    warmup_expert_bytes=0.0,
    vision_bytes_per_token=0.0,
    layer_groups=True,
    host_embedding=True,
    vocabulary_multiple=1,
)
"""`host_embedding`: `load_tensors`, src/llama-model.cpp. `non_torch_bytes`: set on published
runs that fill a device, of Llama 3 8B on a Mac of 8 GB and in F16 on a card of 16 GB; `--fit` keeps 1 GiB free instead, and offloads more."""

_LLAMACPP = EngineProfile(
    engine="llamacpp",
    version="b1",
    policy="slots",
    chunked=True,
    block_tokens=1,
    tiers=(Tier(0.0, max_num_seqs=4, server_batched_tokens=2048, offline_batched_tokens=2048),),
    memory=_LLAMACPP_MEMORY,
    weight_dtypes=LLAMACPP_WEIGHT_DTYPES,
    kv_dtypes=LLAMACPP_KV_DTYPES,
    cache_format="fp16",
    ubatch_tokens=512.0,
)

LLAMACPP: tuple[EngineProfile, ...] = (_LLAMACPP, replace(_LLAMACPP, version="b4400"))
"""Profiles of llama.cpp's server by build, of which b4400 is the first of 2025: four slots, `--batch-size` 2,048, `--ubatch-size` 512
(common/common.h and tools/server). Published speeds tell the builds before 2025 from later ones (docs/gguf.md)."""
