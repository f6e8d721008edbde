"""Do we count what sees, hears and speaks beside a text model?

Whole models: the totals that the model cards state, counted over the tensors of the checkpoints. Defaults of the classes and
the cache of an image: Hugging Face transformers 5.23 on torch's meta device, and a prefill with an image on the CPU.
`make oracle` compares many more files; these stand here because a reader can look them up.
"""

import re

import pytest

from capplan.families.model_class import model_class
from capplan.families.model_config import read_network
from capplan.model.kv_cache import kv_bytes_per_sequence
from capplan.model.parameters import parameters

LLAMA_VISION = {
    "model_type": "mllama",
    "text_config": {"model_type": "mllama_text_model", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 40,
                    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
                    "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]},
    "vision_config": {"model_type": "mllama_vision_model", "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32,
                      "num_global_layers": 8, "attention_heads": 16, "image_size": 560, "patch_size": 14, "max_num_tiles": 4,
                      "vision_output_dim": 7680},
}  # fmt: skip
QWEN_OMNI = {
    "model_type": "qwen2_5_omni",
    "enable_audio_output": True,
    "thinker_config": {
        "model_type": "qwen2_5_omni_thinker",
        "text_config": {"model_type": "qwen2_5_omni_text", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064},
        "vision_config": {"hidden_size": 1280, "intermediate_size": 3420, "depth": 32, "num_heads": 16, "out_hidden_size": 3584},
        "audio_config": {"d_model": 1280, "encoder_layers": 32, "encoder_ffn_dim": 5120, "output_dim": 3584},
    },
    "talker_config": {"hidden_size": 896, "embedding_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 24,
                      "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 8448},
    "token2wav_config": {"dit_config": {}, "bigvgan_config": {}},
}  # fmt: skip
PUBLISHED = [
    ("Llama-3.2-11B-Vision", LLAMA_VISION, 10_670_220_835),
    ("Qwen2.5-Omni-7B", QWEN_OMNI, 10_732_225_408),
]

DEFAULTS = [
    ("exaone4_5", 12_100_938_496),
    ("glm46v", 10_292_777_472),
    ("glm4v", 10_292_777_472),
    ("granite_speech", 6_990_441_514),
    ("mllama", 10_642_941_475),
    ("qwen2_audio", 12_692_062_208),
    ("voxtral", 4_676_271_104),
]

SMALL_LLAMA_VISION = {
    "model_type": "mllama",
    "text_config": {"model_type": "mllama_text_model", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
                    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "cross_attention_layers": [1, 3]},
    "vision_config": {"model_type": "mllama_vision_model", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
                      "num_global_layers": 8, "attention_heads": 16, "image_size": 56, "patch_size": 14, "max_num_tiles": 4,
                      "intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
}  # fmt: skip

SMALL_LLAMA_4 = {
    "model_type": "llama4",
    "text_config": {"model_type": "llama4_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5,
                    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "head_dim": 24, "num_local_experts": 4,
                    "intermediate_size_mlp": 80},
    "vision_config": {"model_type": "llama4_vision_model", "hidden_size": 64, "num_attention_heads": 3, "num_hidden_layers": 4,
                      "intermediate_size": 96, "image_size": 56, "projector_input_dim": 48, "projector_output_dim": 48,
                      "vision_output_dim": 48},
}  # fmt: skip


@pytest.mark.parametrize(("name", "config", "count"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_whole_models_have_the_parameters_of_their_cards(name, config, count):
    network = read_network(config, name)
    assert parameters(network) == count
    assert not [note for note in network.notes if "not counted" in note or "not read" in note]


@pytest.mark.parametrize(("kind", "count"), DEFAULTS)
def test_towers_left_to_the_defaults_of_their_class_are_counted(kind, count):
    known = model_class(kind)
    sections = {key: {} for key in known.sections}
    network = read_network({"model_type": kind, "transformers_version": "5.23.0"} | sections, kind)
    assert parameters(network) == count
    assert network.vision_parameters > 0


def test_speech_that_is_switched_off_is_not_held():
    assert parameters(read_network(QWEN_OMNI | {"enable_audio_output": False}, "silent")) == 8_931_813_888


def test_heads_of_a_tower_are_of_whole_width():
    """Three heads for a width of 62 are 20 wide each, for one of 64 they are 21; transformers 5.23 on the meta device."""
    vision = SMALL_LLAMA_VISION["vision_config"] | {"hidden_size": 62, "attention_heads": 3}
    assert parameters(read_network(SMALL_LLAMA_VISION | {"vision_config": vision}, "small")) == 583_875
    assert parameters(read_network(SMALL_LLAMA_4, "small")) == 761_268


def test_an_image_of_llama_vision_keeps_as_many_elements_as_the_reference():
    """A prefill of 20 tokens with one image leaves 8,704 elements in the two cross-attention layers and 2,560 in the others."""
    network = read_network(SMALL_LLAMA_VISION, "small")
    said = next(note for note in network.notes if "cross-attention" in note)
    assert re.search(r"up to 68 positions in 2 cross-attention layers: 8,704 elements", said)
    assert float(kv_bytes_per_sequence(network, 20.0, 2.0)) == 2 * 2_560
