"""Does our cache hold what published models are said to hold? test_families.py has what tiny models of each family were seen to hold."""

import numpy as np
import pytest

from capplan.families.model_config import read_network
from capplan.model.kv_cache import kv_bytes_per_sequence, kv_bytes_per_token
from capplan.model.weight_format import in_weight_format
from tests.families import cached_layers, config_of, elements_per_token, network_of


@pytest.mark.parametrize(("family", "both_sides"), [("gemma3_text", True), ("gemma4_text", "all")])
def test_a_window_to_both_sides_is_half_as_long(family, both_sides):
    """`Gemma3TextConfig` and `Gemma4TextConfig` of transformers 5.23 make a sliding window of 32 tokens one of 17."""
    network = network_of(family, use_bidirectional_attention=both_sides)
    windows = {mixer.window_tokens for layer in network.layers for mixer in layer.mixers}
    assert windows == {None, 17}


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
    return network_of("llama", **keys)


LLAMA_70B = {"hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 80,
             "intermediate_size": 28672, "vocab_size": 128256}  # fmt: skip


def test_llama_3_70b_needs_320_kib_per_token_not_320_mb_per_user():
    assert kv_bytes_per_token(model(**LLAMA_70B), 4096.0, 2.0) == 320 * 1024


def test_a_rank_holds_at_least_one_kv_head():
    ranks = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    per_rank = kv_bytes_per_token(model(**LLAMA_70B), 0.0, 2.0, ranks)
    assert (per_rank / (80 * 2 * 128 * 2)).tolist() == [8.0, 4.0, 2.0, 1.0, 1.0, 1.0]


def test_layers_of_a_hybrid_are_not_all_counted_as_full():
    # gpt-oss-120b: 18 layers of a 128-token window, 18 full ones; far out only the full ones grow.
    network = network_of("gpt-oss-120b")
    assert kv_bytes_per_token(network, np.array([0.0, 131072.0]), 2.0).tolist() == [73728.0, 36864.0]


def test_long_cat_caches_two_latents_in_each_of_its_layers():
    # Seen in transformers 5.23: two layers give four cache tensors pairs.
    assert cached_layers(network_of("longcat_flash", num_layers=2))[0] == [4, 24.0]


def test_layers_that_reuse_an_indexer_hold_no_index_keys():
    # Seen in transformers 5.23: of full, shared, full, shared only the full ones hold index keys.
    network = network_of("glm_moe_dsa", indexer_types=["full", "shared", "full", "shared"])
    elements = [float(elements_per_token(network, *layer.mixers)) for layer in network.layers]
    assert elements == [40.0, 24.0, 40.0, 24.0]


def test_the_cache_is_not_priced_in_the_dtype_of_the_weights():
    network = model(**LLAMA_70B)
    for dtype in ("fp8", "int4", "nvfp4", "fp32"):
        assert kv_bytes_per_token(in_weight_format(network, dtype), 0.0, 2.0) == 320 * 1024


def test_llama_4_without_a_chunk_keeps_everything():
    assert cached_layers(network_of("llama4_text", attention_chunk_size=None)) == [[4, 64.0], None]


def test_index_keys_of_block_sparse_layers_are_cached_whole_on_every_rank():
    # Seen in transformers 5.23 (minimax_m3_vl): sparse layers hold one index key per token beside keys and values.
    config = config_of("llama") | {
        "model_type": "minimax_m3", "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16, "num_local_experts": 4, "dense_intermediate_size": 96,
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
