"""The days on which versions of engines came out, the spellings of their names, and the dtypes that run on each device.

Sources: vLLM documentation "Supported Hardware" of quantisation; SGLang "Quantization"; TensorRT-LLM "Numerical Precision".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from capplan.errors import InputError, unknown

_ALWAYS = frozenset({"fp32", "fp16", "int8", "int4"})
_AMPERE = _ALWAYS | {
    "bf16",
    "fp8",
    "mxfp4",
    "nvfp4",
}  # fp8 and fp4 weights are widened in the kernel before the matmul

BLACKWELL = ("blackwell", "blackwell-rtx", "blackwell-ultra", "grace-blackwell")
"""Architectures with tensor cores for nvfp4."""

NOT_SERVED = (
    *("pascal", "gcn4", "gcn5", "rdna1", "rdna2", "host"),
    *(f"apple-m{chip}" for chip in range(1, 6)),
)
"""Architectures of workstations that vLLM, SGLang and TensorRT-LLM have no kernels for."""

CUDA_WEIGHT_DTYPES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(NOT_SERVED, frozenset()),
    "volta": frozenset({"fp32", "fp16"}),
    "turing": _ALWAYS,
    "ampere": _AMPERE,
    "ada": _AMPERE,
    "hopper": _AMPERE,
    **dict.fromkeys(BLACKWELL, _AMPERE),
    "cdna2": _ALWAYS | {"bf16"},
    "cdna3": _ALWAYS | {"bf16", "fp8", "mxfp4"},
    "cdna4": _ALWAYS | {"bf16", "fp8", "mxfp4"},
    "cdna5": _ALWAYS | {"bf16", "fp8", "mxfp4"},
    "rubin": _AMPERE,
    **dict.fromkeys(("rdna3", "rdna3.5", "xe-hpg"), _ALWAYS | {"bf16"}),
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
"""Weight dtypes of vLLM, whose plug-in for Neuron runs on Trainium: https://github.com/vllm-project/vllm-neuron."""

SGLANG_WEIGHT_DTYPES: Mapping[str, frozenset[str]] = {
    **CUDA_WEIGHT_DTYPES,
    **dict.fromkeys(("trainium2", "trainium3", "rdna3.5"), frozenset()),
}
"""Weight dtypes of SGLang, which runs neither on Trainium nor on Strix Halo."""

TRTLLM_WEIGHT_DTYPES: Mapping[str, frozenset[str]] = {
    "ampere": _ALWAYS | {"bf16"},
    "ada": _ALWAYS | {"bf16", "fp8"},
    "hopper": _ALWAYS | {"bf16", "fp8", "mxfp4"},
    **dict.fromkeys((*BLACKWELL, "rubin"), _AMPERE),
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


LLAMACPP_WEIGHT_DTYPES: Mapping[str, frozenset[str]] = {
    "*": frozenset({"fp32", "bf16", "fp16", "mxfp4"}),
    **dict.fromkeys(
        ("trainium2", "trainium3", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7", "gaudi2", "gaudi3"), frozenset()
    ),
}
"""Weight dtypes of llama.cpp next to those of GGUF files; it has no backend for TPUs, Gaudi and Trainium."""

LLAMACPP_KV_DTYPES: Mapping[str, frozenset[str]] = {
    "*": _PLAIN_KV | {"q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"}
}
"""Cache dtypes of llama.cpp: `kv_cache_types`, common/arg.cpp of https://github.com/ggml-org/llama.cpp."""


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


SPELLINGS: dict[str, tuple[str, ...]] = {
    "vllm": ("vllm", "vllm-openai", "vllm-chat", "vllm-serve"),
    "sglang": ("sglang", "sgl", "sglang-oai", "sglang-oai-chat", "sglang-native"),
    "trtllm": ("trtllm", "trt-llm", "tensorrt-llm", "tensorrtllm", "trt", "tensorrt", "trtllm-serve", "trtllm-bench"),
    "llamacpp": ("llamacpp", "llama.cpp", "llama-cpp", "llama-server", "llama-bench", "llamafile", "ggml"),
}  # fmt: skip
"""Engine -> its spellings, lower case and with `-` between words."""

_ENGINE = {spelling: engine for engine, spellings in SPELLINGS.items() for spelling in spellings}
_PACKAGED = re.compile(r"(?:nvidia-)?(?P<package>nim|dynamo|triton)\b-?[(/-]?(?P<inside>[^)]*)\)?")
_SPLIT = re.compile(r"[(-]?disagg(regated)?\)?$")


def spelled_engine(text: str) -> str | None:
    """Return the engine of a spelling, whatever its case and punctuation; None where no engine of ours is spelled like this.

    Examples
    --------
    >>> spelled_engine("TensorRT LLM"), spelled_engine("llm-d")
    ('trtllm', None)
    """
    return _ENGINE.get(re.sub(r"[\s_]+", "-", text.strip().lower()))


def named_engine(text: str) -> tuple[str, bool]:
    """Return the engine that a text means, whatever its case and punctuation, and whether a package ships it.

    NIM, Dynamo and Triton are such packages; they count their versions on their own.

    Parameters
    ----------
    text : such as `vllm`, `TensorRT-LLM`, `trt_llm`, `nim(trtllm)`, `dynamo-sglang`

    Returns
    -------
    engine; InputError where it is unknown, where only the package around it is named, or where the text
    says that prefill and decode were disaggregated

    Examples
    --------
    >>> named_engine("TensorRT-LLM"), named_engine("nim(trtllm)")
    (('trtllm', False), ('trtllm', True))
    """
    name = re.sub(r"[\s_]+", "-", text.strip().lower())
    if _SPLIT.search(name):
        raise InputError(
            f"engine: {text!r} serves disaggregated prefill and decode, which is not modelled\n"
            f"  aggregated engines: {', '.join(sorted(SPELLINGS))}"
        )
    package = _PACKAGED.fullmatch(name)
    inside = package["inside"].strip("-") if package else name
    if package and not inside:
        raise InputError(
            f"engine: {text!r} does not say which engine runs inside\n"
            f"  write {package['package']}(vllm), {package['package']}(sglang) or {package['package']}(trtllm)"
        )
    if inside not in _ENGINE:
        raise unknown("engine", text, SPELLINGS)
    return _ENGINE[inside], package is not None


RELEASES: dict[str, tuple[tuple[str, str], ...]] = {
    "vllm": (
        ("2023-06-20", "0.1.0"), ("2023-09-28", "0.2.0"), ("2024-01-31", "0.3.0"), ("2024-03-31", "0.4.0"), ("2024-04-24", "0.4.1"),
        ("2024-05-05", "0.4.2"), ("2024-06-01", "0.4.3"), ("2024-06-11", "0.5.0"), ("2024-07-06", "0.5.1"), ("2024-07-15", "0.5.2"),
        ("2024-07-23", "0.5.3"), ("2024-08-05", "0.5.4"), ("2024-08-23", "0.5.5"), ("2024-09-05", "0.6.0"), ("2024-09-11", "0.6.1"),
        ("2024-09-25", "0.6.2"), ("2024-10-14", "0.6.3"), ("2024-11-15", "0.6.4"), ("2024-12-18", "0.6.5"), ("2024-12-27", "0.6.6"),
        ("2025-01-27", "0.7.0"), ("2025-02-01", "0.7.1"), ("2025-02-06", "0.7.2"), ("2025-02-20", "0.7.3"), ("2025-03-18", "0.8.0"),
        ("2025-03-19", "0.8.1"), ("2025-03-25", "0.8.2"), ("2025-04-06", "0.8.3"), ("2025-04-15", "0.8.4"), ("2025-04-28", "0.8.5"),
        ("2025-05-28", "0.9.0"), ("2025-06-10", "0.9.1"), ("2025-07-08", "0.9.2"), ("2025-07-25", "0.10.0"),
        ("2025-08-19", "0.10.1"), ("2025-09-13", "0.10.2"), ("2025-10-04", "0.11.0"), ("2025-11-19", "0.11.1"),
        ("2025-11-20", "0.11.2"), ("2025-12-03", "0.12.0"), ("2025-12-19", "0.13.0"), ("2026-01-20", "0.14.0"),
        ("2026-01-24", "0.14.1"), ("2026-01-29", "0.15.0"), ("2026-02-05", "0.15.1"), ("2026-02-26", "0.16.0"),
        ("2026-03-07", "0.17.0"), ("2026-03-11", "0.17.1"), ("2026-03-20", "0.18.0"), ("2026-03-31", "0.18.1"),
        ("2026-04-03", "0.19.0"), ("2026-04-18", "0.19.1"), ("2026-04-27", "0.20.0"), ("2026-05-03", "0.20.1"),
        ("2026-05-10", "0.20.2"), ("2026-05-15", "0.21.0"), ("2026-05-29", "0.22.0"), ("2026-06-05", "0.22.1"),
        ("2026-06-13", "0.23.0"), ("2026-06-30", "0.24.0"), ("2026-07-11", "0.25.0"), ("2026-07-14", "0.25.1"),
        ("2026-07-25", "0.26.0"), ("2026-08-10", "0.27.0"), ("2026-08-11", "0.27.1"), ("2026-08-26", "0.28.0"),
        ("2026-09-09", "0.29.0"), ("2026-09-22", "0.30.0"), ("2026-10-05", "0.31.0"), ("2026-10-18", "0.32.0"),
        ("2026-11-02", "0.33.0"),
    ),
    "sglang": (
        ("2024-01-16", "0.1.3"), ("2024-07-25", "0.2.0"), ("2024-09-03", "0.3.0"), ("2024-12-03", "0.4.0"), ("2024-12-25", "0.4.1"),
        ("2025-01-27", "0.4.2"), ("2025-02-14", "0.4.3"), ("2025-03-13", "0.4.4"), ("2025-04-07", "0.4.5"), ("2025-04-27", "0.4.6"),
        ("2025-06-10", "0.4.7"), ("2025-06-24", "0.4.8"), ("2025-07-06", "0.4.9"), ("2025-07-31", "0.4.10"),
        ("2025-08-23", "0.5.1"), ("2025-09-11", "0.5.2"), ("2025-10-06", "0.5.3"), ("2025-10-24", "0.5.4"), ("2025-11-06", "0.5.5"),
        ("2025-12-03", "0.5.6"), ("2026-01-01", "0.5.7"), ("2026-01-23", "0.5.8"), ("2026-02-23", "0.5.9"),
        ("2026-04-05", "0.5.10"), ("2026-05-07", "0.5.11"), ("2026-05-16", "0.5.12"), ("2026-06-11", "0.5.13"),
        ("2026-06-26", "0.5.14"), ("2026-07-10", "0.5.15"), ("2026-07-25", "0.5.16"), ("2026-08-08", "0.5.17"),
        ("2026-08-21", "0.5.18"), ("2026-09-04", "0.5.19"), ("2026-09-18", "0.5.20"), ("2026-10-01", "0.5.21"),
        ("2026-10-16", "0.5.22"), ("2026-10-30", "0.5.23"),
    ),
    "trtllm": (
        ("2023-10-20", "0.5.0"), ("2023-12-05", "0.6.1"), ("2023-12-20", "0.7.0"), ("2023-12-28", "0.7.1"), ("2024-02-29", "0.8.0"),
        ("2024-04-11", "0.9.0"), ("2024-06-05", "0.10.0"), ("2024-07-17", "0.11.0"), ("2024-08-29", "0.12.0"),
        ("2024-09-30", "0.13.0"), ("2024-11-01", "0.14.0"), ("2024-12-04", "0.15.0"), ("2024-12-24", "0.16.0"),
        ("2025-02-02", "0.17.0"), ("2025-04-02", "0.18.0"), ("2025-04-09", "0.18.1"), ("2025-04-16", "0.18.2"),
        ("2025-05-09", "0.19.0"), ("2025-06-19", "0.20.0"), ("2025-08-04", "0.21.0"), ("2025-06-25", "1.0.0rc0"), ("2025-09-24", "1.0.0"), ("2025-08-15", "1.1.0rc0"), ("2025-12-19", "1.1.0"),
        ("2025-09-30", "1.2.0rc0"), ("2026-03-12", "1.2.0"), ("2026-04-20", "1.2.1"), ("2026-01-22", "1.3.0rc0"), ("2026-10-13", "1.4.0rc0"),
    ),
    "llamacpp": (
        ("2025-02-12", "b4696"), ("2025-09-22", "b6552"), ("2025-12-09", "b7340"), ("2026-04-18", "b8833"), ("2026-06-10", "b9174"),
    ),
}  # fmt: skip
"""Engine -> (day, version), ascending by version: days on which the packages vllm, sglang and tensorrt-llm were published.

llama.cpp has a build for nearly every commit: these are builds that published runs name, on the day of the run.
TensorRT-LLM is run from its first candidates on, which come months before a release, so they have rows too.
"""


def version_of(engine: str, date: str, *, candidates: bool = True) -> str | None:
    """Return the newest version that was out on a day; None before the first one.

    Parameters
    ----------
    engine : vllm, sglang or trtllm
    date : a day such as 2025-10-31, or a month, which means its middle, or a year, which means its beginning
    candidates : count those of releases too; packages around an engine have releases only

    Examples
    --------
    >>> version_of("vllm", "2024-10"), version_of("vllm", "2026-08-26"), version_of("trtllm", "2026-11")
    ('0.6.3', '0.28.0', '1.4.0rc0')
    """
    day = f"{date}-15" if len(date) == len("2025-10") else date[: len("2025-10-31")]
    out = [
        version
        for since, version in RELEASES.get(engine, ())
        if since <= day and (candidates or "rc" not in version)
    ]
    return out[-1] if out else None
