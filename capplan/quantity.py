"""Quantities as people write them, '141 GB' or '800 ms', to base units; the only prefix table there is."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache
from types import MappingProxyType

from capplan.errors import InputError

DECIMAL = MappingProxyType({"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6})
"""Prefix -> power of 1000."""
COUNTED = MappingProxyType({"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6})
"""Prefix of a count, where K never means 1024 -> how many."""
BINARY = MappingProxyType({"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5})
"""Prefix -> power of 1024."""
SMALL = MappingProxyType({"m": -1, "u": -2, "µ": -2, "μ": -2, "n": -3})
"""Prefix -> power of 1000."""

_NUMBER = r"[+-]?(?:[0-9][0-9_,]*)?\.?[0-9]*(?:[eE][+-]?[0-9]{1,3}(?![0-9]))?"
_LONGEST = 60
_QUANTITY = re.compile(rf"^\s*(?P<sign>\$)?\s*(?P<number>{_NUMBER})\s*(?P<unit>.*?)\s*$", re.DOTALL)
_GROUPED = re.compile(r"^[+-]?[0-9]{1,3}(?:[,_][0-9]{3})+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?$")
_LARGEST = 1e24


@dataclass(frozen=True, slots=True)
class Unit:
    """A wanted unit: its base, what may be written for it, and an example."""

    base: str
    spellings: Mapping[str, float | Fraction]
    """Spelling of a unit -> its value in the base unit."""
    example: str
    bare: bool = False
    """A number without a unit is allowed."""
    bare_max: float = math.inf
    words: str = ""
    """Name of the unit where it has no symbol."""


def _prefixed(
    *stems: str, prefixes: str = "kMGTPE", binary: bool = False, small: bool = False
) -> dict[str, float]:
    table: dict[str, float] = {}
    for stem in stems:
        table[stem] = 1.0
        table.update({p + stem: float(1000 ** DECIMAL[p]) for p in prefixes})
        if binary:
            table.update({p + stem: float(1024**power) for p, power in BINARY.items()})
        if small:
            table.update({p + stem: 1000.0**power for p, power in SMALL.items()})
    return table


def _counted(*stems: str) -> dict[str, float]:
    """Return the spellings of a count with a prefix or a noun."""
    table = {prefix + stem: value for stem in stems for prefix, value in COUNTED.items()}
    return {name: value for name, value in table.items() if name}


def _rates(*stems: str) -> Mapping[str, float | Fraction]:
    """Return the spellings of a rate of counts: 'k', 'req/s', '/min', 'rps'."""
    per = {"s": 1, "sec": 1, "min": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400}
    things = {"": 1.0, **_counted("", *stems)}
    rates = {
        f"{name}/{time}": Fraction(value) / seconds
        for name, value in things.items()
        for time, seconds in per.items()
    }
    per_minute = {f"{prefix}rpm": Fraction(value) / 60 for prefix, value in COUNTED.items()}
    return MappingProxyType({**_counted("", "rps", "qps"), **per_minute, **rates})


def _frozen(table: dict[str, float]) -> MappingProxyType[str, float]:
    return MappingProxyType(table)


def _each(table: dict[str, float], *per: str) -> dict[str, float]:
    return {f"{name}/{p}": value for name, value in table.items() for p in per}


_BYTES = _prefixed("B", binary=True)
_BITS = {name: value / 8 for name, value in _prefixed("bit").items()}
_TOKENS = _counted("", "tokens", "tok", "token")
_DOLLARS = {"$": 1.0, "USD": 1.0}
_TIME = {
    **_prefixed("s", prefixes="", small=True),
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}

BYTES = Unit("B", _frozen(_BYTES), "141 GB")
BYTES_PER_S = Unit("B/s", _frozen({**_each(_BYTES, "s"), **_each(_BITS, "s")}), "4.8 TB/s")
FLOP_PER_S = Unit(
    "FLOP/s", _frozen({**_each(_prefixed("FLOP"), "s"), **_each(_prefixed("OP"), "s")}), "989 TFLOP/s"
)
SECONDS = Unit("s", _frozen(_TIME), "500 ms")
FRACTION = Unit(
    "", _frozen({"%": 0.01}), "20 %", bare=True, bare_max=1.0, words="a percentage or a number from 0 to 1"
)
CONFIDENCE = replace(FRACTION, example="80 %")
HOURS_PER_DAY = Unit(
    "h",
    _frozen({"h": 1.0, "hours": 1.0, "h/d": 1.0}),
    "10 h",
    bare=True,
    bare_max=24.0,
    words="a number of hours of a day",
)
REQUESTS_PER_S = Unit("req/s", _rates("req", "request", "requests"), "20 req/s", bare=True)
TOKENS = Unit("tokens", _frozen(_TOKENS), "1800", bare=True, words="a number of tokens")
COUNT = Unit("", _frozen(_counted("")), "4000", bare=True, words="a number")
USD_PER_HOUR = Unit("$/h", _frozen(_each(_DOLLARS, "h", "hour", "hr")), "3.5 $/h")
USD_PER_MILLION_TOKENS = Unit("$/Mtok", _frozen(_each(_DOLLARS, "Mtok")), "0.6 $/Mtok")
USD_PER_MILLION_TOKENS_HOUR = Unit("$/Mtok/h", _frozen(_each(_each(_DOLLARS, "Mtok"), "h")), "1 $/Mtok/h")
USD_PER_MILLION = Unit(
    "$",
    _frozen({**_DOLLARS, **_each(_DOLLARS, "Mtok")}),
    "3 $",
    bare=True,
    words="dollars per million tokens",
)
USD = Unit("$", _frozen({**_DOLLARS, "k$": 1e3, "$k": 1e3}), "38000 $", words="dollars")
USD_EACH = replace(USD, example="0.0002", bare=True)
YEARS = Unit("years", _frozen({"years": 1.0, "year": 1.0, "y": 1.0, "a": 1.0, "months": 1 / 12}), "4 years")
USD_PER_MONTH = Unit("$/month", _frozen(_each(_DOLLARS, "month", "mo")), "12000 $/month")
BUDGET = replace(USD_PER_MONTH, example="50000", bare=True, words="dollars a month")
USD_PER_KWH = Unit("$/kWh", _frozen(_each(_DOLLARS, "kWh")), "0.12 $/kWh")
KG_PER_KWH = Unit("g/kWh", _frozen({"g/kWh": 1e-3, "kg/kWh": 1.0, "gCO2/kWh": 1e-3}), "380 g/kWh")
WATTS = Unit("W", _frozen(_prefixed("W", prefixes="kM")), "700 W")


def _hint(written: str, unit: Unit) -> str:
    """Return a hint at what is probably meant by a unit that is not allowed."""
    stem = written.removesuffix("/s")
    if stem.endswith("b") and any(s.startswith(stem[:-1] + "B") for s in unit.spellings):
        bits = f", or {stem[:-1]}bit{written[len(stem) :]} for bits" if unit is BYTES_PER_S else ""
        return f"b is bits: write {written[: len(stem) - 1]}B{written[len(stem) :]} for bytes{bits}"
    for spelling in unit.spellings:
        if spelling.lower() == written.lower():
            return f"upper and lower case matter: did you mean {spelling!r}"
    if unit is FLOP_PER_S and stem.upper().endswith("FLOPS"):
        return f"write {stem[: -len('FLOPS')]}FLOP/s for a rate"
    if unit is REQUESTS_PER_S and written in _TIME:
        return "a time is given where a rate is expected"
    words = {
        "milliseconds": "ms",
        "millisecond": "ms",
        "msec": "ms",
        "seconds": "s",
        "second": "s",
        "sec": "s",
        "minutes": "min",
        "hours": "h",
    }
    if unit is SECONDS and written.lower() in words:
        return f"write {words[written.lower()]}"
    if unit is SECONDS and written == "m":
        return "m may be minutes or thousandths: write min or ms"
    if unit is SECONDS and written.endswith("/s"):
        return "a rate is given where a time is expected"
    return ""


def _with_example(unit: Unit, number: str) -> Unit:
    """Return a unit whose example has the number that was written without a unit, if that is a sensible value.

    Examples
    --------
    >>> _with_example(SECONDS, "40").example, _with_example(FRACTION, "80").example, _with_example(FRACTION, "300").example
    ('40 ms', '80 %', '20 %')
    """
    spelling = unit.example.partition(" ")[2]
    value = float(number.replace(",", "").replace("_", "")) * unit.spellings.get(spelling, math.inf)
    return replace(unit, example=f"{number} {spelling}") if 0 < value <= unit.bare_max else unit


def _error(text: object, unit: Unit, place: str, why: str) -> InputError:
    """Return the error that says what is wrong, how the unit is written, and an example."""
    prefix = "<prefix>" if {f"k{unit.base}", f"m{unit.base}"} & unit.spellings.keys() else ""
    form = unit.words or f"'<number> {prefix}{unit.base}'"
    return _refusal(text, place, f"{why}; write it as {form}, e.g. '{unit.example}'")


def _none(text: object, unit: Unit, place: str, hint: str = "", otherwise: str = "") -> InputError:
    """Return the error for text that is not such a quantity."""
    hint = f" ({hint})" if hint else ""
    if not unit.words:
        return _error(text, unit, place, f"is not {otherwise}{unit.base}{hint}")
    return _refusal(text, place, f"is not {unit.words}{hint}; write it as '{unit.example}'")


def _refusal(text: object, place: str, why: str) -> InputError:
    return InputError(f"{f'{place}: ' if place else ''}{str(text)[:60]!r} {why}")


@cache
def _exact(factor: float) -> Fraction:
    """Return the factor of a unit as a fraction, so that 66.9 TFLOP/s, 800 ms and 500k req/d are exact to the last bit."""
    return Fraction(factor).limit_denominator(10**9)


def quantity(text: object, unit: Unit, place: str = "") -> float:
    """Return a quantity in the base unit of `unit`.

    Parameters
    ----------
    text : str or number
        What is written, such as '141 GB'; a bare number only where the unit allows one.
    unit : Unit
        The wanted unit, such as `BYTES`.
    place : str
        File and key path, for the error.

    Returns
    -------
    The value in the base unit; never NaN or infinite.

    Examples
    --------
    >>> quantity("141 GB", BYTES), quantity("2 GiB", BYTES)
    (141000000000.0, 2147483648.0)
    >>> quantity("800 ms", SECONDS), quantity("20 %", FRACTION)
    (0.8, 0.2)
    >>> quantity("400 Gbit/s", BYTES_PER_S)
    50000000000.0
    """
    if isinstance(text, bool) or text is None or not isinstance(text, (str, int, float)):
        raise _none(text, unit, place, otherwise="a quantity in ")
    match = _QUANTITY.match(str(text)) if len(str(text)) <= _LONGEST else None
    number = match["number"] if match else ""
    if match is None or not re.match(r"[-+]?\.?[0-9]", number) or number[-1] in ",_":
        raise _none(text, unit, place, otherwise="a number in ")
    if ("," in number or "_" in number) and not _GROUPED.match(number):
        raise _error(text, unit, place, "has separators that are not groups of three digits")
    written = " ".join(match["unit"].split())
    if match["sign"]:
        written = "$" + written
    try:
        digits = Decimal(number.replace(",", "").replace("_", ""))
    except InvalidOperation:
        raise _none(text, unit, place, otherwise="a number in ") from None
    factor = unit.spellings.get(written) or unit.spellings.get(written.replace(" ", ""))
    if not written and unit.bare:
        factor = 1.0
        if digits > unit.bare_max:
            why = f"is over {unit.bare_max:g}, so it needs its unit"
            raise _error(text, _with_example(unit, number), place, why)
    if factor is None:
        hint = _hint(written, unit) if written else "the unit is missing"
        raise _none(text, unit if written else _with_example(unit, number), place, hint, otherwise="in ")
    try:
        result = float(Fraction(digits) * _exact(factor)) if factor != 1.0 else float(digits)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result) or abs(result) > _LARGEST:
        raise _error(text, unit, place, "is out of range")
    return result


def whole_number(text: object, unit: Unit, place: str = "", of: str = "") -> int:
    """Return a whole number, such as '32k' tokens.

    Parameters
    ----------
    text : str or number
    unit : Unit
        A unit of counts, such as `TOKENS`.
    place : str
        File and key path, or the flag, for the error.
    of : str
        What is counted, for the error.

    Returns
    -------
    The number; capplan rejects 2.5 and accepts 2.5k.

    Examples
    --------
    >>> whole_number("32k", TOKENS), whole_number("2.5 K", COUNT), whole_number("8,192", TOKENS)
    (32000, 2500, 8192)
    """
    unit = replace(unit, words=f"a whole number{f' of {of}' if of else ''}")
    value = quantity(text, unit, place)
    if not value.is_integer():
        raise _none(text, unit, place)
    return int(value)
