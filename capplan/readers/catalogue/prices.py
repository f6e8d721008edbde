"""Prices of devices: the lists that ship, those of users, and catalogues of SkyPilot."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from capplan.errors import InputError
from capplan.fleet.price import (
    ChosenPrice,
    PriceRecord,
    missing_price_warning,
    price_of,
    with_electricity,
)
from capplan.fleet.scenario import Purchase
from capplan.readers.catalogue.hardware import catalogue_name
from capplan.readers.catalogue.machine_catalogue import known_machines
from capplan.readers.catalogue.offer_terms import Commitment, Day, PageSource, Term
from capplan.readers.record import Record, UsdPerHour, validated
from capplan.readers.text_file import csv_rows, data_folder, read_text
from capplan.readers.yaml_file import Document, read_yaml

COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
_NAMES = {
    "a100": "a100-sxm-40gb", "a100-80gb": "a100-sxm-80gb", "a100-80gb-sxm": "a100-sxm-80gb", "h100": "h100-sxm",
    "h100-80gb": "h100-sxm", "h100-sxm": "h100-sxm", "h100-mega-80gb": "h100-sxm", "h200": "h200-sxm", "h200-sxm": "h200-sxm",
    "gh200": "gh200-96gb", "v100-32gb": "v100-sxm-32gb", "rtx6000-ada": "rtx-6000-ada", "rtxa6000": "rtx-a6000",
}  # fmt: skip
"""SkyPilot's accelerator -> ours, where they differ; without a word on the form, it is the SXM module."""
_MAX_BYTES = 64_000_000
_OTHER_MEMORY = {"v100"}
"""Names that may be a device of another memory size than ours."""


def skypilot_prices(
    path: str | os.PathLike[str], day: str
) -> tuple[tuple[PriceRecord, ...], tuple[str, ...]]:
    """Return the offers of a catalogue, on demand and spot, and what was left out.

    Parameters
    ----------
    path : path; the folder it lies in names the provider, as in SkyPilot's repository
    day : of the prices, which the file does not state

    Returns
    -------
    offers per device and hour; remarks on accelerators that the catalogue of devices lacks
    """
    name = os.fspath(path)
    rows = csv_rows(read_text(path, kind="a catalogue CSV of SkyPilot", max_bytes=_MAX_BYTES), name)
    missing = [column for column in COLUMNS if rows and column not in rows[0]]
    if missing:
        raise InputError(
            f"{name}: has no column {missing[0]}; a catalogue CSV of SkyPilot has {', '.join(COLUMNS)}"
        )
    folder = Path(path).resolve().parent.name
    records: list[PriceRecord] = []
    unknown: Counter[str] = Counter()
    for number, row in enumerate(rows, start=2):
        accelerator = (row["AcceleratorName"] or "").strip()
        device = _device_name(accelerator) if accelerator else None
        if accelerator and device is None:
            unknown[accelerator] += 1
        elif device is not None:
            records += _offers(
                row, device, f"{name}: line {number}", {"provider": folder, "day": day, "source": name}
            )
    if not records:
        raise InputError(f"{name}: has no offer of a device in the catalogue; capplan hardware lists them")
    most = ", ".join(accelerator for accelerator, _ in unknown.most_common(6))
    left_out = (
        f"{name}: {unknown.total():,} offers of devices that are not in the catalogue are left out: {most}"
    )
    return tuple(records), (left_out,) if unknown else ()


def _device_name(accelerator: str) -> str | None:
    """Return the catalogue name of an accelerator; None where it is not known."""
    lower = accelerator.lower()
    return None if lower in _OTHER_MEMORY else catalogue_name(_NAMES.get(lower, lower))


def _offers(
    row: Mapping[str, str | None], device: str, place: str, of: Mapping[str, str]
) -> Iterator[PriceRecord]:
    count = _number(row["AcceleratorCount"], f"{place}: AcceleratorCount")
    if count is None or not count.is_integer():
        return  # a part of a device is no device
    for column, commitment in (("Price", "on-demand"), ("SpotPrice", "spot")):
        usd = _number(row[column], f"{place}: {column}")
        if usd is not None:
            yield PriceRecord(
                device=device, provider=of["provider"], commitment=commitment, usd_per_hour=usd / count, source=of["source"],
                sku=row["InstanceType"], devices=int(count), region=row["Region"] or None, date=of["day"],
            )  # fmt: skip


def _number(text: str | None, place: str) -> float | None:
    """Return a price or a count above zero; None for an empty cell or a zero."""
    if text is None or not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{place}: {text[:40]!r} is not a number") from None
    if not 0.0 <= value < 1e6:
        raise InputError(f"{place}: {text[:40]!r} is out of range")
    return value or None


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
    """Price of the whole instance."""
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
    """Currency of the prices in the file; left out: dollars."""

    sources: dict[str, PageSource]
    prices: Annotated[list[Offer], Field(min_length=1)]

    @model_validator(mode="after")
    def _every_source_exists(self) -> "PriceFile":
        missing = sorted({offer.source for offer in self.prices} - self.sources.keys())
        if missing:
            raise ValueError(f"the source {missing[0]!r} is used but not listed under 'sources'")
        return self


def _in_dollars(document: Document) -> Document:
    """Return a price file with its prices in dollars; what is not written in its currency stays, and is rejected by a later check."""
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


def records_of(scenario: Purchase) -> tuple[tuple[PriceRecord, ...], tuple[str, ...]]:
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
    """Return the offers that ship with the package: those of the price list, and the dated ones of the machines that providers sell."""
    return (*read_prices(data_folder("hardware_specs") / "prices.yaml"), *_machine_offers())


def _machine_offers() -> Iterator[PriceRecord]:
    """Yield what the machines of the catalogue cost per device; an undated price of a machine says nothing of today's."""
    for known in known_machines():
        machine = known.record
        for offer in machine.offers:
            if offer.date is not None:
                yield PriceRecord(
                    machine.device,
                    known.provider,
                    offer.commitment,
                    offer.price / machine.gpus,
                    known.sources[offer.source],
                    machine.sku,
                    machine.gpus,
                    offer.region,
                    offer.date,
                )


def scenario_prices(scenario: Purchase) -> tuple[dict[str, ChosenPrice | None], tuple[str, ...]]:
    """Return the price of each device that a scenario allows, and the warnings.

    Parameters
    ----------
    scenario : Purchase

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
    chosen: dict[str, ChosenPrice | None], scenario: Purchase
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
        name
        for name, price in powered.items()
        if price and price.records and not (scenario.price_file is not None and price.commitment == "owned")
    ]
    if listed:
        warnings.append(
            f"listed prices include electricity, which is added again ({', '.join(listed)}); "
            "leave out prices.electricity, or give what your own hardware costs without it: prices.per_gpu_hour"
        )
    return powered, warnings
