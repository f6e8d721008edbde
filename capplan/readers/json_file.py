"""JSON files: hand-written ones read strictly (one object, no duplicate key, no NaN), those of tools leniently."""

import json
import os
import re
from typing import Any

from capplan.errors import InputError
from capplan.readers.text_file import MAX_BYTES, MAX_DEPTH, read_text

_KINDS = {
    list: "a list",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


_WORD = re.compile(r"\S")
MOST_VALUES = 16_000_000
"""Most values in one result file; the requests of a long benchmark with all their times have a few million."""


def _deeper_than(value: object, levels: int) -> bool:
    """Return whether lists and objects are nested deeper than a number of levels."""
    level = [value]
    for _ in range(levels + 1):
        if not level:
            return False
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    return bool(level)


def _unique(name: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise InputError(f"{name}: {key[:60]!r} is given twice; keep one")
        table[key] = value
    return table


def read_json(
    path: str | os.PathLike[str],
    *,
    kind: str = "a JSON object",
    max_bytes: int = MAX_BYTES,
    infinities: bool = False,
) -> dict[str, Any]:
    """Return the object of a JSON file.

    Parameters
    ----------
    path : path
    kind : str
        What the file should be, for the error, such as "a model's config.json".
    max_bytes : [B]
        A longer file is refused.
    infinities : bool
        Read `Infinity` and `NaN`, which Python's writer of JSON leaves in files of other tools; whoever uses such
        a number has to refuse it.

    Returns
    -------
    The object; numbers are finite unless infinities are read.
    """
    name = os.fspath(path)
    text = read_text(path, kind=kind, max_bytes=max_bytes)

    def constant(word: str) -> float:
        if infinities:
            return float(word)
        raise InputError(f"{name}: {word} is not a number that can be used; write a finite number or null")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return _unique(name, pairs)

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name}: line {error.lineno}, column {error.colno}: is not JSON ({error.msg.lower()}); {kind} is expected"
        ) from None
    except RecursionError:
        raise InputError(f"{name}: is nested too deeply; {kind} is expected") from None
    except ValueError:
        raise InputError(f"{name}: holds a number with too many digits; {kind} is expected") from None
    if _deeper_than(value, MAX_DEPTH):
        raise InputError(f"{name}: is nested too deeply; {kind} is expected")
    if not isinstance(value, dict):
        raise InputError(
            f"{name}: is {_KINDS.get(type(value), 'something else')}; {kind}, that is an object, is expected"
        )
    return value


def _next_word(text: str, position: int) -> int:
    """Return where the next character is that is no space."""
    match = _WORD.search(text, position)
    return match.start() if match else len(text)


def json_values(text: str, name: str) -> list[Any]:
    """Return the values in a JSON text that a tool wrote: one, the items of one list, or one after another.

    Examples
    --------
    >>> json_values('{"rate": 1} {"rate": Infinity}', "x.json")
    [{'rate': 1}, {'rate': inf}]
    """
    if sum(map(text.count, ",[{")) > MOST_VALUES:
        raise InputError(f"{name}: holds more than {MOST_VALUES:,} values; is it the right file?")
    decoder = json.JSONDecoder()
    values: list[Any] = []
    position = 0
    while (position := _next_word(text, position)) < len(text):
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, position) + 1
            if isinstance(error, RecursionError):
                why = "is nested too deeply"
            elif isinstance(error, json.JSONDecodeError):
                why = "does not hold a complete JSON value; was the file cut short?"
            else:
                why = "holds a number with too many digits"
            raise InputError(f"{name}: line {line} {why}") from None
        values.append(value)
    if _deeper_than(values, MAX_DEPTH):
        raise InputError(f"{name}: is nested too deeply")
    return list(values[0]) if len(values) == 1 and isinstance(values[0], list) else values
