"""Groups of data-parallel attention: a prompt is computed by one of them, while the others wait or decode beside it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.accuracy.benchmark import benchmark_of
from capplan.accuracy.replay import replayed_columns
from capplan.engine.profile import Scheduling
from capplan.phases.cost import total_s
from capplan.phases.step import lone_prompt_costs
from capplan.questions.benchmark_spec import benchmark_servers
from capplan.replica.plans import plans_of, plans_tables
from capplan.replica.replica import replica_of
from capplan.replica.tables import table_of_plan
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.serving.requests import Requests
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepClock, StepTable, mixed_step_s
from capplan.serving.terms import EngineSetup
from tests.properties.test_step_clock import near, table_of

ONE = np.array([1.0])
MANY = np.array([0.0, 1e5])


def table_of_groups(groups: int, shared_share: float = 0.0, decode_s: float = 0.1) -> StepTable:
    """A token takes a millisecond on its own group, and its attention another; experts take a share of the former."""
    each = 1e-3 * MANY / groups
    return StepTable(
        MANY, decode_s + 0.0 * MANY, 0.0 * MANY, ONE, np.zeros((2, 1)), MANY, 1e-9 + each,
        np.array([1.0, 1e5]), ONE, np.array([[1e-3], [1e2]]) / groups, shared_s=shared_share * each, groups=groups,
    )  # fmt: skip


def first_tokens(prompts, groups: int, *, budget: int = 10**5, policy: str = "mixed", share: float = 0.0):
    tokens = np.array(prompts)
    engine = EngineSetup(table_of_groups(groups, share), Scheduling(policy, 512, budget), 10**8)
    return simulate(Requests(tokens, np.ones_like(tokens)), engine).ttft_s


@pytest.mark.parametrize("policy", ["mixed", "prefill_first"])
@pytest.mark.parametrize("groups", [2, 8])
def test_a_prompt_alone_takes_as_long_as_on_one_group(groups, policy):
    """Up to as many prompts as groups begin with it, and one more takes as long again."""
    assert first_tokens([1000], groups, policy=policy) == pytest.approx(first_tokens([1000], 1), rel=1e-6)
    assert first_tokens([1000] * groups, groups, policy=policy) == pytest.approx([2.0] * groups, rel=1e-6)
    assert first_tokens([1000] * (groups + 1), groups, policy=policy)[0] == pytest.approx(4.0, rel=1e-6)


def test_a_step_lasts_as_long_as_its_longest_prompt():
    assert first_tokens([500, 2000, 1000, 10], 4) == pytest.approx([4.0] * 4, rel=1e-6)


def test_experts_are_computed_by_all_groups_together():
    """Half of what is not attention is divided by the groups, whoever has the prompt."""
    assert first_tokens([1000], 4, share=0.5) == pytest.approx([0.5 + 0.5 / 4 + 1.0], rel=1e-6)


def test_a_full_step_is_full_in_every_group_that_has_a_prompt():
    """Of prompts that do not fit into a step those behind it are on the other groups already."""
    alone, many = (first_tokens([8000] * count, 4, budget=8000) for count in (1, 4))
    assert alone == pytest.approx([16.0], rel=1e-6)
    assert many.max() == pytest.approx(4.0 + 16.0 / 3.0 + 8.0 + 16.0, rel=1e-5)


def test_groups_without_a_prompt_decode_beside_it():
    """With prompts first, 3 of 4 steps with one prompt each yield a token on four groups, none on one."""

    def last_token_s(groups: int) -> float:
        prompts = np.array([1, *[500] * 40])
        arrivals = np.array([0.0, *np.arange(40.0) + 0.5])
        requests = Requests(prompts, np.array([61, *[1] * 40]), arrivals)
        engine = EngineSetup(table_of_groups(groups), Scheduling("prefill_first", 512, 10**5), 10**8)
        return float(simulate(requests, engine).e2e_s[0])

    # A second holds one step of a prompt, of one second, and none of decoding before all prompts are done.
    assert last_token_s(1) == pytest.approx(40.0 + 6.0, abs=1.5)
    assert last_token_s(4) == pytest.approx(40.0 + 0.1 * (60 - 30), abs=1.5)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(0, 200),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 3),
    st.integers(1, 400),
)
def test_clock_and_arrays_agree_on_prompts_of_one_length(seed, count, groups, times, new):
    """As many prompts as groups, a few times over; or fewer, one in each of some groups."""
    table = replace(table_of(seed), groups=groups)
    table = replace(table, shared_s=0.3 * table.mixed_s)
    for chunks in (times * groups, 1):
        scalar = StepClock(table).mixed_step_s(count, 100.0, [(new, 0)] * chunks)
        assert scalar == near(float(mixed_step_s(table, count, 100.0, chunks, new, 0)))


@pytest.mark.parametrize(("prompt", "seconds"), [(8070, 1.00), (13648, 1.74), (34214, 4.51), (98220, 13.75)])
def test_first_tokens_of_single_prompts_on_sixteen_ranks(prompt, seconds):
    """llm-d, sharing of caches between engines (https://github.com/llm-d/llm-d): GLM-5.2 in fp8 on 16 H200, nothing cached. Spread over all
    ranks a prompt would take an eighth of it."""
    row = {
        "kind": "first_token", "engine": "vllm", "engine_version": "0.26.0", "model_hf_id": "zai-org/GLM-5.2-FP8", "weights_dtype": "fp8",
        "gpu": "h200-sxm", "num_gpus": "16", "tp": "1", "dp": "16", "ep": "16", "isl": str(prompt), "osl": "1",
    }  # fmt: skip
    benchmark = benchmark_of(row)
    found = replayed_columns(benchmark, benchmark_servers(benchmark))["ttft_ms_mean"]
    assert found == pytest.approx(1e3 * seconds, rel=0.35)


@pytest.mark.parametrize(("tensor", "data"), [(8, 1), (1, 8), (2, 4)])
def test_operators_of_a_prompt_add_up_to_its_step(tensor, data):
    flags = ServingFlags(
        engine="sglang", tensor_parallel=tensor, data_parallel=data, expert_parallel=data, max_model_len=9000
    )
    replica = replica_of(asked_replica("deepseek-v3", "h200-sxm", flags).spec)
    spec = replica.spec
    costs = lone_prompt_costs(spec.network, 4096.0, 0.0, spec.sharding, 2.0, replica.rates.rates)
    kernels = table_of_plan(plans_tables(plans_of([spec])).device.kernels, 0)
    step = float(mixed_step_s(kernels, 0.0, 0.0, 1.0, 4096.0, 0.0))
    assert total_s(costs) == pytest.approx(step, rel=0.02)  # between knots of tokens
