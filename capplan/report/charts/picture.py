"""Pictures as SVG, PNG or PDF: the only place that draws; matplotlib is imported when one is asked for."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from capplan.money.comparison import Comparison, cost_lines
from capplan.report.charts.records import Chart
from capplan.report.charts.static import height_inches, panel_of
from capplan.report.destination import refuse_picture, write_whole
from capplan.report.safe_text import visible
from capplan.workload.summary import WorkloadSummary

_PANEL_INCHES = (4.8, 3.4)
_WIDE_INCHES = 7.6
_STYLE = {
    "svg.hashsalt": "capplan",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name with dollars is a name
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def drawn(path: Path, panels: Sequence[Callable[[Any], None]], option: str = "--plot") -> None:
    """Draw some panels side by side into a file; the same values give the same bytes.

    Raises
    ------
    InputError
        the suffix is not known, matplotlib is not there, or the file cannot be written
    """
    refuse_picture(path, option)
    width, height = _PANEL_INCHES
    form = path.suffix.lower().removeprefix(".")
    write_whole(path, _bytes(panels, (width * len(panels), height), form), option)


def chart_bytes(charts: Sequence[Chart], form: str) -> bytes:
    """Return charts below each other as svg, png or pdf; the same charts give the same bytes."""
    heights = [height_inches(chart) for chart in charts]
    return _bytes([panel_of(chart) for chart in charts], (_WIDE_INCHES, sum(heights)), form, heights)


def chart_picture(path: Path, charts: Sequence[Chart]) -> None:
    """Draw charts below each other into a file.

    Raises
    ------
    InputError
        the suffix is not known, matplotlib is not there, or the file cannot be written
    """
    refuse_picture(path, "--plot")
    write_whole(path, chart_bytes(charts, path.suffix.lower().removeprefix(".")), "--plot")


def _bytes(
    panels: Sequence[Callable[[Any], None]],
    inches: tuple[float, float],
    form: str,
    heights: Sequence[float] = (),
) -> bytes:
    """Return panels side by side, or below each other where their heights are given."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    with mpl.rc_context(_STYLE):
        shape = (len(panels), 1) if heights else (1, len(panels))
        ratios = list(heights) or None
        figure, axes = plt.subplots(*shape, figsize=inches, squeeze=False, height_ratios=ratios)
        for panel, axis in zip(panels, axes.flat, strict=True):
            panel(axis)
        figure.tight_layout()
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
        drawing = io.BytesIO()
        try:
            figure.savefig(drawing, format=form, metadata=metadata, dpi=150)
        finally:
            plt.close(figure)
    return drawing.getvalue()


def workload_picture(path: Path, summary: WorkloadSummary) -> None:
    """Draw lengths, rate over time and, where it is known, prefix reuse by the size of the cache."""

    def lengths(axis: Any) -> None:
        for name, lengths_of in (("input", summary.input_tokens), ("output", summary.output_tokens)):
            share = [(place + 0.5) / len(lengths_of.values) for place in range(len(lengths_of.values))]
            axis.plot(lengths_of.values, share, label=f"{name}, mean {lengths_of.mean:,.0f}")
        axis.set(xscale="log", xlabel="tokens", ylabel="share of requests", title=visible(summary.name))
        axis.legend(frameon=False)

    def rate(axis: Any) -> None:
        values, span = summary.rate.by_window, summary.rate.window_s
        axis.step(
            [place * span / 3600.0 for place in range(len(values))], values, where="post", linewidth=0.8
        )
        if summary.rate.mean:
            axis.axhline(summary.rate.mean, linestyle=":", color="grey")
        axis.set(xlabel="hours", ylabel=f"req/s in windows of {span:.0f} s", title="rate", ylim=(0, None))

    def reuse(axis: Any) -> None:
        assert summary.prefix is not None
        size = summary.prefix.block_tokens
        axis.plot(
            [n * size for n, _ in summary.prefix.curve], [h for _, h in summary.prefix.curve], marker="."
        )
        axis.set(
            xscale="log",
            xlabel="tokens in the cache",
            ylabel="prefix hits",
            title="prefix reuse",
            ylim=(0, None),
        )

    panels = [lengths]
    if summary.rate.by_window:
        panels.append(rate)
    if summary.prefix:
        panels.append(reuse)
    drawn(path, panels)


def frontier_picture(path: Path, lines: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> None:
    """Draw throughput per GPU against the speed of each user, and goodput against load, one line per plan."""

    def frontier(axis: Any) -> None:
        for name, rows in lines.items():
            axis.plot(
                [1.0 / row["tpot_s"]["mean"] for row in rows],
                [row["output_tokens_per_s_per_gpu"] for row in rows],
                marker=".",
                label=visible(name),
            )
        axis.set(
            xlabel="tokens/s of each user",
            ylabel="output tokens/s of each GPU",
            title=visible(title),
            ylim=(0, None),
        )
        axis.legend(frameon=False, fontsize=7)

    def goodput(axis: Any) -> None:
        for name, rows in lines.items():
            axis.plot(
                [row["requests_per_s"] for row in rows],
                [row["slo_met_fraction"] for row in rows],
                marker=".",
                label=visible(name),
            )
        axis.set(
            xlabel="requests/s of a replica",
            ylabel="share within the targets",
            ylim=(0, 1.05),
            title="goodput",
        )

    drawn(path, [frontier, goodput])


def cost_picture(path: Path, comparison: Comparison, title: str) -> None:
    """Draw the cost of the own fleet, in steps, and that of each API over the peak rate."""
    rates, own, lines = cost_lines(comparison)

    def costs(axis: Any) -> None:
        axis.plot(rates, own, label="own fleet", color="black", drawstyle="steps-pre")
        for name, usd in lines.items():
            axis.plot(rates, usd, label=visible(name))
        axis.axvline(comparison.own.request_rate, linestyle=":", color="grey")
        axis.set(
            xlabel="req/s at the peak (dotted: today)",
            ylabel="$ a month",
            title=visible(title),
            xlim=(0, None),
            ylim=(0, None),
        )
        axis.legend(frameon=False, fontsize=7)

    drawn(path, [costs])
