"""Which weight and cache dtypes run on which device architecture.

Sources: vLLM documentation "Supported Hardware" of quantisation; SGLang "Quantization"; TensorRT-LLM "Numerical Precision".
"""

from collections.abc import Mapping
from dataclasses import dataclass

_ALWAYS = frozenset({"fp32", "fp16", "int8", "int4"})
_AMPERE = _ALWAYS | {
    "bf16",
    "fp8",
    "mxfp4",
    "nvfp4",
}  # fp8 and fp4 weights are widened in the kernel before the matmul

CUDA_WEIGHT_DTYPES: Mapping[str, frozenset[str]] = {
    "volta": frozenset({"fp32", "fp16"}),
    "turing": _ALWAYS,
    "ampere": _AMPERE,
    "ada": _AMPERE,
    "hopper": _AMPERE,
    "blackwell": _AMPERE,
    "cdna2": _ALWAYS | {"bf16"},
    "cdna3": _ALWAYS | {"bf16", "fp8", "mxfp4"},
    "cdna4": _ALWAYS | {"bf16", "fp8", "mxfp4"},
    "cdna5": _ALWAYS | {"bf16", "fp8", "mxfp4"},
    "rubin": _AMPERE,
    "rdna3.5": _ALWAYS | {"bf16"},
    "xe2": _ALWAYS | {"bf16", "fp8", "mxfp4"},
    "cpu": frozenset({"fp32", "bf16", "fp16", "int8", "int4"}),
    "*": _ALWAYS | {"bf16", "fp8", "mxfp4"},
}
"""Weight dtypes that both vLLM and SGLang run, by architecture."""

_NEURON = frozenset({"fp32", "bf16", "fp16", "fp8", "int8"})
VLLM_WEIGHT_DTYPES: Mapping[str, frozenset[str]] = {
    **CUDA_WEIGHT_DTYPES,
    "trainium2": _NEURON,
    "trainium3": _NEURON,
}
"""Those of vLLM, whose plug-in for Neuron runs on Trainium: https://github.com/vllm-project/vllm-neuron."""

SGLANG_WEIGHT_DTYPES: Mapping[str, frozenset[str]] = {
    **CUDA_WEIGHT_DTYPES,
    **dict.fromkeys(("trainium2", "trainium3", "rdna3.5"), frozenset()),
}
"""Those of SGLang, which runs neither on Trainium nor on Strix Halo."""

TRTLLM_WEIGHT_DTYPES: Mapping[str, frozenset[str]] = {
    "ampere": _ALWAYS | {"bf16"},
    "ada": _ALWAYS | {"bf16", "fp8"},
    "hopper": _ALWAYS | {"bf16", "fp8", "mxfp4"},
    "blackwell": _AMPERE,
    "*": frozenset(),
}
"""Weight dtypes that TensorRT-LLM runs: NVIDIA devices from Ampere on."""

_PLAIN_KV = frozenset({"fp32", "bf16", "fp16"})

CUDA_KV_DTYPES: Mapping[str, frozenset[str]] = {
    "volta": frozenset({"fp32", "fp16"}),
    "turing": frozenset({"fp32", "fp16"}),
    **dict.fromkeys(("trainium2", "trainium3", "rdna3.5"), _PLAIN_KV),
    "*": _PLAIN_KV | {"fp8", "int8"},
}
"""Cache dtypes of vLLM and SGLang."""

TRTLLM_KV_DTYPES: Mapping[str, frozenset[str]] = {
    "ampere": _PLAIN_KV | {"int8"},
    "*": _PLAIN_KV | {"fp8", "int8"},
}
"""Cache dtypes of TensorRT-LLM."""


@dataclass(frozen=True, slots=True)
class CacheRule:
    """The default cache dtype of an engine for some models: neither the user nor the checkpoint states one."""

    dtype: str
    models: frozenset[str]
    """`model_type`s, with those of their text parts."""
    architectures: frozenset[str] = frozenset()
    """Device architectures; none: all."""
    only: bool = False
    """The engine runs these models with no other cache."""

    def covers(self, model_type: str, architecture: str | None) -> bool:
        """Return whether the rule is for a model on a device; without a device, whether it says what to plan a fleet with."""
        everywhere = not self.architectures or (self.only and architecture is None)
        return model_type in self.models and (everywhere or architecture in self.architectures)


_DEEPSEEK_V4 = frozenset({"deepseek_v4", "deepseek_v41", "deepseek_v41_text"})
_GLM_5 = frozenset({"glm_moe_dsa", "glm5_next", "glm5_next_text"})
_SM100 = frozenset({"blackwell", "grace-blackwell", "blackwell-ultra"})

VLLM_V4_CACHE = CacheRule("fp8", _DEEPSEEK_V4, frozenset({"hopper", "blackwell-rtx"}), only=True)
"""`_resolve_dsv4_kv_cache_dtype`, vllm/models/deepseek_v4/attention.py: the layout of FlashMLA, and of FlashInfer on consumer Blackwell, holds only
fp8; on B200 `auto` is the dtype of the model (pull requests 45091, 54233)."""
VLLM_CACHE_RULES = (
    VLLM_V4_CACHE,
    CacheRule("fp8", _GLM_5, _SM100),
    CacheRule("fp8", frozenset({"deepseek_v32", *_GLM_5}), frozenset({"blackwell-rtx"})),
)
"""vLLM 0.33: `GlmMoeDsaForCausalLM` and `Glm5NextModelConfig` in vllm/model_executor/models/config.py, and
`_canonicalize_sparse_mla_kv_cache_dtype` in layers/attention/mla_attention.py."""

SGLANG_DSA_CACHE = CacheRule(
    "fp8", frozenset({"deepseek_v32", "hy_v4", *_GLM_5}), frozenset({*_SM100, "blackwell-rtx", "rubin"})
)
"""SGLang since 0.5.9 at the latest, `_dsa_kv_cache_dtype_default` in srt/arg_groups/overrides.py: sparse attention from compute capability 10 on."""
SGLANG_V4_CACHE = CacheRule("fp8", _DEEPSEEK_V4)
"""SGLang since 0.5.12, `_deepseek_v4_kv_cache_dtype` there, on every device."""
