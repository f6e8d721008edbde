"""Latency and throughput of an engine in its steady state, in closed form, for an array of plans at once.

A request stays for O - 1 decode steps of t(S) seconds, S sequences sharing each step, so S sequences end at the rate
X(S) = S / ((O - 1) t(S)).

Open loop: the engine is a processor-sharing queue whose speed depends on how many share it. Its number of sequences
has the distribution p(n) ~ prod_{k<=n} R / X(k) whatever the lengths are distributed like; means over it include what
bursts do, which the mean batch alone does not.

Closed loop: S is the number for which all C clients are accounted for (Little's law), C = S + X(S) TTFT(S).

What is left out: the burst at the start of a measured closed loop, lockstep of clients with equal lengths, other
transients (simulate those), shedding, preemption, static batches.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capplan.errors import InputError
from capplan.numbers import Array, Number
from capplan.serving.processor_sharing import NODES, Moments, shared_moments, steps_under_rate
from capplan.serving.steady_steps import (
    Lengths,
    Limits,
    StepFunction,
    Steps,
    decode_rounds,
    mean_context_tokens,
    prefill_tokens_per_prompt,
    steps_of,
)

Flags = NDArray[np.bool_]

HALVINGS = 26
NORMAL_QUANTILES = (0.0, 1.2815515655446004, 1.6448536269514722, 2.3263478740408408)
"""Of 50, 90, 95 and 99 %."""


@dataclass(frozen=True, slots=True)
class LatencySpread:
    """Mean and percentiles, arrays over plans [s]."""

    mean: Array
    p50: Array
    p90: Array
    p95: Array
    p99: Array


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Arrays over plans."""

    ttft_s: LatencySpread
    tpot_s: LatencySpread
    e2e_s: LatencySpread
    requests_per_s: Array
    output_tokens_per_s: Array
    decode_sequences: Array
    """Mean batch while decoding."""
    step_s: Array
    """Mean time between two tokens of a sequence."""
    utilisation: Array
    """Open loop: offered rate over the largest one that can be served. Closed loop: sequences over the most."""
    saturated: Flags
    """The offered rate cannot be served (latencies are infinite), or clients wait in line for a seat."""


def most_sequences(lengths: Lengths, limits: Limits) -> Array:
    """Return the decoding sequences at which either the seats are taken or prompts fill every step.

        S = min(B, T / (1 + I / (O - 1)))

    Parameters
    ----------
    lengths : I, O
    limits : B seats, T tokens a step

    Returns
    -------
    [-]
        S.

    Examples
    --------
    >>> float(most_sequences(Lengths(1000.0, 101.0), Limits(256.0, 1100.0)))
    100.0

    References
    ----------
    Agrawal et al. 2024, "Sarathi-Serve", section 4.2 (prompts in the room that decoding leaves), arXiv:2403.02310.
    """
    per_round = prefill_tokens_per_prompt(lengths) / decode_rounds(lengths)
    seats = np.asarray(limits.max_sequences, dtype=np.float64)
    if limits.prefill_first:
        return seats + 0.0 * per_round
    return np.asarray(np.minimum(seats, limits.max_num_batched_tokens / (1.0 + per_round)))


def _ended_per_s(sequences: Array, steps: Steps, lengths: Lengths) -> Array:
    return np.asarray(sequences / (decode_rounds(lengths) * steps.mean_s))


def _check(lengths: Lengths, limits: Limits) -> None:
    for name, values in (
        ("input_tokens", lengths.input_tokens),
        ("output_tokens", lengths.output_tokens),
        ("max_sequences", limits.max_sequences),
        ("max_num_batched_tokens", limits.max_num_batched_tokens),
    ):
        if np.any(np.asarray(values) <= 0.0):
            raise InputError(f"{name} must be positive in a steady state")


def _state_of(
    step_s: StepFunction, sequences: Array, lengths: Lengths, limits: Limits, alone: Number = 0.0
) -> Steps:
    """Return the steps when as many prompts come as requests end; alone: share of them that meet nobody."""
    return steps_of(step_s, sequences, (1.0 - alone) * sequences / decode_rounds(lengths), lengths, limits)


def open_loop(
    step_s: StepFunction, lengths: Lengths, limits: Limits, request_rate_per_s: Number
) -> SteadyState:
    """Return the steady state under Poisson arrivals of a rate, for each plan.

    Parameters
    ----------
    step_s : time of a step, broadcasting over the plans
    lengths, limits : numbers or arrays over the plans
    request_rate_per_s : [1/s]
        offered to one engine.

    Returns
    -------
    latencies and rates; infinite latencies where the rate cannot be served

    Raises
    ------
    InputError
        a length or limit is not positive

    Examples
    --------
    Steps of 10 ms whatever they hold; 101 tokens take one step and a hundred more:

    >>> steady = open_loop(lambda s, c, p, n: 0.01 + 0 * s, Lengths(100.0, 101.0), Limits(64.0, 2048.0), 2.0)
    >>> float(steady.tpot_s.mean.round(6)), float(steady.decode_sequences.round(3))
    (0.01, 2.0)
    """
    _check(lengths, limits)
    rate = np.asarray(request_rate_per_s, dtype=np.float64)
    if np.any(rate <= 0.0):
        raise InputError("request_rate_per_s must be positive in a steady state")
    most = most_sequences(lengths, limits) + 0.0 * rate
    rate = rate + 0.0 * most
    at_most = _state_of(step_s, most, lengths, limits)
    largest = _ended_per_s(most, at_most, lengths)
    saturated = rate >= largest
    served = np.where(saturated, 0.5 * largest, rate)
    places = np.linspace(0.0, 1.0, NODES).reshape(-1, *([1] * most.ndim)) ** 2
    rows = []
    one = np.ones_like(most)
    gap_s = step_s(one, np.asarray(mean_context_tokens(lengths), dtype=np.float64), 0.0 * one, 0.0 * one)
    for place in places:
        steps, gap_s = steps_under_rate(
            step_s, np.maximum(place * most, 1e-3), served, gap_s, lengths, limits
        )
        rows.append(steps)
    moments = shared_moments(rows, served, most, largest, lengths)
    decode = served * decode_rounds(lengths) * moments.token_s
    front = limits.request_s + moments.first_s
    endless = np.where(saturated, np.inf, 0.0)
    return _state(
        lengths,
        Moments(
            front + endless,
            moments.first_variance,
            np.where(saturated, at_most.mean_s, moments.token_s),
            moments.token_variance,
            moments.step_variance,
        ),
        rate=np.minimum(rate, largest),
        sequences=np.where(saturated, most, np.minimum(decode, most)),
        use=rate / largest,
        saturated=saturated,
    )


def closed_loop(step_s: StepFunction, lengths: Lengths, limits: Limits, concurrency: Number) -> SteadyState:
    """Return the steady state of a fixed number of clients, each with one request at a time, for each plan.

    Parameters
    ----------
    step_s : time of a step, broadcasting over the plans
    lengths, limits : numbers or arrays over the plans
    concurrency : [-]
        clients of one engine.

    Returns
    -------
    latencies and rates; clients beyond the seats wait in line

    Raises
    ------
    InputError
        a length or limit is not positive

    Examples
    --------
    Steps of 10 ms whatever they hold, 8 clients, one step for the prompt and one hundred for the tokens:

    >>> steady = closed_loop(lambda s, c, p, n: 0.01 + 0 * s, Lengths(100.0, 101.0), Limits(64.0, 2048.0), 8)
    >>> float(steady.tpot_s.mean.round(6)), float(steady.output_tokens_per_s.round(1))
    (0.01, 800.0)
    """
    _check(lengths, limits)
    clients = np.asarray(concurrency, dtype=np.float64)
    if np.any(clients < 1.0):
        raise InputError("concurrency must be at least 1")
    limit = most_sequences(lengths, limits) + 0.0 * clients
    clients = clients + 0.0 * limit
    most = np.minimum(limit, clients)
    front_s = np.asarray(limits.request_s, dtype=np.float64)

    def first_s(sequences: Array, steps: Steps) -> Array:
        # The next request of a client comes just after the step that ended the last one: it misses the step that
        # begins then, if anybody else keeps the engine busy.
        others = -np.expm1((clients - 1.0) * np.log(np.maximum(1.0 - sequences / clients, 1e-12)))
        missed = np.where(front_s > 0.0, np.maximum(steps.slot_s - front_s, 0.0), 0.0)
        ended = np.maximum(_ended_per_s(sequences, steps, lengths), 1e-12)
        after: Array = front_s + others * missed + steps.own_s + np.minimum(steps.backlog_s, clients / ended)
        return after

    alone = 1.0 / np.maximum(most, 1.0)

    def unaccounted(sequences: Array) -> Flags:
        steps = _state_of(step_s, sequences, lengths, limits, alone)
        held = sequences + _ended_per_s(sequences, steps, lengths) * first_s(sequences, steps)
        short: Flags = np.asarray(held < clients)
        return short

    sequences = _halved(unaccounted, most)
    steps = _state_of(step_s, sequences, lengths, limits, alone)
    first = first_s(sequences, steps)
    ended = _ended_per_s(sequences, steps, lengths)
    line_s = np.maximum(clients - sequences - ended * first, 0.0) / ended
    waiting = (sequences >= most * (1.0 - 1e-6)) & (clients > most * (1.0 + 1e-9))
    line_s = np.where(waiting, line_s, 0.0)
    variance = steps.own_variance + np.square(steps.residual_s) / 3.0 + line_s / ended
    return _state(
        lengths,
        Moments(first + line_s, variance, steps.mean_s, np.zeros_like(first), steps.variance),
        rate=ended,
        sequences=sequences,
        use=sequences / limit,
        saturated=waiting,
    )


def _halved(below: Callable[[Array], Flags], high: Array) -> Array:
    """Return where a condition that holds below a point ceases to hold, or high if it holds there still."""
    low, top = np.zeros_like(high), high
    for _ in range(HALVINGS):
        middle = 0.5 * (low + top)
        holds = below(middle)
        low, top = np.where(holds, middle, low), np.where(holds, top, middle)
    return np.where(below(high), high, 0.5 * (low + top))


def _state(
    lengths: Lengths, moments: Moments, *, rate: Array, sequences: Array, use: Array, saturated: Flags
) -> SteadyState:
    """Return the record from its means and variances."""
    rounds = np.maximum(np.asarray(lengths.output_tokens, dtype=np.float64) - 1.0, 0.0)
    output_cv = np.square(np.asarray(lengths.output_cv, dtype=np.float64))
    token_variance = (
        moments.step_variance * (1.0 + output_cv) / np.maximum(rounds, 1.0) + moments.token_variance
    )
    whole_variance = (
        moments.first_variance
        + np.square(moments.token_s * lengths.output_tokens) * output_cv
        + np.square(rounds) * token_variance
    )
    return SteadyState(
        ttft_s=_lognormal(moments.first_s, moments.first_variance),
        tpot_s=_lognormal(moments.token_s, token_variance),
        e2e_s=_lognormal(moments.first_s + rounds * moments.token_s, whole_variance),
        requests_per_s=rate,
        output_tokens_per_s=rate * lengths.output_tokens,
        decode_sequences=sequences,
        step_s=moments.token_s,
        utilisation=use,
        saturated=saturated,
    )


def _lognormal(mean: Array, variance: Array) -> LatencySpread:
    """Return the percentiles of a lognormal distribution with this mean and variance."""
    finite = np.isfinite(mean)
    safe = np.where(finite, mean, 1.0)
    log_variance = np.log1p(variance / np.square(safe))
    middle = np.log(safe) - log_variance / 2.0
    quantiles = [
        np.where(finite, np.exp(middle + z * np.sqrt(log_variance)), np.inf) for z in NORMAL_QUANTILES
    ]
    return LatencySpread(np.asarray(mean), *quantiles)
