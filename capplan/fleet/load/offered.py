"""The load offered to the replicas of a fleet: open-loop requests, closed-loop users, and their split by the router.

`fleet`, `simulate` and `sweep` all take their load from here, so it means the same for every command. The draws of one seed
are a common sample path: the same requests at every load, for every plan and number of replicas, only closer together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from capplan.fleet.load.demand import Demand, drawn_requests
from capplan.numbers import Array, Number
from capplan.serving.replicas.fleet_terms import Routing
from capplan.serving.requests import Crowd, Requests, joined_crowd
from capplan.workload.request_class import ResponseTimes

WARM_UP_SHARE = 0.15
"""Share of the requests of a run that latencies and rates leave out: the first ones meet empty replicas."""
STEADY_CV = 1e-3
"""Below this coefficient of variation, times between arrivals are constant."""


@dataclass(frozen=True, slots=True)
class Offered:
    """Open-loop requests and closed-loop users; either may be None."""

    requests: Requests | None
    crowd: Crowd | None


def replica_arrival_cv(arrival_cv: Number, replicas: Number, routing: Routing = "round_robin") -> Number:
    """Return the coefficient of variation of the times between arrivals at one of several replicas.

        round-robin:  c_n = c / sqrt(n)
        random:       c_n = sqrt(1 + (c^2 - 1) / n)

    Times between every n-th arrival of a renewal process have n times the variance and n times the mean. Under random
    routing they are sums of a geometric number of the original times. Load-aware routers are treated as round-robin.

    Parameters
    ----------
    arrival_cv : [-]
        c, of the whole stream
    replicas : [-]
        n
    routing : of the router

    Returns
    -------
    [-]
        c_n

    Examples
    --------
    >>> replica_arrival_cv(4.0, 4.0), replica_arrival_cv(1.0, 4.0)
    (np.float64(2.0), np.float64(0.5))
    >>> replica_arrival_cv(4.0, 15.0, "random"), replica_arrival_cv(1.0, 4.0, "random")
    (np.float64(1.4142135623730951), np.float64(1.0))

    References
    ----------
    Cox 1962, "Renewal Theory", sections 1.3 (sums of independent intervals) and 9.3 (random deletion).
    """
    many = np.maximum(replicas, 1.0)
    if routing == "random":
        return np.sqrt(1.0 + (np.square(arrival_cv) - 1.0) / many)
    return arrival_cv / np.sqrt(many)


def _busiest_arrival_cv(demand: Demand) -> float:
    """Return the coefficient of variation of the times between arrivals, of the open-loop class with the highest rate."""
    rates = [request_class.request_rate_per_s or 0.0 for request_class in demand.classes]
    return demand.classes[int(np.argmax(rates))].arrival_cv


class SamplePath:
    """One random draw of the traffic: the same requests at every load and number of replicas, drawn once."""

    def __init__(
        self,
        demand: Demand,
        *,
        count: int,
        seed: int,
        longest: int,
        routing: Routing = "round_robin",
        response_s: ResponseTimes = 0.0,
    ) -> None:
        """Draw nothing yet.

        Parameters
        ----------
        demand : the whole traffic
        count : [-]
            requests to draw, open-loop and those of users together
        seed : of all random draws
        longest : [tokens]
            input plus output are truncated to it
        routing : of the router
        response_s : [s]
            approximate response times, which decide how many of the requests users send
        """
        self.demand, self.seed, self.longest, self.routing = demand, seed, longest, routing
        self.open_rate, user_rate = demand.rates_per_s(response_s)
        rates = demand.rates_of_classes(response_s)
        self._user_rates = [
            rates[index] / (demand.classes[index].users or 1.0) for index in demand.user_classes
        ]
        self.of_users = round(count * user_rate / (self.open_rate + user_rate))
        self.arrivals = count - self.of_users
        self._cv = _busiest_arrival_cv(demand)
        self._times: dict[float, Array] = {}

    def offered(
        self,
        share: float,
        *,
        replicas: float = 1.0,
        slowness: float = 1.0,
        users: Sequence[int] | None = None,
    ) -> Offered:
        """Return the load offered to one replica.

        Parameters
        ----------
        share : [-]
            of the whole traffic that goes to this replica; may exceed 1
        replicas : [-]
            behind the router: with more of them, arrivals at each are more regular
        slowness : [-]
            s: steps that take s times as long are simulated as arrivals at s times the rate and think times divided by s,
            after which every latency is to be multiplied by s
        users : [-]
            users at this replica, of each class with users in the order of the scenario; None: their share, rounded

        Returns
        -------
        Offered
        """
        requests = crowd = None
        if self.arrivals:
            cv = float(replica_arrival_cv(self._cv, replicas, self.routing))
            arrival_s = self._arrivals(cv) / (self.open_rate * share * slowness)
            requests = replace(self._arriving, arrival_s=arrival_s)
        if self.of_users:
            whole = self.users_of_share(share) if users is None else users
            parts = [
                replace(part, users=count, think_s=part.think_s / slowness)
                for part, count in zip(self._users, whole, strict=True)
                if part.think_s is not None
            ]
            crowd = joined_crowd(parts, self.of_users, self._user_rates)
        return Offered(requests, crowd)

    def users_of_share(self, share: float) -> tuple[int, ...]:
        """Return whole users of each class in a share of the traffic: each class rounded, and at least one user.

        If no class reaches half a user, the one user is of the largest class.
        """
        exact = [share * (self.demand.classes[index].users or 0.0) for index in self.demand.user_classes]
        whole = [round(users) for users in exact]
        if not any(whole):
            whole[int(np.argmax(exact))] = 1
        return tuple(whole)

    @cached_property
    def _arriving(self) -> Requests:
        """The open-loop requests, not timed yet."""
        timed = [index for index, item in enumerate(self.demand.classes) if item.users is None]
        return drawn_requests(self.demand, self.arrivals, self.seed, self.longest, of=timed)

    @cached_property
    def _users(self) -> tuple[Crowd, ...]:
        """Requests and exponential think times of each class of users: all that users send may be of one class."""
        crowds = []
        for stream, index in enumerate(self.demand.user_classes):
            requests = drawn_requests(
                self.demand, self.of_users, self.seed, self.longest, of=[index], stream=stream
            )
            random = np.random.default_rng([self.seed, 2, stream])
            mean_s = self.demand.classes[index].think_time_s or 0.0
            crowds.append(Crowd(requests, 1, random.exponential(1.0, self.of_users) * mean_s))
        return tuple(crowds)

    def _arrivals(self, cv: float) -> Array:
        """Return arrival times at a rate of one, with gamma-distributed gaps."""
        if cv not in self._times:
            random = np.random.default_rng([self.seed, 1])
            gaps = (
                random.gamma(1.0 / cv**2, cv**2, self.arrivals) if cv > STEADY_CV else np.ones(self.arrivals)
            )
            self._times[cv] = np.cumsum(gaps)
        return self._times[cv]
