"""An answer for programs, JSON and CSV: base units, full precision, never NaN or Infinity."""

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from capplan import __version__
from capplan.report.answer import Answer, flattened
from capplan.report.safe_text import spreadsheet_text

_HIDDEN = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""What JSON lets stand raw and a terminal or a line reader obeys; in JSON it only ever stands in texts."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


def json_text(answer: Answer) -> str:
    """Return the envelope that every command prints with `--format json`."""
    envelope = {
        "capplan": __version__,
        "command": answer.command,
        "result": answer.result,
        "assumptions": [{"assumption": a.what, "replace": a.replace} for a in answer.assumptions],
        "warnings": list(answer.warnings),
    }
    text = json.dumps(plain(envelope), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return _HIDDEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def ascii_json(text: str) -> str:
    r"""Return the same JSON in ASCII: every other letter stands in a text, where it can be escaped.

    Examples
    --------
    >>> ascii_json('{"name": "tïny"}')
    '{"name": "t\\u00efny"}'
    """
    return _NOT_ASCII.sub(lambda found: json.dumps(found.group())[1:-1], text)


def csv_text(answer: Answer) -> str:
    """Return the CSV rows of an answer, else its first table: a header with the names of the JSON, and a line per row."""
    return rows_csv(answer.csv_rows or answer.tables[0].rows)


def rows_csv(given: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV: a header with their keys, and a line for each."""
    rows = [flattened(plain(row)) for row in given]
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([csv_cell(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def csv_cell(value: Any) -> Any:
    """Return a value as it stands in CSV: no null, no formula."""
    if value is None:
        return ""
    if isinstance(value, str):
        return spreadsheet_text(value)
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
