"""Are files that no class can run refused, and files whose class ignores a key read as the class does?

Each case was built with transformers 5.23: what fails there when it is loaded or run is refused here.
"""

import pytest

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
