"""The series that is sent to a server: closed and open loops over lengths and concurrencies, who sends what when."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from capplan.calibrate.endpoint.client import Answered, Endpoint, Question, answered

SHORT, LONG = 128, 1024
"""Prompt tokens."""
OUTPUT = 64
OPEN_SHARE = 0.6
"""Rate of the open loop over the highest rate of the closed loops."""
OPEN_TIME_SHARE = 0.2
"""Part of the time for the open loop."""
REPEATS = 3
"""Requests of each user of a closed loop at least, where time allows."""
MOST_REQUESTS = 400
"""Requests of one point: more of them narrow no interval."""


@dataclass(frozen=True, slots=True)
class Point:
    """One closed loop."""

    concurrency: int
    input_tokens: int
    output_tokens: int

    @property
    def name(self) -> str:
        """Return what is printed while it runs."""
        return f"{self.concurrency} in flight, {self.input_tokens} tokens in, {self.output_tokens} out"


@dataclass(frozen=True, slots=True)
class Series:
    """What is sent, and how long it may take."""

    points: tuple[Point, ...]
    seconds: float
    """Time for all points, the open loop included."""

    @property
    def point_s(self) -> float:
        """Return the time of one closed loop."""
        return self.seconds * (1.0 - OPEN_TIME_SHARE) / len(self.points)

    @property
    def most_requests(self) -> int:
        """Return the requests that are sent at most."""
        return (len(self.points) + 1) * MOST_REQUESTS

    @property
    def least_tokens(self) -> tuple[int, int]:
        """Return input and output tokens if each user of each point sends as few requests as count."""
        return (
            sum(REPEATS * point.concurrency * point.input_tokens for point in self.points),
            sum(REPEATS * point.concurrency * point.output_tokens for point in self.points),
        )

    @property
    def most_tokens(self) -> tuple[int, int]:
        """Return input and output tokens if every point sends as many requests as it may."""
        points = (*self.points, max(self.points, key=lambda point: point.input_tokens))
        return (
            sum(MOST_REQUESTS * point.input_tokens for point in points),
            sum(MOST_REQUESTS * point.output_tokens for point in points),
        )


def designed(minutes: float, max_concurrency: int, longest: int | None = None) -> Series:
    """Return a series for a time: every concurrency with short prompts, and three of them with long ones.

    The concurrencies double; one user tells the time of a step, many tell what sequences and prompts add to it. Long prompts
    separate the work on prompts from the time of a request. Interleaved, so that a series that is cut short still has both.

    Parameters
    ----------
    minutes : [min]
        time for all of it
    max_concurrency : [-]
        most requests in flight
    longest : [tokens]
        longest context of the server; None: not known

    Examples
    --------
    >>> [(point.concurrency, point.input_tokens) for point in designed(3.0, 4).points]
    [(1, 128), (1, 1024), (2, 128), (4, 128), (4, 1024)]
    """
    room = (longest or LONG + OUTPUT) - OUTPUT
    short, long = min(SHORT, max(room // 2, 1)), max(min(LONG, room), 1)
    steps = [1]
    while 2 * steps[-1] <= max_concurrency:
        steps.append(2 * steps[-1])
    if steps[-1] < max_concurrency:
        steps.append(max_concurrency)
    with_long = {
        steps[0],
        steps[len(steps) // 2 + len(steps) % 2 - 1] if len(steps) > 3 else steps[-1],
        steps[-1],
    }
    points = []
    for concurrency in steps:
        points.append(Point(concurrency, short, OUTPUT))
        if concurrency in with_long and long > short:
            points.append(Point(concurrency, long, OUTPUT))
    return Series(tuple(points), 60.0 * minutes)


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
