"""A scenario: the model, the traffic, the latency targets, and what may be bought."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from capplan.assumption import Assumption
from capplan.fleet.engine_options import TierSize
from capplan.fleet.money_terms import BudgetTerms, CommitmentTerms, HostedTerms, OwnTerms, PowerTerms
from capplan.fleet.order import MachineLimits
from capplan.fleet.pools.link import LinkTerms
from capplan.fleet.price import PriceChoice
from capplan.fleet.survival import Survival
from capplan.hardware.device import Device
from capplan.replica.speculation import Method
from capplan.serving.terms import Routing
from capplan.workload.request_class import RequestClass, Slo

Disaggregation = Literal["off", "allowed", "only"]
CascadeStage = Literal["answer", "router"]
CascadePart = Literal["first", "second", "alone"]
MixBy = Literal["off", "classes", "lengths", "shares", "any"]
SharedBy = Literal["device", "hour", "mig"]


@dataclass(frozen=True, slots=True)
class PoolsLimits:
    """What separate prefill and decode pools may be made of."""

    prefill_devices: tuple[Device, ...]
    decode_devices: tuple[Device, ...]
    link: LinkTerms
    only: bool
    """Identical replicas are no answer."""


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """What the search may choose from, headroom, spares, and the assumptions about operation."""

    hardware: tuple[Device, ...]
    headroom_fraction: float = 0.2
    """Fraction of the capacity of a replica that stays unused at the peak."""
    survive: Survival = field(default_factory=Survival)
    """What may fail while the rest carries the peak."""
    start_up_s: float = 300.0
    """Time from the decision to start a replica to its first request."""
    burst_ratio: float = 1.5
    """Rate of a burst over the busiest minute of a trace."""
    routing: Routing | None = None
    """Routing policy; None: prefix_aware if prompts have block ids, else round_robin."""
    tensor_parallel: tuple[int, ...] | None = None
    """None: all legal degrees."""
    pipeline_parallel: tuple[int, ...] | None = None
    expert_parallel: tuple[int, ...] | None = None
    data_parallel: tuple[int, ...] | None = None
    max_devices: int | None = None
    """Most devices of the whole fleet, spares included."""
    max_devices_per_replica: int | None = None
    pools: PoolsLimits | None = None
    """None: every replica does both phases."""
    mix: MixBy = "off"
    """What the router of several fleets may look at."""
    machines: MachineLimits = field(default_factory=MachineLimits)
    """Which machines may be ordered."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices that may be bought, those of the pools included."""
        pools = self.pools
        both = (*pools.prefill_devices, *pools.decode_devices) if pools else ()
        return tuple({device.name: device for device in (*self.hardware, *both)}.values())


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """Speculative decoding as written in a scenario."""

    acceptance_fractions: tuple[float, ...]
    """One for all positions, or one for each."""
    draft_tokens: int | None
    """None: as many as are best at the load."""
    draft: str | None = None
    """Draft model."""
    draft_step_s: float | None = None
    """Time of one draft, where it is stated."""
    method: Method = "draft-model"
    verified_tokens: int | None = None
    """Tokens that the target verifies in one round, if drafts form a tree."""
    exit_layers: int | None = None
    """Layers that draft, where the target exits early."""


@dataclass(frozen=True, slots=True)
class LoraTerms:
    """LoRA adapters as written in a scenario or in flags."""

    adapters: int
    slots: int
    rank: int
    modules: tuple[str, ...] | None = None
    """None: all of attention and feed-forward."""
    fully_sharded: bool = False
    adapted_fraction: float = 1.0


@dataclass(frozen=True, slots=True)
class CascadeTerms:
    """A large model that some of the requests are escalated to, as written in a scenario."""

    model: str
    escalated_fraction: float
    after: CascadeStage
    """Whether the small model answers every request first, or a router sends each to one of the two."""
    verdict_s: float
    """Time that the judge or the router takes, for every request."""

    @property
    def first_fraction(self) -> float:
        """Share of the requests that the small model answers."""
        return 1.0 if self.after == "answer" else 1.0 - self.escalated_fraction


@dataclass(frozen=True, slots=True)
class SharingTerms:
    """Models that share GPUs, as written in a scenario."""

    by: SharedBy
    models: tuple[str, ...]
    """Names; the first one is the scenario's own."""
    memory_fractions: tuple[float, ...] = ()
    """Fraction of the memory of a device for each model; empty where a device has one model at a time."""
    idle: frozenset[str] = frozenset()
    """Names of the models without traffic, which only hold memory."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario in base units, as read by `capplan.scenario.scenario.read_scenario`."""

    name: str
    path: str
    model: str
    """Hub id, alias, or absolute path."""
    classes: tuple[RequestClass, ...]
    slo: Slo
    fleet: FleetLimits
    prices: PriceChoice
    description: str
    revision: str | None
    pooled: bool
    """The model is served for vectors or scores of prompts."""
    weight_dtypes: tuple[str | None, ...]
    """None: as in the model's config."""
    kv_dtypes: tuple[str, ...]
    """`auto`: the checkpoint's KV dtype, else what the engine takes for the model whatever the device, else the activation dtype."""
    engine: str
    engine_version: str | None
    """None: the newest modelled version."""
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    gpu_memory_utilization: float | None
    calibration: str | None
    price_file: str | None
    prefix_caching: bool
    """False: the engine computes every prompt in full; the classes then have no hits either."""
    price_date: str | None
    """Date of the prices in a file that does not state it."""
    commitments: CommitmentTerms | None
    """Ways to pay beside the one of `prices`; None: none are named."""
    currency: tuple[str, float] | None
    """Name of a currency and the dollars that one unit of it costs, for totals."""
    budget: BudgetTerms | None
    """As the scenario states it."""
    own: OwnTerms
    """Cost of the fleet beside its machines."""
    power: PowerTerms | None
    """Power terms for the energy of the fleet; None: not asked for."""
    growth: tuple[float, ...]
    """Traffic of successive months over that of the first, which is today's; empty: not stated."""
    hosted: HostedTerms
    chunked_prefill: bool | None
    """None: as the engine does by default."""
    kv_offload: tuple[TierSize, ...]
    """Offload tiers of a replica, for prefixes that its devices have no room for."""
    speculation: SpeculationPlan | None
    lora: LoraTerms | None
    """LoRA adapters that are served with the model."""
    several: CascadeTerms | SharingTerms | None
    """More models than `model`; None where it is the only one."""
    assumptions: tuple[Assumption, ...]
    """The defaults of keys that the file does not have."""
    warnings: tuple[str, ...]
    """Values in the file that are probably mistakes."""
    written: Mapping[str, Any]
    """The keys as written, overridden ones included, which a plan file keeps."""

    @property
    def budget_usd_per_month(self) -> float | None:
        """What the machines may cost: the budget less what else it includes."""
        return None if self.budget is None else self.budget.machines_usd_per_month()
