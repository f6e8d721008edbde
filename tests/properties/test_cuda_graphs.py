"""Steps in CUDA graphs and outside of them: padded batches, launches that a step waits for, and the memory that graphs take."""

import json
import re
from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.errors import InputError
from capplan.memory.launch import Launch
from capplan.replica.plans import plans_of, plans_tables, prefill_graph_tokens
from capplan.replica.tables import device_tables, graph_jumps, padded_batch, step_knots
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.serving.step_table import piecewise_linear
from tests.properties.test_replica_steps import NETWORK, RATES

MODEL = "llama-3.1-8b"


def spec_of(engine="vllm", model=MODEL, **flags):
    return asked_replica(model, "h100-sxm", ServingFlags(engine=engine, offline=True, **flags)).spec


def decode_s(spec):
    """Return the sequences of decode steps, and the time of each without its attention."""
    found = plans_tables(plans_of([spec])).table
    return np.asarray(found.sequence_knots), np.asarray(found.decode_s)[0]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("limit", [0, 1, 8, 64])
def test_only_steps_of_more_sequences_than_the_largest_graph_wait_for_their_launches(engine, limit):
    usual, limited = spec_of(engine, max_num_seqs=128), spec_of(engine, max_num_seqs=128, cuda_graphs=limit)
    sizes, seconds = decode_s(limited)
    captured = np.interp(sizes, *decode_s(usual))
    host = usual.profile.host
    launches_s = host.eager_layer_s * len(usual.network.layers)
    inside, outside = sizes <= limit, sizes > limit
    assert seconds[inside] == pytest.approx(captured[inside], rel=0.02)
    assert (seconds[outside] >= captured[outside] * 0.999).all()
    assert (seconds[outside] >= launches_s).all()
    assert inside.any() == (limit > 0)
    assert outside.any()


def test_groups_of_attention_have_graphs_of_their_own():
    spec = spec_of(
        model="deepseek-ai/DeepSeek-V3", data_parallel=8, expert_parallel=8, max_num_seqs=64, cuda_graphs=16
    )
    sizes, seconds = decode_s(spec)
    free = np.interp(
        sizes,
        *decode_s(
            spec_of(model="deepseek-ai/DeepSeek-V3", data_parallel=8, expert_parallel=8, max_num_seqs=64)
        ),
    )
    waits = sizes[seconds > free * 1.05]
    assert waits.min() > 8 * 16


def test_llamacpp_has_no_such_limit():
    with pytest.raises(InputError, match="cuda_graphs: is of vllm, sglang, trtllm; leave it out"):
        spec_of("llamacpp", cuda_graphs=0)


@pytest.mark.parametrize("limit", [0, 16])
def test_explain_names_the_limit_and_the_export_states_it(capplan, tmp_path, limit):
    plan, scenario = tmp_path / "plan.json", tmp_path / "few.yaml"
    scenario.write_text(
        f"name: few\nmodel: {MODEL}\ncuda_graphs: {limit}\n"
        "traffic: [{request_rate: 2 req/s, input_tokens: 400, output_tokens: 60}]\n"
        "fleet: {hardware: [h100-sxm], tensor_parallel: 1}\n"
    )
    assert capplan("fleet", scenario, "--offline", "-o", plan).code == 0
    explained = capplan("explain", plan, "cuda_graph_bytes_per_gpu").out
    assert re.search(rf"^c +cuda_graphs +{limit} ", explained, re.MULTILINE)
    command = capplan("export", plan, "--target", "vllm").out
    assert ("--enforce-eager" if limit == 0 else f"--max-cudagraph-capture-size {limit}") in command


def test_without_graphs_their_memory_holds_cache(capplan):
    def fitted(*flags):
        answer = capplan("fit", MODEL, "--hardware", "h100-sxm", "--offline", "--format", "json", *flags)
        return json.loads(answer.out)["result"]

    usual, eager, few = fitted(), fitted("--cuda-graphs", "0"), fitted("--cuda-graphs", "8")
    assert (
        eager["cuda_graph_bytes_per_gpu"]
        == 0.0
        < few["cuda_graph_bytes_per_gpu"]
        < usual["cuda_graph_bytes_per_gpu"]
    )
    assert usual["kv_cache_tokens"] < few["kv_cache_tokens"] < eager["kv_cache_tokens"]


SIZES = st.lists(st.integers(1, 512), min_size=1, max_size=8, unique=True).map(sorted)


def captured(sizes, most):
    """Return the graphs of an engine: those that fit its largest batch, and that batch where a larger one was asked for."""
    fitting = [size for size in sizes if size <= most]
    return fitting if len(fitting) == len(sizes) or most in fitting else [*fitting, most]


@given(SIZES, st.integers(1, 600), st.data())
def test_a_batch_runs_in_the_next_captured_graph_or_as_it_is(sizes, most, data):
    batch = data.draw(st.integers(1, most))
    graphs = captured(sizes, most)
    place = bisect_left(graphs, batch)
    expected = graphs[place] if place < len(graphs) else batch
    assert padded_batch(float(batch), sizes, float(most)) == expected


def test_without_captured_sizes_nothing_is_padded():
    assert padded_batch(np.array([1.0, 7.0]), (), 64.0).tolist() == [1.0, 7.0]


@pytest.mark.parametrize(("data", "pipeline"), [(1.0, 1.0), (4.0, 1.0), (1.0, 2.0)])
def test_a_padded_step_takes_the_time_of_the_captured_batch_between_all_knots(data, pipeline):
    """Every group of attention and every micro-batch is padded by itself; prompts and cached tokens are not."""
    sizes, engines = (1.0, 8.0, 64.0, 128.0), int(data * pipeline)
    launch = Launch(1.0, 1.0, data, pipeline, 80e9, 2.0, 4096.0, 96.0, 2048.0, 0.9, 16.0).as_columns()
    knots = step_knots(96.0 * engines, 2048.0, 4096.0, (), graph_jumps(sizes, launch))
    padded = device_tables(NETWORK, launch, RATES, knots, sizes).kernels
    plain = device_tables(NETWORK, launch, RATES, step_knots(96.0 * engines, 2048.0, 4096.0)).kernels
    batches = np.arange(1.0, 96.0) * engines
    there = padded_batch(batches / engines, sizes, 96.0) * engines
    held = device_tables(
        NETWORK, launch, RATES, step_knots(96.0 * engines, 2048.0, 4096.0, (), there)
    ).kernels
    found = piecewise_linear(knots.sequences, padded.decode_s[0], batches)
    assert found == pytest.approx(piecewise_linear(held.sequence_knots, held.decode_s[0], there))
    assert np.all(found >= piecewise_linear(held.sequence_knots, held.decode_s[0], batches))
    assert padded.mixed_s[0] == pytest.approx(plain.mixed_s[0])
    assert padded.head_s[0] == pytest.approx(
        piecewise_linear(plain.sequence_knots, plain.head_s[0], knots.sequences)
    )


@pytest.mark.parametrize(
    ("model", "version", "layout", "tokens"),
    [
        ("Qwen/Qwen3-32B", "0.5.9", {}, 0.0),
        ("Qwen/Qwen3-32B", "0.5.10", {}, 4096.0),
        ("Qwen/Qwen3-32B", "0.5.10", {"pipeline_parallel": 2}, 0.0),
        ("deepseek-ai/DeepSeek-V3", "0.5.10", {"tensor_parallel": 8}, 2048.0),
        ("deepseek-ai/DeepSeek-V3", "0.5.10", {"data_parallel": 8, "expert_parallel": 8}, 0.0),
        ("deepseek-ai/DeepSeek-V4-Flash", "0.5.10", {"tensor_parallel": 8}, 0.0),
    ],
)
def test_sglang_captures_steps_with_prompts_up_to_a_chunk(model, version, layout, tokens):
    """Of latent attention up to 2,048 tokens, and not with groups, stages or compressed attention: docs/advanced_features/piecewise_cuda_graph.md."""
    flags = ServingFlags(engine="sglang", engine_version=version, max_num_batched_tokens=4096, **layout)
    assert prefill_graph_tokens(asked_replica(model, "h200-sxm", flags).spec) == tokens
