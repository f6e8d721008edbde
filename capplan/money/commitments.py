"""The cheapest mix of commitments for a load curve (base load on long terms, peaks on demand), and what is paid for it in which month."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from capplan.money.order import OWN, Machine
from capplan.money.price import PriceRecord, usd_per_month
from capplan.numbers import Array, Counts, Number

HOURS_PER_YEAR = 8760.0


def annuity_usd_per_hour(capex_usd: Number, life_years: Number, interest_fraction: Number = 0.0) -> Number:
    """Return the hourly cost of a purchase that is paid off in equal parts over its life.

        a = C i / (1 - (1 + i)^-n) / 8760;   without interest C / n / 8760

    Parameters
    ----------
    capex_usd : [$]
        C, of the device with its share of server, network and installation.
    life_years : [a]
        n, above zero; nothing is left of its value then.
    interest_fraction : [-]
        i, of a year.

    Returns
    -------
    [$/h]
        a, at all hours of the year.

    Examples
    --------
    $35,040 over four years without interest:

    >>> float(annuity_usd_per_hour(35_040.0, 4.0))
    1.0

    References
    ----------
    Brealey, Myers, Allen, "Principles of Corporate Finance", chapter 2, equivalent annual cost.
    """
    interest = np.maximum(interest_fraction, 1e-12)
    factor = np.where(
        np.asarray(interest_fraction) > 0.0,
        interest / -np.expm1(-life_years * np.log1p(interest)),
        1.0 / life_years,
    )
    return capex_usd * factor / HOURS_PER_YEAR


def falling_ratios(decline_fraction: float, months: int) -> Array:
    """Return the prices of successive months over the price of the first, falling by the same part each year.

        k_m = (1 - d)^((m - 1) / 12),   m = 1 ... n

    Parameters
    ----------
    decline_fraction : [-]
        d, of a year
    months : [months]
        n

    Returns
    -------
    [-]
        k

    Examples
    --------
    Three quarters of the price are gone after two years of 50%:

    >>> float(falling_ratios(0.5, 25)[24])
    0.25

    References
    ----------
    A geometric series; Brealey, Myers, Allen, "Principles of Corporate Finance", chapter 2, a growing annuity.
    """
    return np.asarray((1.0 - decline_fraction) ** (np.arange(months) / 12.0))


def breakeven_decline(
    term_usd_per_hour: float, rent_usd_per_hour: float, used_fraction: float, months: int
) -> float | None:
    """Return how fast the price on demand has to fall for a term to cost as much as renting by the hour.

        u l sum(k) = T c

    Parameters
    ----------
    term_usd_per_hour : [$/h]
        c, of one device at all hours, with the cost of capital
    rent_usd_per_hour : [$/h]
        l, price on demand of the first month
    used_fraction : [-]
        u, share of the hours in which it would be rented
    months : [months]
        T, of the term; k are its falling_ratios

    Returns
    -------
    [-]
        d, of a year: a term pays if prices fall by less. Zero: the term costs more at the prices of today already; None: it costs less than one month of rent

    Examples
    --------
    Half the price for three years pays if prices on demand fall by less than 42% a year:

    >>> round(breakeven_decline(1.0, 2.0, 1.0, 36), 2)
    0.42

    References
    ----------
    A sum of a geometric series; Brealey, Myers, Allen, "Principles of Corporate Finance", chapter 2, a growing annuity without interest.
    """
    needed = months * term_usd_per_hour / (used_fraction * rent_usd_per_hour)
    if needed >= months:
        return 0.0
    if needed <= 1.0:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if falling_ratios(middle, months).sum() > needed else (low, middle)
    return low


def tied_up_ratio(upfront_fraction: float, term_months: float, interest_fraction: float) -> float:
    """Return what a term costs with interest on its upfront part over what it costs without.

        x = 1 + a i (T + 1) / 24

    In month k of T the share (T - k + 1) / T of the upfront part is tied up, on average (T + 1) / (2 T).

    Parameters
    ----------
    upfront_fraction : [-]
        a, share of the whole term that is paid at its start.
    term_months : [months]
        T.
    interest_fraction : [-]
        i, of a year, a twelfth of it each month.

    Returns
    -------
    [-]
        x, one without interest or without an upfront part.

    Examples
    --------
    A year paid upfront at 12%: one percent a month on six and a half months of its cost, in a year of twelve:

    >>> round(tied_up_ratio(1.0, 12.0, 0.12), 6)
    1.065

    References
    ----------
    Brealey, Myers, Allen, "Principles of Corporate Finance", chapter 2: the opportunity cost of capital, as simple interest.
    """
    return 1.0 + upfront_fraction * interest_fraction * (term_months + 1.0) / 24.0


@dataclass(frozen=True, slots=True)
class PaidTerm:
    """How a committed device is paid for."""

    months: float
    """Term of a reservation, or life of a purchase."""
    upfront_usd: float
    """Price of one device at the start of the term."""
    running_usd_per_month: float
    """Monthly cost of one device, whether it is used or not."""
    residual_usd: float = 0.0
    """Residual value of one device at the end of its life."""
    interest_fraction: float = 0.0
    """Cost of capital of a year, on what is paid upfront and not used up yet."""
    bought: bool = False
    """Whether the device is owned: nothing is owed after the horizon, and it is worth something."""

    @property
    def amortised_usd_per_month(self) -> float:
        """Return the cost of a month of one device, its upfront part spread evenly over the term, without the cost of capital.

            a = (u - v) / T + r

        Returns
        -------
        [$/month]
            a: upfront u less the residual value v, over a term of T months, and the running cost r
        """
        return (self.upfront_usd - self.residual_usd) / self.months + self.running_usd_per_month

    def at(self, price_ratio: float) -> "PaidTerm":
        """Return a term that begins at another price of its device; electricity and upkeep of what is bought stay."""
        return replace(
            self,
            upfront_usd=self.upfront_usd * price_ratio,
            running_usd_per_month=self.running_usd_per_month * (1.0 if self.bought else price_ratio),
            residual_usd=self.residual_usd * price_ratio,
        )


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to pay for a device."""

    name: str
    """on-demand, reserved-1y, reserved-3y, spot, owned if it is bought, or own if it is there already."""
    fixed_usd_per_hour: float
    """Price at all hours, used or not."""
    used_usd_per_hour: float
    """Price while it runs."""
    low_ratio: float = 1.0
    """Lowest offer over the likely price."""
    high_ratio: float = 1.0
    """Highest offer over the likely price."""
    most_fraction: float = 1.0
    """Share of the replicas of the peak that may be paid for in this way."""
    rented_ratio: float = 1.0
    """GPUs that are rented for each one in use; above one for spot, which providers interrupt."""
    origin: str = ""
    """Origin of the price, in words."""
    list_usd_per_hour: float | None = None
    """Price on demand of the same device, without a discount of one's own; None: none is known."""
    discounted_ratio: float = 1.0
    """Price on demand with that discount over the one without it."""
    term: PaidTerm | None = None
    """How the price at all hours is paid over a term; None: as it is used."""

    def ratio_at(self, side: Literal["low", "high"]) -> float:
        """Return the lowest or the highest offer over the likely price."""
        return self.low_ratio if side == "low" else self.high_ratio

    def usd_per_hour(self, used_fraction: Number) -> Number:
        """Return the mean cost of a device that is needed for this share of the time."""
        return self.fixed_usd_per_hour + self.used_usd_per_hour * used_fraction

    @property
    def contracted_usd_per_hour(self) -> float | None:
        """Price on demand of the same device, with a discount of one's own; None: none is known."""
        return None if self.list_usd_per_hour is None else self.list_usd_per_hour * self.discounted_ratio

    def breakeven_decline(self, used_fraction: float, months: int) -> float | None:
        """Return the yearly fall of the price on demand at which a term costs as much as renting by the hour; None without such a price, or if no fall is enough."""
        rent = self.contracted_usd_per_hour
        if not rent or not used_fraction:
            return None
        return breakeven_decline(float(self.usd_per_hour(used_fraction)), rent, used_fraction, months)


@dataclass(frozen=True, slots=True)
class MixedPart:
    """The replicas, or the machines, of a mix that are paid for in one way."""

    offer: Offer
    units: int
    """Replicas; or machines, if those of the order hold more than the replicas."""
    used_fraction: float
    """Mean share of the time in which they run."""
    usd_per_hour: float
    """Cost of all devices of these units, mean over the time."""
    devices: int
    """Devices of one unit."""
    group: int = 0
    """Group of the plan: 0 for all replicas, or for prefill where decode is 1."""
    of_replicas: bool = True
    """Whether the units are replicas."""
    machine: Machine | None = None
    """One of its machines; None for GPUs by the piece."""

    @property
    def sku(self) -> str | None:
        """Name of the machine; None for GPUs by the piece."""
        return self.machine.sku or None if self.machine else None

    @property
    def gpus(self) -> int:
        """GPUs of all units."""
        return self.units * self.devices

    @property
    def paid_gpus(self) -> float:
        """Return the GPUs that are paid for, mean over the time.

            p = g r;   g u r if they are paid for only while they run

        Returns
        -------
        [-]
            p: GPUs g of all units, the share u of the time in which they run, and r GPUs rented for each one in use
        """
        offer = self.offer
        while_in_use = offer.used_usd_per_hour > 0.0 and not offer.fixed_usd_per_hour
        return self.gpus * offer.rented_ratio * (self.used_fraction if while_in_use else 1.0)

    @property
    def replicas(self) -> int | None:
        """Replicas that are paid for; None if machines are counted."""
        return self.units if self.of_replicas else None


@dataclass(frozen=True, slots=True)
class GroupUse:
    """Replicas of one layout, or the machines of one kind that hold them, and the ways to pay for them."""

    used: Array
    """Share of the time in which each of them runs."""
    offers: Sequence[Offer]
    """Ways to pay: at least one that may carry every replica; at most one may not."""
    devices: int
    """Devices of one of them."""
    of_replicas: bool = True
    """Whether replicas are counted, not machines."""
    group: int = 0
    """Place of their group in the plan."""
    machine: Machine | None = None
    """One of its machines; None for GPUs by the piece."""
    running: Counts | None = None
    """How many of them run in each window; None where only their shares of the time are known."""

    @property
    def are_there(self) -> bool:
        """Whether the machines are there already: they cost nothing more, however they are used."""
        return all(offer.name == OWN for offer in self.offers)


def use_fractions(paid: Counts) -> Array:
    """Return the load duration curve by replica: the share of the time in which at least j replicas run.

        u_j = mean(n_i >= j),   j = 1 ... max(n)

    Parameters
    ----------
    paid : [-]
        n, replicas in windows of equal length

    Returns
    -------
    [-]
        u, never rising

    Examples
    --------
    >>> use_fractions(np.array([1, 2, 4, 1]))
    array([1.  , 0.5 , 0.25, 0.25])

    References
    ----------
    Stoft 2002, "Power System Economics", chapter 1-5, load-duration curves and screening curves.
    """
    return np.array([float(np.mean(paid >= j)) for j in range(1, int(paid.max()) + 1)])


def cheapest_mix(group: GroupUse) -> tuple[MixedPart, ...]:
    """Return the cheapest way to pay for every replica of a group, at the likely prices.

    The j-th replica runs for the share u_j of the time, whatever the others are paid by, so each takes the offer of least
    f + v u_j: the screening curves of power plants. Where an offer may carry only a part of the replicas, those that save
    most on it take it, which is the best choice because savings do not depend on each other.

    Parameters
    ----------
    group : share u of the time in which each replica runs, and the offers f, v

    Returns
    -------
    parts, in the order of the offers, those without replicas left out
    """
    used, offers = group.used, group.offers
    free = [offer for offer in offers if offer.most_fraction >= 1.0]
    limited = [offer for offer in offers if offer.most_fraction < 1.0]
    assert free
    assert len(limited) <= 1
    costs = np.array([offer.usd_per_hour(used) for offer in free])
    taken = costs.argmin(axis=0)
    best = costs.min(axis=0)
    chosen: list[Offer] = [free[index] for index in taken]
    for offer in limited:
        saved = best - np.asarray(offer.usd_per_hour(used))
        most = int(offer.most_fraction * used.size + 1e-9)
        for place in np.argsort(-saved, kind="stable")[:most]:
            if saved[place] > 0.0:
                chosen[place] = offer
    parts = []
    for offer in offers:
        mine = used[np.array([other is offer for other in chosen])]
        if mine.size:
            usd = float(np.sum(offer.usd_per_hour(mine))) * group.devices
            part = MixedPart(offer, mine.size, float(mine.mean()), usd, group.devices)
            parts.append(
                replace(part, group=group.group, of_replicas=group.of_replicas, machine=group.machine)
            )
    return tuple(parts)


def pooled_use(uses: Sequence[GroupUse]) -> GroupUse:
    """Return what several services use of one kind of machine, or of one GPU by the piece, as if it were of one.

        n_t = sum_i n_i,t s_i

    Parameters
    ----------
    uses : n_i in each window t, a shorter time repeated; s machines in each unit, or GPUs; all with the same offers

    Returns
    -------
    GroupUse of single machines, or of single GPUs
    """
    first = uses[0]
    each = first.machine.gpus if first.machine and first.machine.sku else 1
    longest = max(use.running.size for use in uses if use.running is not None)
    total = np.zeros(longest, dtype=np.int64)
    for use in uses:
        assert use.running is not None
        total += np.resize(use.running, longest) * (use.devices // each)
    return replace(first, used=use_fractions(total), devices=each, of_replicas=False, group=0, running=total)


def least_usd_per_hour(replicas: Number, offers: Sequence[Offer], devices: int) -> Number:
    """Return a lower bound on the cost of every mix of replicas that run in the mean, whenever they do.

        c >= g n min(f + v)

    What a replica costs is concave in the share u of the time in which it runs, so it is at least u times
    what it costs at all hours; the shares add up to n.

    Parameters
    ----------
    replicas : [-]
        n, mean over the time, spares included
    offers : f at all hours and v while in use, at least one
    devices : [-]
        g, of one replica

    Returns
    -------
    [$/h]
        c, without people

    Examples
    --------
    Three replicas in the mean at 2 $ on demand or 1 $ reserved:

    >>> offers = [Offer("on-demand", 0.0, 2.0), Offer("reserved-1y", 1.0, 0.0)]
    >>> least_usd_per_hour(3.0, offers, 1)
    3.0

    References
    ----------
    Stoft 2002, "Power System Economics", chapter 1-5: the screening curve is the lower envelope of straight lines.
    """
    return devices * replicas * min(offer.fixed_usd_per_hour + offer.used_usd_per_hour for offer in offers)


@dataclass(frozen=True, slots=True)
class Mix:
    """The cheapest mix for one plan, and what each single commitment would cost."""

    parts: tuple[MixedPart, ...]
    pure: tuple[tuple[Offer, float], ...]
    """Every offer with its cost per hour if it paid for all replicas by itself; those that may not are left out."""
    people_usd_per_hour: float = 0.0
    """Cost of the people who run owned devices."""

    @property
    def usd_per_hour(self) -> float:
        """Mean cost at the likely prices."""
        return sum(part.usd_per_hour for part in self.parts) + self.people_usd_per_hour

    def paid_gpus(self, group: int) -> float:
        """Return the GPUs of a group of the plan that are paid for, mean over the time."""
        return sum(part.paid_gpus for part in self.parts if part.group == group)

    def usd_per_hour_at(self, side: Literal["low", "high"]) -> float:
        """Return the mean cost of the same mix at the `low` or `high` prices of its offers."""
        return (
            sum(part.usd_per_hour * part.offer.ratio_at(side) for part in self.parts)
            + self.people_usd_per_hour
        )


def mix_of(groups: Sequence[GroupUse], owned_people_usd_per_hour: float = 0.0) -> Mix:
    """Return the cheapest mix; people who run owned devices are paid as soon as there is one.

    Parameters
    ----------
    groups : of a plan; what one of them is paid by does not depend on the others, but for those people
    owned_people_usd_per_hour : [$/h]
        in all, whatever the number of owned devices
    """
    pure = _pure(groups, owned_people_usd_per_hour)
    parts = tuple(part for group in groups for part in cheapest_mix(group))
    if not owned_people_usd_per_hour or all(part.offer.name != "owned" for part in parts):
        return Mix(parts, pure)
    rented = [
        replace(group, offers=[offer for offer in group.offers if offer.name != "owned"]) for group in groups
    ]
    unmanned = tuple(part for group in rented for part in cheapest_mix(group))
    manned, without = Mix(parts, pure, owned_people_usd_per_hour), Mix(unmanned, pure)
    return min(manned, without, key=lambda mix: mix.usd_per_hour)


def _pure(groups: Sequence[GroupUse], people_usd_per_hour: float) -> tuple[tuple[Offer, float], ...]:
    """Return the cost of each way to pay that may carry every replica of all groups, next to what is there already."""
    paid = [group for group in groups if not group.are_there]
    free = [{offer.name: offer for offer in group.offers if offer.most_fraction >= 1.0} for group in paid]
    pure = []
    for name, first in free[0].items() if free else ():
        if not all(name in offers for offers in free):
            continue
        costs = [
            (offers[name], float(np.sum(offers[name].usd_per_hour(group.used))) * group.devices)
            for offers, group in zip(free, paid, strict=True)
        ]
        usd = sum(cost for _, cost in costs)
        low = sum(offer.low_ratio * cost for offer, cost in costs) / usd if usd else first.low_ratio
        high = sum(offer.high_ratio * cost for offer, cost in costs) / usd if usd else first.high_ratio
        people = people_usd_per_hour if name == "owned" else 0.0
        pure.append((replace(first, low_ratio=low, high_ratio=high), usd + people))
    return tuple(pure)


def named_offers(records: Sequence[PriceRecord]) -> str:
    """Return who offers a price and the day of the offer; empty for none.

    Examples
    --------
    >>> named_offers([PriceRecord("b200", "Lambda", "on-demand", 4.99, "list", "2026-08-21")])
    'Lambda, 2026-08-21'
    """
    return " and ".join(f"{record.provider}, {record.date or 'date unknown'}" for record in records)


@dataclass(frozen=True, slots=True)
class CashMonth:
    """What is paid in one month."""

    month: int
    """1 is the first."""
    upfront_usd: float
    """Upfront parts of reservations and purchases that begin in it."""
    running_usd: float
    """What runs: rents, monthly parts of reservations, power, upkeep and people."""
    residual_usd: float
    """Residual value of devices whose life ends with this month."""
    cost_usd: float
    """Cost of the month by the cheapest mix of its own load, upfront parts spread over their term, with interest."""
    interest_usd: float = 0.0
    """Cost of the capital that is tied up in upfront parts, which nobody bills."""

    @property
    def usd(self) -> float:
        """Return what is paid in the month.

            c = u + r - v

        Returns
        -------
        [$]
            c: upfront u, running r, less the residual value v
        """
        return self.upfront_usd + self.running_usd - self.residual_usd


@dataclass(frozen=True, slots=True)
class Cash:
    """Payments by month, and what is left when the horizon ends."""

    months: tuple[CashMonth, ...]
    bound_usd: float
    """Still owed for terms that go on."""
    bound_until_month: int | None
    """Last month of them; None where nothing is owed."""
    worth_usd: float
    """Value of bought devices at the end of the horizon, falling evenly to their residual value."""
    begun: tuple[Mapping[str, Any], ...] = ()
    """Every reservation, by the month in which it is first needed."""
    decline_fraction: float = 0.0
    """Yearly fall of the prices of GPUs."""

    @property
    def interest_usd(self) -> float:
        """Cost of capital of all months."""
        return sum(row.interest_usd for row in self.months)


@dataclass(frozen=True, slots=True)
class _Started:
    """Devices whose term begins in one month, at its price."""

    offer: Offer
    month: int
    devices: int
    term: PaidTerm
    price_ratio: float
    used_fraction: float

    @property
    def last_month(self) -> float:
        """Last month of the term."""
        return self.month + self.term.months - 1.0

    def is_active(self, month: int) -> bool:
        """Return whether the term was begun up to a month and goes on in it."""
        return self.month <= month <= self.last_month

    def interest_usd(self, month: int) -> float:
        """Return a month of interest on the part of an upfront payment that is left when the month begins."""
        left = 1.0 - (month - self.month) / self.term.months
        return self.devices * self.term.upfront_usd * left * self.term.interest_fraction / 12.0

    @property
    def cost_usd(self) -> float:
        """Cost of a month of one device, its upfront part spread over the term, with interest."""
        fixed = float(usd_per_month(self.offer.fixed_usd_per_hour))
        kept = self.term.running_usd_per_month if self.term.bought else 0.0
        return (fixed - kept) * self.price_ratio + kept

    def row(self, last: int, decline_fraction: float) -> dict[str, Any]:
        """Return the cost of the term, the part of it that is due after the last month, and the cost of renting the same hours."""
        term, months = self.term, round(self.term.months)
        rent = self.offer.contracted_usd_per_hour
        left = self.last_month - last
        fallen = float(falling_ratios(decline_fraction, months).sum()) * self.price_ratio
        hourly = None if rent is None else self.devices * self.used_fraction * rent
        return {
            "name": self.offer.name,
            "month": self.month,
            "until_month": int(last + left),
            "devices": self.devices,
            "usd": self.devices * (term.upfront_usd + term.months * term.running_usd_per_month),
            "usd_after_horizon": self.devices * max(left, 0.0) * term.running_usd_per_month,
            "rented_usd": None if hourly is None else float(usd_per_month(hourly)) * fallen,
            "breakeven_decline": self.offer.breakeven_decline(self.used_fraction, months),
        }


def cash_of(mixes: Sequence[Mix], decline_fraction: float = 0.0) -> Cash:
    """Return payments by month for the mixes of successive months, at prices that fall by a part each year.

        new_m = max(0, n_m - sum of what runs),   paid_m = k_m new_m u + sum k_s running_s r + k_m what is rented,   owed = sum k_s (T - age) r

    A term is paid to its end, and begun again at the price of that month if the devices are needed.

    Parameters
    ----------
    mixes : of month 1, 2, ..., each the cheapest at the prices of the first. An offer has a term T, upfront
    u and running cost r, or is paid as it is used
    decline_fraction : [-]
        of a year, whose falling_ratios k are those of rents, and of terms and purchases by the month s in which they begin

    Returns
    -------
    Cash; interest on what is paid upfront stands apart from what is paid
    """
    started: list[_Started] = []
    months = []
    ratios = falling_ratios(decline_fraction, len(mixes)).tolist()
    for number, (mix, ratio) in enumerate(zip(mixes, ratios, strict=True), start=1):
        needed = _needed(mix)
        for offer, parts in needed.items():
            running = sum(item.devices for item in started if item.offer == offer and item.is_active(number))
            gpus = sum(part.gpus for part in parts)
            if gpus > running and offer.term is not None:
                used = sum(part.gpus * part.used_fraction for part in parts) / gpus
                started.append(_Started(offer, number, gpus - running, offer.term.at(ratio), ratio, used))
        active = [item for item in started if item.is_active(number)]
        months.append(_paid_in(number, mix, ratio, active))
    return _ended(months, started, decline_fraction)


def _needed(mix: Mix) -> dict[Offer, list[MixedPart]]:
    """Return the parts of a mix that are paid for a term, by their offer."""
    needed: dict[Offer, list[MixedPart]] = {}
    for part in mix.parts:
        if part.offer.term is not None:
            needed.setdefault(part.offer, []).append(part)
    return needed


def _paid_in(number: int, mix: Mix, price_ratio: float, active: Sequence[_Started]) -> CashMonth:
    """Return what a month pays for its mix and for the terms that run in it."""
    running = float(usd_per_month(mix.people_usd_per_hour))
    for part in mix.parts:
        kept = part.offer.term is not None or part.offer.name == OWN
        fixed = part.gpus * part.offer.fixed_usd_per_hour if part.offer.term else 0.0
        running += float(usd_per_month(part.usd_per_hour - fixed)) * (1.0 if kept else price_ratio)
    cost = running
    for offer, parts in _needed(mix).items():
        left = sum(part.gpus for part in parts)
        for item in active:
            used = min(item.devices, left) if item.offer == offer else 0
            cost += used * item.cost_usd
            left -= used
    return CashMonth(
        number,
        sum((item.devices * item.term.upfront_usd for item in active if item.month == number), 0.0),
        running + sum(item.devices * item.term.running_usd_per_month for item in active),
        sum(item.devices * item.term.residual_usd for item in active if item.last_month == number),
        cost,
        sum(item.interest_usd(number) for item in active),
    )


def _ended(months: Sequence[CashMonth], started: Sequence[_Started], decline_fraction: float) -> Cash:
    """Return the payments with what is owed and worth after the last month."""
    last = len(months)
    begun = [item.row(last, decline_fraction) for item in started if not item.term.bought]
    owed = sum(row["usd_after_horizon"] for row in begun)
    until = max((row["until_month"] for row in begun), default=0)
    worth = 0.0
    for item in started:
        share = (item.last_month - last) / item.term.months
        if item.term.bought and share > 0.0:
            term = item.term
            worth += item.devices * (term.residual_usd + share * (term.upfront_usd - term.residual_usd))
    return Cash(tuple(months), owed, until if owed else None, worth, tuple(begun), decline_fraction)
