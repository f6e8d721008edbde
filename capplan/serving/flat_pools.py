"""Separate prefill and decode pools on the flat core: what a Dispatcher does where nothing flows back between the pools.

Without users no prompt waits for what a decode engine does, so all prompts are computed first; the decode engines then get
them in the order in which their KV caches arrive. Engines stop where a Dispatcher stops them, so all sums are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, nan
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Array
from capplan.serving.flat import doubles, eligible, empty_core, integers
from capplan.serving.flat_core import FlatRouter
from capplan.serving.outcome import FINISHED, SHED, Ledger
from capplan.serving.replicas.fleet_terms import KvLink, Routing, transfer_s
from capplan.serving.requests import Admission, Counts, Requests, check_requests
from capplan.serving.terms import EngineSetup, EngineTerms, engine_terms

FLAT_ROUTINGS: tuple[Routing, ...] = ("round_robin", "least_loaded")


class FlatPool:
    """Identical engines behind one router, and the requests that each of them got."""

    def __init__(self, requests: Requests, engine: EngineSetup, replicas: int, routing: Routing) -> None:
        """Start without requests; those that may be sent are known."""
        self.terms = engine_terms(engine)
        room = -(-len(requests) // replicas)
        self.cores = [empty_core(requests, engine, room) for _ in range(replicas)]
        self.sent: list[Counts] = []
        """By engine, the requests sent to it, by their place among all."""
        self._requests = requests
        self._router = FlatRouter(self.cores, by_load=routing == "least_loaded")

    def serve(self, order: Counts, at_s: Array, first_token_s: Array) -> None:
        """Run requests that reach the pool at times that ascend in this order; nan where none returned a first token before."""
        given = self._requests
        chosen = self._router.serve(
            integers(order),
            doubles(at_s),
            doubles(given.times_s),
            (
                integers(given.input_tokens),
                integers(given.output_tokens),
                integers(given.column("cached_tokens")),
                integers(given.column("class_index")),
            ),
            doubles(first_token_s),
        )
        places = np.asarray(chosen)
        self.sent = [order[places == engine] for engine in range(len(self.cores))]

    def write(self, name: str, into: NDArray[Any]) -> None:
        """Write what the engines say of their requests into a column of all requests."""
        for core, sent in zip(self.cores, self.sent, strict=True):
            into[sent] = np.asarray(getattr(core, name))[: sent.size]


def pools_eligible(
    requests: object, pools: Sequence[tuple[EngineSetup, Routing]], admission: Admission
) -> TypeGuard[Requests]:
    """Return whether the flat core can run both pools for requests that no users send."""
    return isinstance(requests, Requests) and all(
        eligible(requests, engine, admission) and routing in FLAT_ROUTINGS for engine, routing in pools
    )


def serve_in_pools(
    requests: Requests, prefill: FlatPool, decode: FlatPool, link: KvLink, request_s: float
) -> Ledger:
    """Send requests through both pools, which are empty, and return their rows; totals stay in the cores.

    Parameters
    ----------
    requests : in order of arrival
    prefill : its requests have one token of output
    decode : its requests have no cached tokens
    link : between the pools
    request_s : [s]
        from the arrival of a request until it reaches a prefill engine
    """
    check_requests(requests, 0, timed=True)
    count, enters_s = len(requests), requests.times_s + request_s
    status = np.full(count, SHED, dtype=np.int64)
    times = {name: np.full(count, nan) for name in ("queue_s", "ttft_s", "e2e_s", "first_token")}
    prefill.serve(np.flatnonzero(_held(requests, decode.terms)), enters_s, times["first_token"])
    for name, values in times.items():
        prefill.write(name, values)
    prefill.write("status", status)
    first_token_s = times.pop("first_token")
    moves = (status == FINISHED) & (requests.output_tokens > 1)
    decode.serve(*_moved(requests, moves, first_token_s, prefill.sent, link), first_token_s)
    decode.write("e2e_s", times["e2e_s"])
    decode.write("status", status)
    return Ledger.of_columns(
        **times,
        arrival_s=requests.times_s,
        input_tokens=requests.input_tokens,
        output_tokens=requests.output_tokens,
        class_index=requests.column("class_index"),
        status=status,
    )


def _held(requests: Requests, terms: EngineTerms) -> NDArray[np.bool_]:
    """Return which requests a decode engine could hold, or need none; see HandOver.prepare."""
    cached = np.minimum(requests.column("cached_tokens"), requests.input_tokens - 1)
    shared = cached // terms.block_tokens * terms.block_tokens
    overshoot = 0 if terms.growth == 1.0 else ceil(terms.growth)
    tokens = requests.input_tokens - shared + requests.output_tokens - 1 + overshoot
    fits = -(-tokens // terms.block_tokens) <= terms.kv_blocks
    held: NDArray[np.bool_] = np.logical_or(fits, requests.output_tokens == 1)
    return held


def _moved(
    requests: Requests, moves: NDArray[np.bool_], first_token_s: Array, sent: Sequence[Counts], link: KvLink
) -> tuple[Counts, Array]:
    """Return the requests whose KV cache goes over the link in order of its arrival, and when it arrives by request [s]."""
    arrives_s, engines = np.full(len(requests), inf), np.zeros(len(requests), dtype=np.int64)
    for engine, rows in enumerate(sent):
        moved = rows[moves[rows]]
        free_s, arrived = 0.0, []
        for end_s, tokens in zip(
            first_token_s[moved].tolist(), requests.input_tokens[moved].tolist(), strict=True
        ):
            free_s = max(end_s, free_s) + transfer_s(tokens, link.bytes_per_token, link.bytes_per_s, 0.0)
            arrived.append(free_s + link.latency_s)
        arrives_s[moved], engines[moved] = arrived, engine
    order = np.lexsort((engines, first_token_s, arrives_s))
    return order[: np.count_nonzero(moves)], arrives_s
