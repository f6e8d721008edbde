"""Do networks with recurrent states hold what engines allocate, and start where vLLM printed their blocks? test_families.py has what was counted of each family."""

import json
import math
import re

import numpy as np
import pytest

from capplan.families.model_config import read_network
from capplan.memory.layer_groups import cache_kinds
from capplan.model.network import Attention
from capplan.model.parameters import active_parameters, parameters, weight_elements_by_class
from capplan.operators.linear_attention import LinearAttentionRates, gated_delta_decode_time_s
from capplan.readers.catalogue.models import read_model, shipped_config
from tests.families import network_of
from tests.files import written_to

JAMBA_LARGE, NEMOTRON_3 = "ai21labs/AI21-Jamba-1.5-Large", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B"


@pytest.mark.parametrize(
    ("model", "ranks", "columns", "recurrent", "element"),
    [
        (JAMBA_LARGE, 1, (3, 16384), (16384, 16), 2),
        (JAMBA_LARGE, 8, (3, 2048), (2048, 16), 2),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 2, (3, 4096), (16, 128, 128), 2),
        (NEMOTRON_3, 4, (3, 2560), (32, 64, 128), 4),
        (NEMOTRON_3, 16, (3, 768), (8, 64, 128), 4),
    ],
)
def test_engines_hold_the_tensors_that_vllm_allocates(model, ranks, columns, recurrent, element):
    """VLLM's mamba_utils.py, `MambaStateShapeCalculator`: `mamba1_state_shape`, `gated_delta_net_state_shape` and
    `mamba2_state_shape`, which gives every rank a group of its own where they outnumber the eight; columns in bf16.
    """
    kinds = cache_kinds(read_model(model, offline=True), float(ranks), 2.0)
    (size,) = [float(kind.state_bytes) for kind in kinds if kind.kind == "state"]
    assert size == 2 * math.prod(columns) + element * math.prod(recurrent)


def test_a_recurrent_step_moves_the_tensors_of_its_kernel_once():
    """Flash-linear-attention, `fused_recurrent_gated_delta_rule`: q, k [B, T, H, K]; v, o [B, T, HV, V]; a state [HV, K, V]
    is read once and written after every token. Gates, two numbers for a head and token, are left out.
    """
    batch, tokens, key_heads, value_heads, key_dim, value_dim = 3, 2, 4, 8, 16, 32
    queries = keys = np.zeros((batch, tokens, key_heads, key_dim), np.float16)
    values = outputs = np.zeros((batch, tokens, value_heads, value_dim), np.float16)
    state = np.zeros((batch, value_heads, key_dim, value_dim), np.float32)
    moved = sum(tensor.nbytes for tensor in (queries, keys, values, outputs)) + (1 + tokens) * state.nbytes
    # A device of one byte a second whose decode kernel reaches all of it and starts at once.
    rates = LinearAttentionRates(1e12, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    seconds = gated_delta_decode_time_s(
        float(batch),
        float(key_heads),
        float(value_heads),
        float(key_dim),
        float(value_dim),
        4.0,
        rates,
        float(tokens),
    )
    assert float(seconds) == moved


def test_shared_blocks_of_zamba_are_multiplied_in_every_hybrid_layer_and_held_once():
    network = network_of("Zamba2, one shared block")
    hybrids = [layer for layer in network.layers if any(isinstance(m, Attention) for m in layer.mixers)]
    held = [any(p.name == "qkv" and p.owns_weights for p in layer.projections) for layer in hybrids]
    assert held == [True] + [False] * 8
    assert active_parameters(network) > parameters(network)


def test_multi_token_prediction_is_counted_apart():
    name = "Nemotron-H, one layer of each kind"
    plain = network_of(name, hybrid_override_pattern="ME*E")
    network = network_of(
        name, hybrid_override_pattern="ME*E", num_nextn_predict_layers=1, mtp_hybrid_override_pattern="*E"
    )
    assert parameters(network) == parameters(plain)
    joining = 2 * 4096 * 4096 + 3 * 4096
    layers = plain.layers[1:3]
    assert network.mtp_parameters == joining + sum(_held(layer) for layer in layers)


def _held(layer):
    experts = layer.experts.parameters if layer.experts else 0
    return (
        sum(p.parameters for p in layer.projections)
        + experts
        + layer.norm_parameters
        + layer.state_parameters
    )


def test_kimi_k3_comes_near_the_published_2800_billion():
    """No reference implementation counts it; 2.8 trillion is the published total, and the shapes give 2.78."""
    config, name = shipped_config("moonshotai/Kimi-K3")
    network = read_network(config, name)
    assert parameters(network) == pytest.approx(2.8e12, rel=0.01)
    assert any("no reference implementation" in note for note in network.notes)


def test_nested_qwen_counts_text_and_tower_apart():
    config, name = shipped_config("Qwen/Qwen3.5-35B-A3B")
    elements = weight_elements_by_class(read_network(config, name))
    assert sum(elements.values()) - elements["vision"] == 34_660_610_688
    assert sum(elements.values()) == 35_107_181_936


WORDS = ("fit", "Qwen/Qwen3.6-27B", "--hardware", "h100", "--gpu-memory-utilization")
REFUSED = [
    (("0.95", "--weight-dtype", "fp8", "--engine-version", "0.21.0"), 856),
    (("0.92", "--max-model-len", "32768"), 348),
]
"""vllm-project/recipes, pull request 551; a launch of a Qwen3.5-27B in bf16 on an 80 GB device."""


@pytest.mark.parametrize(("words", "blocks"), REFUSED)
def test_more_sequences_than_state_blocks_do_not_start(capplan, words, blocks):
    result = capplan.result(*WORDS, *words, code=3)
    assert any("state blocks" in limit for limit in result["limits"])
    (flags,) = [row["change"] for row in result["changes"] if "--max-num-seqs" in row["change"]]
    most = int(flags.split()[-1])
    assert most == pytest.approx(blocks, rel=0.03)
    assert capplan(*WORDS, *words, *flags.split()).code == 0
    assert capplan(*WORDS, *words, "--max-num-seqs", str(most + 300)).code == 3


SCENARIO = """name: hyb
model: Qwen/Qwen3.6-27B
traffic:
  - {name: chat, request_rate: 6 req/s, input_tokens: {mean: 1500, p95: 4500}, output_tokens: {mean: 300, p95: 800}}
slo: {ttft_p95: 2 s, tpot_p95: 60 ms}
fleet: {hardware: [h100-sxm], tensor_parallel: 2, pipeline_parallel: 1}
"""
WAYS = (
    "fleet.disaggregation=off",
    "fleet.disaggregation=only",
    "speculation={method: ngram, acceptance: 0.6}",
)


@pytest.mark.parametrize("way", WAYS)
def test_every_exported_engine_of_a_hybrid_starts_with_its_sequences(tmp_path, capplan, way):
    """`fit`, which knows the refused starts, accepts the number that is exported; both pools state one, and drafts take states of their own."""
    scenario, plan = tmp_path / "hyb.yaml", tmp_path / "plan.json"
    scenario.write_text(SCENARIO)
    assert capplan("fleet", str(scenario), "--offline", "--set", way, "-o", str(plan)).code == 0
    exported = capplan("export", "--plan", str(plan), "--target", "vllm").out
    commands = exported.split("vllm serve")[1:]
    numbers = [int(found) for found in re.findall(r"--max-num-seqs (\d+)", exported)]
    assert len(numbers) == len(commands) >= (2 if "only" in way else 1)
    context = re.search(r"--max-model-len (\d+)", exported).group(1)
    given = ("fit", "Qwen/Qwen3.6-27B", "--hardware", "h100", "-tp", "2", "--max-model-len", context)
    for most in numbers:
        assert capplan(*given, "--max-num-seqs", str(most)).code == 0
    refused = capplan(*given, "--max-num-seqs", "1024", "--format", "json")
    if refused.code:
        (row,) = [
            row for row in json.loads(refused.out)["result"]["changes"] if "--max-num-seqs" in row["change"]
        ]
        blocks = int(row["change"].split()[-1])
        assert max(numbers) <= (0.6 * blocks if "ngram" in way else blocks)


def test_levers_of_a_hybrid_start_from_the_sequences_with_which_it_starts(tmp_path, capplan):
    scenario = written_to(tmp_path / "hyb.yaml", SCENARIO.replace("tensor_parallel: 2", "tensor_parallel: 1"))
    ran = capplan("levers", str(scenario), "--offline", "--lever", "max-num-seqs", "--format", "json")
    assert ran.code == 0, ran.err
    now = {int(found) for found in re.findall(r"max_num_seqs (\d+) ->", ran.out)}
    assert now
    assert max(now) <= 356


@pytest.mark.parametrize(("model", "said"), [("Qwen/Qwen3.6-27B", True), ("Qwen/Qwen3-32B", False)])
def test_fit_says_that_the_profile_run_of_an_image_encoder_is_counted_too_small(capplan, model, said):
    """Four of four logged starts of Qwen3.5 and Qwen3.6 had smaller caches than predicted."""
    ran = capplan("fit", model, "--hardware", "h200", "--format", "json")
    assert any("image encoder" in line for line in json.loads(ran.out)["warnings"]) is said
