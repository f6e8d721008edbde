"""An answer for people: the same tables as plain text, folded to a terminal, and as Markdown."""

import io
from typing import TYPE_CHECKING

from capplan.report.answer import Answer
from capplan.report.grid import Grid, footnotes, grid_of
from capplan.report.safe_text import markdown_paragraph, markdown_words, one_line, visible

if TYPE_CHECKING:
    from rich.table import Table as RichTable


def plain_text(answer: Answer) -> str:
    """Return headline, tables and footnotes for pipes and files: whole rows, no colour, and rich is not imported."""
    lines = [one_line(answer.headline)] if answer.headline else []
    for table in answer.tables:
        if table.title:
            lines += ["", one_line(table.title)]
        lines += _aligned(grid_of(table))
    if answer.closing:
        lines += ["", *map(visible, answer.closing)]
    notes = footnotes(answer)
    if notes:
        lines += ["", *map(one_line, notes)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _aligned(grid: Grid) -> list[str]:
    lines = [grid.headings, *grid.cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(grid.headings))]
    sides = list(zip(widths, grid.right, strict=True))
    text = [
        "   ".join(c.rjust(w) if right else c.ljust(w) for c, (w, right) in zip(line, sides, strict=True))
        for line in lines
    ]
    return [text[0], "─" * (sum(widths) + 3 * (len(widths) - 1)), *text[1:]]


def terminal_text(answer: Answer, *, width: int, colour: bool) -> str:
    """Return headline, tables and footnotes folded to a width, headings set off where colour is wanted."""
    from rich.console import Console
    from rich.text import Text

    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
    )
    if answer.headline:
        console.print(Text(one_line(answer.headline), style="bold"))
    for table in answer.tables:
        if table.title:
            console.print()
            console.print(Text(one_line(table.title), style="bold"))
        console.print(_rich_table(grid_of(table)))
    for lines in (answer.closing, footnotes(answer)):
        if lines:
            console.print()
        for line in lines:
            console.print(Text(visible(line)))
    return file.getvalue()


def _rich_table(grid: Grid) -> "RichTable":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=SIMPLE_HEAD, show_edge=False, header_style="bold", pad_edge=False)
    for heading, right in zip(grid.headings, grid.right, strict=True):
        table.add_column(Text(heading), justify="right" if right else "left", overflow="fold")
    for line in grid.cells:
        table.add_row(*(Text(cell) for cell in line))
    return table


def markdown_text(answer: Answer) -> str:
    """Return headline, tables and footnotes as Markdown, ready for a page under review."""
    parts = [markdown_paragraph(answer.headline)] if answer.headline else []
    for table in answer.tables:
        if table.title:
            parts.append(f"### {markdown_words(table.title)}")
        parts.append(markdown_table(grid_of(table)))
    if answer.closing:
        parts.append("\n".join(f"- {markdown_paragraph(line)}" for line in answer.closing))
    notes = footnotes(answer)
    if notes:
        parts.append(
            "\n".join(
                [notes[0].replace("*", r"\*"), "", *(f"- {markdown_paragraph(line)}" for line in notes[1:])]
            )
        )
    if answer.warnings:
        parts.append("\n".join(f"- warning: {markdown_words(line)}" for line in answer.warnings))
    return "\n\n".join(parts) + "\n"


def markdown_table(grid: Grid) -> str:
    """Return one table whose columns also line up as plain text."""
    lines = [tuple(map(_escaped, line)) for line in (grid.headings, *grid.cells)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(grid.headings))]
    sides = list(zip(widths, grid.right, strict=True))
    rule = "|".join(f" {'-' * (w - 1)}: " if right else f" {'-' * w} " for w, right in sides)
    text = [
        " | ".join(c.rjust(w) if right else c.ljust(w) for c, (w, right) in zip(line, sides, strict=True))
        for line in lines
    ]
    return "\n".join([f"| {text[0]} |", f"|{rule}|", *(f"| {line} |" for line in text[1:])])


def _escaped(cell: str) -> str:
    return markdown_words(cell).replace("|", r"\|").replace("*", r"\*")
