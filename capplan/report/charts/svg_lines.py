"""Line charts as SVG, on plain or logarithmic axes: lines, steps and points, each point a mark."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log10

from capplan.report.charts.records import COLOURS, Line, Lines, amount_text, axis_title, tick_text, ticks
from capplan.report.charts.svg_frame import LETTER, WIDTH, frame, mark, text

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 300, 74, 16, 12, 46
_LEGEND = 18
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
    across = _axis(all_x, _LEFT, WIDTH - _RIGHT, log=chart.log, from_zero=False)
    upright = _axis(all_y, _HEIGHT - _BOTTOM, _TOP, log=chart.log, from_zero=True)
    parts = _axes(chart, across, upright)
    for at, line in enumerate(chart.lines):
        parts += _series(chart, line, COLOURS[at % len(COLOURS)], across, upright)
    if chart.mark is not None:
        x = across.at(chart.mark)
        parts.append(
            f'<path class="today" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="currentColor" stroke-dasharray="2 3" fill="none"/>'
        )
        side = "end" if x > WIDTH / 2 else "start"
        parts.append(text(x + (-5 if side == "end" else 5), _TOP + 6, chart.mark_name, anchor=side))
    legend = _legend(chart.lines)
    return frame(
        chart.title,
        _HEIGHT + _LEGEND * (1 + max((row for row, _, _ in legend), default=-1)),
        [*parts, *(piece for _, _, piece in legend)],
        index,
    )


def _axis(values: Sequence[float], start: float, end: float, *, log: bool, from_zero: bool) -> _Axis:
    known = [value for value in values if value > 0.0] if log else list(values)
    low, high = min(known, default=1.0), max(known, default=1.0)
    if not log:
        low = 0.0 if from_zero else low
        marks = ticks(low, high)
        step = marks[1] - marks[0] if len(marks) > 1 else high or 1.0
        return _Axis(
            low, max(high, marks[-1] + (step if marks[-1] < high and from_zero else 0.0)), start, end, log
        )
    return _Axis(low / 1.2, high * 1.2, start, end, log)


def _axes(chart: Lines, across: _Axis, upright: _Axis) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, WIDTH - _RIGHT
    x_words, x_screen = axis_title(chart.x, [across.high], chart.x_title)
    y_words, y_screen = axis_title(chart.y, [upright.high], chart.y_title)
    grid = [
        f"M{_LEFT} {upright.at(tick):.1f}H{right}"
        for tick in ticks(upright.low, upright.high, log=upright.log)
    ]
    parts = [
        f'<path class="grid" d="{"".join(grid)}" stroke="currentColor" stroke-opacity="0.15" fill="none"/>'
    ]
    parts.append(f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" stroke="currentColor" fill="none"/>')
    for tick in ticks(upright.low, upright.high, log=upright.log):
        parts.append(text(_LEFT - 6, upright.at(tick), tick_text(tick * y_screen.factor), anchor="end"))
    for tick in ticks(across.low, across.high, log=across.log):
        parts.append(text(across.at(tick), bottom + 12, tick_text(tick * x_screen.factor), anchor="middle"))
    parts.append(text((_LEFT + right) / 2, bottom + 32, x_words, anchor="middle"))
    parts.append(text(10, (_TOP + bottom) / 2, y_words, anchor="middle", turn=True))
    return parts


def _series(chart: Lines, line: Line, colour: str, across: _Axis, upright: _Axis) -> list[str]:
    places = [(across.at(x), upright.at(y)) for x, y in zip(line.x, line.y, strict=True)]
    parts = []
    if line.kind != "points" and places:
        first, *rest = places
        path = f"M{first[0]:.1f} {first[1]:.1f}" + "".join(_to(line.kind, x, y) for x, y in rest)
        parts.append(f'<path d="{path}" stroke="{colour}" stroke-width="2" fill="none"/>')
    radius = 5.0 if line.kind == "points" else 3.0
    every = 1 if line.kind == "points" else max(1, -(-len(places) // _MOST_MARKS))
    said = _point_text(chart, line, across.high, upright.high)
    for at in range(0, len(places), every):
        x, y = places[at]
        parts.append(mark(said(at), f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>'))
    return parts


def _to(kind: str, x: float, y: float) -> str:
    return f"H{x:.1f}V{y:.1f}" if kind == "step" else f"L{x:.1f} {y:.1f}"


def _point_text(chart: Lines, line: Line, most_x: float, most_y: float) -> Callable[[int], str]:
    """Return what a point says, by its number."""

    def said(at: int) -> str:
        if line.labels:
            return f"{line.name}: {line.labels[at]}"
        x, y = amount_text(chart.x, line.x[at], most_x), amount_text(chart.y, line.y[at], most_y)
        return f"{line.name}: {y} at {x}"

    return said


def _legend(lines: Sequence[Line]) -> list[tuple[int, float, str]]:
    """Return row, left edge and drawing of every entry; none for a single line."""
    if len(lines) < 2:
        return []
    entries: list[tuple[int, float, str]] = []
    row, x = 0, float(_LEFT)
    for at, line in enumerate(lines):
        width = 26.0 + LETTER * len(line.name)
        if x + width > WIDTH and x > _LEFT:
            row, x = row + 1, float(_LEFT)
        y = _HEIGHT + _LEGEND * row + 8
        swatch = (
            f'<rect x="{x:.1f}" y="{y - 2:.1f}" width="12" height="4" fill="{COLOURS[at % len(COLOURS)]}"/>'
        )
        entries.append((row, x, swatch + text(x + 16, y, line.name)))
        x += width
    return entries
