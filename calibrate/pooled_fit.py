"""Fit one part of a kernel on all devices, formats and engines together: what few timings cannot tell, many others do.

    log x_gn = m_n + w_n z_gn

A number n of a group g (device, kernel, format, engine) is that of its pool, m, as far off as the timings of the group
demand: every z costs as much as a timing that is off by one `TRUST`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.accuracy.kernels import PARTS, Part, eager_time_s, part_time_s
from capplan.calibrate.kernel_parts import (
    FOLDS,
    LARGEST_WEIGHT,
    QUANTISING,
    START_AND_RANGE,
    TYPICAL_ERROR,
    PartFit,
    Timing,
    fold_of,
    record_numbers,
    timing_columns,
)
from capplan.hardware.device import Device
from capplan.hardware.efficiency import Fit
from capplan.numbers import Array, stacked
from capplan.operators.device_rates import kernel_rates

Group = tuple[str, str]
"""Catalogue name of a device, and key of a fit."""

TRUST = 0.05
"""Relative error of a timing that is worth one width of a number."""
POOL_WIDTH = 1.0
"""Of a pool's number around its start, in natural logarithms."""
WIDTHS: Mapping[str, float] = {
    "ring_ramp_bytes": 2.0, "crowding_exponent": 2.0, "direct_crowding_exponent": 2.0, "multicast_fraction": 2.0,
    "all_to_all_step_s": 1.5,
}  # fmt: skip
"""Of a group's number around its pool's, in natural logarithms; `USUAL_WIDTH` for others."""
USUAL_WIDTH = 1.0
_STEP = 1e-3
_ROUNDS = 60
_ENOUGH = 1e-4
"""Relative gain of two rounds of the solver after which it stops."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Timings as arrays, and what is known of each."""

    part: Part
    names: tuple[str, ...]
    columns: Mapping[str, Array]
    rates: Any
    l2_bytes: Array
    eager: NDArray[np.bool_]
    logs: Array
    """Of the measured times."""
    weights: Array
    group: NDArray[np.intp]
    active: NDArray[np.bool_]
    """By timing and number: whether the timing's group fits it."""
    given: Array
    """By timing and number: its value where it is not fitted."""

    def chosen(self, keep: NDArray[np.bool_]) -> "_Rows":
        """Return some of the timings."""
        index = np.flatnonzero(keep)
        return replace(
            self, columns={name: column[index] for name, column in self.columns.items()},
            rates=stacked_rows(self.rates, index), l2_bytes=self.l2_bytes[index], eager=self.eager[index],
            logs=self.logs[index], weights=self.weights[index], group=self.group[index], active=self.active[index],
            given=self.given[index],
        )  # fmt: skip

    def predicted(self, logs: Array) -> Array:
        """Return the logarithm of the predicted times; `logs` of the numbers by timing and number."""
        low, high = _ranges(self.names)
        numbers = np.where(self.active, np.exp(np.clip(logs, low, high)), self.given)
        values = {name: numbers[:, i] for i, name in enumerate(self.names)}
        ratio = values.pop("loop_l2_ratio", np.ones(len(self.logs)))
        rates = replace(self.rates, **values)
        seconds = part_time_s(self.part, self.columns, rates, self.l2_bytes, ratio)
        if self.eager.any():
            seconds = np.where(self.eager, eager_time_s(seconds, rates.launch_s), seconds)
        return np.asarray(np.log(np.maximum(seconds, 1e-12)))


def stacked_rows(rates: Any, index: NDArray[np.intp]) -> Any:
    """Return a record of arrays for some of the rows."""
    names = {name: getattr(rates, name) for name in rates.__slots__}
    return replace(
        rates, **{name: value[index] for name, value in names.items() if isinstance(value, np.ndarray)}
    )


def _widths(names: Sequence[str]) -> Array:
    return np.array([WIDTHS.get(name, USUAL_WIDTH) for name in names])


def _ranges(names: Sequence[str]) -> tuple[Array, Array]:
    ends = np.log([START_AND_RANGE[name][1:] for name in names])
    return ends[:, 0], ends[:, 1]


def _part_names(timings: Sequence[Timing], part: Part) -> tuple[str, ...]:
    names = part.numbers
    if any(timing.case.eager for timing in timings) and "launch_s" not in names:
        names = (*names, "launch_s")
    return (*names, "loop_l2_ratio") if part.read_bytes is not None else names


def _weights(own: Sequence[Timing]) -> Array:
    """Return what each timing of one group counts: both tables the same, up to a limit."""
    first = np.array([timing.table == "kernels_measured" for timing in own])
    balance = np.clip((~first).sum() / max(first.sum(), 1), 1.0, LARGEST_WEIGHT)
    return np.where(first, balance, 1.0)


def _rows(
    devices: Mapping[str, Device],
    groups: Mapping[Group, Sequence[Timing]],
    given: Mapping[Group, Mapping[str, float]],
) -> _Rows:
    timings = [timing for own in groups.values() for timing in own]
    case = timings[0].case
    part = PARTS[case.kernel, case.part]
    names = _part_names(timings, part)
    base = {name: start for name, (start, _, _) in START_AND_RANGE.items()}
    records, active, values = [], [], []
    for (device_name, _), own in groups.items():
        fmt, known = own[0].case.format, given.get((device_name, own[0].case.key), {})
        numbers = {**record_numbers(case.kernel, base), **known}
        records.append(kernel_rates(case.kernel, devices[device_name], fmt, Fit(numbers)))
        eager = any(timing.case.eager for timing in own)
        active.append(
            [
                name not in known
                and (name != "quantise_passes" or fmt in QUANTISING)
                and (name != "launch_s" or eager)
                and (name != "loop_l2_ratio" or not own[0].case.eager)
                for name in names
            ]
        )
        values.append([numbers.get(name, 1.0) for name in names])
    group = np.repeat(np.arange(len(groups)), [len(own) for own in groups.values()])
    l2_bytes = np.array([devices[device_name].l2_bytes or 0.0 for device_name, _ in groups])
    return _Rows(
        part, names, timing_columns(timings), stacked(records, group), l2_bytes[group],
        np.array([timing.case.eager for timing in timings]), np.log([timing.seconds for timing in timings]),
        np.concatenate([_weights(own) for own in groups.values()]), group, np.array(active)[group],
        np.array(values)[group],
    )  # fmt: skip


def _robust(errors: Array) -> tuple[Array, Array]:
    """Return errors whose squares grow like their size beyond `TYPICAL_ERROR`, and the slope of that."""
    root = np.sqrt(1.0 + (errors / TYPICAL_ERROR) ** 2)
    shrunk = np.sign(errors) * np.sqrt(2.0) * TYPICAL_ERROR * np.sqrt(root - 1.0)
    small = np.abs(errors) < 1e-4 * TYPICAL_ERROR
    slope = np.where(small, 1.0, errors / np.where(small, 1.0, root * shrunk))
    return shrunk, slope


@dataclass(frozen=True, slots=True)
class _Solver:
    """Levenberg-Marquardt on the pool's numbers and the groups' deviations."""

    rows: _Rows
    groups: int

    def numbers(self, unknowns: Array) -> Array:
        """Return the logarithms by group and number."""
        count = len(self.rows.names)
        widths = _widths(self.rows.names)
        return np.asarray(unknowns[:count] + widths * unknowns[count:].reshape(self.groups, count))

    def _residuals(self, unknowns: Array, middle: Array) -> Array:
        rows = self.rows
        errors, _ = _robust(rows.predicted(self.numbers(unknowns)[rows.group]) - rows.logs)
        count = len(rows.names)
        prior = [TRUST * (unknowns[:count] - middle) / POOL_WIDTH, TRUST * unknowns[count:]]
        return np.concatenate([np.sqrt(rows.weights) * errors, *prior])

    def _slopes(self, unknowns: Array) -> Array:
        rows, count = self.rows, len(self.rows.names)
        low, high = _ranges(rows.names)
        logs = self.numbers(unknowns)[rows.group]
        widths = _widths(rows.names)
        now = rows.predicted(logs)
        scale = np.sqrt(rows.weights) * _robust(now - rows.logs)[1]
        slopes = np.zeros((len(now) + unknowns.size, unknowns.size))
        place = np.arange(len(now))
        for i in range(count):
            # beyond its range a number is held at the end; it still has to feel the way back
            step = np.where(logs[:, i] + _STEP > high[i], -_STEP, _STEP)
            moved = logs.copy()
            moved[:, i] = np.clip(logs[:, i], low[i], high[i]) + step
            slope = (rows.predicted(moved) - now) / step * scale
            slopes[place, i] = slope
            slopes[place, count + rows.group * count + i] = slope * widths[i]
        prior = np.full(unknowns.size, TRUST)
        prior[:count] /= POOL_WIDTH
        slopes[len(now) :] = np.diag(prior)
        return slopes

    def solved(self, start: Array | None = None) -> Array:
        """Return the unknowns: numbers of the pool, then deviations by group and number."""
        middle = np.log([START_AND_RANGE[name][0] for name in self.rows.names])
        unknowns = np.concatenate([middle, np.zeros(self.groups * len(middle))]) if start is None else start
        residuals, damping = self._residuals(unknowns, middle), 1e-2
        cost, small = float(residuals @ residuals), 0
        for _ in range(_ROUNDS):
            slopes = self._slopes(unknowns)
            square, gradient = slopes.T @ slopes, slopes.T @ residuals
            gain = 0.0
            for _ in range(8):
                step = np.linalg.solve(square + damping * np.diag(np.diag(square)), -gradient)
                further = unknowns + np.clip(step, -1.5, 1.5)
                new = self._residuals(further, middle)
                if new @ new < cost:
                    gain = 1.0 - float(new @ new) / cost
                    unknowns, residuals, cost = further, new, float(new @ new)
                    damping = max(damping / 3.0, 1e-6)
                    break
                damping *= 4.0
            small = small + 1 if gain < _ENOUGH else 0
            if small > 1:
                break
        return unknowns


def pooled_fits(
    devices: Mapping[str, Device],
    groups: Mapping[Group, Sequence[Timing]],
    given: Mapping[Group, Mapping[str, float]],
    *,
    held_out: bool,
) -> dict[Group, PartFit]:
    """Return the numbers of one part of every group of a pool, and their errors.

    Parameters
    ----------
    devices : as the vendors state them, by catalogue name
    groups : timings of one part by device and key
    given : numbers that are not fitted
    held_out : whether to refit without each third of the shape families

    Returns
    -------
    fits by group; held-out errors are of fits that had not seen the shape family on any device
    """
    rows = _rows(devices, groups, given)
    solver = _Solver(rows, len(groups))
    best = solver.solved()
    errors = np.abs(np.exp(rows.predicted(solver.numbers(best)[rows.group]) - rows.logs) - 1.0)
    unseen = np.full(len(rows.logs), np.nan)
    if held_out:
        folds = np.array([fold_of(timing.case) for own in groups.values() for timing in own])
        for fold in range(FOLDS):
            gone = folds == fold
            if gone.any() and not gone.all():
                again = _Solver(rows.chosen(~gone), len(groups))
                left = rows.chosen(gone)
                found = left.predicted(again.numbers(again.solved(best))[left.group])
                unseen[gone] = np.abs(np.exp(found - left.logs) - 1.0)
    low, high = _ranges(rows.names)
    numbers = np.exp(np.clip(solver.numbers(best), low, high))
    fits: dict[Group, PartFit] = {}
    for index, (group, own) in enumerate(groups.items()):
        mine = rows.group == index
        active = rows.active[mine][0]
        values = {name: float(numbers[index, i]) for i, name in enumerate(rows.names) if active[i]}
        versions = tuple(sorted({f"{t.case.engine or 'all engines'} {t.version}" for t in own}))
        scored = tuple((timing.table, timing.group) for timing in own)
        fits[group] = PartFit(values, errors[mine], unseen[mine], versions, scored)
    return fits
