"""Bar charts and tornados as SVG: every bar is a mark that says its value to a pointer, a keyboard and a screen reader."""

from collections.abc import Sequence

from capplan.report.charts.records import COLOURS, Bar, Bars, Tornado, Turned, amount_text
from capplan.report.charts.svg_frame import LETTER, WIDTH, frame, label_width, mark, text
from capplan.report.safe_text import html_words

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
    legend = _legend(names, left) if len(names) > 1 else []
    below = _TOP + len(chart.bars) * (_BAR + _GAP)
    limit_height = _LEGEND if chart.limit is not None else 0
    legend_height = _LEGEND * (1 + max((line for line, _ in legend), default=0)) if legend else 0
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
            said += f", 80 % interval {low} to {high}"
        parts.append(
            mark(
                said,
                f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>',
            )
        )
        x, total = x + width, total + max(0.0, amount)
    if bar.low is not None and bar.high is not None:
        start, end, below = left + bar.low * scale, left + bar.high * scale, top + _BAR + 5
        parts.append(
            f'<path d="M{start:.1f} {below:.1f}H{end:.1f}M{start:.1f} {below - 3:.1f}v6M{end:.1f} {below - 3:.1f}v6" '
            'stroke="currentColor" fill="none"/>'
        )
    parts.append(text(x + 6, middle, amount_text(chart.quantity, total, largest)))
    return parts


def _legend(names: Sequence[str], left: float) -> list[tuple[int, float]]:
    """Return line and left edge of every entry of the legend, wrapped to the width of the picture."""
    places: list[tuple[int, float]] = []
    line, x = 0, left
    for name in names:
        width = 24 + LETTER * len(name)
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
    scale = (WIDTH - left - 2 * _VALUE) / span
    below = _TOP + len(chart.turned) * (_BAR + _GAP)
    zero = left + _VALUE + (chart.base - low) * scale
    parts: list[str] = []
    for place, row in enumerate(chart.turned):
        top = _TOP + place * (_BAR + _GAP)
        parts.append(text(left - 8, top + _BAR / 2, row.label, anchor="end"))
        parts += _turn(row, chart, top, zero, scale, high)
    words = f"as planned {amount_text(chart.quantity, chart.base, high)}"
    return frame(
        chart.title,
        below + _LEGEND,
        [
            *parts,
            f'<path d="M{zero:.1f} 0V{below}" stroke="currentColor" fill="none"/>',
            text(zero, below + 10, words, anchor="middle"),
        ],
        index,
    )


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
        said = f"{name}: {amount_text(chart.quantity, value, largest, per=False)}"
        parts.append(text(x + (6 if right else -6), top + _BAR / 2, said, anchor="start" if right else "end"))
    if row.missing:
        parts.append(text(WIDTH - 4, top + _BAR / 2, f"{row.missing}: no fleet is enough", anchor="end"))
    return parts
