"""The kinds of options: how their text is read, and what an error says is allowed."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import typer

from capplan.cli.completion import beginning_with
from capplan.errors import InputError, unknown
from capplan.ranges import MOST, Positive, Range, Share, Whole


def whole(
    *names: str,
    says: str,
    of: str = "",
    metavar: str = "N",
    least: int = 1,
    most: int = MOST,
    allowed: Range | None = None,
) -> Any:
    """Return an option of a whole number of something; the range `allowed` of a record's field stands for the other limits."""
    option = names[0]
    limits = Whole(of, least, most) if allowed is None else allowed
    of = limits.of if isinstance(limits, Whole) else of
    example = "8192" if of == "tokens" else "8"

    def read(text: Any) -> int:
        from capplan.readers.quantity import COUNT, TOKENS, whole_number

        _refuse_commas(text, option)
        unit = replace(TOKENS if of == "tokens" else COUNT, example=example)
        value = whole_number(text, unit, option, of)
        limits.check(value, option, text)
        return value

    return _option(*names, read=read, kind="whole number", help=says, metavar=metavar)


def _refuse_commas(text: Any, option: str) -> None:
    """Raise the error for 1,864, which may be one number or, as in a sweep, a list of two."""
    if re.match(r"\s*[0-9]{1,3}(,[0-9]{3})+(?![0-9,])", str(text)):
        raise InputError(
            f"{option}: {str(text)[:60]!r} has a comma; write one number without commas\n"
            "  lists: an option that says so in --help may be given several times; sweep reads lists of loads"
        )


def fraction(name: str, *, says: str) -> Any:
    """Return an option of a share of one: 0.9 or 90 %."""

    def read(text: Any) -> float:
        if isinstance(text, float):
            return text
        from capplan.readers.quantity import FRACTION, quantity

        _refuse_commas(text, name)
        value = quantity(text, FRACTION, name)
        Share().check(value, name, text)
        return value

    return _option(name, read=read, kind="fraction", help=says, metavar="FRACTION")


def measure(
    name: str,
    unit: str = "SECONDS",
    *,
    says: str,
    metavar: str = "TIME",
    or_zero: bool = False,
) -> Any:
    """Return an option of a positive quantity, or of one that may be zero, `unit` being a name of `readers.quantity`."""

    def read(text: Any) -> float:
        if isinstance(text, float):
            return text
        from capplan.readers import quantity

        _refuse_commas(text, name)
        wanted: quantity.Unit = getattr(quantity, unit)
        value = quantity.quantity(text, wanted, name)
        Positive(wanted.example, or_zero).check(value, name, text)
        return value

    return _option(name, read=read, kind="quantity", help=says, metavar=metavar)


def one_of(
    name: str,
    known: tuple[str, ...],
    *,
    says: str,
    metavar: str = "NAME",
) -> Any:
    """Return an option of a name from a short list; case does not matter."""

    def read(text: Any) -> str:
        choice = str(text).lower()
        if choice not in known:
            raise unknown(name.strip("-"), str(text), known, place=name)
        return choice

    def completed(incomplete: str) -> list[str]:
        return beginning_with(known, incomplete)

    return _option(
        name,
        read=read,
        kind="|".join(known),
        help=says,
        metavar=metavar,
        autocompletion=completed,
    )


def _option(*names: str, read: Callable[[Any], Any], kind: str, **more: Any) -> Any:
    read.__name__ = kind
    return typer.Option(*names, parser=read, **more)
