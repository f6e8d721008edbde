"""FLOP and bytes of the kernels, counted by hand with every dimension different from every other.

Doctests set most dimensions to one, where a factor that is left out does not show.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.operators.attention import (
    chunk_keys,
    chunk_pairs,
    prefill_attention_bytes,
    prefill_attention_flop,
)
from capplan.operators.experts import ExpertRates, experts_time_s
from capplan.operators.latent_attention import (
    mla_decode_bytes,
    mla_decode_flop,
    mla_prefill_bytes,
    mla_prefill_flop,
)
from capplan.operators.linear_attention import (
    gated_delta_prefill_flop,
    state_space_prefill_flop,
)
from capplan.operators.roofline import TiledKernelRates, TiledProduct, tiled_time_s, waves
from capplan.phases.cost import OperatorCost, floor_s, unsaved_s

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


@pytest.mark.parametrize("rows", [8, 16, 32, 64, 128])
def test_experts_are_multiplied_in_tiles_of_128_columns(rows):
    """As many tokens as a tile has rows, which on average take one and a half tiles, on one multiprocessor."""
    rates = ExpertRates(
        1.0, 1e30, 1.0, 1.0, 1.0, 1e6, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, float(rows)
    )  # fmt: skip
    seconds = experts_time_s(float(rows), 1.0, 1.0, 1.0, 100.0, 256.0, 0.0, 1.0, 1.0, rates)
    # 100 inputs to 256 outputs: 1.5 x 2 tiles; 256 inputs to 100 outputs: 1.5 x 1 tiles, in two rounds.
    assert seconds == pytest.approx(2 * rows * 128 * (3 * 100 + 2 * 256), rel=1e-6)


def test_a_collective_that_some_plans_do_without_counts_in_full_for_the_others():
    cost = OperatorCost("all_reduce", np.array([0.0, 3.0]), sent_bytes=np.array([0.0, 8.0]))
    assert floor_s([cost]).tolist() == unsaved_s([cost]).tolist() == [0.0, 3.0]
