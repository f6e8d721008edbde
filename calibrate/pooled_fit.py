"""Fit one part of a kernel on all devices, formats and engines together: many timings determine what few cannot.

    log x_gn = m_n + w_n z_gn

A number n of a group g (device, kernel, format, engine) is that of its pool, m, as far off as the timings of the group
demand: every z costs as much as a timing that is off by one `TRUST`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.kernel_parts import (
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
from capplan.accuracy.kernels import PARTS, Part, eager_time_s, part_time_s
from capplan.hardware.device import Device, Fit
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
USUAL_WIDTH = 1.5
SHARED: Mapping[tuple[str, str], frozenset[str]] = {
    ("matmul", "matmul"): frozenset({"sharpness", "wave_fraction"}),
    ("experts", "experts"): frozenset({"expert_s", "routed_passes", "starved_exponent", "wave_fraction"}),
    ("attention", "decode"): frozenset({"decode_compute_fraction"}),
    ("latent_attention", "prefill"): frozenset({"prefill_fraction"}),
    ("linear_attention", "chunk"): frozenset({"chunk_state_passes"}),
    ("latent_attention", "decode"): frozenset(
        {"decode_compute_fraction", "decode_split_tokens", "loop_l2_ratio"}
    ),
}
"""Kernel and part -> numbers that all groups of a pool share: those whose sharing costs held-out shapes nothing, or
less than a quarter of a percent."""
ENOUGH_ROWS = 20
"""Held-out timings of a kernel from which its interval is its own."""
_STEP = 1e-3
_ROUNDS = 80
_LONGEST = 1.5
"""Step of one number in one round."""
_ENOUGH = 1e-4
"""Relative gain of two rounds of the solver after which it stops."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Timings as arrays, with their priors."""

    part: Part
    names: tuple[str, ...]
    widths: Array
    """Of a group's number around its pool's, by number."""
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
    names = {field.name: getattr(rates, field.name) for field in fields(rates)}
    return replace(
        rates, **{name: value[index] for name, value in names.items() if isinstance(value, np.ndarray)}
    )


def _widths(names: Sequence[str], shared: frozenset[str]) -> Array:
    return np.array([0.0 if name in shared else WIDTHS.get(name, USUAL_WIDTH) for name in names])


def _ranges(names: Sequence[str]) -> tuple[Array, Array]:
    ends = np.log([START_AND_RANGE[name][1:] for name in names])
    return ends[:, 0], ends[:, 1]


def _part_names(timings: Sequence[Timing], part: Part) -> tuple[str, ...]:
    names = part.numbers
    if any(timing.case.eager for timing in timings) and "launch_s" not in names:
        names = (*names, "launch_s")
    return (*names, "loop_l2_ratio") if part.read_bytes is not None else names


def _weights(own: Sequence[Timing]) -> Array:
    """Return the weight of each timing of one group: both tables weigh the same, up to a limit."""
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
    for (device_name, key), own in groups.items():
        fmt, known = own[0].case.format, given.get((device_name, key), {})
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
    shared = SHARED.get((case.kernel, case.part), frozenset())
    return _Rows(
        part, names, _widths(names, shared), timing_columns(timings), stacked(records, group), l2_bytes[group],
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
class _Point:
    """State of the solver: numbers of the pool, deviations by group and number, and their loss."""

    pool: Array
    deviations: Array
    errors: Array
    """By timing, shrunk and weighted."""
    cost: float


@dataclass(frozen=True, slots=True)
class _Solver:
    """Levenberg-Marquardt with groups eliminated one by one (Schur complement), as a timing depends on no other group.

    A round costs little more than its evaluations.
    """

    rows: _Rows
    groups: int

    def numbers(self, point: _Point) -> Array:
        """Return the logarithms by group and number."""
        return np.asarray(point.pool + self.rows.widths * point.deviations)

    def _middle(self) -> Array:
        return np.log([START_AND_RANGE[name][0] for name in self.rows.names])

    def _point(self, pool: Array, deviations: Array) -> _Point:
        rows = self.rows
        logs = (pool + rows.widths * deviations)[rows.group]
        errors = np.sqrt(rows.weights) * _robust(rows.predicted(logs) - rows.logs)[0]
        prior = np.sum(((pool - self._middle()) / POOL_WIDTH) ** 2) + np.sum(deviations**2)
        return _Point(pool, deviations, errors, float(errors @ errors + TRUST**2 * prior))

    def _slopes(self, point: _Point) -> Array:
        """Return the slope of each shrunk error along each number."""
        rows = self.rows
        low, high = _ranges(rows.names)
        logs = self.numbers(point)[rows.group]
        now = rows.predicted(logs)
        scale = np.sqrt(rows.weights) * _robust(now - rows.logs)[1]
        slopes = np.zeros(logs.shape)
        for i in range(logs.shape[1]):
            # beyond its range a number is held at the end; its slope must still lead back
            step = np.where(logs[:, i] + _STEP > high[i], -_STEP, _STEP)
            moved = logs.copy()
            moved[:, i] = np.clip(logs[:, i], low[i], high[i]) + step
            slopes[:, i] = (rows.predicted(moved) - now) / step * scale
        return slopes

    def _normal(self, point: _Point) -> tuple[Array, Array]:
        """Return squares of the slopes by group, and their products with the errors."""
        slopes, rows = self._slopes(point), self.rows
        count = slopes.shape[1]
        squares, products = np.zeros((self.groups, count, count)), np.zeros((self.groups, count))
        for group in range(self.groups):
            own = slopes[rows.group == group]
            squares[group], products[group] = own.T @ own, own.T @ point.errors[rows.group == group]
        return squares, products

    def _step(self, point: _Point, normal: tuple[Array, Array], damping: float) -> tuple[Array, Array]:
        """Return the step of the pool and that of the groups."""
        squares, products = normal
        widths, unit = self.rows.widths, np.eye(len(self.rows.names))
        own = widths[:, None] * squares * widths + TRUST**2 * unit
        own = own + damping * own * unit
        shared = squares.sum(axis=0) + (TRUST / POOL_WIDTH) ** 2 * unit
        shared = shared + damping * shared * unit
        between = squares * widths
        pull = products * widths + TRUST**2 * point.deviations
        push = products.sum(axis=0) + (TRUST / POOL_WIDTH) ** 2 * (point.pool - self._middle())
        inverse = np.linalg.inv(own)
        through = between @ inverse
        pool = np.linalg.solve(
            shared - (through @ between.transpose(0, 2, 1)).sum(axis=0),
            -push + (through @ pull[:, :, None]).sum(axis=0)[:, 0],
        )
        left = -pull - (between.transpose(0, 2, 1) @ pool)
        return pool, (inverse @ left[:, :, None])[:, :, 0]

    def solved(self, start: _Point | None = None) -> _Point:
        """Return the best point reached from a start, or from the priors."""
        pool = self._middle() if start is None else start.pool
        deviations = np.zeros((self.groups, pool.size)) if start is None else start.deviations
        point, damping, small = self._point(pool, deviations), 1e-2, 0
        for _ in range(_ROUNDS):
            normal, gain = self._normal(point), 0.0
            for _ in range(8):
                along, apart = self._step(point, normal, damping)
                further = self._point(
                    point.pool + np.clip(along, -_LONGEST, _LONGEST),
                    point.deviations + np.clip(apart, -_LONGEST, _LONGEST),
                )
                if further.cost < point.cost:
                    gain = 1.0 - further.cost / point.cost
                    point, damping = further, max(damping / 3.0, 1e-6)
                    break
                damping *= 4.0
            small = small + 1 if gain < _ENOUGH else 0
            if small > 1:
                break
        return point


def interval_80(own: Array, pool: Array) -> tuple[float, float]:
    """Return the 10th and 90th percentile of measured over predicted, of the pool where own rows are few.

    Parameters
    ----------
    own : ratios of one group on held-out shapes; NaN where none were made [-]
    pool : of all groups [-]

    Returns
    -------
    low, high

    Examples
    --------
    >>> interval_80(np.linspace(0.0, 1.0, 101), np.ones(5))
    (0.1, 0.9)
    """
    own = own[np.isfinite(own)]
    chosen = own if len(own) >= ENOUGH_ROWS else pool[np.isfinite(pool)]
    if not len(chosen):
        return 1.0, 1.0
    low, high = np.quantile(chosen, (0.1, 0.9))
    return float(low), float(high)


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
    held_out : whether to refit without each part of the shape families

    Returns
    -------
    fits by group; held-out errors are of fits that had not seen the shape family on any device
    """
    rows = _rows(devices, groups, given)
    solver = _Solver(rows, len(groups))
    best = solver.solved()
    errors = np.abs(np.exp(rows.predicted(solver.numbers(best)[rows.group]) - rows.logs) - 1.0)
    ratios = np.full(len(rows.logs), np.nan)
    if held_out:
        folds = np.array([fold_of(timing.case) for own in groups.values() for timing in own])
        for fold in range(FOLDS):
            gone = folds == fold
            if gone.any() and not gone.all():
                again = _Solver(rows.chosen(~gone), len(groups))
                left = rows.chosen(gone)
                found = left.predicted(again.numbers(again.solved(best))[left.group])
                ratios[gone] = np.exp(left.logs - found)
    unseen = np.abs(1.0 / ratios - 1.0)
    low, high = _ranges(rows.names)
    numbers = np.exp(np.clip(solver.numbers(best), low, high))
    fits: dict[Group, PartFit] = {}
    for index, (group, own) in enumerate(groups.items()):
        mine = rows.group == index
        active = rows.active[mine][0]
        values = {name: float(numbers[index, i]) for i, name in enumerate(rows.names) if active[i]}
        versions = tuple(sorted({f"{t.case.engine or 'all engines'} {t.version}" for t in own}))
        scored = tuple((timing.table, timing.group) for timing in own)
        told = float(np.sum(np.where(rows.widths > 0.0, active, active / len(groups))))
        interval = interval_80(ratios[mine], ratios)
        fits[group] = PartFit(values, errors[mine], unseen[mine], versions, scored, told, interval)
    return fits
