"""Simulations of one engine: requests to the core, and its results to outcomes."""

from __future__ import annotations

from array import array
from dataclasses import replace
from functools import cache
from math import inf, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capplan.errors import InputError
from capplan.numbers import Array, Counts
from capplan.serving.engine_parts import Gauges
from capplan.serving.flat_engine import FlatEngine
from capplan.serving.flat_input import FlatLimits, FlatRequests
from capplan.serving.outcome import (
    FULL_RUN,
    ClassTotals,
    EarlyEnd,
    Ledger,
    Outcome,
    WeightedHistogram,
)
from capplan.serving.requests import (
    BEGIN_S,
    NAMED_BLOCKS,
    NO_IDS,
    NO_REQUESTS,
    Admission,
    ClosedLoopUsers,
    Requests,
    check_admission,
    check_requests,
    offered,
)
from capplan.serving.step_table import (
    StepClock,
    StepTable,
    bracket,
    launching_s,
    piecewise_linear,
    prefill_attention_per_token_s,
)
from capplan.serving.terms import EngineSetup, engine_terms

if TYPE_CHECKING:
    from capplan.serving.flat_pools import FlatPools

ADMIT_ALL = Admission()
METRICS = ("ttft", "tpot", "e2e")
"""Latencies in the order in which the core numbers them."""
NO_TURNS = array("q"), array("q"), 0, 0
"""No users, no groups, no requests of users, no visits."""
LUCKS, LUCK_SEED = 4093, 7
"""Requests of which each has its own luck with drafts, and the seed of it."""
NO_LIMIT = 1 << 60
"""Requests that may wait where there is no limit on the queue."""
MOST_TABLE_ENTRIES = 4_000_000
"""Limit on the size of the precomputed table of step times."""


def doubles(values: Array) -> array[float]:
    """Return numbers as the core reads them."""
    return array("d", np.ascontiguousarray(values, dtype=np.float64).tobytes())


def integers(values: Counts) -> array[int]:
    """Return whole numbers as the core reads them."""
    return array("q", np.ascontiguousarray(values, dtype=np.int64).tobytes())


def simulate(
    requests: Requests | None,
    engine: EngineSetup,
    *,
    concurrency: int | None = None,
    crowd: ClosedLoopUsers | None = None,
    until_s: float = inf,
    admission: Admission = ADMIT_ALL,
    gauged: bool = True,
    early_end: EarlyEnd = FULL_RUN,
) -> Outcome:
    """Simulate one engine.

    Parameters
    ----------
    requests : columns in order of arrival; without arrival times all come at once (offline). None: only the crowd sends requests.
    engine : step times, scheduling and cache
    concurrency : [-]
        closed loop with this many requests at any time, the next one sent as soon as one ends: a crowd of users without
        think time. Arrival times are not used then. None: open loop.
    crowd : closed-loop users, in addition to the open-loop arrivals
    until_s : [s]
        stop at the first end of a step from then on; requests that have arrived and are not done are unfinished, those that
        have not arrived are not in the outcome.
    admission : queue limit, deadlines, priorities
    gauged : record batches, blocks in use and gaps between tokens; a run is quicker without them, and leaves them empty
    early_end : a run without prefix cache, admission rules, slots and static batches may end once it has missed one of these limits

    Raises
    ------
    InputError
        names what cannot be simulated

    Examples
    --------
    One request of 10 prompt and 3 output tokens; a prefill of 1 s and decode steps of 0.5 s:

    >>> import numpy as np
    >>> from capplan.engine.profile import Scheduling
    >>> from capplan.serving.step_table import StepTable
    >>> one = np.array([1.0])
    >>> table = StepTable(one, 0.5 * one, 0 * one, one, np.array([[0.0]]), one, one, one, one, np.array([[0.0]]))
    >>> engine = EngineSetup(table, Scheduling("mixed", 8, 64), kv_blocks=10)
    >>> outcome = simulate(Requests(np.array([10]), np.array([3])), engine)
    >>> outcome.ttft_s, outcome.e2e_s, outcome.tpot_s
    (array([1.]), array([2.]), array([0.5]))
    """
    requests, crowd = offered(requests, concurrency, crowd)
    _check(engine, until_s)
    check_admission(admission, crowd)
    engine = replace(engine, table=engine.clock)
    end = early_end if is_plain(engine, admission) else FULL_RUN
    return run_of(
        requests, engine, crowd=crowd, until_s=until_s, admission=admission, gauged=gauged, early_end=end
    )[0]


def is_plain(engine: EngineSetup, admission: Admission) -> bool:
    """Return whether an engine serves who comes first, without prefix cache and without slots or batches of fixed size."""
    return (
        engine.caching is None
        and admission == ADMIT_ALL
        and engine.scheduling.policy in {"mixed", "prefill_first"}
    )


def _check(engine: EngineSetup, until_s: float) -> None:
    if not until_s > 0.0:
        raise InputError(f"until_s is {until_s}; it must be positive")
    if not engine.batch_timeout_s >= 0.0:
        raise InputError(f"batch_timeout_s is {engine.batch_timeout_s}; it must be at least 0")
    if engine.caching is not None and engine.scheduling.policy == "static":
        raise InputError(
            "a prefix cache with block ids is not modelled for static batching; give cached_tokens instead"
        )


def run_of(
    requests: Requests,
    engine: EngineSetup,
    *,
    crowd: ClosedLoopUsers | None = None,
    until_s: float = inf,
    admission: Admission = ADMIT_ALL,
    gauged: bool = True,
    early_end: EarlyEnd = FULL_RUN,
) -> tuple[Outcome, Gauges]:
    """Return the outcome of one engine without a router, and its gauges."""
    limits, tables = limits_and_tables(engine, (requests, asked_of(crowd)), admission)
    limits = limits._replace(
        gauged=gauged,
        judged_from=early_end.from_row,
        judged_until_s=early_end.until_s,
        judged_metrics=array("q", [METRICS.index(limit.metric) for limit in early_end.limits]),
        judged_limits_s=array("d", [limit.limit_s for limit in early_end.limits]),
        judged_most=array("q", [limit.most_above for limit in early_end.limits]),
    )
    core = kind_of(engine)(limits, tables, flat_requests(requests, crowd, named=engine.caching is not None))
    core.advance(until_s)
    core.receive_arrived()
    ledger, gauges = written(core)
    outcome = replace(ledger.outcome(core.now_s, [gauges]), hit_blocks=tuple(core.hits_by_tier()))
    return outcome if core.missed < 0 else replace(outcome, missed=early_end.limits[core.missed]), gauges


def kind_of(engine: EngineSetup) -> type[FlatEngine]:
    """Return the core of an engine's scheduling policy."""
    if engine.scheduling.policy == "slots":
        from capplan.serving.flat_slots import FlatSlots

        return FlatSlots
    if engine.scheduling.policy == "static":
        from capplan.serving.flat_static import FlatStatic

        return FlatStatic
    return FlatEngine


def asked_of(crowd: ClosedLoopUsers | None) -> Requests:
    """Return the requests that follow from responses."""
    return NO_REQUESTS if crowd is None else crowd.asked


def every_request(requests: Requests, crowd: ClosedLoopUsers | None) -> Requests:
    """Return the requests that arrive at their times, then those of users, whose times are not known."""
    if crowd is None:
        return requests
    parts = requests, asked_of(crowd)
    prompt, output, cached, class_index = (
        np.concatenate([part.column(name) for part in parts])
        for name in ("input_tokens", "output_tokens", "cached_tokens", "class_index")
    )
    return Requests(prompt, output, None, cached, class_index)


def flat_requests(requests: Requests, crowd: ClosedLoopUsers | None, *, named: bool = False) -> FlatRequests:
    """Return requests that arrive at their times, and those of users, as the core reads them."""
    asked = asked_of(crowd)
    check_requests(requests, timed=True)
    check_requests(asked, timed=False)
    when = np.concatenate([requests.times_s, *_waits_s(crowd)])
    prompt, output, cached, class_index = (
        integers(requests.column(name)) + integers(asked.column(name))
        for name in ("input_tokens", "output_tokens", "cached_tokens", "class_index")
    )
    columns = doubles(when), prompt, output, cached, class_index
    ids = (
        [piece for part in (requests, asked) for piece in part.pieces(name) or [NO_IDS] * len(part)]
        if named
        else []
        for name in NAMED_BLOCKS
    )
    return FlatRequests(columns, len(requests), *_turns(crowd), *ids)


def no_requests_yet(room: int) -> FlatRequests:
    """Return the requests of an engine that gets them one by one, with room for the first ones."""
    zeros = bytes(8 * room)
    columns = array("d", zeros), array("q", zeros), array("q", zeros), array("q", zeros), array("q", zeros)
    return FlatRequests(columns, 0, *NO_TURNS, [], [])


def _waits_s(crowd: ClosedLoopUsers | None) -> list[Array]:
    """Return how long visitors and users wait before each of their requests [s]."""
    if crowd is None:
        return []
    think_s = np.zeros(len(crowd.requests)) if crowd.think_s is None else crowd.think_s
    return [think_s] if crowd.visits is None else [crowd.visits.wait_s, think_s]


def _turns(crowd: ClosedLoopUsers | None) -> tuple[array[int], array[int], int, int]:
    """Return the group of each user at time zero, the number of requests of each group, the most that are sent, and the groups of one visitor, which come first."""
    if crowd is None:
        return NO_TURNS
    count = len(crowd.requests)
    sizes = [group.requests for group in crowd.groups] or [count] * (crowd.users > 0)
    most = count if crowd.most_requests is None else min(crowd.most_requests, count)
    turns = np.zeros(0, dtype=np.int64) if crowd.visits is None else crowd.visits.turns
    owners = np.concatenate([np.arange(turns.size), turns.size + crowd.first_turns()])
    return integers(owners), integers(np.append(turns, sizes)), int(turns.sum()) + most, turns.size


def limits_and_tables(
    engine: EngineSetup,
    parts: tuple[Requests, ...],
    admission: Admission = ADMIT_ALL,
    *,
    is_ranked: bool = False,
) -> tuple[FlatLimits, list[array[float]]]:
    """Return what the core reads of an engine; the requests tell the number of classes and the longest step."""
    terms, clock = engine_terms(engine), engine.clock
    longest = (
        0
        if terms.chunked
        else max(int(np.max(part.input_tokens + part.output_tokens, initial=0)) for part in parts)
    )
    indices = [part.class_index for part in parts if part.class_index is not None]
    levels = sorted(set(admission.priority))
    limits = FlatLimits(
        terms,
        clock.request_s,
        clock.prompt_token_s,
        BEGIN_S,
        clock.stages,
        clock.stage_fraction,
        clock.groups,
        clock.table.separate_prefill_pass,
        1 + max((int(np.max(index, initial=0)) for index in indices), default=0),
        NO_LIMIT if admission.queue_limit is None else admission.queue_limit,
        array("d", admission.deadline_s),
        array("q", [levels.index(priority) for priority in admission.priority]),
        is_ranked,
        engine.batch_timeout_s,
        True,
        0,
        inf,
        array("q"),
        array("d"),
        array("q"),
        _luck(engine.tokens_variance / engine.tokens_per_step),
    )
    seats = terms.max_num_seqs
    if seats * clock.table.context_knots.size > MOST_TABLE_ENTRIES:
        seats = min(seats, sum(len(part) for part in parts))
    most_tokens = max(terms.max_num_batched_tokens, longest) + seats * terms.query_tokens
    return limits, flat_tables(clock, seats, most_tokens)


@cache
def _luck(variance_per_token: float) -> array[float]:
    """Return what requests need rounds for beyond their own tokens, over the root of these, for one request after the other.

    Of a round that yields K tokens, with mean m and variance v, n tokens take n / m rounds on average, with the variance n v / m^3:
    so many as for n + z sqrt(n v / m) tokens, where z is normal.

    References
    ----------
    The central limit theorem of renewal counts: W. Feller, An Introduction to Probability Theory and Its Applications II, XI.5.
    """
    if variance_per_token == 0.0:
        return array("d")
    normal = np.random.default_rng(LUCK_SEED).standard_normal(LUCKS)
    return doubles(sqrt(variance_per_token) * (normal - normal.mean()) / normal.std())


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
    lower, upper, weight = bracket(table.sequence_knots, sequences)
    w = weight[:, None]
    values = (1.0 - w) * table.decode_attention_s[lower] + w * table.decode_attention_s[upper]
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
            np.zeros(tokens.size)
            if table.shared_s is None or table.groups == 1.0
            else piecewise_linear(table.token_knots, table.shared_s, tokens),
            piecewise_linear(table.sequence_knots, table.head_s, sequences),
            launching_s(table, tokens),
            *(column.ravel() for column in prefill_attention_per_token_s(table)),
        )
    ]
