"""A group of identical replicas: its layout, what each replica carries, and the machines of its order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

from capplan.accuracy.bounded import BoundedSpread
from capplan.assumption import Label
from capplan.fleet.pools.order import PoolSize, pools_order, with_machines
from capplan.fleet.search.candidates import Layout
from capplan.money.order import Machine, Order, Survival
from capplan.money.price import ChosenPrice, Side
from capplan.workload.request_class import RequestClass

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
    """Largest request rate of a replica as slow as the required confidence allows for [req/s]; None for one of several groups."""
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
    """Identical replicas with their layout and what they cost; its order and prices are worked out once."""

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
