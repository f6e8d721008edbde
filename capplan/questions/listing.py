"""What `capplan list` lists: the names that scenarios and flags take, each with what tells it from others."""

from collections.abc import Callable, Iterator, Mapping
from datetime import date
from typing import Any

from capplan.engine.lookup import ENGINES
from capplan.engine.versions import RELEASES
from capplan.errors import InputError, unknown
from capplan.readers.catalogue.hardware import device, device_names, normalised
from capplan.readers.catalogue.models import model_rows
from capplan.readers.catalogue.offer_terms import known_machines
from capplan.readers.catalogue.scenarios import described, shipped_scenarios
from capplan.readers.catalogue.workstations import is_host, workstation_names

Row = Mapping[str, Any]


def _scenarios() -> Iterator[Row]:
    from capplan.readers.yaml_file import read_yaml

    for name, path in shipped_scenarios().items():
        written = read_yaml(path, kind="a shipped scenario").value
        yield {"scenario": name, "model": written["model"], "about": described(name), "file": str(path)}


def _hardware() -> Iterator[Row]:
    for name in (*device_names(), *workstation_names()):
        item = device(name)
        yield {
            "hardware": name,
            "vendor": item.vendor,
            "architecture": item.architecture,
            "memory_bytes": None if is_host(name) else item.memory_bytes,
            "memory_bytes_per_s": item.memory_bytes_per_s,
            "title": item.title,
        }


def _engines() -> Iterator[Row]:
    for engine, profiles in ENGINES.items():
        days = {version: day for day, version in RELEASES.get(engine, ())}
        for known in profiles:
            yield {
                "engine": engine,
                "version": known.version,
                "released": days.get(known.version),
                "policy": known.policy,
            }


def _prices() -> Iterator[Row]:
    from capplan.readers.catalogue.prices import price_records

    for offer in price_records():
        yield {
            "hardware": offer.device,
            "provider": offer.provider,
            "commitment": offer.commitment,
            "usd_per_gpu_hour": offer.usd_per_hour,
            "region": offer.region,
            "date": offer.date,
            "source": offer.source,
        }


def _machines() -> Iterator[Row]:
    for known in known_machines():
        record = known.record
        offer = known.offered("on-demand")
        yield {
            "sku": record.sku,
            "provider": known.provider,
            "hardware": record.device,
            "gpus": record.gpus,
            "region": offer.region if offer else None,
            "usd_per_hour": offer.price if offer else None,
            "usd_per_gpu_hour": offer.price / record.gpus if offer else None,
            "date": offer.date if offer else None,
        }


def _apis() -> Iterator[Row]:
    from capplan.keys import current_day
    from capplan.questions.plans.plan_check import offer_remarks
    from capplan.readers.catalogue.token_prices import token_offers, token_prices

    today = current_day()
    shipped = {f"{offer.provider}/{offer.model}".lower(): offer for offer in token_offers()}
    for price in token_prices():
        offer = shipped.get(price.name.lower())
        remarks = offer_remarks(offer, today) if offer and offer.date == price.date else ()
        yield {
            "api": price.name,
            "input_usd_per_million_tokens": price.rates.input,
            "cache_read_usd_per_million_tokens": price.rates.cache_read,
            "output_usd_per_million_tokens": price.rates.output,
            "serves": price.serves,
            "date": price.date,
            "remark": "; ".join(remarks) or None,
            "source": price.source,
        }


_LISTS: Mapping[str, Callable[[], Iterator[Row]]] = {
    "scenarios": _scenarios,
    "models": model_rows,
    "hardware": _hardware,
    "machines": _machines,
    "engines": _engines,
    "prices": _prices,
    "apis": _apis,
}


def checked(kind: str, prices: str | None, day: str | None, today: date) -> list[Row]:
    """Return what of the prices of devices or hosted APIs is old, retired or contradicted.

    Parameters
    ----------
    kind : prices or apis
    prices : a newer list of hosted prices, in a token-price YAML or LiteLLM's file; None: none
    day : of a list that does not state it
    today : that prices are judged old by
    """
    from capplan.questions.plans.plan_check import checked_apis, checked_devices

    if kind == "prices":
        return list(checked_devices(today))
    from capplan.questions.money.comparison import listed_prices

    return list(checked_apis(today, None if prices is None else listed_prices(prices, day)))


def listed(kind: str, word: str | None) -> list[Row]:
    """Return what there is of a kind, all or what has a word in one of its texts, whatever its case and punctuation.

    Raises
    ------
    InputError
        nothing has the word; its nearest names are in the error

    Examples
    --------
    >>> [row["scenario"] for row in listed("scenarios", "Support Chat")]
    ['support-chat']
    """
    return having(kind, list(_LISTS[kind]()), word)


def having(kind: str, rows: list[Row], word: str | None) -> list[Row]:
    """Return the rows that have a word in one of their texts; all without a word."""
    if word is None:
        return rows
    wanted = normalised(word)
    found = [
        row
        for row in rows
        if any(wanted in normalised(cell) for cell in row.values() if isinstance(cell, str))
    ]
    if not found and kind == "prices" and (named := [n for n in device_names() if normalised(n) == wanted]):
        raise InputError(
            f"no price of {named[0]} is public that the catalogue has\n  state yours in a scenario: prices.per_gpu_hour.{named[0]}"
        )
    if not found or not wanted:
        names = {str(next(iter(row.values()))) for row in rows}
        raise unknown(kind.removesuffix("s"), word, names, hint=f"all of them: capplan list {kind}")
    return found
