"""Contexts of models: what engines were started with, what folders of the same owner state, and what scaled rotary positions give."""

import csv
import json
import re
from pathlib import Path

import pytest

from capplan.families.model_config import read_network
from capplan.memory.rank import rotary_table_bytes
from capplan.readers.catalogue.models import read_model, shipped_config, shipped_names
from capplan.replica.spec import served_context_tokens
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "model_configs").glob("*/config.json"))
STARTS = ROOT / "tests" / "data" / "starts.csv"
README = ROOT / "model_configs" / "README.md"
LLAMA_2 = ("7b", "13b", "70b")


def contexts():
    """The context, owner and model type of every folder; None where a model has no longest prompt."""
    found = {}
    for folder in FOLDERS:
        name = folder.name.replace("--", "/", 1)
        config = json.loads((folder / "config.json").read_text())
        context = read_model(name, offline=True).max_context_tokens
        if context is not None:
            found[name] = context, (name.partition("/")[0], config.get("model_type"))
    return found


def logged():
    """The longest context of every model with which an engine started."""
    longest = {}
    for row in csv.DictReader(STARTS.open()):
        if row["max_model_len"] and row["status"] == "ok":
            name = row["model_hf_id"].lower()
            longest[name] = max(longest.get(name, 0.0), float(row["max_model_len"]))
    return longest


def test_no_engine_started_with_more_than_the_context():
    shipped = {name.lower(): context for name, (context, _) in contexts().items()}
    seen = {name: longest for name, longest in logged().items() if name in shipped}
    assert len(seen) > 3
    for name, longest in seen.items():
        assert longest <= shipped[name], name


@pytest.mark.parametrize("size", LLAMA_2)
def test_llama_2_has_the_context_of_its_chat_variants(size):
    """Dumps of transformers 4.31 to 4.39 and the chat variants say 4,096; an older revision said 2,048."""
    names = (f"meta-llama/Llama-2-{size}-hf", f"meta-llama/Llama-2-{size}-chat-hf")
    assert {read_model(name, offline=True).max_context_tokens for name in names} == {4096}


def test_the_readme_lists_the_contexts_that_nothing_else_confirms():
    """Neither a start at the whole context nor another folder of the owner and model type states the same."""
    found, starts = contexts(), logged()
    kinds = [(context, kind) for context, kind in found.values()]
    alone = [
        name
        for name, (context, kind) in found.items()
        if kinds.count((context, kind)) == 1 and starts.get(name.lower()) != context
    ]
    text = README.read_text().partition("## Contexts that only the config states")[2].partition("\n## ")[0]
    assert re.findall(r"`([^`]+/[^`]+)`", text) == alone, ", ".join(f"`{name}`" for name in alone)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
CASES = {
    # section, vLLM, SGLang; of a Qwen3 that states 40,960 positions
    "yarn": ({"rope_scaling": YARN}, 131_072, 40_960),
    "yarn by its old name": ({"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}}, 131_072, 40_960),
    "yarn as transformers 5 saves it": ({"rope_parameters": YARN | {"rope_theta": 1e6}}, 131_072, 40_960),
    "yarn of each kind of layer": ({"rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_type": "default"}}}, 131_072, 40_960),
    "yarn without its start": ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, 81_920, 81_920),
    "linear": ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 81_920, 81_920),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 1.5}}, 61_440, 61_440),
    "llama3": ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}}, 40_960, 40_960),
    "longrope": ({"rope_scaling": {"rope_type": "longrope", "factor": 8.0, "short_factor": [1], "long_factor": [1]}}, 40_960, 40_960),
    "no factor": ({"rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]}}, 40_960, 40_960),
    "an empty factor": ({"rope_scaling": {"type": "yarn", "factor": None}}, 40_960, 40_960),
}  # fmt: skip


def qwen3(section):
    config, name = shipped_config("Qwen/Qwen3-8B")
    return config | section, name


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_context_is_what_the_engine_derives(tmp_path, case, engine):
    section, vllm, sglang = CASES[case]
    config, _ = qwen3(section)
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = asked_replica(str(tmp_path), "h100-sxm", ServingFlags(engine=engine)).spec
    assert served_context_tokens(spec) == {"vllm": vllm, "sglang": sglang}[engine]


def test_the_section_of_a_text_part_counts():
    text = qwen3({"rope_scaling": YARN})[0] | {"model_type": "qwen3"}
    network = read_network({"model_type": "internvl", "text_config": text}, "n")
    assert network.max_context_tokens == 131_072


def test_the_rotary_table_has_a_row_for_each_position():
    """vLLM, `YaRNScalingRotaryEmbedding._compute_cos_sin_cache`: original positions x factor; Gemma 3 has two tables."""
    for section, rows in (({}, 40_960), ({"rope_scaling": YARN}, 131_072)):
        network = read_network(*qwen3(section))
        assert (network.max_context_tokens or 0) + network.scaled_rotary_tokens == rows
    gemma = read_model("google/gemma-3-27b-it", offline=True)
    assert (gemma.max_context_tokens, gemma.scaled_rotary_tokens) == (131_072, 8 * 131_072)
    assert rotary_table_bytes(40_960.0, 128.0, 2.0) == 40_960 * 128 * 2


@pytest.mark.parametrize("model", shipped_names())
def test_published_contexts_of_shipped_models_are_those_of_their_configs(model):
    """No published file states yarn that would change max_position_embeddings: their authors multiplied already."""
    config, name = shipped_config(model)
    network = read_network(config, name)
    assert network.stated_context_tokens is None
