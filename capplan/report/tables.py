"""An answer for people: tables as text cells with units in the header, fitted to a width and folded to a terminal."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, TypeAlias

from capplan.assumption import Assumption, by_what_to_do
from capplan.report.answer import Answer, Table, flattened
from capplan.report.safe_text import markdown_paragraph, markdown_words, one_line, plain, visible
from capplan.report.screen_units import (
    Screen,
    is_number,
    screen_of,
)

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
    """Values in base units; None where a cell is no more than its text."""
    spare: tuple[int, ...] = ()
    """Columns that a narrow screen leaves out, the first one first."""
    drawn: tuple[tuple[int, str, float], ...] = ()
    """Columns that are drawn as bars too, each with a heading and the value of the longest bar."""


def grid_of(table: Table) -> Grid:
    """Return the text of a table."""
    rows = [flattened(plain(row)) for row in table.rows]
    names = _shown_names(table, rows)
    if table.upright:
        return _upright(table, rows[0], names)
    headings, right, exact = [], [], []
    columns: list[list[str]] = []
    drawn: list[tuple[int, str, float]] = []
    for name in names:
        values = [row.get(name) for row in rows]
        group = next((group for group in (_STATISTICS, _COMPARED) if name in group), ())
        scaled_by = [_least_time(rows, group)] if group else values
        screen = screen_of(name, scaled_by, title=table.titles.get(name))
        numbers = any(is_number(value) for value in values)
        headings.append(screen.column(numbers=numbers))
        right.append(numbers)
        exact.append(values)
        if name in table.drawn and (largest := _largest(values, screen)):
            drawn.append((len(columns), screen.heading or screen.unit, largest))
        columns.append([_text(v, screen, assumed=(i, name) in table.assumed) for i, v in enumerate(values)])
    return Grid(
        tuple(headings),
        tuple(right),
        tuple(zip(*columns, strict=True)),
        tuple(zip(*exact, strict=True)),
        tuple(names.index(name) for name in table.spare if name in names),
        tuple(drawn),
    )


def _largest(values: Sequence[Any], screen: Screen) -> float:
    """Return the value of the longest bar of a column: certainty for probabilities, else its largest value."""
    return 1.0 if screen.probability else max((float(v) for v in values if is_number(v)), default=0.0)


MOST_ASSUMED, TO_CONFIRM = 6, 3
"""Assumptions that an answer shows at most, and those that it names if it rests on more."""


def footnotes(answer: Answer, *, every: bool | None = None) -> list[str]:
    """Return the lines that say what was assumed and which flag or key replaces it.

    Parameters
    ----------
    answer : of a command
    every : whether all are shown, by what to do about them; False: of many one of each and others up to three; None: all in their order
    """
    named = [item for item in answer.assumptions if every or item not in answer.counted]
    groups = by_what_to_do(named)
    marked = "assumed (*)" if any(table.assumed for table in answer.tables) else "assumed"
    if every:
        parts = ([f"{marked}, {do}:", *map(_footnote, items)] for do, items in groups.items())
        return [line for part in parts for line in part]
    if every is False and len(named) > MOST_ASSUMED:
        first = [items[0] for items in groups.values()]
        named = [*first, *(item for item in named if item not in first)][:TO_CONFIRM]
    more = len(answer.assumptions) - len(named)
    confirm = f", confirm these {len(named)}; --assumptions shows {more} more" if more else ""
    return [f"{marked}{confirm}:", *map(_footnote, named)] if answer.assumptions else []


def _footnote(item: Assumption) -> str:
    return f"  {item.what}; replace with {item.replace}"


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
        cells.append((screen.heading or unit, shown, unit, *more))
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
        return screen.number(value) + star
    return f"{one_line(str(value))}{star}"


GAP = 3
"""Space between two columns."""
LONGEST_PIECE = 16
"""Letters of a link or a name that stay on one line in any table."""
_PIECE = re.compile(r"[^/_:=&?#-]*[/_:=&?#-]+|[^/_:=&?#-]+")

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
    """Return a table that is no wider than asked: headings wrap first, then cells, then links and long names; numbers never do.

    Each time columns that a narrow screen can spare make way before the next; the others always stay, in a table that is turned if need be.

    Parameters
    ----------
    grid : of text
    width : of the screen [letters]; None: as wide as it wants
    """
    wanted = [max(map(len, column)) for column in _columns(grid)]
    if width is None or _total(wanted) <= width:
        return _blocks(grid, wanted, ())
    by_word, by_piece = _least(grid, str.split), _least(grid, _pieces)
    whole = [max(low, *map(len, column[1:])) for low, column in zip(by_word, _columns(grid), strict=True)]
    kept = [[at for at in range(len(wanted)) if at not in grid.spare[:n]] for n in range(len(grid.spare) + 1)]
    for narrowest, columns in (
        *((whole, k) for k in kept),
        *((by_word, k) for k in kept),
        (by_piece, kept[-1]),
    ):
        if _total([narrowest[at] for at in columns]) <= width:
            return _narrowed(grid, columns, narrowest, width)
    return _turned(grid, width)


def _columns(grid: Grid) -> list[tuple[str, ...]]:
    return list(zip(grid.headings, *grid.cells, strict=True))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _least(grid: Grid, parts: Callable[[str], list[str]]) -> list[int]:
    """Return how narrow each column may be: its longest part of a text, or its longest number."""
    columns = zip(grid.headings, zip(*grid.cells, strict=True), zip(*grid.values, strict=True), strict=True)
    return [
        max(
            1,
            *map(len, heading.split()),
            *(_narrowest(*cell, parts) for cell in zip(cells, values, strict=True)),
        )
        for heading, cells, values in columns
    ]


def _narrowest(cell: str, value: Any, parts: Callable[[str], list[str]]) -> int:
    return len(cell) if is_number(value) else max(map(len, parts(cell)), default=0)


def _pieces(text: str) -> list[str]:
    """Return the parts of a text that stay on one line: of links and names, what a separator ends.

    Examples
    --------
    >>> _pieces("see openai/gpt-oss-120b, 54,232")
    ['see', 'openai/', 'gpt-', 'oss-', '120b,', '54,232']
    """
    return [piece for word in text.split() for piece in _word_pieces(word)]


def _word_pieces(word: str) -> list[str]:
    """Return the pieces of a word; a number is one."""
    if not any(map(str.isalpha, word)):
        return [word]
    return [
        p[at : at + LONGEST_PIECE] for p in _PIECE.findall(word) for at in range(0, len(p), LONGEST_PIECE)
    ]


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
    """Return a text in lines of whole words; a word that is longer than a line is broken where a link or a name may be.

    Examples
    --------
    >>> folded("decode memory (gate_up)", 13), folded("", 5)
    (('decode memory', '(gate_up)'), ('',))
    >>> folded("at deepinfra/openai/gpt-oss-120b", 18)
    ('at deepinfra/', 'openai/gpt-oss-', '120b')
    """
    words = text.split()
    if all(len(word) <= width for word in words):
        return tuple(wrap(text, width, break_long_words=False, break_on_hyphens=False)) or ("",)
    lines = [""]
    for word in words:
        for at, piece in enumerate(_word_pieces(word) if len(word) > width else [word]):
            space = " " if at == 0 and lines[-1] else ""
            if lines[-1] and len(lines[-1]) + len(space) + len(piece) > width:
                lines.append(piece)
            else:
                lines[-1] += space + piece
    return tuple(lines)


def _turned(grid: Grid, width: int) -> Fitted:
    """Return a table upright: a line for each cell, the heading first."""
    words = [word for heading in grid.headings for word in heading.split()]
    least = max((len(piece) for row in grid.cells for cell in row for piece in _pieces(cell)), default=1)
    room = min(max(map(len, grid.headings)), width - GAP - least)
    named = max(1, room, *map(len, words))
    values = max(width - GAP - named, 1)
    rows: list[tuple[Block, ...]] = []
    for place, row in enumerate(grid.cells):
        rows += [(("",), ("",))] if place else []
        for heading, cell in zip(grid.headings, row, strict=True):
            rows.append((folded(heading, named), folded(cell, values)))
    return Fitted((named, values), (False, False), (), tuple(rows), upright=True)


def _narrowed(grid: Grid, kept: Sequence[int], least: Sequence[int], width: int) -> Fitted:
    """Return a table of some of its columns, which says which ones had no room."""
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
    shown = [table for table in answer.tables if table.rows or table.title or not answer.headline]
    for place, table in enumerate(shown):
        if answer.headline or table.title or place:
            yield "", False
        if table.title:
            yield from ((line, True) for line in _prose(one_line(table.title), width))
        yield from _table_lines(grid_of(table), width)
    for texts in (
        list(map(visible, answer.closing)),
        list(map(one_line, footnotes(answer, every=answer.every_assumption))),
    ):
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
    heading, *bars = _bars(grid, fit, width) or [""] * (1 + len(fit.rows))
    if not fit.upright:
        yield from _with_bar(line_texts(fit, fit.headings), heading, set_off=True)
        yield "─" * (_total(fit.widths) + len(heading)), False
    for row, bar in zip(fit.rows, bars, strict=True):
        yield from _with_bar(line_texts(fit, row), bar, set_off=False)
    if fit.left_out:
        said = f"no room for: {', '.join(fit.left_out)}; a wider screen, --format markdown or csv has them"
        yield from ((line, False) for line in _prose(said, width))


def _with_bar(lines: Sequence[str], bar: str, *, set_off: bool) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a row with its bars next to the last one, on which headings end."""
    yield from ((line, set_off) for line in lines[:-1])
    yield from ((f"{line}{bar}", set_off) for line in lines[-1:])


BAR = 8
"""Letters of the longest bar."""
_EIGHTHS = "▏▎▍▌▋▊▉█"


def _bars(grid: Grid, fit: Fitted, width: int | None) -> list[str]:
    """Return what stands next to the headings and each row: a bar for every drawn column; nothing without room, or in a table that lacks columns."""
    room = [max(BAR, len(heading)) for _, heading, _ in grid.drawn]
    if fit.upright or fit.left_out or (width is not None and _total([*fit.widths, *room]) > width):
        return []
    lines = [[heading for _, heading, _ in grid.drawn]]
    lines += [[bar(row[at], largest) for at, _, largest in grid.drawn] for row in grid.values]
    return [
        "".join(" " * GAP + text.ljust(size) for text, size in zip(line, room, strict=True)) for line in lines
    ]


def bar(value: Any, largest: float) -> str:
    """Return an amount as a bar of at most BAR letters, to an eighth of a letter; empty if it is not known.

    Examples
    --------
    >>> bar(5.0, 10.0), bar(0.1, 10.0), bar(None, 10.0)
    ('████', '▏', '')
    """
    eighths = round(8 * BAR * value / largest) if is_number(value) else 0
    whole, rest = divmod(eighths, 8)
    return _EIGHTHS[-1] * whole + (_EIGHTHS[rest - 1] if rest else "")


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
