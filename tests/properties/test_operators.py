"""Laws of the operators: never below the physical floor, monotone, and the same for arrays and scalars."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.operators import attention, experts
from capplan.operators.attention import bidirectional_attention_time_s, bidirectional_pairs
from capplan.operators.device_rates import device_rates
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device

NAMES = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "gb200", "l40s")
ENGINES = ("vllm", "sglang", "trtllm")
FORMATS = ("bf16", "fp8", "fp8_block", "w4a16-g128", "nvfp4", "mxfp4", "int8")
FEW = settings(max_examples=60, deadline=None)


def rates_of(name, fmt="bf16", kv="bf16", engine="vllm"):
    entry = device(name)
    return device_rates(entry, efficiency_for(entry), weight_format=fmt, kv_format=kv, engine=engine)


places = st.tuples(st.sampled_from(NAMES), st.sampled_from(FORMATS), st.sampled_from(ENGINES))
counts = st.integers(1, 20000).map(float)


attention_shapes = st.tuples(
    st.integers(1, 64).map(float), st.integers(1, 8000).map(float), st.integers(0, 30000).map(float),
    st.sampled_from([1.0, 4.0, 8.0, 64.0]), st.sampled_from([1.0, 2.0, 8.0]), st.sampled_from([64.0, 128.0, 256.0]),
    st.sampled_from([128.0, 4096.0, np.inf]),
)  # fmt: skip


@FEW
@given(places, attention_shapes)
def test_attention_to_both_sides_takes_longer_than_to_one_and_no_longer_with_a_window(place, shape):
    """A causal prompt with the same reach on one side computes half of the pairs, and those on the diagonal."""
    name, _, engine = place
    sequences, new, _, group, kv_heads, dim, window = shape
    rates = rates_of(name, engine=engine).attention
    heads = group * kv_heads

    def time_of(tokens, window_tokens):
        return bidirectional_attention_time_s(
            sequences, tokens, heads, kv_heads, dim, dim, window_tokens, rates
        )

    time = time_of(new, window)
    assert time >= 4.0 * sequences * heads * dim * bidirectional_pairs(new, window) / rates.flop_per_s
    assert time >= sequences * 4.0 * new * dim * (heads + kv_heads) / rates.bytes_per_s
    assert time_of(new + 13.0, window) >= time * (1 - 1e-9)
    causal = attention.prefill_attention_time_s(
        sequences, new, 0.0, heads, kv_heads, dim, dim, np.inf, 2.0, rates
    )
    assert time_of(new, np.inf) >= causal * (1 - 1e-9)


@given(counts, st.sampled_from([8.0, 128.0, 384.0]), st.sampled_from([1.0, 2.0, 8.0]), st.floats(-1.0, 4.0))
def test_experts_hit_lie_between_the_chosen_and_all_and_grow(tokens, number, chosen, skew):
    hit = experts.experts_hit(tokens, number, chosen, skew)
    assert chosen * (1 - 1e-9) <= hit <= min(number, tokens * chosen) * (1 + 1e-9)
    assert experts.experts_hit(tokens + 1.0, number, chosen, skew) >= hit * (1 - 1e-12)
    assert experts.experts_hit(tokens, number, chosen, skew + 0.5) <= hit * (1 + 1e-9)


@given(st.sampled_from([8.0, 64.0]), st.sampled_from([1.0, 2.0, 6.0]), st.integers(1, 400).map(float))
def test_a_uniform_router_hits_what_independent_draws_hit(number, chosen, tokens):
    expected = number * (1.0 - (1.0 - chosen / number) ** tokens)
    assert experts.experts_hit(tokens, number, chosen) == pytest.approx(expected, rel=1e-3)
