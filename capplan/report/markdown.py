"""An answer as Markdown: the same tables as on the terminal, ready for a page under review."""

from capplan.report.answer import Answer
from capplan.report.grid import Grid, footnotes, grid_of


def markdown_text(answer: Answer) -> str:
    """Return headline, tables, footnotes."""
    parts = [answer.headline] if answer.headline else []
    for table in answer.tables:
        if table.title:
            parts.append(f"### {table.title}")
        parts.append(markdown_table(grid_of(table)))
    if answer.closing:
        parts.append("\n".join(f"- {line}" for line in answer.closing))
    notes = footnotes(answer)
    if notes:
        parts.append(
            "\n".join([notes[0].replace("*", r"\*"), "", *(f"- {line.strip()}" for line in notes[1:])])
        )
    if answer.warnings:
        parts.append("\n".join(f"- warning: {line}" for line in answer.warnings))
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
    return cell.replace("|", r"\|").replace("*", r"\*").replace("\n", " ")
