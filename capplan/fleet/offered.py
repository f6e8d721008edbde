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

LEAST_RESPONSE_S = 1e-3
"""Of a user who does not think; an answer takes some time, so that rates stay finite."""


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


def offered_to_replica(
    demand: Demand,
    share: float,
    *,
    count: int,
    seed: int,
    longest: int,
    replicas: float = 1.0,
    routing: Routing = "round_robin",
    response_s: float = 0.0,
    slowness: float = 1.0,
) -> Offered:
    """Return what one replica is offered of the traffic of a fleet.

    Parameters
    ----------
    demand : the whole traffic
    share : [-]
        of it, that this replica carries; above 1 it is more than there is
    count : [-]
        requests drawn, both kinds together
    seed : of the sample path
    longest : [tokens]
        a prompt and its answer are cut to it
    replicas : [-]
        that requests are dealt out to: the more, the more regularly they come
    routing : how they are dealt out
    response_s : [s]
        that a user waits for an answer, about; says how many of the requests are those of users
    slowness : [-]
        s: steps that take s times as long are the same as requests that come s times as often and thoughts that take a part
        1 / s of their time, once every latency is multiplied by s

    Returns
    -------
    Offered
    """
    open_rate, user_rate = demand.rates_per_s(response_s)
    of_users = round(count * user_rate / (open_rate + user_rate))
    requests = crowd = None
    if of_users < count:
        requests = drawn_requests(demand, count - of_users, seed, longest, users=False)
        cv = float(replica_arrival_cv(busiest_arrival_cv(demand), replicas, routing))
        arrival = np.cumsum(_gaps(cv, count - of_users, seed)) / (open_rate * share * slowness)
        requests = replace(requests, arrival_s=arrival)
    if of_users:
        rows = drawn_requests(demand, of_users, seed, longest, users=True)
        thinking = _thoughts(demand, rows, seed) / slowness
        crowd = Crowd(rows, max(round(share * demand.users), 1), thinking)
    return Offered(requests, crowd)


def _gaps(cv: float, count: int, seed: int) -> Array:
    """Return times between arrivals with a mean of one, gamma-distributed."""
    random = np.random.default_rng([seed, 1])
    if cv < 1e-3:
        return np.ones(count)
    gaps: Array = random.gamma(1.0 / cv**2, cv**2, count)
    return gaps


def _thoughts(demand: Demand, rows: Requests, seed: int) -> Array:
    """Return how long the user of each request thinks before it, exponentially distributed."""
    means = np.array([item.think_time_s or 0.0 for item in demand.classes])
    random = np.random.default_rng([seed, 2])
    assert rows.class_index is not None
    thoughts: Array = random.exponential(1.0, len(rows)) * means[rows.class_index]
    return thoughts
