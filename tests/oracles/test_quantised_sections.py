"""How many bytes do quantised checkpoints have whose config says more than one format?

Expected bytes are counted by hand from the shapes on the model cards and from what the kernels of vLLM allocate
(vllm/model_executor/layers/quantization): packed weights, scales, zero points, metadata of 2:4 sparsity.
"""

import json

import pytest

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.families.quantization.network_formats import quantised
from capplan.model.parameters import parameters, weight_bytes
from capplan.model.weight_format import stored_formats
from capplan.readers.catalogue.models import read_model, shipped_config

LAYERS, HIDDEN, KEYS, INNER, VOCABULARY = 32, 4096, 1024, 14_336, 128_256
"""Llama 3.1 8B: arXiv:2407.21783, table 3."""
Q = HIDDEN * HIDDEN
K = V = HIDDEN * KEYS
ATTENTION, FEED_FORWARD = 2 * Q + K + V, 3 * HIDDEN * INNER
HEAD = VOCABULARY * HIDDEN
REST = 2 * (2 * HEAD + (2 * LAYERS + 1) * HIDDEN)
"""Embedding, LM head and norms in 16 bits."""


def llama_3_1_8b(**section):
    config, name = shipped_config("meta-llama/Llama-3.1-8B-Instruct")
    return quantised(read_network(config, name), config | {"quantization_config": section})


def qwen3_30b(**section):
    config, name = shipped_config("Qwen/Qwen3-30B-A3B")
    return quantised(read_network(config, name), config | {"quantization_config": section})


def packed(elements, bits, group, zero_bits=None):
    """Return the bytes of integers in groups, each with a scale of 16 bits and a zero point as wide as a weight."""
    return elements * bits / 8 + elements / group * (2 + (bits if zero_bits is None else zero_bits) / 8)


# --- GPTQ ---------------------------------------------------------------------------------------

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}


@pytest.mark.parametrize(
    "pattern", ["+:.*mlp.*", r".*\.mlp\..*", r"+:model\.layers\.\d+\.mlp\.(gate|up|down)_proj"]
)
def test_gptq_dynamic_overrides_the_bits_of_the_modules_that_match(pattern):
    held = llama_3_1_8b(**GPTQ, dynamic={pattern: {"bits": 8}})
    assert weight_bytes(held) == LAYERS * (packed(ATTENTION, 4, 128) + packed(FEED_FORWARD, 8, 128)) + REST
    assert weight_bytes(held) == pytest.approx(8.60e9, rel=5e-3)


def test_gptq_dynamic_overrides_the_group_alone_and_leaves_modules_out():
    held = llama_3_1_8b(**GPTQ, dynamic={"+:.*down_proj": {"group_size": 32}, "-:.*self_attn.*": {}})
    gate_up, down = 2 * HIDDEN * INNER, HIDDEN * INNER
    assert (
        weight_bytes(held) == LAYERS * (2 * ATTENTION + packed(gate_up, 4, 128) + packed(down, 4, 32)) + REST
    )


def test_the_first_of_gptq_dynamic_that_matches_counts():
    """vLLM, `get_dynamic_override`: the loop returns at the first match."""
    first = {"-:.*layers.0.mlp.*": {}, "+:.*mlp.*": {"bits": 8}}
    last = dict(reversed(first.items()))
    of_mlp = [
        llama_3_1_8b(**GPTQ, dynamic=rules).layers[0].projections[-1].weight_format for rules in (first, last)
    ]
    assert of_mlp == ["bf16", "w8a16-g128-zp"]


@pytest.mark.parametrize(
    "modules",
    [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"],
     [["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"], ["self_attn.o_proj"]],
     ["self_attn"]],
)  # fmt: skip
def test_gptq_of_some_modules_in_a_block_leaves_the_others_in_16_bits(modules):
    held = llama_3_1_8b(**GPTQ, modules_in_block_to_quantize=modules)
    assert weight_bytes(held) == LAYERS * (packed(ATTENTION, 4, 128) + 2 * FEED_FORWARD) + REST
    assert weight_bytes(held) == pytest.approx(14.1e9, rel=5e-3)


# --- sections within sections, files beside -----------------------------------------------------

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


@pytest.mark.parametrize(
    ("model_type", "key"),
    [
        ("internvl_chat", "llm_config"),
        ("internvl", "text_config"),
        ("llava", "text_config"),
        ("qwen3_vl", "text_config"),
    ],
)
def test_a_section_of_the_text_part_counts_wherever_it_is(model_type, key):
    text = {"model_type": "qwen3" if model_type != "qwen3_vl" else "qwen3_vl_text", "hidden_size": 256, "intermediate_size": 512,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 128}  # fmt: skip
    config = {"model_type": model_type, key: text}
    whole = quantised(read_network(config, "n"), config | {"quantization_config": AWQ})
    nested = {"model_type": model_type, key: text | {"quantization_config": AWQ}}
    assert set(stored_formats(quantised(read_network(nested, "n"), nested))) == {"w4a16-g128-zp"}
    assert weight_bytes(quantised(read_network(nested, "n"), nested)) == weight_bytes(whole)


def test_a_section_deep_in_the_thinker_counts():
    config = {"thinker_config": {"text_config": {"quantization_config": AWQ}}}
    network, _ = read_model("meta-llama/Llama-3.1-8B-Instruct", offline=True), None
    assert stored_formats(quantised(network, config)) == ("w4a16-g128-zp",)


def test_a_section_of_a_tower_is_not_that_of_the_text():
    config = {"vision_config": {"quantization_config": AWQ}, "audio_config": {"quantization_config": AWQ}}
    network = read_model("meta-llama/Llama-3.1-8B-Instruct", offline=True)
    assert quantised(network, config) == network


@pytest.mark.parametrize(
    ("file", "values", "expected"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": False}, "w4a16-g128-zp"),
        (
            "quant_config.json",
            {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"},
            "w4a16-g64-zp",
        ),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}, "fp8"),
    ],
)
def test_the_file_of_a_quantiser_beside_the_config_counts(tmp_path, file, values, expected):
    config, _ = shipped_config("meta-llama/Llama-3.2-1B")
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / file).write_text(json.dumps(values))
    assert stored_formats(read_model(str(tmp_path))) == (expected,)
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}})
    )
    assert stored_formats(read_model(str(tmp_path))) == ("bf16",)


def test_a_bad_file_of_a_quantiser_is_named(tmp_path):
    config, _ = shipped_config("meta-llama/Llama-3.2-1B")
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 9, "group_size": 128}))
    with pytest.raises(InputError, match=r"quantize_config\.json.*bits: 9"):
        read_model(str(tmp_path))


# --- Quark --------------------------------------------------------------------------------------

FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
INT4 = {"dtype": "int4", "qscheme": "per_channel", "ch_axis": 0, "symmetric": True, "is_dynamic": False}
FP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 16, "is_dynamic": False}
CHANNEL_SCALES = 4 * (HIDDEN + 2 * KEYS + HIDDEN + 2 * INNER + HIDDEN)
"""A scale of four bytes for each output of a layer."""


def test_quark_of_two_stages_stores_the_second():
    """vLLM, `QuarkConfig._is_fp8_w4a8`: fp8 per tensor, then int4 per channel; four bits are stored."""
    held = llama_3_1_8b(
        quant_method="quark", exclude=["lm_head"], global_quant_config={"weight": [FP8, INT4]}
    )
    assert weight_bytes(held) == LAYERS * ((ATTENTION + FEED_FORWARD) / 2 + CHANNEL_SCALES) + REST
    assert weight_bytes(held) == pytest.approx(5.6e9, rel=5e-3)


def test_quark_of_nvfp4_has_a_scale_for_16_weights():
    """vLLM, `QuarkConfig._is_nvfp4`: fp4 in groups of 16, then an fp8 scale per tensor."""
    held = llama_3_1_8b(quant_method="quark", exclude=["lm_head"], global_quant_config={"weight": [FP4, FP8]})
    assert weight_bytes(held) == LAYERS * (ATTENTION + FEED_FORWARD) * (0.5 + 1 / 16) + REST


def test_quark_takes_the_format_of_a_type_of_layers_and_of_a_layer():
    section = {"quant_method": "quark", "exclude": ["lm_head"], "global_quant_config": {"weight": FP8}}
    of_type = llama_3_1_8b(
        **section, layer_type_quant_config={"Linear": {"weight": {"dtype": "fp4", "group_size": 32}}}
    )
    assert stored_formats(of_type) == ("mxfp4",)
    of_layer = llama_3_1_8b(
        **section,
        layer_type_quant_config={
            "<class 'torch.nn.modules.linear.Linear'>": {"weight": {"dtype": "fp4", "group_size": 32}}
        },
        layer_quant_config={"*self_attn*": {"weight": FP8}},
    )
    assert stored_formats(of_layer) == ("mxfp4", "fp8")


# --- compressed-tensors -------------------------------------------------------------------------


def compressed(**section):
    weights = {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True, "strategy": "group"}
    groups = {"group_0": {"targets": ["Linear"], "weights": section.pop("weights", weights)}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, **section}


@pytest.mark.parametrize("ignore", [{"ignore": []}, {}, {"ignore": ["re:visual.*"]}])
def test_the_head_is_a_linear_that_nothing_leaves_out(ignore):
    """compressed-tensors, `match_named_modules`: every module of class Linear, the LM head too."""
    held = llama_3_1_8b(**compressed(**ignore))
    every = packed(LAYERS * (ATTENTION + FEED_FORWARD) + HEAD, 4, 128, zero_bits=0)
    assert weight_bytes(held) == every + 2 * (HEAD + (2 * LAYERS + 1) * HIDDEN)


@pytest.mark.parametrize("ignore", ["lm_head", "re:.*lm_head", "re:lm_head"])
def test_a_head_that_is_left_out_stays_in_16_bits(ignore):
    assert llama_3_1_8b(**compressed(ignore=[ignore])).lm_head.weight_format == "bf16"


def test_a_tied_head_stays_the_embedding():
    config, name = shipped_config("meta-llama/Llama-3.2-1B")
    held = quantised(read_network(config, name), config | {"quantization_config": compressed(ignore=[])})
    assert held.lm_head.weight_format == held.embedding_format == "bf16"


def test_marlin_24_stores_half_of_the_weights_and_one_bit_for_each():
    """vLLM, `CompressedTensorsW4A16Sparse24`: weight_packed of k/2 x n at four bits, meta of k/32 x 2n int16, scales."""
    held = llama_3_1_8b(**compressed(format="marlin-24", ignore=["lm_head"]))
    elements = LAYERS * (ATTENTION + FEED_FORWARD)
    meta = elements / 32 * 2 * 2
    assert weight_bytes(held) == elements / 2 * 0.5 + meta + elements / 128 * 2 + REST


@pytest.mark.parametrize(("kind", "each"), [("sparse-24-bitmask", 0.5 + 1 / 8), ("dense", 1.0)])
def test_2_of_4_in_fp8_stores_half_of_the_bytes_and_a_bitmask(kind, each):
    weights = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    section = compressed(
        weights=weights, ignore=["lm_head"], sparsity_config={"format": kind, "sparsity_structure": "2:4"}
    )
    held = llama_3_1_8b(**section)
    assert weight_bytes(held) == LAYERS * (ATTENTION + FEED_FORWARD) * each + REST


def test_2_of_4_without_quantisation_is_half_of_16_bits_and_a_bitmask():
    held = llama_3_1_8b(quant_method="compressed-tensors", ignore=["lm_head"], config_groups={},
                        sparsity_config={"format": "sparse-24-bitmask", "sparsity_structure": "2:4"})  # fmt: skip
    assert weight_bytes(held) == LAYERS * (ATTENTION + FEED_FORWARD) * (1 + 1 / 8) + REST


@pytest.mark.parametrize("block", [[64, 64], [128, 64], [1, 128]])
def test_scales_of_fp8_blocks_are_as_many_as_the_blocks(block):
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": block}
    expected = LAYERS * (ATTENTION + FEED_FORWARD) * (1 + 4 / (block[0] * block[1])) + REST
    assert weight_bytes(llama_3_1_8b(**compressed(weights=weights, ignore=["lm_head"]))) == expected
    assert weight_bytes(llama_3_1_8b(quant_method="fp8", weight_block_size=block)) == expected


EXPERTS, WIDTH, EXPERT_INNER, DEPTH = 128, 2048, 768, 48
"""Qwen3-30B-A3B: arXiv:2505.09388, table 2."""


@pytest.mark.parametrize(
    "pattern",
    [
        "re:.*experts.*down_proj",
        r"re:model\.layers\.\d+\.mlp\.experts\.\d+\.down_proj",
        "*.experts.*.down_proj",
    ],
)
def test_one_matrix_of_the_experts_can_be_left_out(pattern):
    every = weight_bytes(qwen3_30b(**compressed(ignore=["lm_head"])))
    held = weight_bytes(qwen3_30b(**compressed(ignore=["lm_head", pattern])))
    down = DEPTH * EXPERTS * WIDTH * EXPERT_INNER
    assert held - every == 2 * down - packed(down, 4, 128, zero_bits=0)


def test_a_matrix_within_a_fused_one_can_be_left_out():
    every = weight_bytes(llama_3_1_8b(**compressed(ignore=["lm_head"])))
    for name, elements in (("q_proj", Q), ("v_proj", V), ("gate_proj", HIDDEN * INNER)):
        held = weight_bytes(llama_3_1_8b(**compressed(ignore=["lm_head", f"re:.*{name}"])))
        assert held - every == pytest.approx(
            LAYERS * (2 * elements - packed(elements, 4, 128, zero_bits=0)), rel=1e-9
        )


def test_scales_per_output_of_a_fused_matrix_are_those_of_its_quantised_parts():
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    every = weight_bytes(llama_3_1_8b(**compressed(weights=weights, ignore=["lm_head"])))
    held = weight_bytes(llama_3_1_8b(**compressed(weights=weights, ignore=["lm_head", "re:.*k_proj"])))
    assert held - every == pytest.approx(LAYERS * (K - 4 * KEYS), rel=1e-9)


@pytest.mark.parametrize("prefix", [r"language_model\.model\.", r"model\.language_model\.", r"model\.", ".*"])
def test_expressions_match_the_names_of_text_models_within_others(prefix):
    held = llama_3_1_8b(**compressed(ignore=["lm_head", rf"re:{prefix}layers\.0\..*"]))
    assert {p.weight_format for p in held.layers[0].projections} == {"bf16"}
    assert {p.weight_format for p in held.layers[1].projections} == {"w4a16-g128"}


# --- AutoRound, torchao, HQQ, modelopt ----------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "each"),
    [
        ({"data_type": "nv_fp", "bits": 4, "group_size": 16, "act_bits": 4}, 0.5 + 1 / 16),
        ({"data_type": "nv_fp", "bits": 4, "group_size": 16}, 0.5 + 1 / 16),
        ({"data_type": "mx_fp", "bits": 4, "group_size": 32, "act_bits": 4}, 0.5 + 1 / 32),
        ({"data_type": "mx_fp_rceil", "bits": 8, "group_size": 32, "act_bits": 8}, 1 + 1 / 32),
    ],
)
def test_auto_round_has_floats_too(section, each):
    held = llama_3_1_8b(
        quant_method="auto-round", sym=True, packing_format="auto_round:llm_compressor", **section
    )
    assert weight_bytes(held) == LAYERS * (ATTENTION + FEED_FORWARD) * each + REST


def test_auto_round_of_a_module_has_its_own_type():
    held = llama_3_1_8b(quant_method="auto-round", bits=4, group_size=16, data_type="nv_fp", act_bits=4,
                        extra_config={r".*self_attn.*": {"bits": 16, "data_type": "float"}})  # fmt: skip
    assert weight_bytes(held) == LAYERS * (2 * ATTENTION + FEED_FORWARD * (0.5 + 1 / 16)) + REST


HQQ = {
    "quant_method": "hqq",
    "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}},
    "skip_modules": ["lm_head"],
}
TORCHAO = {
    "quant_method": "torchao",
    "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}},
}


@pytest.mark.parametrize("section", [HQQ, TORCHAO])
def test_hqq_and_torchao_have_a_scale_and_a_zero_point_of_16_bits_for_a_group(section):
    assert (
        weight_bytes(llama_3_1_8b(**section))
        == packed(LAYERS * (ATTENTION + FEED_FORWARD), 4, 64, zero_bits=16) + REST
    )


def test_torchao_in_8_bits_has_a_scale_of_16_bits_for_an_output():
    held = llama_3_1_8b(
        quant_method="torchao", quant_type={"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}
    )
    assert weight_bytes(held) == LAYERS * (ATTENTION + FEED_FORWARD + CHANNEL_SCALES / 2) + REST


def test_modelopt_can_quantise_the_cache_alone():
    held = llama_3_1_8b(quant_method="modelopt", quant_algo=None, kv_cache_quant_algo="FP8")
    assert (held.kv_format, stored_formats(held)) == ("fp8", ("bf16",))


def test_mlx_quantises_every_matrix_the_embedding_and_the_head():
    """4 bits in groups of 64 with a scale and a bias of 16 bits are 4.5 bits for each weight; norms stay in 16 bits."""
    held = llama_3_1_8b(group_size=64, bits=4)
    norms = 65 * 4096
    assert weight_bytes(held) == (parameters(held) - norms) * 4.5 / 8 + norms * 2
    assert any("MLX" in note for note in held.notes)


def test_mlx_states_other_formats_module_by_module():
    held = llama_3_1_8b(
        **{"group_size": 64, "bits": 4, "model.embed_tokens": {"group_size": 32, "bits": 8}, "lm_head": False,
           "model.layers.0.mlp.down_proj": {"bits": 6}}
    )  # fmt: skip
    formats = {one.name: one.weight_format for one in held.layers[0].projections}
    assert (formats["down"], formats["o"]) == ("w6a16-g64-zp16", "w4a16-g64-zp16")
    assert (held.embedding_format, held.lm_head.weight_format) == ("w8a16-g32-zp16", "bf16")


def test_a_router_of_mlx_is_quantised_too():
    config, name = shipped_config("Qwen/Qwen3-30B-A3B")
    network = read_network(config, name)
    held = quantised(network, config | {"quantization": {"group_size": 64, "bits": 4, "mode": "affine"}})
    assert {one.weight_format for layer in held.layers for one in layer.projections} == {"w4a16-g64-zp16"}


@pytest.mark.parametrize(
    ("section", "message"), [({"bits": 4}, "group_size"), ({"bits": 4, "mode": "odd"}, "mode")]
)
def test_a_section_of_mlx_that_says_too_little(section, message):
    with pytest.raises(InputError, match=message):
        llama_3_1_8b(**section)


def test_a_pattern_for_q_means_nothing_where_the_checkpoint_has_q_k_and_v_as_one():
    """Phi-3.5-mini: its tensors are qkv_proj and gate_up_proj."""
    config, name = shipped_config("microsoft/Phi-3.5-mini-instruct")
    for pattern, left in (
        (r"re:.*\.q_proj", set()),
        ("re:.*self_attn.*", {"qkv", "o"}),
        ("re:.*qkv_proj", {"qkv"}),
    ):
        section = compressed(ignore=["lm_head", pattern])
        held = quantised(read_network(config, name), config | {"quantization_config": section})
        assert {p.name for p in held.layers[0].projections if p.weight_format == "bf16"} == left


def test_files_of_published_checkpoints_have_the_bytes_that_are_published():
    """Sizes of all files of two repositories, where a base in 16 bits and the formats of its parts leave nothing open.

    Step 3.7 Flash: 402,730,833,632 bytes in bf16, 212,523,666,872 in fp8, MTP layers and tower the same in both. Kimi-K3-NVFP4: 1,609.9 GB with
    a tower of about 0.9 GB, which is not counted.
    """
    plain, eight = (
        weight_bytes(read_model(f"stepfun-ai/Step-3.7-Flash{end}", offline=True)) for end in ("", "-FP8")
    )
    assert plain - eight == pytest.approx(402_730_833_632 - 212_523_666_872, abs=20_000)
    kimi = weight_bytes(read_model("nvidia/Kimi-K3-NVFP4", offline=True))
    assert 1_608.5e9 < kimi < 1_609.9e9
