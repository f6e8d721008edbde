"""Write an answer to stdout or a file in one of the four formats; files are looked at before anything is computed, and written whole."""

import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.errors import InputError, unknown
from capplan.report.answer import Answer
from capplan.report.safe_text import message, plain, visible
from capplan.scenario.flags import OutputFlags

if TYPE_CHECKING:
    from capplan.report.charts.of_answers import Chart

WIDEST = 10_000
"""Columns of a table, whatever COLUMNS asks for."""
USUAL_SIZE = os.terminal_size((80, 24))
READER_WAIT_S = 20.0
"""How long an answer waits for somebody to read the pipe that it is written to."""


def refuse_unwritable(path: Path | None, option: str = "--output") -> None:
    """Raise the error for a file (None: stdout) that could not be written, as far as can be said before it is."""
    if path is None:
        if sys.stdout is None:
            raise InputError("stdout is closed, so no answer can be printed\n  write it to a file: -o FILE")
        return
    try:
        if path.is_dir():
            raise InputError(f"{option}: {str(path)!r} is a folder; name a file in it")
        if path.exists() and not path.is_file():
            return  # a device or a pipe
        target = path.resolve()
        folder = target.parent
        if not folder.is_dir():
            raise _unwritable(path, option, "No such file or directory")
        if not os.access(folder, os.W_OK | os.X_OK) or (target.exists() and not os.access(target, os.W_OK)):
            raise _unwritable(path, option, "Permission denied")
    except (OSError, RuntimeError, ValueError) as error:
        raise _unwritable(path, option, _reason(error)) from None


def refuse_losing(outputs: Mapping[str, Path], inputs: Iterable[str]) -> Mapping[object, str]:
    """Raise the error for an answer that would take the place of a file that is read for it, or of another answer.

    Parameters
    ----------
    outputs : option -> file to write
    inputs : words that may be names of files that are read

    Returns
    -------
    what tells each output from other files -> its option
    """
    read = {place for word in inputs if (place := place_of(Path(word), existing=True)) is not None}
    taken: dict[object, str] = {}
    for option, path in outputs.items():
        place = place_of(path, existing=False)
        if place is None:
            continue
        if place in read:
            raise InputError(f"{option}: {visible(str(path))!r} is read by this command; name another file")
        if place in taken:
            raise InputError(
                f"{option}: {visible(str(path))!r} is written by {taken[place]} already; name another file"
            )
        taken[place] = option
    return taken


def place_of(path: Path, *, existing: bool) -> object:
    """Return what tells a plain file from others, by whatever name; None for anything else, such as a device."""
    try:
        if path.is_file():
            what = path.stat()
            return what.st_dev, what.st_ino
        return None if existing or path.exists() else path.resolve()
    except (OSError, RuntimeError, ValueError):
        return None


def refuse_picture(path: Path) -> None:
    """Raise the error for a picture that could not be drawn: its suffix, its folder."""
    if path.suffix.lower() != ".svg":
        raise InputError(f"--plot: {path.name!r} is not an .svg, which is what is drawn; e.g. picture.svg")
    refuse_unwritable(path, "--plot")


def beside(path: Path, suffix: str) -> dict[object, str]:
    """Return the files that are there and may be written next to an answer, `NAME.TOPIC.suffix`, each with the option that does."""
    try:
        found = sorted(path.resolve().parent.iterdir())
    except (OSError, RuntimeError):
        return {}  # the folder is refused where the answer is written
    named = [item for item in found if item.name.startswith(f"{path.stem}.") and item.suffix == suffix]
    places = {place_of(item, existing=True): "--output" for item in named if item.name != path.name}
    return {place: option for place, option in places.items() if place is not None}


def write_whole(path: Path, content: str | bytes, option: str = "--output") -> None:
    """Write a file whole or not at all, and say which: an interrupted run leaves what was there before; the mode of an old file is kept.

    Letters that are no Unicode, as in names of files, are spelled out.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    refuse_unwritable(path, option)
    try:
        if path.exists() and not path.is_file():
            with open(path, "wb", opener=_patient) as device:  # nothing to replace
                device.write(data)
            return
        target = path.resolve()
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        part = target.with_name(f".{target.name[:200]}.{os.getpid()}.part")
        try:
            _write_new(part, data, mode)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unwritable(path, option, _reason(error)) from error
    say(f"wrote {path}")


def _patient(path: str, flags: int) -> int:
    """Open a device or a pipe; wait for a reader of the pipe for a while instead of for ever."""
    until_s = time.monotonic() + READER_WAIT_S
    flags &= ~(os.O_CREAT | os.O_TRUNC)
    while True:
        try:
            opened = os.open(path, flags | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > until_s:
                raise OSError(errno.ENXIO, f"nobody read this pipe for {READER_WAIT_S:g} s") from None
            time.sleep(0.02)
        else:
            os.set_blocking(opened, True)
            return opened


def refuse_existing(path: Path) -> None:
    """Raise the error for a file that exists, or could not be written, before anything is asked or computed for it."""
    refuse_unwritable(path, "FILE")
    if path.exists() or path.is_symlink():
        raise _existing(path)


def _existing(path: Path) -> InputError:
    return InputError(f"{visible(str(path))!r} exists; name another file, or remove it")


def write_new(path: Path, content: str) -> None:
    """Write a file that does not exist yet, whole or not at all; InputError where it exists or cannot be written."""
    refuse_existing(path)
    part = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
    try:
        _write_new(part, content.encode(), None)
        os.link(part, path)  # fails where somebody wrote it meanwhile
    except FileExistsError:
        raise _existing(path) from None
    except (OSError, RuntimeError, ValueError) as error:
        raise _unwritable(path, "FILE", _reason(error)) from error
    finally:
        part.unlink(missing_ok=True)


def _write_new(path: Path, data: bytes, mode: int | None) -> None:
    """Write a file that nobody else may read before it has its mode; None: the mode of new files."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
        if mode is not None:
            os.fchmod(descriptor, mode)


def _reason(error: Exception) -> str:
    if isinstance(error, RuntimeError):
        return "Too many levels of symbolic links"
    return (getattr(error, "strerror", None) or str(error)).rstrip(".")


def _unwritable(path: Path, option: str, reason: str) -> InputError:
    return InputError(
        f"{option}: cannot write {visible(str(path))!r}: {reason}; name a file in a folder that exists"
    )


FORMATS = ("table", "json", "csv", "markdown")
BY_SUFFIX = {".json": "json", ".csv": "csv", ".md": "markdown", ".markdown": "markdown"}


def show(answer: Answer, to: OutputFlags, *, full: bool = True) -> int:
    """Print or write an answer, its warnings to stderr, and return its exit code; people see its first screen unless they want all of it."""
    say_warnings(answer)
    form = to.form or BY_SUFFIX.get(to.file.suffix.lower() if to.file else "", "table")
    to_terminal = to.file is None and sys.stdout is not None and sys.stdout.isatty()
    shown = answer if full or to.assumptions or form != "table" else answer.first_screen or answer
    shown = replace(shown, every_assumption=to.assumptions)
    text = answer_text(shown, form, to_terminal=to_terminal, width=None if to.file else _stated_width())
    send(text if to.file or form != "json" else _encodable(text), to.file, answer.headline)
    if to.file and form == "json" and answer.first_screen:
        say_first_screen(answer.first_screen)
    return answer.exit_code


def say_first_screen(first_screen: Answer) -> None:
    """Print to stderr what people see of an answer that a file keeps."""
    from capplan.report import tables

    if sys.stderr is not None:
        text = tables.plain_text(first_screen, _stated_width())
        sys.stderr.write(f"{drawable(text, sys.stderr.encoding)}\n")


def _encodable(text: str) -> str:
    """Return JSON that stdout can encode: letters that it lacks are escaped, so that nothing is lost."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        from capplan.report.safe_text import ascii_json

        return ascii_json(text)
    return text


@contextmanager
def shown_anyway(answer: Answer, to: OutputFlags) -> Iterator[None]:
    """Show an answer where a file next to it cannot be written, before the error says so."""
    try:
        yield
    except InputError:
        show(answer, to)
        raise


def show_drawn(
    answer: Answer,
    to: OutputFlags,
    picture: Path | None,
    charts: Callable[[], "Sequence[Chart]"],
    *,
    full: bool = False,
) -> int:
    """Print an answer, and draw its charts into a file if one is named; returns its exit code."""
    if picture is not None and (drawn := charts()):
        from capplan.report.charts.svg import titled_svg

        with shown_anyway(answer, to):
            write_whole(picture, titled_svg(drawn), "--plot")
    return show(answer, to, full=full)


def say_warnings(answer: Answer) -> None:
    """Print the warnings of an answer to stderr."""
    for warning in answer.warnings:
        say(f"warning: {warning}")


def say(text: str) -> None:
    """Print a line to stderr."""
    print(message(text), file=sys.stderr)


def send(text: str, file: Path | None, headline: str = "", option: str = "--output") -> None:
    """Write a text to a file, whole or not at all, or to stdout; what cannot be written is printed instead, then the error says so.

    Parameters
    ----------
    text : to be written
    file : None: stdout
    headline : of the text, which people at a terminal read next to the name of the file
    option : that named the file, for the error
    """
    if file is None:
        _print(text)
        return
    try:
        write_whole(file, text, option)
    except InputError:
        _print(text)
        raise
    if headline and sys.stderr is not None and sys.stderr.isatty():
        say(f"  {headline}")


def _print(text: str) -> None:
    refuse_unwritable(None)
    stdout = sys.stdout
    if hasattr(stdout, "reconfigure"):
        stdout.reconfigure(errors="replace")  # a terminal without '×' shows '?', and no traceback
    stdout.write(drawable(text, stdout.encoding))
    stdout.flush()


_ASCII_DRAWING = str.maketrans("─█▉▊▋▌▍▎▏", "-#####   ")


def drawable(text: str, encoding: str | None) -> str:
    """Return a text whose rules and bars an encoding has: in ASCII where it has no others.

    Examples
    --------
    >>> drawable("── ██▌", "ascii"), drawable("── ██▌", "utf-8")
    ('-- ###', '── ██▌')
    """
    try:
        "─█▏".encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return text.translate(_ASCII_DRAWING)
    return text


def answer_text(answer: Answer, form: str, *, to_terminal: bool = False, width: int | None = None) -> str:
    """Return an answer in one of the four formats; colour only for a terminal, tables made to fit its width or the one given."""
    from capplan.report import safe_text, tables

    if form == "json":
        return safe_text.json_text(answer)
    if form == "csv":
        return safe_text.csv_text(answer)
    if form == "markdown":
        return tables.markdown_text(answer)
    if form != "table":
        raise unknown("format", form, FORMATS, place="--format")
    if not to_terminal:
        return tables.plain_text(answer, width)
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return tables.terminal_text(answer, width=width or _terminal_size().columns, colour=colour)


def _stated_width() -> int | None:
    """Return the width that COLUMNS asks for; None where it asks for none."""
    written = os.environ.get("COLUMNS", "").lstrip("0")
    return min(int(written[:9]), WIDEST) if written.isascii() and written.isdigit() else None


def _terminal_size() -> os.terminal_size:
    """Return the size of the terminal of stdout or stderr; a usual one where it states none, as terminals without a window do."""
    for stream in (sys.__stdout__, sys.__stderr__):
        try:
            size = os.get_terminal_size(stream.fileno() if stream else -1)
        except (OSError, ValueError):
            continue
        if size.columns and size.lines:
            return size
    return USUAL_SIZE


_LISTENER: list[Callable[[Mapping[str, Any]], None]] = []


def tell_progress(listener: Callable[[Mapping[str, Any]], None]) -> None:
    """Send the progress of this process to a function instead of a terminal.

    It takes what is counted, done and total; or parts of the answer that are known before all of it: lists of its result, with new rows.
    """
    _LISTENER[:] = [listener]


class RowProgress:
    """Takes how many rows are done, and rows of the answer that are found before all of it is."""

    def __init__(self, noun: str, told: Callable[[Mapping[str, Any]], None]) -> None:
        """Count something in words."""
        self._noun, self._told = noun, told

    def __call__(self, done: int, total: int) -> None:
        """Tell how many are done."""
        self._told({"what": self._noun, "done": done, "total": total})

    def found(self, words: str, **rows: Sequence[Mapping[str, Any]]) -> None:
        """Tell new rows of lists of the result, and in words what they are."""
        self._told({"words": words, "found": plain(rows)})


@contextmanager
def row_progress(noun: str) -> Iterator[RowProgress | None]:
    """Yield what takes done, total and rows found so far, and draws a transient bar on stderr; None if that is no terminal.

    The bar moves without a count until the total is known, and again from the last row until the answer is there.
    """
    if _LISTENER:
        yield RowProgress(noun, _LISTENER[0])
        return
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    width, height = _terminal_size()
    console = Console(stderr=True, width=_stated_width() or width, height=height)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"{noun}: reading the question", total=None)
        last = ""

        def drawn(step: Mapping[str, Any]) -> None:
            nonlocal last
            if "found" in step:
                last = f"; found {escape(visible(step['words']))}" if step["words"] else ""
                return
            done, total = step["done"], step["total"]
            if done < total:
                bar.update(task, description=f"{noun}: {done} of {total}{last}", completed=done, total=total)
            else:  # a task that is complete would stand still
                bar.reset(task, description=f"{noun}: {total} of {total}, comparing{last}", total=None)

        yield RowProgress(noun, drawn)
