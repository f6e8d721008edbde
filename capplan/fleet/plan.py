"""The result of a fleet search: groups of identical replicas, plans of one kind of replica or of separate pools, choices, and what was rejected."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import Literal, Protocol, TypeAlias

from capplan.accuracy.bounded import BoundedSpread
from capplan.fleet.order import Machine, OrderLine
from capplan.fleet.pools.link import LinkTerms, LinkUse
from capplan.fleet.price import HOURS_PER_MONTH, ChosenPrice, usd_per_month
from capplan.fleet.search.candidates import Layout, Rejection
from capplan.fleet.unit_costs import UnitCosts
from capplan.serving.fleet_terms import Routing
from capplan.workload.outside import OutsideUse
from capplan.workload.request_class import ResponseTimes


class ReplicaGroup(Protocol):
    """What money, growth and replicas over time need to know of them."""

    @property
    def layout(self) -> Layout:
        """Of one replica."""

    @property
    def weight_dtype(self) -> str:
        """Of the network that they serve."""

    @property
    def replicas(self) -> int:
        """Spares included."""

    @property
    def spare_replicas(self) -> int:
        """Which stand by."""

    @property
    def busy_replicas(self) -> int:
        """Without spares."""

    @property
    def gpus(self) -> int:
        """Of all replicas."""

    @property
    def concurrency_per_replica(self) -> float:
        """Mean requests in a replica at the peak."""

    @property
    def request_rate_per_replica(self) -> float:
        """At the peak, spares idle [req/s]."""

    def sized_rate_per_replica(self, headroom_fraction: float, /) -> float:
        """Return the largest rate of one replica [req/s]: as predicted less headroom, and with the confidence."""

    @property
    def kv_cache_tokens(self) -> float:
        """Of one replica."""

    @property
    def label(self) -> str:
        """Whether its kernels were measured on its device, or assumed."""

    @property
    def price(self) -> ChosenPrice | None:
        """Of one device."""

    @property
    def usd_per_hour(self) -> float | None:
        """Of all devices; None without a price."""


def planned_rate_per_replica(group: ReplicaGroup, headroom_fraction: float) -> float:
    """Return the largest rate that one replica is planned for [req/s].

    A simulated plan may carry a little more than its bounds say, never less than it carries today.
    """
    return max(group.sized_rate_per_replica(headroom_fraction), group.request_rate_per_replica)


POOLS = ("prefill", "decode")
"""Names of the pools, in the order of `PoolsPlan.groups`; each runs the phase of its name."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Identical replicas of one phase."""

    layout: Layout
    weight_dtype: str
    busy_replicas: int
    """In service, without spares."""
    spare_replicas: int
    busy_fraction: float
    """Time in steps over time in service, mean over its replicas at the peak."""
    kv_cache_tokens: float
    """Of one replica."""
    label: str
    concurrency_per_replica: float
    """Mean requests in a replica at the peak, those that wait for it included."""
    request_rate_per_replica: float
    """At the peak, spares idle [req/s]."""
    planned_rate_limit_per_replica: float
    """Largest rate that both pools were seen to carry, with headroom as predicted and with the confidence [req/s]."""
    price: ChosenPrice | None

    def sized_rate_per_replica(self, _headroom_fraction: float, /) -> float:
        """Return the largest rate of one replica [req/s]; it was sized with the headroom already."""
        return self.planned_rate_limit_per_replica

    @property
    def replicas(self) -> int:
        """Replicas with spares."""
        return self.busy_replicas + self.spare_replicas

    @property
    def gpus(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.layout.devices

    @property
    def usd_per_hour(self) -> float | None:
        """Of all devices, spares included; None without a price."""
        return group_usd_per_hour(self)


def group_usd_per_hour(group: ReplicaGroup, replicas: int | None = None) -> float | None:
    """Return what the machines of a group cost per hour, with another number of replicas if one is given; None without a price."""
    price, layout = group.price, group.layout
    count = group.replicas if replicas is None else replicas
    if price is None:
        return None
    return price.order_usd_per_hour(layout.devices, layout.device.node_devices, count)


@dataclass(frozen=True, slots=True)
class PlanOrder:
    """The machines of a whole plan."""

    lines: tuple[OrderLine, ...]
    """Machines of one kind each, of all groups together."""
    gpus: int
    gpus_idle: int
    """GPUs that no replica of the plan uses."""
    free_replicas: int
    """Replicas that fit beside those of the plan, at no cost."""
    usd_per_hour: float
    """With electricity, if it is paid for apart from the machines."""


def plan_order(plan: "AnyPlan") -> PlanOrder | None:
    """Return the order of a plan; None without a price."""
    lines: dict[Machine, OrderLine] = {}
    free = 0
    for group in plan.groups:
        layout = group.layout
        price = group.price
        order = price.order(layout.devices, layout.device.node_devices, group.replicas) if price else None
        if order is None:
            return None
        free += order.replicas - group.replicas
        for line in order.lines:
            known = lines.get(line.machine, OrderLine(line.machine, 0, 0))
            lines[line.machine] = OrderLine(
                line.machine, known.count + line.count, known.replicas + line.replicas
            )
    gpus = sum(line.count * line.machine.gpus for line in lines.values())
    return PlanOrder(tuple(lines.values()), gpus, gpus - plan.gpus, free, plan.usd_per_hour or 0.0)


def paid_by_the_gpu(plans: Iterable["AnyPlan"]) -> bool:
    """Return whether plans cost as many GPUs as they use, and not the whole machines that these come in."""
    return all(
        isclose(group.gpus * group.price.total_usd_per_hour, group.usd_per_hour)
        for plan in plans
        for group in plan.groups
        if group.price is not None and group.usd_per_hour is not None
    )


def summed_usd_per_hour(pools: Iterable[Pool]) -> float | None:
    """Return dollars per hour of some pools; None if a price is unknown."""
    total = 0.0
    for pool in pools:
        if pool.usd_per_hour is None:
            return None
        total += pool.usd_per_hour
    return total


@dataclass(frozen=True, slots=True)
class PoolsPlan:
    """A prefill and a decode pool that serve the scenario together."""

    prefill: Pool
    decode: Pool
    link_terms: LinkTerms
    link: LinkUse
    """At the peak."""
    requests: int
    """Simulated at the peak, all of which the latencies count."""
    ttft_s: BoundedSpread
    tpot_s: BoundedSpread
    e2e_s: BoundedSpread
    slo_met_probability: float
    """Probability that all targets hold together."""
    few_open_loops_measured: bool
    usd_per_month: float | None
    money: UnitCosts | None
    """Costs at the mean load; None without a price."""
    target_probabilities: Mapping[str, float] | None = None
    """By target, the probability that it holds, whether or not the others do; None where it was not asked for."""
    usd_per_month_low: float | None = None
    """Cost of these layouts if replicas turn out as fast as in the best tenth of the cases ..."""
    usd_per_month_high: float | None = None
    """... or as slow as in the worst tenth; infinite if no number of replicas then meets the targets."""
    outside: OutsideUse | None = None
    """What requests take beside the devices; None where nothing is stated."""

    @property
    def responses_s(self) -> ResponseTimes:
        """Mean response time at the peak [s]."""
        return self.e2e_s.mean

    @property
    def pools(self) -> tuple[Pool, Pool]:
        """The prefill pool and the decode pool."""
        return self.prefill, self.decode

    @property
    def groups(self) -> tuple[ReplicaGroup, ...]:
        """The same, as any plan has them."""
        return self.pools

    def resized(self, replicas: Sequence[int]) -> "PoolsPlan":
        """Return the plan with other numbers of replicas, spares included: its cost follows, its range is not known."""
        prefill, decode = (
            replace(pool, busy_replicas=count - pool.spare_replicas)
            for pool, count in zip(self.pools, replicas, strict=True)
        )
        usd = summed_usd_per_hour((prefill, decode))
        before = summed_usd_per_hour(self.pools)
        return replace(
            self,
            prefill=prefill,
            decode=decode,
            usd_per_month=None if usd is None else float(usd_per_month(usd)),
            money=self.money.scaled(usd / before) if self.money and usd and before else None,
            usd_per_month_low=None,
            usd_per_month_high=None,
        )

    @property
    def gpus(self) -> int:
        """Devices of both pools, spares included."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def replicas(self) -> int:
        """Replicas of both pools, spares included."""
        return sum(pool.replicas for pool in self.pools)

    @property
    def hardware(self) -> str:
        """Devices by name: prefill, then decode where it is another one."""
        return " + ".join(dict.fromkeys(pool.layout.device.name for pool in self.pools))

    @property
    def usd_per_hour(self) -> float | None:
        """Of both pools; None if a price is unknown."""
        return None if self.usd_per_month is None else self.usd_per_month / HOURS_PER_MONTH

    @property
    def watts(self) -> float | None:
        """Thermal design power of all devices; None if it is unknown for some."""
        powers = [pool.layout.device.tdp_w for pool in self.pools]
        if any(power is None for power in powers):
            return None
        return sum((power or 0.0) * pool.gpus for power, pool in zip(powers, self.pools, strict=True))


@dataclass(frozen=True, slots=True)
class PoolsAnswer:
    """The plans with separate pools, cheapest first, and why there are no others."""

    plans: tuple[PoolsPlan, ...]
    rejected: tuple[Rejection, ...]
    evaluated: int
    simulated: int
    """Pairs of replica counts."""

    @property
    def chosen(self) -> PoolsPlan | None:
        """The cheapest; None if none meets the targets."""
        return self.plans[0] if self.plans else None


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """One way to serve the scenario."""

    layout: Layout
    weight_dtype: str
    replicas: int
    """Spares included."""
    spare_replicas: int
    concurrency_per_replica: float
    """Mean requests in a replica at the peak."""
    request_rate_per_replica: float
    """At the peak, spares idle [req/s]."""
    request_rate_limit_per_replica: float
    """Largest rate at which the targets hold, as predicted [req/s]."""
    sure_rate_limit_per_replica: float
    """The same for a replica as slow as the required confidence allows for [req/s]."""
    ttft_s: BoundedSpread
    tpot_s: BoundedSpread
    e2e_s: BoundedSpread
    slo_met_probability: float
    """Probability that all targets hold together."""
    few_open_loops_measured: bool
    """The probabilities rest on few open-loop measurements of similar networks."""
    target_probabilities: Mapping[str, float]
    """By target, the probability that it holds, whether or not the others do."""
    usd_per_hour: float | None
    usd_per_month: float | None
    usd_per_million_output_tokens: float | None
    """At the peak."""
    usd_per_million_tokens: float | None
    watts: float | None
    bottleneck: str
    label: str
    kv_cache_tokens: float
    checked: Literal["simulated", "closed form"]
    price: ChosenPrice | None = None
    money: UnitCosts | None = None
    """Costs at the mean load; None without a price."""
    draft_tokens: int | None = None
    """Drafted in a speculative round; None without speculation."""
    routing: Routing = "round_robin"
    usd_per_month_low: float | None = None
    """Cost of the fleet if its replicas turn out as fast as in the best tenth of the cases ..."""
    usd_per_month_high: float | None = None
    """... or as slow as in the worst tenth; infinite if no number of replicas then meets the targets."""
    outside: OutsideUse | None = None
    """What requests take beside the devices; None where nothing is stated."""
    class_e2e_s: tuple[float, ...] = ()
    """Mean response time of each class at the peak, where there are several [s]."""

    @property
    def responses_s(self) -> ResponseTimes:
        """Mean response times at the peak, for which users wait [s]."""
        return self.class_e2e_s or self.e2e_s.mean

    @property
    def hardware(self) -> str:
        """Name of the device."""
        return self.layout.device.name

    @property
    def busy_replicas(self) -> int:
        """Replicas without spares."""
        return self.replicas - self.spare_replicas

    @property
    def groups(self) -> tuple[ReplicaGroup, ...]:
        """All replicas, which are alike."""
        return (self,)

    def sized_rate_per_replica(self, headroom_fraction: float, /) -> float:
        """Return the largest rate of one replica [req/s]: as predicted less headroom, and with the confidence."""
        limit = self.request_rate_limit_per_replica * (1.0 - headroom_fraction)
        return min(limit, self.sure_rate_limit_per_replica)

    def resized(self, replicas: Sequence[int]) -> "FleetPlan":
        """Return the plan with another number of replicas, spares included: its cost and power grow with them, its range is not known."""
        usd = group_usd_per_hour(self, replicas[0])
        ratio = usd / self.usd_per_hour if usd and self.usd_per_hour else replicas[0] / self.replicas

        def scaled(value: float | None) -> float | None:
            return None if value is None else ratio * value

        return replace(
            self,
            replicas=replicas[0],
            usd_per_hour=scaled(self.usd_per_hour),
            usd_per_month=scaled(self.usd_per_month),
            usd_per_million_output_tokens=scaled(self.usd_per_million_output_tokens),
            usd_per_million_tokens=scaled(self.usd_per_million_tokens),
            watts=None if self.watts is None else self.watts * replicas[0] / self.replicas,
            money=None if self.money is None else self.money.scaled(ratio),
            usd_per_month_low=None,
            usd_per_month_high=None,
        )

    @property
    def gpus(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.layout.devices

    @property
    def energy_usd_per_hour(self) -> float | None:
        """Electricity of all devices, part of `usd_per_hour`; None if their price includes it."""
        if self.price is None or self.price.energy_usd_per_hour is None:
            return None
        return self.gpus * self.price.energy_usd_per_hour


AnyPlan: TypeAlias = FleetPlan | PoolsPlan
"""Identical replicas, or separate pools for prefill and decode."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The smallest change to one target that would make a plan feasible."""

    target: str
    limit_s: float
    needed_s: float
    layout: Layout


@dataclass(frozen=True, slots=True)
class Choices:
    """Three plans to choose from, identical replicas or separate pools, and the recommended one of identical replicas."""

    cheapest: AnyPlan
    surest: AnyPlan
    """The plan most likely to meet its targets among those that cost at most a quarter more than the cheapest."""
    fewest: AnyPlan
    """The plan with the fewest devices."""
    recommended: FleetPlan
    why: str


@dataclass(frozen=True, slots=True)
class Certainty:
    """The cheapest fleet at one confidence."""

    confidence: float
    hardware: str | None
    """None: no plan reaches this confidence."""
    gpus: int | None
    usd_per_month: float | None
    replicas: int | None = None
    """Spares included; None where it has separate pools."""
    spare_replicas: int | None = None
    layout: Layout | None = None
    weight_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Uneconomical:
    """A device that was asked for and has no plan among those shown: its best plan costs too much, or it has none."""

    hardware: str
    target: str | None
    """The target that leaves a replica of it the least room; None where no target decides."""
    value_s: float | None
    """The targeted latency on an idle replica."""
    limit_s: float | None
    gpus: int | None
    """GPUs of its best plan; None: it has no plan."""
    gpus_at: tuple[tuple[float, int], ...]
    """(relaxed limit [s], GPUs needed at that limit)."""
    usd_per_month: float | None = None
    """Cost of its best plan."""
    cost_ratio: float | None = None
    """Cost of its best plan over the cost of the cheapest plan."""
    sure_value_s: float | None = None
    """The targeted latency on an idle replica that is as slow as the required confidence allows for."""
    reason: str = ""
    """Why it has no plan, where no target decides."""


@dataclass(frozen=True, slots=True)
class TightTarget:
    """The target that leaves the recommended plan a small part of the throughput of its device."""

    used_fraction: float
    """Throughput of the plan over the throughput of its GPUs without any target."""
    target: str
    value_s: float
    """The targeted latency on an idle replica."""
    limit_s: float
    gpus_at: tuple[tuple[float, int], ...]
    """(relaxed limit [s], GPUs needed at that limit)."""


@dataclass(frozen=True, slots=True)
class Step:
    """The recommended layout, sized for another confidence."""

    confidence: float
    gpus: int | None
    """None: no number of replicas of this layout is enough."""
    usd_per_month: float | None


@dataclass(frozen=True, slots=True)
class Unproven:
    """A device whose kernels were not measured, and whose plan would cost less than the recommended one if they were as predicted."""

    hardware: str
    gpus: int
    """GPUs of its layout as predicted, with headroom and spares."""
    usd_per_month: float


@dataclass(frozen=True, slots=True)
class NextSteps:
    """What more certainty of the recommended plan takes, on the same device and layout, and what a measurement would save."""

    surer: tuple[Step, ...]
    """By confidence, above the probability of the plan."""
    predicted_gpus: int
    """GPUs for replicas exactly as fast as predicted, with headroom and spares."""
    predicted_usd_per_month: float | None
    unproven: tuple[Unproven, ...] = ()


@dataclass(frozen=True, slots=True)
class ChunkedPlan:
    """The cheapest fleet of identical replicas whose steps take no more than some tokens."""

    max_num_batched_tokens: int
    plan: FleetPlan


@dataclass(frozen=True, slots=True)
class CarriedTraffic:
    """The part of the traffic that a budget pays for, where it does not pay for all of it."""

    traffic_fraction: float
    plan: FleetPlan
    """For this part."""
    usd_per_month: float
    """By its cheapest mix where commitments are named."""


@dataclass(frozen=True, slots=True)
class FleetAnswer:
    """The answer of a fleet search; plans cheapest first."""

    plans: tuple[FleetPlan, ...]
    rejected: tuple[Rejection, ...]
    evaluated: int
    relaxations: tuple[Relaxation, ...] = ()
    choices: Choices | None = None
    certainty: tuple[Certainty, ...] = ()
    uneconomical: tuple[Uneconomical, ...] = ()
    """The devices that were asked for and have no plan in `plans`."""
    dear: tuple[FleetPlan, ...] = ()
    """The best plans of devices that cost too much to be among `plans`."""
    tight: TightTarget | None = None
    """What makes the recommended plan large, where it uses a small part of its GPUs; of identical replicas."""
    next_steps: NextSteps | None = None
    """Of the recommended plan of identical replicas; None without targets."""
    over_budget: AnyPlan | None = None
    """The cheapest plan, where none is within the budget; with commitments the one of the cheapest mix."""
    over_budget_usd_per_month: float | None = None
    """What it costs; with commitments by that mix."""
    carried: CarriedTraffic | None = None
    """What the budget pays for instead; None where a plan is within it, or where no part of the traffic is."""
    pools: PoolsAnswer | None = None
    """Plans with separate prefill and decode pools; None where they were not asked for."""
    chunked: tuple[ChunkedPlan, ...] = ()
    """What separate pools are compared with beside the recommended plan."""

    @property
    def chosen(self) -> FleetPlan | None:
        """Return the recommended plan of identical replicas; None if no plan is feasible."""
        return self.choices.recommended if self.choices else None

    @property
    def bought(self) -> AnyPlan | None:
        """Return the recommended plan, whether identical replicas or separate pools."""
        return self.chosen_pools or self.chosen

    @property
    def all_plans(self) -> tuple[AnyPlan, ...]:
        """Return the plans of identical replicas and of separate pools, cheapest first."""
        plans: list[AnyPlan] = [*(self.pools.plans if self.pools else ()), *self.plans]
        return tuple(sorted(plans, key=cost_of))

    @property
    def chosen_pools(self) -> PoolsPlan | None:
        """Return the plan with separate pools where it costs less than identical replicas, which is then recommended."""
        return cheaper_pools(self.pools.chosen if self.pools else None, self.chosen)


def whole_gpus(plan: AnyPlan) -> float:
    """Return the GPUs of a plan, slices as their part of one."""
    cuts = [(group.gpus, group.layout.device.partition) for group in plan.groups]
    return sum(gpus / (cut.per_device if cut else 1) for gpus, cut in cuts)


def cost_of(plan: AnyPlan) -> float:
    """Return dollars per hour, or GPUs where no price is known."""
    return plan.usd_per_hour if plan.usd_per_hour is not None else float(plan.gpus)


def cheaper_pools(apart: PoolsPlan | None, together: FleetPlan | None) -> PoolsPlan | None:
    """Return a plan with separate pools where it costs less than identical replicas, or where there are none."""
    if apart is None or together is None:
        return apart
    if apart.usd_per_hour is None or together.usd_per_hour is None:
        dearer = apart.usd_per_hour is None and together.usd_per_hour is not None
        return None if dearer or apart.gpus >= together.gpus else apart
    return apart if apart.usd_per_hour < together.usd_per_hour else None
