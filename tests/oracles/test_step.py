"""Step 3 and Step3-VL against their cards and the classes of vLLM 0.33 (step3_text.py, step3_vl.py, step_vl.py)."""

import pytest

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.model.kv_cache import kv_bytes_per_token
from capplan.model.parameters import active_parameters, parameters

TEXT = {
    "model_type": "step3_text", "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 64, "num_attention_groups": 1,
    "num_hidden_layers": 61, "max_seq_len": 65536, "vocab_size": 128815, "moe_intermediate_size": 5120, "moe_num_experts": 48,
    "moe_top_k": 3, "share_expert_dim": 5120, "share_q_dim": 2048, "head_dim": 256, "moe_layers_enum": ",".join(map(str, range(4, 60))),
}  # fmt: skip
STEP3 = {
    "model_type": "step3_vl", "architectures": ["Step3VLForConditionalGeneration"], "understand_projector_stride": 2, "projector_bias": False,
    "text_config": TEXT,
    "vision_config": {
        "model_type": "step3_vision_encoder", "hidden_size": 1792, "output_hidden_size": 4096, "image_size": 728, "patch_size": 14,
        "intermediate_size": 15360, "num_attention_heads": 16, "num_hidden_layers": 63, "num_channels": 3,
    },
}  # fmt: skip
STEP3_VL = {
    "model_type": "step_robotics", "architectures": ["StepVLForConditionalGeneration"], "image_token_len": 169, "patch_token_len": 81,
    "understand_projector_stride": 2, "projector_bias": False,
    "vision_config": {
        "model_type": "perception_encoder", "image_size": 728, "patch_size": 14, "width": 1536, "layers": 47, "heads": 16,
        "mlp_ratio": 8960 / 1536, "use_cls_token": False, "ls_init_value": 0.1, "use_ln_post": False, "hidden_act": "quick_gelu",
        "output_dim": None, "pool_type": "none", "num_channels": 3,
    },
    "text_config": {
        "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 65536, "tie_word_embeddings": False,
    },
}  # fmt: skip


def test_step_3_has_the_published_parameters():
    """321 billion, 38 of them active, 316 of text: https://huggingface.co/stepfun-ai/step3."""
    network = read_network(STEP3, "step3")
    assert [round(count / 1e9) for count in (parameters(network), active_parameters(network))] == [321, 38]
    assert round((parameters(network) - network.vision_parameters) / 1e9) == 316
    assert network.notes == ()
    assert network.max_context_tokens == 65536


def test_every_layer_of_step_3_caches_one_key_and_one_value_of_256_whatever_the_ranks():
    """`Step3TextAttention`: `num_kv_heads` must be 1, and qkv_proj is replicated."""
    network = read_network(STEP3, "step3")
    assert [float(kv_bytes_per_token(network, 1.0, 2.0, tensor)) for tensor in (1.0, 8.0)] == [
        61 * 2 * 256 * 2
    ] * 2


def test_queries_of_step_3_have_a_low_rank():
    """7,168 to 2,048 on every rank, a norm, then 64 heads of 256."""
    layer = read_network(STEP3, "step3").layers[0]
    of_name = {matrix.name: matrix for matrix in layer.projections}
    assert (of_name["q_a"].outputs, of_name["q_a"].split) == (2048, "none")
    assert (of_name["kv"].outputs, of_name["kv"].split) == (512, "none")
    assert (of_name["q_b"].inputs, of_name["q_b"].outputs) == (2048, 64 * 256)
    assert layer.norm_parameters == 2 * 7168 + 2048


def test_step3_vl_is_a_qwen_3_with_the_tower_of_step_3_7():
    """10.17 billion parameters in bf16: 20.3 GB of weights, https://huggingface.co/stepfun-ai/Step3-VL-10B."""
    network = read_network(STEP3_VL, "step3-vl")
    assert 2 * parameters(network) == pytest.approx(20.3e9, rel=0.003)
    assert parameters(network) - network.vision_parameters == 8_190_735_360
    assert not any("not read" in note for note in network.notes)


def test_more_key_value_heads_are_rejected():
    with pytest.raises(InputError, match="num_attention_groups"):
        read_network(STEP3 | {"text_config": TEXT | {"num_attention_groups": 8}}, "step3")
