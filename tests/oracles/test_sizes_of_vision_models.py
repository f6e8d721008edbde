"""Vision models whose code is not in transformers: parameters of the published checkpoints, as their pages state them."""

from capplan.families.model_config import read_network
from capplan.model.kv_cache import kv_bytes_per_sequence
from capplan.model.parameters import parameters
from capplan.readers.catalogue.models import shipped_config
from tests.families import network_of

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
    assert [part.held_elements for part in rings] == [2 * 128 * 4] * 11


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
