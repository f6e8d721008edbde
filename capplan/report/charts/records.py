"""Charts as data: what stands in them, in base units, with names that carry the unit."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Literal, TypeAlias

from capplan.report.screen_units import Screen, screen_of, shown_money, shown_number

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#9a8c00", "#7f7f7f")
"""Distinct for colour-blind readers and in print: Okabe and Ito 2008, with the yellow darkened for white paper."""
MOST_TICKS = 6
"""Numbers along an axis, about."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of a bar chart."""

    label: str
    parts: tuple[tuple[str, float], ...]
    """(name, amount), stacked from left to right."""
    low: float | None = None
    high: float | None = None
    """An interval, drawn as a thin line."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars on one scale."""

    title: str
    quantity: str
    """Name with its unit, such as `ttft_s`; decides how amounts are printed."""
    bars: tuple[Bar, ...]
    limit: float | None = None
    """A line across the chart that all bars should stay left of."""
    limit_name: str = ""


@dataclass(frozen=True, slots=True)
class Turned:
    """One line of a tornado: the value with one thing low, and high."""

    label: str
    low: float | None
    """None: beyond the chart, as no value exists."""
    high: float | None
    low_name: str
    high_name: str

    def ends(self, base: float) -> list[tuple[float, str, str]]:
        """Return value, name and colour of the ends that exist, the farther from the base first."""
        both = ((self.low, self.low_name, COLOURS[0]), (self.high, self.high_name, COLOURS[1]))
        known = [(value, name, colour) for value, name, colour in both if value is not None]
        return sorted(known, key=lambda end: -abs(end[0] - base))

    @property
    def missing(self) -> str:
        """Return the name of an end that does not exist; empty where both do."""
        both = ((self.low, self.low_name), (self.high, self.high_name))
        return next((name for value, name in both if value is None), "")


@dataclass(frozen=True, slots=True)
class Tornado:
    """What moves a value, from the widest to the narrowest."""

    title: str
    quantity: str
    base: float
    """The value as it is."""
    turned: tuple[Turned, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a line chart."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    kind: Literal["line", "step", "points"] = "line"
    """A step holds its value until the next x."""
    labels: tuple[str, ...] = ()
    """Labels of the points; empty: x and y."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Series over one quantity."""

    title: str
    x: str
    """Name with its unit."""
    y: str
    lines: tuple[Line, ...]
    log: bool = False
    """Both axes."""
    mark: float | None = None
    """An x that is set off by a dotted line."""
    mark_name: str = ""
    x_title: str | None = None
    """Words for the axis instead of those that its name gives."""
    y_title: str | None = None


Chart: TypeAlias = Bars | Tornado | Lines


def amount_text(quantity: str, amount: float, largest: float, *, per: bool = True) -> str:
    """Return an amount with its unit, on the scale of the largest of its chart; money without what it is for unless `per`.

    Examples
    --------
    >>> amount_text("ttft_s", 0.2, 0.8), amount_text("usd_per_month", 5840.0, 5840.0)
    ('200 ms', '$5,840 per month')
    """
    screen = screen_of(quantity, [largest])
    if screen.unit.startswith("$"):
        return _money_text(amount, screen.unit) if per else f"${shown_money(amount, screen.unit)}"
    return f"{shown_number(float(amount), screen.factor)} {screen.unit}".rstrip()


def _money_text(amount: float, unit: str) -> str:
    per = unit.removeprefix("$").removeprefix("/")
    words = {"month": " per month", "year": " per year", "job": " for the job", "h": " per hour"}
    return f"${shown_money(amount, unit)}" + words.get(per, f" per {per}" if per else "")


def axis_title(name: str, values: Sequence[float], title: str | None = None) -> tuple[str, Screen]:
    """Return the words next to an axis, with the unit, and the scale of its numbers."""
    screen = screen_of(name, values, title=title)
    return screen.column(), screen


def ticks(low: float, high: float, *, log: bool = False) -> tuple[float, ...]:
    """Return round numbers from low to high: 1, 2 or 5 times a power of ten apart, or all powers of ten on a log axis.

    Examples
    --------
    >>> ticks(0.0, 87.0)
    (0.0, 20.0, 40.0, 60.0, 80.0)
    >>> ticks(3.0, 2000.0, log=True)
    (10.0, 100.0, 1000.0)
    """
    if log:
        powers = range(ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9) + 1)
        every = max(1, ceil(len(powers) / MOST_TICKS))
        return tuple(10.0**power for power in powers if (power - powers[0]) % every == 0)
    if high <= low:
        return (low,)
    rough = (high - low) / (MOST_TICKS - 1)
    power = 10.0 ** floor(log10(rough))
    step = next(times * power for times in (1.0, 2.0, 5.0, 10.0) if times * power >= rough * (1.0 - 1e-9))
    first = ceil(low / step - 1e-9)
    return tuple(step * place for place in range(first, floor(high / step + 1e-9) + 1))


def tick_text(value: float) -> str:
    """Format a round number next to an axis.

    Examples
    --------
    >>> tick_text(20000.0), tick_text(12.5), tick_text(0.0), tick_text(1e10)
    ('20,000', '12.5', '0', '1e+10')
    """
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e9 else f"{value:g}"
