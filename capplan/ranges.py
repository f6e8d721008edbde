"""What a number that people give may be: one range, which the command line and the library check alike."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any

from capplan.errors import LONGEST_SHOWN, InputError

SEED = 7
"""Seed of all random draws, unless another one is asked for."""
MOST = 1_000_000_000
"""The largest whole number where nothing else limits it."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Whole numbers of something, from `least` to `most`."""

    of: str = ""
    """What is counted, in the plural."""
    least: int = 1
    most: int = MOST

    def check(self, value: Any, place: str, written: object = None) -> None:
        """Raise the error for a value that is not in the range; `written` is the text that it was read from."""
        if isinstance(value, bool) or not isinstance(value, Real):
            raise _not_a_number(value, place)
        shown = value if written is None else written
        if not isinstance(value, Integral):
            raise InputError(f"{place}: {_short(shown)} is not a whole number")
        if not self.least <= int(value) <= self.most:
            allowed = f"{self.least} to {self.most} {self.of}".rstrip()
            raise InputError(f"{place}: {_short(shown)} is out of range; {allowed} are allowed")


@dataclass(frozen=True, slots=True)
class Share:
    """Fractions from 0 to 1."""

    def check(self, value: Any, place: str, written: object = None) -> None:
        """Raise the error for a value that is not in the range; `written` is the text that it was read from."""
        if isinstance(value, bool) or not isinstance(value, Real):
            raise _not_a_number(value, place)
        if not 0.0 <= _size(value) <= 1.0:
            shown = _short(value if written is None else written)
            raise InputError(f"{place}: {shown} is out of range; 0 to 1 (or 0 % to 100 %) is allowed")


@dataclass(frozen=True, slots=True)
class Positive:
    """Finite quantities above zero, or from zero."""

    example: str
    """As people write one."""
    or_zero: bool = False

    def check(self, value: Any, place: str, written: object = None) -> None:
        """Raise the error for a value that is not in the range; `written` is the text that it was read from."""
        if isinstance(value, bool) or not isinstance(value, Real):
            raise _not_a_number(value, place)
        shown = _short(value if written is None else written)
        if self.or_zero and _size(value) < 0.0:
            raise InputError(f"{place}: {shown} is below zero; e.g. '{self.example}'")
        if not _size(value) > 0.0 and not (self.or_zero and _size(value) == 0.0):
            raise InputError(f"{place}: {shown} is not above zero; e.g. '{self.example}'")
        if not isfinite(_size(value)):
            raise InputError(f"{place}: {shown} is not finite; e.g. '{self.example}'")


@dataclass(frozen=True, slots=True)
class Text:
    """Words, such as the name of a dtype."""

    def check(self, value: Any, place: str, written: object = None) -> None:
        """Raise the error for a value that is no text."""
        del written
        if not isinstance(value, str):
            raise InputError(f"{place}: {_short(value)} is {_kind(value)}, not a text")


_NOT_IN_A_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(?:/|$)|^[./-]|^@$|[./]$")
REVISION = "is not the name of a branch, tag or commit, such as main, v1.0 or refs/pr/3"
"""What is wrong with a revision that is no git reference."""


def is_revision(text: str) -> bool:
    """Return whether a text names a revision by the rules of `git check-ref-format`, so that it is never a path out of a folder.

    Source
    ------
    https://git-scm.com/docs/git-check-ref-format

    Examples
    --------
    >>> is_revision("refs/pr/3"), is_revision("../../etc/passwd"), is_revision("/tmp/file")
    (True, False, False)
    """
    return bool(text) and len(text) <= LONGEST_REVISION and not _NOT_IN_A_REF.search(text)


LONGEST_REVISION = 250
"""Most letters of a revision, which is a file name in the cache of the hub's client."""


@dataclass(frozen=True, slots=True)
class Revision:
    """Branches, tags and commits of a model on the hub."""

    def check(self, value: Any, place: str, written: object = None) -> None:
        """Raise the error for a value that is no git reference."""
        Text().check(value, place, written)
        if not is_revision(value):
            raise InputError(f"{place}: {_short(value)} {REVISION}")


Range = Whole | Share | Positive | Text | Revision

TOKENS, DEVICES = Whole("tokens"), Whole("devices", most=4096)


def check_fields(record: object, ranges: Mapping[str, Range]) -> None:
    """Raise the error for the first field of a record that is given and not in its range."""
    for name, allowed in ranges.items():
        value = getattr(record, name)
        if value is not None:
            allowed.check(value, name)


def check_list(values: Any, allowed: Range, place: str) -> None:
    """Raise the error for what is not a list of values in a range."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InputError(f"{place}: {_short(values)} is not a list; write [{_short(values)}]")
    for value in values:
        allowed.check(value, place)


def _size(value: Real) -> float:
    """Return a number as a float; an infinite one where it is too large."""
    try:
        return float(value)
    except OverflowError:
        return -inf if value < 0 else inf


def _not_a_number(value: object, place: str) -> InputError:
    return InputError(f"{place}: {_short(value)} is {_kind(value)}, not a number")


def _kind(value: object) -> str:
    words = {
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        dict: "a mapping",
        list: "a list",
        tuple: "a list",
    }
    return words.get(type(value), f"a {type(value).__name__}")


def _short(value: object) -> str:
    return repr(value)[:LONGEST_SHOWN]
