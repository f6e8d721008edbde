"""Money over months and years: the budget of a scenario, what a service costs in all, and what is paid in which month."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capplan.money.commitments import Mix, MixedPart, Offer, falling_ratios
from capplan.money.order import OWN
from capplan.money.price import HOURS_PER_MONTH, OtherPrices, usd_per_month


@dataclass(frozen=True, slots=True)
class BudgetTerms:
    """A budget as a scenario states it."""

    usd_per_month: float
    includes: tuple[str, ...] = ()
    """What it pays for in addition to the machines: people, overhead, other."""
    beside_usd_per_month: float = 0.0
    """What that takes of it."""
    usd_per_traffic: float = 0.0
    """What machines lose of it if the traffic doubles: it pays for egress too."""

    def machines_usd_per_month(self, traffic_ratio: float = 1.0) -> float:
        """Return what is left for machines at some times the traffic [$/month].

        Examples
        --------
        >>> BudgetTerms(50_000.0, ("people", "other"), 12_000.0, 3000.0).machines_usd_per_month(2.0)
        35000.0
        """
        return self.usd_per_month - self.beside_usd_per_month - self.usd_per_traffic * (traffic_ratio - 1.0)

    def left_text(self, traffic_ratio: float = 1.0) -> str:
        """Return what is left for machines in words.

        Examples
        --------
        >>> terms = BudgetTerms(5000.0, ("other",), 4000.0, 3000.0)
        >>> terms.left_text(), terms.left_text(2.0)
        ('$1,000', 'nothing')
        """
        left = self.machines_usd_per_month(traffic_ratio)
        return f"${left:,.0f}" if left > 0.0 else "nothing"


@dataclass(frozen=True, slots=True)
class CostLine:
    """One line of the total: a quantity at a price."""

    what: str
    quantity: float
    unit: str
    """Unit of the quantity."""
    usd_each: float
    basis: str
    """Where the price comes from: an offer, a key of the scenario, or "assumed"."""
    grows_with: str = "nothing"
    """What it is proportional to: traffic, machines, or nothing."""
    commitment: str | None = None
    """How machines are paid for; empty: by the hour, as prices.commitment says; None: the line is of something else."""
    provider: str = ""
    """Seller of machines; empty: whoever makes the offers of a commitment, or nobody."""
    sku: str = ""
    region: str | None = None
    gpus: int = 0
    """GPUs of all machines of the line."""

    @property
    def usd(self) -> float:
        """Return the cost of the line.

            c = q u

        Returns
        -------
        [$]
            c: the quantity q at the price u, of a month or of one job
        """
        return self.quantity * self.usd_each


def total_usd(lines: Sequence[CostLine]) -> float:
    """Return the sum of the lines [$]."""
    return sum(line.usd for line in lines)


def other_lines(
    terms: OtherPrices,
    machines_usd: float,
    input_tokens: float,
    output_tokens: float,
    weight_bytes: float,
    months: float,
) -> tuple[CostLine, ...]:
    """Return the costs of a service other than its GPUs and the people who run it, the lines without a price left out.

        egress q = 10^-9 o b,   between zones q = 10^-9 z (i d + o b),   logs q = 10^-9 d (i + o),   weights q = 10^-9 w t,   others q = n t

    Parameters
    ----------
    terms : prices; bytes b of an output token as it is streamed, bytes d of the text of a token, share z in another zone
    machines_usd : [$]
        what the machines cost, of which the provider's support plan and staging are shares
    input_tokens : [tokens]
        i, of all requests
    output_tokens : [tokens]
        o, of all requests
    weight_bytes : [B]
        w, of the checkpoint, kept once
    months : [-]
        t, that they are paid for; less than one for a job

    Returns
    -------
    lines, of the same time as machines_usd
    """
    streamed = 1e-9 * output_tokens * terms.bytes_per_token

    def basis(key: str) -> str:
        return "assumed" if key in terms.assumed else f"scenario: prices.other.{key}"

    lines = (
        CostLine(
            "egress of streamed output", streamed, "GB", terms.price("egress_per_gb"),
            basis("egress_per_gb"), "traffic",
        ),
        CostLine(
            "traffic between zones", terms.other_zone_fraction * (streamed + 1e-9 * input_tokens * terms.text_bytes_per_token), "GB",
            terms.price("cross_zone_per_gb"), basis("cross_zone_per_gb"), "traffic",
        ),
        CostLine(
            "logs of prompts and responses", 1e-9 * (input_tokens + output_tokens) * terms.text_bytes_per_token, "GB", terms.price("logs_per_gb"),
            basis("logs_per_gb"), "traffic",
        ),
        CostLine("load balancers", months, "months", terms.price("load_balancers"), basis("load_balancers")),
        CostLine("storage of weights", 1e-9 * weight_bytes * months, "GB months", terms.price("weights_per_gb"), basis("weights_per_gb")),
        CostLine("CPU nodes", terms.price("cpu_nodes") * months, "node months", terms.price("cpu_node"), basis("cpu_node")),
        CostLine("support plan", machines_usd, "$ of machines", terms.price("support"), basis("support"), "machines"),
        CostLine("development and staging", machines_usd, "$ of machines", terms.price("staging"), basis("staging"), "machines"),
    )  # fmt: skip
    return tuple(line for line in lines if line.usd)


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
class MachineCharge:
    """What machines that are paid for in one way cost in a month: as it is billed, and as it is used up."""

    part: MixedPart
    hours: float
    """Hours that are paid for: of machines, or of GPUs by the piece."""
    effective_usd: float
    """What is used up: payments by use, and the part of this month in what is paid for a term."""
    billed_usd: float
    """What is billed by use."""
    upfront_usd: float
    """What is billed once, for a term that begins in this month."""
    recurring_usd: float
    """What a reservation is billed for this month, whatever is used of it."""
    list_usd: float
    """The same hours at the price on demand of the list; what is used up, if none is known."""
    contracted_usd: float
    """The same with a discount of one's own, but without a term."""
    capital_usd: float
    """Cost of the capital that is tied up, which nobody bills."""
    term_months: float | None
    """Months of the term; None without one."""

    @property
    def is_reserved(self) -> bool:
        """Whether a provider is owed for a term, whatever is used."""
        return self.term_months is not None and self.part.offer.name.startswith("reserved")

    @property
    def is_bought(self) -> bool:
        """Whether the machines are bought for the plan."""
        return self.term_months is not None and not self.is_reserved

    @property
    def breakeven_decline(self) -> float | None:
        """Return the yearly fall of the price on demand at which its term costs as much as renting by the hour; None without a term, or if no fall is enough."""
        if self.term_months is None:
            return None
        return self.part.offer.breakeven_decline(self.part.used_fraction, round(self.term_months))

    @property
    def unused_fraction(self) -> float:
        """Share of the reserved hours in which no replica runs; what is rented by use has none."""
        return 1.0 - self.part.used_fraction if self.is_reserved else 0.0


def machine_charge(part: MixedPart, term: PaidTerm | None, hours: float, *, begins: bool) -> MachineCharge:
    """Return what a part of a mix costs in a month.

        e = c - g f h + g a h / 730,   l = p h d,   k = c - e

    Parameters
    ----------
    part : of cost c in the h hours of the month, f of it for each of g GPUs at all hours; p GPUs are paid for, at d on demand
    term : of a reservation or a purchase, whose month is used up at a; None: paid as it is used, so e = c
    hours : [h]
        of the month
    begins : whether the term begins in this month, so that its upfront part is billed

    Returns
    -------
    MachineCharge, with the cost of capital k

    References
    ----------
    FOCUS 1.2, BilledCost (without amortisation) and EffectiveCost (with it), https://focus.finops.org/focus-specification/v1-2/.
    """
    cost, gpus, months = part.usd_per_hour * hours, part.gpus, hours / HOURS_PER_MONTH
    effective = billed = cost
    upfront = recurring = 0.0
    if term is not None:
        by_use = cost - part.offer.fixed_usd_per_hour * gpus * hours
        effective = by_use + term.amortised_usd_per_month * gpus * months
        running = term.running_usd_per_month * gpus * months
        recurring = 0.0 if term.bought else running
        billed = by_use + running - recurring
        upfront = term.upfront_usd * gpus if begins else 0.0
    listed = None if term is not None and term.bought else part.offer.list_usd_per_hour
    list_usd = effective if listed is None else part.paid_gpus * hours * listed
    return MachineCharge(
        part,
        part.paid_gpus * hours / (part.devices if part.sku else 1.0),
        effective,
        billed,
        upfront,
        recurring,
        list_usd,
        list_usd if listed is None else list_usd * part.offer.discounted_ratio,
        cost - effective,
        None if term is None else term.months,
    )


@dataclass(frozen=True, slots=True)
class CommitmentRates:
    """How well commitments fit the load: shares of a month, of machines that have a price on demand."""

    coverage_fraction: float
    """Share of the cost on demand that reservations cover."""
    utilisation_fraction: float | None
    """Share of the reserved cost in whose hours replicas run; None without reservations."""
    effective_savings_fraction: float
    """Share of the cost on demand that all discounts together save; below zero if they cost more."""


def commitment_rates(charges: Sequence[MachineCharge]) -> CommitmentRates | None:
    """Return coverage, utilisation and effective savings rate; None if no machine has a price on demand.

        c = sum_r l (1 - n) / sum l,   u = sum_r e (1 - n) / sum_r e,   s = 1 - sum e / sum l

    Parameters
    ----------
    charges : what is used up e, at list prices l, with the unused share n; r are the reserved ones. Owned machines have no list price and are left out

    Returns
    -------
    CommitmentRates with coverage c, utilisation u and savings s

    References
    ----------
    FinOps Foundation, "Rate optimization" and "Effective Savings Rate", https://www.finops.org/framework/capabilities/rate-optimization/.
    """
    listed = [
        each for each in charges if each.part.offer.list_usd_per_hour is not None and not each.is_bought
    ]
    reserved = [charge for charge in listed if charge.is_reserved]
    list_usd = sum(charge.list_usd * (1.0 - charge.unused_fraction) for charge in listed)
    if not list_usd:
        return None
    paid = sum(charge.effective_usd for charge in reserved)
    covered = sum(charge.list_usd * (1.0 - charge.unused_fraction) for charge in reserved)
    used = sum(charge.effective_usd * (1.0 - charge.unused_fraction) for charge in reserved)
    savings = 1.0 - sum(charge.effective_usd for charge in listed) / list_usd
    return CommitmentRates(covered / list_usd, used / paid if paid else None, savings)


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
    """Devices whose term begins in one month, at its price."""

    offer: Offer
    month: int
    devices: int
    term: PaidTerm
    price_ratio: float
    used_fraction: float

    def is_active(self, month: int) -> bool:
        """Return whether the term was begun up to a month and goes on in it."""
        return self.month <= month < self.month + self.term.months

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
        left = self.month + term.months - 1.0 - last
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


def cash_of(mixes: Sequence[Mix], terms: Mapping[Offer, PaidTerm], decline_fraction: float = 0.0) -> Cash:
    """Return payments by month for the mixes of successive months, at prices that fall by a part each year.

        new_m = max(0, n_m - sum of what runs),   paid_m = k_m new_m u + sum k_s running_s r + k_m what is rented,   owed = sum k_s (T - age) r

    A term that was begun is paid to its end, also if a later month needs fewer devices. One that ends is begun again if its month
    needs the devices, at the price of that month.

    Parameters
    ----------
    mixes : of month 1, 2, ...; each is the cheapest for its own load at the prices of the first
    terms : by offer, because GPUs of two kinds have two prices: term T, upfront u and running cost r; offers without one are paid as they are used
    decline_fraction : [-]
        of a year, whose falling_ratios k are those of rents, and of terms and purchases by the month s in which they begin

    Returns
    -------
    Cash; interest on what is paid upfront stands apart from what is paid
    """
    started: list[_Started] = []
    months = []
    for number, (mix, ratio) in enumerate(
        zip(mixes, falling_ratios(decline_fraction, len(mixes)).tolist(), strict=True), start=1
    ):
        upfront, running = 0.0, float(usd_per_month(mix.people_usd_per_hour))
        for part in mix.parts:
            if part.offer not in terms:
                rented = 1.0 if part.offer.name == OWN else ratio
                running += float(usd_per_month(part.usd_per_hour)) * rented
        cost = running
        for offer, term in terms.items():
            parts = [part for part in mix.parts if part.offer == offer]
            needed = sum(part.gpus for part in parts)
            fixed = needed * offer.fixed_usd_per_hour
            by_use = float(usd_per_month(sum(part.usd_per_hour for part in parts) - fixed))
            active = [item for item in started if item.offer == offer and item.is_active(number)]
            more = needed - sum(item.devices for item in active)
            if more > 0:
                used = sum(part.gpus * part.used_fraction for part in parts) / needed
                active.append(_Started(offer, number, more, term.at(ratio), ratio, used))
                started.append(active[-1])
                upfront += more * active[-1].term.upfront_usd
            running += by_use + sum(item.devices * item.term.running_usd_per_month for item in active)
            cost += by_use
            for item in active:
                cost += min(item.devices, needed) * item.cost_usd
                needed -= min(item.devices, needed)
        residual = sum(
            item.devices * item.term.residual_usd
            for item in started
            if item.month + item.term.months - 1.0 == number
        )
        interest = sum(item.interest_usd(number) for item in started if item.is_active(number))
        months.append(CashMonth(number, upfront, running, residual, cost, interest))
    return _ended(months, started, decline_fraction)


def _ended(months: Sequence[CashMonth], started: Sequence[_Started], decline_fraction: float) -> Cash:
    """Return the payments with what is owed and worth after the last month."""
    last = len(months)
    begun = [item.row(last, decline_fraction) for item in started if not item.term.bought]
    owed = sum(row["usd_after_horizon"] for row in begun)
    until = max((row["until_month"] for row in begun), default=0)
    worth = 0.0
    for item in started:
        share = (item.month + item.term.months - 1.0 - last) / item.term.months
        if item.term.bought and share > 0.0:
            term = item.term
            worth += item.devices * (term.residual_usd + share * (term.upfront_usd - term.residual_usd))
    return Cash(tuple(months), owed, until if owed else None, worth, tuple(begun), decline_fraction)
