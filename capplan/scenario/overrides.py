"""Keys of a scenario that are overridden on the command line."""

import json
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from capplan.errors import InputError, unknown
from capplan.readers.yaml_file import Document, KeyPath, key_path, parse_yaml
from capplan.scenario.scenario_file import ScenarioFile

_PART = re.compile(r"\.?([A-Za-z_][\w-]*)|\[([0-9]{1,9})\]")
_EXAMPLE = "e.g. --set slo.ttft_p95='600 ms', --set 'traffic[0].request_rate=40 req/s'"


def key_of(text: str) -> KeyPath:
    """Return the parts of a key path.

    Examples
    --------
    >>> key_of("traffic[0].request_rate")
    ('traffic', 0, 'request_rate')
    """
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or (text[at] == "." and not parts):
            raise InputError(f"--set: {text!r} is not a key of a scenario\n  {_EXAMPLE}")
        parts.append(part[1] if part[2] is None else int(part[2]))
        at = part.end()
    if not parts or not isinstance(parts[0], str):
        raise InputError(f"--set: {text!r} is not a key of a scenario\n  {_EXAMPLE}")
    return tuple(parts)


def overridden(document: Document, settings: Sequence[str]) -> Document:
    """Return a document with some keys overridden, each as KEY=VALUE with a YAML value; checked like the file itself."""
    value = deepcopy(document.value)
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"--set: {setting!r} is not KEY=VALUE\n  {_EXAMPLE}")
        _put(value, key_of(key.strip()), parse_yaml(text, f"--set {key.strip()}").value)
    return replace(document, value=value)


def _put(value: Any, path: KeyPath, new: Any) -> None:
    first = path[0]
    if isinstance(value, dict) and first not in value and first not in ScenarioFile.model_fields:
        raise unknown(
            "key", str(first), ScenarioFile.model_fields, place=f"--set: {key_path(path)}", hint=_EXAMPLE
        )
    for at, part in enumerate(path[:-1]):
        if isinstance(value, dict) and isinstance(part, str) and part not in value:
            value[part] = [] if isinstance(path[at + 1], int) else {}
        value = _inside(value, part, path)
    last = path[-1]
    if isinstance(value, dict) and isinstance(last, str):
        value[last] = new
    else:
        _inside(value, last, path)
        value[last] = new


def _inside(value: Any, part: str | int, path: KeyPath) -> Any:
    fits = isinstance(value, list) and isinstance(part, int) and part < len(value)
    if fits or (isinstance(value, dict) and part in value):
        return value[part]
    entries = f"; it has {len(value)} entries, numbered from 0" if isinstance(value, list) else ""
    raise InputError(f"--set: the scenario has no {part!r} for {key_path(path)}{entries}\n  {_EXAMPLE}")


def settings_of(
    hardware: Sequence[str] | None, confidence: float | None, settings: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the overrides of --set and of the flags that stand for a key, each as KEY=VALUE."""
    changed = [f"fleet.hardware={json.dumps(list(hardware))}"] if hardware else []
    changed += [] if confidence is None else [f"slo.confidence={confidence!r}"]
    return (*changed, *(settings or ()))
