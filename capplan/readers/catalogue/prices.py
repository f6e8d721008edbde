"""The price lists that ship with the package, and those of users."""

import os
import re
from dataclasses import replace
from datetime import date
from functools import lru_cache
from typing import Annotated, Literal, LiteralString

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from capplan.errors import InputError
from capplan.fleet.price import (
    ChosenPrice,
    PriceRecord,
    missing_price_warning,
    price_of,
    with_electricity,
)
from capplan.fleet.scenario import Scenario
from capplan.readers.catalogue.skypilot import skypilot_prices
from capplan.readers.data_folder import data_folder
from capplan.readers.record import Record, UsdPerHour, validated
from capplan.readers.yaml_file import Document, read_yaml

Commitment = Literal["on-demand", "community", "spot", "reserved", "capacity-block", "owned"]
Term = Literal["reserved-1y", "reserved-3y"]
"""A reservation whose term is stated, in price files of users."""


_DAY = r"^20[0-9]{2}(-(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?)?$"
_NO_DAY: LiteralString = "is not a date; write it as 2026-11-01, 2026-11 or 2026"


def first_day(written: str, place: str = "") -> date:
    """Return the first day of a date that may be a year or a month.

    Examples
    --------
    >>> str(first_day("2026")), str(first_day("2026-03"))
    ('2026-01-01', '2026-03-01')
    """
    try:
        return date.fromisoformat(f"{written}-01-01"[:10] if re.fullmatch(_DAY, written) else "")
    except ValueError:
        where = f"{place}: " if place else ""
        raise InputError(f"{where}{written[:40]!r} {_NO_DAY}") from None


def _day(written: object) -> object:
    """Return a date as text; a year is a number in YAML."""
    text = str(written) if isinstance(written, int) else written
    if isinstance(text, str):
        try:
            first_day(text)
        except InputError:
            raise PydanticCustomError("day", _NO_DAY) from None
    return text


Day = Annotated[str, BeforeValidator(_day), WithJsonSchema({"type": "string", "pattern": _DAY})]


class PriceSource(Record):
    """Where prices were read."""

    title: str
    url: str


class Offer(Record):
    """A price offered by a provider."""

    device: str
    """Catalogue name."""
    provider: str
    sku: str | None = None
    """The provider's name for the instance."""
    devices: Annotated[int, Field(ge=1)] = 1
    """Devices in the instance."""
    region: str | None = None
    commitment: Commitment | Term
    price: UsdPerHour
    """Of the whole instance."""
    date: Day | None
    """When it was offered; null: unknown."""
    source: str
    """Key in `sources`."""
    quality: Literal["list", "estimate", "doubtful"] = "list"
    note: str | None = None


class FileCurrency(Record):
    """The currency of a price file."""

    name: str
    """As prices are written: EUR in 2.5 EUR/h."""
    usd: Annotated[float, Field(gt=0, le=1e6)]
    """Dollars that one unit of it costs."""


class PriceFile(Record):
    """Prices of devices by the hour."""

    currency: FileCurrency | None = None
    """Of the prices in the file; left out: dollars."""

    sources: dict[str, PriceSource]
    prices: Annotated[list[Offer], Field(min_length=1)]

    @model_validator(mode="after")
    def _every_source_exists(self) -> "PriceFile":
        missing = sorted({offer.source for offer in self.prices} - self.sources.keys())
        if missing:
            raise ValueError(f"the source {missing[0]!r} is used but not listed under 'sources'")
        return self


def _in_dollars(document: Document) -> Document:
    """Return a price file with its prices in dollars; what is not written in its currency stays, and is refused later."""
    value = document.value
    stated = value.get("currency") if isinstance(value, dict) else None
    if not isinstance(stated, dict) or not isinstance(value.get("prices"), list):
        return document
    name, usd = str(stated.get("name")), stated.get("usd")
    if isinstance(usd, bool) or not isinstance(usd, (int, float)):
        return document

    def converted(offer: object) -> object:
        text = offer.get("price") if isinstance(offer, dict) else None
        match = (
            re.fullmatch(rf"\s*([0-9.]+)\s*{re.escape(name)}(/.*)", text) if isinstance(text, str) else None
        )
        if not isinstance(offer, dict) or match is None:
            return offer
        return {**offer, "price": f"{float(match[1]) * usd!r} ${match[2]}"}

    return replace(document, value={**value, "prices": [converted(offer) for offer in value["prices"]]})


def records_of(scenario: Scenario) -> tuple[tuple[PriceRecord, ...], tuple[str, ...]]:
    """Return the offers that a scenario names, or those that ship, and remarks on those left out."""
    path = scenario.price_file
    if path is None:
        return price_records(), ()
    if not path.lower().endswith(".csv"):
        return read_prices(path), ()
    if scenario.price_date is None:
        raise InputError(
            f"{path}: states no date for its prices, and a price without a date cannot be used\n"
            "  say which day they are of: prices: {date: 2026-11-01}, or --set prices.date=2026-11-01"
        )
    return skypilot_prices(path, scenario.price_date)


def read_prices(path: str | os.PathLike[str]) -> tuple[PriceRecord, ...]:
    """Return the offers in a price YAML, per device and hour."""
    file = validated(PriceFile, _in_dollars(read_yaml(path, kind="a price YAML")))
    return tuple(
        PriceRecord(
            **offer.model_dump(exclude={"price", "source"}),
            usd_per_hour=offer.price / offer.devices,
            source=file.sources[offer.source].url,
        )
        for offer in file.prices
    )


@lru_cache(maxsize=1)
def price_records() -> tuple[PriceRecord, ...]:
    """Return the offers that ship with the package."""
    return read_prices(data_folder("hardware_specs") / "prices.yaml")


def scenario_prices(scenario: Scenario) -> tuple[dict[str, ChosenPrice | None], tuple[str, ...]]:
    """Return the price of each device that a scenario allows, and the warnings.

    Parameters
    ----------
    scenario : Scenario

    Returns
    -------
    device name -> ChosenPrice, None where no offer is known; and warnings
    """
    records, remarks = records_of(scenario)
    chosen = {device.name: price_of(records, device, scenario.prices) for device in scenario.fleet.devices}
    cut = {device.partition.device for device in scenario.fleet.devices if device.partition}
    others = [name for name in scenario.prices.overrides if name not in chosen and name not in cut]
    warnings = list(remarks)
    warnings += [f"prices.per_gpu_hour: fleet.hardware has no {', '.join(others)}"] if others else []
    for name, price in chosen.items():
        if price is None:
            warnings.append(missing_price_warning(records, name, scenario.prices))
        elif price.warning:
            warnings.append(price.warning)
    if scenario.prices.usd_per_kwh is None:
        return chosen, tuple(warnings)
    powered, more = _powered(chosen, scenario)
    return powered, (*warnings, *more)


def _powered(
    chosen: dict[str, ChosenPrice | None], scenario: Scenario
) -> tuple[dict[str, ChosenPrice | None], list[str]]:
    """Return the prices with the electricity of each device; a device of unknown power has no cost."""
    powered: dict[str, ChosenPrice | None] = {}
    warnings: list[str] = []
    for device in scenario.fleet.devices:
        price = chosen[device.name]
        if price is not None and device.tdp_w is None:
            warnings.append(
                f"the power of {device.name} is not known, so its electricity and its cost are left out; "
                "give chip.power in your own hardware YAML"
            )
            price = None
        powered[device.name] = (
            with_electricity(price, device.tdp_w or 0.0, scenario.prices) if price else None
        )
    listed = [
        name for name, price in powered.items() if price and price.records and not _is_own(price, scenario)
    ]
    if listed:
        warnings.append(
            f"listed prices include electricity, which is added again ({', '.join(listed)}); "
            "leave out prices.electricity, or give what your own hardware costs without it: prices.per_gpu_hour"
        )
    return powered, warnings


def _is_own(price: ChosenPrice, scenario: Scenario) -> bool:
    """Return whether a price is one that the scenario gives for owned hardware."""
    return scenario.price_file is not None and price.commitment == "owned"
