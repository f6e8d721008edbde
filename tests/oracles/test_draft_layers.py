"""Does a draft of the model's own prediction layers take the memory that the checkpoint and the cache of one attention layer need?

The weights are those of `model.layers.N` beyond the last layer (deepseek_mtp.py, nemotron_h_mtp.py, qwen3_5_mtp.py of vLLM 0.23): a whole
decoder layer, `eh_proj` of 2 h x h, and its norms.
"""

from dataclasses import replace

import pytest

from capplan.engine.lookup import profile
from capplan.memory.layer_groups import cache_kinds
from capplan.model.parameters import draft_layer, draft_layers_per_layer
from capplan.readers.catalogue.models import read_model, shipped_config
from capplan.replica.speculation import DraftPlan, draft_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica


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
