"""Latency and throughput of engines in steady state, in closed form: step times, their spread, and what a search screens plans by."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Array, Counts, Number, Spread
from capplan.serving.step_table import idle_ratio
from capplan.serving.terms import Routing

StepFunction: TypeAlias = Callable[[Array, Array, Array, Array], Array]
"""(decoding sequences, mean context, prefill tokens in the step, number of prompts they belong to) -> step time [s].

Broadcasts. Without prefill tokens it is a decode step. The number of prompts matters because attention over one prompt
of 8000 tokens takes longer than over eight of 1000; as a mean over steps it may be a fraction.
"""

Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and output lengths: means and coefficients of variation (standard deviation over mean)."""

    input_tokens: Number
    output_tokens: Number
    input_cv: Number = 0.0
    output_cv: Number = 0.0
    cached_tokens: Number = 0.0
    """Mean prompt tokens that hit in the prefix cache."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an engine."""

    max_sequences: Number
    """Most sequences in the engine at once: max_num_seqs, or fewer if the KV cache holds fewer."""
    max_num_batched_tokens: Number
    prefill_first: bool = False
    request_s: Number = 0.0
    """Front-end time of a request before it reaches the queue."""
    asynchronous: Number | Flags = False
    """Whether the step after the running one is already planned when a request arrives."""
    groups: Number = 1.0
    """Groups of data-parallel attention: those without a prompt decode meanwhile, though the engine puts prompts first."""


def mean_context_tokens(lengths: Lengths) -> Number:
    """Return the mean context of the sequences in a decode step.

        c = I + O (1 + v^2) / 2

    Parameters
    ----------
    lengths : I, O, and v of the output
        a long output is in more steps, hence the square.

    Returns
    -------
    [tokens]
        c.

    Examples
    --------
    >>> float(mean_context_tokens(Lengths(1000.0, 200.0)))
    1100.0

    References
    ----------
    Kleinrock 1975, "Queueing Systems" vol. 1, equation 5.12 (mean residual life).
    """
    return lengths.input_tokens + lengths.output_tokens * (1.0 + np.square(lengths.output_cv)) / 2.0


def _prompt_nodes(cv: Array) -> list[tuple[float, Array]]:
    """Return weights, and lengths over the mean, of a three-point Gauss-Hermite quadrature of lognormal prompt lengths."""
    sigma = np.sqrt(np.log1p(np.square(cv)))
    raw = [np.exp(sigma * shift) for shift in (-np.sqrt(3.0), 0.0, np.sqrt(3.0))]
    weights = (1 / 6, 2 / 3, 1 / 6)
    mean = sum(weight * value for weight, value in zip(weights, raw, strict=True))
    return [(weight, value / mean) for weight, value in zip(weights, raw, strict=True)]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of an engine with S decoding sequences; arrays over plans."""

    mean_s: Array
    """Mean time between two tokens of a sequence."""
    variance: Array
    """Variance of that time [s^2]."""
    residual_s: Array
    """Mean time left of the running step when a request arrives."""
    step_s: Array
    """Mean time of a step."""
    prefill_s: Array
    """Mean prefill time of a request, with the prompts that share its steps."""
    prefill_variance: Array
    backlog_s: Array
    """Mean wait for earlier prompts that do not fit into the same step."""


def phase_steps(
    step_s: StepFunction, sequences: Array, prompts_per_step: Array, lengths: Lengths, limits: Limits
) -> Steps:
    """Return the steps of an engine with given decoding sequences and prompts per step.

    Prompts arrive at the ends of decode steps; those that do not fit into one step share the next ones. If the scheduler is
    prefill-first, all steps of a prompt run between two decode steps, so a prompt counts once, with its full length, and the
    next one waits as in an M/G/1 queue.
    """
    context = np.asarray(mean_context_tokens(lengths), dtype=np.float64)
    prompt = prefill_tokens_per_prompt(lengths)
    beside = np.zeros_like(sequences) if limits.prefill_first else sequences
    room = np.maximum(limits.max_num_batched_tokens - beside, 1.0)
    cv = np.broadcast_to(np.asarray(lengths.input_cv, dtype=np.float64), prompt.shape)
    steps_each = np.minimum(prompt / room, 1.0) if limits.prefill_first else prompt / room
    share = np.maximum(
        -np.expm1(-prompts_per_step * np.maximum(steps_each, 1.0)),
        np.minimum(prompts_per_step * steps_each, 1.0),
    )
    together = np.maximum(prompts_per_step / np.maximum(share, 1e-12), 1.0)

    def prefill_s(new: Array, prompts: Array) -> Array:
        whole = np.maximum(new / room, 1.0)
        return whole * step_s(beside, context, np.minimum(new, room), np.maximum(prompts / whole, 1.0))

    one = np.ones_like(sequences)
    plain = step_s(sequences, context, 0.0 * one, 0.0 * one)
    tokens = together * prompt if limits.prefill_first else np.minimum(together * prompt, room)
    first, second = _moments(lambda new: prefill_s(new, together), tokens, cv / np.sqrt(together))
    idle = np.asarray(1.0 - 1.0 / idle_ratio(limits.groups, together))
    mean, variance, residual, burden = _with_prompts(
        plain, first, second, share, idle, prefill_first=limits.prefill_first
    )
    rho = np.clip(burden, 0.0, 0.95)
    alone, alone_square = _moments(
        lambda new: prefill_s(new + prompts_per_step * prompt, 1.0 + prompts_per_step), prompt, cv
    )
    grain = np.maximum(first - (0.0 if limits.prefill_first else plain), 0.0) / together
    company = prompts_per_step * np.square(grain) * (1.0 + np.square(cv))
    filled = np.clip(prompts_per_step * prompt / room, 0.0, 0.98)
    if limits.prefill_first:
        filled = np.where(prompt > room, np.clip(burden, 0.0, 0.98), filled)
    behind = filled * prefill_s(prompt, one) * (1.0 + np.square(cv)) / (2.0 * (1.0 - filled))
    return Steps(
        mean_s=mean,
        variance=np.maximum(variance, 0.0) * (1.0 + rho) / (1.0 - rho),
        residual_s=residual,
        step_s=(plain + share * first) / (1.0 + share) if limits.prefill_first else mean,
        prefill_s=alone,
        prefill_variance=np.maximum(alone_square - np.square(alone), 0.0) + company,
        backlog_s=behind * np.minimum(prompt / room, 1.0),
    )


def _with_prompts(
    plain_s: Array, first_s: Array, second_s2: Array, share: Array, idle: Array, *, prefill_first: bool
) -> tuple[Array, Array, Array, Array]:
    """Return mean and variance of the time between two tokens, mean residual step time, and the fraction of time on prompts.

    With prompts first, a turn of a decode step and its prompts yields a token and, of groups of attention that have none of them, one more in each
    step with prompts: `idle` is their share.
    """
    if prefill_first:
        mean, variance = plain_s + share * first_s, share * second_s2 - np.square(share * first_s)
        square = (np.square(plain_s) + share * second_s2) / (1.0 + share)
        tokens = 1.0 + share * idle
        residual = square / (2.0 * (mean / (1.0 + share)))
        return mean / tokens, variance / np.square(tokens), residual, share * first_s / mean
    mean = (1.0 - share) * plain_s + share * first_s
    variance = (1.0 - share) * np.square(plain_s) + share * second_s2 - np.square(mean)
    burden = share * np.maximum(first_s - plain_s, 0.0) / mean
    return mean, variance, (variance + np.square(mean)) / (2.0 * mean), burden


def _moments(seconds: Callable[[Array], Array], tokens: Array, cv: Array) -> tuple[Array, Array]:
    """Return mean and mean square of a time over lognormal prompt lengths."""
    first = second = np.zeros_like(tokens)
    for weight, scale in _prompt_nodes(cv):
        value = seconds(tokens * scale)
        first, second = first + weight * value, second + weight * np.square(value)
    return first, second


def prefill_tokens_per_prompt(lengths: Lengths) -> Array:
    """Return the prompt tokens to compute, at least one.

    Examples
    --------
    >>> float(prefill_tokens_per_prompt(Lengths(1000.0, 200.0, cached_tokens=600.0)))
    400.0
    """
    return np.maximum(np.asarray(lengths.input_tokens, dtype=np.float64) - lengths.cached_tokens, 1.0)


def decode_rounds(lengths: Lengths) -> Array:
    """Return the decode steps of a request: one for each token but the first; above zero, as a divisor.

    Examples
    --------
    >>> float(decode_rounds(Lengths(1000.0, 200.0)))
    199.0
    """
    return np.maximum(np.asarray(lengths.output_tokens, dtype=np.float64) - 1.0, 1e-6)


NORMAL_QUANTILES = (0.0, 1.2815515655446004, 1.6448536269514722, 2.3263478740408408)
"""Standard normal quantiles at 50, 90, 95 and 99 %."""


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Steady-state latencies and rates, arrays over plans."""

    ttft_s: Spread[Array]
    tpot_s: Spread[Array]
    e2e_s: Spread[Array]
    requests_per_s: Array
    wait_s: Array
    """Mean time from the arrival of a request until its prefill begins [s]."""
    prefill_token_s: Array
    """Mean prefill time of a request per prompt token that it computes [s]."""
    saturated: Flags
    """More sequences than the engine can hold; the other fields are then those of a full engine."""


def most_sequences(lengths: Lengths, limits: Limits) -> Array:
    """Return the number of decoding sequences at which the sequence slots are full or prompts fill every step.

        S = min(B, T / (1 + I / (O - 1)))

    Parameters
    ----------
    lengths : I, O
    limits : B sequence slots, T tokens per step

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
    Agrawal et al. 2024, "Sarathi-Serve", section 4.2 (prompts fill the token budget that decoding leaves), arXiv:2403.02310.
    """
    per_round = prefill_tokens_per_prompt(lengths) / decode_rounds(lengths)
    seats = np.asarray(limits.max_sequences, dtype=np.float64)
    if limits.prefill_first:
        return seats + 0.0 * per_round
    return np.asarray(np.minimum(seats, limits.max_num_batched_tokens / (1.0 + per_round)))


def _lognormal(mean: Array, variance: Array) -> Spread[Array]:
    log_variance = np.log1p(variance / np.square(mean))
    middle = np.log(mean) - log_variance / 2.0
    spread = np.sqrt(log_variance)
    return Spread(mean, *(np.exp(middle + z * spread) for z in NORMAL_QUANTILES))


def prompts_fit_a_step(lengths: Lengths, max_num_batched_tokens: Number) -> NDArray[np.bool_]:
    """Return where nearly all prompts fit into one step, which is the range of `screened`.

        I (1 + 2 v) <= T

    Parameters
    ----------
    lengths : I, without what is cached, and its coefficient of variation v
    max_num_batched_tokens : [-]
        T, tokens per step

    Returns
    -------
    [-]
        over lengths and T

    Examples
    --------
    >>> prompts_fit_a_step(Lengths(1000.0, 101.0), np.array([512.0, 2048.0])).tolist()
    [False, True]

    References
    ----------
    Agrawal et al. 2024, "Sarathi-Serve", section 4.2 (prompts are cut to the token budget), arXiv:2403.02310.
    """
    longest = prefill_tokens_per_prompt(lengths) * (
        1.0 + 2.0 * np.asarray(lengths.input_cv, dtype=np.float64)
    )
    return np.asarray(longest <= max_num_batched_tokens)


def screened(step_s: StepFunction, lengths: Lengths, limits: Limits, sequences: Number) -> SteadyState:
    """Return the steady state of each plan at the Poisson rate that keeps S sequences decoding on average.

        X = S / ((O - 1) t(S)),   TTFT = residual + backlog + prefill, and (1 - e^-S) of a step with asynchronous scheduling

    Its range is `prompts_fit_a_step`, with prompts that take a third of the time at most. Beyond it
    simulated TTFT was 0.24 to 12 times as long, and time per token 0.84 to 35 times, in 120 runs.

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
    planned = np.where(limits.asynchronous, -np.expm1(-held) * steps.step_s, 0.0)
    first = limits.request_s + steps.residual_s + planned + steps.backlog_s + steps.prefill_s
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


def replica_arrival_cv(arrival_cv: Number, replicas: Number, routing: Routing = "round_robin") -> Number:
    """Return the coefficient of variation of the times between arrivals at one of several replicas.

        round-robin:  c_n = c / sqrt(n)
        random:       c_n = sqrt(1 + (c^2 - 1) / n)

    Under random routing times are sums of a geometric number of the original times. Load-aware routers are
    treated as round-robin.

    Parameters
    ----------
    arrival_cv : [-]
        c, of the whole stream
    replicas : [-]
        n
    routing : of the router

    Returns
    -------
    [-]
        c_n

    Examples
    --------
    >>> replica_arrival_cv(4.0, 4.0), replica_arrival_cv(1.0, 4.0)
    (np.float64(2.0), np.float64(0.5))
    >>> replica_arrival_cv(4.0, 15.0, "random"), replica_arrival_cv(1.0, 4.0, "random")
    (np.float64(1.4142135623730951), np.float64(1.0))

    References
    ----------
    Cox 1962, "Renewal Theory", sections 1.3 (sums of independent intervals) and 9.3 (random deletion).
    """
    many = np.maximum(replicas, 1.0)
    if routing == "random":
        return np.sqrt(1.0 + (np.square(arrival_cv) - 1.0) / many)
    return arrival_cv / np.sqrt(many)


def replicas_over_time(rates_per_s: Array, planned_per_s: float) -> Counts:
    """Return the replicas needed in each window, by the rule that sizes the plan.

        n_i = max(1, ceil(r_i / c))

    Parameters
    ----------
    rates_per_s : [1/s]
        r, by window
    planned_per_s : [1/s]
        c, largest rate of one replica: as predicted less headroom, and with the confidence asked for

    Returns
    -------
    [-]
        n

    Examples
    --------
    >>> replicas_over_time(np.array([0.0, 4.0, 9.0]), 4.0), replicas_over_time(np.array([9.0]), 2.0)
    (array([1, 1, 3]), array([5]))

    References
    ----------
    Beyer et al. 2016, "Site Reliability Engineering", chapter 18.
    """
    needed = np.ceil(rates_per_s / planned_per_s - 1e-9)
    return np.maximum(needed, 1.0).astype(np.int64)
