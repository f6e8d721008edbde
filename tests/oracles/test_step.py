"""Step 3 and Step3-VL against their cards and the classes of vLLM 0.33 (step3_text.py, step3_vl.py, step_vl.py)."""

import pytest

from capplan.model.kv_cache import kv_bytes_per_token
from capplan.model.parameters import active_parameters, parameters
from tests.families import network_of


def test_step_3_has_the_published_parameters():
    """321 billion, 38 of them active, 316 of text: https://huggingface.co/stepfun-ai/step3."""
    network = network_of("Step3")
    assert [round(count / 1e9) for count in (parameters(network), active_parameters(network))] == [321, 38]
    assert round((parameters(network) - network.vision_parameters) / 1e9) == 316
    assert network.notes == ()
    assert network.max_context_tokens == 65536


def test_every_layer_of_step_3_caches_one_key_and_one_value_of_256_whatever_the_ranks():
    """`Step3TextAttention`: `num_kv_heads` must be 1, and qkv_proj is replicated."""
    network = network_of("Step3")
    assert [float(kv_bytes_per_token(network, 1.0, 2.0, tensor)) for tensor in (1.0, 8.0)] == [
        61 * 2 * 256 * 2
    ] * 2


def test_queries_of_step_3_have_a_low_rank():
    """7,168 to 2,048 on every rank, a norm, then 64 heads of 256."""
    layer = network_of("Step3").layers[0]
    of_name = {matrix.name: matrix for matrix in layer.projections}
    assert (of_name["q_a"].outputs, of_name["q_a"].split) == (2048, "none")
    assert (of_name["kv"].outputs, of_name["kv"].split) == (512, "none")
    assert (of_name["q_b"].inputs, of_name["q_b"].outputs) == (2048, 64 * 256)
    assert layer.norm_parameters == 2 * 7168 + 2048


def test_step3_vl_is_a_qwen_3_with_the_tower_of_step_3_7():
    """10.17 billion parameters in bf16: 20.3 GB of weights, https://huggingface.co/stepfun-ai/Step3-VL-10B."""
    network = network_of("Step3-VL-10B")
    assert 2 * parameters(network) == pytest.approx(20.3e9, rel=0.003)
    assert parameters(network) - network.vision_parameters == 8_190_735_360
    assert not any("not read" in note for note in network.notes)
