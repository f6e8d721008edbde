"""Are files that no class can run refused, and files whose class ignores a key read as the class does?

Each case was built with transformers 5.23: what fails there when it is loaded or run is refused here.
"""

import pytest

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.model.parameters import parameters

LLAMA = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
         "vocab_size": 320}  # fmt: skip
FALCON = {
    "model_type": "falcon",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 320,
}
LLAMA4 = LLAMA | {
    "model_type": "llama4_text",
    "num_local_experts": 4,
    "intermediate_size_mlp": 80,
    "head_dim": 16,
}
MPT = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 4, "vocab_size": 320}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (LLAMA | {"model_type": "helium", "head_dim": 24}, "head_dim"),
        (FALCON | {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn"),
        (FALCON | {"new_decoder_architecture": True, "parallel_attn": False, "num_kv_heads": 2}, "num_ln_in_parallel_attn"),
        (MPT | {"expansion_ratio": 2}, "expansion_ratio"),
        *((LLAMA | {"model_type": kind, "head_dim": 16, "layer_types": ["full_attention"] * 5}, "layer_types")
          for kind in ("qwen2", "qwen3", "smollm3", "cwm", "gemma3_text", "gemma2", "olmo3", "ministral")),
    ],
)  # fmt: skip
def test_a_file_that_cannot_run_is_refused_by_its_key(config, key):
    with pytest.raises(InputError, match=key):
        read_network(config, "n")


@pytest.mark.parametrize(
    ("config", "norms"),
    [({}, 1), ({"num_ln_in_parallel_attn": 1}, 1), ({"num_ln_in_parallel_attn": 3}, 1), ({"parallel_attn": False}, 2),
     ({"parallel_attn": False, "num_ln_in_parallel_attn": 2}, 2), ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2),
     ({"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}, 1)],
)  # fmt: skip
def test_falcon_has_the_norms_of_its_class(config, norms):
    assert read_network(FALCON | config, "n").layers[0].norm_parameters == norms * 2 * 64


def test_llama_4_has_no_experts_in_layers_that_it_has_not():
    inside = read_network(LLAMA4 | {"moe_layers": [1]}, "n")
    assert parameters(read_network(LLAMA4 | {"moe_layers": [1, 7, 8, 9]}, "n")) == parameters(inside)


def test_gemma_3n_keeps_the_norm_of_a_per_layer_input_of_no_width():
    """`Gemma3nTextDecoderLayer.post_per_layer_input_norm` is built whatever hidden_size_per_layer_input says."""
    config = LLAMA | {"model_type": "gemma3n_text", "head_dim": 16, "altup_num_inputs": 2, "laurel_rank": 4,
                      "num_kv_shared_layers": 0, "intermediate_size": 96, "vocab_size_per_layer_input": 300}  # fmt: skip
    without, one = (read_network(config | {"hidden_size_per_layer_input": width}, "n") for width in (0, 1))
    matrices = (
        4 * 2 * 64 + 4 * 64 + 1 + 300 * 4
    )  # gate and projection of each layer, the joint projection, its norm, the table
    assert parameters(one) - parameters(without) == matrices
