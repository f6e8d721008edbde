"""What must hold for any network that can be read, and for any config.json that cannot."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import CapplanError, InputError
from capplan.families.model_config import read_network
from capplan.families.registry import REFUSED, families, family
from capplan.memory.capacity import stage_edges, stages_of
from capplan.model.kv_cache import kv_bytes_per_sequence, kv_bytes_per_token, state_bytes_per_sequence
from capplan.model.parameters import (
    parameters,
    weight_bytes,
    weight_bytes_per_rank,
)
from capplan.model.sharding import Sharding
from tests.sweeps import examples

law = settings(deadline=None, max_examples=60)
powers = st.integers(0, 4).map(lambda exponent: 2**exponent)


@st.composite
def configs(draw):
    """Draw a small config of one of four shapes: dense, sliding, experts, latent."""
    kind = draw(st.sampled_from(["llama", "gemma2", "qwen3_moe", "deepseek_v3", "gpt_oss", "llama4_text"]))
    kv_heads = draw(powers)
    heads = kv_heads * draw(powers)
    config = {
        "model_type": kind,
        "hidden_size": heads * draw(st.sampled_from([8, 16, 64])),
        "num_hidden_layers": draw(st.integers(1, 9)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": draw(st.sampled_from([8, 16, 24])),
        "intermediate_size": draw(st.sampled_from([64, 96, 160])),
        "vocab_size": draw(st.integers(16, 512)) * 16,
        "tie_word_embeddings": draw(st.booleans()),
    }
    if kind in ("qwen3_moe", "deepseek_v3", "gpt_oss", "llama4_text"):
        experts = draw(st.sampled_from([4, 8, 16]))
        config |= dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), experts)
        config |= {"num_experts_per_tok": draw(st.integers(1, 4)), "moe_intermediate_size": 32}
        config |= {"intermediate_size_mlp": 128}
    if kind == "deepseek_v3":
        config |= {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
        config |= {"v_head_dim": 16, "n_shared_experts": 1, "first_k_dense_replace": draw(st.integers(0, 2))}
    if kind in ("gemma2", "gpt_oss"):
        config |= {"sliding_window": draw(st.integers(1, 4096))}
    if kind == "llama4_text":
        config |= {"attention_chunk_size": draw(st.integers(1, 8192)), "interleave_moe_layer_step": 2}
    return config


networks = configs().map(lambda config: read_network(config, "drawn"))
tokens = st.integers(0, 1_000_000).map(float)


@law
@given(networks, tokens)
def test_the_growth_is_what_the_next_token_adds(network, context):
    added = kv_bytes_per_sequence(network, context + 1, 2.0) - kv_bytes_per_sequence(network, context, 2.0)
    assert kv_bytes_per_token(network, context, 2.0) == added


@law
@given(networks, st.lists(tokens, min_size=1, max_size=5))
def test_arrays_and_numbers_agree(network, contexts):
    together = kv_bytes_per_sequence(network, np.array(contexts), 2.0)
    assert together.tolist() == [float(kv_bytes_per_sequence(network, context, 2.0)) for context in contexts]


@law
@given(networks, tokens, powers)
def test_tensor_parallelism_divides_the_cache_once_down_to_one_head_and_never_a_latent(
    network, context, tensor
):
    whole = kv_bytes_per_sequence(network, context, 2.0)
    rank = kv_bytes_per_sequence(network, context, 2.0, float(tensor))
    heads = {getattr(mixer, "kv_heads", 1) for layer in network.layers for mixer in layer.mixers}
    assert rank * min(tensor, *heads) == whole


@law
@given(networks)
def test_one_rank_is_the_unsharded_model(network):
    assert weight_bytes_per_rank(network, Sharding()) == weight_bytes(network)
    assert state_bytes_per_sequence(network, 1.0) == state_bytes_per_sequence(network)


def each_stage(network, pipeline):
    """Yield the layers of every pipeline rank; `stages_of` gives equal ones once."""
    found = stages_of(network, pipeline)
    for start, end in stage_edges(len(network.layers), pipeline):
        ends = start == 0, end == len(network.layers)
        yield next(
            s for s in found if (s.first, s.last) == ends and s.network.layers == network.layers[start:end]
        )


@law
@given(networks, powers, powers, st.integers(1, 9), powers)
def test_stages_together_are_the_network_and_a_second_copy_of_a_tied_head(
    network, tensor, data, pipeline, expert
):
    """What the first stage embeds with, the last one needs again; all else is there once."""
    pipeline = min(pipeline, len(network.layers))
    sharding = Sharding(float(tensor), expert=float(min(expert, tensor * data)), data=float(data))
    held = [weight_bytes_per_rank(stage.network, sharding) for stage in each_stage(network, pipeline)]
    copies = network.vocabulary_size * network.hidden_size * 2.0 / tensor
    twice = copies if network.tied_embeddings and pipeline > 1 else 0.0
    assert sum(held) == pytest.approx(weight_bytes_per_rank(network, sharding) + twice, rel=1e-12)


@law
@given(networks, powers, powers, st.integers(1, 9), powers)
def test_ranks_together_hold_at_least_the_model_and_none_more_than_it(
    network, tensor, data, pipeline, expert
):
    expert = min(expert, tensor * data)
    sharding = Sharding(float(tensor), expert=float(expert), data=float(data))
    stages = list(each_stage(network, min(pipeline, len(network.layers))))
    held = [weight_bytes_per_rank(stage.network, sharding) for stage in stages]
    # Dealt out whole, experts may leave one rank with more than its share, never with more than all of them.
    assert sum(held) * tensor * data >= weight_bytes(network) * (1 - 1e-12)
    assert max(held) <= weight_bytes(network) * (1 + 1e-12)


@law
@given(networks)
def test_plans_priced_together_are_plans_priced_alone(network):
    tensor = np.array([1.0, 2.0, 4.0, 8.0, 2.0])
    expert = np.array([1.0, 2.0, 4.0, 8.0, 1.0])
    together = weight_bytes_per_rank(network, Sharding(tensor, expert=expert))
    alone = [
        weight_bytes_per_rank(network, Sharding(ranks, expert=groups))
        for ranks, groups in zip(tensor, expert, strict=True)
    ]
    assert together.tolist() == pytest.approx(alone, rel=1e-12)


@law
@given(st.integers(1, 200), st.integers(1, 16))
def test_stages_cover_the_layers_without_gap_and_differ_by_one_at_most(layers, stages):
    edges = stage_edges(layers, stages)
    assert edges[0][0] == 0
    assert edges[-1][1] == layers
    assert all(end == start for (_, end), (start, _) in pairwise(edges))
    sizes = [end - start for start, end in edges]
    assert max(sizes) - min(sizes) <= 1


BROKEN = [0, -1, "4096", True, math.nan, math.inf, 1e30, 2.5, [4096], {}]
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
}  # fmt: skip


@pytest.mark.parametrize("value", BROKEN, ids=repr)
@pytest.mark.parametrize("key", [key for key in LLAMA if key != "model_type"])
def test_a_broken_dimension_is_refused_with_its_file_and_key(key, value):
    with pytest.raises(InputError) as refusal:
        read_network(LLAMA | {key: value}, "broken", "here/config.json")
    first = str(refusal.value).splitlines()[0]
    assert first.startswith(f"here/config.json: {key}: ")


@pytest.mark.parametrize(
    "key", ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
)
def test_a_missing_dimension_is_named(key):
    config = {name: value for name, value in LLAMA.items() if name != key}
    with pytest.raises(InputError, match=rf"config.json: {key}: missing"):
        read_network(config, "broken")


def test_a_misspelt_key_is_found():
    config = {("hiden_size" if key == "hidden_size" else key): value for key, value in LLAMA.items()}
    with pytest.raises(InputError, match="did you mean"):
        read_network(config, "broken")


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(
        InputError, match=r"num_attention_heads: 4 is not divisible by num_key_value_heads = 3"
    ):
        read_network(LLAMA | {"num_key_value_heads": 3}, "broken")
    with pytest.raises(InputError, match=r"hidden_size: 66 is not divisible"):
        read_network(LLAMA | {"hidden_size": 66}, "broken")


def test_more_experts_per_token_than_experts_are_refused():
    config = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5}
    with pytest.raises(InputError, match="5 of 4 experts"):
        read_network(config, "broken")


@pytest.mark.parametrize("whole", [[], [LLAMA], "llama", 7, None, True])
def test_a_file_that_is_not_an_object_is_refused(whole):
    with pytest.raises(InputError, match="not an object"):
        read_network(whole, "broken")


@pytest.mark.parametrize("kind", ["longformer", "vit", "clip", "pegasus", "marian", "siglip", "esm", "bart"])
def test_models_that_do_not_decode_are_refused_with_the_reason(kind):
    with pytest.raises(InputError) as refusal:
        read_network(LLAMA | {"model_type": kind}, "broken")
    first, *more = str(refusal.value).splitlines()
    assert repr(kind) in first
    assert len(first) > 60
    assert "docs/models.md" in more[0]


def test_a_misspelled_model_type_gets_the_nearest():
    with pytest.raises(InputError, match=r"'lama' is not modelled; if it is built like 'llama'") as refusal:
        read_network(LLAMA | {"model_type": "lama"}, "broken")
    assert "docs/models.md" in str(refusal.value)


@pytest.mark.parametrize("kind", [None, 7, ["llama"], {}])
def test_a_model_type_that_is_not_a_name_is_refused(kind):
    with pytest.raises(InputError, match="model_type"):
        read_network(LLAMA | {"model_type": kind}, "broken")


def test_every_type_has_a_reader_and_none_is_refused_as_well():
    assert all(callable(family(kind)) for kind in families())
    assert not set(families()) & REFUSED.keys()


values = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 200), st.floats(), st.text(max_size=8),
    st.lists(st.one_of(st.none(), st.integers(-1, 9), st.text(max_size=4)), max_size=12),
    st.dictionaries(st.sampled_from(["hidden_size", "attention", "ffn", "no_op"]), st.integers(-1, 9), max_size=3),
)  # fmt: skip
KEYS = sorted(
    {*LLAMA, "head_dim", "sliding_window", "layer_types", "num_experts", "n_routed_experts", "num_local_experts",
     "num_experts_per_tok", "moe_intermediate_size", "mlp_layer_types", "first_k_dense_replace", "text_config",
     "vision_config", "tie_word_embeddings", "block_configs", "moe_layer_freq", "mlp_only_layers", "moe_layers",
     "no_rope_layers", "kv_lora_rank", "q_lora_rank", "merge_kernel_size", "moe_layers_enum", "per_layer_config",
     "sliding_window_pattern", "no_rope_layer_interval", "interleave_moe_layer_step", "swa_head_dim", "num_layers",
     "n_layer", "n_head", "moe_topk", "num_shared_expert", "decoder_sparse_step", "sparse_attention_config", "attn_config", "dtype", "quantization_config",
     "layers_block_type", "hybrid_override_pattern", "attn_layer_indices", "full_attn_idxs", "linear_attn_config"}
    - {"model_type"}
)  # fmt: skip


RICH = LLAMA | {
    "num_key_value_heads": 4, "sliding_window": 8, "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4,
    "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2, "top_k_experts": 2,
    "moe_intermediate_size": 32, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4, "num_layers": 2, "ffn_hidden_size": 64,
    "expert_ffn_hidden_size": 32, "n_embd": 64, "n_head": 4, "n_heads": 4, "n_layer": 2, "n_layers": 2, "d_model": 64,
    "ffn_dim": 96, "hybrid_layer_pattern": [0, 1], "dense_intermediate_size": 96, "intermediate_size_mlp": 96,
    "num_key_value_heads_per_layer": [1, 2], "shared_expert_intermediate_size": 32, "share_expert_dim": 32,
    "attention_chunk_size": 8, "num_kv_shared_layers": 1, "laurel_rank": 4, "num_shared_expert": 1,
    "moe_num_shared_experts": 1, "num_shared_experts": 1,
}  # fmt: skip
"""Enough keys for every family, so that what is broken is what we broke."""


@settings(max_examples=examples(300, 1500), deadline=None)
@given(st.sampled_from(sorted(families())), st.dictionaries(st.sampled_from(KEYS), values, max_size=5))
def test_any_config_is_read_or_refused_in_our_own_words(kind, changes):
    config = RICH | {"model_type": kind} | changes
    if changes.get("text_config") == {}:
        config["text_config"] = RICH | {"model_type": f"{kind}_text"}
    try:
        network = read_network(config, "any")
    except CapplanError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert parameters(network) > 0
    assert not refusal or refusal.splitlines()[0].startswith("config.json: ")


def test_the_rich_config_is_enough_for_the_families_of_attention():
    read = set()
    for kind in families():
        for config in (RICH, {"text_config": RICH | {"model_type": "text"}}):
            try:
                read_network(config | {"model_type": kind}, "rich")
            except CapplanError:
                continue
            read.add(kind)
    assert len(read) > 70


def test_keys_that_were_read_are_listed():
    network = read_network(LLAMA, "listed")
    assert {"hidden_size", "vocab_size", "num_key_value_heads"} <= set(network.keys_used)
    assert json.dumps(network.keys_used)
