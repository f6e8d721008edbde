"""Text files of people: bounded, UTF-8, and refused with the reason when they are something else."""

import os
from pathlib import Path

from capplan.errors import InputError

MAX_BYTES = 8_000_000
"""The largest file that is read; a model's config is about 5 KB, a price list about 60 KB."""

_MAGIC = (
    (b"GGUF", "a GGUF weights file; give the config.json of the original model"),
    (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint"),
    (b"\x1f\x8b", "gzip-compressed; unpack it first"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "an image"),
    (b"\x7fELF", "a program"),
    (b"\x80\x02", "a Python pickle, which is never loaded"),
)


def _is_safetensors(head: bytes) -> bool:
    """Tell a safetensors file: the length of a JSON header in eight bytes, then the header."""
    return len(head) > 9 and head[8:9] == b"{" and 0 < int.from_bytes(head[:8], "little") < 2**32


def _what_it_is(head: bytes) -> str:
    if _is_safetensors(head):
        return "a safetensors weights file; give the config.json beside it"
    return next((what for magic, what in _MAGIC if head.startswith(magic)), "")


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def read_text(
    path: str | os.PathLike[str], *, kind: str, way_out: str = "", max_bytes: int = MAX_BYTES
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
        A longer file is refused without reading it whole.

    Returns
    -------
    The text, without a byte-order mark.

    Raises
    ------
    InputError
        The file is missing, unreadable, a folder, too large, empty, binary or not UTF-8.
    """
    name = os.fspath(path)
    tail = f"\n  {way_out}" if way_out else ""
    try:
        with Path(path).open("rb") as file:
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise InputError(f"{name}: no such file; {kind} is expected{tail}") from None
    except IsADirectoryError:
        raise InputError(f"{name}: is a folder; {kind} is expected{tail}") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({_reason(error)})") from None
    except ValueError:
        raise InputError(f"{name!r}: is not a file name") from None
    what = _what_it_is(content[:16])
    if what:
        raise InputError(f"{name}: is {what}; {kind} is expected")
    if len(content) > max_bytes:
        raise InputError(
            f"{name}: is larger than {max_bytes / 1e6:g} MB, the limit for {kind}; is it the right file?"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(
            f"{name}: line {line} is not UTF-8 text; {kind} is expected, saved as UTF-8"
        ) from None
    if "\x00" in text:
        raise InputError(f"{name}: holds binary data; {kind} is expected")
    if not text.strip():
        raise InputError(f"{name}: is empty; {kind} is expected{tail}")
    return text
