"""The serving engine that a text means: the spellings of result files, and engines inside NIM or Dynamo."""

import re
from typing import NamedTuple

from capplan.errors import InputError, unknown

SPELLINGS: dict[str, tuple[str, ...]] = {
    "vllm": ("vllm", "vllm-openai", "vllm-chat", "vllm-serve"),
    "sglang": ("sglang", "sgl", "sglang-oai", "sglang-oai-chat", "sglang-native"),
    "trtllm": ("trtllm", "trt-llm", "tensorrt-llm", "tensorrtllm", "trt", "tensorrt", "trtllm-serve", "trtllm-bench"),
}  # fmt: skip
"""Engine -> its spellings, lower case and with `-` between words."""

_ENGINE = {spelling: engine for engine, spellings in SPELLINGS.items() for spelling in spellings}
_PACKAGED = re.compile(r"(?:nvidia-)?(?P<package>nim|dynamo|triton)\b-?[(/-]?(?P<inside>[^)]*)\)?")
_SPLIT = re.compile(r"[(-]?disagg(regated)?\)?$")


class NamedEngine(NamedTuple):
    """What a text says about a serving engine."""

    engine: str
    """vllm, sglang or trtllm."""
    packaged: bool = False
    """Shipped inside NIM, Dynamo or Triton, which count their versions on their own."""


def named_engine(text: str) -> NamedEngine:
    """Return the engine that a text means, whatever its case and punctuation.

    Parameters
    ----------
    text : such as `vllm`, `TensorRT-LLM`, `trt_llm`, `nim(trtllm)`, `dynamo-sglang`

    Returns
    -------
    engine; InputError where it is unknown, where only the package around it is named, or where the text
    says that prefill and decode ran apart

    Examples
    --------
    >>> named_engine("TensorRT-LLM").engine, named_engine("nim(trtllm)").engine
    ('trtllm', 'trtllm')
    >>> named_engine("dynamo-sglang")
    NamedEngine(engine='sglang', packaged=True)
    """
    name = re.sub(r"[\s_]+", "-", text.strip().lower())
    if _SPLIT.search(name):
        raise InputError(
            f"engine: {text!r} serves prefill and decode apart, which is not modelled\n"
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
    return NamedEngine(_ENGINE[inside], package is not None)
