"""How likely the replicas of a plan are in service over a month: machines fail and are repaired independently."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, lgamma, log, log1p, sqrt
from typing import TYPE_CHECKING

from capplan.money.order import Failures, OrderLine, units_of

if TYPE_CHECKING:
    from capplan.fleet.group import Group

SECONDS_PER_MONTH = 730.0 * 3600.0
"""Seconds of an average month."""


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines that fail independently, each with as many replicas as another."""

    count: int
    replicas: int
    """Replicas that one of them holds."""
    failures_per_s: float
    """Failures of one of them."""


@dataclass(frozen=True, slots=True)
class Availability:
    """How likely enough replicas are in service."""

    time_fraction: float
    """Part of the time in which enough replicas for the peak are in service."""
    month_probability: float
    """Probability of a month in which that is so at all times."""
    failures_per_month: float
    """Failures of machines."""


DEVIATIONS = 40.0
"""Standard deviations beyond which no number of lost replicas is likely."""
NEGLIGIBLE = 1e-18
"""Probability that changes no sum of others."""


def _down_probability(failures_per_s: float, repair_s: float) -> float:
    """Return the part of the time in which a machine is down.

        q = f r / (1 + f r)

    Returns
    -------
    [-]
        q: f failures per second, r the mean time of a repair
    """
    return failures_per_s * repair_s / (1.0 + failures_per_s * repair_s)


def _binomial(count: int, number: int, q: float) -> float:
    """Return the probability that so many of some machines are down."""
    if number > count or number < 0:
        return 0.0
    if q == 0.0:
        return 1.0 if number == 0 else 0.0
    ways = lgamma(count + 1) - lgamma(number + 1) - lgamma(count - number + 1)
    return exp(ways + number * log(q) + (count - number) * log1p(-q))


def _lost(machines: Sequence[tuple[int, int, float]], most: int) -> list[float]:
    """Return the probability of each number of lost replicas up to `most`; machines are (count, replicas of each, q)."""
    found = [1.0] + [0.0] * most
    for count, each, q in machines:
        ways = []
        for number in range(min(count, most // each) + 1):
            ways.append(_binomial(count, number, q))
            if number > count * q and ways[-1] < NEGLIGIBLE:
                break
        found = [
            sum(ways[number] * found[lost - number * each] for number in range(min(len(ways) - 1, lost // each) + 1))
            for lost in range(most + 1)
        ]  # fmt: skip
    return found


def availability(machines: Sequence[Machines], busy: int, repair_s: float) -> Availability:
    """Return how likely so many replicas are in service, if machines fail and are repaired independently.

        A = sum_{l <= s} P(l)      nu = sum_i n_i f_i (1 - q_i) P_i(s - c_i < l <= s)      M = A e^{-nu T / A}

    Parameters
    ----------
    machines : n_i machines of c_i replicas that fail f_i times a second
    busy : [-]
        replicas that carry the peak; s is the number beyond them
    repair_s : [s]
        mean time of a repair

    Returns
    -------
    Availability
        A: P is the distribution of lost replicas, of k machines out of n by a binomial. M: nu is the rate at which a failure leaves
        too few, P_i the distribution without one machine of the kind i, T a month. Failures of racks, zones and networks are not in it.

    Examples
    --------
    Seven machines of one replica, of which six are needed, each down a hundredth of the time: 0.99^7 + 7 x 0.01 x 0.99^6.

    >>> round(availability([Machines(7, 1, 1.0 / 99.0)], 6, 1.0).time_fraction, 6)
    0.997969

    References
    ----------
    Barlow and Heidtmann 1984, "Computing k-out-of-n system reliability", IEEE Transactions on Reliability R-33, 322-323,
    doi:10.1109/TR.1984.5221843. Rausand and Hoyland 2004, "System reliability theory", section 8.7.
    """
    kinds = [
        (kind.count, kind.replicas, _down_probability(kind.failures_per_s, repair_s)) for kind in machines
    ]
    usual = sum(count * each * q for count, each, q in kinds)
    spread = sqrt(sum(count * each**2 * q * (1.0 - q) for count, each, q in kinds))
    likely = ceil(usual + DEVIATIONS * (spread + max(each for _, each, _ in kinds)))
    spare = min(sum(kind.count * kind.replicas for kind in machines) - busy, likely)
    fraction = sum(_lost(kinds, spare))
    entries = 0.0
    for place, kind in enumerate(machines):
        count, each, q = kinds[place]
        others = _lost([*kinds[:place], (count - 1, each, q), *kinds[place + 1 :]], spare)
        entries += count * kind.failures_per_s * (1.0 - q) * sum(others[max(spare - each + 1, 0) :])
    fraction = min(fraction, 1.0)
    return Availability(
        fraction,
        fraction * exp(-entries * SECONDS_PER_MONTH / fraction) if fraction > 0.0 else 0.0,
        sum(kind.count * kind.failures_per_s for kind in machines) * SECONDS_PER_MONTH,
    )


@dataclass(frozen=True, slots=True)
class OneMore:
    """What one machine more buys."""

    machine: str
    usd_per_hour: float
    availability: Availability


@dataclass(frozen=True, slots=True)
class PlanAvailability:
    """How likely enough replicas of each group of a plan are in service."""

    now: Availability
    more: OneMore | None
    """One machine more in the group that is short most often; None if the order of that group has no price."""


def plan_availability(groups: Sequence["Group"]) -> PlanAvailability | None:
    """Return how likely enough replicas of each group are in service at any time and over a month; None without an order."""
    found = []
    for group in groups:
        machines = _machines(group)
        if not machines:
            return None
        found.append(availability(machines, group.busy_replicas, group.survive.failures.repair_s))
    short = min(range(len(found)), key=lambda place: found[place].time_fraction)
    more = _one_more(groups[short])
    if more is None:
        return PlanAvailability(_together(found), None)
    others = [*found[:short], more.availability, *found[short + 1 :]]
    return PlanAvailability(_together(found), replace(more, availability=_together(others)))


def _together(groups: Sequence[Availability]) -> Availability:
    fraction, month, failures = 1.0, 1.0, 0.0
    for group in groups:
        fraction, month = fraction * group.time_fraction, month * group.month_probability
        failures += group.failures_per_month
    return Availability(fraction, month, failures)


def _machines(group: "Group") -> list[Machines]:
    """Return the machines of a group with the replicas that run on them; empty without an order."""
    order = group.order
    return [
        Machines(
            item.machines // item.span,
            item.replicas,
            _unit_failures_per_s(
                item.machine.sku, _whole_gpus(group, item.machine.gpus), item.span, group.survive.failures
            ),
        )
        for item in (order.placed() if order else ())
        if item.replicas
    ]


def _whole_gpus(group: "Group", gpus: int) -> int:
    """Return the GPUs of a machine that has so many devices, of which slices are parts."""
    cut = group.layout.device.partition
    return gpus if cut is None else ceil(gpus / cut.per_device)


def _unit_failures_per_s(sku: str, gpus: int, span: int, failures: Failures) -> float:
    """Return how often one of the machines of a replica fails; GPUs by the piece of a replica are in one machine."""
    return failures.per_s(gpus * span) if not sku and gpus == 1 else span * failures.per_s(gpus)


def _one_more(group: "Group") -> OneMore | None:
    """Return what one machine more of the kind that a group has most of would buy, full of replicas."""
    order, price = group.order, group.price
    lines: Sequence[OrderLine] = (
        [line for line in order.lines if line.machine.usd_per_hour and line.machine.sold_by == 1]
        if order
        else []
    )
    if not lines or price is None:
        return None
    line = max(lines, key=lambda item: item.count)
    _, each, span = units_of(line)
    machine, failures = line.machine, group.survive.failures
    rate = _unit_failures_per_s(machine.sku, _whole_gpus(group, machine.gpus), span, failures)
    gpus = span * machine.gpus
    usd = span * machine.usd_per_hour + (price.energy_usd_per_hour or 0.0) * gpus
    more = availability([*_machines(group), Machines(1, each, rate)], group.busy_replicas, failures.repair_s)
    name = machine.sku or f"{gpus} x {group.layout.device.name}"
    return OneMore(f"{span} x {name}" if machine.sku and span > 1 else name, usd, more)
