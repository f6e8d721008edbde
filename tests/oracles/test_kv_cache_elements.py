"""Does our cache hold the elements that caches were seen to hold?

MEASURED was counted in tiny models of each family (hidden size 64, four query heads, two KV heads, heads of 16,
windows of 32, unless the family says otherwise) run with Hugging Face transformers 5.23 on 24, 48, 96 and 192
tokens: the elements of every cache tensor, per layer. Two of its conventions are not the engine's truth:

- A sliding layer keeps window - 1 tokens there (31 of 32): the token of the step itself is added after. A position
  sees 32 tokens, itself included, and an engine stores its key too, so the architecture's need is min(n, window).
- Falcon's newer decoder copies each KV head to all its query heads before it caches (4 heads for 2); engines do not.
"""

from dataclasses import replace

import numpy as np
import pytest

from capplan.families.model_config import read_network
from capplan.model.kv_cache import (
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    state_bytes_per_sequence,
)
from capplan.model.network import Attention, Layer
from capplan.model.weight_format import in_weight_format

TOKENS = np.array([24.0, 48.0, 96.0, 192.0])

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 128}  # fmt: skip
OLD = {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 128, "n_positions": 256}
FALCON = {
    "model_type": "falcon",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 128,
}
WINDOW = {"sliding_window": 32}
LATENT = TINY | {
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 16, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
INDEX = {"index_n_heads": 4, "index_head_dim": 16, "index_topk": 64}
SIX = ["sliding_attention"] * 5 + ["full_attention"]
FEW_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

CONFIGS = {
    "gpt2": OLD | {"model_type": "gpt2"},
    "opt": {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 128,
            "ffn_dim": 96},
    "bloom": {"model_type": "bloom", "hidden_size": 64, "n_layer": 4, "n_head": 4, "vocab_size": 128},
    "gpt_neox": {k: v for k, v in TINY.items() if k != "num_key_value_heads"} | {"model_type": "gpt_neox"},
    "gpt_bigcode": OLD | {"model_type": "gpt_bigcode"},
    "gpt_bigcode/mha": OLD | {"model_type": "gpt_bigcode", "multi_query": False},
    "falcon/mqa": FALCON | {"multi_query": True},
    "falcon/new": FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon/mha": FALCON | {"multi_query": False},
    "mpt": {"model_type": "mpt", "d_model": 64, "n_layers": 4, "n_heads": 4, "vocab_size": 128},
    "llama": TINY | {"model_type": "llama"},
    "llama/head_dim": TINY | {"model_type": "llama", "head_dim": 24},
    "qwen2/use_sliding_false": TINY | WINDOW | {"model_type": "qwen2", "use_sliding_window": False},
    "qwen2/use_sliding_true": TINY | WINDOW | {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 2},
    "mistral/sw": TINY | WINDOW | {"model_type": "mistral"},
    "mistral/nosw": TINY | {"model_type": "mistral", "sliding_window": None},
    "mixtral": TINY | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "phi3/sw": TINY | WINDOW | {"model_type": "phi3"},
    "gemma2": TINY | WINDOW | {"model_type": "gemma2", "head_dim": 16},
    "gemma3_text": TINY | WINDOW | {"model_type": "gemma3_text", "head_dim": 16, "num_hidden_layers": 6},
    "gemma3n_text": TINY | WINDOW | {"model_type": "gemma3n_text", "head_dim": 16, "num_hidden_layers": 10,
                                     "num_kv_shared_layers": 5, "hidden_size_per_layer_input": 8, "laurel_rank": 8},
    "gemma4_text": TINY | WINDOW | {"model_type": "gemma4_text", "head_dim": 16, "global_head_dim": 32,
                                    "num_hidden_layers": 6, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
                                    "hidden_size_per_layer_input": 0},
    "gemma4_text/shared": TINY | WINDOW | {"model_type": "gemma4_text", "head_dim": 16, "global_head_dim": 32,
                                           "num_hidden_layers": 12, "num_kv_shared_layers": 6,
                                           "layer_types": SIX[3:] * 4, "hidden_size_per_layer_input": 8},
    "gpt_oss": TINY | WINDOW | {"model_type": "gpt_oss", "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": TINY | {"model_type": "llama4_text", "head_dim": 16, "attention_chunk_size": 32,
                           "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 96},
    "cohere2": TINY | WINDOW | {"model_type": "cohere2", "head_dim": 16},
    "exaone4": TINY | WINDOW | {"model_type": "exaone4", "sliding_window_pattern": 4},
    "olmo3": TINY | WINDOW | {"model_type": "olmo3"},
    "smollm3": TINY | {"model_type": "smollm3"},
    "qwen3_moe": TINY | FEW_EXPERTS | {"model_type": "qwen3_moe", "head_dim": 24, "num_experts": 4},
    "glm4_moe": TINY | FEW_EXPERTS | {"model_type": "glm4_moe", "n_routed_experts": 4, "head_dim": 16},
    "deepseek_v2": LATENT | {"model_type": "deepseek_v2"},
    "deepseek_v3": LATENT | {"model_type": "deepseek_v3"},
    "deepseek_v32": LATENT | INDEX | {"model_type": "deepseek_v32"},
    "glm_moe_dsa": LATENT | INDEX | {"model_type": "glm_moe_dsa"},
    "glm4_moe_lite": LATENT | {"model_type": "glm4_moe_lite"},
    "longcat_flash": LATENT | {"model_type": "longcat_flash", "num_layers": 1, "ffn_hidden_size": 96, "moe_topk": 2,
                               "expert_ffn_hidden_size": 32},
    "mistral4": LATENT | {"model_type": "mistral4"},
    "minimax_m2": TINY | {"model_type": "minimax_m2", "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "mimo_v2_flash": TINY | FEW_EXPERTS | WINDOW | {
        "model_type": "mimo_v2_flash", "head_dim": 24, "v_head_dim": 16, "num_key_value_heads": 2,
        "swa_num_key_value_heads": 4, "n_routed_experts": 4, "hybrid_layer_pattern": [0, 1, 1, 1],
        "moe_layer_freq": [0, 1, 1, 1]},
    "hunyuan_v1_moe": TINY | {"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": 2, "num_shared_expert": 1},
    "granite": TINY | {"model_type": "granite"},
}  # fmt: skip

# family: layers that keep everything (how many, elements per token), layers that slide (how many, per token)
MEASURED = {
    "gpt2": ((4, 128), None), "opt": ((4, 128), None), "bloom": ((4, 128), None), "gpt_neox": ((4, 128), None),
    "gpt_bigcode": ((4, 32), None), "gpt_bigcode/mha": ((4, 128), None), "falcon/mqa": ((4, 32), None),
    "falcon/new": ((4, 128), None), "falcon/mha": ((4, 128), None), "mpt": ((4, 128), None), "llama": ((4, 64), None),
    "llama/head_dim": ((4, 96), None), "qwen2/use_sliding_false": ((4, 64), None),
    "qwen2/use_sliding_true": ((2, 64), (2, 64)), "mistral/sw": (None, (4, 64)), "mistral/nosw": ((4, 64), None),
    "mixtral": ((4, 64), None), "phi3/sw": (None, (4, 64)), "gemma2": ((2, 64), (2, 64)),
    "gemma3_text": ((1, 64), (5, 64)), "gemma3n_text": ((1, 64), (4, 64)), "gemma4_text": ((1, 64), (5, 64)),
    "gemma4_text/shared": ((2, 128), (4, 64)), "gpt_oss": ((2, 64), (2, 64)), "llama4_text": ((1, 64), (3, 64)),
    "cohere2": ((1, 64), (3, 64)), "exaone4": ((1, 64), (3, 64)), "olmo3": ((1, 64), (3, 64)),
    "smollm3": ((4, 64), None), "qwen3_moe": ((4, 96), None), "glm4_moe": ((4, 64), None),
    "deepseek_v2": ((4, 24), None), "deepseek_v3": ((4, 24), None), "deepseek_v32": ((4, 40), None),
    "glm_moe_dsa": ((4, 40), None), "glm4_moe_lite": ((4, 24), None), "longcat_flash": ((2, 24), None),
    "mistral4": ((4, 24), None), "minimax_m2": ((4, 64), None), "mimo_v2_flash": ((1, 80), (3, 160)),
    "hunyuan_v1_moe": ((4, 64), None), "granite": ((4, 64), None),
}  # fmt: skip
COPIED_HEADS = {"falcon/new": 2}
"""Families whose measured cache repeats each KV head this many times."""


def elements_per_token(network, mixer, ranks=1.0):
    """Return what the first token leaves in the cache of one layer on one rank, at a byte per element."""
    return kv_bytes_per_token(replace(network, layers=(Layer((mixer,), ()),)), 0.0, 1.0, ranks)


def cached_layers(network):
    """Return (layers, elements per token) of the full and of the sliding layers that cache anything."""
    found = {False: [], True: []}
    for layer in network.layers:
        for mixer in layer.mixers:
            elements = float(elements_per_token(network, mixer))
            if elements:
                found[isinstance(mixer, Attention) and mixer.window_tokens is not None].append(elements)
    assert all(len(set(elements)) <= 1 for elements in found.values())
    return tuple(
        (len(found[slides]), found[slides][0]) if found[slides] else None for slides in (False, True)
    )


@pytest.mark.parametrize("family", MEASURED)
def test_every_layer_holds_the_measured_elements_per_token(family):
    full, slides = MEASURED[family]
    copies = COPIED_HEADS.get(family, 1)
    expected = (full and (full[0], full[1] / copies), slides)
    assert cached_layers(read_network(CONFIGS[family], family)) == expected


@pytest.mark.parametrize(("family", "both_sides"), [("gemma3_text", True), ("gemma4_text", "all")])
def test_a_window_to_both_sides_is_half_as_long(family, both_sides):
    """`Gemma3TextConfig` and `Gemma4TextConfig` of transformers 5.23 make a sliding window of 32 tokens one of 17."""
    network = read_network(CONFIGS[family] | {"use_bidirectional_attention": both_sides}, family)
    windows = {mixer.window_tokens for layer in network.layers for mixer in layer.mixers}
    assert windows == {None, 17}


@pytest.mark.parametrize("family", MEASURED)
def test_the_cache_of_a_sequence_is_the_measured_one_at_every_length(family):
    full, slides = MEASURED[family]
    network = read_network(CONFIGS[family], family)
    ours = kv_bytes_per_sequence(network, TOKENS, kv_bytes_per_element=1.0)
    whole = full[0] * full[1] * TOKENS / COPIED_HEADS.get(family, 1) if full else 0.0 * TOKENS
    measured = whole + (slides[0] * slides[1] * np.minimum(TOKENS, 31) if slides else 0.0)
    stored_too = slides[0] * slides[1] * (TOKENS >= 32) if slides else 0.0
    assert ours.tolist() == (measured + stored_too).tolist()


def test_the_table_here_is_what_was_measured(measured):
    seen = {}
    for row in measured.table("cache_elements"):
        if row["family"] in MEASURED and row["layer_class"] != "DummyLayer":
            slides = "Sliding" in row["layer_class"]
            elements = [float(row[f"elements_{int(n)}"]) for n in TOKENS]
            per_token = elements[0] / 24
            kept = np.minimum(TOKENS, 31) if slides else TOKENS
            assert elements == (per_token * kept).tolist(), row["family"]
            seen.setdefault(row["family"], [None, None])[slides] = (int(row["layers"]), per_token)
    assert {family: tuple(pair) for family, pair in seen.items()} == {
        family: pair for family, pair in MEASURED.items() if measured.whole or family in seen
    }
    assert len(seen) >= 15


def test_published_models_cache_the_bytes_of_their_dimensions(measured):
    differs = {
        # 57 of its 78 layers reuse the choice of an earlier indexer and hold no index keys; the row counts 78.
        "zai-org/GLM-5.2": 78 * 576 * 2 + 21 * 128 * 2,
        # The row leaves out the index keys of its block-sparse layers: 57 of 60 layers, one key of 128.
        "MiniMaxAI/MiniMax-M3": 122880 + 57 * 128 * 2,
    }
    configs, checked = measured.configs(), 0
    for row in measured.table("models"):
        name, config = row["model"], configs.get(row["model"], {})
        if "model_type" not in config or not row["kv_bytes_per_token"]:
            continue
        network = read_network(config, name)
        # Far beyond any sliding window (phi-3 has windows of 262,144), not beyond a chunk, the row has no chunks.
        expected = differs.get(name) or float(row["kv_bytes_per_token"])
        assert kv_bytes_per_token(network, 10_000_000.0, 2.0) == expected, name
        if row["window"]:
            cap = float(row["window_bytes"])
            grown = kv_bytes_per_sequence(network, 10_000_000.0, 2.0) - 10_000_000.0 * expected
            assert grown == cap, name
        checked += 1
    assert checked > (50 if measured.whole else 20)


def model(**keys):
    return read_network(TINY | {"model_type": "llama"} | keys, "model")


LLAMA_70B = {"hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 80,
             "intermediate_size": 28672, "vocab_size": 128256}  # fmt: skip
DEEPSEEK_V3 = LATENT | {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128,
}  # fmt: skip


def test_llama_3_70b_needs_1_25_gib_at_4096_tokens_and_42_95_gb_at_131072():
    # 2 x 80 layers x 8 KV heads x 128 x 2 bytes per token; guides print 1.07 and 34.4 GB.
    contexts = np.array([4096.0, 131072.0])
    assert kv_bytes_per_sequence(model(**LLAMA_70B), contexts, 2.0).tolist() == [
        1_342_177_280.0,
        42_949_672_960.0,
    ]


def test_llama_3_70b_needs_320_kib_per_token_not_320_mb_per_user():
    assert kv_bytes_per_token(model(**LLAMA_70B), 4096.0, 2.0) == 320 * 1024


def test_the_latent_of_deepseek_v3_is_not_divided_by_tensor_parallelism():
    # arXiv:2405.04434, table 1: (d_c + d_h^R) per token and layer; every rank needs all of it.
    network = read_network(DEEPSEEK_V3, "DeepSeek-V3")
    ranks = np.array([1.0, 2.0, 8.0, 16.0])
    assert kv_bytes_per_token(network, 4096.0, 2.0, ranks).tolist() == [61 * 576 * 2.0] * 4


def test_kv_heads_are_not_query_heads():
    assert kv_bytes_per_token(model(**LLAMA_70B), 0.0, 2.0) * 8 == kv_bytes_per_token(
        model(**LLAMA_70B | {"num_key_value_heads": 64}), 0.0, 2.0
    )


def test_a_rank_holds_at_least_one_kv_head():
    ranks = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    per_rank = kv_bytes_per_token(model(**LLAMA_70B), 0.0, 2.0, ranks)
    assert (per_rank / (80 * 2 * 128 * 2)).tolist() == [8.0, 4.0, 2.0, 1.0, 1.0, 1.0]


def test_layers_of_a_hybrid_are_not_all_counted_as_full():
    # gpt-oss-120b: 18 layers of a 128-token window, 18 full ones; far out only the full ones grow.
    config = TINY | {"model_type": "gpt_oss", "num_hidden_layers": 36, "num_attention_heads": 64,
                     "num_key_value_heads": 8, "head_dim": 64, "hidden_size": 2880, "num_local_experts": 128,
                     "num_experts_per_tok": 4, "sliding_window": 128}  # fmt: skip
    network = read_network(config, "gpt-oss-120b")
    assert kv_bytes_per_token(network, np.array([0.0, 131072.0]), 2.0).tolist() == [73728.0, 36864.0]


def test_long_cat_caches_two_latents_in_each_of_its_layers():
    # Seen in transformers 5.23: two layers give four cache tensors pairs.
    network = read_network(CONFIGS["longcat_flash"] | {"num_layers": 2}, "longcat")
    assert cached_layers(network)[0] == (4, 24.0)


def test_layers_that_reuse_an_indexer_hold_no_index_keys():
    # Seen in transformers 5.23: of full, shared, full, shared only the full ones hold index keys.
    config = CONFIGS["glm_moe_dsa"] | {"indexer_types": ["full", "shared", "full", "shared"]}
    network = read_network(config, "glm")
    elements = [float(elements_per_token(network, *layer.mixers)) for layer in network.layers]
    assert elements == [40.0, 24.0, 40.0, 24.0]


def test_attention_alone_keeps_no_state():
    for family, config in CONFIGS.items():
        assert state_bytes_per_sequence(read_network(config, family)) == 0.0


def test_the_cache_is_not_priced_in_the_dtype_of_the_weights():
    network = model(**LLAMA_70B)
    for dtype in ("fp8", "int4", "nvfp4", "fp32"):
        assert kv_bytes_per_token(in_weight_format(network, dtype), 0.0, 2.0) == 320 * 1024


def test_llama_4_without_a_chunk_keeps_everything():
    config = CONFIGS["llama4_text"]
    assert cached_layers(read_network(config | {"attention_chunk_size": None}, "llama4")) == ((4, 64.0), None)


def test_index_keys_of_block_sparse_layers_are_cached_whole_on_every_rank():
    # Seen in transformers 5.23 (minimax_m3_vl): sparse layers hold one index key per token beside keys and values.
    config = TINY | FEW_EXPERTS | {
        "model_type": "minimax_m3", "head_dim": 16, "num_local_experts": 4, "dense_intermediate_size": 96,
        "sparse_attention_config": {
            "sparse_attention_freq": [0, 1, 1, 1], "sparse_num_index_heads": 2, "sparse_index_dim": 8,
            "sparse_topk_blocks": 2, "sparse_block_size": 4,
        },
    }  # fmt: skip
    network = read_network(config, "minimax_m3")
    elements = [
        elements_per_token(network, *layer.mixers, ranks=np.array([1.0, 2.0])).tolist()
        for layer in network.layers
    ]
    assert elements == [[64.0, 32.0]] + [[72.0, 40.0]] * 3
