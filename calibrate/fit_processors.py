"""What llama.cpp reaches of processors by themselves, on published speeds: fractions of their bandwidth and of the peak in fp32.

A part of `python -m calibrate.fit_llamacpp`. Eight numbers: of the bandwidth, of the peak in 16 bits and in four classes of formats, in routed experts
and in attention. What all devices share stays as it is. Rows of LocalScore count by half, as there; attention rests on one processor.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from calibrate.fit_llamacpp import (
    COMPUTE,
    HIGH_AT,
    LOW_AT,
    MEMORY,
    NOISE,
    VECTOR,
    Name,
    Row,
    ends_of,
    score_line,
    shares,
)
from capplan.numbers import Array
from capplan.readers.catalogue.llamacpp import speed_file

CLASSES = ("q8_0", "legacy", "k", "i")
NAMES: tuple[Name, ...] = (
    (MEMORY, "cpu"),
    (COMPUTE, "cpu"),
    *((COMPUTE, of) for of in (*CLASSES, "experts", "attention")),
)
USUAL = dict(zip(NAMES, (0.5, 0.13, 1.8, 2.0, 1.4, 1.0, 0.7, 0.2), strict=True))
"""Where a number lies without any row."""
DEVIATION = 0.5
"""Deviation of a number about that, as a logarithm."""


def seconds(rows: Sequence[Row], x: Array) -> Array:
    """Return the time of each row by the logarithms of the numbers."""
    file, of = speed_file(), {name: float(np.exp(log)) for name, log in zip(NAMES, x, strict=True)}
    vector, start_s = file.vector["cpu"], 1e-6 * file.start_us["cpu"]
    return np.array([_row_s(row, of, vector) + row.starts * start_s for row in rows])


def _row_s(row: Row, of: Mapping[Name, float], vector: float) -> float:
    """Return the time of the operators of a row, each as long as it reads or computes, whichever takes longer."""
    shared, total = speed_file(), 0.0
    for (kernel, name), read_s, computed_s in zip(row.classes, row.memory_s, row.compute_s, strict=True):
        memory, compute = of[MEMORY, "cpu"], of[COMPUTE, "cpu"] * of.get((COMPUTE, name), 1.0)
        if kernel in ("experts", "attention"):
            compute *= of[COMPUTE, kernel]
        elif kernel == "recurrent":
            memory, compute = memory * shared.recurrent.memory, compute * shared.recurrent.compute
        if kernel in VECTOR and row.run.kind == "generation":
            compute = vector
        total += max(read_s / min(memory, 1.0), computed_s / compute)
    return total


def solved(rows: Sequence[Row]) -> Array:
    """Return the logarithms of the numbers that some rows ask for."""
    middle, weight = np.log([USUAL[name] for name in NAMES]), shares(rows) / NOISE
    measured = np.log([row.seconds for row in rows])

    def residuals(x: Array) -> Array:
        return np.concatenate([(np.log(seconds(rows, x)) - measured) * weight, (x - middle) / DEVIATION])

    return np.asarray(least_squares(residuals, middle, loss="soft_l1", f_scale=2.0).x)


def left_out(rows: Sequence[Row], ruler: str) -> Array:
    """Return the prediction of every row by the numbers that the rows of other devices, or sources, ask for."""
    predicted = np.zeros(len(rows))
    for one in sorted({getattr(row, ruler) for row in rows}):
        here = np.array([getattr(row, ruler) == one for row in rows])
        others = [row for row, its in zip(rows, here, strict=True) if not its]
        mine = [row for row, its in zip(rows, here, strict=True) if its]
        predicted[here] = seconds(mine, solved(others))
    return predicted


def is_short(row: Row) -> bool:
    """Return whether the context of a row is one that is predicted."""
    longest = row.run.depth_tokens + row.run.prompt_tokens + row.run.generated_tokens
    return longest <= speed_file().processors.longest_context_tokens


def intervals_of(rows: Sequence[Row], predicted: Array) -> dict[str, list[float]]:
    """Return the intervals of both kinds of speed of processors, of rows whose device was left out."""
    found = {}
    for kind in ("generation", "prompt"):
        here = np.array([row.run.kind == kind for row in rows])
        mine = [row for row, its in zip(rows, here, strict=True) if its]
        ratios = np.array([row.seconds for row in mine]) / predicted[here]
        counts = len(mine), len({row.device for row in mine}), len({row.source for row in mine})
        found[f"processor_{kind}"] = ends_of(ratios, shares(mine) ** 2, counts)
    return found


def processor_answer(rows: Sequence[Row]) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Return what the file says of processors, with their intervals; print their errors, and how many rows lie in the 80% interval."""
    x = solved(rows)
    short = np.array([is_short(row) for row in rows])
    scored = [row for row, its in zip(rows, short, strict=True) if its]
    predictions = {"in sample": seconds(scored, x)}
    for ruler in ("device", "source"):
        predictions[f"{ruler} left out"] = left_out(rows, ruler)[short]
    intervals = intervals_of(scored, predictions["device left out"])
    for what, predicted in predictions.items():
        for kind in ("generation", "prompt"):
            here = np.array([row.run.kind == kind for row in scored])
            mine = [row for row, its in zip(scored, here, strict=True) if its]
            print(score_line(f"processors, {kind}, {what}", mine, predicted[here]))
        inside = [
            intervals[f"processor_{row.run.kind}"][LOW_AT]
            <= row.seconds / each
            <= intervals[f"processor_{row.run.kind}"][HIGH_AT]
            for row, each in zip(scored, predicted, strict=True)
        ]
        print(f"processors, {what}: {len(inside)} rows, {np.mean(inside):.1%} in the 80% interval")
    value = {name: float(f"{np.exp(log):.4g}") for name, log in zip(NAMES, x, strict=True)}
    record = {
        "measured": {"memory": value[MEMORY, "cpu"], "compute": value[COMPUTE, "cpu"], "rows": len(rows)},
        "processors": {
            "formats": {"16bit": 1.0} | {of: value[COMPUTE, of] for of in CLASSES},
            "experts": value[COMPUTE, "experts"],
            "attention": value[COMPUTE, "attention"],
            "longest_context_tokens": speed_file().processors.longest_context_tokens,
        },
    }
    return record, intervals
