"""A key of a config.json is read, or equals what the class says anyway, or cannot count, or is named, whatever stands under it."""

import copy
import json
import math
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.families.quantization.network_formats import quantised
from capplan.memory.kv_sizes import kv_sizes
from capplan.model.parameters import parameters, summary, weight_bytes_by_class
from capplan.readers.catalogue.models import read_model
from tests.files import written_to
from tests.sweeps import examples
from tests.tables import table

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip


def test_a_reward_model_has_a_score_in_place_of_the_lm_head():
    # transformers 5.23 on the meta device: LlamaForSequenceClassification with one label.
    scored = LLAMA_8B | {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}
    assert parameters(read_network(scored, "reward")) == 7_504_928_768
    assert (
        parameters(read_network(LLAMA_8B | {"architectures": ["LlamaForCausalLM"]}, "chat")) == 8_030_261_248
    )


def test_a_model_without_a_head_has_no_decode_steps():
    bare = read_network(LLAMA_8B | {"architectures": ["LlamaModel"]}, "bare")
    assert (parameters(bare), bare.generates) == (7_504_924_672, False)


@pytest.mark.parametrize(
    "name", ["LlamaForCausalLMEagle3", "Qwen2ForRewardModel", "BertForQuestionAnswering"]
)
def test_a_head_that_is_not_modelled_is_refused_by_its_name(name):
    with pytest.raises(InputError, match=name):
        read_network(LLAMA_8B | {"architectures": [name]}, "head")


FALCON_H1 = {
    "model_type": "falcon_h1", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1,
    "mamba_d_state": 8,
}  # fmt: skip
ERNIE_MOE = {
    "model_type": "ernie4_5_moe", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "moe_intermediate_size": 40, "moe_num_experts": 4, "moe_k": 2,
    "moe_num_shared_experts": 2, "tie_word_embeddings": True,
}  # fmt: skip
ZAMBA2 = {
    "model_type": "zamba2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "vocab_size": 320, "layers_block_type": ["mamba", "hybrid", "mamba"], "adapter_rank": 6,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (FALCON_H1, 271_840),
        (FALCON_H1 | {"mamba_proj_bias": True}, 272_960),
        (FALCON_H1 | {"projectors_bias": True}, 272_096),
        (ERNIE_MOE, 227_660),
        (ERNIE_MOE | {"use_bias": True}, 229_676),
    ],
)
def test_biases_stand_where_the_class_has_them(config, count):
    # transformers 5.23 on the meta device: FalconH1ForCausalLM, Ernie4_5_MoeForCausalLM.
    assert parameters(read_network(config, "biased")) == count


@table
def test_a_key_that_follows_from_others_may_not_contradict_them(key, follows, other):
    agreed = parameters(read_network(ZAMBA2 | {key: follows}, "zamba"))
    assert agreed == parameters(read_network(ZAMBA2, "zamba"))
    with pytest.raises(InputError, match=key):
        read_network(ZAMBA2 | {key: other}, "zamba")


def test_names_of_labels_are_no_unread_keys():
    scored = LLAMA_8B | {
        "architectures": ["LlamaForSequenceClassification"],
        "id2label": {"0": "good", "1": "bad", "2": "ugly"},
    }
    network = read_network(scored, "scored")
    assert network.lm_head.outputs == 3
    assert not any(note.startswith("not read") for note in network.notes)


def test_a_missing_key_means_what_the_class_means_and_is_listed():
    lacking = {"model_type": "mistral"} | {
        k: LLAMA_8B[k] for k in LLAMA_8B if k not in ("num_key_value_heads", "model_type")
    }
    network = read_network(lacking, "mistral")
    assert network.layers[0].mixers[0].kv_heads == 8
    assert any(note.startswith("num_key_value_heads is missing: 8") for note in network.notes)


def test_a_key_answers_to_the_name_that_transformers_5_saves():
    old = LLAMA_8B | {
        "model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 768, "head_dim": 128,
    }  # fmt: skip
    new = {("num_local_experts" if key == "num_experts" else key): value for key, value in old.items()}
    assert read_network(old, "old").layers == read_network(new, "new").layers


@pytest.mark.parametrize(
    ("key", "value"), [("surprising_width", 12), ("memory_layers", [1, 2]), ("extra", {"a": 1})]
)
def test_an_unknown_key_is_named(key, value):
    (note,) = (
        note for note in read_network(LLAMA_8B | {key: value}, "odd").notes if note.startswith("not read")
    )
    assert key in note


@pytest.mark.parametrize(
    ("key", "value"), [("bos_token_id", 7), ("rope_theta", 5e5), ("surprising_flag", False), ("odd", None)]
)
def test_a_key_that_cannot_count_is_not_named(key, value):
    assert not any(
        note.startswith("not read") for note in read_network(LLAMA_8B | {key: value}, "plain").notes
    )


def test_the_lm_head_of_gptq_is_quantised_where_the_file_says_so():
    section = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    network = read_network(LLAMA_8B, "gptq")
    plain, whole = (
        weight_bytes_by_class(quantised(network, {"quantization_config": section | {"lm_head": head}}))[
            "lm_head"
        ]
        for head in (False, True)
    )
    assert plain == 128256 * 4096 * 2
    assert 0.25 * plain < whole < 0.27 * plain


def test_infinity_that_nobody_uses_does_not_stop_a_file(tmp_path):
    path = written_to(tmp_path / "config.json", LLAMA_8B | {"time_step_limit": [0.0, float("inf")]})
    assert parameters(read_model(str(path))) == 8_030_261_248
    path.write_text(json.dumps(LLAMA_8B | {"hidden_size": float("inf")}))
    with pytest.raises(InputError, match="hidden_size: inf is not a finite number"):
        read_model(str(path))


def test_ten_sections_inside_each_other_and_a_hundred_thousand_layers_are_refused_in_a_line():
    nested = LLAMA_8B
    for _ in range(10):
        nested = {"model_type": "gemma3", "text_config": nested}
    for config in (nested, nested | {"model_type": "llava"}, LLAMA_8B | {"num_hidden_layers": 100_000}):
        with pytest.raises(InputError) as caught:
            read_network(config, "bad")
        assert str(caught.value).startswith("config.json: ")


SCENARIO = """name: odd
model: {model}
calibration: null
traffic:
  - {{name: chat, request_rate: 1 req/s, input_tokens: {{mean: 500}}, output_tokens: {{mean: 50}}}}
fleet: {{hardware: [h100-sxm], tensor_parallel: [1], pipeline_parallel: [1]}}
"""


@table
def test_every_answer_that_rests_on_a_config_names_what_was_not_read_once(line, tmp_path, capplan):
    model, scenario = tmp_path / "config.json", tmp_path / "odd.yaml"
    towers = {
        "model_type": "perception_lm",
        "text_config": LLAMA_8B | {"surprising_width": 12},
        "vision_config": {},
    }
    model.write_text(json.dumps(towers))
    scenario.write_text(SCENARIO.format(model=model))
    places = {"MODEL": model, "SCENARIO": scenario}
    ran = capplan(*(places.get(word, word) for word in line.split()), "--format", "json")
    assert ran.code in {0, 4}, ran.err
    said = [item["assumption"] for item in json.loads(ran.out)["assumptions"]]
    assert sum("not read: text_config.surprising_width" in what for what in said) == 1
    assert said.count("the tower resnet50 of timm is not counted") == 1


def test_a_draft_is_named_with_what_was_not_read_of_it(tmp_path, capplan):
    draft = written_to(tmp_path / "config.json", LLAMA_8B | {"num_hidden_layers": 2, "surprising_width": 12})
    words = ("spec", "llama-3.1-8b", "--hardware", "h100", "--draft", draft, "--acceptance", "0.8")
    ran = capplan(*words, "--format", "json")
    said = [item["assumption"] for item in json.loads(ran.out)["assumptions"]]
    assert sum(what.startswith("draft: not read: surprising_width") for what in said) == 1


ROOT = Path(__file__).resolve().parents[2]
ODD = [None, 0, -1, 3.5, 1e30, 10**30, math.inf, math.nan, True, "", "x", [], {}, [1], [[]], ["x"], {"a": 1}]


@cache
def one_config_per_family():
    """Return a config of each model_type with the paths of its keys."""
    found = {}
    for path in sorted((ROOT / "model_configs").glob("*/config.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault(config.get("model_type"), (config, list(key_paths(config))))
    return list(found.values())


def key_paths(section, path=()):
    for key, value in section.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from key_paths(value, (*path, key))
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield from key_paths(value[0], (*path, key, 0))


@st.composite
def spoilt_configs(draw):
    config, paths = draw(st.sampled_from(one_config_per_family()))
    spoilt = copy.deepcopy(config)
    for _ in range(draw(st.integers(1, 2))):
        *outer, last = draw(st.sampled_from(paths))
        section = spoilt
        for key in outer:
            if (
                not isinstance(section, dict | list)
                or (isinstance(section, dict) and key not in section)
                or not section
            ):
                break
            section = section[key]
        else:
            if isinstance(section, dict):
                section[last] = draw(st.sampled_from(ODD))
    return spoilt


@settings(max_examples=examples(300, 1000), deadline=None)
@given(spoilt_configs())
def test_a_config_gives_finite_figures_or_one_clear_refusal(config):
    try:
        network = quantised(read_network(config, "spoilt", "config.json"), config, "config.json")
        figures = summary(network)
        sizes = kv_sizes(network, [1000], kv_dtype="bf16").rows
    except InputError as error:
        first = str(error).splitlines()[0]
        assert len(first) > 10
        assert "Error" not in first
        return
    numbers = [v for v in (*figures.values(), *asdict(sizes[0]).values()) if isinstance(v, float | int)]
    assert all(math.isfinite(v) and v >= 0 for v in numbers)
