"""Which machines of the catalogue a scenario may order, and at what price."""

from collections.abc import Iterable
from dataclasses import replace
from math import isclose
from typing import get_args

from capplan.assumption import Assumption
from capplan.errors import unknown
from capplan.fleet.order import Machine, MachineLimits
from capplan.fleet.price import ChosenPrice, PriceRecord
from capplan.fleet.scenario import Purchase
from capplan.readers.catalogue.hardware import normalised
from capplan.readers.catalogue.machine_catalogue import KnownMachine, known_machines
from capplan.readers.catalogue.offer_terms import Term
from capplan.readers.catalogue.prices import records_of, scenario_prices


def sold_machines(
    device: str,
    commitment: str,
    *,
    skus: Iterable[str] = (),
    providers: Iterable[str] = (),
    regions: Iterable[str] = (),
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
                    known.sources[offer.source],
                )
            )  # fmt: skip
    return tuple(found)


def machine_records(machine: Machine) -> tuple[PriceRecord, ...]:
    """Return what a GPU of a machine costs in its region on demand, reserved and spot, as far as the catalogue offers it."""
    regions = (machine.region,) if machine.region else ()
    return tuple(
        _record(item, commitment)
        for commitment in ("on-demand", *get_args(Term), "spot")
        for item in sold_machines(
            machine.device, commitment, skus=(machine.sku,), providers=(machine.provider,), regions=regions
        )
    )


def _record(machine: Machine, commitment: str) -> PriceRecord:
    """Return the offer of a machine for each of its GPUs."""
    return PriceRecord(
        machine.device,
        machine.provider,
        commitment,
        machine.usd_per_hour / machine.gpus,
        machine.source,
        machine.sku,
        machine.gpus,
        machine.region,
        machine.date,
    )


def stated_machines(device: str, commitment: str) -> dict[str, tuple[Machine, ...]]:
    """Return the machines of a device of which name, region, price and its day are stated, by provider."""
    found: dict[str, tuple[Machine, ...]] = {}
    for machine in sold_machines(device, commitment):
        if not machine.unstated:
            found[machine.provider] = (*found.get(machine.provider, ()), machine)
    return found


def sizes_at(provider: str, device: str) -> dict[int, str]:
    """Return the machines in which a provider sells a device: GPUs -> sku."""
    wanted = normalised(provider)
    sizes: dict[int, str] = {}
    for known in known_machines():
        if known.record.device == device and normalised(known.provider) == wanted:
            sizes.setdefault(known.record.gpus, known.record.sku)
    return sizes


def unsold_devices(scenario: Purchase) -> dict[str, str]:
    """Return the devices that no machine that may be ordered has, each with the reason; none if the scenario names no machines.

    A device with a price by hand, and one in machines that are there already, may be had anyway.
    """
    limits = scenario.fleet.machines
    if not limits.named:
        return {}
    skus, sellers = ({normalised(name) for name in names} for names in (limits.skus, limits.providers))
    to_be_had = {item.device for item in limits.own} | set(scenario.prices.overrides)
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

    Without machines, providers or regions in the scenario, a device costs what it costs by the GPU, in machines of the sizes in which
    the provider of that price sells it. With them, its machines and their prices are those of the catalogue.
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
        elif device.partition is None and price is not None:
            price = replace(price, machines=_sizes(price, device.name, scenario, records))
        found[device.name] = None if price is None else _limited(price, device.name, limits)
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
    stated = terms.overrides.get(device)
    machines = sold_machines(
        device,
        "on-demand" if stated is not None else terms.commitment,
        skus=limits.skus,
        providers=limits.providers,
        regions=limits.regions,
    )
    if stated is not None and price is not None:
        return replace(price, machines=tuple(replace(m, usd_per_hour=stated * m.gpus) for m in machines)), []
    there = tuple(item for item in limits.own if item.device == device)
    if not machines and there and price is not None:
        return replace(price, machines=there), []
    if not machines:
        known = sorted({item.provider for item in sold_machines(device, terms.commitment)})
        return None, [
            f"no machine with {device} is listed {terms.commitment} for {_named(limits)}, so its cost is left out (listed at: "
            f"{', '.join(known) or 'nobody'})"
        ]
    records = sorted(
        (_record(item, terms.commitment) for item in machines),
        key=lambda record: (record.usd_per_hour, record.sku or ""),
    )
    first = records[0]
    what = (
        f"{device} costs {first.usd_per_hour:.2f} $/h {terms.commitment} in a {first.sku} of {first.devices}: {first.provider}, "
        f"{first.date or 'date unknown'}"
    )
    return ChosenPrice(
        first.usd_per_hour,
        terms.commitment,
        (first,),
        len({record.provider for record in records}),
        first,
        records[-1],
        Assumption(what, "fleet.machines"),
        energy_usd_per_hour=price.energy_usd_per_hour if price else None,
        machines=machines,
        newest_day=first.date,
    ), []


def _sizes(
    price: ChosenPrice, device: str, scenario: Purchase, records: Iterable[PriceRecord]
) -> tuple[Machine, ...]:
    """Return the machines in which the provider of a price sells a device, each GPU at that price; empty if sizes are not known.

    A price without a region has that of the machine in the catalogue, if the catalogue has it at the same price.
    """
    if len(price.records) != 1:
        return ()
    offer = price.records[0]
    if scenario.price_file is None:
        sizes = sizes_at(offer.provider, device)
    else:
        same = (offer.device, offer.provider, offer.commitment)
        sizes = {r.devices: r.sku or "" for r in records if (r.device, r.provider, r.commitment) == same}
    if not sizes and offer.devices > 1:
        sizes = {offer.devices: offer.sku or ""}
    if set(sizes) <= {1}:  # one GPU of a larger host, as marketplaces sell them
        return ()
    listed = {
        machine.sku: machine.region
        for machine in sold_machines(device, offer.commitment, providers=(offer.provider,))
        if isclose(machine.usd_per_hour, price.usd_per_hour * machine.gpus, rel_tol=1e-3)
    }
    return tuple(
        Machine(
            offer.provider,
            sku,
            device,
            gpus,
            price.usd_per_hour * gpus,
            offer.region or listed.get(sku),
            offer.date,
            offer.source,
        )
        for gpus, sku in sorted(sizes.items())
    )


def _limited(price: ChosenPrice, device: str, limits: MachineLimits) -> ChosenPrice:
    """Return a price whose machines are at most as many as a scenario allows, after those that it has."""
    most = {normalised(sku): count for sku, count in limits.most}
    own = tuple(item for item in limits.own if item.device == device and item not in price.machines)
    if not own and not most:
        return price
    by_the_gpu = price.order(1, 1, 1)
    machines = price.machines or tuple(
        Machine(line.machine.provider, "", device, gpus, price.usd_per_hour * gpus, line.machine.region, line.machine.date, line.machine.source)
        for gpus in (1, 2, 4, 8)
        for line in (by_the_gpu.lines if by_the_gpu else ())
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


def sku_of(name: str) -> KnownMachine | None:
    """Return the machine of a sku, None if there is none of this name."""
    wanted = normalised(name)
    return next((known for known in known_machines() if normalised(known.record.sku) == wanted), None)


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
