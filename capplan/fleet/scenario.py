"""What is asked: the model, the traffic, the promise to users, and what may be bought."""

from dataclasses import dataclass, field

from capplan.assumption import Assumption
from capplan.fleet.engine_use import TierSize
from capplan.fleet.price import PriceChoice
from capplan.hardware.device import Device
from capplan.memory.cache_dtype import AUTO
from capplan.serving.fleet_terms import Routing
from capplan.workload.request_class import RequestClass
from capplan.workload.slo import Slo


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """What the search may choose from, and what it must leave free."""

    hardware: tuple[Device, ...]
    headroom_fraction: float = 0.2
    """Share of what a replica can deliver that stays unused at peak."""
    spare_replicas: int = 1
    """Replicas beyond those that carry the peak, so that one may fail."""
    start_up_s: float = 300.0
    """From the decision to start a replica to the first request that it serves."""
    burst_ratio: float = 1.5
    """Rate of a burst over the busiest minute of a trace."""
    routing: Routing | None = None
    """How requests are dealt out to replicas; None: prefix_aware where prompts have block ids, else round_robin."""
    tensor_parallel: tuple[int, ...] | None = None
    """None: every legal one."""
    pipeline_parallel: tuple[int, ...] | None = None
    expert_parallel: tuple[int, ...] | None = None
    data_parallel: tuple[int, ...] | None = None
    max_devices: int | None = None
    """Of the whole fleet, spares included."""
    max_devices_per_replica: int | None = None


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """Speculative decoding as a scenario says it."""

    acceptance_fraction: float
    draft_tokens: int
    draft: str | None = None
    """Model; None: only the time of a step is known."""
    draft_step_s: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question; made by `capplan.questions.scenario.read_scenario`, in base units."""

    name: str
    path: str
    model: str
    """Hub id, alias, or absolute path."""
    classes: tuple[RequestClass, ...]
    slo: Slo
    fleet: FleetLimits
    prices: PriceChoice
    description: str = ""
    revision: str | None = None
    weight_dtypes: tuple[str | None, ...] = (None,)
    """None: what the model's config says."""
    kv_dtypes: tuple[str, ...] = (AUTO,)
    """`auto` is the checkpoint's, else that of the activations."""
    engine: str = "vllm"
    engine_version: str | None = None
    """None: the newest that is modelled."""
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    calibration: str | None = None
    price_file: str | None = None
    kv_offload: tuple[TierSize, ...] = ()
    """Memory behind that of the devices of a replica, for prefixes that have no room there."""
    speculation: SpeculationPlan | None = None
    """Counted by the simulation alone."""
    assumptions: tuple[Assumption, ...] = field(default=())
    """Every default that stands in for a key that the file does not have."""
    warnings: tuple[str, ...] = ()
    """What the file says and cannot mean."""
