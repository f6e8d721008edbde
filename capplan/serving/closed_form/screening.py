"""Approximate latencies of many plans at many loads: what a search keeps or drops before it simulates anything.

The batch is given and the request rate follows from it, so one pass over the steps is enough. The batch is taken as
constant: queueing that comes from its fluctuations is left to the simulation of the plans that the search keeps.
"""

import numpy as np

from capplan.numbers import Array, Number
from capplan.serving.closed_form.steady_state import (
    NORMAL_QUANTILES,
    LatencySpread,
    SteadyState,
    most_sequences,
)
from capplan.serving.closed_form.steady_steps import (
    Lengths,
    Limits,
    StepFunction,
    decode_rounds,
    phase_steps,
    prefill_tokens_per_prompt,
)


def _lognormal(mean: Array, variance: Array) -> LatencySpread:
    log_variance = np.log1p(variance / np.square(mean))
    middle = np.log(mean) - log_variance / 2.0
    spread = np.sqrt(log_variance)
    return LatencySpread(mean, *(np.exp(middle + z * spread) for z in NORMAL_QUANTILES))


def screened(step_s: StepFunction, lengths: Lengths, limits: Limits, sequences: Number) -> SteadyState:
    """Return the steady state of each plan at the Poisson rate that keeps S sequences decoding on average.

        X = S / ((O - 1) t(S)),   TTFT = residual + backlog + prefill

    Parameters
    ----------
    step_s : time of a step, broadcasting over the plans
    lengths, limits : numbers or arrays over the plans
    sequences : [-]
        S, mean decoding sequences of one engine

    Returns
    -------
    latencies [s] and rates [1/s]; saturated where the engine cannot hold S sequences

    Examples
    --------
    Every step takes 10 ms and a response takes a hundred steps, so two sequences make two requests per second:

    >>> state = screened(lambda s, c, p, n: 0.01 + 0 * (s + c + p), Lengths(100.0, 101.0), Limits(64.0, 2048.0), 2.0)
    >>> float(state.requests_per_s.round(6))
    2.0

    References
    ----------
    Little 1961, "A Proof for the Queuing Formula L = lambda W", doi:10.1287/opre.9.3.383.
    """
    most = most_sequences(lengths, limits)
    asked = np.asarray(sequences, dtype=np.float64) + 0.0 * most
    held = np.maximum(np.minimum(asked, most), 1e-15)
    rounds = decode_rounds(lengths)
    steps = phase_steps(step_s, held, held / rounds, lengths, limits)
    token = steps.mean_s
    rate = held / (rounds * token)
    first = limits.request_s + steps.residual_s + steps.backlog_s + steps.prefill_s
    first_variance = (
        steps.prefill_variance + np.square(steps.residual_s) / 3.0 + np.square(steps.backlog_s) * 3.0
    )
    output_cv = np.square(np.asarray(lengths.output_cv, dtype=np.float64))
    token_variance = steps.variance * (1.0 + output_cv) / np.maximum(rounds, 1.0)
    whole_variance = (
        first_variance
        + np.square(token * lengths.output_tokens) * output_cv
        + np.square(rounds) * token_variance
    )
    return SteadyState(
        ttft_s=_lognormal(first, first_variance),
        tpot_s=_lognormal(token, token_variance),
        e2e_s=_lognormal(first + rounds * token, whole_variance),
        requests_per_s=rate,
        wait_s=first - steps.prefill_s,
        prefill_token_s=steps.prefill_s / prefill_tokens_per_prompt(lengths),
        saturated=np.asarray(asked > most * (1.0 + 1e-9)),
    )
