"""The time of a step: scalar step times are those of the formulas over arrays, and a prompt that is not cut is one long step."""

from dataclasses import replace
from functools import lru_cache
from math import inf

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from calibrate.live.python_core import python_core, python_engine
from capplan.engine.lookup import profile
from capplan.engine.profile import Scheduling
from capplan.fleet.engine_options import EngineOptions, engines_of
from capplan.memory.launch import engine_launch
from capplan.model.sharding import Sharding
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device
from capplan.replica.plans import step_rates
from capplan.replica.replica import replica_of
from capplan.replica.spec import ReplicaSpec
from capplan.replica.tables import context_limits, device_tables, step_knots, table_of_plan, with_host
from capplan.serving.requests import NO_REQUESTS, Requests
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepClock, StepTable, decode_step_s, mixed_step_s
from capplan.serving.terms import EngineSetup
from tests.properties.test_step_floors import DEVICES, ENGINES, MODELS, legal, network_of

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


BUDGET, LONGEST = 512.0, 40_000.0
models, places, engines = st.sampled_from(MODELS), st.sampled_from(DEVICES), st.sampled_from(ENGINES)
lengths = st.integers(0, 10**6).map(lambda seed: int(LONGEST ** np.random.default_rng(seed).uniform(0, 1)))


def steps_of(name, place, tensor, engine, asked=None):
    """Return rates and step table of an engine with small steps and long contexts; `asked` replaces the knots of prompts."""
    network, gpu, own = network_of(name, "auto"), device(place), profile(*engine)
    sharding = Sharding(float(tensor))
    assume(legal(network, gpu, sharding, own))
    rates = step_rates(network, gpu, efficiency_for(gpu), profile=own, kv_format="bf16").rates
    knots = step_knots(64.0, BUDGET, LONGEST, context_limits(network))
    if asked is not None:
        knots = replace(knots, tokens=np.array(asked), new=np.array(asked))
    launch = engine_launch(own, sharding, 80e9, 2.0, LONGEST, 64.0, BUDGET).as_columns()
    device_only = device_tables(network, launch, rates, knots)
    return rates, table_of_plan(with_host(device_only, own.host, network), 0)


@pytest.mark.long
@given(models, places, st.sampled_from([1, 4]), engines, lengths, st.integers(0, 30_000))
def test_attention_of_a_chunk_is_that_of_its_operators(name, place, tensor, engine, new, past):
    """Within half a percent for long chunks, for short ones within what tiles and starts of kernels make of it."""
    past = 0 if past < 256 else past
    _, table = steps_of(name, place, tensor, engine)
    _, exact = steps_of(name, place, tensor, engine, asked=[float(new), new + 1.0])
    found, whole = (
        StepClock(table).prefill_attention_s(new, past),
        StepClock(exact).prefill_attention_s(new, past),
    )
    assert found == pytest.approx(whole, rel=0.03)
    if (
        new > BUDGET and "Qwen3-Next" not in name and "135M" not in name
    ):  # too little attention to hide the waves of kernels
        assert found == pytest.approx(whole, rel=0.02 if "DeepSeek" in name or "Qwen" in name else 0.007)


@given(models, places, st.sampled_from([1, 4]), engines, lengths, st.sampled_from([64, 512, 2048, 8192]))
def test_cutting_a_prompt_never_saves_time(name, place, tensor, engine, new, chunk):
    """But for the launches of steps too large for CUDA graphs, and the waves of tiles, which make single sizes up to a tenth
    dearer than their neighbours."""
    _, table = steps_of(name, place, tensor, engine)
    clock, host = StepClock(table), profile(*engine).host
    whole = clock.mixed_step_s(0, 0.0, [(new, 0)])
    cut = sum(
        clock.mixed_step_s(0, 0.0, [(min(chunk, new - start), start)]) for start in range(0, new, chunk)
    )
    assert whole <= 1.1 * cut + host.eager_layer_s * len(network_of(name, "auto").layers)


@given(models, places, engines)
def test_beyond_the_last_knot_attention_goes_on_with_the_square(name, place, engine):
    _, table = steps_of(name, place, 1, engine)
    clock, last = StepClock(table), int(table.new_knots[-1])
    first, second, third = (clock.prefill_attention_s(times * last, 0) for times in (1, 2, 3))
    assert second - 2.0 * first >= -1e-12
    assert third - 3.0 * first == pytest.approx(3.0 * (second - 2.0 * first), rel=1e-6, abs=1e-12)


def first_token_s(scheduler, prompt=32_000):
    """Return the time to first token of a lone prompt on a Llama of 8B on one H100 whose steps hold 512 tokens."""
    gpu = device("h100-sxm")
    spec = ReplicaSpec(
        network_of("meta-llama/Llama-3.1-8B-Instruct", "auto"), gpu, efficiency_for(gpu), profile("vllm"), Sharding(),
        "bf16", 33_000, 64, 512,
    )  # fmt: skip
    engines = engines_of(replica_of(spec), EngineOptions(scheduler), 0, float(prompt))
    return simulate(Requests(np.array([prompt]), np.array([2]), np.zeros(1)), engines.setup).ttft_s[0]


@pytest.mark.parametrize("scheduler", ["continuous", "static", "prefill-first"])
def test_an_uncut_prompt_of_32k_tokens_takes_its_arithmetic(scheduler):
    """2 x 7.0e9 x 32e3 FLOP of matrices and 32 layers x 32 heads x 256 x 32e3^2 of attention, at 989 TFLOP/s dense
    (H100 datasheet): 0.72 s; cut into 63 chunks it takes longer, for each reads the weights and what is cached."""
    floor = (2 * 6.98e9 * 32e3 + 32 * 32 * 256 * 32e3**2) / 989e12
    whole, cut = first_token_s(scheduler), first_token_s("chunked")
    assert floor < whole < cut


@lru_cache(maxsize=64)
def pipeline_of(name, place, stages, budget):
    """Return an engine of several stages, whether its devices have the memory or not; knots do not depend on the stages."""
    network, gpu, own = network_of(name, "auto"), device(place), profile("vllm")
    rates = step_rates(network, gpu, efficiency_for(gpu), profile=own, kv_format="bf16").rates
    launch = engine_launch(own, Sharding(1.0, float(stages)), 80e9, 2.0, 9000.0, 64.0, budget).as_columns()
    knots = step_knots(64.0, 32768.0, 9000.0, context_limits(network))
    tables = with_host(device_tables(network, launch, rates, knots), own.host, network)
    return EngineSetup(table_of_plan(tables, 0), Scheduling("mixed", 64, budget * stages), 10**6)


@pytest.mark.long
@given(models, places, st.sampled_from([2, 3, 4]), st.sampled_from([512, 2048, 8192]), st.integers(1, 8000))
def test_stages_never_make_a_prompt_of_one_chunk_faster_and_never_gain_more_than_their_number(
    name, place, stages, budget, new
):
    """The same layers one after the other, on as many devices; longer prompts gain by their chunks alone."""
    assume(legal(network_of(name, "auto"), device(place), Sharding(1.0, float(stages)), profile("vllm")))
    lone = Requests(np.array([new]), np.array([1]), np.zeros(1))
    one, several = (simulate(lone, pipeline_of(name, place, p, budget)).ttft_s[0] for p in (1, stages))
    if new <= budget:
        assert several >= one * (1.0 - 1e-9)
    else:
        assert several >= one / stages
    many = Requests(np.full(40, new), np.full(40, 2))
    one, several = (simulate(many, pipeline_of(name, place, p, budget)).seconds for p in (1, stages))
    assert several >= 0.9 * one / stages, "dealt out, prompts fill their tiles less evenly"


def test_a_lone_prompt_of_5000_tokens_is_no_faster_on_two_stages():
    """Eight thousand tokens go into a step, so it is one chunk: two B200 take it one after the other."""
    lone = Requests(np.array([5000]), np.array([1]), np.zeros(1))
    one, two = (
        simulate(lone, pipeline_of("meta-llama/Llama-3.1-70B-Instruct", "b200", stages, 8192)).ttft_s[0]
        for stages in (1, 2)
    )
    assert one <= two <= 1.05 * one
