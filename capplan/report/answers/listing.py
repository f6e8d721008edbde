"""What `capplan list` shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from capplan.report.answer import Answer, Table

_SHOWN = {
    "scenarios": ("scenario", "model", "about"),
    "models": ("model", "quantization"),
    "machines": ("machine", "provider", "hardware", "gpus", "usd_per_hour", "region", "date"),
    "apis": (
        "api",
        "input_usd_per_million_tokens",
        "cache_read_usd_per_million_tokens",
        "output_usd_per_million_tokens",
        "date",
        "remark",
    ),
    "prices": ("hardware", "provider", "commitment", "usd_per_gpu_hour", "region", "date"),
}
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
        tables=(Table(rows, shown=_SHOWN.get(kind, ())),),
        closing=(_NEXT[kind],),
    )
