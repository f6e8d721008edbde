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
from capplan.serving.flat_core import FlatEngine, FlatLimits, FlatRequests, FlatRouter
from capplan.serving.outcome import (
    FINISHED,
    SHED,
    ClassTotals,
    EarlyEnd,
    Gauges,
    Ledger,
    Outcome,
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
    asked = crowd.requests if crowd is not None and isinstance(crowd.requests, Requests) else NO_REQUESTS
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
    limits, tables = _limits_and_tables(engine, (requests, asked))
    limits = limits._replace(
        gauged=gauged,
        judged_from=early_end.from_row,
        judged_until_s=early_end.until_s,
        judged_metrics=array("q", [METRICS.index(limit.metric) for limit in early_end.limits]),
        judged_limits_s=array("d", [limit.limit_s for limit in early_end.limits]),
        judged_most=array("q", [limit.most_above for limit in early_end.limits]),
    )
    return FlatEngine(limits, tables, FlatRequests(columns, len(requests), *_turns(crowd, len(asked))))


def _turns(crowd: Crowd | None, count: int) -> tuple[array[int], array[int], int]:
    """Return the group of each user at time zero, the number of requests of each group, and the most that users send."""
    if crowd is None:
        return NO_TURNS
    groups = array("q", [group.requests for group in crowd.groups] or [count])
    most = count if crowd.most_requests is None else min(crowd.most_requests, count)
    return integers(crowd.first_turns()), groups, most


def empty_core(requests: Requests, engine: EngineSetup, room: int) -> FlatEngine:
    """Return a core at time zero without requests, to which any of these can be sent: with room for some, which grows."""
    limits, tables = _limits_and_tables(engine, (requests,))
    columns = array("d"), array("q"), array("q"), array("q"), array("q")
    core = FlatEngine(limits._replace(delay_s=0.0), tables, FlatRequests(columns, 0, *NO_TURNS))
    core.make_rows(room)
    return core


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
        terms.hold_steps,
        terms.hold_tokens,
        terms.hold_prompts,
        terms.gather_steps,
        terms.poll_steps,
        1 + max((int(np.max(index, initial=0)) for index in indices), default=0),
        terms.growth,
        terms.query_tokens,
        terms.asynchronous,
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
        arrival_s=np.asarray(core.arrival)[:seen],
        queue_s=np.asarray(core.queue_s)[:seen],
        ttft_s=np.asarray(core.ttft_s)[:seen],
        e2e_s=np.asarray(core.e2e_s)[:seen],
        input_tokens=np.asarray(core.prompt)[:seen],
        output_tokens=np.asarray(core.output)[:seen],
        class_index=np.asarray(core.class_index)[:seen],
        status=np.asarray(core.status)[:seen],
    )
    ledger.steps, ledger.preemptions = core.steps, core.preemptions
    ledger.prefill_tokens, ledger.cached_tokens = core.prefill_tokens, core.cached_tokens
    ledger.class_totals = {
        index: ClassTotals(core.class_prompt[index], core.class_cached[index], core.class_preempted[index])
        for index in range(len(core.class_seen))
        if core.class_seen[index]
    }
    gauges = Gauges(core.capacity)
    if not core.gauged:
        return ledger, gauges
    bins = np.asarray(core.itl)
    places = np.flatnonzero(bins)
    weights = dict(zip((places - core.zero_bin).tolist(), bins[places].tolist(), strict=True))
    ledger.itl = WeightedHistogram.of(weights, core.itl_none, core.itl_weight, core.itl_total)
    gauges.batch_s = np.asarray(core.batch_s)[: core.batch_size].tolist()
    gauges.occupancy_s = np.asarray(core.occupancy_s).tolist()
    gauges.block_seconds, gauges.busy_s = core.block_seconds, core.busy_s
    gauges.set_timeline(
        core.span_s, [np.asarray(b).tolist() for b in (core.by_batch, core.by_blocks, core.by_busy)]
    )
    return ledger, gauges


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
    """Identical engines behind one router, and the requests that each of them got."""

    def __init__(self, requests: Requests, engine: EngineSetup, replicas: int, routing: Routing) -> None:
        """Start without requests; those that may be sent are known."""
        self.terms = engine_terms(engine)
        room = -(-len(requests) // replicas)
        self.cores = [empty_core(requests, engine, room) for _ in range(replicas)]
        self.sent: list[Counts] = []
        """Requests sent to each engine, by their index among all requests."""
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
    takes_s = transfer_s(requests.input_tokens.astype(float), link.bytes_per_token, link.bytes_per_s, 0.0)
    for engine, rows in enumerate(sent):
        moved = rows[moves[rows]]
        free_s, freed = 0.0, []
        for end_s, needs_s in zip(first_token_s[moved].tolist(), takes_s[moved].tolist(), strict=True):
            free_s = max(free_s, end_s) + needs_s
            freed.append(free_s)
        arrives_s[moved], engines[moved] = np.asarray(freed) + link.latency_s, engine
    order = np.lexsort((engines, first_token_s, arrives_s))
    return order[: np.count_nonzero(moves)], arrives_s
