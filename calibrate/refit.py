"""Refit from results instead of hardware: how much slower kernels and host are than predicted, from serving runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from capplan.errors import InputError
from capplan.hardware.calibration import FittedNumber
from capplan.inputs.results.record import BenchmarkResult
from capplan.model.weight_format import kv_bytes_per_element
from capplan.numbers import Array
from capplan.phases.cost import total_s
from capplan.phases.step import decode_step_costs, prefill_step_costs
from capplan.replica.rates import step_rates
from capplan.replica.spec import ReplicaSpec

LEAST_POINTS = 6
"""Times per token that a refit needs."""
NUMBERS = ("kernel_time_ratio", "step_s", "sequence_s")
TYPICAL_ERROR = 0.1
NOISE = 0.05
"""Relative error of one result, against which what was assumed before is weighed."""
LEAST_NOISE = 0.01
ASSUMED_SHARE = 0.5
"""What was assumed before is off by about this share of a time per token."""
TOLD_SHARE = 0.3
"""A number whose 95 % half-width is over this share of a time per token is called not constrained."""


@dataclass(frozen=True, slots=True)
class Point:
    """One time per output token, and what its kernels were predicted to take."""

    path: str
    concurrency: float
    kernel_s: float
    """Of one step: the decode batch, and the share of a prompt that falls on each step."""
    measured_s: float


@dataclass(frozen=True, slots=True)
class Refit:
    """What the results say, before and after."""

    numbers: dict[str, FittedNumber]
    points: tuple[Point, ...]
    before_s: tuple[float, ...]
    after_s: tuple[float, ...]
    before_median_ape: float
    after_median_ape: float
    remarks: tuple[str, ...]


def point_of(result: BenchmarkResult, spec: ReplicaSpec) -> Point | str:
    """Return the point of one result, or why it has none.

    In the steady state of a closed loop each sequence takes one step per output token, and each step carries the
    prefill of concurrency / output tokens prompts.
    """
    if result.kind == "prefill":
        return "a bare prefill has no time per output token"
    measured_s = result.tpot_s.mean if result.tpot_s.mean is not None else result.tpot_s.p50
    concurrency = result.concurrency or _in_flight(result)
    if measured_s is None and result.output_tokens_per_s and concurrency and result.kind == "serving":
        measured_s = concurrency / result.output_tokens_per_s
    if not measured_s:
        return "it has no time per output token"
    if not concurrency:
        return "its concurrency is not known: give --concurrency"
    if result.kind != "decode" and not (result.input_tokens and result.output_tokens):
        return "its prompt and output lengths are not known: give --input-tokens and --output-tokens"
    return Point(result.path, concurrency, _kernel_s(result, spec, concurrency), measured_s)


def _in_flight(result: BenchmarkResult) -> float | None:
    """Return the mean number of requests in flight by Little's law, where latency and rate are known."""
    if result.requests_per_s and result.e2e_s.mean:
        return max(result.requests_per_s * result.e2e_s.mean, 1.0)
    return None


def _kernel_s(result: BenchmarkResult, spec: ReplicaSpec, concurrency: float) -> float:
    rates = step_rates(
        spec.network, spec.device, spec.efficiency, engine=spec.profile.engine, kv_format=spec.kv_format
    ).rates
    kv_bytes = kv_bytes_per_element(spec.kv_format)
    prompt, output = result.input_tokens or 0.0, result.output_tokens or 0.0
    context = prompt + output / 2.0 if result.context_tokens is None else result.context_tokens
    batch = max(concurrency, 1.0)
    decode_s = total_s(
        decode_step_costs(spec.network, batch, max(context, 1.0), spec.sharding, kv_bytes, rates)
    )
    if result.kind != "serving" or not prompt:
        return float(decode_s)
    prefill_s = total_s(prefill_step_costs(spec.network, 1.0, prompt, 0.0, spec.sharding, kv_bytes, rates))
    return float(decode_s + prefill_s * batch / max(output, 1.0))


def refitted(pairs: Sequence[tuple[BenchmarkResult, ReplicaSpec]]) -> Refit:
    """Return kernel time ratio and host overhead that explain measured times per output token.

        t = a K + h_0 + h_1 c

    Parameters
    ----------
    pairs : results, each with the replica that it was measured on

    Returns
    -------
    a (`kernel_time_ratio`, over the predicted time of kernels), h_0 (`step_s`) and h_1 (`sequence_s`, per running
    sequence), with intervals, and the error before and after
    """
    tried = [point_of(result, spec) for result, spec in pairs]
    points = tuple(point for point in tried if isinstance(point, Point))
    left_out = [
        f"left out: {result.path}: {why}"
        for (result, _), why in zip(pairs, tried, strict=True)
        if isinstance(why, str)
    ]
    if len(points) < LEAST_POINTS:
        detail = "".join(f"\n  {line}" for line in left_out[:5])
        raise InputError(
            f"{len(points)} usable results of {len(pairs)}: a refit needs at least {LEAST_POINTS} times per output token{detail}\n"
            "  give more results, best at several concurrencies"
        )
    host = pairs[0][1].profile.host
    design = np.array([[p.kernel_s, 1.0, p.concurrency] for p in points])
    measured = np.array([p.measured_s for p in points])
    before = design @ np.array([1.0, host.step_s, host.sequence_s])
    solution, numbers, remarks = _solved(design, measured, np.array([1.0, host.step_s, host.sequence_s]))
    after = design @ solution
    return Refit(
        numbers=numbers,
        points=points,
        before_s=tuple(before.tolist()),
        after_s=tuple(after.tolist()),
        before_median_ape=float(np.median(np.abs(before / measured - 1.0))),
        after_median_ape=float(np.median(np.abs(after / measured - 1.0))),
        remarks=(*left_out, *remarks),
    )


def _solved(
    design: Array, measured: Array, before: Array
) -> tuple[Array, dict[str, FittedNumber], list[str]]:
    """Return the numbers, pulled to what was assumed before where the results do not tell them."""
    relative = design / measured[:, None]
    scale = np.abs(relative).mean(axis=0)
    scaled = relative / scale  # each scaled number is the mean share of the time per token that it explains
    start = before * scale

    def residuals(shares: Array) -> Array:
        return np.concatenate([scaled @ shares - 1.0, NOISE / ASSUMED_SHARE * (shares - start)])

    fit = least_squares(
        residuals, np.maximum(start, 1e-3), bounds=(0.0, np.inf), loss="soft_l1", f_scale=TYPICAL_ERROR
    )
    errors = scaled @ fit.x - 1.0
    freedom = max(len(measured) - len(NUMBERS), 1)
    deviation = max(1.4826 * float(np.median(np.abs(errors))) * np.sqrt(len(measured) / freedom), LEAST_NOISE)
    information = scaled.T @ scaled / deviation**2 + np.eye(len(NUMBERS)) / ASSUMED_SHARE**2
    half = 1.96 * np.sqrt(np.diag(np.linalg.inv(information)))
    numbers, remarks = {}, []
    for place, name in enumerate(NUMBERS):
        told = bool(half[place] < TOLD_SHARE)
        value, width = float(fit.x[place] / scale[place]), float(half[place] / scale[place])
        numbers[name] = FittedNumber(value, max(value - width, 0.0), value + width, told)
        if not told:
            remarks.append(
                f"{name} is not constrained by these results: they need more different concurrencies and lengths"
            )
    return fit.x / scale, numbers, remarks
