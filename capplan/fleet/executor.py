"""Computes points in this process, in processes of this machine, or on a Dask cluster; saves each when it is finished."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from math import inf
from pathlib import Path
from typing import Any

from capplan.errors import InputError
from capplan.fleet.sweep import Point, Row, Runner, load_of, point_result, swept
from capplan.fleet.workers import LostWorkersError, Say, Workers, cluster, processes
from capplan.serving.outcome import Spread

Progress = Callable[[int, int], None] | None
LARGEST_BYTES = 500_000_000
"""Of a file of finished points, of which there are 1,000 in 1 MB."""
_BEGINNING = b'{"key": "'
_NUMBERS = (
    "gpus", "requests_per_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu", "goodput_requests_per_s", "slo_met_fraction",
    "holds", "preemptions",
)  # fmt: skip


class PointFile:
    """A file of finished points as JSON lines: read at the start, one line appended per finished point."""

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
        if path.exists():
            self._read(path)
        try:
            with path.open(
                "ab"
            ):  # creates it: that it cannot be written is said before anything is worked out
                pass
        except OSError as error:
            raise self._unwritable(error) from None

    def _read(self, path: Path) -> None:
        try:
            if not path.is_file() or path.stat().st_size > LARGEST_BYTES:
                raise InputError(
                    f"--points {path}: is no file of finished points; name a file that capplan sweep wrote"
                )
            lines = path.read_bytes().splitlines(keepends=True)
        except OSError as error:
            raise InputError(f"--points {path}: cannot be read ({error.strerror})") from None
        read_bytes = 0
        for number, line in enumerate(lines, 1):
            if number == len(lines) and _is_cut(line):
                self._whole_bytes = read_bytes
                break
            try:
                value = json.loads(line)
                self.rows[value["key"]] = _checked(value["row"])
            except (ValueError, KeyError, TypeError, RecursionError):
                raise InputError(
                    f"--points {path}: line {number} is not a finished point; name a file that capplan sweep wrote"
                ) from None
            read_bytes += len(line)
        self._ended = not lines or lines[-1].endswith(b"\n") or self._whole_bytes is not None

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
    """Return whether a last line is the beginning of a finished point whose end is missing."""
    if line.endswith(b"\n") or line[: len(_BEGINNING)] != _BEGINNING[: len(line)]:
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False


def _checked(row: Any) -> Row:
    """Return a row that has the cells of one; TypeError, KeyError or ValueError where it does not."""
    for name in ("plan", "request_rate", "concurrency", "usd_per_million_output_tokens"):
        row[name]
    for name in _NUMBERS:
        if not 0.0 <= row[name] < inf:
            raise ValueError(name)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        for statistic in fields(Spread):
            value = row[name][statistic.name]
            if value is not None and not 0.0 <= value < inf:
                raise ValueError(name)
    checked: Row = row
    return checked


def _nothing(_: str) -> None:
    """Say nothing."""


@contextmanager
def executor(workers: int, dask: str | None, say: Say = _nothing) -> Iterator[Workers | None]:
    """Yield this many processes or the workers of a Dask cluster; None: work in this process."""
    if dask is not None:
        with cluster(dask, say) as found:
            yield found
    elif workers > 1:
        with processes(workers, say) as pool:
            yield pool
    else:
        yield None


def runner(pool: Workers | None, file: PointFile, progress: Progress = None) -> Runner:
    """Return a function that computes points, skips those already finished, and saves each result at once."""
    total = done = 0

    def run(points: Sequence[Point]) -> Iterator[tuple[Point, Row]]:
        nonlocal total, done
        total += len(points)
        open_points = []
        for point in points:
            if point.key in file.rows:
                done += 1
                yield point, file.take(point)
            else:
                open_points.append(point)
        for point, row in _computed(pool, open_points):
            file.keep(point, row)
            done += 1
            if progress:
                progress(done, total)
            yield point, row

    return run


def _computed(pool: Workers | None, points: Sequence[Point]) -> Iterator[tuple[Point, Row]]:
    if pool is None:
        for point in points:
            yield point, point_result(point)
    else:
        yield from pool.finished(point_result, points)


def finished_points(
    points: Sequence[Point], pool: Workers | None, file: PointFile, progress: Progress, *, refine: bool
) -> tuple[list[Row], KeyboardInterrupt | LostWorkersError | None]:
    """Return the rows of all points, or of those finished before Ctrl-C or the loss of all workers, and which of them it was."""
    try:
        return swept(points, runner(pool, file, progress), refine=refine), None
    except (KeyboardInterrupt, LostWorkersError) as ended:
        order = {point.contender.name: place for place, point in enumerate(points)}
        return sorted(file.taken.values(), key=lambda row: (order[row["plan"]], load_of(row))), ended
