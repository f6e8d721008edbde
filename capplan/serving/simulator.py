"""Simulate requests on one engine: the ground truth that the closed forms are checked against."""

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from capplan.errors import InputError
from capplan.serving.flat import eligible, flat_outcome
from capplan.serving.outcome import Ledger, Outcome
from capplan.serving.queue import Feed, Source, WaitingLine
from capplan.serving.requests import Admission, Crowd, Requests, check_admission, offered
from capplan.serving.server import Server
from capplan.serving.static_batch import StaticServer
from capplan.serving.terms import EngineSetup, engine_terms

ADMIT_ALL = Admission()


def simulate(
    requests: Requests | Iterable[Requests] | None,
    engine: EngineSetup,
    *,
    concurrency: int | None = None,
    crowd: Crowd | None = None,
    until_s: float = inf,
    admission: Admission = ADMIT_ALL,
) -> Outcome:
    """Simulate one engine.

    Parameters
    ----------
    requests : columns in order of arrival, or the parts of a long trace, of which only one is in memory at a time.
        Without arrival times all come at once (offline). None: only the crowd sends requests.
    engine : step times, scheduling and cache
    concurrency : [-]
        closed loop with this many requests at any time, the next one sent as soon as one ends: a crowd of users without
        think time. Arrival times are not used then. None: open loop.
    crowd : closed-loop users, beside the open-loop arrivals
    until_s : [s]
        stop at the first end of a step from then on; requests that have arrived and are not done are unfinished, those that
        have not arrived are not in the outcome.
    admission : queue limit, deadlines, priorities

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
    if isinstance(requests, Requests) and eligible(requests, engine, admission, crowd):
        return flat_outcome(requests, engine, crowd=crowd, until_s=until_s)
    return served(requests, engine, crowd=crowd, until_s=until_s, admission=admission)


def _check(engine: EngineSetup, until_s: float) -> None:
    if not until_s > 0.0:
        raise InputError(f"until_s is {until_s}; it must be positive")
    if not engine.batch_timeout_s >= 0.0:
        raise InputError(f"batch_timeout_s is {engine.batch_timeout_s}; it must be at least 0")
    if engine.caching is not None and engine.scheduling.policy == "static":
        raise InputError(
            "a prefix cache with block ids is not modelled for static batching; give cached_tokens instead"
        )


def served(
    requests: Requests | Iterable[Requests],
    engine: EngineSetup,
    *,
    crowd: Crowd | None = None,
    until_s: float = inf,
    admission: Admission = ADMIT_ALL,
) -> Outcome:
    """Run Server or StaticServer, which handle every case; `simulate` checks the arguments and may take the flat core."""
    clock, ledger = engine.clock, Ledger()
    feed = Feed(requests, delay_s=clock.request_s, crowd=crowd, priority=admission.priority)
    server = new_server(replace(engine, table=clock), feed, ledger, admission)
    server.advance(until_s)
    hits = server.hits_by_tier if isinstance(server, Server) else []
    return replace(ledger.outcome(server.now_s, [server.gauges]), hit_blocks=tuple(hits))


def new_server(
    engine: EngineSetup, feed: Source, ledger: Ledger, admission: Admission
) -> Server | StaticServer:
    """Return the server for the engine's scheduling policy, idle and with an empty queue."""
    terms = engine_terms(engine)
    line = WaitingLine(feed, terms, ledger, admission)
    if engine.scheduling.policy == "static":
        return StaticServer(engine.clock, terms, line, ledger, engine.batch_timeout_s)
    return Server(engine.clock, terms, line, ledger)
