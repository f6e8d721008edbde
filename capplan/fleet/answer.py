"""The answer of a fleet search: plans, choices among them, certainty, next steps, and what was rejected."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from capplan.fleet.plan import Plan, orderable_first
from capplan.fleet.search.candidates import Layout, Rejection


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The smallest change to one target that would make a plan feasible."""

    target: str
    limit_s: float
    needed_s: float
    layout: Layout


SMALL_EXTRA = 1.05
"""A plan that costs less than this times as much as the cheapest is recommended where it is clearly surer."""
CLEARLY_SURER = 0.05
"""Probability to meet the targets by which a plan is clearly surer."""
SUREST_WITHIN = 1.25
"""The surest plan may cost at most this times as much as the cheapest."""
DEAR = 4.0
"""A device whose best plan costs more than this times the cheapest plan is a line of text, not a row of the table."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The plans to choose from."""

    cheapest: Plan
    surest: Plan
    """The plan most likely to meet its targets among those that cost at most a quarter more than the cheapest."""
    fewest: Plan
    """The plan with the fewest GPUs."""
    recommended: Plan
    why: str
    """Why the recommended plan is recommended."""


@dataclass(frozen=True, slots=True)
class Certainty:
    """The cheapest fleet at one confidence."""

    confidence: float
    hardware: str | None
    """None: no plan reaches this confidence."""
    gpus: int | None
    usd_per_month: float | None
    gpus_per_replica: int | None = None
    """None, as the rest of the layout, where it has several groups."""
    replicas: int | None = None
    """Spares included."""
    spare_replicas: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    expert_parallel: int | None = None
    data_parallel: int | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    max_num_batched_tokens: int | None = None
    """Most tokens of a step, where the search chose them."""

    def __post_init__(self) -> None:
        """Raise the error for a layout that is there in part."""
        parts = (self.replicas, self.spare_replicas, self.tensor_parallel, self.pipeline_parallel, self.expert_parallel, self.data_parallel, self.weight_dtype, self.kv_dtype)  # fmt: skip
        if any(part is None for part in parts) and any(part is not None for part in parts):
            raise ValueError("the layout of its replicas is there in part")

    @property
    def has_layout(self) -> bool:
        """Whether all its replicas have one layout, which is stated."""
        return self.kv_dtype is not None

    @classmethod
    def of_layout(
        cls, confidence: float, layout: Layout, replicas: int, spares: int, usd_per_month: float | None
    ) -> "Certainty":
        """Return replicas of one layout at a confidence, spares included."""
        return cls(
            confidence,
            layout.device.name,
            replicas * layout.devices,
            usd_per_month,
            layout.devices,
            replicas,
            spares,
            **layout.degrees,
            weight_dtype=layout.weight_format,
            kv_dtype=layout.kv_format,
            max_num_batched_tokens=layout.max_num_batched_tokens,
        )


@dataclass(frozen=True, slots=True)
class Relaxed:
    """GPUs that are enough at a looser limit."""

    limit_s: float
    gpus: int


@dataclass(frozen=True, slots=True)
class Uneconomical:
    """A device that was asked for and has no plan among those shown: its best plan costs too much, or it has none."""

    hardware: str
    target: str | None = None
    """The target that leaves a replica of it the least room; None where no target decides."""
    value_s: float | None = None
    """The targeted latency on an idle replica."""
    limit_s: float | None = None
    gpus: int | None = None
    """GPUs of its best plan; None: it has no plan."""
    gpus_at: tuple[Relaxed, ...] = ()
    """GPUs that are enough at looser limits."""
    usd_per_month: float | None = None
    """Cost of its best plan."""
    cost_ratio: float | None = None
    """Cost of its best plan over the cost of the cheapest plan."""
    sure_value_s: float | None = None
    """The targeted latency on an idle replica that is as slow as the required confidence allows for."""
    reason: str = ""
    """Why it has no plan, where no target decides."""
    dear: str = ""
    """Why its best plan costs so much: GPUs that are bought, price of one, and machines that are larger than what they carry."""


@dataclass(frozen=True, slots=True)
class TightTarget:
    """The target that leaves the recommended plan a small part of the throughput of its device."""

    used_fraction: float
    """Throughput of the plan over the throughput of its GPUs without any target."""
    target: str
    value_s: float
    """The targeted latency on an idle replica."""
    limit_s: float
    gpus_at: tuple[Relaxed, ...]
    """GPUs that are enough at looser limits."""


@dataclass(frozen=True, slots=True)
class Step:
    """The recommended layout, sized for another confidence."""

    confidence: float
    gpus: int | None
    """None: no number of replicas of this layout is enough."""
    usd_per_month: float | None


@dataclass(frozen=True, slots=True)
class Sizing:
    """GPUs of a layout, and what they cost."""

    gpus: int
    usd_per_month: float | None


@dataclass(frozen=True, slots=True)
class Bought:
    """What a fleet of one layout is made of, with headroom and spares, and what it costs."""

    hardware: str
    gpus: int
    usd_per_month: float | None
    """None if no price is known."""


@dataclass(frozen=True, slots=True)
class NextSteps:
    """What more certainty of the recommended plan takes, on the same device and layout, and what a measurement would save."""

    surer: tuple[Step, ...]
    """Steps to each confidence above the probability of the plan."""
    as_predicted: Sizing
    """The layout for replicas exactly as fast as predicted, with headroom and spares."""
    unmeasured: tuple[Bought, ...] = ()
    """Fleets of devices whose kernels were not measured, which would cost less than the recommended plan if they were as predicted."""


@dataclass(frozen=True, slots=True)
class PoolsSearch:
    """How plans with separate pools were searched, and what they are compared with."""

    rejected: tuple[Rejection, ...]
    evaluated: int
    simulated_pairs: int
    """Pairs of replica counts that were simulated."""
    chunked: Mapping[int, Plan] = field(default_factory=dict)
    """Tokens of a smaller step -> cheapest fleet of identical replicas, which does for decoding what separate pools do."""
    least_usd_per_hour: float | None = None
    """Cost of what prefill and decode take by themselves, at least, on the cheapest pair of devices [$/h]; None without prices."""
    unmet: str = ""
    """Why the cheapest pair of devices that were simulated together has no plan, in words; empty if it has one, or if none was simulated."""


@dataclass(frozen=True, slots=True)
class CarriedTraffic:
    """The part of the traffic that a budget pays for, or that the allowed GPUs carry, where that is not all of it."""

    traffic_fraction: float
    plan: Plan
    """The plan for this part of the traffic."""
    usd_per_month: float | None
    """Cost of the plan, by its cheapest mix if the scenario names commitments."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The cheapest mix, and what it saves."""

    plan: Plan
    """All groups together."""
    parts: tuple[Plan, ...]
    """Each group by itself, with the requests that the router sends to it."""
    single_usd_per_month: float
    """Cost of the cheapest fleet of one kind."""
    tried: int
    """Ways to divide the requests."""
    skipped: tuple[str, ...] = ()
    """Ways that were asked for and not tried, each with the reason."""

    @property
    def usd_per_month(self) -> float:
        """Cost of all groups."""
        return self.plan.usd_per_month or 0.0

    @property
    def saved_fraction(self) -> float:
        """Part of the cost of one kind that the mix saves."""
        return 1.0 - self.usd_per_month / self.single_usd_per_month

    @property
    def by(self) -> Literal["classes", "lengths", "shares"]:
        """What the router looks at."""
        first = self.plan.groups[0].requests
        if first is not None and first.share is not None:
            return "shares"
        return "classes" if self.threshold_tokens is None else "lengths"

    @property
    def threshold_tokens(self) -> float | None:
        """Longest prompt of the first group; None if whole classes are divided."""
        first = self.plan.groups[0].requests
        return first.up_to_tokens if first else None


@dataclass(frozen=True, slots=True)
class NoMix:
    """Why one kind of fleet serves all requests."""

    reason: str
    tried: int
    skipped: tuple[str, ...] = ()
    """Ways to divide the requests that were asked for and not tried, each with the reason."""


@dataclass(frozen=True, slots=True)
class FleetAnswer:
    """The answer of a fleet search."""

    plans: tuple[Plan, ...]
    """Plans of identical replicas and plans with separate pools, cheapest first."""
    rejected: tuple[Rejection, ...]
    evaluated: int
    relaxations: tuple[Relaxation, ...] = ()
    choices: Choices | None = None
    """None if no plan is feasible."""
    certainty: tuple[Certainty, ...] = ()
    uneconomical: tuple[Uneconomical, ...] = ()
    """The devices that were asked for and have no plan in `plans`."""
    dear: tuple[Plan, ...] = ()
    """The best plans of devices that cost too much to be among `plans`."""
    tight: TightTarget | None = None
    """What makes the recommended plan large, if it uses a small part of its GPUs; None for separate pools."""
    next_steps: NextSteps | None = None
    """What more certainty of the recommended plan takes; None without targets, and for separate pools."""
    over_budget: Plan | None = None
    """The cheapest plan, if none is within the budget; with commitments the one of the cheapest mix."""
    over_budget_usd_per_month: float | None = None
    """Cost of the plan that is over the budget; with commitments by its mix."""
    carried: CarriedTraffic | None = None
    """What the budget pays for, or the allowed GPUs carry, instead; None if a plan is within the limit, or if no part of the traffic is."""
    pools: PoolsSearch | None = None
    """None if separate prefill and decode pools were not asked for."""
    mix: Mix | NoMix | None = None
    """Several fleets for one service; None if it was not asked for."""
    engines: tuple[str, ...] = ()
    """Other engines that may cost over a tenth less than the recommended plan, by their bounds."""
    by_commitments: bool = False
    """Whether commitments pay for the machines: the costs of plans are then of all replicas at all hours, without them."""

    @property
    def chosen(self) -> Plan | None:
        """The recommended plan; None if no plan is feasible."""
        return self.choices.recommended if self.choices else None

    @property
    def unlisted(self) -> Plan | None:
        """The surest choice, where it has more replicas than any of the plans."""
        surest = self.choices.surest if self.choices else None
        return None if surest is None or surest in self.plans else surest

    @property
    def written(self) -> tuple[Plan, ...]:
        """The plans and the unlisted one, cheapest first."""
        if self.unlisted is None:
            return self.plans
        own = orderable_first(self.unlisted)
        place = sum(orderable_first(plan) <= own for plan in self.plans)
        return (*self.plans[:place], self.unlisted, *self.plans[place:])

    @property
    def alike(self) -> tuple[Plan, ...]:
        """The plans of identical replicas, cheapest first."""
        return tuple(plan for plan in self.plans if len(plan.groups) == 1)

    @property
    def with_pools(self) -> tuple[Plan, ...]:
        """The plans with separate pools, cheapest first."""
        return tuple(plan for plan in self.plans if plan.has_pools)

    @property
    def together(self) -> Plan | None:
        """The plan of identical replicas to compare separate pools with: the recommended one, else the cheapest."""
        if self.chosen is not None and len(self.chosen.groups) == 1:
            return self.chosen
        return next(iter(self.alike), None)
