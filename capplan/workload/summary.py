"""What is known of a traffic, from a trace, from clients' statistics, or from a server's counters."""

from dataclasses import dataclass

import numpy as np

from capplan.numbers import Array, Number
from capplan.workload.statistics import LengthSummary, RateSummary


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """How much of the prompts was seen before, by the size of a least-recently-used cache."""

    block_tokens: int
    unlimited_hit_fraction: float
    """Share of the prompt blocks that a cache of any size finds."""
    unlimited_token_hit_fraction: float
    curve: tuple[tuple[int, float], ...]
    """(blocks, share of the prompt tokens found)."""

    def hit_fraction(self, cache_tokens: Number) -> Array:
        """Return the share of the prompt tokens that a cache of so many tokens finds, linear between the points.

        Examples
        --------
        >>> float(PrefixReuse(16, 0.5, 0.5, ((10, 0.2), (20, 0.4))).hit_fraction(16 * 15.0).round(9))
        0.3
        """
        blocks = np.array([0.0, *(float(size) for size, _ in self.curve)])
        shares = np.array([0.0, *(share for _, share in self.curve)])
        return np.asarray(np.interp(np.asarray(cache_tokens) / self.block_tokens, blocks, shares))


@dataclass(frozen=True, slots=True)
class MeasuredLatency:
    """Latencies that the file holds, means in seconds; None where it has none."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    """Per token after the first."""
    e2e_s: float | None = None
    queue_s: float | None = None


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """One traffic as a planner needs it."""

    name: str
    format: str
    requests: int
    rate: RateSummary
    input_tokens: LengthSummary
    output_tokens: LengthSummary
    prefix: PrefixReuse | None = None
    prefix_hit_fraction: float | None = None
    """Share of prompt tokens that the server found in its cache, where it counted them."""
    measured: MeasuredLatency | None = None
    acceptance_fraction: float | None = None
    """Drafted tokens that were accepted."""
    accepted_tokens_per_round: float | None = None
    """With the bonus token."""
    kv_cache_tokens: float | None = None
    """Of the server that was asked."""
    omissions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
