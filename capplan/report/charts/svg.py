"""Any chart as a self-contained SVG element: bars, tornados, lines and steps, whose marks say their values."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import log10

from capplan.report.charts.of_answers import (
    COLOURS,
    Bar,
    Bars,
    Chart,
    Line,
    Lines,
    Tornado,
    Turned,
    amount_text,
    axis_title,
    tick_text,
    ticks,
)
from capplan.report.safe_text import html_words

WIDTH = 760
_TITLE = 28
"""Height of the title above a chart."""
LETTER = 7.4
"""Width of a letter at the size that the charts use."""


def frame(title: str, height: float, parts: Sequence[str], index: int) -> str:
    """Return a chart as an SVG element, its text in the colour of the page.

    Parameters
    ----------
    title : of the chart
    height : of the drawing, which is WIDTH wide
    parts : elements
    index : number of the chart on its page

    Returns
    -------
    an `<svg>` element; arrow keys walk over its marks where the script of a page is at work
    """
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="picture-{index}" class="chart" '
            'font-family="system-ui, sans-serif" font-size="12" fill="currentColor" xmlns="http://www.w3.org/2000/svg">',
            f'<title id="picture-{index}">{html_words(title)}</title>',
            *parts,
            "</svg>",
        ]
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", turn: bool = False) -> str:
    """Return a line of text whose middle is at a height."""
    turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
    side = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" dy="0.35em"{side}{turned}>{html_words(words)}</text>'


def mark(said: str, shape: str) -> str:
    """Return a shape that says what it shows: to a pointer as it stands, to a keyboard by the script of the page."""
    return f'<g class="mark"><title>{html_words(said)}</title>{shape}</g>'


def label_width(labels: Sequence[str]) -> float:
    """Return the room that the longest of some labels takes, no more than half of the chart."""
    return min(max(90.0, 12.0 + LETTER * max(map(len, labels), default=0)), WIDTH / 2.0)


_VALUE = 150
"""Right of the longest bar, for its value; on both sides of a tornado, for the change and its value."""
_BAR, _GAP, _TOP = 16, 14, 6
_LEGEND = 20


def bars_svg(chart: Bars, index: int) -> str:
    """Return horizontal bars; values stand at the prediction, intervals as a thin line below it."""
    largest = _largest(chart)
    left = label_width([bar.label for bar in chart.bars])
    scale = (WIDTH - left - _VALUE) / largest
    names = list(dict.fromkeys(name for bar in chart.bars for name, _ in bar.parts))
    legend = _legend(names, left)
    below = _TOP + len(chart.bars) * (_BAR + _GAP)
    limit_height = _LEGEND if chart.limit is not None else 0
    legend_height = _LEGEND * (1 + max((line for line, _ in legend), default=-1))
    parts: list[str] = []
    for place, bar in enumerate(chart.bars):
        parts += _bar(bar, chart, names, _TOP + place * (_BAR + _GAP), left, scale, largest)
    if chart.limit is not None:
        x = left + chart.limit * scale
        words = f"{chart.limit_name} {amount_text(chart.quantity, chart.limit, largest)}".strip()
        parts += [
            f'<path d="M{x:.1f} 0V{below}" stroke="currentColor" stroke-dasharray="4 3" fill="none"/>',
            text(min(x, WIDTH - LETTER * len(words) / 2.0), below + 12, words, anchor="middle"),
        ]
    parts += [_entry(names, at, below + limit_height, line, x) for at, (line, x) in enumerate(legend)]
    return frame(chart.title, below + limit_height + legend_height, parts, index)


def _largest(chart: Bars) -> float:
    amounts = [sum(amount for _, amount in bar.parts) for bar in chart.bars]
    edges = [bar.high for bar in chart.bars if bar.high is not None]
    return max([*amounts, *edges, chart.limit or 0.0, 1e-30])


def _bar(
    bar: Bar, chart: Bars, names: list[str], top: float, left: float, scale: float, largest: float
) -> list[str]:
    middle = top + _BAR / 2
    parts = [text(left - 8, middle, bar.label, anchor="end")]
    x, total = left, 0.0
    for name, amount in bar.parts:
        width = max(0.0, amount) * scale
        colour = COLOURS[names.index(name) % len(COLOURS)]
        said = f"{bar.label}: {name} {amount_text(chart.quantity, amount, largest)}"
        if bar.low is not None and bar.high is not None:
            low, high = (amount_text(chart.quantity, edge, largest) for edge in (bar.low, bar.high))
            said += f", 80% interval {low} to {high}"
        shape = f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
        parts.append(mark(said, shape))
        x, total = x + width, total + max(0.0, amount)
    if bar.low is not None and bar.high is not None:
        start, end, below = left + bar.low * scale, left + bar.high * scale, top + _BAR + 5
        parts.append(
            f'<path d="M{start:.1f} {below:.1f}H{end:.1f}M{start:.1f} {below - 3:.1f}v6M{end:.1f} {below - 3:.1f}v6" '
            'stroke="currentColor" fill="none"/>'
        )
    parts.append(text(x + 6, middle, amount_text(chart.quantity, total, largest)))
    return parts


def _legend(names: Sequence[str], left: float, swatch: float = 24.0) -> list[tuple[int, float]]:
    """Return line and left edge of every entry of the legend, wrapped to the width of the picture; none for a single one."""
    places: list[tuple[int, float]] = []
    line, x = 0, left
    for name in names if len(names) > 1 else ():
        width = swatch + LETTER * len(name)
        if x + width > WIDTH and x > left:
            line, x = line + 1, left
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


def tornado_svg(chart: Tornado, index: int) -> str:
    """Return a tornado: from the value as it is to the values with one thing low and high."""
    values = [chart.base, *(v for row in chart.turned for v in (row.low, row.high) if v is not None)]
    left = label_width([row.label for row in chart.turned])
    low, high = min(values), max([*values, 1e-30])
    span = (high - low) or high
    before, after = (_room(chart, high, right=right) for right in (False, True))
    scale = (WIDTH - left - before - after) / span
    below = _TOP + len(chart.turned) * (_BAR + _GAP)
    zero = left + before + (chart.base - low) * scale
    parts: list[str] = []
    for place, row in enumerate(chart.turned):
        top = _TOP + place * (_BAR + _GAP)
        parts.append(text(left - 8, top + _BAR / 2, row.label, anchor="end"))
        parts += _turn(row, chart, top, zero, scale, high)
    words = f"as planned {amount_text(chart.quantity, chart.base, high)}"
    parts.append(f'<path d="M{zero:.1f} 0V{below}" stroke="currentColor" fill="none"/>')
    parts.append(text(zero, below + 10, words, anchor="middle"))
    return frame(chart.title, below + _LEGEND, parts, index)


def _room(chart: Tornado, largest: float, *, right: bool) -> float:
    """Return the room that the longest label on one side needs."""
    ends = [end for row in chart.turned for end in row.ends(chart.base) if (end[0] > chart.base) == right]
    longest = max((len(_end_text(chart, value, name, largest)) for value, name, _ in ends), default=0)
    return max(float(_VALUE), 12.0 + LETTER * longest)


def _end_text(chart: Tornado, value: float, name: str, largest: float) -> str:
    return f"{name}: {amount_text(chart.quantity, value, largest, per=False)}"


def _turn(row: Turned, chart: Tornado, top: float, zero: float, scale: float, largest: float) -> list[str]:
    """Return both ends of one line; ends on the same side share it, the nearer one on top."""
    known = row.ends(chart.base)
    parts = []
    for value, name, colour in known:
        x = zero + (value - chart.base) * scale
        start, width = min(x, zero), abs(x - zero)
        said = f"{row.label} {name}: {amount_text(chart.quantity, value, largest)}"
        shape = f'<rect x="{start:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
        parts.append(mark(said, shape))
    outer: dict[bool, tuple[float, str]] = {}
    for value, name, _ in known:
        outer.setdefault(value > chart.base, (value, name))
    for right, (value, name) in outer.items():
        x = zero + (value - chart.base) * scale
        said = _end_text(chart, value, name, largest)
        parts.append(text(x + (6 if right else -6), top + _BAR / 2, said, anchor="start" if right else "end"))
    if row.missing:
        parts.append(text(WIDTH - 4, top + _BAR / 2, f"{row.missing}: no fleet is enough", anchor="end"))
    return parts


_HEIGHT, _LEFT, _RIGHT, _LINES_TOP, _BOTTOM = 300, 74, 16, 12, 46
_LINES_LEGEND = 18
_MOST_MARKS = 60
"""Points of a line with marks; more would lie on top of each other."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis: the values at its ends, and where they are drawn."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        """Return where a value is drawn; values beyond an end are drawn on it."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            part = log10(inside / self.low) / (log10(self.high / self.low) or 1.0)
        else:
            part = (inside - self.low) / ((self.high - self.low) or 1.0)
        return self.start + part * (self.end - self.start)


def lines_svg(chart: Lines, index: int) -> str:
    """Return a line chart with its axes, and a legend where there are several lines."""
    all_x = [x for line in chart.lines for x in line.x]
    all_y = [y for line in chart.lines for y in line.y]
    across = _axis(all_x, _LEFT, WIDTH - _RIGHT, log=chart.log or chart.log_x, from_zero=False)
    upright = _axis(all_y, _HEIGHT - _BOTTOM, _LINES_TOP, log=chart.log, from_zero=True)
    parts = _axes(chart, across, upright)
    for at, line in enumerate(chart.lines):
        parts += _series(chart, line, COLOURS[at % len(COLOURS)], across, upright)
    if chart.mark is not None:
        x = across.at(chart.mark)
        parts.append(
            f'<path class="today" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="currentColor" stroke-dasharray="2 3" fill="none"/>'
        )
        side = "end" if x > WIDTH / 2 else "start"
        parts.append(text(x + (-5 if side == "end" else 5), _LINES_TOP + 6, chart.mark_name, anchor=side))
    legend = _legend([line.name for line in chart.lines], _LEFT, 26.0)
    for at, (row, x) in enumerate(legend):
        y, colour = _HEIGHT + _LINES_LEGEND * row + 8, COLOURS[at % len(COLOURS)]
        swatch = f'<rect x="{x:.1f}" y="{y - 2:.1f}" width="12" height="4" fill="{colour}"/>'
        parts.append(swatch + text(x + 16, y, chart.lines[at].name))
    height = _HEIGHT + _LINES_LEGEND * (1 + max((row for row, _ in legend), default=-1))
    return frame(chart.title, height, parts, index)


def _axis(values: Sequence[float], start: float, end: float, *, log: bool, from_zero: bool) -> _Axis:
    known = [value for value in values if value > 0.0] if log else list(values)
    low, high = min(known, default=1.0), max(known, default=1.0)
    if not log:
        low = 0.0 if from_zero else low
        marks = ticks(low, high)
        step = marks[1] - marks[0] if len(marks) > 1 else high or 1.0
        most = marks[-1] + (step if marks[-1] < high and from_zero else 0.0)
        return _Axis(low, max(high, most), start, end, log)
    return _Axis(low / 1.2, high * 1.2, start, end, log)


def _axes(chart: Lines, across: _Axis, upright: _Axis) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, WIDTH - _RIGHT
    x_words, x_screen = axis_title(chart.x, [across.high], chart.x_title)
    y_words, y_screen = axis_title(chart.y, [upright.high], chart.y_title)
    heights = ticks(upright.low, upright.high, log=upright.log)
    grid = "".join(f"M{_LEFT} {upright.at(tick):.1f}H{right}" for tick in heights)
    parts = [f'<path class="grid" d="{grid}" stroke="currentColor" stroke-opacity="0.15" fill="none"/>']
    parts.append(f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" stroke="currentColor" fill="none"/>')
    for tick in heights:
        parts.append(text(_LEFT - 6, upright.at(tick), tick_text(tick * y_screen.factor), anchor="end"))
    for tick in ticks(across.low, across.high, log=across.log):
        parts.append(text(across.at(tick), bottom + 12, tick_text(tick * x_screen.factor), anchor="middle"))
    parts.append(text((_LEFT + right) / 2, bottom + 32, x_words, anchor="middle"))
    parts.append(text(10, (_LINES_TOP + bottom) / 2, y_words, anchor="middle", turn=True))
    return parts


def _series(chart: Lines, line: Line, colour: str, across: _Axis, upright: _Axis) -> list[str]:
    places = [(across.at(x), upright.at(y)) for x, y in zip(line.x, line.y, strict=True)]
    parts = []
    if line.kind != "points" and places:
        first, *rest = places
        path = f"M{first[0]:.1f} {first[1]:.1f}" + "".join(
            f"H{x:.1f}V{y:.1f}" if line.kind == "step" else f"L{x:.1f} {y:.1f}" for x, y in rest
        )
        parts.append(f'<path d="{path}" stroke="{colour}" stroke-width="2" fill="none"/>')
    radius = 5.0 if line.kind == "points" else 3.0
    every = 1 if line.kind == "points" else max(1, -(-len(places) // _MOST_MARKS))
    for at in range(0, len(places), every):
        x, y = places[at]
        text = _point_text(chart, line, at, across.high, upright.high)
        parts.append(mark(text, f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>'))
    return parts


def _point_text(chart: Lines, line: Line, at: int, most_x: float, most_y: float) -> str:
    """Return what a point says, by its number."""
    if line.labels:
        return f"{line.name}: {line.labels[at]}"
    x, y = amount_text(chart.x, line.x[at], most_x), amount_text(chart.y, line.y[at], most_y)
    return f"{line.name}: {y} at {x}"


def svg_of(chart: Chart, *, index: int = 0) -> str:
    """Return a chart as an SVG element, its text in the colour of the page.

    Parameters
    ----------
    chart : as data
    index : number of the chart on its page
    """
    if isinstance(chart, Bars):
        return bars_svg(chart, index)
    return tornado_svg(chart, index) if isinstance(chart, Tornado) else lines_svg(chart, index)


def svg_file(chart: Chart) -> str:
    """Return a chart as an SVG file: dark on white, wherever it is shown."""
    return _on_white(svg_of(chart))


def _on_white(drawing: str) -> str:
    drawing = drawing.replace('class="chart"', 'color="#1a1a1a"', 1)
    title, end, rest = drawing.partition("</title>\n")
    return f'{title}{end}<rect width="100%" height="100%" fill="#ffffff"/>\n{rest}\n'


def titled_svg(charts: Sequence[Chart]) -> str:
    """Return charts below each other as one SVG file, each under its title; the same charts give the same bytes."""
    parts, below = [], 0.0
    for index, chart in enumerate(charts, 1):
        drawing = svg_of(chart, index=index)
        size = re.search(r'viewBox="0 0 \S+ ([\d.]+)"', drawing)
        assert size is not None
        parts.append(text(4, below + _TITLE / 2, chart.title))
        place = f'class="chart" y="{below + _TITLE:g}" height="{float(size[1]):g}"'
        parts.append(drawing.replace('class="chart"', place, 1))
        below += _TITLE + float(size[1])
    return _on_white(frame("; ".join(chart.title for chart in charts), below, parts, 0))
