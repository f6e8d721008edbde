"""Runs eligible simulations on the flat core: converts requests and results, one engine or separate pools."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil, inf, nan
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Array
from capplan.serving.engine_parts import Gauges
from capplan.serving.flat_core import (
    FlatEngine,
    FlatLimits,
    FlatPools,
    FlatRequests,
    FlatRouter,
    link_arrivals,
)
from capplan.serving.outcome import (
    FINISHED,
    SHED,
    ClassTotals,
    EarlyEnd,
    LatencyLimit,
    Ledger,
    Outcome,
    ReplicaUse,
    WeightedHistogram,
)
from capplan.serving.requests import BEGIN_S, NO_REQUESTS, Admission, Counts, Crowd, Requests, check_requests
from capplan.serving.step_table import (
    StepClock,
    StepTable,
    bilinear,
    launching_s,
    piecewise_linear,
    prefill_attention_per_token_s,
)
from capplan.serving.terms import EngineSetup, EngineTerms, KvLink, Routing, engine_terms, transfer_s

FIRST_COME = Admission()
FULL_RUN = EarlyEnd((), 0)
METRICS = ("ttft", "tpot", "e2e")
"""Latencies in the order in which the core numbers them."""
NO_TURNS = array("q"), array("q"), 0
"""No users, no groups, no requests of users."""
MOST_TABLE_ENTRIES = 4_000_000
"""Limit on the size of the precomputed table of step times."""


def eligible(
    requests: Requests | Iterable[Requests],
    engine: EngineSetup,
    admission: Admission,
    crowd: Crowd | None = None,
) -> bool:
    """Return whether the flat core can run these requests: one engine, first come first served, no block ids.

    Speculative rounds run on it too, but not in a pipeline.
    """
    rules = engine.scheduling
    parts = [requests] if crowd is None else [requests, crowd.requests]
    return (
        all(
            isinstance(part, Requests) and part.block_ids is None and part.output_ids is None
            for part in parts
        )
        and any(isinstance(part, Requests) and len(part) for part in parts)
        and rules.policy in {"mixed", "prefill_first"}
        and not engine.clock.table.two_passes
        and engine.caching is None
        and (engine.tokens_per_step == 1.0 or engine.clock.stages == 1)
        and admission == FIRST_COME
        and rules.max_num_seqs * engine.clock.table.context_knots.size <= MOST_TABLE_ENTRIES
    )


def doubles(values: Array) -> array[float]:
    """Return numbers as the core reads them."""
    return array("d", np.ascontiguousarray(values, dtype=np.float64).tobytes())


def integers(values: Counts) -> array[int]:
    """Return whole numbers as the core reads them."""
    return array("q", np.ascontiguousarray(values, dtype=np.int64).tobytes())


def flat_outcome(
    requests: Requests,
    engine: EngineSetup,
    *,
    crowd: Crowd | None = None,
    until_s: float = inf,
    gauged: bool = True,
    early_end: EarlyEnd = FULL_RUN,
) -> Outcome:
    """Return the outcome of eligible requests, the same as from Server; without gauges and gaps between tokens if not `gauged`."""
    return flat_run(requests, engine, crowd, until_s, gauged=gauged, early_end=early_end)[0]


def flat_run(
    requests: Requests,
    engine: EngineSetup,
    crowd: Crowd | None,
    until_s: float,
    *,
    gauged: bool = True,
    early_end: EarlyEnd = FULL_RUN,
) -> tuple[Outcome, Gauges]:
    """Return the outcome, and the gauges of the engine."""
    core = _flat_engine(requests, engine, crowd, gauged, early_end)
    core.advance(until_s)
    core.receive_arrived()
    ledger, gauges = written(core)
    outcome = ledger.outcome(core.now_s, [gauges])
    return outcome if core.missed < 0 else replace(outcome, missed=early_end.limits[core.missed]), gauges


def _flat_engine(
    requests: Requests, engine: EngineSetup, crowd: Crowd | None, gauged: bool, early_end: EarlyEnd
) -> FlatEngine:
    """Return the core at time zero with all its requests."""
    limits, tables = _limits_and_tables(engine, (requests, asked_of(crowd)))
    limits = limits._replace(
        gauged=gauged,
        judged_from=early_end.from_row,
        judged_until_s=early_end.until_s,
        judged_metrics=array("q", [METRICS.index(limit.metric) for limit in early_end.limits]),
        judged_limits_s=array("d", [limit.limit_s for limit in early_end.limits]),
        judged_most=array("q", [limit.most_above for limit in early_end.limits]),
    )
    return FlatEngine(limits, tables, _flat_requests(requests, crowd))


def asked_of(crowd: Crowd | None) -> Requests:
    """Return the requests that users send."""
    return crowd.requests if crowd is not None and isinstance(crowd.requests, Requests) else NO_REQUESTS


def every_request(requests: Requests, crowd: Crowd | None) -> Requests:
    """Return the requests that arrive at their times, then those of users, whose times are not known."""
    if crowd is None:
        return requests
    parts = requests, asked_of(crowd)
    prompt, output, cached, class_index = (
        np.concatenate([part.column(name) for part in parts])
        for name in ("input_tokens", "output_tokens", "cached_tokens", "class_index")
    )
    return Requests(prompt, output, None, cached, class_index)


def _flat_requests(requests: Requests, crowd: Crowd | None) -> FlatRequests:
    """Return requests that arrive at their times, and those of users, as the core reads them."""
    asked = asked_of(crowd)
    check_requests(requests, 0, timed=True)
    check_requests(asked, 0, timed=False)
    when = np.append(requests.times_s, np.zeros(len(asked)))
    if crowd is not None and crowd.think_s is not None:
        when[len(requests) :] = crowd.think_s
    prompt, output, cached, class_index = (
        integers(requests.column(name)) + integers(asked.column(name))
        for name in ("input_tokens", "output_tokens", "cached_tokens", "class_index")
    )
    columns = doubles(when), prompt, output, cached, class_index
    return FlatRequests(columns, len(requests), *_turns(crowd, len(asked)))


def _turns(crowd: Crowd | None, count: int) -> tuple[array[int], array[int], int]:
    """Return the group of each user at time zero, the number of requests of each group, and the most that users send."""
    if crowd is None:
        return NO_TURNS
    groups = array("q", [group.requests for group in crowd.groups] or [count])
    most = count if crowd.most_requests is None else min(crowd.most_requests, count)
    return integers(crowd.first_turns()), groups, most


def _limits_and_tables(
    engine: EngineSetup, parts: tuple[Requests, ...]
) -> tuple[FlatLimits, list[array[float]]]:
    """Return what the core reads of an engine; the requests tell the number of classes and the longest step."""
    terms, clock = engine_terms(engine), engine.clock
    longest = (
        0
        if terms.chunked
        else max(int(np.max(part.input_tokens + part.output_tokens, initial=0)) for part in parts)
    )
    indices = [part.class_index for part in parts if part.class_index is not None]
    limits = FlatLimits(
        clock.request_s,
        BEGIN_S,
        terms.max_num_seqs,
        terms.max_num_batched_tokens,
        terms.chunked,
        terms.block_tokens,
        terms.kv_blocks,
        terms.reserved_output_fraction,
        clock.stages,
        terms.stage_tokens(clock.stages),
        clock.stage_fraction,
        terms.mixed,
        terms.hold,
        1 + max((int(np.max(index, initial=0)) for index in indices), default=0),
        terms.growth,
        terms.query_tokens,
        terms.asynchronous,
        terms.draws_first,
        terms.takes_over,
        True,
        0,
        inf,
        array("q"),
        array("d"),
        array("q"),
    )
    most_tokens = max(terms.max_num_batched_tokens, longest) + terms.max_num_seqs * terms.query_tokens
    return limits, flat_tables(clock, terms.max_num_seqs, most_tokens)


def written(core: FlatEngine) -> tuple[Ledger, Gauges]:
    """Return the results of the core as a ledger and gauges."""
    seen = core.position
    ledger = Ledger.of_columns(
        queue_s=np.asarray(core.queue_s)[:seen],
        ttft_s=np.asarray(core.ttft_s)[:seen],
        **asked_and_ended(core),
    )
    add_totals_of(core, ledger)
    if core.gauged:
        ledger.counted_tokens = np.asarray(core.admitted)[:seen], np.asarray(core.found)[:seen]
    return ledger, core.gauges


def asked_and_ended(core: FlatEngine | FlatPools) -> dict[str, NDArray[Any]]:
    """Return what requests asked for, and how they ended, as columns of a ledger."""
    columns = {
        "arrival_s": core.arrival,
        "e2e_s": core.e2e_s,
        "input_tokens": core.prompt,
        "output_tokens": core.output,
        "class_index": core.class_index,
        "status": core.status,
    }
    return {name: np.asarray(column)[: core.position] for name, column in columns.items()}


def add_totals_of(core: FlatEngine, into: Ledger) -> None:
    """Add the totals of a core to those of other cores."""
    into.steps += core.steps
    into.preemptions += core.preemptions
    into.prefill_tokens += core.prefill_tokens
    into.cached_tokens += core.cached_tokens
    for index in range(len(core.class_seen)):
        if core.class_seen[index]:
            into.class_totals.setdefault(index, ClassTotals()).add(
                ClassTotals(core.class_prompt[index], core.class_cached[index], core.class_preempted[index])
            )
    if core.gauged:
        bins = np.asarray(core.itl)
        places = np.flatnonzero(bins)
        weights = dict(zip((places - core.zero_bin).tolist(), bins[places].tolist(), strict=True))
        into.itl.merge(WeightedHistogram.of(weights, core.itl_none, core.itl_weight, core.itl_total))


def flat_tables(clock: StepClock, max_num_seqs: int, most_tokens: int) -> list[array[float]]:
    """Return the step times of a clock at every number of sequences and tokens, as the core reads them."""
    key = max_num_seqs, most_tokens
    if key not in clock.flat_tables:
        clock.flat_tables[key] = _dense_tables(clock.table, max_num_seqs, most_tokens)
    return clock.flat_tables[key]


def _dense_tables(table: StepTable, max_num_seqs: int, most_tokens: int) -> list[array[float]]:
    sequences = np.arange(max_num_seqs + 1, dtype=np.float64)
    knots = table.context_knots
    values = bilinear(
        table.sequence_knots, knots, table.decode_attention_s, sequences[:, None], knots[None, :]
    )
    if knots[0] > 0.0:
        knots, values = np.append(0.0, knots), np.column_stack([values[:, :1], values])
    slopes = np.diff(values, axis=1) / np.diff(knots) if knots.size > 1 else np.zeros((sequences.size, 1))
    slopes = np.column_stack([slopes, slopes[:, -1:]]) if knots.size > 1 else slopes
    tokens = np.arange(most_tokens + 1, dtype=np.float64)
    return [
        doubles(column)
        for column in (
            knots,
            piecewise_linear(table.sequence_knots, table.decode_s, sequences),
            values.ravel(),
            slopes.ravel(),
            piecewise_linear(table.token_knots, table.mixed_s, tokens),
            piecewise_linear(table.sequence_knots, table.head_s, sequences),
            launching_s(table, tokens),
            *(column.ravel() for column in prefill_attention_per_token_s(table)),
        )
    ]


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
        limits, self._tables = _limits_and_tables(engine, (requests,))
        self.limits = limits._replace(delay_s=0.0, gauged=gauged)

    def empty_core(self) -> FlatEngine:
        """Return an engine at time zero without requests, with room for an equal share of them, which grows."""
        zeros = bytes(8 * -(-len(self._requests) // self.replicas))
        columns = (
            array("d", zeros), array("q", zeros), array("q", zeros), array("q", zeros), array("q", zeros)
        )  # fmt: skip
        return FlatEngine(self.limits, self._tables, FlatRequests(columns, 0, *NO_TURNS))

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
    requests: object,
    pools: Sequence[tuple[EngineSetup, Routing]],
    admission: Admission,
    crowd: Crowd | None = None,
) -> TypeGuard[Requests]:
    """Return whether the flat core can run all pools."""
    return isinstance(requests, Requests) and all(
        eligible(requests, engine, admission, crowd) and routing in FLAT_ROUTINGS for engine, routing in pools
    )


def serve_in_pools(
    requests: Requests,
    pools: Sequence[FlatPool],
    link: KvLink,
    request_s: float,
    early_end: EarlyEnd = FULL_RUN,
) -> tuple[Ledger, LatencyLimit | None]:
    """Send requests through a prefill and a decode pool, or one pool; return their rows and the totals, and the limit that ended the run.

    Parameters
    ----------
    requests : in order of arrival
    pools : empty; the requests of a prefill pool have one token of output, those of a decode pool no cached tokens
    link : between two pools
    request_s : [s]
        from the arrival of a request until it reaches an engine
    early_end : no prompt moves on to the decode pool once the first tokens have missed one of these limits
    """
    check_requests(requests, 0, timed=True)
    first, last = pools[0], pools[-1]
    unknown, arrives_s = np.full(len(requests), nan), requests.times_s + request_s
    first.serve(
        np.flatnonzero(_held(requests, last.terms, whole=first is last and not last.terms.takes_over)),
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
    crowd: Crowd,
    pools: Sequence[FlatPool],
    link: KvLink,
    request_s: float,
    until_s: float,
) -> Ledger:
    """Send requests and those of users through one or two pools, which are empty; see serve_in_pools."""
    cores = [[pool.empty_core() for _ in range(pool.replicas)] for pool in pools]
    queue = FlatPools(
        pools[-1].limits._replace(delay_s=request_s),
        _flat_requests(requests, crowd),
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
    """Return when each request shows its first token, from its arrival on: at the last pool that took it [s]."""
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


def _held(requests: Requests, terms: EngineTerms, *, whole: bool) -> NDArray[np.bool_]:
    """Return which requests an engine can hold: `whole` ones from the first token to the last, else those that decode; see EngineTerms.too_long."""
    cached = np.minimum(requests.column("cached_tokens"), requests.input_tokens - 1)
    shared = cached // terms.block_tokens * terms.block_tokens
    overshoot = 0 if terms.growth == 1.0 else ceil(terms.growth)
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
