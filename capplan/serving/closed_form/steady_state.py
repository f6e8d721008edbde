"""Latency and throughput of an engine in steady state, for arrays of plans, and the largest batch it can sustain."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Array
from capplan.serving.closed_form.steady_steps import Lengths, Limits, decode_rounds, prefill_tokens_per_prompt

Flags = NDArray[np.bool_]

NORMAL_QUANTILES = (0.0, 1.2815515655446004, 1.6448536269514722, 2.3263478740408408)
"""Standard normal quantiles at 50, 90, 95 and 99 %."""


@dataclass(frozen=True, slots=True)
class LatencySpread:
    """Mean and percentiles, arrays over plans [s]."""

    mean: Array
    p50: Array
    p90: Array
    p95: Array
    p99: Array

    def scaled(self, factor: float) -> "LatencySpread":
        """Return the spread of a factor times the latency."""
        values = (self.mean, self.p50, self.p90, self.p95, self.p99)
        return LatencySpread(*(factor * value for value in values))


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Steady-state latencies and rates, arrays over plans."""

    ttft_s: LatencySpread
    tpot_s: LatencySpread
    e2e_s: LatencySpread
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
