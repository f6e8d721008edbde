"""An answer for people: the same tables as plain text, folded to a terminal, and as Markdown."""

from collections.abc import Iterator
from textwrap import wrap

from capplan.report.answer import Answer
from capplan.report.fitted import GAP, fitted, line_texts
from capplan.report.grid import Grid, footnotes, grid_of
from capplan.report.safe_text import markdown_paragraph, markdown_words, one_line, visible

_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def plain_text(answer: Answer, width: int | None = None) -> str:
    """Return headline, tables and footnotes for pipes and files, without colour; rows are whole unless a width is asked for."""
    return "".join(f"{line.rstrip()}\n" for line, _ in _lines(answer, width))


def terminal_text(answer: Answer, *, width: int, colour: bool) -> str:
    """Return headline, tables and footnotes made to fit a width, headings set off where colour is wanted."""
    lines = _lines(answer, width)
    return "".join(
        f"{_BOLD}{line.rstrip()}{_PLAIN}\n" if set_off and colour and line.strip() else f"{line.rstrip()}\n"
        for line, set_off in lines
    )


def _lines(answer: Answer, width: int | None) -> Iterator[tuple[str, bool]]:
    """Yield the lines of an answer, and whether each is set off as a heading."""
    if answer.headline:
        yield from ((line, True) for line in _prose(one_line(answer.headline), width))
    for table in answer.tables:
        if table.title:
            yield "", False
            yield from ((line, True) for line in _prose(one_line(table.title), width))
        yield from _table_lines(grid_of(table), width)
    for texts in (list(map(visible, answer.closing)), list(map(one_line, footnotes(answer)))):
        if texts:
            yield "", False
        yield from ((line, False) for text in texts for line in _prose(text, width))


def _prose(text: str, width: int | None) -> list[str]:
    """Return a text in lines of whole words, further lines as far in as the first."""
    if width is None or len(text) <= width:
        return [text]
    inset = " " * (len(text) - len(text.lstrip()))
    return wrap(
        text, width, subsequent_indent=inset, break_long_words=False, break_on_hyphens=False,
        drop_whitespace=True,
    )  # fmt: skip


def _table_lines(grid: Grid, width: int | None) -> Iterator[tuple[str, bool]]:
    fit = fitted(grid, width)
    if not fit.upright:
        yield from ((line, True) for line in line_texts(fit, fit.headings))
        yield "─" * (sum(fit.widths) + GAP * (len(fit.widths) - 1)), False
    for row in fit.rows:
        yield from ((line, False) for line in line_texts(fit, row))
    if fit.left_out:
        said = f"no room for: {', '.join(fit.left_out)}; a wider screen, --format markdown or csv has them"
        yield from ((line, False) for line in _prose(said, width))


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
