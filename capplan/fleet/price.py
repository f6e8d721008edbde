"""Prices: cost formulas, and the choice of a price for a device."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from math import inf
from statistics import median_low
from typing import Annotated, Literal, TypeAlias

from capplan.assumption import Assumption
from capplan.fleet.order import ANY_MACHINES, Machine, MachineLimits, Order, OrderLine, most_busy_on, order_of
from capplan.fleet.survival import NO_LOSS, Survival
from capplan.hardware.device import Device
from capplan.keys import ONLY_KNOWN_KEYS, Commitment, Day, Limits, Term, UsdPerHour
from capplan.numbers import Number

HOURS_PER_MONTH = 730.0
"""Hours of an average month, 365 x 24 / 12; the convention of cloud price calculators."""

Side: TypeAlias = Literal["low", "likely", "high"]
"""Side of the range of offers."""
SIDES: tuple[Side, ...] = ("low", "likely", "high")
MAX_AGE_DAYS = 120
"""Offers that are older than the newest one of their device by more than this are ignored ..."""
MAX_AGE_DAYS_OF_TERMS = 365
"""... and offers of a fixed term of years, which fewer providers publish."""
ON_DEMAND: Commitment = "on-demand"
TERM_YEARS = {"reserved-1y": 1.0, "reserved-3y": 3.0}
"""Commitments for a fixed term [a]."""


def usd_per_month(usd_per_hour: Number, hours: Number = HOURS_PER_MONTH) -> Number:
    """Return the cost of a month of running all the time.

        m = h n

    Parameters
    ----------
    usd_per_hour : [$/h]
        h.
    hours : [h]
        n, 730 in an average month.

    Returns
    -------
    [$]
        m, without tax.

    Examples
    --------
    >>> usd_per_month(2.0)
    1460.0

    References
    ----------
    AWS Pricing Calculator, assumptions: 730 hours in a month, https://calculator.aws.
    """
    return usd_per_hour * hours


def most_usd(limit_usd: float) -> float:
    """Return the highest cost that counts as within a limit, as sums of prices round.

        m = l (1 + 10^-9)

    Parameters
    ----------
    limit_usd : [$]
        l.

    Returns
    -------
    [$]
        m.

    Examples
    --------
    >>> 0.1 + 0.2 <= 0.3, 0.1 + 0.2 <= most_usd(0.3)
    (False, True)

    References
    ----------
    Goldberg 1991, "What every computer scientist should know about floating-point arithmetic", section 1.2
    (a relative error is at most half a unit in the last place per operation).
    """
    return limit_usd * (1.0 + 1e-9)


def usd_per_million_tokens(usd_per_hour: Number, tokens_per_s: Number) -> Number:
    """Return the cost of a million tokens on machines that are paid by the hour.

        c = 10^6 h / (3600 r)

    Parameters
    ----------
    usd_per_hour : [$/h]
        h, of all machines, spare ones included.
    tokens_per_s : [token/s]
        r, throughput of all machines, above zero; output tokens for a price per output token.

    Returns
    -------
    [$/10^6 token]
        c at that load; idle hours cost the same and yield no tokens.

    Examples
    --------
    At $3.60 per hour and 1000 tokens per second:

    >>> usd_per_million_tokens(3.6, 1000.0)
    1.0

    References
    ----------
    A unit conversion; 3600 s in an hour, SI Brochure, 9th edition, table 8, doi:10.59161/AUEZ1291.
    """
    return 1e6 * usd_per_hour / (3600.0 * tokens_per_s)


def energy_usd_per_hour(watts: Number, usd_per_kwh: Number, facility_ratio: Number = 1.0) -> Number:
    """Return the electricity cost of machines per hour.

        e = 10^-3 w u p

    Parameters
    ----------
    watts : [W]
        w, drawn by the machines; thermal design power is an upper bound.
    usd_per_kwh : [$/kWh]
        p. The price of a rented machine includes it.
    facility_ratio : [-]
        u, power usage effectiveness: power of the building over power of the machines, at least 1.

    Returns
    -------
    [$/h]
        e.

    Examples
    --------
    >>> energy_usd_per_hour(10_000.0, 0.1, 1.5)
    1.5

    References
    ----------
    ISO/IEC 30134-2:2016, power usage effectiveness.
    """
    return watts * facility_ratio * usd_per_kwh / 1000.0


@dataclass(frozen=True, slots=True)
class PriceRecord:
    """A price offered by a provider."""

    __pydantic_config__ = ONLY_KNOWN_KEYS
    device: str
    """Catalogue name."""
    provider: str
    commitment: Commitment | Term
    """How the instance is paid for; community: hosts that the provider does not vouch for; owned: estimated cost of ownership."""
    price: UsdPerHour
    """Price of the whole instance."""
    source: str
    """Page of the offer; in a file its key in `sources`."""
    date: Day | None
    """When it was offered; null: unknown."""
    sku: str | None = None
    """The provider's name for the instance."""
    devices: Annotated[int, Limits(1)] = 1
    """Devices in the instance."""
    region: str | None = None
    quality: Literal["list", "estimate", "doubtful"] = "list"
    """list, estimate (used only without a list price) or doubtful (never used)."""
    note: str | None = None

    @property
    def usd_per_hour(self) -> float:
        """Return the price of one device [$/h]."""
        return self.price / self.devices


@dataclass(frozen=True, slots=True)
class PriceChoice:
    """Which offers a scenario accepts, and its electricity price."""

    commitment: Commitment | Term = "on-demand"
    provider: str = "any"
    region: str | None = None
    overrides: Mapping[str, float] = field(default_factory=dict)
    """Device -> $/h per device, as negotiated with a provider."""
    usd_per_kwh: float | None = None
    """Electricity on top of the price, for owned hardware; None: the price includes it."""
    facility_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class ChosenPrice:
    """The price chosen for one device, and its origin."""

    usd_per_hour: float
    commitment: str
    records: tuple[PriceRecord, ...]
    """The median offer, or the two whose mean is taken; empty for a price from the scenario."""
    offers: int
    """Number of providers with an offer."""
    lowest: PriceRecord | None
    """The offer of the lowest price; None for a price from the scenario."""
    highest: PriceRecord | None
    assumption: Assumption
    warning: str | None = None
    energy_usd_per_hour: float | None = None
    """Electricity of the device, on top of the price; None: the price includes it."""
    machines: tuple[Machine, ...] = ()
    """Machines in which the device is sold; empty: by the GPU."""
    newest_day: str | None = None
    """Day of the newest of the offers; None for a price from the scenario, or without any date."""
    limits: MachineLimits = ANY_MACHINES
    """Which machines an order that can be placed today may have."""

    def order(
        self, replica_gpus: int, node_gpus: int, busy: int, survive: Survival = NO_LOSS
    ) -> Order | None:
        """Return the cheapest order that holds some replicas and survives what it has to; None if no machine holds one, or if too few may be ordered.

        GPUs by the piece of a replica share a machine, and no two replicas do.
        """
        if self.machines:
            return order_of(self.machines, replica_gpus, node_gpus, busy, survive)
        sellers = " and ".join(record.provider for record in self.records) or "the scenario"
        device, region, date, source = "", None, None, ""
        if self.records:  # of two offers the older one says how old their mean is
            offer = min(self.records, key=lambda record: record.date or "")
            device, date, source = offer.device, offer.date, offer.source
            region = offer.region if len(self.records) == 1 else None
        piece = Machine(sellers, "", device, 1, self.usd_per_hour, region, date, source)
        spares = survive.least_spares(busy)
        replicas = busy + spares
        return Order((OrderLine(piece, replicas * replica_gpus, replicas),), busy, spares)

    def order_usd_per_hour(
        self, replica_gpus: int, node_gpus: int, busy: int, side: Side = "likely", survive: Survival = NO_LOSS
    ) -> float:
        """Return the price of the cheapest order that holds some replicas, with electricity [$/h]; infinite if there is none.

        At the lowest or highest offer of the device it is the same order, dearer or cheaper by as much as its GPUs are.
        """
        if not self.machines:
            return self.at(side)[0] * replica_gpus * (busy + survive.least_spares(busy))
        order = self.order(replica_gpus, node_gpus, busy, survive)
        if order is None:
            return inf
        energy = self.energy_usd_per_hour or 0.0
        ratio = (self.at(side)[0] - energy) / self.usd_per_hour if self.usd_per_hour else 1.0
        return ratio * order.usd_per_hour + energy * order.gpus

    def spares(self, replica_gpus: int, node_gpus: int, busy: int, survive: Survival) -> int:
        """Return the spare replicas of the cheapest order; as few as any order has if there is none."""
        order = self.order(replica_gpus, node_gpus, busy, survive) if self.machines else None
        return survive.least_spares(busy) if order is None else order.spares

    def most_busy(self, replica_gpus: int, node_gpus: int, survive: Survival) -> float:
        """Return how many replicas may carry the peak on the machines that may be ordered; infinite without a limit."""
        return most_busy_on(self.machines, replica_gpus, node_gpus, survive) if self.machines else inf

    def least_usd_per_hour(self, gpus: float) -> float:
        """Return a lower bound on the price of any order with this many used GPUs, with electricity [$/h].

            h = (g - o) min_i (p_i / g_i) + g e

        Returns
        -------
        [$/h]
            h: g GPUs, of which o are there already; machines i of g_i GPUs at p_i, electricity e of a GPU
        """
        energy = (self.energy_usd_per_hour or 0.0) * gpus
        if not self.machines:
            return self.usd_per_hour * gpus + energy
        there = sum((item.most or 0) * item.gpus for item in self.machines if item.usd_per_hour == 0.0)
        each = min(
            (item.usd_per_hour / item.gpus for item in self.machines if item.usd_per_hour > 0.0), default=inf
        )
        left = max(gpus - there, 0.0)
        return (left * each if left else 0.0) + energy

    @property
    def estimated(self) -> bool:
        """Return whether the price is an estimate, as nobody lists one."""
        return any(record.quality == "estimate" for record in self.records)

    @property
    def basis(self) -> str:
        """Return the basis of the price in words: one offer or an estimate may be far off."""
        if not self.records:
            return "the scenario"
        if self.estimated:
            return "an estimate" if self.offers == 1 else f"{self.offers} estimates"
        if self.offers == 1:
            return "one offer"
        return "mean of two offers" if self.offers == 2 else f"median of {self.offers} offers"

    @property
    def total_usd_per_hour(self) -> float:
        """Price and electricity of one device."""
        return self.usd_per_hour + (self.energy_usd_per_hour or 0.0)

    @property
    def low_usd_per_hour(self) -> float:
        """Lowest offer of one device, without electricity."""
        return self.usd_per_hour if self.lowest is None else self.lowest.usd_per_hour

    @property
    def high_usd_per_hour(self) -> float:
        """Highest offer of one device, without electricity."""
        return self.usd_per_hour if self.highest is None else self.highest.usd_per_hour

    def at(self, side: Side) -> tuple[float, tuple[PriceRecord, ...]]:
        """Return the price of one device with its electricity, and the offers that it is from: none for the scenario's own."""
        offer = {"low": self.lowest, "likely": None, "high": self.highest}[side]
        if offer is None:
            return self.total_usd_per_hour, self.records
        return offer.usd_per_hour + (self.energy_usd_per_hour or 0.0), (offer,)


def _day(written: str | None) -> date | None:
    """Parse a date of any precision; a year means its July, a month its 15th.

    Examples
    --------
    >>> str(_day("2025")), str(_day("2025-03"))
    ('2025-07-01', '2025-03-15')
    """
    if written is None:
        return None
    year, month, day = (*(int(part) for part in written.split("-")), 0, 0)[:3]
    return date(year, month or 7, day or (15 if month else 1))


def _simple(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _newest_by_provider(records: Iterable[PriceRecord]) -> dict[str, PriceRecord]:
    """Return the newest offer of every provider, the cheapest one of a tie."""
    best: dict[str, PriceRecord] = {}
    for record in records:
        known = best.get(record.provider)
        rank = (_day(record.date) or date.min, -record.usd_per_hour)
        if known is None or rank > (_day(known.date) or date.min, -known.usd_per_hour):
            best[record.provider] = record
    return best


def _recent(offers: Sequence[PriceRecord], most_days: int) -> list[PriceRecord]:
    days = [day for offer in offers if (day := _day(offer.date))]
    if not days:
        return list(offers)
    newest = max(days)
    return [offer for offer in offers if (day := _day(offer.date)) and (newest - day).days <= most_days]


def _on_common_terms(
    offers: Sequence[PriceRecord], records: Sequence[PriceRecord], device: str, choice: PriceChoice
) -> list[PriceRecord]:
    """Return offers of a fixed term as they compare with the price on demand.

        p = d r / o

    A provider that rents the same machine on demand at o and for the term at r takes a discount off its own price; p is what that
    discount leaves of the price on demand d. An offer without a price on demand, such as an index of the market, counts as it is.
    """
    rented = choose_price(records, device, replace(choice, commitment=ON_DEMAND, overrides={}))
    listed = [r for r in records if r.device == device and r.commitment == ON_DEMAND and r.quality == "list"]

    def on_common(offer: PriceRecord) -> PriceRecord:
        same = [r for r in listed if r.provider == offer.provider]
        nearest = [
            r for r in same if (r.sku, r.devices, r.region) == (offer.sku, offer.devices, offer.region)
        ]
        if rented is None or not (near := nearest or same):
            return offer
        own = max(near, key=lambda r: (_day(r.date) or date.min, -r.usd_per_hour))
        return replace(offer, price=rented.usd_per_hour * offer.price / own.usd_per_hour)

    return [on_common(offer) for offer in offers]


def choose_price(records: Sequence[PriceRecord], device: str, choice: PriceChoice) -> ChosenPrice | None:
    """Return the price of a device, or None if no offer matches.

    An override wins. Otherwise the price is the median of the offers with the required commitment, provider and region: the
    newest offer of each provider (the cheapest one of a tie), without those over MAX_AGE_DAYS older than the newest of all. The
    lower median is taken, so that the price is an actual offer; two offers are averaged, as the lower one would be the
    minimum. Estimates are used only if no provider lists a price. Offers of a fixed term count by the discount of their provider.

    Parameters
    ----------
    records : offers
    device : catalogue name
    choice : commitment, provider, region and overrides

    Returns
    -------
    ChosenPrice, or None; an unknown price is never zero
    """
    if device in choice.overrides:
        usd = choice.overrides[device]
        stated = Assumption(
            f"{device} costs {usd:.2f} $/h, as the scenario says", f"prices.per_gpu_hour.{device}"
        )
        return ChosenPrice(usd, choice.commitment, (), 0, None, None, stated)
    wanted = _simple(choice.provider)
    matching = [
        record
        for record in records
        if record.device == device
        and record.commitment == choice.commitment
        and (wanted == "any" or wanted in (_simple(record.provider), _simple(record.provider.split(",")[0])))
        and (choice.region is None or record.region in (None, choice.region))
        and record.quality != "doubtful"
    ]
    listed = [record for record in matching if record.quality == "list"]
    of_term, usable = choice.commitment in TERM_YEARS, listed or matching
    if of_term:
        usable = _on_common_terms(usable, records, device, choice)
    offers = _recent(
        sorted(_newest_by_provider(usable).values(), key=lambda r: (r.usd_per_hour, r.provider)),
        MAX_AGE_DAYS_OF_TERMS if of_term else MAX_AGE_DAYS,
    )
    if not offers:
        return None
    usd = median_low([offer.usd_per_hour for offer in offers])
    chosen = tuple(offers) if len(offers) == 2 else (next(o for o in offers if o.usd_per_hour == usd),)
    usd = sum(offer.usd_per_hour for offer in chosen) / len(chosen)
    estimate = chosen[0].quality == "estimate"
    what = f"{device} costs {usd:.2f} $/h {choice.commitment}{' (an estimate)' if estimate else ''}"
    return ChosenPrice(
        usd_per_hour=usd,
        commitment=choice.commitment,
        records=chosen,
        offers=len(offers),
        lowest=offers[0],
        highest=offers[-1],
        assumption=Assumption(
            f"{what}: {_origin(offers, chosen, named=wanted != 'any')}",
            f"prices.provider, or prices.per_gpu_hour.{device}",
        ),
        warning=f"no listed {choice.commitment} price of {device}; an estimate is used" if estimate else None,
        newest_day=max((offer.date for offer in offers if offer.date), key=_day_or_first, default=None),
    )


def _day_or_first(written: str) -> date:
    return _day(written) or date.min


def price_of(records: Sequence[PriceRecord], device: Device, choice: PriceChoice) -> ChosenPrice | None:
    """Return the price of a device, or None if no offer matches; of a slice its part of the price of the whole device.

    A slice without a price of its own costs 1/k of a device that is cut into k like it.
    """
    cut = device.partition
    if cut is None or device.name in choice.overrides:
        return choose_price(records, device.name, choice)
    whole = choose_price(records, cut.device, choice)
    if whole is None:
        return None
    share = 1.0 / cut.per_device
    said = (
        f"{device.name} costs 1/{cut.per_device} of {cut.device}, which is cut into {cut.per_device} like it"
    )
    return replace(
        whole,
        usd_per_hour=whole.usd_per_hour * share,
        records=tuple(_shared(record, share) for record in whole.records),
        lowest=whole.lowest and _shared(whole.lowest, share),
        highest=whole.highest and _shared(whole.highest, share),
        assumption=replace(whole.assumption, what=f"{said}; {whole.assumption.what}"),
    )


def _shared(record: PriceRecord, share: float) -> PriceRecord:
    return replace(record, price=record.price * share)


def _origin(offers: Sequence[PriceRecord], chosen: Sequence[PriceRecord], *, named: bool) -> str:
    """Return the origin of a price in words: provider, date, and the range of the other offers."""
    if len(chosen) > 1:
        each = " and ".join(f"{o.provider} {o.usd_per_hour:.2f} ({o.date or 'date unknown'})" for o in chosen)
        return f"the mean of the two offers known, {each}"
    only = f"{chosen[0].provider}, {chosen[0].date or 'date unknown'}"
    if len(offers) > 1:
        low, high = offers[0].usd_per_hour, offers[-1].usd_per_hour
        return f"{only}; the median of {len(offers)} providers, {low:.2f} to {high:.2f}"
    return only if named else f"{only}; the only offer known"


def with_electricity(price: ChosenPrice, tdp_w: float, choice: PriceChoice) -> ChosenPrice:
    """Return the price plus the electricity of the device at its thermal design power, if the scenario has a price for it."""
    if choice.usd_per_kwh is None:
        return price
    usd = float(energy_usd_per_hour(tdp_w, choice.usd_per_kwh, choice.facility_ratio))
    return replace(price, energy_usd_per_hour=usd)


def missing_price_warning(records: Iterable[PriceRecord], device: str, choice: PriceChoice) -> str:
    """Return the warning for a device without a price: what was asked for, and the offers there are."""
    offers = sorted(
        {f"{r.provider} {r.commitment}" for r in records if r.device == device and r.quality != "doubtful"}
    )
    known = ", ".join(offers[:8]) if offers else "none"
    asked = f"{choice.commitment} price of {device}" + (
        "" if choice.provider == "any" else f" at {choice.provider}"
    )
    return f"no {asked} is known, so its cost is left out (known: {known}); give prices.per_gpu_hour.{device}"
