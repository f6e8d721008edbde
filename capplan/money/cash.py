"""What is paid in which month: upfront parts, purchases, terms that outlast the horizon, and what bought devices are worth then."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from capplan.fleet.price import usd_per_month
from capplan.money.commitments import Mix, Offer


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
class BegunTerm:
    """Reservations that begin in the same month."""

    name: str
    month: int
    """The first."""
    until_month: int
    devices: int
    usd: float
    """Upfront and monthly parts of the whole term."""
    usd_after_horizon: float
    """Monthly parts that are due after the last month that is looked at."""


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
    begun: tuple[BegunTerm, ...] = ()
    """Every reservation, by the month in which it is first needed."""

    @property
    def interest_usd(self) -> float:
        """Cost of capital of all months."""
        return sum(row.interest_usd for row in self.months)


def tied_up_ratio(upfront_fraction: float, term_months: float, interest_fraction: float) -> float:
    """Return what a term costs with interest on its upfront part over what it costs without.

        x = 1 + a i (T + 1) / 24

    The upfront part is used up evenly, so in month k of T the share (T - k + 1) / T of it is tied up, on average (T + 1) / (2 T).

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
class _Started:
    offer: Offer
    month: int
    devices: int


def cash_of(mixes: Sequence[Mix], terms: Mapping[Offer, PaidTerm]) -> Cash:
    """Return payments by month for the mixes of successive months.

        new_m = max(0, n_m - sum of what runs),   paid_m = new_m u + running_m r + what is rented,   owed = sum (T - age) r

    A term that was begun is paid to its end, also if a later month needs fewer devices. One that ends is begun again if its month
    needs the devices.

    Parameters
    ----------
    mixes : of month 1, 2, ...; each is the cheapest for its own load
    terms : by offer, because GPUs of two kinds have two prices: term T, upfront u and running cost r; offers without one are paid as they are used

    Returns
    -------
    Cash; interest on what is paid upfront stands apart from what is paid
    """
    started: list[_Started] = []
    months = []
    for number, mix in enumerate(mixes, start=1):
        upfront = residual = interest = 0.0
        running = float(usd_per_month(mix.people_usd_per_hour))
        needed = dict.fromkeys(terms, 0)
        for part in mix.parts:
            month_usd = float(usd_per_month(part.usd_per_hour))
            term = terms.get(part.offer)
            if term is None:
                running += month_usd
                continue
            devices = part.gpus
            needed[part.offer] += devices
            used = part.usd_per_hour - part.offer.fixed_usd_per_hour * devices
            running += float(usd_per_month(used))
        for offer, term in terms.items():
            active = sum(item.devices for item in _active(started, offer, number, term))
            if needed[offer] > active:
                started.append(_Started(offer, number, needed[offer] - active))
                upfront += term.upfront_usd * (needed[offer] - active)
            running += term.running_usd_per_month * max(active, needed[offer])
            residual += term.residual_usd * sum(
                item.devices for item in started if item.offer == offer and item.month + term.months - 1.0 == number
            )  # fmt: skip
            interest += sum(
                _interest_usd(item, number, term) for item in _active(started, offer, number, term)
            )
        cost = float(usd_per_month(mix.usd_per_hour))
        months.append(CashMonth(number, upfront, running, residual, cost, interest))
    return _ended(months, started, terms)


def _active(started: Sequence[_Started], offer: Offer, month: int, term: PaidTerm) -> list[_Started]:
    """Return what was begun up to a month and goes on in it."""
    return [item for item in started if item.offer == offer and month < item.month + term.months]


def _interest_usd(item: _Started, month: int, term: PaidTerm) -> float:
    """Return a month of interest on the part of an upfront payment that is left when the month begins."""
    left = 1.0 - (month - item.month) / term.months
    return item.devices * term.upfront_usd * left * term.interest_fraction / 12.0


def _ended(months: Sequence[CashMonth], started: Sequence[_Started], terms: Mapping[Offer, PaidTerm]) -> Cash:
    """Return the payments with what is owed and worth after the last month."""
    owed, worth, until = 0.0, 0.0, -inf
    last = len(months)
    begun = []
    for item in started:
        term = terms[item.offer]
        left = item.month + term.months - 1.0 - last
        if not term.bought:
            after = item.devices * max(left, 0.0) * term.running_usd_per_month
            all_of_it = item.devices * (term.upfront_usd + term.months * term.running_usd_per_month)
            begun.append(
                BegunTerm(item.offer.name, item.month, int(last + left), item.devices, all_of_it, after)
            )
        if left <= 0.0:
            continue
        if term.bought:
            share = left / term.months
            worth += item.devices * (term.residual_usd + share * (term.upfront_usd - term.residual_usd))
            continue
        owed += item.devices * left * term.running_usd_per_month
        until = max(until, last + left)
    return Cash(tuple(months), owed, int(until) if owed else None, worth, tuple(begun))
