"""What users are promised: limits on latencies."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Metric: TypeAlias = Literal["ttft", "tpot", "itl", "e2e"]
Statistic: TypeAlias = Literal["mean", "p50", "p90", "p95", "p99"]

METRICS: tuple[Metric, ...] = ("ttft", "tpot", "itl", "e2e")
STATISTICS: tuple[Statistic, ...] = ("mean", "p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Target:
    """One limit, such as a p95 time to first token of 0.8 s."""

    metric: Metric
    statistic: Statistic
    limit_s: float
    """Limit for the engine."""
    outside_s: float = 0.0
    """What the stated limit allows on top of it, for what users wait before a prompt is sent."""

    @property
    def stated_s(self) -> float:
        """Limit as the scenario states it."""
        return self.limit_s + self.outside_s

    @property
    def key(self) -> str:
        """Name in a scenario, such as ttft_p95."""
        return f"{self.metric}_{self.statistic}"


@dataclass(frozen=True, slots=True)
class Slo:
    """All limits of a scenario."""

    targets: tuple[Target, ...] = ()
    confidence: float = 0.8
    """Probability with which the targets must hold; 0.5 sizes by the central prediction."""
