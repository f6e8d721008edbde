"""Simulate requests on an engine: the ground truth that the closed forms are checked against."""

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from capplan.engine.profile import Scheduling
from capplan.errors import InputError
from capplan.serving.block_cache import PrefixCaching
from capplan.serving.outcome import Ledger, Outcome
from capplan.serving.requests import Admission, Feed, Requests, check_admission
from capplan.serving.server import Server
from capplan.serving.static_batch import StaticServer
from capplan.serving.step_clock import StepClock
from capplan.serving.step_table import StepTable
from capplan.serving.terms import EngineTerms, engine_terms
from capplan.serving.waiting_line import Source, WaitingLine

EVERYBODY = Admission()


def simulate(
    requests: Requests | Iterable[Requests],
    table: StepTable | StepClock,
    scheduling: Scheduling,
    kv_blocks: int,
    *,
    concurrency: int | None = None,
    until_s: float = inf,
    admission: Admission = EVERYBODY,
    tokens_per_step: float = 1.0,
    query_tokens: int = 1,
    reserved_output_fraction: float = 0.0,
    batch_timeout_s: float = inf,
    caching: PrefixCaching | None = None,
) -> Outcome:
    """Return what one engine does with these requests.

    Parameters
    ----------
    requests : columns, or parts of a long trace one after the other, of which only one is held at a time
        in order of arrival; without arrival times all come at once (offline).
    table : step times of the replica; a StepClock saves the set-up when one table serves many runs
    scheduling : how the engine forms its steps
    kv_blocks : [blocks]
        of scheduling.block_tokens tokens, in the cache of the replica.
    concurrency : [-]
        closed loop: so many requests at once from the start, the next one as soon as one ends. Arrival times are
        not used then. None: open loop.
    until_s : [s]
        stop at the first end of a step from then on; what has arrived and is not done is unfinished, what has not
        arrived is not in the outcome.
    admission : who may wait, how long, and who goes first
    tokens_per_step : [tokens]
        that a decode step yields for each sequence on average; above 1 under speculative decoding, with a table
        whose steps are whole speculative rounds.
    query_tokens : [tokens]
        that a decoding sequence takes of the token budget of a step: the drafts that are verified and one more.
    reserved_output_fraction : [-]
        part of its output for which a request must find blocks before it is admitted: 0 vLLM, 1 TensorRT-LLM's
        guaranteed no-evict, between them SGLang.
    batch_timeout_s : [s]
        static policy: how long the oldest request waits for the batch to fill; infinite: until it is full.
    caching : requests with block ids find their leading blocks in a cache that lives in the free blocks of the engine
        and in its offload tiers; a request waits for its loads while the others go on. None: block ids are not used.

    Returns
    -------
    results by request and totals

    Raises
    ------
    InputError
        names what cannot be simulated

    Examples
    --------
    One request of 10 prompt and 3 output tokens; a prefill of 1 s and decode steps of 0.5 s:

    >>> import numpy as np
    >>> one = np.array([1.0])
    >>> table = StepTable(one, 0.5 * one, 0 * one, one, np.array([[0.0]]), one, one, one, one, np.array([[0.0]]))
    >>> outcome = simulate(Requests(np.array([10]), np.array([3])), table, Scheduling("mixed", 8, 64), kv_blocks=10)
    >>> outcome.ttft_s, outcome.e2e_s, outcome.tpot_s
    (array([1.]), array([2.]), array([0.5]))
    """
    if concurrency is not None and concurrency < 1:
        raise InputError(f"concurrency is {concurrency}; it must be at least 1")
    if not until_s > 0.0:
        raise InputError(f"until_s is {until_s}; it must be positive")
    if not batch_timeout_s >= 0.0:
        raise InputError(f"batch_timeout_s is {batch_timeout_s}; it must be at least 0")
    if caching is not None and scheduling.policy == "static":
        raise InputError(
            "a prefix cache by block ids is not modelled for static batches; give cached_tokens instead"
        )
    check_admission(admission, closed_loop=concurrency is not None)
    clock = table if isinstance(table, StepClock) else StepClock(table)
    terms = engine_terms(
        scheduling,
        kv_blocks,
        tokens_per_step=tokens_per_step,
        query_tokens=query_tokens,
        reserved_output_fraction=reserved_output_fraction,
        caching=caching,
    )
    feed = Feed(requests, delay_s=clock.request_s, concurrency=concurrency, priority=admission.priority)
    ledger = Ledger()
    server = new_server(clock, terms, scheduling, feed, ledger, admission, batch_timeout_s)
    server.advance(until_s)
    found = server.found_by_place if isinstance(server, Server) else []
    return replace(ledger.outcome(server.now_s, [server.gauges]), found_blocks=tuple(found))


def new_server(
    clock: StepClock,
    terms: EngineTerms,
    scheduling: Scheduling,
    feed: Source,
    ledger: Ledger,
    admission: Admission,
    batch_timeout_s: float,
) -> Server | StaticServer:
    """Return the engine for a scheduling policy, idle and with an empty queue."""
    line = WaitingLine(feed, terms, ledger, admission)
    if scheduling.policy == "static":
        return StaticServer(clock, terms, line, ledger, batch_timeout_s)
    return Server(clock, terms, line, ledger)
