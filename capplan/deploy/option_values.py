"""Values of the options of engines, as their commands spell them."""

import json
import re
from collections.abc import Mapping
from typing import Any

from capplan.errors import LONGEST_SHOWN, InputError

KV_WORDS = {
    "vllm": {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"},
    "sglang": {"bf16": "bf16", "fp8": "fp8_e4m3"},
    "trtllm": {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"},
}
"""Engine -> what it calls a cache dtype."""
DTYPE_WORDS = {"bf16": "bfloat16", "fp16": "float16"}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
_MULTIPLES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
_KV_FORMATS = {
    word: name for words in KV_WORDS.values() for name, word in words.items()
} | {"half": "fp16", "fp8_e5m2": "fp8", "fp8_e4m3": "fp8"}  # fmt: skip


def count(text: str, name: str, place: str) -> int:
    """Return a whole number, which may be written as 32k (thousands) or 32K (1,024 each).

    Examples
    --------
    >>> count("32k", "--max-model-len", "--launch"), count("32K", "--max-model-len", "--launch")
    (32000, 32768)
    """
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise InputError(
            f"{place}: {name}: {text!r} is not a whole number, e.g. 8192 or 8k; what the engine would choose has to be written out"
        )
    value = float(match[1]) * _MULTIPLES[match[2]]
    if value != int(value) or not 1 <= value <= 1_000_000_000:
        raise InputError(f"{place}: {name}: {text!r} is out of range; 1 to 1000000000 are allowed")
    return int(value)


def amount(text: str, name: str, place: str, most: float = 1e9) -> float:
    """Return a number above zero; InputError where it is none, or above the most that is allowed."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value <= most:
        raise InputError(f"{place}: {name}: {text!r} is not a number above zero and at most {most:g}")
    return value


def kv_format(text: str, name: str, place: str) -> str | None:
    """Return the dtype of a KV cache as capplan calls it; None where the engine takes that of the checkpoint or the model."""
    if text == "auto":
        return None
    if text not in _KV_FORMATS:
        raise InputError(
            f"{place}: {name}: a KV cache in {text!r} is not modelled; known: auto, {', '.join(sorted(_KV_FORMATS))}"
        )
    return _KV_FORMATS[text]


def weight_dtype(said: Mapping[str, str], place: str) -> str | None:
    """Return the dtype that the engine makes of the checkpoint; a format that a checkpoint is published in is read from its config."""
    quantization, dtype = said.get("quantization"), said.get("dtype", "auto")
    if quantization == "fp8":
        return "fp8"
    if quantization in ("bitsandbytes", "torchao", "experts_int8", "w8a8_int8", "rtn"):
        raise InputError(
            f"{place}: --quantization {quantization} makes weights that are not modelled; leave it out"
        )
    spelled = {word: name for name, word in DTYPE_WORDS.items()} | {"half": "fp16"}
    if quantization is None and dtype in spelled:
        return spelled[dtype]
    if dtype not in (*spelled, "auto"):
        raise InputError(
            f"{place}: --dtype {dtype!r} is not modelled; known: auto, {', '.join(sorted(spelled))}"
        )
    return None


def json_object(text: str, name: str, place: str) -> Mapping[str, Any]:
    """Return the JSON object that an option takes; InputError where it is none."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InputError(f"{place}: {name} is no JSON object: {text[:LONGEST_SHOWN]!r}\n  quote it in '...'")
    return values
