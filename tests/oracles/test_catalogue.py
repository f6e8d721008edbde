"""Are the shipped models the published ones, and is each found by the names that people write?"""

import json

import pytest

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.families.registry import families
from capplan.model.parameters import parameters, weight_elements_by_class
from capplan.readers.catalogue.models import (
    FOLDER,
    normalised,
    read_model,
    shipped_config,
    shipped_id,
    shipped_names,
    shipped_notes,
)
from capplan.readers.text_file import data_folder
from docs.generators.model_index import index_text, read_sources, read_variants
from tests.tables import rows

SOURCES = read_sources(data_folder(FOLDER))
MODELS = json.loads((data_folder(FOLDER) / "index.json").read_text(encoding="utf-8"))["models"]
REFUSED = {model for model in MODELS if shipped_config(model)[0]["model_type"] not in families()}
"""Shipped so that their name says why they are not modelled."""


def test_at_least_forty_models_ship():
    assert len(SOURCES) >= 90
    assert len(MODELS) >= 400
    assert not REFUSED


def test_the_index_is_the_one_that_folders_and_variants_give():
    written = (data_folder(FOLDER) / "index.json").read_text(encoding="utf-8")
    assert written == index_text(data_folder(FOLDER)), "run: python -m docs.generators.model_index"


@pytest.mark.parametrize("folder", sorted(SOURCES))
def test_a_folder_has_the_exact_parameters_that_its_source_states(folder):
    source = SOURCES[folder]
    assert folder == source.id.replace("/", "--")
    assert source.source
    if source.id in REFUSED:
        return
    config, _ = shipped_config(source.id)
    network = read_network(config, source.id)
    counted = parameters(network)
    if not source.counts_vision:
        counted -= weight_elements_by_class(network).get("vision", 0)
    if source.id == "stepfun-ai/Step-3.7-Flash":
        # The reference implementation gives the sliding layers the gate of the full ones: 663,552 less.
        counted -= 663_552
    assert counted == source.exact_parameters


@pytest.mark.parametrize("folder", sorted(SOURCES))
def test_the_exact_count_is_the_published_one_as_far_as_that_is_rounded(folder):
    """Model cards round down, name a round size, or count vision and multi-token-prediction layers: 15 %."""
    source = SOURCES[folder]
    if source.published_parameters is None:
        return
    unit = {"B": 1e9, "M": 1e6}[source.published_parameters.removesuffix(" text")[-1]]
    published = float(source.published_parameters.removesuffix(" text")[:-1]) * unit
    assert source.exact_parameters == pytest.approx(published, rel=0.15)


def test_every_shipped_model_can_be_read():
    for model in MODELS:
        if model not in REFUSED:
            network = read_model(model, offline=True)
            assert network.layers
            assert network.max_context_tokens or not any(layer.mixers for layer in network.layers) or model in (
                "bigscience/bloom-7b1", "state-spaces/mamba-2.8b-hf", "tiiuae/falcon-mamba-7b",
                "tiiuae/falcon-mamba-7b-instruct",
            ), model  # fmt: skip


@pytest.mark.parametrize(("name", "model"), rows("names")["models"])
def test_a_model_is_found_whatever_the_case_and_punctuation(name, model):
    assert shipped_id(name) == model


def test_every_id_and_alias_finds_itself():
    for model in MODELS:
        assert shipped_id(model) == model
    for alias, model in read_variants(data_folder(FOLDER)).aliases.items():
        assert shipped_id(alias) == model
    assert len({normalised(model) for model in MODELS}) == len(MODELS)


def test_an_unknown_name_suggests_the_nearest():
    assert shipped_config("llama-3.1-71b") is None
    with pytest.raises(InputError, match=r"unknown model 'qwen3-31b': did you mean"):
        read_model("qwen3-31b", offline=True)
    assert "qwen3-30b" in shipped_names()


def test_a_variant_differs_from_its_base_in_what_it_says():
    base = read_model("meta-llama/Llama-3.1-70B-Instruct", offline=True)
    variant = read_model("nvidia/Llama-3.1-70B-Instruct-FP8", offline=True)
    assert parameters(variant) == parameters(base)
    assert variant.kv_format == "fp8"
    assert base.kv_format is None
    longer, _ = shipped_config("Qwen/Qwen3-30B-A3B-Instruct-2507")
    assert longer["max_position_embeddings"] == 262144


def test_what_is_assumed_about_a_checkpoint_is_said():
    assert "not published" in shipped_notes("nvidia/Qwen3-235B-A22B-FP4")[0]
    assert shipped_notes("Qwen/Qwen3-32B") == ()


def test_every_quantisation_says_where_it_is_from():
    described = read_variants(data_folder(FOLDER))
    assert all(entry.source for entry in described.quantizations.values())
    used = {variant.quantization for variant in described.variants.values()}
    assert set(described.quantizations) <= used


def test_every_confirmed_model_of_the_facts_ships(measured):
    names = [row["model"].removesuffix(" (text)") for row in measured.table("models") if row["confirmed"]]
    assert len(names) >= (60 if measured.whole else 20)
    assert [name for name in names if shipped_id(name) is None] == []


def test_every_model_of_the_measured_results_is_found_without_a_connection(measured):
    names = {row["model_hf_id"] for table in ("runs", "starts") for row in measured.table(table)}
    assert len(names) >= (60 if measured.whole else 40)
    assert [name for name in sorted(names) if name and shipped_id(name) is None] == []
