"""The series that is sent to a server: closed and open loops over lengths and concurrencies, who sends what when."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from queue import Empty, SimpleQueue
from typing import TypeAlias

from capplan.calibrate.endpoint.client import Answered, Endpoint, Question, answered
from capplan.replica.load import Load

TINY, SHORT, LONG = 1, 128, 1024
"""Prompt tokens. The step of a tiny prompt takes as long as a decode step, so the rest of its time to first token is spent outside the steps."""
OUTPUT = 64
OPEN_SHARE = 0.6
"""Rate of the open loop over the highest rate of the closed loops."""
OPEN_TIME_SHARE = 0.2
"""Part of the time for the open loop."""
STAIRS_TIME_SHARE = 0.15
"""Part of the time for both stairs."""
STAIR_TOKENS = 16
"""Output tokens from one number of sequences to the next one of stairs, in a series of `MINUTES`."""
LEAST_STAIR_TOKENS = 4
MINUTES = 3.0
"""Time of a series where none is given."""
EVERY_NUMBER = 16
"""Stairs stop at every number of sequences up to this one, and at every half power of two beyond."""
REPEATS = 3
"""Requests of each user of a closed loop at least, where time allows."""
MOST_REQUESTS = 400
"""Requests of one point: more of them narrow no interval, unless many users share them."""


@dataclass(frozen=True, slots=True)
class Point(Load):
    """One closed loop."""

    concurrency: int = 1

    @property
    def name(self) -> str:
        """Return what is printed while it runs."""
        return f"{self.concurrency} in flight, {self.input_tokens} tokens in, {self.output_tokens} out"

    @property
    def most_requests(self) -> int:
        """Return the requests that are sent at most."""
        return max(MOST_REQUESTS, REPEATS * self.concurrency)


@dataclass(frozen=True, slots=True)
class Series:
    """What is sent, and how long it may take."""

    points: tuple[Point, ...]
    seconds: float
    """Time for all points, the open loop included."""
    stairs: tuple[Point, ...] = ()
    """Requests that are sent together, before the points and again after them: they end one after the other, so that
    decode steps of every number of sequences are seen, and twice, which tells how far the pace of the machine changed."""

    @property
    def point_s(self) -> float:
        """Return the time of one closed loop."""
        stairs_share = STAIRS_TIME_SHARE if self.stairs else 0.0
        return self.seconds * (1.0 - OPEN_TIME_SHARE - stairs_share) / len(self.points)

    @property
    def most_requests(self) -> int:
        """Return the requests that are sent at most."""
        return sum(point.most_requests for point in self.points) + MOST_REQUESTS + 2 * len(self.stairs)

    def _tokens(self, requests: Iterable[tuple[int, Point]]) -> tuple[int, int]:
        """Return input and output tokens of so many requests of each point, and of both stairs."""
        sent = [*requests, *((2, point) for point in self.stairs)]
        return (
            sum(count * point.input_tokens for count, point in sent),
            sum(count * point.output_tokens for count, point in sent),
        )

    @property
    def least_tokens(self) -> tuple[int, int]:
        """Return input and output tokens if each user of each point sends as few requests as count."""
        return self._tokens((REPEATS * point.concurrency, point) for point in self.points)

    @property
    def most_tokens(self) -> tuple[int, int]:
        """Return input and output tokens if every point sends as many requests as it may."""
        longest = max(self.points, key=lambda point: point.input_tokens)  # of the open loop too
        closed = [(point.most_requests, point) for point in self.points]
        return self._tokens([*closed, (MOST_REQUESTS, longest)])


def designed(minutes: float, max_concurrency: int, longest: int | None = None) -> Series:
    """Return a series for a time: stairs, every concurrency with short prompts, three of them with long ones, one user with tiny ones.

    The concurrencies double; one user tells the time of a step, many tell what sequences and prompts add to it. Tiny and long prompts
    separate the work on prompts from the time of a request. Interleaved, so that a series that is cut short still has all.

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
    [(1, 1), (1, 128), (1, 1024), (2, 128), (4, 128), (4, 1024)]
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
    points = [Point(TINY, OUTPUT)] if short > TINY else []
    for concurrency in steps:
        points.append(Point(short, OUTPUT, concurrency))
        if concurrency in with_long and long > short:
            points.append(Point(long, OUTPUT, concurrency))
    return Series(
        tuple(points), 60.0 * minutes, stairs(minutes, max_concurrency, short, room + OUTPUT - short)
    )


def stairs(minutes: float, most: int, input_tokens: int, most_output_tokens: int) -> tuple[Point, ...]:
    """Return requests that are sent together and end one after the other, the longest first; none where the context has no room.

    Parameters
    ----------
    minutes : [min]
        time of the series
    most : [-]
        requests
    input_tokens : [tokens]
        of each
    most_output_tokens : [tokens]
        of the longest

    Examples
    --------
    >>> [point.output_tokens for point in stairs(3.0, 4, 128, 1000)]
    [64, 48, 32, 16]
    """
    levels = [level for level in range(1, EVERY_NUMBER + 1) if level <= most]
    level = EVERY_NUMBER
    while level < most:
        level = 3 * level // 2 if level & (level - 1) == 0 else 4 * level // 3
        levels.append(min(level, most))
    wanted = min(max(round(STAIR_TOKENS * minutes / MINUTES), LEAST_STAIR_TOKENS), STAIR_TOKENS)
    tokens = min(wanted, most_output_tokens // len(levels))
    if tokens < LEAST_STAIR_TOKENS:
        return ()
    below = [0, *levels]
    return tuple(
        Point(input_tokens, tokens * (len(levels) - place))
        for place, level in enumerate(levels)
        for _ in range(level - below[place])
    )


Asked: TypeAlias = Question | Callable[[], Question]
"""A request, or what makes it when it is sent: a turn of a session continues what was said before."""
Told: TypeAlias = Callable[[int, Answered], None]
"""Called with the place of a request and its answer when it has ended, one call at a time."""


def _quiet(_place: int, _answer: Answered) -> None:
    """Say nothing."""


class _Results:
    """Sends requests, and holds their answers by place; those that were not sent or had not ended stay empty."""

    def __init__(self, server: Endpoint, questions: Sequence[Asked], told: Told) -> None:
        self._server, self._questions, self._told = server, questions, told
        self._rows: list[Answered | None] = [None] * len(questions)
        self._lock = threading.Lock()

    def send(self, place: int) -> None:
        asked = self._questions[place]
        answer = answered(self._server, asked() if callable(asked) else asked)
        with self._lock:
            self._rows[place] = answer
            self._told(place, answer)

    @property
    def ended(self) -> list[Answered]:
        return [row for row in self._rows if row is not None]


def shared_loop(
    server: Endpoint,
    questions: Sequence[Asked],
    users: int,
    told: Told = _quiet,
    until_s: float = inf,
    think_s: Sequence[float] = (),
) -> list[Answered]:
    """Let users send requests in turn: each thinks, takes the next request, and waits for the whole response.

    Parameters
    ----------
    server : with the name of its model
    questions : in the order in which the next free user takes them
    users : [-]
        who never have more than one request each in flight
    told : receives each answer
    until_s : [s]
        on the monotonic clock; no request is sent from then on
    think_s : [s]
        before each request; empty: users do not think

    Returns
    -------
    answers; requests that were not sent are left out
    """
    results = _Results(server, questions, told)
    line: SimpleQueue[int] = SimpleQueue()
    for place in range(len(questions)):
        line.put(place)

    def work() -> None:
        while time.monotonic() < until_s:
            try:
                place = line.get_nowait()
            except Empty:
                return
            if think_s:
                time.sleep(max(min(think_s[place], until_s - time.monotonic()), 0.0))
            if time.monotonic() < until_s:
                results.send(place)

    together([work] * users)
    return results.ended


def open_loop(
    server: Endpoint, questions: Sequence[Asked], at_s: Sequence[float], told: Told = _quiet
) -> list[Answered]:
    """Send each request at its time after the start, whatever is still running."""
    results = _Results(server, questions, told)
    start_s = time.monotonic()
    threads = []
    for place, when_s in enumerate(at_s):
        wait_s = start_s + when_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        threads.append(threading.Thread(target=results.send, args=(place,), daemon=True))
        threads[-1].start()
    for thread in threads:
        _joined(thread)
    return results.ended


def together(parts: Sequence[Callable[[], object]]) -> None:
    """Run parts of a load at the same time, until all of them have ended."""
    threads = [threading.Thread(target=part, daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        _joined(thread)


def _joined(thread: threading.Thread) -> None:
    """Wait for a thread, and stay open for Ctrl-C meanwhile."""
    while thread.is_alive():
        thread.join(0.2)
