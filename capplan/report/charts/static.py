"""Charts drawn by matplotlib: the same records that a page shows, for files."""

from collections.abc import Callable, Sequence
from math import log10
from typing import Any

from capplan.report.charts.records import (
    COLOURS,
    Bars,
    Chart,
    Line,
    Lines,
    Tornado,
    amount_text,
    axis_title,
    tick_text,
)
from capplan.report.safe_text import visible

_LETTERS = 8
"""Size of the values beside bars."""
_SMALL = 6.5
"""Size of the names of points."""
_NEAR = 0.25
"""Powers of ten between points that share one name."""
_BELOW_INCHES = 0.5
"""From an axis to the legend below its words."""


def panel_of(chart: Chart) -> Callable[[Any], None]:
    """Return what draws a chart on an axis of matplotlib."""

    def panel(axis: Any) -> None:
        if isinstance(chart, Bars):
            _bars(axis, chart)
        elif isinstance(chart, Tornado):
            _tornado(axis, chart)
        else:
            _lines(axis, chart)
        axis.set_title(visible(chart.title), loc="left", fontsize=10)

    return panel


def height_inches(chart: Chart) -> float:
    """Return how high a chart wants to be: a line for each bar."""
    if isinstance(chart, Bars):
        parts = {name for bar in chart.bars for name, _ in bar.parts}
        return 1.1 + 0.34 * len(chart.bars) + (0.2 * (1 + len(parts) // 3) if len(parts) > 1 else 0.0)
    return 1.1 + 0.34 * len(chart.turned) if isinstance(chart, Tornado) else 3.4


def _bars(axis: Any, chart: Bars) -> None:
    names = list(dict.fromkeys(name for bar in chart.bars for name, _ in bar.parts))
    edges = [bar.high or 0.0 for bar in chart.bars]
    largest = max(
        [*(sum(amount for _, amount in bar.parts) for bar in chart.bars), *edges, chart.limit or 0.0]
    )
    words, screen = axis_title(chart.quantity, [largest])
    for row, bar in enumerate(chart.bars):
        left = 0.0
        for name, amount in bar.parts:
            shown = amount * screen.factor
            axis.barh(row, shown, left=left, height=0.5, color=COLOURS[names.index(name) % len(COLOURS)])
            left += shown
        if bar.low is not None and bar.high is not None:
            low, high = bar.low * screen.factor, bar.high * screen.factor
            axis.plot(
                [low, high], [row + 0.4, row + 0.4], color="black", linewidth=0.8, marker="|", markersize=5
            )
        said = amount_text(chart.quantity, sum(amount for _, amount in bar.parts), largest)
        axis.annotate(
            said, (left, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=_LETTERS
        )
    if chart.limit is not None:
        axis.axvline(chart.limit * screen.factor, linestyle="--", color="grey", linewidth=0.8)
        axis.annotate(
            f"{chart.limit_name} {amount_text(chart.quantity, chart.limit, largest)}", (chart.limit * screen.factor, -0.6),
            va="bottom", ha="center", fontsize=_LETTERS,
        )  # fmt: skip
    axis.set_yticks(range(len(chart.bars)), [visible(bar.label) for bar in chart.bars])
    axis.invert_yaxis()
    axis.margins(x=0.2)
    axis.set_xlim(left=0.0)
    axis.set_xlabel(words)
    axis.xaxis.set_major_formatter(lambda value, _: tick_text(value))
    if len(names) > 1:
        _legend_below(axis, names)


def _legend_below(axis: Any, names: Sequence[str]) -> None:
    """Put the colours of the parts of bars under the words of the axis."""
    from matplotlib.patches import Patch
    from matplotlib.transforms import ScaledTranslation

    patches = [Patch(color=COLOURS[at % len(COLOURS)], label=visible(name)) for at, name in enumerate(names)]
    below = ScaledTranslation(0.0, -_BELOW_INCHES, axis.figure.dpi_scale_trans)
    axis.legend(
        handles=patches, frameon=False, fontsize=_LETTERS, ncols=3, loc="upper left", bbox_to_anchor=(0.0, 0.0),
        bbox_transform=axis.transAxes + below, borderaxespad=0.0,
    )  # fmt: skip


def _tornado(axis: Any, chart: Tornado) -> None:
    values = [chart.base, *(v for row in chart.turned for v in (row.low, row.high) if v is not None)]
    words, screen = axis_title(chart.quantity, values)
    base = chart.base * screen.factor
    for at, row in enumerate(chart.turned):
        said: set[bool] = set()
        for value, name, colour in row.ends(chart.base):
            shown = value * screen.factor
            axis.barh(at, shown - base, left=base, height=0.5, color=colour)
            above = shown > base
            if above not in said:
                axis.annotate(
                    visible(f"{name}: {amount_text(chart.quantity, value, max(values), per=False)}"), (shown, at), xytext=(4 if above else -4, 0), textcoords="offset points", va="center",
                    ha="left" if above else "right", fontsize=_LETTERS,
                )  # fmt: skip
            said.add(above)
    axis.axvline(base, color="black", linewidth=0.8)
    axis.set_yticks(range(len(chart.turned)), [visible(row.label) for row in chart.turned])
    axis.invert_yaxis()
    axis.margins(x=0.25)
    axis.xaxis.set_major_formatter(lambda value, _: tick_text(value))
    axis.set_xlabel(f"{words}; as planned {amount_text(chart.quantity, chart.base, max(values))}")


def _name_points(axis: Any, line: Line, x: Sequence[float], y: Sequence[float]) -> None:
    """Write the names of points beside them, once for those that lie on top of each other."""
    groups: list[list[int]] = []
    for at in range(len(line.labels)):
        near = (g for g in groups if max(abs(log10(x[at] / x[g[0]])), abs(log10(y[at] / y[g[0]]))) < _NEAR)
        if (group := next(near, None)) is None:
            groups.append([at])
        else:
            group.append(at)
    for group in groups:
        words = ", ".join(visible(line.labels[at].partition(",")[0]) for at in group)
        right = (x[group[0]], y[group[0]])
        axis.annotate(words, right, xytext=(5, -9), textcoords="offset points", fontsize=_SMALL)


def _lines(axis: Any, chart: Lines) -> None:
    x_words, x_screen = axis_title(
        chart.x, [max((x for line in chart.lines for x in line.x), default=0.0)], chart.x_title
    )
    y_words, y_screen = axis_title(
        chart.y, [max((y for line in chart.lines for y in line.y), default=0.0)], chart.y_title
    )
    for at, line in enumerate(chart.lines):
        x, y = [value * x_screen.factor for value in line.x], [value * y_screen.factor for value in line.y]
        colour, name = COLOURS[at % len(COLOURS)], visible(line.name)
        if line.kind == "points":
            axis.scatter(x, y, s=18, color=colour, label=name)
            _name_points(axis, line, x, y)
        else:
            style = "steps-post" if line.kind == "step" else "default"
            axis.plot(x, y, color=colour, drawstyle=style, label=name)
    if chart.log:
        axis.set(xscale="log", yscale="log")
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_formatter(lambda value, _: tick_text(value))
    else:
        axis.set_ylim(bottom=0.0)
    if chart.mark is not None:
        axis.axvline(
            chart.mark * x_screen.factor, linestyle=":", color="grey", label=visible(chart.mark_name)
        )
    axis.set(xlabel=x_words, ylabel=y_words)
    if len(chart.lines) > 1:
        axis.legend(frameon=False, fontsize=_LETTERS)
