"""Figures of docs/accuracy.md that other pages quote: written from its tables, so that no figure is typed twice.

A table of rows stands below `<!-- rows of docs/accuracy.md: WHAT / STATISTIC; ... -->`. The range in which limits with a chance of 80% held on sources that
were left out stands between `<!-- 80% on unseen sources -->` and `<!-- end -->`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

_ROWS = re.compile(r"(<!-- rows of docs/accuracy\.md: (.*?) -->\n)(?:\|.*\n)*")
_RANGE = re.compile(r"(<!-- 80% on unseen sources -->).*?(<!-- end -->)")
_HEAD = "| what | statistic | target | error | met |\n| --- | --- | --- | --- | --- |\n"


PAGES = ("accuracy.md", "evidence/chance-to-meet-the-slo.md")
"""Pages of docs/ whose tables are quoted."""


def quoted_text(root: Path) -> str:
    """Return the pages that are quoted, as one text."""
    return "\n".join((root / "docs" / page).read_text(encoding="utf-8") for page in PAGES)


def with_quotes(page: str, accuracy: str) -> str:
    r"""Return a page with its quotes of the page of accuracy written again.

    Parameters
    ----------
    page : text with marked places
    accuracy : text that is quoted

    Examples
    --------
    >>> accuracy = "| what | statistic | target | a stranger's run | met |\n| --- | --- | --- | --- | --- |\n| TPOT | median error | 5 % | 4 % | yes |\n"
    >>> print(with_quotes("<!-- rows of docs/accuracy.md: TPOT / median error -->\n", accuracy))
    <!-- rows of docs/accuracy.md: TPOT / median error -->
    | what | statistic | target | error | met |
    | --- | --- | --- | --- | --- |
    | TPOT | median error | 5% | 4% | yes |
    <BLANKLINE>
    """
    rows = list(_rows(accuracy))

    def quoted(match: re.Match[str]) -> str:
        lines = [_line(rows, *wanted.split(" / ")) for wanted in match[2].split("; ")]
        return match[1] + _HEAD + "".join(lines)

    def ranged(match: re.Match[str]) -> str:
        held = [int(row["claimed 80 %"].rstrip(" %")) for row in rows if row.get("left out") == "source"]
        return f"{match[1]}between {min(held)}% and {max(held)}%{match[2]}"

    return _RANGE.sub(ranged, _ROWS.sub(quoted, page))


def _line(rows: list[dict[str, str]], what: str, statistic: str) -> str:
    row = next(row for row in rows if (row.get("what"), row.get("statistic")) == (what, statistic))
    cells = (what, statistic, row["target"], row["a stranger's run"], row["met"])
    return f"| {' | '.join(cells)} |\n".replace(" %", "%")


def _rows(text: str) -> Iterator[dict[str, str]]:
    """Yield the rows of all tables of a page, by heading."""
    headings: list[str] = []
    for line in text.splitlines():
        if not line.startswith("| "):
            headings = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not headings:
            headings = cells
        elif not cells[0].startswith("---"):
            yield dict(zip(headings, cells, strict=False))
