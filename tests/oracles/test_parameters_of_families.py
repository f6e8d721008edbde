"""Do we count what each family holds, down to its norms and biases?

Every row is a small model of a family and the parameters that Hugging Face transformers 5.23 gives it on torch's
meta device. Keys that a row leaves out have the defaults of that family, which is part of what is checked.
"""

import pytest

from capplan.families.model_config import read_network
from capplan.model.parameters import parameters

DENSE = {
    "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 320,
}  # fmt: skip
LATENT = DENSE | {
    "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
    "v_head_dim": 20, "moe_intermediate_size": 40, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
OLD = {"n_embd": 64, "n_layer": 5, "n_head": 4, "vocab_size": 320, "n_positions": 128}

ROWS = [
    ("arcee", DENSE | {"head_dim": 16, "mlp_bias": True}, 165_344),
    ("bloom", {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 320}, 170_688),
    ("cohere", DENSE | {"use_qk_norm": True}, 174_944),
    ("cohere", DENSE, 174_464),
    ("cohere2", DENSE | {"head_dim": 16}, 174_464),
    ("deepseek_v2", LATENT, 399_624),
    ("deepseek_v2", {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 4,
     "intermediate_size": 96, "vocab_size": 320, "q_lora_rank": None, "kv_lora_rank": 16, "qk_nope_head_dim": 12,
     "qk_rope_head_dim": 8, "v_head_dim": 20, "moe_intermediate_size": 40, "n_routed_experts": 8,
     "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
     407_824),
    ("deepseek_v3", LATENT | {"attention_bias": True}, 400_184),
    ("deepseek_v3", LATENT, 399_624),
    ("deepseek_v32", LATENT | {"index_head_dim": 16, "index_n_heads": 4, "index_topk": 64}, 413_864),
    ("dots1", DENSE | {"head_dim": 24, "n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2,
     "moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}, 264_112),
    ("ernie4_5", DENSE | {"head_dim": 24, "use_bias": True}, 208_064),
    ("ernie4_5_moe", DENSE | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24, "moe_num_shared_experts":
     0, "moe_layer_start_index": 0, "moe_layer_end_index": -1}, 176_084),
    ("ernie4_5_moe", DENSE | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24, "moe_num_shared_experts":
     2, "moe_layer_start_index": 1, "moe_layer_end_index": 3}, 203_212),
    ("exaone4", DENSE | {"sliding_window": 32, "sliding_window_pattern": 4}, 195_424),
    ("exaone4", DENSE, 195_424),
    ("exaone_moe", DENSE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
     "num_shared_experts": 1, "sliding_window": 32, "sliding_window_pattern": 4}, 214_880),
    ("falcon", {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 320, "multi_query":
     False, "parallel_attn": False, "bias": True}, 170_560),
    ("falcon", {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 320,
     "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}, 158_080),
    ("falcon", {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 320,
     "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}, 156_160),
    ("falcon", {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 320}, 150_016),
    ("gemma", DENSE | {"head_dim": 24}, 205_504),
    ("gemma2", DENSE | {"head_dim": 24}, 206_144),
    ("gemma3_text", DENSE | {"head_dim": 24}, 206_384),
    ("gemma3n_text", DENSE | {"head_dim": 24, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 12,
     "vocab_size_per_layer_input": 300, "laurel_rank": 6, "activation_sparsity_pattern": None, "layer_types":
     ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]}, 254_956),
    ("gemma4_text", {"hidden_size": 64, "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 2,
     "intermediate_size": 96, "vocab_size": 320, "head_dim": 24, "global_head_dim": 40, "hidden_size_per_layer_input":
     0, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "enable_moe_block": True, "num_experts": 4,
     "top_k_experts": 2, "moe_intermediate_size": 24}, 703_216),
    ("gemma4_text", {"hidden_size": 64, "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 2,
     "intermediate_size": 96, "vocab_size": 320, "head_dim": 24, "global_head_dim": 40, "hidden_size_per_layer_input":
     0, "num_kv_shared_layers": 6, "use_double_wide_mlp": True}, 560_672),
    ("gemma4_text", {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
     "intermediate_size": 96, "vocab_size": 320, "head_dim": 24, "global_head_dim": 40, "hidden_size_per_layer_input":
     12, "vocab_size_per_layer_input": 300}, 291_692),
    ("glm", DENSE | {"head_dim": 24, "attention_bias": True}, 226_944),
    ("glm", DENSE, 630_464),
    ("glm4", DENSE | {"head_dim": 24, "attention_bias": True}, 227_584),
    ("glm4_moe", DENSE | {"head_dim": 24, "use_qk_norm": True, "attention_bias": True, "n_routed_experts": 4,
     "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 2}, 241_776),
    ("glm4_moe_lite", LATENT, 399_624),
    ("glm4v_moe", {"text_config": DENSE | {"model_type": "glm4v_moe_text", "n_routed_experts": 4,
     "num_experts_per_tok": 2, "moe_intermediate_size": 24}, "vision_config": {"depth": 2, "hidden_size": 32,
     "out_hidden_size": 64, "intermediate_size": 40, "num_heads": 2, "image_size": 56}}, 294_368),
    ("glm4v_moe", {"text_config": DENSE | {"model_type": "glm4v_moe_text", "n_routed_experts": 4,
     "num_experts_per_tok": 2, "moe_intermediate_size": 24}, "vision_config": {"depth": 2, "hidden_size": 32,
     "out_hidden_size": 64, "intermediate_size": 40, "num_heads": 2, "image_size": 56, "attention_bias":
     True}}, 294_560),
    ("glm_moe_dsa", LATENT | {"index_head_dim": 16, "index_n_heads": 4, "index_topk": 64, "indexer_types": ["full",
     "full", "shared", "full", "shared"]}, 408_168),
    ("glm_moe_dsa", LATENT | {"index_head_dim": 16, "index_n_heads": 4, "index_topk": 64}, 413_864),
    ("gpt2", OLD, 278_720),
    ("gpt_bigcode", OLD | {"multi_query": False}, 278_720),
    ("gpt_bigcode", OLD, 247_520),
    ("gpt_neox", {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 96,
     "vocab_size": 320}, 187_808),
    ("gpt_oss", DENSE | {"head_dim": 24, "num_local_experts": 4, "num_experts_per_tok": 2}, 510_184),
    ("gptj", OLD | {"rotary_dim": 8}, 289_408),
    ("granite", DENSE, 195_264),
    ("granitemoe", DENSE | {"num_local_experts": 4}, 473_024),
    ("granitemoeshared", DENSE | {"num_local_experts": 4, "shared_intermediate_size": 48}, 519_104),
    ("hunyuan_v1_dense", DENSE | {"head_dim": 16}, 195_424),
    ("hunyuan_v1_dense", DENSE | {"head_dim": 24, "attention_bias": True}, 227_504),
    ("hunyuan_v1_moe", DENSE | {"head_dim": 24, "num_experts": 4, "moe_topk": 2}, 596_144),
    ("hy_v3", DENSE | {"head_dim": 24, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
     "num_shared_experts": 1}, 245_680),
    ("hy_v3", DENSE | {"head_dim": 24, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
     "num_shared_experts": 0}, 300_976),
    ("llama", DENSE | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, 177_024),
    ("llama", DENSE | {"head_dim": 24}, 225_984),
    ("llama", DENSE, 195_264),
    ("llama4_text", DENSE | {"head_dim": 24, "num_local_experts": 4, "intermediate_size_mlp": 80, "attention_bias":
     True}, 597_184),
    ("llama4_text", DENSE | {"head_dim": 24, "num_local_experts": 4, "intermediate_size_mlp": 80,
     "interleave_moe_layer_step": 2}, 364_736),
    ("longcat_flash", {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 320,
     "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 20,
     "n_routed_experts": 8, "num_layers": 3, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 24, "moe_topk": 3,
     "zero_expert_num": 0}, 337_712),
    ("mimo_v2_flash", DENSE | {"head_dim": 24, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
     "moe_intermediate_size": 24, "swa_num_key_value_heads": 4, "layer_types": ["full_attention", "sliding_attention",
     "sliding_attention", "sliding_attention", "sliding_attention"], "sliding_window": 32, "swa_head_dim": 24,
     "swa_v_head_dim": 16, "add_swa_attention_sink_bias": True}, 232_144),
    ("minimax_m2", DENSE | {"head_dim": 24, "num_local_experts": 4, "num_experts_per_tok": 2}, 504_464),
    ("ministral", DENSE | {"head_dim": 16}, 195_264),
    ("ministral3", DENSE | {"head_dim": 24}, 225_984),
    ("mistral", DENSE | {"head_dim": 24}, 225_984),
    ("mistral", DENSE | {"sliding_window": None}, 195_264),
    ("mistral4", LATENT, 399_624),
    ("mixtral", DENSE | {"num_local_experts": 4}, 473_024),
    ("mpt", {"d_model": 64, "n_heads": 4, "n_layers": 3, "vocab_size": 320}, 168_384),
    ("nemotron", DENSE | {"head_dim": 16}, 165_248),
    ("olmo", DENSE, 194_560),
    ("olmo2", DENSE, 195_744),
    ("olmo3", DENSE, 195_744),
    ("olmoe", DENSE | {"num_experts": 4, "num_experts_per_tok": 2}, 473_504),
    ("opt", {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 96, "vocab_size": 320,
     "word_embed_proj_dim": 32, "do_layer_norm_before": False}, 233_568),
    ("opt", {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 96, "vocab_size": 320,
     "word_embed_proj_dim": 32}, 233_696),
    ("opt", {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 96, "vocab_size": 320,
     "word_embed_proj_dim": 64}, 239_840),
    ("phi", DENSE, 166_688),
    ("phi", {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 4,
     "intermediate_size": 96, "vocab_size": 320}, 187_488),
    ("phi3", DENSE, 195_264),
    ("phimoe", DENSE | {"num_local_experts": 4, "attention_bias": True, "lm_head_bias": True}, 475_008),
    ("phimoe", DENSE | {"num_local_experts": 4}, 473_728),
    ("qwen2", DENSE | {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 2}, 195_904),
    ("qwen2", DENSE, 195_904),
    ("qwen2_5_vl", {"text_config": DENSE | {"model_type": "qwen2_5_vl_text"}, "vision_config": {"depth": 2,
     "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 40, "num_heads": 2}}, 274_816),
    ("qwen2_moe", DENSE | {"num_experts": 6, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56,
     "num_experts_per_tok": 2, "decoder_sparse_step": 2}, 273_600),
    ("qwen2_moe", DENSE | {"num_experts": 6, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56,
     "num_experts_per_tok": 2, "mlp_only_layers": [1]}, 351_296),
    ("qwen2_vl", {"text_config": DENSE | {"model_type": "qwen2_vl_text"}, "vision_config": {"depth": 2, "embed_dim":
     32, "hidden_size": 64, "num_heads": 2}}, 283_776),
    ("qwen3", DENSE | {"head_dim": 24, "attention_bias": True}, 227_504),
    ("qwen3", DENSE, 626_624),
    ("qwen3_moe", DENSE | {"head_dim": 24, "num_experts": 6, "moe_intermediate_size": 40, "num_experts_per_tok": 2,
     "decoder_sparse_step": 2, "mlp_only_layers": [3]}, 254_256),
    ("seed_oss", DENSE | {"head_dim": 24}, 226_944),
    ("smollm3", DENSE, 174_784),
    ("solar_open", {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
     "vocab_size": 320, "head_dim": 24, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
     250_304),
    ("stablelm", DENSE | {"use_qkv_bias": True, "use_parallel_residual": True, "pad_token_id": 0}, 195_968),
    ("stablelm", DENSE, 195_968),
    ("starcoder2", DENSE | {"use_bias": False}, 144_768),
    ("starcoder2", DENSE, 146_528),
("internlm3", DENSE | {"head_dim": 16}, 195_264),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "config", "count"), ROWS, ids=[f"{row[0]}-{row[2]}" for row in ROWS])
def test_a_small_model_of_the_family_has_the_reference_count(kind, config, count):
    assert parameters(read_network(config | {"model_type": kind}, kind)) == count
