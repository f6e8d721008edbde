"""What a quantised checkpoint holds, by the section of its config.json: bytes, formats and refusals, the rows of tests/rows/checkpoints.yaml."""

import json

import pytest

from capplan.errors import CapplanError, InputError
from capplan.families.config import Config
from capplan.families.model_config import read_network
from capplan.families.quantization.network_formats import METHODS, quantised, read_scheme
from capplan.model.parameters import weight_bytes
from capplan.model.weight_format import stored_formats
from capplan.readers.catalogue.models import read_model, shipped_config
from tests.checkpoints import ROWS, checkpoint, formats
from tests.tables import table

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
LAYERS, HIDDEN, KEYS, INNER, VOCABULARY = 32, 4096, 1024, 14_336, 128_256
MATRICES = {
    "q": (LAYERS * HIDDEN * HIDDEN, HIDDEN), "k": (LAYERS * HIDDEN * KEYS, HIDDEN), "v": (LAYERS * HIDDEN * KEYS, HIDDEN),
    "o": (LAYERS * HIDDEN * HIDDEN, HIDDEN), "gate": (LAYERS * HIDDEN * INNER, HIDDEN), "up": (LAYERS * HIDDEN * INNER, HIDDEN),
    "down": (LAYERS * HIDDEN * INNER, INNER), "head": (VOCABULARY * HIDDEN, HIDDEN), "embedding": (VOCABULARY * HIDDEN, HIDDEN),
    "norms": ((2 * LAYERS + 1) * HIDDEN, HIDDEN),
}  # fmt: skip
"""Elements of Llama 3.1 8B, and the inputs of an output."""
PARTS = {"attention": "qkvo", "feed_forward": ("gate", "up", "down")}


def by_hand(row):
    """Return the bytes of a row of `bits`."""
    stated = {name: row[part] for part in row for name in PARTS.get(part, (part,))}
    total = 0.0
    for name, (elements, inputs) in MATRICES.items():
        bits = stated.get(name, 16)
        if isinstance(bits, list):
            each, more, group = bits
            bits = each + more / (inputs if group == "inputs" else group)
        total += elements * bits / 8
    return total


@pytest.mark.parametrize("row", ROWS["bits"])
def test_a_checkpoint_has_the_bytes_that_are_counted_by_hand(row):
    held = checkpoint(LLAMA, row["section"])
    assert weight_bytes(held) == pytest.approx(by_hand(row), rel=1e-12)
    assert any(row.get("note", "") in note for note in (*held.notes, ""))


@pytest.mark.parametrize("row", ROWS["formats"])
def test_matrices_and_the_cache_have_the_formats_of_the_section(row):
    network = checkpoint(row.get("of", "llama"), row["section"])
    of = {"head": network.lm_head.weight_format, "embedding": network.embedding_format, "cache": network.kv_format,
          "stored": list(stored_formats(network))}  # fmt: skip
    for name in row.keys() - {"of", "section"}:
        layer, _, matrix = name.rpartition(" ")
        layers = [int(layer)] if layer else range(len(network.layers))
        if matrix == "all":
            assert {form for i in layers for form in formats(network, i).values()} == {row[name]}
        else:
            assert (formats(network, int(layer))[matrix] if layer else of[name]) == row[name], name


@pytest.mark.parametrize("row", ROWS["refused"])
def test_a_section_that_is_not_understood_is_refused_with_its_place(row):
    with pytest.raises(CapplanError, match="quantization_config") as error:
        checkpoint("llama", row["section"])
    assert row["says"] in str(error.value)


def test_an_unknown_method_lists_the_known_ones():
    with pytest.raises(InputError) as error:
        read_scheme(Config({"quant_method": "quip"}, "config.json", "quantization_config."))
    assert all(method in str(error.value) for method in METHODS)


def test_mixed_precision_takes_each_module_as_listed():
    layers = {f"model.layers.{i}.self_attn.{p}_proj": {"quant_algo": "FP8"} for i in range(3) for p in "qkvo"}
    layers |= {
        f"model.layers.{i}.mlp.experts.{e}.{matrix}_proj": {"quant_algo": "NVFP4", "group_size": 16}
        for i in range(3)
        for e in range(4)
        for matrix in ("gate", "up", "down")
    }
    layers["lm_head"] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
    network = checkpoint(
        "mixture", {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    )
    assert formats(network, 2) == {"qkv": "fp8", "o": "fp8", "router": "bf16", "experts": "nvfp4"}
    assert network.lm_head.weight_format == "nvfp4_w4a16"


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


@pytest.mark.parametrize(
    ("kind", "key", "inner"),
    [("internvl_chat", "llm_config", "qwen3"), ("internvl", "text_config", "qwen3"), ("llava", "text_config", "qwen3"),
     ("qwen3_vl", "text_config", "qwen3_vl_text")],
)  # fmt: skip
def test_a_section_of_the_text_part_counts_wherever_it_is(kind, key, inner):
    text = ROWS["configs"]["llama"] | {"model_type": inner, "num_key_value_heads": 2, "head_dim": 64}
    at_the_top = {"model_type": kind, key: text, "quantization_config": AWQ}
    nested = {"model_type": kind, key: text | {"quantization_config": AWQ}}
    whole, part = (quantised(read_network(file, "n"), file) for file in (at_the_top, nested))
    assert set(stored_formats(part)) == {"w4a16-g128-zp"}
    assert weight_bytes(part) == weight_bytes(whole)


def test_a_section_deep_in_the_thinker_counts():
    config = {"thinker_config": {"text_config": {"quantization_config": AWQ}}}
    assert stored_formats(quantised(read_model(LLAMA, offline=True), config)) == ("w4a16-g128-zp",)


def test_a_section_of_a_tower_is_not_that_of_the_text():
    config = {"vision_config": {"quantization_config": AWQ}, "audio_config": {"quantization_config": AWQ}}
    network = read_model(LLAMA, offline=True)
    assert quantised(network, config) == network


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(shipped_config("meta-llama/Llama-3.2-1B")[0]))
    return tmp_path


@table
def test_the_file_of_a_quantiser_beside_the_config_counts(folder, file, values, expected):
    (folder / file).write_text(json.dumps(values))
    assert stored_formats(read_model(str(folder))) == (expected,)
    own = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | own))
    assert stored_formats(read_model(str(folder))) == ("bf16",)


def test_a_bad_file_of_a_quantiser_is_named(folder):
    (folder / "quantize_config.json").write_text(json.dumps({"bits": 9, "group_size": 128}))
    with pytest.raises(InputError, match=r"quantize_config\.json.*bits: 9"):
        read_model(str(folder))


@table
def test_one_matrix_of_the_experts_can_be_left_out(pattern):
    """Qwen3-30B-A3B (arXiv:2505.09388, table 2): 128 experts in 48 layers, 2,048 by 768."""
    every, held = (
        weight_bytes(checkpoint("Qwen/Qwen3-30B-A3B", ROWS["sections"]["compressed"] | {"ignore": left_out}))
        for left_out in (["lm_head"], ["lm_head", pattern])
    )
    assert held - every == 48 * 128 * 2048 * 768 * (16 - 4 - 16 / 128) / 8


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
