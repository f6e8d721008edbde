"""Engines as texts name them: spellings, and the release months of versions."""

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


RELEASES: dict[str, tuple[tuple[str, str], ...]] = {
    "vllm": (
        ("2023-06", "0.1.0"), ("2024-04", "0.4.0"), ("2024-07", "0.5.3"), ("2024-09", "0.6.0"),
        ("2025-01", "0.7.0"), ("2025-03", "0.8.0"), ("2025-05", "0.9.0"), ("2025-07", "0.10.0"),
        ("2025-10", "0.11.0"), ("2025-12", "0.12.0"), ("2026-01", "0.14.0"), ("2026-02", "0.15.0"),
        ("2026-03", "0.17.0"), ("2026-04", "0.19.0"), ("2026-05", "0.20.0"),
    ),
    "sglang": (
        ("2024-01", "0.1.0"), ("2024-07", "0.2.0"), ("2024-09", "0.3.0"), ("2024-12", "0.4.0"),
        ("2025-08", "0.5.0"), ("2025-10", "0.5.3"), ("2025-12", "0.5.6"), ("2026-03", "0.5.9"),
    ),
    "trtllm": (
        ("2023-10", "0.5.0"), ("2024-02", "0.8.0"), ("2024-04", "0.9.0"), ("2024-07", "0.11.0"),
        ("2024-09", "0.13.0"), ("2024-11", "0.14.0"), ("2025-06", "0.20.0"), ("2025-09", "1.0.0"),
        ("2025-12", "1.2.0"),
    ),
}  # fmt: skip
"""Engine -> (month, version), ascending: release pages of vllm-project/vllm, sgl-project/sglang, NVIDIA/TensorRT-LLM."""


def version_of(engine: str, month: str) -> str | None:
    """Return the newest version released by a month such as 2025-10; None before the first one.

    Examples
    --------
    >>> version_of("vllm", "2024-10")
    '0.6.0'
    """
    out = [version for since, version in RELEASES.get(engine, ()) if since <= month[:7]]
    return out[-1] if out else None
