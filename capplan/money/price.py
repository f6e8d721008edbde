"""Prices: cost formulas, and the choice of a price for a device."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from math import inf
from statistics import median_low
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias, TypeVar

from capplan.assumption import Assumption
from capplan.hardware.device import Device
from capplan.keys import (
    ONLY_KNOWN_KEYS,
    Bytes,
    Commitment,
    Counted,
    Day,
    FacilityRatio,
    Fraction,
    Limits,
    Term,
    Usd,
    UsdPerHour,
    UsdPerKwh,
    UsdPerMonth,
)
from capplan.money.order import (
    NO_LOSS,
    OWN,
    Machine,
    Order,
    OrderLine,
    Survival,
    machines_at_median,
    most_busy_on,
    order_of,
    orders_by_provider,
)
from capplan.numbers import Number

HOURS_PER_MONTH = 730.0
"""Hours of an average month, 365 x 24 / 12; the convention of cloud price calculators."""

Side: TypeAlias = Literal["low", "likely", "high"]
"""Side of the range of offers."""
SIDES: tuple[Side, ...] = ("low", "likely", "high")
OLD_DAYS = 90
"""Age from which a price is flagged: of a GPU, a machine or a hosted API."""
MAX_AGE_DAYS = 180
"""Offers that are older than the newest one of their device by more than this are ignored."""
MAX_AGE_DAYS_OF_TERMS = 365
"""Age that an offer of a fixed term of years may have instead, since fewer providers publish them."""
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
    Goldberg 1991, "What every computer scientist should know about floating-point arithmetic", section 1.2.
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
    list_price: UsdPerHour | None = None
    """Price of the list for the whole instance, if the price has a discount of one's own."""

    @property
    def usd_per_hour(self) -> float:
        """Return the price of one device [$/h]."""
        return self.price / self.devices

    @property
    def discounted_ratio(self) -> float:
        """Return the price that is paid, divided by the list price; below 1 with a discount."""
        return self.price / (self.list_price or self.price)

    def shared(self, share: float) -> "PriceRecord":
        """Return the offer for a share of the instance, such as a slice of a device."""
        listed = None if self.list_price is None else self.list_price * share
        return replace(self, price=self.price * share, list_price=listed)


Dated = TypeVar("Dated", PriceRecord, Machine)

ANY_PROVIDER = "any"
ASSUMED_OTHER: Mapping[str, float] = MappingProxyType({
    "egress_per_gb": 0.09, "load_balancers": 50.0, "weights_per_gb": 0.023, "cpu_nodes": 3, "cpu_node": 150.0, "support": 0.1,
    "cross_zone_per_gb": 0.02, "logs_per_gb": 0.5, "staging": 0.1,
})  # fmt: skip
"""Prices of the costs of a service other than its GPUs, where prices.other asks for defaults: the order of the lists of large clouds (an assumption)."""
ASSUMED_PEOPLE_USD_PER_MONTH = 15_000.0
"""One engineer, where prices.other asks for defaults and prices.people says nothing (an assumption)."""


@dataclass(frozen=True, slots=True)
class OtherPrices:
    """Prices of costs of a service other than GPUs, each a line of its total cost."""

    __pydantic_config__ = ONLY_KNOWN_KEYS
    defaults: bool = False
    """Whether assumed prices stand for those that are not stated, prices.people included."""
    egress_per_gb: Usd | None = None
    """Price of a gigabyte that leaves the provider."""
    bytes_per_token: Bytes = 300.0
    """Bytes that leave for one output token: an event of a stream, 300 B if not stated."""
    load_balancers: UsdPerMonth | None = None
    """Price of all load balancers."""
    weights_per_gb: UsdPerMonth | None = None
    """Price of a gigabyte of the checkpoint in storage."""
    cpu_nodes: Annotated[int, Counted(0, 100_000)] | None = None
    """Number of nodes without GPUs: gateways, control plane, monitoring."""
    cpu_node: UsdPerMonth | None = None
    """Price of such a node."""
    support: Fraction | None = None
    """Support plan of the provider, as a share of the price of the machines."""
    cross_zone_per_gb: Usd | None = None
    """Price of a gigabyte between two zones, both directions together."""
    other_zone_fraction: Fraction = 2.0 / 3.0
    """Share of prompts and streamed output that a replica in another zone serves: of three zones, two."""
    logs_per_gb: Usd | None = None
    """Price of a gigabyte of logs, which keep every prompt and response."""
    text_bytes_per_token: Bytes = 4.0
    """Bytes of text of one token, in prompts and in logs."""
    staging: Fraction | None = None
    """Machines for development and staging, as a share of the price of the machines."""

    @property
    def assumed(self) -> tuple[str, ...]:
        """Return the keys whose price is a default."""
        return tuple(key for key in ASSUMED_OTHER if self.defaults and getattr(self, key) is None)

    def price(self, key: str) -> float:
        """Return a price as it is stated or assumed; zero: it costs nothing, or nobody asked for it."""
        stated: float | None = getattr(self, key)
        return ASSUMED_OTHER[key] if key in self.assumed else stated or 0.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Which prices to use: the offers that a scenario accepts, electricity, and what else a service costs."""

    __pydantic_config__ = ONLY_KNOWN_KEYS
    commitment: Commitment | Term | None = None
    """How the machines are paid for; community: hosts that the provider does not vouch for; owned: your own hardware."""
    provider: str | None = None
    """A provider, or any: the median of all offers."""
    region: str | None = None
    """Region, as the provider names it; offers without a region are included."""
    per_gpu_hour: dict[str, UsdPerHour] = field(default_factory=dict)
    """Your own price by hardware name."""
    file: str | None = None
    """Your own price YAML, or a catalogue CSV of SkyPilot with its date, relative to this file."""
    date: Day | None = None
    """Date of the prices in a file that states none."""
    electricity: UsdPerKwh | None = None
    """Price of electricity for hardware you own: added to the price, for the thermal design power of every device, spares included.
    Leave it out where you rent: the price of a GPU-hour includes it."""
    facility_ratio: FacilityRatio | None = None
    """Power usage effectiveness: power of the building, divided by the power of the devices; needs electricity."""
    people: UsdPerMonth | None = None
    """Cost of the staff that runs the fleet, for `capplan compare`."""
    overhead: Fraction = 0.0
    """Overhead on the price of the machines, for `capplan compare`: storage, network, support."""
    other: OtherPrices = field(default_factory=OtherPrices)
    """Costs of the service other than GPUs: egress, load balancers, storage of weights, CPU nodes, support."""
    host_memory_per_gb: UsdPerMonth | None = None
    """Price of a gigabyte of host memory in an offload tier named host, if the price of the machines does not include it."""

    @property
    def paid_as(self) -> Commitment | Term:
        """Return how the machines are paid for; on demand if nothing is stated."""
        return self.commitment or ON_DEMAND

    @property
    def seller(self) -> str:
        """Return the provider, or any."""
        return self.provider or ANY_PROVIDER

    @property
    def power_ratio(self) -> float:
        """Return the power of the building over that of the devices [-]; 1 if nothing is stated: nothing for cooling and losses."""
        return 1.0 if self.facility_ratio is None else self.facility_ratio

    @property
    def people_assumed(self) -> bool:
        """Return whether the price of the people is a default."""
        return self.other.defaults and self.people is None

    @property
    def people_usd_per_month(self) -> float:
        """Return what people cost, as it is stated or assumed."""
        return ASSUMED_PEOPLE_USD_PER_MONTH if self.people_assumed else self.people or 0.0


@dataclass(frozen=True, slots=True)
class ChosenPrice:
    """The price chosen for one device, and its origin: of a GPU, and the machines in which it is sold."""

    usd_per_hour: float
    """Price of one GPU: of the machines of an order, or by the GPU."""
    commitment: Commitment | Term
    records: tuple[PriceRecord, ...]
    """The offer that the price is of; empty for a price from the scenario."""
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
    at_one_provider: bool = False
    """Whether an order is placed at the provider of the lower median price; otherwise it takes the cheapest of all machines."""
    newest_day: str | None = None
    """Day of the newest of the offers; None for a price from the scenario, or without any date."""

    def order(
        self,
        replica_gpus: int,
        node_gpus: int,
        busy: int,
        survive: Survival = NO_LOSS,
        side: Side = "likely",
    ) -> Order | None:
        """Return the order that holds some replicas and survives what it has to; None if no machine holds one, or if too few may be ordered.

        It is the cheapest order of the machines of `sold`. The low and the high side are the cheapest orders at the cheapest and at the
        dearest provider. GPUs by the piece of a replica share a machine, and no two replicas do.
        """
        size = (replica_gpus, node_gpus, busy, survive, self.energy_usd_per_hour or 0.0)
        if self.is_by_the_gpu(replica_gpus):
            return self._pieces(replica_gpus, busy, survive, side)
        orders: tuple[Order, ...] = ()
        if self.at_one_provider and self.is_sold_by_lots:
            orders = orders_by_provider(self.machines, *size)
            likely = orders[(len(orders) - 1) // 2] if orders else None
        else:
            likely = order_of(self.sold(replica_gpus, node_gpus), *size)
        if side == "likely" or likely is None:
            return likely
        orders = (likely, *(orders or orders_by_provider(self.machines, *size)))
        return (min if side == "low" else max)(orders, key=lambda order: order.usd_per_hour)

    def sold(self, replica_gpus: int, node_gpus: int) -> tuple[Machine, ...]:
        """Return the machines of which a replica is ordered: those of the provider of the lower median price, or all that a scenario names.

        The lower median is a price that somebody lists, and that half of the providers do not undercut. Where a machine is sold in lots,
        the provider depends on the size of the order, and these are the machines of all of them.
        """
        if not self.at_one_provider or self.is_sold_by_lots:
            return self.machines
        return machines_at_median(self.machines, replica_gpus, node_gpus)

    @property
    def is_sold_by_lots(self) -> bool:
        """Whether some of the machines are sold several at once."""
        return any(item.sold_by > 1 for item in self.machines)

    def by_the_machine(self) -> "ChosenPrice":
        """Return the price of a part of an order, which pays for its own machines and not for the rest of a lot."""
        if not self.is_sold_by_lots:
            return self
        return replace(self, machines=tuple(replace(item, sold_by=1) for item in self.machines))

    def is_by_the_gpu(self, replica_gpus: int) -> bool:
        """Return whether a replica has GPUs by the piece: no machine is known, or lists have only single GPUs of larger hosts."""
        return not self.machines or (
            self.at_one_provider and replica_gpus > 1 and all(item.gpus == 1 for item in self.machines)
        )

    def _pieces(self, replica_gpus: int, busy: int, survive: Survival, side: Side) -> Order:
        """Return an order of GPUs by the piece at the offer of a side."""
        offer = {"low": self.lowest, "likely": None, "high": self.highest}[side]
        offer = offer or next(iter(self.records), None)
        if offer is None:
            piece = Machine("the scenario", "", "", 1, self.usd_per_hour)
        else:
            piece = Machine(
                offer.provider,
                "",
                offer.device,
                1,
                offer.usd_per_hour,
                offer.region,
                offer.date,
                offer.source,
            )
        spares = survive.least_spares(busy)
        replicas = busy + spares
        return Order((OrderLine(piece, replicas * replica_gpus, replicas, replica_gpus),), busy, spares)

    def order_usd_per_hour(
        self, replica_gpus: int, node_gpus: int, busy: int, side: Side = "likely", survive: Survival = NO_LOSS
    ) -> float:
        """Return the price of the order of some replicas, with electricity [$/h]; infinite if there is none."""
        return self.usd_per_hour_of(self.order(replica_gpus, node_gpus, busy, survive, side))

    def usd_per_hour_of(self, order: Order | None) -> float:
        """Return the price of an order, with electricity [$/h]; infinite if there is none."""
        if order is None:
            return inf
        return order.usd_per_hour + (self.energy_usd_per_hour or 0.0) * order.gpus

    def of_order(self, replica_gpus: int, node_gpus: int, busy: int, survive: Survival) -> "ChosenPrice":
        """Return the price of a GPU in the order of some replicas: what its machines cost over their GPUs, in the range of all providers."""
        size = (replica_gpus, node_gpus, busy, survive)
        low, likely, high = (self.order(*size, side) for side in SIDES)
        if low is None or likely is None or high is None or self.is_by_the_gpu(replica_gpus):
            return self
        paid = tuple(_offer_of(order, self.commitment) for order in (low, likely, high))
        if paid[1] is None:
            return replace(self, usd_per_hour=0.0, records=(), offers=0, lowest=None, highest=None)
        return replace(
            self,
            usd_per_hour=paid[1].usd_per_hour,
            records=(paid[1],),
            offers=len(orders_by_provider(self.machines, *size)),
            lowest=paid[0],
            highest=paid[2],
            newest_day=paid[1].date,
        )

    def spares(self, replica_gpus: int, node_gpus: int, busy: int, survive: Survival) -> int:
        """Return the spare replicas of the order; as few as any order has if there is none."""
        order = self.order(replica_gpus, node_gpus, busy, survive)
        return survive.least_spares(busy) if order is None else order.spares

    def most_busy(self, replica_gpus: int, node_gpus: int, survive: Survival) -> float:
        """Return how many replicas may carry the peak on the machines that may be ordered; infinite without a limit."""
        if self.is_by_the_gpu(replica_gpus):
            return inf
        return most_busy_on(self.sold(replica_gpus, node_gpus), replica_gpus, node_gpus, survive)

    def least_usd_per_hour(self, replica_gpus: int, node_gpus: int, gpus: float) -> float:
        """Return a lower bound on the price of any order of such replicas with this many used GPUs, with electricity [$/h].

            h = (g - o) min_i (p_i / g_i) + g e

        Returns
        -------
        [$/h]
            h: g GPUs, of which o are there already; machines i of g_i GPUs at p_i, electricity e of a GPU
        """
        energy = (self.energy_usd_per_hour or 0.0) * gpus
        if self.is_by_the_gpu(replica_gpus):
            return self.usd_per_hour * gpus + energy
        machines = self.sold(replica_gpus, node_gpus)
        there = sum((item.most or 0) * item.gpus for item in machines if item.usd_per_hour == 0.0)
        each = min(
            (item.usd_per_hour / item.gpus for item in machines if item.usd_per_hour > 0.0), default=inf
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
        named = self.machines and not self.at_one_provider
        return f"{'cheapest' if named else 'median'} of {self.offers} offers"

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


def _offer_of(order: Order, commitment: Commitment | Term) -> PriceRecord | None:
    """Return what is to be paid of an order as one offer, as old as its oldest price; None if all of it is there already."""
    lines = [line for line in order.lines if line.machine.provider != OWN]
    if not lines:
        return None
    first = max(lines, key=lambda line: line.count * line.machine.gpus).machine
    dates = [line.machine.date for line in lines]
    return PriceRecord(
        device=first.device,
        provider=" and ".join(dict.fromkeys(line.machine.provider for line in lines)),
        commitment=commitment,
        price=sum(line.count * line.machine.usd_per_hour for line in lines),
        source=first.source,
        date=None if None in dates else min(dates, key=lambda written: _day(written) or date.min),
        sku=first.sku,
        devices=sum(line.count * line.machine.gpus for line in lines),
        region=first.region,
    )  # fmt: skip


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


def _newest(records: Iterable[PriceRecord]) -> PriceRecord:
    """Return the newest offer, the cheapest one of a tie."""
    return max(records, key=lambda record: (_day(record.date) or date.min, -record.usd_per_hour))


def recent(offers: Iterable[Dated], most_days: int = MAX_AGE_DAYS) -> list[Dated]:
    """Return the offers that are at most some days older than the newest; all of them if none has a date."""
    offers = list(offers)
    days = [day for offer in offers if (day := _day(offer.date))]
    if not days:
        return offers
    newest = max(days)
    return [offer for offer in offers if (day := _day(offer.date)) and (newest - day).days <= most_days]


def _on_common_terms(
    offers: Sequence[PriceRecord], records: Sequence[PriceRecord], device: str, choice: Prices
) -> list[PriceRecord]:
    """Return offers of a fixed term as they compare with the price on demand.

        p = d r / o

    A provider that rents the same machine on demand at o and for the term at r takes a discount off its own price; p is what that
    discount leaves of the price on demand d. An offer without a price on demand, such as an index of the market, counts as it is.
    """
    rented = choose_price(records, device, replace(choice, commitment=ON_DEMAND, per_gpu_hour={}))
    listed = [r for r in records if r.device == device and r.commitment == ON_DEMAND and r.quality == "list"]

    def on_common(offer: PriceRecord) -> PriceRecord:
        same = [r for r in listed if r.provider == offer.provider]
        nearest = [
            r for r in same if (r.sku, r.devices, r.region) == (offer.sku, offer.devices, offer.region)
        ]
        if rented is None or not (near := nearest or same):
            return offer
        return replace(offer, price=rented.usd_per_hour * offer.price / _newest(near).usd_per_hour)

    return [on_common(offer) for offer in offers]


def matching_offers(records: Iterable[PriceRecord], device: str, choice: Prices) -> list[PriceRecord]:
    """Return the offers of a device with the required commitment, provider and region; estimates only if no provider lists a price."""
    wanted = _simple(choice.seller)
    matching = [
        record
        for record in records
        if record.device == device
        and record.commitment == choice.paid_as
        and (
            wanted == ANY_PROVIDER
            or wanted in (_simple(record.provider), _simple(record.provider.split(",")[0]))
        )
        and (choice.region is None or record.region in (None, choice.region))
        and record.quality != "doubtful"
    ]
    return [record for record in matching if record.quality == "list"] or matching


def accepted_offers(records: Sequence[PriceRecord], device: str, choice: Prices) -> list[PriceRecord]:
    """Return the offers that the price of a device is taken from, cheapest first.

    Of those that match it is the newest offer of each provider (the cheapest one of a tie), without those over MAX_AGE_DAYS older
    than the newest of all. Offers of a fixed term count by the discount of their provider.
    """
    usable = matching_offers(records, device, choice)
    of_term = choice.paid_as in TERM_YEARS
    if of_term:
        usable = _on_common_terms(usable, records, device, choice)
    providers = {record.provider for record in usable}
    newest = [_newest(record for record in usable if record.provider == name) for name in providers]
    return recent(
        sorted(newest, key=lambda record: (record.usd_per_hour, record.provider)),
        MAX_AGE_DAYS_OF_TERMS if of_term else MAX_AGE_DAYS,
    )


def choose_price(records: Sequence[PriceRecord], device: str, choice: Prices) -> ChosenPrice | None:
    """Return the price of a device, or None if no offer matches.

    A price that the scenario states wins. Otherwise the price is the lower median of the accepted offers, so that it is an actual
    offer. It is a price by the GPU: what machines cost is in their orders.

    Parameters
    ----------
    records : offers
    device : catalogue name
    choice : commitment, provider, region and stated prices

    Returns
    -------
    ChosenPrice, or None; an unknown price is never zero
    """
    if device in choice.per_gpu_hour:
        usd = choice.per_gpu_hour[device]
        stated = Assumption(
            f"{device} costs {usd:.2f} $/h, as the scenario says", f"prices.per_gpu_hour.{device}"
        )
        return ChosenPrice(usd, choice.paid_as, (), 0, None, None, stated)
    offers = accepted_offers(records, device, choice)
    if not offers:
        return None
    usd = median_low([offer.usd_per_hour for offer in offers])
    chosen = next(offer for offer in offers if offer.usd_per_hour == usd)
    estimate = chosen.quality == "estimate"
    what = f"{device} costs {usd:.2f} $/h {choice.paid_as}{' (an estimate)' if estimate else ''}"
    return ChosenPrice(
        usd_per_hour=usd,
        commitment=choice.paid_as,
        records=(chosen,),
        offers=len(offers),
        lowest=offers[0],
        highest=offers[-1],
        assumption=Assumption(
            f"{what}: {_origin(offers, chosen, named=choice.seller != ANY_PROVIDER)}",
            f"prices.provider, or prices.per_gpu_hour.{device}",
        ),
        warning=f"no listed {choice.paid_as} price of {device}; an estimate is used" if estimate else None,
        newest_day=max(
            (offer.date for offer in offers if offer.date),
            key=lambda written: _day(written) or date.min,
            default=None,
        ),
    )


def price_of(records: Sequence[PriceRecord], device: Device, choice: Prices) -> ChosenPrice | None:
    """Return the price of a device, or None if no offer matches; of a slice its part of the price of the whole device.

    A slice without a price of its own costs 1/k of a device that is cut into k like it.
    """
    cut = device.partition
    if cut is None or device.name in choice.per_gpu_hour:
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
        records=tuple(record.shared(share) for record in whole.records),
        lowest=whole.lowest and whole.lowest.shared(share),
        highest=whole.highest and whole.highest.shared(share),
        assumption=replace(whole.assumption, what=f"{said}; {whole.assumption.what}"),
    )


PRICED_TERMS: tuple[Commitment | Term, ...] = (ON_DEMAND, "reserved-1y", "reserved-3y", "owned")
"""Ways to pay whose public prices an answer shows next to each other."""


def prices_by_term(records: Sequence[PriceRecord], device: Device, choice: Prices) -> tuple[ChosenPrice, ...]:
    """Return the public prices of a device by how long one commits to it, of all providers; empty if fewer than two ways to pay have one.

    Examples
    --------
    >>> from capplan.readers.catalogue.hardware import device
    >>> gpu = device("h100-sxm")
    >>> listed = [PriceRecord("h100-sxm", "a", "on-demand", 4.0, "page", "2026-10"), PriceRecord("h100-sxm", "b", "owned", 1.5, "page", "2026-04")]
    >>> [(price.commitment, price.usd_per_hour) for price in prices_by_term(listed, gpu, Prices())]
    [('on-demand', 4.0), ('owned', 1.5)]
    >>> prices_by_term(listed[:1], gpu, Prices())
    ()
    """
    every = replace(choice, provider=ANY_PROVIDER, region=None)
    found = (price_of(records, device, replace(every, commitment=term)) for term in PRICED_TERMS)
    known = tuple(price for price in found if price is not None)
    return known if len(known) > 1 and known[0].records else ()


def _origin(offers: Sequence[PriceRecord], chosen: PriceRecord, *, named: bool) -> str:
    """Return the origin of a price in words: provider, date, and the range of the other offers."""
    only = f"{chosen.provider}, {chosen.date or 'date unknown'}"
    if len(offers) > 1:
        low, high = offers[0].usd_per_hour, offers[-1].usd_per_hour
        return f"{only}; the median of {len(offers)} providers, {low:.2f} to {high:.2f}"
    return only if named else f"{only}; the only offer known"


def with_electricity(price: ChosenPrice, tdp_w: float, choice: Prices) -> ChosenPrice:
    """Return the price plus the electricity of the device at its thermal design power, if the scenario has a price for it."""
    if choice.electricity is None:
        return price
    usd = float(energy_usd_per_hour(tdp_w, choice.electricity, choice.power_ratio))
    return replace(price, energy_usd_per_hour=usd)


def missing_price_warning(records: Iterable[PriceRecord], device: str, choice: Prices) -> str:
    """Return the warning for a device without a price: what was asked for, and the offers there are."""
    offers = sorted(
        {f"{r.provider} {r.commitment}" for r in records if r.device == device and r.quality != "doubtful"}
    )
    known = ", ".join(offers[:8]) if offers else "none"
    asked = f"{choice.paid_as} price of {device}" + (
        "" if choice.seller == ANY_PROVIDER else f" at {choice.seller}"
    )
    return f"no {asked} is known, so its cost is left out (known: {known}); give prices.per_gpu_hour.{device}"
