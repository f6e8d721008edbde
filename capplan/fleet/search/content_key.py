"""Keys of values by their content, the same in every process and run; records, sets and arrays included."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from typing import Any


def content_key(*values: Any) -> str:
    """Return a key that is equal for equal values, whatever the order of their sets.

    Parameters
    ----------
    values : records of numbers, texts, lists, sets, mappings and arrays

    Returns
    -------
    24 hexadecimal digits

    Examples
    --------
    >>> content_key({"fp8", "bf16", "int4"}) == content_key({"int4", "fp8", "bf16"})
    True
    >>> content_key(1.0) == content_key(1)
    False
    """
    return sha256(_text([_content(value) for value in values]).encode()).hexdigest()[:24]


def _text(content: Any) -> str:
    return json.dumps(content, ensure_ascii=True, separators=(",", ":"))


@cache
def _field_names(record: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(record))


def _content(value: Any) -> Any:
    """Return a value as nested lists of what JSON knows."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return [
            type(value).__name__,
            *[[name, _content(getattr(value, name))] for name in _field_names(type(value))],
        ]
    if isinstance(value, Mapping):
        return ["mapping", *sorted(([_content(k), _content(v)] for k, v in value.items()), key=_text)]
    if isinstance(value, (set, frozenset)):
        return ["set", *sorted(map(_content, value), key=_text)]
    if isinstance(value, (list, tuple)):
        return ["list", *map(_content, value)]
    if hasattr(value, "tolist"):
        return ["array", str(value.dtype), value.tolist()]
    return [type(value).__name__, str(value)]
