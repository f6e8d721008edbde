"""The series that is sent to a server: closed loops over lengths and concurrencies, then one short open loop."""

from dataclasses import dataclass

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
    """For all of it, the open loop included."""

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
