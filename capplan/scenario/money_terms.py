"""The keys of a scenario about money -> plain values in base units: terms, offers that are paid, host memory, growth."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import isclose

import numpy as np

from capplan.errors import InputError
from capplan.fleet.growth import grown_ratios
from capplan.fleet.plan import Plan
from capplan.hardware.device import Device
from capplan.money.ledger import BudgetTerms
from capplan.money.price import ANY_PROVIDER, OtherPrices, Prices
from capplan.readers.catalogue.hardware import device, normalised
from capplan.readers.catalogue.prices import price_records, read_prices
from capplan.readers.yaml_file import KeyPath
from capplan.scenario.reading import MOST_RATE_PER_S, Reading
from capplan.scenario.scenario_file import (
    Budget,
    Growth,
    Scenario,
    ScenarioFile,
)
from capplan.workload.request_class import RequestClass


def budget_terms(reading: Reading, record: Budget | None, prices: Prices) -> BudgetTerms | None:
    """Return the budget of a scenario, None without one; what it includes has to have a price."""
    if record is None:
        return None
    at: KeyPath = ("budget", "includes")
    priced = {
        "people": prices.people_usd_per_month,
        "overhead": prices.overhead,
        "other": prices.other != OtherPrices(),
    }
    for name in record.includes:
        if not priced[name]:
            reading.reject(at, f"{name} is included, and prices.{name} is not given")
    if "people" in record.includes and prices.people_usd_per_month >= record.usd_per_month:
        what = (
            f"people cost ${prices.people_usd_per_month:,.0f} per month, which leaves nothing of the budget of "
            f"${record.usd_per_month:,.0f} for machines"
        )
        reading.reject(at, what)
    return BudgetTerms(record.usd_per_month, tuple(dict.fromkeys(record.includes)))


def note_other_prices(reading: Reading, prices: Prices) -> None:
    """State the defaults of prices.other."""
    other = prices.other
    if other.defaults:
        what = ", ".join((*other.assumed, *(("people",) if prices.people_assumed else ())))
        reading.assume(
            f"prices of the order of large clouds' lists for {what}", "prices.other, prices.people"
        )


def note_odd_money(reading: Reading, file: ScenarioFile) -> None:
    """Note what contradicts itself in the keys about money."""
    section = file.commitments
    if all(item.requests is not None for item in file.traffic):
        for key in ("commitments", "budget"):
            if getattr(file, key) is not None:
                what = "is for continuous traffic; a batch job is paid until it is done, so leave it out"
                reading.reject((key,), what)
    least, most = (section.min_replicas or 1, section.max_replicas) if section else (1, None)
    if most is not None and most < least:
        reading.reject(("commitments", "max_replicas"), f"{most} is below min_replicas of {least}")
    stated = file.prices.file or ""
    if file.prices.date is not None and not stated.lower().endswith(".csv"):
        what = "no prices.file needs it: every price of a YAML has its own date, and a catalogue CSV of SkyPilot has none"
        reading.reject(("prices", "date"), what)


def _provider(reading: Reading, prices: Prices) -> str:
    if prices.provider is None or normalised(prices.provider) == ANY_PROVIDER:
        if prices.provider is None:
            reading.assume("prices of any provider, the median offer", "prices.provider")
        return ANY_PROVIDER
    if prices.file and prices.file.lower().endswith(".csv"):
        return prices.provider  # the file has one provider, whatever its name
    offers = read_prices(reading.resolved(prices.file)) if prices.file else price_records()
    known = {normalised(offer.provider): offer.provider for offer in offers}
    provider = known.get(normalised(prices.provider))
    if provider is None:
        names = {ANY_PROVIDER, *(name.lower() for name in known.values())}
        raise reading.unknown("provider", prices.provider, names, ("prices", "provider"))
    return provider


def named_prices(reading: Reading, prices: Prices, allowed: Sequence[Device]) -> Prices:
    """Return the prices of a scenario with the names that the catalogue has for its provider and its devices.

    Parameters
    ----------
    reading : of the scenario
    prices : as the scenario states them
    allowed : devices of the scenario, which may come from a file
    """
    if prices.commitment is None:
        reading.assume(f"{prices.paid_as} prices", "prices.commitment")
    per_gpu_hour: dict[str, float] = {}
    names = {item.name for item in allowed}
    for name, usd in prices.per_gpu_hour.items():
        try:
            per_gpu_hour[name if name in names else device(name).name] = usd
        except InputError as error:
            at: KeyPath = ("prices", "per_gpu_hour", name)
            reading.reject(at, str(error))
    provider = reading.attempt(partial(_provider, reading, prices), ANY_PROVIDER, ("prices", "provider"))
    reading.attempt(partial(_assume_electricity, reading, prices), None, ("prices",))
    return replace(prices, provider=provider, per_gpu_hour=per_gpu_hour)


def _assume_electricity(reading: Reading, prices: Prices) -> None:
    """State what the price of electricity adds to which prices; the ratio of a building without one is rejected."""
    ratio, usd = prices.facility_ratio, prices.electricity
    if usd is None:
        if ratio is not None:
            raise reading.refuse(
                ("prices", "facility_ratio"),
                "multiplies electricity, and none is given; e.g. electricity: 0.12 $/kWh, or leave facility_ratio out",
            )
        return
    reading.assume(
        f"electricity at {usd:g} $/kWh is added to the price, for the thermal design power of all devices, spares included, "
        "at all hours; nothing for hosts and switches",
        "prices.electricity",
    )
    if ratio is None:
        reading.assume(
            f"facility ratio of {prices.power_ratio:g}: nothing for cooling and losses",
            "prices.facility_ratio",
        )


HOST = "host"
"""The tier that is main memory of the servers; others are disks or other machines."""


def host_bytes(scenario: Scenario) -> float:
    """Return the host memory that offload tiers add to every replica that reads prompts [B]."""
    return sum(tier.capacity_bytes for tier in scenario.kv_offload if tier.name == HOST)


def memory_usd_per_month(scenario: Scenario, plan: Plan) -> float:
    """Return the cost of that memory for all replicas of a plan, spares included [$]; 0 without a price."""
    price = scenario.file.prices.host_memory_per_gb or 0.0
    return price * host_bytes(scenario) * 1e-9 * plan.prefilling_replicas


MONTHS = 12
"""Months to look ahead where a scenario states a growth and no number of months."""
MOST_MONTHS = 120


def growth_ratios(
    reading: Reading, record: Growth | None, classes: tuple[RequestClass, ...]
) -> tuple[float, ...]:
    """Return the traffic of successive months over today's; empty where no growth is stated."""
    if record is None:
        return ()
    ratios = _by_month(reading, record) if record.rates is None else _of_rates(reading, record, classes)
    key = "per_month" if record.rates is None else "rates"
    # Of a file with mistakes, today's rates may be missing.
    now = 0.0 if reading.mistakes else sum(item.request_rate_at() for item in classes)
    month = int(np.argmax(ratios))
    if now * ratios[month] > MOST_RATE_PER_S:
        raise reading.refuse(
            ("growth", key),
            f"leads to {now * ratios[month]:.3g} req/s in month {month + 1}, which no service has; give less growth",
        )
    return ratios


def _by_month(reading: Reading, record: Growth) -> tuple[float, ...]:
    """Return the ratios of a growth by the same part each month."""
    if record.months is None:
        reading.assume(f"growth is followed for {MONTHS} months", "growth.months")
    return tuple(grown_ratios(record.per_month or 0.0, record.months or MONTHS).tolist())


def _of_rates(reading: Reading, record: Growth, classes: tuple[RequestClass, ...]) -> tuple[float, ...]:
    """Return the stated rates over the first; refused where a month is missing, or the first is not today's traffic."""
    at: KeyPath = ("growth", "rates")
    rates = record.rates or {}
    months = {str(month) for month in range(1, MOST_MONTHS + 1)}
    wrong = next((month for month in rates if month not in months), None)
    if wrong is not None:
        raise reading.refuse(
            (*at, wrong),
            f"{wrong!r} is not a month; months are counted from 1, today's, to {MOST_MONTHS}",
        )
    by_month = {int(month): rate for month, rate in rates.items()}
    last = max(by_month, default=0)
    gap = next((month for month in range(1, last + 1) if month not in by_month), None)
    if gap is not None or last < 2:
        missing = f"month {gap or 2} is missing"
        raise reading.refuse(at, f"has a gap: {missing}; give every month from 1 on, at least two")
    if reading.mistakes or any(item.users for item in classes):
        return tuple(by_month[month] / by_month[1] for month in range(1, last + 1))
    today = sum(item.request_rate_at() for item in classes)
    if not isclose(by_month[1], today, rel_tol=0.01):
        raise reading.refuse(
            (*at, "1"),
            f"{by_month[1]:.3g} req/s is not today's traffic, whose peak is {today:.3g} req/s; month 1 is today's",
        )
    return tuple(by_month[month] / by_month[1] for month in range(1, last + 1))
