"""Prices of devices from the lists that ship, those of users and catalogues of SkyPilot, and the machines that a scenario may order."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Annotated, get_args

from pydantic import Field, model_validator

from capplan.assumption import Assumption
from capplan.errors import InputError, unknown
from capplan.fleet.scenario import Purchase
from capplan.hardware.device import Device
from capplan.keys import Commitment, Term
from capplan.money.order import ANY_REGION, Machine, MachineLimits
from capplan.money.price import (
    ANY_PROVIDER,
    ChosenPrice,
    PriceRecord,
    matching_offers,
    missing_price_warning,
    price_of,
    recent,
    with_electricity,
)
from capplan.readers.catalogue.hardware import catalogue_name, normalised, sku_of
from capplan.readers.catalogue.offer_terms import KnownMachine, OwnFile, PageSource, known_machines, own_files
from capplan.readers.record import Record, refuse_unlisted, validated
from capplan.readers.text_file import csv_rows, data_folder, read_text
from capplan.readers.yaml_file import Document, read_yaml

COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
_NAMES = {"a100": "a100-sxm-40gb"}
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
    columns: tuple[tuple[str, Commitment], ...] = (("Price", "on-demand"), ("SpotPrice", "spot"))
    for column, commitment in columns:
        usd = _number(row[column], f"{place}: {column}")
        if usd is not None:
            yield PriceRecord(
                device=device, provider=of["provider"], commitment=commitment, price=usd, source=of["source"], date=of["day"],
                sku=row["InstanceType"], devices=int(count), region=row["Region"] or None,
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
    prices: Annotated[list[PriceRecord], Field(min_length=1)]

    @model_validator(mode="after")
    def _every_source_exists(self) -> "PriceFile":
        refuse_unlisted((offer.source for offer in self.prices), self.sources)
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
    return tuple(replace(offer, source=file.sources[offer.source].url) for offer in file.prices)


def price_records() -> tuple[PriceRecord, ...]:
    """Return the offers that ship with the package or are of one's own: those of the price list, and the dated ones of the machines that providers sell."""
    return _price_records(own_files("machines"))


@lru_cache(maxsize=4)
def _price_records(_own: tuple[OwnFile, ...]) -> tuple[PriceRecord, ...]:
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
                    offer.price,
                    known.sources[offer.source],
                    offer.date,
                    machine.sku,
                    machine.gpus,
                    offer.region,
                )


def scenario_prices(scenario: Purchase) -> tuple[dict[str, ChosenPrice | None], tuple[str, ...]]:
    """Return the price of each device that a scenario allows, and the warnings.

    Returns
    -------
    device name -> ChosenPrice, None where no offer is known; and warnings
    """
    records, remarks = records_of(scenario)
    chosen = {device.name: price_of(records, device, scenario.prices) for device in scenario.fleet.devices}
    cut = {device.partition.device for device in scenario.fleet.devices if device.partition}
    others = [name for name in scenario.prices.per_gpu_hour if name not in chosen and name not in cut]
    warnings = list(remarks)
    warnings += [f"prices.per_gpu_hour: fleet.hardware has no {', '.join(others)}"] if others else []
    for name, price in chosen.items():
        if price is None:
            warnings.append(missing_price_warning(records, name, scenario.prices))
        elif price.warning:
            warnings.append(price.warning)
    if scenario.prices.electricity is None:
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


def sold_machines(
    device: str,
    commitment: str,
    *,
    skus: Iterable[str] = (),
    providers: Iterable[str] = (),
    regions: Iterable[str | None] = (),
) -> tuple[Machine, ...]:
    """Return the machines of a device that are offered on some terms.

    Parameters
    ----------
    device : catalogue name
    commitment : on-demand, spot, ...
    skus, providers, regions : names that are accepted; all if none is named
    """
    names, sellers = {normalised(sku) for sku in skus}, {normalised(name) for name in providers}
    found = []
    for known in known_machines():
        record = known.record
        if record.device != device or (names and normalised(record.sku) not in names):
            continue
        if sellers and normalised(known.provider) not in sellers:
            continue
        if (offer := known.offered(commitment, regions)) is not None:
            found.append(
                Machine(
                    known.provider, record.sku, device, record.gpus, offer.price, offer.region, offer.date,
                    known.sources[offer.source], list_usd_per_hour=offer.list_price,
                    sold_by=record.sold_by,
                )
            )  # fmt: skip
    return tuple(found)


MACHINE_COMMITMENTS: tuple[Commitment | Term, ...] = ("on-demand", *get_args(Term), "spot")
"""How a machine of the catalogue may be paid for by the hour."""


def machine_records(
    machine: Machine, records: Iterable[PriceRecord] | None = None
) -> tuple[PriceRecord, ...]:
    """Return the prices of a GPU of a machine in its region, on demand, reserved and spot: those that the records of a price file state, else those of the catalogue."""
    if records is not None:
        kind = machine.provider, machine.sku, machine.device
        return tuple(
            record for record in records if (record.provider, record.sku or "", record.device) == kind
        )
    regions = (machine.region,) if machine.region else ()
    return tuple(
        _record(item, commitment)
        for commitment in MACHINE_COMMITMENTS
        for item in sold_machines(
            machine.device, commitment, skus=(machine.sku,), providers=(machine.provider,), regions=regions
        )
    )


def _record(machine: Machine, commitment: Commitment | Term) -> PriceRecord:
    """Return the offer of a machine for each of its GPUs."""
    return PriceRecord(
        machine.device,
        machine.provider,
        commitment,
        machine.usd_per_hour,
        machine.source,
        machine.date,
        machine.sku,
        machine.gpus,
        machine.region,
        list_price=machine.list_usd_per_hour,
    )


def unsold_devices(scenario: Purchase) -> dict[str, str]:
    """Return the devices that no machine that may be ordered has, each with the reason; none if the scenario names no machines.

    A device with a price by hand, and one in machines that are there already, may be had anyway.
    """
    limits = scenario.fleet.machines
    if not limits.named:
        return {}
    skus, sellers = ({normalised(name) for name in names} for names in (limits.skus, limits.providers))
    to_be_had = {item.device for item in limits.own} | set(scenario.prices.per_gpu_hour)
    to_be_had |= {
        known.record.device
        for known in known_machines()
        if (not skus or normalised(known.record.sku) in skus)
        and (not sellers or normalised(known.provider) in sellers)
        and (not limits.regions or any(offer.region in limits.regions for offer in known.record.offers))
    }
    reason = f"no machine that may be ordered has it: {_named(limits)}"
    return {
        device.name: reason
        for device in scenario.fleet.devices
        if device.partition is None and device.name not in to_be_had
    }


def _named(limits: MachineLimits) -> str:
    return " and ".join(
        ", ".join(names) for names in (limits.skus, limits.providers, limits.regions) if names
    )


def machine_prices(scenario: Purchase) -> tuple[dict[str, ChosenPrice | None], tuple[str, ...]]:
    """Return the price of each device that a scenario allows, with the machines in which it is sold, and the warnings.

    Machines have the prices that their lists state. If a scenario names machines, providers or regions, an order takes the cheapest of
    these; otherwise it is placed at the provider of the lower median price. A device of which no machine is listed is sold by the GPU.
    """
    chosen, warnings = scenario_prices(scenario)
    limits, records = scenario.fleet.machines, records_of(scenario)[0]
    found: dict[str, ChosenPrice | None] = {}
    more: list[str] = []
    unsold = unsold_devices(scenario)
    for device in scenario.fleet.devices:
        price = None if device.name in unsold else chosen[device.name]
        if device.partition is None and limits.named and device.name not in unsold:
            price, missing = _named_price(device.name, price, scenario)
            more += missing
        elif price is not None:
            price = _at_providers(price, _listed_machines(device, scenario, records), device)
        found[device.name] = None if price is None else _limited(price, device.name, scenario)
    more += [
        f"fleet.own: {item.sku} serves nothing: fleet.hardware has no {item.device}"
        for item in limits.own
        if item.device not in found
    ]
    return found, (*warnings, *more)


def _named_price(
    device: str, price: ChosenPrice | None, scenario: Purchase
) -> tuple[ChosenPrice | None, list[str]]:
    """Return the price of a device in the machines that a scenario names; a price by hand holds for each of their GPUs."""
    limits, terms = scenario.fleet.machines, scenario.prices
    stated = terms.per_gpu_hour.get(device)
    machines = sold_machines(
        device,
        "on-demand" if stated is not None else terms.paid_as,
        skus=limits.skus,
        providers=limits.providers,
        regions=limits.regions,
    )
    if stated is not None and price is not None:
        return replace(price, machines=tuple(replace(m, usd_per_hour=stated * m.gpus) for m in machines)), []
    there = tuple(item for item in limits.own if item.device == device)
    if not machines and there and price is not None:
        return replace(price, machines=_owned(there, price, device)), []
    if not machines:
        known = sorted({item.provider for item in sold_machines(device, terms.paid_as)})
        return None, [
            f"no machine with {device} is listed {terms.paid_as} for {_named(limits)}, so its cost is left out (listed at: "
            f"{', '.join(known) or 'nobody'})"
        ]
    records = sorted(
        (_record(item, terms.paid_as) for item in machines),
        key=lambda record: (record.usd_per_hour, record.sku or ""),
    )
    first = records[0]
    what = (
        f"{device} costs {first.usd_per_hour:.2f} $/h {terms.paid_as} in a {first.sku} of {first.devices}: {first.provider}, "
        f"{first.date or 'date unknown'}"
    )
    return ChosenPrice(
        first.usd_per_hour,
        terms.paid_as,
        (first,),
        len({record.provider for record in records}),
        first,
        records[-1],
        Assumption(what, "fleet.machines"),
        energy_usd_per_hour=price.energy_usd_per_hour if price else None,
        machines=machines,
        newest_day=first.date,
    ), []


def _at_providers(price: ChosenPrice, machines: tuple[Machine, ...], device: Device) -> ChosenPrice:
    """Return a price of a device whose orders are placed at the provider of the lower median price of its machines."""
    if not machines:
        return replace(price, at_one_provider=True)
    each: dict[str, float] = {}
    for item in machines:
        each[item.provider] = min(each.get(item.provider, inf), item.usd_per_hour / item.gpus)
    low, high = min(each.values()), max(each.values())
    what = f"{device.name} is ordered at the provider of the lower median price of {len(each)}, {low:.2f} to {high:.2f} $/h {price.commitment}"
    if len(each) == 1:
        what = f"{device.name} is ordered at {machines[0].provider}, the only provider with a listed machine, for {low:.2f} $/h {price.commitment}"
    named = Assumption(what, f"fleet.providers, or prices.per_gpu_hour.{device.name}")
    return replace(price, machines=machines, at_one_provider=True, assumption=named)


def _listed_machines(
    device: Device, scenario: Purchase, records: Iterable[PriceRecord]
) -> tuple[Machine, ...]:
    """Return the machines of a device that can be ordered today on the terms of a scenario; empty if it states the price or none is listed.

    Slices are in machines of the whole device, each of whose GPUs counts as the slices that it is cut into.
    """
    cut = device.partition
    whole = device.name if cut is None else cut.device
    if not scenario.prices.per_gpu_hour.keys().isdisjoint((device.name, whole)):
        return ()
    machines = _machines_of_device(whole, scenario, records)
    if cut is None:
        return machines
    return tuple(replace(item, device=device.name, gpus=item.gpus * cut.per_device) for item in machines)


def _machines_of_device(
    device: str, scenario: Purchase, records: Iterable[PriceRecord]
) -> tuple[Machine, ...]:
    terms = scenario.prices
    if scenario.price_file is not None:
        return _machines_of_file(device, scenario, records)
    sellers = () if terms.seller == ANY_PROVIDER else (terms.seller,)
    regions = (terms.region, ANY_REGION, None) if terms.region else ()
    sold = sold_machines(device, terms.paid_as, providers=sellers, regions=regions)
    containers = {known.provider for known in known_machines() if known.serverless}
    return tuple(recent(item for item in sold if item.is_listed and item.provider not in containers))


def _machines_of_file(device: str, scenario: Purchase, records: Iterable[PriceRecord]) -> tuple[Machine, ...]:
    """Return the machines of a device that the price file of a scenario states, each at its cheapest price; empty if it has GPUs only."""
    cheapest: dict[tuple[str, str | None, int], PriceRecord] = {}
    for record in matching_offers(records, device, scenario.prices):
        kind = record.provider, record.sku, record.devices
        if kind not in cheapest or record.price < cheapest[kind].price:
            cheapest[kind] = record
    if all(record.devices == 1 and record.sku is None for record in cheapest.values()):
        return ()
    return tuple(
        Machine(r.provider, r.sku or "", device, r.devices, r.price, r.region, r.date, r.source)
        for r in cheapest.values()
    )


def _owned(own: Iterable[Machine], price: ChosenPrice, device: str) -> tuple[Machine, ...]:
    """Return the machines of a device that are there already: at what owning costs, if a scenario or a list states it, else free."""
    each = price.usd_per_hour if price.commitment == "owned" and not price.estimated else 0.0
    return tuple(replace(item, usd_per_hour=each * item.gpus) for item in own if item.device == device)


def _limited(price: ChosenPrice, device: str, scenario: Purchase) -> ChosenPrice:
    """Return a price whose machines are at most as many as a scenario allows, after those that it has."""
    limits = scenario.fleet.machines
    most = {normalised(sku): count for sku, count in limits.most}
    own = _owned(limits.own, price, device)
    own = tuple(item for item in own if item not in price.machines)
    if not own and not most:
        return price
    pieces = () if price.machines else price.order(1, 1, 1)
    machines = price.machines or tuple(
        replace(line.machine, gpus=gpus, usd_per_hour=price.usd_per_hour * gpus)
        for gpus in (1, 2, 4, 8)
        for line in (pieces.lines if pieces else ())
    )  # fmt: skip
    limited = tuple(replace(item, most=most.get(normalised(item.sku), item.most)) for item in machines)
    return replace(price, machines=(*own, *limited))


def machine(name: str, place: str = "") -> KnownMachine:
    """Return the machine of a sku, whatever its case and punctuation.

    Raises
    ------
    InputError
        no machine has this name; the nearest names are in the error
    """
    if (known := sku_of(name)) is not None:
        return known
    raise unknown(
        "machine", name, {known.record.sku for known in known_machines()}, place=place, hint="all of them: capplan list machines"
    )  # fmt: skip


def machine_names() -> list[str]:
    """Return the skus of all machines."""
    return sorted({known.record.sku for known in known_machines()})


def refuse_unknown_provider(name: str, place: str) -> None:
    """Raise the error for a provider that sells no machine of the catalogue."""
    sellers = {known.provider for known in known_machines()}
    if normalised(name) not in {normalised(seller) for seller in sellers}:
        raise unknown("provider of machines", name, sellers, place=place)


def refuse_unknown_region(name: str, place: str) -> None:
    """Raise the error for a region in which no machine of the catalogue is offered."""
    regions = {offer.region for known in known_machines() for offer in known.record.offers if offer.region}
    if name not in regions:
        raise unknown("region", name, regions, place=place)
