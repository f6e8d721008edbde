"""Rows of levers on each core of this machine, if they take long."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import parent_process
from typing import TypeVar

from capplan.fleet.search.workers import LostWorkersError, processes

Task = TypeVar("Task")
Result = TypeVar("Result")

ALONE_S = 1.0
"""Time after which processes are worth their start, which takes about a second of each; this one works on meanwhile."""


def usable_cores() -> int:
    """Return how many processes may work at once: one of a server's jobs may start none."""
    if parent_process() is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def results_of(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    cores: int,
    slow: Callable[[Task], bool] = lambda _: False,
) -> Iterator[tuple[int, Result]]:
    """Yield the place of each task with its result, as it is done: here, after ALONE_S with the help of processes, as long as they last.

    Tasks that are known to be slow come last here and first in the processes, so that none is left at the end while others wait for it.
    What one task has found may shorten the next one only where both are done, so each process takes tasks from its own end.
    """
    begun_s = time.monotonic()
    left = dict(sorted(enumerate(tasks), key=lambda item: slow(item[1])))
    for place, task in tuple(left.items()):
        if cores > 1 and len(left) > 1 and time.monotonic() - begun_s > ALONE_S:
            break
        yield place, work(task)
        del left[place]
    if left:
        with suppress(LostWorkersError), processes(min(cores, len(left)) - 1) as pool:
            last_first = tuple(left.items())[::-1]
            for (place, _), result in pool.finished(partial(_placed, work), last_first, here=True):
                yield place, result
                del left[place]
    for place, task in left.items():
        yield place, work(task)


def _placed(work: Callable[[Task], Result], task: tuple[int, Task]) -> Result:
    return work(task[1])
