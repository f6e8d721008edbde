"""What the routers of the expert timings deal out, and how experts' time follows from it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.accuracy.kernels import rank_load
from capplan.operators.experts import (
    EXPERT_TILES,
    ExpertLoads,
    ExpertRates,
    experts_time_s,
    grouped_experts_time_s,
)

ROUTERS = ("balanced", "power_law_1.01", "power_law_1.2")
FEW = settings(max_examples=60, deadline=None)
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
    for experts in (8.0, 128.0, 896.0):
        at = (4.0, experts, experts, 4.0, 2880.0, 2880.0, 1.0, 0.53125, 2.0)
        assert experts_time_s(*at, sorting) - experts_time_s(*at, RATES) == pytest.approx(2e-8 * experts)
