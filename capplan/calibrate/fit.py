"""Fit the numbers of a form to measured times: robust, with intervals; and simple fits without a form."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from capplan.calibrate.forms import FORMS, Columns, Form, Known, columns_of, known_beforehand, sheet
from capplan.calibrate.shapes import library_of
from capplan.numbers import Array
from capplan.readers.calibration.record import FittedNumber, KernelFit, Machine, Measurement, Peaks, Score

Family = Mapping[str, Mapping[str, float]]
"""Numbers of another device of the family, by kernel/dtype."""
TYPICAL_ERROR = 0.1
"""Relative errors beyond this count less than squared."""
NOISE = 0.05
"""Relative error of a well measured shape, which sets the weight of the priors."""
NARROWED = 0.6
"""A number counts as constrained where the shapes narrow its prior to less than this fraction."""
TAIL_WEIGHT = 0.25
"""Weight of the 80th percentile of the errors beside their median, when choosing among fits."""
STARTS = (0.0, -1.4, -0.7, 0.3, 0.8)
"""Shifts of all logarithms from the priors, from which a fit starts."""
REMARKED_BIAS = 0.15
REMARKED_SHAPES = 4


@dataclass(slots=True)
class Fitting:
    """What has been fitted so far: kept where Ctrl-C or an error ends it early."""

    measurements: list[Measurement]
    fits: dict[str, KernelFit] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def fit_all(
    fitting: Fitting,
    machine: Machine,
    peaks: Peaks,
    family: Family | None = None,
    is_late: Callable[[], bool] = lambda: False,
) -> None:
    """Add the fit of every measured kernel, dtype and library, and its fitted times.

    Parameters
    ----------
    fitting : measurements, with `held_out` set on those that the scored fit must not see
    machine : for the fields that are not fitted
    peaks : best measured rates, for the same
    family : numbers of another device of the architecture, as starting values
    is_late : whether the time is up: the fits that are left start from the priors alone
    """
    for form in FORMS:
        kinds = {(m.dtype, library_of(m)) for m in fitting.measurements if m.operator in form.operators}
        for dtype, library in sorted(kinds):
            places = [
                place
                for place, m in enumerate(fitting.measurements)
                if m.operator in form.operators
                and (m.dtype, library_of(m)) == (dtype, library)
                and not m.throttled
            ]
            if places:
                key = f"{form.kernel}/{dtype}" + (f"@{library}" if library else "")
                fixed = sheet(form, dtype, machine, peaks)
                free = form.numbers(dtype)
                known = {name: value for name, value in fixed.items() if name not in free}
                starts = STARTS[:1] if is_late() else STARTS
                _fit_one(fitting, key, form, dtype, places, known, family or {}, starts)


def _fit_one(
    fitting: Fitting,
    key: str,
    form: Form,
    dtype: str,
    places: Sequence[int],
    fixed: Mapping[str, float],
    family: Family,
    starts: Sequence[float],
) -> None:
    members = [fitting.measurements[place] for place in places]
    near = family.get(key.partition("@")[0], {})
    try:
        fit, predicted = _Problem(form, dtype, members, fixed, near, starts).solved()
    except (ArithmeticError, ValueError) as error:  # too few or senseless times; the measurements stay
        fitting.failures.append(f"{key} is measured but not fitted: {error}")
        return
    fitting.fits[key] = fit
    for place, measurement, seconds in zip(places, members, predicted, strict=True):
        fitting.measurements[place] = replace(measurement, fitted_s=float(seconds))


@dataclass(frozen=True)
class _Problem:
    """The numbers of one kernel and dtype, as logarithms, against measured times."""

    form: Form
    dtype: str
    measurements: Sequence[Measurement]
    fixed: Mapping[str, float]
    near: Mapping[str, float]
    starts: Sequence[float]

    def known(self) -> list[Known]:
        return [known_beforehand(name, self.near.get(name)) for name in self.names]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return self.form.numbers(self.dtype)

    @cached_property
    def shapes(self) -> dict[str, tuple[list[int], Columns]]:
        """Return the places of each operator's measurements, and their shapes; every step of a fit asks for them."""
        places = {
            operator: [i for i, m in enumerate(self.measurements) if m.operator == operator]
            for operator in _operators(self.measurements)
        }
        return {
            operator: (rows, columns_of([self.measurements[i] for i in rows]))
            for operator, rows in places.items()
        }

    def predicted(self, logs: Array) -> Array:
        """Return the time of every measured shape."""
        rates = self.form.record(**self.fixed, **dict(zip(self.names, np.exp(logs).tolist(), strict=True)))
        result = np.empty(len(self.measurements))
        for operator, (places, shapes) in self.shapes.items():
            result[places] = self.form.operators[operator](shapes, self.dtype, rates)
        return result

    def solved(self) -> tuple[KernelFit, Array]:
        """Return the fit of all shapes, and times by which to judge it: of held-out shapes by a fit that did not see them."""
        seen = np.array([not m.held_out for m in self.measurements])
        blind = self.fitted_to(seen)
        judged = self.predicted(blind.x)
        best, intervals = blind, self.intervals(blind, seen)
        if not seen.all():
            every = np.ones(len(seen), dtype=bool)
            best = self.fitted_to(every, blind.x)
            intervals = self.intervals(best, every)
            judged = np.where(seen, self.predicted(best.x), judged)
        low, high = self.bounds()
        widths = [k.log_width for k in self.known()]
        numbers = {
            name: _number(log, half, prior, lowest, highest)
            for name, log, half, prior, lowest, highest in zip(
                self.names, best.x, intervals, widths, low, high, strict=True
            )
        }
        scores = {
            operator: score(operator, self.measurements, judged) for operator in _operators(self.measurements)
        }
        return KernelFit(numbers, scores, _libraries(self.measurements)), judged

    def bounds(self) -> tuple[Array, Array]:
        return np.log([k.low for k in self.known()]), np.log([k.high for k in self.known()])

    def fitted_to(self, seen: Array, start: Array | None = None) -> Any:
        """Return the logarithms that fit some of the shapes best: from several starts, or from a given one."""
        known = self.known()
        center = np.log([k.start for k in known])
        width = np.array([k.log_width for k in known])
        measured = np.array([m.median_s for m in self.measurements])
        weights = _operator_weights(self.measurements)[seen]

        def residuals(logs: Array) -> Array:
            errors = np.log(self.predicted(logs)[seen] / measured[seen]) * weights
            return np.concatenate([errors, NOISE * (logs - center) / width])

        rough = [center + shift for shift in self.starts] if start is None else [start]
        return _best_of_starts(residuals, center, self.bounds(), rough)

    def intervals(self, best: Any, seen: Array) -> Array:
        """Return the standard deviation of each logarithm, from the shapes and the priors."""
        count = int(seen.sum())
        width = np.array([k.log_width for k in self.known()])
        return _intervals(best.jac[:count], best.residuals[:count], width)


def _libraries(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """Return what ran the shapes, most frequent first."""
    return tuple(name for name, _ in Counter(m.library for m in measurements if m.library).most_common())


def _operators(measurements: Sequence[Measurement]) -> list[str]:
    return list(dict.fromkeys(m.operator for m in measurements))


def _operator_weights(measurements: Sequence[Measurement]) -> Array:
    """Return weights by which each operator of a kernel counts the same, however many shapes it has."""
    counts = {name: sum(m.operator == name for m in measurements) for name in _operators(measurements)}
    mean = len(measurements) / len(counts)
    return np.array([np.sqrt(mean / counts[m.operator]) for m in measurements])


def _best_of_starts(
    residuals: Any, center: Array, bounds: tuple[Array, Array], rough: Sequence[Array]
) -> Any:
    """Return the local fit with the smallest median error: forms with soft maxima have several local minima.

    Cauchy loss nearly ignores shapes that the form cannot explain; they remain in the reported error.
    """

    def inside(start: Array) -> Array:
        return np.clip(start, bounds[0] + 1e-6, bounds[1] - 1e-6)

    options: Any = {"bounds": bounds, "f_scale": TYPICAL_ERROR, "max_nfev": 100}
    fits = [least_squares(residuals, inside(start), loss="soft_l1", **options) for start in rough]
    fits += [least_squares(residuals, inside(first.x), loss="cauchy", **options) for first in list(fits)]

    def typical(solved: Any) -> float:
        errors = np.abs(residuals(solved.x)[: -len(center)])
        return float(np.median(errors) + TAIL_WEIGHT * np.quantile(errors, 0.8))

    best = min(fits, key=typical)
    best.residuals = residuals(best.x)
    return best


def _intervals(jacobian: Array, errors: Array, width: Array) -> Array:
    """Return the standard deviation of each logarithm, from the shapes and the priors."""
    freedom = max(len(errors) - len(width), 1)
    # the median absolute deviation: a few outliers must not widen every interval
    deviation = 1.4826 * float(np.median(np.abs(errors))) * np.sqrt(len(errors) / freedom)
    information = jacobian.T @ jacobian / max(deviation, 1e-3) ** 2 + np.diag(1.0 / width**2)
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(information))))


def _number(log: float, half: float, prior: float, low: float, high: float) -> FittedNumber:
    constrained = bool(half < NARROWED * prior and low + 1e-3 < log < high - 1e-3)
    ends = max(log - 1.96 * half, low), min(log + 1.96 * half, high)
    return FittedNumber(
        float(np.exp(log)), float(np.exp(ends[0])), float(np.exp(ends[1])), constrained=constrained
    )


def score(operator: str, measurements: Sequence[Measurement], final: Array) -> Score:
    """Return how well fitted times describe the shapes of one operator, seen and held out.

    Parameters
    ----------
    operator : the one to judge
    measurements : measurements, of this and other operators
    final : fitted time of each of them [s]

    Returns
    -------
    median errors, and the ranges of sizes with a bias
    """
    places = [i for i, m in enumerate(measurements) if m.operator == operator]
    errors = np.array([final[i] / measurements[i].median_s - 1.0 for i in places])
    held = np.array([measurements[i].held_out for i in places])
    return Score(
        points=int((~held).sum()),
        held_out_points=int(held.sum()),
        median_ape=float(np.median(np.abs(errors[~held]))),
        held_out_median_ape=float(np.median(np.abs(errors[held]))) if held.any() else None,
        remarks=_remarks([measurements[i] for i in places], errors),
    )


def _remarks(measurements: Sequence[Measurement], errors: Array) -> tuple[str, ...]:
    """Return the ranges of sizes in which the form is biased, worst first."""
    remarks: list[tuple[float, str]] = []
    for name, column in columns_of(measurements).items():
        values = np.unique(column)
        if len(values) < 3:
            continue
        for part in np.array_split(values, 3):
            inside = (column >= part[0]) & (column <= part[-1])
            bias = float(np.median(errors[inside]))
            if inside.sum() >= REMARKED_SHAPES and abs(bias) > REMARKED_BIAS:
                side = "slower" if bias > 0 else "faster"
                text = f"{name} {part[0]:g} to {part[-1]:g}: the form is {abs(bias):.0%} {side} than measured"
                remarks.append((abs(bias), f"{text} (median of {int(inside.sum())} shapes)"))
    return tuple(text for _, text in sorted(remarks, reverse=True)[:4])


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
