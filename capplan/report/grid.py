"""A table as text cells: units in the header, three significant digits, `*` on what was assumed.

Terminal and Markdown print the same grid.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capplan.report.answer import Answer, Table, flattened
from capplan.report.data_text import plain
from capplan.report.safe_text import one_line
from capplan.report.screen_units import Screen, is_number, screen_of, shown_money, shown_number

_STATISTICS = ("mean_s", "p50_s", "p90_s", "p95_s", "p99_s", "low_s", "high_s")
_COMPARED = ("measured_s", "predicted_s", "shipped_s", "before_s", "after_s", "left_out_s")
"""Columns that a reader compares across a row."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Headings, whether a column is right-aligned, cells of text, and what they were before they were text."""

    headings: tuple[str, ...]
    right: tuple[bool, ...]
    cells: tuple[tuple[str, ...], ...]
    values: tuple[tuple[Any, ...], ...]
    """In base units; None where a cell is no more than its text."""


def grid_of(table: Table) -> Grid:
    """Return the text of a table."""
    rows = [flattened(plain(row)) for row in table.rows]
    names = _shown_names(table, rows)
    if table.upright:
        return _upright(table, rows[0], names)
    headings, right, columns, exact = [], [], [], []
    for name in names:
        values = [row.get(name) for row in rows]
        group = next((group for group in (_STATISTICS, _COMPARED) if name in group), ())
        scaled_by = [_least_time(rows, group)] if group else values
        screen = screen_of(name, scaled_by, title=table.titles.get(name))
        numbers = any(is_number(value) for value in values)
        unit = screen.unit if numbers else ""
        headings.append(f"{screen.heading} ({unit})" if unit and screen.heading else screen.heading or unit)
        right.append(numbers)
        exact.append(values)
        columns.append([_text(v, screen, assumed=(i, name) in table.assumed) for i, v in enumerate(values)])
    return Grid(
        tuple(headings), tuple(right), tuple(zip(*columns, strict=True)), tuple(zip(*exact, strict=True))
    )


def footnotes(answer: Answer) -> list[str]:
    """Return the lines that say what was assumed and which flag or key replaces it."""
    if not answer.assumptions:
        return []
    marked = any(table.assumed for table in answer.tables)
    heading = "assumed (*):" if marked else "assumed:"
    return [heading, *(f"  {a.what}; replace with {a.replace}" for a in answer.assumptions)]


def _least_time(rows: list[dict[str, Any]], names: Sequence[str]) -> float:
    """Return the shortest time in columns that are compared, so that they share one unit."""
    cells = (row.get(name) for row in rows for name in names)
    return min(
        (float(cell) for cell in cells if cell is not None and is_number(cell) and cell > 0.0), default=0.0
    )


def _shown_names(table: Table, rows: list[dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not table.shown and not table.upright:
        return [name for name in names if any(row.get(name) is not None for row in rows)]
    if not table.shown:
        return names
    return [n for wanted in table.shown for n in names if n == wanted or n.startswith(f"{wanted}.")]


def _upright(table: Table, row: Mapping[str, Any], names: list[str]) -> Grid:
    cells, values = [], []
    for name in names:
        screen = screen_of(name, [row[name]], title=table.titles.get(name))
        shown = _text(row[name], screen, assumed=(0, name) in table.assumed)
        unit = screen.unit if is_number(row[name]) else ""
        more = (one_line(texts.get(name, "")) for texts in table.beside.values())
        cells.append((screen.heading, shown, unit, *more))
        values.append((None, row[name], None, *(None for _ in table.beside)))
    right = (False, True, False, *(False for _ in table.beside))
    return Grid(("quantity", "value", "unit", *table.beside), right, tuple(cells), tuple(values))


def _text(value: Any, screen: Screen, *, assumed: bool) -> str:
    star = "*" if assumed else ""
    if value is None:
        return f"-{star}"
    if isinstance(value, bool):
        return ("yes" if value else "no") + star
    if is_number(value):
        money = screen.unit.startswith("$")
        return (shown_money(value, screen.unit) if money else shown_number(value, screen.factor)) + star
    return f"{one_line(str(value))}{star}"
