"""Is DeepSeek V4 the model of its reference implementation: parameters, cached elements, waiting tokens, formats?"""

import numpy as np
import pytest

from capplan.families.model_config import read_network
from capplan.families.quantization.network_formats import quantised
from capplan.memory.layer_groups import cache_kinds
from capplan.memory.pool import compressed_layers, packed_layout, summed_capacity
from capplan.model.kv_cache import kv_bytes_per_sequence, kv_bytes_per_token, state_bytes
from capplan.model.parameters import active_parameters, summary, weight_bytes
from capplan.model.weight_format import stored_formats
from capplan.readers.catalogue.models import read_model
from tests.families import config_of

TINY = config_of("deepseek_v4, tiny")

# Seen in a model of TINY in transformers 5.23 after 24, 48, 131, 192 and 259 tokens.
TOKENS = np.array([24.0, 48.0, 131.0, 192.0, 259.0])
KEYS = [384, 496, 496, 496, 496]
"""Of the window, in every layer: 31 of 32 tokens stay between steps, the position itself is the 32nd."""
HEAVY = [0, 0, 16, 16, 32]
SPARSE = [144, 288, 768, 1152, 1536]
"""Entries of 128 tokens, and of 4 tokens with their index keys."""
HEAVY_WAITING = [768, 1536, 96, 2048, 96]
SPARSE_WAITING = [192, 192, 480, 192, 480]
"""Tokens that are no entry yet: value and gate, and those of the entry before where entries overlap."""


@pytest.fixture(scope="module")
def tiny():
    return read_network(TINY, "tiny")


def test_every_layer_caches_the_entries_that_were_seen(tiny):
    own = kv_bytes_per_sequence(tiny, TOKENS, 1.0)
    kept = [min(keys + 16 * (n >= 32), 512) for keys, n in zip(KEYS, TOKENS, strict=True)]
    seen = [4 * k + h + 2 * s for k, h, s in zip(kept, HEAVY, SPARSE, strict=True)]
    assert own.tolist() == seen


def test_the_fixed_state_is_the_most_that_waits(tiny):
    heavy, sparse = (float(state_bytes(tiny.layers[i].mixers[0])) / 4 for i in (1, 2))
    assert float(state_bytes(tiny.layers[0].mixers[0])) == 0
    assert heavy == 128 / 64 * HEAVY_WAITING[3]
    # Three of four tokens wait in the fullest case seen: the fourth adds two series of value and gate.
    assert sparse == SPARSE_WAITING[2] + 2 * 2 * (16 + 8)


def test_the_measured_table_says_the_same(measured):
    network = read_network(
        TINY | {"index_head_dim": 16, "compress_ratios": [128, 128, 128, 4]}, "as measured"
    )
    tokens = np.array([24.0, 48.0, 96.0, 192.0])
    table = measured.table("cache_elements")
    rows = {row["layer_class"]: row for row in table if row["family"] == "deepseek_v4"}
    for index, row, ratio, series in ((0, "DeepseekV4HCACache", 128, 1), (3, "DeepseekV4CSACache", 4, 2)):
        elements = np.array([float(rows[row][f"elements_{n:.0f}"]) for n in tokens])
        waiting = (tokens % ratio) * 2 * 16 * series * (2 if series == 2 else 1)
        before = 2 * ratio * 2 * 16 if series == 2 else 0
        one = kv_bytes_per_sequence(_only(network, index), tokens, 1.0)
        beyond = 16.0 * (tokens >= 32)
        assert (elements - waiting - before).tolist() == (one - beyond).tolist()


def _only(network, index):
    from dataclasses import replace

    return replace(network, layers=(network.layers[index],))


def test_growth_is_the_mean_of_what_entries_add(tiny):
    # One vector of 16 per 128 tokens, and in two layers 16 + 8 per 4; beyond the window nothing else grows.
    assert kv_bytes_per_token(tiny, np.array([0.0, 100.0]), 2.0).tolist() == [
        2 * (4 * 16 + 16 / 128 + 2 * 24 / 4),
        2 * (16 / 128 + 2 * 24 / 4),
    ]


@pytest.mark.parametrize("tensor", [1.0, 8.0])
def test_v4_pro_at_a_million_tokens_needs_nine_gibibytes_in_bf16_on_every_rank(tensor):
    """30 layers x 262,144 entries x (512 + 128) + 31 x 8,192 x 512 + 61 windows of 128 x 512, two bytes each."""
    network = read_model("deepseek-ai/DeepSeek-V4-Pro", offline=True)
    need = kv_bytes_per_sequence(network, 1048576.0, 2.0, tensor)
    assert need == 2 * (30 * 262144 * 640 + 31 * 8192 * 512 + 61 * 128 * 512)
    assert need / 2**30 == pytest.approx(9.62, abs=0.01)


HEAVY_STATE, SPARSE_STATE = 128 * 2 * 512 * 4, 2 * 4 * 2 * 2 * (512 + 128) * 4
"""Of vLLM's `CompressorStateCache`: value and gate in fp32 of 128 tokens; of two entries of 4 tokens, two series, with index keys."""


@pytest.mark.parametrize("tensor", [1.0, 8.0])
def test_engines_keep_value_and_gate_of_every_waiting_token_on_every_rank(tensor):
    kinds = cache_kinds(read_model("deepseek-ai/DeepSeek-V4-Pro", offline=True), tensor, 2.0)
    states = {(kind.layers, float(kind.state_bytes)) for kind in kinds if kind.kind == "state"}
    assert states == {(30, SPARSE_STATE), (31, HEAVY_STATE)}


@pytest.mark.parametrize(
    ("model", "element", "block"),
    [
        ("deepseek-ai/DeepSeek-V4-Pro", 1.0, 31 * 37440 + 31 * 1728 + 30 * 8640),
        ("deepseek-ai/DeepSeek-V4-Flash", 1.0, 22 * 37440 + 20 * 1728 + 21 * 8640),
        ("deepseek-ai/DeepSeek-V4-Pro", 2.0, 31 * 65536 + 31 * 2048 + 30 * 8448),
    ],
)
def test_a_block_has_a_page_for_every_slot(model, element, block):
    """Vectors take 584 bytes in fp8 (448 + 2 x 64 + 7 + 1), index keys 132, and fp8 pages are padded to 576 bytes.

    So pages of 64 vectors take 65 x 576, of two 3 x 576, of 64 index keys 15 x 576; in 16 bit 64 KiB, 2 KiB and 64 x 132.
    """
    block_bytes, groups = packed_layout(compressed_layers(read_model(model, offline=True)), element)
    assert float(block_bytes) == block
    assert set(groups) == {(128.0, 64.0, 2), (8.0, 4.0, 1), (128.0, 8.0, 1)}


def test_other_engines_hold_the_vectors_of_v4_pro_and_nothing_else():
    """What is needed at 2^20 tokens, with index keys of 132 bytes and the waiting tokens of an engine."""
    mixers = compressed_layers(read_model("deepseek-ai/DeepSeek-V4-Pro", offline=True))
    vectors = 2 * 512 * (30 * 262144 + 31 * 8192 + 61 * 128) + 30 * 262144 * 132
    size = vectors + 30 * SPARSE_STATE + 31 * HEAVY_STATE
    flying = 61 * 8192 * 512 * 2
    _, sequences, each = summed_capacity(flying + 3.0 * size, mixers, 2.0, 1048576.0, 8192.0, 16.0)
    assert (float(sequences), float(each)) == (3.0, size)


@pytest.mark.parametrize(("element", "latent"), [(1.0, 656), (2.0, 1152)])
def test_v3_2_keeps_656_bytes_of_a_latent_in_fp8_and_132_of_an_index_key(element, latent):
    """VLLM, fp8_ds_mla: 512 in fp8, four scales in fp32, 64 rotated in bf16; `DeepseekV32IndexerCache`: 128 and a scale."""
    kinds = cache_kinds(read_model("deepseek-ai/DeepSeek-V3.2", offline=True), 8.0, element)
    assert [(kind.kind, kind.layers, float(kind.token_bytes)) for kind in kinds] == [
        ("full", 61, latent + 132)
    ]


@pytest.mark.parametrize(
    ("model", "total", "active", "mixers"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", 284_332_230_231, 13_799_622_231,
         {"sliding_window": 2, "compressed_sparse": 21, "heavily_compressed": 20}),
        ("deepseek-ai/DeepSeek-V4-Pro", 1_572_997_179_491, 49_779_058_787,
         {"compressed_sparse": 30, "heavily_compressed": 31}),
    ],
)  # fmt: skip
def test_counts_are_those_of_the_reference(model, total, active, mixers):
    network = read_model(model, offline=True)
    found = summary(network)
    assert found["parameters"] == total
    # The reference counts the last mixing of the streams too, which no layer holds.
    assert active_parameters(network) + network.embedding_parameters == active - network.other_parameters
    assert found["mixers"] == mixers
    assert found["attention_layers"] == len(network.layers)
    assert any("no measured kernel" in note for note in network.notes)


@pytest.mark.parametrize(
    ("model", "experts", "gigabytes"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", "mxfp4", 155.9),
        ("deepseek-ai/DeepSeek-V4-Pro", "mxfp4", 850.6),
        ("nvidia/DeepSeek-V4-Pro-NVFP4", "nvfp4", 898.9),
        ("sgl-project/DeepSeek-V4-Pro-FP8", "fp8_block", 1576.3),
    ],
)
def test_experts_are_in_their_own_format_and_compressors_in_16_bit(model, experts, gigabytes):
    network = read_model(model, offline=True)
    assert stored_formats(network)[0] == experts
    layer = next(layer for layer in network.layers if layer.mixers[0].index_heads)
    formats = {projection.name: projection.weight_format for projection in layer.projections}
    assert {formats[name] for name in ("q_a", "kv_a", "q_b", "o_a", "o", "index_q", "shared_down")} == {
        "fp8_block"
    }
    assert {formats[name] for name in ("compress", "index_compress", "mix_attention", "router")} == {"bf16"}
    assert weight_bytes(network) / 1e9 == pytest.approx(gigabytes, abs=0.1)


PUBLISHED = {
    "nvidia/DeepSeek-V4-Pro-NVFP4": {
        "quantization_config": {
            "quant_method": "fp8", "weight_block_size": [128, 128], "quant_algo": "MIXED_PRECISION",
            "moe_quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
            "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 16, "type": "float"},
                                          "input_activations": {"num_bits": 4, "group_size": 16, "type": "float"}}},
            "quantized_layers": {
                f"layers.{i}.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16} for i in range(61)
            },
        }
    },
    "sgl-project/DeepSeek-V4-Pro-FP8": {
        "model_type": "deepseek_ref", "expert_dtype": None,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    },
}  # fmt: skip
"""What differs from deepseek-ai/DeepSeek-V4-Pro in the config.json of each (ai-dynamo/aiconfigurator@095f58a51c)."""


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_shipped_variant_is_its_published_config(measured, model):
    configs = measured.configs()
    config = configs[model] if measured.whole else configs["deepseek-ai/DeepSeek-V4-Pro"] | PUBLISHED[model]
    published = quantised(read_network(config, model), config)
    assert published.layers == read_model(model, offline=True).layers


def test_layer_types_say_what_compress_ratios_say(tiny):
    kinds = ["sliding_attention", "heavily_compressed_attention"] + ["compressed_sparse_attention"] * 2
    named = {key: value for key, value in TINY.items() if key != "compress_ratios"} | {"layer_types": kinds}
    assert read_network(named, "tiny").layers == tiny.layers
