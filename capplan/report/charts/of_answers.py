"""The charts of answers as data, in base units: memory and its allocation, chance to meet the SLO, load over time, the roofline."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10
from typing import Any, Literal, TypeAlias

import numpy as np

from capplan.errors import InputError
from capplan.fleet.answer import Certainty, FleetAnswer
from capplan.fleet.over_time import OverTime
from capplan.fleet.plan import Plan
from capplan.hardware.device import Device
from capplan.hardware.weight_kernel import matmul_kernel
from capplan.memory.kv_sizes import KvSize
from capplan.model.weight_format import stored_formats
from capplan.money.comparison import Comparison, cost_lines
from capplan.operators.llamacpp import ENGINE as LLAMACPP
from capplan.questions.money.energy import Outlook
from capplan.replica.estimate import OperatorRow
from capplan.replica.spec import ReplicaSpec
from capplan.report.answers.waterfall import waterfall_rows, why_title
from capplan.report.screen_units import Screen, screen_of, shown_money, shown_number
from capplan.workload.statistics import WorkloadSummary

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
    x: Sequence[float]
    y: Sequence[float]
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
    log_x: bool = False
    """The axis of x only."""
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
    >>> amount_text("ttft_s", 0.2, 0.8), amount_text("usd_per_month", 5840.0, 5840.0), amount_text("used_fraction", 0.8, 0.8)
    ('200 ms', '$5,840 per month', '80.0%')
    """
    screen = screen_of(quantity, [largest])
    unit, of, what = screen.unit.partition("/")
    if unit == "$":
        words = {"job": "for the job", "h": "per hour"}.get(what, f"per {what}")
        return f"${shown_money(amount, screen.unit)}{f' {words}' if per and of else ''}"
    space = "" if screen.unit == "%" else " "
    return f"{shown_number(float(amount), screen.factor)}{space}{screen.unit}".rstrip()


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


_NEEDED, _BLOCK, _NEVER = "needed", "rest of the last blocks", "kept for tokens that do not come"


def allocation_chart(sizes: Sequence[KvSize], longest: KvSize) -> Bars:
    """Return what one sequence takes in a paged cache and in one contiguous piece, at each context.

    A contiguous cache reserves the longest context for every sequence, as engines did before paging: Kwon et al. 2023,
    "Efficient memory management for large language model serving with PagedAttention", arXiv:2309.06180, section 3.

    Parameters
    ----------
    sizes : of sequences as long as they are
    longest : of the longest sequence that is allowed
    """
    whole = max(longest.kv_bytes_per_sequence + longest.state_bytes_per_sequence, _needed(longest))
    bars = []
    for size in sizes:
        needed = _needed(size)
        rounded = max(0.0, size.engine_reserved_bytes_per_sequence - needed)
        label = f"{size.context_tokens:,} tokens"
        bars.append(Bar(f"{label}, paged", ((_NEEDED, needed), (_BLOCK, rounded))))
        bars.append(Bar(f"{label}, contiguous", ((_NEEDED, needed), (_NEVER, max(0.0, whole - needed)))))
    title = f"KV cache of one sequence; contiguous reserves {longest.context_tokens:,} tokens"
    return Bars(title, "memory_bytes", tuple(bars))


def _needed(size: KvSize) -> float:
    return float(size.kv_bytes_per_sequence + size.state_bytes_per_sequence)


def certainty_chart(rows: Sequence[Certainty]) -> Bars | None:
    """Return what the cheapest fleet costs a month at each confidence; None where no cost is known."""
    bars = tuple(
        Bar(f"{row.confidence:.0%} confidence: {row.gpus} x {row.hardware}", (("cost", row.usd_per_month),))
        for row in rows
        if row.usd_per_month is not None
    )
    title = "Cost per month of the cheapest fleet, by confidence"
    return Bars(title, "usd_per_month", bars) if bars else None


POINTS = 96
"""A quarter of an hour each over a day."""


def load_chart(over_time: OverTime, pool: str = "") -> Lines:
    """Return the GPUs that the load needs, that an autoscaler pays for, and that a static fleet has, by the hour; of one pool, if it is named.

    Of every span the maximum is drawn, so that no peak is lost.
    """
    width = -(-over_time.needed.size // POINTS)
    starts = np.arange(0, over_time.needed.size, width)
    hours = tuple((starts * over_time.window_s / 3600.0).tolist())
    gpus = over_time.gpus_per_replica
    rates = np.maximum.reduceat(over_time.rates_per_s, starts)

    def line(name: str, replicas: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Line:
        counted = np.maximum.reduceat(replicas, starts) * gpus
        said = tuple(
            f"{count} GPUs at {rate:.3g} req/s, hour {hour:.3g}"
            for count, rate, hour in zip(counted.tolist(), rates.tolist(), hours, strict=True)
        )
        return Line(name, hours, tuple(map(float, counted.tolist())), "step", said)

    static = np.full_like(over_time.needed, over_time.static_replicas)
    return Lines(
        f"GPUs of the {pool} pool over time" if pool else "GPUs over time",
        "hours",
        "gpus",
        (
            line("static", static),
            line("autoscaled, paid for", over_time.paid),
            line("needed", over_time.needed),
        ),
        x_title="hours from the start",
        y_title="GPUs",
    )


def memory_chart(device: str, steps: Sequence[Mapping[str, Any]]) -> Bars:
    """Return one bar with a part for every line of the waterfall of a device's memory, down to its cache.

    Parameters
    ----------
    device : its name
    steps : rows of `answers.replica.waterfall`, the first of which is the whole
    """
    parts = tuple(
        (str(row["what"]), abs(float(row["memory_bytes"])))
        for row in steps[1:]
        if abs(float(row["memory_bytes"])) > 0.0
    )
    return Bars(f"Memory of one {device}", "memory_bytes", (Bar(device, parts),))


def ridge_flop_per_byte(device: Device, compute: str) -> float:
    """Return the arithmetic intensity from which on a device is bound by its arithmetic.

        I = P / B

    Parameters
    ----------
    device : its datasheet peak P [FLOP/s] and memory rate B [B/s]
    compute : dtype of the arithmetic

    Returns
    -------
    [FLOP/B]
    """
    return device.peak_flop_per_s[compute] / device.memory_bytes_per_s


def has_roof(spec: ReplicaSpec) -> bool:
    """Return whether the operators of a replica have one roof; kernels of llama.cpp use other units of a device for each format."""
    return spec.profile.engine != LLAMACPP


def compute_dtype_of(spec: ReplicaSpec) -> str:
    """Return the dtype that most matrices of a replica are multiplied in."""
    return matmul_kernel(spec.device, stored_formats(spec.network)[0]).compute_dtype


def roof_flop_per_s(device: Device, compute: str, flop_per_byte: float) -> float:
    """Return the roof above an arithmetic intensity.

        R = min(P, I B)

    Parameters
    ----------
    device : its datasheet peak P [FLOP/s] and memory rate B [B/s]
    compute : dtype of the arithmetic
    flop_per_byte : [FLOP/B]
        I

    Returns
    -------
    [FLOP/s]
        R
    """
    return min(device.peak_flop_per_s[compute], flop_per_byte * device.memory_bytes_per_s)


def roofline_chart(device: Device, compute: str, rows: Sequence[OperatorRow]) -> Lines:
    """Return the roof of a device and where the operators of prefill and decode stand below it.

    Parameters
    ----------
    device : with its datasheet peaks
    compute : dtype of the roof
    rows : operators on one device; those without arithmetic have no place
    """
    ridge, peak = ridge_flop_per_byte(device, compute), device.peak_flop_per_s[compute]
    placed = [row for row in rows if row.flop > 0.0 and row.bytes > 0.0 and row.seconds > 0.0]
    intensities = [row.flop / row.bytes for row in placed]
    low, high = min([*intensities, ridge / 10.0]), max([*intensities, ridge * 10.0])
    roof = Line(
        f"roof of {device.name} in {compute}",
        (low, ridge, high),
        (low * device.memory_bytes_per_s, peak, peak),
        labels=(
            f"memory, {shown_number(device.memory_bytes_per_s, 1e-12)} TB/s",
            f"ridge at {shown_number(ridge, 1.0)} FLOP/B",
            f"peak, {shown_number(peak, 1e-12)} TFLOP/s",
        ),
    )
    phases = []
    for phase in dict.fromkeys(row.phase for row in placed):
        rows = [row for row in placed if row.phase == phase]
        points = [(row.flop / row.bytes, row.flop / row.seconds) for row in rows]
        labels = tuple(
            f"{row.operator}, {shown_number(x, 1.0)} FLOP/B, {shown_number(y, 1e-12)} TFLOP/s, {row.bound} bound"
            for row, (x, y) in zip(rows, points, strict=True)
        )
        x, y = zip(*points, strict=True)
        phases.append(Line(phase, x, y, "points", labels))
    return Lines(
        f"Roofline of {device.name}: operators on one device",
        "flop_per_byte",
        "flop_per_s",
        (roof, *phases),
        log=True,
        mark=ridge,
        mark_name=f"ridge {shown_number(ridge, 1.0)} FLOP/B",
        x_title="arithmetic intensity",
        y_title="rate",
    )


def roofline_of(spec: ReplicaSpec, rows: Sequence[OperatorRow]) -> Lines:
    """Return the roofline of the operators of a replica; InputError where they have no roof in common."""
    if not has_roof(spec):
        raise InputError(
            f"{LLAMACPP}: no roofline is drawn, since its kernels use other units of a device for each format\n  leave out --picture"
        )
    return roofline_chart(spec.device, compute_dtype_of(spec), rows)


def waterfall_chart(plan: Plan) -> Bars:
    """Return a bar for each step of the waterfall: the sum of the steps before it, and what it adds, in dollars, or in GPUs if there is no price."""
    rows = list(waterfall_rows(plan))
    quantity = next(
        name for name in ("usd_per_job", "usd_per_month", "gpus") if rows[0].get(name) is not None
    )
    amounts = [float(row[quantity]) for row in rows]
    bars = tuple(
        Bar(row["step"], (*([("steps before", before)] if before else []), ("this step", after - before)))
        for row, (before, after) in zip(rows, pairwise((0.0, *amounts)), strict=True)
    )
    return Bars(why_title(plan), quantity, bars)


def fleet_charts(answer: FleetAnswer, outlook: Outlook) -> list[Chart]:
    """Return what required confidence costs, and load against fleet where the load has a curve; none where there is no plan."""
    certainty = certainty_chart(answer.certainty)
    charts: list[Chart] = [certainty] if certainty else []
    alike = outlook.over_time.get("")
    return [*charts, load_chart(alike)] if alike else charts


def workload_charts(summary: WorkloadSummary) -> list[Chart]:
    """Return lengths, rate over time and, where it is known, prefix reuse by the size of the cache."""
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
    charts: list[Chart] = [_plain(summary.name, "tokens", "share of requests", shares, log_x=True)]
    if rate.by_window:
        hours = [at * rate.window_s / 3600.0 for at in range(len(rate.by_window))]
        lines = [Line("rate", hours, rate.by_window, "step")]
        lines += [Line("mean", hours, [rate.mean] * len(hours))] if rate.mean else []
        charts.append(_plain("rate", "hours", f"req/s in windows of {rate.window_s:.0f} s", lines))
    if prefix:
        blocks, hits = zip(*prefix.curve, strict=True)
        curve = Line("hits", [count * prefix.block_tokens for count in blocks], hits)
        charts.append(_plain("prefix reuse", "tokens in the cache", "prefix hits", [curve], log_x=True))
    return charts


def _plain(title: str, x_title: str, y_title: str, lines: Sequence[Line], *, log_x: bool = False) -> Lines:
    """Return a chart of numbers as they are."""
    return Lines(title, "count", "count", tuple(lines), log_x=log_x, x_title=x_title, y_title=y_title)


def frontier_charts(lines: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> list[Chart]:
    """Return throughput per GPU against the speed of each user, and goodput against load, one line per plan."""

    def of_rows(y: str, x: Callable[[Mapping[str, Any]], float]) -> list[Line]:
        return [
            Line(name, [x(row) for row in rows], [row[y] for row in rows]) for name, rows in lines.items()
        ]

    speeds = of_rows("output_tokens_per_s_per_gpu", lambda row: 1.0 / row["tpot_s"]["mean"])
    shares = of_rows("slo_met_fraction", lambda row: float(row["requests_per_s"]))
    return [
        _plain(title, "tokens/s of each user", "output tokens/s of each GPU", speeds),
        _plain("goodput", "requests/s of a replica", "share within the targets", shares),
    ]


def cost_chart(comparison: Comparison, title: str) -> Lines:
    """Return the cost of the self-hosted fleet, in steps, and that of each API over the peak rate."""
    rates, own, apis = cost_lines(comparison)
    fleet = Line("self-hosted fleet", rates.tolist(), [*own[1:].tolist(), float(own[-1])], "step")
    lines = (fleet, *(Line(name, rates.tolist(), usd.tolist()) for name, usd in apis.items()))
    return Lines(
        title, "count", "count", lines, mark=comparison.own.request_rate, mark_name="today",
        x_title="req/s at the peak", y_title="$ a month",
    )  # fmt: skip
