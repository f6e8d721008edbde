"""What `capplan list` lists: the names that scenarios and flags take, each with what tells it from others."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from capplan.engine.lookup import ENGINES
from capplan.engine.versions import RELEASES
from capplan.errors import unknown
from capplan.readers.catalogue.hardware import device, device_names, normalised
from capplan.readers.catalogue.models import model_rows
from capplan.readers.catalogue.prices import price_records
from capplan.readers.catalogue.scenarios import described, shipped_scenarios

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


_LISTS: Mapping[str, Callable[[], Iterator[Row]]] = {
    "scenarios": _scenarios,
    "models": model_rows,
    "hardware": _hardware,
    "engines": _engines,
    "prices": _prices,
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
