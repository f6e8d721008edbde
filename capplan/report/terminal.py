"""An answer as people read it in a terminal."""

import io

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from capplan.report.answer import Answer
from capplan.report.grid import Grid, footnotes, grid_of

_WITHOUT_LIMIT = 10_000
"""Columns where nobody's terminal folds the line: files and pipes get whole rows."""


def terminal_text(answer: Answer, *, width: int | None = None, colour: bool = False) -> str:
    """Return headline, tables and footnotes, folded to a width where one is given."""
    console = Console(
        file=io.StringIO(),
        width=width or _WITHOUT_LIMIT,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        soft_wrap=False,
    )
    if answer.headline:
        console.print(Text(answer.headline, style="bold"))
    for table in answer.tables:
        if table.title:
            console.print()
            console.print(Text(table.title, style="bold"))
        console.print(_rich_table(grid_of(table)))
    for line in (*answer.closing, *footnotes(answer)):
        console.print(Text(line))
    file = console.file
    assert isinstance(file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().strip("\n").split("\n"))


def _rich_table(grid: Grid) -> RichTable:
    table = RichTable(box=SIMPLE_HEAD, show_edge=False, header_style="bold", pad_edge=False)
    for heading, right in zip(grid.headings, grid.right, strict=True):
        table.add_column(Text(heading), justify="right" if right else "left", overflow="fold")
    for line in grid.cells:
        table.add_row(*(Text(cell) for cell in line))
    return table
