"""Fits without a form of `operators`: launches, and copies with a fixed cost and a rate."""

from collections.abc import Sequence

import numpy as np

from capplan.calibrate.fit import score
from capplan.numbers import Array
from capplan.readers.calibration.record import FittedNumber, KernelFit, Measurement, Score


def launch_fit(measurements: Sequence[Measurement]) -> dict[str, KernelFit]:
    """Return the time between two launches outside a CUDA graph; empty if it was not measured.

    `launch_s` is the whole of it, as `operators` expect: an eager kernel takes the longer of its own time and of this.
    """
    eager = [m for m in measurements if m.operator == "launch_eager"]
    inside = [m for m in measurements if m.operator == "launch"]
    if not eager or not inside:
        return {}
    whole, graph = eager[0], inside[0]
    width = 2.0 * whole.spread_fraction * whole.median_s
    numbers = {
        "launch_s": FittedNumber(whole.median_s, max(whole.median_s - width, 0.0), whole.median_s + width),
        "graph_s": FittedNumber(graph.median_s, graph.median_s, graph.median_s),
    }
    return {f"launch/{whole.dtype}": KernelFit(numbers, {"launch": Score(2, 0, 0.0, None)})}


def copy_fit(measurements: Sequence[Measurement], operator: str) -> tuple[KernelFit, Array] | None:
    """Return fixed cost and rate of copies, t = t_0 + Q / B, and the fitted times of this operator in order.

    By least absolute relative errors (iteratively reweighted least squares).
    """
    chosen = [m for m in measurements if m.operator == operator]
    seen = np.array([not m.held_out for m in chosen])
    if seen.sum() < 3:
        return None
    sizes = np.array([m.shape["moved_bytes"] for m in chosen])
    times = np.array([m.median_s for m in chosen])
    design = np.stack([1.0 / times, sizes / times], axis=1)[seen]
    weights = np.ones(len(design))
    solution, errors = np.zeros(2), np.zeros(len(design))
    for _ in range(20):
        solution = np.linalg.lstsq(design * weights[:, None], weights, rcond=None)[0]
        errors = design @ solution - 1.0
        weights = 1.0 / np.sqrt(np.maximum(np.abs(errors), 1e-3))
    floor_s, per_byte_s = max(float(solution[0]), 0.0), max(float(solution[1]), 1e-18)
    deviation = 1.4826 * float(np.median(np.abs(errors)))
    half = 1.96 * deviation * np.sqrt(np.diag(np.linalg.pinv(design.T @ design)))
    slowest, fastest = per_byte_s + float(half[1]), max(per_byte_s - float(half[1]), per_byte_s / 10)
    numbers = {
        "floor_s": FittedNumber(floor_s, max(floor_s - float(half[0]), 0.0), floor_s + float(half[0])),
        "bytes_per_s": FittedNumber(1.0 / per_byte_s, 1.0 / slowest, 1.0 / fastest),
    }
    final = floor_s + sizes * per_byte_s
    return KernelFit(numbers, {operator: score(operator, chosen, final)}), final
