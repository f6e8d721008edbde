"""Every term of an operator's time alone: a device that is infinitely fast in all else but one thing.

Units are checked the same way: a device on which everything takes twice as long takes twice as long.
"""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.operators.attention import (
    AttentionRates,
    captured_split_bytes,
    chunk_attention_prefill_time_s,
    decode_attention_bytes,
    decode_attention_flop,
    decode_attention_time_s,
    decode_scheduled_bytes,
    prefill_attention_bytes,
    prefill_attention_flop,
    prefill_attention_time_s,
    prefill_scheduled_flop,
)
from capplan.operators.collective import (
    LinkRates,
    all_gather_time_s,
    all_reduce_time_s,
    all_to_all_time_s,
    expert_exchange_bytes,
    expert_exchange_time_s,
    point_to_point_time_s,
    reduce_scatter_time_s,
)
from capplan.operators.compressed_attention import (
    compressed_decode_time_s,
    compressed_prefill_time_s,
    indexer_time_s,
)
from capplan.operators.experts import ExpertRates, experts_bytes, experts_flop, experts_time_s
from capplan.operators.latent_attention import (
    LatentAttentionRates,
    expanded_attention_time_s,
    mla_absorption_time_s,
    mla_attention_decode_time_s,
    mla_bmm_time_s,
    mla_decode_bytes,
    mla_decode_flop,
    mla_decode_time_s,
    mla_prefill_bytes,
    mla_prefill_flop,
    mla_prefill_time_s,
    mla_sparse_prefill_bytes,
    mla_sparse_prefill_flop,
    sparse_attention_prefill_time_s,
)
from capplan.operators.linear_attention import (
    LinearAttentionRates,
    gated_delta_decode_time_s,
    gated_delta_prefill_flop,
    gated_delta_prefill_time_s,
    selective_scan_prefill_time_s,
    short_convolution_bytes,
    short_convolution_time_s,
    state_space_decode_time_s,
    state_space_prefill_flop,
    state_space_prefill_time_s,
)
from capplan.operators.matmul import (
    ElementwiseRates,
    MatmulRates,
    elementwise_time_s,
    matmul_bytes,
    matmul_flop,
    matmul_time_s,
)
from tests.nearness import near
from tests.properties.ideal_device import ATTENTION, EXPERTS, INF, LATENT, LINEAR, MATMUL, NEVER, RING

FEW = settings(max_examples=60, deadline=None)
# Shapes whose tiles are all full: 2560 rows and 4096 columns are whole tiles of every size, in whole waves of four.
FULL = (2560.0, 1000.0, 4096.0)
HEADS = (8.0, 2.0, 64.0, 32.0)  # query heads, KV heads, widths of keys and values
MLA = (8.0, 512.0, 64.0, 128.0, 96.0)  # query heads, latent, rotary, plain and value width


def test_a_matmul_bound_by_arithmetic_takes_its_flop_at_the_peak():
    seconds = matmul_flop(*FULL) / 1e12
    fast = replace(MATMUL, flop_per_s=1e12)

    def time_of(**changed):
        return matmul_time_s(*FULL, 1.0, 1.0, replace(fast, **changed))

    assert time_of() == near(seconds)
    assert time_of(compute_fraction=0.5) == near(2 * seconds)
    # A tile of 256 x 128 has the smallest edge of all; prologue and epilogue cost as 100 more inputs would.
    assert time_of(tile_edge=16.0) == near(seconds * (1 + 16 / 256 + 16 / 128))
    assert time_of(start_inputs=100.0) == near(seconds * 1.1)
    # Half of the loss is reached at 0.5 ms.
    assert time_of(sustained_loss=0.2) == near(seconds * (1 + 0.2 * seconds / (seconds + 0.5e-3)))
    assert time_of(floor_s=1.0) == near(seconds + 1.0)


def test_a_matmul_bound_by_memory_moves_its_bytes_at_the_bandwidth():
    shape = (*FULL, 0.5, 1.0)
    seconds = matmul_bytes(*shape) / 1e9

    def time_of(**changed):
        return matmul_time_s(*shape, replace(MATMUL, bytes_per_s=1e9, **changed))

    assert time_of() == near(seconds)
    assert time_of(memory_fraction=0.5) == near(2 * seconds)
    # The kernel that quantises inputs runs before, at full bandwidth.
    assert time_of(memory_fraction=0.5, quantise_passes=3.0) == near(2 * seconds + 3 * 2560 * 1000 / 1e9)


def test_columns_for_half_of_the_multiprocessors_read_weights_at_half_of_the_bandwidth():
    shape = (1.0, 1000.0, 256.0, 1.0, 0.0)  # two columns of 128 outputs, on four multiprocessors
    slow = replace(MATMUL, bytes_per_s=1e9, largest_split=1.0)
    full = matmul_time_s(*shape, slow)
    assert matmul_time_s(*shape, replace(slow, starved_exponent=1.0)) == near(2 * full)
    assert matmul_time_s(*shape, replace(slow, starved_exponent=0.5)) == near(2**0.5 * full)
    wide = (1.0, 1000.0, 512.0, 1.0, 0.0)
    assert matmul_time_s(*wide, replace(slow, starved_exponent=1.0)) == near(matmul_time_s(*wide, slow))


def test_a_product_with_too_few_tiles_is_split_at_the_price_of_its_partial_sums():
    """One tile on four multiprocessors: a split in four takes a quarter, and writes and reads four partial sums."""
    shape = (64.0, 4000.0, 64.0, 0.0, 0.0)
    fast = replace(MATMUL, flop_per_s=4e9)
    one_s = 2 * 64 * 64 * 4000 / 1e9  # a quarter of the device works
    assert matmul_time_s(*shape, replace(fast, largest_split=1.0)) == near(one_s)
    assert matmul_time_s(*shape, fast) == near(one_s / 4)
    assert matmul_time_s(*shape, replace(fast, bytes_per_s=1e9)) == near(one_s / 4 + 4 * 4 * 64 * 64 / 1e9)
    # Where partial sums take longer than what the split saves, the product stays whole.
    assert matmul_time_s(*shape, replace(fast, bytes_per_s=4e5)) == near(one_s)


def test_the_last_wave_waits_for_its_last_tile_only_where_tiles_come_in_waves():
    shape = (64.0 * 5, 1000.0, 64.0, 0.0, 0.0)  # five small tiles on four multiprocessors
    fast = replace(MATMUL, flop_per_s=4e9, largest_split=1.0)
    tile_s = 2 * 64 * 64 * 1000 / 1e9
    assert matmul_time_s(*shape, fast) == near(1.25 * tile_s)
    assert matmul_time_s(*shape, replace(fast, wave_fraction=1.0)) == near(2 * tile_s)
    assert matmul_time_s(*shape, replace(fast, wave_fraction=0.5)) == near(1.625 * tile_s)
    # Tiles of a quarter of the rows: one token pays for 16 rows instead of 64.
    one = (1.0, 1000.0, 256.0, 0.0, 0.0)
    assert matmul_time_s(*one, replace(fast, tile_row_halvings=2.0)) == near(matmul_time_s(*one, fast) / 4)


@pytest.mark.parametrize("window", [INF, 700.0])
def test_prefill_attention_takes_each_of_its_terms_alone(window):
    shape = (3.0, 1024.0, 512.0, *HEADS, window)
    queries, _, head, value = HEADS
    flop = prefill_attention_flop(*shape[:4], head, value, window)
    arithmetic = flop / 1e12
    tile = 32 * np.exp(-1024 / 128)  # what padding adds to the queries

    def time_of(size=2.0, **changed):
        return prefill_attention_time_s(*shape, size, replace(ATTENTION, **changed))

    assert time_of(flop_per_s=1e12) == near(arithmetic)
    assert time_of(flop_per_s=1e12, prefill_fraction=0.25) == near(4 * arithmetic)
    assert time_of(flop_per_s=1e12, softmax_width=12.0) == near(
        arithmetic * (head + value + 24) / (head + value)
    )
    # 10 keys beyond the mask; one end of a tile is cut by the diagonal, the window cuts the other end in all tiles.
    capped = min(1.0, (1536 - window) / 1024) if np.isfinite(window) else 0.0
    wasted = 2 * 3 * queries * (head + value) * (1024 + tile) * 10 * (1 + 3 * capped)
    assert time_of(flop_per_s=1e12, prefill_ramp_tokens=10.0) == near((flop + wasted) / 1e12)
    # The longest block: 128 queries over all keys that they see, while the device of 4 could do as much work 4 times.
    longest = 2 * (head + value) * 128 * min(1536, window + 128) * 4
    assert time_of(flop_per_s=1e12, prefill_tail_fraction=0.5) == near((flop + 0.5 * longest) / 1e12)
    moved = prefill_attention_bytes(*shape, 1.0)
    assert time_of(1.0, bytes_per_s=1e9) == near(moved / 1e9)
    assert time_of(1.0, bytes_per_s=1e9, prefill_memory_fraction=0.5) == near(2 * moved / 1e9)
    assert time_of(prefill_floor_s=1.0) == near(1.0)


def test_heads_wider_than_128_are_slower_and_narrower_ones_are_not_faster():
    def flop_rate(width, exponent):
        rates = replace(ATTENTION, flop_per_s=1e12, wide_head_exponent=exponent)
        shape = (1.0, 256.0, 0.0, 4.0, 1.0, width, width, INF)
        flop = prefill_attention_flop(*shape[:4], *shape[5:])
        return flop / prefill_attention_time_s(*shape, 2.0, rates)

    assert flop_rate(256.0, 0.5) == near(1e12 / 2**0.5)
    assert flop_rate(128.0, 0.5) == flop_rate(64.0, 0.5) == near(1e12)


def test_decode_attention_takes_each_of_its_terms_alone():
    queries, kv, head, value = HEADS
    shape = (6.0, 1000.0, *HEADS, 400.0)

    def time_of(size=2.0, new=1.0, **changed):
        return decode_attention_time_s(*shape, size, replace(ATTENTION, **changed), new)

    flop = decode_attention_flop(6.0, 1000.0, queries, head, value, 400.0, 3.0)
    assert time_of(new=3.0, flop_per_s=1e12) == near(flop / 1e12)
    assert time_of(new=3.0, flop_per_s=1e12, decode_compute_fraction=0.5) == near(2 * flop / 1e12)
    moved = decode_attention_bytes(*shape, 1.0, 3.0)
    assert time_of(1.0, 3.0, bytes_per_s=1e9) == near(moved / 1e9)
    assert time_of(1.0, 3.0, bytes_per_s=1e9, decode_fraction=0.5) == near(2 * moved / 1e9)
    assert time_of(decode_floor_s=1.0) == near(1.0)
    # Queries and outputs pass once in 2 bytes at least; 1.5 passes are of 4 bytes.
    passes = 4 * 6 * 3 * queries * (head + value)
    assert time_of(1.0, 3.0, bytes_per_s=1e9, decode_query_passes=0.1) == near(moved / 1e9)
    assert time_of(1.0, 3.0, bytes_per_s=1e9, decode_query_passes=1.5) == near((moved + passes) / 1e9)
    # A start of 300 tokens beside 400 is as one of 500, in each of the 12 pairs of sequence and KV head.
    token_bytes = head + value
    assert time_of(1.0, 3.0, bytes_per_s=1e9, decode_pad_tokens=300.0) == near(
        (moved + 6 * kv * token_bytes * 100) / 1e9
    )
    # The longest of 12 blocks on four multiprocessors is one whole context; what it delays is not read faster.
    tail = {"bytes_per_s": 1e9, "decode_tail_fraction": 0.25, "decode_fraction": 0.5}
    assert time_of(1.0, 3.0, **tail) == near((2 * moved + 0.25 * 4 * 400 * token_bytes) / 1e9)


def test_a_long_context_is_cut_until_every_multiprocessor_has_a_part():
    """The tail alone: one pair of sequence and KV head, tokens of one byte, no start of a block."""

    def longest(visible, pairs, split, multiprocessors):
        whole = decode_scheduled_bytes(pairs, visible, 1.0, multiprocessors, 0.0, 1.0, split)
        return (whole - pairs * visible) / multiprocessors

    assert longest(3200.0, 2.0, 1.0, 16.0) == near(400.0)  # eight parts for each of two contexts
    assert longest(3200.0, 2.0, 800.0, 16.0) == near(800.0)  # no part below 800 tokens
    assert longest(3200.0, 2.0, 5000.0, 16.0) == near(3200.0)
    assert longest(3200.0, 1.0, 1.0, 1000.0) == near(100.0)  # at most 32 parts
    assert longest(3200.0, 32.0, 1.0, 16.0) == near(3200.0)


@given(pairs=st.floats(1.0, 5000.0), visible=st.floats(1.0, 8192.0), more=st.floats(1.0, 4.0))
def test_parts_that_a_graph_has_fixed_cost_up_to_the_longest_context(pairs, visible, more):
    """Between reading each context and reading the one that was captured, by as many blocks as fit; more work is never less."""

    def moved(pairs, visible):
        return float(captured_split_bytes(pairs, visible, 2.0, 100.0, 8192.0))

    found = moved(pairs, visible)
    assert found <= 2.0 * 200.0 * visible * (1 + 1e-12)
    assert found <= 2.0 * max(pairs, 200.0 / 64.0) * 8192.0 * (1 + 1e-12)
    assert found >= 2.0 * min(pairs, 200.0) * visible * (1 - 1e-12)
    assert moved(more * pairs, visible) >= found
    assert moved(pairs, min(more * visible, 8192.0)) >= found
    assert float(captured_split_bytes(pairs, visible, 2.0, 100.0, 0.0)) == 0.0


def test_a_decode_kernel_waits_for_the_parts_that_its_graph_has_fixed():
    """16 contexts of one KV head on 100 multiprocessors: 12.5 parts of 640 tokens, and 200 blocks' worth of bandwidth for each."""
    rates = replace(ATTENTION, multiprocessors=100.0, bytes_per_s=1e9)

    def time_of(context, captured):
        fixed = replace(rates, captured_tokens=captured)
        return decode_attention_time_s(16.0, context, 8.0, 1.0, 64.0, 64.0, np.inf, 2.0, fixed)

    extra = 200 * 655.36 * 256 - 16 * 1000 * 256
    assert time_of(1000.0, 8192.0) - time_of(1000.0, 0.0) == near(extra / 1e9)
    assert time_of(8192.0, 8192.0) == near(time_of(8192.0, 0.0))


def test_prefill_in_chunks_takes_each_of_its_terms_alone():
    """As a prompt of one chunk by the formula without chunks, and as two of them with nothing between."""
    shape, widths = (12.0, 3.0), (96.0, 64.0)
    terms = ({"flop_per_s": 1e12}, {"bytes_per_s": 1e9}, {"prefill_floor_s": 1.0})
    uneven = {"prefill_ramp_tokens": 10.0, "prefill_tail_fraction": 0.5, "softmax_width": 6.0}
    for changed in (*terms, {"flop_per_s": 1e12, "prefill_fraction": 0.5, **uneven}):
        rates = replace(ATTENTION, **changed)

        def time_of(sequences, new, past, rates=rates):
            at = (sequences, new, past)
            return chunk_attention_prefill_time_s(*at, *shape, *widths, 512.0, 1.0, rates)

        def plain(sequences, new, past, rates=rates):
            return prefill_attention_time_s(sequences, new, past, *shape, *widths, INF, 1.0, rates)

        assert time_of(2.0, 300.0, 100.0) == near(plain(2.0, 300.0, 100.0))
        assert time_of(2.0, 300.0, 1024.0) == near(plain(2.0, 300.0, 0.0))
        if not uneven.keys() & changed.keys():
            assert time_of(2.0, 1024.0, 512.0) == near(plain(4.0, 512.0, 0.0))


def test_latent_prefill_takes_each_of_its_terms_alone():
    heads, latent, rotary, plain, value = MLA
    tokens = (2.0, 1024.0, 512.0)
    width = plain + rotary + value
    flop = mla_prefill_flop(*tokens, heads, width)

    def time_of(**changed):
        rates = replace(LATENT, **changed)
        return expanded_attention_time_s(*tokens, heads, width, latent + rotary, rates)

    assert time_of(flop_per_s=1e12) == near(flop / 1e12)
    assert time_of(flop_per_s=1e12, prefill_fraction=0.5) == near(2 * flop / 1e12)
    # The new latents are written to the cache besides.
    moved = mla_prefill_bytes(*tokens, heads, width) + 2 * 1024 * (latent + rotary) * 1.0
    assert time_of(bytes_per_s=1e9) == near(moved / 1e9)
    assert time_of(bytes_per_s=1e9, prefill_memory_fraction=0.5) == near(2 * moved / 1e9)
    assert time_of(prefill_floor_s=1.0) == near(1.0)
    work = prefill_scheduled_flop(*tokens, heads, rotary + plain + value, INF, 4.0, 6.0, 10.0, 0.5)
    uneven = {"softmax_width": 6.0, "prefill_ramp_tokens": 10.0, "prefill_tail_fraction": 0.5}
    assert time_of(flop_per_s=1e12, **uneven) == near(work / 1e12)
    rates = replace(LATENT, flop_per_s=1e12, bytes_per_s=1e9)
    whole = mla_prefill_time_s(*tokens, *MLA, 2.0, rates)
    assert whole == near(expanded_attention_time_s(*tokens, heads, width, 2.0 * (latent + rotary), rates))


def test_sparse_prefill_takes_each_of_its_terms_alone():
    heads, latent, rotary, plain, value = MLA
    tokens, top = (2.0, 1024.0, 512.0), 600.0
    shape = (*tokens, heads, latent, rotary)

    def time_of(**changed):
        return sparse_attention_prefill_time_s(*shape, 1.0, replace(LATENT, **changed), top)

    flop, moved = mla_sparse_prefill_flop(*shape, top), mla_sparse_prefill_bytes(*shape, 1.0, top)
    assert time_of(flop_per_s=1e12, prefill_fraction=0.5) == near(2 * flop / 1e12)
    assert time_of(bytes_per_s=1e9, prefill_memory_fraction=0.5) == near(2 * moved / 1e9)
    assert time_of(prefill_floor_s=1.0) == near(1.0)
    work = prefill_scheduled_flop(*tokens, heads, 2 * latent + rotary, top, 4.0, 6.0, 10.0, 0.5)
    uneven = {"softmax_width": 6.0, "prefill_ramp_tokens": 10.0, "prefill_tail_fraction": 0.5}
    assert time_of(flop_per_s=1e12, **uneven) == near(work / 1e12)
    rates = replace(LATENT, flop_per_s=1e12, bytes_per_s=1e9)
    products = [(2048.0, heads, plain, latent, 2.0, rates), (2048.0, heads, latent, value, 2.0, rates)]
    both = mla_absorption_time_s(2048.0, heads, latent, plain, value, rates)
    assert both == near(sum(mla_bmm_time_s(*product) for product in products))


def test_absorbed_decode_takes_each_of_its_terms_alone():
    heads, latent, rotary = MLA[:3]
    shape = (6.0, 400.0, heads, latent, rotary)

    def time_of(new=3.0, **changed):
        return mla_attention_decode_time_s(*shape, 1.0, replace(LATENT, **changed), new)

    assert time_of(flop_per_s=1e12) == near(mla_decode_flop(*shape, 3.0) / 1e12)
    assert time_of(flop_per_s=1e12, decode_compute_fraction=0.5) == near(
        2 * mla_decode_flop(*shape, 3.0) / 1e12
    )
    moved = mla_decode_bytes(*shape, 1.0, 3.0)
    passes = 4 * 6 * 3 * heads * (2 * latent + rotary)
    assert time_of(bytes_per_s=1e9) == near(moved / 1e9)
    assert time_of(bytes_per_s=1e9, decode_fraction=0.5) == near(2 * moved / 1e9)
    assert time_of(bytes_per_s=1e9, decode_query_passes=1.5) == near((moved + passes) / 1e9)
    token = latent + rotary
    assert time_of(bytes_per_s=1e9, decode_pad_tokens=300.0) == near((moved + 6 * 100 * token) / 1e9)
    tail = {"bytes_per_s": 1e9, "decode_tail_fraction": 0.25, "decode_fraction": 0.5}
    assert time_of(**tail) == near((2 * moved + 0.25 * 4 * 400 * token) / 1e9)
    assert time_of(decode_floor_s=1.0) == near(1.0)


def test_absorption_multiplies_by_one_matrix_before_and_one_after_attention():
    heads, latent, _, plain, value = MLA
    apart = {"bmm_fraction": 0.5, "bmm_memory_fraction": 0.25}

    def beside(**changed):
        rates = replace(LATENT, **changed)
        alone = mla_attention_decode_time_s(6.0, 1000.0, *MLA[:3], 1.0, rates, 3.0)
        return mla_decode_time_s(6.0, 1000.0, *MLA, 1.0, rates, 3.0) - alone

    tokens = 6 * 3
    assert beside(flop_per_s=1e12, **apart) == near(2 * tokens * heads * latent * (plain + value) / 0.5e12)
    weights = 2 * heads * latent * (plain + value)
    activations = 2 * tokens * heads * (plain + latent + latent + value)
    assert beside(bytes_per_s=1e9, **apart) == near((weights + activations) / 0.25e9)
    assert beside(bmm_floor_s=1.0) == near(2.0)
    eight_bits = mla_bmm_time_s(tokens, heads, plain, latent, 1.0, replace(LATENT, bytes_per_s=1e9))
    assert eight_bits == near(heads * (plain * latent + 2 * tokens * (plain + latent)) / 1e9)


def test_an_indexer_multiplies_every_pair_and_reads_every_key():
    def time_of(**changed):
        return indexer_time_s(2.0, 3.0, 5.0, 4.0, 128.0, 1.5, replace(LATENT, **changed))

    pairs = 6 + 7 + 8
    assert time_of(flop_per_s=1e12) == near(2 * 2 * 4 * 128 * pairs / 1e12)
    assert time_of(flop_per_s=1e12, prefill_fraction=0.5) == near(2 * 2 * 2 * 4 * 128 * pairs / 1e12)
    assert time_of(bytes_per_s=1e9, decode_fraction=0.5) == near(2 * 2 * 8 * 128 * 1.5 / 1e9)
    assert time_of(decode_floor_s=1.0) == near(1.0)


def test_compressed_attention_reads_its_window_and_its_entries_as_one_kernel():
    """Four tokens to an entry, of which 16 are left: a window of 128 and 16 further vectors."""
    seen = (4.0, 16.0)
    rates = replace(LATENT, bytes_per_s=1e9, decode_floor_s=1.0)
    entries = compressed_decode_time_s(2.0, 4096.0, 8.0, 512.0, 128.0, *seen, 1.0, rates)
    assert entries == near(1.0 + 2 * ((128 + 16) * 512 + 2 * 8 * 1024) / 1e9)
    rates = replace(LATENT, flop_per_s=1e12, prefill_floor_s=1.0)
    both = compressed_prefill_time_s(64.0, 4096.0, 8.0, 512.0, 128.0, *seen, 1.0, rates, 3.0)
    # Every one of 64 queries multiplies 128 tokens and 16 entries, for scores and for values.
    assert both == near(1.0 + 3 * 64 * 8 * (128 + 16) * 512 * 4 / 1e12)
    none = compressed_prefill_time_s(64.0, 4096.0, 8.0, 512.0, 128.0, INF, INF, 1.0, rates, 3.0)
    assert none == near(1.0 + 3 * 64 * 8 * 128 * 512 * 4 / 1e12)


def test_experts_bound_by_memory_move_their_weights_and_tokens():
    """All eight experts are hit by 64 tokens that are dealt out evenly."""
    shape = (64.0, 8.0, 4.0, 2.0, 256.0, 512.0, 1.0, 0.5, 1.0)
    even = replace(EXPERTS, bytes_per_s=1e9)
    routed = 64 * 2 * 4 / 8
    moved = experts_bytes(*shape, -1.0)
    # The two products write gate, up and down: one more width than the least, which fuses the activation.
    unfused = 2.0 * routed * 512.0
    assert experts_time_s(*shape, even) == near((moved + unfused) / 1e9)
    assert experts_time_s(*shape, replace(even, memory_fraction=0.5)) == near(2 * (moved + unfused) / 1e9)
    passes = {"routed_passes": 3.0, "token_passes": 5.0, "pair_passes": 7.0, "floor_s": 1.0}
    pairs = 64 * 2 * (256 + 3 * 512)
    more = 2 * (256 * (3 * routed + 5 * 64) + 7 * pairs) / 1e9 + 1.0
    assert experts_time_s(*shape, replace(even, **passes)) == near((moved + unfused) / 1e9 + more)


@pytest.mark.parametrize("gated", [0.0, 1.0])
def test_experts_bound_by_arithmetic_pay_for_whole_tiles(gated):
    """Even loads: 128 rows for each of eight experts fill one tile of 128 rows and half a tile is lost on average."""
    even = replace(EXPERTS, flop_per_s=1e12)

    def time_of(tokens, **changed):
        return experts_time_s(tokens, 8.0, 8.0, 2.0, 256.0, 512.0, gated, 1.0, 1.0, replace(even, **changed))

    flop = experts_flop(512.0, 8.0, 8.0, 2.0, 256.0, 512.0, gated)
    assert time_of(512.0, tile_load_ratio=INF) == near(1.5 * flop / 1e12)
    # The library takes the smallest tile that it may: 8 rows, so that of 128 rows 1/32 is lost.
    assert time_of(512.0) == near((1 + 0.5 * 8 / 128) * flop / 1e12)
    assert time_of(512.0, compute_fraction=0.5) == near(2 * (1 + 0.5 * 8 / 128) * flop / 1e12)
    # Tiles of at least half of what an expert would get, all in all 64 rows.
    assert time_of(512.0, tile_load_ratio=0.5) == near((1 + 0.5 * 64 / 128) * flop / 1e12)
    assert time_of(512.0, tile_load_ratio=INF, largest_tile_rows=32.0) == near(
        (1 + 0.5 * 32 / 128) * flop / 1e12
    )
    inputs = {"start_inputs": 64.0}
    narrow, wide = (
        (2 + 2 * gated) / (4 + 2 * gated),
        2 / (4 + 2 * gated),
    )  # shares of both products in the FLOP
    longer = narrow * (256 + 64) / 256 + wide * (512 + 64) / 512
    assert time_of(512.0, **inputs) == near(longer * (1 + 0.5 * 8 / 128) * flop / 1e12)


def test_recurrent_prefill_takes_each_of_its_terms_alone():
    sequences, tokens = 3.0, 200.0  # four chunks of 64
    delta = (4.0, 8.0, 128.0, 96.0)  # key heads, value heads, widths
    state = sequences * 8 * 128 * 96

    def time_of(**changed):
        return gated_delta_prefill_time_s(sequences, tokens, *delta, 4.0, replace(LINEAR, **changed))

    arithmetic = gated_delta_prefill_flop(sequences, tokens, *delta[1:], 64.0) / 1e12
    assert time_of(flop_per_s=1e12) == near(arithmetic)
    assert time_of(flop_per_s=1e12, chunk_fraction=0.5) == near(2 * arithmetic)
    moved = 2 * sequences * tokens * 2 * (4 * 128 + 8 * 96) + 2 * 4 * state
    assert time_of(bytes_per_s=1e9) == near(moved / 1e9)
    assert time_of(bytes_per_s=1e9, chunk_memory_fraction=0.5) == near(2 * moved / 1e9)
    assert time_of(bytes_per_s=1e9, chunk_state_passes=1.5) == near((moved + 4 * 1.5 * 4 * state) / 1e9)
    assert time_of(chunk_step_s=1.0, chunk_floor_s=0.5) == near(4.5)


def test_state_space_prefill_takes_each_of_its_terms_alone():
    sequences, tokens = 3.0, 200.0
    shape = (8.0, 64.0, 128.0, 2.0, 50.0)  # heads, head width, state size, groups, tokens of a chunk
    state = sequences * 8 * 64 * 128

    def time_of(**changed):
        return state_space_prefill_time_s(sequences, tokens, *shape, 4.0, replace(LINEAR, **changed))

    arithmetic = state_space_prefill_flop(sequences, tokens, *shape) / 1e12
    assert time_of(flop_per_s=1e12) == near(arithmetic)
    moved = 2 * sequences * tokens * 2 * (8 * 64 + 2 * 128) + 2 * 4 * state
    assert time_of(bytes_per_s=1e9) == near(moved / 1e9)
    assert time_of(bytes_per_s=1e9, chunk_state_passes=1.5) == near((moved + 4 * 1.5 * 4 * state) / 1e9)
    assert time_of(chunk_step_s=1.0, chunk_floor_s=0.5) == near(4.5)


def test_a_selective_scan_multiplies_on_vector_units():
    def time_of(**changed):
        return selective_scan_prefill_time_s(3.0, 200.0, 512.0, 16.0, 4.0, replace(LINEAR, **changed))

    arithmetic = 9 * 3 * 200 * 512 * 16 / (1e12 / 16)
    assert time_of(flop_per_s=1e12) == near(arithmetic)
    assert time_of(flop_per_s=1e12, chunk_fraction=0.5) == near(2 * arithmetic)
    # x, gate, step and output of every token, B and C of every token, the state read and written.
    moved = 2 * 3 * 200 * (4 * 512 + 2 * 16) + 2 * 4 * 3 * 512 * 16
    assert time_of(bytes_per_s=1e9) == near(moved / 1e9)
    assert time_of(bytes_per_s=1e9, chunk_memory_fraction=0.5) == near(2 * moved / 1e9)
    assert time_of(chunk_floor_s=0.5) == near(0.5)


@pytest.mark.parametrize("new", [1.0, 3.0])
def test_a_recurrent_step_reads_the_state_once_and_writes_it_for_every_token(new):
    slow = replace(LINEAR, bytes_per_s=1e9, decode_fraction=0.5, decode_floor_s=1.0)
    delta = gated_delta_decode_time_s(3.0, 4.0, 8.0, 128.0, 96.0, 4.0, slow, new)
    state, tokens = 8 * 128 * 96 * 4 * (1 + new), 2 * new * 2 * (4 * 128 + 8 * 96)
    assert delta == near(1.0 + 3 * (state + tokens) / 0.5e9)
    space = state_space_decode_time_s(3.0, 512.0, 16.0, 2.0, 4.0, slow, new)
    state, tokens = 512 * 16 * 4 * (1 + new), 2 * new * (3 * 512 + 2 * 2 * 16)
    assert space == near(1.0 + 3 * (state + tokens) / 0.5e9)


def test_a_short_convolution_has_a_kernel_for_steps_and_one_for_prompts():
    slow = replace(
        LINEAR, bytes_per_s=1e9, update_fraction=0.5, update_floor_s=1.0, convolution_fraction=0.25,
        convolution_floor_s=2.0,
    )  # fmt: skip
    for tokens, share, floor in ((1.0, 0.5, 1.0), (8.0, 0.5, 1.0), (9.0, 0.25, 2.0), (500.0, 0.25, 2.0)):
        moved = short_convolution_bytes(3.0, tokens, 512.0, 4.0)
        assert short_convolution_time_s(3.0, tokens, 512.0, 4.0, slow) == near(floor + moved / (share * 1e9))
    padded = replace(slow, convolution_pad_tokens=500.0)
    moved = short_convolution_bytes(3.0, 2**0.25 * 500.0, 512.0, 4.0)
    assert short_convolution_time_s(3.0, 500.0, 512.0, 4.0, padded) == near(2.0 + 4 * moved / 1e9)
    # No prompt is quicker than the kernel for steps would be.
    stuck = replace(slow, update_floor_s=9.0)
    assert short_convolution_time_s(3.0, 9.0, 512.0, 4.0, stuck) > 9.0


def test_an_elementwise_kernel_moves_its_bytes():
    rates = ElementwiseRates(1e9, 0.5, 1.0, launch_s=7.0)
    assert elementwise_time_s(1e9, rates) == near(3.0)


COLLECTIVES = {
    all_reduce_time_s: (2.0, 6.0), all_gather_time_s: (1.0, 3.0), reduce_scatter_time_s: (1.0, 3.0)
}  # fmt: skip
"""Passes of (n - 1) / n over the message, and steps, of four ranks on a ring (nccl-tests, doc/PERFORMANCE.md)."""


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_ring_takes_each_of_its_terms_alone(collective):
    passes, steps = COLLECTIVES[collective]
    sent = passes * 0.75 * 4096

    def time_of(ranks=4.0, **changed):
        return collective(ranks, 4096.0, replace(RING, **changed))

    assert time_of(link_bytes_per_s=1e3) == near(sent / 1e3)
    assert time_of(link_bytes_per_s=1e3, ring_fraction=0.5) == near(2 * sent / 1e3)
    # Devices that share one path: four of them reach half of what two do.
    assert time_of(link_bytes_per_s=1e3, crowding_exponent=1.0) == near(2 * sent / 1e3)
    assert time_of(ring_step_s=1.0, ring_floor_s=0.5) == near(steps + 0.5)
    # A message as long as the ramp takes half as long again.
    assert time_of(link_bytes_per_s=1e3, ring_ramp_bytes=sent) == pytest.approx(1.5 * sent / 1e3, rel=1e-3)
    # Over one card every step crosses the network; over those of two domains of two devices every second step does.
    wide = {"domain_devices": 2.0, "network_bytes_per_s": 1e3, "network_fraction": 0.5, "network_step_s": 1.0}
    assert time_of(**wide, ring_step_s=9.0) == near(2 * sent / 1e3 + steps)
    wide |= {"ring_cards": 2.0}
    assert time_of(**wide, ring_step_s=9.0) == near(sent / 1e3 + 5 * steps)
    assert time_of(**wide | {"link_bytes_per_s": 100.0}) == near(sent / 100 + steps / 2)
    assert time_of(1.0, link_bytes_per_s=1e3, ring_floor_s=0.5) == 0.0


def test_an_all_to_all_sends_all_but_its_own_part():
    def time_of(**changed):
        return all_to_all_time_s(4.0, 4096.0, replace(RING, **changed))

    assert time_of(link_bytes_per_s=1e3) == near(0.75 * 4.096)
    assert time_of(link_bytes_per_s=1e3, all_to_all_fraction=0.5) == near(1.5 * 4.096)
    assert time_of(all_to_all_step_s=1.0, ring_floor_s=0.5) == near(3.5)
    assert all_to_all_time_s(1.0, 4096.0, replace(RING, ring_floor_s=0.5)) == 0.0


def test_direct_and_multicast_all_reduces_take_each_of_their_terms_alone():
    def time_of(name, **changed):
        never = {"ring_floor_s": NEVER, f"{name}_floor_s": 0.25}
        return all_reduce_time_s(4.0, 4096.0, replace(RING, **(never | changed)))

    slow = {"link_bytes_per_s": 1e3}
    # One-shot: everyone reads the whole buffers of three others. Two-shot: a quarter of them, twice.
    assert time_of("one_shot", **slow, one_shot_fraction=0.5) == near(3 * 4.096 / 0.5 + 0.25)
    assert time_of("two_shot", **slow, two_shot_fraction=0.5) == near(2 * 0.75 * 4.096 / 0.5 + 0.25)
    assert time_of("multicast", **slow, multicast_fraction=0.5) == near(4.096 / 0.5 + 0.25)
    assert time_of("one_shot", one_shot_step_s=1.0) == near(3.25)
    assert time_of("two_shot", two_shot_step_s=1.0) == near(3.25)
    crowded = {"direct_crowding_exponent": 1.0, "crowding_exponent": 2.0}
    assert time_of("one_shot", **slow, **crowded) == near(2 * 3 * 4.096 + 0.25)
    assert time_of("two_shot", **slow, **crowded) == near(2 * 1.5 * 4.096 + 0.25)
    assert time_of("multicast", **slow, **crowded) == near(4 * 4.096 + 0.25)
    filling = time_of("multicast", **slow, ring_ramp_bytes=4096.0)
    assert filling == pytest.approx(1.5 * 4.096 + 0.25, rel=1e-3)
    # Beyond the link domain only the ring is left.
    far = replace(RING, domain_devices=2.0, one_shot_floor_s=0.0, ring_floor_s=5.0)
    assert all_reduce_time_s(4.0, 4096.0, far) == near(5.0)


def test_a_hop_between_stages_sends_the_message_once():
    def time_of(ranks=2.0, **changed):
        return point_to_point_time_s(4096.0, replace(RING, **changed), ranks)

    assert time_of(link_bytes_per_s=1e3, ring_step_s=1.0, ring_floor_s=0.5) == near(4.096 + 1.5)
    assert time_of(16.0, network_bytes_per_s=1e3, network_step_s=1.0) == near(4.096 + 1.0)


def test_tokens_travel_to_their_experts_at_the_rate_of_the_exchange():
    def time_of(ranks=4.0, **changed):
        return expert_exchange_time_s(10.0, ranks, 2.0, 64.0, 1.0, 0.5, replace(RING, **changed))

    sent = expert_exchange_bytes(10.0, 4.0, 2.0, 64.0, 1.0)
    assert time_of(link_bytes_per_s=1e3, exchange_fraction=0.5, ring_fraction=0.1) == near(sent / 500 + 0.5)
    far = {"domain_devices": 2.0, "network_bytes_per_s": 1e3, "network_fraction": 0.5}
    assert time_of(**far) == near(sent / 500 + 0.5)
    assert time_of(**far, link_bytes_per_s=100.0) == near(sent / 100 + 0.5)
    assert time_of(**far | {"domain_devices": 4.0}, link_bytes_per_s=1e6) == near(
        sent / 1e6 + 0.5
    )  # all on one link
    assert time_of(1.0) == 0.0


@FEW
@given(st.integers(1, 40), st.integers(2, 6), st.integers(1, 4), st.integers(0, 10**6))
def test_every_rank_that_holds_an_expert_of_a_token_gets_it_once(tokens, ranks, chosen, seed):
    """Independent choices of ranks, many times over: the mean of what leaves the first rank, within five deviations."""
    draws = np.random.default_rng(seed).integers(0, ranks, (4000, tokens, chosen))
    sent = sum((draws == rank).any(axis=2).sum(axis=1) for rank in range(1, ranks))
    expected = expert_exchange_bytes(float(tokens), float(ranks), float(chosen), 1.0, 1.0)
    assert abs(sent.mean() - expected) <= 5 * sent.std() / 4000**0.5 + 1e-9


def slower(rates, factor):
    """Return a device on which every second lasts longer."""
    changed = {f.name: getattr(rates, f.name) for f in fields(rates)}
    for name, value in changed.items():
        if name.endswith("_per_s"):
            changed[name] = value / factor
        elif name.endswith("_s"):
            changed[name] = value * factor
    return replace(rates, **changed)


shares = st.floats(0.05, 1.0)
moments = st.floats(0.0, 1e-3)
MIXED = {
    MatmulRates: lambda r: matmul_time_s(77.0, 1000.0, 3000.0, 0.5, 1.0, r),
    AttentionRates: lambda r: (
        prefill_attention_time_s(2.0, 77.0, 500.0, *HEADS, 300.0, 2.0, r)
        + decode_attention_time_s(9.0, 500.0, *HEADS, 300.0, 2.0, r)
    ),
    LatentAttentionRates: lambda r: (
        mla_prefill_time_s(2.0, 77.0, 500.0, *MLA, 1.0, r)
        + mla_decode_time_s(9.0, 500.0, *MLA, 1.0, r)
        + indexer_time_s(2.0, 77.0, 500.0, 4.0, 128.0, 1.0, r)
    ),
    ExpertRates: lambda r: experts_time_s(77.0, 32.0, 8.0, 4.0, 256.0, 512.0, 1.0, 0.5, 1.0, r),
    LinearAttentionRates: lambda r: (
        gated_delta_prefill_time_s(2.0, 77.0, 4.0, 8.0, 128.0, 96.0, 4.0, r)
        + state_space_prefill_time_s(2.0, 77.0, 8.0, 64.0, 128.0, 2.0, 64.0, 4.0, r)
        + selective_scan_prefill_time_s(2.0, 77.0, 512.0, 16.0, 4.0, r)
        + short_convolution_time_s(2.0, 77.0, 512.0, 4.0, r)
        + gated_delta_decode_time_s(2.0, 4.0, 8.0, 128.0, 96.0, 4.0, r)
    ),
    LinkRates: lambda r: (
        all_reduce_time_s(4.0, 1e6, r) + all_to_all_time_s(16.0, 1e6, r) + point_to_point_time_s(1e6, r)
    ),
}


@pytest.mark.parametrize("record", MIXED)
@FEW
@given(data=st.data(), factor=st.sampled_from([2.0, 8.0]))
def test_a_device_on_which_all_lasts_longer_takes_that_much_longer(record, data, factor):
    """No time is added to a rate, none is left out: whatever the fitted numbers are."""
    drawn = {}
    for f in fields(record):
        if f.name == "sustained_loss":
            drawn[f.name] = 0.0  # sets in after a time that no device changes
        elif f.name.endswith("_per_s"):
            drawn[f.name] = data.draw(st.floats(1e9, 1e12))
        elif f.name.endswith("_s"):
            drawn[f.name] = data.draw(moments)
        elif f.name in {
            "multiprocessors",
            "domain_devices",
            "sharpness",
            "prefill_sharpness",
            "decode_split_tokens",
        }:
            drawn[f.name] = data.draw(st.integers(1, 16).map(float))
        else:
            drawn[f.name] = data.draw(shares)
    rates = record(**drawn)
    assert MIXED[record](slower(rates, factor)) == pytest.approx(factor * MIXED[record](rates), rel=1e-9)
