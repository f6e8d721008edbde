"""Machines as they are sold: the cheapest order that holds the replicas of a plan, and what of it stays idle."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf

from capplan.errors import InputError

OWN = "own"
"""Provider of machines that are there already, or that one buys."""
MOST_LIMITED = 20_000
"""Replicas up to which an order is looked for among machines of which only some may be ordered."""
MOST_REPLICAS = 10**9
"""Replicas above which an amount is said to pay for any number."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that can be ordered, or that is there already."""

    provider: str
    sku: str
    device: str
    gpus: int
    usd_per_hour: float
    """Price of the whole machine; zero for one that is there already."""
    region: str | None = None
    date: str | None = None
    source: str = ""
    most: int | None = None
    """Machines of this kind that may be ordered; None: any number."""


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Which machines may be ordered, and which are there already."""

    skus: tuple[str, ...] = ()
    """Machines that may be ordered; empty: any."""
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    own: tuple[Machine, ...] = ()
    """Machines that are there already, at no price."""
    most: tuple[tuple[str, int], ...] = ()
    """Machines of a sku that may be ordered, at most."""

    @property
    def named(self) -> bool:
        """Whether machines are taken from the catalogue, with their own prices."""
        return bool(self.skus or self.providers or self.regions)


@dataclass(frozen=True, slots=True)
class OrderLine:
    """Machines of one kind in an order."""

    machine: Machine
    count: int
    replicas: int
    """Replicas that these machines hold."""


@dataclass(frozen=True, slots=True)
class Order:
    """Machines that hold the replicas of one group."""

    lines: tuple[OrderLine, ...]

    @property
    def gpus(self) -> int:
        """GPUs of all machines."""
        return sum(line.count * line.machine.gpus for line in self.lines)

    @property
    def replicas(self) -> int:
        """Replicas that the machines hold, those beyond the ones asked for included."""
        return sum(line.replicas for line in self.lines)

    @property
    def usd_per_hour(self) -> float:
        """Return the price of all machines.

            h = sum_i n_i p_i

        Returns
        -------
        [$/h]
            h: n machines of each kind i at the price p
        """
        return sum(line.count * line.machine.usd_per_hour for line in self.lines)


def machines_per_replica(machine_gpus: int, replica_gpus: int, node_gpus: int) -> tuple[int, int]:
    """Return how many machines hold how many replicas: the smallest such group of machines.

    A replica that was predicted inside one server stays inside one machine. One that spans servers takes whole machines of at
    least the size of such a server, as its tensor-parallel groups stay within a link domain.

    Parameters
    ----------
    machine_gpus : [-]
        of the machine
    replica_gpus : [-]
        of one replica
    node_gpus : [-]
        of a server as the prediction assumes it

    Returns
    -------
    machines, replicas [-]
        replicas is 0 if the machine cannot hold any part of a replica

    Examples
    --------
    >>> machines_per_replica(8, 2, 8), machines_per_replica(8, 3, 8), machines_per_replica(8, 16, 8), machines_per_replica(4, 8, 8)
    ((1, 4), (1, 2), (2, 1), (1, 0))
    """
    if replica_gpus <= machine_gpus:
        return 1, machine_gpus // replica_gpus
    if machine_gpus < node_gpus:
        return 1, 0
    return ceil(replica_gpus / machine_gpus), 1


def cheapest_cover(
    units: int, capacities: Sequence[int], prices: Sequence[float], most: Sequence[int | None]
) -> tuple[int, ...] | None:
    """Return how many of each kind cover some units for the least money.

        min sum_i n_i p_i   with   sum_i n_i c_i >= u,   0 <= n_i <= m_i

    In a cheapest cover, kinds other than the one of the lowest price per unit are used fewer than c times together, c being the
    capacity of that kind: among c of them some hold a multiple of c units, which that kind covers for no more money. So all but
    the last c times the largest capacity of the units are covered by it.

    Parameters
    ----------
    units : [-]
        u, to be covered.
    capacities : [-]
        c_i, above zero.
    prices : [$/h]
        p_i, at least zero.
    most : [-]
        m_i; None: any number.

    Returns
    -------
    [-]
        n_i; None if all of them together do not cover the units.

    Examples
    --------
    Seven units, from machines of eight at $16 and of one at $2.50:

    >>> cheapest_cover(7, (8, 1), (16.0, 2.5), (None, None)), cheapest_cover(9, (8, 1), (16.0, 2.5), (None, None))
    ((1, 0), (1, 1))

    References
    ----------
    Martello and Toth 1990, "Knapsack Problems", section 3.6 (the unbounded knapsack problem, here as a covering problem).
    """
    counts = [0] * len(capacities)
    left = units
    for i, (capacity, price, limit) in enumerate(zip(capacities, prices, most, strict=True)):
        if price == 0.0 and left > 0:  # what is there already is filled first
            counts[i] = ceil(left / capacity) if limit is None else min(limit, ceil(left / capacity))
            left -= counts[i] * capacity
    paid = [i for i, price in enumerate(prices) if price > 0.0]
    if left <= 0:
        return tuple(counts)
    free = [i for i in paid if most[i] is None]
    if len(free) == len(paid) and free:
        best = min(free, key=lambda i: (prices[i] / capacities[i], -capacities[i]))
        kept = capacities[best] * max(capacities[i] for i in free)
        counts[best] += max(0, (left - kept) // capacities[best])
        left -= counts[best] * capacities[best]
    elif left > MOST_LIMITED:
        raise InputError(
            f"fleet.max_machines: {left:,} replicas are too many to look for an order with limits; leave the limits out"
        )
    rest = _covered(left, tuple((capacities[i], prices[i], most[i]) for i in paid))
    if rest is None:
        return None
    for i, count in zip(paid, rest, strict=True):
        counts[i] += count
    return tuple(counts)


def _covered(units: int, kinds: tuple[tuple[int, float, int | None], ...]) -> tuple[int, ...] | None:
    """Return the cheapest cover by a table over all numbers of units up to these."""
    least = [0.0] + [inf] * units
    chosen: list[tuple[int, ...] | None] = [(0,) * len(kinds)] + [None] * units
    for at, (capacity, price, limit) in enumerate(kinds):
        pieces = _pieces(limit, capacity, units)
        for piece in pieces:
            repeated = limit is None
            for need in range(1, units + 1) if repeated else range(units, 0, -1):
                rest = max(need - piece * capacity, 0)
                cost = least[rest] + piece * price
                if cost < least[need] - 1e-12:
                    known = chosen[rest]
                    assert known is not None
                    least[need] = cost
                    chosen[need] = (*known[:at], known[at] + piece, *known[at + 1 :])
    return chosen[units]


def _pieces(limit: int | None, capacity: int, units: int) -> list[int]:
    """Return numbers of machines whose sums are all numbers up to a limit: 1, 2, 4, ... and the rest."""
    if limit is None:
        return [1]
    left, pieces, piece = min(limit, ceil(units / capacity)), [], 1
    while left > 0:
        pieces.append(min(piece, left))
        left -= pieces[-1]
        piece *= 2
    return pieces


@lru_cache(maxsize=100_000)
def order_of(machines: tuple[Machine, ...], replica_gpus: int, node_gpus: int, replicas: int) -> Order | None:
    """Return the cheapest order of machines that hold some replicas.

    Parameters
    ----------
    machines : of one device, as they are sold
    replica_gpus : [-]
        GPUs of one replica
    node_gpus : [-]
        GPUs of a server as the prediction assumes it
    replicas : [-]
        that the machines have to hold, spares included

    Returns
    -------
    Order; None if no machine holds such a replica, or if there are too few of them
    """
    fits = [(machine, *machines_per_replica(machine.gpus, replica_gpus, node_gpus)) for machine in machines]
    able = [(machine, group, held) for machine, group, held in fits if held]
    if not able:
        return None
    counts = cheapest_cover(
        replicas,
        [held for _, _, held in able],
        [group * machine.usd_per_hour for machine, group, _ in able],
        [None if machine.most is None else machine.most // group for machine, group, _ in able],
    )
    if counts is None:
        return None
    return Order(
        tuple(
            OrderLine(machine, count * group, count * held)
            for (machine, group, held), count in zip(able, counts, strict=True)
            if count
        )
    )


def most_replicas(cost: Callable[[int], float], usd_per_hour: float) -> float:
    """Return how many replicas an amount pays for, by bisection: an order for more replicas costs no less."""
    if cost(1) > usd_per_hour:
        return 0.0
    held = 1
    while cost(2 * held) <= usd_per_hour:
        held *= 2
        if held > MOST_REPLICAS:
            return inf
    low, high = held, 2 * held
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) <= usd_per_hour else (low, middle)
    return float(low)
