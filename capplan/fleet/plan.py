"""What a fleet search finds: plans, prices, and what was rejected and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from capplan.accuracy.bounded import BoundedSpread
from capplan.errors import Refusal
from capplan.fleet.candidates import Layout
from capplan.fleet.paid import Money
from capplan.fleet.price import ChosenPrice
from capplan.serving.fleet_terms import Routing


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
    """Largest rate at which the targets hold, as predicted [req/s]."""
    sure_rate_limit_per_replica: float
    """The same with the confidence asked for [req/s]."""
    ttft_s: BoundedSpread
    tpot_s: BoundedSpread
    e2e_s: BoundedSpread
    slo_met_probability: float
    """That all targets hold together."""
    few_open_loops_measured: bool
    """These probabilities rest on few measured results of such networks under open load."""
    target_probabilities: Mapping[str, float]
    """By target, that it holds, whatever the others do."""
    usd_per_hour: float | None
    usd_per_month: float | None
    usd_per_million_output_tokens: float | None
    """At peak."""
    usd_per_million_tokens: float | None
    watts: float | None
    bottleneck: str
    label: str
    kv_cache_tokens: float
    checked: Literal["simulated", "closed form"]
    price: ChosenPrice | None = None
    money: Money | None = None
    """At the mean load; None without a price."""
    routing: Routing = "round_robin"
    usd_per_month_low: float | None = None
    """What such a fleet costs where its replicas turn out as fast as in the best tenth of the cases ..."""
    usd_per_month_high: float | None = None
    """... or as slow as in the worst; infinite where no number of them holds the targets then."""

    @property
    def busy_replicas(self) -> int:
        """Replicas that serve, spares not counted."""
        return self.replicas - self.spare_replicas

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
class Choices:
    """Three answers to what to buy, and the one that is recommended."""

    cheapest: FleetPlan
    surest: FleetPlan
    """The most likely to hold its targets of all that cost at most a quarter more than the cheapest."""
    fewest: FleetPlan
    """The one with the fewest devices."""
    recommended: FleetPlan
    why: str


@dataclass(frozen=True, slots=True)
class Certainty:
    """What it costs to be so sure."""

    confidence: float
    hardware: str | None
    """None: no plan is so sure."""
    gpus: int | None
    usd_per_month: float | None


@dataclass(frozen=True, slots=True)
class Insensible:
    """A device on which a target leaves less than a tenth of what it can serve, and what would make it sensible."""

    hardware: str
    target: str
    value_s: float
    """What the target limits, when a replica has next to nothing to do."""
    limit_s: float
    gpus: int | None
    """That it would take; None: no number of them holds the target."""
    gpus_at: tuple[tuple[float, int], ...]
    """(limit [s], devices of the fleet then)."""


@dataclass(frozen=True, slots=True)
class FleetAnswer:
    """Plans, cheapest first."""

    plans: tuple[FleetPlan, ...]
    rejected: tuple[Rejection, ...]
    evaluated: int
    relaxations: tuple[Relaxation, ...] = ()
    choices: Choices | None = None
    certainty: tuple[Certainty, ...] = ()
    insensible: tuple[Insensible, ...] = ()

    @property
    def chosen(self) -> FleetPlan | None:
        """Return the recommended plan, None where nothing is feasible."""
        return self.choices.recommended if self.choices else None
