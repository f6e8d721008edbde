"""Facts of a logged engine start that are written as free text, turned into columns of plain values once."""

import re
from collections.abc import Mapping

from capplan.engine.lookup import profile, version_key
from capplan.engine.releases import version_of

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH_YEAR = re.compile(r"\b(" + "|".join(_MONTHS) + r")[a-z]* (20\d\d)", re.IGNORECASE)
_ISO_MONTH = re.compile(r"\b(20\d\d)(?:-(\d\d))?\b")

_WEIGHTS = (
    (re.compile(r"float32|fp32", re.IGNORECASE), "fp32"),
    (re.compile(r"bfloat16|float16|bf16|fp16", re.IGNORECASE), "bf16"),
    (re.compile(r"fp8 block", re.IGNORECASE), "fp8_block"),
    (re.compile(r"nvfp4", re.IGNORECASE), "nvfp4"),
    (re.compile(r"mxfp4", re.IGNORECASE), "mxfp4"),
    (re.compile(r"fp8", re.IGNORECASE), "fp8"),
    (re.compile(r"w8a8|int8", re.IGNORECASE), "int8"),
    (re.compile(r"w4a16|int4|awq|gptq", re.IGNORECASE), "int4"),
)

LAST_V0 = "0.7.3"
"""The release whose rules hold for a newer vLLM that was started with its V0 engine."""


def release_of(engine: str, text: str) -> str:
    """Return the release meant by a hand-written version: a number as it is, else the release of its month.

    Parameters
    ----------
    engine : vllm, sglang or trtllm
    text : such as `0.11.2.dev690`, `Nov 2025 (V1)`, `0.8.x (V0)`, `2026-07 pin`

    Returns
    -------
    the release; empty where the text names none

    Examples
    --------
    >>> release_of("vllm", "Nov 2025 (V1)"), release_of("vllm", "0.8.x (V0)"), release_of("vllm", "nightly")
    ('0.11.0', '0.7.3', '')
    """
    release = text
    if version_key(text) is None:
        month = _month(text)
        release = (version_of(engine, month) if month else None) or ""
    if engine == "vllm" and "(V0)" in text and profile(engine, release or None).policy == "mixed":
        return LAST_V0
    return release


def _month(text: str) -> str | None:
    named = _MONTH_YEAR.search(text)
    if named:
        return f"{named[2]}-{_MONTHS.index(named[1].lower()[:3]) + 1:02d}"
    numbered = _ISO_MONTH.search(text)
    return f"{numbered[1]}-{numbered[2] or '12'}" if numbered else None


def weights_dtype_of(text: str) -> str:
    """Return our name of the weight dtype meant by a hand-written quantisation; empty where it names none.

    Examples
    --------
    >>> weights_dtype_of("INT8 W8A8 (compressed-tensors)"), weights_dtype_of("GGUF")
    ('int8', '')
    """
    return next((dtype for pattern, dtype in _WEIGHTS if pattern.search(text)), "")


def with_start_columns(row: Mapping[str, str]) -> dict[str, str]:
    """Return a logged start with the columns that its free text states.

    Parameters
    ----------
    row : text by column name; `engine_version`, `quantization`, `dp_ep` and `notes` are read here and nowhere else

    Returns
    -------
    the same row with `engine_release`, `weights_dtype`, `ep`, `dcp`, `draft_layer` and `enforce_eager`; values
    already in these columns are kept

    Examples
    --------
    >>> full = with_start_columns({"notes": "MTP n=3", "quantization": "NVFP4", "tp": "8", "dp_ep": "dcp8"})
    >>> full["draft_layer"], full["weights_dtype"], full["dcp"]
    ('1', 'nvfp4', '8')
    """
    split, notes = row.get("dp_ep") or "", row.get("notes") or ""
    context = re.search(r"dcp(\d+)", split)
    known = {
        "engine_release": release_of(row.get("engine") or "vllm", row.get("engine_version") or ""),
        "weights_dtype": weights_dtype_of(row.get("quantization") or ""),
        "ep": (row.get("tp") or "") if split.startswith("ep") else "",
        "dcp": context[1] if context else "",
        "draft_layer": "1" if "MTP" in notes else "",
        "enforce_eager": "1" if "eager" in notes.lower() else "",
    }
    return {**row, **{name: text for name, text in known.items() if not row.get(name)}}
