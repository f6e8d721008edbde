"""Do we count what sees, hears and speaks beside a text model?

Defaults of the classes and the cache of an image: Hugging Face transformers 5.23 on torch's meta device, and a prefill with an image on the CPU.
`make oracle` compares many more files; these stand here because a reader can look them up.
"""

import re

import pytest

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.model.kv_cache import kv_bytes_per_sequence
from capplan.model.parameters import parameters
from tests.families import network_of, unread

NEMOTRON_NANO_VL = {
    "model_type": "NemotronH_Nano_VL_V2", "downsample_ratio": 0.5, "force_image_size": 512, "vit_hidden_size": 1280,
    "projector_hidden_size": 20480, "norm_mean": [0.4, 0.4, 0.4], "norm_std": [0.2, 0.2, 0.2], "image_tag_type": "internvl",
    "llm_config": {"model_type": "nemotron_h", "hidden_size": 5120, "hybrid_override_pattern": "M-M*-", "num_hidden_layers": 5,
                   "intermediate_size": 20480, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
                   "mamba_num_heads": 128, "mamba_head_dim": 80, "ssm_state_size": 128, "n_groups": 8, "vocab_size": 131072},
    "vision_config": {"model_type": "", "patch_size": 16, "preferred_resolution": [512, 512],
                      "args": {"model": "vit_huge_patch16_224", "cpe_max_size": 2048, "register_multiple": 8,
                               "cls_token_per_teacher": True, "teachers": [{"name": name} for name in ("clip", "siglip", "dino", "sam")]}},
}  # fmt: skip

SMALL_LLAMA_VISION = {
    "model_type": "mllama",
    "text_config": {"model_type": "mllama_text_model", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
                    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "cross_attention_layers": [1, 3]},
    "vision_config": {"model_type": "mllama_vision_model", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
                      "num_global_layers": 8, "attention_heads": 16, "image_size": 56, "patch_size": 14, "max_num_tiles": 4,
                      "intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
}  # fmt: skip


def test_the_tower_of_nemotron_nano_vl_is_the_one_that_its_file_names():
    """ViT-H as vLLM's radio.py allocates it: 4 class tokens and 4 registers, positions for 2,048 x 2,048, scales in blocks; mlp1."""
    tower = 3 * 16 * 16 * 1280 + 128 * 128 * 1280 + 8 * 1280
    tower += 32 * (4 * 1280 * 1281 + 2 * 1280 * 5120 + 5120 + 1280 + 6 * 1280)
    projector = 5120 + 5120 * 20480 + 20480 * 5120
    network = read_network(NEMOTRON_NANO_VL, "nano")
    assert network.vision_parameters == tower + projector == 861_445_120
    assert not unread(network)
    frames = read_network(
        NEMOTRON_NANO_VL
        | {"vision_config": NEMOTRON_NANO_VL["vision_config"] | {"video_temporal_patch_size": 2}},
        "nano",
    )
    assert frames.vision_parameters - network.vision_parameters == 2 * 3 * 16 * 16 * 1280


DOTS3 = {
    "model_type": "dots3_note", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 40,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 4, "n_shared_experts": 1, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "v_head_dim": 20, "qk_nope_head_dim": 12,
    "head_dim": 16, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 8, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "use_dsa": True, "use_sliding_window": True, "sliding_window_size": 6, "moe_shared_expert_intermediate_size": 48,
    "swa_num_attention_heads": 2, "swa_num_key_value_heads": 2, "swa_q_lora_rank": 20, "swa_kv_lora_rank": 32, "swa_head_dim": 24,
    "swa_qk_nope_head_dim": 16, "swa_v_head_dim": 12, "max_position_embeddings": 256,
    "vision_config": {"embed_dim": 48, "num_heads": 4, "intermediate_size": 96, "num_hidden_layers": 3, "use_bias": False,
                      "pyramid_num_routed": [-1, 4, 8], "moe_intermediate_size": 20, "adapter_in_dim": 48, "adapter_out_dim": 64},
    "audio_config": {"whisper_config": {"d_model": 32, "encoder_attention_heads": 4, "encoder_layers": 2, "encoder_ffn_dim": 64,
                                        "num_mel_bins": 80}, "whisper_adapter_in_dim": 32, "whisper_adapter_out_dim": 64},
}  # fmt: skip
"""As dots3-note is published: the keys of the text at the top level, those of its sliding layers with a prefix."""


@pytest.mark.parametrize(
    ("change", "count", "kept"),
    [
        ({}, 4_820_956, (1200, 3120)),
        ({"use_dsa": False}, 4_812_412, (960, 2160)),
        ({"use_sliding_window": False}, 4_841_944, (1200, 4800)),
        (
            {"swa_head_dim": 256, "swa_qk_nope_head_dim": 192, "swa_qk_rope_head_dim": 64},
            4_893_508,
            (2040, 4128),
        ),
    ],
)
def test_a_published_dots3_note_has_the_parameters_and_the_cache_of_its_class(change, count, kept):
    """Parameters on the meta device and elements after 5 and 20 tokens, transformers 5.24."""
    network = read_network(DOTS3 | change, "dots3")
    assert parameters(network) == count
    assert tuple(float(kv_bytes_per_sequence(network, tokens, 1.0)) for tokens in (5.0, 20.0)) == kept


def test_a_tower_of_an_unknown_name_is_refused_and_one_of_unknown_code_is_remarked_on():
    args = NEMOTRON_NANO_VL["vision_config"]["args"] | {"model": "vit_enormous"}
    with pytest.raises(InputError, match="'vit_enormous' is not modelled"):
        read_network(NEMOTRON_NANO_VL | {"vision_config": {"patch_size": 16, "args": args}}, "nano")
    older = {"model_type": "Llama_Nemotron_Nano_VL", "vision_config": {"args": args}, "llm_config": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}}  # fmt: skip
    assert "the tower of vision_config is not counted" in read_network(older, "older").notes


def test_speech_that_is_switched_off_is_not_held():
    assert parameters(network_of("Qwen2.5-Omni-7B", enable_audio_output=False)) == 8_931_813_888


def test_an_image_of_llama_vision_keeps_as_many_elements_as_the_reference():
    """A prefill of 20 tokens with one image leaves 8,704 elements in the two cross-attention layers and 2,560 in the others."""
    network = read_network(SMALL_LLAMA_VISION, "small")
    said = next(note for note in network.notes if "cross-attention" in note)
    assert re.search(r"up to 68 positions in 2 cross-attention layers: 8,704 elements", said)
    assert float(kv_bytes_per_sequence(network, 20.0, 2.0)) == 2 * 2_560


def test_a_tower_of_timm_whose_name_does_not_say_how_it_is_built_is_remarked_on():
    name = "vit_so150m_patch16_reg4_map_256"
    notes = network_of(f"perception_lm, {name}").notes
    assert [note for note in notes if "not counted" in note] == [f"the tower {name} of timm is not counted"]
