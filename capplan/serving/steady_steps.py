"""The steps of an engine in a steady state: how long they are, how much they differ, what a newcomer meets.

Prompts come at some rate per step; a step that holds prompts is longer, so more prompts come during it and the next
one is longer too. With a time linear in the prompts the variance of a step is that of Poisson arrivals divided by
1 - rho^2, with rho the share of time that prompts take.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from capplan.numbers import Array, Number
from capplan.serving.step_table import StepTable, decode_step_s, mixed_step_s

StepFunction: TypeAlias = Callable[[Array, Array, Array, Array], Array]
"""(decoding sequences, mean context, prefill tokens in the step, prompts they belong to) -> time of the step [s].

Broadcasts. Without prefill tokens it is a step that only decodes. The prompts matter because attention over one prompt
of 8000 tokens takes longer than over eight of 1000; they may be a fraction, a mean over steps.
"""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and output lengths: means and coefficients of variation (standard deviation over mean)."""

    input_tokens: Number
    output_tokens: Number
    input_cv: Number = 0.0
    output_cv: Number = 0.0
    cached_tokens: Number = 0.0
    """Mean prompt tokens found in the prefix cache."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine can hold in a step."""

    max_sequences: Number
    """In the engine at once: max_num_seqs, or fewer if the cache is full before."""
    max_num_batched_tokens: Number
    prefill_first: bool = False
    request_s: Number = 0.0
    """Front end before the queue."""


def mean_context_tokens(lengths: Lengths) -> Number:
    """Return the context of a decoding sequence, mean over its steps.

        c = I + O (1 + v^2) / 2

    Parameters
    ----------
    lengths : I, O, and v of the output
        a long output is met for longer, hence its square.

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


def sequences_that_fit(
    kv_tokens: Number, max_num_seqs: Number, lengths: Lengths, *, block_tokens: Number = 16.0
) -> Number:
    """Return how many sequences an engine holds at once, limited by its seats or by its cache.

        B = min(max_num_seqs, K / (c + b / 2))

    Parameters
    ----------
    kv_tokens : [tokens]
        K, capacity of the cache.
    max_num_seqs : [-]
        limit of the engine.
    lengths : prompts and outputs, for their mean context c
        cached tokens are shared and take no room of their own.
    block_tokens : [tokens]
        b; the last block of a sequence is half empty on average.

    Returns
    -------
    [-]
        B, a mean, not whole.

    Examples
    --------
    >>> float(sequences_that_fit(111_000.0, 256.0, Lengths(1000.0, 204.0)))
    100.0

    References
    ----------
    Kwon et al. 2023, "Efficient memory management for large language model serving with PagedAttention", section 4.
    """
    own = mean_context_tokens(lengths) - lengths.cached_tokens + np.asarray(block_tokens) / 2.0
    result: Array = np.minimum(max_num_seqs, kv_tokens / own)
    return result


def table_step_function(table: StepTable, lengths: Lengths) -> StepFunction:
    """Return a step function for one table; a prompt that is cut finds half of what it lacks in the cache."""
    prompt = np.maximum(np.asarray(lengths.input_tokens - lengths.cached_tokens, dtype=np.float64), 1.0)

    def step_s(sequences: Array, context_tokens: Array, prefill_tokens: Array, prompts: Array) -> Array:
        chunks = np.maximum(prompts, 1e-9)
        new = prefill_tokens / chunks
        past = np.asarray(lengths.cached_tokens) + np.maximum(prompt - new, 0.0) / 2.0
        mixed = mixed_step_s(table, sequences, context_tokens, chunks, np.maximum(new, 1e-9), past)
        return np.where(prefill_tokens > 0.0, mixed, decode_step_s(table, sequences, context_tokens))

    return step_s


def _prompt_nodes(cv: Array) -> list[tuple[float, Array]]:
    """Return weights and multiples of the mean that stand for lognormal prompt tokens (Gauss-Hermite, three points)."""
    sigma = np.sqrt(np.log1p(np.square(cv)))
    raw = [np.exp(sigma * shift) for shift in (-np.sqrt(3.0), 0.0, np.sqrt(3.0))]
    weights = (1 / 6, 2 / 3, 1 / 6)
    mean = sum(weight * value for weight, value in zip(weights, raw, strict=True))
    return [(weight, value / mean) for weight, value in zip(weights, raw, strict=True)]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of an engine that holds S decoding sequences; arrays over plans."""

    mean_s: Array
    """Between two tokens of a sequence."""
    variance: Array
    """Of the same [s^2]."""
    slot_s: Array
    """Of one step, prefill or decode, as somebody meets it who comes at the end of another."""
    residual_s: Array
    """Left of the step under way, for somebody who comes at any time."""
    own_s: Array
    """Prompt of one request, with those that share its steps."""
    own_variance: Array
    backlog_s: Array
    """Behind the prompts of others that do not fit into the same step."""
    prefill_fraction: Array
    """rho, share of time that prompts take."""
    burst_s: Array
    """Time that a prompt adds, mean square over mean: the grain in which prefill work comes."""


def steps_of(
    step_s: StepFunction,
    sequences: Array,
    prompts_per_step: Array,
    lengths: Lengths,
    limits: Limits,
    gap_s: Array | None = None,
) -> Steps:
    """Return the steps of an engine that holds so many decoding sequences while so many prompts come per step.

    With gap_s, the mean time between two decode steps, prompts come at any time (open loop), also during a prefill,
    which is then followed by another one before decoding goes on; without it they come at the ends of decode steps.
    """
    context = np.asarray(mean_context_tokens(lengths), dtype=np.float64)
    prompt = prefill_tokens_per_prompt(lengths)
    beside = np.zeros_like(sequences) if limits.prefill_first else sequences
    room = np.maximum(limits.max_num_batched_tokens - beside, 1.0)
    cv = np.broadcast_to(np.asarray(lengths.input_cv, dtype=np.float64), prompt.shape)
    share = np.maximum(
        -np.expm1(-prompts_per_step * np.maximum(prompt / room, 1.0)),
        np.minimum(prompts_per_step * prompt / room, 1.0),
    )
    together = np.maximum(prompts_per_step / np.maximum(share, 1e-12), 1.0)

    def prefill_s(new: Array, prompts: Array) -> Array:
        whole = np.maximum(new / room, 1.0)
        return whole * step_s(beside, context, np.minimum(new, room), np.maximum(prompts / whole, 1.0))

    one = np.ones_like(sequences)
    plain = step_s(sequences, context, 0.0 * one, 0.0 * one)
    if limits.prefill_first and gap_s is not None:
        rate = prompts_per_step / gap_s
        chain = -np.expm1(-rate * plain) * np.exp(np.minimum(rate * prefill_s(prompt, one), 3.0))
        share = np.clip(chain, share, np.maximum(prompts_per_step, share))
        together = np.maximum(prompts_per_step / np.maximum(share, 1e-12), 1.0)
    tokens = together * prompt if limits.prefill_first else np.minimum(together * prompt, room)
    first, second = _moments(lambda new: prefill_s(new, together), tokens, cv / np.sqrt(together))
    mean, variance, slot, slot_mean, square, burden = _with_prompts(
        plain, first, second, share, prefill_first=limits.prefill_first
    )
    rho = np.clip(burden, 0.0, 0.95)
    if gap_s is None:
        others = prompts_per_step
    else:
        square = square + np.maximum(square - np.square(slot_mean), 0.0) * (
            1.0 / (1.0 - np.square(rho)) - 1.0
        )
        others = prompts_per_step * square / np.square(slot_mean)
    own, own_square = _moments(lambda new: prefill_s(new + others * prompt, 1.0 + others), prompt, cv)
    grain = np.maximum(first - (0.0 if limits.prefill_first else plain), 0.0) / together
    company = (
        others * np.square(grain) * (1.0 + np.square(cv)) * (1.0 if gap_s is None else 2.0 / (1.0 - rho))
    )
    filled = np.clip(prompts_per_step * prompt / room, 0.0, 0.98)
    behind = filled * prefill_s(prompt, one) * (1.0 + np.square(cv)) / (2.0 * (1.0 - filled))
    return Steps(
        mean_s=mean,
        variance=np.maximum(variance, 0.0) * (1.0 + rho) / (1.0 - rho),
        slot_s=slot,
        residual_s=square / (2.0 * slot_mean),
        own_s=own,
        own_variance=np.maximum(own_square - np.square(own), 0.0) + company,
        backlog_s=behind * np.minimum(prompt / room, 1.0),
        prefill_fraction=rho,
        burst_s=grain * (1.0 + np.square(cv)),
    )


def _with_prompts(
    plain_s: Array, first_s: Array, second_s2: Array, share: Array, *, prefill_first: bool
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Return mean and variance between two tokens, a slot, its mean, its mean square, and the burden of prompts."""
    if prefill_first:
        mean, variance = plain_s + share * first_s, share * second_s2 - np.square(share * first_s)
        slot = (1.0 - share) * plain_s + share * first_s
        square = (np.square(plain_s) + share * second_s2) / (1.0 + share)
        return mean, variance, slot, mean / (1.0 + share), square, share * first_s / mean
    mean = (1.0 - share) * plain_s + share * first_s
    variance = (1.0 - share) * np.square(plain_s) + share * second_s2 - np.square(mean)
    burden = share * np.maximum(first_s - plain_s, 0.0) / mean
    return mean, variance, mean, mean, variance + np.square(mean), burden


def _moments(seconds: Callable[[Array], Array], tokens: Array, cv: Array) -> tuple[Array, Array]:
    """Return mean and mean square of a time over lognormal tokens."""
    first = second = np.zeros_like(tokens)
    for weight, scale in _prompt_nodes(cv):
        value = seconds(tokens * scale)
        first, second = first + weight * value, second + weight * np.square(value)
    return first, second


def prefill_tokens_per_prompt(lengths: Lengths) -> Array:
    """Return the prompt tokens to be worked on, at least one."""
    return np.maximum(np.asarray(lengths.input_tokens, dtype=np.float64) - lengths.cached_tokens, 1.0)


def decode_rounds(lengths: Lengths) -> Array:
    """Return the decode steps of a request: all tokens but the first; never quite zero, for it divides."""
    return np.maximum(np.asarray(lengths.output_tokens, dtype=np.float64) - 1.0, 1e-6)
