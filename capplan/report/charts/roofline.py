"""The roofline of a device with the operators of a model on it, as a chart: Williams, Waterman, Patterson 2009."""

from collections.abc import Sequence

from capplan.hardware.device import Device
from capplan.hardware.weight_kernel import matmul_kernel
from capplan.model.weight_format import stored_formats
from capplan.replica.estimate import OperatorRow
from capplan.replica.spec import ReplicaSpec
from capplan.report.charts.records import Line, Lines
from capplan.report.screen_units import shown_number


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
