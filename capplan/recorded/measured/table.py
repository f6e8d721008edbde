"""Files of measured results -> rows: CSV, plain or gzipped, of serving, memory or kernel measurements."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from capplan.errors import InputError, unknown
from capplan.readers.csv_file import csv_rows
from capplan.readers.text_file import MAX_RESULT_BYTES, read_text
from capplan.recorded.measured.run_columns import with_run_columns
from capplan.recorded.measured.start_columns import with_start_columns

MeasuredKind: TypeAlias = Literal["serving", "memory", "kernel"]

NEEDED: dict[MeasuredKind, tuple[str, ...]] = {
    "kernel": ("gpu", "family", "latency_us"),
    "memory": ("engine", "model_hf_id", "gpu", "gpu_memory_utilization"),
    "serving": ("engine", "model_hf_id", "gpu", "isl", "kind"),
}
"""Columns that tell a kind, and that every file of that kind must have."""


_COMPLETE: dict[MeasuredKind, Callable[[Mapping[str, str]], dict[str, str]]] = {
    "serving": with_run_columns,
    "memory": with_start_columns,
}
"""Kind -> what turns the texts of a row into columns."""


def measured_table(path: Path, asked: str | None = None) -> tuple[MeasuredKind, list[dict[str, str]]]:
    """Return the kind of results in a file and its rows, with facts from their notes as columns.

    Parameters
    ----------
    path : CSV, gzipped or not
    asked : the kind; None infers it from the columns

    Returns
    -------
    kind, and text by column name for every row
    """
    rows = measured_rows(path)
    kind = measured_kind(path, rows, asked)
    complete = _COMPLETE.get(kind)
    return kind, [complete(row) for row in rows] if complete else rows


def measured_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, gzipped or not, as text by column name and as they stand there."""
    text = read_text(path, kind="a CSV file of measured results", max_bytes=MAX_RESULT_BYTES, unpacked=True)
    rows = [{key: _cell(value) for key, value in row.items()} for row in csv_rows(text, str(path))]
    if not rows:
        raise InputError(
            f"{path}: no rows\n  the first line names the columns, each further line is a result"
        )
    return rows


def _cell(text: str | None) -> str:
    """Return a cell as text, empty where nothing is known."""
    plain = (text or "").strip()
    return "" if plain.lower() in {"nan", "na", "n/a", "null"} else plain


def measured_kind(path: Path, rows: list[dict[str, str]], asked: str | None) -> MeasuredKind:
    """Return the kind of results in a file: the one given, else inferred from its columns."""
    columns = set(rows[0])
    kinds: dict[str, MeasuredKind] = {kind: kind for kind in NEEDED}
    if asked is not None and asked not in kinds:
        raise unknown("kind", asked, kinds)
    if asked is None:
        fitting = [kind for kind, needed in NEEDED.items() if columns.issuperset(needed)]
        if not fitting:
            lines = "\n".join(f"  {kind}: {', '.join(needed)}" for kind, needed in NEEDED.items())
            raise InputError(f"{path}: the columns match no kind of results; needed are\n{lines}")
        return fitting[0]
    kind = kinds[asked]
    missing = [name for name in NEEDED[kind] if name not in columns]
    if missing:
        raise InputError(
            f"{path}: column {missing[0]!r} is missing for --kind {kind}\n  needed: {', '.join(NEEDED[kind])}"
        )
    return kind
