"""The keys of a scenario about money: hosted APIs, commitments, currency, budget."""

from typing import Annotated, Literal

from pydantic import Field

from capplan.keys import (
    Bytes,
    Discount,
    Fraction,
    KgPerKwh,
    Number,
    RequestsPerS,
    Seconds,
    Usd,
    UsdOfBudget,
    UsdPerHour,
    UsdPerKwh,
    UsdPerMonth,
    Watts,
    Whole,
    Years,
)
from capplan.readers.catalogue.offer_terms import Day
from capplan.readers.record import Record


class OtherPrices(Record):
    """Prices of costs of a service other than GPUs, each a line of its total cost."""

    defaults: bool = False
    """Whether assumed prices stand for those that are not stated, prices.people included."""
    egress_per_gb: Usd | None = None
    """Price of a gigabyte that leaves the provider."""
    bytes_per_token: Bytes | None = None
    """Bytes that leave for one output token: an event of a stream, 300 B if not stated."""
    load_balancers: UsdPerMonth | None = None
    """Price of all load balancers."""
    weights_per_gb: UsdPerMonth | None = None
    """Price of a gigabyte of the checkpoint in storage."""
    cpu_nodes: Annotated[Whole, Field(ge=0, le=100_000)] | None = None
    """Number of nodes without GPUs: gateways, control plane, monitoring."""
    cpu_node: UsdPerMonth | None = None
    """Price of such a node."""
    support: Fraction | None = None
    """Support plan of the provider, as a share of the price of the machines."""


class Provisioned(Record):
    """Throughput that you rent from a hosted API by the hour, in units, instead of paying by the token."""

    price: UsdPerHour
    """Price of one unit."""
    tokens_per_minute: Number
    """Tokens that one unit takes: input that the cache does not have, and weighted output."""
    output_weight: Number | None = None
    """Input tokens that one output token counts as; 1 if not stated."""
    least: Number | None = None
    """Fewest units on sale; 1 if not stated."""
    step: Number | None = None
    """Units are sold in multiples of this; 1 if not stated."""


class Hosted(Record):
    """How hosted APIs are used, for `capplan compare`."""

    time_to_live: Seconds | None = None
    """Time that a cached prefix is kept after its last use."""
    prefixes: Number | None = None
    """Different shared prefixes, each with an equal part of the requests."""
    batch_fraction: Fraction | None = None
    """Share of the requests whose answer may take a day."""
    file: str | None = None
    """Your own token-price YAML, or the price file of LiteLLM or genai-prices with its date, relative to this file."""
    date: Day | None = None
    """Date of the prices in the file of LiteLLM or genai-prices, or of the package genai-prices, which state none."""
    discount: Discount | None = None
    """Your discount on every listed price."""
    surcharge: Fraction | None = None
    """Surcharge on every listed price, such as 10% for data residency."""
    service: Literal["standard", "flex", "priority"] | None = None
    """Service tier that requests are sent to; default: standard."""
    caching: Literal["cheapest", "default"] | None = None
    """Use of the prompt cache: in the cheapest way, or as the API does if requests ask for nothing; default: cheapest."""
    provisioned: Provisioned | None = None
    """Throughput that you rent by the hour, instead of paying by the token."""


class Reserved(Record):
    """A device rented for a fixed term: its price, its discount, or listed offers."""

    price: UsdPerHour | None = None
    """Price of one device."""
    discount: Discount | None = None
    """Discount on the price on demand."""
    upfront: Fraction = 0.0
    """Share of the whole term that is paid at its start."""


class Spot(Record):
    """Devices that may be taken away."""

    headroom: Fraction = 0.2
    """More of them than needed, for those that are interrupted."""
    most: Fraction = 0.5
    """Share of the replicas at the peak that may be spot."""


class Owned(Record):
    """Devices that are bought."""

    capex: Usd
    """Purchase price of one device, with its share of server, network and installation."""
    life: Years = 4.0
    """Time after which only `residual` is left of its value."""
    residual: Discount = 0.0
    """Share of the purchase that is left at the end of its life; nothing if not stated."""
    interest: Fraction = 0.08
    """Interest rate per year."""
    upkeep: Fraction = 0.05
    """Share of the purchase price per year for maintenance, space and insurance."""
    electricity: UsdPerKwh
    """Price of electricity for the device while it runs."""
    power: Watts | None = None
    """Power of a device in use, with its share of the server."""
    facility_ratio: Annotated[float, Field(ge=1, le=5)] = 1.0
    """Power of the building over that of the devices."""
    idle: Fraction = 1.0
    """Power of a device that waits, over that of one in use."""
    people: UsdPerMonth = 0.0
    """Cost of the staff that runs them, in all."""


class Commitments(Record):
    """Which commitments are allowed in addition to on-demand prices, and the limits of the autoscaler."""

    reserved_1y: Reserved | None = None
    """Terms of a reservation for one year; {} takes listed offers, else the assumed discount."""
    reserved_3y: Reserved | None = None
    """Terms of a reservation for three years."""
    spot: Spot | None = None
    """Terms of spot machines at listed prices; {} takes the defaults."""
    owned: Owned | None = None
    """Bought."""
    interest: Fraction = 0.0
    """Yearly cost of capital on the upfront parts of reservations; not counted if not stated."""
    min_replicas: Annotated[Whole, Field(ge=1, le=100_000)] | None = None
    """Fewest replicas that the autoscaler keeps."""
    max_replicas: Annotated[Whole, Field(ge=1, le=100_000)] | None = None
    """Most replicas that the autoscaler starts."""


class Currency(Record):
    """A currency in addition to dollars."""

    name: Annotated[str, Field(min_length=1, max_length=12)]
    """Name of the currency, as shown."""
    usd: Annotated[float, Field(ge=1e-6, le=1e6)]
    """Dollars that one unit of it costs."""


class Growth(Record):
    """How the traffic grows by the month: by the same part each month, or to stated rates."""

    per_month: Fraction | None = None
    """Growth from one month to the next."""
    months: Annotated[Whole, Field(ge=2, le=120)] | None = None
    """Months to look ahead, the current month included."""
    rates: dict[str, RequestsPerS] | None = None
    """Instead: month, 1 being today's, and peak rate of all traffic together."""


class MeasuredPower(Record):
    """Power of one device as measured, instead of parts of its thermal design power."""

    idle: Watts | None = None
    """Power of a device that waits."""
    decode: Watts | None = None
    """Power of a device in decode."""
    prefill: Watts | None = None
    """Power of a device in prefill."""


class Power(Record):
    """Power by phase, and what is around the devices; `capplan fleet` then shows energy, carbon dioxide and racks."""

    idle: Fraction | None = None
    """Power of a device that waits, over its thermal design power."""
    decode: Fraction | None = None
    """Power of a device in decode, over its thermal design power."""
    prefill: Fraction | None = None
    """Power of a device in prefill, over its thermal design power."""
    measured: MeasuredPower = Field(default_factory=MeasuredPower)
    """Measured power of a device, in watts, instead of idle, decode and prefill."""
    host: Fraction | None = None
    """Power of the servers around the devices at all times, over the thermal design power of the devices."""
    facility_ratio: Annotated[float, Field(ge=1, le=5)] | None = None
    """Power of the building over that of the servers."""
    grid: KgPerKwh | None = None
    """Carbon dioxide of the electricity."""
    rack_limit: Watts | None = None
    """Power of one rack."""
    gpus_per_server: Annotated[Whole, Field(ge=1, le=1024)] = 8
    """GPUs of one server, which a rack takes or does not take as a whole."""


class Budget(Record):
    """What the fleet may cost, a target like those of latency."""

    usd_per_month: UsdOfBudget
    """All devices, spares included: by the cheapest mix where commitments are named, else at the price of prices.commitment."""
    includes: list[Literal["people", "overhead", "other"]] = Field(default_factory=list)
    """What the budget pays for in addition to the machines: prices.people, prices.overhead, prices.other."""
