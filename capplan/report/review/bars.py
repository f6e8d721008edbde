"""Bar charts as data and as self-contained SVG: stacked, with limits and intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

from capplan.report.safe_text import html_words
from capplan.report.screen_units import screen_of, shown_number

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#9a8c00", "#7f7f7f")
"""Distinct for colour-blind readers and in print: Okabe and Ito 2008, with the yellow darkened for white paper."""

_WIDTH, _LABEL, _VALUE = 760, 200, 120
_BAR, _GAP, _TOP = 18, 10, 6
_LEGEND = 20
_LETTER = 7.4
"""Width of a letter at the size that the pictures use."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of a picture."""

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


def svg_of(picture: Bars, *, index: int = 0) -> str:
    """Return the picture as an SVG element, its text in the colour of the page.

    Parameters
    ----------
    picture : bars
    index : number of the picture on its page

    Returns
    -------
    an `<svg>` element
    """
    largest = _largest(picture)
    scale = (_WIDTH - _LABEL - _VALUE) / largest
    names = _part_names(picture.bars)
    legend = _legend(names) if len(names) > 1 else []
    below = _TOP + len(picture.bars) * (_BAR + _GAP)
    limit_height = _LEGEND if picture.limit is not None else 0
    height = (
        below
        + limit_height
        + (_LEGEND * (1 + max((line for line, *_ in legend), default=0)) if legend else 0)
    )
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="picture-{index}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="currentColor" xmlns="http://www.w3.org/2000/svg">',
        f'<title id="picture-{index}">{html_words(picture.title)}</title>',
    ]
    for place, bar in enumerate(picture.bars):
        parts += _bar(bar, picture, names, _TOP + place * (_BAR + _GAP), scale, largest)
    if picture.limit is not None:
        parts += _limit(picture, scale, below)
    parts += [_entry(names, at, below + limit_height, line, x) for at, (line, x) in enumerate(legend)]
    return "\n".join([*parts, "</svg>"])


def _largest(picture: Bars) -> float:
    amounts = [sum(amount for _, amount in bar.parts) for bar in picture.bars]
    edges = [bar.high for bar in picture.bars if bar.high is not None]
    return max([*amounts, *edges, picture.limit or 0.0, 1e-30])


def _part_names(bars: Sequence[Bar]) -> list[str]:
    return list(dict.fromkeys(name for bar in bars for name, _ in bar.parts))


def _shown(picture: Bars, amount: float, largest: float) -> str:
    screen = screen_of(picture.quantity, [largest])
    return f"{shown_number(float(amount), screen.factor)} {screen.unit}".rstrip()


def _bar(bar: Bar, picture: Bars, names: list[str], top: float, scale: float, largest: float) -> list[str]:
    middle = top + _BAR / 2
    text = [
        f'<text x="{_LABEL - 8}" y="{middle:.1f}" dy="0.35em" text-anchor="end">{html_words(bar.label)}</text>'
    ]
    x, total = float(_LABEL), 0.0
    for name, amount in bar.parts:
        width = max(0.0, amount) * scale
        colour = COLOURS[names.index(name) % len(COLOURS)]
        tip = html_words(f"{name}: {_shown(picture, amount, largest)}")
        text.append(
            f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"><title>{tip}</title></rect>'
        )
        x, total = x + width, total + max(0.0, amount)
    end = x
    if bar.low is not None and bar.high is not None:
        left, right = _LABEL + bar.low * scale, _LABEL + bar.high * scale
        text.append(
            f'<path d="M{left:.1f} {middle:.1f}H{right:.1f}M{left:.1f} {middle - 4:.1f}v8M{right:.1f} {middle - 4:.1f}v8" '
            'stroke="currentColor" fill="none"/>'
        )
        end = max(end, right)
    text.append(
        f'<text x="{end + 6:.1f}" y="{middle:.1f}" dy="0.35em">{html_words(_shown(picture, total, largest))}</text>'
    )
    return text


def _limit(picture: Bars, scale: float, below: float) -> list[str]:
    assert picture.limit is not None
    x = _LABEL + picture.limit * scale
    words = html_words(f"{picture.limit_name} {_shown(picture, picture.limit, _largest(picture))}".strip())
    return [
        f'<path d="M{x:.1f} 0V{below}" stroke="currentColor" stroke-dasharray="4 3" fill="none"/>',
        f'<text x="{x:.1f}" y="{below + 12}" text-anchor="middle">{words}</text>',
    ]


def _legend(names: Sequence[str]) -> list[tuple[int, float]]:
    """Return line and left edge of every entry of the legend, wrapped to the width of the picture."""
    places: list[tuple[int, float]] = []
    line, x = 0, float(_LABEL)
    for name in names:
        width = 24 + _LETTER * len(name)
        if x + width > _WIDTH and x > _LABEL:
            line, x = line + 1, float(_LABEL)
        places.append((line, x))
        x += width
    return places


def _entry(names: Sequence[str], at: int, below: float, line: int, x: float) -> str:
    y = below + _LEGEND * line + 4
    colour = COLOURS[at % len(COLOURS)]
    return (
        f'<rect x="{x:.1f}" y="{y}" width="12" height="12" fill="{colour}"/>'
        f'<text x="{x + 16:.1f}" y="{y + 10}">{html_words(names[at])}</text>'
    )
