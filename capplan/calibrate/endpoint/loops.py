"""Closed and open loops over a server: who sends what when, and what comes back, in order."""

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from capplan.calibrate.endpoint.client import Answered, Endpoint, Question, answered

Told = Callable[[int], None]
"""Called with the number of requests that have ended."""


def _quiet(_: int) -> None:
    """Say nothing."""


class _Results:
    """Answers by request; requests that were not sent or had not ended stay empty."""

    def __init__(self, count: int, told: Told) -> None:
        self.rows: list[Answered | None] = [None] * count
        self._told = told
        self._lock = threading.Lock()
        self.ended = 0

    def put(self, index: int, answer: Answered) -> None:
        with self._lock:
            self.rows[index] = answer
            self.ended += 1
            self._told(self.ended)


def closed_loop(
    server: Endpoint,
    users: Sequence[Sequence[Question | Callable[[list[Answered]], Question]]],
    told: Told = _quiet,
    until_s: float | None = None,
) -> list[list[Answered]]:
    """Let each user send its requests one after another; a callable request is made from the user's answers so far.

    A user stops after an error, and at `until_s` of the monotonic clock.
    """
    results: list[list[Answered]] = [[] for _ in users]
    count = _Results(0, told)

    def work(number: int) -> None:
        for step in users[number]:
            if until_s is not None and time.monotonic() >= until_s:
                return
            question = step(results[number]) if callable(step) else step
            results[number].append(answered(server, question))
            count.ended += 1
            told(count.ended)
            if results[number][-1].error:
                return

    _run([threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(users))])
    return results


def shared_loop(
    server: Endpoint,
    questions: Sequence[Question],
    concurrency: int,
    told: Told = _quiet,
    until_s: float | None = None,
) -> list[Answered]:
    """Keep `concurrency` requests in flight; the next free user takes the next request. Requests that were not sent are left out."""
    results = _Results(len(questions), told)
    line: SimpleQueue[int] = SimpleQueue()
    for index in range(len(questions)):
        line.put(index)

    def work() -> None:
        while until_s is None or time.monotonic() < until_s:
            try:
                index = line.get_nowait()
            except Empty:
                return
            results.put(index, answered(server, questions[index]))

    _run([threading.Thread(target=work, daemon=True) for _ in range(concurrency)])
    return [row for row in results.rows if row is not None]


def open_loop(
    server: Endpoint, questions: Sequence[Question], at_s: Sequence[float], told: Told = _quiet
) -> list[Answered]:
    """Send each request at its time after the start, whatever is still running."""
    results = _Results(len(questions), told)
    start_s = time.monotonic()
    threads = []

    def work(index: int) -> None:
        results.put(index, answered(server, questions[index]))

    for index, when_s in enumerate(at_s):
        wait_s = start_s + when_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        threads.append(threading.Thread(target=work, args=(index,), daemon=True))
        threads[-1].start()
    for thread in threads:
        _joined(thread)
    return [row for row in results.rows if row is not None]


def _run(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        _joined(thread)


def _joined(thread: threading.Thread) -> None:
    """Wait for a thread, and stay open for Ctrl-C meanwhile."""
    while thread.is_alive():
        thread.join(0.2)
