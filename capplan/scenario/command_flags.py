"""Options of single commands as plain records, one field per flag of a group: of `spec`, `cache`, `sweep`, `simulate`, `init` and of stated results."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from capplan.ranges import DEVICES, SEED, Positive, Range, Whole, check_fields


@dataclass(frozen=True, slots=True)
class DraftFlags:
    """The draft of `capplan spec`, as a model, a method or a step time, and the step time of a target given without a model."""

    draft: str | None = None
    method: str | None = None
    """How the target drafts by itself."""
    draft_step_s: float | None = None
    target_step_s: float | None = None
    draft_tensor_parallel: int | None = None
    """None is the target's."""


@dataclass(frozen=True, slots=True)
class CachePriceFlags:
    """An API by name, or its prices in dollars per million tokens."""

    api: str | None = None
    input_price: float | None = None
    write_price: float | None = None
    """None: no premium."""
    read_price: float | None = None
    prices: Path | None = None
    """File of token prices."""
    date: str | None = None
    """Date of prices that do not state it."""


@dataclass(frozen=True, slots=True)
class SweepFlags:
    """Which plans are swept over which loads."""

    hardware: list[str] | None = None
    tensor_parallel: list[int] | None = None
    request_rate: str | None = None
    """Rates such as '1, 2, 4 req/s'."""
    concurrency: str | None = None
    """Concurrencies such as '1,8,64'."""
    settings: list[str] | None = None
    """Keys of a scenario that are overridden, each KEY=VALUE."""
    seed: int = SEED


@dataclass(frozen=True, slots=True)
class StatedResult:
    """Settings that a file of results may lack."""

    model: str | None = None
    hardware: str | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    concurrency: float | None = None


@dataclass(frozen=True, slots=True)
class FirstScenario:
    """What the flags of `capplan init` say; None is assumed where it is not known otherwise."""

    model: str | None = None
    request_rate: str | None = None
    """Such as '20 req/s'."""
    input_tokens: str | None = None
    """Written as MEAN or MEAN,P95, as the next."""
    output_tokens: str | None = None
    ttft_p95: str | None = None
    """Such as '800 ms'."""
    tpot_p95: str | None = None
    hardware: list[str] | None = None


DEFAULTS = {
    "model": "llama-3.1-8b-instruct",
    "request_rate": "5 req/s",
    "input_tokens": "1500,4500",
    "output_tokens": "300,800",
    "ttft_p95": "1 s",
    "tpot_p95": "50 ms",
}
"""What is assumed where nothing is said or known, by field of `FirstScenario`."""


@dataclass(frozen=True, slots=True)
class ScenarioFlags(FirstScenario):
    """Keys of a scenario as flags: of one that names only a model, or keys that replace those of a file."""

    users: str | None = None
    """Users who are active at the same time, instead of a request rate."""
    think_time: str | None = None
    """Time from a response to the next request of the same user."""
    trace: Path | None = None
    """File with arrivals and lengths, instead of a request rate."""
    use_case: str | None = None
    """Name of a starting point, for lengths and targets that are not stated."""
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    engine: str | None = None
    confidence: float | None = None
    """Probability with which all targets must be met."""
    calibration: Path | None = None
    settings: list[str] | None = None
    """Keys of a scenario that are overridden, each KEY=VALUE."""
    save: Path | None = None
    """File that keeps the scenario of a model."""


FLAG_KEYS: Mapping[str, str] = {
    "request_rate": "traffic[0].request_rate",
    "users": "traffic[0].users",
    "think_time": "traffic[0].think_time",
    "trace": "traffic[0].trace",
    "input_tokens": "traffic[0].input_tokens",
    "output_tokens": "traffic[0].output_tokens",
    "ttft_p95": "slo.ttft_p95",
    "tpot_p95": "slo.tpot_p95",
    "confidence": "slo.confidence",
    "hardware": "fleet.hardware",
    "weight_dtype": "weight_dtype",
    "kv_dtype": "kv_dtype",
    "engine": "engine",
    "calibration": "calibration",
}
"""Field of `ScenarioFlags` -> key of a scenario that it states."""


USE_CASES = ("chat", "rag", "code", "agent", "batch", "voice")
"""Names of the starting points of `capplan init`."""

REQUEST_RANGES: Mapping[str, Range] = {
    "until_s": Positive("10 min"),
    "seed": Whole(least=0),
    "warm_up_s": Positive("2 min", or_zero=True),
}
PLAN_RANGES: Mapping[str, Range] = {
    "tensor_parallel": DEVICES,
    "pipeline_parallel": DEVICES,
    "replicas": Whole("replicas", most=100_000),
}


@dataclass(frozen=True, slots=True)
class RequestFlags:
    """Which requests are simulated: those of a trace, else drawn from the scenario's traffic."""

    trace: Path | None = None
    until_s: float | None = None
    seed: int = SEED
    warm_up_s: float | None = None
    """Time from the start that figures leave out; None: that of the traffic, none for a trace."""

    def __post_init__(self) -> None:
        """Refuse numbers that are out of their ranges."""
        check_fields(self, REQUEST_RANGES)


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """Which plan is simulated; without hardware and parallelism, the one that the fleet search chooses."""

    hardware: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    replicas: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that are out of their ranges."""
        check_fields(self, PLAN_RANGES)


@dataclass(frozen=True, slots=True)
class OperationFlags:
    """How a fleet is run: queues, routing, failures, autoscaling, hedges, pools."""

    queue_limit: int | None = None
    deadline_s: float | None = None
    routing: str | None = None
    fail: list[str] | None = None
    """Each written as REPLICA@TIME."""
    autoscale: str | None = None
    """Written as MIN:MAX."""
    hedge_s: float | None = None
    prefill_replicas: int | None = None
    decode_replicas: int | None = None
    kv_link: str | None = None


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """How the engines of a simulation form their steps and cache prefixes."""

    scheduling: str | None = None
    """None is the engine's."""
    batch_timeout_s: float | None = None
    kv_offload: list[str] | None = None
    """Tiers, each written as NAME:SIZE[@RATE]."""
    reuse_preempted: bool = False
    """Whether a preempted request can reuse its blocks."""


@dataclass(frozen=True, slots=True)
class SpeculationFlags:
    """Speculation in a simulation; fields left out come from the scenario."""

    draft: str | None = None
    draft_step_s: float | None = None
    draft_tokens: int | None = None
    acceptance_fraction: float | None = None
