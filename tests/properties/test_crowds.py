"""Users who think, in engines and fleets: laws that hold whatever the engine, and what a closed loop was before them."""

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.serving.fleet_simulator import EnginePlan, simulate_disaggregated, simulate_fleet
from capplan.serving.outcome import SHED
from capplan.serving.requests import BEGIN_S, ClosedLoopUsers
from capplan.serving.simulator import simulate
from capplan.serving.terms import EngineSetup, Hedging, KvLink
from tests.sweeps import examples

sys.path.insert(0, str(Path(__file__).parent))
steps = import_module("test_serving_simulator")
ROWS = ("status", "arrival_s", "queue_s", "ttft_s", "e2e_s", "input_tokens", "output_tokens", "class_index")


def case_of(seed: int, policy: str):
    requests, table, scheduling, blocks, options = steps.random_case(seed, policy)
    requests = replace(requests, block_ids=None, block_counts=None)
    scheduling = replace(scheduling, reserved_output_fraction=options["fraction"])
    engine = EngineSetup(table, scheduling, blocks, batch_timeout_s=options["timeout_s"])
    return requests, engine, options


def same_rows(left, right) -> None:
    for name in ROWS:
        assert getattr(left, name).tobytes() == getattr(right, name).tobytes(), name


@pytest.mark.parametrize("policy", ["mixed", "prefill_first", "static"])
@settings(max_examples=examples(40, 150), deadline=None)
@given(seed=st.integers(0, 10**6), clients=st.integers(1, 20))
def test_users_who_do_not_think_are_a_concurrency(policy: str, seed: int, clients: int) -> None:
    """With rows that are shed, deadlines and priorities."""
    requests, engine, options = case_of(seed, policy)
    admission = replace(options["admission"], queue_limit=None)
    rules = {"until_s": options["until_s"], "admission": admission}
    expected = simulate(requests, engine, concurrency=clients, **rules)
    thoughtless = ClosedLoopUsers(requests, clients, np.zeros(len(requests)))
    outcome = simulate(None, engine, crowd=thoughtless, **rules)
    assert (outcome.steps, outcome.preemptions) == (expected.steps, expected.preemptions)
    same_rows(outcome, expected)
    assert outcome.seconds == expected.seconds


@pytest.mark.parametrize("policy", ["mixed", "prefill_first", "static"])
@settings(max_examples=examples(40, 300), deadline=None)
@given(seed=st.integers(0, 10**6), users=st.integers(1, 20))
def test_think_and_response_times_fill_the_time_of_a_user(policy: str, seed: int, users: int) -> None:
    """Every user's time up to the last end is thought and response, nothing else: what X = N / (Z + R) rests on."""
    requests, engine, _ = case_of(seed, policy)
    think_s = np.random.default_rng(seed).exponential(0.3, len(requests))
    outcome = simulate(None, engine, crowd=ClosedLoopUsers(requests, users, think_s))
    assert outcome.status.size == len(requests)
    begun = outcome.arrival_s
    clock = engine.clock
    reaches_s = np.maximum.accumulate(begun + clock.request_s + clock.prompt_token_s * outcome.input_tokens)
    response = np.where(outcome.status == SHED, reaches_s - begun, outcome.e2e_s)
    ends = np.sort(begun + response)
    asking = min(users, len(requests))
    last_ends, begun_s = ends[len(requests) - asking :], BEGIN_S * np.arange(asking)
    assert think_s.sum() + response.sum() == pytest.approx((last_ends - begun_s).sum(), rel=1e-9)


@settings(max_examples=examples(40, 180), deadline=None)
@given(seed=st.integers(0, 10**6), users=st.integers(1, 20))
def test_users_of_a_fleet_of_one_are_users_of_an_engine(seed: int, users: int) -> None:
    """Behind a router, with hedges that never happen: to rounding, for the engine stops at every arrival."""
    requests, engine, _ = case_of(seed, "mixed")
    half = len(requests) // 2
    asked = requests.between(half, len(requests))
    crowd = ClosedLoopUsers(asked, users, np.random.default_rng(seed).exponential(0.3, len(asked)))
    clocked = requests.between(0, half)
    alone = simulate(clocked, engine, crowd=crowd)
    same_rows(simulate_fleet(clocked, engine, 1, crowd=crowd).outcome, alone)
    routed = simulate_fleet(clocked, engine, 1, crowd=crowd, hedging=Hedging(1e9)).outcome
    for name in ROWS:
        assert getattr(routed, name) == pytest.approx(getattr(alone, name), rel=1e-9, abs=1e-9, nan_ok=True)


@settings(max_examples=examples(40, 120), deadline=None)
@given(seed=st.integers(0, 10**6), users=st.integers(1, 20))
def test_copies_and_hand_overs_free_a_user_once(seed: int, users: int) -> None:
    """At no time are more requests under way than users, and all rows are asked in the end."""
    requests, engine, _ = case_of(seed, "mixed")
    crowd = ClosedLoopUsers(requests, users, np.random.default_rng(seed).exponential(0.1, len(requests)))
    plan = EnginePlan(engine, 2)
    for run in (
        simulate_fleet(None, engine, 3, crowd=crowd, hedging=Hedging(0.05)),
        simulate_fleet(None, engine, 3, crowd=crowd, failures=[(0.5, 1, 1.0)]),
        simulate_disaggregated(None, plan, plan, KvLink(1e6, 1e9), crowd=crowd),
    ):
        outcome = run.outcome
        assert outcome.status.size == len(requests)
        done = outcome.finished
        begins, ends = outcome.arrival_s[done], (outcome.arrival_s + outcome.e2e_s)[done]
        times = np.concatenate([ends - 1e-12, begins])
        change = np.concatenate([-np.ones(ends.size), np.ones(begins.size)])
        assert np.cumsum(change[np.argsort(times, kind="stable")]).max(initial=0) <= users
