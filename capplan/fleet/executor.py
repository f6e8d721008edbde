"""Computes points in this process, in processes of this machine, or on a Dask cluster; saves each when it is finished."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, Protocol

from capplan.errors import InputError
from capplan.fleet.sweep import Point, Row, Runner, load_of, point_result, swept

Progress = Callable[[int, int], None] | None


class Finished(Protocol):
    """Finished points, such as those in a file, by their key."""

    rows: dict[str, Row]
    taken: dict[str, Row]
    """Of this sweep."""

    def take(self, point: Point) -> Row:
        """Return the row of a point that an earlier run finished."""

    def keep(self, point: Point, row: Row) -> None:
        """Add a finished point."""


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


def runner(pool: Executor | None, file: Finished, progress: Progress = None) -> Runner:
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
    points: Sequence[Point], pool: Executor | None, file: Finished, progress: Progress, *, refine: bool
) -> tuple[list[Row], bool]:
    """Return the rows of all points, or of those finished before Ctrl-C, and whether it was interrupted."""
    try:
        return swept(points, runner(pool, file, progress), refine=refine), False
    except KeyboardInterrupt:
        order = {point.contender.name: place for place, point in enumerate(points)}
        return sorted(file.taken.values(), key=lambda row: (order[row["plan"]], load_of(row))), True
