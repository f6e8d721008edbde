"""Where the points of a search are computed: in this process, in local processes, or on a Dask cluster. Lost points are computed again."""

import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

from capplan import __version__
from capplan.errors import InputError
from capplan.fleet.sweep import Point, Row, Runner, load_of, point_result, swept

Say = Callable[[str], None]
Compute = Callable[[Point], Row]
Task = TypeVar("Task")
Result = TypeVar("Result")

MOST_LOST = 3
"""Processes that may be killed in one run; a point that runs out of memory would kill one after another."""
PATIENCE_S = 30.0
"""How long a scheduler may have no workers."""
CONNECT_S = 10.0
"""How long a scheduler may take to accept a client."""
ANSWER_S = 5.0
"""How long one may take to answer."""
LOOK_EVERY_S = 5.0
"""Time between two looks at a cluster that finishes nothing."""
JOIN_AFTER_S = 10.0
"""Time without a finished point after which this process computes too."""


class LostWorkersError(InputError):
    """All workers are gone; finished points are not lost."""


class _LostSchedulerError(LostWorkersError):
    """The scheduler is gone or frozen: this process computes what is left."""


class Workers(Protocol):
    """Computes points elsewhere."""

    def finished(self, compute: Compute, points: Sequence[Point]) -> Iterator[tuple[Point, Row]]:
        """Yield every point with its row as it is finished.

        Raises
        ------
        LostWorkersError
            nothing is left that could compute the others
        """
        ...


class Processes:
    """Processes of this machine; one that is killed is replaced, and its points are computed again."""

    def __init__(self, count: int, say: Say) -> None:
        self._count, self._say, self._lost = count, say, 0
        self._others = active_children()
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._count, get_context("spawn"), _end_with_parent)

    def close(self) -> None:
        """End the processes; points that are still computed are dropped."""
        for process in active_children():
            if process not in self._others:
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def finished(
        self, compute: Callable[[Task], Result], points: Sequence[Task], *, here: bool = False
    ) -> Iterator[tuple[Task, Result]]:
        """Yield every point with its row as it is finished; with `here` this process computes too, and takes the last points first."""
        left = list(points)
        while left:
            done = set()
            for place, row in self._until_one_is_lost(compute, left, here=here):
                done.add(place)
                yield left[place], row
            left = [point for place, point in enumerate(left) if place not in done]
            if left:
                self._replace(len(left))

    def _until_one_is_lost(
        self, compute: Callable[[Task], Result], points: Sequence[Task], *, here: bool
    ) -> Iterator[tuple[int, Result]]:
        """Yield places of points with their rows; those that a lost process had, and all after them, are missing."""
        futures: dict[Future[Result], int] = {}
        try:
            with _without_interrupts():
                for place, point in enumerate(points):
                    futures[self._pool.submit(compute, point)] = place
        except BrokenProcessPool:
            pass  # those that were taken are looked at all the same
        try:
            for future in reversed(list(futures) if here else []):
                if future.cancel():  # no process has begun it
                    place = futures.pop(future)
                    yield place, compute(points[place])
                    yield from _rows_of([other for other in futures if other.done()], futures)
            yield from _rows_of(as_completed(list(futures)), futures)
        finally:
            for future in futures:
                future.cancel()

    def _replace(self, open_points: int) -> None:
        self._lost += 1
        self.close()
        if self._lost > MOST_LOST:
            raise LostWorkersError(
                f"--workers {self._count}: {self._lost} processes ended before their point was finished (killed, or out of memory)\n"
                f"  try fewer: --workers {max(1, self._count // 2)}"
            )
        self._say(
            f"a process ended before its point was finished (killed, or out of memory): "
            f"{open_points} points are given to new ones"
        )
        self._pool = self._new_pool()


def _rows_of(
    ended: Iterable[Future[Result]], futures: dict[Future[Result], int]
) -> Iterator[tuple[int, Result]]:
    """Yield the places of ended points with their rows, and take them from the futures; those that a lost process had are left out."""
    for future in ended:
        place = futures.pop(future)
        if not isinstance(future.exception(), BrokenProcessPool):
            yield place, future.result()


class Cluster:
    """Workers of a Dask scheduler, which gives the points of a worker that is gone to others."""

    def __init__(self, address: str, client: Any, say: Say) -> None:
        self._address, self._client, self._say = address, client, say
        count = self._workers_within(PATIENCE_S, say)
        say(f"Dask: {count} worker{'s' * (count != 1)}, dashboard {client.dashboard_link or 'none'}")

    def finished(self, compute: Compute, points: Sequence[Point]) -> Iterator[tuple[Point, Row]]:
        """Yield every point with its row as it is finished."""
        ended: SimpleQueue[Any] = SimpleQueue()
        open_points = {}
        for point in points:
            future = self._client.submit(_of_this_version, __version__, compute, point, pure=False)
            open_points[future] = point
            future.add_done_callback(ended.put)
        try:
            for future, row in self._rows(compute, open_points, ended):
                yield open_points.pop(future), row
        except _LostSchedulerError as lost:
            self._say(f"{lost}; this process computes the other {len(open_points)} points")
            while open_points:
                _, point = open_points.popitem()
                yield point, compute(point)
        finally:
            self._client.cancel(list(open_points))

    def _rows(
        self, compute: Compute, open_points: Mapping[Any, Point], ended: "SimpleQueue[Any]"
    ) -> Iterator[tuple[Any, Row]]:
        """Yield futures with their rows until no point is open; where nothing is finished for a while, compute them here."""
        idle_s = without_s = 0.0
        while open_points:
            joined = idle_s >= JOIN_AFTER_S
            stuck = next(iter(open_points))
            try:
                future = ended.get(timeout=0.0 if joined else LOOK_EVERY_S)
                if future not in open_points:
                    continue
                stuck = future
                row = self._row(future)
            except (Empty, TimeoutError) as missed:
                if isinstance(missed, TimeoutError):  # its worker was lost before the row was fetched
                    stuck.add_done_callback(ended.put)
                without_s = 0.0 if self._count() else without_s + LOOK_EVERY_S
                if without_s >= PATIENCE_S:
                    raise self._nobody() from None
                if joined and not without_s:
                    yield stuck, compute(open_points[stuck])
                elif not joined:
                    idle_s += LOOK_EVERY_S
                    if idle_s >= JOIN_AFTER_S:
                        self._say(f"Dask: nothing was finished for {idle_s:.0f} s; this process computes too")
            else:
                idle_s = without_s = 0.0
                yield future, row

    def _row(self, future: Any) -> Row:
        """Return the row of a finished point, or raise what became of the workers.

        Raises
        ------
        TimeoutError
            no worker has the row any more
        LostWorkersError
            the row will not come
        """
        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        try:
            row: Row = future.result(timeout=LOOK_EVERY_S)
        except (CancelledError, CommClosedError):
            raise _LostSchedulerError(f"--dask {self._address}: the scheduler is gone") from None
        except KilledWorker:
            raise LostWorkersError(
                f"--dask {self._address}: workers end again and again before a point is finished (killed, or out of memory)\n"
                "  give each more memory: dask worker --memory-limit"
            ) from None
        except ModuleNotFoundError as error:
            raise LostWorkersError(
                f"--dask {self._address}: a worker has no {error.name}\n"
                f"  install capplan {__version__} where the workers run"
            ) from None
        return row

    def _count(self) -> int:
        """Return how many workers there are now."""
        try:
            return len(self._client.sync(self._client.scheduler.ncores, callback_timeout=ANSWER_S))
        except (OSError, TimeoutError):
            raise _LostSchedulerError(
                f"--dask {self._address}: the scheduler does not answer for {ANSWER_S:.0f} s"
            ) from None

    def _workers_within(self, patience_s: float, say: Say) -> int:
        """Return how many workers there are, once there is one."""
        count = self._count()
        if count:
            return count
        say(f"Dask: no workers yet; waiting up to {patience_s:.0f} s")
        try:
            self._client.wait_for_workers(1, timeout=patience_s)
        except TimeoutError:
            raise self._nobody() from None
        return self._count()

    def _nobody(self) -> LostWorkersError:
        return LostWorkersError(
            f"--dask {self._address}: the scheduler has had no workers for {PATIENCE_S:.0f} s\n"
            f"  start one: dask worker {self._address}"
        )


def _of_this_version(version: str, compute: Compute, point: Point) -> Row:
    """Return the row of a point, on a worker; another version of the program would give other rows."""
    if version != __version__:
        raise LostWorkersError(
            f"--dask: a worker has capplan {__version__}, this is {version}; install the same version where the workers run"
        )
    return compute(point)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block; processes that are started in it never see one, as this one ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """Let this process end when the one that started it has ended, however it did."""
    parent = parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=wait, daemon=True).start()


def _nothing(_: str) -> None:
    """Say nothing."""


@contextmanager
def processes(count: int, say: Say = _nothing) -> Iterator[Processes]:
    """Yield this many processes of this machine."""
    pool = Processes(count, say)
    try:
        yield pool
    finally:
        pool.close()


_NO_SCHEDULER = (OSError, ValueError, TypeError, ImportError, RuntimeError)
"""What clients of Dask raise for an address: nobody listens, it is none, TLS without keys, a protocol without its library, no such scheduler."""


def _connected(client: Callable[..., Any], address: str) -> Any:
    """Return a client of a scheduler; InputError for one that does not answer, also where its port accepts and says nothing: the client itself then waits for ever."""
    made: Future[Any] = Future()

    def connect() -> None:
        try:
            made.set_result(client(address, timeout=CONNECT_S))
        except _NO_SCHEDULER as error:
            made.set_exception(error)

    Thread(target=connect, daemon=True).start()
    try:
        return made.result(timeout=CONNECT_S)
    except _NO_SCHEDULER as error:
        why = "TLS needs keys: distributed.comm.tls" if address.startswith("tls:") else error
        silent = f"nothing is said for {CONNECT_S:g} s"
        raise InputError(
            f"--dask {address}: no scheduler answers ({why if str(why) else silent})\n  e.g. --dask tcp://10.0.0.1:8786"
        ) from error


@contextmanager
def cluster(address: str, say: Say) -> Iterator[Cluster]:
    """Yield the workers of a Dask scheduler.

    Raises
    ------
    InputError
        Dask is not installed, no scheduler answers, or it has no workers
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--dask needs Dask\n  install it: pip install 'capplan[dask]'") from None
    with _quiet("distributed", "tornado", "asyncio"):
        client = _connected(Client, address)
        try:
            yield Cluster(address, client, say)
        finally:
            client.close(timeout=ANSWER_S)


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Silence the loggers of libraries: a lost connection is reported in one line."""
    known = list(logging.root.manager.loggerDict)
    loggers = [logging.getLogger(name) for name in known if name.partition(".")[0] in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


Progress = Callable[[int, int], None] | None


class Finished(Protocol):
    """Finished points, such as those in a file, by their key."""

    rows: dict[str, Row]
    taken: dict[str, Row]
    """Rows of the points of this sweep, by their key."""

    def take(self, point: Point) -> Row:
        """Return the row of a point that an earlier run finished."""

    def keep(self, point: Point, row: Row) -> None:
        """Add a finished point."""


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
