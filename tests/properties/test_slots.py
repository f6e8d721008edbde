"""Slots as in llama.cpp's server: events that a person can follow, the same whether steps run one by one or not, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.live.python_core import outcome_of, python_engine
from calibrate.live.simulated_steps import watched
from capplan.cli.main import main
from capplan.engine.lookup import with_slots
from capplan.engine.profile import Scheduling
from capplan.errors import InputError
from capplan.replica.replica import replica_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.serving.block_cache import PrefixCaching
from capplan.serving.fleet_simulator import EnginePlan, simulate_disaggregated, simulate_fleet
from capplan.serving.outcome import FINISHED, SHED
from capplan.serving.requests import Requests
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepClock, mixed_step_s
from capplan.serving.terms import EngineSetup, Failure, Hedging, KvLink
from tests.constant_steps import constant_steps
from tests.sweeps import examples

ONE = np.array([1.0])
FLAT = constant_steps()
"""Every step takes a second."""


def slots(count: int, batch_tokens: int, **options) -> EngineSetup:
    return EngineSetup(
        FLAT, Scheduling("slots", count, batch_tokens, block_tokens=4), 1000, caching=options.get("caching")
    )


def asked(inputs, outputs, arrivals, ids=None, output_ids=None) -> Requests:
    def columns(name, rows):
        if rows is None:
            return {}
        flat = [number for row in rows for number in row]
        counts = [len(row) for row in rows]
        return {f"{name}_ids": np.array(flat, dtype=np.int64), f"{name}_counts": np.array(counts)}

    return Requests(
        np.array(inputs), np.array(outputs), np.array(arrivals, dtype=float),
        **columns("block", ids), **columns("output", output_ids),
    )  # fmt: skip


def steps_of(requests: Requests, engine: EngineSetup):
    """Return what each step works on, and the outcome, with one decode step at a time."""
    core = python_engine(requests, engine)
    steps = watched(core)
    outcome = outcome_of(core)
    return [(step.prompts, step.decodes) for step in steps], outcome


def test_pieces_go_in_the_order_of_slots_and_an_empty_server_fills_the_last_slot_first():
    """The first request takes slot 1, the second slot 0, whose prompt is worked on first."""
    steps, outcome = steps_of(asked([10, 10], [1, 1], [0, 0]), slots(2, 12))
    assert steps == [(((0, 2, 0), (1, 10, 0)), ()), (((0, 8, 2),), ())]
    assert outcome.ttft_s.tolist() == [2.0, 1.0]


def test_a_new_prompt_in_a_lower_slot_overtakes_one_that_is_half_done():
    steps, _ = steps_of(asked([30, 4], [1, 1], [0, 0.5]), slots(2, 10))
    assert [prompts for prompts, _ in steps] == [
        ((0, 10, 0),),
        ((0, 6, 10), (1, 4, 0)),
        ((0, 10, 16),),
        ((0, 4, 26),),
    ]


def test_of_two_requests_that_are_called_at_once_the_last_one_is_seated_first():
    """Slots 1 and 0 are released in the order of slots by the same step: slot 0 calls request 2 and slot 1 request 3, which goes first."""
    steps, _ = steps_of(asked([4, 4, 4, 5], [1, 1, 1, 1], [0, 0, 0, 0]), slots(2, 8))
    assert steps[0][0] == ((0, 4, 0), (1, 4, 0))
    assert steps[1][0] == ((2, 3, 0), (3, 5, 0))  # request 3 took slot 0, which was released first


def test_what_arrives_during_a_step_comes_after_those_that_a_release_calls():
    steps, _ = steps_of(asked([4, 4, 4], [1, 1, 1], [0, 0.0, 0.5]), slots(1, 8))
    assert [prompts[0][0] for prompts, _ in steps] == [0, 1, 2]


def test_a_prompt_takes_the_slot_that_holds_most_of_it():
    """A user's second turn finds the whole first turn; another prompt takes the slot that was released first."""
    ids, outputs = [[1, 2, 3], [7, 8, 9], [1, 2, 3, 4, 5]], [[4], [], []]
    requests = asked([12, 12, 20], [5, 1, 1], [0, 0, 20], ids, outputs)
    steps, outcome = steps_of(requests, slots(2, 64, caching=PrefixCaching(4)))
    assert steps[-1][0] == ((2, 4, 16),)
    assert simulate(requests, slots(2, 64, caching=PrefixCaching(4))).hit_blocks == (4,)
    assert (outcome.status == FINISHED).all()


def test_a_tenth_of_a_prompt_is_too_little_to_choose_a_slot_by():
    """One block of eleven: the slot that was released first is taken, which holds nothing of the prompt."""
    ids = [[1, 2], [7, 8], [1, *range(20, 30)]]
    requests = asked([8, 8, 44], [9, 1, 1], [0, 0, 20], ids, [[], [], []])
    steps, _ = steps_of(requests, slots(2, 64, caching=PrefixCaching(4)))
    assert steps[-1][0] == ((2, 44, 0),)


def test_a_request_longer_than_a_slot_is_shed():
    outcome = simulate(asked([400, 40], [1, 1], [0, 0]), replace(slots(4, 512), kv_blocks=100))
    assert outcome.status.tolist() == [SHED, FINISHED]


@given(seed=st.integers(0, 10_000))
@settings(max_examples=examples(40, 400), deadline=None)
def test_runs_of_decode_steps_change_nothing_and_no_prompt_that_is_cut_means_the_order_of_arrival(seed):
    rng = np.random.default_rng(seed)
    count, seats = int(rng.integers(2, 40)), int(rng.integers(1, 7))
    requests = asked(
        rng.integers(1, 60, count),
        rng.integers(1, 30, count),
        np.cumsum(rng.exponential(rng.choice([0.3, 3.0]), count)),
    )
    tight = slots(seats, int(rng.integers(seats, 40)))
    steps, one_by_one = steps_of(requests, tight)
    at_once = simulate(requests, tight)
    assert at_once.ttft_s.tolist() == pytest.approx(one_by_one.ttft_s.tolist(), rel=1e-9)
    assert at_once.e2e_s.tolist() == pytest.approx(one_by_one.e2e_s.tolist(), rel=1e-9)
    budget = tight.scheduling.max_num_batched_tokens
    assert all(len(prompts) + len(decodes) <= seats for prompts, decodes in steps)
    assert all(sum(new for _, new, _ in prompts) + len(decodes) <= budget for prompts, decodes in steps)
    assert sum(new for prompts, _ in steps for _, new, _ in prompts) == requests.input_tokens.sum()

    wide = slots(seats, 60 * seats)
    mixed = replace(wide, scheduling=replace(wide.scheduling, policy="mixed"))
    assert simulate(requests, wide).preemptions == 0
    assert sorted(simulate(requests, wide).e2e_s) == pytest.approx(
        sorted(simulate(requests, mixed).e2e_s), rel=1e-9
    )


def test_replicas_behind_a_router_have_slots_too():
    requests = asked([10] * 6, [3] * 6, [0.0] * 6)
    run = simulate_fleet(requests, slots(1, 12), replicas=3, routing="least_loaded")
    assert sorted(run.outcome.e2e_s) == [3.0] * 3 + [6.0] * 3


@pytest.mark.parametrize("seed", range(6))
def test_failures_and_copies_leave_no_slot_taken(seed):
    """What a failed replica had is computed elsewhere, copies are cancelled in the middle, and everyone is served once."""
    rng = np.random.default_rng(seed)
    count = 40
    ids = [[0, *range(100 * row, 100 * row + 4)] for row in range(count)]
    requests = asked(
        [24] * count,
        rng.integers(1, 20, count),
        np.cumsum(rng.exponential(1.0, count)),
        ids,
        [[] for _ in ids],
    )
    run = simulate_fleet(
        requests, slots(2, 16, caching=PrefixCaching(4)), 3, routing="least_loaded",
        failures=[Failure(9.5, 1, 5.0)], hedging=Hedging(3.0),
    )  # fmt: skip
    assert (run.outcome.status == FINISHED).all()
    assert run.copied_requests
    users = simulate(replace(requests, arrival_s=None), slots(2, 16), concurrency=5)
    assert (users.status == FINISHED).all()


def test_what_is_not_modelled_is_refused_with_the_reason(capsys, tmp_path, capplan):
    requests, engine = asked([10], [2], [0.0]), slots(2, 12)
    ahead = replace(engine, scheduling=replace(engine.scheduling, asynchronous=True))
    for wrong, why in (
        (ahead, "asynchronous"),
        (replace(engine, kv_blocks=1), "too few for a part of the cache"),
    ):
        with pytest.raises(InputError, match=why):
            simulate(requests, wrong)
    with pytest.raises(InputError, match="slots hand no prompt over"):
        simulate_disaggregated(requests, EnginePlan(engine, 1), EnginePlan(engine, 1), KvLink(1.0, 1.0))
    scenario = tmp_path / "chat.yaml"
    scenario.write_text(
        "name: chat\nmodel: llama-3.1-8b\nmax_num_seqs: 8\n"
        "traffic:\n  - {name: people, request_rate: 1 req/s, input_tokens: 800, output_tokens: 50}\n"
    )
    words = [
        "simulate",
        str(scenario),
        "--hardware",
        "h100-sxm",
        "--scheduling",
        "slots",
        "--until",
        "20 s",
        "--format",
        "json",
    ]
    assert "what slots hold is not offloaded" in capplan.refused(*words, "--kv-offload", "host:10 GB")
    assert main(words) == 0
    assert "each of 8 slots has" in json.dumps(json.loads(capsys.readouterr().out)["assumptions"])


def test_prompts_and_decoding_sequences_take_a_pass_each():
    """While the second request decodes in slot 0, the prompt in slot 1 is worked on: a step takes both, 3 s + 2 s."""
    passes = replace(FLAT, decode_s=2.0 * ONE, mixed_s=3.0 * ONE, separate_prefill_pass=True)
    clock = StepClock(passes)
    assert clock.mixed_step_s(0, 0.0, [(4, 0)]) == 3.0
    assert clock.mixed_step_s(3, 10.0, [(4, 0)]) == 5.0
    assert clock.row(3).step_s(10.0) == 2.0
    assert float(mixed_step_s(passes, 3.0, 10.0, 1.0, 4.0, 0.0)) == 5.0
    assert StepClock(replace(passes, separate_prefill_pass=False)).mixed_step_s(3, 10.0, [(4, 0)]) == 3.0
    first, second = asked([4, 4], [3, 1], [0.0, 1.0]), replace(slots(2, 8), table=clock)
    outcome = simulate(first, second)
    assert outcome.ttft_s.tolist() == [
        3.0,
        7.0,
    ]  # the second waits for the first prompt, and shares its decode step


def test_a_replica_with_slots_takes_two_passes():
    spec = asked_replica("qwen3-0.6b", "h100-sxm", ServingFlags(offline=True)).spec
    usual, own = (
        replica_of(replace(spec, profile=known)) for known in (spec.profile, with_slots(spec.profile))
    )
    assert not usual.table.separate_prefill_pass
    assert own.table.separate_prefill_pass
    assert own.scheduling.policy == "slots"
