"""Steps outside of CUDA graphs: they take at least as long as their launches, hold no graph in memory, and nothing else changes."""

import json
import re

import numpy as np
import pytest

from capplan.errors import InputError
from capplan.replica.plans import plans_of, plans_tables
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica

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
