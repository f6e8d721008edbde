"""What a scenario asks of a fleet: the traffic, the latency targets, and what may be bought."""

from dataclasses import dataclass, field
from typing import Literal

from capplan.fleet.engine_options import TierSize
from capplan.fleet.pools.link import LinkTerms
from capplan.fleet.search.candidates import Ranges
from capplan.hardware.device import Device
from capplan.money.order import MachineLimits, Survival
from capplan.money.price import Prices
from capplan.workload.request_class import RequestClass, Slo

Disaggregation = Literal["off", "allowed", "only"]
CascadeStage = Literal["answer", "router"]
CascadePart = Literal["first", "second", "alone"]
MixBy = Literal["off", "classes", "lengths", "shares", "any"]
SharedBy = Literal["device", "mig"]


@dataclass(frozen=True, slots=True)
class PoolsLimits:
    """What separate prefill and decode pools may be made of."""

    prefill_devices: tuple[Device, ...]
    decode_devices: tuple[Device, ...]
    link: LinkTerms
    only: bool
    """Identical replicas are no answer."""
    screened: bool = False
    """The scenario leaves the choice to the model: only pools that cost less than identical replicas are looked for."""


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
    ranges: Ranges = field(default_factory=Ranges)
    """Layouts that are tried."""
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
class SharingTerms:
    """Models that share GPUs, as written in a scenario."""

    by: SharedBy
    models: tuple[str, ...]
    """Names; the first one is the scenario's own."""
    memory_fractions: tuple[float, ...] = ()
    """Fraction of the memory of a device for each model; empty where a slice has one model."""
    idle: frozenset[str] = frozenset()
    """Names of the models without traffic, which only hold memory."""


@dataclass(frozen=True, slots=True)
class Purchase:
    """What is bought for which traffic: all that the search and the prices of a fleet take from a scenario."""

    classes: tuple[RequestClass, ...]
    slo: Slo
    fleet: FleetLimits
    prices: Prices
    price_file: str | None
    price_date: str | None
    """Date of the prices in a file that does not state it."""
    kv_offload: tuple[TierSize, ...]
    """Offload tiers of a replica, for prefixes that its devices have no room for."""
