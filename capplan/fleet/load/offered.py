"""The load offered to the replicas of a fleet: open-loop requests and closed-loop users, and how a stream is split over replicas that are simulated separately."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, exp, inf, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.errors import InputError
from capplan.fleet.load.demand import Demand, drawn_requests
from capplan.numbers import Array
from capplan.serving.requests import NO_REQUESTS, ClosedLoopUsers, Requests, joined_users
from capplan.serving.steady_state import replica_arrival_cv
from capplan.serving.terms import Routing
from capplan.workload.request_class import ResponseTimes, arrival_generator, drawn_gaps

FORGET_S = 60.0
"""Time constant of the decay with which routed tokens count as the load of a replica."""
RECOMPUTED_WEIGHT = 10.0
"""What a token weighs that a replica would compute again, next to one that it was sent: of the load of a minute about a tenth is still being computed (an assumption)."""
LARGEST_IMBALANCE_RATIO = 1.5
"""A replica that has the prefix is skipped if its load is more than this times the mean: the default of SGLang's gateway, which compares
with the least loaded one (https://github.com/sgl-project/sglang, docs/advanced_features/sgl_model_gateway.md, balance-rel-threshold)."""


def split_round_robin(requests: Requests, replicas: int) -> list[Requests]:
    """Return every n-th request for each of n replicas; InputError for fewer requests than replicas.

    Examples
    --------
    >>> five = np.arange(1, 6)
    >>> [part.input_tokens.tolist() for part in split_round_robin(Requests(five, five), 2)]
    [[1, 3, 5], [2, 4]]
    """
    if replicas == 1:
        return [requests]
    if len(requests) < replicas:
        raise InputError(f"{len(requests)} requests for {replicas} replicas; simulate more requests")
    chosen = [np.arange(first, len(requests), replicas) for first in range(replicas)]
    return [requests.at(rows) for rows in chosen]


def split_by_prefix(requests: Requests, replicas: int) -> list[Requests]:
    """Return the requests of each replica: a session stays with its replica, and any other prompt goes where least is left to compute.

        i = argmin_i (L_i + w u_i n),   L_i <= 1.5 mean(L) + n + m

    L are the tokens that a replica had to compute, with exponential decay over a minute. u is the part of a
    prompt of n tokens whose blocks the replica has not seen, and m the output. Requests without a prefix
    are dealt in turn, and all of them if some replica would get none.

    References
    ----------
    https://github.com/ai-dynamo/dynamo, docs/router.
    """
    if replicas == 1 or requests.block_ids is None or requests.block_counts is None:
        return split_round_robin(requests, replicas)
    arrival = requests.arrival_s if requests.arrival_s is not None else np.zeros(len(requests))
    pieces = np.split(requests.block_ids, np.cumsum(requests.block_counts)[:-1])
    load_tokens = np.zeros(replicas)
    seen_by: dict[int | None, int] = {}  # bit by bit: which replicas have seen a block
    last_of: dict[int, int] = {}  # the replica that served a prompt last, by its last block
    rows_of: list[list[int]] = [[] for _ in range(replicas)]
    now, in_turn = 0.0, 0
    for index, (at, ids, prompt, output) in enumerate(
        zip(
            arrival.tolist(),
            pieces,
            requests.input_tokens.tolist(),
            requests.output_tokens.tolist(),
            strict=True,
        )
    ):
        load_tokens *= exp(-(at - now) / FORGET_S)
        now = at
        blocks = ids.tolist()
        unseen = np.ones(replicas)
        if blocks:
            unseen -= _known_blocks(blocks, seen_by, replicas) / len(blocks)
            bearable = load_tokens <= LARGEST_IMBALANCE_RATIO * float(load_tokens.mean()) + prompt + output
            last = next((last_of[block] for block in reversed(blocks) if block in last_of), None)
            if last is not None and bearable[last]:
                chosen = last
            else:
                work = load_tokens + RECOMPUTED_WEIGHT * prompt * unseen
                chosen = int(np.where(bearable, work, inf).argmin())
            last_of[blocks[-1]] = chosen
        else:
            chosen, in_turn = in_turn, (in_turn + 1) % replicas
        for block in blocks:
            seen_by[block] = seen_by.get(block, 0) | 1 << chosen
        load_tokens[chosen] += unseen[chosen] * prompt + output
        rows_of[chosen].append(index)
    if not all(rows_of):
        return split_round_robin(requests, replicas)
    return [requests.at(np.array(rows)) for rows in rows_of]


def _known_blocks(
    blocks: Sequence[int], seen_by: Mapping[int | None, int], replicas: int
) -> NDArray[np.int64]:
    """Return how many of the first blocks of a prompt each replica has seen, given the replicas of each block bit by bit.

    Examples
    --------
    >>> _known_blocks([7, 8, 9], {7: 0b11, 8: 0b10}, 3)
    array([1, 2, 0])
    """
    known = np.zeros(replicas, dtype=np.int64)
    having = (1 << replicas) - 1
    for depth, block in enumerate([*blocks, None]):
        still = having & seen_by.get(block, 0)
        if still != having:
            known[[place for place in range(replicas) if (having ^ still) >> place & 1]] = depth
            having = still
        if not having:
            break
    return known


def split_at_random(requests: Requests, replicas: int, seed: int) -> list[Requests]:
    """Return the requests of each replica, every request at a random one."""
    if replicas == 1:
        return [requests]
    to = np.random.default_rng([seed, 3]).integers(0, replicas, len(requests))
    chosen = [np.flatnonzero(to == replica) for replica in range(replicas)]
    return [requests.at(rows) for rows in chosen]


def dealt_users(users: Sequence[int], replicas: int) -> list[tuple[int, ...]]:
    """Return the users of each class at each replica.

    Users stay with their replica. Classes are dealt one after another, so the first users of a class follow the last users of
    the class before: no replica has more than one user more than another.

    Examples
    --------
    >>> dealt_users([7], 5), dealt_users([3, 2], 4)
    ([(2,), (2,), (1,), (1,), (1,)], [(1, 1), (1, 0), (1, 0), (0, 1)])
    """
    parts = np.zeros((replicas, len(users)), dtype=np.int64)
    dealt = 0
    for index, count in enumerate(users):
        parts[:, index] = count // replicas
        parts[(dealt + np.arange(count % replicas)) % replicas, index] += 1
        dealt += count
    return [tuple(row) for row in parts.tolist()]


def kinds_of_replicas(users: Sequence[int], replicas: int) -> list[tuple[tuple[int, ...], int]]:
    """Return how many replicas have the same users of each class, the most common first; those without users are not dealt one by one.

    Examples
    --------
    >>> kinds_of_replicas([3, 2], 4), kinds_of_replicas([1], 1_000_000)
    ([((1, 0), 2), ((1, 1), 1), ((0, 1), 1)], [((0,), 999999), ((1,), 1)])
    """
    dealt = min(replicas, max(sum(users), 1))
    kinds = Counter(dealt_users(users, dealt))
    if replicas > dealt:
        kinds[(0,) * len(users)] += replicas - dealt
    return kinds.most_common()


def split_crowd(crowd: ClosedLoopUsers, replicas: int) -> list[ClosedLoopUsers]:
    """Return the users and visitors of each replica, who stay with it, and the requests they send; replicas without any get none.

    All replicas send for about the same time: each gets the part of the common limit that its users would send. A group whose users
    all stay at one replica keeps its requests in their order. Visitors are dealt in turn, in the order in which they come.
    """
    users = _split_users(crowd, replicas) if crowd.users else [None] * replicas
    if crowd.visits is None:
        return [own for own in users if own is not None]
    split = []
    for first, own in enumerate(users):
        come = np.arange(first, crowd.visits.turns.size, replicas)
        if come.size:
            split.append(replace(own or ClosedLoopUsers(NO_REQUESTS, 0), visits=crowd.visits.of(come)))
        elif own is not None:
            split.append(own)
    return split


def _split_users(crowd: ClosedLoopUsers, replicas: int) -> list[ClosedLoopUsers | None]:
    groups = crowd.parts
    user_rates = [group.user_rate for group in crowd.groups] or [1.0]
    parts: list[list[tuple[ClosedLoopUsers, ClosedLoopUsers]]] = [[] for _ in range(replicas)]
    rates: list[list[float]] = [[] for _ in range(replicas)]
    for replica, counts in enumerate(dealt_users([group.users for group in groups], replicas)):
        for group, users, user_rate in zip(groups, counts, user_rates, strict=True):
            if users:
                parts[replica].append((replace(group, users=users), group))
                rates[replica].append(user_rate)
    sent = np.array(
        [
            sum(part.users * rate for (part, _), rate in zip(*of, strict=True))
            for of in zip(parts, rates, strict=True)
        ]
    )
    total = len(crowd.requests) if crowd.most_requests is None else crowd.most_requests
    ends = np.rint(np.cumsum(sent) / sent.sum() * total).astype(np.int64)
    split = []
    for replica, part in enumerate(parts):
        first = int(ends[replica - 1]) if replica else 0
        rows = np.arange(first, int(ends[replica]))
        sending = [
            whole if group.users == whole.users and len(groups) > 1 else _sending(group, rows)
            for group, whole in part
        ]
        split.append(joined_users(sending, rows.size, rates[replica]))
    return split


def _sending(group: ClosedLoopUsers, rows: NDArray[np.int64]) -> ClosedLoopUsers:
    """Return a group that sends only some of its requests; begin again where they run out."""
    chosen = rows % len(group.requests)
    think_s = None if group.think_s is None else group.think_s[chosen]
    return ClosedLoopUsers(group.requests.at(chosen), group.users, think_s)


NEGLIGIBLE = 0.05
"""Share of the requests and of the tokens below which a part of a load ends no run: without it the load is almost the same."""


def load_ends_s(
    arrival_s: Array, of_users: NDArray[np.bool_], tokens: NDArray[Any], idle_from_s: float
) -> float:
    """Return when a load of users and other requests ends: with the part that runs out first, unless that is a NEGLIGIBLE one [s].

    What share of the load a part is, shows while both last: the one that lasts longer sends more requests afterwards.
    Few long prompts load a replica as much as many short ones, so a part counts by its requests or its tokens.

    Parameters
    ----------
    arrival_s : [s]
        of each request, at least one
    of_users : which requests users send
    tokens : [tokens]
        prompt and output of each request
    idle_from_s : [s]
        when the first user finds no request left; not looked at if users send none

    Examples
    --------
    One request of another kind comes with each request of a user, until two seconds; the users go on for a thousand:

    >>> arrival_s = np.array([0.0, 0.0, 1.0, 1.0, 2.0, 2.0, *range(3, 1000)])
    >>> of_users = np.array([True, False] * 3 + [True] * 997)
    >>> load_ends_s(arrival_s, of_users, np.ones(1003), idle_from_s=999.0)
    2.0

    One in fifty is a NEGLIGIBLE part of the requests, and not of the tokens if it is long:

    >>> of_users = np.arange(1003) % 50 != 0
    >>> tokens = np.where(of_users, 1.0, 5.0)
    >>> load_ends_s(np.arange(1003.0), of_users, np.ones(1003), 1200.0), load_ends_s(np.arange(1003.0), of_users, tokens, 1200.0)
    (1200.0, 1000.0)
    """
    if not of_users.any():
        return float(arrival_s.max())
    if of_users.all():
        return idle_from_s
    others_end_s = float(arrival_s[~of_users].max())
    first = of_users if idle_from_s < others_end_s else ~of_users
    both = arrival_s <= min(idle_from_s, others_end_s)
    share = max(first[both].mean(), tokens[both & first].sum() / tokens[both].sum())
    return (min if share >= NEGLIGIBLE else max)(idle_from_s, others_end_s)


def users_idle_from_s(arrival_s: Array, response_s: Array, users: int) -> float:
    """Return when the first user finds no request left: from then on fewer users load the replicas [s].

    Each user takes a request at the beginning and at the end of each response, so of N requests that U users send, the last one
    is taken at the end of response N - U.

    Parameters
    ----------
    arrival_s : [s]
        when users send each request, at least one
    response_s : [s]
        how long each response takes; nan if it does not end
    users : [-]
        who take a request at the beginning

    Examples
    --------
    Two users send three requests of 1, 3 and 2 s:

    >>> users_idle_from_s(np.array([0.0, 0.0, 1.0]), np.array([1.0, 3.0, 2.0]), users=2)
    3.0
    """
    ends = arrival_s + np.nan_to_num(response_s)
    after = ends.size - users
    return float(np.partition(ends, after)[after]) if 0 <= after < ends.size else float(arrival_s.max())


@dataclass(frozen=True, slots=True)
class Offered:
    """Open-loop requests and closed-loop users; either may be None."""

    requests: Requests | None
    crowd: ClosedLoopUsers | None


def dealt_arrival_cv(demand: Demand) -> float:
    """Return the coefficient of variation of the times between arrivals, of the open-loop class with the highest rate; sessions only if all are."""
    dealt = [item for item in demand.classes if item.sessions is None] or demand.classes
    return max(dealt, key=lambda item: item.request_rate_per_s or 0.0).arrival_cv


def _session_fraction(demand: Demand) -> float:
    """Return the share of the open-loop requests that are turns of sessions, which stay at their replica."""
    rates = [item.request_rate_per_s or 0.0 for item in demand.classes]
    of_sessions = [
        rate for item, rate in zip(demand.classes, rates, strict=True) if item.sessions is not None
    ]
    return sum(of_sessions) / (sum(rates) or 1.0)


ODDS_PER_DOUBLING = 8
"""Steps in which the odds of users' requests against others double: one part of a draw outlasts the other by a twentieth at most."""


def user_share_of(odds: float) -> float:
    """Return the share of requests that users send, in steps, so that loads next to each other share a draw.

    Parameters
    ----------
    odds : [-]
        requests of users for each other request, rounded to ODDS_PER_DOUBLING steps per doubling

    Examples
    --------
    >>> user_share_of(1.0), round(user_share_of(3.05), 3), round(user_share_of(3.1), 3)
    (0.5, 0.755, 0.755)
    """
    nearest: float = 2.0 ** (round(ODDS_PER_DOUBLING * log2(odds)) / ODDS_PER_DOUBLING)
    return nearest / (1.0 + nearest)


REQUESTS_PER_USER = 4
"""Requests of each user that a run must hold: with fewer, the initial burst of users dominates, and a longer run is simulated."""
LEAST_OTHERS = 3000
"""Fewest open-loop requests of a run with users, if MOST_LENGTHENED allows it: the response times of fewer long ones differ by several percent from run to run."""
MOST_LENGTHENED = 4
"""Largest factor by which a run is longer than asked for, so that the users of a slow class send several requests each, and LEAST_OTHERS arrive."""


def requests_of_steady_users(demand: Demand, responses_s: ResponseTimes, share: float) -> float:
    """Return how many requests users of a share of the traffic send until each of them, of the slowest class too, has sent some."""
    rates = demand.rates_of_classes(responses_s)
    of_users = demand.user_classes
    all_users_rate = sum(rates[index] for index in of_users)
    cycles = [(demand.classes[index].users or 0.0) * all_users_rate / rates[index] for index in of_users]
    return REQUESTS_PER_USER * share * max(cycles, default=0.0)


def lengthened(count: int, demand: Demand, of_users: float, others: int) -> int:
    """Return the requests of a run that was to have `count`, times a power of two: users of a slow class send few of them next to a quick class, and few others may arrive next to quick users.

    Parameters
    ----------
    count : [-]
        of all requests, if that is enough
    demand : the whole traffic
    of_users : [-]
        requests until each user has sent some
    others : [-]
        open-loop requests among `count`
    """
    lacking = of_users / count if len(demand.user_classes) > 1 else 1.0
    if demand.users and len(demand.user_classes) < len(demand.classes):
        lacking = max(lacking, LEAST_OTHERS / max(others, 1))
    return count << ceil(log2(min(max(lacking, 1.0), MOST_LENGTHENED)))


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
        user_share: float | None = None,
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
        user_share : [-]
            of the requests that users send; None: by the response times
        """
        self.demand, self.seed, self.longest, self.routing = demand, seed, longest, routing
        self.open_rate, user_rate = demand.rates_per_s(response_s)
        rates = demand.rates_of_classes(response_s)
        self._user_rates = [
            rates[index] / (demand.classes[index].users or 1.0) for index in demand.user_classes
        ]
        self.of_users = round(
            count * (user_rate / (self.open_rate + user_rate) if user_share is None else user_share)
        )
        self.arrivals = count - self.of_users
        self._cv, self._session_fraction = dealt_arrival_cv(demand), _session_fraction(demand)
        self._timed: dict[float, Requests] = {}

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
            arriving = self._arriving(float(replica_arrival_cv(self._cv, replicas, self.routing)))
            rate = self.open_rate * share * slowness
            requests = replace(arriving, arrival_s=arriving.times_s / rate)
        if self.of_users:
            whole = self.users_of_share(share) if users is None else users
            parts = [
                replace(part, users=count, think_s=part.think_s / slowness)
                for part, count in zip(self._users, whole, strict=True)
                if part.think_s is not None
            ]
            crowd = joined_users(parts, self.of_users, self._user_rates)
        return Offered(requests, crowd)

    def user_share_at(self, share: float, users: Sequence[int] | None = None) -> float:
        """Return the share of requests that users send at one replica: its users are whole, and may be more or fewer than its part of them.

        Parameters
        ----------
        share : [-]
            of the whole traffic that goes to this replica
        users : [-]
            at this replica, by class; None: their share, rounded
        """
        whole = self.users_of_share(share) if users is None else users
        by_users = sum(count * rate for count, rate in zip(whole, self._user_rates, strict=True))
        if not by_users:
            return 0.0
        return user_share_of(by_users / (share * self.open_rate))

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
    def _untimed(self) -> Requests:
        """Open-loop requests without arrival times."""
        timed = [index for index, item in enumerate(self.demand.classes) if item.users is None]
        return drawn_requests(self.demand, self.arrivals, self.seed, self.longest, of=timed)

    @cached_property
    def _users(self) -> tuple[ClosedLoopUsers, ...]:
        """Requests and exponential think times of each class of users: all that users send may be of one class."""
        crowds = []
        for stream, index in enumerate(self.demand.user_classes):
            requests = drawn_requests(
                self.demand, self.of_users, self.seed, self.longest, of=[index], stream=stream
            )
            random = np.random.default_rng([self.seed, 2, stream])
            mean_s = self.demand.classes[index].think_time_s or 0.0
            crowds.append(ClosedLoopUsers(requests, 1, random.exponential(1.0, self.of_users) * mean_s))
        return tuple(crowds)

    def _arriving(self, cv: float) -> Requests:
        """Return the open-loop requests at a rate of one: those that are dealt with gamma-distributed gaps, turns of sessions as a Poisson process.

        A session stays at its replica, so its turns are not dealt.
        """
        if cv not in self._timed:
            random = arrival_generator(self.seed)
            is_turn = np.zeros(self.arrivals, dtype=bool)
            if self._session_fraction:
                of_sessions = np.array([item.sessions is not None for item in self.demand.classes])
                is_turn = of_sessions[self._untimed.column("class_index")]
            arrival_s = np.empty(self.arrivals)
            for rows, own_cv, fraction in (
                (~is_turn, cv, 1.0 - self._session_fraction),
                (is_turn, 1.0, self._session_fraction),
            ):
                if fraction:
                    arrival_s[rows] = np.cumsum(drawn_gaps(random, own_cv, int(rows.sum()))) / fraction
            order = np.argsort(arrival_s, kind="stable")
            self._timed[cv] = replace(self._untimed.at(order), arrival_s=arrival_s[order])
        return self._timed[cv]
