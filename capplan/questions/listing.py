"""What `capplan list` lists: the names that scenarios and flags take, each with what tells it from others."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any

from capplan.engine.lookup import ENGINES
from capplan.engine.versions import RELEASES
from capplan.errors import unknown
from capplan.readers.catalogue.hardware import device, device_names, normalised
from capplan.readers.catalogue.machine_catalogue import known_machines
from capplan.readers.catalogue.models import model_rows
from capplan.readers.catalogue.offer_terms import first_day
from capplan.readers.catalogue.prices import price_records
from capplan.readers.catalogue.scenarios import described, shipped_scenarios
from capplan.readers.catalogue.token_prices import OLD_DAYS, TokenOffer, token_offers

Row = Mapping[str, Any]


def _scenarios() -> Iterator[Row]:
    from capplan.readers.yaml_file import read_yaml

    for name, path in shipped_scenarios().items():
        written = read_yaml(path, kind="a shipped scenario").value
        yield {"scenario": name, "model": written["model"], "about": described(name), "file": str(path)}


def _hardware() -> Iterator[Row]:
    for name in device_names():
        item = device(name)
        yield {
            "hardware": name,
            "vendor": item.vendor,
            "architecture": item.architecture,
            "memory_bytes": item.memory_bytes,
            "memory_bytes_per_s": item.memory_bytes_per_s,
            "title": item.title,
        }


def _engines() -> Iterator[Row]:
    for engine, profiles in ENGINES.items():
        months = {version: month for month, version in RELEASES.get(engine, ())}
        for known in profiles:
            yield {
                "engine": engine,
                "version": known.version,
                "released": months.get(known.version),
                "policy": known.policy,
            }


def _prices() -> Iterator[Row]:
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
            "machine": record.sku,
            "provider": known.provider,
            "hardware": record.device,
            "gpus": record.gpus,
            "region": offer.region if offer else None,
            "usd_per_hour": offer.price if offer else None,
            "usd_per_gpu_hour": offer.price / record.gpus if offer else None,
            "date": offer.date if offer else None,
        }


def _apis() -> Iterator[Row]:
    today = datetime.now(tz=UTC).date()
    for offer in token_offers():
        yield {
            "api": f"{offer.provider}/{offer.model}",
            "input_usd_per_million_tokens": offer.input,
            "cache_read_usd_per_million_tokens": offer.cache_read,
            "output_usd_per_million_tokens": offer.output,
            "serves": offer.serves,
            "date": offer.date,
            "remark": "; ".join(_remarks(offer, today)) or None,
        }


def _remarks(offer: TokenOffer, today: date) -> Iterator[str]:
    """Yield what is to be known of a price: its age, its end, what it rests on."""
    if (today - first_day(offer.date)).days > OLD_DAYS:
        yield f"older than {OLD_DAYS} days"
    if offer.retires is not None:
        yield f"{'ended' if first_day(offer.retires) <= today else 'ends'} on {offer.retires}"
    if offer.change is not None:
        yield f"input ${offer.change.input:g} and output ${offer.change.output:g} from {offer.change.on}"
    if offer.disagreement is not None:
        yield f"sources disagree: {offer.disagreement}"
    elif offer.second_source is None:
        yield "one source"


_LISTS: Mapping[str, Callable[[], Iterator[Row]]] = {
    "scenarios": _scenarios,
    "models": model_rows,
    "hardware": _hardware,
    "machines": _machines,
    "engines": _engines,
    "prices": _prices,
    "apis": _apis,
}


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
    rows = list(_LISTS[kind]())
    if word is None:
        return rows
    wanted = normalised(word)
    found = [
        row
        for row in rows
        if any(wanted in normalised(cell) for cell in row.values() if isinstance(cell, str))
    ]
    if not found or not wanted:
        names = {str(next(iter(row.values()))) for row in rows}
        raise unknown(kind.removesuffix("s"), word, names, hint=f"all of them: capplan list {kind}")
    return found
