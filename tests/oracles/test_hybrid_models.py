"""Do networks with recurrent states hold the parameters and the states that were counted elsewhere?

Counts: Hugging Face transformers 5.23.0, the class named by the config built on torch's meta device, all
parameters added up. States: the tensors that the caches of tiny models of each family held after 24 to 192
tokens (transformers 5.23.0; convolution columns in bf16, recurrent states in fp32). That reference keeps
as many convolution columns as the kernel is long; engines keep one less, and some hold the recurrent
state in 16 bit, which `mamba_ssm_cache_dtype` and the like say.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from capplan.engine.lookup import profile
from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.memory.layer_groups import cache_kinds
from capplan.model.kv_cache import kv_bytes_per_token, state_bytes, state_bytes_per_sequence
from capplan.model.network import (
    Attention,
    LatentAttention,
    Layer,
    LinearAttention,
    ShortConvolution,
    StateSpace,
)
from capplan.model.parameters import active_parameters, parameters, weight_elements_by_class
from capplan.operators.linear_attention import LinearAttentionRates, gated_delta_decode_time_s
from capplan.readers.catalogue.models import read_model

ATTENTION = {"num_attention_heads": 32, "num_key_value_heads": 8}
DELTA = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
}  # fmt: skip
QWEN3_NEXT = DELTA | {
    "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48, "head_dim": 256,
    "num_attention_heads": 16, "num_key_value_heads": 2, "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "vocab_size": 151936,
}  # fmt: skip
JAMBA = ATTENTION | {
    "model_type": "jamba", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_experts": 16,
    "num_experts_per_tok": 2, "mamba_d_state": 16, "mamba_dt_rank": "auto", "vocab_size": 65536,
}  # fmt: skip
NEMOTRON = {
    "model_type": "nemotron_h", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 21504, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8,
    "ssm_state_size": 128, "vocab_size": 131072,
}  # fmt: skip
ZAMBA = {
    "model_type": "zamba2", "hidden_size": 2560, "num_hidden_layers": 54, "num_attention_heads": 32, "vocab_size": 32000,
    "layers_block_type": ["mamba", *(["mamba"] * 5 + ["hybrid"]) * 7, *["mamba"] * 4, "hybrid", *["mamba"] * 3, "hybrid",
                          "mamba", "mamba"],
}  # fmt: skip
MAMBA2 = {
    "mamba_n_heads": 128,
    "mamba_d_state": 256,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
BAMBA = ATTENTION | MAMBA2 | {
    "model_type": "bamba", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128000,
    "attn_layer_indices": [9, 18, 27],
}  # fmt: skip
LFM2 = {
    "model_type": "lfm2", "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536, "full_attn_idxs": [2, 5, 8],
}  # fmt: skip
GRIFFIN = {
    "model_type": "recurrent_gemma", "hidden_size": 2560, "intermediate_size": 15360, "num_hidden_layers": 26,
    "num_attention_heads": 10, "num_key_value_heads": 1, "vocab_size": 256000,
}  # fmt: skip
KIMI = {
    "model_type": "kimi_linear", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 27,
    "num_attention_heads": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "num_experts": 256, "num_experts_per_token": 8, "moe_intermediate_size": 1024, "num_shared_experts": 1,
    "first_k_dense_replace": 1, "vocab_size": 163840,
    "layer_types": ["full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(27)],
}  # fmt: skip

COUNTS = [
    ("Qwen3-Next", QWEN3_NEXT, 79_674_391_296),
    ("Qwen3-Next with two dense layers", QWEN3_NEXT | {"mlp_only_layers": [0, 3]}, 76_513_979_136),
    ("Qwen3.5 dense", DELTA | {"model_type": "qwen3_5_text", "hidden_size": 4096, "intermediate_size": 12288, "head_dim": 256,
     "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 248320}, 8_953_803_264),
    ("MiniMax", ATTENTION | {"model_type": "minimax", "hidden_size": 4096, "intermediate_size": 14336,
     "num_hidden_layers": 32, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000}, 47_373_946_880),
    ("MiniMax, wide heads", {"model_type": "minimax", "hidden_size": 6144, "intermediate_size": 14336, "head_dim": 128,
     "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 8, "num_local_experts": 8,
     "num_experts_per_tok": 2, "vocab_size": 32000}, 18_764_797_952),
    ("Granite 4, all states", MAMBA2 | {"model_type": "granitemoehybrid", "hidden_size": 4096, "intermediate_size": 11008,
     "num_hidden_layers": 32, "num_attention_heads": 32, "num_local_experts": 8, "num_experts_per_tok": 2,
     "shared_intermediate_size": 1024, "vocab_size": 32000}, 38_601_064_448),
    ("Jamba v0.1", JAMBA, 51_570_323_328),
    ("Nemotron-H, one layer of each kind", NEMOTRON | {"hybrid_override_pattern": "ME*-"}, 1_968_355_712),
    ("Nemotron 3, latent experts", NEMOTRON | {"hybrid_override_pattern": "M-M*EM*E", "moe_latent_size": 512},
     1_923_107_968),
    ("Mamba", {"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 32, "vocab_size": 50280}, 159_308_544),
    ("Codestral Mamba", {"model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128,
     "head_dim": 64, "state_size": 128, "n_groups": 8, "vocab_size": 32768}, 7_285_403_648),
    ("Falcon Mamba 7B", {"model_type": "falcon_mamba", "hidden_size": 4096, "num_hidden_layers": 64, "vocab_size": 65024,
     "tie_word_embeddings": False}, 7_272_665_088),
    ("Falcon-H1", ATTENTION | MAMBA2 | {"model_type": "falcon_h1", "hidden_size": 4096, "intermediate_size": 14336,
     "num_hidden_layers": 32, "mamba_d_ssm": 1024, "vocab_size": 128000}, 8_514_961_408),
    ("Falcon-H1, full width and gated norm", ATTENTION | MAMBA2 | {"model_type": "falcon_h1", "hidden_size": 4096,
     "intermediate_size": 14336, "num_hidden_layers": 32, "mamba_rms_norm": True, "mamba_d_ssm": None, "vocab_size": 128000},
     11_334_942_720),
    ("Bamba", BAMBA, 9_808_584_064),
    ("Zamba2, one shared block", ZAMBA, 2_481_848_336),
    ("Zamba2, two shared blocks", ZAMBA | {"num_mem_blocks": 2}, 2_652_249_616),
    ("Zamba2, attention adapters", ZAMBA | {"num_mem_blocks": 2, "use_shared_attention_adapter": True}, 2_687_639_056),
    ("LFM2", LFM2, 1_564_529_120),
    ("LFM2 with experts", {"model_type": "lfm2_moe", "hidden_size": 2048, "intermediate_size": 7168, "num_experts": 32,
     "moe_intermediate_size": 1792, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_attention_heads": 32,
     "num_key_value_heads": 8, "vocab_size": 65536, "layer_types": ["conv", "conv", "full_attention"] * 8}, 8_327_334_912),
    ("Kimi Linear 48B", KIMI, 49_133_074_464),
    ("RecurrentGemma 2B", GRIFFIN, 2_682_862_080),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config", "expected"), COUNTS, ids=[row[0] for row in COUNTS])
def test_parameters_equal_the_reference_count_to_the_last_one(name, config, expected):
    assert parameters(read_network(config, name)) == expected


TINY = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 4}  # fmt: skip
TINY_DELTA = TINY | {
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip
TINY_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
TINY_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

STATES = {
    "kimi_linear": KIMI | {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "kv_lora_rank": 16,
     "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "layer_types": None, "vocab_size": 128,
     "linear_attn_config": {"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4, "full_attn_layers": [4]}},
    "qwen3_next": TINY_DELTA | TINY_EXPERTS | {"model_type": "qwen3_next", "num_experts": 4},
    "qwen3_5_text": TINY_DELTA | {"model_type": "qwen3_5_text"},
    "minimax": TINY | {"model_type": "minimax", "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "mamba": TINY | {"model_type": "mamba", "state_size": 8, "intermediate_size": 128},
    "falcon_mamba": TINY | {"model_type": "falcon_mamba", "state_size": 8, "intermediate_size": 128},
    "mamba2": TINY | {"model_type": "mamba2", "num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 2},
    "jamba": TINY | {"model_type": "jamba", "num_hidden_layers": 8, "mamba_d_state": 8, "num_experts": 4,
                     "num_experts_per_tok": 2},
    "zamba2": TINY | {"model_type": "zamba2", "num_hidden_layers": 6, "num_key_value_heads": 4, "n_mamba_heads": 8,
                      "mamba_d_state": 8, "layers_block_type": ["mamba", "mamba", "hybrid"] * 2},
    "nemotron_h": NEMOTRON | TINY | {"hybrid_override_pattern": "M*M-", "head_dim": 16, "mamba_num_heads": 8,
                                     "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 8},
    "granitemoehybrid": TINY | TINY_MAMBA2 | {"model_type": "granitemoehybrid", "num_local_experts": 4,
     "num_experts_per_tok": 2, "shared_intermediate_size": 32, "layer_types": ["mamba", "attention"] * 2},
    "bamba": TINY | TINY_MAMBA2 | {"model_type": "bamba", "attn_layer_indices": [1, 3]},
    "falcon_h1": TINY | TINY_MAMBA2 | {"model_type": "falcon_h1", "mamba_d_ssm": 128},
    "lfm2": TINY | {"model_type": "lfm2", "full_attn_idxs": [1, 3]},
}  # fmt: skip

# family: layers with a state (how many, elements, bytes), layers with a cache (how many, elements per token)
MEASURED = {
    "kimi_linear": ((3, 1792, 5632), (1, 24)), "qwen3_next": ((3, 512, 1536), (1, 64)),
    "qwen3_5_text": ((3, 512, 1536), (1, 64)), "minimax": ((2, 1024, 2048), (2, 64)), "mamba": ((4, 1536, 5120), None),
    "falcon_mamba": ((4, 1536, 5120), None), "mamba2": ((4, 1664, 5376), None), "jamba": ((7, 1536, 5120), (1, 64)),
    "zamba2": ((6, 1600, 5248), (2, 256)), "nemotron_h": ((2, 1664, 5376), (1, 64)),
    "granitemoehybrid": ((2, 1600, 5248), (2, 64)), "bamba": ((2, 1600, 5248), (2, 64)),
    "falcon_h1": ((4, 1600, 5248), (4, 64)), "lfm2": ((2, 192, 384), (2, 64)),
}  # fmt: skip


def state_elements(mixer):
    """Return the elements that the state tensors of a mixer have, counted from its record."""
    if isinstance(mixer, ShortConvolution):
        return mixer.channels * mixer.kernel
    if isinstance(mixer, LinearAttention):
        return mixer.conv_channels * mixer.conv_kernel + mixer.state_elements
    return mixer.conv_channels * mixer.conv_kernel + mixer.inner_size * mixer.state_size


@pytest.mark.parametrize("family", MEASURED)
def test_every_layer_holds_the_measured_state_and_cache(family):
    network = read_network(STATES[family], family)
    mixers = [mixer for layer in network.layers for mixer in layer.mixers]
    states = [m for m in mixers if isinstance(m, LinearAttention | StateSpace | ShortConvolution)]
    caches = [m for m in mixers if isinstance(m, Attention | LatentAttention)]
    expected_states, expected_caches = MEASURED[family]
    assert {(state_elements(m), float(state_bytes(m))) for m in states} == {expected_states[1:]}
    assert len(states) == expected_states[0]
    alone = [replace(network, layers=(Layer((m,), ()),)) for m in caches]
    assert {float(kv_bytes_per_token(one, 0.0, 1.0)) for one in alone} == (
        {expected_caches[1]} if expected_caches else set()
    )
    assert len(caches) == (expected_caches[0] if expected_caches else 0)
    assert float(state_bytes_per_sequence(network)) == expected_states[0] * expected_states[2]


SHARED_OUT = (
    "channels",
    "key_heads",
    "value_heads",
    "conv_channels",
    "state_elements",
    "inner_size",
    "heads",
    "groups",
)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("family", MEASURED)
def test_a_rank_holds_the_measured_state_of_a_mixer_with_its_share_of_heads(family, ranks):
    """Tensor parallelism deals out heads, groups and channels: so many times as many on so many ranks are the measured ones."""
    (_, _, size), _ = MEASURED[family]
    for layer in read_network(STATES[family], family).layers:
        for mixer in layer.mixers:
            if isinstance(mixer, LinearAttention | StateSpace | ShortConvolution):
                keys = [key for key in SHARED_OUT if hasattr(mixer, key)]
                wider = replace(mixer, **{key: ranks * getattr(mixer, key) for key in keys})
                assert float(state_bytes(wider, float(ranks))) == size


JAMBA_LARGE, NEMOTRON_3 = "ai21labs/AI21-Jamba-1.5-Large", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B"


@pytest.mark.parametrize(
    ("model", "ranks", "columns", "recurrent", "element"),
    [
        (JAMBA_LARGE, 1, (3, 16384), (16384, 16), 2),
        (JAMBA_LARGE, 8, (3, 2048), (2048, 16), 2),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 2, (3, 4096), (16, 128, 128), 2),
        (NEMOTRON_3, 4, (3, 2560), (32, 64, 128), 4),
        (NEMOTRON_3, 16, (3, 768), (8, 64, 128), 4),
    ],
)
def test_engines_hold_the_tensors_that_vllm_allocates(model, ranks, columns, recurrent, element):
    """VLLM's mamba_utils.py, `MambaStateShapeCalculator`: `mamba1_state_shape`, `gated_delta_net_state_shape` and
    `mamba2_state_shape`, which gives every rank a group of its own where they outnumber the eight; columns in bf16.
    """
    kinds = cache_kinds(read_model(model, offline=True), float(ranks), 2.0)
    (size,) = [float(kind.state_bytes) for kind in kinds if kind.kind == "state"]
    assert size == 2 * math.prod(columns) + element * math.prod(recurrent)


def columns_and_state(mixing, recurrent, ranks, taps, groups=0, size=0):
    """Return the bytes of a convolution of `mixing` channels and groups of B and C, and of a state, as vLLM shapes them on a rank."""
    held = groups if groups % ranks == 0 else ranks
    return 2 * (mixing + 2 * held * size) // ranks * (taps - 1) + 2 * recurrent // ranks


VLLM_SHAPES = {
    "mamba": lambda r: columns_and_state(128, 128 * 8, r, 4),
    "falcon_mamba": lambda r: columns_and_state(128, 128 * 8, r, 4),
    "jamba": lambda r: columns_and_state(128, 128 * 8, r, 4),
    "mamba2": lambda r: columns_and_state(128, 8 * 16 * 8, r, 4, 2, 8),
    "zamba2": lambda r: columns_and_state(128, 8 * 16 * 8, r, 4, 1, 8),
    "bamba": lambda r: columns_and_state(128, 8 * 16 * 8, r, 4, 1, 8),
    "granitemoehybrid": lambda r: columns_and_state(128, 8 * 16 * 8, r, 4, 1, 8),
    "falcon_h1": lambda r: columns_and_state(128, 8 * 16 * 8, r, 4, 1, 8),
    # NemotronHForCausalLMConfig: states in fp32 where the config states nothing
    "nemotron_h": lambda r: columns_and_state(128, 2 * 8 * 16 * 8, r, 4, 2, 8),
    "qwen3_next": lambda r: columns_and_state(2 * 2 * 8 + 4 * 8, 4 * 8 * 8, r, 4),
    "qwen3_5_text": lambda r: columns_and_state(2 * 2 * 8 + 4 * 8, 4 * 8 * 8, r, 4),
    # kda_state_dtype: the recurrent state in fp32
    "kimi_linear": lambda r: columns_and_state(3 * 4 * 16, 2 * 4 * 16 * 16, r, 4),
    "minimax": lambda r: columns_and_state(0, 4 * 16 * 16, r, 4),
    "lfm2": lambda r: columns_and_state(64, 0, r, 3),
}
"""What one layer with a state takes on one of r ranks, by the functions of `MambaStateShapeCalculator` and `MambaStateDtypeCalculator`."""


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("family", VLLM_SHAPES)
def test_every_state_model_holds_the_bytes_that_vllm_allocates(family, ranks):
    """Vllm-project/vllm@02d7108, vllm/model_executor/layers/mamba/mamba_utils.py, without drafts; a checkpoint in bf16."""
    network = read_network({"dtype": "bfloat16"} | STATES[family], family)
    kinds = cache_kinds(network, float(ranks), 2.0, 2.0, profile("vllm").memory.recurrent_format)
    sizes = {float(kind.state_bytes) for kind in kinds if kind.kind == "state"}
    assert sizes == {VLLM_SHAPES[family](ranks)}


def test_lightning_attention_keeps_a_square_for_each_head_and_no_columns():
    """VLLM, `linear_attention_state_shape`: (heads / ranks, head_dim, head_dim), in 16 bit."""
    kinds = cache_kinds(read_network(STATES["minimax"], "minimax"), 2.0, 2.0)
    assert [float(kind.state_bytes) for kind in kinds if kind.kind == "state"] == [2 * 2 * 16 * 16]


def test_a_recurrent_step_moves_the_tensors_of_its_kernel_once():
    """Flash-linear-attention, `fused_recurrent_gated_delta_rule`: q, k [B, T, H, K]; v, o [B, T, HV, V]; a state [HV, K, V]
    is read once and written after every token. Gates, two numbers for a head and token, are left out.
    """
    batch, tokens, key_heads, value_heads, key_dim, value_dim = 3, 2, 4, 8, 16, 32
    queries = keys = np.zeros((batch, tokens, key_heads, key_dim), np.float16)
    values = outputs = np.zeros((batch, tokens, value_heads, value_dim), np.float16)
    state = np.zeros((batch, value_heads, key_dim, value_dim), np.float32)
    moved = sum(tensor.nbytes for tensor in (queries, keys, values, outputs)) + (1 + tokens) * state.nbytes
    # A device of one byte a second whose decode kernel reaches all of it and starts at once.
    rates = LinearAttentionRates(1e12, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    seconds = gated_delta_decode_time_s(
        float(batch),
        float(key_heads),
        float(value_heads),
        float(key_dim),
        float(value_dim),
        4.0,
        rates,
        float(tokens),
    )
    assert float(seconds) == moved


def test_the_measured_states_are_those_of_the_table(measured):
    seen = {}
    for row in measured.table("cache_elements"):
        if row["family"] not in MEASURED or row["layer_class"] == "DummyLayer":
            continue
        count, at_192, size = (int(row[name]) for name in ("layers", "elements_192", "bytes_192"))
        slope = (at_192 - int(row["elements_96"])) // 96
        state, cache = seen.setdefault(row["family"], [[0, 0, 0], [0, 0]])
        if at_192 > slope * 192:
            state[:] = [state[0] + count, at_192 - slope * 192, size - slope * 192 * 2]
        if slope:
            cache[:] = [cache[0] + count, slope]
    found = {family: (tuple(s), tuple(c) if c[0] else None) for family, (s, c) in seen.items()}
    assert found == {family: held for family, held in MEASURED.items() if measured.whole or family in found}
    assert len(found) >= 6


def test_shared_blocks_of_zamba_are_multiplied_in_every_hybrid_layer_and_held_once():
    network = read_network(ZAMBA, "Zamba2")
    hybrids = [layer for layer in network.layers if any(isinstance(m, Attention) for m in layer.mixers)]
    held = [any(p.name == "qkv" and p.held for p in layer.projections) for layer in hybrids]
    assert held == [True] + [False] * 8
    assert active_parameters(network) > parameters(network)


def test_multi_token_prediction_is_counted_apart():
    plain = read_network(NEMOTRON | {"hybrid_override_pattern": "ME*E"}, "n")
    more = NEMOTRON | {
        "hybrid_override_pattern": "ME*E",
        "num_nextn_predict_layers": 1,
        "mtp_hybrid_override_pattern": "*E",
    }
    network = read_network(more, "n")
    assert parameters(network) == parameters(plain)
    joining = 2 * 4096 * 4096 + 3 * 4096
    layers = plain.layers[1:3]
    assert network.mtp_parameters == joining + sum(_held(layer) for layer in layers)


def _held(layer):
    experts = layer.experts.parameters if layer.experts else 0
    return (
        sum(p.parameters for p in layer.projections)
        + experts
        + layer.norm_parameters
        + layer.state_parameters
    )


@pytest.mark.parametrize(
    ("family", "key", "value", "words"),
    [
        ("mamba2", "num_heads", 7, "num_heads x head_dim = expand x hidden_size"),
        ("mamba2", "n_groups", 3, "not divisible"),
        ("jamba", "num_experts_per_tok", 9, "of 4 experts"),
        ("bamba", "mamba_n_heads", 5, "not divisible"),
        ("zamba2", "layers_block_type", ["mamba"], "1 entries for 6 layers"),
        ("zamba2", "layers_block_type", ["snake"] * 6, "'snake' is not known"),
        ("nemotron_h", "hybrid_override_pattern", "M*Q", "letter 'Q' at 2"),
        ("nemotron_h", "mamba_ssm_cache_dtype", "int3", "int3"),
        ("qwen3_next", "linear_num_value_heads", 3, "not divisible"),
        ("minimax", "num_local_experts", None, "num_local_experts or num_experts: missing"),
        ("lfm2", "full_attn_idxs", None, "layer_types or full_attn_idxs: missing"),
        ("lfm2", "block_ffn_dim_multiplier", "two", "is not a factor"),
        ("mamba", "hidden_size", -1, "out of range"),
        ("kimi_linear", "kv_lora_rank", "wide", "is not a number"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(family, key, value, words):
    with pytest.raises(InputError) as error:
        read_network(STATES[family] | {key: value}, family)
    assert words in str(error.value)


def test_kimi_k3_comes_near_the_published_2800_billion():
    """No reference implementation counts it; 2.8 trillion is the published total, and the shapes give 2.78."""
    from capplan.readers.catalogue.models import shipped_config

    config, name = shipped_config("moonshotai/Kimi-K3")
    network = read_network(config, name)
    assert parameters(network) == pytest.approx(2.8e12, rel=0.01)
    assert any("no reference implementation" in note for note in network.notes)


def test_nested_qwen_counts_text_and_tower_apart():
    from capplan.readers.catalogue.models import shipped_config

    config, name = shipped_config("Qwen/Qwen3.5-35B-A3B")
    elements = weight_elements_by_class(read_network(config, name))
    assert sum(elements.values()) - elements["vision"] == 34_660_610_688
    assert sum(elements.values()) == 35_107_181_936
