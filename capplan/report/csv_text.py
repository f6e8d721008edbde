"""An answer as CSV: the rows of the first table or of its own, every column, base units, full precision."""

import csv
import io
from typing import Any

from capplan.report.answer import Answer, flattened
from capplan.report.json_text import plain


def csv_text(answer: Answer) -> str:
    """Return one header line with the names that the JSON has, and one line per row."""
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
