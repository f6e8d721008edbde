"""The section of a config that states the quantisation, and the modules that it leaves out."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from capplan.errors import InputError
from capplan.families.config import Config

LEFT_OUT = "left out"
"""Marks a module that stays unquantised."""
_LISTS = (
    "ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules", "exclude",
)  # fmt: skip
"""Keys under which quantisers list such modules."""
FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""Files next to config.json in which NVIDIA's quantiser, AutoGPTQ and AutoAWQ state what config.json may not."""
_TEXT = re.compile(r"(?:text|llm|language|thinker|decoder|model|llm_model|language_model)(?:_config)?")
"""Sections of a file that hold a text model."""
_DEEPEST = 3
"""Sections within sections that are looked into."""


def left_out(section: Config) -> Iterator[tuple[str, str]]:
    """Yield each module name that stays unquantised."""
    for key in _LISTS:
        names = section.values.get(key)
        if names is None:
            continue
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise section.error(key, "not a list of module names")
        for name in names:
            yield name, LEFT_OUT


def quantization_section(
    config: Mapping[str, Any], place: str, quantization_file: tuple[str, Mapping[str, Any]] | None = None
) -> Config | None:
    """Return the section that states the quantisation, or None for an unquantised checkpoint.

    Parameters
    ----------
    config : the parsed config.json
    place : the file, as errors name it
    quantization_file : name and content of the first of `FILES` next to it, where there is one

    Returns
    -------
    the section with its place

    Examples
    --------
    >>> quantization_section({"quantization_config": None}, "config.json") is None
    True
    """
    for path, holder in _text_parts(config):
        for key in ("quantization_config", "compression_config", "quantization"):
            values = holder.get(key)
            if values is None or values == {} or (key == "quantization" and not isinstance(values, Mapping)):
                continue
            if not isinstance(values, Mapping):
                raise InputError(f"{place}: {path}{key}: not an object")
            return Config(values, place, f"{path}{key}.")
    return None if quantization_file is None else _of_file(*quantization_file)


def _text_parts(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the file and the sections of its text model, however deep, with the path of each; towers are left out."""
    waiting: list[tuple[str, Mapping[str, Any]]] = [("", config)]
    for path, holder in waiting:
        yield path, holder
        waiting.extend(
            (f"{path}{key}.", inner)
            for key, inner in holder.items()
            if isinstance(inner, Mapping) and _TEXT.fullmatch(key) and path.count(".") < _DEEPEST
        )


def _of_file(name: str, values: Mapping[str, Any]) -> Config:
    """Return the section of a file next to config.json: of NVIDIA's quantiser, or of early AutoGPTQ and AutoAWQ."""
    inner = values.get("quantization", values)
    if not isinstance(inner, Mapping):
        raise InputError(f"{name}: quantization: not an object")
    if "quant_method" in inner:
        return Config(inner, name)
    if "w_bit" in inner or "q_group_size" in inner:
        return Config({"quant_method": "awq", **inner}, name)
    if "bits" in inner:
        return Config({"quant_method": "gptq", **inner}, name)
    return Config({"quant_method": "modelopt", **inner}, name, "quantization." if inner is not values else "")
