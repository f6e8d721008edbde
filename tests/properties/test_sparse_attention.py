"""Laws of attention that reads part of its cache: compressed entries (DeepSeek V4), chosen blocks (MiniMax M3)."""

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.engine.lookup import profile
from capplan.engine.profile import tile_of
from capplan.memory.pool import compressed_layers, packed_capacity, packed_layout, summed_capacity
from capplan.model.network import Attention, CompressedAttention, LatentAttention
from capplan.model.sharding import head_reason
from capplan.operators.compressed_attention import visible_pairs, visible_vectors
from capplan.phases.mixer_work import decode_cost, prefill_cost
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import read_model
from capplan.replica.plans import step_rates
from tests.tables import table

SPARSE = CompressedAttention(64, 512, 64, 128, 8, 4, True, 64, 128, 512)
HEAVY = CompressedAttention(64, 512, 64, 128, 8, 128)
WINDOW = CompressedAttention(64, 512, 64, 128, 8)
BLOCKS = Attention(64, 4, 128, 128, index_heads=4, index_head_dim=128, index_top_tokens=2048)
CONTEXTS = np.array([0.0, 1.0, 100.0, 128.0, 1000.0, 2048.0, 20000.0, 131072.0, 1048576.0])


@cache
def rates():
    of = device("h200")
    network = read_model("deepseek-ai/DeepSeek-V4-Flash", offline=True)
    return step_rates(network, of, efficiency_for(of), profile=profile("vllm"), kv_format="fp8")


def decode(mixer, contexts=CONTEXTS, sequences=8.0, ranks=1.0):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return decode_cost(mixer, sequences, contexts, ranks, 1.0, rates().rates)


def prefill(mixer, new, past, ranks=1.0, prompts=1.0, **kernel):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernels = replace(rates().rates.sparse_prefill, **kernel)
        return prefill_cost(
            mixer, prompts, new, past, ranks, 1.0, replace(rates().rates, sparse_prefill=kernels)
        )


def test_times_of_compressed_attention_are_labelled_as_assumed():
    assert rates().label == "assumed"
    assert any("compressed attention" in item.what for item in rates().assumptions)


@pytest.mark.parametrize("mixer", [SPARSE, HEAVY, WINDOW, BLOCKS])
def test_more_context_more_sequences_and_longer_prompts_never_take_less(mixer):
    for cost in (decode(mixer), prefill(mixer, 512.0, CONTEXTS), prefill(mixer, CONTEXTS[1:], 1000.0)):
        seconds = np.broadcast_to(cost.seconds, np.shape(cost.flop))
        assert np.all(np.isfinite(seconds))
        assert np.all(seconds > 0)
        assert np.all(np.diff(seconds) >= -1e-9 * seconds[1:])
    assert np.all(decode(mixer, sequences=64.0).seconds >= decode(mixer).seconds)


@pytest.mark.parametrize("mixer", [SPARSE, HEAVY, WINDOW, BLOCKS])
def test_ranks_share_the_heads(mixer):
    assert decode(mixer, ranks=4.0).flop == pytest.approx(decode(mixer).flop / 4)
    without = {"tile_heads": 1.0, "compressed_tile_heads": 1.0}
    split = prefill(mixer, 4096.0, 8192.0, ranks=4.0, **without)
    assert np.all(split.seconds < prefill(mixer, 4096.0, 8192.0, **without).seconds)


LATENT = LatentAttention(64, 512, 64, 192, 256, index_heads=32, index_head_dim=128, index_top_tokens=2048)
"""GLM-5."""
INDEXED = {"tile_heads": 64.0, "tiled_above": 0.0, "expands_short": 0.0, "masks": 0.0}


def test_a_kernel_with_tiles_computes_64_heads_on_every_rank_and_all_keys_for_every_query():
    """FlashMLA pads 8 heads of a rank to 64, and reads 2,048 indices of queries that see fewer."""
    alone, of_eight = (prefill(LATENT, 4096.0, 8192.0, ranks=ranks, **INDEXED) for ranks in (1.0, 8.0))
    absorbed_s = prefill(LATENT, 4096.0, 8192.0, **INDEXED | {"tile_heads": 1.0}).seconds
    assert alone.seconds == pytest.approx(absorbed_s, rel=1e-3)
    assert of_eight.seconds > 0.85 * alone.seconds
    assert of_eight.flop == pytest.approx(alone.flop / 8)
    first = prefill(LATENT, 1024.0, 0.0, **INDEXED | {"tiled_above": 16.0})
    later = prefill(LATENT, 1024.0, 4096.0, **INDEXED | {"tiled_above": 16.0})
    assert first.seconds > 0.8 * later.seconds
    few = prefill(LATENT, 4096.0, 8192.0, ranks=8.0, **INDEXED | {"tiled_above": 16.0})
    assert few.seconds < 0.4 * of_eight.seconds


def test_prompts_that_an_indexer_would_select_whole_are_expanded_where_an_engine_does_so():
    dense = replace(LATENT, index_heads=0, index_head_dim=0, index_top_tokens=0)
    short = prefill(LATENT, 1024.0, 1024.0, **INDEXED | {"expands_short": 1.0})
    assert short.seconds == pytest.approx(prefill(dense, 1024.0, 1024.0).seconds)
    for new in (1025.0, 8192.0):
        sparse = prefill(LATENT, new, 1024.0, **INDEXED)
        assert prefill(LATENT, new, 1024.0, **INDEXED | {"expands_short": 1.0}).seconds == sparse.seconds
        masked = prefill(LATENT, new, 1024.0, ranks=8.0, **INDEXED | {"masks": 1.0})
        assert masked.seconds <= prefill(LATENT, new, 1024.0, ranks=8.0, **INDEXED).seconds
    many = prefill(LATENT, np.array([512.0, 4096.0]), 0.0, **INDEXED | {"expands_short": 1.0})
    each = [prefill(LATENT, new, 0.0, **INDEXED | {"expands_short": 1.0}).seconds for new in (512.0, 4096.0)]
    assert many.seconds == pytest.approx(each)


@table
def test_where_engines_run_kernels_with_tiles(engine, version, architecture, cache, tile):
    assert tile_of(profile(engine, version).tiled_heads, architecture, cache) == tuple(tile)


@pytest.mark.parametrize("mixer", [SPARSE, HEAVY, WINDOW, BLOCKS])
def test_prompts_of_one_step_cost_no_more_than_one_after_the_other(mixer):
    one, four = prefill(mixer, 512.0, CONTEXTS), prefill(mixer, 512.0, CONTEXTS, prompts=4.0)
    assert np.all(four.seconds <= 4 * one.seconds * (1 + 1e-9))
    assert np.all(four.seconds >= one.seconds)
    assert four.flop == pytest.approx(4 * one.flop)


def test_a_query_reads_its_window_and_the_entries_left_to_it():
    # 64 heads x 512 elements x (score and value) x 2: per vector, for eight sequences.
    each = 8 * 64 * 512 * 4
    far = CONTEXTS >= 20000
    assert np.all(decode(WINDOW).flop[far] == 128 * each)
    assert np.all(decode(SPARSE).flop[far] == (128 + 512) * each)
    assert decode(HEAVY).flop[far] == pytest.approx((128 + CONTEXTS[far] / 128) * each)


def test_chosen_blocks_bound_what_attention_reads_but_not_what_the_indexer_scores():
    plain = replace(BLOCKS, index_heads=0, index_head_dim=0, index_top_tokens=0)
    near, far = CONTEXTS <= 2048, CONTEXTS > 2048
    assert np.all(decode(BLOCKS).flop[near] == decode(plain).flop[near])
    assert np.all(decode(BLOCKS).flop[far] == decode(plain).flop[CONTEXTS == 2048])
    assert np.all(np.diff(decode(BLOCKS).seconds[far]) > 0)
    assert np.all(decode(BLOCKS).seconds[near] >= decode(plain).seconds[near])
    assert decode(BLOCKS).seconds[-1] < decode(plain).seconds[-1]


@given(
    new=st.integers(1, 300),
    past=st.integers(0, 3000),
    window=st.integers(1, 200),
    ratio=st.sampled_from([4, 128]),
    top=st.integers(1, 600),
)
def test_pairs_are_those_of_every_query_up_to_one_entry_each(new, past, window, ratio, top):
    seen = sum(min(n, window) + min(n // ratio, top) for n in range(past + 1, past + new + 1))
    formula = float(visible_pairs(float(new), float(past), float(window), float(ratio), float(top)))
    assert seen - 1e-6 * seen <= formula + new
    assert formula <= seen + new + 1e-6 * seen
    one = float(visible_vectors(past + 1.0, float(window), float(ratio), float(top)))
    assert float(visible_pairs(1.0, float(past), float(window), float(ratio), float(top))) == pytest.approx(
        one
    )


@table
def test_groups_of_heads_stay_whole(model, ranks, legal):
    assert (head_reason(read_model(model, offline=True), ranks) is None) == legal


@pytest.mark.parametrize("element", [1.0, 2.0])
@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"])
def test_pools_hold_no_more_than_their_bytes_and_no_less_with_more_of_them(model, element):
    mixers = compressed_layers(read_model(model, offline=True))
    sizes = np.array([0.0, 1e9, 1e10, 1e11, 1e12])
    for context in (1.0, 5000.0, 1048576.0):
        for tokens, sequences, each in (
            packed_capacity(sizes, packed_layout(mixers, element), context, 8192.0),
            summed_capacity(sizes, mixers, element, context, 8192.0, 16.0),
        ):
            assert np.all(sequences * each <= sizes)
            assert np.all(np.diff(sequences) >= 0)
            assert tokens[0] == sequences[0] == 0
            assert tokens == pytest.approx(np.floor(sequences * context))


def test_one_sequence_starts_where_it_and_the_chunk_in_flight_fit():
    layout = 10.0, ((128.0, 64.0, 2), (8.0, 4.0, 1))
    # 4 blocks of 256 tokens, windows of ceil((127 + 512) / 64) + 1 twice, waiting tokens of ceil((7 + 512) / 4) + 1.
    most = 4 + 2 * 11 + 131
    (_, fits, _), (_, short, _) = (packed_capacity(10.0 * n, layout, 1024.0, 512.0) for n in (most, most - 1))
    assert fits == 1.0
    assert short < 1.0
    # Between steps it keeps its blocks, the pages of its windows and of its waiting tokens, and one more of each.
    (_, _, each) = packed_capacity(10.0 * most, layout, 1024.0, 512.0)
    assert each == 10.0 * (4 + 2 * (2 + 1) + (2 + 1))


def test_kernels_of_compressed_attention_compute_64_heads_on_every_rank():
    """DeepSeek V4 of TP8 has 8 or 16 heads a rank, and its kernels come with 64 and 128, whatever the cache."""
    tiles = {"compressed_tile_heads": 64.0}
    for mixer in (SPARSE, HEAVY, WINDOW):
        whole, eighth = (prefill(mixer, 4096.0, 8192.0, ranks=ranks, **tiles) for ranks in (1.0, 8.0))
        assert eighth.seconds == pytest.approx(whole.seconds)
    for engine in ("vllm", "sglang"):
        for where in (("hopper", "fp8"), ("blackwell", "fp8"), ("blackwell", "bf16")):
            assert tile_of(profile(engine).compressed_tiles, *where) == (64.0, 0.0)
    assert profile("trtllm").compressed_tiles == ()
