"""Small and default config.json files of every model type, as transformers saves them."""

import copy
import json
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SIZES = {
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "dim": 64, "embed_dim": 32, "word_embed_proj_dim": 64,
    "num_hidden_layers": 4, "n_layer": 4, "n_layers": 4, "num_layers": 4, "depth": 2, "encoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "head_dim": 24, "v_head_dim": 20, "intermediate_size": 96, "ffn_dim": 96, "encoder_ffn_dim": 96,
    "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56, "shared_intermediate_size": 56,
    "intermediate_size_mlp": 80, "dense_intermediate_size": 80, "expert_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 56, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 24,
    "share_expert_dim": 56, "vocab_size": 320, "vocab_size_per_layer_input": 300, "hidden_size_per_layer_input": 12,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "moe_k": 2, "moe_topk": 2, "top_k_experts": 2, "num_experts_per_token": 2, "experts_per_token": 2,
    "n_group": 1, "topk_group": 1, "num_expert_group": 1, "first_k_dense_replace": 1,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "o_lora_rank": 8,
    "index_n_heads": 4, "index_head_dim": 16, "index_topk": 8, "o_groups": 2, "qk_head_dim": 20,
    "sliding_window": 8, "attention_chunk_size": 8, "attention_window_size": 8, "window_size": 8,
    "max_position_embeddings": 256, "n_positions": 256, "max_seq_len": 256, "n_ctx": 256, "seq_length": 256,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 20,
    "mamba_d_state": 8, "state_size": 8, "ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 16,
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "n_groups": 2, "mamba_ngroups": 2, "n_mamba_heads": 8,
    "mamba_d_ssm": 128, "global_head_dim": 40, "laurel_rank": 6, "lru_width": 64, "conv_dim": 64, "block_ff_dim": 96,
    "num_kv_shared_layers": 2, "moe_layer_freq": 1, "projector_hidden_size": 48, "projection_hidden_size": 48,
    "image_size": 56, "out_hidden_size": 64, "num_position_embeddings": 16, "moe_latent_size": 24,
    "adapter_rank": 6, "num_mem_blocks": 2, "attention_hidden_size": 128, "rotary_dim": 8, "kv_channels": 16,
    "router_hidden_size": 16, "expansion_factor": 2, "num_key_value_heads": 2, "time_step_rank": 6, "mamba_dt_rank": 6,
    "chunk_size": 4, "mamba_chunk_size": 4, "max_window_layers": 2, "swa_head_dim": 24, "swa_v_head_dim": 16,
    "linear_head_dim": 12, "linear_num_heads": 4, "projector_input_dim": 48, "projector_output_dim": 48, "vision_output_dim": 48, "pooler_hidden_size": 64, "max_source_positions": 12, "decoder_layers": 4, "decoder_attention_heads": 4, "decoder_ffn_dim": 96,
}  # fmt: skip
"""Sizes of a model that is quick to build, each unlike the others so that a mix-up shows."""

NEEDED = {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 40}
"""Sizes that some classes leave null and cannot do without."""

KNOWN_TROUBLE: dict[str, dict[str, Any]] = {
    "apertus1p5": {"image_token_offset": 10, "audio_token_offset": 110, "audio_config": {"codebook_dim": 64, "codebook_size": 50, "num_filters": 8},
                   "vision_config": {"codebook_size": 100, "base_channels": 32, "channel_multiplier": [1, 2], "num_res_blocks": 2, "attn_resolutions": [128]}},
    "bamba": {"attn_layer_indices": [1, 3]},
    "bailing_hybrid": {"layer_group_size": 2},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 12},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 6, "norm_rel_ebd": "layer_norm",
                   "share_att_key": True, "conv_kernel_size": 3},
    "deepseek_v4": {"head_dim": 64, "qk_rope_head_dim": 8},
    "ernie4_5_vl_moe": {"text_config": {"moe_intermediate_size": [40, 24], "rope_parameters": {"mrope_section": [3, 3, 2]}}},
    "dots3_note": {"audio_config": {"adapter_input_size": 64, "adapter_out_dim": 64, "downsample_hidden_size": 24},
                   "vision_config": {"adapter_in_dim": 64, "adapter_out_dim": 64, "spatial_merge_size": 2, "mlp_layer_types": ["dense", "sparse"] * 2}},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {"num_hidden_layers": 10, "num_kv_shared_layers": 5, "vocab_size_per_layer_input": 300},
    "gemma3n": {"text_config": {"num_hidden_layers": 10, "num_kv_shared_layers": 5}},
    "gemma4": {"text_config": {"num_hidden_layers": 6}},
    "gemma4_text": {"num_hidden_layers": 6},
    "glm4v_moe": {"text_config": {"rope_parameters": {"mrope_section": [1, 1, 2]}}},
    "glm4v": {"text_config": {"rope_parameters": {"mrope_section": [2, 3, 3]}}},
    "glm_ocr": {"text_config": {"rope_parameters": {"mrope_section": [2, 3, 3]}}},
    "glm46v": {"text_config": {"rope_parameters": {"mrope_section": [2, 3, 3]}}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [3, 1]}},
    "glm5_next": {"text_config": {"qk_rope_head_dim": 0, "index_kpool": 4}},
    "granitemoehybrid": {"layers_block_type": ["mamba", "attention"] * 2, "layer_types": ["mamba", "attention"] * 2},
    "granite4_vision": {"deepstack_layer_map": [[-1, 0]], "downsample_rate": "1/2"},
    "helium": {"head_dim": 16},
    "hunyuan_v1_dense": {"head_dim": 24},
    "hunyuan_v1_moe": {"head_dim": 24},
    "hunyuan_vl": {"text_config": {"head_dim": 24, "rope_parameters": {"mrope_section": [4, 4, 4]}}},
    "hy_v4_vl": {"text_config": {"rope_parameters": {"mrope_section": [1, 1, 2]}}},
    "inkling2": {"vision_config": {"text_hidden_size": 64}},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": {"head_dim": 8, "zero_expert_num": 2},
    "mamba2": {"num_heads": 8, "head_dim": 16, "expand": 2},
    "ministral": {"head_dim": 24},
    "mistral4": {"qk_nope_head_dim": 8, "head_dim": 16, "qk_head_dim": 16},
    "paddleocr_vl": {"text_config": {"rope_parameters": {"mrope_section": [4, 4, 4]}}},
    "nemotron": {"head_dim": 24, "num_key_value_heads": 2},
    "nemotron_h_omni": {"audio_config": {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
                                         "subsampling_conv_channels": 16, "projection_hidden_size": 40, "projection_bias": True}},
    "qwen4_exp": {"text_config": {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 32, "indexer_budget": 8, "indexer_compress_ratio": 4,
                                  "hc_lowrank": 12, "ple_layer_ids": [2], "ple_embed_dim": 32, "ngram_vocab_size_base": 30, "eos_token_id": 2,
                                  "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 2, "heads_per_ngram": 4}},
    "qwen2_vl": {"text_config": {"rope_parameters": {"mrope_section": [2, 3, 3]}}},
    "qwen2_5_omni_thinker": {"text_config": {"rope_parameters": {"mrope_section": [2, 3, 3]}}},
    "qwen2_5_vl": {"text_config": {"rope_parameters": {"mrope_section": [2, 3, 3]}}},
    "step3p7": {"text_config": {"sliding_window": 8}},
    "zaya": {"num_experts_per_tok": 1},
    "zamba2": {"mamba_headdim": 16, "attention_head_dim": 32, "attention_hidden_size": 128, "num_hidden_layers": 6, "hybrid_layer_ids": [1, 3, 5],
               "layer_types": ["mamba", "hybrid"] * 3, "layers_block_type": ["mamba", "hybrid"] * 3},
}  # fmt: skip
"""Sizes of a type that the table does not fit."""


def default_file(kind: str) -> dict[str, Any]:
    """Return the config.json that transformers saves for the default of a model type."""
    return json.loads(CONFIG_MAPPING[kind]().to_json_string())


def small_file(kind: str) -> dict[str, Any]:
    """Return the config.json of a small model of a type, as transformers 5 saves it."""
    changed = _shrunk(default_file(kind))
    changed = _merged(changed, KNOWN_TROUBLE.get(kind, {}))
    config = CONFIG_MAPPING[kind].from_dict(PreTrainedConfig._decode_special_floats(copy.deepcopy(changed)))
    return json.loads(config.to_json_string())


def _merged(file: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    out = dict(file)
    for key, value in more.items():
        out[key] = _merged(out.get(key) or {}, value) if isinstance(value, dict) else value
    return out


def _shrunk(section: dict[str, Any]) -> dict[str, Any]:
    layers = next(
        (section[k] for k in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if k in section), 0
    )
    heads = next((section[k] for k in ("num_attention_heads", "n_head", "n_heads") if k in section), 0)
    out: dict[str, Any] = {}
    for key, value in section.items():
        if key == "per_layer_config" or (
            "qk_rope_head_dim" in section and key in ("head_dim", "qk_head_dim")
        ):
            continue
        if isinstance(value, dict) and "mrope_section" in value:
            width = (section.get("head_dim") and 24) or 16
            third = int(width * value.get("partial_rotary_factor", 1.0)) // 2
            parts = [third // 3, third // 3, third - 2 * (third // 3)]
            out[key] = value | {"mrope_section": parts}
        elif isinstance(value, dict) and not key.startswith("rope") and "id2label" not in key:
            out[key] = _shrunk(value) if "__float__" not in value else value
        elif value is None and key in NEEDED:
            out[key] = NEEDED[key]
        elif isinstance(value, list) and len(value) in (layers, layers + 1) and layers:
            continue  # one entry for each layer: the class makes it anew
        elif key == "num_key_value_heads" and value is not None and heads:
            out[key] = 4 if value == heads else 2
        elif key.endswith(("_token_id", "_token_index")) and isinstance(value, int):
            out[key] = min(value, 319)
        elif key in SIZES and isinstance(value, int) and not isinstance(value, bool) and value:
            out[key] = SIZES[key]
        else:
            out[key] = value
    return out
