"""What requests takes outside the devices that serve them: time that users wait, and money by the request."""

from collections.abc import Sequence
from dataclasses import dataclass

from capplan.workload.request_class import (
    NOTHING_OUTSIDE,
    RequestClass,
    ResponseTimes,
    responses_of_classes,
)

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class ClassOutside:
    """What the requests of one class take outside."""

    name: str
    requests: float
    """Requests in a month, or in one job; those of several sequences count once."""
    wait_s: float
    """Wait of a request, before its prompt is sent."""
    tool_calls: float
    """Tool calls of a request, in the mean."""
    usd_per_request: float
    """Price of a request with its tool calls."""
    answer_s: float | None
    """Mean time from a question to the end of the last turn of its session; None without turns."""

    @property
    def usd(self) -> float:
        """Return the price of all requests."""
        return self.requests * self.usd_per_request


@dataclass(frozen=True, slots=True)
class OutsideUse:
    """What all requests take outside."""

    classes: tuple[ClassOutside, ...]
    of_job: bool
    """Counted for one batch job, not for a month."""

    @property
    def usd(self) -> float:
        """Return the price of a month, or of one job.

            sum n_k u_k

        Returns
        -------
        [$]
            of n_k requests of class k, which pay u_k each
        """
        return sum(item.usd for item in self.classes)

    @property
    def longest_wait_s(self) -> float:
        """Return the longest wait of any class.

            max w_k

        Returns
        -------
        [s]
            of all classes k
        """
        return max(item.wait_s for item in self.classes)

    @property
    def mean_wait_s(self) -> float:
        """Return the mean wait of all requests.

            sum n_k w_k / sum n_k

        Returns
        -------
        [s]
            of n_k requests of class k, which wait for w_k
        """
        return sum(item.requests * item.wait_s for item in self.classes) / sum(
            item.requests for item in self.classes
        )


def requests_paid(item: RequestClass, response_s: float, hours: float) -> float:
    """Return the requests of a class in some hours, or in its job.

        n = 3600 h r f / q

    Parameters
    ----------
    item : peak rate r, mean over peak f, and sequences of a request q; of a job n requests
    response_s : [s]
        response time that users wait for
    hours : [h]
        h, of a month

    Returns
    -------
    [request]
        n
    """
    if item.job_requests is not None:
        return item.job_requests / item.sequences_per_request
    mean_rate = item.request_rate_at(response_s) * item.mean_rate_fraction / item.sequences_per_request
    return SECONDS_PER_HOUR * hours * mean_rate


def answer_s(turns: float, response_s: float, between_s: float, wait_s: float) -> float:
    """Return the mean time from a question to the end of the last turn of its session.

        t = w + n e + (n - 1) z

    Parameters
    ----------
    turns : [-]
        n, of a session, at least 1
    response_s : [s]
        e, from a turn to the end of its response
    between_s : [s]
        z, from a response to the prompt of the next turn: tools, and what is outside before that prompt
    wait_s : [s]
        w, outside before the first prompt

    Returns
    -------
    [s]
        t

    Examples
    --------
    Four turns of 5 s, tools of 2 s between them, and 0.5 s of retrieval before each prompt:

    >>> answer_s(4.0, 5.0, 2.5, 0.5)
    28.0

    References
    ----------
    Times that follow each other add up; the mean of a sum is the sum of the means.
    """
    return wait_s + turns * response_s + (turns - 1.0) * between_s


def outside_use(
    classes: Sequence[RequestClass], response_s: ResponseTimes, hours: float
) -> OutsideUse | None:
    """Return what the requests of the traffic take outside; None where the scenario states nothing of it.

    Parameters
    ----------
    classes : of all traffic
    response_s : [s]
        mean of all classes or of each, from the prompt to the end of its response
    hours : [h]
        of a month
    """
    responses_s = responses_of_classes(response_s, len(classes))
    if all(item.outside == NOTHING_OUTSIDE for item in classes):
        return None
    return OutsideUse(
        tuple(_of_class(item, s, hours) for item, s in zip(classes, responses_s, strict=True)),
        any(item.job_requests is not None for item in classes),
    )


def _of_class(item: RequestClass, response_s: float, hours: float) -> ClassOutside:
    outside, sessions = item.outside, item.sessions
    return ClassOutside(
        item.name,
        requests_paid(item, response_s, hours),
        outside.wait_s,
        outside.tool_calls,
        outside.usd_per_request,
        None
        if sessions is None
        else answer_s(sessions.turns.mean_tokens, response_s, sessions.think_time_s, outside.wait_s),
    )
