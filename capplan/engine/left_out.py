"""What a deployment serves, and results of it that the numbers of its engine were fitted without: how far off they are on each."""

from collections.abc import Mapping
from dataclasses import dataclass

LEAST_LOADS = 3
"""Loads below which the results of a deployment say nothing of their spread: the one of the back-test stays."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a replica is asked to serve."""

    deployment: str
    """Model with its parallelism and formats; see `replica.spec.deployed_as`."""
    input_tokens: float
    output_tokens: float
    in_flight: float
    """Requests in flight [-]: the users of a closed loop; of an open loop its rate times the mean latency."""


@dataclass(frozen=True, slots=True)
class LeftOutResult(Served):
    """One result of a serving benchmark, predicted by numbers that were fitted without it."""

    request_rate_per_s: float | None
    """Rate of an open loop; None for a closed one."""
    log_ratios: Mapping[str, float]
    """Logarithm of measured over predicted time, by latency: ttft, tpot."""

    @property
    def load(self) -> tuple[float, float, float, float]:
        """What was sent: equal for repeats of one load. A closed loop has no rate, and only its users count."""
        flying = self.in_flight if self.request_rate_per_s is None else 0.0
        return (self.request_rate_per_s or 0.0, flying, self.input_tokens, self.output_tokens)
