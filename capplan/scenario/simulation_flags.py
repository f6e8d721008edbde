"""The options of `capplan simulate` as plain records: requests, plan, operation, engines, speculation."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from capplan.ranges import DEVICES, Positive, Range, Whole, check_fields

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
    seed: int = 0
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
