"""A Molmo 2 file as its own code saves it: the tower under `vit_config`, kept up to the deepest layer that the adapter reads."""

from capplan.families.model_config import read_network
from capplan.model.parameters import parameters

TEXT = {"model_type": "molmo2_text", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320,
        "additional_vocab_size": 8, "num_hidden_layers": 2, "intermediate_size": 96, "tie_word_embeddings": False}  # fmt: skip
ADAPTER = {"model_type": "molmo2_adapter", "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
           "intermediate_size": 48, "text_hidden_size": 64}  # fmt: skip
TOWER = {"model_type": "molmo2_vision", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 27, "num_attention_heads": 2,
         "num_key_value_heads": 2, "head_dim": 16, "patch_size": 14, "image_size": [28, 28]}  # fmt: skip


def counted(**tower):
    file = {
        "model_type": "molmo2",
        "text_config": TEXT,
        "tie_word_embeddings": False,
        "adapter_config": {**ADAPTER, "vision_feature_layer": [-3, -9]},
    }
    return parameters(read_network(file | tower, "molmo2"))


def test_layers_of_the_tower_behind_the_deepest_one_that_is_read_are_not_counted():
    """`Molmo2Config.__post_init__` of transformers 5.24: 27 layers, of which -3 is the deepest, are 25."""
    block = 4 * (32 * 32 + 32) + 2 * (32 * 40) + 40 + 32 + 4 * 32
    assert counted(vision_config=TOWER) - counted(vit_config=TOWER) == 2 * block
