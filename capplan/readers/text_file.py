"""The one way to open an input file (bounded, UTF-8, plain or gzip, refused with the reason when it is something else), and its rows as CSV or JSON.

Hand-written JSON is read strictly (one object, no duplicate key, no NaN), that of tools leniently. The data files that ship with the package
lie inside it when installed, next to it in a checkout.
"""

import csv
import gzip
import json
import os
import re
import select
import stat
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from io import BufferedIOBase, BufferedReader, BytesIO
from itertools import zip_longest
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import MappingProxyType
from typing import Any

from capplan.errors import LONGEST_SHOWN, InputError

MAX_BYTES = 8_000_000
"""The largest file that is read whole; a model's config is about 5 KB, a price list about 60 KB."""
MAX_RESULT_BYTES = 512 * 1024**2
"""The largest result file of a tool, decompressed."""
PIPE_WAIT_MS = 20_000
"""How long a pipe or a device may be silent."""
LONGEST_PIPE_S = 600.0
"""How long one may go on."""
MAX_DEPTH = 40
"""How deep mappings and lists may be nested."""
MOST_RATIO = 200
"""Largest ratio of decompressed to compressed bytes; tables of requests have about ten."""
FREE_BYTES = 64 * 1024**2
"""Decompressed bytes from which the ratio is checked."""
LONGEST_LINE = 32_000_000
"""A longer line is not a request; a prompt of a million tokens names 62,500 blocks of 16 in 0.5 MB."""

MOST_STREAM_BYTES = 16 * 1024**3
"""Most bytes of a file that is read line by line, decompressed; a trace of 40 million requests has about 2 GB."""

_GZIP = b"\x1f\x8b"
_MAGIC = (
    (b"GGUF", "a GGUF weights file, which belongs where a MODEL is asked for"),
    (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint"),
    (_GZIP, "gzip-compressed; unpack it first"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "an image"),
    (b"\x7fELF", "a program"),
    (b"\x80\x02", "a Python pickle, which is never loaded"),
    (b"\xff\xfe", "UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "UTF-16; save it as UTF-8"),
)
_HTML = (b"<!doctype html", b"<html")


def _is_safetensors(head: bytes) -> bool:
    """Return whether this is a safetensors file: the length of a JSON header in eight bytes, then the header."""
    return len(head) > 9 and head[8:9] == b"{" and 0 < int.from_bytes(head[:8], "little") < 2**32


def _what_it_is(head: bytes) -> str:
    if _is_safetensors(head):
        return "a safetensors weights file; give the config.json next to it"
    if b"\x00ustar" in head:
        return "a tar archive; unpack it and name one of its files"
    if head.lstrip()[:14].lower().startswith(_HTML):
        return "a web page, such as one to log in"
    return next((what for magic, what in _MAGIC if head.startswith(magic)), "")


class _Packed(gzip.GzipFile):
    """capplan rejects a compressed file that expands beyond reason."""

    def __init__(self, name: str, raw: BufferedReader) -> None:
        """Unpack what an open file holds."""
        super().__init__(fileobj=raw)
        self.said, self.raw = name, raw

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, unpacked."""
        return self._checked(super().read(size))

    def read1(self, size: int = -1) -> bytes:
        """Return the next bytes, unpacked, as many as come at once."""
        return self._checked(super().read1(size))

    def _checked(self, content: bytes) -> bytes:
        unpacked = self.tell()
        if unpacked > FREE_BYTES and unpacked > MOST_RATIO * self.raw.tell():
            raise InputError(
                f"{self.said}: unpacks to more than {MOST_RATIO} times its size; is it the right file?"
            )
        return content


_PIPED: ContextVar[dict[tuple[int, int], bytes] | None] = ContextVar("piped", default=None)


@contextmanager
def remembering_pipes() -> Iterator[None]:
    """Keep what pipes hold, which can be read once, for the readers of one command."""
    before = _PIPED.set({})
    try:
        yield
    finally:
        _PIPED.reset(before)


def _piped(name: str, descriptor: int, what: os.stat_result) -> bytes:
    """Return what comes out of a pipe or a device; InputError for one that is silent for a while, or does not end."""
    kept = _PIPED.get()
    place = (what.st_dev, what.st_ino)
    if kept is not None and place in kept:
        return kept[place]
    ready = select.poll()
    ready.register(descriptor, select.POLLIN | select.POLLHUP)
    until_s, held = time.monotonic() + LONGEST_PIPE_S, bytearray()
    typed = os.isatty(0) and os.path.sameopenfile(descriptor, 0)
    wait_ms = round(1000.0 * LONGEST_PIPE_S) if typed else PIPE_WAIT_MS
    while True:
        if not ready.poll(wait_ms):
            raise InputError(f"{name}: a pipe or a device to which nobody wrote for {wait_ms / 1000:.0f} s")
        piece = os.read(descriptor, 2**20)
        if not piece:
            break
        held += piece
        if len(held) > MAX_RESULT_BYTES or time.monotonic() > until_s:
            raise InputError(
                f"{name}: a pipe or a device that does not end after {len(held) / 1e6:,.0f} MB; write it to a file first"
            )
    content = bytes(held)
    if kept is not None:
        kept[place] = content
    return content


def _nonblocking(path: str, flags: int) -> int:
    """Open a file; of a pipe or a device do not wait for anybody."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


_KEPT: ContextVar[Mapping[object, str]] = ContextVar("kept", default=MappingProxyType({}))


@contextmanager
def protecting_outputs(outputs: Mapping[object, str]) -> Iterator[None]:
    """Refuse to read any file that the answer would overwrite, even one that a scenario names.

    Parameters
    ----------
    outputs : device and inode of a file -> the option that writes it
    """
    before = _KEPT.set(outputs)
    try:
        yield
    finally:
        _KEPT.reset(before)


@contextmanager
def _opened(
    path: str | os.PathLike[str], kind: str, way_out: str, *, unpacked: bool
) -> Iterator[BufferedIOBase]:
    """Yield the bytes of a file; errors of reading become one line, so the body must only read."""
    name = os.fspath(path)
    tail = f"; {kind} is expected" + (f"\n  {way_out}" if way_out else "")
    try:
        with open(path, "rb", opener=_nonblocking) as file:
            what = os.fstat(file.fileno())
            if option := _KEPT.get().get((what.st_dev, what.st_ino)):
                raise InputError(f"{option}: {name!r} is read by this command; name another file")
            # what the system writes below /proc has no size, and may never end
            plain = stat.S_ISREG(what.st_mode) and what.st_size > 0
            raw = file if plain else BufferedReader(BytesIO(_piped(name, file.fileno(), what)))
            packed = unpacked and raw.peek(2)[:2] == _GZIP
            yield _Packed(name, raw) if packed else raw
    except FileNotFoundError:
        raise InputError(f"{name}: no such file{tail}") from None
    except IsADirectoryError:
        raise InputError(f"{name}: is a folder{tail}") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"{name}: cannot be read ({reason.lower()})") from None
    except ValueError:
        raise InputError(f"{name!r}: is not a file name") from None


@contextmanager
def mapped(path: str | os.PathLike[str], kind: str) -> Iterator[mmap]:
    """Yield the memory-mapped bytes of a large binary file; only the pages that are accessed are read.

    Raises
    ------
    InputError
        The file is missing, unreadable, a folder, no plain file, or empty.
    """
    name = os.fspath(path)
    if is_there(Path(path)) and not (Path(path).is_file() or Path(path).is_dir()):
        raise InputError(f"{name}: is not a plain file; {kind} is expected")
    if Path(path).is_file() and not Path(path).stat().st_size:
        raise InputError(f"{name}: is empty; {kind} is expected")
    with (
        _opened(path, kind, "", unpacked=False) as raw,
        mmap(raw.fileno(), 0, access=ACCESS_READ) as content,
    ):
        yield content


def first_bytes(path: Path, count: int) -> bytes:
    """Return the first bytes of a plain file; none where there is no such file or it cannot be read."""
    try:
        if not path.is_file():
            return b""
        with open(path, "rb", opener=_nonblocking) as raw:
            return raw.read(count) or b""
    except (OSError, ValueError):
        return b""


def digest(path: str | os.PathLike[str], most_bytes: int) -> str | None:
    """Return a digest of the content of a plain file; None where there is none, or one of more than most_bytes."""
    content = first_bytes(Path(path), most_bytes + 1) if is_there(Path(path)) else None
    if not content or len(content) > most_bytes:
        return None
    import hashlib  # loads OpenSSL

    return hashlib.sha256(content).hexdigest()[:16]


def system_text(path: Path) -> str:
    """Return the text of a file in which the system states something, as below /proc; empty where there is none."""
    return first_bytes(path, MAX_BYTES).decode("utf-8", "replace").strip()


def _decoded(content: bytes, name: str, kind: str, line: int = 1) -> str:
    """Return bytes that start on a line of a file as text, without a byte-order mark."""
    what = _what_it_is(content[:512]) if line == 1 else ""
    if what:
        raise InputError(f"{name}: is {what}; {kind} is expected")
    try:
        text = content.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line += content[: error.start].count(b"\n")
        raise InputError(
            f"{name}: line {line} is not UTF-8 text; {kind} is expected, saved as UTF-8"
        ) from None
    if "\x00" in text:
        raise InputError(f"{name}: holds binary data; {kind} is expected")
    return text


_CONFINED = ContextVar("confined", default=False)


def confine_paths() -> None:
    """Refuse paths that lead out of the current folder from now on: what a stranger sends names files that come with it."""
    _CONFINED.set(True)


def path_of(written: str) -> Path:
    """Return a path as it was written, with ~ expanded.

    Raises
    ------
    InputError
        It cannot be a path, it names the home folder of an unknown user, or it leads out of a folder that paths are confined to.
    """
    if "\x00" in written:
        raise InputError(f"{_short(written)}: is not a file name")
    if _CONFINED.get() and _leads_out(written):
        raise InputError(f"{_short(written)}: names a file of the server; send its content with the request")
    try:
        return Path(written).expanduser()
    except RuntimeError:
        raise InputError(f"{_short(written)}: there is no such home folder; write the whole path") from None


def _leads_out(written: str) -> bool:
    """Return whether a path leads out of the current folder, without a look at what is there; one that begins with ~ does."""
    folder = Path.cwd()
    return written.startswith("~") or not Path(os.path.normpath(folder / written)).is_relative_to(folder)


def whole_path(path: Path) -> Path:
    """Return the absolute path with links resolved; InputError for one that leads nowhere.

    A path in a folder that paths are confined to stays relative to it: another request with the same files finds them under the same name.
    """
    try:
        found = path.resolve()
        if _CONFINED.get() and found.is_relative_to(Path.cwd()):
            return found.relative_to(Path.cwd())
        return found
    except (OSError, RuntimeError, ValueError):
        raise InputError(f"{_short(str(path))}: cannot be read (its links are a loop)") from None


def is_there(path: Path) -> bool:
    """Return whether something exists at a path; False where that cannot be determined."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def printable(name: str) -> str:
    r"""Return the name of a file or folder as text, even if it is not UTF-8.

    Examples
    --------
    >>> printable("caf\udce9")
    'caf�'
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _short(written: str) -> str:
    return repr(written if len(written) <= LONGEST_SHOWN else written[:LONGEST_SHOWN] + "...")


def read_text(
    path: str | os.PathLike[str],
    *,
    kind: str,
    way_out: str = "",
    max_bytes: int = MAX_BYTES,
    unpacked: bool = False,
) -> str:
    """Return the text of a file.

    Parameters
    ----------
    path : path
    kind : str
        What the file should be, for the error, such as 'a scenario YAML'.
    way_out : str
        One thing to do, added to the error of a missing file.
    max_bytes : [B]
        capplan rejects a longer file without reading it whole.
    unpacked : bool
        Read what gzip packed; if not set, such a file is an error.

    Raises
    ------
    InputError
        The file is missing, unreadable, a folder, too large, empty, binary or not UTF-8.
    """
    name = os.fspath(path)
    with _opened(path, kind, way_out, unpacked=unpacked) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes and not _what_it_is(content[:512]):
        raise InputError(
            f"{name}: is larger than {max_bytes / 1e6:g} MB, the limit for {kind}; is it the right file?"
        )
    text = _decoded(content, name, kind)
    if not text.strip():
        tail = f"\n  {way_out}" if way_out else ""
        raise InputError(f"{name}: is empty; {kind} is expected{tail}")
    return text


def numbered_lines(path: str | os.PathLike[str], *, kind: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of a file of any length, packed or not, without its end; empty ones are left out.

    Parameters
    ----------
    path : path
    kind : str
        What the file should be, for the error.

    Raises
    ------
    InputError
        As `read_text`, or a line is longer than LONGEST_LINE.
    """
    for first_line, block in numbered_blocks(path, kind=kind):
        yield from numbered_lines_of_block(block, first_line, path, kind=kind)


def numbered_blocks(
    path: str | os.PathLike[str], *, kind: str, size: int = 2**21, unpacked: bool = True
) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of a file of any length in blocks of whole lines, each with the number of its first line.

    Only reading can fail here: the content of the blocks is checked by the caller.

    Parameters
    ----------
    path : path
    kind : str
        What the file should be, for the error.
    size : [B]
        Of a block, about.
    unpacked : bool
        Read what gzip packed.

    Raises
    ------
    InputError
        It cannot be read to its end, has a line that is longer than LONGEST_LINE, or more than MOST_STREAM_BYTES.
    """
    with _opened(path, kind, "", unpacked=unpacked) as stream:
        number, rest, seen = 1, b"", 0
        failure: Exception | None = None
        while failure is None:
            more, failure = _some_bytes(stream, size)
            if not more:
                break
            seen += len(more)
            if seen > MOST_STREAM_BYTES:
                raise InputError(
                    f"{os.fspath(path)}: is larger than {MOST_STREAM_BYTES / 1e9:.0f} GB; {kind} is expected"
                )
            whole, end, rest = (rest + more).rpartition(b"\n")
            if max(len(whole), len(rest)) >= LONGEST_LINE:
                raise InputError(
                    f"{os.fspath(path)}: a line from {number} on is too long; {kind} is expected"
                )
            if end:
                yield number, whole + end
                number += whole.count(b"\n") + 1
        if failure is not None:
            raise failure
        if rest:
            yield number, rest


def _some_bytes(stream: BufferedIOBase, size: int) -> tuple[bytes, Exception | None]:
    """Return the next bytes, fewer only at the end, and the error that ends the reading; the bytes before it are good."""
    pieces: list[bytes] = []
    left = size
    try:
        while left and (piece := stream.read1(left)):
            pieces.append(piece)
            left -= len(piece)
    except (OSError, EOFError, zlib.error) as error:
        return b"".join(pieces), error
    return b"".join(pieces), None


def numbered_lines_of_block(
    block: bytes, first_line: int, path: str | os.PathLike[str], *, kind: str
) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines of a block, checked as numbered_lines does."""
    for number, line in enumerate(block.removesuffix(b"\n").split(b"\n"), first_line):
        if line:
            yield number, _decoded(line, os.fspath(path), kind, number).rstrip("\r\n")


MOST_CELLS = 8_000_000
"""Most cells of one table, those that are missing in a row included; measured results of 6,500 runs have 400,000."""
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")


def csv_rows(text: str, name: str) -> list[dict[str, str | None]]:
    r"""Return the rows of a table, without empty lines and without cells beyond the header; None for a cell that is missing.

    Parameters
    ----------
    text : the table
    name : its file, for the error

    Raises
    ------
    InputError
        It is not CSV, or larger than any table of results.

    Examples
    --------
    >>> csv_rows("a,b\n1,2\n\n3\n", "x.csv")
    [{'a': '1', 'b': '2'}, {'a': '3', 'b': None}]
    """
    rows: list[dict[str, str | None]] = []
    header: list[str] = []
    held = 0
    try:
        for cells in csv.reader(line.group() for line in _LINE.finditer(text)):
            held += max(len(cells), len(header) if cells else 0)
            if held > MOST_CELLS:
                raise InputError(f"{name}: has more than {MOST_CELLS:,} cells; is it the right file?")
            if header and cells:
                rows.append(dict(zip_longest(header, cells[: len(header)])))
            header = header or cells
    except csv.Error as error:
        raise InputError(f"{name}: is not CSV ({error})") from None
    return rows


_KINDS = {
    list: "a list",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


_WORD = re.compile(r"\S")
MOST_VALUES = 16_000_000
"""Most values in one result file; the requests of a long benchmark with all their times have a few million."""


def _deeper_than(value: object, levels: int) -> bool:
    """Return whether lists and objects are nested deeper than a number of levels."""
    level = [value]
    for _ in range(levels + 1):
        if not level:
            return False
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    return bool(level)


def _unique(name: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise InputError(f"{name}: {key[:60]!r} is given twice; keep one")
        table[key] = value
    return table


def read_json(
    path: str | os.PathLike[str],
    *,
    kind: str = "a JSON object",
    max_bytes: int = MAX_BYTES,
    infinities: bool = False,
) -> dict[str, Any]:
    """Return the object of a JSON file.

    Parameters
    ----------
    path : path
    kind : str
        What the file should be, for the error, such as "a model's config.json".
    max_bytes : [B]
        capplan rejects a longer file.
    infinities : bool
        Read `Infinity` and `NaN`, which Python's writer of JSON leaves in files of other tools; whoever uses such
        a number has to refuse it.

    Returns
    -------
    The object; numbers are finite unless infinities are read.
    """
    text = read_text(path, kind=kind, max_bytes=max_bytes)
    return _json_object(text, os.fspath(path), kind, infinities=infinities)


def json_of(content: bytes, name: str, *, kind: str) -> dict[str, Any]:
    """Return the object of JSON that was not read from a file, as `read_json` does with infinities; name is for the error."""
    text = _decoded(content, name, kind)
    if not text.strip():
        raise InputError(f"{name}: is empty; {kind} is expected")
    return _json_object(text, name, kind, infinities=True)


def _json_object(text: str, name: str, kind: str, *, infinities: bool) -> dict[str, Any]:
    def constant(word: str) -> float:
        if infinities:
            return float(word)
        raise InputError(f"{name}: {word} is not a number that can be used; write a finite number or null")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return _unique(name, pairs)

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name}: line {error.lineno}, column {error.colno}: is not JSON ({error.msg.lower()}); {kind} is expected"
        ) from None
    except RecursionError:
        raise InputError(f"{name}: is nested too deeply; {kind} is expected") from None
    except ValueError:
        raise InputError(f"{name}: holds a number with too many digits; {kind} is expected") from None
    if _deeper_than(value, MAX_DEPTH):
        raise InputError(f"{name}: is nested too deeply; {kind} is expected")
    if not isinstance(value, dict):
        raise InputError(
            f"{name}: is {_KINDS.get(type(value), 'something else')}; {kind}, that is an object, is expected"
        )
    return value


def _next_word(text: str, position: int) -> int:
    """Return where the next character is that is no space."""
    match = _WORD.search(text, position)
    return match.start() if match else len(text)


def json_values(text: str, name: str) -> list[Any]:
    """Return the values in a JSON text that a tool wrote: one, the items of one list, or one after another.

    Examples
    --------
    >>> json_values('{"rate": 1} {"rate": Infinity}', "x.json")
    [{'rate': 1}, {'rate': inf}]
    """
    if sum(map(text.count, ",[{")) > MOST_VALUES:
        raise InputError(f"{name}: holds more than {MOST_VALUES:,} values; is it the right file?")
    decoder = json.JSONDecoder()
    values: list[Any] = []
    position = 0
    while (position := _next_word(text, position)) < len(text):
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, position) + 1
            if isinstance(error, RecursionError):
                why = "is nested too deeply"
            elif isinstance(error, json.JSONDecodeError):
                why = "does not hold a complete JSON value; was the file cut short?"
            else:
                why = "holds a number with too many digits"
            raise InputError(f"{name}: line {line} {why}") from None
        values.append(value)
    if _deeper_than(values, MAX_DEPTH):
        raise InputError(f"{name}: is nested too deeply")
    return list(values[0]) if len(values) == 1 and isinstance(values[0], list) else values


def data_folder(name: str) -> Path:
    """Return a folder of shipped data, such as hardware_specs or scenarios."""
    package = Path(__file__).parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
