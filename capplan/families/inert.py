"""Keys that change neither parameters nor cache in any class: tokens, positions, activations, training, generation.

A family reads its keys; every other key of a file must be here or equal the default of its class, or the reader of the
result is told that it was not read. `make oracle` changes each of these keys and would find one that counts.
"""

_NAMES = frozenset(
    ["_attn_implementation", "_experts_implementation", "_name_or_path", "_commit_hash", "architectures", "attn_implementation", "auto_map", "chunk_size_feed_forward", "finetuning_task", "id2label", "is_decoder", "is_encoder_decoder", "label2id", "model_type", "name_or_path", "num_labels", "output_attentions", "output_hidden_states", "problem_type", "pruned_heads", "return_dict", "tie_encoder_decoder", "tokenizer_class", "torchscript", "transformers_version", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache", "dtype", "torch_dtype", "quantization_config", "compression_config", "activation", "activation_function", "afn", "hidden_act", "hidden_activation", "mlp_hidden_act", "projector_hidden_act", "mamba_hidden_act", "feed_forward_proj", "vision_feature_select_strategy", "multimodal_projector_act", "ffn_act_fn", "hidden_act_param", "alibi", "attn_pdrop", "embd_pdrop", "resid_pdrop", "logit_scale", "logits_scaling", "scale_attn_weights", "scale_fmap", "layer_norm_elementwise_affine", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "residual_in_fp32", "rescale_prenorm_residual", "rescale_every", "final_logit_softcapping", "attn_logit_softcapping", "attention_logit_cap", "clip_qkv", "query_pre_attn_scalar", "attn_scale", "floor_scale", "attn_temperature_tuning", "use_qk_norm_before_rope", "max_logit", "swiglu_limit", "swiglu_limits", "swiglu_limits_shared", "swiglu_alpha", "partial_rotary_factor", "partial_rotary_factors", "rotary_pct", "rotary_dim", "rotary_emb_base", "rotary", "rotary_base", "original_max_position_embeddings", "rope_parameters", "rope_scaling", "rope_theta", "rope_interleave", "rope_type", "rope_local_base_freq", "swa_rope_theta", "global_rope_theta", "use_mrope", "mrope_section", "use_dual_chunk_attention", "rope_ratio", "original_rope", "seq_len_interpolation", "no_rope", "use_nope_positions", "norm_topk_prob", "scoring_func", "score_function", "router_score_function", "moe_router_score_function", "topk_method", "topk_group", "n_group", "num_expert_group", "output_router_logits", "router_dtype", "expert_dispatch", "aux_loss_alpha", "seq_aux", "moe_router_pre_softmax", "moe_router_use_sigmoid", "moe_apply_router_weight_on_input", "norm_after_gate", "mamba_rms_norm_before_gate", "norm_expert_weight", "routed_scaling_factor", "moe_routed_scaling_factor", "router_scaling_factor", "moe_router_scaling_factor", "moe_router_activation_func", "use_moe_router_bias", "moe_renormalize", "use_grouped_topk", "ep_size", "pretraining_tp", "tensor_parallel_size", "sparse_mixer", "time_step_limit", "time_step_min", "time_step_max", "time_step_floor", "mamba_dt_min", "mamba_dt_max", "mamba_dt_limit", "dt_min", "dt_max", "dt_limit", "time_step_scale", "time_step_init_scheme", "mamba_dt_init_floor", "use_mamba_kernels", "use_mambapy", "use_associative_scan", "use_mem_eff_path", "mamba_chunk_size", "chunk_size", "use_mem_rope", "use_long_context", "mamba_dt_bias_init", "initializer_factor", "init_std", "init_method", "init_device", "initializer_cutoff_factor", "max_window_size", "gradient_checkpointing", "summary_activation", "summary_type", "summary_use_proj", "summary_proj_to_labels", "summary_first_dropout", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "attn_softmax_bf16", "gelu_impl", "use_logits_to_keep", "num_logits_to_keep", "use_fused_rms_norm", "logits_to_keep", "temperature", "top_k", "top_p", "do_sample", "max_length", "min_length", "num_beams", "keys_to_ignore_at_inference", "force_bos_token_to_be_generated", "layer_norm_type", "rms_norm", "use_flash_attn", "use_flash_attention", "verbose", "is_causal", "special_tokens", "vision_token_id", "mm_tokens_per_image", "image_seq_length", "tokens_per_second", "fullatt_block_indexes", "vision_output_type", "interpolate_factor", "position_embedding_type", "window_type", "spatial_patch", "vision_type", "image_token_num_per_image", "media_placeholder_token_id", "image_grid_pinpoints", "vision_soft_tokens_per_image", "hc_eps", "hc_sinkhorn_iters", "mlp_bias_only", "hybrid_mamba", "slow_but_exact", "skip_bias_add", "skip_bias_add_qkv", "bias_dropout_fusion", "masked_softmax_fusion", "apply_residual_connection_post_layernorm", "offset_alibi", "no_bias", "name", "task_specific_params", "predict_special_tokens", "n_special", "n_ctx", "ffn_embed_dim", "initial_context_length", "context_window_size", "prefill_chunk_size", "attention_sink_size", "sliding_window_size", "full_attn_mod", "for_llm_compressor", "ignore_index", "diversity_penalty", "encoder_no_repeat_ngram_size", "length_penalty", "no_repeat_ngram_size", "num_beam_groups", "early_stopping", "num_return_sequences", "repetition_penalty", "typical_p", "return_dict_in_generate", "output_scores", "exponential_decay_length_penalty", "remove_invalid_values", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "forced_bos_token_id", "min_new_tokens", "use_unified_vision_chunk", "video_placeholder", "image_placeholder", "process_image_mode", "num_reward_heads", "use_bidirectional_attention", "indexer_rope_interleave", "moe_router_dtype", "moe_shared_expert_overlap", "default_output_length", "pooling_kernel_size", "standardize", "video_seq_length", "use_routing_bias", "use_gemma_norm", "activation_situ_beta", "activation_situ_linear_beta", "gate_lower_bound", "mla_use_nope", "index_share_for_mtp_iteration", "fp32_residual_connection", "fp32_residual", "mamba_use_mlp_act", "resid_scale", "alibi_bias_max", "attn_impl", "attn_type", "add_bos_token", "vocab_file"]
)

_ENDINGS = (
    "_token_id", "_token_ids", "_token_index", "_eps", "_epsilon", "dropout", "_pdrop", "_prob", "_std", "_range",
    "_multiplier", "_multipliers", "_coef", "_coeff", "_theta", "_jitter_noise", "_loss_weight", "_scaling",
    "_implementation", "_softcapping", "_dropout_rate",
)  # fmt: skip


_OF_TYPE = {
    "bloom": "seq_length pretraining_tp",
    "deepseek_v4": "num_hash_layers num_key_value_heads expert_dtype",
    "deepseek_v32": "layer_types",
    "deepseek_ref": "num_hash_layers num_key_value_heads expert_dtype",
    "gemma3n_text": "activation_sparsity_pattern altup_correct_scale altup_active_idx",
    "ernie4_5_moe": "moe_norm_min",
    "glm_moe_dsa": "layer_types num_experts",
    "gemma4_vision": "global_head_dim max_position_embeddings",
    "kimi_k25_vision": "init_pos_emb_time merge_type mm_hidden_size mm_projector_type pos_emb_type text_hidden_size video_attn_type",
    "mimo_v2_flash": "attention_chunk_size",
    "mamba2": "time_step_rank",
    "minimax": "full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor linear_attn_beta_factor mlp_alpha_factor "
    "mlp_beta_factor",
    "gpt_bigcode": "num_key_value_heads",
    "lfm2": "full_attn_idxs",
    "lfm2_moe": "full_attn_idxs",
    "minimax_m2": "attn_type_list shared_intermediate_size",
    "minimax_m3_vl": "image_token_compression_config merged_hidden_size",
    "minimax_m3_vl_vision": "image_size",
    "nemotron_h": "time_step_rank",
    "pixtral": "head_dim image_size",
    "qwen2_5_vl_vision": "window_size",
    "qwen2_5_vl": "window_size",
    "recurrent_gemma": "final_w_init_variance_scale w_init_variance_scale",
    "step3p5_vision": "max_position_embeddings num_attention_heads",
}
"""Keys of one model_type that its class does not have, or has and does not use."""


def is_inert(key: str, model_type: str = "") -> bool:
    """Return whether a key changes neither parameters nor cache, whatever its value.

    Examples
    --------
    >>> is_inert("bos_token_id"), is_inert("rope_theta"), is_inert("num_experts")
    (True, True, False)
    """
    general = key in _NAMES or key.endswith(_ENDINGS) or key.startswith("_")
    return general or key in _OF_TYPE.get(model_type, "").split()
