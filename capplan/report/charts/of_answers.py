"""The charts of answers: memory and its allocation, certainty, load over time, the roofline."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from capplan.fleet.over_time import OverTime
from capplan.fleet.plan import Certainty, FleetAnswer
from capplan.hardware.device import Device
from capplan.hardware.weight_kernel import matmul_kernel
from capplan.memory.kv_size import KvSize
from capplan.model.weight_format import stored_formats
from capplan.questions.outlook import Outlook
from capplan.replica.estimate import OperatorRow
from capplan.replica.spec import ReplicaSpec
from capplan.report.charts.records import Bar, Bars, Chart, Line, Lines
from capplan.report.screen_units import shown_number

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
    return (
        Bars("Cost per month of the cheapest fleet, by confidence", "usd_per_month", bars) if bars else None
    )


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
    phases = [
        Line(
            phase,
            tuple(row.flop / row.bytes for row in placed if row.phase == phase),
            tuple(row.flop / row.seconds for row in placed if row.phase == phase),
            "points",
            tuple(
                f"{row.operator}, {shown_number(row.flop / row.bytes, 1.0)} FLOP/B, "
                f"{shown_number(row.flop / row.seconds, 1e-12)} TFLOP/s, {row.bound} bound"
                for row in placed
                if row.phase == phase
            ),
        )
        for phase in dict.fromkeys(row.phase for row in placed)
    ]
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


def fleet_charts(answer: FleetAnswer, outlook: Outlook) -> list[Chart]:
    """Return what required confidence costs, and load against fleet where the load has a curve; none where there is no plan."""
    certainty = certainty_chart(answer.certainty)
    charts: list[Chart] = [certainty] if certainty else []
    return [*charts, load_chart(outlook.over_time)] if outlook.over_time else charts
