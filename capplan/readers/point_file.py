"""The file of finished points of a sweep, as JSON lines: read at the start, one line appended for each finished point."""

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

from capplan.errors import InputError
from capplan.fleet.sweep import Point, Row
from capplan.numbers import Spread
from capplan.readers.text_file import numbered_blocks

LARGEST_BYTES = 500_000_000
"""Largest size of a file of finished points; 1,000 points take 1 MB."""
KIND = "a file of finished points"
LEAST_S = 1e-9
"""Shortest time of a request from its arrival to its last token."""
LARGEST = 1e18
"""Largest value of a cell."""
_BEGINNING = b'{"key": "'
"""Beginning of every line."""
_COUNTS = (
    "requests_per_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu", "goodput_requests_per_s", "preemptions",
)  # fmt: skip
_SPREADS = ("ttft_s", "tpot_s", "e2e_s")
_UNSTATED = ("request_rate", "concurrency", "usd_per_million_output_tokens")
_OTHERS = ("plan", "gpus", "slo_met_fraction", "holds", *_UNSTATED)


class PointFile:
    """Finished points of this sweep and of others, and the file that keeps them."""

    def __init__(self, path: Path | None) -> None:
        """Read the points of earlier runs; a truncated line is dropped, its point is computed again.

        Raises
        ------
        InputError
            the file holds anything else, or cannot be written
        """
        self.path = path
        self.rows: dict[str, Row] = {}
        """Key -> row, of this sweep and of all others in the file."""
        self.taken: dict[str, Row] = {}
        """Key -> row, of this sweep."""
        self.reused = 0
        if path is None:
            return
        try:
            if path.exists():
                self._read(path)
            with path.open(
                "ab"
            ):  # creates it: that it cannot be written is said before anything is worked out
                pass
        except OSError as error:
            raise self._unwritable(error) from None
        except ValueError:
            raise InputError(f"--points {str(path)!r}: is not a file name") from None

    def _read(self, path: Path) -> None:
        if not path.is_file() or path.stat().st_size > LARGEST_BYTES:
            raise InputError(
                f"--points {path}: is no file of finished points; name a file that capplan sweep wrote"
            )
        empty = path.stat().st_size > 0
        for first, block in numbered_blocks(path, kind=KIND, unpacked=False):
            empty = empty and not block.strip()
            for number, line in enumerate(block.splitlines(keepends=True), first):
                try:
                    if not _is_cut(line):
                        key, row = _named(json.loads(line))
                        self.rows[key] = row
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise InputError(
                        f"--points {path}: line {number} is not a finished point; name a file that capplan sweep wrote"
                    ) from None
        if empty:
            raise InputError(
                f"--points {path}: line 1 is not a finished point; name a file that capplan sweep wrote"
            )

    def keep(self, point: Point, row: Row) -> None:
        """Append a finished point."""
        self.rows[point.key] = self.taken[point.key] = row
        if self.path is None:
            return
        try:
            line = json.dumps({"key": point.key, "row": row}, allow_nan=False) + "\n"
            with self.path.open("a+b") as file:  # one write at the end: other processes may append to it too
                file.write((line if _is_ended(file) else f"\n{line}").encode())
        except OSError as error:
            raise self._unwritable(error) from None

    def take(self, point: Point) -> Row:
        """Return the row of a point that an earlier run finished; rows of other sweeps and other versions are not looked at."""
        try:
            row = _checked(self.rows[point.key])
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"--points {self.path}: the row of point {point.key} is not a finished point; name another file"
            ) from None
        if (row["plan"], row["request_rate"], row["concurrency"]) != (
            point.contender.name,
            point.request_rate,
            point.concurrency,
        ):
            raise InputError(
                f"--points {self.path}: the row of point {point.key} is one of another load or plan; name another file"
            )
        self.taken[point.key] = row
        self.reused += 1
        return row

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(f"--points {self.path}: cannot be written ({error.strerror})")


def _is_ended(file: IO[bytes]) -> bool:
    """Return whether the last line of a file has its end."""
    if not file.seek(0, os.SEEK_END):
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _is_cut(line: bytes) -> bool:
    """Return whether a line is empty or the beginning of a finished point: what a process that was killed leaves.

    Two processes that both end the cut line of a third leave an empty one.
    """
    text = line.rstrip(b"\n")
    if not text:
        return True
    if text[: len(_BEGINNING)] != _BEGINNING[: len(text)]:
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return True
    return False


def _named(value: Any) -> tuple[str, Row]:
    """Return the key and the row of a point, of this or of another version; KeyError or TypeError where there is none."""
    key, row = value["key"], value["row"]
    if not isinstance(key, str) or not isinstance(row["plan"], str):
        raise TypeError("key or plan")
    json.dumps(row, allow_nan=False)  # a ValueError for a figure that is not a number, or infinite
    return key, row


def _checked(row: Any) -> Row:
    """Return a row that has the cells of one, each possible; TypeError, KeyError or ValueError where it has not."""
    if sorted(row) != sorted((*_COUNTS, *_SPREADS, *_OTHERS)):
        raise KeyError("cells")
    for name in _COUNTS:
        _number(row[name])
    _number(row["slo_met_fraction"], most=1.0)
    _number(row["gpus"], least=1.0)
    for name in _UNSTATED:
        if row[name] is not None:
            _number(row[name])
    if not isinstance(row["plan"], str) or not isinstance(row["holds"], bool):
        raise TypeError("plan or holds")
    for name in _SPREADS:
        for statistic in fields(Spread):
            if row[name][statistic.name] is not None:
                _number(row[name][statistic.name])
    _number(row["e2e_s"]["mean"], least=LEAST_S)
    checked: Row = row
    return checked


def _number(value: Any, *, least: float = 0.0, most: float = LARGEST) -> None:
    """Raise TypeError or ValueError for anything but a number within limits."""
    if isinstance(value, bool) or not least <= value <= most:
        raise ValueError(str(value))
