"""A plan: groups of identical replicas, what requests see of them, what they cost, and their order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import isclose
from typing import Literal

from capplan.accuracy.bounded import BoundedSpread
from capplan.fleet.availability import PlanAvailability, plan_availability
from capplan.fleet.group import Group, sized_groups, with_their_machines
from capplan.fleet.pools.link import LinkTerms, LinkUse
from capplan.fleet.unit_costs import UnitCosts
from capplan.money.order import NO_LOSS, Machine, OrderLine, Placement
from capplan.money.price import HOURS_PER_MONTH, SIDES, PriceRecord, Side, usd_per_month
from capplan.numbers import Spread
from capplan.serving.outcome import SeenByUsers
from capplan.serving.terms import Routing
from capplan.workload.request_class import OutsideUse, ResponseTimes, Target


@dataclass(frozen=True, slots=True)
class PlanOrder:
    """The machines of a whole plan."""

    lines: tuple[OrderLine, ...]
    """Machines of one kind each, of all groups together."""
    gpus: int
    gpus_idle: int
    """GPUs that no replica of the plan uses."""
    free_replicas: int
    """Replicas that fit next to those of the plan, at no cost."""
    placed: tuple[Placement, ...]
    """Replicas on each machine, group by group."""
    energy_usd_per_hour: float | None
    """Electricity of all machines; None if their prices include it."""
    usd_per_hour: float
    """Price of all machines, with electricity if that is paid for separately."""

    @property
    def gpus_owned(self) -> int:
        """GPUs of the machines that are there already.

            G_o = sum_i n_i g_i

        Returns
        -------
        [-]
            G_o: n machines of each kind i that is there already, of g GPUs each
        """
        return sum(line.count * line.machine.gpus for line in self.lines if line.machine.is_owned)


def ordered_text(plan: "Plan") -> str | None:
    """Return the machines of a plan in words, such as '3 x p5.48xlarge'; None if GPUs are bought by the piece, or without a price."""
    lines = plan.order.lines if plan.order else ()
    named = [(line.count, line.machine.sku) for line in lines if line.machine.sku]
    return ", ".join(f"{count} x {sku}" for count, sku in named) or None


def paid_by_the_gpu(plans: Iterable["Plan"]) -> bool:
    """Return whether plans cost as many GPUs as they use, and not the whole machines that these come in."""
    return all(
        isclose(group.gpus * group.quote.total_usd_per_hour, group.usd_per_hour)
        for plan in plans
        for group in plan.groups
        if group.quote is not None and group.usd_per_hour is not None
    )


def summed(parts: Iterable[float | None]) -> float | None:
    """Return a sum; None if one of its parts is unknown."""
    total = 0.0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def summed_usd_per_hour(groups: Iterable[Group]) -> float | None:
    """Return the cost per hour of some groups; None if a price is unknown."""
    return summed(group.usd_per_hour for group in groups)


@dataclass(frozen=True, slots=True)
class Transfer:
    """How KV caches get from the prefill pool to the decode pool."""

    terms: LinkTerms
    at_peak: LinkUse


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLatencies:
    """What the requests of one class see of the engines at the peak."""

    name: str
    ttft_s: BoundedSpread
    tpot_s: BoundedSpread | None
    e2e_s: BoundedSpread


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """What requests see of a plan at the peak, and what it costs: the part that JSON and plan files hold as it is."""

    ttft_s: BoundedSpread
    e2e_s: BoundedSpread
    prefix_hit_fraction: float | None = None
    """Fraction of the tokens of all prompts that prefix caches hold at the peak; None where it was not written."""
    class_prefix_hit_fractions: tuple[float, ...] = ()
    """The fraction of each class, in the order of the traffic."""
    class_latencies: tuple[ClassLatencies, ...] = ()
    """Latencies of each class of a mix, in the order of the traffic; empty for other plans."""
    class_e2e_mean_s: tuple[float, ...] = ()
    """Mean response time of each class at the peak, where there are several [s]."""
    slo_met_probability: float
    """Probability that all targets hold together."""
    few_open_loops_measured: bool
    """The probabilities rest on few open-loop measurements of similar networks."""
    target_probabilities: Mapping[str, float]
    """Probability that each target is met, whether or not the others are; empty if nobody asked."""
    usd_per_hour: float | None
    """Cost per hour of the order, spares included; None if a price is unknown."""
    usd_per_month_low: float | None = None
    """Cost of these layouts if replicas turn out as fast as in the best tenth of the cases."""
    usd_per_month_high: float | None = None
    """Cost of these layouts if replicas turn out as slow as in the worst tenth; infinite if no number of replicas then meets the targets."""
    usd_per_million_output_tokens: float | None = None
    """Cost of a million output tokens at the peak."""
    usd_per_million_tokens: float | None = None
    """Cost of a million input and output tokens at the peak."""
    routing: Routing = "round_robin"
    bottleneck: str | None = None
    checked: Literal["simulated", "closed form"] = "simulated"
    simulated_requests: int | None = None
    """Requests simulated at the peak, all of which the latencies count; None where it is not said."""


@dataclass(frozen=True, kw_only=True)
class Plan(PlanFigures):
    """One way to serve the scenario: groups of identical replicas, what requests see at the peak, and what it costs.

    Its order and its availability are worked out once.
    """

    tpot_s: BoundedSpread
    groups: tuple[Group, ...]
    """One group that serves requests, a prefill and a decode pool, or the groups of a mix, each with requests of its own."""
    money: UnitCosts | None = None
    """Costs at the mean load; None without a price."""
    outside: OutsideUse | None = None
    """What requests take outside of the GPUs; None where nothing is stated."""
    unlike_waits: SeenByUsers | None = None
    """Latencies with the wait of each request outside; None if all wait equally long."""
    transfer: Transfer | None = None
    """What moves KV caches between pools; None for one group."""

    @cached_property
    def order(self) -> PlanOrder | None:
        """Machines of all groups; None without a price."""
        lines: dict[Machine, OrderLine] = {}
        placed: list[Placement] = []
        free = 0
        for group in self.groups:
            order = group.order
            if order is None:
                return None
            free += order.replicas - group.replicas
            placed += order.placed()
            for line in order.lines:
                device = line.machine.device or group.layout.device.name
                machine = replace(line.machine, device=device, most=None, begun=0)
                known = lines.get(machine, OrderLine(machine, 0, 0))
                lines[machine] = OrderLine(machine, known.count + line.count, known.replicas + line.replicas)
        gpus = sum(line.count * line.machine.gpus for line in lines.values())
        return PlanOrder(
            tuple(lines.values()),
            gpus,
            gpus - self.gpus,
            free,
            tuple(placed),
            self.energy_usd_per_hour,
            self.usd_per_hour or 0.0,
        )

    @cached_property
    def availability(self) -> PlanAvailability | None:
        """How likely enough replicas of each group are in service at any time and over a month; None without an order."""
        return plan_availability(self.groups)

    @cached_property
    def offers(self) -> Mapping[Side, tuple[float, tuple[PriceRecord, ...]]]:
        """Return the cost at each side of the offers, and these offers; empty where a price is unknown.

            c_s = sum_i h_i,s

        h are the machines of a group, with electricity: each group is ordered at the provider of its lowest or highest order.

        Returns
        -------
        by side, lowest first: [$/h] of all devices, with electricity where it is paid separately; offers are none where the scenario states every price
        """
        if self.usd_per_hour is None or any(group.quote is None for group in self.groups):
            return {}
        costs: dict[Side, tuple[float, tuple[PriceRecord, ...]]] = {}
        for side in SIDES:
            groups = with_their_machines(self.groups, side)
            usd = sum(group.usd_per_hour_of(group.busy_replicas, side) or 0.0 for group in groups)
            offers = (offer for group in groups if group.quote for offer in group.quote.at(side)[1])
            costs[side] = self.usd_per_hour if side == "likely" else usd, tuple(dict.fromkeys(offers))
        return costs

    @property
    def single(self) -> Group:
        """The group of a plan of identical replicas."""
        (group,) = self.groups
        return group

    @property
    def draft_tokens(self) -> int | None:
        """Tokens drafted in a speculative round; None without speculation, and for a mix whose groups draft differently many."""
        counts = {group.draft_tokens for group in self.generating}
        return next(iter(counts)) if len(counts) == 1 else None

    @property
    def has_pools(self) -> bool:
        """Whether prefill and decode have separate replicas."""
        return self.transfer is not None

    @property
    def is_mix(self) -> bool:
        """Whether a router sends different requests to different groups."""
        return any(group.requests is not None for group in self.groups)

    @property
    def receiving(self) -> tuple[Group, ...]:
        """The groups that requests come to first, which read their prompts: all but those that only decode."""
        return tuple(group for group in self.groups if group.role != "decode")

    @property
    def generating(self) -> tuple[Group, ...]:
        """The groups that write the output of requests: all but those that only prefill."""
        return tuple(group for group in self.groups if group.role != "prefill")

    @property
    def peak_requests_per_s(self) -> float:
        """Request rate of the service at the peak [req/s]."""
        return sum(group.request_rate_per_replica * group.busy_replicas for group in self.receiving)

    @property
    def carried_requests_per_s(self) -> float:
        """Rate that the replicas in service are predicted to carry; pools were seen to carry it with headroom [req/s].

        Of a mix it is that at which the first of its groups has as much as it carries.
        """
        ratios = [
            group.request_rate_limit_per_replica / group.request_rate_per_replica
            for group in self.groups
            if group.request_rate_limit_per_replica is not None
        ]
        if ratios:
            return min(ratios) * self.peak_requests_per_s
        return min(
            group.planned_request_rate_limit_per_replica
            * group.busy_replicas
            / (1.0 - group.headroom_fraction)
            for group in self.groups
        )

    @property
    def usd_per_hour_without_spares(self) -> float:
        """Cost per hour of the machines if nothing may fail; zero without a price."""
        bare = (replace(group, survive=NO_LOSS) for group in self.groups)
        return sum(group.usd_per_hour_of(group.busy_replicas) or 0.0 for group in bare)

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the groups: their phase, or the requests that they get; empty text for all requests."""
        return tuple(
            group.requests.rule if group.requests else group.role if self.has_pools else ""
            for group in self.groups
        )

    @property
    def responses_s(self) -> ResponseTimes:
        """Mean response times at the peak, for which users wait [s]."""
        return self.class_e2e_mean_s or self.e2e_s.mean

    @property
    def hardware(self) -> str:
        """Names of the devices, each once."""
        return " + ".join(dict.fromkeys(group.layout.device.name for group in self.groups))

    @property
    def weight_dtype(self) -> str:
        """Weight dtype of the last group: of separate pools, the one that decodes."""
        return self.groups[-1].weight_dtype

    @property
    def kv_dtype(self) -> str:
        """What the last group keeps its KV cache in."""
        return self.groups[-1].kv_dtype

    @property
    def replicas(self) -> int:
        """Replicas of all groups, spares included."""
        return sum(group.replicas for group in self.groups)

    @property
    def spare_replicas(self) -> int:
        """Spare replicas of all groups."""
        return sum(group.spare_replicas for group in self.groups)

    @property
    def prefilling_replicas(self) -> int:
        """Replicas that read prompts, spares included: their prefix caches have the offload tiers."""
        return sum(group.replicas for group in self.receiving)

    @property
    def in_service(self) -> tuple[int, ...]:
        """Replicas without spares, by group."""
        return tuple(group.busy_replicas for group in self.groups)

    @property
    def gpus(self) -> int:
        """GPUs of all groups, spares included."""
        return sum(group.gpus for group in self.groups)

    @property
    def gpus_owned(self) -> int:
        """GPUs of its replicas on machines that are there already, spares included; the others are to be ordered."""
        return sum(group.gpus_owned for group in self.groups)

    @property
    def paid_hours(self) -> float:
        """Hours that the plan is paid for: those of its job, else those of a month."""
        return self.money.job_hours if self.money and self.money.job_hours else HOURS_PER_MONTH

    @property
    def is_of_job(self) -> bool:
        """Whether the plan is paid for until a job is done, not by the month."""
        return self.money is not None and self.money.usd_per_job is not None

    @property
    def usd_per_month(self) -> float | None:
        """Cost per month; None if a price is unknown."""
        return None if self.usd_per_hour is None else float(usd_per_month(self.usd_per_hour))

    @property
    def watts(self) -> float | None:
        """Thermal design power of all GPUs [W]; None if it is unknown for some."""
        return summed(group.watts for group in self.groups)

    @property
    def energy_usd_per_hour(self) -> float | None:
        """Electricity of all GPUs, part of `usd_per_hour`; None if their price includes it."""
        return summed(group.energy_usd_per_hour for group in self.groups)

    @property
    def seen(self) -> SeenByUsers:
        """Latencies from the moment that users ask: with what each request waits outside."""
        if self.unlike_waits is not None:
            return self.unlike_waits
        wait_s = self.outside.longest_wait_s if self.outside else 0.0
        first, last = (
            Spread(*(float(getattr(engine, item.name)) + wait_s for item in fields(Spread)))
            for engine in (self.ttft_s, self.e2e_s)
        )
        return SeenByUsers(first, last)

    def engine_value(self, target: Target) -> float:
        """Return the latency of the engine that a target is about, whatever requests wait outside."""
        spread = {"ttft": self.ttft_s, "e2e": self.e2e_s}.get(target.metric, self.tpot_s)
        return float(getattr(spread, target.statistic))

    def value(self, target: Target) -> float:
        """Return the value that the stated limit of a target is compared with: of users, if it includes what they wait outside."""
        if not target.outside_s:
            return self.engine_value(target)
        return float(
            getattr(self.seen.ttft_s if target.metric == "ttft" else self.seen.e2e_s, target.statistic)
        )

    def engine_limit_s(self, target: Target) -> float:
        """Return the latency of the engine at which a target would be just met, if all requests took as much longer than planned."""
        if self.unlike_waits is None:
            return target.limit_s
        return self.engine_value(target) + target.stated_s - self.value(target)

    def resized(self, busy: Sequence[int]) -> "Plan":
        """Return the plan with other numbers of replicas that carry the peak: spares and cost follow, its range is not known."""
        groups = sized_groups(self.groups, busy)
        usd = summed_usd_per_hour(groups)
        ratio = usd / self.usd_per_hour if usd and self.usd_per_hour else None

        def scaled(value: float | None) -> float | None:
            return None if value is None or ratio is None else ratio * value

        return replace(
            self,
            groups=groups,
            usd_per_hour=usd,
            usd_per_million_output_tokens=scaled(self.usd_per_million_output_tokens),
            usd_per_million_tokens=scaled(self.usd_per_million_tokens),
            money=None if self.money is None or ratio is None else self.money.scaled(ratio),
            usd_per_month_low=None,
            usd_per_month_high=None,
        )


RANGE = (0.1, 0.9)
"""Quantiles of replica slowness for the range of the cost of a fleet and of its latencies: 80 % of the cases."""


def with_cost_range(plan: Plan, low_usd_per_month: float, high_usd_per_month: float) -> Plan:
    """Return a plan with what its layout costs if its replicas are as fast or as slow as RANGE; as it is without a price.

    The range holds the plan's own cost: a simulation of the whole fleet may have asked for more replicas than their speed does.
    """
    own = plan.usd_per_month
    if own is None:
        return plan
    low, high = min(low_usd_per_month, own), max(high_usd_per_month, own)
    return replace(plan, usd_per_month_low=low, usd_per_month_high=high)


def whole_gpus(plan: Plan) -> float:
    """Return the GPUs of a plan, slices as their part of one."""
    cuts = [(group.gpus, group.layout.device.partition) for group in plan.groups]
    return sum(gpus / (cut.per_device if cut else 1) for gpus, cut in cuts)


def orderable_first(plan: "Plan") -> tuple[bool, float]:
    """Return the sort key of plans by cost: those of GPUs of which no machine is listed come after all that can be ordered."""
    return any(group.is_by_the_gpu for group in plan.groups), cost_of(plan)


def cost_of(plan: Plan) -> float:
    """Return dollars per hour, or GPUs where no price is known."""
    return plan.usd_per_hour if plan.usd_per_hour is not None else float(plan.gpus)


def costs_less(plan: Plan, other: Plan) -> bool:
    """Return whether a plan costs less than another one. Without prices GPUs count; a plan without a price never costs less than one with a price."""
    if plan.usd_per_hour is None and other.usd_per_hour is None:
        return plan.gpus < other.gpus
    return plan.usd_per_hour is not None and (
        other.usd_per_hour is None or plan.usd_per_hour < other.usd_per_hour
    )
