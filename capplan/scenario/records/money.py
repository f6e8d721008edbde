"""The keys of a scenario about money: hosted APIs, commitments, currency, budget."""

from typing import Annotated, Literal

from pydantic import Field

from capplan.keys import (
    Discount,
    Fraction,
    KgPerKwh,
    RequestsPerS,
    Usd,
    UsdOfBudget,
    UsdPerHour,
    UsdPerKwh,
    UsdPerMonth,
    Watts,
    Whole,
    Years,
)
from capplan.readers.record import Record


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
