"""Console blocks of the documentation: the commands in them are run, and what they print is written below them.

A block is run again if the line before it is a mark, which may name the parts of the output that the block shows:

    <!-- output written by `make docs`: decision; Plans; Rejected (5) -->
    ```console
    $ capplan fleet support-chat --full
    ...
    ```

A name is the beginning of a table's title, or of a single line; a number keeps the first rows of a table, or as many lines from that line on; `decision` is
what stands above the first empty line. Without names a block shows everything, up to `MOST_LINES`. A command line is `$ capplan ...`, with `2>&1` at most, as a shell would run it from the root of
the repository, on a screen of `WIDTH` columns.
"""

import io
import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

WIDTH = 80
MOST_LINES = 15
"""Of what a command prints, in one block; the rest is cut, with a sign that there is more."""
_MARK = r"<!-- output written by `make docs`(?:: (?P<names>[^\n]+?))? -->"
_BLOCK = re.compile(rf"(?P<mark>{_MARK})\n```console\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_LINE = re.compile(r"^(?P<words>.*?)(?P<errors> 2>&1)?$")
_NAME = re.compile(r"(?P<start>.*?)(?: \((?P<rows>\d+)\))?")
_DECISION = "decision"
_RULES = ("───", "| -")
"""How the line below the headings of a table begins, on a screen and in Markdown."""


def blocks_of(page: str) -> Iterator[str]:
    """Yield the text of each marked block of a page."""
    return (match["text"] for match in _BLOCK.finditer(page))


def commands_of(page: str) -> Iterator[str]:
    """Return the command lines of the marked blocks of a page, without the prompt."""
    for block in blocks_of(page):
        yield from (line[2:] for line in block.splitlines() if line.startswith("$ "))


@contextmanager
def page_width() -> Iterator[None]:
    """Let the program print for the width of a page, whatever the screen of who writes it."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def printed(command: str, program: Callable[[list[str]], int], known: dict[str, str] | None = None) -> str:
    """Return what a command line prints to stdout, without the end of the last line.

    Parameters
    ----------
    command : as in a shell: `capplan ...`, with `2>&1` at most
    program : runs the words after `capplan`
    known : command line -> what it printed; it runs once, and what it printed is added

    Returns
    -------
    text

    Examples
    --------
    >>> printed("capplan a 'b c'", lambda words: print(len(words), "words") or 0)
    '2 words'
    """
    match = _LINE.match(command)
    assert match is not None
    name, *words = shlex.split(match["words"])
    if name != "capplan" or {"|", ">", "&&"} & set(words):
        raise ValueError(f"{command!r}: a marked block runs only capplan")
    known = {} if known is None else known
    if command not in known:
        out = io.StringIO()
        errors = out if match["errors"] else io.StringIO()
        with page_width(), redirect_stdout(out), redirect_stderr(errors):
            program(words)
        known[command] = out.getvalue().rstrip()
    return known[command]


def part(text: str, name: str) -> str:
    r"""Return a named part of what a command printed; empty if there is none.

    Examples
    --------
    >>> text = "a: 2 GPUs\n\nPlans, cheapest first\nhardware\n───\nh100\nl4\n\nbottleneck: memory"
    >>> part(text, "decision"), part(text, "Plans (1)").splitlines()[-2:], part(text, "bottleneck")
    ('a: 2 GPUs', ['h100', '…'], 'bottleneck: memory')
    >>> part("# cost\nserve \\\n  --port 1\n  --seed 2", "serve (2)").splitlines()
    ['serve \\', '  --port 1']
    """
    sections = [section.splitlines() for section in re.split(r"\n\s*\n", text)]
    match = _NAME.fullmatch(name)
    assert match is not None
    start = match["start"]
    if start == _DECISION:
        return "\n".join(sections[0])
    for section in sections:
        if section and section[0].startswith(start) and any(line.startswith(_RULES) for line in section):
            return "\n".join(_first_rows(section, int(match["rows"] or len(section))))
    lines = [line for section in sections for line in (*section, "")]
    starts = [at for at, line in enumerate(lines) if line.startswith(start)]
    if match["rows"]:
        return "\n".join("\n".join(lines[at : at + int(match["rows"])]).rstrip() for at in starts)
    return "\n".join(_whole_line(lines[at:]) for at in starts)


def _first_rows(section: list[str], rows: int) -> list[str]:
    """Return a table with its first rows, and a sign that there are more."""
    body = 1 + next(at for at, line in enumerate(section) if line.startswith(_RULES))
    return section if len(section) <= body + rows else [*section[: body + rows], "…"]


def _whole_line(lines: list[str]) -> str:
    """Return a line with the lines that it goes on in: the next word had no room in it."""
    end = 1
    while lines[end].split() and len(lines[end - 1]) + 1 + len(lines[end].split()[0]) > WIDTH:
        end += 1
    return "\n".join(lines[:end])


def first_lines(text: str) -> str:
    """Return the lines of a text that one block shows, with a sign that there are more."""
    lines = text.splitlines()
    return "\n".join(lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES - 1], "…"])


def with_output(page: str, program: Callable[[list[str]], int], known: dict[str, str] | None = None) -> str:
    """Return a page with every marked block run again; the rest stays as it is.

    Parameters
    ----------
    page : text of a Markdown file
    program : runs the words after `capplan`
    known : what commands printed, of `printed`; pages that share it run a command once

    Returns
    -------
    the page; running it twice changes nothing

    Raises
    ------
    ValueError
        a command prints nothing of what its block names
    """

    def shown(command: str, names: list[str]) -> str:
        text = printed(command, program, known)
        parts = [found for name in names if (found := part(text, name))]
        if names and text and not parts:
            raise ValueError(f"{command!r} prints none of {', '.join(names)}")
        return first_lines("\n\n".join(parts) if names else text)

    def again(match: re.Match[str]) -> str:
        lines = [line for line in match["text"].splitlines() if line.startswith("$ ")]
        names = match["names"].split("; ") if match["names"] else []
        text = "\n\n".join("\n".join([line, shown(line[2:], names)]).rstrip() for line in lines)
        return f"{match['mark']}\n```console\n{text}\n```"

    return _BLOCK.sub(again, page)
