"""Pipelined engines against micro-batches followed one by one through their stages (see `pipeline`)."""

import sys
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.live.python_core import python_engine
from capplan.engine.profile import Scheduling
from capplan.serving.requests import Requests
from capplan.serving.simulator import simulate
from capplan.serving.step_table import (
    StepTable,
    decode_pipeline_pass_s,
    pipeline_pass_ratio,
    prompt_micro_batch,
)
from capplan.serving.terms import EngineSetup

sys.path.insert(0, str(Path(__file__).parent))
from pipeline import chunk_ends_s, delayed_round_s, token_gap_s

TOKEN_S, DECODE_S = 1e-4, 0.004
degrees, seeds = st.sampled_from([2, 3, 4, 8]), st.integers(0, 10**6)
laws = settings(max_examples=80, deadline=None)


def engine(stages, budget=1000, decode_s=DECODE_S, seats=64, policy="mixed"):
    """Return a pipeline whose micro-batches take a time in proportion to their prompt tokens; decoding costs nothing beside."""
    one, tokens = np.array([1.0]), np.array([1.0, 1e6])
    table = StepTable(
        one, decode_s * one, 0.0 * one, one, np.array([[0.0]]), tokens, TOKEN_S * tokens, one, one, np.array([[0.0]]),
        stages=stages, stage_fraction=1.0 / stages,
    )  # fmt: skip
    return EngineSetup(table, Scheduling(policy, seats, budget * stages), 10**6)


@given(degrees, st.integers(1, 40_000), st.sampled_from(["mixed", "prefill_first", "static"]))
@laws
def test_a_lone_prompt_takes_its_chunks_through_the_stages(stages, tokens, policy):
    """Chunks of a thousand tokens follow one another; the last one may be shorter."""
    sizes = [min(1000, tokens - start) for start in range(0, tokens, 1000)]
    ends = chunk_ends_s([[size * TOKEN_S / stages] * stages for size in sizes])
    found = simulate(Requests(np.array([tokens]), np.array([1])), engine(stages, policy=policy)).ttft_s[0]
    assert found == pytest.approx(ends[-1], rel=2e-3)


@given(degrees, seeds)
@laws
def test_prompts_that_all_wait_fill_the_stages_once(stages, seed):
    """As many tokens as fill whole turns: p stages finish p times what one stage's devices would, but for the filling."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(1, 3000, 40)
    prompts[-1] += -prompts.sum() % 1000
    chunks = int(prompts.sum()) // 1000
    ends = chunk_ends_s([[1000 * TOKEN_S / stages] * stages] * chunks)
    run = simulate(Requests(prompts, np.ones(40, dtype=int)), engine(stages, decode_s=1e-9))
    assert run.e2e_s.max() == pytest.approx(ends[-1], rel=0.01)
    serial = prompts.sum() * TOKEN_S
    assert serial / stages <= run.e2e_s.max() * (1.0 + 1e-9)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8), st.integers(1, 8), st.floats(0.0, 5.0))
@laws
def test_decoding_goes_round_at_the_pace_of_the_longest_cycle(layers, in_flight, head):
    """Any stages, of which the last has a head besides its layers."""
    in_flight = min(in_flight, len(layers))
    largest, last = max(layers) / sum(layers), layers[-1] / sum(layers)
    expected = token_gap_s([*layers[:-1], layers[-1] + head], in_flight)
    found = decode_pipeline_pass_s(sum(layers), head, largest, last, in_flight)
    assert found == pytest.approx(expected, rel=1e-9)


@given(degrees, st.floats(1.0, 50.0), st.integers(1, 8))
@laws
def test_prompts_in_a_full_pipeline_delay_everybody_as_told(stages, longer, prompts):
    """The formula leaves out that those micro-batches decode as well, so it is above by at most p - 1 parts of a turn."""
    prompts = min(prompts, stages)
    plain, own = 1.0 / stages, longer / stages
    expected = delayed_round_s(plain, own, prompts, stages)
    found = longer * float(pipeline_pass_ratio(prompts, 0.0, 1.0 / stages))
    assert expected * (1.0 - 1e-9) <= found <= expected + (prompts - 1) / stages + 1e-9


def turn_of(table, sequences, prompts, room, before):
    """Return the time of a step with these prompts, and how many micro-batches hold some, as the simulator has them."""
    requests = Requests(np.array(prompts), np.ones(len(prompts), dtype=np.int64))
    core = python_engine(requests, EngineSetup(table, Scheduling("mixed", 256, sum(prompts) + 256), 10_000))
    core.stage_tokens, core.filled = room, before
    for row, tokens in enumerate(prompts):
        core.add_chunk(row, tokens)
    return core.pipeline_pass_s(sequences, 0.0), core.filled


@given(degrees, seeds)
@laws
def test_a_turn_with_prompts_is_its_largest_micro_batch_times_the_ratio_of_the_pipeline(stages, seed):
    """Against the two formulas of `pipeline`; the step table is linear in tokens, and each new token attends for a fixed time."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(1, 6000, rng.integers(1, 6)).tolist()
    sequences, room, before = int(rng.integers(0, 60)), 2000.0, float(rng.integers(0, stages + 1))
    one, tokens, new = np.array([1.0]), np.array([1.0, 1e6]), np.array([1.0, 1e5])
    table = StepTable(
        one, 1e-9 * one, 0.0 * one, one, np.array([[0.0]]), tokens, TOKEN_S * tokens, new, one,
        3e-6 * new[:, None], stages=stages, stage_fraction=1.0 / stages,
    )  # fmt: skip
    total, beside = sum(prompts), -(-sequences // stages)
    seconds, filled = turn_of(table, sequences, prompts, room, before)
    largest = ceil(float(prompt_micro_batch(total, max(prompts), room - beside, stages)))
    assert filled == total / largest
    micro_batch_s = (beside + largest) * TOKEN_S + largest * 3e-6
    assert seconds == pytest.approx(
        micro_batch_s * float(pipeline_pass_ratio(filled, before, 1.0 / stages)), rel=1e-5
    )
