"""Laws of the operators: never below the physical floor, monotone, and the same for arrays and scalars."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.numbers import stacked
from capplan.operators import attention, collective, experts, latent_attention, linear_attention, matmul
from capplan.operators.attention import bidirectional_attention_time_s, bidirectional_pairs
from capplan.operators.device_rates import device_rates
from capplan.operators.matmul import elementwise_time_s
from capplan.operators.roofline import soft_maximum
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device

NAMES = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "gb200", "l40s")
ENGINES = ("vllm", "sglang", "trtllm")
FORMATS = ("bf16", "fp8", "fp8_block", "w4a16-g128", "nvfp4", "mxfp4", "int8")
BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "w4a16-g128": 0.515625,
    "nvfp4": 0.5625,
    "mxfp4": 0.53125,
    "int8": 1.0,
}
FEW = settings(max_examples=60, deadline=None)


def rates_of(name, fmt="bf16", kv="bf16", engine="vllm"):
    entry = device(name)
    return device_rates(entry, efficiency_for(entry), weight_format=fmt, kv_format=kv, engine=engine)


places = st.tuples(st.sampled_from(NAMES), st.sampled_from(FORMATS), st.sampled_from(ENGINES))
sizes = st.integers(6, 15).map(lambda power: float(2**power))
counts = st.integers(1, 20000).map(float)


@FEW
@given(places, counts, sizes, sizes)
def test_a_matmul_is_never_below_its_floor_nor_faster_with_more_rows(place, rows, inputs, outputs):
    name, fmt, engine = place
    rates = rates_of(name, fmt, engine=engine).matmul
    shape = (inputs, outputs, BYTES[fmt], 1.0)
    time = matmul.matmul_time_s(rows, *shape, rates)
    assert time >= matmul.matmul_bytes(rows, *shape) / rates.bytes_per_s
    assert time >= matmul.matmul_flop(rows, inputs, outputs) / rates.flop_per_s
    assert matmul.matmul_time_s(rows + 17.0, *shape, rates) >= time * (1 - 1e-12)
    assert matmul.matmul_time_s(rows, 2 * inputs, *shape[1:], rates) >= time * (1 - 1e-12)
    assert matmul.matmul_time_s(rows, inputs, 2 * outputs, *shape[2:], rates) >= time * (1 - 1e-12)


@FEW
@given(places, counts, sizes, sizes, st.floats(1.0, 4.0))
def test_more_bandwidth_or_peak_never_slows_a_matmul(place, rows, inputs, outputs, factor):
    name, fmt, engine = place
    rates = rates_of(name, fmt, engine=engine).matmul
    shape = (rows, inputs, outputs, BYTES[fmt], 1.0)
    time = matmul.matmul_time_s(*shape, rates) * (1 + 1e-12)
    assert matmul.matmul_time_s(*shape, replace(rates, bytes_per_s=rates.bytes_per_s * factor)) <= time
    assert matmul.matmul_time_s(*shape, replace(rates, flop_per_s=rates.flop_per_s * factor)) <= time
    assert matmul.matmul_time_s(rows, inputs, outputs, BYTES[fmt] / factor, 1.0, rates) <= time


attention_shapes = st.tuples(
    st.integers(1, 64).map(float), st.integers(1, 8000).map(float), st.integers(0, 30000).map(float),
    st.sampled_from([1.0, 4.0, 8.0, 64.0]), st.sampled_from([1.0, 2.0, 8.0]), st.sampled_from([64.0, 128.0, 256.0]),
    st.sampled_from([128.0, 4096.0, np.inf]),
)  # fmt: skip


@FEW
@given(places, st.sampled_from(["bf16", "fp8"]), attention_shapes)
def test_prefill_attention_is_never_below_its_floor_and_grows_with_the_prompt(place, kv, shape):
    name, _, engine = place
    sequences, new, past, group, kv_heads, dim, window = shape
    rates = rates_of(name, kv=kv, engine=engine).attention
    heads, size = group * kv_heads, 1.0 if kv == "fp8" else 2.0

    def time_of(new_tokens, past_tokens):
        return attention.prefill_attention_time_s(
            sequences, new_tokens, past_tokens, heads, kv_heads, dim, dim, window, size, rates
        )

    time = time_of(new, past)
    flop = attention.prefill_attention_flop(sequences, new, past, heads, dim, dim, window)
    moved = attention.prefill_attention_bytes(sequences, new, past, heads, kv_heads, dim, dim, window, size)
    assert time >= flop / rates.flop_per_s
    assert time >= moved / rates.bytes_per_s
    assert time_of(new + 13.0, past) >= time * (1 - 1e-9)
    assert time_of(new, past + 100.0) >= time * (1 - 1e-9)


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


@FEW
@given(places, st.sampled_from(["bf16", "fp8"]), attention_shapes)
def test_decode_attention_is_never_below_its_floor_and_grows_with_the_context(place, kv, shape):
    name, _, engine = place
    sequences, context, _, group, kv_heads, dim, window = shape
    rates = rates_of(name, kv=kv, engine=engine).attention
    heads, size = group * kv_heads, 1.0 if kv == "fp8" else 2.0

    def time_of(sequences, context, query_tokens=1.0):
        return attention.decode_attention_time_s(
            sequences, context, heads, kv_heads, dim, dim, window, size, rates, query_tokens
        )

    time = time_of(sequences, context)
    moved = attention.decode_attention_bytes(sequences, context, heads, kv_heads, dim, dim, window, size)
    assert time >= moved / rates.bytes_per_s
    assert (
        time
        >= attention.decode_attention_flop(sequences, context, heads, dim, dim, window) / rates.flop_per_s
    )
    assert time_of(sequences + 1.0, context) >= time * (1 - 1e-9)
    assert time_of(sequences, context + 64.0) >= time * (1 - 1e-9)
    assert time_of(sequences, context, 4.0) >= time * (1 - 1e-9)
    assert time_of(sequences, context, 4.0) <= 4.0 * time


@FEW
@given(
    places,
    st.integers(1, 256).map(float),
    st.integers(1, 60000).map(float),
    st.sampled_from([1.0, 8.0, 128.0]),
)
def test_latent_attention_is_never_below_its_floor_and_a_sparse_one_is_never_slower(
    place, sequences, context, heads
):
    name, _, engine = place
    rates = rates_of(name, engine=engine).latent_attention
    dims = (heads, 512.0, 64.0, 128.0, 128.0, 2.0)
    time = latent_attention.mla_decode_time_s(sequences, context, *dims, rates)
    moved = latent_attention.mla_decode_bytes(sequences, context, heads, 512.0, 64.0, 2.0)
    assert time >= moved / rates.bytes_per_s
    assert time >= latent_attention.mla_decode_flop(sequences, context, heads, 512.0, 64.0) / rates.flop_per_s
    chosen = min(context, 2048.0)
    assert latent_attention.mla_decode_time_s(sequences, chosen, *dims, rates) <= time * (1 + 1e-12)
    prefill = latent_attention.mla_prefill_time_s(1.0, context, 0.0, *dims, rates)
    flop = latent_attention.mla_prefill_flop(1.0, context, 0.0, heads, 64.0 + 128.0 + 128.0)
    assert prefill >= flop / rates.flop_per_s


@FEW
@given(
    places,
    counts,
    st.sampled_from([8.0, 64.0, 256.0]),
    st.sampled_from([1.0, 2.0, 8.0]),
    st.sampled_from([1.0, 4.0, 8.0]),
)
def test_experts_are_never_below_their_floor_and_never_faster_with_more_tokens(
    place, tokens, number, chosen, ranks
):
    name, fmt, engine = place
    entry = rates_of(name, fmt, engine=engine)
    rates, size, read = entry.experts, BYTES[fmt], entry.expert_activation_bytes

    def time_of(tokens):
        shape = (tokens, number, number / ranks, chosen, 2048.0, 1024.0, 1.0, size, read)
        return experts.experts_time_s(*shape, rates)

    time = time_of(tokens)
    flop = experts.experts_flop(tokens, number, number / ranks, chosen, 2048.0, 1024.0, 1.0)
    weights = (
        experts.experts_hit(tokens, number, chosen, rates.router_skew) / ranks * 3.0 * 2048.0 * 1024.0 * size
    )
    assert time >= flop / rates.flop_per_s
    assert time >= weights / rates.bytes_per_s * (1 - 1e-9)
    assert time_of(tokens + 7.0) >= time * (1 - 1e-9)


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


@FEW
@given(st.sampled_from(NAMES), st.sampled_from(ENGINES), st.integers(2, 16).map(float), st.floats(256.0, 1e9))
def test_collectives_are_free_for_one_rank_and_grow_with_the_message(name, engine, ranks, message):
    rates = rates_of(name, engine=engine).link
    for time_of in (
        collective.all_reduce_time_s, collective.all_gather_time_s, collective.reduce_scatter_time_s,
        collective.all_to_all_time_s,
    ):  # fmt: skip
        assert time_of(1.0, message, rates) == 0.0
        assert time_of(ranks, 2.0 * message, rates) >= time_of(ranks, message, rates)
        faster = replace(
            rates,
            link_bytes_per_s=2 * rates.link_bytes_per_s,
            network_bytes_per_s=2 * rates.network_bytes_per_s,
        )
        assert time_of(ranks, message, faster) <= time_of(ranks, message, rates)


@FEW
@given(st.sampled_from(NAMES), st.floats(256.0, 1e9))
def test_crossing_the_network_is_never_faster_than_staying_in_the_link_domain(name, message):
    rates = rates_of(name).link
    wide = replace(rates, domain_devices=np.inf)
    ranks = rates.domain_devices + 8.0
    assert collective.all_reduce_time_s(ranks, message, rates) >= collective.all_reduce_time_s(
        ranks, message, wide
    )


@FEW
@given(
    st.sampled_from(NAMES),
    st.sampled_from(ENGINES),
    st.integers(1, 512).map(float),
    st.integers(1, 16000).map(float),
)
def test_recurrent_mixers_read_and_write_their_state_and_grow_with_the_prompt(
    name, engine, sequences, tokens
):
    rates = rates_of(name, engine=engine).linear_attention
    decode = linear_attention.gated_delta_decode_time_s(sequences, 16.0, 32.0, 128.0, 128.0, 4.0, rates)
    assert decode >= 2.0 * sequences * 32.0 * 128.0 * 128.0 * 4.0 / rates.bytes_per_s
    prefill = linear_attention.gated_delta_prefill_time_s(
        sequences, tokens, 16.0, 32.0, 128.0, 128.0, 4.0, rates
    )
    more = linear_attention.gated_delta_prefill_time_s(
        sequences, tokens + 64.0, 16.0, 32.0, 128.0, 128.0, 4.0, rates
    )
    assert more >= prefill
    mamba = linear_attention.state_space_prefill_time_s(
        sequences, tokens, 128.0, 64.0, 128.0, 8.0, 256.0, 4.0, rates
    )
    assert (
        linear_attention.state_space_prefill_time_s(
            sequences, tokens + 64.0, 128.0, 64.0, 128.0, 8.0, 256.0, 4.0, rates
        )
        >= mamba
    )
    step = linear_attention.state_space_decode_time_s(sequences, 8192.0, 128.0, 8.0, 4.0, rates)
    assert step >= 2.0 * sequences * 8192.0 * 128.0 * 4.0 / rates.bytes_per_s
    convolution = linear_attention.short_convolution_time_s(sequences, tokens, 8192.0, 4.0, rates)
    assert linear_attention.short_convolution_time_s(
        sequences, tokens + 1.0, 8192.0, 4.0, rates
    ) >= convolution * (1 - 1e-9)


@FEW
@given(st.sampled_from(NAMES), st.floats(0.0, 1e9))
def test_moving_bytes_takes_at_least_their_time_at_the_datasheets_rate(name, elements):
    rates = rates_of(name).elementwise
    assert elementwise_time_s(elements, rates) >= elements / rates.bytes_per_s


@given(st.floats(0.0, 1e3), st.floats(0.0, 1e3), st.floats(1.0, 16.0))
def test_a_soft_maximum_lies_between_maximum_and_sum(first, second, sharpness):
    value = soft_maximum(first, second, sharpness)
    assert max(first, second) * (1 - 1e-12) <= value <= (first + second) * (1 + 1e-12)


def test_arrays_of_plans_on_several_devices_agree_with_scalars():
    own = [rates_of(name, "fp8", engine=engine) for name in NAMES for engine in ENGINES]
    index = np.arange(len(own))
    rows, inputs, outputs = np.linspace(1.0, 5000.0, len(own)), 4096.0, 6144.0
    together = matmul.matmul_time_s(rows, inputs, outputs, 1.0, 1.0, stacked([r.matmul for r in own], index))
    apart = [
        matmul.matmul_time_s(m, inputs, outputs, 1.0, 1.0, r.matmul) for m, r in zip(rows, own, strict=True)
    ]
    np.testing.assert_allclose(together, apart, rtol=1e-12)
    shape = (rows, 128.0, 16.0, 8.0, 2048.0, 768.0, 1.0, 1.0, 1.0)
    together = experts.experts_time_s(*shape, stacked([r.experts for r in own], index))
    apart = [experts.experts_time_s(m, *shape[1:], r.experts) for m, r in zip(rows, own, strict=True)]
    np.testing.assert_allclose(together, apart, rtol=1e-12)
    together = collective.all_reduce_time_s(4.0, rows * 1e4, stacked([r.link for r in own], index))
    apart = [collective.all_reduce_time_s(4.0, m * 1e4, r.link) for m, r in zip(rows, own, strict=True)]
    np.testing.assert_allclose(together, apart, rtol=1e-12)


def test_every_field_of_a_rates_record_is_a_number():
    for record in fields(own := rates_of("h100-sxm")):
        value = getattr(own, record.name)
        if hasattr(value, "__dataclass_fields__"):
            assert all(isinstance(getattr(value, f.name), (int, float)) for f in fields(value)), record.name
