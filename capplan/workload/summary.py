"""What is known about a workload, from a trace, from statistics of clients, or from counters of a server."""

from dataclasses import dataclass

import numpy as np

from capplan.numbers import Array, Number
from capplan.workload.statistics import LengthSummary, RateSummary


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """Prefix-cache hits in a trace, by the size of a least-recently-used cache."""

    block_tokens: int
    unlimited_hit_fraction: float
    """Fraction of prompt blocks that hit an unlimited cache."""
    unlimited_token_hit_fraction: float
    curve: tuple[tuple[int, float], ...]
    """(blocks of the cache, fraction of prompt tokens that hit)."""
    in_flight_tokens: float | None = None
    """Prompt tokens of all sessions that are in flight where the curve holds; None: the curve is of a trace, at its own rate."""

    def hit_fraction(self, cache_tokens: Number) -> Array:
        """Return the fraction of prompt tokens that hit a cache of this many tokens, linear between the points.

        Examples
        --------
        >>> float(PrefixReuse(16, 0.5, 0.5, ((10, 0.2), (20, 0.4))).hit_fraction(16 * 15.0).round(9))
        0.3
        """
        blocks = np.array([0.0, *(float(size) for size, _ in self.curve)])
        shares = np.array([0.0, *(share for _, share in self.curve)])
        return np.asarray(np.interp(np.asarray(cache_tokens) / self.block_tokens, blocks, shares))


@dataclass(frozen=True, slots=True)
class EvictionHits:
    """Prefix-cache hits in a trace under one rule of eviction."""

    policy: str
    blocks: int
    """Blocks of the cache."""
    cache_tokens: int
    hit_fraction: float
    """Fraction of the prompt tokens that hit."""


@dataclass(frozen=True, slots=True)
class MeasuredLatency:
    """Mean latencies in the file [s]; None where it has none."""

    ttft_s: float | None
    tpot_s: float | None
    """Time per output token after the first."""
    e2e_s: float | None
    queue_s: float | None = None


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """One workload as a planner needs it."""

    name: str
    format: str
    requests: int
    rate: RateSummary
    input_tokens: LengthSummary
    output_tokens: LengthSummary
    prefix: PrefixReuse | None = None
    evictions: tuple[EvictionHits, ...] = ()
    """Hits under the rules of eviction that were asked for."""
    prefix_hit_fraction: float | None = None
    """Fraction of prompt tokens that hit the prefix cache of the server, where it counted them."""
    measured: MeasuredLatency | None = None
    acceptance_fraction: float | None = None
    """Fraction of draft tokens that were accepted."""
    accepted_tokens_per_round: float | None = None
    """Bonus token included."""
    kv_cache_tokens: float | None = None
    """Tokens of the KV cache of the server whose counters were read."""
    omissions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def counted_prefix(self) -> tuple[int, float] | None:
        """Return a prefix of all prompts, and the share of them that find it, with the hits that a server counted; None without any.

            t = E[L] - 1,   h' = min(h E[L] / E[min(t, L - 1)], 1)

        A counter says how many tokens were found, h of all, and not where; prompts L shorter than the prefix t find less of it.
        """
        if not self.prefix_hit_fraction:
            return None
        lengths = np.asarray(self.input_tokens.values, dtype=np.float64)
        tokens = max(int(self.input_tokens.mean) - 1, 1)
        held = float(np.minimum(np.maximum(lengths - 1.0, 0.0), tokens).mean())
        counted = self.prefix_hit_fraction * self.input_tokens.mean
        return tokens, min(counted / held, 1.0) if held else 1.0
