"""Are recurrent states as large as the code of vLLM allocates them?

vLLM 0.20 and later: `MambaStateShapeCalculator` and `MambaStateDtypeCalculator` in vllm/model_executor/layers/mamba/mamba_utils.py;
`NemotronHForCausalLMConfig.update_mamba_ssm_cache_dtype` in vllm/model_executor/models/config.py stores fp32 where the config
states nothing; `kda_state_dtype` returns (dtype of the model, float32).
"""

import pytest

from capplan.engine.lookup import profile
from capplan.families.model_config import read_network
from capplan.memory.layer_groups import cache_kinds, narrow_states
from capplan.readers.catalogue.models import read_model, shipped_config


def held(network, engine="vllm"):
    """Return the bytes of the states of one sequence, and the number of layers with states."""
    rules = profile(engine).memory
    kinds = cache_kinds(network, 1.0, 2.0, 2.0, rules.recurrent_format)
    states = [kind for kind in kinds if kind.kind == "state"]
    return sum(kind.layers * float(kind.state_bytes) for kind in states), sum(kind.layers for kind in states)


def nemotron_h(**keys):
    config, name = shipped_config("nvidia/Nemotron-H-56B-Base-8K")
    return read_network(
        {key: value for key, value in config.items() if "ssm_cache" not in key} | keys, name
    ), config


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("keys", "state_bytes"),
    [({}, 4), ({"mamba_ssm_cache_dtype": "float32"}, 4), ({"mamba_ssm_cache_dtype": "bfloat16"}, 2)],
)
def test_nemotron_h_keeps_fp32_unless_its_config_says_otherwise(engine, keys, state_bytes):
    network, config = nemotron_h(**keys)
    heads, size, state = config["mamba_num_heads"], config["mamba_head_dim"], config["ssm_state_size"]
    channels = heads * size + 2 * config["n_groups"] * state
    layers = config["hybrid_override_pattern"].count("M")
    convolution = channels * (config["conv_kernel"] - 1) * 2
    assert held(network, engine) == (layers * (convolution + heads * size * state * state_bytes), layers)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_delta_attention_keeps_its_recurrent_state_in_fp32(dtype):
    config = {"model_type": "kimi_linear", "hidden_size": 2304, "num_hidden_layers": 4, "vocab_size": 1000, "dtype": dtype,
              "num_attention_heads": 32, "num_key_value_heads": 32, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
              "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 9216, "num_experts": 8, "num_experts_per_token": 2,
              "moe_intermediate_size": 1024, "num_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1,
              "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 128, "num_heads": 32,
                                     "short_conv_kernel_size": 4}}  # fmt: skip
    network = read_network(config, "kimi-linear")
    inner = 32 * 128
    assert held(network) == (3 * (3 * inner * 3 * 2 + 32 * 128 * 128 * 4), 3)


def test_states_that_the_family_states_are_not_said_to_be_in_16_bits():
    rules = profile("vllm").memory
    for model in ("nvidia/Nemotron-H-56B-Base-8K", "moonshotai/Kimi-K3"):
        assert narrow_states(read_model(model, offline=True), rules, "vllm") == ()
    assert narrow_states(read_model("Qwen/Qwen3-Next-80B-A3B-Instruct", offline=True), rules, "vllm")


def test_qwen3_next_keeps_its_states_in_the_dtype_of_the_model():
    """`gated_delta_net_state_dtype` with mamba_ssm_cache_dtype auto: the dtype of the convolution, that of the model."""
    config, _ = shipped_config("Qwen/Qwen3-Next-80B-A3B-Instruct")
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_size, value_size = config["linear_key_head_dim"], config["linear_value_head_dim"]
    channels = 2 * keys * key_size + values * value_size
    each = channels * (config["linear_conv_kernel_dim"] - 1) + values * key_size * value_size
    assert held(read_model("Qwen/Qwen3-Next-80B-A3B-Instruct", offline=True)) == (36 * 2 * each, 36)
