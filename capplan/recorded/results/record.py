"""One measured result of a serving benchmark, whatever tool wrote it, in base units."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["serving", "offline", "static_batch", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Spread:
    """A measured latency: its mean and the percentiles that the tool wrote, in seconds."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None

    def scaled(self, ratio: float) -> "Spread":
        """Return the spread with every value times `ratio`."""
        return Spread(
            *(
                None if value is None else value * ratio
                for value in (self.mean, self.p50, self.p90, self.p95, self.p99)
            )
        )


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request of a log."""

    arrival_s: float
    """Since the first request of the log."""
    input_tokens: int
    output_tokens: int
    ttft_s: float | None
    e2e_s: float | None


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """One run of one benchmark; None where the file does not say.

    Times are in seconds and rates in tokens per second over all devices. TPOT is the mean over requests
    of (end-to-end - TTFT) / (output tokens - 1): the first token is never part of it.
    """

    tool: str
    path: str
    kind: Kind = "serving"
    model: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    hardware: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    expert_parallel: int | None = None
    data_parallel: int | None = None
    concurrency: float | None = None
    """Requests in flight: the configured limit, or the measured mean."""
    request_rate_per_s: float | None = None
    """Offered rate; None for a closed loop or all at once."""
    requests: int | None = None
    input_tokens: float | None = None
    """Mean per request."""
    output_tokens: float | None = None
    """Mean per request."""
    context_tokens: float | None = None
    """Tokens already in the cache before a bare prefill or decode."""
    ttft_s: Spread = field(default_factory=Spread)
    tpot_s: Spread = field(default_factory=Spread)
    e2e_s: Spread = field(default_factory=Spread)
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    accepted_tokens_per_step: float | None = None
    """Of speculative decoding; None without it."""
    notes: tuple[str, ...] = ()
    """Notes on values that were normalised, corrected or left out."""
    log: tuple[RequestRecord, ...] = ()
