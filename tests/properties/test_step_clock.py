"""Scalar step times of the simulator are those of the formulas over arrays, at any table, and runs of steps are their sums."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.live.python_core import python_core, python_engine
from capplan.engine.profile import Scheduling
from capplan.serving.requests import NO_REQUESTS
from capplan.serving.step_table import StepClock, StepTable, decode_step_s, mixed_step_s
from capplan.serving.terms import EngineSetup

LAW = settings(max_examples=80, deadline=None)
seeds, sequences, contexts = st.integers(0, 10**6), st.integers(1, 300), st.integers(0, 9000)


def near(value):
    return pytest.approx(value, rel=1e-12, abs=1e-15)


def table_of(seed):
    """Return a table of random positive times that grow with what a step holds."""
    rng = np.random.default_rng(seed)

    def rising(*shape):
        values = rng.random(shape)
        for axis in range(len(shape)):
            values = np.cumsum(values, axis=axis)
        return 1e-4 * values

    knots = np.array([1.0, 4.0, 32.0, 256.0])
    return StepTable(
        sequence_knots=knots,
        decode_s=rising(4),
        head_s=rising(4),
        context_knots=np.array([0.0, 512.0, 4096.0]),
        decode_attention_s=rising(4, 3),
        token_knots=np.array([1.0, 64.0, 2048.0]),
        mixed_s=rising(3),
        new_knots=np.array([1.0, 256.0, 2048.0]),
        past_knots=np.array([0.0, 1024.0]),
        prefill_attention_s=rising(3, 2),
        launch_s=rising(3),
    )


@LAW
@given(seeds, sequences, contexts, st.integers(0, 4), st.integers(1, 3000), st.integers(0, 3000))
def test_a_step_takes_what_the_formula_says(seed, count, context, chunks, new, past):
    table = table_of(seed)
    clock = StepClock(table)
    assert clock.row(count).step_s(float(context)) == near(float(decode_step_s(table, count, context)))
    scalar = clock.mixed_step_s(count, float(context), [(new, past)] * chunks)
    assert scalar == near(float(mixed_step_s(table, count, context, chunks, new, past)))
    if chunks:
        alone = clock.mixed_step_s(0, 0.0, [(new, past)] * chunks)
        assert alone == near(float(mixed_step_s(table, 0.0, 0.0, chunks, new, past)))


@LAW
@given(seeds, sequences, st.integers(0, 300), st.integers(2, 9))
def test_a_verified_sequence_brings_all_its_tokens_to_the_matmuls(seed, count, new, query):
    """As if its further tokens came from a chunk that attends and samples for nothing."""
    table = replace(table_of(seed), launch_s=None)
    clock = StepClock(table)
    chunks = [(new, 0)] if new else []
    plain, verified = (clock.mixed_step_s(count, 100.0, chunks, tokens) for tokens in (1, query))
    matmuls = [np.interp(count * tokens + new, table.token_knots, table.mixed_s) for tokens in (1, query)]
    if count * query + new <= 2048:
        assert verified - plain == near(matmuls[1] - matmuls[0])
    assert verified >= plain


@LAW
@given(seeds, sequences, st.integers(0, 6000), st.integers(1, 200), st.sampled_from([1.0, 2.5]))
def test_a_run_of_steps_is_the_sum_of_its_steps(seed, count, context, steps, growth):
    clock = StepClock(table_of(seed))
    rules = Scheduling("mixed", 300, 2048)
    core = python_engine(
        NO_REQUESTS, EngineSetup(clock, rules, 10**6, tokens_per_step=growth, query_tokens=3)
    )
    each = [clock.row(count).step_s(context + growth * step) for step in range(steps)]
    total = core.run(count, float(context), steps, inf)
    assert (core.step, total) == (steps, near(sum(each)))
    limit = float(np.sum(each) * 0.6)
    total = core.run(count, float(context), steps, limit)
    done = core.step - steps
    assert total == near(sum(each[:done]))
    assert total >= limit * (1 - 1e-9)
    assert done == 1 or sum(each[: done - 1]) < limit * (1 + 1e-9)


@LAW
@given(st.floats(1e-4, 1.0), st.floats(0.0, 0.1), st.floats(1e-3, 50.0), st.integers(1, 400))
def test_the_fewest_steps_that_reach_a_time(first, rise, limit, most):
    steps = python_core().steps_to_reach(first, rise, limit, most)
    sums = np.cumsum(first + rise * np.arange(most))
    fewest = min(int(np.searchsorted(sums, limit * (1 - 1e-9))) + 1, most)
    assert abs(steps - fewest) <= 1
