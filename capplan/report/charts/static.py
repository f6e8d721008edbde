"""Charts drawn by matplotlib: the same records that a page shows, for files."""

from collections.abc import Callable
from typing import Any

from capplan.report.charts.records import COLOURS, Bars, Chart, Lines, Tornado, amount_text, axis_title
from capplan.report.safe_text import visible

_LETTERS = 8
"""Size of the values beside bars."""


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
        return 1.1 + 0.34 * len(chart.bars) + (0.5 if len(chart.bars[0].parts) > 1 else 0.0)
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
            colour, first = COLOURS[names.index(name) % len(COLOURS)], row == 0 and len(names) > 1
            shown = amount * screen.factor
            axis.barh(row, shown, left=left, height=0.5, color=colour, label=visible(name) if first else None)
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
    axis.margins(x=0.16)
    axis.set_xlim(left=0.0)
    axis.set_xlabel(words)
    if len(names) > 1:
        axis.legend(
            frameon=False, fontsize=_LETTERS, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.45)
        )


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
    axis.set_xlabel(f"{words}; as planned {amount_text(chart.quantity, chart.base, max(values))}")


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
        else:
            style = "steps-post" if line.kind == "step" else "default"
            axis.plot(x, y, color=colour, drawstyle=style, label=name)
    if chart.log:
        axis.set(xscale="log", yscale="log")
    else:
        axis.set_ylim(bottom=0.0)
    if chart.mark is not None:
        axis.axvline(
            chart.mark * x_screen.factor, linestyle=":", color="grey", label=visible(chart.mark_name)
        )
    axis.set(xlabel=x_words, ylabel=y_words)
    if len(chart.lines) > 1:
        axis.legend(frameon=False, fontsize=_LETTERS)
