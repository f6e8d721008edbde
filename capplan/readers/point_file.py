"""The file of finished points of a sweep, as JSON lines: read at the start, one line appended for each finished point."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from capplan.errors import InputError
from capplan.fleet.sweep import Point, Row
from capplan.readers.text_file import numbered_blocks
from capplan.serving.outcome import Spread

LARGEST_BYTES = 500_000_000
"""Of a file of finished points; 1,000 points take 1 MB."""
KIND = "a file of finished points"
LEAST_S = 1e-9
"""Of a request from its arrival to its last token."""
LARGEST = 1e18
"""Of a cell."""
_BEGINNING = b'{"key": "'
_COUNTS = (
    "requests_per_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu", "goodput_requests_per_s", "preemptions",
)  # fmt: skip
_SPREADS = ("ttft_s", "tpot_s", "e2e_s")
_UNSTATED = ("request_rate", "concurrency", "usd_per_million_output_tokens")
_OTHERS = ("plan", "gpus", "slo_met_fraction", "holds", *_UNSTATED)


class PointFile:
    """Finished points of this sweep and of others, and the file that keeps them."""

    def __init__(self, path: Path | None) -> None:
        """Read the points of an earlier run; a truncated last line is dropped, its point is computed again.

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
        self._whole_bytes: int | None = None
        """Of the file, before a last line that was cut short."""
        self._ended = True
        """The last line has its end."""
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
        read_bytes = 0
        for first, block in numbered_blocks(path, kind=KIND, unpacked=False):
            for number, line in enumerate(block.splitlines(keepends=True), first):
                if _is_cut(line):  # only the last one has no end
                    self._whole_bytes = read_bytes
                    return
                try:
                    value = json.loads(line)
                    self.rows[value["key"]] = _checked(value["row"])
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise InputError(
                        f"--points {path}: line {number} is not a finished point; name a file that capplan sweep wrote"
                    ) from None
                read_bytes += len(line)
                self._ended = line.endswith(b"\n")

    def keep(self, point: Point, row: Row) -> None:
        """Append a finished point."""
        self.rows[point.key] = self.taken[point.key] = row
        if self.path is None:
            return
        try:
            with self.path.open("ab") as file:
                if self._whole_bytes is not None:
                    file.truncate(self._whole_bytes)
                    self._whole_bytes = None
                line = json.dumps({"key": point.key, "row": row}, allow_nan=False) + "\n"
                file.write((line if self._ended else f"\n{line}").encode())
                self._ended = True
        except OSError as error:
            raise self._unwritable(error) from None

    def take(self, point: Point) -> Row:
        """Return the row of a point that an earlier run finished."""
        row = self.rows[point.key]
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


def _is_cut(line: bytes) -> bool:
    """Return whether a line is the beginning of a finished point whose end is missing."""
    if line.endswith(b"\n") or line[: len(_BEGINNING)] != _BEGINNING[: len(line)]:
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False


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
