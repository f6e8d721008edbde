"""The load of one replica: input and output lengths, and a concurrency or a request rate."""

from dataclasses import dataclass

from capplan.errors import InputError
from capplan.ranges import SEED

MOST_IN_FLIGHT = 100_000
"""Requests in one replica at once; engines admit thousands."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one length, at a concurrency (closed loop) or at a rate (open loop, Poisson)."""

    input_tokens: int
    output_tokens: int
    concurrency: int | None = None
    request_rate: float | None = None
    """Requests per second."""
    prefix_hit_fraction: float = 0.0
    """Fraction of prompt tokens that hit in the prefix cache."""
    requests: int | None = None
    """Number of requests to simulate; None: enough for the 99th percentile."""
    seed: int = SEED

    @property
    def tokens(self) -> int:
        """Input and output of a request."""
        return self.input_tokens + self.output_tokens


def check_load(load: Load, longest_context: int, output_tokens: int | None = None) -> None:
    """Refuse a load without exactly one of concurrency and rate, or with requests longer than the replica accepts, with `output_tokens` generated instead of those of the load."""
    if (load.concurrency is None) == (load.request_rate is None):
        raise InputError("give either --concurrency N or --request-rate R, and not both")
    if (load.concurrency or 0) > MOST_IN_FLIGHT:
        raise InputError(
            f"--concurrency: {load.concurrency} is out of range; 1 to {MOST_IN_FLIGHT} requests are allowed"
        )
    generated = load.output_tokens if output_tokens is None else output_tokens
    total = load.input_tokens + generated
    if total > longest_context:
        raise InputError(
            f"input {load.input_tokens} + output {generated} = {total} tokens exceeds the longest context "
            f"of {longest_context} tokens\n  raise --max-model-len, or use shorter requests"
        )
