"""The ledger of a service: one list of entries, of which total cost, bill, comparison, portfolio and FOCUS are views, and what its terms pay in which month."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from capplan.money.commitments import Mix, MixedPart, Offer, PaidTerm, falling_ratios
from capplan.money.order import OWN
from capplan.money.price import HOURS_PER_MONTH, OtherPrices, Prices, usd_per_month

MACHINE_HOURS = "machine hours"
"""Unit of machines that are paid for whole, at one price."""
Growing: TypeAlias = Literal["traffic", "machines", "nothing"]
"""What an entry is proportional to."""
Kind: TypeAlias = Literal["machines", "overhead", "people", "other", "outside"]
"""What an entry is of: machines with what runs them, overhead on their price, staff, other costs, or what is outside the GPUs."""


@dataclass(frozen=True, slots=True)
class Paid:
    """What an entry costs [$]: as it is used up, as it is billed, and by the list."""

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

    def times(self, share: float) -> "Paid":
        """Return a share of all of it."""
        return Paid(*(getattr(self, name) * share for name in self.__dataclass_fields__))


def plain(usd: float) -> Paid:
    """Return what is billed as it is used, at the only price there is."""
    return Paid(usd, usd, 0.0, 0.0, usd, usd, 0.0)


@dataclass(frozen=True, slots=True)
class Entry:
    """What is paid for in a month, or for one job: a quantity at a price."""

    what: str
    quantity: float
    unit: str
    """Unit of the quantity."""
    usd_each: float
    basis: str
    """Where the price comes from: an offer, a key of the scenario, or "assumed"."""
    kind: Kind = "other"
    grows_with: Growing = "nothing"
    """What it is proportional to."""

    @property
    def usd(self) -> float:
        """Return the cost of the entry.

            c = q u

        Returns
        -------
        [$]
            c: the quantity q at the price u, of a month or of one job
        """
        return self.quantity * self.usd_each

    @property
    def paid(self) -> Paid:
        """Return what the entry costs: it is billed as it is used, at the only price there is."""
        return plain(self.usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineEntry(Entry):
    """Machines of one group that are paid for in one way."""

    kind: Kind = "machines"
    grows_with: Growing = "machines"
    part: MixedPart
    hours: float
    """Hours of the month or of the job."""
    begins: bool = False
    """Whether a term begins in this month, so that its upfront part is billed."""

    @property
    def term(self) -> PaidTerm | None:
        """How they are paid for over a term; None: as they are used."""
        return self.part.offer.term

    @property
    def is_bought(self) -> bool:
        """Whether the machines are bought for the plan."""
        return self.term is not None and self.term.bought

    @property
    def is_reserved(self) -> bool:
        """Whether a provider is owed for a term, whatever is used."""
        return self.term is not None and not self.term.bought

    @property
    def unused_fraction(self) -> float:
        """Share of the reserved hours in which no replica runs; what is rented by use has none."""
        return 1.0 - self.part.used_fraction if self.is_reserved else 0.0

    @property
    def machine_hours(self) -> float:
        """Hours that are paid for: of machines, or of GPUs by the piece."""
        return self.part.paid_gpus * self.hours / (self.part.devices if self.part.sku else 1.0)

    @property
    def paid(self) -> Paid:
        """Return what the machines cost as they are used up, as they are billed, and by the list.

            e = c - g f h + g a h / 730,   l = p h d,   k = c - e

        Returns
        -------
        Paid
            of the cost c of h hours, f of it for each of g GPUs at all hours; of a term a month is used up at a, without one e = c;
            p GPUs are paid for, at d on demand; k is the cost of capital

        References
        ----------
        FOCUS 1.2, BilledCost (without amortisation) and EffectiveCost (with it), https://focus.finops.org/focus-specification/v1-2/.
        """
        offer, term, gpus = self.part.offer, self.term, self.part.gpus
        effective = billed = cost = self.part.usd_per_hour * self.hours
        upfront = recurring = 0.0
        if term is not None:
            months = self.hours / HOURS_PER_MONTH
            by_use = cost - offer.fixed_usd_per_hour * gpus * self.hours
            effective = by_use + term.amortised_usd_per_month * gpus * months
            running = term.running_usd_per_month * gpus * months
            recurring = 0.0 if term.bought else running
            billed = by_use + running - recurring
            upfront = term.upfront_usd * gpus if self.begins else 0.0
        listed = contracted = effective
        if offer.list_usd_per_hour is not None and not self.is_bought:
            listed = self.part.paid_gpus * self.hours * offer.list_usd_per_hour
            contracted = listed * offer.discounted_ratio
        return Paid(effective, billed, upfront, recurring, listed, contracted, cost - effective)

    @property
    def breakeven_decline(self) -> float | None:
        """Return the yearly fall of the price on demand at which its term costs as much as renting by the hour; None without a term, or if no fall is enough."""
        if self.term is None:
            return None
        return self.part.offer.breakeven_decline(self.part.used_fraction, round(self.term.months))


def committed_entry(part: MixedPart, hours: float, *, begins: bool) -> MachineEntry:
    """Return a part of a mix, by the GPU hours that are paid for."""
    paid, where = part.paid_gpus, f" in {part.units} x {part.sku}" if part.sku else ""
    each = part.usd_per_hour / paid if paid else 0.0
    what, basis = f"{part.gpus} GPUs{where}, {part.offer.name}", part.offer.origin
    return MachineEntry(what, paid * hours, "GPU hours", each, basis, part=part, hours=hours, begins=begins)


def rented_entry(part: MixedPart, hours: float, *, begins: bool) -> MachineEntry:
    """Return machines that are paid for at one price, by the hour."""
    machine, basis = part.machine, part.offer.origin
    assert machine is not None
    what = f"{part.units} x {machine.name}{' of your own' if machine.is_owned else f', {machine.provider}'}"
    quantity, each = part.units * hours, machine.usd_per_hour
    return MachineEntry(what, quantity, MACHINE_HOURS, each, basis, part=part, hours=hours, begins=begins)


def machines_of(entries: Sequence[Entry]) -> list[MachineEntry]:
    """Return the entries of machines."""
    return [entry for entry in entries if isinstance(entry, MachineEntry)]


def cost_lines(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the entries that cost something or are there already; machines of one kind in one line, whichever groups they are for."""
    lines: dict[object, Entry] = {}
    for at, entry in enumerate(entries):
        if isinstance(entry, MachineEntry) and entry.unit == MACHINE_HOURS:
            part, known = entry.part, lines.get(entry.part.machine)
            units = part.units + (known.part.units if isinstance(known, MachineEntry) else 0)
            lines[part.machine] = rented_entry(replace(part, units=units), entry.hours, begins=entry.begins)
        else:
            lines[at] = entry
    return tuple(
        line
        for line in lines.values()
        if line.usd or (isinstance(line, MachineEntry) and line.part.offer.name == OWN)
    )


def total_usd(entries: Sequence[Entry], kind: Kind | None = None) -> float:
    """Return the sum of the entries, or of those of one kind [$]."""
    return sum(entry.usd for entry in entries if kind in (None, entry.kind))


def other_entries(
    terms: OtherPrices,
    machines_usd: float,
    input_tokens: float,
    output_tokens: float,
    weight_bytes: float,
    months: float,
) -> tuple[Entry, ...]:
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
        Entry(
            "egress of streamed output", streamed, "GB", terms.price("egress_per_gb"),
            basis("egress_per_gb"), grows_with="traffic",
        ),
        Entry(
            "traffic between zones", terms.other_zone_fraction * (streamed + 1e-9 * input_tokens * terms.text_bytes_per_token), "GB",
            terms.price("cross_zone_per_gb"), basis("cross_zone_per_gb"), grows_with="traffic",
        ),
        Entry(
            "logs of prompts and responses", 1e-9 * (input_tokens + output_tokens) * terms.text_bytes_per_token, "GB", terms.price("logs_per_gb"),
            basis("logs_per_gb"), grows_with="traffic",
        ),
        Entry("load balancers", months, "months", terms.price("load_balancers"), basis("load_balancers")),
        Entry("storage of weights", 1e-9 * weight_bytes * months, "GB months", terms.price("weights_per_gb"), basis("weights_per_gb")),
        Entry("CPU nodes", terms.price("cpu_nodes") * months, "node months", terms.price("cpu_node"), basis("cpu_node")),
        Entry("support plan", machines_usd, "$ of machines", terms.price("support"), basis("support"), grows_with="machines"),
        Entry("development and staging", machines_usd, "$ of machines", terms.price("staging"), basis("staging"), grows_with="machines"),
    )  # fmt: skip
    return tuple(line for line in lines if line.usd)


def service_entries(
    prices: Prices,
    machines_usd: float,
    input_tokens: float,
    output_tokens: float,
    weight_bytes: float,
    months: float,
) -> tuple[Entry, ...]:
    """Return what a service costs in addition to its machines: overhead on their price, people, and the costs of `other_entries`."""
    staff = "assumed" if prices.people_assumed else "scenario: prices.people"
    of = "scenario: prices.overhead"
    return (
        Entry("overhead", machines_usd, "$ of machines", prices.overhead, of, "overhead", "machines"),
        Entry("people", 1.0, "team", prices.people_usd_per_month, staff, "people"),
        *other_entries(prices.other, machines_usd, input_tokens, output_tokens, weight_bytes, months),
    )


@dataclass(frozen=True, slots=True)
class BudgetTerms:
    """A budget as a scenario states it."""

    usd_per_month: float
    includes: tuple[Kind, ...] = ()
    """What it pays for in addition to the machines: people, overhead, other."""
    entries: tuple[Entry, ...] = ()
    """Those entries, for machines of a dollar."""

    def machines_usd_per_month(self, traffic_ratio: float = 1.0) -> float:
        """Return what is left for machines at some times the traffic [$/month].

            m = (c - p - t x) / (1 + f)

        The budget c pays for entries p, for x of those that grow with the traffic, at t times of it, and for f of each dollar of machines.

        Examples
        --------
        >>> people, egress = Entry("people", 1.0, "team", 9000.0, ""), Entry("egress", 1.0, "GB", 3000.0, "", "other", "traffic")
        >>> BudgetTerms(50_000.0, ("people", "other"), (people, egress)).machines_usd_per_month(2.0)
        35000.0
        """
        fixed = sum(entry.usd for entry in self.entries if entry.grows_with == "nothing")
        traffic = sum(entry.usd for entry in self.entries if entry.grows_with == "traffic")
        follows = sum(entry.usd_each for entry in self.entries if entry.grows_with == "machines")
        return (self.usd_per_month - fixed - traffic * traffic_ratio) / (1.0 + follows)

    def left_text(self, traffic_ratio: float = 1.0) -> str:
        """Return what is left for machines in words.

        Examples
        --------
        >>> terms = BudgetTerms(5000.0, ("people",), (Entry("people", 1.0, "team", 4000.0, ""),))
        >>> terms.left_text(), BudgetTerms(3000.0, ("people",), terms.entries).left_text()
        ('$1,000', 'nothing')
        """
        left = self.machines_usd_per_month(traffic_ratio)
        return f"${left:,.0f}" if left > 0.0 else "nothing"


@dataclass(frozen=True, slots=True)
class CommitmentRates:
    """How well commitments fit the load: shares of a month, of machines that have a price on demand."""

    coverage_fraction: float
    """Share of the cost on demand that reservations cover."""
    utilisation_fraction: float | None
    """Share of the reserved cost in whose hours replicas run; None without reservations."""
    effective_savings_fraction: float
    """Share of the cost on demand that all discounts together save; below zero if they cost more."""


def commitment_rates(entries: Sequence[Entry]) -> CommitmentRates | None:
    """Return coverage, utilisation and effective savings rate; None if no machine has a price on demand.

        c = sum_r l (1 - n) / sum l,   u = sum_r e (1 - n) / sum_r e,   s = 1 - sum e / sum l

    Parameters
    ----------
    entries : what is used up e, at list prices l, with the unused share n; r are the reserved ones. Owned machines have no list price and are left out

    Returns
    -------
    CommitmentRates with coverage c, utilisation u and savings s

    References
    ----------
    FinOps Foundation, "Rate optimization" and "Effective Savings Rate", https://www.finops.org/framework/capabilities/rate-optimization/.
    """
    listed = [
        (entry.paid, 1.0 - entry.unused_fraction, entry.is_reserved)
        for entry in machines_of(entries)
        if entry.part.offer.list_usd_per_hour is not None and not entry.is_bought
    ]
    list_usd = sum(paid.list_usd * used for paid, used, _ in listed)
    if not list_usd:
        return None
    reserved = [(paid, used) for paid, used, is_reserved in listed if is_reserved]
    effective = sum(paid.effective_usd for paid, _ in reserved)
    covered = sum(paid.list_usd * used for paid, used in reserved)
    ran = sum(paid.effective_usd * used for paid, used in reserved)
    savings = 1.0 - sum(paid.effective_usd for paid, *_ in listed) / list_usd
    return CommitmentRates(covered / list_usd, ran / effective if effective else None, savings)


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
