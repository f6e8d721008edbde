"""The section of a config that states the quantisation, and the modules that it leaves out."""

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
    config: Mapping[str, Any], place: str, hf_quant_config: Mapping[str, Any] | None = None
) -> Config | None:
    """Return the section that states the quantisation, or None for an unquantised checkpoint.

    Parameters
    ----------
    config : the parsed config.json
    place : the file, as errors name it
    hf_quant_config : the parsed hf_quant_config.json, where there is one

    Returns
    -------
    the section with its place

    Examples
    --------
    >>> quantization_section({"quantization_config": None}, "config.json") is None
    True
    """
    for path, holder in (("", config), ("text_config.", config.get("text_config"))):
        for key in ("quantization_config", "compression_config"):
            values = holder.get(key) if isinstance(holder, Mapping) else None
            if values is None or values == {}:
                continue
            if not isinstance(values, Mapping):
                raise InputError(f"{place}: {path}{key}: not an object")
            return Config(values, place, f"{path}{key}.")
    if hf_quant_config is not None:
        inner = hf_quant_config.get("quantization", hf_quant_config)
        if not isinstance(inner, Mapping):
            raise InputError("hf_quant_config.json: quantization: not an object")
        return Config({"quant_method": "modelopt", **inner}, "hf_quant_config.json", "quantization.")
    return None
