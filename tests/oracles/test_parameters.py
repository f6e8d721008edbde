"""Do we count the parameters that others count, and is the LM head the embedding?"""

from dataclasses import replace

import pytest

from calibrate.choose_rows import values_of
from capplan.engine.lookup import profile
from capplan.families.model_config import read_network
from capplan.memory.layer_groups import cache_kinds
from capplan.model.network import LatentAttention
from capplan.model.parameters import (
    active_parameters,
    draft_layer,
    draft_layers_per_layer,
    parameters,
    weight_bytes,
    weight_bytes_by_class,
)
from capplan.readers.catalogue.models import read_model, shipped_config
from capplan.replica.speculation import DraftPlan, draft_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from tests.families import ROWS, network_of
from tests.tables import table

REASONS = {
    "stepfun-ai/Step-3.7-Flash": (
        663_552,
        "the file says 128,896 tokens; the reference read its class default of 128,815, a nested key being absent",
    ),
    "meituan-longcat/LongCat-Flash-Chat": (
        -28 * 256 * 4096 * 6144,
        "the reference allocates input matrices for the 256 experts per layer that return their input",
    ),
}
"""Where we knowingly count something else than the reference: the difference and why."""

NO_MODEL_TYPE = {"tiiuae/falcon-7b": "falcon", "EleutherAI/gpt-neox-20b": "gpt_neox"}
"""Partial files that do not say their model_type; everything else about them is there."""


def counted(measured):
    return [row for row in measured.table("models") if row["parameters"]]


def test_every_published_config_gives_the_reference_count_to_the_last_parameter(measured):
    configs, checked = measured.configs(), 0
    for row in counted(measured):
        name = row["model"]
        if name not in configs:
            continue
        config = {"model_type": NO_MODEL_TYPE.get(name)} | configs[name]
        network = read_network(config, name)
        # A reference row without vision built the text class of a file that describes a tower too.
        seen = 0 if float(row["vision_parameters"]) else network.vision_parameters
        count = parameters(network) - seen - REASONS.get(name, (0, ""))[0]
        assert count == int(row["parameters"]), name
        checked += 1
    assert checked > (60 if measured.whole else 25)


def test_every_published_config_is_read_or_refused_with_its_reason(measured):
    from capplan.errors import InputError

    refused = {}
    for name, config in measured.configs().items():
        try:
            network = read_network(config, name)
        except InputError as error:
            refused[name] = str(error)
        else:
            assert parameters(network) > 0
            assert 0 < active_parameters(network) <= parameters(network)
    # configs that ship name their type
    assert set(refused) == (set(NO_MODEL_TYPE) if measured.whole else set())
    assert all("model_type" in reason for reason in refused.values())


EXPERT_KEYS = dict.fromkeys(
    ("mixtral", "phimoe", "minimax_m2", "granitemoe"), "num_local_experts"
) | dict.fromkeys(
    ("deepseek_v2", "glm4_moe", "glm4_moe_lite", "dots1", "longcat_flash", "mistral4"), "n_routed_experts"
)
TOP_KEYS = {"ernie4_5_moe": "moe_k", "hunyuan_v1_moe": "moe_topk", "longcat_flash": "moe_topk"}
FIVES = ["sliding_attention"] * 4 + ["full_attention"]
MORE_KEYS = {
    "zai-org/GLM-4.5": {"use_qk_norm": True},
    "zai-org/GLM-4.6": {"use_qk_norm": True},
    "zai-org/GLM-4.7-Flash": {"first_k_dense_replace": 1},
    "CohereForAI/c4ai-command-r-plus": {"use_qk_norm": True},
    "google/gemma-3n-E4B": {"intermediate_size": 16384},
    "google/gemma-4-E2B (text)": {"layer_types": FIVES * 7, "use_double_wide_mlp": True},
    "tencent/Hunyuan-A13B-Instruct": {"moe_topk": [8] * 32, "moe_intermediate_size": [3072] * 32},
    "tencent/Hy3-preview": {"num_shared_experts": 1},
    "baidu/ERNIE-4.5-21B-A3B-PT": {"moe_num_experts": 64, "moe_num_shared_experts": 2},
    "baidu/ERNIE-4.5-300B-A47B-PT": {
        "moe_num_experts": 64,
        "moe_num_shared_experts": 0,
        "moe_layer_start_index": 3,
    },
    "meituan-longcat/LongCat-Flash-Chat": {
        "num_layers": 28,
        "ffn_hidden_size": 12288,
        "expert_ffn_hidden_size": 2048,
        "n_routed_experts": 512,
        "zero_expert_num": 256,
    },
}
"""Keys of a model that the collected table has no column for."""
STATEFUL = {"qwen3_next", "kimi_linear", "minimax", "granitemoehybrid", "jamba", "nemotron_h", "falcon_mamba", "mamba",
            "mamba2", "zamba2", "falcon_h1", "lfm2_moe"}  # fmt: skip


def value(text):
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(float(text))
    except ValueError:
        return text


def config_of(row):
    """Return the config.json that a row of the collected table describes."""
    kind = row["type"]
    renamed = {
        "first_k_dense": "first_k_dense_replace",
        "n_experts": EXPERT_KEYS.get(kind, "num_experts"),
        "experts_per_tok": TOP_KEYS.get(kind, "num_experts_per_tok"),
    }
    dimensions = values_of(row["dimensions"])
    config = {renamed.get(key, key): value(text) for key, text in dimensions.items()}
    return {"model_type": kind} | config | MORE_KEYS.get(row["model"], {})


def test_models_known_by_their_dimensions_give_the_reference_count(measured):
    configs, wrong, checked = measured.configs(), {}, 0
    for row in counted(measured):
        name, kind = row["model"], row["type"]
        if name in configs or kind in STATEFUL or (kind == "gemma4_text" and "E2B" not in name):
            continue
        count = parameters(read_network(config_of(row), name)) - REASONS.get(name, (0, ""))[0]
        checked += 1
        if count != int(row["parameters"]):
            wrong[name] = count - int(row["parameters"])
    assert wrong == {}
    assert checked >= (35 if measured.whole else 14)


@table
def test_active_parameters_are_those_of_the_model_card(name, published, page):
    # Cards round to two digits and differ in whether the token embedding counts: 3 %.
    assert active_parameters(network_of(name)) == pytest.approx(published, rel=0.03), page


def test_active_parameters_and_the_embedding_are_what_many_cards_count():
    assert active_parameters(network_of("Qwen3-30B-A3B")) + 151936 * 2048 == 3_353_032_704
    dense = network_of("Llama-3.1-8B")
    assert active_parameters(dense) + dense.embedding_parameters == parameters(dense)
    tied = network_of("Llama-3.2-1B")
    assert active_parameters(tied) == parameters(tied)


def test_the_lm_head_is_a_matrix_of_its_own_unless_tied():
    untied = weight_bytes_by_class(network_of("Llama-3.1-8B"))
    assert untied["lm_head"] == untied["embedding"] == 2 * 128256 * 4096
    assert "lm_head" not in weight_bytes_by_class(network_of("Llama-3.2-1B"))


def test_deepseek_v3_keeps_its_multi_token_prediction_layer_apart():
    # The checkpoint is called 685B because it repeats embedding and head in that layer; arXiv:2412.19437,
    # section 2.2: one such layer of 11.5B of its own (14B with the repeated embedding and head).
    network = network_of("DeepSeek-V3", num_nextn_predict_layers=1)
    assert parameters(network) == 671_026_404_352
    assert network.mtp_parameters == pytest.approx(11.5e9, rel=0.02)
    assert weight_bytes(network, mtp=True) - weight_bytes(network) == 2 * network.mtp_parameters
    repeated = network.mtp_parameters + 2 * 129280 * 7168
    assert parameters(network) + repeated == pytest.approx(684.5e9, rel=0.001)


def test_longcat_flash_is_the_560_billion_of_its_report():
    # arXiv:2509.01322: 560B, 18.6 to 31.3B of them active, 27B on average, two attentions in each of 28 layers.
    config = {
        "model_type": "longcat_flash", "num_layers": 28, "hidden_size": 6144, "ffn_hidden_size": 12288,
        "expert_ffn_hidden_size": 2048, "n_routed_experts": 512, "zero_expert_num": 256, "moe_topk": 12,
        "num_attention_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 131072,
    }  # fmt: skip
    network = read_network(config, "LongCat-Flash")
    assert parameters(network) == pytest.approx(560e9, rel=0.002)
    assert 18.6e9 < active_parameters(network) < 31.3e9
    assert sum(isinstance(m, LatentAttention) for layer in network.layers for m in layer.mixers) == 56


NAS = {
    "model_type": "nemotron-nas", "hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 80,
    "vocab_size": 128256, "num_key_value_heads": None, "intermediate_size": None,
}  # fmt: skip


def test_a_searched_network_of_equal_blocks_is_the_llama_it_came_from():
    block = {"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": 5.25, "no_op": False}}
    network = read_network(NAS | {"block_configs": [block] * 80}, "nas")
    assert parameters(network) == 70_553_706_496


def test_blocks_without_attention_hold_no_keys_and_blocks_without_anything_hold_nothing():
    block = {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 5.25}}
    silent = {
        "attention": {"n_heads_in_group": None, "no_op": True},
        "ffn": {"ffn_mult": None, "no_op": True},
    }
    network = read_network(NAS | {"block_configs": [block] * 40 + [silent] * 40}, "nas")
    full = read_network(NAS | {"block_configs": [block] * 80}, "nas")
    ends = 2 * 128256 * 8192 + 8192
    assert 2 * (parameters(network) - ends) == parameters(full) - ends
    assert sum(len(layer.mixers) for layer in network.layers) == 40


def test_decilm_7b_has_its_own_kv_heads_in_each_layer():
    # Deci AI 2023, DeciLM-7B model card: 7.04 billion parameters, a few KV heads per layer. The list here is of our
    # making; how few they are hardly changes the sum, as the 1 % allows.
    heads = [4] * 2 + [2] * 4 + [1] * 26
    network = network_of(
        "Llama-3.1-8B",
        model_type="deci",
        vocab_size=32000,
        num_key_value_heads=32,
        num_key_value_heads_per_layer=heads,
    )
    assert [layer.mixers[0].kv_heads for layer in network.layers] == heads
    assert parameters(network) == pytest.approx(7.04e9, rel=0.01)


def test_dbrx_has_36_billion_active_parameters():
    # Databricks 2024, "Introducing DBRX": 36B active on any input.
    assert active_parameters(network_of("DBRX")) == pytest.approx(36e9, rel=0.02)


TEXT = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "vocab_size": 320, "head_dim": 24, "num_local_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4,
        "moe_intermediate_size": 40, "layer_types": None}  # fmt: skip
QWEN = {"model_type": "qwen3_vl_moe_text", "num_experts": 4}


def _tied(kind, section, release, top, inner):
    text = {
        key: value
        for key, value in (TEXT | section | {"tie_word_embeddings": inner}).items()
        if value is not None
    }
    whole = {"transformers_version": release, "tie_word_embeddings": top}
    file = {key: value for key, value in whole.items() if value is not None}
    return read_network(file | {"model_type": kind, "text_config": text, "vision_config": {}}, kind)


@pytest.mark.parametrize(("kind", "section", "release", "top", "inner", "tied"), ROWS["tied"])
def test_embedding_and_head_are_one_tensor_where_the_class_makes_them_one(
    kind, section, release, top, inner, tied
):
    assert _tied(kind, section, release, top, inner).tied_embeddings is tied


@pytest.mark.parametrize(("kind", "section"), [("internvl", {"model_type": "qwen2"}), ("qwen3_vl_moe", QWEN)])
def test_a_key_that_releases_read_differently_is_named_where_nothing_decides(kind, section):
    silent, stated = (_tied(kind, section, None, top, None).notes for top in (None, False))
    assert sum("as transformers 5 reads it" in note for note in silent) == 1
    assert not any("as transformers 5 reads it" in note for note in stated)


def drafter(model, hardware, ranks):
    asked = asked_replica(model, hardware, ServingFlags(engine="vllm", tensor_parallel=ranks, offline=True))
    return draft_of(DraftPlan("mtp", (0.8,), draft_tokens=1), asked.spec)


def test_weights_of_a_draft_are_all_prediction_layers_of_the_checkpoint():
    """GLM-5-NVFP4 keeps its prediction layer in 16 bits: 19.9 GB, where a layer of NVFP4 is 5.9."""
    config, _ = shipped_config("nvidia/GLM-5-NVFP4")
    hidden, ranks = config["hidden_size"], 8
    expert = 3 * hidden * config["moe_intermediate_size"]
    at_least = 2 * (config["n_routed_experts"] * expert + 2 * hidden * hidden) / ranks
    draft = drafter("nvidia/GLM-5-NVFP4", "h200", ranks)
    assert at_least < draft.weight_bytes < 1.1 * at_least


@pytest.mark.parametrize("model", ["zai-org/GLM-4.6", "Qwen/Qwen3.5-122B-A10B", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"])  # fmt: skip
def test_one_prediction_layer_in_16_bits_is_the_last_caching_layer_and_a_matrix_that_joins(model):
    network = read_model(model, offline=True)
    assert draft_layers_per_layer(network, draft_layer(network)) == pytest.approx(1.0, abs=2e-4)


@pytest.mark.parametrize("model", ["zai-org/GLM-5.3-Flash", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"])
def test_a_draft_caches_where_the_last_layer_of_a_hybrid_does_not(model):
    """The last layer of the one keeps a state, that of the other has only experts; both draft with attention."""
    network, rules = read_model(model, offline=True), profile("vllm").memory

    def token_bytes(layers):
        kinds = cache_kinds(replace(network, layers=layers), 1.0, 2.0, 2.0, rules.recurrent_format)
        return [float(kind.token_bytes) for kind in kinds if kind.kind == "full"]

    assert token_bytes(network.layers[-1:]) == []
    assert token_bytes((draft_layer(network),)) == token_bytes(network.layers)
    assert drafter(model, "h200", 8).caches
