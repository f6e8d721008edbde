"""Console blocks of the documentation: the commands in them are run, and what they print is written below them.

A block is rerun where the line before it is `MARK`:

    <!-- output written by `make docs` -->
    ```console
    $ capplan kv-size llama-3.1-8b | head -4
    ...
    ```

A command line is `$ capplan ...`, at most with `2>&1` and `| head -N` and `| tail -N` behind it, as a shell would run it from the
root of the repository.
"""

import io
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout

MARK = "<!-- output written by `make docs` -->"
_BLOCK = re.compile(re.escape(MARK) + r"\n```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINE = re.compile(r"^(?P<words>.*?)(?P<errors> 2>&1)?(?P<ends>(?: \| (?:head|tail) -\d+)*)$")
_END = re.compile(r"(head|tail) -(\d+)")


def commands_of(page: str) -> Iterator[str]:
    """Return the command lines of the marked blocks of a page, without the prompt."""
    for block in _BLOCK.findall(page):
        yield from (line[2:] for line in block.splitlines() if line.startswith("$ "))


def printed(command: str, program: Callable[[list[str]], int], known: dict[str, str] | None = None) -> str:
    """Return what a command line prints to stdout, without the end of the last line.

    Parameters
    ----------
    command : as in a shell: `capplan ...`, at most with `2>&1` and `| head -N` and `| tail -N`
    program : runs the words after `capplan`
    known : command line without `head` and `tail` -> all that it printed; it runs once, and what it printed is added

    Returns
    -------
    text, cut as `head` or `tail` would cut it

    Examples
    --------
    >>> printed("capplan a 'b c' | head -1", lambda words: print(len(words), "words", sep=chr(10)) or 0)
    '2'
    >>> printed("capplan a b | head -2 | tail -1", lambda words: print(*words, sep=chr(10)) or 0)
    'b'
    """
    match = _LINE.match(command)
    assert match is not None
    name, *words = shlex.split(match["words"])
    if name != "capplan":
        raise ValueError(f"{command!r}: a marked block runs capplan alone")
    known = {} if known is None else known
    whole = match["words"] + (match["errors"] or "")
    if whole not in known:
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out if match["errors"] else io.StringIO()):
            program(words)
        known[whole] = out.getvalue()
    lines = known[whole].rstrip().splitlines()
    for end, count in _END.findall(match["ends"]):
        lines = lines[-int(count) :] if end == "tail" else lines[: int(count)]
    return "\n".join(lines)


def with_output(page: str, program: Callable[[list[str]], int], known: dict[str, str] | None = None) -> str:
    """Return a page with every marked block run anew; the rest stays as it is.

    Parameters
    ----------
    page : text of a Markdown file
    program : runs the words after `capplan`
    known : what commands printed, of `printed`; pages that share it run a command once

    Returns
    -------
    the page; running it twice changes nothing
    """

    def again(match: re.Match[str]) -> str:
        lines = [line for line in match[1].splitlines() if line.startswith("$ ")]
        text = "\n\n".join("\n".join([line, printed(line[2:], program, known)]) for line in lines)
        return f"{MARK}\n```console\n{text}\n```"

    return _BLOCK.sub(again, page)
