"""Text of an answer for programs, and text that others wrote made harmless for a terminal, Markdown or a spreadsheet.

Control characters move cursors, set titles of windows and hide text, and `<` or a line that begins with `#` is markup.
"""

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

_DATA_TEXT_HIDDEN = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
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
    return _DATA_TEXT_HIDDEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


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


_SAFE_TEXT_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_BLOCK = re.compile(r"^(?:#{1,6}(?=\s|$)|>|[-+](?=\s|$)|-{3,}$|={3,}$|`{3,}|~{3,}|\d{1,9}(?=[.)](?:\s|$)))")
"""What makes a heading, a quotation, a list, a rule or code of a line of Markdown."""
LONGEST_LINE = 2000
MOST_LINES = 60
"""Most lines of a message; what is more is a file that somebody named by mistake."""


def visible(text: str) -> str:
    r"""Return a text whose control characters are spelled out; line ends and tabs stay.

    Examples
    --------
    >>> visible("a\x1b[2Jb\n")
    'a\\x1b[2Jb\n'
    """
    return _SAFE_TEXT_HIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def one_line(text: str) -> str:
    r"""Return a text as one line without control characters, for a cell, a title or a headline.

    Examples
    --------
    >>> one_line("chat\nwarning: none")
    'chat warning: none'
    """
    return visible(re.sub(r"[\n\r\t\v\f\u2028\u2029]+", " ", text))


def message(text: str) -> str:
    """Return a message for stderr: without control characters, long lines and long lists cut."""
    lines = visible(text).split("\n")
    more = len(lines) - MOST_LINES
    if more > 1:
        lines = [*lines[:MOST_LINES], f"... and {more:,} more lines"]
    return "\n".join(map(_cut, lines))


def _cut(line: str) -> str:
    if len(line) <= LONGEST_LINE:
        return line
    half = LONGEST_LINE // 2
    return f"{line[:half]} ... {line[-half:]}"


def markdown_words(text: str) -> str:
    r"""Return one line of words for Markdown in which nothing is an HTML tag or a link.

    Examples
    --------
    >>> markdown_words("[a](b) < 1 <script>")
    '[a]\\(b) < 1 &lt;script>'
    """
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", one_line(text)).replace("](", r"]\(")


def markdown_paragraph(text: str) -> str:
    r"""Return words for Markdown that begin a paragraph or a list item and are no heading, list, quotation or code.

    Examples
    --------
    >>> markdown_paragraph("# chat"), markdown_paragraph("1. chat"), markdown_paragraph("-5 %")
    ('\\# chat', '1\\. chat', '-5 %')
    """
    words = markdown_words(text).lstrip()
    begin = _BLOCK.match(words)
    if begin is None:
        return words
    at = begin.end() if begin.group()[0].isdigit() else 0
    return f"{words[:at]}\\{words[at:]}"


def html_words(text: str) -> str:
    """Return words for HTML or SVG in which nothing is markup.

    Examples
    --------
    >>> html_words("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    from html import escape  # loads the names of all entities

    return escape(visible(text))


def spreadsheet_text(text: str) -> str:
    """Return a cell of text that no spreadsheet takes for a formula.

    Examples
    --------
    >>> spreadsheet_text("=1+1"), spreadsheet_text("h100-sxm")
    ("'=1+1", 'h100-sxm')
    """
    shown = visible(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@", "\t", "\n")) and shown != "-" else shown
