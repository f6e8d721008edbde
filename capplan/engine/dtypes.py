"""Which weight and cache dtypes run on which device architecture.

Sources: vLLM documentation "Supported Hardware" of quantisation; SGLang "Quantization"; TensorRT-LLM "Numerical Precision".
"""

from collections.abc import Mapping

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
