"""The machines of both pools as one order: at one provider, and no machine that may be had once is counted for both."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, inf

from capplan.money.order import OWN, Machine, Order, Survival
from capplan.money.price import ChosenPrice, Side

MOST_DIVISIONS = 200
"""Divisions of machines that are few which are tried; of more possible ones, as many that are evenly spaced."""

Machines = tuple[Machine, ...]


@dataclass(frozen=True, slots=True)
class PoolSize:
    """What the order of a pool follows from, but for the number of its replicas."""

    price: ChosenPrice
    replica_gpus: int
    """GPUs of one replica."""
    node_gpus: int
    """GPUs of a server as the prediction assumes it."""

    def order(self, machines: Machines, busy: int, survive: Survival) -> Order | None:
        """Return the cheapest order of some machines that holds the replicas; None if there is none."""
        return with_machines(self.price, machines).order(self.replica_gpus, self.node_gpus, busy, survive)

    def usd_per_hour(self, order: Order) -> float:
        """Return the price of an order, with electricity [$/h]."""
        return order.usd_per_hour + (self.price.energy_usd_per_hour or 0.0) * order.gpus


def with_machines(price: ChosenPrice, machines: Machines) -> ChosenPrice:
    """Return a price whose device is sold in these machines, whoever sells them."""
    return price if machines == price.machines else replace(price, machines=machines, at_one_provider=False)


def pools_order(
    pools: Sequence[PoolSize], busy: Sequence[int], survive: Survival, side: Side = "likely"
) -> tuple[float, tuple[Machines, ...]]:
    """Return the order of both pools, and which machines each of them may have.

        h_v = min over divisions of h_prefill + h_decode at the provider v
        h = lower median of h_v, or min over v if the scenario names machines

    No machine is of both pools. Both are at one provider where one sells the GPUs of both, because KV
    caches cross between them.

    Parameters
    ----------
    pools : prefill and decode
    busy : [-]
        replicas of either that carry the peak
    survive : what may fail of either
    side : of the range of providers; low and high are the cheapest and the dearest of them

    Returns
    -------
    h [$/h], the price of all machines with electricity, infinite if there are too few; the machines that each pool may have
    """
    every = tuple(
        () if pool.price.is_by_the_gpu(pool.replica_gpus) else pool.price.machines for pool in pools
    )
    found: list[tuple[float, tuple[Machines, ...]]] = []
    for near in _at_one_provider(every):
        best: tuple[float, tuple[Machines, ...]] = inf, near
        for divided in _divisions(pools, near, busy, survive):
            machines = _in_shared_lots(pools, divided, busy, survive)
            orders = [
                pool.order(part, count, survive)
                for pool, part, count in zip(pools, machines, busy, strict=True)
            ]
            usd = sum(
                inf if order is None else pool.usd_per_hour(order)
                for pool, order in zip(pools, orders, strict=True)
            )
            if usd < best[0] - 1e-9:
                best = usd, machines
        found.append(best)
    able = sorted((item for item in found if item[0] < inf), key=lambda item: item[0])
    if not able:
        return inf, every
    likely = (len(able) - 1) // 2 if all(pool.price.at_one_provider for pool in pools) else 0
    return able[{"low": 0, "likely": likely, "high": -1}[side]]


def _at_one_provider(every: tuple[Machines, ...]) -> list[tuple[Machines, ...]]:
    """Return the machines of each pool at every provider that sells the GPUs of both; all of them if no provider does.

    Machines that are there already count as near those of any provider.
    """
    sellers = [{machine.provider for machine in machines} - {OWN} for machines in every]
    common = set.intersection(*sellers)
    if not common:
        return [every]
    return [
        tuple(tuple(item for item in machines if item.provider in (OWN, name)) for machines in every)
        for name in sorted(common)
    ]


def _divisions(
    pools: Sequence[PoolSize], near: tuple[Machines, ...], busy: Sequence[int], survive: Survival
) -> Iterator[tuple[Machines, ...]]:
    """Yield ways to divide the machines of which both pools may have only some, one of them the cheapest."""
    few = [item for item in near[0] if item.most is not None and item in near[1]]
    orders = [
        pool.order(machines, count, survive)
        for pool, machines, count in zip(pools, near, busy, strict=True)
    ]  # fmt: skip
    if not few or None in orders:
        yield near
        return
    taken = [{line.machine: line.count for line in order.lines} for order in orders if order is not None]
    most = [item.most or 0 for item in few]
    first, last = ([of.get(item, 0) for item in few] for of in taken)
    if all(sum(counts) <= limit for *counts, limit in zip(first, last, most, strict=True)):
        yield _divided(near, few, [limit - count for limit, count in zip(most, last, strict=True)])
        return
    each = max(2, int(MOST_DIVISIONS ** (1.0 / len(few))))
    spaced = [sorted({*range(0, limit + 1, ceil((limit + 1) / each)), limit}) for limit in most]
    tried = {tuple(counts) for counts in product(*spaced)}
    tried |= {tuple(first), tuple(limit - count for limit, count in zip(most, last, strict=True))}
    for counts in sorted(tried):
        yield _divided(near, few, counts)


def _in_shared_lots(
    pools: Sequence[PoolSize], machines: tuple[Machines, ...], busy: Sequence[int], survive: Survival
) -> tuple[Machines, ...]:
    """Return the machines of each pool where both may stand in one lot: that of the second pool begins where the first one ends."""
    in_lots = [{item.sku for item in part if item.sold_by > 1} for part in machines]
    shared = set.intersection(*in_lots)
    if not shared:
        return machines
    first = tuple(replace(item, begun=None) if item.sku in shared else item for item in machines[0])
    order, other = pools[0].order(first, busy[0], survive), pools[1].order(machines[1], busy[1], survive)
    ordered = {line.machine.sku: line.count for line in order.lines} if order else {}
    ends = shared & {line.machine.sku for line in other.lines} if other else set()
    return (
        tuple(replace(item, begun=None) if item.sku in ends else item for item in machines[0]),
        tuple(
            replace(item, begun=ordered.get(item.sku, 0) % item.sold_by) if item.sku in ends else item
            for item in machines[1]
        ),
    )


def _divided(
    near: tuple[Machines, ...], few: Sequence[Machine], counts: Sequence[int]
) -> tuple[Machines, ...]:
    """Return the machines of each pool if the first one may have so many of those that are few."""
    of_first = dict(zip(few, counts, strict=True))
    first = tuple(replace(item, most=of_first.get(item, item.most)) for item in near[0])
    rest = {item: (item.most or 0) - count for item, count in of_first.items()}
    return first, tuple(replace(item, most=rest.get(item, item.most)) for item in near[1])
