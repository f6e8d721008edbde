"""A text file of any length, plain or gzip, line by line: bounded memory, and clear errors."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from capplan.errors import InputError

LONGEST_LINE = 32_000_000
"""A longer line is not a request; a prompt of a million tokens names 62,500 blocks of 16 in 0.5 MB."""
HEAD_CHARACTERS = 65_536
KIND = "a request trace (.csv or .jsonl), a request log, or Prometheus text"


def head_of(path: Path) -> str:
    """Return the first characters of a file, unpacked; InputError where it is empty or cannot be read."""
    text = ""
    for _, line in numbered_lines(path):
        text += line[:HEAD_CHARACTERS] + "\n"
        if len(text) >= HEAD_CHARACTERS:
            break
    if not text.strip():
        raise InputError(f"{path}: is empty; {KIND} is expected")
    return text


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line, without its end; the byte-order mark is not part of it."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; {KIND} is expected")
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            number = 0
            while line := stream.readline(LONGEST_LINE):
                number += 1
                if len(line) >= LONGEST_LINE:
                    raise InputError(
                        f"{path}: line {number} is longer than {LONGEST_LINE // 1_000_000} MB; {KIND} is expected"
                    )
                yield number, _decoded(line, path, number).rstrip("\r\n")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; {KIND} is expected") from None
    except (OSError, EOFError, zlib.error) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot be read ({what.lower()})") from None


def _decoded(line: bytes, path: Path, number: int) -> str:
    if number == 1 and line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path}: is UTF-16; save it as UTF-8")
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: line {number} is not UTF-8 text; {KIND} is expected") from None
    if "\x00" in text and "ustar" in text[:512]:
        raise InputError(f"{path}: is a tar archive; unpack it and name one of its files")
    if "\x00" in text:
        raise InputError(f"{path}: holds binary data; {KIND} is expected")
    return text
