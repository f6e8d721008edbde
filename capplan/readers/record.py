"""The strict base of every file schema, the quantity types, and validation errors as one clear line."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError

from capplan.errors import InputError, nearest, together, unknown
from capplan.ranges import REVISION, is_revision
from capplan.readers.yaml_file import Document, KeyPath, key_path


class Record(BaseModel):
    """A record of a file: a misspelt key is an error, never a silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    removed: ClassVar[Mapping[str, str]] = {}
    """Key of the file, or KEY: VALUE, that there is no more -> what to write instead."""


def strict_record(name: str, keys: Mapping[str, tuple[Any, Any]]) -> type[Record]:
    """Return a record of these keys, each with its type and its default (`...`: none), in which no text or truth value is a number."""
    base = type(name, (Record,), {"model_config": ConfigDict(strict=True), "__module__": __name__})
    fields_of: dict[str, Any] = dict(keys)
    return create_model(name, __base__=base, **fields_of)


class OrNumber:
    """Marks a record that may be written as one number: its schema has the number next to it."""

    @staticmethod
    def __get_pydantic_json_schema__(of: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema of both."""
        return {"anyOf": [{"type": "number"}, {"type": "string"}, handler.resolve_ref_schema(handler(of))]}


T = TypeVar("T")
LARGEST_WHOLE = 2**53
"""Whole numbers up to which a float is exact; nothing that is counted here is more."""


def refuse_unlisted(used: Iterable[str], sources: Mapping[str, object]) -> None:
    """Raise the error of a validator for a source that a figure names and the file does not list."""
    if missing := sorted(set(used) - sources.keys()):
        raise ValueError(f"the source {missing[0]!r} is used but not listed under 'sources'")


def unknown_name(what: str, name: str, known: Iterable[str]) -> PydanticCustomError:
    """Return the error of a validator for a name that is not in a list; the printed line names the nearest."""
    return PydanticCustomError("unknown_name", "{what}", {"what": what, "name": name, "known": list(known)})


def one_or_more(item: dict[str, Any]) -> WithJsonSchema:
    """Return the JSON Schema of a field that takes one value or a list of them."""
    return WithJsonSchema({"anyOf": [item, {"type": "array", "items": item, "minItems": 1}]})


def _revision(written: str) -> str:
    if not is_revision(written):
        raise ValueError(REVISION)
    return written


RevisionName = Annotated[str, AfterValidator(_revision)]
"""Branch, tag or commit of a model on the hub."""


def record_of(annotation: Any) -> type | None:
    """Return the record or dataclass inside an annotation such as ``list[Traffic] | None``."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return annotation
    inner = map(record_of, getattr(annotation, "__args__", ()))
    return next(filter(None, inner), None)


@cache
def keys_of(schema: type) -> Mapping[str, FieldInfo]:
    """Return the keys of a record, a pydantic model or a dataclass."""
    if issubclass(schema, BaseModel):
        return dict(schema.model_fields)
    kinds = get_type_hints(schema, include_extras=True)
    return {
        key.name: FieldInfo.from_annotated_attribute(kinds[key.name], key)
        for key in fields(cast("Any", schema))
    }


def _known_keys(schema: type, path: KeyPath) -> list[str]:
    """Return the keys that the record at a key path knows."""
    current: type | None = schema
    for part in path:
        known = keys_of(current) if current else {}
        if part in known:  # any other part is an index or a name chosen in the file
            current = record_of(known[str(part)].annotation)
    return sorted(keys_of(current)) if current else []


def _real_path(data: Any, path: KeyPath) -> KeyPath:
    """Return the part of an error's path that exists in the data (unions and validators add parts)."""
    real: list[str | int] = []
    for index, part in enumerate(path):
        is_last = index == len(path) - 1
        if isinstance(data, dict) and (part in data or (is_last and isinstance(part, str))):
            real.append(part)
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            real.append(part)
            data = data[part]
    return tuple(real)


_WORDS = {
    "string_type": "must be text; put it in quotes if it looks like a number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "list_type": "must be a list, e.g. [a, b]; longer entries begin with '- '",
    "tuple_type": "must be a list, e.g. [a, b]; longer entries begin with '- '",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "too_short": "is empty; give at least one",
}


_MAPPINGS = ("dict_type", "mapping_type", "model_type", "dataclass_type")

_SUBJECTS = ("Value error, ", "Input ", "String ")


def _sentence(message: str) -> str:
    """Return a message of pydantic without its subject, which the key is."""
    return next((message.removeprefix(s) for s in _SUBJECTS if message.startswith(s)), message)


_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")


def _mistake(schema: type, document: Document, error: ErrorDetails) -> InputError:
    path = _real_path(document.value, tuple(error["loc"]))
    mistake = _said(schema, document, error, path)
    mistake.line = document.line(path)
    return mistake


def _in_yaml(value: object) -> str:
    """Return a single value as it stands in the file, with escapes for what a terminal would act on."""
    if value is None or isinstance(value, bool) or not str(value).isprintable():
        return json.dumps(value)
    return str(value)


def _unknown_key(schema: type, path: KeyPath, name: str, place: str) -> InputError:
    """Return the error for a key that a record does not know; at the top of a file with the record that knows it."""
    known = _known_keys(schema, path[:-1])
    within = [
        f"{key}{'[0]' if 'list[' in str(info.annotation) else ''}.{name}"
        for key, info in keys_of(schema).items()
        if len(path) == 1 and (record := record_of(info.annotation)) and name in keys_of(record)
    ]
    if not within:
        return unknown("key", name, known, place=place)
    listed = f"\n  known: {', '.join(known[:24])}, ..."
    return InputError(f"{place}: unknown key {name!r}: did you mean {' or '.join(within[:2])}?{listed}")


def _said(schema: type, document: Document, error: ErrorDetails, path: KeyPath) -> InputError:
    kind = error["type"]
    place = document.place(path)
    if kind in _UNKNOWN_KEY:
        return _unknown_key(schema, path, str(error["loc"][-1]), place)
    if kind == "unknown_name":
        named = error["ctx"]
        return unknown(named["what"], named["name"], named["known"], place=place)
    given = error.get("input")
    instead = getattr(schema, "removed", {}).get(f"{key_path(path)}: {given}")
    if instead is not None:
        return InputError(f"{place}: {given} was removed: {instead}")
    shown = (
        ""
        if isinstance(given, (dict, list)) or kind in ("quantity", "missing")
        else f"{_in_yaml(given):.60} "
    )
    if kind == "missing":
        return InputError(f"{place}: is missing; it has no default")
    if kind == "literal_error":
        allowed = [
            word.strip("' ") for word in str(error["ctx"]["expected"]).replace(" or ", ", ").split(",")
        ]
        return unknown(str(path[-1]) if path else "value", str(given), allowed, place=place)
    if kind == "too_long":
        return InputError(f"{place}: has more than {error['ctx']['max_length']:,} entries; leave some out")
    if kind in _MAPPINGS:
        keys = _known_keys(schema, path)
        known = f"\n  known: {', '.join(keys)}" if keys else ""
        example = f", e.g. {path[-1]}: {{NAME: ...}}" if path and not keys else ""
        return InputError(f"{place}: {shown}must be 'key: value' lines{example}{known}")
    text = _WORDS.get(kind) or _sentence(error["msg"])
    return InputError(f"{place}: {shown}{text}")


def _without_echoes(schema: type, document: Document, details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Return the errors without those that another one explains: a second one of the same key, a missing key that is misspelt."""
    by_place = {_real_path(document.value, tuple(d["loc"])): d for d in reversed(details)}
    meant = _meant(schema, document, details)
    return [
        detail
        for path, detail in reversed(by_place.items())
        if not (detail["type"] == "missing" and path in meant)
    ]


def _meant(schema: type, document: Document, details: list[ErrorDetails]) -> tuple[KeyPath, ...]:
    """Return the keys that unknown ones are probably misspelt for."""
    unknown_keys = (d["loc"] for d in details if d["type"] in _UNKNOWN_KEY)
    paths = (_real_path(document.value, tuple(loc)) for loc in unknown_keys)
    return tuple(
        (*path[:-1], name)
        for path in paths
        for name in nearest(str(path[-1]), _known_keys(schema, path[:-1]))[:1]
    )


@dataclass(frozen=True, slots=True)
class Mistakes:
    """The errors of a document, each with its key path."""

    errors: tuple[InputError, ...]
    paths: tuple[KeyPath, ...]
    meant: tuple[KeyPath, ...] = ()
    """Keys that unknown ones are probably misspelt for."""


@cache
def _adapter(schema: type) -> TypeAdapter[Any]:
    """Return what checks and writes the records of a schema; pydantic takes milliseconds to build it."""
    return TypeAdapter(schema)


def checked(schema: type[T], document: Document) -> T | Mistakes:
    """Return the record that a document holds, or all of its errors.

    Parameters
    ----------
    schema : a subclass of Record, or a dataclass whose pydantic config forbids unknown keys
    document : Document

    Returns
    -------
    The record, its quantities in base units; or errors that name file, line and key.
    """
    try:
        record: T = _adapter(cast("Any", schema)).validate_python(document.value)
    except ValidationError as error:
        details = _without_echoes(schema, document, error.errors(include_url=False))
        return Mistakes(
            tuple(_mistake(schema, document, detail) for detail in details),
            tuple(_real_path(document.value, tuple(detail["loc"])) for detail in details),
            _meant(schema, document, details),
        )
    except (OverflowError, RecursionError) as error:
        raise InputError(f"{document.name}: holds a number that is out of range ({error})") from None
    paths = (_real_path(document.value, path) for path in _beyond_range(record, ()))
    beyond = [path for path in paths if not _is_null(document.value, path)]
    if not beyond:
        return record
    errors = [InputError(f"{document.place(path)}: the number is out of range") for path in beyond]
    for path, mistake in zip(beyond, errors, strict=True):
        mistake.line = document.line(path)
    return Mistakes(tuple(errors), tuple(beyond))


def _is_null(value: Any, path: KeyPath) -> bool:
    """Return whether a document has null at a place, which a record may hold as nan: what is unknown."""
    try:
        for key in path:
            value = value[key]
    except (KeyError, IndexError, TypeError):
        return False
    return value is None


def _beyond_range(value: object, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the key paths of whole numbers that a float does not hold exactly, and of numbers that are not finite."""
    if isinstance(value, int):
        if abs(value) > LARGEST_WHOLE:
            yield path
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield path
    else:
        for key, entry in _entries(value):
            if type(entry) not in _NO_NUMBERS and not (type(entry) is float and math.isfinite(entry)):
                yield from _beyond_range(entry, (*path, key))


_NO_NUMBERS = frozenset((str, bool, type(None)))
"""Types of most values of a file, which are in range without a look."""


def _entries(value: object) -> Iterable[tuple[str | int, object]]:
    """Return key and value of what a list, a mapping or a record has."""
    if isinstance(value, BaseModel):
        return value.__dict__.items()
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    if isinstance(value, Mapping):
        return ((str(key), entry) for key, entry in value.items())
    if is_dataclass(value):
        return ((key.name, getattr(value, key.name, None)) for key in fields(value))
    return ()


def validated(schema: type[T], document: Document) -> T:
    """Return the record that a document holds, or raise one error with a line per mistake: file, line and key.

    Parameters
    ----------
    schema : a subclass of Record, or a dataclass whose pydantic config forbids unknown keys
    document : Document

    Returns
    -------
    The record; its quantities are in base units.
    """
    outcome = checked(schema, document)
    if isinstance(outcome, Mistakes):
        raise together(outcome.errors)
    return outcome


def plain(record: Any) -> dict[str, Any]:
    """Return a dataclass as the mappings, lists and scalars of a file, in the order of its fields.

    Parameters
    ----------
    record : a dataclass; the annotations of its fields say how they are written

    Returns
    -------
    what `validated` reads back
    """
    values: dict[str, Any] = _adapter(cast("Any", type(record))).dump_python(record, mode="json")
    return values
