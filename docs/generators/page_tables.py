"""Tables of the documentation: a few rows on a page, all of them as a CSV file next to it."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

_GROUPED = re.compile(r"(?<=\d),(?=\d{3}\b)")
_PERCENT = re.compile(r"[-+−]?[\d.,]+ ?%")


@dataclass(frozen=True, slots=True)
class Table:
    """Headings, and rows of cells as a page shows them.

    Examples
    --------
    >>> table = Table(["engine", "values", "median error"], [["vllm", "1,200", "4.5 %"], ["sglang", "90", "**12 %**"]])
    >>> print(table.first(1))
    | engine | values | median error |
    | --- | --- | --- |
    | vllm | 1,200 | 4.5 % |
    >>> print(table.csv(), end="")
    engine,values,median error [%]
    vllm,1200,4.5
    sglang,90,12
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        """Return the table in Markdown."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)

    def first(self, count: int) -> "Table":
        """Return the table with its first rows only."""
        return Table(self.headings, self.rows[:count])

    def csv(self) -> str:
        """Return the table as a file: numbers without commas, and the unit of shares in their heading."""
        columns = [[_bare(cell) for cell in column] for column in zip(*self.rows, strict=True)]
        headings = list(self.headings)
        for place, column in enumerate(columns):
            if any(column) and all(not cell or _PERCENT.fullmatch(cell) for cell in column):
                headings[place] += " [%]"
                columns[place] = [cell.rstrip(" %") for cell in column]
        lines = StringIO()
        csv.writer(lines, lineterminator="\n").writerows([headings, *zip(*columns, strict=True)])
        return lines.getvalue()


def _bare(cell: str) -> str:
    text = cell.replace("**", "").replace("`", "").strip()
    return _GROUPED.sub("", text) if re.fullmatch(r"[-+]?[\d,.]+ ?%?", text) else text


@dataclass(frozen=True, slots=True)
class Page:
    """Text of a page, and the tables that stand in files next to it."""

    text: str
    files: Mapping[str, Table] = field(default_factory=dict)
    """Name of a file without its ending -> what is in it."""


def table_in(path: Path) -> list[dict[str, str]]:
    """Return the rows of such a file, by heading."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
