"""Charts as pictures in files, SVG, PNG or PDF: the only place that draws with matplotlib."""

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import log10
from pathlib import Path
from typing import Any

from capplan.errors import InputError
from capplan.money.comparison import Comparison, cost_lines
from capplan.report.charts.of_answers import (
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
from capplan.report.show import refuse_picture, write_whole
from capplan.workload.statistics import WorkloadSummary

_LETTERS = 8
"""Size of the values next to bars."""
_SMALL = 6.5
"""Size of the names of points."""
_NEAR = 0.25
"""Powers of ten between points that share one name."""
_BELOW_INCHES = 0.5
"""Distance from an axis to the legend below its words."""


def _panel(chart: Chart, axis: Any) -> None:
    """Draw a chart on an axis of matplotlib."""
    if isinstance(chart, Bars):
        _bars(axis, chart)
    elif isinstance(chart, Tornado):
        _tornado(axis, chart)
    else:
        _lines(axis, chart)
    axis.set_title(visible(chart.title), loc="left", fontsize=10)


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
    """Write the names of points next to them, once for those that lie on top of each other."""
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
            dots, dash = "." if line.kind == "dotted" else None, "-" if at < len(COLOURS) else "--"
            axis.plot(x, y, dash, color=colour, drawstyle=style, label=name, marker=dots)
    if chart.log or chart.log_x:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: tick_text(value))
    if chart.log:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda value, _: tick_text(value))
    else:
        axis.set_ylim(bottom=0.0)
    if chart.mark is not None:
        axis.axvline(
            chart.mark * x_screen.factor, linestyle=":", color="grey", label=visible(chart.mark_name)
        )
    axis.set(xlabel=x_words, ylabel=y_words)
    if len(chart.lines) > 1:
        axis.legend(frameon=False, fontsize=_LETTERS)


_BESIDE_INCHES = 4.8
_WIDE_INCHES = 7.6
_STYLE = {
    "svg.hashsalt": "capplan",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name with dollars is a name
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def chart_picture(path: Path, charts: Sequence[Chart], *, side_by_side: bool = False) -> None:
    """Draw charts below each other into a file, or side by side.

    Raises
    ------
    InputError
        the suffix is not known, matplotlib is not there, or the file cannot be written
    """
    refuse_picture(path, "--plot")
    form = path.suffix.lower().removeprefix(".")
    write_whole(path, chart_bytes(charts, form, side_by_side=side_by_side), "--plot")


def chart_bytes(charts: Sequence[Chart], form: str, *, side_by_side: bool = False) -> bytes:
    """Return charts below each other or side by side as svg, png or pdf; the same charts give the same bytes."""
    heights = [height_inches(chart) for chart in charts]
    inches = (_BESIDE_INCHES * len(charts), max(heights)) if side_by_side else (_WIDE_INCHES, sum(heights))
    mpl = _matplotlib()
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # a matplotlibrc changes no picture
        mpl.rcParams.update(_STYLE)
        figure = Figure(figsize=inches)
        if side_by_side:
            axes = figure.subplots(1, len(charts), squeeze=False)
        else:
            axes = figure.subplots(len(charts), 1, squeeze=False, height_ratios=heights)
        for chart, axis in zip(charts, axes.flat, strict=True):
            _panel(chart, axis)
        figure.tight_layout()
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
        drawing = io.BytesIO()
        figure.savefig(drawing, format=form, metadata=metadata, dpi=150)
    return drawing.getvalue()


def _matplotlib() -> Any:
    """Return matplotlib, which ends its import where MPLBACKEND names what is not installed; nothing here is shown on a screen."""
    backend = os.environ.pop("MPLBACKEND", None) if "matplotlib" not in sys.modules else None
    try:
        import matplotlib as mpl
    except (ImportError, OSError, ValueError) as error:
        raise InputError(f"--plot: matplotlib cannot be imported: {str(error).splitlines()[0]}") from error
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    if backend is not None:
        with suppress(ValueError):
            mpl.rcParams["backend"] = backend
    return mpl


def workload_picture(path: Path, summary: WorkloadSummary) -> None:
    """Draw lengths, rate over time and, where it is known, prefix reuse by the size of the cache."""
    rate, prefix = summary.rate, summary.prefix
    lengths = (("input", summary.input_tokens), ("output", summary.output_tokens))
    shares = [
        Line(
            f"{name}, mean {of.mean:,.0f}",
            of.values,
            [(at + 0.5) / len(of.values) for at in range(len(of.values))],
        )
        for name, of in lengths
    ]
    charts = [_plain(summary.name, "tokens", "share of requests", shares, log_x=True)]
    if rate.by_window:
        hours = [at * rate.window_s / 3600.0 for at in range(len(rate.by_window))]
        lines = [Line("rate", hours, rate.by_window, "step")]
        lines += [Line("mean", hours, [rate.mean] * len(hours))] if rate.mean else []
        charts.append(_plain("rate", "hours", f"req/s in windows of {rate.window_s:.0f} s", lines))
    if prefix:
        blocks, hits = zip(*prefix.curve, strict=True)
        curve = Line("hits", [count * prefix.block_tokens for count in blocks], hits, "dotted")
        charts.append(_plain("prefix reuse", "tokens in the cache", "prefix hits", [curve], log_x=True))
    chart_picture(path, charts, side_by_side=True)


def _plain(title: str, x_title: str, y_title: str, lines: Sequence[Line], *, log_x: bool = False) -> Lines:
    """Return a chart of numbers as they are."""
    return Lines(title, "count", "count", tuple(lines), log_x=log_x, x_title=x_title, y_title=y_title)


def frontier_picture(path: Path, lines: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> None:
    """Draw throughput per GPU against the speed of each user, and goodput against load, one line per plan."""

    def of_rows(y: str, x: Callable[[Mapping[str, Any]], float]) -> list[Line]:
        return [
            Line(name, [x(row) for row in rows], [row[y] for row in rows], "dotted")
            for name, rows in lines.items()
        ]

    speeds = of_rows("output_tokens_per_s_per_gpu", lambda row: 1.0 / row["tpot_s"]["mean"])
    shares = of_rows("slo_met_fraction", lambda row: float(row["requests_per_s"]))
    frontier = _plain(title, "tokens/s of each user", "output tokens/s of each GPU", speeds)
    goodput = _plain("goodput", "requests/s of a replica", "share within the targets", shares)
    chart_picture(path, [frontier, goodput], side_by_side=True)


def cost_picture(path: Path, comparison: Comparison, title: str) -> None:
    """Draw the cost of the self-hosted fleet, in steps, and that of each API over the peak rate."""
    rates, own, apis = cost_lines(comparison)
    fleet = Line("self-hosted fleet", rates.tolist(), [*own[1:].tolist(), float(own[-1])], "step")
    lines = (fleet, *(Line(name, rates.tolist(), usd.tolist()) for name, usd in apis.items()))
    costs = Lines(
        title, "count", "count", lines, mark=comparison.own.request_rate, mark_name="today",
        x_title="req/s at the peak (dotted: today)", y_title="$ a month",
    )  # fmt: skip
    chart_picture(path, [costs], side_by_side=True)
