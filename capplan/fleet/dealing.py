"""Which requests of a stream reach which replica where the replicas do not share a simulation: in turn, at random, by prefix."""

from dataclasses import fields, replace
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.errors import InputError
from capplan.serving.requests import NAMED_BLOCKS, Crowd, Requests

FORGET_S = 60.0
LARGEST_IMBALANCE_RATIO = 1.25
"""A replica with more than this times the mean is passed over, though it has the prefix (an assumption)."""


def split_round_robin(requests: Requests, replicas: int) -> list[Requests]:
    """Return the requests of each replica, every n-th one; InputError for fewer requests than replicas."""
    if replicas == 1:
        return [requests]
    if len(requests) < replicas:
        raise InputError(f"{len(requests)} requests for {replicas} replicas; simulate more requests")
    chosen = [np.arange(own, len(requests), replicas) for own in range(replicas)]
    return [selected_requests(requests, rows) for rows in chosen]


def split_by_prefix(requests: Requests, replicas: int) -> list[Requests]:
    """Return the requests of each replica: where the longest prefix was seen last, unless that one has too much to do.

    What a replica has to do is taken as the tokens that it was given, forgotten with a time constant of a minute. Where some
    replica would get nothing, requests are dealt out in turn.
    """
    if replicas == 1 or requests.block_ids is None or requests.block_counts is None:
        return split_round_robin(requests, replicas)
    arrival = requests.arrival_s if requests.arrival_s is not None else np.zeros(len(requests))
    pieces = np.split(requests.block_ids, np.cumsum(requests.block_counts)[:-1])
    given = np.zeros(replicas)
    home: dict[int, int] = {}
    rows_of: list[list[int]] = [[] for _ in range(replicas)]
    now = 0.0
    for index, (at, ids, tokens) in enumerate(
        zip(arrival.tolist(), pieces, (requests.input_tokens + requests.output_tokens).tolist(), strict=True)
    ):
        given *= exp(-(at - now) / FORGET_S)
        now = at
        blocks = ids.tolist()
        chosen = int(given.argmin())
        for block in blocks:
            if block not in home:
                break
            if given[home[block]] <= LARGEST_IMBALANCE_RATIO * float(given.mean()) + tokens:
                chosen = home[block]
        home.update(dict.fromkeys(blocks, chosen))
        given[chosen] += tokens
        rows_of[chosen].append(index)
    if not all(rows_of):
        return split_round_robin(requests, replicas)
    return [selected_requests(requests, np.array(rows)) for rows in rows_of]


def split_at_random(requests: Requests, replicas: int, seed: int) -> list[Requests]:
    """Return the requests of each replica, each request at any of them."""
    if replicas == 1:
        return [requests]
    to = np.random.default_rng([seed, 3]).integers(0, replicas, len(requests))
    chosen = [np.flatnonzero(to == own) for own in range(replicas)]
    return [selected_requests(requests, rows) for rows in chosen]


def split_crowd(crowd: Crowd, replicas: int) -> list[Crowd]:
    """Return the users of each replica, who stay with it, and the requests that they take; replicas without users get none."""
    parts = []
    for own in range(min(replicas, crowd.users)):
        assert isinstance(crowd.requests, Requests)
        rows = np.arange(own, len(crowd.requests), replicas)
        users = crowd.users // replicas + (own < crowd.users % replicas)
        think_s = None if crowd.think_s is None else crowd.think_s[rows]
        parts.append(Crowd(selected_requests(crowd.requests, rows), users, think_s))
    return parts


def selected_requests(requests: Requests, rows: NDArray[np.int64]) -> Requests:
    """Return some of the requests, by their places."""
    columns: dict[str, Any] = {}
    for item in fields(requests):
        column = getattr(requests, item.name)
        if column is not None and item.name not in NAMED_BLOCKS:
            columns[item.name] = column[rows]
    for name in NAMED_BLOCKS:
        pieces = requests.pieces(name)
        if pieces is not None:
            columns[name] = np.concatenate([pieces[row] for row in rows.tolist()])
    return replace(requests, **columns)
