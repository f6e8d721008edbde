"""An answer for programs, JSON and CSV: base units, full precision, never NaN or Infinity."""

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from capplan import __version__
from capplan.report.answer import Answer, flattened


def json_text(answer: Answer) -> str:
    """Return the envelope that every command prints with `--format json`."""
    envelope = {
        "capplan": __version__,
        "command": answer.command,
        "result": answer.result,
        "assumptions": [{"assumption": a.what, "replace": a.replace} for a in answer.assumptions],
        "warnings": list(answer.warnings),
    }
    return json.dumps(plain(envelope), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def csv_text(answer: Answer) -> str:
    """Return the CSV rows of an answer, else its first table: a header with the names of the JSON, and a line per row."""
    rows = [flattened(plain(row)) for row in answer.csv_rows or answer.tables[0].rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else value


def plain(value: Any) -> Any:
    """Return a value of JSON types; a number that is not finite is null.

    Examples
    --------
    >>> plain({"low": float("nan"), "layers": (1, 2)})
    {'low': None, 'layers': [1, 2]}
    """
    if isinstance(value, (bool, str, int)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)
