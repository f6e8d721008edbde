"""What a command hands to the writers: one result, the tables that people see of it, and its footnotes.

Everything is in base units. The names of keys and columns carry the unit (`kv_bytes_per_token`,
`ttft_s`), so the writers know what to print: `capplan.report.screen_units`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from capplan.assumption import Assumption


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of the same keys. A cell is a number, text, a flag, None (unknown), a list, or a mapping of numbers."""

    rows: Sequence[Mapping[str, Any]]
    title: str = ""
    shown: tuple[str, ...] = ()
    """Columns on screen, in order; empty shows all. CSV always has all."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Column headings where the name by itself does not read well."""
    assumed: frozenset[tuple[int, str]] = frozenset()
    """(row, column) of the cells that rest on a default nobody confirmed; marked with `*`."""
    spare: tuple[str, ...] = ()
    """Columns that a narrow screen leaves out before it turns a table upright, the least important first."""
    drawn: tuple[str, ...] = ()
    """Columns that a screen with room for it also draws as bars, next to the rows."""
    upright: bool = False
    """One record read from top to bottom: quantity, value, unit. In CSV it stays one row."""
    beside: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Extra columns of an upright record: heading -> quantity -> text."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one command."""

    command: str
    result: Any
    """`result` of the JSON object."""
    tables: tuple[Table, ...]
    """What people see. The first one is the CSV, unless `csv_rows` are given."""
    headline: str = ""
    """What to read first, above the tables."""
    closing: tuple[str, ...] = ()
    """What to do next, below the tables."""
    assumptions: tuple[Assumption, ...] = ()
    counted: tuple[Assumption, ...] = ()
    """Assumptions that this answer does not rest on: prices of GPUs that its plan does not have. People see their number, JSON has all."""
    every_assumption: bool | None = None
    """Whether people see all assumptions by what to do about them, or the first to confirm; None: all in their order."""
    warnings: tuple[str, ...] = ()
    csv_rows: Sequence[Mapping[str, Any]] = ()
    """Rows of the CSV, where the first table is shaped differently from the result."""
    exit_code: int = 0
    """0 done, 3 does not fit, 4 target missed."""
    first_screen: "Answer | None" = None
    """What people see of a table unless they ask for all of it; None: everything."""

    def __post_init__(self) -> None:
        """Leave out the tables without rows, unless none has any."""
        kept = tuple(table for table in self.tables if table.rows)
        object.__setattr__(self, "tables", kept or self.tables[:1])


def columns(names: str) -> tuple[str, ...]:
    """Return the names of columns, which stand in a text with a space between them."""
    return tuple(names.split())


def row_of(record: object, names: str) -> dict[str, Any]:
    """Return what a record has under the names of some columns.

    Examples
    --------
    >>> row_of(Table([], title="Offers"), "title upright")
    {'title': 'Offers', 'upright': False}
    """
    return {name: getattr(record, name) for name in columns(names)}


def flattened(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose cells are single values: mappings become `name.key`, lists become text.

    Returns
    -------
    cells by column name

    Examples
    --------
    >>> flattened({"ttft_s": {"mean": 0.2, "p95": 0.5}, "limits": ["a", "b"]})
    {'ttft_s.mean': 0.2, 'ttft_s.p95': 0.5, 'limits': 'a; b'}
    """
    flat: dict[str, Any] = {}
    for name, cell in row.items():
        if isinstance(cell, Mapping):
            flat.update({f"{name}.{key}": value for key, value in flattened(cell).items()})
        elif isinstance(cell, (list, tuple)):
            flat[name] = "; ".join(str(part) for part in cell)
        else:
            flat[name] = cell
    return flat
