"""Which laws hold for the memory of any plan?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.lookup import ENGINES
from capplan.memory.launch import engine_launch
from capplan.memory.plan import memory_plan
from capplan.model.network import (
    Attention,
    Experts,
    LatentAttention,
    Layer,
    LinearAttention,
    Network,
    Projection,
)
from capplan.model.sharding import Sharding

GIB = 2.0**30
PROFILES = [profile for known in ENGINES.values() for profile in known]
HEAD = Projection("lm_head", "lm_head", 1024, 32000, "columns")


def layer_of(mixer, experts=None):
    projections = (
        Projection("qkv", "attention", 1024, 2048, "columns", kv_outputs=1024, kv_heads=8),
        Projection("o", "attention", 1024, 1024, "rows"),
        Projection("gate_up", "ffn", 1024, 8192, "columns"),
        Projection("down", "ffn", 4096, 1024, "rows"),
    )
    return Layer((mixer,), projections, experts, norm_parameters=2048)


FULL = Attention(8, 8, 64, 64)
SLIDING = Attention(8, 8, 64, 64, window_tokens=512)
LATENT = LatentAttention(8, 256, 64, 64, 64)
STATE = LinearAttention("gated_delta", 8, 16, 64, 64, conv_channels=2048, conv_kernel=4, state_elements=65536)
LAYERS = st.sampled_from([
    (layer_of(FULL),) * 8,
    (layer_of(SLIDING),) * 8,
    (layer_of(SLIDING),) * 5 + (layer_of(FULL),) * 3,
    (layer_of(LATENT, Experts(16, 2, 1024, 512)),) * 8,
    (layer_of(STATE),) * 6 + (layer_of(FULL),) * 2,
    (layer_of(STATE),) * 8,
])  # fmt: skip


def network_of(layers):
    return Network("n", "t", 1024, 32000, layers, HEAD, False, 1024 * 32000, max_context_tokens=8192)


def plan_of(
    network, profile, *, tensor=1.0, pipeline=1.0, memory=24 * GIB, kv=2.0, context=4096.0, fraction=0.8
):
    return memory_plan(
        network,
        engine_launch(
            profile, Sharding(tensor=tensor, pipeline=pipeline), memory, kv, context, 64.0, 2048.0, fraction
        ),
        profile,
    )


@settings(max_examples=60, deadline=None)
@given(LAYERS, st.sampled_from(PROFILES), st.floats(64.0, 8192.0), st.floats(1.0, 4.0))
def test_longer_sequences_never_fit_more_often(layers, profile, context, factor):
    plan = plan_of(network_of(layers), profile, context=np.round(np.array([context, context * factor])))
    assert plan.max_concurrency[0] >= plan.max_concurrency[1] * (1 - 1e-12)
    assert plan.reserved_bytes_per_sequence[0] <= plan.reserved_bytes_per_sequence[1]


@settings(max_examples=60, deadline=None)
@given(
    LAYERS,
    st.sampled_from(PROFILES),
    st.lists(st.tuples(st.sampled_from([1.0, 2.0, 4.0]), st.sampled_from([1.0, 2.0, 4.0]), st.sampled_from([1.0, 2.0]),
                       st.floats(2.0, 100.0)), min_size=1, max_size=6),
)  # fmt: skip
def test_arrays_and_scalars_agree(layers, profile, points):
    network = network_of(layers)
    tensor, pipeline, kv, gib = (np.array(column) for column in zip(*points, strict=True))
    together = plan_of(network, profile, tensor=tensor, pipeline=pipeline, kv=kv, memory=gib * GIB)
    for i, (t, p, k, g) in enumerate(points):
        alone = plan_of(network, profile, tensor=t, pipeline=p, kv=k, memory=g * GIB)
        for name in (
            "weight_bytes",
            "kv_bytes_available",
            "kv_cache_tokens",
            "max_concurrency",
            "headroom_bytes",
        ):
            assert getattr(together, name)[i] == pytest.approx(getattr(alone, name), rel=1e-12), name
        assert together.limit_codes[i] == int(alone.limit_codes)


@settings(max_examples=60, deadline=None)
@given(
    LAYERS, st.sampled_from([p for p in PROFILES if p.memory.budget == "utilisation"]), st.floats(8.0, 200.0)
)
def test_parts_of_the_budget_sum_to_what_may_be_used(layers, profile, gib):
    plan = plan_of(network_of(layers), profile, memory=gib * GIB, fraction=0.9)
    graphs = profile.memory.budgeted_graph_fraction * plan.cuda_graph_bytes
    parts = (
        plan.weight_bytes + plan.activation_bytes + plan.non_torch_bytes + graphs + plan.kv_bytes_available
    )
    assert parts == pytest.approx(0.9 * gib * GIB)
    assert plan.usable_bytes == pytest.approx(0.9 * gib * GIB)


@settings(max_examples=60, deadline=None)
@given(LAYERS, st.sampled_from(PROFILES), st.floats(1.0, 60.0))
def test_a_plan_fits_or_says_why_not(layers, profile, gib):
    plan = plan_of(network_of(layers), profile, memory=gib * GIB)
    assert bool(plan.fits) == (plan.limits == ())
    assert plan.kv_cache_tokens >= 0
    assert not np.isnan(plan.max_concurrency)
