"""TensorRT-LLM: in-flight batching, unchunked prompts by default, a fraction of the memory left by weights for the cache.

Defaults: `tensorrt_llm/llmapi/llm_args.py` and `trtllm-serve`, the same in the candidates of 1.4 (2,048 sequences, 8,192 tokens, 0.9 of the
memory that is free, blocks of 32 tokens, no chunks); CUTLASS runs all experts except those in mxfp4
(`resolve_moe_backend`). Compiled engines, to 0.18, quantise the inputs of fp8 matmuls in the kernel before; the PyTorch
backend does so in a separate one. No start was logged: the runtime memory is assumed.
"""

from dataclasses import replace

from capplan.engine.dtypes import TRTLLM_KV_DTYPES, TRTLLM_WEIGHT_DTYPES
from capplan.engine.memory_rules import MemoryRules
from capplan.engine.profile import FIRST_GROUP_EXPONENT, EngineProfile, ExpertKernel, Tier
from capplan.numbers import GIB

_MEMORY = MemoryRules(
    budget="free_fraction",
    default_fraction=0.9,
    sampler_bytes=8.0,
    hidden_copies=4.3,
    resident_copies=1.24,
    activation_base_bytes=0.038 * GIB,
    expert_workspace_resident=True,
    non_torch_bytes=0.8 * GIB,
    collective_bytes=1.5 * GIB,
    late_collective_bytes=0.15 * GIB,
    graph_bytes_per_layer=1.62e-4 * GIB,
    graph_base_bytes=0.35 * GIB,
    graph_expert_bytes=7.4e-3 * GIB,
    warmup_sampler_bytes=0.0,
    warmup_expert_bytes=0.0,
    vision_bytes_per_token=9.6e3,
    budgeted_graph_fraction=0.0,
    layer_groups=False,
    whole_windows=True,
    tokens_from_concurrency=False,
    vocabulary_multiple=1,
)

_BASE = EngineProfile(
    engine="trtllm",
    version="0.7.0",
    policy="mixed",
    chunked=False,
    block_tokens=64,
    reserved_output_fraction=1.0,  # GUARANTEED_NO_EVICT, the default capacity scheduler policy
    tiers=(Tier(0.0, 2048, 8192, 8192, graph_max_sequences=128, wide_graph_max_sequences=128),),
    memory=_MEMORY,
    weight_dtypes=TRTLLM_WEIGHT_DTYPES,
    kv_dtypes=TRTLLM_KV_DTYPES,
    window_kernels=False,
    derives_context=False,
    fuses_quantise=True,
    decode_group_exponent=FIRST_GROUP_EXPONENT,
    expert_kernels=(ExpertKernel("cutlass", frozenset({"blackwell", "grace-blackwell", "blackwell-ultra"})),),
)

_PYTORCH = replace(
    _BASE, version="0.19.0", fuses_quantise=False, gathers_quantised=True, decode_group_exponent=0.0
)
_V1 = replace(
    _PYTORCH,
    version="1.0.0",
    window_kernels=True,
    block_tokens=32,
)

TRTLLM: tuple[EngineProfile, ...] = (
    _BASE,
    replace(_BASE, version="0.14.0"),
    _PYTORCH,
    _V1,
    replace(_V1, version="1.2.0"),
)
"""Profiles of TensorRT-LLM, oldest first; each applies until the next."""
