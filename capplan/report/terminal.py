"""An answer as people read it in a terminal: folded to its width, headings set off where colour is wanted."""

import io

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from capplan.report.answer import Answer
from capplan.report.grid import Grid, footnotes, grid_of


def terminal_text(answer: Answer, *, width: int, colour: bool) -> str:
    """Return headline, tables and footnotes."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
    )
    if answer.headline:
        console.print(Text(answer.headline, style="bold"))
    for table in answer.tables:
        if table.title:
            console.print()
            console.print(Text(table.title, style="bold"))
        console.print(_rich_table(grid_of(table)))
    for lines in (answer.closing, footnotes(answer)):
        if lines:
            console.print()
        for line in lines:
            console.print(Text(line))
    return file.getvalue()


def _rich_table(grid: Grid) -> RichTable:
    table = RichTable(box=SIMPLE_HEAD, show_edge=False, header_style="bold", pad_edge=False)
    for heading, right in zip(grid.headings, grid.right, strict=True):
        table.add_column(Text(heading), justify="right" if right else "left", overflow="fold")
    for line in grid.cells:
        table.add_row(*(Text(cell) for cell in line))
    return table
