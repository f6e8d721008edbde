"""The layers that are timed compute what they claim, and their prediction stands beside the measurement."""

from dataclasses import replace

import pytest
import torch

from capplan.calibrate.kernels.attention import (
    absorbed_attention,
    attention,
    expanded_attention,
    folded_attention,
)
from capplan.calibrate.kernels.matmul import routed_experts
from capplan.calibrate.layers import built, layer_bytes, refusal
from capplan.calibrate.verify import fitted_to_memory, verified
from capplan.errors import InputError
from capplan.model.network import Attention, Experts, LatentAttention, Layer, Network, Projection, StateSpace
from capplan.readers.calibration.measured_device import device_from_calibration, torch_efficiency


def plain_attention(query, key, value, causal):
    """Return softmax attention by its definition."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ value


@pytest.mark.parametrize(("tokens", "causal"), [(5, True), (1, False)])
def test_attention_with_grouped_heads_is_attention(tokens, causal):
    torch.manual_seed(1)
    query, key, value = torch.randn(2, 8, tokens, 16), torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16)
    found = attention(query, key, value, causal=causal)
    torch.testing.assert_close(found, plain_attention(query, key, value, causal), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("tokens", "causal"), [(5, True), (1, False)])
def test_groups_are_unfolded_for_the_backend_that_knows_none(tokens, causal, monkeypatch):
    from capplan.calibrate.kernels import attention as module

    monkeypatch.setattr(
        module,
        "_on_card",
        lambda q, k, v, *, causal, backend: plain_attention(q, k, v, causal) if backend else None,
    )
    torch.manual_seed(7)
    query, key, value = torch.randn(2, 8, tokens, 16), torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16)
    found = module._ungrouped(query, key, value, causal=causal)
    torch.testing.assert_close(found, plain_attention(query, key, value, causal), rtol=1e-4, atol=1e-5)


def test_absorbed_latent_attention_equals_the_expanded_one():
    torch.manual_seed(2)
    heads, rank, rope, nope, width, context = 4, 16, 8, 12, 10, 7
    latent, shared = torch.randn(context, rank), torch.randn(context, rope)
    expand_key, expand_value = torch.randn(heads, nope, rank), torch.randn(heads, rank, width)
    query = torch.randn(1, heads, nope + rope)
    key = torch.cat((torch.einsum("cr,hnr->hcn", latent, expand_key), shared.expand(heads, -1, -1)), -1)
    value = torch.einsum("cr,hrv->hcv", latent, expand_value)
    expected = plain_attention(
        query.transpose(0, 1)[None].reshape(1, heads, 1, -1), key[None], value[None], False
    )
    folded = torch.cat(
        (torch.bmm(query[..., :nope].transpose(0, 1), expand_key).transpose(0, 1), query[..., nope:]), -1
    )
    # the scale follows the width of the query that is given, so undo that of the absorbed one
    folded = folded * ((rank + rope) / (nope + rope)) ** 0.5
    found = torch.bmm(
        absorbed_attention(folded, torch.cat((latent, shared), -1)[None], rank).transpose(0, 1), expand_value
    )
    torch.testing.assert_close(found.reshape(-1), expected.reshape(-1), rtol=1e-3, atol=1e-4)


def test_latent_attention_in_one_kernel_equals_the_two_products():
    torch.manual_seed(6)
    query, cache = torch.randn(3, 4, 24), torch.randn(3, 11, 24)
    torch.testing.assert_close(
        folded_attention(query, cache, 16), absorbed_attention(query, cache, 16), rtol=1e-4, atol=1e-5
    )


def test_expanded_attention_allows_values_narrower_than_keys():
    torch.manual_seed(3)
    query, key, value = torch.randn(1, 2, 6, 12), torch.randn(1, 2, 6, 12), torch.randn(1, 2, 6, 8)
    found = expanded_attention(query, key, value)
    torch.testing.assert_close(found, plain_attention(query, key, value, True), rtol=1e-4, atol=1e-5)


def test_routed_experts_are_the_weighted_sum_of_the_chosen_ones():
    torch.manual_seed(4)
    tokens, scores = torch.randn(9, 8), torch.randn(9, 6)
    gate_up, down = torch.randn(6, 8, 20), torch.randn(6, 10, 8)
    expected = torch.zeros_like(tokens)
    for row, (weights, chosen) in enumerate(zip(*scores.topk(2), strict=True)):
        for weight, expert in zip(weights.softmax(0), chosen, strict=True):
            gate, up = (tokens[row] @ gate_up[expert]).chunk(2)
            expected[row] += weight * (torch.nn.functional.silu(gate) * up @ down[expert])
    torch.testing.assert_close(
        routed_experts(tokens, scores, gate_up, down, 2), expected, rtol=1e-4, atol=1e-4
    )


def dense(hidden=256, heads=4, kv_heads=2, width=64):
    return Layer(
        mixers=(Attention(heads, kv_heads, width, width),),
        projections=(
            Projection("qkv", "attention", hidden, (heads + 2 * kv_heads) * width, "columns"),
            Projection("o", "attention", heads * width, hidden, "rows"),
            Projection("gate_up", "ffn", hidden, 4 * hidden, "columns"),
            Projection("down", "ffn", 2 * hidden, hidden, "rows"),
        ),
    )


def sparse(hidden=256, experts=8):
    keep = dense(hidden).projections[:2]
    shared = (
        Projection("router", "router", hidden, experts, "none"),
        Projection("shared_gate_up", "shared_expert", hidden, 256, "columns"),
        Projection("shared_down", "shared_expert", 128, hidden, "rows"),
    )
    return replace(dense(hidden), projections=(*keep, *shared), experts=Experts(experts, 2, hidden, 128))


def latent(hidden=256, heads=4):
    rank, rope, nope, value = 64, 16, 32, 32
    return Layer(
        mixers=(LatentAttention(heads, rank, rope, nope, value),),
        projections=(
            Projection("q_a", "attention", hidden, 96, "none", weight_format="fp8"),
            Projection("q_b", "attention", 96, heads * (nope + rope), "columns"),
            Projection("kv_a", "attention", hidden, rank + rope, "none"),
            Projection("kv_b", "attention", rank, heads * (nope + value), "columns"),
            Projection("o", "attention", heads * value, hidden, "rows"),
            Projection("up", "ffn", hidden, 2 * hidden, "columns"),
            Projection("down", "ffn", 2 * hidden, hidden, "rows"),
        ),
    )


def network(*layers, hidden=256):
    return Network(
        "tiny",
        "tiny",
        hidden,
        1000,
        layers,
        Projection("lm_head", "lm_head", hidden, 1000, "columns"),
        True,
        0,
    )


@pytest.mark.parametrize("layer", [dense(), sparse(), latent()], ids=["dense", "experts", "mla"])
def test_a_layer_keeps_the_shape_of_the_residual_and_stays_finite(layer):
    real = built(layer, torch.device("cpu"))
    with torch.inference_mode():
        prefilled = real.prefill(torch.randn(12, 256).bfloat16(), sequences=3)
        decoded = real.decode(torch.randn(3, 256).bfloat16(), real.caches(3, 20, torch.device("cpu")))
    assert (prefilled.shape, decoded.shape) == ((12, 256), (3, 256))
    assert prefilled.isfinite().all()
    assert decoded.isfinite().all()


@pytest.mark.long
def test_dense_and_moe_gqa_and_mla_are_measured_beside_their_prediction(written, target):
    own = device_from_calibration(written)
    efficiency = torch_efficiency(written, own)
    proofs = verified(network(dense(), sparse(), latent()), target, own, efficiency, quick=True)
    assert {(p["layer"], p["phase"]) for p in proofs} == {
        (layer, phase)
        for layer in ("1: attention, dense", "2: attention, 8 experts", "3: mla, dense")
        for phase in ("prefill", "decode")
    }
    assert all(p["measured_s"] > 0 and p["predicted_s"] > 0 for p in proofs)


def test_a_layer_that_torch_cannot_run_is_left_out_and_said(written, target):
    state = replace(dense(), mixers=(StateSpace(2, 512, 8, 64, 16, 1, 544, 4),))
    assert "StateSpace" in refusal(state)
    own = device_from_calibration(written)
    efficiency = torch_efficiency(written, own)
    with pytest.raises(InputError, match="none of its layers can be built"):
        verified(network(state), target, own, efficiency, quick=True)


def test_experts_are_dropped_until_a_layer_fits_and_the_prediction_follows(target):
    lines = []
    layer = sparse(experts=64)
    little = replace(target, free_bytes=layer_bytes(layer) / 0.6)
    smaller = fitted_to_memory(layer, little, lines.append)
    assert smaller.experts.experts < 64
    assert next(p for p in smaller.projections if p.name == "router").outputs == smaller.experts.experts
    assert "of 64 experts" in lines[0]
    with pytest.raises(InputError, match="verify a smaller model"):
        fitted_to_memory(dense(), replace(target, free_bytes=1e4), lines.append)
