"""The load of a server: requests as columns, closed-loop users, and admission rules."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite, nan
from typing import Any, NamedTuple

import numpy as np

from capplan.errors import InputError
from capplan.numbers import Array, Counts

NO_IDS: Counts = np.zeros(0, dtype=np.int64)


NAMED_BLOCKS = {"block_ids": "block_counts", "output_ids": "output_counts"}
"""Columns with several ids per request -> columns with the number of ids."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests as columns of equal length, in order of arrival."""

    input_tokens: Counts
    """Prompt length, at least 1."""
    output_tokens: Counts
    """Tokens to generate, at least 1; the prefill yields the first one."""
    arrival_s: Array | None = None
    """When the client sends the request, ascending; None: all at zero. Not used in a closed loop."""
    cached_tokens: Counts | None = None
    """Leading prompt tokens that are in the prefix cache; they need no prefill, and their full blocks are shared."""
    class_index: Counts | None = None
    """Traffic class, from 0; None: all of class 0."""
    block_ids: Counts | None = None
    """Ids of the full blocks of all prompts, concatenated; equal ids stand for equal prefixes."""
    block_counts: Counts | None = None
    """Number of block ids of each request."""
    output_ids: Counts | None = None
    """Ids of the blocks that the responses fill; they are cached once the request has ended."""
    output_counts: Counts | None = None
    """Number of output ids of each request."""

    def __len__(self) -> int:
        """Return the number of requests."""
        return int(self.input_tokens.size)

    @property
    def times_s(self) -> Array:
        """Return when clients send them."""
        return np.zeros(len(self)) if self.arrival_s is None else self.arrival_s

    def column(self, name: str) -> Counts:
        """Return a column of one whole number per request, zeros where it is not given."""
        values: Counts | None = getattr(self, name)
        return np.zeros(len(self), dtype=np.int64) if values is None else values

    def between(self, start: int, stop: int) -> "Requests":
        """Return the requests from start up to stop, with their block ids.

        Examples
        --------
        >>> two, three = np.array([2, 2]), np.array([7, 8, 8])
        >>> requests = Requests(two, two, block_ids=three, block_counts=np.array([1, 2]))
        >>> requests.between(1, 2).block_ids
        array([8, 8])
        """
        columns: dict[str, Any] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if column is not None and field.name not in NAMED_BLOCKS:
                columns[field.name] = column[start:stop]
        for name, counts_name in NAMED_BLOCKS.items():
            ids, counts = getattr(self, name), getattr(self, counts_name)
            if ids is not None:
                first = int(counts[:start].sum())
                columns[name] = ids[first : first + int(counts[start:stop].sum())]
        return replace(self, **columns)

    def at(self, rows: Counts) -> "Requests":
        """Return the requests in these rows, with their block ids.

        Examples
        --------
        >>> two = Requests(np.array([32, 16]), np.array([1, 1]), block_ids=np.array([7, 8, 9]), block_counts=np.array([2, 1]))
        >>> two.at(np.array([1])).block_ids
        array([9])
        """
        columns: dict[str, Any] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if column is not None and field.name not in NAMED_BLOCKS:
                columns[field.name] = column[rows]
        for name in NAMED_BLOCKS:
            pieces = self.pieces(name)
            if pieces is not None:
                columns[name] = np.concatenate([NO_IDS, *(pieces[row] for row in rows.tolist())])
        return replace(self, **columns)

    def pieces(self, name: str) -> list[Counts] | None:
        """Return the ids of a column of NAMED_BLOCKS by request; None if the requests have none."""
        ids, counts = getattr(self, name), getattr(self, NAMED_BLOCKS[name])
        if ids is None:
            return None
        ends = np.cumsum(counts)
        starts = ends - counts
        return [ids[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


NO_REQUESTS = Requests(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
"""No open-loop arrivals."""


BEGIN_S = 1e-4
"""Time between the first requests of two users (an assumption): a client sends one after the other, so an idle engine begins with the first by itself."""


class UserGroup(NamedTuple):
    """Users of one class, who send the requests of this class only."""

    users: int
    requests: int
    """Requests that these users may send; they follow the requests of the group before in the crowd."""
    user_rate: float = 1.0
    """Requests per second of one user, about, relative to other groups: a split of the crowd deals the common limit by it."""


@dataclass(frozen=True, slots=True)
class Visits:
    """Sessions that begin at times of their own: each turn is sent some time after the response to the turn before it has ended."""

    requests: Requests
    """Turns, session after session in order of their beginning; `arrival_s` is about when each is sent, and not used by a simulation."""
    turns: Counts
    """Turns of each session, at least one."""
    wait_s: Array
    """Time before each turn: from time zero for the first of a session, from the end of the response before for the others."""

    def of(self, sessions: Counts) -> "Visits":
        """Return some of the sessions, by their places.

        Examples
        --------
        >>> three = np.array([5, 6, 7])
        >>> visits = Visits(Requests(three, three), np.array([2, 1]), np.array([0.0, 1.0, 4.0]))
        >>> visits.of(np.array([1])).requests.input_tokens
        array([7])
        """
        chosen = np.zeros(self.turns.size, dtype=np.bool_)
        chosen[sessions] = True
        rows = np.flatnonzero(np.repeat(chosen, self.turns))
        return Visits(self.requests.at(rows), self.turns[chosen], self.wait_s[rows])


@dataclass(frozen=True, slots=True)
class ClosedLoopUsers:
    """Users in a closed loop: each thinks, sends a request, waits for the whole response, and thinks again."""

    requests: Requests
    """Requests of all groups, group after group; the next free user of a group takes the group's next request."""
    users: int
    """Users of all groups; those beyond the number of requests stay idle."""
    think_s: Array | None = None
    """Think time by request, from the user's beginning (BEGIN_S after that of the user before) or from the end (finished or shed) of the user's previous request; None: zero."""
    groups: tuple[UserGroup, ...] = ()
    """Users by class, with the requests of each class; empty: any user takes any request, in order."""
    most_requests: int | None = None
    """The run ends after this many requests of all groups together; None: after all requests."""
    visits: Visits | None = None
    """Others who come, hold one session and leave; their turns are no requests of the groups."""

    @property
    def thinks(self) -> bool:
        """Return whether any think time is positive."""
        return self.visits is not None or (self.think_s is not None and bool(np.any(self.think_s > 0.0)))

    @property
    def asked(self) -> Requests:
        """Return all requests that follow from responses: those of visits, then those of users."""
        if self.visits is None:
            return self.requests
        turns = replace(self.visits.requests, arrival_s=None)
        return joined_requests([turns, self.requests]) if self.users else turns

    @property
    def parts(self) -> list["ClosedLoopUsers"]:
        """Return a crowd for each group, without the common limit on requests.

        Examples
        --------
        >>> two = np.array([2, 2, 7])
        >>> crowd = ClosedLoopUsers(Requests(two, two), 5, groups=(UserGroup(4, 2), UserGroup(1, 1)))
        >>> [part.requests.input_tokens.tolist() for part in crowd.parts]
        [[2, 2], [7]]
        """
        if not self.groups:
            return [replace(self, groups=(), most_requests=None, visits=None)] if self.users else []
        ends = np.cumsum([group.requests for group in self.groups]).tolist()
        return [
            ClosedLoopUsers(
                self.requests.between(end - group.requests, end),
                group.users,
                None if self.think_s is None else self.think_s[end - group.requests : end],
            )
            for group, end in zip(self.groups, ends, strict=True)
        ]

    def first_turns(self) -> Counts:
        """Return the group of each user but visitors, in the order in which they begin; large groups take turns more often.

        Examples
        --------
        >>> four = np.ones(10, dtype=np.int64)
        >>> ClosedLoopUsers(Requests(four, four), 4, groups=(UserGroup(3, 5), UserGroup(1, 5))).first_turns().tolist()
        [0, 0, 1, 0]
        """
        most = self.users if self.most_requests is None else min(self.users, self.most_requests)
        groups = self.groups or (UserGroup(self.users, len(self.requests)),)
        turns = [(np.arange(min(group.users, group.requests)) + 0.5) / group.users for group in groups]
        owners = np.repeat(np.arange(len(groups)), [turn.size for turn in turns])
        return owners[np.argsort(np.concatenate(turns), kind="stable")][:most]


def joined_users(
    parts: Sequence[ClosedLoopUsers], most_requests: int | None = None, user_rates: Sequence[float] = ()
) -> ClosedLoopUsers | None:
    """Return one crowd whose groups are these crowds; None without users.

    Parameters
    ----------
    parts : each with its requests and, unless all have none, its think times; those without users are left out
    most_requests : [-]
        limit on the requests of all groups together
    user_rates : requests per second of one user of each part, about, up to a common factor; empty: all alike
    """
    rates = [rate for rate, part in zip(user_rates or [1.0] * len(parts), parts, strict=True) if part.users]
    parts = [part for part in parts if part.users]
    if not parts:
        return None
    tables = [part.requests for part in parts]
    groups = tuple(
        UserGroup(part.users, len(table), rate)
        for part, table, rate in zip(parts, tables, rates, strict=True)
    )
    thinks = [part.think_s for part in parts if part.think_s is not None]
    return ClosedLoopUsers(
        joined_requests(tables),
        sum(part.users for part in parts),
        np.concatenate(thinks) if thinks else None,
        groups if len(groups) > 1 else (),
        most_requests,
    )


def joined_visits(parts: Sequence[Visits]) -> Visits:
    """Return the sessions of all parts in order of their beginning."""
    if len(parts) == 1:
        return parts[0]
    turns = np.concatenate([part.turns for part in parts])
    wait_s = np.concatenate([part.wait_s for part in parts])
    order = np.argsort(wait_s[np.cumsum(turns) - turns], kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    rows = np.argsort(np.repeat(place, turns), kind="stable")
    return Visits(joined_requests([part.requests for part in parts]).at(rows), turns[order], wait_s[rows])


def in_order_of_arrival(parts: Sequence[Requests]) -> Requests:
    """Return the requests of all parts, which have arrival times, in order of these."""
    together = joined_requests(parts)
    return together.at(np.argsort(together.times_s, kind="stable"))


def joined_requests(parts: Sequence[Requests]) -> Requests:
    """Return the requests of all parts, one part after another; a column must be in all parts or in none."""
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}
    for field in fields(Requests):
        column = [getattr(part, field.name) for part in parts]
        columns[field.name] = None if column[0] is None else np.concatenate(column)
    return Requests(**columns)


@dataclass(frozen=True, slots=True)
class Admission:
    """Admission rules: queue limit, deadlines, priorities."""

    queue_limit: int | None = None
    """A request that arrives when this many are waiting is shed at once; None: no limit."""
    deadline_s: tuple[float, ...] = ()
    """Longest wait of each class: a request that has waited this long without starting is shed; empty: no deadlines."""
    priority: tuple[int, ...] = ()
    """Priority of each class: lower numbers are admitted first and preempted last; empty: first come, first served."""


class InFlight:
    """The state of one request between arrival and end."""

    __slots__ = (
        "arrival_s",
        "block_ids",
        "cached_tokens",
        "class_index",
        "enqueued_s",
        "first_token_s",
        "index",
        "key",
        "kv_transferred_in",
        "last_token_s",
        "output_ids",
        "output_tokens",
        "prompt_tokens",
        "remaining_tokens",
        "scheduled_s",
    )

    def __init__(
        self, index: int, arrival_s: float, enqueued_s: float, prompt_tokens: int, output_tokens: int
    ) -> None:
        """Start unscheduled; times that are not known yet are nan."""
        self.index = index
        self.key = index
        self.arrival_s = arrival_s
        self.enqueued_s = enqueued_s
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.remaining_tokens = output_tokens
        self.cached_tokens = 0
        self.class_index = 0
        self.block_ids: list[int] = []
        self.output_ids: list[int] = []
        self.kv_transferred_in = False
        self.scheduled_s = nan
        self.first_token_s = nan
        self.last_token_s = nan


def check_requests(requests: Requests, *, timed: bool) -> None:
    """Refuse invalid requests.

    Parameters
    ----------
    requests : the columns to check
    timed : [-]
        arrival times are used, and must ascend from zero

    Raises
    ------
    InputError
        names the first invalid request
    """
    for name in ("input_tokens", "output_tokens"):
        bad = np.flatnonzero(np.asarray(getattr(requests, name)) < 1)
        if bad.size:
            value = int(getattr(requests, name)[bad[0]])
            raise InputError(f"request {int(bad[0])}: {name} is {value}; it must be at least 1")
    for field in fields(requests):
        column = getattr(requests, field.name)
        if (
            column is not None
            and field.name not in NAMED_BLOCKS
            and column.shape != requests.input_tokens.shape
        ):
            raise InputError(f"requests: {field.name} has {column.size} entries for {len(requests)} requests")
    for name in ("cached_tokens", "class_index", "block_counts", "output_counts"):
        column = getattr(requests, name)
        if column is not None and np.any(column < 0):
            where = int(np.flatnonzero(column < 0)[0])
            raise InputError(f"request {where}: {name} is negative")
    for name, counts in NAMED_BLOCKS.items():
        if (getattr(requests, name) is None) != (getattr(requests, counts) is None):
            raise InputError(f"requests: {name} and {counts} must be given together")
    arrival = requests.arrival_s
    if timed and arrival is not None and arrival.size:
        if not np.all(np.isfinite(arrival)) or arrival[0] < 0.0:
            raise InputError("requests: arrival times must be finite and at least 0 s")
        back = np.flatnonzero(np.diff(arrival) < 0.0)
        if back.size:
            raise InputError(
                f"request {int(back[0]) + 1} arrives before its predecessor\n  sort the requests by arrival"
            )


def offered(
    requests: Requests | None, concurrency: int | None, crowd: ClosedLoopUsers | None
) -> tuple[Requests, ClosedLoopUsers | None]:
    """Return the open-loop arrivals and the closed-loop users; a concurrency is that many users without think time.

    Raises
    ------
    InputError
        names the invalid value
    """
    if concurrency is not None:
        if concurrency < 1:
            raise InputError(f"concurrency is {concurrency}; it must be at least 1")
        if crowd is not None:
            raise InputError(
                "concurrency and crowd exclude each other\n  under a concurrency all requests are sent by its users"
            )
        return NO_REQUESTS, ClosedLoopUsers(NO_REQUESTS if requests is None else requests, concurrency)
    if crowd is not None:
        _check_crowd(crowd)
    return NO_REQUESTS if requests is None else requests, crowd


def _check_crowd(crowd: ClosedLoopUsers) -> None:
    """Refuse an invalid number of users or invalid think times.

    Raises
    ------
    InputError
        names the first invalid value
    """
    if crowd.users < (crowd.visits is None):
        raise InputError(f"users is {crowd.users}; it must be at least 1")
    _check_groups(crowd)
    if crowd.visits is not None:
        _check_visits(crowd.visits)
    if crowd.think_s is None:
        return
    bad = np.flatnonzero(~(np.isfinite(crowd.think_s) & (crowd.think_s >= 0.0)))
    if bad.size:
        raise InputError(
            f"request {int(bad[0])}: think_s is {crowd.think_s[bad[0]]}; it must be finite and at least 0 s"
        )
    if crowd.think_s.shape != crowd.requests.input_tokens.shape:
        raise InputError(
            f"crowd: think_s has {crowd.think_s.size} entries for {len(crowd.requests)} requests"
        )


def _check_groups(crowd: ClosedLoopUsers) -> None:
    """Refuse groups that do not make up the crowd.

    Raises
    ------
    InputError
        names the number that differs
    """
    if not crowd.groups:
        return
    users = sum(group.users for group in crowd.groups)
    count = sum(group.requests for group in crowd.groups)
    if (users, count) != (crowd.users, len(crowd.requests)):
        raise InputError(
            f"crowd: the groups have {users} users and {count} requests, and the crowd {crowd.users} and {len(crowd.requests)}"
        )
    if any(group.users < 1 for group in crowd.groups):
        raise InputError("crowd: a group has no users; leave it out")


def _check_visits(visits: Visits) -> None:
    """Refuse sessions without turns, or whose turns are not sent at a time.

    Raises
    ------
    InputError
        names the first invalid value
    """
    if np.any(visits.turns < 1) or int(visits.turns.sum()) != len(visits.requests):
        raise InputError(
            f"visits: {int(visits.turns.sum())} turns for {len(visits.requests)} requests; each session has one at least"
        )
    bad = np.flatnonzero(~(np.isfinite(visits.wait_s) & (visits.wait_s >= 0.0)))
    if bad.size or visits.wait_s.size != len(visits.requests):
        raise InputError("visits: wait_s must be finite, at least 0 s, and there for each turn")


def check_admission(admission: Admission, crowd: ClosedLoopUsers | None) -> None:
    """Refuse invalid admission rules.

    Raises
    ------
    InputError
        names the rule
    """
    if admission.queue_limit is not None and admission.queue_limit < 0:
        raise InputError(f"queue_limit is {admission.queue_limit}; it must be at least 0")
    if admission.queue_limit is not None and crowd is not None and not crowd.thinks:
        raise InputError(
            "queue_limit has no meaning for users without think time: after a shed request they would send the next one "
            "at the same instant\n  give think times, or arrival times instead of a concurrency"
        )
    if any(not deadline > 0.0 for deadline in admission.deadline_s):
        raise InputError(f"deadline_s must be positive, but is {admission.deadline_s}")
    if any(priority < 0 or not isfinite(priority) for priority in admission.priority):
        raise InputError(f"priority must hold whole numbers of at least 0, but is {admission.priority}")
