"""Separate prefill and decode pools on the flat core: what a Dispatcher does where nothing flows back between the pools.

Without users no prompt waits for what a decode engine does, so all prompts are computed first; the decode engines then get
them in the order in which their KV caches arrive. Engines stop where a Dispatcher stops them, so all sums are the same.
"""

from collections.abc import Iterator, Sequence
from math import ceil, inf, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.serving.flat import eligible, empty_core
from capplan.serving.fleet_terms import KvLink, Routing, transfer_s
from capplan.serving.outcome import FINISHED, SHED, Ledger
from capplan.serving.requests import Admission, Requests, check_requests
from capplan.serving.terms import EngineSetup, EngineTerms, engine_terms

FLAT_ROUTINGS: tuple[Routing, ...] = ("round_robin", "least_loaded")


class FlatPool:
    """Identical engines behind one router, which get requests one by one, in order of time."""

    def __init__(self, requests: Requests, engine: EngineSetup, replicas: int, routing: Routing) -> None:
        """Start without requests; those that may be sent are known."""
        self.terms = engine_terms(engine)
        self.cores = [empty_core(requests, engine) for _ in range(replicas)]
        self.sent: list[list[int]] = [[] for _ in self.cores]
        """By engine, the requests sent to it, by their place among all."""
        self._by_load = routing == "least_loaded"
        self._next = 0
        count = len(requests)
        zeros = np.zeros(count, dtype=np.int64)
        self._rows = list(
            zip(
                np.zeros(count).tolist() if requests.arrival_s is None else requests.arrival_s.tolist(),
                requests.input_tokens.tolist(),
                requests.output_tokens.tolist(),
                (zeros if requests.cached_tokens is None else requests.cached_tokens).tolist(),
                (zeros if requests.class_index is None else requests.class_index).tolist(),
                strict=True,
            )
        )

    def send(self, index: int, at_s: float, first_token_s: float = nan) -> None:
        """Send a request to the engine whose turn it is, or to the first of those with the fewest requests."""
        if self._by_load:
            self.advance(at_s)
            loads = [core.load(at_s) for core in self.cores]
            place = loads.index(min(loads))
        else:
            place, self._next = self._next, (self._next + 1) % len(self.cores)
        core = self.cores[place]
        if core.arrivals > core.over and core.now_s < at_s:
            core.advance(at_s)
        core.send(at_s, self._rows[index], index, first_token_s)
        self.sent[place].append(index)

    def advance(self, until_s: float) -> None:
        """Run every step that starts before a time."""
        for core in self.cores:
            if core.arrivals > core.over and core.now_s < until_s:
                core.advance(until_s)

    def write(self, name: str, column: NDArray[Any]) -> None:
        """Write what the engines say of their requests into a column of all requests."""
        for core, sent in zip(self.cores, self.sent, strict=True):
            column[sent] = np.asarray(getattr(core, name))[: len(sent)]


def pools_eligible(
    requests: object, engines: Sequence[EngineSetup], routings: Sequence[Routing], admission: Admission
) -> bool:
    """Return whether the flat core can run both pools for requests that no users send."""
    return (
        isinstance(requests, Requests)
        and all(eligible(requests, engine, admission) for engine in engines)
        and all(routing in FLAT_ROUTINGS for routing in routings)
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
    count = len(requests)
    arrival = np.zeros(count) if requests.arrival_s is None else requests.arrival_s
    enters = (arrival + request_s).tolist()
    for index in np.flatnonzero(_held(requests, decode.terms)).tolist():
        prefill.send(index, enters[index])
    prefill.advance(inf)
    for at_s, first_token_s, _, index in sorted(_moved(requests, prefill, link)):
        decode.send(index, at_s, first_token_s)
    decode.advance(inf)
    status = np.full(count, SHED, dtype=np.int64)
    times = {name: np.full(count, nan) for name in ("queue_s", "ttft_s", "e2e_s")}
    for name, column in times.items():
        prefill.write(name, column)
    prefill.write("status", status)
    decode.write("e2e_s", times["e2e_s"])
    decode.write("status", status)
    return Ledger.of_columns(
        **times,
        arrival_s=arrival,
        input_tokens=requests.input_tokens,
        output_tokens=requests.output_tokens,
        class_index=np.zeros(count, dtype=np.int64) if requests.class_index is None else requests.class_index,
        status=status,
    )


def _held(requests: Requests, terms: EngineTerms) -> NDArray[np.bool_]:
    """Return which requests a decode engine could hold, or need none; see HandOver.prepare."""
    cached = 0 if requests.cached_tokens is None else requests.cached_tokens
    shared = np.minimum(cached, requests.input_tokens - 1) // terms.block_tokens * terms.block_tokens
    overshoot = 0 if terms.growth == 1.0 else ceil(terms.growth)
    tokens = requests.input_tokens - shared + requests.output_tokens - 1 + overshoot
    return (requests.output_tokens == 1) | (-(-tokens // terms.block_tokens) <= terms.kv_blocks)


def _moved(requests: Requests, prefill: FlatPool, link: KvLink) -> Iterator[tuple[float, float, int, int]]:
    """Yield the prompts whose KV cache goes over the link: its arrival and the first token [s], engine, place of the request."""
    prompts, outputs = requests.input_tokens.tolist(), requests.output_tokens.tolist()
    for engine, (core, sent) in enumerate(zip(prefill.cores, prefill.sent, strict=True)):
        free_s = 0.0
        for index, status, end_s in zip(sent, core.status, core.first_token, strict=False):
            if status == FINISHED and outputs[index] > 1:
                free_s = max(end_s, free_s) + transfer_s(
                    prompts[index], link.bytes_per_token, link.bytes_per_s, 0.0
                )
                yield free_s + link.latency_s, end_s, engine, index
