"""A config.json of a type that is not modelled names the type that it may be built like, and never one that fails too."""

import json
import re

import pytest

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.families.registry import REFUSED
from capplan.model.parameters import parameters
from capplan.readers.catalogue.models import shipped_config

PUBLISHED = ["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3",
             "mistralai/Mixtral-8x7B-Instruct-v0.1", "openai/gpt-oss-20b"]  # fmt: skip
"""Models whose keys say how they are built, whatever the name of their type."""


def refusal(config):
    with pytest.raises(InputError) as error:
        read_network(config, "private")
    return str(error.value).splitlines()


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_private_type_is_sent_to_a_kin_that_counts_the_same(model):
    config = shipped_config(model)[0]
    first, second = refusal({**config, "model_type": "acme_large"})
    kin = first.rpartition("set model_type: ")[2]
    assert f"if it is built like {kin!r}" in first
    assert "CONTRIBUTING.md" in second
    followed = read_network({**config, "model_type": kin}, "private")
    assert parameters(followed) == parameters(read_network(config, "published"))


def test_a_file_with_none_but_the_keys_of_a_llama_is_sent_to_llama():
    """Its kin was phi3, whose class has fewer keys that such a file leaves out."""
    plain = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "hidden_act": "silu"}  # fmt: skip
    assert refusal({**plain, "model_type": "acme_large"})[0].endswith("set model_type: llama")


def test_a_kin_that_does_not_read_the_file_is_not_named():
    config = shipped_config("meta-llama/Llama-3.1-8B-Instruct")[0] | {"num_attention_heads": 7}
    lines = refusal({**config, "model_type": "acme_large"})
    for kin in re.findall(r"set model_type: (\S+)", lines[0]):
        read_network({**config, "model_type": kin}, "private")


@pytest.mark.parametrize(
    "config", [{}, {"hidden_size": 64}, json.loads('{"text_config": {}, "vision_config": {}}')]
)
def test_a_file_of_few_keys_has_no_kin(config):
    assert "built like" not in refusal({**config, "model_type": "acme_large"})[0]


@pytest.mark.parametrize(
    "kind", ["diffusion_gemma", "t5gemma2", "rwkv", "xlstm", "dory", "inkling2_loop", "lara_mini", "omniasr"]
)
def test_what_no_engine_decodes_is_refused_with_the_reason(kind):
    assert REFUSED[kind] in refusal({"model_type": kind, "hidden_size": 64})[0]
