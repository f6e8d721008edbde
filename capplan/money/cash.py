"""What is paid in which month, and what is owed and worth when the horizon ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capplan.money.commitments import Mix, MixedPart, Offer, PaidTerm, falling_ratios
from capplan.money.order import OWN
from capplan.money.price import usd_per_month


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
        """Return what the term costs and binds after the last month, and what renting the same hours would cost."""
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

    A term that was begun is paid to its end, also if a later month needs fewer devices. One that ends is begun again if its month
    needs the devices, at the price of that month.

    Parameters
    ----------
    mixes : of month 1, 2, ...; each is the cheapest for its own load at the prices of the first. An offer has a term T, upfront u and running cost r, or is paid as it is used
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
