"""What every offer states, of GPUs, machines or hosted APIs: how it is paid for, its day, and the page that it is from."""

import re
from datetime import date
from typing import Annotated, Literal, LiteralString

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from capplan.errors import InputError
from capplan.hardware.device import Source
from capplan.readers.record import Record

Commitment = Literal["on-demand", "community", "spot", "reserved", "capacity-block", "owned"]
Term = Literal["reserved-1y", "reserved-3y"]
"""A reservation whose term is stated, in price files of users."""


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


def _day(written: object) -> object:
    """Return a date as text; a year is a number in YAML."""
    text = str(written) if isinstance(written, int) else written
    if isinstance(text, str):
        try:
            first_day(text)
        except InputError:
            raise PydanticCustomError("day", _NO_DAY) from None
    return text


Day = Annotated[str, BeforeValidator(_day), WithJsonSchema({"type": "string", "pattern": _DAY})]


class PageSource(Record):
    """A page that figures were read from."""

    title: str
    url: str


ASSUMED = "assumed"
"""Source of a figure for which none is known."""


class SourceRecord(Record):
    """A page or a measurement that figures come from."""

    title: str
    url: str | None = None
    label: Literal["spec", "measured", "announced"] = "spec"
    checked: str | None = None
    """The day when the figures were compared with the page."""
    note: str | None = None


def source_of(key: str, source: SourceRecord) -> Source:
    """Return a source of a catalogue file, by its key there."""
    return Source(key, source.title, source.url, source.checked, source.note)
