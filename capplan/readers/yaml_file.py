"""YAML files, strictly: built from the parser's events, so that nothing in the file is ever executed.

Plain scalars follow the core schema of YAML 1.2: `no` is a text, not false, and a date stays a
text. Duplicate keys, tags, NaN, and aliases that blow up are errors with their line. What `yaml_text` writes
reads back unchanged.
"""

import math
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import yaml

from capplan.assumption import Assumption
from capplan.errors import LONGEST_SHOWN, InputError
from capplan.readers.text_file import MAX_BYTES, MAX_DEPTH, read_text

MAX_NODES = 200_000
"""Most values in one file; those behind an alias count each time."""
MOST_RESULT_NODES = 2_000_000
"""Most values in a file that a tool wrote."""

KeyPath: TypeAlias = tuple[str | int, ...]

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,30})")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NUMBERS = frozenset("+-.0123456789")
"""What a number begins with."""
_HASH = re.compile(r"(?=.*[0-9])[0-9a-f]{8,}")
"""Hexadecimal digits are quoted, whatever a reader might take them for."""
_NAMED = {"": None, "~": None, "null": None, "Null": None, "NULL": None} | {
    word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")
}


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a YAML file, with line numbers."""

    name: str
    value: Any
    lines: dict[KeyPath, int]
    """Key path -> line, from 1; 0 if the key is overridden, so that it stands on no line."""
    flags: Mapping[KeyPath, str] = field(default_factory=dict, repr=False)
    """Key path -> the flag that overrides the key."""
    assumed: tuple[Assumption, ...] = field(default=(), repr=False)
    """Defaults of keys that are not stated."""

    def line(self, path: KeyPath) -> int | None:
        """Return the line of a key, or of the nearest one around it; None where that is the whole file."""
        return next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)

    def place(self, path: KeyPath) -> str:
        """Return 'file: line N: key.path' for an error, or the flag that overrides the key.

        Examples
        --------
        >>> Document("a.yaml", {}, {("slo",): 4}).place(("slo", "ttft"))
        'a.yaml: line 4: slo.ttft'
        >>> Document("a.yaml", {}, {("slo",): 4, ("slo", "ttft"): 0}).place(("slo", "ttft"))
        'a.yaml: overridden: slo.ttft'
        >>> Document("a.yaml", {}, {}, {("slo", "ttft"): "--ttft"}).place(("slo", "ttft"))
        '--ttft'
        """
        flag = next((self.flags[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.flags), None)
        if flag is not None:
            return flag
        number = self.line(path)
        line = f" line {number}:" if number else " overridden:" if number == 0 else ""
        return f"{self.name}:{line} {key_path(path)}".rstrip(" :")


def key_path(path: KeyPath) -> str:
    """Return the text of a key path.

    Examples
    --------
    >>> key_path(("traffic", 0, "request_rate"))
    'traffic[0].request_rate'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return text


@dataclass(slots=True)
class _Anchor:
    value: Any
    nodes: int


@dataclass(slots=True)
class _Reader:
    """Builds values from events, counting what it builds."""

    name: str
    text: str
    most_nodes: int = MAX_NODES
    finite: bool = True
    """Numbers that are not finite are errors."""
    nodes: int = 0
    lines: dict[KeyPath, int] = field(default_factory=dict)
    anchors: dict[str, _Anchor | None] = field(default_factory=dict)
    event: Callable[[], Any] = field(init=False)
    """Returns the next event."""

    def refuse(self, event: Any, message: str) -> InputError:
        return InputError(f"{self.name}: line {event.start_mark.line + 1}: {message}")

    def count(self, event: Any, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > self.most_nodes:
            raise self.refuse(
                event, f"holds more than {self.most_nodes:,} values, those behind aliases counted each time"
            )

    def documents(self, most: int) -> list[Any]:
        """Return the value of each document in the stream."""
        self.event = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(self.text).get_event
        values: list[Any] = []
        self.event()  # the start of the stream
        while not isinstance(start := self.event(), yaml.StreamEndEvent):
            if len(values) == most:
                raise self.refuse(start, "a second document starts here; keep one per file")
            event = self.event()
            self.lines.setdefault((), event.start_mark.line + 1)
            values.append(self.value(event, ()))
            self.event()  # the end of the document
        if not values:
            raise InputError(f"{self.name}: is empty apart from comments")
        return values

    def value(self, event: Any, path: KeyPath) -> Any:
        """Return the value that starts at an event."""
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        if event.tag is not None:
            raise self.refuse(event, f"the tag {event.tag[:60]!r} is not read; write a plain value")
        if len(path) > MAX_DEPTH:
            raise self.refuse(event, f"is nested deeper than {MAX_DEPTH} levels")
        before = self.nodes
        self.count(event, 1)
        if event.anchor:
            self.anchors[event.anchor] = None  # until it is complete, an alias to it is a loop
        if isinstance(event, yaml.ScalarEvent):
            value: Any = self.scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self.sequence(path)
        else:
            value = self.mapping(path)
        if event.anchor:
            self.anchors[event.anchor] = _Anchor(value, self.nodes - before)
        return value

    def alias(self, event: Any) -> Any:
        if event.anchor not in self.anchors:
            raise self.refuse(event, f"*{event.anchor} has no anchor &{event.anchor} before it")
        anchor = self.anchors[event.anchor]
        if anchor is None:
            raise self.refuse(event, f"*{event.anchor} refers to itself")
        self.count(event, anchor.nodes)
        return anchor.value

    def sequence(self, path: KeyPath) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := self.event(), yaml.SequenceEndEvent):
            place = (*path, len(values))
            self.lines[place] = event.start_mark.line + 1
            values.append(self.value(event, place))
        return values

    def mapping(self, path: KeyPath) -> dict[str, Any]:
        table: dict[str, Any] = {}
        while not isinstance(event := self.event(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
                raise self.refuse(event, "a key must be a plain word")
            key, mark = event.value, cast("Any", event.start_mark)
            if key in table:
                where = f" in {key_path(path)}" if path else ""
                raise self.refuse(event, f"{key[:60]!r} is given twice{where}; keep one")
            place = (*path, key)
            self.lines[place] = mark.line + 1
            table[key] = self.value(self.event(), place)
        return table

    def scalar(self, event: Any) -> str | int | float | bool | None:
        text: str = event.value
        if event.style:
            return text
        value = _plain_scalar(text)
        if self.finite and isinstance(value, float) and not math.isfinite(value):
            raise self.refuse(event, f"{text[:60]} is not a finite number; write a number or null")
        return value


def _plain_scalar(text: str) -> str | int | float | bool | None:
    """Return the value of a scalar without quotes."""
    if text in _NAMED:
        return _NAMED[text]
    if text[0] not in _NUMBERS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return float(text) if _FLOAT.fullmatch(text) else text


def parse_yaml(text: str, name: str) -> Document:
    """Return the document in a YAML text.

    Examples
    --------
    >>> parse_yaml("a: {b: 141 GB, c: no}", "x.yaml").value
    {'a': {'b': '141 GB', 'c': 'no'}}
    """
    reader = _reader(text, name)
    return Document(name, _values(reader, most=1)[0], reader.lines)


def yaml_values(text: str, name: str) -> list[Any]:
    """Return the value of each document in a YAML text that a tool wrote: large, and with numbers that are not finite.

    Examples
    --------
    >>> yaml_values("{rate: .inf}", "x.yaml")
    [{'rate': inf}]
    """
    reader = _reader(text, name, most_nodes=MOST_RESULT_NODES, finite=False)
    return _values(reader, most=len(text))


def _reader(text: str, name: str, **limits: Any) -> _Reader:
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError(f"{name}: {text[:LONGEST_SHOWN]!r} is not Unicode text")
    return _Reader(name, text, **limits)


def _remedy(problem: str) -> str:
    """Return what mends the commonest faults of YAML that people type, empty for others."""
    if "tab" in problem or "'\\t'" in problem:
        return "; indent with spaces"
    if "mapping values are not allowed" in problem or "expected <block end>" in problem:
        return "; indent this line like its neighbours, and put a text that holds ': ' in quotes"
    return ""


def _values(reader: _Reader, most: int) -> list[Any]:
    """Return the value of each document, or the error that names file and line."""
    try:
        return reader.documents(most)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        why = str(error.problem or error.context)
        raise InputError(f"{reader.name}:{line} is not YAML ({why}){_remedy(why)}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{reader.name}: is not YAML ({str(error).splitlines()[0]})") from None


_MANIFEST = re.compile(r"^(?:apiVersion|services|servingEngineSpec|modelArtifacts):", re.MULTILINE)
"""Keys at the top of what starts engines elsewhere; no file of capplan has them."""


def read_yaml(path: str | os.PathLike[str], *, kind: str, way_out: str = "") -> Document:
    """Return the document in a YAML file, which must be a mapping.

    Parameters
    ----------
    path : path
    kind : str
        What the file should be, for the error, such as 'a scenario YAML'.
    way_out : str
        One thing to do when the file is missing.

    Returns
    -------
    Document
        The values and the line of every key.
    """
    name = os.fspath(path)
    text = read_text(path, kind=kind, way_out=way_out, max_bytes=MAX_BYTES)
    if _MANIFEST.search(text):
        raise InputError(
            f"{name}: is a manifest; {kind} is expected\n  a scenario from it: capplan init --from {shlex.quote(name)}"
        )
    document = parse_yaml(text, name)
    if not isinstance(document.value, dict):
        held = "a list" if isinstance(document.value, list) else "a single value"
        raise InputError(f"{name}: is {held}; {kind} is 'key: value' lines")
    return document


class _Writer(yaml.SafeDumper):
    """Quotes a text that would be read as something else."""

    def ignore_aliases(self, data: object) -> bool:
        """Write a value in full at every place it is used."""
        del data
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Return the node of a text; a hash such as 1234567e8 is quoted to stay text, a line break is escaped."""
        plain = _plain_scalar(text) == text and not _HASH.fullmatch(text)
        style = '"' if not text.isprintable() else None if plain else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


class _ShortWriter(_Writer):
    """Writes each mapping of a list on one line."""

    def represent_rows(self, items: list[Any]) -> yaml.SequenceNode:
        """Return the node of a list."""
        node = self.represent_sequence("tag:yaml.org,2002:seq", items)
        for child in node.value:
            child.flow_style = True
        return node


_Writer.add_representer(str, _Writer.represent_text)
_ShortWriter.add_representer(list, _ShortWriter.represent_rows)


def yaml_text(values: Mapping[str, Any], *, short: bool = True, width: int = 1_000_000) -> str:
    """Return the YAML that `parse_yaml` reads back as these values.

    Parameters
    ----------
    values : mappings, lists, texts, finite numbers, true, false and None
    short : mappings that hold no others, and those in lists, take one line each
    width : of a line before it is folded

    Examples
    --------
    >>> print(yaml_text({"hash": "1234567e8", "rows": [{"size": {"m": 1.0}}]}), end="")
    hash: '1234567e8'
    rows:
    - {size: {m: 1.0}}
    """
    text: str = yaml.dump(
        dict(values),
        Dumper=_ShortWriter if short else _Writer,
        sort_keys=False,
        allow_unicode=True,
        width=width,
        default_flow_style=None if short else False,
    )
    return text


def schema_line(name: str) -> str:
    """Return the first line of a file, by which editors complete and check it: the published schema, as a path is one of this machine.

    Examples
    --------
    >>> schema_line("scenario")
    '# yaml-language-server: $schema=https://OWNER.github.io/capplan/schema/scenario.json'
    """
    return f"# yaml-language-server: $schema=https://OWNER.github.io/capplan/schema/{name}.json"
