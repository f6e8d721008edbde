"""Replicas in steady state, in closed form: rates and latencies of arrays of plans at a range of loads."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from capplan.engine.profile import EngineProfile, Scheduling
from capplan.fleet.load.demand import Demand
from capplan.numbers import Array, Spread
from capplan.replica.plans import plans_step_function
from capplan.replica.replica import Replica
from capplan.replica.tables import stacked_tables, tables_of_plans
from capplan.serving.steady_state import (
    Lengths,
    Limits,
    SteadyState,
    StepFunction,
    decode_rounds,
    prefill_tokens_per_prompt,
    screened,
)
from capplan.serving.step_table import StepTable
from capplan.workload.request_class import ResponseTimes

LOAD_GRID = np.concatenate((np.geomspace(1e-6, 1e-3, 16, endpoint=False), np.geomspace(1e-3, 1.0, 96)))
"""Loads per plan: mean decoding sequences over as many as the KV cache holds; a few next to idle, then 7.5 % apart."""
LOADS = LOAD_GRID.size
MIXTURES = 8
"""Mixtures of the classes' requests that are tried where users of several classes wait for different responses."""


def steady_states(
    profile: EngineProfile,
    schedulings: Sequence[Scheduling],
    table: StepTable,
    cache_tokens: Array,
    demand: Demand,
    speculating: Replica | None = None,
) -> SteadyState:
    """Return the steady state of one replica of each plan at LOADS loads, up to as many sequences as its KV cache holds.

    All plans have one engine; each has a scheduling, that of its whole replica, a row of the table and its cache.

    Where replicas speculate, the steps of the table are rounds, of which a request needs fewer than it has tokens.

    Users of each class wait for their own responses, so the mixture of requests depends on the response times that it leads
    to. The states are computed for several mixtures, and each plan and load gets the one whose responses are closest to
    the responses that the mixture was made with.
    """
    first = _of_mixture(profile, schedulings, table, cache_tokens, demand, speculating)
    if not demand.mix_depends_on_responses:
        return first
    assumed = _typical_responses(first, demand)
    mixtures = replace(demand, lengths=demand.lengths_at(assumed))
    states = _of_mixture(profile, schedulings, table, cache_tokens, mixtures, speculating, times=MIXTURES)
    errors = sum(
        np.square(np.log(own / s)) for own, s in zip(class_responses_s(states, demand), assumed, strict=True)
    )
    return _picked(states, np.argmin(np.reshape(errors, (MIXTURES, -1, LOADS)), axis=0))


def steady_states_of(
    replicas: Sequence[Replica], demand: Demand, speculating: Replica | None = None
) -> SteadyState:
    """Return the steady states of replicas of one network and engine whose step times have the same knots; see `steady_states`."""
    tokens = np.array([float(each.kv_blocks * each.scheduling.block_tokens) for each in replicas])
    profile, schedulings = replicas[0].spec.profile, [each.scheduling for each in replicas]
    table = stacked_tables([each.table for each in replicas])
    return steady_states(profile, schedulings, table, tokens, demand, speculating)


def state_of_plan(states: SteadyState, plan: int) -> SteadyState:
    """Return the states of one plan of an array of plans, as those of an array of one."""

    def of(values: Array | NDArray[np.bool_]) -> Array:
        return np.asarray(np.broadcast_to(values, states.requests_per_s.shape)[plan : plan + 1])

    return _each(states, of)


def _typical_responses(state: SteadyState, demand: Demand) -> list[Array]:
    """Return the response times of each class as a column: at the load of each plan with the quickest tokens, then at slower ones, MIXTURES in all."""
    order = np.argsort(state.tpot_s.mean, axis=1, kind="stable")
    places = np.linspace(0, order.shape[1] - 1, MIXTURES).round().astype(np.int64)
    return [
        np.concatenate([np.take_along_axis(response, order[:, [place]], axis=1) for place in places])
        for response in class_responses_s(state, demand)
    ]


def _picked(states: SteadyState, choice: NDArray[np.int_]) -> SteadyState:
    """Return the state that has, for each plan and load, the chosen one of MIXTURES states."""

    def of(values: Array | NDArray[np.bool_]) -> Array:
        by_mixture = np.broadcast_to(values, (MIXTURES * len(choice), LOADS)).reshape(MIXTURES, -1, LOADS)
        return np.asarray(np.take_along_axis(by_mixture, choice[None], axis=0)[0])

    return _each(states, of)


def _each(states: SteadyState, of: Callable[[Array | NDArray[np.bool_]], Array]) -> SteadyState:
    """Return the states of which each array is that of a function of it."""

    def spread_of(spread: Spread[Array]) -> Spread[Array]:
        return Spread(*map(of, (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99)))

    return SteadyState(
        spread_of(states.ttft_s),
        spread_of(states.tpot_s),
        spread_of(states.e2e_s),
        of(states.requests_per_s),
        of(states.wait_s),
        of(states.prefill_token_s),
        of(states.saturated) > 0.0,
    )


def class_responses_s(state: SteadyState, demand: Demand) -> list[Array]:
    """Return the mean response time of each class: the prefill of its own prompts, and its own outputs [s].

        R_c = W + p I_c + (O_c - 1) tpot

    All classes share the wait W and the times of a prompt token p and of an output token; I_c are prompt tokens that need
    prefill.
    """
    if len(demand.classes) == 1:
        return [state.e2e_s.mean]
    return [
        np.maximum(
            state.wait_s
            + state.prefill_token_s * max(item.input_tokens.mean_tokens - demand.cached_tokens_of(index), 1.0)
            + state.tpot_s.mean * max(item.output_tokens.mean_tokens - 1.0, 0.0),
            1e-9,
        )
        for index, item in enumerate(demand.classes)
    ]


def _of_mixture(
    profile: EngineProfile,
    schedulings: Sequence[Scheduling],
    table: StepTable,
    cache_tokens: Array,
    demand: Demand,
    speculating: Replica | None,
    times: int = 1,
) -> SteadyState:
    """Return the states of all plans, several times over where the lengths of the demand are those of as many mixtures."""
    rows = np.tile(np.arange(cache_tokens.size), times)
    tables, cache = tables_of_plans(table, rows), cache_tokens[rows, None]
    seats, budget, asynchronous = (
        np.array([float(getattr(each, name)) for each in schedulings])[rows, None]
        for name in ("max_num_seqs", "max_num_batched_tokens", "asynchronous")
    )
    lengths = demand.lengths
    if speculating is not None:
        return _of_rounds(tables, cache, budget, demand, speculating)
    per_sequence = lengths.input_tokens + lengths.output_tokens
    most = np.maximum(np.minimum(seats, cache / per_sequence), 1.0)
    return screened(
        _step_function(profile, tables, lengths, budget),
        lengths,
        Limits(
            most,
            budget,
            prefill_first=profile.policy == "prefill_first",
            request_s=profile.host.handling_s(lengths.input_tokens) + demand.load_s,
            asynchronous=asynchronous > 0.0,
            groups=np.broadcast_to(tables.groups, rows.shape)[:, None],
        ),
        LOAD_GRID[None, :] * _fullest(most, budget, lengths),
    )


def _step_function(
    profile: EngineProfile, tables: StepTable, lengths: Lengths, budget: Array, query_tokens: int = 1
) -> StepFunction:
    """Return the time of a step; a decode engine by itself has no prompts in its steps."""
    step_s = plans_step_function(tables, lengths, budget, query_tokens)
    if not profile.takes_over:
        return step_s
    return lambda sequences, context, prefill, prompts: step_s(
        sequences, context, 0.0 * prefill, 0.0 * prompts
    )


def _fullest(most: Array, budget: Array, lengths: Lengths) -> Array:
    """Return the largest load to try in decoding sequences: as many as fit, or prompts that fill a step if none decode."""
    if np.all(np.asarray(lengths.output_tokens) > 1.0):
        return most
    return np.asarray(decode_rounds(lengths) * budget / prefill_tokens_per_prompt(lengths))


def _of_rounds(
    tables: StepTable, cache_tokens: Array, budget: Array, demand: Demand, speculating: Replica
) -> SteadyState:
    """Return the same for replicas that speculate; cache and budget are columns over plans."""
    lengths, tokens, scheduling = demand.lengths, speculating.tokens_per_step, speculating.scheduling
    whole = lengths.input_tokens + lengths.output_tokens
    most = np.maximum(np.minimum(scheduling.max_num_seqs, cache_tokens / whole), 1.0)
    state = screened(
        _step_function(speculating.spec.profile, tables, lengths, budget, speculating.query_tokens),
        replace(lengths, output_tokens=1.0 + (lengths.output_tokens - 1.0) / tokens),
        Limits(
            most,
            budget,
            prefill_first=scheduling.policy == "prefill_first",
            request_s=speculating.spec.profile.host.handling_s(lengths.input_tokens) + demand.load_s,
            asynchronous=scheduling.asynchronous,
            groups=np.broadcast_to(tables.groups, tables.decode_s.shape[:1])[:, None],
        ),
        LOAD_GRID[None, :] * _fullest(most, budget, lengths),
    )
    return replace(state, tpot_s=state.tpot_s.scaled(1.0 / tokens))


def carried_shares(state: SteadyState, demand: Demand, response_s: ResponseTimes = 0.0) -> Array:
    """Return the share of the whole traffic that one replica of each plan carries at each load; above 1 if it could do more.

    Users who wait longer ask less often: with responses of at least `response_s` a replica carries more of them.
    """
    least_s = demand.responses_s(response_s)
    own_s = class_responses_s(state, demand)
    waits = [np.maximum(response, least) for response, least in zip(own_s, least_s, strict=True)]
    return np.asarray(state.requests_per_s / demand.request_rate_per_s(waits))


def usual_states(
    profile: EngineProfile,
    schedulings: Sequence[Scheduling],
    table: StepTable,
    cache_tokens: Array,
    demand: Demand,
    state: SteadyState,
) -> SteadyState:
    """Return the states with the mixture of the lightest load at all loads.

    Overloaded replicas serve mostly those who do not wait long, so a part of their largest rate says nothing of usual loads.
    """
    if not demand.mix_depends_on_responses:
        return state
    light = [response[:, :1] for response in class_responses_s(state, demand)]
    at_light = replace(demand, lengths=demand.lengths_at(light))
    return _of_mixture(profile, schedulings, table, cache_tokens, at_light, None)


def _half_loaded(state: SteadyState) -> NDArray[np.int_]:
    """Return the load at which each plan has about half of its largest rate."""
    rates = np.where(state.saturated, 0.0, state.requests_per_s)
    half: NDArray[np.int_] = np.argmax(rates >= rates.max(axis=1, keepdims=True) / 2.0, axis=1)
    return half


def usual_batches(state: SteadyState, demand: Demand) -> list[float]:
    """Return the decoding sequences of each plan at about half of its largest rate [-]."""
    half = _half_loaded(state)
    rows = np.arange(half.size)
    outputs = demand.lengths.output_tokens
    if demand.mix_depends_on_responses:
        outputs = demand.lengths_at([s[rows, half] for s in class_responses_s(state, demand)]).output_tokens
    busy = state.requests_per_s[rows, half] * state.tpot_s.mean[rows, half] * outputs
    return [float(value) for value in busy]


def usual_step_s(state: SteadyState) -> list[float]:
    """Return the time per output token of each plan at about half of its largest rate [s]."""
    half = _half_loaded(state)
    return [float(value) for value in state.tpot_s.mean[np.arange(half.size), half]]
