"""Price lists that people have, as offers of machines: exports of AWS, Azure and GCP, and a table of one's own offers."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, get_args

from capplan.errors import InputError, unknown
from capplan.keys import Commitment, Term, first_day
from capplan.money.commitments import HOURS_PER_YEAR
from capplan.money.order import ANY_REGION, Machine
from capplan.readers.catalogue.hardware import catalogue_name, sku_of
from capplan.readers.text_file import csv_rows, read_json, read_text

_MAX_BYTES = 2_000_000_000
OWN_COLUMNS = ("provider", "machine", "hardware", "gpus", "commitment", "region", "price", "discount", "date")
_NEEDED = ("provider", "hardware", "gpus", "price")
_YEARS: Mapping[str, float] = {"reserved-1y": 1.0, "reserved-3y": 3.0}


_DIALECT = read_json(Path(__file__).with_name("price_exports.json"))
"""How the three clouds write: words for a term -> ours, attributes of AWS that are read, uses of GCP -> our terms, device -> how GCP describes its GPU."""


Priced: TypeAlias = tuple[Commitment | Term, Machine]
"""A machine at the price of a list, and how it is paid for."""


def offers_in(path: str | os.PathLike[str], day: str | None) -> tuple[tuple[Priced, ...], Counter[str]]:
    """Return the offers of machines in a file, and the machines that are left out because the catalogue lacks them.

    Parameters
    ----------
    path : JSON of AWS (`aws pricing get-products`, or the bulk list of AmazonEC2), of Azure (retail prices) or of GCP (SKUs), or a CSV of one's own
    day : of the prices, for a file that does not state it

    Raises
    ------
    InputError
        the file is none of these, states no day, or has no offer of a machine of the catalogue
    """
    name, left_out = os.fspath(path), Counter[str]()
    if Path(name).suffix.lower() == ".csv":
        offers = list(_own_offers(name, day))
    else:
        value = read_json(path, kind="a price list", max_bytes=_MAX_BYTES)
        reader = next((read for keys, read in _CLOUDS.items() if any(key in value for key in keys)), None)
        if reader is None:
            raise InputError(
                f"{name}: is no price list of AWS, Azure or GCP: none of {', '.join(_KEYS)} is in it"
            )
        try:
            offers = list(reader(name, value, day, left_out))
        except (AttributeError, LookupError, TypeError, json.JSONDecodeError) as error:
            raise InputError(f"{name}: is not in the form of a price list: {error!r:.80}") from None
    if not offers:
        raise InputError(
            f"{name}: has no offer of a machine in the catalogue; capplan list machines has them"
        )
    cheapest: dict[tuple[str | None, ...], Priced] = {}
    for commitment, offer in offers:
        key = (offer.provider, offer.sku, offer.region, commitment)
        if key not in cheapest or offer.usd_per_hour < cheapest[key][1].usd_per_hour:
            cheapest[key] = commitment, offer
    return tuple(cheapest.values()), left_out


def _dated(name: str, day: str | None) -> str:
    if day is None:
        raise InputError(
            f"{name}: states no date for its prices; say which day they are of: --date 2026-11-01"
        )
    first_day(day, "--date")
    return day


def _usd(value: object, place: str, most: float = 1e7) -> float:
    """Return a price below `most`, which may be a text; zero where nothing is asked."""
    try:
        usd = float(str(value).removesuffix("$/h").strip().lstrip("$"))
    except ValueError:
        raise InputError(f"{place}: {str(value)[:40]!r} is not a price in dollars") from None
    if not 0.0 <= usd < most:
        raise InputError(f"{place}: {str(value)[:40]!r} is out of range")
    return usd


def _known(sku: str, provider: str, left_out: Counter[str]) -> Any:
    """Return a machine of the catalogue by its name, None if it is not there or not of the provider."""
    found = sku_of(sku)
    if found is None or found.provider != provider:
        left_out[sku] += 1
        return None
    return found.record


def _listed(
    provider: str, machine: Any, region: str, commitment: Commitment | Term, usd: float, date: str
) -> Priced:
    """Return the offer of a machine of the catalogue."""
    return commitment, Machine(provider, machine.sku, machine.device, machine.gpus, usd, region, date)


def _aws(name: str, value: Mapping[str, Any], day: str | None, left_out: Counter[str]) -> Iterator[Priced]:
    """Yield the offers of Linux machines for one tenant that AWS lists: on demand, and reserved with what is paid upfront spread over the term."""
    bulk = value.get("products")
    if isinstance(bulk, Mapping):
        terms = value.get("terms", {})
        items: Iterable[Any] = (
            {"product": product, "terms": {kind: each.get(sku, {}) for kind, each in terms.items()}}
            for sku, product in bulk.items()
        )
    else:
        items = (json.loads(item) if isinstance(item, str) else item for item in value["PriceList"])
    for item in items:
        about = item.get("product", {}).get("attributes", {})
        if any(about.get(key, allowed) != allowed for key, allowed in _DIALECT["aws"].items()):
            continue
        if (machine := _known(str(about.get("instanceType", "")), "AWS", left_out)) is None:
            continue
        published = str(item.get("publicationDate") or value.get("publicationDate") or "")[:10]
        for commitment, usd in _aws_prices(item.get("terms", {}), f"{name}: {machine.sku}"):
            region = str(about.get("regionCode") or about.get("location"))
            yield _listed("AWS", machine, region, commitment, usd, _dated(name, published or day))


def _aws_prices(terms: Mapping[str, Any], place: str) -> Iterator[tuple[Commitment | Term, float]]:
    for term in terms.get("OnDemand", {}).values():
        for price in term["priceDimensions"].values():
            if usd := _usd(price["pricePerUnit"].get("USD", 0.0), place):
                yield "on-demand", usd
    for term in terms.get("Reserved", {}).values():
        about = term.get("termAttributes", {})
        known = _DIALECT["terms"].get(str(about.get("LeaseContractLength")))
        if known is None or about.get("OfferingClass", "standard") != "standard":
            continue
        usd = 0.0
        for price in term["priceDimensions"].values():
            hours = 1.0 if price.get("unit") == "Hrs" else _YEARS[known] * HOURS_PER_YEAR
            usd += _usd(price["pricePerUnit"].get("USD", 0.0), place) / hours
        if usd:
            yield known, usd


def _azure(name: str, value: Mapping[str, Any], day: str | None, left_out: Counter[str]) -> Iterator[Priced]:
    """Yield the offers of Linux machines in Azure's retail prices: on demand, spot, and reservations, whose price is of the whole term."""
    for item in value["Items"]:
        named = f"{item.get('productName')} {item.get('skuName')}"
        if (
            "Windows" in named
            or "Low Priority" in named
            or item.get("type") not in ("Consumption", "Reservation")
        ):
            continue
        if str(item.get("currencyCode", "USD")) != "USD":
            raise InputError(f"{name}: is in {item['currencyCode']}; export it in USD")
        sku = str(item.get("armSkuName", ""))
        if (machine := _known(sku, "Azure", left_out)) is None:
            continue
        usd = _usd(item["retailPrice"], f"{name}: {sku}")
        known = _DIALECT["terms"].get(str(item.get("reservationTerm")))
        commitment: Commitment | Term = "spot" if "Spot" in named else "on-demand"
        if item["type"] == "Reservation":
            if known is None:
                continue
            commitment, usd = known, usd / (_YEARS[known] * HOURS_PER_YEAR)
        elif item.get("unitOfMeasure") != "1 Hour":
            continue
        if usd:
            region = str(item.get("armRegionName"))
            yield _listed("Azure", machine, region, commitment, usd, _dated(name, day))


def _gcp(name: str, value: Mapping[str, Any], day: str | None, _: Counter[str]) -> Iterator[Priced]:
    """Yield the offers of GCP's machines, each the sum of its GPUs, processors and memory in one region and on one term."""
    from capplan.readers.catalogue.offer_terms import known_machines

    gpus, uses = _DIALECT["gcp gpus"], _DIALECT["gcp usage"]
    parts: dict[tuple[str, Commitment | Term], dict[str, float]] = {}
    for item in value["skus"]:
        usage = uses.get(str(item.get("category", {}).get("usageType")))
        rate = _gcp_rate(item, name)
        if usage is None or not rate:
            continue
        for region in item.get("serviceRegions", ()):
            parts.setdefault((region, usage), {}).setdefault(str(item.get("description")), rate)
    machines = [
        known.record for known in known_machines() if known.provider == "GCP" and known.record.device in gpus
    ]
    for (region, commitment), prices in parts.items():
        for machine in machines:
            family = re.escape(machine.sku.partition("-")[0].upper())
            each = [
                next((usd for text, usd in prices.items() if re.search(pattern, text)), None)
                for pattern in (
                    gpus[machine.device],
                    rf"^(?:Spot Preemptible )?(?:Commitment v1: )?{family} (?:Instance )?(?:Core|Cpu)\b",
                    rf"^(?:Spot Preemptible )?(?:Commitment v1: )?{family} (?:Instance )?Ram\b",
                )
            ]
            amounts = (
                machine.gpus,
                machine.vcpus,
                None if machine.memory is None else machine.memory / 2**30,
            )
            if all(usd is not None for usd in each) and all(amount is not None for amount in amounts):
                usd = sum(usd * amount for usd, amount in zip(each, amounts, strict=True) if usd and amount)
                yield _listed("GCP", machine, region, commitment, usd, _dated(name, day))


def _gcp_rate(item: Mapping[str, Any], place: str) -> float | None:
    """Return what one unit costs an hour [$]; None for what is sold by another unit."""
    for info in item.get("pricingInfo", ())[-1:]:
        expression = info["pricingExpression"]
        price = expression["tieredRates"][-1]["unitPrice"]
        if expression.get("usageUnit") in ("h", "GiBy.h") and price.get("currencyCode", "USD") == "USD":
            whole, nanos = (_usd(price.get(key, 0), f"{place}: {key}", 1e10) for key in ("units", "nanos"))
            return whole + nanos * 1e-9
    return None


def _own_offers(name: str, day: str | None) -> Iterator[Priced]:
    """Yield the offers of a table: a machine of some GPUs, its price by the hour and a discount on it."""
    rows = csv_rows(read_text(name, kind="a table of offers", max_bytes=_MAX_BYTES), name)
    columns = tuple(rows[0]) if rows else ()
    for column in columns:
        if column not in OWN_COLUMNS:
            raise unknown("column", column, OWN_COLUMNS, place=name)
    missing = [column for column in _NEEDED if column not in columns]
    if missing:
        raise InputError(
            f"{name}: has no column {missing[0]}; a table of offers has {', '.join(OWN_COLUMNS)}"
        )
    for number, row in enumerate(rows, start=2):
        place = f"{name}: line {number}"
        cell = {column: (row.get(column) or "").strip() for column in OWN_COLUMNS}
        for column in _NEEDED:
            if not cell[column]:
                raise InputError(f"{place}: {column} is empty")
        device = catalogue_name(cell["hardware"].lower())
        if device is None:
            raise InputError(
                f"{place}: hardware: {cell['hardware'][:40]!r} is not in the catalogue; capplan hardware lists it"
            )
        gpus = _usd(cell["gpus"], f"{place}: gpus")
        if not gpus.is_integer() or not 1 <= gpus <= 1024:
            raise InputError(f"{place}: gpus: {cell['gpus'][:40]!r} is not a number of GPUs from 1 to 1024")
        named: tuple[Commitment | Term, ...] = (*get_args(Commitment), *get_args(Term))
        commitment = next((one for one in named if one == (cell["commitment"] or "on-demand")), None)
        if commitment is None:
            raise unknown("commitment", cell["commitment"], named, place=place)
        listed, discount = (
            _usd(cell["price"], f"{place}: price"),
            _percent(cell["discount"], f"{place}: discount"),
        )
        if not listed:
            raise InputError(f"{place}: price: is 0; a machine of your own is fleet.own")
        yield (
            commitment,
            Machine(
                cell["provider"],
                cell["machine"] or f"{int(gpus)} x {device}",
                device,
                int(gpus),
                listed * (1.0 - discount),
                cell["region"] or ANY_REGION,
                _dated(name, cell["date"] or day),
                list_usd_per_hour=listed if discount else None,
            ),
        )


def _percent(written: str, place: str) -> float:
    """Return a discount: 12 %, 12% or 0.12; nothing for an empty cell."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", written or "0")
    value = float(match[1]) / (100.0 if match[2] else 1.0) if match else 1.0
    if value >= 1.0:
        raise InputError(f"{place}: {written[:40]!r} is not a discount; write it as 12 %")
    return value


_CLOUDS = {("PriceList", "products"): _aws, ("Items",): _azure, ("skus",): _gcp}
_KEYS = [key for keys in _CLOUDS for key in keys]
"""Keys by which the lists of the clouds are known."""
