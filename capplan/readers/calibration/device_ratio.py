"""How one card differs from the record of its kind, by a kernel that was timed on both: cuBLAS in 16 bits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capplan.hardware.device import Device
from capplan.hardware.efficiency import Efficiency
from capplan.numbers import Array
from capplan.operators.device_rates import kernel_rates
from capplan.operators.matmul import matmul_time_s
from capplan.readers.calibration.record import Calibration, Measurement

KERNEL = "matmul/bf16"
"""Key of the record: every engine calls the same library, and so does torch."""
WIDE = ("bf16", "fp16")
LEAST_SHAPES = 12
NOISE = 0.05
"""Error of one shape, relative: beyond it errors count less than squared."""
PRIOR_WIDTH = 0.3
"""Two cards of one kind, or of one family, differ by less than this in two out of three cases (logarithm)."""
STEPS = 20
LARGEST_LOG = 1.5


@dataclass(frozen=True, slots=True)
class DeviceRatio:
    """The card over the record of its kind, in three numbers."""

    compute: float = 1.0
    """Arithmetic rate."""
    memory: float = 1.0
    """Memory rate."""
    floor: float = 1.0
    """Fixed cost of a kernel."""
    shapes: int = 0
    """That the ratio rests on; 0: nothing to compare, everything stays."""

    @property
    def words(self) -> str:
        """The ratio in words."""
        return f"arithmetic x {self.compute:.2f}, memory x {self.memory:.2f}, fixed costs x {self.floor:.2f}"


def device_ratio(calibration: Calibration, device: Device, family: Efficiency) -> DeviceRatio:
    """Return the ratio of a measured card to its record.

        min over c, b, f:  sum of rho(ln t_record(c, b, f) - ln t_measured) + (ln^2 c + ln^2 b + ln^2 f) / w^2

    Parameters
    ----------
    calibration : of the card
    device : whose datasheet the record's fractions are of
    family : the record: fits of the card, or of its relative

    Returns
    -------
    one for each where fewer than `LEAST_SHAPES` matmuls can be compared

    References
    ----------
    Huber 1964, "Robust estimation of a location parameter", doi:10.1214/aoms/1177703732, for rho.
    """
    rows = [
        m for m in calibration.measurements if m.operator == "matmul" and m.dtype in WIDE and not m.throttled
    ]
    wide = next((dtype for dtype in WIDE if any(m.dtype == dtype for m in rows)), "")
    rows = [m for m in rows if m.dtype == wide]
    fit = family.fits.get(KERNEL)
    if fit is None or len(rows) < LEAST_SHAPES:
        return DeviceRatio()
    rates = kernel_rates("matmul", device, "bf16", fit)
    measured = np.log([m.median_s for m in rows])

    def errors(logs: Array) -> Array:
        return np.log(_times(rows, rates, logs)) - measured

    compute, memory, floor = np.exp(_solved(errors))
    return DeviceRatio(float(compute), float(memory), float(floor), len(rows))


def _times(rows: Sequence[Measurement], rates: Any, logs: Array) -> Array:
    compute, memory, floor = np.exp(logs)
    changed = replace(
        rates,
        compute_fraction=rates.compute_fraction * compute,
        memory_fraction=rates.memory_fraction * memory,
        floor_s=rates.floor_s * floor,
    )
    shapes = [np.array([m.shape[name] for m in rows]) for name in ("rows", "inputs", "outputs")]
    return np.asarray(matmul_time_s(shapes[0], shapes[1], shapes[2], 2.0, 2.0, changed))


def _solved(errors: Any) -> Array:
    """Return the logarithms that make the errors smallest: Gauss-Newton with the weights of Huber."""
    logs = np.zeros(3)
    for _ in range(STEPS):
        now = errors(logs)
        slope = np.stack([(errors(logs + step) - now) / 1e-4 for step in 1e-4 * np.eye(3)], axis=1)
        weights = np.minimum(1.0, NOISE / np.maximum(np.abs(now), 1e-12)) / NOISE**2
        normal = slope.T @ (slope * weights[:, None]) + np.eye(3) / PRIOR_WIDTH**2
        gradient = slope.T @ (weights * now) + logs / PRIOR_WIDTH**2
        step = np.linalg.solve(normal, gradient)
        logs = np.clip(logs - np.clip(step, -0.5, 0.5), -LARGEST_LOG, LARGEST_LOG)
        if np.abs(step).max() < 1e-6:
            break
    return logs
