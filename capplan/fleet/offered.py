"""What is offered to the replicas of a fleet: requests that arrive, users who ask again, and how a router deals them out.

One meaning of load for every command: `fleet`, `simulate` and `sweep` draw here. The draws of one seed are a common sample path:
the same requests whatever the load, the plan and the number of replicas, only closer together.
"""

from dataclasses import dataclass, replace

import numpy as np

from capplan.fleet.demand import Demand, drawn_requests
from capplan.numbers import Array, Number
from capplan.serving.fleet_terms import Routing
from capplan.serving.requests import Crowd, Requests

STEADY_CV = 1e-3
"""Times between arrivals that vary by less than this are all the same."""


@dataclass(frozen=True, slots=True)
class Offered:
    """Requests that arrive by themselves, and those of users who wait for each answer; one of them may be empty."""

    requests: Requests | None
    crowd: Crowd | None

    def __len__(self) -> int:
        """Return the number of requests."""
        return (0 if self.requests is None else len(self.requests)) + (
            0 if self.crowd is None or self.crowd.think_s is None else self.crowd.think_s.size
        )


def replica_arrival_cv(arrival_cv: Number, replicas: Number, routing: Routing = "round_robin") -> Number:
    """Return the variation of the times between arrivals at one of several replicas.

        in turn:    c_n = c / sqrt(n)
        at random:  c_n = sqrt(1 + (c^2 - 1) / n)

    Every n-th arrival of a renewal process is one with n times the variance and n times the mean; a random one in n makes
    intervals that are sums of a geometric number of them. Routers that look at the load are taken as those that deal in turn.

    Parameters
    ----------
    arrival_cv : [-]
        c, of the whole stream
    replicas : [-]
        n
    routing : how requests are dealt out

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


def busiest_arrival_cv(demand: Demand) -> float:
    """Return the variation of the times between arrivals of the busiest class that comes at a rate."""
    rates = [item.request_rate_per_s or 0.0 for item in demand.classes]
    return demand.classes[int(np.argmax(rates))].arrival_cv


class SamplePath:
    """One draw of a traffic; whatever the load and the number of replicas, the same requests, drawn once."""

    def __init__(
        self,
        demand: Demand,
        *,
        count: int,
        seed: int,
        longest: int,
        routing: Routing = "round_robin",
        response_s: float = 0.0,
    ) -> None:
        """Draw nothing yet.

        Parameters
        ----------
        demand : the whole traffic
        count : [-]
            requests drawn, those that arrive and those of users together
        seed : of all draws
        longest : [tokens]
            a prompt and its answer are cut to it
        routing : how requests are dealt out to replicas
        response_s : [s]
            that a user waits for an answer, about; says how many of the requests are those of users
        """
        self.demand, self.seed, self.longest, self.routing = demand, seed, longest, routing
        self.open_rate, user_rate = demand.rates_per_s(response_s)
        self.of_users = round(count * user_rate / (self.open_rate + user_rate))
        self.arrivals = count - self.of_users
        self._cv = busiest_arrival_cv(demand)
        self._rows: dict[bool, Requests] = {}
        self._times: dict[float, Array] = {}

    def offered(self, share: float, *, replicas: float = 1.0, slowness: float = 1.0) -> Offered:
        """Return what one replica is offered.

        Parameters
        ----------
        share : [-]
            of the whole traffic, that this replica carries; above 1 it is more than there is
        replicas : [-]
            that requests are dealt out to: the more, the more regularly they come
        slowness : [-]
            s: steps that take s times as long are the same as requests that come s times as often and thoughts that take a
            part 1 / s of their time, once every latency is multiplied by s

        Returns
        -------
        Offered
        """
        requests = crowd = None
        if self.arrivals:
            cv = float(replica_arrival_cv(self._cv, replicas, self.routing))
            arrival_s = self._arrivals(cv) / (self.open_rate * share * slowness)
            requests = replace(self._drawn(users=False), arrival_s=arrival_s)
        if self.of_users:
            rows = self._drawn(users=True)
            users = max(round(share * self.demand.users), 1)
            crowd = Crowd(rows, users, self._thoughts(rows) / slowness)
        return Offered(requests, crowd)

    def _drawn(self, *, users: bool) -> Requests:
        if users not in self._rows:
            count = self.of_users if users else self.arrivals
            self._rows[users] = drawn_requests(self.demand, count, self.seed, self.longest, users=users)
        return self._rows[users]

    def _arrivals(self, cv: float) -> Array:
        """Return times of arrival at a rate of one, with gamma-distributed intervals."""
        if cv not in self._times:
            random = np.random.default_rng([self.seed, 1])
            gaps = (
                random.gamma(1.0 / cv**2, cv**2, self.arrivals) if cv > STEADY_CV else np.ones(self.arrivals)
            )
            self._times[cv] = np.cumsum(gaps)
        return self._times[cv]

    def _thoughts(self, rows: Requests) -> Array:
        """Return how long the user of each request thinks before it, exponentially distributed."""
        means = np.array([item.think_time_s or 0.0 for item in self.demand.classes])
        random = np.random.default_rng([self.seed, 2])
        assert rows.class_index is not None
        thoughts: Array = random.exponential(1.0, len(rows)) * means[rows.class_index]
        return thoughts
