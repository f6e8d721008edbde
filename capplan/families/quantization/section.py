"""Where a checkpoint states its quantisation, and its keys, checked."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from capplan.errors import InputError

LEFT_OUT = "left out"
"""The value of a module that stays unquantised."""


@dataclass(frozen=True, slots=True)
class Section:
    """A quantisation config: its keys, checked as they are read."""

    values: Mapping[str, Any]
    place: str
    lists: tuple[str, ...] = field(
        default=(
            "ignore",
            "exclude_modules",
            "modules_to_not_convert",
            "ignored_layers",
            "llm_int8_skip_modules",
            "exclude",
        )
    )

    def left_out(self) -> Iterator[tuple[str, str]]:
        """Yield each module name that stays unquantised."""
        for key in self.lists:
            names = self.values.get(key)
            if names is None:
                continue
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise InputError(f"{self.place}.{key}: not a list of module names")
            for name in names:
                yield self.checked(key, name), LEFT_OUT

    def checked(self, key: str, name: str) -> str:
        """Return a name or pattern; a regular expression has to be one."""
        if name.startswith("re:"):
            try:
                re.compile(name[3:])
            except re.error as error:
                raise InputError(
                    f"{self.place}.{key}: {name!r} is not a regular expression ({error})"
                ) from None
        return name

    def number(self, key: str, default: int) -> int:
        """Return a whole number."""
        value: Any = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{self.place}.{key}: {value!r} is not a whole number")
        return int(value)

    def objects(self, key: str) -> Mapping[str, Any]:
        """Return a nested object, empty where it is missing."""
        value = self.values.get(key) or {}
        if not isinstance(value, Mapping):
            raise InputError(f"{self.place}.{key}: not an object")
        return value


def quantization_section(
    config: Mapping[str, Any], place: str, hf_quant_config: Mapping[str, Any] | None = None
) -> Section | None:
    """Return the section that states the quantisation, or None for an unquantised checkpoint.

    Parameters
    ----------
    config : the parsed config.json
    place : the file, as an error should name it
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
            return Section(values, f"{place}: {path}{key}")
    if hf_quant_config is not None:
        inner = hf_quant_config.get("quantization", hf_quant_config)
        if not isinstance(inner, Mapping):
            raise InputError("hf_quant_config.json: quantization: not an object")
        return Section({"quant_method": "modelopt", **inner}, "hf_quant_config.json: quantization")
    return None
