"""A kind of request: how often and when it comes, how long it is, what its prompts share, and which latencies its users are promised."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import numpy as np

from capplan.keys import ONLY_KNOWN_KEYS, Counted
from capplan.numbers import Array, Number
from capplan.workload.length import Lengths

if TYPE_CHECKING:
    from capplan.workload.kept_contexts import Contexts
    from capplan.workload.reuse import PrefixReuse
    from capplan.workload.sessions import Sessions

ResponseTimes: TypeAlias = float | Sequence[float]
"""Response time of all classes, or of each class [s]."""
LEAST_TURN_S = 0.1
"""Least time between two requests of a user, before response times are known; affects class shares, no latency."""
SLICES = 4096
"""Prompts of equal weight that stand for a distribution of lengths: 64 would be 1 % off where a prefix cuts it."""
SIMULATED_REQUESTS = 15_000
"""Requests of a simulated run. A tenth of them overstates the largest rate by 4 to 7 %; one long run beats several seeds."""
WARM_UP_SHARE = 0.15
"""Share of the requests of a run that latencies and rates leave out: the first ones meet empty replicas."""
STEADY_CV = 1e-3
"""Coefficient of variation below which times between arrivals are constant."""


def arrival_generator(seed: int) -> "np.random.Generator":
    """Return the generator of the times between arrivals, which nothing else is drawn from."""
    return np.random.default_rng([seed, 1])


def drawn_gaps(random: "np.random.Generator", cv: float, count: int) -> Array:
    """Return gamma-distributed times between arrivals with a mean of one; the first ones of a longer draw are those of a shorter one.

    Parameters
    ----------
    random : where they come from
    cv : [-]
        coefficient of variation: 1 for a Poisson process, 0 for a steady one
    count : [-]

    Examples
    --------
    >>> bool((drawn_gaps(arrival_generator(7), 1.0, 3) == drawn_gaps(arrival_generator(7), 1.0, 9)[:3]).all())
    True
    """
    if cv <= STEADY_CV:
        return np.ones(count)
    return random.gamma(1.0 / cv**2, cv**2, count)


def responses_of_classes(response_s: ResponseTimes, classes: int) -> tuple[float, ...]:
    """Return the response time of each of some classes [s].

    Examples
    --------
    >>> responses_of_classes(2.0, 2), responses_of_classes((2.0, 3.0), 2)
    ((2.0, 2.0), (2.0, 3.0))
    """
    values: list[float] = np.broadcast_to(np.asarray(response_s, dtype=np.float64), classes).tolist()
    return tuple(values)


def offered_request_rate_per_s(users: Number, think_time_s: Number, response_time_s: Number) -> Number:
    """Return the request rate of users who send the next request some time after each response.

        r = n / (z + t)

    Parameters
    ----------
    users : [user]
        n, at work at the same time.
    think_time_s : [s]
        z, from a response to the next request.
    response_time_s : [s]
        t, from a request to the end of its response; 0 gives the upper bound.

    Returns
    -------
    [request/s]
        r.

    Examples
    --------
    >>> offered_request_rate_per_s(4000.0, 35.0, 5.0)
    100.0

    References
    ----------
    Denning, Buzen 1978, "The operational analysis of queueing network models",
    doi:10.1145/356733.356735, interactive response time formula.
    """
    return users / (think_time_s + response_time_s)


Pixels: TypeAlias = Annotated[int, Counted(1, 100_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Images of every request, all of one size."""

    __pydantic_config__ = ONLY_KNOWN_KEYS
    count: Annotated[int, Counted(1, 1000)] = 1
    """Number of images in a request."""
    width: Pixels
    """Width in pixels, before the processor of the model scales the image."""
    height: Pixels
    """Height in pixels, before the processor of the model scales the image."""
    max_pixels: Annotated[int, Counted(1024, 1_000_000_000)] | None = None
    """Limit of the processor (Qwen); default: that of the published one."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What a request takes outside the GPUs."""

    wait_s: float = 0.0
    """Wait before the prompt of a request is sent; no device holds anything of it."""
    usd: float = 0.0
    """Price of a request, without its tool calls."""
    tool_calls: float = 0.0
    """Tool calls of a request, in the mean."""
    usd_per_tool_call: float = 0.0

    @property
    def usd_per_request(self) -> float:
        """Return the cost of a request with its tool calls."""
        return self.usd + self.tool_calls * self.usd_per_tool_call


NOTHING_OUTSIDE = Outside()


@dataclass(frozen=True, slots=True)
class RequestClass:
    """One line of a scenario's traffic."""

    name: str
    input_tokens: Lengths
    output_tokens: Lengths
    request_rate_per_s: float | None
    """Request rate at the peak; of a batch job, its requests over its time. None for users, whose rate depends on the response time."""
    users: float | None = None
    think_time_s: float | None = None
    trace: str | None = None
    """File that lengths and arrivals were read from."""
    shared_prefix_tokens: float = 0.0
    """Leading tokens that prompts of this class have in common, part of input_tokens."""
    prefix_hit_fraction: float = 0.0
    """Share of the requests that find the shared prefix in the cache."""
    reuse: "PrefixReuse | Contexts | None" = None
    """Prefix-cache hits by cache size, from a trace or sessions; instead of shared_prefix_tokens."""
    sessions: "Sessions | None" = None
    """Whose turns the requests are; lengths are then those of all turns."""
    arrival_cv: float = 1.0
    """Coefficient of variation of the time between arrivals; 1 is Poisson."""
    tenant: str | None = None
    """Tenant that pays for this class; None: the class is its own tenant."""
    requests_per_conversation: float | None = None
    """Requests per conversation, for the cost of conversations; None where it is not stated."""
    priority: int | None = None
    """Lower numbers go first in a simulation; None: as the class of no number, 0."""
    deadline_s: float | None = None
    """Longest wait in a simulation: requests that waited longer than this are shed."""
    mean_rate_fraction: float = 1.0
    """Mean rate over the peak rate, for costs; 1 where it is unknown, and for a batch job while it runs."""
    hourly_rate_fractions: tuple[float, ...] = ()
    """Rate over the peak in each of the hours of a day; empty where only the mean is known, or nothing."""
    job_requests: float | None = None
    """Requests of a batch job; None for traffic without an end."""
    sequences_per_request: float = 1.0
    """Samples and attempts of a request; rates, and the requests of a job, count each of them."""
    samples: float = 1.0
    """Answers that a request asks for at once to one prompt; each of them is a sequence."""
    repeated_fraction: float = 0.0
    """Share of the prompts that repeat one just sent, by another sample or attempt, and hit in the cache as a whole."""
    outside: Outside = NOTHING_OUTSIDE
    """Steps outside the GPUs; their wait is a part of `think_time_s` too, and of the think time of the sessions."""
    images: Images | None = None
    """Images of a prompt next to the text; their tokens are part of input_tokens once a model is known."""
    pooled: bool = False
    """Requests return a vector or a score at the end of prefill; there is no decode."""
    burst_ratio: float = 1.0
    """The peak over the busiest minute of a trace, where a scenario asks to be ready for bursts."""

    def request_rate_at(self, response_time_s: float = 0.0) -> float:
        """Return the requests per second, given the response time."""
        if self.request_rate_per_s is not None:
            return self.request_rate_per_s
        assert self.users is not None
        assert self.think_time_s is not None
        if not self.think_time_s:
            response_time_s = max(response_time_s, LEAST_TURN_S)
        return float(offered_request_rate_per_s(self.users, self.think_time_s, response_time_s))

    @property
    def generated_tokens(self) -> float:
        """Mean tokens of an output, for money and totals; none where a vector or a score is asked for."""
        return 0.0 if self.pooled else self.output_tokens.mean_tokens

    @property
    def cached_input_tokens(self) -> float:
        """Mean prompt tokens per request that need no prefill: the cached part of the prompt, never its last token."""
        held = np.minimum(np.floor(self.shared_prefix_tokens), self.input_tokens.whole_tokens(SLICES) - 1.0)
        alone = float(held.mean()) * self.prefix_hit_fraction
        whole = float((self.input_tokens.whole_tokens(SLICES) - 1.0).mean())
        return alone + self.repeated_fraction * (whole - alone)

    @property
    def short_prompt_fraction(self) -> float:
        """Share of the prompts that are too short to hold the whole shared prefix and at least one more token."""
        return float(np.mean(self.input_tokens.whole_tokens(SLICES) <= self.shared_prefix_tokens))


def with_scaled_rate(item: RequestClass, ratio: float) -> RequestClass:
    """Return a class whose traffic is multiplied by a factor."""
    rate, users, job = item.request_rate_per_s, item.users, item.job_requests
    return replace(
        item,
        request_rate_per_s=None if rate is None else ratio * rate,
        users=None if users is None else ratio * users,
        job_requests=None if job is None else ratio * job,
    )


def without_prefix_cache(request_class: RequestClass) -> RequestClass:
    """Return the class with no hit in a prefix cache."""
    return replace(
        request_class,
        shared_prefix_tokens=0.0,
        prefix_hit_fraction=0.0,
        repeated_fraction=0.0,
        reuse=None,
        sessions=None,
    )


Metric: TypeAlias = Literal["ttft", "tpot", "itl", "e2e"]
Statistic: TypeAlias = Literal["mean", "p50", "p90", "p95", "p99"]

METRICS: tuple[Metric, ...] = ("ttft", "tpot", "itl", "e2e")
STATISTICS: tuple[Statistic, ...] = ("mean", "p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Target:
    """One limit, such as a p95 time to first token of 0.8 s."""

    metric: Metric
    statistic: Statistic
    limit_s: float
    """Limit for the engine, of the requests that wait longest before a prompt is sent."""
    outside_s: float = 0.0
    """What the stated limit allows on top of it, for the longest wait of any class."""

    @property
    def stated_s(self) -> float:
        """Limit as the scenario states it."""
        return self.limit_s + self.outside_s

    def limit_of(self, item: RequestClass) -> float:
        """Return the limit for the engine of the requests of a class, which leave it more time if they wait less than others [s].

        Examples
        --------
        >>> from capplan.workload.length import fixed
        >>> near = RequestClass("near", fixed(1.0), fixed(1.0), 1.0, outside=Outside(wait_s=0.25))
        >>> Target("ttft", "p95", limit_s=0.5, outside_s=0.5).limit_of(near), Target("tpot", "p95", 0.5).limit_of(near)
        (0.75, 0.5)
        """
        return self.limit_s + (self.outside_s - item.outside.wait_s) if self.outside_s else self.limit_s

    @property
    def key(self) -> str:
        """Name in a scenario, such as ttft_p95."""
        return f"{self.metric}_{self.statistic}"


@dataclass(frozen=True, slots=True)
class Slo:
    """All limits of a scenario."""

    targets: tuple[Target, ...] = ()
    confidence: float = 0.8
    """Probability with which the targets must hold; 0.5 sizes by the central prediction."""


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
