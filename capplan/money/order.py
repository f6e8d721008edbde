"""Machines as they are sold: the cheapest order that holds the replicas of a plan, what of it stays idle, and what may fail of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf
from typing import Literal, TypeAlias

from capplan.errors import InputError

Domain: TypeAlias = Literal["replica", "machine", "rack", "zone"]
"""What fails as one."""
DOMAINS: tuple[Domain, ...] = ("replica", "machine", "rack", "zone")
MACHINES_PER_RACK = 4
"""Servers of eight GPUs that a rack of 40 kW powers and cools."""
ZONES = 3
"""Zones of a cloud region."""


BY_GPU, BY_SERVER, SERVER_DAYS = 268.0, 151.0, 2048.0 * 54.0
"""Interruptions caused by GPUs and their memory, all others, and the days of servers of eight H100 that they were counted on."""
REPAIR_S = 24.0 * 3600.0
"""Time until a failed machine is replaced; no provider publishes it."""


def failures_per_s(gpus: int) -> float:
    """Return how often a machine fails.

        f = (268 g / 8 + 151) / (2048 54 86400)

    Parameters
    ----------
    gpus : [-]
        g, of the machine; GPUs and their memory caused 268 of 419 interruptions of servers with eight of them

    Returns
    -------
    [1/s]
        f

    Examples
    --------
    A server of eight GPUs is interrupted every 264 days:

    >>> round(1.0 / failures_per_s(8) / 86400.0)
    264

    References
    ----------
    Llama Team 2024, "The Llama 3 herd of models", arXiv 2407.21783, table 5: 419 unexpected interruptions of 16,384 H100 in 54 days.
    """
    return (BY_GPU * gpus / 8.0 + BY_SERVER) / (SERVER_DAYS * 86400.0)


@dataclass(frozen=True, slots=True)
class Failures:
    """How often machines fail, and how long their repair takes."""

    time_to_failure_s: float | None = None
    """Mean time between two failures of one machine; None: by its GPUs, as published."""
    repair_s: float = REPAIR_S
    """Mean time until a failed machine is replaced."""

    def per_s(self, gpus: int) -> float:
        """Return the failures of one machine per second."""
        return failures_per_s(gpus) if self.time_to_failure_s is None else 1.0 / self.time_to_failure_s


@dataclass(frozen=True, slots=True)
class Survival:
    """Domains that may fail at once while the rest of the fleet carries the peak."""

    domain: Domain = "machine"
    count: int = 1
    machines_per_rack: int = MACHINES_PER_RACK
    zones: int = ZONES
    unavailable: int = 0
    """Replicas that a rolling update takes out at once, while the domains have failed."""
    failures: Failures = Failures()

    @property
    def lost_machines(self) -> int:
        """Machines that fail at once; zero if single replicas or whole zones fail."""
        return {
            "machine": self.count,
            "rack": self.count * self.machines_per_rack,
        }.get(self.domain, 0)

    def least_spares(self, busy: int) -> int:
        """Return the fewest replicas that any order loses with these domains.

        A machine that holds a replica holds at least one. Of z zones, in each of which as many replicas run as in another,
        n are lost and the others carry the peak:

            s = n + u                            replicas or machines
            s = n ceil((b + u) / (z - n)) + u    zones

        Parameters
        ----------
        busy : [-]
            b, replicas that carry the peak; an update takes u replicas out

        Returns
        -------
        [-]
            s

        Examples
        --------
        >>> Survival().least_spares(6), Survival("replica", 0).least_spares(6), Survival("zone", 1).least_spares(6)
        (1, 0, 3)
        """
        if self.domain == "zone":
            return self.count * ceil((busy + self.unavailable) / (self.zones - self.count)) + self.unavailable
        return (self.lost_machines or self.count) + self.unavailable

    def most_busy(self, replicas: int) -> int:
        """Return the most replicas that carry the peak among some, if a domain loses as few as possible; below 1 if there are too few.

        Examples
        --------
        >>> Survival("zone", 1).most_busy(9), Survival("zone", 1).most_busy(8), Survival().most_busy(1)
        (6, 5, 0)
        """
        busy = replicas - self.least_spares(1)
        while busy > 0 and busy + self.least_spares(busy) > replicas:
            busy -= max(1, (busy + self.least_spares(busy) - replicas) // (1 + self.count))
        return busy

    @property
    def key(self) -> str:
        """Key of the scenario that says so."""
        return "fleet.spare_replicas" if self.domain == "replica" else "fleet.survive"

    @property
    def what_fails(self) -> str:
        """What may fail, in words."""
        noun = self.domain if self.count == 1 else f"{self.domain}s"
        return f"{self.count} {noun}"


NO_LOSS = Survival("replica", 0)
"""Nothing may fail."""


OWN = "own"
"""Provider of machines that are there already, or that one buys."""
ANY_REGION = "any region"
"""Region of a price that holds in all regions of a provider, one of which is chosen when a machine is started."""
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
    """Its GPUs; of GPUs that are cut, the slices of all of them."""
    usd_per_hour: float
    """Price of the whole machine; zero for one that is there already."""
    region: str | None = None
    date: str | None = None
    source: str = ""
    most: int | None = None
    """Machines of this kind that may be ordered; None: any number."""
    list_usd_per_hour: float | None = None
    """Price of the list, if the price has a discount of one's own."""
    sold_by: int = 1
    """Machines that are sold at once, such as the 18 servers of a rack."""
    begun: int | None = 0
    """Machines of the last lot that the rest of the order takes already; None: the rest of the order fills the last lot."""

    @property
    def is_owned(self) -> bool:
        """Whether it is there already, or that one buys it: it is used, not ordered."""
        return self.provider == OWN

    @property
    def name(self) -> str:
        """Its name in words: the sku, or its GPUs.

        Examples
        --------
        >>> Machine("AWS", "p5.48xlarge", "h100-sxm", 8, 55.0).name, Machine(OWN, "8 x h100-sxm", "h100-sxm", 8, 0.0).name
        ('p5.48xlarge', '(8 x h100-sxm)')
        """
        gpus = self.device if self.gpus == 1 else f"({self.gpus} x {self.device})"
        return gpus if self.sku in ("", f"{self.gpus} x {self.device}") else self.sku

    @property
    def is_listed(self) -> bool:
        """Whether it can be ordered today: a price list states its name, and its price with the day."""
        return bool(self.sku and self.date)

    def in_lots(self, units: int, span: int) -> int:
        """Return how many machines are bought for some units of several machines each, none of which stands in two lots.

        A unit that is larger than a lot takes whole lots.

        Examples
        --------
        >>> rack = Machine("A", "node", "gpu", 4, 42.0, sold_by=18)
        >>> rack.in_lots(5, 1), rack.in_lots(19, 1), rack.in_lots(2, 10), rack.in_lots(2, 20)
        (18, 36, 36, 72)
        >>> first, rest = replace(rack, begun=None), replace(rack, begun=6)
        >>> first.in_lots(3, 2), rest.in_lots(6, 2), rest.in_lots(7, 2)
        (6, 12, 30)
        """
        each = self.sold_by // span
        if not each:
            return units * -(-span // self.sold_by) * self.sold_by
        if self.begun is None:
            return units // each * self.sold_by + units % each * span
        left = self.sold_by - self.begun if self.begun else 0
        return left + max(-(-(units - left // span) // each), 0) * self.sold_by

    @property
    def unstated(self) -> tuple[str, ...]:
        """What its price list does not say of it, in words; nothing for a machine that is there already."""
        known = (("machine", self.sku), ("region", self.region), ("day of the price", self.date))
        return () if self.is_owned else tuple(word for word, value in known if not value)


def owned_price_text(usd_per_hour: float, *, powered: bool) -> str:
    """Return what a machine that is there already is counted as.

    Parameters
    ----------
    usd_per_hour : [$/h]
        stated price of the machine, without electricity
    powered : whether its electricity is counted in addition

    Examples
    --------
    >>> owned_price_text(0.0, powered=False), owned_price_text(0.0, powered=True), owned_price_text(9.6, powered=False)
    ('counted as free', 'counted at its electricity', '$9.60 per hour each')
    """
    if usd_per_hour:
        return f"${usd_per_hour:,.2f} per hour each{' and its electricity' if powered else ''}"
    return "counted at its electricity" if powered else "counted as free"


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
    """Replicas that these machines can hold."""
    span: int = 1
    """Machines that one replica spans."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Machines of one kind that hold equally many replicas."""

    machine: Machine
    machines: int
    replicas: int
    """Replicas in each of them, or in each group of machines that one replica spans."""
    span: int = 1
    """Machines that one replica spans."""


@dataclass(frozen=True, slots=True)
class Order:
    """Machines that hold the replicas of one group."""

    lines: tuple[OrderLine, ...]
    busy: int
    """Replicas that carry the peak."""
    spares: int
    """Replicas that the domains hold which may fail."""

    @property
    def gpus(self) -> int:
        """GPUs of all machines."""
        return sum(line.count * line.machine.gpus for line in self.lines)

    @property
    def replicas(self) -> int:
        """Replicas that the machines can hold, including those beyond the ones planned."""
        return sum(line.replicas for line in self.lines)

    def placed(self) -> tuple[Placement, ...]:
        """Return how many replicas run on each machine: spread evenly, so that a failed machine takes as few as possible."""
        kinds = [(line, *units_of(line)) for line in self.lines]
        level = even_level([(each, units) for _, units, each, _ in kinds], self.busy + self.spares)
        full = sum(units * min(each, level) for _, units, each, _ in kinds)
        fewer = full - self.busy - self.spares
        found = []
        for line, units, each, span in reversed(kinds):
            less = min(fewer, units) if each >= level else 0
            fewer -= less
            for count, held in ((less, level - 1), (units - less, min(each, level))):
                if count:
                    found.append(Placement(line.machine, count * span, held, span))
        return tuple(reversed(found))

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

    The kind with the lowest price per unit, of capacity c, covers all units but c times the largest
    capacity: of any c other machines, some together hold a multiple of c units, which that kind covers at
    no higher cost.

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
    counts, left = [0] * len(capacities), units
    for i, (capacity, price) in enumerate(zip(capacities, prices, strict=True)):
        if price == 0.0 and left > 0:  # what is there already is filled first
            counts[i] = _at_most(most[i], ceil(left / capacity))
            left -= counts[i] * capacity
    paid = [i for i, price in enumerate(prices) if price > 0.0]
    free = [i for i in paid if most[i] is None]
    if len(free) == len(paid) and free:
        best = min(free, key=lambda i: (prices[i] / capacities[i], -capacities[i]))
        kept = capacities[best] * max(capacities[i] for i in free)
        counts[best] = max(0, (left - kept) // capacities[best])
        left -= counts[best] * capacities[best]
    elif left > MOST_LIMITED:
        raise InputError(
            f"fleet.max_machines: {left:,} replicas are too many to look for an order with limits; leave the limits out"
        )
    rest = _covered(max(left, 0), tuple((capacities[i], prices[i], most[i]) for i in paid))
    if rest is None:
        return None
    for i, count in zip(paid, rest, strict=True):
        counts[i] += count
    return tuple(counts)


def _at_most(limit: int | None, count: int) -> int:
    return count if limit is None else min(limit, count)


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


def units_of(line: OrderLine) -> tuple[int, int, int]:
    """Return how many units of machines a line has, how many replicas each can hold, and how many machines are in each."""
    if line.span == 1:
        return line.count, line.replicas // line.count, 1
    return line.replicas, 1, line.span


def even_level(capacities: Sequence[tuple[int, int]], replicas: int) -> int:
    """Return the fewest replicas in the fullest machine if some replicas are spread as evenly as the machines allow.

        min l   with   sum_i n_i min(c_i, l) >= r

    Parameters
    ----------
    capacities : [-]
        (c_i, n_i): replicas that a machine holds, machines.
    replicas : [-]
        r, at most those that all of them hold.

    Returns
    -------
    [-]
        l

    Examples
    --------
    >>> even_level([(4, 3)], 9), even_level([(4, 2), (1, 2)], 9)
    (3, 4)
    """
    level = 0
    while level < max(each for each, _ in capacities):
        level += 1
        if sum(count * min(each, level) for each, count in capacities) >= replicas:
            break
    return level


def _largest(capacities: Sequence[tuple[int, int]], machines: int) -> int:
    """Return how many replicas the fullest machines hold together."""
    held = 0
    for each, count in sorted(capacities, reverse=True):
        held += each * min(machines, count)
        machines -= min(machines, count)
    return held


def spares_in(capacities: Sequence[tuple[int, int]], busy: int, lost: int) -> int | None:
    """Return the fewest spare replicas with which some machines may fail, if replicas are spread; None if they hold too few.

    With at most l replicas in a machine, the m fullest hold L(l), and the others must hold the replicas that carry the peak:

        s = L(l)   with the least l for which   sum_i n_i min(c_i, l) - L(l) >= b

    Parameters
    ----------
    capacities : [-]
        (c_i, n_i): replicas that a machine holds, machines.
    busy : [-]
        b.
    lost : [-]
        m, machines that fail at once.

    Returns
    -------
    [-]
        s

    Examples
    --------
    Six busy replicas on three machines that hold four each: three in each, and one machine may fail.

    >>> spares_in([(4, 3)], 6, 1), spares_in([(4, 2)], 6, 1), spares_in([(1, 7)], 6, 1)
    (3, None, 1)
    """
    for level in range(1, max(each for each, _ in capacities) + 1):
        at_level = [(min(each, level), count) for each, count in capacities]
        held = _largest(at_level, lost)
        if sum(each * count for each, count in at_level) - held >= busy:
            return held
    return None


def surviving_cover(
    units: int, capacities: Sequence[int], prices: Sequence[float], most: Sequence[int | None], lost: int
) -> tuple[int, ...] | None:
    """Return how many of each kind cover some units for the least money although the largest machines are lost.

        min sum_i n_i p_i   with   sum_i n_i c_i - L_m(n) >= u,   0 <= n_i <= m_i

    L_m(n) is the capacity of the m largest machines. Let t be the capacity of the smallest of these and j the number of them that
    are larger. Machines of capacity t are interchangeable. So the cheapest cover is the cheapest j machines larger than t, and the
    cheapest cover of u + (m - j) t units by machines of capacity t at most.

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
    lost : [-]
        m, machines that are lost.

    Returns
    -------
    [-]
        n_i; None if there is no such cover.

    Examples
    --------
    Seven units from machines of eight at $16 and of one at $2.50, of which any may fail:

    >>> surviving_cover(7, (8, 1), (16.0, 2.5), (None, None), 1)
    (0, 8)
    """
    best: tuple[float, int, int, tuple[int, ...]] | None = None
    for size in sorted(set(capacities)):
        small = [i for i, capacity in enumerate(capacities) if capacity <= size]
        larger = [i for i, capacity in enumerate(capacities) if capacity > size]
        for over in range(lost + 1):
            taken = _cheapest(larger, prices, most, over)
            if taken is None:
                break
            sizes, usd, limits = zip(*((capacities[i], prices[i], most[i]) for i in small), strict=True)
            rest = cheapest_cover(units + (lost - over) * size, sizes, usd, limits)
            if rest is None:
                continue
            counts = [0] * len(capacities)
            for i, count in (*taken.items(), *zip(small, rest, strict=True)):
                counts[i] += count
            cost = sum(n * p for n, p in zip(counts, prices, strict=True))
            spares = spares_in([(c, n) for c, n in zip(capacities, counts, strict=True) if n], units, lost)
            if spares is not None:
                rank = (round(cost, 9), spares, sum(counts), tuple(counts))
                best = rank if best is None else min(best, rank)
    return None if best is None else best[3]


def _cheapest(
    kinds: Sequence[int], prices: Sequence[float], most: Sequence[int | None], count: int
) -> dict[int, int] | None:
    """Return the cheapest machines of some kinds: kind -> number; None if there are too few."""
    taken: dict[int, int] = {}
    for i in sorted(kinds, key=lambda kind: prices[kind]):
        taken[i] = _at_most(most[i], count)
        count -= taken[i]
    return None if count else taken


@lru_cache(maxsize=100_000)
def order_of(
    machines: tuple[Machine, ...],
    replica_gpus: int,
    node_gpus: int,
    busy: int,
    survive: Survival = NO_LOSS,
    energy_usd_per_gpu_hour: float = 0.0,
) -> Order | None:
    """Return the cheapest order of machines that hold some replicas, and still do when a part of them fails.

    Machines that are sold in lots are chosen by their own price and bought in whole lots, unless the others cost less without them.

    Parameters
    ----------
    machines : of one device, as they are sold
    replica_gpus : [-]
        GPUs of one replica
    node_gpus : [-]
        GPUs of a server as the prediction assumes it
    busy : [-]
        replicas that carry the peak
    survive : what may fail
    energy_usd_per_gpu_hour : [$/h]
        electricity of a GPU on top of the prices, idle GPUs of the machines included

    Returns
    -------
    Order; None if no machine holds such a replica, or if there are too few of them
    """
    size = (replica_gpus, node_gpus, busy, survive, energy_usd_per_gpu_hour)
    if survive.domain == "zone" and survive.count:
        able = any(machines_per_replica(item.gpus, replica_gpus, node_gpus)[1] for item in machines)
        return _zoned(machines, *size) if able else None
    found = _covering(machines, *size)
    single = tuple(machine for machine in machines if machine.sold_by == 1)
    if found is None or not 0 < len(single) < len(machines):
        return found
    without = _covering(single, *size)
    return without if without and without.usd_per_hour < found.usd_per_hour else found


def _covering(
    machines: tuple[Machine, ...],
    replica_gpus: int,
    node_gpus: int,
    busy: int,
    survive: Survival,
    energy_usd_per_gpu_hour: float,
) -> Order | None:
    """Return the cheapest order by the price of single machines, of which those that are sold in lots are bought in whole lots."""
    fits = [(machine, *machines_per_replica(machine.gpus, replica_gpus, node_gpus)) for machine in machines]
    able = [(machine, group, held) for machine, group, held in fits if held]
    if not able:
        return None
    needed, lost, capacities = busy + survive.unavailable, survive.lost_machines, [held for *_, held in able]
    prices = [
        group * (machine.usd_per_hour + energy_usd_per_gpu_hour * machine.gpus) for machine, group, _ in able
    ]
    most = [None if machine.most is None else machine.most // group for machine, group, _ in able]
    if lost:
        counts = surviving_cover(needed, capacities, prices, most, lost)
    else:
        counts = cheapest_cover(needed + survive.count, capacities, prices, most)
    if counts is None:
        return None
    held = [(capacity, count) for capacity, count in zip(capacities, counts, strict=True) if count]
    spares = spares_in(held, needed, lost) if lost else survive.count
    assert spares is not None
    lines = (
        OrderLine(machine, bought, count * held if group > 1 else bought * held, group)
        for (machine, group, held), count in zip(able, counts, strict=True)
        if count and (bought := machine.in_lots(count, group))
    )
    return Order(tuple(lines), busy, spares + survive.unavailable)


@lru_cache(maxsize=10_000)
def machines_at_median(
    machines: tuple[Machine, ...], replica_gpus: int, node_gpus: int
) -> tuple[Machine, ...]:
    """Return the machines of the provider whose cheapest machine for a replica has the lower median price, and those that are there already.

    Providers are compared by the price of the machine in which a replica costs least; those that sell no machine for a replica do not
    count. If none does, all machines are returned.

    Examples
    --------
    >>> sold = tuple(Machine(name, name, "gpu", 8, usd) for name, usd in (("A", 9.0), ("B", 16.0), ("C", 40.0)))
    >>> [machine.provider for machine in machines_at_median(sold, 2, 8)]
    ['B']
    """
    each: dict[str, float] = {}
    for machine in machines:
        group, held = machines_per_replica(machine.gpus, replica_gpus, node_gpus)
        if held and machine.provider != OWN:
            usd = group * machine.usd_per_hour / held
            each[machine.provider] = min(each.get(machine.provider, inf), usd)
    if not each:
        return machines
    ranked = sorted(each, key=lambda name: (each[name], name))
    seller = ranked[(len(ranked) - 1) // 2]
    return tuple(machine for machine in machines if machine.provider in (OWN, seller))


@lru_cache(maxsize=100_000)
def orders_by_provider(
    machines: tuple[Machine, ...],
    replica_gpus: int,
    node_gpus: int,
    busy: int,
    survive: Survival = NO_LOSS,
    energy_usd_per_gpu_hour: float = 0.0,
) -> tuple[Order, ...]:
    """Return the cheapest order of each provider for some replicas, cheapest first; providers without an order are left out.

    Machines that are there already are part of every order. Parameters are those of `order_of`.
    """
    sellers = sorted({machine.provider for machine in machines} - {OWN}) or [OWN]
    orders = (
        order_of(
            tuple(machine for machine in machines if machine.provider in (OWN, seller)),
            replica_gpus,
            node_gpus,
            busy,
            survive,
            energy_usd_per_gpu_hour,
        )
        for seller in sellers
    )
    return tuple(sorted((order for order in orders if order), key=lambda order: order.usd_per_hour))


def _zoned(
    machines: tuple[Machine, ...],
    replica_gpus: int,
    node_gpus: int,
    busy: int,
    survive: Survival,
    energy_usd_per_gpu_hour: float,
) -> Order | None:
    """Return the orders of all zones together: those that are left carry the peak, and the lost ones are as large as the largest.

    Machines of which only some may be had are divided over the zones, the larger zones first.
    """
    left = survive.zones - survive.count
    share, larger = divmod(busy + survive.unavailable, left)
    largest = share + (1 if larger else 0)
    lines: dict[Machine, OrderLine] = {}
    for zone in range(survive.zones):
        replicas = largest if zone < survive.count + (larger or left) else share
        if not replicas:
            continue
        here = tuple(
            item
            if item.most is None
            else replace(item, most=(item.most + survive.zones - 1 - zone) // survive.zones)
            for item in machines
        )
        order = order_of(here, replica_gpus, node_gpus, replicas, NO_LOSS, energy_usd_per_gpu_hour)
        if order is None:
            return None
        for line in order.lines:
            machine = replace(line.machine, most=None)
            known = lines.get(machine, OrderLine(machine, 0, 0))
            counts = known.count + line.count, known.replicas + line.replicas
            lines[machine] = OrderLine(machine, *counts, line.span)
    return Order(tuple(lines.values()), busy, survive.count * largest + survive.unavailable)


def most_busy_on(machines: Sequence[Machine], replica_gpus: int, node_gpus: int, survive: Survival) -> float:
    """Return the most replicas that can carry the peak on the machines that may be ordered; infinite if a machine that holds a replica has no limit."""
    capacities = []
    for machine in machines:
        group, held = machines_per_replica(machine.gpus, replica_gpus, node_gpus)
        if held and machine.most is None:
            return inf
        if held and machine.most is not None:
            capacities.append((held, machine.most // group))
    total = sum(each * count for each, count in capacities)
    if survive.lost_machines:
        return float(max(total - _largest(capacities, survive.lost_machines) - survive.unavailable, 0))
    return float(max(survive.most_busy(total), 0))


def racks_of(replica_gpus: Sequence[int], rack_gpus: int) -> int | None:
    """Return how many racks hold some replicas, each of which stays inside one rack; None if one is larger than a rack.

    The largest replica comes first, each into the first rack that has room for it: at most 11/9 of the fewest racks and four more.

    Parameters
    ----------
    replica_gpus : [-]
        GPUs of each replica
    rack_gpus : [-]
        GPUs of a rack

    Returns
    -------
    [-]
        racks

    Examples
    --------
    >>> racks_of([16] * 5, 72), racks_of([64, 8, 8], 72), racks_of([80], 72)
    (2, 2, None)

    References
    ----------
    Johnson 1973, "Near-optimal bin packing algorithms", MIT.
    """
    left: list[int] = []
    for gpus in sorted(replica_gpus, reverse=True):
        if gpus > rack_gpus:
            return None
        place = next((at for at, room in enumerate(left) if room >= gpus), None)
        if place is None:
            left.append(rack_gpus - gpus)
        else:
            left[place] -= gpus
    return len(left)


def most_busy_for(cost: Callable[[int], float], usd_per_hour: float) -> float:
    """Return how many busy replicas an amount pays for, by bisection: an order for more replicas costs no less."""
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
