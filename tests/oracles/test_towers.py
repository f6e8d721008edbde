"""What sees, hears and speaks beside a text model: parameters of towers, as published checkpoints and cards state them."""

import re

import pytest

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.model.kv_cache import kv_bytes_per_sequence, kv_bytes_per_token
from capplan.model.parameters import active_parameters, parameters
from capplan.readers.catalogue.models import shipped_config
from tests.families import network_of, unread
from tests.tables import table

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


@table
def test_a_published_dots3_note_has_the_parameters_and_the_cache_of_its_class(change, count, kept):
    """Parameters on the meta device and elements after 5 and 20 tokens, transformers 5.24."""
    network = read_network(DOTS3 | change, "dots3")
    assert parameters(network) == count
    assert tuple(float(kv_bytes_per_sequence(network, tokens, 1.0)) for tokens in (5.0, 20.0)) == tuple(kept)


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


KIMI_VL = {
    "model_type": "kimi_vl",
    "text_config": {
        "model_type": "deepseek_v3", "vocab_size": 163840, "max_position_embeddings": 131072, "hidden_size": 2048,
        "intermediate_size": 11264, "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16,
        "n_shared_experts": 2, "n_routed_experts": 64, "kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "qk_nope_head_dim": 128, "num_experts_per_tok": 6, "moe_layer_freq": 1, "first_k_dense_replace": 1,
        "num_key_value_heads": 16, "tie_word_embeddings": False, "n_group": 1, "topk_group": 1,
    },
    "vision_config": {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16, "patch_size": 14,
       "model_type": "moonvit", "merge_kernel_size": [2, 2], "init_pos_emb_height": 64, "init_pos_emb_width": 64},
}  # fmt: skip


def test_kimi_vl_has_those_of_its_checkpoint_but_for_what_is_no_parameter():
    """16,407,657,776 elements at https://huggingface.co/moonshotai/Kimi-VL-A3B-Instruct; 26 routers have 64 biases of balancing."""
    ours = parameters(read_network(KIMI_VL, "kimi-vl"))
    assert 26 * 64 <= 16_407_657_776 - ours < 4_000


def test_deepseek_ocr_caches_keys_and_values_of_every_head():
    """Its file says use_mla: false; keys and values of 10 heads of 128 in 12 layers, in two bytes."""
    network = network_of("DeepSeek-OCR")
    assert float(kv_bytes_per_sequence(network, 1000.0, 2.0)) == 1000 * 12 * 2 * 1280 * 2


def test_original_llava_counts_its_projector_and_says_which_tower_it_names():
    """LLaVA 1.5 7B as its own code saves it: Vicuna's 6,738,415,616 and two matrices of the projector."""
    config = {
        "model_type": "llava", "mm_vision_tower": "openai/clip-vit-large-patch14-336", "mm_hidden_size": 1024,
        "mm_projector_type": "mlp2x_gelu", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
        "tie_word_embeddings": False, "mm_use_im_start_end": False, "image_aspect_ratio": "pad", "tune_mm_mlp_adapter": False,
    }  # fmt: skip
    network = read_network(config, "llava")
    assert parameters(network) == 6_738_415_616 + 1024 * 4096 + 4096 + 4096 * 4096 + 4096
    assert any("clip-vit-large-patch14-336" in note for note in network.notes)
    # LLaVA 1.6 cuts the padding of its tiles off and ends each row with a learned vector.
    unpadded = read_network(config | {"mm_patch_merge_type": "spatial_unpad"}, "llava-1.6")
    assert parameters(unpadded) == parameters(network) + 4096


def test_glm_5_3_pools_index_keys_as_vllm_does():
    """One key for four tokens in each of 11 layers, and a ring of key and gate of the last pool in 16 bits."""
    text = {
        "model_type": "glm5_next_text", "vocab_size": 154880, "hidden_size": 4096, "intermediate_size": 12288,
        "moe_intermediate_size": 2048, "num_hidden_layers": 45, "num_attention_heads": 64, "n_shared_experts": 1,
        "n_routed_experts": 288, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 0, "v_head_dim": 256,
        "qk_nope_head_dim": 256, "num_experts_per_tok": 8, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32,
        "index_kpool": 4, "hc_mult": 4, "max_position_embeddings": 1048576, "tie_word_embeddings": False,
    }  # fmt: skip
    network = read_network(text, "glm-5.3")
    assert float(kv_bytes_per_sequence(network, 4000.0, 2.0)) == 11 * (4000 * 512 + 1000 * 128) * 2
    rings = [
        part
        for layer in network.layers
        for part in layer.mixers[0].description.state_parts
        if part.state_format == "bf16"
    ]
    assert [part.allocated_elements for part in rings] == [2 * 128 * 4] * 11


def test_minicpm_o_adds_the_encoder_of_whisper_and_two_matrices():
    """`WhisperEncoder` of Whisper medium has 307,216,384 parameters (transformers 5.23, meta device); minicpmo.py of vLLM joins it to the text."""
    sound = {"d_model": 1024, "encoder_layers": 24, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096}
    heard = network_of("MiniCPM-V-2_6", model_type="minicpmo", init_tts=False, audio_config=sound)
    added = parameters(heard) - parameters(network_of("MiniCPM-V-2_6"))
    assert added == 307_216_384 + (1024 + 1) * 3584 + (3584 + 1) * 3584


def test_intern_s1_is_the_internvl_of_transformers_with_its_own_names():
    """vLLM, interns1.py and interns1_vit.py: the modules of InternVL, which `make oracle` compares."""
    text = {"model_type": "qwen3", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 128}  # fmt: skip
    vision = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": [56, 56],
              "patch_size": [14, 14], "use_qk_norm": True, "norm_type": "layer_norm", "attention_bias": True}  # fmt: skip
    first, second = (
        read_network(
            {"model_type": kind, "text_config": text, "vision_config": vision | {"model_type": f"{kind}_vision"}, "tie_word_embeddings": False},
            kind,
        )
        for kind in ("interns1", "internvl")
    )  # fmt: skip
    assert parameters(first) == parameters(second)
    assert first.vision_parameters == second.vision_parameters > 0


def test_mimo_v2_is_read_as_its_flash_version():
    """vLLM serves both with `MiMoV2FlashForCausalLM`'s layers (mimo_v2.py); MiMo-V2-Flash has the parameters that its folder states."""
    config, name = shipped_config("XiaomiMiMo/MiMo-V2-Flash")
    other = read_network(config | {"model_type": "mimo_v2"}, name)
    assert parameters(other) == parameters(read_network(config, name))
    assert not [note for note in other.notes if "not read" in note]


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


def test_step_3_has_the_published_parameters():
    """321 billion, 38 of them active, 316 of text: https://huggingface.co/stepfun-ai/step3."""
    network = network_of("Step3")
    assert [round(count / 1e9) for count in (parameters(network), active_parameters(network))] == [321, 38]
    assert round((parameters(network) - network.vision_parameters) / 1e9) == 316
    assert network.notes == ()
    assert network.max_context_tokens == 65536


def test_every_layer_of_step_3_caches_one_key_and_one_value_of_256_whatever_the_ranks():
    """`Step3TextAttention`: `num_kv_heads` must be 1, and qkv_proj is replicated."""
    network = network_of("Step3")
    assert [float(kv_bytes_per_token(network, 1.0, 2.0, tensor)) for tensor in (1.0, 8.0)] == [
        61 * 2 * 256 * 2
    ] * 2


def test_queries_of_step_3_have_a_low_rank():
    """7,168 to 2,048 on every rank, a norm, then 64 heads of 256."""
    layer = network_of("Step3").layers[0]
    of_name = {matrix.name: matrix for matrix in layer.projections}
    assert (of_name["q_a"].outputs, of_name["q_a"].split) == (2048, "none")
    assert (of_name["kv"].outputs, of_name["kv"].split) == (512, "none")
    assert (of_name["q_b"].inputs, of_name["q_b"].outputs) == (2048, 64 * 256)
    assert layer.norm_parameters == 2 * 7168 + 2048


def test_step3_vl_is_a_qwen_3_with_the_tower_of_step_3_7():
    """10.17 billion parameters in bf16: 20.3 GB of weights, https://huggingface.co/stepfun-ai/Step3-VL-10B."""
    network = network_of("Step3-VL-10B")
    assert 2 * parameters(network) == pytest.approx(20.3e9, rel=0.003)
    assert parameters(network) - network.vision_parameters == 8_190_735_360
    assert not any("not read" in note for note in network.notes)
