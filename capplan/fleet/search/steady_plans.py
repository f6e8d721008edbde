"""Replicas in steady state, in closed form: rates and latencies of arrays of plans at a range of loads."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from capplan.fleet.load.demand import Demand
from capplan.numbers import Array
from capplan.replica.plan_steps import plans_step_function
from capplan.replica.plans import Plans
from capplan.replica.rounds import Rounds
from capplan.serving.closed_form.screening import screened
from capplan.serving.closed_form.steady_state import SteadyState
from capplan.serving.closed_form.steady_steps import Lengths, Limits, decode_rounds, prefill_tokens_per_prompt
from capplan.serving.step_table import StepTable

LOAD_GRID = np.concatenate((np.geomspace(1e-6, 1e-3, 16, endpoint=False), np.geomspace(1e-3, 1.0, 96)))
"""Loads per plan: mean decoding sequences over as many as the KV cache holds; a few next to idle, then 7.5 % apart."""
LOADS = LOAD_GRID.size


def steady_states(
    plans: Plans, table: StepTable, cache_tokens: Array, demand: Demand, rounds: Rounds | None = None
) -> SteadyState:
    """Return the steady state of one replica of each plan at LOADS loads, up to as many sequences as its KV cache holds.

    Where replicas speculate, the steps of the table are rounds, of which a request needs fewer than it has tokens.
    """
    if rounds is not None:
        return _of_rounds(plans, table, cache_tokens, demand, rounds)
    per_sequence = float(demand.lengths.input_tokens) + float(demand.lengths.output_tokens)
    most = np.maximum(np.minimum(plans.max_num_seqs, cache_tokens / per_sequence), 1.0)[:, None]
    profile, budget = plans.specs[0].profile, plans.max_num_batched_tokens[:, None]
    return screened(
        plans_step_function(table, demand.lengths, budget),
        demand.lengths,
        Limits(
            most,
            budget,
            prefill_first=profile.policy == "prefill_first",
            request_s=profile.host.request_s + demand.load_s,
        ),
        LOAD_GRID[None, :] * _fullest(most, budget, demand.lengths),
    )


def _fullest(most: Array, budget: Array, lengths: Lengths) -> Array:
    """Return the largest load to try in decoding sequences: as many as fit, or prompts that fill a step if none decode."""
    if float(lengths.output_tokens) > 1.0:
        return most
    return np.asarray(decode_rounds(lengths) * budget / prefill_tokens_per_prompt(lengths))


def _of_rounds(
    plans: Plans, table: StepTable, cache_tokens: Array, demand: Demand, rounds: Rounds
) -> SteadyState:
    lengths, tokens = demand.lengths, rounds.tokens_per_round
    budget, scheduling = plans.max_num_batched_tokens[:, None], rounds.replica.scheduling
    whole = float(lengths.input_tokens) + float(lengths.output_tokens)
    most = np.maximum(np.minimum(scheduling.max_num_seqs, cache_tokens / whole), 1.0)[:, None]
    state = screened(
        plans_step_function(table, lengths, budget, rounds.query_tokens),
        replace(lengths, output_tokens=1.0 + (lengths.output_tokens - 1.0) / tokens),
        Limits(
            most,
            budget,
            prefill_first=scheduling.policy == "prefill_first",
            request_s=rounds.replica.spec.profile.host.request_s + demand.load_s,
        ),
        LOAD_GRID[None, :] * most,
    )
    return replace(state, tpot_s=state.tpot_s.scaled(1.0 / tokens))


def carried_shares(state: SteadyState, demand: Demand, response_s: float = 0.0) -> Array:
    """Return the share of the whole traffic that one replica of each plan carries at each load; above 1 if it could do more.

    Users who wait longer ask less often: with a response of at least `response_s` a replica carries more of them.
    """
    return np.asarray(
        state.requests_per_s / demand.request_rate_per_s(np.maximum(state.e2e_s.mean, response_s))
    )


def _half_loaded(state: SteadyState) -> NDArray[np.int_]:
    """Return the load at which each plan has about half of its largest rate."""
    rates = np.where(state.saturated, 0.0, state.requests_per_s)
    half: NDArray[np.int_] = np.argmax(rates >= rates.max(axis=1, keepdims=True) / 2.0, axis=1)
    return half


def usual_batches(state: SteadyState, demand: Demand) -> list[float]:
    """Return the decoding sequences of each plan at about half of its largest rate [-]."""
    half = _half_loaded(state)
    rows = np.arange(half.size)
    busy = (
        state.requests_per_s[rows, half] * state.tpot_s.mean[rows, half] * float(demand.lengths.output_tokens)
    )
    return [float(value) for value in busy]


def usual_step_s(state: SteadyState) -> list[float]:
    """Return the time per output token of each plan at about half of its largest rate [s]."""
    half = _half_loaded(state)
    return [float(value) for value in state.tpot_s.mean[np.arange(half.size), half]]
