"""What `capplan hardware` and `capplan list` show of what is known."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from capplan.assumption import Assumption
from capplan.hardware.device import Device
from capplan.report.answer import Answer, Table, columns, flattened, row_of

if TYPE_CHECKING:
    from capplan.readers.catalogue.offer_terms import KnownMachine

_LISTED = columns(
    "name architecture memory_bytes memory_bytes_per_s peak_flop_per_s.bf16 peak_flop_per_s.fp8 "
    "peak_flop_per_s.fp4 link link_bytes_per_s link_domain_devices tdp_w"
)

_SPARE = ("link_domain_devices", "tdp_w", "link", "link_bytes_per_s", "architecture", "peak_flop_per_s.fp4")
"""Columns of the catalogue that a narrow screen leaves out, the first one first."""

_FOOTNOTES = ("labels", "figure_sources", "sources", "traps", "partition", "emulated", "cards")

_SLICE = columns(
    "name per_device multiprocessors reported_memory_bytes memory_bytes_per_s peak_flop_per_s.bf16 starts"
)

_TITLES = {"starts": "may begin at memory slice"}


def devices_answer(devices: Sequence[Device]) -> Answer:
    """Return the catalogue as one table; figures without a source are starred."""
    rows = [_figures(device) for device in devices]
    assumed = frozenset(
        (index, name)
        for index, device in enumerate(devices)
        for name, label in device.labels.items()
        if label == "assumed"
    )
    return Answer(
        command="hardware",
        result={"devices": [asdict(device) for device in devices]},
        tables=(Table(rows, shown=_LISTED, titles=_TITLES, assumed=assumed, spare=_SPARE),),
        closing=("rates are dense; capplan hardware NAME shows every figure with its source",),
        assumptions=(_unsourced("FILE.yaml"),) if assumed else (),
    )


def machine_answer(machine: "KnownMachine") -> Answer:
    """Return one machine: what it is, and its prices by region and commitment with their sources."""
    record = machine.record
    facts = {
        "sku": record.sku,
        "provider": machine.provider,
        "hardware": record.device,
        "gpus": record.gpus,
        "sold_by": record.sold_by if record.sold_by > 1 else None,
        "vcpus": record.vcpus,
        "memory_bytes": record.memory,
        "disk_bytes": record.disk,
        "network_bytes_per_s": record.network,
        **row_of(record, "network_kind link"),
        "watts": record.power,
        "rack_units": record.rack_units,
        "usd_to_buy": record.purchase.price if record.purchase else None,
        "source": machine.sources.get(record.source or ""),
    }
    offers = [
        {
            **row_of(offer, "region commitment"),
            "usd_per_hour": offer.price,
            "usd_per_gpu_hour": offer.price / record.gpus,
            "date": offer.date,
            "source": machine.sources[offer.source],
        }
        for offer in record.offers
    ]
    known = {key: value for key, value in facts.items() if value is not None}
    tables = Table([known], title=record.sku, titles=_TITLES, upright=True), Table(offers, title="Prices")
    return Answer(command="hardware", result={**facts, "offers": offers}, tables=tables)


def device_answer(device: Device, slices: Sequence[Device] = ()) -> Answer:
    """Return one device: every figure with its label and where it was read, and the slices that it can be cut into."""
    figures = _figures(device)
    titles = {source.key: source for source in device.sources}
    sources = [{"source": s.key, **row_of(s, "title url checked note")} for s in device.sources]
    assumed = frozenset((0, name) for name, label in device.labels.items() if label == "assumed")
    keys = {name: ", ".join(k for k in used if k in titles) for name, used in device.figure_sources.items()}
    return Answer(
        command="hardware",
        result={**asdict(device), "slices": [item.name for item in slices]},
        tables=(
            Table(
                [figures],
                upright=True,
                titles=_TITLES,
                assumed=assumed,
                beside={"label": dict(device.labels), "source": keys},
            ),
            _slices(slices),
            Table(sources, title="Sources"),
        ),
        headline=device.title,
        closing=tuple(f"caveat: {trap}" for trap in device.traps),
        assumptions=(_unsourced(f"{device.name}.yaml"),) if assumed else (),
    )


def _slices(slices: Sequence[Device]) -> Table:
    """Return the slices of a device, which has none if it cannot be cut."""
    rows = [
        {
            **_figures(item),
            "per_device": item.partition.per_device,
            "starts": ", ".join(map(str, item.partition.starts)),
        }
        for item in slices
        if item.partition
    ]
    title = "MIG slices, each a device of its own: --hardware NAME"
    return Table(rows, title=title, shown=_SLICE, titles=_TITLES)


def _figures(device: Device) -> dict[str, Any]:
    return flattened({key: value for key, value in asdict(device).items() if key not in _FOOTNOTES})


def _unsourced(file: str) -> Assumption:
    return Assumption(
        "figures marked * have no source that can be opened", f"your own hardware YAML, --hardware {file}"
    )


_SHOWN = {
    "scenarios": ("scenario", "model", "about"),
    "models": ("model", "quantization"),
    "machines": ("sku", "provider", "hardware", "gpus", "usd_per_hour", "region", "date"),
    "apis": columns(
        "api input_usd_per_million_tokens cache_read_usd_per_million_tokens "
        "output_usd_per_million_tokens date remark"
    ),
    "prices": ("hardware", "provider", "commitment", "usd_per_gpu_hour", "region", "date", "source"),
}

_SPARE_OF_LISTS = ("date", "region", "remark", "source")

_NEXT = {
    "scenarios": "capplan fleet NAME answers one; capplan init FILE --from NAME copies it",
    "models": "capplan model NAME shows one; any Hugging Face id or config.json of these families works too",
    "hardware": "capplan hardware NAME shows every figure with its source",
    "machines": "capplan hardware SKU shows its prices and sources; fleet.machines and fleet.providers of a scenario name what may be ordered",
    "apis": "capplan compare SCENARIO --api NAME compares a fleet with it; capplan cache --api NAME prices its prompt cache",
    "engines": "a version between two of these is taken as the one below it",
    "prices --check": "plans take these prices unless prices.per_gpu_hour, prices.provider or prices.file say otherwise",
    "apis --check": "hosted.file of a scenario takes a newer list; a name that is not in the list has nothing to be checked against",
    "prices": "prices.per_gpu_hour and prices.file of a scenario take your own",
}


def listing_answer(kind: str, rows: Sequence[Mapping[str, Any]]) -> Answer:
    """Return one list, with what to do with a name of it."""
    return Answer(
        command="list",
        result={"rows": list(rows)},
        tables=(Table(rows, shown=_SHOWN.get(kind, ()), spare=_SPARE_OF_LISTS),),
        closing=(_NEXT[kind],),
    )
