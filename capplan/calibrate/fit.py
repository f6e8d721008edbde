"""Fit the numbers of a form to measured times: the forms with the priors of their numbers, robust fits with intervals, and simple fits without a form."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from capplan.accuracy.kernels import of_columns
from capplan.calibrate.kernels.case import NO_DETAIL
from capplan.calibrate.shapes import library_of
from capplan.calibrate.timing import ELEMENT_BYTES
from capplan.numbers import Array
from capplan.operators import attention, collective, experts, latent_attention, matmul
from capplan.operators.matmul import ElementwiseRates, elementwise_time_s
from capplan.readers.calibration.file import MATMUL_BYTES, QUANTISED_FIRST
from capplan.readers.calibration.measured_fit import SHEET, tile_row_halvings
from capplan.readers.calibration.record import FittedNumber, KernelFit, Machine, Measurement, Peaks, Score


@dataclass(frozen=True, slots=True)
class Known:
    """Start and range of a number; its logarithm is within `log_width` of the start in two out of three cases."""

    start: float
    low: float
    high: float
    log_width: float


_MAIN, _SIDE = 2.0, 0.7
BY_NAME: Mapping[str, Known] = {
    "sharpness": Known(4.0, 1.0, 16.0, _MAIN),
    "prefill_sharpness": Known(4.0, 1.0, 16.0, _MAIN),
    "tile_edge": Known(16.0, 0.01, 1e3, _SIDE * 2),
    "start_inputs": Known(64.0, 0.01, 1e4, _SIDE * 2),
    "wave_fraction": Known(0.3, 1e-3, 1.0, _SIDE),
    "starved_exponent": Known(0.3, 1e-3, 2.0, _SIDE),
    "sustained_loss": Known(0.02, 1e-4, 2.0, _SIDE),
    "prefill_tail_fraction": Known(0.3, 1e-3, 1.0, _SIDE),
    "decode_tail_fraction": Known(0.3, 1e-3, 1.0, _SIDE),
    "softmax_width": Known(16.0, 1e-2, 1e4, _SIDE * 2),
    "wide_head_exponent": Known(0.3, 1e-3, 3.0, _SIDE),
    "decode_pad_tokens": Known(16.0, 1e-2, 1e3, _SIDE * 2),
    "decode_split_tokens": Known(256.0, 16.0, 1e5, _SIDE),
    "decode_query_passes": Known(4.0, 0.1, 1e3, _SIDE * 2),
    "routed_passes": Known(8.0, 0.1, 1e4, _MAIN),
    "token_passes": Known(4.0, 0.1, 1e4, _MAIN),
    "quantise_passes": Known(3.0, 0.1, 60.0, 1.0),
    "multicast_fraction": Known(0.01, 1e-6, 1.0, 3.0),
    "crowding_exponent": Known(0.1, 1e-3, 2.0, _SIDE),
    "ring_ramp_bytes": Known(1e5, 1.0, 1e8, 2.0),
    "all_to_all_fraction": Known(0.7, 1e-2, 4.0, _MAIN),
    "decode_compute_fraction": Known(0.3, 1e-4, 1.0, _MAIN),
}
BY_END: Mapping[str, Known] = {
    "_bytes_per_s": Known(1e10, 1e6, 1e14, 3.0),
    "_flop_per_s": Known(1e12, 1e8, 1e17, 3.0),
    "_fraction": Known(0.7, 1e-4, 1.0, _MAIN),
    "_exponent": Known(0.3, 1e-3, 3.0, _SIDE),
    "_floor_s": Known(3e-6, 1e-8, 1e-2, 3.0),
    "_s": Known(2e-6, 1e-9, 1e-1, 3.0),
    "_tokens": Known(64.0, 1e-2, 1e5, _SIDE * 2),
    "_passes": Known(4.0, 0.1, 1e4, _MAIN),
    "": Known(1.0, 1e-3, 1e3, _MAIN),
}
FAMILY_LOG_WIDTH = 0.5
"""Width where another device of the family has the number; fixed costs and rates may be further away."""


def known_beforehand(name: str, family: float | None = None) -> Known:
    """Return the prior of a number, centred on another device of the family where there is one.

    Parameters
    ----------
    name : of the number in its rates record
    family : its value on another device of the same architecture; None or 0 where there is none

    Returns
    -------
    start, range and width

    Examples
    --------
    >>> known_beforehand("prefill_floor_s").start, known_beforehand("sharpness", family=6.0).start
    (3e-06, 6.0)
    """
    prior = BY_NAME.get(name) or next(known for end, known in BY_END.items() if name.endswith(end))
    if not family or not prior.low < family < prior.high:
        return prior
    return replace(
        prior, start=family, log_width=min(prior.log_width, max(FAMILY_LOG_WIDTH, prior.log_width / 2))
    )


Columns = Mapping[str, Any]
Predicted = Callable[[Columns, Any], Any]
_LOSING = 1e3
SCALED = QUANTISED_FIRST | {"nvfp4"}
"""Formats with scales, whose products are not split along what is summed over."""
UNFITTED: Mapping[str, float] = {
    "launch_s": 0.0,
    "router_skew": 0.0,
    "tile_load_ratio": 0.0,
    "largest_tile_rows": 128.0,
    "largest_split": 4.0,
    "quantise_passes": 0.0,
    "vector_fraction": 0.0,
    # torch does not have the all-reduce kernels of engines: they never win during the fit
    "one_shot_fraction": 1e-9,
    "one_shot_step_s": _LOSING,
    "one_shot_floor_s": _LOSING,
    "two_shot_fraction": 1e-9,
    "two_shot_step_s": _LOSING,
    "two_shot_floor_s": _LOSING,
    "direct_crowding_exponent": 0.0,
    "exchange_fraction": 1.0,
    "dispatch_floor_s": 0.0,
    "combine_floor_s": 0.0,
}
"""Numbers that are measured separately, or that these shapes cannot constrain."""


@dataclass(frozen=True, slots=True)
class Form:
    """One kernel of an efficiency file: its record, and the operators that constrain its numbers."""

    kernel: str
    record: type[Any]
    operators: Mapping[str, Predicted]

    def numbers(self, dtype: str = "") -> tuple[str, ...]:
        """Return the names of the numbers that are fitted in a format: the quantising step only where it is timed."""
        kept = {*SHEET, "tile_row_halvings", *UNFITTED}
        if self.kernel == "matmul" and dtype in QUANTISED_FIRST:
            kept.discard("quantise_passes")
        return tuple(f.name for f in fields(self.record) if f.name not in kept)


_HEADS = ("query_heads", "kv_heads", "head_dim", "head_dim", "window", "element_bytes")


def _decode(columns: Columns, rates: Any) -> Any:
    formula = partial(attention.decode_attention_time_s, rates=rates, query_tokens=columns["query_tokens"])
    return of_columns(formula, "sequences", "context_tokens", *_HEADS)(columns)


def _latent_prefill(columns: Columns, rates: Any) -> Any:
    # the benchmark writes no latent cache, so its width is 0 here
    return latent_attention.mla_prefill_time_s(
        columns["sequences"], columns["new_tokens"], 0.0, columns["query_heads"], 0.0, 0.0,
        columns["nope"] + columns["rope"], columns["value"], 0.0, rates,
    )  # fmt: skip


def _point_to_point(columns: Columns, rates: Any) -> Any:
    return collective.point_to_point_time_s(columns["message_bytes"], rates, columns["ranks"])


_MOVED = of_columns(elementwise_time_s, "moved_bytes")
_COLLECTIVES = {
    "all_reduce": collective.all_reduce_time_s,
    "all_gather": collective.all_gather_time_s,
    "reduce_scatter": collective.reduce_scatter_time_s,
    "all_to_all": collective.all_to_all_time_s,
}
FORMS = (
    Form("matmul", matmul.MatmulRates, {"matmul": of_columns(matmul.matmul_time_s, "rows", "inputs", "outputs", "weight_bytes", "activation_bytes")}),
    Form("attention", attention.AttentionRates, {
        "prefill_attention": of_columns(attention.prefill_attention_time_s, "sequences", "new_tokens", "past_tokens", *_HEADS),
        "decode_attention": _decode,
    }),
    Form("elementwise", ElementwiseRates, {"elementwise": _MOVED, "norm": _MOVED}),
    Form("experts", experts.ExpertRates, {
        "experts": of_columns(
            experts.experts_time_s, "tokens", "experts", "experts", "experts_per_token", "inputs", "intermediate", 1.0, "element_bytes", "element_bytes"
        ),
    }),
    Form("link", collective.LinkRates, {
        **{name: of_columns(time_s, "ranks", "message_bytes") for name, time_s in _COLLECTIVES.items()},
        "point_to_point": _point_to_point,
    }),
    Form("latent_attention", latent_attention.LatentAttentionRates, {
        "latent_decode": of_columns(
            latent_attention.mla_attention_decode_time_s, "sequences", "context_tokens", "query_heads", "latent", "rope", "element_bytes"
        ),
        "latent_prefill": _latent_prefill,
        "latent_bmm": of_columns(latent_attention.mla_bmm_time_s, "tokens", "query_heads", "inputs", "outputs", "element_bytes"),
    }),
)  # fmt: skip
"""Forms of the kernels that torch can run; all others keep the numbers of the device's family."""


def sheet(form: Form, dtype: str, machine: Machine, peaks: Peaks) -> dict[str, float]:
    """Return the fields of a rates record that are not fitted: the best measured rates stand in for the datasheet."""
    link = peaks.link_bytes_per_s or 1.0
    # attention multiplies in 16 bits whatever its cache holds, unless the device emulates them
    multiplied = dtype if form.kernel in ("matmul", "experts") or dtype == "fp32" else "bf16"
    wide = peaks.flop_per_s.get("bf16") or peaks.flop_per_s.get("fp16")
    known = {
        "flop_per_s": peaks.flop_per_s.get(multiplied) or wide or max(peaks.flop_per_s.values(), default=1.0),
        "bytes_per_s": peaks.memory_bytes_per_s,
        "multiprocessors": float(machine.multiprocessors),
        "tile_row_halvings": tile_row_halvings(machine, dtype),
        "link_bytes_per_s": link,
        "network_bytes_per_s": link,
        "domain_devices": float(peaks.node_ranks),
        **UNFITTED,
    }
    if dtype in SCALED:
        known["largest_split"] = 1.0
    names = {f.name for f in fields(form.record)}
    return {name: value for name, value in known.items() if name in names}


def columns_of(measurements: Sequence[Measurement]) -> dict[str, Array]:
    """Return the shapes of measurements of one operator as arrays by name; details that older files lack have none."""
    names = dict.fromkeys([*measurements[0].shape, *NO_DETAIL])
    return {name: np.array([m.shape.get(name, NO_DETAIL.get(name)) for m in measurements]) for name in names}


def arguments_of(measurements: Sequence[Measurement], dtype: str) -> dict[str, Any]:
    """Return what a form is a function of: the shapes, the window of attention, and the bytes of an element in a format."""
    columns, window = columns_of(measurements), "window_tokens"
    weight, activation = MATMUL_BYTES.get(dtype, (None, None))
    return {
        **columns,
        "window": np.where(columns[window] > 0.0, columns[window], np.inf),
        "element_bytes": ELEMENT_BYTES.get(dtype),
        "weight_bytes": weight,
        "activation_bytes": activation,
    }


Family = Mapping[str, Mapping[str, float]]
"""Numbers of another device of the family, by kernel/dtype."""
TYPICAL_ERROR = 0.1
"""Relative errors beyond this count less than squared."""
NOISE = 0.05
"""Relative error of a well measured shape, which sets the weight of the priors."""
NARROWED = 0.6
"""A number counts as constrained where the shapes narrow its prior to less than this fraction."""
TAIL_WEIGHT = 0.25
"""Weight of the 80th percentile of the errors next to their median, when choosing among fits."""
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
    is_late : whether the time is up: the fits that are left start from the priors only
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
            operator: (rows, arguments_of([self.measurements[i] for i in rows], self.dtype))
            for operator, rows in places.items()
        }

    def predicted(self, logs: Array) -> Array:
        """Return the time of every measured shape."""
        rates = self.form.record(**self.fixed, **dict(zip(self.names, np.exp(logs).tolist(), strict=True)))
        result = np.empty(len(self.measurements))
        for operator, (places, shapes) in self.shapes.items():
            result[places] = self.form.operators[operator](shapes, rates)
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
        libraries = Counter(m.library for m in self.measurements if m.library)
        return KernelFit(numbers, scores, tuple(name for name, _ in libraries.most_common())), judged

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
