"""A table made to fit a width: words wrap, then columns are left out or the table is turned upright. No number and no name is cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TypeAlias

from capplan.report.grid import Grid

GAP = 3
"""Between two columns."""
UPRIGHT_ROWS = 8
"""A table of more rows is not turned: it loses columns, and says which."""

Block: TypeAlias = tuple[str, ...]
"""The lines of one cell."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Lines of cells of fixed widths."""

    widths: tuple[int, ...]
    right: tuple[bool, ...]
    headings: tuple[Block, ...]
    rows: tuple[tuple[Block, ...], ...]
    left_out: tuple[str, ...] = ()
    """Headings of columns that had no room."""
    upright: bool = False
    """Every row is a group of lines, heading and value; there are no headings above."""


def fitted(grid: Grid, width: int | None) -> Fitted:
    """Return a table that is no wider than asked, as far as its longest names and numbers allow.

    Parameters
    ----------
    grid : of text
    width : of the screen [letters]; None: as wide as it wants
    """
    wanted = [max(map(len, column)) for column in _columns(grid)]
    if width is None or _total(wanted) <= width:
        return _blocks(grid, wanted, ())
    least = [_least(column, right=right) for column, right in zip(_columns(grid), grid.right, strict=True)]
    if _total(least) <= width:
        return _blocks(grid, _shared(least, wanted, width), ())
    if len(grid.cells) <= UPRIGHT_ROWS and len(grid.headings) > 2:
        return _turned(grid, width)
    return _without(grid, least, width)


def _columns(grid: Grid) -> list[tuple[str, ...]]:
    return list(zip(grid.headings, *grid.cells, strict=True))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _least(column: Sequence[str], *, right: bool) -> int:
    """Return how narrow a column may be: its longest word, or its longest number, which never wraps."""
    heading, *cells = column
    words = [word for text in (heading, *([] if right else cells)) for word in text.split()]
    return max([1, *map(len, words), *(len(cell) for cell in (cells if right else ()))])


def _shared(least: Sequence[int], wanted: Sequence[int], width: int) -> list[int]:
    """Return widths that fill a line: columns of text get what is left, a letter at a time to the narrowest for what it wants."""
    widths = list(least)
    for _ in range(width - _total(widths)):
        short = [at for at in range(len(widths)) if widths[at] < wanted[at]]
        if not short:
            break
        at = min(short, key=lambda place: widths[place] / wanted[place])
        widths[at] += 1
    return widths


def _blocks(grid: Grid, widths: Sequence[int], left_out: tuple[str, ...]) -> Fitted:
    def lines(cells: Sequence[str]) -> tuple[Block, ...]:
        return tuple(folded(cell, width) for cell, width in zip(cells, widths, strict=True))

    return Fitted(
        tuple(widths), grid.right, lines(grid.headings), tuple(lines(row) for row in grid.cells), left_out
    )


def folded(text: str, width: int) -> Block:
    """Return a text in lines of whole words; a word that is longer than a line stays whole.

    Examples
    --------
    >>> folded("decode memory (gate_up)", 13), folded("", 5)
    (('decode memory', '(gate_up)'), ('',))
    """
    return tuple(wrap(text, width, break_long_words=False, break_on_hyphens=False)) or ("",)


def _turned(grid: Grid, width: int) -> Fitted:
    """Return a table upright: a line for each cell, the heading first."""
    words = [word for heading in grid.headings for word in heading.split()]
    least = max((len(word) for row in grid.cells for cell in row for word in cell.split()), default=1)
    room = min(max(map(len, grid.headings)), width - GAP - least)
    named = max(1, room, *map(len, words))
    values = max(width - GAP - named, 1)
    rows: list[tuple[Block, ...]] = []
    for place, row in enumerate(grid.cells):
        rows += [(("",), ("",))] if place else []
        for heading, cell in zip(grid.headings, row, strict=True):
            rows.append((folded(heading, named), folded(cell, values)))
    return Fitted((named, values), (False, False), (), tuple(rows), upright=True)


def _without(grid: Grid, least: Sequence[int], width: int) -> Fitted:
    """Return a table without the columns that have no room: the last ones go first, the first one stays."""
    kept = list(range(len(least)))
    while len(kept) > 1 and _total([least[at] for at in kept]) > width:
        kept.pop()
    left_out = tuple(heading for at, heading in enumerate(grid.headings) if at not in kept)

    def of(cells: Sequence[str]) -> tuple[str, ...]:
        return tuple(cells[at] for at in kept)

    narrow = Grid(of(grid.headings), tuple(grid.right[at] for at in kept), tuple(map(of, grid.cells)), ())
    wanted = [max(map(len, column)) for column in _columns(narrow)]
    return _blocks(narrow, _shared([least[at] for at in kept], wanted, width), left_out)


def line_texts(fit: Fitted, cells: Sequence[Block]) -> list[str]:
    """Return the lines of one row, every cell padded to its column."""
    height = max(map(len, cells), default=0)
    sides = list(zip(cells, fit.widths, fit.right, strict=True))
    lines = []
    for at in range(height):
        texts = [(block[at] if at < len(block) else "", width, right) for block, width, right in sides]
        lines.append((" " * GAP).join(t.rjust(w) if right else t.ljust(w) for t, w, right in texts))
    return lines
