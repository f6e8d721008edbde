"""What requests see in a run of one replica, and the latencies of the replicas of a fleet together, which targets limit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, nan, sqrt

import numpy as np
from numpy.typing import NDArray

from capplan.fleet.load.demand import Demand
from capplan.fleet.load.offered import Offered, load_ends_s, user_share_of, users_idle_from_s
from capplan.fleet.load.waits import WaitedTimes, seen_by_users, waits_of
from capplan.numbers import Spread
from capplan.serving.outcome import (
    EarlyEnd,
    LatencyLimit,
    Outcome,
    SeenByUsers,
    WeightedHistogram,
    histogram_spread,
    most_above,
    spread,
    weighted_spread,
)
from capplan.serving.requests import ClosedLoopUsers
from capplan.workload.request_class import WARM_UP_SHARE, RequestClass, Target

LEAST_SEEN = 0.5
"""Fraction of the requests that a run looks at in any case, warm-up included, however many users it has."""
ROUNDING = 1e-9
"""A latency that is above its limit by less than this share of it may be within: a run does not end early for it."""
STEADY_SHARE = 0.97
"""A run is steady if requests finish at no less than this fraction of the arrival rate; otherwise its queue grows."""
STEADY_DEVIATIONS = 2.0
"""A run is steady too if what is left unfinished stays within this many standard deviations of the requests in flight."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of one replica at one load, without the warm-up; ITL includes it."""

    ttft_s: Spread[float]
    tpot_s: Spread[float]
    itl: tuple[tuple[WeightedHistogram, float], ...]
    """Values of each kind of replica, and the ratio by which their weights count."""
    e2e_s: Spread[float]
    requests_per_s: float
    steady: bool
    """Whether the queue stays bounded."""
    responses_s: tuple[float, ...] = ()
    """Mean response time of each class; nan for a class without a response."""
    waited: tuple[WaitedTimes, WaitedTimes] | None = None
    """TTFT and E2E with the wait of each class, if some classes wait longer outside than others."""
    wait_s: float = 0.0
    """Wait of every request outside, if it is the same for all."""

    @property
    def concurrency(self) -> float:
        """Return the mean number of requests in the replica, waiting ones included.

            N = r t

        Returns
        -------
        [-]
            N: requests arrive at r and stay for t on average

        References
        ----------
        Little 1961, "A proof for the queuing formula L = lambda W", doi:10.1287/opre.9.3.383.
        """
        return self.requests_per_s * self.e2e_s.mean

    def value(self, target: Target, slowness: float = 1.0) -> float:
        """Return the value that a target limits if every step takes some times as long.

        It is the latency of the engine; where classes wait differently long outside, that of users less the longest wait.
        """
        if target.metric == "itl":
            together = WeightedHistogram()
            for values, ratio in self.itl:
                together.merge(values, ratio)
            return slowness * float(getattr(histogram_spread(together), target.statistic))
        if target.outside_s and self.waited is not None:
            times = self.waited[target.metric != "ttft"]
            return times.value(target.statistic, slowness) - target.outside_s
        spreads = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2e_s}
        more_s = self.wait_s - target.outside_s if target.outside_s else 0.0
        return slowness * float(getattr(spreads[target.metric], target.statistic)) + more_s

    @property
    def seen(self) -> SeenByUsers | None:
        """Latencies with the wait of each request; None if all wait equally long."""
        return None if self.waited is None else seen_by_users(*self.waited)


@dataclass(frozen=True)
class Seen:
    """What the requests of one run saw, without the warm-up."""

    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    e2e_s: NDArray[np.float64]
    class_index: NDArray[np.int64]
    itl: WeightedHistogram
    """Gaps between the tokens of the whole run."""
    requests_per_s: float
    steady: bool
    end_s: float
    """When the load ended; a part of it may have gone on."""

    @cached_property
    def in_order(self) -> tuple[NDArray[np.float64], ...]:
        """TTFT, TPOT and E2E, each in ascending order: a kind of replica is merged with others again and again."""
        return np.sort(self.ttft_s), np.sort(self.tpot_s), np.sort(self.e2e_s)


MISSED = Latencies(*((Spread(inf, inf, inf, inf, inf),) * 2), (), Spread(inf, inf, inf, inf, inf), 0.0, False)
"""Stands for the latencies of a run that ended early: it misses a target that was asked about."""


class Runs:
    """The runs of one layout, by what they were run with."""

    def __init__(self) -> None:
        """Start empty."""
        self.latencies: dict[tuple[object, ...], Latencies] = {}
        self._exceeded: dict[tuple[object, ...], float] = {}
        self.loads: dict[tuple[object, ...], list[tuple[float, float, tuple[object, ...]]]] = {}
        """Rates and replicas of runs that differ in nothing else, with their keys, in order."""

    def note(self, key: tuple[object, ...], exceeded: Target, limit_s: float) -> None:
        """Note that a run that ended early exceeds a limit of `engine_limits` on what a target limits [s]."""
        name = exceeded.key, *key
        self._exceeded[name] = max(limit_s, self._exceeded.get(name, -inf))

    def exceeded(self, key: tuple[object, ...], limits_s: Mapping[Target, float]) -> set[Target]:
        """Return the targets whose limit of `engine_limits` an early end has shown to be exceeded [s]."""
        return {
            target
            for target, limit_s in limits_s.items()
            if self._exceeded.get((target.key, *key), -inf) >= limit_s
        }


def engine_limits(
    limits: Mapping[Target, float], slowness: float, classes: Sequence[RequestClass]
) -> dict[Target, float]:
    """Return the latency of the simulated engine above which each target is surely missed [s].

    It is the limit on what `Latencies.value` starts from, with some room for rounding. Targets on a mean or on gaps between tokens
    are left out, as are those for classes that wait differently long outside: only a whole run tells.

    Parameters
    ----------
    limits : by target [s]
    slowness : [-]
        factor on the time of each step, by which what is simulated is multiplied
    classes : of requests
    """
    waits = waits_of(classes)
    return {
        target: (limit_s - (waits.seconds[0] - target.outside_s if target.outside_s else 0.0))
        / slowness
        * (1.0 + ROUNDING)
        for target, limit_s in limits.items()
        if target.metric != "itl"
        and target.statistic != "mean"
        and not (target.outside_s and waits.are_unlike)
    }


def early_end(limits_s: Mapping[Target, float], offered: Offered) -> EarlyEnd:
    """Return when a run ends early: once it has surely missed one of these limits in the requests that `seen_in` looks at [s]."""
    arrivals = 0 if offered.requests is None else len(offered.requests)
    of_users = 0 if offered.crowd is None else offered.crowd.most_requests or 0
    first = int(WARM_UP_SHARE * (arrivals + of_users))
    count = arrivals + of_users - first
    return EarlyEnd(
        tuple(
            LatencyLimit(target.metric, limit_s, most_above(float(target.statistic[1:]) / 100.0, count))
            for target, limit_s in limits_s.items()
            if target.metric != "itl"
        ),
        first,
        inf if offered.requests is None else float(offered.requests.times_s[-1]),
    )


def latencies_of(runs: Sequence[tuple[Seen, float]], classes: Sequence[RequestClass]) -> Latencies:
    """Return the latencies of all requests of some kinds of replicas together.

    Parameters
    ----------
    runs : of one replica of each kind, and the number of replicas of that kind
    classes : of requests

    Returns
    -------
    latencies over all requests; the rate is the mean of all replicas
    """
    replicas = sum(count for _, count in runs)
    rate = sum(seen.requests_per_s * count for seen, count in runs) / replicas
    each = [count * seen.requests_per_s / max(seen.e2e_s.size, 1) for seen, count in runs]
    weights = np.concatenate(
        [np.full(seen.e2e_s.size, weight) for (seen, _), weight in zip(runs, each, strict=True)]
    )
    itl = tuple((seen.itl, weight) for (seen, _), weight in zip(runs, each, strict=True))
    of_class = np.concatenate([seen.class_index for seen, _ in runs])
    names = ("ttft_s", "tpot_s", "e2e_s")
    columns = [np.concatenate([getattr(seen, name) for seen, _ in runs]) for name in names]
    alike = len(runs) == 1
    if alike:
        ttft, tpot, e2e = map(spread, columns)
    else:  # all requests of a kind have one weight; kinds in order are merged sooner than they are sorted
        merged = map(np.concatenate, zip(*(seen.in_order for seen, _ in runs), strict=True))
        ttft, tpot, e2e = (weighted_spread(column, weights) for column in merged)
    rows = [(of_class == index) & np.isfinite(columns[2]) for index in range(len(classes))]
    responses = tuple(
        float(np.average(columns[2][of], weights=weights[of])) if of.any() else nan for of in rows
    )
    waits = waits_of(classes)
    weight = None if alike else weights
    return Latencies(
        ttft,
        tpot,
        itl,
        e2e,
        rate,
        all(seen.steady for seen, _ in runs),
        responses,
        (
            WaitedTimes(waits, columns[0], of_class, ttft, weight),
            WaitedTimes(waits, columns[2], of_class, e2e, weight),
        )
        if waits.are_unlike
        else None,
        0.0 if waits.are_unlike else waits.seconds[0],
    )


def slowed(seen: Seen, slowness: float) -> Seen:
    """Return what requests see if every step takes some times as long, of a run in units of that many seconds."""
    if slowness == 1.0:
        return seen
    return replace(
        seen,
        ttft_s=slowness * seen.ttft_s,
        tpot_s=slowness * seen.tpot_s,
        e2e_s=slowness * seen.e2e_s,
        requests_per_s=seen.requests_per_s / slowness,
        end_s=slowness * seen.end_s,
    )


def seen_in(outcome: Outcome, demand: Demand, crowd: ClosedLoopUsers | None, rate_per_s: float) -> Seen:
    """Return what requests saw from the end of the warm-up until the open-loop or the users' requests run out, if these matter.

    Parameters
    ----------
    outcome : of one replica
    demand : the traffic, which tells classes with users from open-loop ones
    crowd : the users at the replica; None: no users
    rate_per_s : [1/s]
        arrival rate; with users the rate is counted instead
    """
    arrival = outcome.arrival_s
    by_users = np.array([item.users is not None for item in demand.classes])[outcome.class_index]
    tokens = outcome.input_tokens + outcome.output_tokens
    idle_s = 0.0
    if crowd is not None:
        idle_s = users_idle_from_s(arrival[by_users], outcome.e2e_s[by_users], crowd.first_turns().size)
        idle_s = max(idle_s, float(arrival[int(LEAST_SEEN * arrival.size)]))
    end = load_ends_s(arrival, by_users, tokens, idle_s)
    begin = float(arrival[int(WARM_UP_SHARE * np.count_nonzero(arrival <= end))])
    seen = (arrival >= begin) & (arrival <= end)
    counted = float(np.count_nonzero(seen)) / max(end - begin, 1e-12)
    return Seen(
        outcome.ttft_s[seen],
        outcome.tpot_s[seen],
        outcome.e2e_s[seen],
        outcome.class_index[seen],
        outcome.itl,
        counted if demand.users else rate_per_s,
        is_steady(arrival[~by_users], (arrival + outcome.e2e_s)[~by_users]),
        end,
    )


def sent_share(class_index: NDArray[np.int64], demand: Demand) -> float | None:
    """Return the share of some requests that users sent, in the steps of `user_share_of`; None if they sent all or none."""
    by_users = np.array([item.users is not None for item in demand.classes])[class_index]
    counts = np.count_nonzero(by_users), np.count_nonzero(~by_users)
    return user_share_of(counts[0] / counts[1]) if all(counts) else None


def odds(share: float) -> float:
    """Return how many requests users send for each other request, from their share of all requests."""
    return share / (1.0 - share)


def is_steady(arrival: NDArray[np.float64], ends: NDArray[np.float64]) -> bool:
    """Return whether the middle half of the requests finishes about as fast as it arrives.

        n - n t / t'  <=  max((1 - s) n, z sqrt(2 L))        L = n w / t

    n requests arrive in a time t and as many finish in t'. The requests in flight at the two ends vary like
    two Poisson numbers of mean L (Little's law, with the mean response time w).

    Parameters
    ----------
    arrival, ends : [s]
        when each request arrives and finishes; nan if it does not
    """
    finite = np.isfinite(ends)
    ends = ends[finite]
    if ends.size < 8:
        return ends.size == arrival.size
    low, high = ends.size // 4, 3 * ends.size // 4
    count, arriving_s = high - low, float(arrival[high] - arrival[low])
    in_flight = count * float(np.mean(ends - arrival[finite])) / max(arriving_s, 1e-12)
    ends.partition((low, high))
    late = count * (1.0 - arriving_s / max(float(ends[high] - ends[low]), 1e-12))
    return late <= max((1.0 - STEADY_SHARE) * count, STEADY_DEVIATIONS * sqrt(2.0 * in_flight))
