"""Laws of the operators: never below the physical floor, monotone, and demand as it is counted by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.accuracy.kernels import rank_load
from capplan.operators import attention, experts
from capplan.operators.attention import (
    bidirectional_attention_time_s,
    bidirectional_pairs,
    chunk_keys,
    chunk_pairs,
    prefill_attention_bytes,
    prefill_attention_flop,
)
from capplan.operators.device_rates import LEAST_FLOOR_S, device_rates
from capplan.operators.experts import (
    EXPERT_TILES,
    ExpertLoads,
    ExpertRates,
    experts_time_s,
    grouped_experts_time_s,
)
from capplan.operators.latent_attention import (
    mla_decode_bytes,
    mla_decode_flop,
    mla_prefill_bytes,
    mla_prefill_flop,
)
from capplan.operators.linear_attention import gated_delta_prefill_flop, state_space_prefill_flop
from capplan.operators.roofline import TiledKernelRates, TiledProduct, tiled_time_s, waves
from capplan.phases.cost import OperatorCost, floor_s, unsaved_s
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


SEQUENCES, NEW, PAST, HEADS, KV, WIDTH, VALUE = 2, 100, 50, 12, 3, 16, 8
AT = (2.0, 100.0, 50.0)


def near(value):
    return pytest.approx(value, rel=1e-12)


def keys_in_chunk(query, chunk):
    """Return the keys that a query at a position, from 0, sees: `chunked_overlay` of transformers and the causal mask."""
    return sum(key <= query and key // chunk == query // chunk for key in range(query + 1))


@given(st.integers(0, 90), st.integers(0, 90), st.integers(1, 40))
def test_a_query_sees_the_chunk_that_it_is_in(new, past, chunk):
    pairs = sum(keys_in_chunk(past + i, chunk) for i in range(new))
    assert chunk_pairs(float(new), float(past), float(chunk)) == pairs
    assert chunk_keys(1.0, past + 1.0, float(chunk)) == keys_in_chunk(past, chunk)
    at = (2.0, float(new), float(past))
    flop = prefill_attention_flop(*at, 12.0, 16.0, 8.0, np.inf, float(chunk))
    assert flop == near(2 * SEQUENCES * HEADS * (WIDTH + VALUE) * pairs)
    read = past + new - past // chunk * chunk  # from the start of the chunk that the first query is in
    moved = SEQUENCES * (2 * new * HEADS + read * KV * 1.5) * (WIDTH + VALUE)
    assert prefill_attention_bytes(*at, 12.0, 3.0, 16.0, 8.0, np.inf, 1.5, float(chunk)) == near(moved)


@given(st.integers(1, 40), st.integers(1, 5), st.integers(2, 64))
def test_contexts_of_a_batch_beyond_the_first_chunk_are_spread_over_one(chunk, chunks, sequences):
    within = np.arange(1, chunk + 1)
    assert chunk_keys(float(sequences), within, float(chunk)).tolist() == within.tolist()
    mean = np.mean([keys_in_chunk(chunks * chunk + i, chunk) for i in range(chunk)])
    assert chunk_keys(float(sequences), chunks * chunk + 1.0, float(chunk)) == near(mean)


def test_latent_attention():
    """DeepSeek-V2, arXiv:2405.04434, section 2.1: expanded in prefill, absorbed in decode."""
    width = 16 + 4 + 8  # of a key without and with its rotary part, and of a value
    pairs = sum(PAST + i for i in range(1, NEW + 1))
    assert mla_prefill_flop(*AT, 12.0, float(width)) == near(2 * SEQUENCES * HEADS * width * pairs)
    # Queries and outputs of new tokens, keys and values of these and of the cached ones, in two bytes.
    query, output, key, value = 20 * NEW, 8 * NEW, 20 * (NEW + PAST), 8 * (NEW + PAST)
    moved = 2 * SEQUENCES * HEADS * (query + output + key + value)
    assert mla_prefill_bytes(*AT, 12.0, float(width)) == near(moved)
    scores, values = HEADS * (32 + 4) * 70, HEADS * 32 * 70
    assert mla_decode_flop(2.0, 70.0, 12.0, 32.0, 4.0, 5.0) == near(2 * SEQUENCES * 5 * (scores + values))
    cache, queries, outputs = 70 * (32 + 4) * 1.5, 2 * 5 * HEADS * (32 + 4), 2 * 5 * HEADS * 32
    assert mla_decode_bytes(2.0, 70.0, 12.0, 32.0, 4.0, 1.5, 5.0) == near(
        SEQUENCES * (cache + queries + outputs)
    )


def products_flop(shapes):
    """Return the FLOP of products of (rows, inner, columns)."""
    return sum(2 * rows * inner * columns for rows, inner, columns in shapes)


@pytest.mark.parametrize(("new", "chunk"), [(512, 256), (64, 256), (512, 128)])
def test_a_mamba_2_scan_is_four_products_a_chunk(new, chunk):
    """Listing 1 of arXiv:2405.21060, block by block: einsums of C B^T, of that with X, of states, of states with C."""
    heads, width, state, groups, tokens = 12, 16, 24, 3, min(new, chunk)
    of_group = [(tokens, state, tokens)]
    of_head = [(tokens, tokens, width), (state, tokens, width), (tokens, state, width)]
    each = groups * products_flop(of_group) + heads * products_flop(of_head)
    shape = (12.0, 16.0, 24.0, 3.0, float(chunk))
    assert state_space_prefill_flop(2.0, float(new), *shape) == near(SEQUENCES * new / tokens * each)


def test_a_chunk_of_the_gated_delta_rule_builds_its_wy_form():
    """Equations of arXiv:2412.06464, section 3.3, as products of (rows, inner, columns); T by forward substitution."""
    chunk, key, value = 64, 16, 8
    scores, w, u = (chunk, key, chunk), (chunk, chunk, key), (chunk, chunk, value)  # K K^T; T K; T V
    seen, corrected = (chunk, key, value), (chunk, key, value)  # Q S; W S
    inside, update = [(chunk, key, chunk), (chunk, chunk, value)], (key, chunk, value)
    # Column j of the inverse takes row i > j the multiply-adds between them.
    inverse = 2 * sum(i - j for i in range(chunk) for j in range(i))
    each = HEADS * (products_flop([scores, w, u, seen, corrected, *inside, update]) + inverse)
    found = gated_delta_prefill_flop(2.0, 640.0, 12.0, 16.0, 8.0, 64.0)
    assert found == pytest.approx(SEQUENCES * 10 * each, rel=1e-4)
    # Lightning attention adds keys and values to its state as they are: arXiv:2401.04658, algorithm 1.
    plain = HEADS * products_flop([*inside, seen, update])
    assert gated_delta_prefill_flop(2.0, 640.0, 12.0, 16.0, 8.0, 64.0, delta=False) == near(
        SEQUENCES * 10 * plain
    )


def test_tiles_start_split_and_slow_down():
    """Two tiles of 10 x 20 on four multiprocessors, 100 inputs, 16 FLOP/s: 5000 s in one wave of two."""
    rates = TiledKernelRates(32.0, 8.0, 4.0, 0.5, 0.25, 1e6, 0.0, 0.0, 0.0, 1.0, 0.0)
    product = TiledProduct((2.0,), 100.0, 20.0, row_bytes=3.0, column_bytes=4.0, partial_bytes=6.0)

    def time_of(splits=(1.0,), product=product, **changed):
        more = {name: changed.pop(name) for name in ("sustained_loss", "largest_split") if name in changed}
        return tiled_time_s(product, ((10.0, 20.0),), splits, replace(rates, **changed), **more)

    tile = 2 * 10 * 20 * 100 / (16 / 4)
    assert tile == 10_000
    assert time_of() == near(tile)
    assert time_of(start_inputs=25.0) == near(tile * 1.25)
    assert time_of(tile_edge=10.0) == near(tile * (1 + 10 / 10 + 10 / 20))
    # Split in four, eight blocks are two waves of a quarter each; four parts of 6 bytes are written at 2 B/s.
    assert time_of((4.0,)) == near(2 * tile / 4 + 4 * 6 / 2)
    assert time_of((1.0, 4.0)) == near(2 * tile / 4 + 4 * 6 / 2)
    assert time_of((1.0, 4.0), largest_split=1.0) == near(tile)
    # In long products all of the loss to lower clocks has set in, after half a millisecond half of it.
    assert time_of(sustained_loss=0.5) == near(tile * (1 + 0.5 * tile / (tile + 5e-4)))
    short = time_of(sustained_loss=0.5, flop_per_s=32.0 * tile / 5e-4, bytes_per_s=1e12)
    assert short == near(5e-4 * 1.25)
    # Traffic alone: columns of 128 outputs keep a multiprocessor busy, here 20 x 1 of 4 x 128.
    fast = {"flop_per_s": 1e15}
    assert time_of(**fast) == near((3 + 4) / 2)
    assert time_of(**fast, starved_exponent=1.0) == near((3 + 4 * 4 * 128 / 20) / 2)
    # Four parts of each column keep four times as many busy.
    assert time_of((4.0,), **fast, starved_exponent=1.0) == near((3 + 4 * 4 * 128 / 80) / 2)
    assert waves(9.0, 4.0, 0.5) == near(0.5 * 9 / 4 + 0.5 * 3)


def test_a_collective_that_some_plans_do_without_counts_in_full_for_the_others():
    cost = OperatorCost("all_reduce", np.array([0.0, 3.0]), sent_bytes=np.array([0.0, 8.0]))
    assert floor_s([cost]).tolist() == unsaved_s([cost]).tolist() == [0.0, 3.0]


ROUTERS = ("balanced", "power_law_1.01", "power_law_1.2")
RATES = ExpertRates(
    flop_per_s=1e15, bytes_per_s=4e12, multiprocessors=132.0, compute_fraction=0.7, memory_fraction=0.8, sharpness=4.0,
    floor_s=2e-5, tile_edge=20.0, start_inputs=300.0, wave_fraction=0.5, starved_exponent=0.1, routed_passes=2.0,
    token_passes=4.0, router_skew=0.5,
)  # fmt: skip


@FEW
@given(
    st.integers(1, 4000),
    st.sampled_from([(8, 2), (128, 8), (384, 6)]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(ROUTERS),
)
def test_the_busiest_rank_gets_at_least_its_share_and_no_expert_more_than_all_tokens(
    tokens, layer, ranks, router
):
    experts, chosen = layer
    routed, hit, row_tiles = rank_load(tokens, experts, chosen, ranks, router)
    share = tokens * chosen / ranks
    if router != "balanced":
        assert routed >= share * (1 - 1e-9)
    assert hit <= min(experts / ranks, routed) + 1e-9
    assert routed <= hit * tokens + 1e-9
    for (rows, _), tiles in zip(EXPERT_TILES, row_tiles, strict=True):
        assert max(hit, routed / rows) - 1e-9 <= tiles <= hit + routed / rows + 1e-9


@pytest.mark.parametrize("router", ROUTERS)
def test_one_rank_gets_every_choice(router):
    assert rank_load(300, 64, 4, 1, router)[0] == 1200.0


def test_a_power_law_leaves_experts_without_tokens_and_fills_more_tiles_than_a_balanced_router():
    (_, even, even_tiles), (_, hit, tiles) = (
        rank_load(128, 128, 8, 1, router) for router in ("balanced", "power_law_1.2")
    )
    assert even == 128.0
    assert hit < even
    assert tiles[0] > even_tiles[0]


def test_loads_that_are_known_give_the_time_of_the_same_loads_guessed():
    tokens, experts, chosen = 512.0, 64.0, 4.0
    even = replace(RATES, router_skew=-1.0)
    load = tokens * chosen / experts
    tiles = tuple(np.array(experts * max(1.0, load / rows + 0.5)) for rows, _ in EXPERT_TILES)
    loads = ExpertLoads(tokens, tokens * chosen, experts, tiles, experts, load, tokens * chosen)
    known = grouped_experts_time_s(loads, 2048.0, 1024.0, 1.0, 1.0, 1.0, even)
    guessed = experts_time_s(tokens, experts, experts, chosen, 2048.0, 1024.0, 1.0, 1.0, 1.0, even)
    assert known == pytest.approx(guessed, rel=1e-9)


@pytest.mark.parametrize("gated", [0.0, 1.0])
def test_rows_of_all_pairs_take_their_time_on_every_rank(gated):
    """Triton and Marlin write, activate and sum a row for each expert of a token, also of experts on other ranks."""
    tokens, experts, chosen, inputs, width = 4096.0, 256.0, 8.0, 4096.0, 1024.0

    def time_s(ranks, passes):
        rates = replace(RATES, pair_passes=passes)
        shape = (tokens, experts, experts / ranks, chosen, inputs, width, gated, 1.0, 1.0)
        return experts_time_s(*shape, rates)

    moved = 2.0 * tokens * chosen * (inputs + (2.0 + gated) * width)
    for ranks in (1.0, 8.0, 64.0):
        assert time_s(ranks, 3.0) - time_s(ranks, 0.0) == pytest.approx(3.0 * moved / RATES.bytes_per_s)


def test_sorting_tokens_among_more_experts_takes_longer_by_a_constant_each():
    sorting = replace(RATES, expert_s=2e-8)
    for count in (8.0, 128.0, 896.0):
        at = (4.0, count, count, 4.0, 2880.0, 2880.0, 1.0, 0.53125, 2.0)
        assert experts_time_s(*at, sorting) - experts_time_s(*at, RATES) == pytest.approx(2e-8 * count)


H200 = device("h200-sxm")
FITS = efficiency_for(H200).fits


def matmul_of(engine, **more):
    own = efficiency_for(H200)
    return device_rates(H200, own, weight_format="fp8", kv_format="fp8", engine=engine, **more).matmul


def test_scales_of_checkpoints_are_known():
    """TensorRT-LLM's fp8 matmuls were timed with the kernel that finds the scale of their inputs."""
    timed, scale = FITS["matmul/fp8@trtllm"].numbers, FITS["elementwise/scale@trtllm"].numbers
    found = matmul_of("trtllm")
    assert found.floor_s == pytest.approx(timed["floor_s"] - scale["floor_s"])
    assert found.quantise_passes == pytest.approx(timed["quantise_passes"] - 2.0 / scale["memory_fraction"])
    assert found.compute_fraction == timed["compute_fraction"]


def test_what_remains_is_a_matmul_in_sixteen_bits_and_one_kernel_that_quantises():
    """The sum that gives the timings away: 12 us are 3 of a matmul, 7 of the scale and 1.4 of quantising."""
    whole = FITS["matmul/bf16"].numbers["floor_s"] + FITS["elementwise/quantise@trtllm"].numbers["floor_s"]
    assert matmul_of("trtllm").floor_s == pytest.approx(whole, abs=1e-6)


def test_a_fused_engine_quantises_in_the_kernel_before():
    assert matmul_of("trtllm", fuses_quantise=True).quantise_passes == 0.0
    assert LEAST_FLOOR_S <= matmul_of("trtllm", fuses_quantise=True).floor_s < matmul_of("trtllm").floor_s


def test_other_engines_keep_what_was_timed():
    timed = FITS["matmul/fp8@vllm"].numbers
    assert matmul_of("vllm").floor_s == timed["floor_s"]
    assert matmul_of("vllm").quantise_passes == timed["quantise_passes"]
