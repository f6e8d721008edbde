"""vLLM, by version: 0.5 to 0.7 schedule with the first engine (V0), 0.8 and later with the second (V1).

Defaults: `vllm/engine/arg_utils.py` and `vllm/config` of each release. Fitted numbers of the memory rules:
`calibrate/fit_memory.py` on logged starts; host times: fitted on measured serving results. mxfp4 experts on Hopper run with
Marlin until 0.12, which brings OpenAI's Triton kernels (pull request 28788).
"""

from dataclasses import replace

from capplan.engine.dtypes import (
    CUDA_KV_DTYPES,
    VLLM_CACHE_RULES,
    VLLM_V4_CACHE,
    VLLM_WEIGHT_DTYPES,
)
from capplan.engine.memory_rules import MemoryRules
from capplan.engine.profile import FIRST_GROUP_EXPONENT, EngineProfile, ExpertKernel, Tier
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
_LEAN_SAMPLER_MEMORY = replace(_GROUPED_MEMORY, sampler_bytes=12.49, expert_workspace_resident=True)
_WORKSPACE_MEMORY = replace(_LEAN_SAMPLER_MEMORY, non_torch_bytes=0.25 * GIB)
_GRAPHS_MEMORY = replace(
    _WORKSPACE_MEMORY,
    default_fraction=0.92,
    tokens_from_concurrency=True,
    budgeted_graph_fraction=0.81,
    graph_base_bytes=0.0,
    graph_expert_bytes=0.0,
)
"""VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS is 1 in `vllm/envs.py` of 0.20.0 (0 in 0.19.1), although it is announced there for 0.21.

For models of 28, 36 and 48 layers 0.20.2 printed graphs of 0.43, 0.67 and 0.80 GiB, and estimates of 0.37, 0.50 and 0.64 GiB
(docs/live.md)."""

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

_PROCESSOR = Tier(
    0.0, max_num_seqs=128, server_batched_tokens=2048, offline_batched_tokens=4096, only=("cpu",)
)

_HOPPER = frozenset({"hopper"})
_BLACKWELL = frozenset({"blackwell", "grace-blackwell", "blackwell-ultra"})
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
"""trtllm-gen's kernel routes by groups and by softmax; a sigmoid without groups falls to DeepGEMM (Triton stands in) and FlashInfer's CUTLASS kernel."""
_EXPERT_KERNELS = {
    "0.14.0": (_BLOCKS_TRITON, *_WITHOUT_FLASHINFER),
    "0.15.0": (_BLOCKS_FLASHINFER, _WIDE_TRITON, *_UNROUTED),
    "0.17.0": (_SPLIT_BLOCKS_TRITON, _WIDE_TRITON, _UNROUTED[0]),
    "0.18.0": (_SPLIT_BLOCKS_TRITON, _WIDE_TRITON),
}
"""Version -> kernels for routed experts that are not the first one timed, until the next version; read in the sources of 0.11.2, 0.13, 0.14.1,
0.16 to 0.20, 0.22, 0.24, 0.26 and 0.33 (0.15 as 0.16). From 0.18 to 0.21 trtllm-gen's kernel runs without its router where it cannot route;
left-out models are not predicted better so (docs/what-was-tried.md). On Hopper 0.20 prefers FlashInfer's CUTLASS kernel in bf16 by its list; an
engine of 0.20.2 took the time of Triton's (docs/live.md)."""

_V0 = EngineProfile(
    engine="vllm",
    version="0.5.0",
    policy="prefill_first",
    chunked=False,
    decode_group_exponent=FIRST_GROUP_EXPONENT,
    block_tokens=16,
    tiers=(Tier(0.0, 256, 2048, 2048, graph_max_sequences=256, wide_graph_max_sequences=256),),
    memory=_V0_MEMORY,
    weight_dtypes=VLLM_WEIGHT_DTYPES,
    kv_dtypes=CUDA_KV_DTYPES,
    long_chunked_tokens=32768,
    expert_kernels=(_MXFP4_MARLIN, _BLOCKS_TRITON, *_WITHOUT_FLASHINFER),
)
_V1 = replace(
    _V0,
    version="0.8.0",
    policy="mixed",
    chunked=True,
    decode_group_exponent=0.0,
    tiers=(replace(_SMALL, max_num_seqs=1024),),
    memory=_V1_MEMORY,
    doubles_graph_sequences=True,
    long_chunked_tokens=None,
    graph_tokens_of=(("gpt_oss", 1024),),
)

VLLM: tuple[EngineProfile, ...] = (
    _V0,
    replace(_V0, version="0.6.0"),
    replace(_V0, version="0.7.0", decode_group_exponent=0.0),
    _V1,
    replace(_V1, version="0.9.0", tiers=(_PROCESSOR, _LARGE, _SMALL)),
    replace(_V1, version="0.10.0", tiers=(_PROCESSOR, _LARGE, _SMALL), memory=_GROUPED_MEMORY),
    replace(
        _V1,
        version="0.12.0",
        tiers=(_PROCESSOR, _LARGE, _SMALL),
        memory=_GROUPED_MEMORY,
        expert_kernels=(_BLOCKS_TRITON, *_WITHOUT_FLASHINFER),
    ),
    *(
        replace(
            _V1,
            version=version,
            tiers=tiers,
            memory=memory,
            expert_kernels=_EXPERT_KERNELS.get(version, (_SPLIT_BLOCKS_TRITON,)),
            asynchronous=True,
        )
        for version, tiers, memory in (
            ("0.14.0", (_PROCESSOR, _LARGE, _SMALL), _GROUPED_MEMORY),
            ("0.15.0", (_PROCESSOR, _LARGE, _SMALL), _GROUPED_MEMORY),
            ("0.17.0", (_PROCESSOR, _LARGE, _SMALL), _LEAN_SAMPLER_MEMORY),
            ("0.18.0", (_PROCESSOR, _LARGE, _SMALL), _WORKSPACE_MEMORY),
        )
    ),
    *(
        replace(
            _V1,
            version=version,
            tiers=tiers,
            memory=_GRAPHS_MEMORY,
            expert_kernels=(_SPLIT_BLOCKS_TRITON,),
            cache_rules=rules,
            asynchronous=True,
        )
        for version, tiers, rules in (
            ("0.20.0", (_PROCESSOR, _LARGE, _SMALL), (VLLM_V4_CACHE,)),
            ("0.26.0", (_PROCESSOR, _HUGE, _LARGE, _SMALL), (VLLM_V4_CACHE,)),
            ("0.33.0", (_PROCESSOR, _HUGE, _LARGE, _SMALL), VLLM_CACHE_RULES),
        )
    ),
)
"""Profiles of vLLM, oldest first; each applies until the next. Asynchronous since 0.14.0 (pull request 27614; not on processors or with pipeline
stages: `vllm/config/vllm.py`, `vllm/platforms/cpu.py`)."""
