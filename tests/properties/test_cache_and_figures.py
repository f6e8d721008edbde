"""The cache of a model at several contexts, and its figures in one line, worked out from the dimensions of small models."""

from math import ceil

import pytest

from capplan.engine.lookup import profile
from capplan.families.model_config import read_network
from capplan.fleet.search.candidates import Layout
from capplan.memory.kv_sizes import kv_sizes
from capplan.memory.plan import LIMITS, MemoryPlan
from capplan.model.parameters import summary
from capplan.model.sharding import Sharding
from capplan.readers.catalogue.hardware import device
from tests.nearness import near

DENSE = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 768, "vocab_size": 1000, "head_dim": 32,
    "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 20_000,
}  # fmt: skip
SLIDING = DENSE | {"model_type": "mistral", "sliding_window": 500}
HYBRID = DENSE | {
    "model_type": "qwen3_next", "full_attention_interval": 3, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
    "linear_key_head_dim": 16, "linear_value_head_dim": 24, "linear_conv_kernel_dim": 4, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "decoder_sparse_step": 1,
}  # fmt: skip
TOKEN = 2 * 4 * 32  # keys and values of a layer, in elements


def network(config):
    return read_network(config, "small")


@pytest.mark.parametrize("tensor", [1, 2, 8])
@pytest.mark.parametrize(("dtype", "size"), [("bf16", 2), ("fp8", 1)])
def test_the_cache_of_attention_is_its_tokens_over_the_ranks(tensor, dtype, size):
    found = kv_sizes(network(DENSE), [100, 9000], sequences=7, kv_dtype=dtype, tensor_parallel=tensor)
    held = max(1, 4 // tensor) / 4
    for row, context in zip(found.rows, (100, 9000), strict=True):
        whole = context * 6 * TOKEN * size
        assert (row.context_tokens, row.sequences, row.kv_dtype, row.tensor_parallel) == (
            context,
            7,
            dtype,
            tensor,
        )
        assert row.kv_bytes_per_token == 6 * TOKEN * size
        assert row.kv_bytes_per_sequence == whole
        assert row.state_bytes_per_sequence == 0.0
        assert row.kv_bytes_total == 7 * whole
        assert row.kv_bytes_per_gpu == near(7 * whole * held)
        blocks = ceil(context / 16) * 16 * 6 * TOKEN * size
        assert row.engine_reserved_bytes_per_sequence == blocks
        assert row.engine_reserved_bytes_per_gpu == near(7 * blocks * held)


@pytest.mark.parametrize("tensor", [1, 4])
def test_a_hybrid_keeps_its_states_beside_the_cache_of_its_attention(tensor):
    (row,) = kv_sizes(network(HYBRID), [1000], sequences=3, kv_dtype="bf16", tensor_parallel=tensor).rows
    keys = 1000 * 2 * TOKEN * 2  # two layers in six attend
    assert row.kv_bytes_per_token == 2 * TOKEN * 2
    assert row.kv_bytes_per_sequence == keys
    assert row.state_bytes_per_sequence == near(4 * (8 * 16 * 24 * 2 + 3 * (2 * 4 * 16 + 8 * 24) * 2))
    assert row.kv_bytes_total == near(3 * (keys + row.state_bytes_per_sequence))
    assert row.kv_bytes_per_gpu == near(row.kv_bytes_total / tensor)


def steps_assumed(found):
    return [assumption.what for assumption in found.assumptions if assumption.what.startswith("steps of")]


def test_a_window_is_full_at_its_length_and_the_budget_of_a_step_is_an_assumption():
    found = kv_sizes(network(SLIDING), [499, 500, 5000], kv_dtype="bf16")
    assert [row.kv_bytes_per_token for row in found.rows] == [6 * TOKEN * 2, 0.0, 0.0]
    assert [row.kv_bytes_per_sequence for row in found.rows] == [n * 6 * TOKEN * 2 for n in (499, 500, 500)]
    (assumed,) = steps_assumed(found)
    budget = int(assumed.split()[2])
    assert budget >= 2048
    stated = kv_sizes(network(SLIDING), [5000], kv_dtype="bf16", max_num_batched_tokens=budget)
    assert steps_assumed(stated) == []
    assert stated.rows[0] == found.rows[2]
    small = kv_sizes(network(SLIDING), [5000], kv_dtype="bf16", max_num_batched_tokens=1000).rows[0]
    assert small.engine_reserved_bytes_per_sequence == (ceil(1499 / 16) + 1) * 16 * 6 * TOKEN * 2
    assert steps_assumed(kv_sizes(network(DENSE), [5000], kv_dtype="bf16")) == []


def test_contexts_that_are_not_named_are_the_usual_ones_up_to_the_longest():
    def contexts(config):
        return [row.context_tokens for row in kv_sizes(network(config)).rows]

    assert contexts(DENSE) == [4096, 16384, 20_000]
    assert contexts(DENSE | {"max_position_embeddings": 4096}) == [4096]
    assert contexts(DENSE | {"max_position_embeddings": 4097}) == [4096, 4097]
    assert contexts(DENSE | {"max_position_embeddings": 10**6}) == [4096, 16384, 65536, 131072, 10**6]


def test_the_engine_that_is_asked_for_lays_out_the_cache():
    for engine in ("vllm", "sglang", "trtllm"):
        found = kv_sizes(network(DENSE), [1000], kv_dtype="bf16", engine=engine)
        block = profile(engine).block_tokens
        assert found.engine.engine == engine
        assert found.rows[0].engine_reserved_bytes_per_sequence == ceil(1000 / block) * block * 6 * TOKEN * 2


def test_the_figures_of_a_model_in_one_line():
    attention = 256 * 32 * (8 + 2 * 4) + 256 * 256
    dense = summary(network(DENSE))
    layer = attention + 3 * 256 * 768 + 2 * 256
    counted = ("layers", "attention_layers", "experts", "experts_per_token")
    assert [dense[name] for name in counted] == [6, 6, 0, 0]
    assert dense["parameters"] == 6 * layer + 256 + 2 * 256 * 1000
    assert dense["active_parameters"] == dense["parameters"] - 256 * 1000
    assert dense["weight_bytes"] == 2 * dense["parameters"]
    assert dense["mixers"] == {"attention": 6}
    sizes = ("hidden_size", "vocabulary_size", "max_context_tokens")
    assert [dense[name] for name in sizes] == [256, 1000, 20_000]
    hybrid = summary(network(HYBRID))
    assert [hybrid[name] for name in counted] == [6, 2, 8, 2]
    assert hybrid["mixers"] == {"gated_delta": 4, "attention": 2}
    assert hybrid["parameters"] - hybrid["active_parameters"] == 256 * 1000 + 6 * 6 * 3 * 256 * 64
    assert summary(network(SLIDING))["mixers"] == {"sliding_window": 6}


@pytest.mark.parametrize(
    ("sharding", "dtype", "words"),
    [
        (Sharding(4.0), "fp8", "TP4, fp8"),
        (Sharding(1.0), "auto", "TP1, as published"),
        (Sharding(2.0, 3.0), "int4", "TP2 PP3, int4"),
        (Sharding(2.0, 1.0, 8.0, 4.0), "auto", "TP2 DP4 EP8, as published"),
    ],
)
def test_a_layout_says_how_it_is_cut(sharding, dtype, words):
    layout = Layout(device("h100-sxm"), sharding, dtype, "auto")
    assert layout.in_words() == words
    assert layout.devices == sharding.tensor * sharding.pipeline * sharding.data


@pytest.mark.parametrize(
    ("short", "code"),
    [({}, 0), ({"weight_bytes": 80.0}, 1), ({"kv_bytes_available": 0.0}, 2), ({"max_concurrency": 0.99}, 3), ({"headroom_bytes": -1.0}, 4)],
)  # fmt: skip
def test_a_plan_says_what_is_short_by_the_first_limit_that_it_meets(short, code):
    names = MemoryPlan.__dataclass_fields__
    plenty = dict.fromkeys(names, 10.0) | {
        "usable_bytes": 80.0,
        "weight_bytes": 79.0,
        "max_concurrency": 1.0,
        "headroom_bytes": 0.0,
    }
    plan = MemoryPlan(**(plenty | short))
    assert plan.limit_codes == code
    assert bool(plan.fits) == (code == 0)
    assert plan.limits == ((LIMITS[code],) if code else ())
