"""GGUF files against the package that defines them, published bits per weight, and the config.json of the same model."""

import json
from dataclasses import replace

import numpy as np
import pytest

from capplan.errors import InputError
from capplan.families.gguf import _MATRICES, ARCHITECTURES
from capplan.memory.kv_sizes import kv_sizes
from capplan.model.parameters import parameters, weight_bytes, weight_bytes_by_class, weight_bytes_per_rank
from capplan.model.sharding import Sharding
from capplan.model.stored_tensor import BLOCKS, OTHER_TYPES
from capplan.model.weight_format import RECIPES, in_weight_format, named_weight_format
from capplan.readers.catalogue.models import read_model, stored_model
from tests.gguf_files import HIDDEN, KEYS, LENGTH, QUERIES, llama, mixture, size_of, write_gguf

BITS_OF_LLAMA_3_1_8B = {
    "iq4_xs": 4.4597, "iq4_nl": 4.6818, "q2_k": 3.1593, "q3_k_s": 3.6429, "q3_k_l": 4.2979, "q4_k_s": 4.6672,
    "q4_k_m": 4.8944, "q5_k_s": 5.5704, "q5_k_m": 5.7036, "q6_k": 6.5633, "q8_0": 8.5008,
}  # fmt: skip
"""Bits per weight in tools/quantize/README.md of llama.cpp, table of meta-llama/Llama-3.1-8B."""

SIZES_OF_FILES = {
    "llama-3.1-70b": {
        "q8_0": 74.98, "q6_k": 57.89, "q5_k_m": 49.95, "q5_k_s": 48.66, "q4_k_m": 42.52, "q4_k_s": 40.35, "q3_k_l": 37.14,
        "q3_k_m": 34.27, "q3_k_s": 30.91,
    },
    "phi-4": {"q8_0": 15.58, "q6_k": 12.03, "q5_k_m": 10.60, "q5_k_s": 10.15, "q4_k_m": 9.05, "q4_k_s": 8.44},
}  # fmt: skip
"""GB of published files: huggingface.co/bartowski, Llama-3.1-Nemotron-70B-Instruct-HF-GGUF (built like Llama 3.1 70B) and phi-4-GGUF."""

BIASES = [("attn_q.bias", "fp32", (QUERIES * LENGTH,))]
BIASES += [(f"attn_{part}.bias", "fp32", (KEYS * LENGTH,)) for part in "kv"]
HEAD_NORMS = [(f"attn_{part}_norm.weight", "fp32", (LENGTH,)) for part in "qk"]
GEMMA_NORMS = [(f"post_{part}_norm.weight", "fp32", (HIDDEN,)) for part in ("attention", "ffw")]
EXPERTS = {"expert_feed_forward_length": 64}
CONFIG = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
    "vocab_size": 96, "max_position_embeddings": 4096, "tie_word_embeddings": False, "head_dim": 32,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}

SAME_MODELS = {
    "llama": (llama(), {"model_type": "llama"}),
    "tied": (llama(tied=True), {"model_type": "llama", "tie_word_embeddings": True}),
    "qwen2": (llama(architecture="qwen2", extra=BIASES), {"model_type": "qwen2"}),
    "qwen3": (
        llama(architecture="qwen3", extra=HEAD_NORMS, attention__key_length=32, attention__value_length=32),
        {"model_type": "qwen3"},
    ),
    "gemma2": (
        llama(architecture="gemma2", extra=GEMMA_NORMS, tied=True, attention__sliding_window=128),
        {"model_type": "gemma2", "sliding_window": 128, "tie_word_embeddings": True},
    ),
    "gemma3": (
        llama(
            architecture="gemma3",
            extra=[*GEMMA_NORMS, *HEAD_NORMS],
            tied=True,
            attention__sliding_window=64,
            attention__sliding_window_pattern=[True, False],
        ),
        {
            "model_type": "gemma3_text",
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention"],
            "tie_word_embeddings": True,
        },
    ),
    "mixtral": (
        mixture("llama", feed_forward_length=64),
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64},
    ),
    "mixtral of single experts": (
        mixture("llama", feed_forward_length=64, split=True),
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64},
    ),
    "qwen2moe": (
        mixture("qwen2moe", shared=256, extra=BIASES, expert_shared_feed_forward_length=256, **EXPERTS),
        {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 256, **MOE},
    ),
    "qwen3moe": (
        mixture("qwen3moe", extra=HEAD_NORMS, attention__key_length=32, **EXPERTS),
        {
            "model_type": "qwen3_moe",
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
            **MOE,
        },
    ),
}


def without(model, *stems):
    """Return metadata and tensors without those of some names."""
    metadata, tensors = model
    return metadata, [tensor for tensor in tensors if not any(f".{stem}." in tensor[0] for stem in stems)]


def with_dense_first(model, latent):
    """Return a mixture whose first layer is dense, with latent attention in all."""
    metadata, tensors = without(model, "attn_q", "attn_k", "attn_v", "attn_output")
    tensors = [
        tensor for tensor in tensors if not (tensor[0].startswith("blk.0.ffn_") and "norm" not in tensor[0])
    ]
    wide = [("ffn_gate.weight", (256, 512)), ("ffn_up.weight", (256, 512)), ("ffn_down.weight", (512, 256))]
    dense = [(f"blk.0.{name}", "q4_k", shape) for name, shape in wide]
    mixing = [(f"blk.{layer}.{name}", dtype, shape) for layer in (0, 1) for name, dtype, shape in latent]
    return metadata, [*tensors, *dense, *mixing]


LATENT = [
    ("attn_kv_a_mqa.weight", "q4_k", (256, 80)), ("attn_kv_a_norm.weight", "fp32", (64,)),
    ("attn_k_b.weight", "q8_0", (32, 64, 8)), ("attn_v_b.weight", "q8_0", (64, 32, 8)), ("attn_output.weight", "q4_k", (256, 256)),
]  # fmt: skip
LOW_RANK = [
    ("attn_q_a.weight", "q4_k", (256, 96)), ("attn_q_a_norm.weight", "fp32", (96,)), ("attn_q_b.weight", "q8_0", (96, 384)),
]  # fmt: skip
MLA_KEYS = {
    "leading_dense_block_count": 1, "expert_shared_count": 1, "attention__kv_lora_rank": 64, "rope__dimension_count": 16,
    "attention__key_length_mla": 48, "attention__value_length_mla": 32, "attention__key_length": 80, "attention__value_length": 64,
    "expert_feed_forward_length": 256,
}  # fmt: skip
MLA = {
    "model_type": "deepseek_v3", "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 256,
    "first_k_dense_replace": 1, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32, "head_dim": None,
}  # fmt: skip
ROUTER_BIAS = [("exp_probs_b.bias", "fp32", (4,))]


def gpt_oss():
    biases = [
        ("attn_output.bias", "fp32", (256,)),
        ("attn_sinks.weight", "fp32", (8,)),
        ("ffn_gate_inp.bias", "fp32", (4,)),
    ]
    biases += [(f"ffn_{part}_exps.bias", "fp32", (64, 4)) for part in ("gate", "up")]
    biases += [("ffn_down_exps.bias", "fp32", (256, 4))]
    metadata, tensors = mixture(
        "gpt-oss", extra=[*BIASES, *biases], attention__sliding_window=64, attention__key_length=32, **EXPERTS
    )
    renamed = [
        (name.replace("ffn_norm", "post_attention_norm"), dtype, shape) for name, dtype, shape in tensors
    ]
    return metadata, [
        (name, "mxfp4" if "exps.weight" in name else dtype, shape) for name, dtype, shape in renamed
    ]


def phi3():
    metadata, tensors = without(
        llama(architecture="phi3", attention__sliding_window=100),
        "attn_q",
        "attn_k",
        "attn_v",
        "ffn_gate",
        "ffn_up",
    )
    fused = [("attn_qkv.weight", "q5_k", (256, 384)), ("ffn_up.weight", "q4_k", (256, 1024))]
    tables = [("rope_factors_long.weight", "fp32", (16,)), ("rope_factors_short.weight", "fp32", (16,))]
    return metadata, [
        *tables,
        *tensors,
        *[(f"blk.{i}.{name}", dtype, shape) for i in (0, 1) for name, dtype, shape in fused],
    ]


def olmo2():
    wide = [("attn_q_norm.weight", "fp32", (256,)), ("attn_k_norm.weight", "fp32", (64,))]
    metadata, tensors = llama(architecture="olmo2", extra=wide)
    names = {"attn_norm": "post_attention_norm", "ffn_norm": "post_ffw_norm"}
    for old, new in names.items():
        tensors = [(name.replace(f".{old}.", f".{new}."), dtype, shape) for name, dtype, shape in tensors]
    return metadata, tensors


SAME_MODELS |= {
    "phi3": (phi3(), {"model_type": "phi3", "sliding_window": 100}),
    "olmo2": (olmo2(), {"model_type": "olmo2"}),
    "granite": (llama(architecture="granite"), {"model_type": "granite"}),
    "smollm3": (llama(architecture="smollm3", tied=True), {"model_type": "smollm3", "tie_word_embeddings": True}),
    "gemma": (llama(architecture="gemma", tied=True), {"model_type": "gemma", "tie_word_embeddings": True}),
    "gpt-oss": (
        gpt_oss(),
        {
            "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64, "sliding_window": 64,
            "attention_bias": True, "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "deepseek2": (
        with_dense_first(mixture("deepseek2", shared=256, wide=256, extra=ROUTER_BIAS, attention__q_lora_rank=96, **MLA_KEYS), [*LATENT, *LOW_RANK]),
        {**MLA, "q_lora_rank": 96},
    ),
    "deepseek2 lite": (
        with_dense_first(mixture("deepseek2", shared=256, wide=256, **MLA_KEYS), [*LATENT, ("attn_q.weight", "q4_k", (256, 384))]),
        {**MLA, "q_lora_rank": None},
    ),
}  # fmt: skip
TABLES = ("rope_factors", "exp_probs_b")


def read_both(tmp_path, name):
    (metadata, tensors), config = SAME_MODELS[name]
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    file = write_gguf(tmp_path / "model.gguf", metadata, tensors)
    return file, read_model(str(file)), read_model(str(tmp_path / "config.json"))


@pytest.mark.parametrize("name", SAME_MODELS)
def test_a_gguf_file_is_the_model_of_its_config(name, tmp_path):
    _, stored, described = read_both(tmp_path, name)
    assert parameters(stored) == parameters(described)
    assert stored.max_context_tokens == described.max_context_tokens
    for context in (1, 63, 64, 129, 4096):
        held, needed = (kv_sizes(network, (context,)).rows[0] for network in (stored, described))
        assert held.kv_bytes_per_sequence == needed.kv_bytes_per_sequence
        assert held.kv_bytes_per_token == needed.kv_bytes_per_token


@pytest.mark.parametrize("name", SAME_MODELS)
def test_the_weights_of_a_gguf_file_take_the_bytes_of_its_tensors(name, tmp_path):
    (_, tensors), _ = SAME_MODELS[name]
    file, stored, _ = read_both(tmp_path, name)
    sizes = {name: size_of(dtype, shape) for name, dtype, shape in tensors}
    total = sum(size for name, size in sizes.items() if not any(table in name for table in TABLES))
    assert weight_bytes(stored) == pytest.approx(total, abs=0.01)
    assert weight_bytes_per_rank(stored, Sharding()) == pytest.approx(total, abs=0.01)
    assert stored_model(str(file)).tensor_bytes == sum(sizes.values())
    output = [size_of(dtype, shape) for name, dtype, shape in tensors if name == "output.weight"]
    assert weight_bytes_by_class(stored).get("lm_head", 0.0) == sum(output)


@pytest.mark.parametrize(("name", "bits"), BITS_OF_LLAMA_3_1_8B.items())
def test_a_mixture_takes_the_bits_that_its_makers_state(name, bits):
    held = in_weight_format(read_model("llama-3.1-8b"), name)
    assert round(8 * weight_bytes(held) / parameters(held), 4) == bits


@pytest.mark.parametrize("model", SIZES_OF_FILES)
def test_a_mixture_is_as_large_as_published_files(model):
    """To the second digit: the header with the vocabulary, up to 8 MB, is not counted."""
    for name, size_gb in SIZES_OF_FILES[model].items():
        assert weight_bytes(in_weight_format(read_model(model), name)) / 1e9 == pytest.approx(
            size_gb, abs=0.015
        )


@pytest.mark.parametrize("name", RECIPES)
def test_a_mixture_keeps_every_parameter_and_can_be_undone(name):
    for model in (
        "llama-3.1-8b",
        "deepseek-ai/DeepSeek-V3",
        "mistralai/Mixtral-8x7B-v0.1",
        "openai/gpt-oss-20b",
    ):
        network = read_model(model)
        held = in_weight_format(network, name)
        assert parameters(held) == parameters(network)
        plain = weight_bytes(in_weight_format(network, "bf16"))
        assert weight_bytes(held) < 0.7 * plain
        assert weight_bytes(in_weight_format(held, "bf16")) == plain


@pytest.mark.parametrize("gated", [True, False])
def test_experts_of_a_mixture_have_more_bits_on_the_way_out_alone(gated):
    """Layer by layer, in elements: gate and up (or up alone) in q4_k, down in q6_k where llama-quantize spends more bits."""
    network = read_model("mistralai/Mixtral-8x7B-v0.1")
    layers = tuple(replace(each, experts=replace(each.experts, gated=gated)) for each in network.layers)
    held = in_weight_format(replace(network, layers=layers), "q4_k_m")
    bits = {name: 8 * block.size_bytes / block.elements for name, block in BLOCKS.items()}
    inwards = 2 if gated else 1
    for index, down in (
        (0, "q6_k"),
        (4, "q4_k"),
        (6, "q6_k"),
    ):  # of 32: the first eighth, then every third layer
        stored = 8 * named_weight_format(held.layers[index].experts.weight_format).bytes_per_element
        assert stored == pytest.approx((inwards * bits["q4_k"] + bits[down]) / (inwards + 1))


def test_a_model_with_mixtures_of_its_own_is_refused():
    with pytest.raises(InputError, match="falcon models in a way that is not modelled"):
        in_weight_format(read_model("falcon-40b"), "q4_k_m")


@pytest.mark.parametrize(
    ("name", "bits"),
    {
        "int2": 2.125,
        "aqlm-1x16-g8": 2,
        "aqlm-2x8-g8": 2,
        "quip-2": 2,
        "quip-4": 4,
        "iq2_xxs": 2.0625,
        "q6_k": 6.5625,
    }.items(),
)
def test_a_format_takes_its_stated_bits(name, bits):
    assert 8 * named_weight_format(name).bytes_per_element == bits


def test_block_formats_are_those_of_the_package():
    gguf = pytest.importorskip("gguf")
    names = {"fp32": "F32", "fp16": "F16", "mxfp4_gguf": "MXFP4", "nvfp4_gguf": "NVFP4"}
    for name, block in BLOCKS.items():
        kind = gguf.GGMLQuantizationType[names.get(name, name.upper())]
        assert (block.number, (block.elements, block.size_bytes)) == (kind, gguf.GGML_QUANT_SIZES[kind])
    ours = {block.number for block in BLOCKS.values()}
    tables = {
        kind: size
        for kind, (elements, size) in gguf.GGML_QUANT_SIZES.items()
        if elements == 1 and kind not in ours
    }
    assert tables == OTHER_TYPES


def test_architectures_and_tensors_are_names_of_the_package():
    gguf = pytest.importorskip("gguf")
    assert set(ARCHITECTURES) <= set(gguf.MODEL_ARCH_NAMES.values())
    known = {name.removeprefix("blk.{bid}.") for name in gguf.TENSOR_NAMES.values()}
    assert set(_MATRICES) - known == set()


def test_what_the_package_writes_is_read(tmp_path):
    gguf = pytest.importorskip("gguf")
    metadata, tensors = llama()
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    for key, value in metadata.items():
        add = {str: writer.add_string, int: writer.add_uint32, list: writer.add_array}[type(value)]
        if key != "general.architecture":
            add(key, value)
    for name, dtype, shape in tensors:
        kind = gguf.GGMLQuantizationType["F32" if dtype == "fp32" else dtype.upper()]
        row = size_of(dtype, shape[:1])
        content = np.zeros((*shape[:0:-1], row), np.uint8) if dtype != "fp32" else np.zeros(shape, np.float32)
        writer.add_tensor(name, content, raw_dtype=None if dtype == "fp32" else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stored = stored_model(str(file))
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in stored.tensors] == tensors
    assert stored.metadata["llama.block_count"] == 2
    ours = gguf.GGUFReader(write_gguf(tmp_path / "ours.gguf", metadata, tensors))
    assert [(tensor.name, int(tensor.n_bytes)) for tensor in ours.tensors] == [
        (tensor.name, tensor.size_bytes) for tensor in stored.tensors
    ]
    assert weight_bytes(read_model(str(file))) == sum(int(tensor.n_bytes) for tensor in ours.tensors)


def test_parts_of_a_model_are_read_together(tmp_path):
    metadata, tensors = llama()
    split = {"split.count": 2, "split.tensors.count": len(tensors)}
    parts = [tmp_path / f"m-{number:05}-of-00002.gguf" for number in (1, 2)]
    write_gguf(parts[0], {**metadata, **split, "split.no": 0}, tensors[:9])
    with pytest.raises(InputError, match=r"m-00002-of-00002\.gguf: no such file"):
        read_model(str(parts[0]))
    write_gguf(parts[1], {**split, "split.no": 1}, tensors[9:])
    whole = read_model(str(write_gguf(tmp_path / "whole.gguf", metadata, tensors)))
    for part in parts:
        assert weight_bytes(read_model(str(part))) == weight_bytes(whole)


def test_commands_take_a_gguf_file(capplan, tmp_path):
    file = write_gguf(tmp_path / "tiny-q4_k_m.gguf", *llama())
    answer = capplan.result("model", file)
    assert answer["gguf"]["tensor_bytes"] == answer["weight_bytes"]
    assert {row["weight_dtype"]: row["tensors"] for row in answer["gguf"]["types"]} == {
        "q4_k": 11,
        "q6_k": 5,
        "fp32": 5,
    }
    assert "llama.embedding_length" in answer["keys_used"]
    assert capplan.result("kv-size", file)["rows"]
    fit = capplan("fit", file, "--hardware", "l4", "--format", "json")
    assert fit.code == 0
    assert "only memory" in json.loads(fit.out)["warnings"][0]


@pytest.mark.parametrize("dtype", [None, "q4_k_m", "iq4_xs", "int2", "quip-2"])
def test_speed_that_nobody_measured_is_refused(dtype, capplan, tmp_path):
    model = write_gguf(tmp_path / "tiny.gguf", *llama()) if dtype is None else "llama-3.1-8b"
    chosen = ["--weight-dtype", dtype] if dtype else []
    load = ["--concurrency", 4, "--input-tokens", 100, "--output-tokens", 10]
    assert "its speed is not modelled, only its memory" in capplan.refused(
        "estimate", model, "--hardware", "h100", *chosen, *load
    )
    assert capplan("fit", model, "--hardware", "h100", "--max-model-len", 2048, *chosen).code == 0


@pytest.mark.parametrize("dtype", [None, "q4_k_m", "iq2_xs", "int2"])
def test_a_scenario_of_weights_without_speed_is_refused(dtype, capplan, root, tmp_path):
    model = write_gguf(tmp_path / "tiny.gguf", *llama()) if dtype is None else "llama-3.2-1b"
    text = (root / "tests" / "golden" / "small.yaml").read_text(encoding="utf-8")
    chosen = f"\nweight_dtype: {dtype}" if dtype else ""
    (tmp_path / "s.yaml").write_text(text.replace("model: qwen3-0.6b", f"model: {model}{chosen}"))
    message = capplan.refused("fleet", tmp_path / "s.yaml", "--offline")
    assert "s.yaml: line 4: weight_dtype" if dtype else "s.yaml: model" in message
    assert "no speed, only a memory" in message


def test_a_file_in_16_bits_has_speed(capplan, tmp_path):
    metadata, tensors = llama(matrix="fp16", value="fp16", down="fp16", tied=True)
    file = write_gguf(tmp_path / "tiny-f16.gguf", metadata, tensors)
    assert capplan.result("estimate", file, "--hardware", "l4", "--concurrency", 4)["tpot_s"]["mean"] > 0
