"""Step tables of a replica: the steps of its network at the knots, shared out over stages and groups, with its host.

Devices are infinitely fast but for their bandwidth (see `ideal_device`), so that times are bytes and add up.
"""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import RegularGridInterpolator

from capplan.engine.lookup import profile
from capplan.engine.profile import HostOverhead, Scheduling
from capplan.families.model_config import read_network
from capplan.hardware.device import engine_memory_bytes, padded_inputs_multiple
from capplan.memory.launch import Launch, engine_launch
from capplan.memory.plan import memory_plan
from capplan.model.sharding import Sharding
from capplan.phases.cost import floor_s, total_s, unsaved_s
from capplan.phases.step import (
    decode_attention_costs,
    decode_step_costs,
    prefill_attention_costs,
    token_costs,
)
from capplan.phases.token_work import head_costs
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device
from capplan.replica.plans import (
    engine_scheduling,
    plans_of,
    plans_step_function,
    prefill_graph_tokens,
    replica_scheduling,
)
from capplan.replica.replica import memory_of, replica_of
from capplan.replica.spec import ReplicaSpec
from capplan.replica.tables import Knots, device_tables, ratio_at, step_knots, table_of_plan, with_host
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.serving.steady_state import Lengths
from capplan.serving.step_table import (
    StepClock,
    StepTable,
    bilinear,
    decode_step_s,
    mixed_step_s,
    piecewise_linear,
    prefill_attention_per_token_s,
)
from tests.properties.ideal_device import ideal_rates

NETWORK = read_network({
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 768, "vocab_size": 1000, "head_dim": 32,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 8192,
}, "small")  # fmt: skip
MOE = read_network({
    "model_type": "qwen3_moe", "hidden_size": 256, "intermediate_size": 768, "vocab_size": 1000, "head_dim": 32,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "num_experts": 16,
    "num_experts_per_tok": 4, "moe_intermediate_size": 128, "max_position_embeddings": 8192,
}, "small-moe")  # fmt: skip
RATES = ideal_rates(link_bytes_per_s=1e8, bytes_per_s=1e9, flop_per_s=1e12)
KNOTS = Knots(
    np.array([1.0, 4.0, 64.0]), np.array([0.0, 64.0, 500.0]), np.array([1.0, 16.0, 512.0]), np.array([1.0, 128.0, 4096.0]),
    np.array([0.0, 256.0]),
)  # fmt: skip


def near(value):
    return pytest.approx(value, rel=1e-9, abs=1e-15)


def tables(network=NETWORK, *, rates=RATES, **sharding):
    parallel = {"tensor": 1.0, "expert": 1.0, "data": 1.0, "pipeline": 1.0} | sharding
    launch = Launch(*parallel.values(), 80e9, 2.0, 4096.0, 64.0, 2048.0, 0.9, 16.0).as_columns()
    return device_tables(network, launch, rates, KNOTS)


def kernels(*args, **named):
    return table_of_plan(tables(*args, **named).kernels, 0)


@pytest.mark.parametrize("tensor", [1.0, 4.0])
def test_tables_of_one_stage_hold_the_steps_of_the_network_at_their_knots(tensor):
    own, sharding = kernels(tensor=tensor), Sharding(tensor)
    for i, sequences in enumerate(KNOTS.sequences):
        assert own.head_s[i] == near(total_s(head_costs(NETWORK, sequences, sharding, RATES)))
        for j, context in enumerate(KNOTS.contexts):
            step = total_s(decode_step_costs(NETWORK, sequences, context, sharding, 2.0, RATES))
            assert own.decode_s[i] + own.decode_attention_s[i, j] == near(step)
            cache = total_s(decode_attention_costs(NETWORK, sequences, context, sharding, 2.0, RATES))
            assert own.decode_attention_s[i, j] == near(cache)
    for i, tokens in enumerate(KNOTS.tokens):
        assert own.mixed_s[i] == near(total_s(token_costs(NETWORK, tokens, sharding, RATES, decode=False)))
    for i, new in enumerate(KNOTS.new):
        beside = min(max(2048 / new, 1), 16)  # short prompts share a step
        for j, past in enumerate(KNOTS.past):
            chunk = prefill_attention_costs(NETWORK, beside, new, past, sharding, 2.0, RATES)
            assert own.prefill_attention_s[i, j] == near(total_s(chunk) / beside)


def test_floors_and_what_a_graph_cannot_hide_are_tabled_alike():
    found, sharding = tables(), Sharding()
    for time_s, table in ((floor_s, found.floors), (unsaved_s, found.unsaved)):
        for i, tokens in enumerate(KNOTS.tokens):
            costs = token_costs(NETWORK, tokens, sharding, RATES, decode=False)
            assert table.mixed_s[0, i] == near(time_s(costs))
        costs = decode_attention_costs(NETWORK, 4.0, 500.0, sharding, 2.0, RATES)
        assert table.decode_attention_s[0, 1, 2] == near(time_s(costs))


@pytest.mark.parametrize("stages", [2.0, 4.0])
def test_a_pipeline_carries_a_micro_batch_in_each_stage(stages):
    """A step over S sequences takes as long as all layers over S / p of them and the hops between the stages, at the pace of
    the last stage, which has the head besides its part of the layers; fewer sequences than stages leave some idle."""
    own = kernels(pipeline=stages)
    for i, sequences in enumerate(KNOTS.sequences):
        each, flying = max(sequences / stages, 1.0), min(sequences, stages)
        hops = (stages - 1) * 2 * 2 * 256 * each / 1e8
        layers = total_s(decode_step_costs(NETWORK, each, 0.0, Sharding(), 2.0, RATES)) + hops
        layers -= total_s(decode_attention_costs(NETWORK, each, 0.0, Sharding(), 2.0, RATES))
        head = total_s(head_costs(NETWORK, each, Sharding(), RATES))
        layers -= head
        assert own.decode_s[i] == near(max(layers + head, flying * (layers / stages + head)))
        cache = total_s(decode_attention_costs(NETWORK, each, 500.0, Sharding(), 2.0, RATES))
        assert own.decode_attention_s[i, 2] == near(cache)
    for i, tokens in enumerate(KNOTS.tokens):  # of one micro-batch, one stage after the other
        hops = (stages - 1) * 2 * 2 * 256 * tokens / 1e8
        alone = total_s(token_costs(NETWORK, tokens, Sharding(), RATES, decode=False)) + hops
        assert own.mixed_s[i] == near(alone)
    assert own.prefill_attention_s == near(kernels().prefill_attention_s)
    assert (own.stages, own.stage_fraction) == (stages, 1.0 / stages)


def test_stages_that_differ_go_at_the_pace_of_the_fullest():
    """Four layers on three stages lie 1, 2, 1: the fullest takes half of the time of all."""
    own, even = kernels(pipeline=3.0), kernels()
    assert own.stage_fraction == 0.5
    cache = total_s(decode_attention_costs(NETWORK, 64.0 / 3.0, 500.0, Sharding(), 2.0, RATES))
    assert own.decode_attention_s[2, 2] == near(1.5 * cache)
    assert own.decode_attention_s[0] == near(even.decode_attention_s[0])


def test_groups_hold_sequences_of_their_own():
    own = kernels(MOE, data=4.0, expert=4.0)
    cache = total_s(decode_attention_costs(MOE, 16.0, 500.0, Sharding(), 2.0, RATES))
    assert own.decode_attention_s[2, 2] == near(cache)
    assert own.prefill_attention_s == near(kernels(MOE).prefill_attention_s / 4)


def test_plans_side_by_side_have_the_tables_of_each_alone():
    launch = Launch(
        np.array([1.0, 4.0]),
        1.0,
        1.0,
        np.array([2.0, 1.0]),
        80e9,
        np.array([2.0, 1.0]),
        4096.0,
        64.0,
        2048.0,
        0.9,
        16.0,
    )
    both = device_tables(NETWORK, launch.as_columns(), RATES, KNOTS).kernels
    one, other = kernels(pipeline=2.0), kernels(tensor=4.0)
    assert table_of_plan(both, 0).decode_s == near(one.decode_s)
    assert table_of_plan(both, 1).decode_s == near(other.decode_s)
    assert table_of_plan(both, 1).decode_attention_s[2, 2] < other.decode_attention_s[2, 2]  # an fp8 cache


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0, 1.5])
def test_an_engine_saves_of_its_kernels_and_its_host_adds_to_them(ratio, offline):
    host = HostOverhead(
        step_s=1e-3,
        sequence_s=2e-6,
        request_s=5e-3,
        stream_s=3e-6,
        decode_excess_ratio=ratio,
        prefill_excess_ratio=ratio,
    )
    slow = ideal_rates(bytes_per_s=1e9, flop_per_s=1e9)
    slow = replace(slow, elementwise=replace(slow.elementwise, floor_s=1e-5))
    device_only = tables(rates=slow)
    found = with_host(device_only, host, NETWORK, offline=offline)
    each = 2e-6 if offline else 5e-6
    for name, least in (
        ("decode_s", device_only.unsaved), ("decode_attention_s", device_only.unsaved), ("head_s", device_only.floors),
        ("mixed_s", device_only.floors), ("prefill_attention_s", device_only.floors),
    ):  # fmt: skip
        whole, low = getattr(device_only.kernels, name), getattr(least, name)
        # Above 1 the excess is a third of the kernels' own time, so that a faster device is never slower.
        expected = low + ratio * (whole - low) if ratio <= 1 else whole + (ratio - 1) * whole / 3
        if name in {"decode_s", "mixed_s"}:
            expected = expected + 1e-3
        if name in {"decode_s", "head_s"}:
            expected = expected + each * KNOTS.sequences
        assert getattr(found, name) == near(expected)
    assert found.request_s == (0.0 if offline else 5e-3)


def test_a_deployment_corrects_matrix_products_by_their_rows():
    """Decode steps by their sequences and steps with prompts by their tokens, with one function: the products are the same."""
    device_only = tables()
    bare, usual = (with_host(device_only, HostOverhead(step_s=s), NETWORK) for s in (0.0, 1e-3))
    ratios = ((1.0, 1.0), (2.0, 1.2), (4.0, 0.8), (128.0, 0.9), (512.0, 1.3))
    found = with_host(device_only, HostOverhead(step_s=1e-3, row_ratios=ratios), NETWORK)
    sizes, times = (np.log(column) for column in zip(*ratios, strict=True))
    for name, knots, added_s in (
        ("decode_s", usual.sequence_knots, 1e-3),
        ("head_s", usual.sequence_knots, 0.0),
        ("mixed_s", usual.token_knots, 1e-3),
    ):
        expected = np.exp(np.interp(np.log(knots), sizes, times)) * getattr(bare, name) + added_s
        assert getattr(found, name) == near(expected), name
    for name in ("decode_attention_s", "prefill_attention_s", "launch_s"):
        assert getattr(found, name) == near(getattr(usual, name)), name
    assert ratio_at(2.0 * np.sqrt(2.0), ratios) == near(np.sqrt(1.2 * 0.8))  # half-way in logarithms
    assert ratio_at(1000.0, ratios) == near(1.3)
    assert ratio_at(5.0, ()) == 1.0


@pytest.mark.parametrize(("tensor", "pipeline"), [(1.0, 1.0), (2.0, 1.0), (1.0, 2.0), (4.0, 1.0)])
def test_several_ranks_are_told_what_to_run(tensor, pipeline):
    host = HostOverhead(step_s=1e-3, ranks_s=4e-4)
    device_only = tables(tensor=tensor, pipeline=pipeline)
    found = with_host(device_only, host, NETWORK)
    each = 1e-3 + (4e-4 if tensor * pipeline > 1 else 0.0)
    for name in ("decode_s", "mixed_s"):
        assert getattr(found, name) == near(getattr(device_only.kernels, name) + each)


def test_lists_of_a_context_cost_every_sequence_its_tokens():
    device_only = tables(data=2.0)
    found = with_host(device_only, HostOverhead(context_token_s=3e-6), NETWORK)
    kernels = device_only.kernels
    running = kernels.sequence_knots[None, :, None] / 2.0 * kernels.context_knots
    assert found.decode_attention_s == near(kernels.decode_attention_s + 3e-6 * running)


def test_a_step_too_large_for_graphs_waits_for_its_launches():
    device_only = tables()
    host = HostOverhead(eager_layer_s=0.5, graph_tokens=16.0, step_s=0.1)
    table = table_of_plan(with_host(device_only, host, NETWORK), 0)
    clock = StepClock(table)
    tokens = [int(knot) for knot in table.token_knots]
    for new in tokens:
        working = float(mixed_step_s(replace(table, launch_s=None), 0.0, 0.0, 1.0, new, 0.0))
        least = 4 * 0.5 + 0.1 if new > 16 else 0.1
        assert clock.mixed_step_s(0, 0.0, [(new, 0)]) == near(max(working, least))
        assert float(mixed_step_s(table, 0.0, 0.0, 1.0, new, 0.0)) == near(max(working, least))
    assert max(tokens) > 16


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(
    ("model", "tensor", "data"), [("deepseek-v3", 8, 1), ("deepseek-v3", 1, 8), ("qwen3-235b-a22b", 8, 1)]
)
def test_no_step_grows_by_a_tenth_for_one_token_more(model, tensor, data, engine):
    """But for the first token of a group that is not captured: from there on the kernels of a step are launched one by one."""
    flags = ServingFlags(
        engine=engine, tensor_parallel=tensor, data_parallel=data, expert_parallel=data, max_model_len=9000
    )
    own = replica_of(asked_replica(model, "h200-sxm", flags).spec)
    tokens = np.arange(64.0, 8192.0)
    seconds = mixed_step_s(own.table, 0.0, 0.0, 1.0, tokens, 0.0)
    smooth = np.diff(seconds) < 0.1 * seconds[:-1]
    assert tokens[1:][~smooth].tolist() in ([], [prefill_graph_tokens(own.spec) + 1.0])


@given(st.integers(1, 4096), st.integers(1, 16384), st.integers(65, 200_000))
def test_knots_reach_the_limits_in_even_steps(sequences, tokens, context):
    knots = step_knots(float(sequences), float(tokens), float(context), (100.0, 5000.0))
    longest = tokens if context <= tokens else max(context, 2 * tokens)
    for own, last, per_octave in (
        (knots.sequences, sequences, 4),
        (knots.tokens, longest, 4),
        (knots.new, longest, 4),
    ):  # a prompt that is not cut is one step, whatever the budget
        assert own[0] == 1.0
        assert own[-1] == max(last, 2)
        assert np.all(own == np.round(own))
        wide = own[own > 64]
        assert np.all(wide[1:] / wide[:-1] <= 2 ** (1 / per_octave) * 1.02)
        # ... and no finer: a partial step in either stretch of tokens, and the two bends
        assert own.size <= per_octave * np.log2(max(last, 2)) + 5
    assert knots.contexts[0] == knots.past[0] == 0.0
    assert knots.contexts[-1] == context
    assert knots.contexts[1] == 64.0
    assert knots.past[1] == 1.0
    assert 256.0 in knots.past
    assert knots.past[-1] == max(context, 257)
    for bend in (100.0, 5000.0):
        assert (bend in knots.contexts) == (bend < context or bend == context)
        assert min(bend in knots.past, bend in knots.new) >= (bend < context)
    far = knots.contexts[knots.contexts >= 64]
    assert np.all(far[1:] / far[:-1] <= 2**0.5 * 1.02)


grids = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.integers(0, 500), min_size=n, max_size=n, unique=True).map(
        lambda k: np.array(sorted(k), dtype=float)
    )
)


@given(grids, grids, st.integers(0, 10**6))
def test_tables_are_linear_between_knots_in_either_direction(x_knots, y_knots, seed):
    rng = np.random.default_rng(seed)
    values = rng.random((x_knots.size, y_knots.size))
    x, y = rng.uniform(x_knots[0], x_knots[-1], 9), rng.uniform(y_knots[0], y_knots[-1], 9)
    if min(values.shape) > 1:
        expected = RegularGridInterpolator((x_knots, y_knots), values)(np.column_stack((x, y)))
        assert bilinear(x_knots, y_knots, values, x, y) == near(expected)
    column = values[:, 0]
    assert piecewise_linear(x_knots, column, x) == near(np.interp(x, x_knots, column))
    assert piecewise_linear(x_knots, column, x_knots[0] - 5.0) == near(column[0])
    slope = (column[-1] - column[-2]) / (x_knots[-1] - x_knots[-2]) if x_knots.size > 1 else 0.0
    assert piecewise_linear(x_knots, column, x_knots[-1] + 5.0) == near(column[-1] + 5 * slope)


def random_table(seed):
    rng = np.random.default_rng(seed)

    def knots(count):
        return np.concatenate(([1.0], 1.0 + np.cumsum(rng.integers(1, 50, count - 1)))).astype(float)

    shape = {
        "sequence_knots": knots(4),
        "context_knots": knots(3),
        "token_knots": knots(5),
        "new_knots": knots(3),
        "past_knots": knots(3),
    }
    s, c, t, n, p = (
        shape[name].size
        for name in ("sequence_knots", "context_knots", "token_knots", "new_knots", "past_knots")
    )
    times = {
        "decode_s": (s,),
        "head_s": (s,),
        "decode_attention_s": (s, c),
        "mixed_s": (t,),
        "prefill_attention_s": (n, p),
    }
    table = StepTable(**shape, **{name: 0.1 + rng.random(size) for name, size in times.items()})
    # Attention over a longer prompt takes longer for each of its tokens.
    each = np.cumsum(table.prefill_attention_s, axis=0)
    return replace(table, prefill_attention_s=table.new_knots[:, None] * each)


@given(
    st.integers(0, 10**6),
    st.floats(0.5, 200.0),
    st.floats(0.0, 200.0),
    st.floats(0.5, 4.0),
    st.floats(1.0, 90.0),
)
def test_a_step_is_the_sum_of_its_parts(seed, sequences, context, chunks, new):
    table = random_table(seed)

    def along(knots, values, x):
        return float(piecewise_linear(knots, values, x))

    cache = float(
        bilinear(table.sequence_knots, table.context_knots, table.decode_attention_s, sequences, context)
    )
    assert decode_step_s(table, sequences, context) == near(
        along(table.sequence_knots, table.decode_s, sequences) + cache
    )
    each = table.prefill_attention_s / table.new_knots[:, None]
    prefill = new * float(bilinear(table.new_knots, table.past_knots, each, new, 7.0))
    tokens = along(table.token_knots, table.mixed_s, sequences + chunks * new)
    head = along(table.sequence_knots, table.head_s, sequences + chunks)
    assert mixed_step_s(table, sequences, context, chunks, new, 7.0) == near(
        tokens + head + cache + chunks * prefill
    )
    assert decode_step_s(table, 0.0, context) == 0.0
    alone = along(table.token_knots, table.mixed_s, chunks * new) + along(
        table.sequence_knots, table.head_s, chunks
    )
    assert mixed_step_s(table, 0.0, context, chunks, new, 7.0) == near(alone + chunks * prefill)


@given(st.integers(0, 10**6), st.floats(10.0, 150.0), st.floats(1.0, 80.0), st.floats(0.0, 1.0))
def test_plans_at_many_loads_take_the_steps_of_their_tables(seed, inputs, outputs, cached):
    """What the search reads: one mean context, chunks in the middle of their prompts."""
    own = [random_table(seed), random_table(seed)]
    own[1] = replace(own[1], decode_s=2 * own[1].decode_s, prefill_attention_s=3 * own[1].prefill_attention_s)
    shared = {f.name for f in fields(StepTable) if f.name.endswith("_knots")} | {
        "request_s",
        "separate_prefill_pass",
    }
    both = replace(own[0], **{
        f.name: np.stack([getattr(t, f.name) for t in own]) for f in fields(StepTable)
        if f.name not in shared and getattr(own[0], f.name) is not None
    })  # fmt: skip
    lengths = Lengths(inputs, outputs, 0.0, 0.0, cached * inputs)
    step = plans_step_function(both, lengths)
    sequences, context = np.array([[3.0, 0.0, 20.0]] * 2), inputs + outputs / 2
    none, prompts = np.zeros((2, 3)), np.array([[1.0, 2.0, 0.5]] * 2)
    new = np.array([[5.0, 30.0, 11.0]] * 2)
    for row in (0, 1):
        plain = [float(decode_step_s(own[row], s, context)) for s in sequences[row]]
        assert step(sequences, none, none, none)[row] == near(plain)
        busy = []
        for s, m, tokens in zip(sequences[row], prompts[row], new[row], strict=True):
            chunk, worked = tokens / m, max(inputs - cached * inputs, 1.0)
            # Attention of a chunk is tabled halfway through the prompt, at the knots of its new tokens.
            knots, pasts, each = prefill_attention_per_token_s(own[row])
            halfway = cached * inputs + np.maximum(worked - knots, 0.0) / 2
            at_knots = [
                float(bilinear(knots, pasts, each, n, p)) for n, p in zip(knots, halfway, strict=True)
            ]
            prefill = float(piecewise_linear(knots, np.array(at_knots), chunk))
            start = float(bilinear(knots, pasts, each, chunk, 0.0))
            step_s = float(mixed_step_s(own[row], s, context, m, chunk, 0.0))
            busy.append(step_s + m * chunk * (prefill - start))
        assert step(sequences, none, new, prompts)[row] == near(busy)


def spec(network=NETWORK, engine="vllm", **sharding):
    h100 = device("h100-sxm")
    return ReplicaSpec(
        network, h100, efficiency_for(h100), profile(engine), Sharding(**sharding), "bf16", 4096, 64, 2048,
        typical_context_tokens=1000,
    )  # fmt: skip


@pytest.mark.parametrize(("data", "stages"), [(1, 1), (2, 1), (1, 2), (4, 2)])
def test_a_replica_has_the_limits_of_all_its_engines(data, stages):
    """Groups run a batch each; stages share one, but each works on a step's tokens of its own."""
    engine = Scheduling(
        "mixed", 64, 2048, hold_tokens=100, hold_prompts=8, hold_steps=3, hold_seats=1, block_tokens=16
    )
    whole = replica_scheduling(engine, Sharding(1.0, float(stages), float(data), float(data)))
    assert (whole.max_num_seqs, whole.max_num_batched_tokens) == (64 * data, 2048 * data * stages)
    assert (whole.hold_tokens, whole.hold_prompts, whole.hold_steps) == (100 * data, 8 * data, 3)
    assert whole.hold_seats == data
    own = spec(MOE, data=float(data), expert=float(data), pipeline=float(stages))
    plans = plans_of([own])
    assert plans.max_num_seqs.tolist() == [64.0 * data]
    assert plans.max_num_batched_tokens.tolist() == [2048.0 * data * stages]
    # Memory is that of one engine with its own limits.
    assert plans.launch.max_num_seqs.tolist() == [64.0]
    assert plans.launch.max_num_batched_tokens.tolist() == [2048.0]
    assert engine_scheduling(own).max_num_seqs == 64
    alone = engine_launch(
        own.profile, own.sharding, engine_memory_bytes(own.device), 2.0, 4096.0, 64.0, 2048.0,
        padded_inputs=padded_inputs_multiple(own.device),
    )  # fmt: skip
    assert memory_of(own) == memory_plan(MOE, alone, own.profile)


def test_a_replica_holds_the_cache_of_all_its_groups_in_whole_blocks():
    one, two, staged = (
        replica_of(spec(MOE, data=float(d), expert=float(d), pipeline=float(p)))
        for d, p in ((1, 1), (2, 1), (1, 2))
    )
    for replica, groups in ((one, 1), (two, 2), (staged, 1)):
        held = (
            groups * replica.memory.kv_bytes_available / (2 * 2 * 32 * 4 * 4 / replica.spec.sharding.pipeline)
        )
        # Sequences of 1000 tokens take 63 blocks of 16, so 1000 of 1008 tokens are of use.
        assert replica.kv_blocks == pytest.approx(held * 1000 / 1008 / 16, rel=1e-4)
    assert staged.kv_blocks > 1.9 * one.kv_blocks
