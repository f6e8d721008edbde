"""The result of a fleet search: groups of identical replicas, plans of one kind of replica or of separate pools, choices, and what was rejected."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import isclose
from typing import Literal, TypeAlias

from capplan.accuracy.bounded import BoundedSpread
from capplan.assumption import Label
from capplan.fleet.availability import PlanAvailability, plan_availability
from capplan.fleet.pools.link import LinkTerms, LinkUse
from capplan.fleet.pools.order import PoolSize, pools_order, with_machines
from capplan.fleet.search.candidates import Layout, Rejection
from capplan.fleet.unit_costs import UnitCosts
from capplan.money.order import NO_LOSS, Machine, Order, OrderLine, Placement, Survival
from capplan.money.price import HOURS_PER_MONTH, SIDES, ChosenPrice, PriceRecord, Side, usd_per_month
from capplan.numbers import Spread
from capplan.serving.outcome import SeenByUsers
from capplan.serving.terms import Routing
from capplan.workload.request_class import OutsideUse, RequestClass, ResponseTimes, Target

Role: TypeAlias = Literal["serve", "prefill", "decode"]
"""What a group of replicas does with a request: all of it, or one phase."""


@dataclass(frozen=True, slots=True)
class RoutedRequests:
    """Requests that the router of a mix sends to one of its groups: whole classes, their prompts of some lengths, or a share of each class."""

    classes: tuple[str, ...]
    """Names of the classes, of which the group serves all requests or those of these lengths."""
    request_fraction: float
    """Share of all requests at the peak."""
    above_tokens: float | None = None
    """Only prompts longer than this; None: no lower limit."""
    up_to_tokens: float | None = None
    """Only prompts of at most this length; None: no upper limit."""
    max_model_len: int | None = None
    """Longest sequence that the replicas of the group are started for; None: that of the service."""
    share: float | None = None
    """Only this share of each class, dealt out by weight; None: all of them."""

    @property
    def rule(self) -> str:
        """Return the rule of the router in words."""
        if self.up_to_tokens is not None:
            return f"prompts of at most {self.up_to_tokens:,.0f} tokens"
        if self.above_tokens is not None:
            return f"prompts above {self.above_tokens:,.0f} tokens"
        if self.share is not None:
            return f"{self.share:.0%} of each class"
        return ", ".join(self.classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """Identical replicas that do the same part of the work: what JSON and plan files hold of them as it is."""

    role: Role
    model: str
    weight_dtype: str
    replicas: int
    """Replicas of the group, spares included."""
    spare_replicas: int
    """Replicas of what may fail."""
    concurrency_per_replica: float
    """Mean number of requests in a replica at the peak, waiting ones included."""
    request_rate_per_replica: float
    """Requests per second of a replica at the peak, spares idle [req/s]."""
    request_rate_limit_per_replica: float | None = None
    """Largest request rate at which the targets are met, as predicted [req/s]; None for one of several groups."""
    sure_request_rate_limit_per_replica: float | None = None
    """The same limit for a replica as slow as the required confidence allows for [req/s]; None for one of several groups."""
    planned_request_rate_limit_per_replica: float
    """Largest request rate of a replica, with headroom as predicted and with the required confidence [req/s]."""
    kv_cache_tokens: float
    """Tokens in the KV cache of one replica."""
    label: Label
    """Whether the kernels of the device were measured, or are assumed."""
    busy_fraction: float | None = None
    """Time in steps over time in service, mean over the replicas at the peak; None where it was not measured."""
    draft_tokens: int | None = None
    """Tokens drafted in a speculative round; None without speculation, and for replicas that only prefill."""
    requests: RoutedRequests | None = None
    """Requests of one of several groups that serve; None: all of them."""
    ttft_s: BoundedSpread | None = None
    """Time to the first token of the requests of one group of a mix; None for other plans, whose latencies are those of the plan."""
    tpot_s: BoundedSpread | None = None
    """Time per output token of these requests."""
    e2e_s: BoundedSpread | None = None
    """Time until the last token of these requests."""
    class_prefix_hit_fractions: tuple[float, ...] = ()
    """Fraction of the prompt tokens of each class that the group gets which its prefix caches hold at the peak; empty for replicas that only decode."""

    @property
    def busy_replicas(self) -> int:
        """Replicas in service, without spares."""
        return self.replicas - self.spare_replicas


@dataclass(frozen=True, kw_only=True)
class Group(GroupFigures):
    """The same replicas with their layout and what they cost; its order and prices are worked out once."""

    layout: Layout
    """Layout of one replica."""
    survive: Survival
    """What may fail while the other replicas carry the peak."""
    headroom_fraction: float
    """Share of what the replicas are predicted to carry that stays unused at the peak."""
    price: ChosenPrice | None
    """Prices of the device, whatever is ordered."""
    machines: tuple[Machine, ...] | None = None
    """Machines that a pool may have next to the other one; None: all that the price has."""

    @property
    def hardware(self) -> str:
        """Name of the device."""
        return self.layout.device.name

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica."""
        return self.layout.devices

    @property
    def kv_dtype(self) -> str:
        """What the KV cache is kept in."""
        return self.layout.kv_format

    @property
    def max_num_batched_tokens(self) -> int | None:
        """Most tokens of a step of one engine, where the search chose them; None: as the scenario or the engine says."""
        return self.layout.max_num_batched_tokens

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """Price of one GPU per hour in the order, without electricity; None if it is unknown."""
        return None if self.quote is None else self.quote.usd_per_hour

    @property
    def price_basis(self) -> str | None:
        """Where the price is from, in words; None without one."""
        return None if self.quote is None else self.quote.basis

    @cached_property
    def quote(self) -> ChosenPrice | None:
        """Price of one GPU in the machines of the order, with the offers that it is of; None without a price."""
        if self.price is None or self._paid is None:
            return None
        size = (self.layout.devices, self.layout.device.node_devices, self.busy_replicas, self.survive)
        anywhere = self.price.of_order(*size)
        if self.machines is None:
            return anywhere
        paid = self._paid.of_order(*size)
        return replace(
            anywhere, usd_per_hour=paid.usd_per_hour, records=paid.records, newest_day=paid.newest_day
        )

    @property
    def is_by_the_gpu(self) -> bool:
        """Whether its GPUs have a listed price, and no machine is known in which they could be ordered."""
        return (
            self._paid is not None
            and bool(self._paid.records)
            and self._paid.is_by_the_gpu(self.layout.devices)
        )

    @property
    def gpus(self) -> int:
        """Return the GPUs of all replicas.

            G = n g

        Returns
        -------
        [-]
            G: n replicas, spares included, of g GPUs each
        """
        return self.replicas * self.layout.devices

    @property
    def ordered_gpus(self) -> int:
        """Return the GPUs of its machines, idle ones included; those of its replicas without an order."""
        return self.gpus if self.order is None else self.order.gpus

    @property
    def watts(self) -> float | None:
        """Return the thermal design power of all GPUs; None if it is unknown.

            W = w g

        Returns
        -------
        [W]
            W: g GPUs of w watts each
        """
        power = self.layout.device.tdp_w
        return power * self.gpus if power else None

    @property
    def energy_usd_per_hour(self) -> float | None:
        """Return the electricity of all machines, part of `usd_per_hour`; None if their price includes it.

            E = e g

        Returns
        -------
        [$/h]
            E: g GPUs, idle ones of the machines included, with electricity for e dollars an hour each
        """
        usd = self.price.energy_usd_per_hour if self.price else None
        return None if usd is None else usd * self.ordered_gpus

    @property
    def replica_s_per_request(self) -> float | None:
        """Time of a replica that one of its requests takes in the mean: of one that has all it carries, or of one at the peak that is busy in part [s]."""
        if self.request_rate_limit_per_replica:
            return 1.0 / self.request_rate_limit_per_replica
        if self.busy_fraction is None or not self.request_rate_per_replica:
            return None
        return self.busy_fraction / self.request_rate_per_replica

    @property
    def total_rate_per_replica(self) -> float:
        """Largest rate of all requests of the service that one replica is planned for: that of its own requests over their share [req/s]."""
        share = self.requests.request_fraction if self.requests else 1.0
        return self.planned_request_rate_limit_per_replica / share

    @property
    def usd_per_hour(self) -> float | None:
        """Cost per hour of the machines of all replicas; None without a price."""
        return None if self._paid is None else self._paid.usd_per_hour_of(self.order)

    def usd_per_hour_of(self, busy: int, side: Side = "likely") -> float | None:
        """Return the cost per hour of the machines if another number of replicas carries the peak; None without a price."""
        return None if self._paid is None else self._paid.usd_per_hour_of(self.order_of(busy, side))

    @cached_property
    def order(self) -> Order | None:
        """Machines of the group; None without a price, or if too few may be ordered."""
        return self.order_of(self.busy_replicas)

    def order_of(self, busy: int, side: Side = "likely") -> Order | None:
        """Return the machines if another number of replicas carries the peak; None without a price, or if too few may be ordered."""
        if self._paid is None:
            return None
        devices, node = self.layout.devices, self.layout.device.node_devices
        return self._paid.order(devices, node, busy, self.survive, side)

    def spares_for(self, busy: int) -> int:
        """Return the spare replicas if another number of replicas carries the peak."""
        if self._paid is None:
            return self.survive.least_spares(busy)
        devices, node = self.layout.devices, self.layout.device.node_devices
        return self._paid.spares(devices, node, busy, self.survive)

    @property
    def gpus_owned(self) -> int:
        """GPUs of its replicas on machines that are there already, spares included; those of the others are to be ordered."""
        return self.layout.devices * sum(
            item.machines // item.span * item.replicas
            for item in (self.order.placed() if self.order else ())
            if item.machine.is_owned
        )

    def spares_among(self, replicas: int) -> int:
        """Return how many of some replicas are spare: as few as the machines of the others need."""
        busy = next(count for count in range(replicas, 0, -1) if count + self.spares_for(count) <= replicas)
        return replicas - busy

    @cached_property
    def _paid(self) -> ChosenPrice | None:
        """The price in the machines that the group may have."""
        if self.price is None or self.machines is None:
            return self.price
        return with_machines(self.price, self.machines)

    def is_searched_at_other_rates(self, classes: Sequence[RequestClass]) -> bool:
        """Return whether a replica carries more in a larger fleet, so that the replicas for another load are searched.

        Requests that are dealt in turn arrive more regularly at each of many replicas. Users and sessions stay at their replica; pools
        and the groups of a mix are scaled by the load that all carry together.
        """
        return (
            self.role == "serve"
            and self.ttft_s is None
            and any(item.users is None and item.sessions is None for item in classes)
        )

    def resized(self, busy: int) -> "Group":
        """Return the group with another number of replicas that carry the peak, and the spares that these need."""
        spares = self.spares_for(busy)
        return replace(self, replicas=busy + spares, spare_replicas=spares)


PHASES: tuple[Role, Role] = ("prefill", "decode")
"""Roles of the groups of a plan with separate pools, in their order."""


def sized_groups(groups: Sequence[Group], busy: Sequence[int]) -> tuple[Group, ...]:
    """Return the groups of a plan with so many replicas that carry the peak, and the spares that these need; pools have one order."""
    resized = [
        replace(group, replicas=count, spare_replicas=0) for group, count in zip(groups, busy, strict=True)
    ]
    return tuple(group.resized(group.replicas) for group in with_their_machines(resized))


def with_their_machines(groups: Sequence[Group], side: Side = "likely") -> tuple[Group, ...]:
    """Return the groups of a plan; of pools, each with the machines that it may have in their order at a side of the range of providers."""
    sizes = [
        PoolSize(group.price, group.layout.devices, group.layout.device.node_devices)
        for group in groups
        if group.price is not None
    ]
    if tuple(group.role for group in groups) != PHASES or len(sizes) < len(groups):
        return tuple(groups)
    _, machines = pools_order(sizes, [group.busy_replicas for group in groups], groups[0].survive, side)
    return tuple(replace(group, machines=part) for group, part in zip(groups, machines, strict=True))


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


def _summed(parts: Iterable[float | None]) -> float | None:
    """Return a sum; None if one of its parts is unknown."""
    total = 0.0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def summed_usd_per_hour(groups: Iterable[Group]) -> float | None:
    """Return the cost per hour of some groups; None if a price is unknown."""
    return _summed(group.usd_per_hour for group in groups)


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
        energy = [group.energy_usd_per_hour for group in self.groups if group.energy_usd_per_hour is not None]
        return PlanOrder(
            tuple(lines.values()),
            gpus,
            gpus - self.gpus,
            free,
            tuple(placed),
            sum(energy) if energy else None,
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
        return _summed(group.watts for group in self.groups)

    @property
    def energy_usd_per_hour(self) -> float | None:
        """Electricity of all GPUs, part of `usd_per_hour`; None if their price includes it."""
        return _summed(group.energy_usd_per_hour for group in self.groups)

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


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The smallest change to one target that would make a plan feasible."""

    target: str
    limit_s: float
    needed_s: float
    layout: Layout


RANGE = (0.1, 0.9)
"""Quantiles of replica slowness for the range of the cost of a fleet and of its latencies: 80 % of the cases."""
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
    """Return whether a plan costs less than another one, in GPUs if neither has a price; no price is never less."""
    if plan.usd_per_hour is None and other.usd_per_hour is None:
        return plan.gpus < other.gpus
    return plan.usd_per_hour is not None and (
        other.usd_per_hour is None or plan.usd_per_hour < other.usd_per_hour
    )
