"""An engine as a processor-sharing queue whose speed depends on how many sequences share it.

Under Poisson arrivals the number of sequences has the distribution

    p(n) ~ prod_{k<=n} R / X(k) = (R (O - 1))^n / n!  prod_{k<=n} t(k),    X(k) = k / ((O - 1) t(k))

whatever the outputs are distributed like (processor sharing is insensitive to it). Above the last seat it falls off
geometrically. The product is taken as an integral of ln t between some numbers of sequences.

References
----------
Bonald, Proutiere 2002, "Insensitivity in processor-sharing networks", doi:10.1016/S0166-5316(02)00127-X.
"""

from dataclasses import dataclass, fields

import numpy as np

from capplan.numbers import Array
from capplan.serving.steady_steps import Lengths, Limits, StepFunction, Steps, decode_rounds, steps_of

NODES = 14
"""Numbers of sequences at which an open loop asks for step times."""
FINE = 96
"""Points between them."""
PLANS_AT_ONCE = 8192
"""Keeps the fine tables of an open loop within some tens of megabytes."""
NEEDED = ("residual_s", "backlog_s", "own_s", "own_variance", "variance")


@dataclass(frozen=True, slots=True)
class Moments:
    """Means and variances from which the percentiles follow."""

    first_s: Array
    first_variance: Array
    token_s: Array
    token_variance: Array
    step_variance: Array


def steps_under_rate(
    step_s: StepFunction, sequences: Array, rate: Array, gap_s: Array, lengths: Lengths, limits: Limits
) -> tuple[Steps, Array]:
    """Return the steps at a number of sequences when prompts come at a rate per second, and their mean time.

    The prompts per step are the rate times the step, which rises with them almost linearly: two tries and the limit
    of their geometric series (Aitken) leave little.
    """
    once = steps_of(step_s, sequences, rate * gap_s, lengths, limits, gap_s).mean_s
    twice = steps_of(step_s, sequences, rate * once, lengths, limits, once).mean_s
    ratio = np.clip((twice - once) / np.where(once == gap_s, 1.0, once - gap_s), 0.0, 0.9)
    limit = twice + (twice - once) * ratio / (1.0 - ratio)
    steps = steps_of(step_s, sequences, rate * limit, lengths, limits, limit)
    return steps, steps.mean_s


def shared_moments(rows: list[Steps], rate: Array, most: Array, largest: Array, lengths: Lengths) -> Moments:
    """Return the moments of all plans, some thousands at a time."""
    shape = most.shape
    rounds = (decode_rounds(lengths) + 0.0 * most).ravel()
    cv = (np.asarray(lengths.output_cv, dtype=np.float64) + 0.0 * most).ravel()
    columns = {
        name: np.stack([(getattr(steps, name) + 0.0 * most).ravel() for steps in rows]) for name in NEEDED
    }
    columns["mean_s"] = np.stack(
        [(_with_bursts_s(steps, decode_rounds(lengths)) + 0.0 * most).ravel() for steps in rows]
    )
    parts = []
    for start in range(0, most.size, PLANS_AT_ONCE):
        part = slice(start, start + PLANS_AT_ONCE)
        table = {name: column[:, part] for name, column in columns.items()}
        flat = (rate.ravel()[part], most.ravel()[part], largest.ravel()[part])
        parts.append(_shared(table, *flat, rounds[part], cv[part]))
    return Moments(
        *(
            np.concatenate([getattr(part, field.name) for part in parts]).reshape(shape)
            for field in fields(Moments)
        )
    )


def _shared(
    table: dict[str, Array], rate: Array, most: Array, largest: Array, rounds: Array, output_cv: Array
) -> Moments:
    """Return the moments of a processor-sharing queue whose speed depends on the number that share it."""
    log_step = np.log(table["mean_s"])
    root = np.linspace(0.0, NODES - 1.0, FINE)
    lower = np.minimum(root.astype(np.int64), NODES - 2)
    upper = (root - lower).reshape(-1, *([1] * most.ndim))
    fine_log_step = log_step[lower] * (1.0 - upper) + log_step[lower + 1] * upper
    sequences = (root / (NODES - 1.0)).reshape(upper.shape) ** 2 * most
    width = np.diff(sequences, axis=0)
    area = np.cumsum(0.5 * width * (fine_log_step[1:] + fine_log_step[:-1]), axis=0)
    area = np.concatenate([np.zeros_like(area[:1]), area])
    log_mass = sequences * np.log(rate * rounds) + area - _log_gamma(sequences + 1.0)
    mass = np.exp(log_mass - log_mass.max(axis=0))
    spacing = np.concatenate([width[:1] * 0.5, 0.5 * (width[1:] + width[:-1]), width[-1:] * 0.5])
    load = rate / largest
    mass_in_line = mass[-1] * load / (1.0 - load)
    mass = mass * spacing
    whole = mass.sum(axis=0) + mass_in_line
    busy = mass.copy()
    busy[-1] += mass_in_line
    step = np.exp(fine_log_step)
    flow = (busy * sequences / step).sum(axis=0)
    token_s = (busy * sequences).sum(axis=0) / flow
    token_variance = (busy * sequences / step * np.square(step)).sum(axis=0) / flow - np.square(token_s)

    def over(values: Array) -> Array:
        fine = values[lower] * (1.0 - upper) + values[lower + 1] * upper
        return np.asarray((busy * fine).sum(axis=0) / whole)

    waits = mass_in_line / whole
    line_s = waits / (1.0 - load) / rate * 0.5 * (1.0 + np.square(output_cv))
    residual, backlog, own = (over(table[name]) for name in ("residual_s", "backlog_s", "own_s"))
    spread = over(np.square(table["own_s"] + table["residual_s"])) - np.square(own + residual)
    first_variance = (
        over(table["own_variance"])
        + np.maximum(spread, 0.0)
        + np.square(residual) / 3.0
        + np.square(backlog) * 3.0
        + np.square(line_s) * (2.0 / np.maximum(waits, 1e-3) - 1.0)
    )
    return Moments(
        residual + backlog + own + line_s,
        first_variance,
        token_s,
        0.7 * np.maximum(token_variance, 0.0),
        over(table["variance"]),
    )


def _with_bursts_s(steps: Steps, rounds: Array) -> Array:
    """Return the mean step as sequences meet it while the prefill load differs from one stay to the next.

    A step is longer by 1 / (1 - rho); over a stay of T the load rho has the variance rho b / T, b the grain of the
    work, and the mean of 1 / (1 - rho) exceeds that of the mean load by variance / (1 - rho)^2.
    """
    variance = steps.prefill_fraction * steps.burst_s / (rounds * steps.mean_s)
    return np.asarray(
        steps.mean_s * (1.0 + np.minimum(variance / np.square(1.0 - steps.prefill_fraction), 1.0))
    )


def _log_gamma(x: Array) -> Array:
    """Return ln Gamma(x) for x >= 1 (Stirling's series after a shift of seven; 1e-12)."""
    shifted = x + 7.0
    product = np.ones_like(x)
    for shift in range(7):
        product = product * (x + shift)
    inverse = 1.0 / shifted
    series = inverse * (1.0 / 12.0 - np.square(inverse) * (1.0 / 360.0 - np.square(inverse) / 1260.0))
    result: Array = np.asarray(
        (shifted - 0.5) * np.log(shifted) - shifted + 0.5 * np.log(2.0 * np.pi) + series - np.log(product)
    )
    return result
