"""Qwen3.8-Flash-Next: bytes of its checkpoint, and what vLLM allocates for a sequence.

Keys and shapes from steadfastgaze/MoEspresso@6b96f27 (src/moespresso/inventory/qwen4/static.py), which states the `total_size` of
model.safetensors.index.json; caches and states from vllm-project/vllm (vllm/models/qwen4_exp/common/qsa_cache.py).
"""

import pytest

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.memory.layer_groups import cache_kinds
from capplan.model.kv_cache import kv_bytes_per_sequence
from capplan.model.mixers import Attention, ShortConvolution
from capplan.model.network import Network
from capplan.model.parameters import parameters

TEXT = {
    "model_type": "qwen4_exp_text", "hidden_size": 2560, "num_hidden_layers": 48, "max_position_embeddings": 262144,
    "hc_count": 4, "hc_lowrank": 320, "head_dim": 256, "num_attention_heads": 24, "num_key_value_heads": 2,
    "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048, "indexer_compress_ratio": 4,
    "linear_conv_kernel_dim": 4, "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_num_value_heads": 48,
    "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 640, "shared_expert_intermediate_size": 640, "ple_layer_ids": [2], "ple_embed_dim": 2560,
    "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 8, "ngram_vocab_size_base": 20_000_000,
    "make_ngram_vocab_size_divisible_by": 128, "split_ngram_parts": 128, "mtp_num_hidden_layers": 1, "vocab_size": 248320,
    "tie_word_embeddings": False, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12,
    "rope_parameters": {"rope_type": "default", "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25},
}  # fmt: skip
FILE = {"model_type": "qwen4_exp", "text_config": TEXT, "vision_config": {"out_hidden_size": 2560}}
INTEGERS = 35 * 8
"""Bytes of the multipliers, sizes and offsets of the hashed tables, which are no parameters."""


def network(**changed: object) -> Network:
    """Return the network of the file, with changed keys of its text."""
    return read_network(FILE | {"text_config": TEXT | changed}, "config.json")


def test_checkpoint_has_the_published_bytes() -> None:
    """Text, vision tower, next-token layer and the table of n-grams: all tensors of the index, to the byte."""
    read = network()
    assert (parameters(read) + read.mtp_parameters) * 2 + INTEGERS == 359_999_963_128


@pytest.mark.parametrize("kv_bytes", [2.0, 1.0])
def test_a_token_takes_what_the_engine_allocates(kv_bytes: float) -> None:
    """Keys and values of every token in 12 layers, an index key of 128 x 2 B for four tokens, whatever the cache dtype."""
    [full] = [kind for kind in cache_kinds(network(), 1.0, kv_bytes) if kind.kind == "full"]
    assert (full.layers, float(full.token_bytes)) == (12, 2 * 2 * 256 * kv_bytes + 256 / 4)
    stored, reference = (
        kv_bytes_per_sequence(network(), 4096.0, kv_bytes, stored=as_stored) for as_stored in (True, False)
    )
    assert stored == reference


def test_states_of_a_sequence() -> None:
    """A ring of four raw keys with three positions of eight bytes; nine columns of all streams, whole on every rank."""
    read = network()
    [attending] = {mixer for layer in read.layers for mixer in layer.mixers if isinstance(mixer, Attention)}
    [ring] = attending.description.state_parts
    assert (ring.held_elements, ring.state_format, ring.pieces) == (4 * (128 + 12), "bf16", 1)
    [convolution] = [
        mixer for layer in read.layers for mixer in layer.mixers if isinstance(mixer, ShortConvolution)
    ]
    [columns] = convolution.description.state_parts
    assert (columns.held_elements, columns.pieces) == (4 * 2560 * 9, 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"ple_layer_ids": [4]},
        {"ple_layer_ids": [49]},
        {"indexer_kv_heads": 2},
        {"ple_embed_dim": 2561},
        {"hc_count": 1},
    ],
)
def test_what_cannot_run_is_rejected(changed: dict[str, object]) -> None:
    """Tables stand in layers of linear attention, an index has one key, and streams are several."""
    with pytest.raises(InputError, match=next(iter(changed))):
        network(**changed)


def test_eight_bit_table() -> None:
    """A file may keep the table of n-grams in fp8, which halves 102 GB."""
    [table] = [
        one
        for one in network(ple_embedding_dtype="float8_e4m3fn").layers[1].projections
        if one.name == "ngram_table"
    ]
    assert (table.weight_format, table.inputs, table.outputs) == ("fp8", 320_001_536, 160)
