"""Text that others wrote, such as names in files, made harmless for where it is shown: terminal, Markdown, spreadsheet.

Control characters move cursors, set titles of windows and hide text, and `<` or a line that begins with `#` is markup.
"""

import re
from html import escape

_HIDDEN = re.compile(
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
    return _HIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


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
