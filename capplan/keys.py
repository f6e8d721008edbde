"""How people write the values of a file's keys: a quantity with its unit, or a whole number; annotations of the records that hold them.

A record is a frozen dataclass or a pydantic model whose fields have these types, in the room that its formulas are in. `readers.record`
reads it from a file; code creates it with numbers in base units.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, LiteralString, TypeAlias

from capplan import quantity as q
from capplan.errors import InputError
from capplan.quantity import Unit, quantity, whole_number

MOST_COUNTED = 1e12
"""Tokens, requests or users that a key may name."""
ONLY_KNOWN_KEYS: Mapping[str, str] = {"extra": "forbid"}
"""The `__pydantic_config__` of a dataclass that a file is read into: a misspelt key is an error, never a silent default."""


@dataclass(frozen=True, eq=False)
class Quantity:
    """Marks a float that is written with a unit, and what it may be in the base unit."""

    unit: Unit
    low: float | None = None
    """Least value."""
    above: float | None = None
    """Value that is too small by itself."""
    high: float | None = None
    """Largest value."""
    below: float | None = None
    """Value that is too large by itself."""

    @property
    def json_schema(self) -> dict[str, Any]:
        """Return how the value is written, for editors."""
        return {
            "type": ["string", "number"] if self.unit.bare else "string",
            "description": f"{self.unit.words or 'in ' + self.unit.base}, such as {self.unit.example}",
            "examples": [self.unit.example],
        }

    def read(self, written: object) -> float:
        """Return the value in the base unit, or raise the error of a key."""
        from pydantic_core import PydanticCustomError

        try:
            value = quantity(written, self.unit)
            self._check(value, f"{written!s:.60}")
        except InputError as error:
            raise PydanticCustomError("quantity", "{why}", {"why": str(error)}) from None
        return value

    def _check(self, value: float, what: str) -> None:
        """Raise the error for a value that is out of its range."""
        example = f"e.g. '{self.unit.example}'"
        if self.low is not None and value < self.low:
            raise InputError(f"{what!r} is below {self.low:g}; it must be {self.low:g} or more")
        if self.above is not None and value <= self.above:
            raise InputError(f"{what!r} is not above {self.above:g}; {example}")
        if self.high is not None and value > self.high:
            raise InputError(f"{what!r} is over {self.high:g}; it must be {self.high:g} or less")
        if self.below is not None and value >= self.below:
            raise InputError(f"{what!r} is not below {self.below:g}; {example}")

    def __get_pydantic_core_schema__(self, of: Any, handler: Callable[[Any], Any]) -> Any:
        """Return the schema of a number that is read by its unit."""
        return _read_before(self.read, handler(of))

    def __get_pydantic_json_schema__(self, of: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """Return how the value is written."""
        return self.json_schema


@dataclass(frozen=True, eq=False)
class Limits:
    """Marks a number without a unit, and its range."""

    least: float | None = None
    most: float | None = None

    def schema(self, number: Mapping[str, Any]) -> dict[str, Any]:
        """Return the schema of a number with the range."""
        bounds = {"ge": self.least, "le": self.most}
        return {**number, **{name: at for name, at in bounds.items() if at is not None}}

    def __get_pydantic_core_schema__(self, of: Any, handler: Callable[[Any], Any]) -> Any:
        """Return the schema of a number in its range."""
        return self.schema(handler(of))


@dataclass(frozen=True, eq=False)
class Counted(Limits):
    """Marks a whole number that may be written with a prefix, such as 1k, and its range."""

    @property
    def json_schema(self) -> dict[str, Any]:
        """Return how the value is written, for editors."""
        return dict(COUNT_SCHEMA)

    def read(self, written: object) -> object:
        """Return the number; anything that is none as it is."""
        if not isinstance(written, str):
            return written
        try:
            return whole_number(written, q.COUNT)
        except InputError:
            return written

    def __get_pydantic_core_schema__(self, of: Any, handler: Callable[[Any], Any]) -> Any:
        """Return the schema of a whole number in its range."""
        return _read_before(self.read, self.schema(handler(of)))

    def __get_pydantic_json_schema__(self, of: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """Return how the value is written."""
        return self.json_schema


_DAY = r"^20[0-9]{2}(-(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?)?$"
_NO_DAY: LiteralString = "is not a date; write it as 2026-11-01, 2026-11 or 2026"


def first_day(written: str, place: str = "") -> date:
    """Return the first day of a date that may be a year or a month.

    Examples
    --------
    >>> str(first_day("2026")), str(first_day("2026-03"))
    ('2026-01-01', '2026-03-01')
    """
    try:
        return date.fromisoformat(f"{written}-01-01"[:10] if re.fullmatch(_DAY, written) else "")
    except ValueError:
        where = f"{place}: " if place else ""
        raise InputError(f"{where}{written[:40]!r} {_NO_DAY}") from None


@dataclass(frozen=True, eq=False)
class Dated:
    """Marks the text of a day, which may be a year or a month; a year is a number in YAML."""

    @property
    def json_schema(self) -> dict[str, Any]:
        """Return how the day is written, for editors."""
        return {"type": "string", "pattern": _DAY}

    def read(self, written: object) -> object:
        """Return a date as text, or raise the error of a key."""
        from pydantic_core import PydanticCustomError

        text = str(written) if isinstance(written, int) else written
        if isinstance(text, str):
            try:
                first_day(text)
            except InputError:
                raise PydanticCustomError("day", _NO_DAY) from None
        return text

    def __get_pydantic_core_schema__(self, of: Any, handler: Callable[[Any], Any]) -> Any:
        """Return the schema of a text that is a day."""
        return _read_before(self.read, handler(of))

    def __get_pydantic_json_schema__(self, of: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """Return how the day is written."""
        return self.json_schema


def _read_before(read: Callable[[object], object], schema: Any) -> Any:
    from pydantic_core.core_schema import no_info_before_validator_function

    return no_info_before_validator_function(read, schema)


COUNT_SCHEMA: dict[str, Any] = {
    "type": ["integer", "string"],
    "description": "a whole number, such as 8 or 1k",
}
FRACTION_SCHEMA: dict[str, Any] = {
    "type": ["number", "string"],
    "description": "a percentage or a number from 0 to 1, such as 70 % or 0.7",
}

Bytes: TypeAlias = Annotated[float, Quantity(q.BYTES, above=0)]
BytesPerS: TypeAlias = Annotated[float, Quantity(q.BYTES_PER_S, above=0)]
FlopPerS: TypeAlias = Annotated[float, Quantity(q.FLOP_PER_S, above=0)]
Seconds: TypeAlias = Annotated[float, Quantity(q.SECONDS, above=0)]
SecondsOrZero: TypeAlias = Annotated[float, Quantity(q.SECONDS, low=0)]
StartUp: TypeAlias = Annotated[float, Quantity(q.SECONDS, low=0, high=86_400)]
Fraction: TypeAlias = Annotated[float, Quantity(q.FRACTION, low=0, high=1)]
Share: TypeAlias = Annotated[float, Quantity(q.FRACTION, above=0, high=1)]
Confidence: TypeAlias = Annotated[float, Quantity(q.CONFIDENCE, above=0, below=1)]
Discount: TypeAlias = Annotated[float, Quantity(q.FRACTION, low=0, below=1)]
Headroom: TypeAlias = Annotated[float, Quantity(q.FRACTION, low=0, high=0.95)]
RequestsPerS: TypeAlias = Annotated[float, Quantity(q.REQUESTS_PER_S, above=0)]
RequestsPerSOrZero: TypeAlias = Annotated[float, Quantity(q.REQUESTS_PER_S, low=0)]
HoursPerDay: TypeAlias = Annotated[float, Quantity(q.HOURS_PER_DAY, above=0, high=24)]
Tokens: TypeAlias = Annotated[float, Quantity(q.TOKENS, above=0, high=MOST_COUNTED)]
WholeTokens: TypeAlias = Annotated[int, Quantity(q.TOKENS, above=0, high=MOST_COUNTED)]
Number: TypeAlias = Annotated[float, Quantity(q.COUNT, above=0, high=MOST_COUNTED)]
UsdPerHour: TypeAlias = Annotated[float, Quantity(q.USD_PER_HOUR, above=0)]
UsdPerMillionTokens: TypeAlias = Annotated[float, Quantity(q.USD_PER_MILLION_TOKENS, low=0)]
UsdPerPaidMillionTokens: TypeAlias = Annotated[float, Quantity(q.USD_PER_MILLION_TOKENS, above=0)]
UsdPerMillionTokensHour: TypeAlias = Annotated[float, Quantity(q.USD_PER_MILLION_TOKENS_HOUR, low=0)]
UsdOfBudget: TypeAlias = Annotated[float, Quantity(q.BUDGET, above=0)]
Usd: TypeAlias = Annotated[float, Quantity(q.USD, above=0)]
UsdEach: TypeAlias = Annotated[float, Quantity(q.USD_EACH, low=0, high=1e6)]
Years: TypeAlias = Annotated[float, Quantity(q.YEARS, above=0, high=100)]
UsdPerMonth: TypeAlias = Annotated[float, Quantity(q.USD_PER_MONTH, low=0)]
UsdPerKwh: TypeAlias = Annotated[float, Quantity(q.USD_PER_KWH, low=0)]
KgPerKwh: TypeAlias = Annotated[float, Quantity(q.KG_PER_KWH, low=0)]
Watts: TypeAlias = Annotated[float, Quantity(q.WATTS, above=0)]
Commitment: TypeAlias = Literal["on-demand", "community", "spot", "reserved", "capacity-block", "owned"]
"""How a device is paid for."""
Term: TypeAlias = Literal["reserved-1y", "reserved-3y"]
"""A reservation whose term is stated, in price files of users."""
TokenRatio: TypeAlias = Annotated[float, Limits(0.2, 5)]
FacilityRatio: TypeAlias = Annotated[float, Limits(1, 5)]
Day: TypeAlias = Annotated[str, Dated()]
Whole: TypeAlias = Annotated[int, Counted()]
"""A whole number, written as flags are; Field() says which ones."""


def current_day() -> date:
    """Return the day that prices are judged old by."""
    return datetime.now(tz=UTC).date()
