"""Config files of public repositories are read exactly or refused with the reason; a remark on a key appears where the key can count."""

import collections
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.model.parameters import parameters
from capplan.readers.catalogue.models import shipped_config, shipped_names
from tests.differential.stored import stored
from tests.differential.verdict import compared
from tests.tables import table

FILE = Path(__file__).parents[1] / "data" / "public_configs.jsonl.gz"
ROWS = [json.loads(line) for line in gzip.decompress(FILE.read_bytes()).splitlines()]
OTHERWISE = {
    "stepfun-ai--Step-3.7-Flash": "its class has no gate on the heads of windows; the published shapes have",
    "hf_configs/llava": "its class knows no file of LLaVA's own code and builds its default",
}
"""Files whose model transformers builds otherwise, and why."""


def name_of(row: dict[str, Any]) -> str:
    """Return the end of an address, as pytest shows it."""
    return row["address"][-60:]


def test_a_hundred_files_have_an_address() -> None:
    """Every address names a repository, a commit and a path."""
    assert len(ROWS) >= 100
    assert all("@" in row["address"] and ":" in row["address"] for row in ROWS)


@pytest.mark.parametrize("row", [row for row in ROWS if "refused" not in row], ids=name_of)
def test_a_public_file_is_read_exactly(row: dict[str, Any]) -> None:
    """Our count of parameters is that of the reference, to the last one."""
    count = parameters(read_network(row["config"], "config.json"))
    assert count == row["parameters"]
    if not any(part in row["address"] for part in OTHERWISE):
        assert count == row.get("reference", count)


@pytest.mark.parametrize("row", [row for row in ROWS if "refused" in row], ids=name_of)
def test_a_public_file_is_rejected_with_the_reason(row: dict[str, Any]) -> None:
    """What is not modelled is named."""
    with pytest.raises(InputError) as error:
        read_network(row["config"], "config.json")
    assert row["refused"] in str(error.value)


LLAMA = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
         "vocab_size": 320}  # fmt: skip
FALCON = {
    "model_type": "falcon",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 320,
}
LLAMA4 = LLAMA | {
    "model_type": "llama4_text",
    "num_local_experts": 4,
    "intermediate_size_mlp": 80,
    "head_dim": 16,
}


@table
def test_falcon_has_the_norms_of_its_class(config, norms):
    assert read_network(FALCON | config, "n").layers[0].norm_parameters == norms * 2 * 64


def test_llama_4_has_no_experts_in_layers_that_it_has_not():
    inside = read_network(LLAMA4 | {"moe_layers": [1]}, "n")
    assert parameters(read_network(LLAMA4 | {"moe_layers": [1, 7, 8, 9]}, "n")) == parameters(inside)


def test_gemma_3n_keeps_the_norm_of_a_per_layer_input_of_no_width():
    """`Gemma3nTextDecoderLayer.post_per_layer_input_norm` is built whatever hidden_size_per_layer_input says."""
    config = LLAMA | {"model_type": "gemma3n_text", "head_dim": 16, "altup_num_inputs": 2, "laurel_rank": 4,
                      "num_kv_shared_layers": 0, "intermediate_size": 96, "vocab_size_per_layer_input": 300}  # fmt: skip
    without, one = (read_network(config | {"hidden_size_per_layer_input": width}, "n") for width in (0, 1))
    matrices = (
        4 * 2 * 64 + 4 * 64 + 1 + 300 * 4
    )  # gate and projection of each layer, the joint projection, its norm, the table
    assert parameters(one) - parameters(without) == matrices


def unread(network):
    return [note for note in network.notes if note.startswith("not read")]


@pytest.mark.parametrize("model", [name for name in shipped_names() if "/" in name])
def test_published_files_have_no_remark(model):
    config, name = shipped_config(model)
    expected = ["attn_res_block_size"] if name.endswith(("Kimi-K3", "Kimi-K3-NVFP4")) else []
    remarks = unread(read_network(config, name))
    assert len(remarks) == len(expected)
    assert all(key in remarks[0] for key in expected)


PLAIN_LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "vocab_size": 320}  # fmt: skip


@table
def test_a_key_that_cannot_change_a_number_is_not_remarked_on(keys):
    assert unread(read_network(PLAIN_LLAMA | keys, "n")) == []


@pytest.mark.parametrize(
    "keys", [{"n_memory_tokens": 4}, {"shared_expert_intermediate_size": 128}, {"cross_layers": [1]}]
)
def test_a_key_that_could_is(keys):
    assert any(next(iter(keys)) in remark for remark in unread(read_network(PLAIN_LLAMA | keys, "n")))


def test_a_stored_sample_of_every_family_has_the_figures_of_its_class():
    wrong, counts, kinds = [], collections.Counter(), set()
    for file, reference in stored():
        one = compared(file, lambda _, reference=reference: reference)
        counts[one.verdict] += 1
        kinds.add(file.kind)
        if one.verdict == "wrong":
            wrong.append(f"{file.kind} ({file.form}) {file.change}: {one.why}")
    assert wrong == []
    assert counts["exact"] > 0.75 * counts.total() > 300
    assert len(kinds) > 90
