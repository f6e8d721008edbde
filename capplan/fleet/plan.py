"""What a fleet search finds: plans, prices, and what was rejected and why."""

from dataclasses import dataclass
from typing import Literal

from capplan.accuracy.bounded import BoundedSpread
from capplan.errors import Refusal
from capplan.fleet.candidates import Layout
from capplan.fleet.price import ChosenPrice


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """One way to serve the scenario."""

    layout: Layout
    weight_dtype: str
    replicas: int
    """With spares."""
    spare_replicas: int
    concurrency_per_replica: float
    """Requests in a replica at peak, mean."""
    request_rate_per_replica: float
    """At peak, spares idle [req/s]."""
    request_rate_limit_per_replica: float
    """Largest rate at which the targets hold [req/s]."""
    ttft_s: BoundedSpread
    tpot_s: BoundedSpread
    e2e_s: BoundedSpread
    slo_met_probability: float
    usd_per_hour: float | None
    usd_per_month: float | None
    usd_per_million_output_tokens: float | None
    usd_per_million_tokens: float | None
    watts: float | None
    bottleneck: str
    label: str
    kv_cache_tokens: float
    checked: Literal["simulated", "closed form"]
    price: ChosenPrice | None = None

    @property
    def gpus(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.layout.devices

    @property
    def energy_usd_per_hour(self) -> float | None:
        """Electricity of all devices, part of `usd_per_hour`; None where it is in their price."""
        if self.price is None or self.price.energy_usd_per_hour is None:
            return None
        return self.gpus * self.price.energy_usd_per_hour


@dataclass(frozen=True, slots=True)
class Rejection:
    """Candidates that were turned down for one reason."""

    hardware: str
    reason: str
    """In words, for people alone."""
    count: int
    code: Refusal


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The smallest change to one target that would make a plan feasible."""

    target: str
    limit_s: float
    needed_s: float
    layout: Layout


@dataclass(frozen=True, slots=True)
class FleetAnswer:
    """Plans, cheapest first."""

    plans: tuple[FleetPlan, ...]
    rejected: tuple[Rejection, ...]
    evaluated: int
    relaxations: tuple[Relaxation, ...] = ()

    @property
    def chosen(self) -> FleetPlan | None:
        """Return the cheapest plan, None where nothing is feasible."""
        return self.plans[0] if self.plans else None
