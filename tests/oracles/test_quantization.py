"""Are the weights of quantised checkpoints as large as their files and as the logs of engines say, and which devices run them?"""

import statistics
from itertools import product

import pytest

from capplan.engine.lookup import ANY_OF, ENGINES, profile, unsupported_reason
from capplan.engine.versions import BLACKWELL
from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.families.quantization.network_formats import quantised
from capplan.fleet.search.candidates import Layout, layout_reason
from capplan.memory.capacity import stages_of
from capplan.memory.rank import rank_weight_bytes
from capplan.model.parameters import weight_bytes
from capplan.model.sharding import Sharding
from capplan.model.weight_format import (
    FORMATS,
    in_weight_format,
    stored_dtypes,
    stored_formats,
    weight_format_assumptions,
)
from capplan.readers.catalogue.hardware import device, device_names
from capplan.readers.catalogue.models import read_model, shipped_config, shipped_id
from tests.checkpoints import checkpoint, formats
from tests.tables import rows

GIB = 2**30
MIXTURE = checkpoint("mixture", {})


def test_nvfp4_llama_3_3_70b_is_as_large_as_its_files():
    """The index of nvidia/Llama-3.3-70B-Instruct-FP4 says 42,709,045,632 bytes; scales per tensor are not counted here."""
    assert weight_bytes(read_model("nvidia/Llama-3.3-70B-Instruct-FP4", offline=True)) == pytest.approx(
        42_709_045_632, rel=1e-6
    )


@pytest.mark.parametrize(("model", "size_gib"), [("openai/gpt-oss-120b", 60.8), ("openai/gpt-oss-20b", 12.8)])
def test_gpt_oss_is_as_large_as_its_model_card_says(model, size_gib):
    """OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", arXiv:2508.10925, table 1: checkpoint sizes."""
    assert weight_bytes(read_model(model, offline=True)) / GIB == pytest.approx(size_gib, abs=0.05)


def logged_gib(model, dtype, tensor, pipeline):
    network = read_model(model, offline=True)
    network = in_weight_format(network, dtype) if dtype else network
    sharding = Sharding(tensor=float(tensor))
    stages = stages_of(network, int(pipeline))
    return max(float(rank_weight_bytes(stage, network, sharding)) for stage in stages) / GIB


@pytest.mark.parametrize(("model", "dtype", "tensor", "pipeline", "gib"), rows("starts")["weights"])
def test_weights_per_device_are_the_logged_ones(model, dtype, tensor, pipeline, gib):
    """Half a percent, and half a unit of the second decimal that the log prints."""
    assert logged_gib(model, dtype, tensor, pipeline) == pytest.approx(gib, rel=0.005, abs=0.005)


def test_weights_of_logged_starts_are_the_logged_ones(measured):
    """Median within 0.2 % (two decimals of a GiB are 0.1 %); nine in ten within 3 %: AMD and TP2 pad small experts more."""
    errors = []
    for row in measured.table("starts"):
        if not row["weights_gib"] or not shipped_id(row["model_hf_id"]):
            continue
        asked = {"float32": "fp32", "float16": "fp16"}.get(row["quantization"])
        asked = "fp8" if "runtime" in row["quantization"] else asked
        ours = logged_gib(row["model_hf_id"], asked, float(row["tp"]), float(row["pp"]))
        errors.append(abs(ours / float(row["weights_gib"]) - 1.0))
    assert len(errors) >= (75 if measured.whole else 45)
    assert statistics.median(errors) < 0.002
    assert statistics.quantiles(errors, n=10)[-1] < 0.03


def minimax_m3_nvfp4():
    """Return the section of nvidia/MiniMax-M3-NVFP4's config.json (ai-dynamo/aiconfigurator@095f58a51c), made of its patterns."""
    names = {}
    for layer in range(60):
        within = f"language_model.model.layers.{layer}."
        matrices = [f"self_attn.{name}_proj" for name in "kqvo"]
        feed_forward = [f"{name}_proj" for name in ("down", "gate", "up")]
        if layer < 3:
            matrices += [f"mlp.{name}" for name in feed_forward]
        else:
            matrices += [f"self_attn.index_{name}_proj" for name in "kq"]
            matrices += [f"block_sparse_moe.shared_experts.{name}" for name in feed_forward]
            names |= {
                f"{within}block_sparse_moe.experts.{expert}.w{matrix}": {
                    "quant_algo": "NVFP4",
                    "group_size": 16,
                }
                for expert in range(128)
                for matrix in (1, 2, 3)
            }
        names |= {within + name: {"quant_algo": "MXFP8"} for name in matrices}
    routers = [f"language_model.model.layers.{layer}.block_sparse_moe.gate" for layer in range(3, 60)]
    apart = ["lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector", "patch_merge_mlp"]
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None,
            "exclude_modules": apart + sorted(routers), "quantized_layers": names}  # fmt: skip


def test_a_config_with_22000_module_names_gives_what_its_patterns_give(measured):
    section = minimax_m3_nvfp4()
    if measured.whole:
        config = measured.configs()["nvidia/MiniMax-M3-NVFP4"]
        published = config.get("quantization_config") or config["text_config"]["quantization_config"]
        assert published == section
    assert len(section["quantized_layers"]) == 22_422
    shapes, name = shipped_config("MiniMaxAI/MiniMax-M3")
    long = quantised(read_network(shapes, name), {"quantization_config": section})
    assert stored_formats(long)[:2] == ("nvfp4", "mxfp8")
    assert long.layers == read_model("nvidia/MiniMax-M3-NVFP4", offline=True).layers


# --- weight dtypes asked for -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["fp8", "int8", "int4", "nvfp4", "mxfp4", "w4a16-g64-zp"])
def test_a_dtype_applies_to_matrices_and_leaves_the_rest_in_16_bit(dtype):
    network = in_weight_format(MIXTURE, dtype)
    assert formats(network)["router"] == network.lm_head.weight_format == network.embedding_format == "bf16"
    assert formats(network)["qkv"] == formats(network)["experts"] == dtype
    assert weight_format_assumptions(MIXTURE, dtype)


def test_bf16_undoes_a_quantised_checkpoint():
    assert in_weight_format(checkpoint("mixture", {"quant_method": "fp8"}), "bf16") == MIXTURE


def test_a_checkpoint_keeps_its_own_form_of_the_dtype_it_is_in():
    network = checkpoint("llama", {"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert in_weight_format(network, "fp8") == network
    assert weight_format_assumptions(network, "fp8") == ()
    assert stored_dtypes(network) == {"fp8"}


def test_bytes_per_element_include_the_scales():
    """NVFP4: 4 bits and an 8-bit scale per 16; MXFP4: per 32 (OCP Microscaling Formats, version 1.0, table 1)."""
    assert FORMATS["nvfp4"].bytes_per_element == 0.5625
    assert FORMATS["mxfp4"].bytes_per_element == 0.53125
    assert FORMATS["w4a16-g128"].bytes_per_element == 0.515625
    assert FORMATS["fp8_block"].bytes_per_element == pytest.approx(1.000244, abs=1e-6)


def test_an_unknown_weight_dtype_is_refused():
    with pytest.raises(InputError, match="did you mean"):
        in_weight_format(MIXTURE, "fp88")


def test_70_billion_parameters_in_int4_take_35_gb_and_their_scales():
    """Llama-3.1-70B by hand from its model card: 80 layers, width 8192, 8 of 64 heads for keys and values, feed-forward 28,672.

    Of 70.55 billion parameters at half a byte, 35.3 GB; a 16-bit scale for every 128 of a matrix adds 1.07 GB, and embedding,
    LM head and norms, which stay in 16 bits, 3.16 GB.
    """
    matrices = 80 * (8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28_672)
    rest = 2 * 128_256 * 8192 + (2 * 80 + 1) * 8192
    held = weight_bytes(in_weight_format(read_model("llama-3.1-70b", offline=True), "int4"))
    scales = 2 * matrices / 128
    assert (matrices + rest) / 2 == pytest.approx(35.3e9, rel=1e-3)
    assert held - scales - 1.5 * rest == pytest.approx((matrices + rest) / 2, rel=1e-9)
    assert scales == pytest.approx(1.07e9, rel=1e-3)


@pytest.mark.parametrize("architecture", BLACKWELL)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_every_blackwell_runs_nvfp4(engine, architecture):
    assert unsupported_reason(profile(engine), architecture, "nvfp4") is None


SECTIONS = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "int8": {"quant_method": "gptq", "bits": 8, "group_size": 128},
    "int4": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "mxfp4": {"quant_method": "mxfp4"},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}
"""Weight dtype -> what a config.json says of a checkpoint in it, as published."""


@pytest.mark.parametrize("dtype", SECTIONS)
@pytest.mark.parametrize(
    "engine",
    [item for name in ANY_OF for item in {id(each.weight_dtypes): each for each in ENGINES[name]}.values()],
    ids=lambda item: f"{item.engine}-{item.version}",
)
def test_a_dtype_runs_by_flag_where_it_runs_by_config(engine, dtype):
    """On every shipped device; and the cache in fp8, which a flag or the section of modelopt asks for."""
    network = read_model("qwen/qwen3-30b-a3b", offline=True)
    alone = Sharding(1.0, 1.0, 1.0, 1.0)
    forms = {
        dtype: in_weight_format(network, dtype),
        "auto": quantised(network, {"quantization_config": SECTIONS[dtype]}),
    }
    runs = 0
    for name, kv in product(device_names(), ("bf16", "fp8")):
        reasons = [
            layout_reason(form, Layout(device(name), alone, how, kv), engine) for how, form in forms.items()
        ]
        assert (reasons[0] is None) == (reasons[1] is None), (name, kv, reasons)
        runs += reasons[0] is None
    assert runs, f"{dtype} runs on no device, so nothing but refusals was compared"
