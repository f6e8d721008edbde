"""Pools of engines without a dispatcher, on flat arrays: identical replicas behind a router, or a pool that prefills and one that decodes."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, nan

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Array, Counts
from capplan.serving.flat_engine import FlatEngine
from capplan.serving.flat_pools import FlatPools, FlatRouter, link_arrivals
from capplan.serving.outcome import (
    FINISHED,
    FULL_RUN,
    SHED,
    EarlyEnd,
    LatencyLimit,
    Ledger,
    ReplicaUse,
)
from capplan.serving.requests import Admission, ClosedLoopUsers, Requests, check_requests
from capplan.serving.simulator import (
    add_totals_of,
    asked_and_ended,
    asked_of,
    doubles,
    flat_requests,
    integers,
    is_plain,
    limits_and_tables,
    no_requests_yet,
)
from capplan.serving.terms import EngineSetup, EngineTerms, KvLink, Routing, engine_terms, transfer_s

FLAT_ROUTINGS: tuple[Routing, ...] = ("round_robin", "least_loaded")


class FlatPool:
    """Identical engines behind one router, what they did, and the columns of the requests that they got."""

    def __init__(
        self, requests: Requests, engine: EngineSetup, replicas: int, routing: Routing, *, gauged: bool
    ) -> None:
        """Start without requests; those that may be sent are known."""
        self.terms, self.totals = engine_terms(engine), Ledger()
        self.uses: list[ReplicaUse] = []
        count = len(requests)
        self.times_s = {name: np.full(count, nan) for name in ("queue_s", "ttft_s", "e2e_s", "first_token")}
        self.status = np.full(count, SHED, dtype=np.int64)
        self.engine = np.full(count, -1)
        """Engine that got each request; -1: none did."""
        self.tokens = {name: np.zeros(count, dtype=np.int64) for name in ("admitted", "found")}
        self._requests, self.replicas, self.by_load = requests, replicas, routing == "least_loaded"
        limits, self._tables = limits_and_tables(engine, (requests,))
        self.limits = limits._replace(delay_s=0.0, token_delay_s=0.0, gauged=gauged)

    def empty_core(self) -> FlatEngine:
        """Return an engine at time zero without requests, with room for an equal share of them, which grows."""
        room = -(-len(self._requests) // self.replicas)
        return FlatEngine(self.limits, self._tables, no_requests_yet(room))

    def serve(self, order: Counts, at_s: Array, first_token_s: Array) -> None:
        """Run requests that reach the pool at times that ascend in this order; nan where none returned a first token before.

        Engines that are served in turn know nothing of each other, so one after the other runs, and only one is in memory.
        """
        given, turns = self._requests, 1 if self.by_load else self.replicas
        sent = doubles(at_s), doubles(given.times_s)
        columns = (
            integers(given.input_tokens),
            integers(given.output_tokens),
            integers(given.column("cached_tokens")),
            integers(given.column("class_index")),
        )
        known = doubles(first_token_s)
        for turn in range(turns):
            cores = [self.empty_core() for _ in range(self.replicas // turns)]
            FlatRouter(cores).serve(integers(order[turn::turns]), *sent, columns, known)
            for core in cores:
                self.record(core)

    def record(self, core: FlatEngine) -> None:
        """Add what the next engine did, and what it says of its requests."""
        count = core.arrivals
        sent = np.asarray(core.rank)[:count]
        for name, into in self.times_s.items():
            into[sent] = np.asarray(getattr(core, name))[:count]
        self.status[sent] = np.asarray(core.status)[:count]
        self.engine[sent] = len(self.uses)
        if core.gauged:
            for name, tokens in self.tokens.items():
                tokens[sent] = np.asarray(getattr(core, name))[:count]
        add_totals_of(core, self.totals)
        self.uses.append(ReplicaUse(len(self.uses), 0.0, core.now_s, count, core.preemptions, core.gauges))


def pools_eligible(
    requests: Requests,
    pools: Sequence[tuple[EngineSetup, Routing]],
    admission: Admission,
    crowd: ClosedLoopUsers | None = None,
) -> bool:
    """Return whether pools need no dispatcher."""
    parts = [requests, asked_of(crowd)]
    return any(len(part) for part in parts) and all(
        is_plain(engine, admission) and routing in FLAT_ROUTINGS for engine, routing in pools
    )


def serve_in_pools(
    requests: Requests,
    pools: Sequence[FlatPool],
    link: KvLink,
    handling_s: tuple[float, float],
    early_end: EarlyEnd = FULL_RUN,
) -> tuple[Ledger, LatencyLimit | None]:
    """Send requests through a prefill and a decode pool, or one pool; return their rows and the totals, and the limit that ended the run.

    Parameters
    ----------
    requests : in order of arrival
    pools : empty; the requests of a prefill pool have one token of output, those of a decode pool no cached tokens
    link : between two pools
    handling_s : [s]
        from the arrival of a request until it reaches an engine, and further for each token of its prompt
    early_end : no prompt moves on to the decode pool once the first tokens have missed one of these limits
    """
    check_requests(requests, timed=True)
    first, last = pools[0], pools[-1]
    unknown, (delay_s, token_delay_s) = np.full(len(requests), nan), handling_s
    arrives_s = np.maximum.accumulate(requests.times_s + delay_s + token_delay_s * requests.input_tokens)
    first.serve(
        np.flatnonzero(_fits(requests, last.terms, whole=first is last and not last.terms.takes_over)),
        arrives_s,
        unknown,
    )
    ttft_s, e2e_s, status = first.times_s["ttft_s"], first.times_s["e2e_s"], first.status
    missed = early_end.missed_by(requests.times_s, first.times_s["ttft_s"])
    if first is not last:
        moves = (status == FINISHED) & (requests.output_tokens > 1) & (missed is None)
        order, arrives_s = _moved(requests, moves, first, link)
        last.serve(order, arrives_s, first.times_s["first_token"])
        ttft_s = _first_tokens(pools)
        e2e_s, status = np.where(moves, last.times_s["e2e_s"], e2e_s), np.where(moves, last.status, status)
    ledger = Ledger.of_columns(
        queue_s=first.times_s["queue_s"],
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        arrival_s=requests.times_s,
        input_tokens=requests.input_tokens,
        output_tokens=requests.output_tokens,
        class_index=requests.column("class_index"),
        status=status,
    )
    add_pools(pools, ledger, len(requests))
    return ledger, missed


def serve_users(
    requests: Requests,
    crowd: ClosedLoopUsers,
    pools: Sequence[FlatPool],
    link: KvLink,
    handling_s: tuple[float, float],
    until_s: float,
) -> Ledger:
    """Send requests and those of users through one or two pools, which are empty; see serve_in_pools."""
    cores = [[pool.empty_core() for _ in range(pool.replicas)] for pool in pools]
    queue = FlatPools(
        pools[-1].limits._replace(delay_s=handling_s[0], token_delay_s=handling_s[1]),
        flat_requests(requests, crowd),
        [core for own in cores for core in own],
        pools[0].replicas,
        (pools[0].by_load, pools[-1].by_load),
        (link.bytes_per_token, link.bytes_per_s, link.latency_s),
    )
    queue.serve(until_s)
    for pool, own in zip(pools, cores, strict=True):
        for core in own:
            pool.record(core)
    seen = queue.position
    ledger = Ledger.of_columns(
        queue_s=pools[0].times_s["queue_s"][:seen],
        ttft_s=_first_tokens(pools)[:seen],
        **asked_and_ended(queue),
    )
    add_pools(pools, ledger, seen)
    return ledger


def _first_tokens(pools: Sequence[FlatPool]) -> Array:
    """Return the time from the arrival of each request to its first token, at the last pool that took it [s]."""
    first, last = pools[0].times_s["ttft_s"], pools[-1].times_s["ttft_s"]
    return np.where(np.isnan(last), first, last)


def add_pools(pools: Sequence[FlatPool], into: Ledger, rows: int) -> None:
    """Add the totals of pools, and the tokens of each of the requests that arrived."""
    for pool in pools:
        into.add_totals(pool.totals)
    if pools[0].limits.gauged:
        into.counted_tokens = (
            np.sum([pool.tokens["admitted"][:rows] for pool in pools], axis=0),
            np.sum([pool.tokens["found"][:rows] for pool in pools], axis=0),
        )


def _fits(requests: Requests, terms: EngineTerms, *, whole: bool) -> NDArray[np.bool_]:
    """Return which requests an engine can hold: `whole` ones from the first token to the last, else those that decode; see EngineTerms.too_long."""
    cached = np.minimum(requests.column("cached_tokens"), requests.input_tokens - 1)
    shared = cached // terms.block_tokens * terms.block_tokens
    overshoot = 0 if terms.tokens_per_step == 1.0 else ceil(terms.tokens_per_step)
    drawn = 0 if whole else int(terms.draws_first)
    tokens = requests.input_tokens - shared + requests.output_tokens - 1 + drawn + overshoot
    fits: NDArray[np.bool_] = -(-tokens // terms.block_tokens) <= terms.kv_blocks
    if not whole:
        fits |= requests.output_tokens == 1
    elif not terms.chunked:
        fits &= requests.input_tokens - cached <= terms.max_num_batched_tokens
    return fits


def _moved(
    requests: Requests, moves: NDArray[np.bool_], prefill: FlatPool, link: KvLink
) -> tuple[Counts, Array]:
    """Return the requests whose KV cache goes over the link in order of its arrival, and when it arrives by request [s]."""
    engines, first_token_s = np.where(moves, prefill.engine, -1), prefill.times_s["first_token"]
    takes_s = transfer_s(requests.input_tokens.astype(float), link.bytes_per_token, link.bytes_per_s, 0.0)
    arrives_s = np.asarray(
        link_arrivals(
            len(prefill.uses), integers(engines), doubles(first_token_s), doubles(takes_s), link.latency_s
        )
    )
    count = int(np.count_nonzero(moves))
    order = np.argsort(arrives_s)[:count]
    if not np.all(np.diff(arrives_s[order])):  # of equal times by first token, then by engine
        order = np.lexsort((engines, first_token_s, arrives_s))[:count]
    return order, arrives_s
