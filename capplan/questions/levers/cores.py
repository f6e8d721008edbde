"""Rows of levers on each core of this machine, where they take long: processes that begin with the scenario and its plan as it is."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

ALONE_S = 2.0
"""Time after which processes are worth their start, which takes about a second of each."""

_given: list[Callable[[Any], Any]] = []
"""What a process does with each task."""


def usable_cores() -> int:
    """Return how many processes may work at once: one of a server's jobs may start none."""
    if parent_process() is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Cores(Generic[Task, Result]):
    """Does tasks here, and those left after ALONE_S by processes of this machine."""

    def __init__(self, work: Callable[[Task], Result], cores: int) -> None:
        """Do `work` by this many processes at once."""
        self._work, self._cores = work, cores

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Yield the place of each task with its result, as it is done."""
        begun_s, place = time.monotonic(), 0
        while place < len(tasks):
            left = len(tasks) - place
            if self._cores > 1 and left > 1 and time.monotonic() - begun_s > ALONE_S:
                break
            yield place, self._work(tasks[place])
            place += 1
        if place < len(tasks):
            with _processes(self._work, min(self._cores, len(tasks) - place)) as pool:
                futures = {pool.submit(_done, tasks[at]): at for at in range(place, len(tasks))}
                for future in as_completed(futures):
                    yield futures[future], future.result()


@contextmanager
def _processes(work: Callable[[Any], Any], count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield processes that know the work; Ctrl-C ends them with this one."""
    pool = ProcessPoolExecutor(count, get_context("spawn"), _begin, (work,))
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in active_children():
            process.terminate()
            process.join()


def _begin(work: Callable[[Any], Any]) -> None:
    """Remember the work, and leave Ctrl-C to the process that gave it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _given.append(work)


def _done(task: Any) -> Any:
    return _given[-1](task)
