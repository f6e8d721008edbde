"""What `capplan list` shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from capplan.report.answer import Answer, Table

_SHOWN = {
    "scenarios": ("scenario", "model", "about"),
    "models": ("model", "quantization"),
    "prices": ("hardware", "provider", "commitment", "usd_per_gpu_hour", "region", "date"),
}
_NEXT = {
    "scenarios": "capplan fleet NAME answers one; capplan init FILE --from NAME copies it",
    "models": "capplan model NAME shows one; any Hugging Face id or config.json of these families works too",
    "hardware": "capplan hardware NAME shows every figure with its source",
    "engines": "a version between two of these is taken as the one below it",
    "prices": "prices.per_gpu_hour and prices.file of a scenario take your own",
}
_TITLES = {"memory_bytes": "memory", "memory_bytes_per_s": "bandwidth", "usd_per_gpu_hour": ""}


def listing_answer(kind: str, rows: Sequence[Mapping[str, Any]]) -> Answer:
    """Return one list, with what to do with a name of it."""
    return Answer(
        command="list",
        result={"rows": list(rows)},
        tables=(Table(rows, shown=_SHOWN.get(kind, ()), titles=_TITLES),),
        closing=(_NEXT[kind],),
    )
