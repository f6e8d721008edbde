"""Splitting a stream over replicas that are simulated separately: round-robin, at random, or by prefix."""

from collections.abc import Sequence
from dataclasses import fields, replace
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.errors import InputError
from capplan.serving.requests import NAMED_BLOCKS, Crowd, Requests, joined_crowd

FORGET_S = 60.0
"""Time constant of the decay with which routed tokens count as the load of a replica."""
LARGEST_IMBALANCE_RATIO = 1.25
"""A replica that has the prefix is skipped if its load is more than this times the mean (an assumption)."""


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
    return [selected_requests(requests, rows) for rows in chosen]


def split_by_prefix(requests: Requests, replicas: int) -> list[Requests]:
    """Return the requests of each replica: each goes where its longest prefix was seen last, unless that replica is overloaded.

    The load of a replica is the number of tokens sent to it, with exponential decay over a minute. If some replica would
    get no request, the split is round-robin.
    """
    if replicas == 1 or requests.block_ids is None or requests.block_counts is None:
        return split_round_robin(requests, replicas)
    arrival = requests.arrival_s if requests.arrival_s is not None else np.zeros(len(requests))
    pieces = np.split(requests.block_ids, np.cumsum(requests.block_counts)[:-1])
    load_tokens = np.zeros(replicas)
    home: dict[int, int] = {}
    rows_of: list[list[int]] = [[] for _ in range(replicas)]
    now = 0.0
    for index, (at, ids, tokens) in enumerate(
        zip(arrival.tolist(), pieces, (requests.input_tokens + requests.output_tokens).tolist(), strict=True)
    ):
        load_tokens *= exp(-(at - now) / FORGET_S)
        now = at
        blocks = ids.tolist()
        chosen = int(load_tokens.argmin())
        for block in blocks:
            if block not in home:
                break
            if load_tokens[home[block]] <= LARGEST_IMBALANCE_RATIO * float(load_tokens.mean()) + tokens:
                chosen = home[block]
        home.update(dict.fromkeys(blocks, chosen))
        load_tokens[chosen] += tokens
        rows_of[chosen].append(index)
    if not all(rows_of):
        return split_round_robin(requests, replicas)
    return [selected_requests(requests, np.array(rows)) for rows in rows_of]


def split_at_random(requests: Requests, replicas: int, seed: int) -> list[Requests]:
    """Return the requests of each replica, every request at a random one."""
    if replicas == 1:
        return [requests]
    to = np.random.default_rng([seed, 3]).integers(0, replicas, len(requests))
    chosen = [np.flatnonzero(to == replica) for replica in range(replicas)]
    return [selected_requests(requests, rows) for rows in chosen]


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


def split_crowd(crowd: Crowd, replicas: int) -> list[Crowd]:
    """Return the users of each replica, who stay with it, and the requests they send; replicas without users get none.

    All replicas send for about the same time: each gets the part of the common limit that its users would send.
    """
    groups = crowd.parts
    user_rates = [group.user_rate for group in crowd.groups] or [1.0]
    parts: list[list[Crowd]] = [[] for _ in range(replicas)]
    rates: list[list[float]] = [[] for _ in range(replicas)]
    for replica, counts in enumerate(dealt_users([group.users for group in groups], replicas)):
        for group, users, user_rate in zip(groups, counts, user_rates, strict=True):
            if users:
                parts[replica].append(replace(group, users=users))
                rates[replica].append(user_rate)
    sent = np.array(
        [
            sum(part.users * rate for part, rate in zip(*of, strict=True))
            for of in zip(parts, rates, strict=True)
        ]
    )
    assert isinstance(crowd.requests, Requests)
    total = len(crowd.requests) if crowd.most_requests is None else crowd.most_requests
    ends = np.rint(np.cumsum(sent) / sent.sum() * total).astype(np.int64)
    split = []
    for replica, part in enumerate(parts):
        first = int(ends[replica - 1]) if replica else 0
        rows = np.arange(first, int(ends[replica]))
        split.append(joined_crowd([_sending(group, rows) for group in part], rows.size, rates[replica]))
    return [of_replica for of_replica in split if of_replica is not None]


def _sending(group: Crowd, rows: NDArray[np.int64]) -> Crowd:
    """Return a group that sends only some of its requests; begin again where they run out."""
    assert isinstance(group.requests, Requests)
    chosen = rows % len(group.requests)
    think_s = None if group.think_s is None else group.think_s[chosen]
    return Crowd(selected_requests(group.requests, chosen), group.users, think_s)


def selected_requests(requests: Requests, rows: NDArray[np.int64]) -> Requests:
    """Return the requests in these rows, with their block ids.

    Examples
    --------
    >>> two = Requests(np.array([32, 16]), np.array([1, 1]), block_ids=np.array([7, 8, 9]), block_counts=np.array([2, 1]))
    >>> selected_requests(two, np.array([1])).block_ids
    array([9])
    """
    columns: dict[str, Any] = {}
    for field in fields(requests):
        column = getattr(requests, field.name)
        if column is not None and field.name not in NAMED_BLOCKS:
            columns[field.name] = column[rows]
    for name in NAMED_BLOCKS:
        pieces = requests.pieces(name)
        if pieces is not None:
            columns[name] = np.concatenate([pieces[row] for row in rows.tolist()])
    return replace(requests, **columns)
