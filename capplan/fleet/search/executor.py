"""Computes points in this process, in processes of this machine, or on a Dask cluster; saves each when it is finished."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from capplan.fleet.search.workers import LostWorkersError, Say, Workers, cluster, processes
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


def _nothing(_: str) -> None:
    """Say nothing."""


@contextmanager
def executor(workers: int, dask: str | None, say: Say = _nothing) -> Iterator[Workers | None]:
    """Yield this many processes or the workers of a Dask cluster; None: work in this process."""
    if dask is not None:
        with cluster(dask, say) as pool:
            yield pool
    elif workers > 1:
        with processes(workers, say) as pool:
            yield pool
    else:
        yield None


def runner(pool: Workers | None, file: Finished, progress: Progress = None) -> Runner:
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
    points: Sequence[Point], pool: Workers | None, file: Finished, progress: Progress, *, refine: bool
) -> tuple[list[Row], KeyboardInterrupt | LostWorkersError | None]:
    """Return the rows of all points, or of those finished before Ctrl-C or the loss of all workers, and which of them it was."""
    try:
        return swept(points, runner(pool, file, progress), refine=refine), None
    except (KeyboardInterrupt, LostWorkersError) as ended:
        order = {point.contender.name: place for place, point in enumerate(points)}
        return sorted(file.taken.values(), key=lambda row: (order[row["plan"]], load_of(row))), ended
