"""Rows of levers on each core of this machine, where they take long: processes that begin with the scenario and its plan as it is."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import active_children, get_context, parent_process
from typing import Any, Generic, TypeVar

from capplan.fleet.search.workers import end_with_parent

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
        """Yield the place of each task with its result, as it is done; those of a process that is killed are done here."""
        begun_s, left = time.monotonic(), dict(enumerate(tasks))
        for place, task in enumerate(tasks):
            if self._cores > 1 and len(left) > 1 and time.monotonic() - begun_s > ALONE_S:
                break
            yield place, self._work(task)
            del left[place]
        with suppress(BrokenProcessPool):
            for place, result in self._by_processes(dict(left)):
                yield place, result
                del left[place]
        for place, task in left.items():
            yield place, self._work(task)

    def _by_processes(self, tasks: Mapping[int, Task]) -> Iterator[tuple[int, Result]]:
        if not tasks:
            return
        with _processes(self._work, min(self._cores, len(tasks))) as pool:
            with _without_interrupts():
                places = {pool.submit(_done, task): place for place, task in tasks.items()}
            for future in as_completed(places):
                yield places[future], future.result()


@contextmanager
def _processes(work: Callable[[Any], Any], count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield processes that know the work, and that end with the block."""
    others = active_children()
    pool = ProcessPoolExecutor(count, get_context("spawn"), _begin, (work,))
    try:
        yield pool
    finally:
        for process in active_children():
            if process not in others:
                process.terminate()
        pool.shutdown(cancel_futures=True)


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


def _begin(work: Callable[[Any], Any]) -> None:
    """Remember the work, and end with the process that gave it."""
    end_with_parent()
    _given.append(work)


def _done(task: Any) -> Any:
    return _given[-1](task)
