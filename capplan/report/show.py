"""Write an answer to stdout or a file, in one of the four formats; warnings and progress to stderr."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from capplan.errors import InputError, unknown
from capplan.report.answer import Answer
from capplan.report.destination import refuse_unwritable, write_whole
from capplan.report.safe_text import message
from capplan.scenario.flags import OutputFlags

FORMATS = ("table", "json", "csv", "markdown")
_BY_SUFFIX = {".json": "json", ".csv": "csv", ".md": "markdown", ".markdown": "markdown"}


def show(answer: Answer, to: OutputFlags) -> int:
    """Print or write an answer, its warnings to stderr, and return its exit code."""
    say_warnings(answer)
    form = to.form or _BY_SUFFIX.get(to.file.suffix.lower() if to.file else "", "table")
    to_terminal = to.file is None and sys.stdout is not None and sys.stdout.isatty()
    text = answer_text(answer, form, to_terminal=to_terminal, width=None if to.file else _stated_width())
    send(text if to.file or form != "json" else _encodable(text), to.file, answer.headline)
    return answer.exit_code


def _encodable(text: str) -> str:
    """Return JSON that stdout can encode: letters that it lacks are escaped, so that nothing is lost."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        from capplan.report.data_text import ascii_json

        return ascii_json(text)
    return text


@contextmanager
def shown_anyway(answer: Answer, to: OutputFlags) -> Iterator[None]:
    """Show an answer where a file beside it cannot be written, before the error says so."""
    try:
        yield
    except InputError:
        show(answer, to)
        raise


def say_warnings(answer: Answer) -> None:
    """Print the warnings of an answer to stderr."""
    for warning in answer.warnings:
        say(f"warning: {warning}")


def say(text: str) -> None:
    """Print a line to stderr."""
    print(message(text), file=sys.stderr)


def send(text: str, file: Path | None, headline: str = "") -> None:
    """Write a text to a file, whole or not at all, or to stdout; what cannot be written is printed instead, then the error says so.

    Parameters
    ----------
    text : to be written
    file : None: stdout
    headline : of the text, which people at a terminal read beside the name of the file
    """
    if file is None:
        _print(text)
        return
    try:
        write_whole(file, text)
    except InputError:
        _print(text)
        raise
    if sys.stderr is not None and sys.stderr.isatty():
        say(f"wrote {file}" + (f"\n  {headline}" if headline else ""))


def _print(text: str) -> None:
    refuse_unwritable(None)
    stdout = sys.stdout
    if hasattr(stdout, "reconfigure"):
        stdout.reconfigure(errors="replace")  # a terminal without '×' shows '?', and no traceback
    stdout.write(text)
    stdout.flush()


def answer_text(answer: Answer, form: str, *, to_terminal: bool = False, width: int | None = None) -> str:
    """Return an answer in one of the four formats; colour only for a terminal, tables made to fit its width or the one given."""
    from capplan.report import data_text, table_text

    if form == "json":
        return data_text.json_text(answer)
    if form == "csv":
        return data_text.csv_text(answer)
    if form == "markdown":
        return table_text.markdown_text(answer)
    if form != "table":
        raise unknown("format", form, FORMATS, place="--format")
    if not to_terminal:
        return table_text.plain_text(answer, width)
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return table_text.terminal_text(answer, width=width or os.get_terminal_size().columns, colour=colour)


def _stated_width() -> int | None:
    """Return the width that COLUMNS asks for; None where it asks for none."""
    written = os.environ.get("COLUMNS", "")
    return int(written) if written.isascii() and written.isdigit() and int(written) > 0 else None


@contextmanager
def row_progress(noun: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback that takes done and total and draws a transient bar on stderr; None where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(noun), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(noun, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
