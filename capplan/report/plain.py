"""An answer as plain text, for pipes and files: whole rows, no colour, and none of the terminal's libraries."""

from capplan.report.answer import Answer
from capplan.report.grid import Grid, footnotes, grid_of


def plain_text(answer: Answer) -> str:
    """Return headline, tables and footnotes."""
    lines = [answer.headline] if answer.headline else []
    for table in answer.tables:
        if table.title:
            lines += ["", table.title]
        lines += _aligned(grid_of(table))
    if answer.closing:
        lines += ["", *answer.closing]
    notes = footnotes(answer)
    if notes:
        lines += ["", *notes]
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
