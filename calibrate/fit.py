"""Fit the numbers of a form to measured times: robust, with intervals, and judged on shapes it did not see."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from capplan.calibrate.forms import FORMS, Form, columns_of, sheet
from capplan.hardware.calibration import FittedNumber, KernelFit, Machine, Measurement, Peaks, Score
from capplan.numbers import Array

START_AND_RANGE = {
    "sharpness": (4.0, 1.0, 16.0),
    "tile_rows": (16.0, 1.0, 256.0),
    "routing_bytes_per_s": (1e10, 1e7, 1e14),
    "_fraction": (0.6, 1e-4, 1.0),
    "_floor_s": (3e-6, 1e-8, 1e-2),
    "_tokens": (100.0, 1e-2, 1e4),
    "_s": (1e-6, 1e-9, 1e-2),
    "_bytes": (1e6, 1.0, 1e10),
    "": (1.0, 1e-3, 1e3),
}
"""Start, least and largest value of a number: by its name, else by the end of its name."""
TYPICAL_ERROR = 0.1
"""Relative errors beyond this count less than squared."""
PULL = 0.01
"""Weight that keeps a number that no shape tells at its start."""
TOLD_LOG_WIDTH = 1.0
"""A number whose 95 % interval is wider than a factor e each way is called not constrained."""
REMARKED_BIAS = 0.15
REMARKED_SHAPES = 4


def start_and_range(name: str) -> tuple[float, float, float]:
    """Return start, least and largest value of a number of a form.

    Examples
    --------
    >>> start_and_range("prefill_floor_s")
    (3e-06, 1e-08, 0.01)
    """
    for end, values in START_AND_RANGE.items():
        if name.endswith(end):
            return values
    raise AssertionError(name)


def fitted(
    measurements: Sequence[Measurement], machine: Machine, peaks: Peaks
) -> tuple[list[KernelFit], list[Measurement]]:
    """Return the fit of every kernel and dtype that was measured, and the measurements with what it says of them.

    Parameters
    ----------
    measurements : with `held_out` set on those that the fit must not see
    machine : for the fields that are not fitted
    peaks : best rates seen, for the same

    Returns
    -------
    one fit per kernel and dtype (its operators share the numbers), and the measurements
    """
    fits: list[KernelFit] = []
    told = list(measurements)
    for form in FORMS:
        for dtype in sorted({m.dtype for m in told if m.operator in form.operators}):
            places = [i for i, m in enumerate(told) if m.operator in form.operators and m.dtype == dtype]
            own = [told[i] for i in places]
            fit, predicted = _kernel_fit(form, dtype, own, sheet(form, dtype, machine, peaks))
            for place, measurement, seconds in zip(places, own, predicted, strict=True):
                told[place] = replace(measurement, fitted_s=float(seconds))
            fits.append(fit)
    return fits, told


def _kernel_fit(
    form: Form, dtype: str, own: Sequence[Measurement], fixed: Mapping[str, float]
) -> tuple[KernelFit, Array]:
    names = form.numbers()
    ranges = np.log([start_and_range(name) for name in names])
    seen = np.array([not m.held_out for m in own])
    measured = np.array([m.seconds for m in own])
    weights = _operator_weights(own)[seen]

    def predicted(logs: Array) -> Array:
        rates = form.record(**fixed, **dict(zip(names, np.exp(logs).tolist(), strict=True)))
        return _predicted(form, dtype, own, rates)

    def residuals(logs: Array) -> Array:
        errors = np.log(predicted(logs)[seen] / measured[seen]) * weights
        return np.concatenate([errors, PULL * (logs - ranges[:, 0])])

    solved = _best_of_starts(residuals, ranges)
    logs = solved.x
    numbers = _with_intervals(
        names, logs, ranges, solved.jac[: int(seen.sum())], residuals(logs)[: int(seen.sum())]
    )
    final = predicted(logs)
    scores = {operator: score(operator, own, final) for operator in _operators(own)}
    return KernelFit(form.kernel, dtype, numbers, scores), final


def _operators(own: Sequence[Measurement]) -> list[str]:
    return list(dict.fromkeys(m.operator for m in own))


def _operator_weights(own: Sequence[Measurement]) -> Array:
    """Return weights that let each operator of a kernel count the same, however many shapes it has."""
    counts = {name: sum(m.operator == name for m in own) for name in _operators(own)}
    mean = len(own) / len(counts)
    return np.array([np.sqrt(mean / counts[m.operator]) for m in own])


def _predicted(form: Form, dtype: str, own: Sequence[Measurement], rates: Any) -> Array:
    result = np.empty(len(own))
    for operator in _operators(own):
        places = [i for i, m in enumerate(own) if m.operator == operator]
        result[places] = form.operators[operator](columns_of([own[i] for i in places]), dtype, rates)
    return result


def _best_of_starts(residuals: Any, ranges: Array) -> Any:
    """Return the best of three local fits: forms with soft maxima have more than one valley."""
    best = None
    for shift in (0.0, -0.7, 0.4):
        start = np.clip(ranges[:, 0] + shift, ranges[:, 1] + 1e-6, ranges[:, 2] - 1e-6)
        solved = least_squares(
            residuals,
            start,
            bounds=(ranges[:, 1], ranges[:, 2]),
            loss="soft_l1",
            f_scale=TYPICAL_ERROR,
            max_nfev=300,
        )
        if best is None or solved.cost < best.cost:
            best = solved
    return best


def _with_intervals(
    names: Sequence[str], logs: Array, ranges: Array, jacobian: Array, errors: Array
) -> dict[str, FittedNumber]:
    freedom = max(len(errors) - len(names), 1)
    # the median absolute deviation, for a few wild shapes must not widen every interval
    deviation = 1.4826 * float(np.median(np.abs(errors))) * np.sqrt(len(errors) / freedom)
    information = jacobian.T @ jacobian / max(deviation, 1e-4) ** 2
    covariance = np.linalg.pinv(information + np.diag(np.full(len(names), 1e-6)))
    widths = 1.96 * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    numbers = {}
    for name, log, width, (_, low, high) in zip(names, logs, widths, ranges, strict=True):
        told = bool(width < TOLD_LOG_WIDTH and low + 1e-3 < log < high - 1e-3)
        bounded = min(width, 10.0)
        numbers[name] = FittedNumber(
            float(np.exp(log)),
            float(np.exp(max(log - bounded, low))),
            float(np.exp(min(log + bounded, high))),
            constrained=told,
        )
    return numbers


def score(operator: str, own: Sequence[Measurement], final: Array) -> Score:
    """Return how well fitted times describe the shapes of one operator, seen and held out.

    Parameters
    ----------
    operator : the one to judge
    own : measurements, of this and other operators
    final : fitted time of each of them [s]

    Returns
    -------
    median errors, and where they lean to one side
    """
    places = [i for i, m in enumerate(own) if m.operator == operator]
    errors = np.array([final[i] / own[i].seconds - 1.0 for i in places])
    held = np.array([own[i].held_out for i in places])
    return Score(
        points=int((~held).sum()),
        held_out_points=int(held.sum()),
        median_ape=float(np.median(np.abs(errors[~held]))),
        held_out_median_ape=float(np.median(np.abs(errors[held]))) if held.any() else None,
        remarks=_remarks([own[i] for i in places], errors),
    )


def _remarks(own: Sequence[Measurement], errors: Array) -> tuple[str, ...]:
    """Return the ranges of sizes in which the form is off to one side, worst first."""
    found: list[tuple[float, str]] = []
    for name, column in columns_of(own).items():
        values = np.unique(column)
        if len(values) < 3:
            continue
        for part in np.array_split(values, 3):
            inside = (column >= part[0]) & (column <= part[-1])
            bias = float(np.median(errors[inside]))
            if inside.sum() >= REMARKED_SHAPES and abs(bias) > REMARKED_BIAS:
                side = "slower" if bias > 0 else "faster"
                text = f"{name} {part[0]:g} to {part[-1]:g}: the form is {abs(bias):.0%} {side} than measured"
                found.append((abs(bias), f"{text} (median of {int(inside.sum())} shapes)"))
    return tuple(text for _, text in sorted(found, reverse=True)[:4])
