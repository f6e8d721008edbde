"""The traffic of a scenario at its peak as a stream of requests, turns of sessions with their block ids included: what `simulate` runs."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from capplan.fleet.load.demand import Demand
from capplan.fleet.load.offered import (
    Offered,
    SamplePath,
    lengthened,
    requests_of_steady_users,
)
from capplan.fleet.load.waits import waits_of
from capplan.fleet.simulation import Stream
from capplan.numbers import Array
from capplan.serving.requests import (
    NO_REQUESTS,
    ClosedLoopUsers,
    Requests,
    Visits,
    in_order_of_arrival,
    joined_users,
    joined_visits,
)
from capplan.serving.terms import Routing
from capplan.workload.request_class import SIMULATED_REQUESTS, WARM_UP_SHARE, RequestClass, ResponseTimes
from capplan.workload.sessions import (
    LEAST_GAP_S,
    WHOLE_QUANTILE,
    Sessions,
    Turns,
    block_tokens_for,
    drawn_gaps_s,
    drawn_turns,
    held_in_turn,
    turn_blocks,
    turn_starts_s,
)

Rows = NDArray[np.int64]

WARM_QUANTILE = 0.95
"""Quantile of the turns of a session; a fleet warms up for as long as so many turns take."""
LEAST_RESPONSE = 0.5
"""Time of responses over their mean, down to which the turns of a session last until the end of a load."""
MOST_TURNS = 1.5
"""Turns that a user may send, over those at the mean response time: responses of other users may be slower."""


def session_block_tokens(demand: Demand) -> int:
    """Return the tokens of one block of the stream; 0 if no class has sessions."""
    means = [
        request_class.input_tokens.mean_tokens
        for request_class in demand.classes
        if request_class.sessions is not None
    ]
    return block_tokens_for(min(means)) if means else 0


def offered_with_sessions(
    demand: Demand,
    *,
    seconds: float,
    seed: int,
    longest: int,
    response_s: ResponseTimes,
    turns_wait: bool = True,
) -> Offered:
    """Return the requests of some time: the turns of sessions with their blocks, all other requests as a sample path.

    Sessions of a class with a rate start as a Poisson process, users hold one session after another, and a turn is sent its think
    time after the response to the turn before it. As many sessions as usual are in flight at time zero, whose contexts no cache has then.

    Parameters
    ----------
    demand : the whole traffic
    seconds : [s]
    seed : of all random draws
    longest : [tokens]
        sessions end before a turn that exceeds it, other requests are truncated to it
    response_s : [s]
        mean response times
    turns_wait : without this, a turn is sent its think time after the mean response, whatever the response before it takes

    Returns
    -------
    Offered
    """
    responses_s = demand.responses_s(response_s)
    plain = [index for index, request_class in enumerate(demand.classes) if request_class.sessions is None]
    open_loop, crowds, user_rates, most = _sample_path(demand, plain, seconds, seed, longest, responses_s)
    named, visits = _Named(session_block_tokens(demand), longest), list[Visits]()
    first_id = named.name_path(open_loop, crowds, plain)
    for index, request_class in enumerate(demand.classes):
        sessions = request_class.sessions
        if sessions is None:
            continue
        random, wait_s = np.random.default_rng([seed, 4, index]), responses_s[index]
        if request_class.users is not None and turns_wait:
            users, first_id = named.users(
                request_class.users, sessions, seconds, wait_s, random, first_id, index
            )
            crowds += users
            rate = 1.0 / max(sessions.think_time_s + wait_s, LEAST_GAP_S)
            user_rates += [rate] * len(users)
            most += round(rate * len(users) * seconds)
            continue
        turns, sent_s = _turns_in_time(request_class, sessions, seconds, wait_s, longest, random)
        rows = np.flatnonzero(sent_s < seconds)
        if turns_wait:
            rows, come_s, counts = _visits(turns, sent_s, seconds, wait_s)
        part, first_id = named.requests(_at(turns, rows), sessions, first_id, index, sent_s[rows])
        if turns_wait:
            visits.append(Visits(part, counts, come_s))
        else:
            open_loop.append(part)
    everyone = joined_users(crowds, max(most, 1), user_rates)
    if visits:
        everyone = replace(everyone or ClosedLoopUsers(NO_REQUESTS, 0), visits=joined_visits(visits))
    return Offered(in_order_of_arrival(open_loop) if open_loop else None, everyone)


def _sample_path(
    demand: Demand,
    plain: Sequence[int],
    seconds: float,
    seed: int,
    longest: int,
    responses_s: Sequence[float],
) -> tuple[list[Requests], list[ClosedLoopUsers], list[float], int]:
    """Return the open-loop requests of the classes without sessions, their users with the rate of one, and how many requests these send."""
    if not plain:
        return [], [], [], 0
    others = _without_sessions(demand, plain)
    waits = [responses_s[index] for index in plain]
    count = max(round(sum(others.rates_per_s(waits)) * seconds), 2)
    path = SamplePath(others, count=count, seed=seed, longest=longest, response_s=waits).offered(1.0)
    open_loop = [path.requests] if path.requests else []
    if (crowd := path.crowd) is None:
        return open_loop, [], [], 0
    rates = [group.user_rate for group in crowd.groups] or [others.rates_per_s(waits)[1] / crowd.users]
    most = len(crowd.requests) if crowd.most_requests is None else crowd.most_requests
    return open_loop, crowd.parts, rates, most


@dataclass(frozen=True, slots=True)
class _Named:
    """Turns of sessions as requests whose blocks have ids."""

    block_tokens: int
    longest: int

    def requests(
        self, turns: Turns, sessions: Sessions, first_id: int, index: int, arrival_s: Array | None = None
    ) -> tuple[Requests, int]:
        """Return turns of a class as requests, and the first id after theirs."""
        blocks = turn_blocks(turns, sessions.shared_tokens, self.block_tokens, first_id)
        named = Requests(
            turns.input_tokens,
            turns.output_tokens,
            arrival_s,
            cached_tokens=np.zeros(len(turns), dtype=np.int64),
            class_index=np.full(len(turns), index, dtype=np.int64),
            block_ids=blocks.prompt_ids,
            block_counts=blocks.prompt_counts,
            output_ids=blocks.output_ids,
            output_counts=blocks.output_counts,
        )
        return named, 1 + max(
            int(ids.max(initial=first_id)) for ids in (blocks.prompt_ids, blocks.output_ids)
        )

    def name_path(
        self, open_loop: list[Requests], crowds: list[ClosedLoopUsers], plain: Sequence[int]
    ) -> int:
        """Name the blocks of the classes without sessions, from 0 on, in place; return the first id after theirs."""
        first_id = 0
        for place, part in enumerate(open_loop):
            open_loop[place], first_id = self.by_themselves(part, plain, first_id)
        for place, crowd in enumerate(crowds):
            own, first_id = self.by_themselves(crowd.requests, plain, first_id)
            crowds[place] = replace(crowd, requests=own)
        return first_id

    def by_themselves(self, requests: Requests, plain: Sequence[int], first_id: int) -> tuple[Requests, int]:
        """Return requests of the classes without sessions with their place among all classes, and the first id after theirs.

        What they compute takes room in the caches that nobody asks for again.
        """
        assert requests.class_index is not None
        assert requests.cached_tokens is not None
        none = np.zeros(0, dtype=np.int64)
        own = requests.input_tokens - requests.cached_tokens + requests.output_tokens
        counts = np.maximum(own, 0) // max(self.block_tokens, 1)
        return replace(
            requests,
            class_index=np.array(plain)[requests.class_index],
            block_ids=none,
            block_counts=np.zeros(len(requests), dtype=np.int64),
            output_ids=np.arange(first_id, first_id + int(counts.sum())),
            output_counts=counts,
        ), first_id + int(counts.sum())

    def users(
        self, users: float, sessions: Sessions, seconds: float, response_s: float, random: "np.random.Generator", first_id: int, index: int,
    ) -> tuple[list[ClosedLoopUsers], int]:  # fmt: skip
        """Return each user as a crowd of one, who sends the turns of own sessions in their order, and the first id after theirs."""
        gap_s = max(sessions.think_time_s + response_s, LEAST_GAP_S)
        turns, rows = held_in_turn(
            sessions, round(users), ceil(MOST_TURNS * seconds / gap_s) + 1, random, self.longest
        )
        think_s = drawn_gaps_s(sessions, len(turns), 0.0, random)
        named, first_id = self.requests(turns, sessions, first_id, index)
        return [
            ClosedLoopUsers(named.between(start, end), 1, think_s[start:end]) for start, end in rows
        ], first_id


def session_warm_up_s(demand: Demand, response_s: ResponseTimes) -> float:
    """Return the time after which caches that were empty hold the sessions in flight [s].

        t = max over the classes of q_0.95(n) (z + r)

    n turns, z their think time, r the mean response: 95 % of the sessions that were in flight at the start have ended by then.
    """
    responses_s = demand.responses_s(response_s)
    return max(
        (
            float(item.sessions.turns.quantile(WARM_QUANTILE)) * (item.sessions.think_time_s + wait_s)
            for item, wait_s in zip(demand.classes, responses_s, strict=True)
            if item.sessions is not None
        ),
        default=0.0,
    )


def _without_sessions(demand: Demand, plain: Sequence[int]) -> Demand:
    hits = tuple(demand.hit_fractions[index] for index in plain) if demand.hit_fractions else ()
    return replace(demand, classes=tuple(demand.classes[index] for index in plain), hit_fractions=hits)


def _turns_in_time(
    request_class: RequestClass,
    sessions: Sessions,
    seconds: float,
    response_s: float,
    longest: int,
    random: "np.random.Generator",
) -> tuple[Turns, Array]:
    """Return the turns from time zero on, and when each is sent if responses take their mean: those of as many sessions as send them at the rate of the class."""
    gap_s = max(sessions.think_time_s + response_s, LEAST_GAP_S)
    before_s = gap_s * float(sessions.turns.quantile(WHOLE_QUANTILE))
    wanted = max(round(request_class.request_rate_at(response_s) * seconds), 1)
    count = max(round(wanted / sessions.turns.mean_tokens * (1.0 + before_s / seconds)), 1)
    while True:
        turns = drawn_turns(sessions, count, random, longest)
        gaps = drawn_gaps_s(sessions, len(turns), response_s, random)
        sent_s = turn_starts_s(turns, random.uniform(-before_s, seconds, count), gaps)
        in_time = np.flatnonzero((sent_s >= 0.0) & (sent_s < seconds))
        if in_time.size >= wanted:
            enough = (turns.session <= turns.session[in_time[wanted - 1]]) & (sent_s >= 0.0)
            enough[in_time[wanted:]] = False
            return _at(turns, enough), sent_s[enough]
        count = 1 + round(1.1 * count * wanted / max(in_time.size, 1))


def _at(turns: Turns, rows: "Rows | NDArray[np.bool_]") -> Turns:
    return Turns(*(column[rows] for column in astuple(turns)))


def _visits(turns: Turns, sent_s: Array, seconds: float, response_s: float) -> tuple[Rows, Array, Rows]:
    """Return the rows of turns that come in a time even if responses take half their mean, in order of their sessions' beginning, what each waits for, and the turns of each session.

    Parameters
    ----------
    turns : session after session
    sent_s : [s]
        when each is sent if responses take their mean
    seconds : [s]
    response_s : [s]
        the mean
    """
    firsts = np.flatnonzero(np.diff(turns.session, prepend=-1))
    place = np.arange(len(turns)) - np.repeat(firsts, np.diff(firsts, append=len(turns)))
    rows = np.flatnonzero(sent_s - LEAST_RESPONSE * place * response_s < seconds)
    firsts = np.flatnonzero(np.diff(turns.session[rows], prepend=-1))
    counts, begins_s = np.diff(firsts, append=rows.size), sent_s[rows[firsts]]
    rows = rows[np.argsort(np.repeat(begins_s, counts), kind="stable")]
    counts = counts[np.argsort(begins_s, kind="stable")]
    wait_s = np.maximum(np.diff(sent_s[rows], prepend=0.0) - response_s, LEAST_GAP_S)
    begins = np.cumsum(counts) - counts
    wait_s[begins] = sent_s[rows[begins]]
    return rows, wait_s, counts


SAMPLED_SECONDS = 600.0
MOST_SAMPLED = 1_000_000


def _requests_of(demand: Demand, replicas: int, seconds: float | None, response_s: ResponseTimes) -> int:
    """Return how many requests a time at the peak has; see `peak_stream`."""
    rate = sum(demand.rates_per_s(response_s))
    if seconds is not None:
        return min(max(round(rate * seconds), 2 * replicas, 10), MOST_SAMPLED)
    most = SIMULATED_REQUESTS if replicas == 1 else MOST_SAMPLED
    count = min(max(round(rate * SAMPLED_SECONDS), SIMULATED_REQUESTS), most)
    others = round(count * demand.rates_per_s(response_s)[0] / rate)
    return lengthened(count, demand, requests_of_steady_users(demand, response_s, 1.0), others)


def peak_stream(
    demand: Demand,
    *,
    replicas: int,
    seed: int,
    longest: int,
    seconds: float | None = None,
    response_s: ResponseTimes = 0.0,
    routing: Routing | None,
    turns_wait: bool = True,
) -> Stream:
    """Return the requests of some time at the peak.

    Parameters
    ----------
    demand : with the prefix-cache hits of a replica
    replicas : [-]
        each of which gets at least two requests
    seed : of all random draws
    longest : [tokens]
        input plus output are truncated to it
    seconds : [s]
        None: SAMPLED_SECONDS, and until at least SIMULATED_REQUESTS came; a single replica sees as many, as in the search
    response_s : [s]
        approximate response times of users and of the turns of sessions
    routing : of the router
    turns_wait : turns of sessions wait for the response before them; without this they are sent after the mean response

    Returns
    -------
    Stream; a fleet with sessions starts without any of them, and its warm-up comes before the time that is asked for; otherwise
    the warm-up is the first part of it
    """
    rate = sum(demand.rates_per_s(response_s))
    warm_up_s = session_warm_up_s(demand, response_s)
    count = _requests_of(demand, replicas, seconds, response_s)
    if demand.has_sessions:
        offered = offered_with_sessions(
            demand,
            seconds=count / rate + warm_up_s,
            seed=seed,
            longest=longest,
            response_s=response_s,
            turns_wait=turns_wait,
        )
    else:
        offered = SamplePath(demand, count=count, seed=seed, longest=longest, response_s=response_s).offered(
            1.0
        )
    names = tuple(request_class.name for request_class in demand.classes)
    blocks = session_block_tokens(demand)
    return Stream(
        offered.requests, names, blocks, crowd=offered.crowd, routing=routing, seed=seed, warm_up_s=warm_up_s,
        warm_up_share=0.0 if warm_up_s else WARM_UP_SHARE, waits=waits_of(demand.classes).at_the_peak,
        load_ends_s=count / rate + warm_up_s if demand.has_sessions else inf,
    )  # fmt: skip
