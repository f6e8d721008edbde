"""Computes points in this process, in processes of this machine, or on a Dask cluster; saves each when it is finished."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from capplan.errors import InputError
from capplan.fleet.sweep import Point, Row, Runner, load_of, point_result, swept

Progress = Callable[[int, int], None] | None


class PointFile:
    """A file of finished points as JSON lines: read at the start, one line appended per finished point."""

    def __init__(self, path: Path | None) -> None:
        """Read the points of an earlier run; a truncated last line is dropped, its point is computed again."""
        self.path = path
        self.rows: dict[str, Row] = {}
        self.reused = 0
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--points {path}: cannot be read ({error})") from None
        for number, line in enumerate(lines, 1):
            try:
                value = json.loads(line)
                self.rows[value["key"]] = value["row"]
            except (ValueError, KeyError, TypeError):
                if number < len(lines):
                    raise InputError(
                        f"--points {path}: line {number} is not a finished point; name a file that capplan sweep wrote"
                    ) from None
                path.write_text("".join(f"{whole}\n" for whole in lines[:-1]), encoding="utf-8")

    def keep(self, point: Point, row: Row) -> None:
        """Append a finished point."""
        self.rows[point.key] = row
        if self.path is None:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": point.key, "row": row}, allow_nan=False) + "\n")
        except OSError as error:
            raise InputError(f"--points {self.path}: cannot be written ({error.strerror})") from None


@contextmanager
def executor(workers: int, dask: str | None) -> Iterator[Executor | None]:
    """Yield an executor with this many processes or on a Dask cluster; None: work in this process."""
    if dask is not None:
        yield from _dask_executor(dask)
    elif workers > 1:
        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    else:
        yield None


def _dask_executor(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--dask needs Dask\n  install it: pip install 'capplan[dask]'") from None
    try:
        client = Client(address, timeout="10s")
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(
            f"--dask {address}: no scheduler answers ({error})\n  e.g. --dask tcp://10.0.0.1:8786"
        ) from None
    try:
        yield client.get_executor()
    finally:
        client.close()


def runner(pool: Executor | None, file: PointFile, progress: Progress = None) -> Runner:
    """Return a function that computes points, skips those already finished, and saves each result at once."""
    total = done = 0

    def run(points: Sequence[Point]) -> Iterator[tuple[Point, Row]]:
        nonlocal total, done
        total += len(points)
        open_points = []
        for point in points:
            if point.key in file.rows:
                done += 1
                file.reused += 1
                yield point, file.rows[point.key]
            else:
                open_points.append(point)
        for point, row in _computed(pool, open_points):
            file.keep(point, row)
            done += 1
            if progress:
                progress(done, total)
            yield point, row

    return run


def _computed(pool: Executor | None, points: Sequence[Point]) -> Iterator[tuple[Point, Row]]:
    if pool is None:
        for point in points:
            yield point, point_result(point)
        return
    futures: dict[Future[Any], Point] = {pool.submit(point_result, point): point for point in points}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


def finished_points(
    points: Sequence[Point], pool: Executor | None, file: PointFile, progress: Progress, *, refine: bool
) -> tuple[list[Row], bool]:
    """Return the rows of all points, or of those finished before Ctrl-C, and whether it was interrupted."""
    try:
        return swept(points, runner(pool, file, progress), refine=refine), False
    except KeyboardInterrupt:
        order = {point.contender.name: place for place, point in enumerate(points)}
        names = {row["plan"] for row in file.rows.values()} & order.keys()
        rows = [row for row in file.rows.values() if row["plan"] in names]
        return sorted(rows, key=lambda row: (order[row["plan"]], load_of(row))), True
