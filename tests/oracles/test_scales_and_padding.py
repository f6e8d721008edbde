"""Bytes beside the weights themselves: scales of outputs, rows that pad a vocabulary, norms and states that ranks divide."""

import pytest

from capplan.engine.lookup import profile
from capplan.families.model_config import read_network
from capplan.families.quantization.network_formats import quantised
from capplan.memory.capacity import stages_of
from capplan.memory.kv_sizes import kv_sizes
from capplan.memory.layer_groups import cache_kinds, narrow_states
from capplan.memory.rank import rank_weight_bytes
from capplan.model.kv_cache import state_bytes_per_sequence
from capplan.model.parameters import parameters, weight_bytes, weight_bytes_per_rank
from capplan.model.sharding import Sharding
from capplan.readers.catalogue.models import read_model

LLAMA = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "vocab_size": 128,
}  # fmt: skip
MIXTURE = {
    "model_type": "qwen3_moe", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "vocab_size": 128,
}  # fmt: skip
OUTPUTS_DIVIDED = 3 * 256 + 2 * 512
OUTPUTS_REPEATED = 256 + 256
"""Of one layer of LLAMA: queries, keys, values, gate and up are split by outputs, the other two matrices by inputs."""
ELEMENTS = 4 * 256 * 256 + 3 * 256 * 512


def compressed(strategy, kind, activations=True, **more):
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": True, **more},
        **({"input_activations": {"num_bits": 8, "type": kind}} if activations else {}),
    }
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


def sized(section, config=LLAMA):
    return quantised(read_network(config, "tiny"), config | {"quantization_config": section})


SCALED = {
    "fbgemm": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, 8, 4.0),
    "fp8 dynamic": (compressed("channel", "float"), 8, 4.0),
    "fp8 weights alone": (compressed("channel", "float", activations=False), 8, 4.0),
    "int8": (compressed("channel", "int"), 8, 4.0),
    "int8 weights alone": (compressed("channel", "int", activations=False), 8, 2.0),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, 8, 4.0),
    "smooth int8": ({"quant_method": "modelopt", "quant_algo": "W8A8_SQ_PER_CHANNEL"}, 8, 4.0),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8, 4.0),
    "quark": ({"quant_method": "quark", "global_quant_config":
               {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel"}}}, 8, 4.0),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 4, 2.5),
    "gptq in 8 bits": ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8, 3.0),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": -1, "zero_point": True}, 4, 2.5),
    "fp8 per tensor": (compressed("tensor", "float"), 8, 0.0),
    "int8 per tensor": (compressed("tensor", "int"), 8, 0.0),
}  # fmt: skip
"""Section, bits of a weight, and bytes of scale and zero point of an output.

vLLM holds `ChannelQuantScaleParameter` in fp32, scales of weight-only kernels in 16 bits; GPTQ and AWQ pack zero points as wide as weights.
"""


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_every_output_has_its_scale_and_row_split_matrices_have_all_of_them_on_every_rank(name, tensor):
    section, bits, scale = SCALED[name]
    network = sized(section)
    layer = (ELEMENTS * bits / 8 + scale * OUTPUTS_DIVIDED) / tensor + scale * OUTPUTS_REPEATED
    ends = 2 * 2 * 128 * 256 / tensor + 2 * 256 * (1 + 2 * 4)
    assert weight_bytes_per_rank(network, Sharding(tensor=float(tensor))) == 4 * layer + ends
    if tensor == 1:
        assert weight_bytes(network) == 4 * layer + ends


def test_fbgemm_takes_the_bytes_of_the_tensors_of_transformers():
    """Transformers 5.23 on the meta device: LLAMA with FbgemmFp8Linear for every nn.Linear but the LM head."""
    assert weight_bytes(sized(SCALED["fbgemm"][0])) == 2_793_984


@pytest.mark.parametrize(("tensor", "expert"), [(1, 1), (2, 1), (4, 1), (4, 2), (4, 4)])
def test_experts_have_scales_too(tensor, expert):
    """VLLM's FusedMoE in fp8 per channel: w13 scales [E, 2 i / r], w2 scales [E, h], for E experts split over r ranks."""
    sharding = Sharding(tensor=float(tensor), expert=float(expert))
    narrow, plain = (weight_bytes_per_rank(sized(compressed(name, "float"), MIXTURE), sharding)
                     for name in ("channel", "tensor"))  # fmt: skip
    attention = (3 * 256) / tensor + 256
    experts = 4 / expert * (2 * 64 / (tensor / expert) + 256)
    assert narrow - plain == 3 * 4 * (attention + experts)


@pytest.mark.parametrize(("engine", "version", "width"), [("sglang", "0.5.15", 384), ("vllm", "0.33.0", 512)])
def test_sglang_keeps_the_width_of_mxfp4_experts_in_a_checkpoint_of_fp8(engine, version, width):
    """`DeepSeekMxfp4MoEMethod`: 3,072 over eight ranks stay 384; others pad to a multiple of 256."""
    network = read_model("deepseek-ai/DeepSeek-V4-Pro", offline=True)
    (stage,), rules = stages_of(network, 1), profile(engine, version).memory
    ranks = Sharding(tensor=8.0)
    size = rank_weight_bytes(stage, network, ranks, mixed=rules.pads_mixed_experts)
    plain = rank_weight_bytes(stage, network, ranks, mixed=False)
    routed = sum(layer.experts is not None for layer in network.layers)
    experts = routed * 384 * 3 * 7168 * (width - 384) * (0.5 + 1 / 32)
    assert size - plain == pytest.approx(experts, rel=0.01)


GPT2 = "openai-community/gpt2"


@pytest.mark.parametrize(("tensor", "divisible"), [(1, 50257), (2, 50258), (4, 50260)])
def test_the_vocabulary_of_gpt2_is_padded_to_50304_rows_on_the_ranks_alone(tensor, divisible):
    """VLLM, `pad_vocab_size(50257, 64)`; one table, which the LM head shares."""
    network = read_model(GPT2, offline=True)
    (stage,) = stages_of(network, 1)
    ranks = Sharding(tensor=float(tensor))
    padded, even = (rank_weight_bytes(stage, network, ranks, vocabulary_multiple=m) for m in (64, 1))
    assert padded - even == (50304 - divisible) * 768 * 2 / tensor
    assert padded == rank_weight_bytes(stage, network, ranks)
    assert parameters(network) == 124_439_808


def test_embedding_and_head_are_padded_on_the_stages_that_hold_them():
    untied = read_network(LLAMA | {"vocab_size": 129, "tie_word_embeddings": False}, "odd")
    first, middle, last = stages_of(untied, 4)[0], stages_of(untied, 4)[1], stages_of(untied, 4)[-1]
    added = [
        rank_weight_bytes(stage, untied, Sharding(tensor=2.0))
        - weight_bytes_per_rank(stage.network, Sharding(tensor=2.0))
        for stage in (first, middle, last)
    ]
    rows = (192 - 129) * 256 * 2 / 2
    assert [added[0] - added[1], added[2] - added[1]] == [rows, rows]


def test_tensorrt_llm_pads_to_the_ranks_alone(capplan):
    assert profile("trtllm").memory.vocabulary_multiple == 1
    sizes = {}
    for engine in ("vllm", "trtllm"):
        words = ("fit", GPT2, "--hardware", "h100", "-tp", "2", "--engine", engine, "--format", "json")
        sizes[engine] = capplan.result(*words)["weight_bytes_per_gpu"]
    assert sizes["vllm"] - sizes["trtllm"] == (50304 - 50258) * 768 * 2 / 2


GRANITE = {
    "model_type": "granitemoehybrid", "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_local_experts": 0, "shared_intermediate_size": 192, "layer_types": ["mamba", "attention"],
    "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_d_conv": 4, "mamba_expand": 2,
    "vocab_size": 128, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_rank_of_granite_4_holds_its_part_of_the_gated_norm(tensor):
    """The tensors of vLLM's MambaMixer2, attention, feed-forward and norms on one rank, listed by hand."""
    inner, heads, shared = 256 // tensor, 8 // tensor, 2 * 2 * 16 // tensor
    mixer = 128 * (2 * inner + shared + heads) + inner * 128  # in_proj, out_proj
    mixer += (inner + shared) * 4 + (inner + shared)  # convolution and its bias
    mixer += 3 * heads + inner  # A, D, dt bias; the gated norm over the channels of the rank
    attention = 128 * (128 + 2 * 64) // tensor + 128 * 128 // tensor
    feed_forward = 3 * 128 * 192 // tensor
    norms = 2 * 2 * 128 + 128
    table = 128 * 128 // tensor
    held = mixer + attention + 2 * feed_forward + norms + table
    network = read_network(GRANITE, "granite")
    assert weight_bytes_per_rank(network, Sharding(tensor=float(tensor))) == 2 * held


MAMBA = {
    "model_type": "mamba", "hidden_size": 2560, "intermediate_size": 5120, "num_hidden_layers": 64, "state_size": 16, "conv_kernel": 4,
    "vocab_size": 50280, "time_step_rank": 160, "torch_dtype": "float32",
}  # fmt: skip
"""state-spaces/mamba-2.8b-hf."""


@pytest.mark.parametrize(("engine", "element"), [("vllm", 2), ("sglang", 4), ("trtllm", 2)])
def test_an_engine_holds_states_of_mamba_in_a_named_dtype(engine, element):
    """Transformers keeps four columns in the dtype of the model and states in fp32: 23.6 MB.

    VLLM, `mamba1_state_dtype`: states in the dtype of the model unless told otherwise, 12.5 MB; SGLang, `mamba2_state_dtype`:
    fp32 unless told otherwise. Both hold three columns.
    """
    sizes = kv_sizes(read_network(MAMBA, "mamba-2.8b"), [4096], engine=engine)
    (row,) = sizes.rows
    assert row.state_bytes_per_sequence == row.engine_reserved_bytes_per_sequence
    assert row.engine_reserved_bytes_per_sequence == 64 * 5120 * (3 * 2 + 16 * element)
    named = [item for item in sizes.assumptions if "recurrent states in bf16" in item.what]
    assert len(named) == (1 if element == 2 else 0)


HYBRIDS = (
    "Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3.5-35B-A3B", "nvidia/Nemotron-H-56B-Base-8K", "ai21labs/AI21-Jamba-1.5-Large",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
)  # fmt: skip


@pytest.mark.parametrize("model", HYBRIDS)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_an_engine_holds_what_is_needed_less_a_column_or_says_in_which_dtype(model, engine):
    network = read_model(model, offline=True)
    rules = profile(engine).memory
    kinds = cache_kinds(network, 1.0, 2.0, 2.0, rules.recurrent_format)
    held = sum(kind.layers * float(kind.state_bytes) for kind in kinds)
    parts = [p for layer in network.layers for m in layer.mixers for p in m.description.state_parts]
    columns = sum((p.elements - p.allocated_elements) * 2 for p in parts)
    short = held < float(state_bytes_per_sequence(network)) - columns
    assert short == bool(narrow_states(network, rules, engine))
