"""The ledger of a service: one list of entries, of which total cost, bill, comparison, portfolio and FOCUS are views."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from capplan.money.commitments import MixedPart, PaidTerm
from capplan.money.order import OWN
from capplan.money.price import HOURS_PER_MONTH, Prices

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
    """Hours of the month at the price on demand of the list; what is used up, if no such price is known."""
    contracted_usd: float
    """Hours of the month at the price on demand with your own discount."""
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


def service_entries(
    prices: Prices,
    machines_usd: float,
    input_tokens: float,
    output_tokens: float,
    weight_bytes: float,
    months: float,
) -> tuple[Entry, ...]:
    """Return what a service costs in addition to its machines: overhead on their price, people, and the rest; entries without a price are left out.

        egress q = 10^-9 o b,   between zones q = 10^-9 z (i d + o b),   logs q = 10^-9 d (i + o),   weights q = 10^-9 w t,   others q = n t

    Parameters
    ----------
    prices : with bytes b of an output token as it is streamed, bytes d of the text of a token, share z in another zone
    machines_usd : [$]
        what the machines cost, of which overhead, the provider's support plan and staging are shares
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
    entries, of the same time as machines_usd
    """
    terms = prices.other
    staff = "assumed" if prices.people_assumed else "scenario: prices.people"
    streamed, text = 1e-9 * output_tokens * terms.bytes_per_token, 1e-9 * terms.text_bytes_per_token
    crossing = terms.other_zone_fraction * (streamed + input_tokens * text)

    def other(what: str, key: str, quantity: float, unit: str, grows_with: Growing = "nothing") -> Entry:
        basis = "assumed" if key in terms.assumed else f"scenario: prices.other.{key}"
        return Entry(what, quantity, unit, terms.price(key), basis, grows_with=grows_with)

    entries = (
        Entry("overhead", machines_usd, "$ of machines", prices.overhead, "scenario: prices.overhead", "overhead", "machines"),
        Entry("people", 1.0, "team", prices.people_usd_per_month, staff, "people"),
        other("egress of streamed output", "egress_per_gb", streamed, "GB", "traffic"),
        other("traffic between zones", "cross_zone_per_gb", crossing, "GB", "traffic"),
        other("logs of prompts and responses", "logs_per_gb", (input_tokens + output_tokens) * text, "GB", "traffic"),
        other("load balancers", "load_balancers", months, "months"),
        other("storage of weights", "weights_per_gb", 1e-9 * weight_bytes * months, "GB months"),
        other("CPU nodes", "cpu_node", terms.price("cpu_nodes") * months, "node months"),
        other("support plan", "support", machines_usd, "$ of machines", "machines"),
        other("development and staging", "staging", machines_usd, "$ of machines", "machines"),
    )  # fmt: skip
    return tuple(entry for entry in entries if entry.usd_each)


@dataclass(frozen=True, slots=True)
class BudgetTerms:
    """A budget as a scenario states it."""

    usd_per_month: float
    includes: tuple[Kind, ...] = ()
    """What it pays for in addition to the machines: people, overhead, other."""
    entries: tuple[Entry, ...] = ()
    """People, overhead and other costs that it pays for, for machines of a dollar."""

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
