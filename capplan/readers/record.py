"""The strict base of every file schema, the quantity types, and validation errors as one clear line."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, TypeAlias, TypeVar, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError

from capplan.errors import InputError, nearest, together, unknown
from capplan.readers import quantity as q
from capplan.readers.quantity import Unit, quantity, whole_number
from capplan.readers.yaml_file import Document, KeyPath


class Record(BaseModel):
    """A record of a file: a misspelt key is an error, never a silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OrNumber:
    """Marks a record that may be written as one number: its schema has the number next to it."""

    @staticmethod
    def __get_pydantic_json_schema__(of: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema of both."""
        return {"anyOf": [{"type": "number"}, {"type": "string"}, handler.resolve_ref_schema(handler(of))]}


T = TypeVar("T")
MOST_COUNTED = 1e12
"""Tokens, requests or users that a key may name."""
LARGEST_WHOLE = 2**53
"""Whole numbers up to which a float is exact; nothing that is counted here is more."""


def _reader(
    unit: Unit, *, low: float | None, above: float | None, high: float | None, below: float | None
) -> Callable[[object], float]:
    def read(written: object) -> float:
        try:
            value = quantity(written, unit)
        except InputError as error:
            raise PydanticCustomError("quantity", "{why}", {"why": str(error)}) from None
        what = f"{written!s:.60}"
        if low is not None and value < low:
            raise PydanticCustomError(
                "quantity", "{why}", {"why": f"{what!r} is below {low:g}; it must be {low:g} or more"}
            )
        if above is not None and value <= above:
            raise PydanticCustomError(
                "quantity", "{why}", {"why": f"{what!r} is not above {above:g}; e.g. '{unit.example}'"}
            )
        if high is not None and value > high:
            raise PydanticCustomError(
                "quantity", "{why}", {"why": f"{what!r} is over {high:g}; it must be {high:g} or less"}
            )
        if below is not None and value >= below:
            raise PydanticCustomError(
                "quantity", "{why}", {"why": f"{what!r} is not below {below:g}; e.g. '{unit.example}'"}
            )
        return value

    return read


def _quantity_type(
    unit: Unit,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
) -> tuple[BeforeValidator, WithJsonSchema]:
    """Return what turns a float field into one that reads a quantity."""
    schema: dict[str, Any] = {
        "type": ["string", "number"] if unit.bare else "string",
        "description": f"{unit.words or 'in ' + unit.base}, such as {unit.example}",
        "examples": [unit.example],
    }
    return BeforeValidator(_reader(unit, low=low, above=above, high=high, below=below)), WithJsonSchema(
        schema
    )


def _whole(written: object) -> object:
    """Return a count that is written with a prefix, such as 1k, as the number; anything else as it is."""
    if not isinstance(written, str):
        return written
    try:
        return whole_number(written, q.COUNT)
    except InputError:
        return written


_tokens = _quantity_type(q.TOKENS, above=0, high=MOST_COUNTED)

Bytes: TypeAlias = Annotated[float, *_quantity_type(q.BYTES, above=0)]
BytesPerS: TypeAlias = Annotated[float, *_quantity_type(q.BYTES_PER_S, above=0)]
FlopPerS: TypeAlias = Annotated[float, *_quantity_type(q.FLOP_PER_S, above=0)]
Seconds: TypeAlias = Annotated[float, *_quantity_type(q.SECONDS, above=0)]
SecondsOrZero: TypeAlias = Annotated[float, *_quantity_type(q.SECONDS, low=0)]
StartUp: TypeAlias = Annotated[float, *_quantity_type(q.SECONDS, low=0, high=86_400)]
Fraction: TypeAlias = Annotated[float, *_quantity_type(q.FRACTION, low=0, high=1)]
Share: TypeAlias = Annotated[float, *_quantity_type(q.FRACTION, above=0, high=1)]
Confidence: TypeAlias = Annotated[float, *_quantity_type(q.CONFIDENCE, above=0, below=1)]
Discount: TypeAlias = Annotated[float, *_quantity_type(q.FRACTION, low=0, below=1)]
Headroom: TypeAlias = Annotated[float, *_quantity_type(q.FRACTION, low=0, high=0.95)]
RequestsPerS: TypeAlias = Annotated[float, *_quantity_type(q.REQUESTS_PER_S, above=0)]
RequestsPerSOrZero: TypeAlias = Annotated[float, *_quantity_type(q.REQUESTS_PER_S, low=0)]
HoursPerDay: TypeAlias = Annotated[float, *_quantity_type(q.HOURS_PER_DAY, above=0, high=24)]
Tokens: TypeAlias = Annotated[float, *_tokens]
WholeTokens: TypeAlias = Annotated[int, *_tokens]
Number: TypeAlias = Annotated[float, *_quantity_type(q.COUNT, above=0, high=MOST_COUNTED)]
UsdPerHour: TypeAlias = Annotated[float, *_quantity_type(q.USD_PER_HOUR, above=0)]
UsdPerMillionTokens: TypeAlias = Annotated[float, *_quantity_type(q.USD_PER_MILLION_TOKENS, low=0)]
UsdPerPaidMillionTokens: TypeAlias = Annotated[float, *_quantity_type(q.USD_PER_MILLION_TOKENS, above=0)]
UsdPerMillionTokensHour: TypeAlias = Annotated[float, *_quantity_type(q.USD_PER_MILLION_TOKENS_HOUR, low=0)]
UsdOfBudget: TypeAlias = Annotated[float, *_quantity_type(q.BUDGET, above=0)]
Usd: TypeAlias = Annotated[float, *_quantity_type(q.USD, above=0)]
UsdEach: TypeAlias = Annotated[float, *_quantity_type(q.USD_EACH, low=0, high=1e6)]
Years: TypeAlias = Annotated[float, *_quantity_type(q.YEARS, above=0, high=100)]
UsdPerMonth: TypeAlias = Annotated[float, *_quantity_type(q.USD_PER_MONTH, low=0)]
UsdPerKwh: TypeAlias = Annotated[float, *_quantity_type(q.USD_PER_KWH, low=0)]
KgPerKwh: TypeAlias = Annotated[float, *_quantity_type(q.KG_PER_KWH, low=0)]
Watts: TypeAlias = Annotated[float, *_quantity_type(q.WATTS, above=0)]


COUNT_SCHEMA: dict[str, Any] = {
    "type": ["integer", "string"],
    "description": "a whole number, such as 8 or 1k",
}
FRACTION_SCHEMA: dict[str, Any] = {
    "type": ["number", "string"],
    "description": "a percentage or a number from 0 to 1, such as 70 % or 0.7",
}
Whole: TypeAlias = Annotated[int, BeforeValidator(_whole), WithJsonSchema(COUNT_SCHEMA)]
"""A whole number, written as flags are; Field() says which ones."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> PydanticCustomError:
    """Return the error of a validator for a name that is not in a list; the printed line names the nearest."""
    return PydanticCustomError("unknown_name", "{what}", {"what": what, "name": name, "known": list(known)})


def one_or_more(item: dict[str, Any]) -> WithJsonSchema:
    """Return the JSON Schema of a field that takes one value or a list of them."""
    return WithJsonSchema({"anyOf": [item, {"type": "array", "items": item, "minItems": 1}]})


def record_of(annotation: Any) -> type | None:
    """Return the record or dataclass inside an annotation such as ``list[Traffic] | None``."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return annotation
    inner = map(record_of, getattr(annotation, "__args__", ()))
    return next(filter(None, inner), None)


def _annotations(schema: type) -> dict[str, Any]:
    if issubclass(schema, BaseModel):
        return {name: key.annotation for name, key in schema.model_fields.items()}
    return get_type_hints(schema)


def _known_keys(schema: type, path: KeyPath) -> list[str]:
    """Return the keys that the record at a key path knows."""
    current: type | None = schema
    for part in path:
        known = _annotations(current) if current else {}
        if part in known:  # any other part is an index or a name chosen in the file
            current = record_of(known[str(part)])
    return sorted(_annotations(current)) if current else []


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
    """Return a single value as it stands in the file."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _said(schema: type, document: Document, error: ErrorDetails, path: KeyPath) -> InputError:
    kind = error["type"]
    place = document.place(path)
    if kind in _UNKNOWN_KEY:
        return unknown("key", str(error["loc"][-1]), _known_keys(schema, path[:-1]), place=place)
    if kind == "unknown_name":
        named = error["ctx"]
        return unknown(named["what"], named["name"], named["known"], place=place)
    given = error.get("input")
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
    misspelt = {
        (*path[:-1], name)
        for path, detail in by_place.items()
        if detail["type"] in _UNKNOWN_KEY
        for name in nearest(str(path[-1]), _known_keys(schema, path[:-1]))
    }
    return [
        detail
        for path, detail in reversed(by_place.items())
        if not (detail["type"] == "missing" and path in misspelt)
    ]


@dataclass(frozen=True, slots=True)
class Mistakes:
    """The errors of a document, each with its key path."""

    errors: tuple[InputError, ...]
    paths: tuple[KeyPath, ...]


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
        record: T = TypeAdapter(schema).validate_python(document.value)
    except ValidationError as error:
        details = _without_echoes(schema, document, error.errors(include_url=False))
        return Mistakes(
            tuple(_mistake(schema, document, detail) for detail in details),
            tuple(_real_path(document.value, tuple(detail["loc"])) for detail in details),
        )
    except (OverflowError, RecursionError) as error:
        raise InputError(f"{document.name}: holds a number that is out of range ({error})") from None
    beyond = [_real_path(document.value, path) for path in _beyond_range(record, ())]
    if not beyond:
        return record
    errors = [InputError(f"{document.place(path)}: the number is out of range") for path in beyond]
    for path, mistake in zip(beyond, errors, strict=True):
        mistake.line = document.line(path)
    return Mistakes(tuple(errors), tuple(beyond))


def _beyond_range(value: object, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the key paths of whole numbers that a float does not hold exactly, and of numbers that are not finite."""
    if isinstance(value, int):
        if abs(value) > LARGEST_WHOLE:
            yield path
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield path
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _beyond_range(item, (*path, index))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _beyond_range(item, (*path, str(key)))
    elif is_dataclass(value) or isinstance(value, BaseModel):
        for name in value.__dataclass_fields__ if is_dataclass(value) else type(value).model_fields:
            yield from _beyond_range(getattr(value, name, None), (*path, name))


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
    values: dict[str, Any] = TypeAdapter(type(record)).dump_python(record, mode="json")
    return values
