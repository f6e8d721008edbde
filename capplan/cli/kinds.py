"""The kinds of options: how their text is read, and what an error says is allowed."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import typer

from capplan.cli.completion import beginning_with
from capplan.errors import InputError, unknown


def whole(
    *names: str,
    says: str,
    of: str = "",
    metavar: str = "N",
    least: int = 1,
    most: int = 1_000_000_000,
) -> Any:
    """Return an option of a whole number of something."""
    option = names[0]
    example = "8192" if of == "tokens" else "8"

    def read(text: Any) -> int:
        from capplan.readers.quantity import COUNT, TOKENS, whole_number

        _refuse_commas(text, option)
        unit = replace(TOKENS if of == "tokens" else COUNT, example=example)
        value = whole_number(text, unit, option, of)
        if not least <= value <= most:
            allowed = f"{least} to {most} {of}".rstrip()
            raise InputError(f"{option}: {text!r} is out of range; {allowed} are allowed")
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
        if not 0.0 <= value <= 1.0:
            raise InputError(f"{name}: {text!r} is out of range; 0 to 1 (or 0 % to 100 %) is allowed")
        return value

    return _option(name, read=read, kind="fraction", help=says, metavar="FRACTION")


def measure(
    name: str,
    unit: str = "SECONDS",
    *,
    says: str,
    metavar: str = "TIME",
) -> Any:
    """Return an option of a positive quantity, `unit` being a name of `readers.quantity`."""

    def read(text: Any) -> float:
        if isinstance(text, float):
            return text
        from capplan.readers import quantity

        _refuse_commas(text, name)
        wanted: quantity.Unit = getattr(quantity, unit)
        value = quantity.quantity(text, wanted, name)
        if not value > 0.0:
            raise InputError(f"{name}: {text!r} is not above zero; e.g. '{wanted.example}'")
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
