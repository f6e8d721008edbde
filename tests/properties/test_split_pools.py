"""Pools of SGLang by hand: full and sliding layers share what states leave, and a sliding token counts for its ratio."""

from dataclasses import replace
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.engine.lookup import profile
from capplan.memory.layer_groups import CacheKind
from capplan.memory.pool import split_capacity

RULES = replace(profile("sglang").memory, window_tokens_ratio=0.5, state_pool_ratio=0.25)
FULL, SLIDING = CacheKind("full", 2, 5.0, 0.0), CacheKind("window", 3, 4.0, 0.0, window_tokens=100.0)
STATE = CacheKind("state", 4, 0.0, 25.0)


def capacity(kinds, available=1600.0, context=400.0, step=60.0, rules=RULES):
    return tuple(float(part) for part in split_capacity(available, kinds, 8.0, context, step, rules))


def test_a_sliding_token_takes_its_ratio_of_room():
    # A token of the full layers takes 10 bytes, and half a token of the sliding ones 6: 1,600 bytes are 100 tokens.
    tokens, sequences, size = capacity([FULL, SLIDING])
    assert tokens == 100.0
    # A sequence of 400 tokens keeps 100 + 60 of them in the sliding layers, which have room for 50.
    assert size == 400 * 10 + 160 * 12
    assert sequences == min(100 / 400, 50 / 160)
    # Of 120 tokens all are kept; the full layers bind no longer.
    assert capacity([FULL, SLIDING], context=120.0)[1:] == (min(100 / 120, 50 / 120), 120.0 * 22)
    # Sliding layers alone have the whole room.
    assert capacity([SLIDING])[:2] == (floor(1600 / 12), min(133 / 400, 133 / 160))


def test_without_a_ratio_sliding_layers_are_sized_for_whole_sequences():
    tokens, sequences, size = capacity([FULL, SLIDING], rules=replace(RULES, window_tokens_ratio=None))
    assert sequences == 1600.0 / size
    assert tokens == floor(sequences * 400)


def test_states_get_their_part_of_the_room_first():
    # 1,600 bytes are 320 for states and 1,280 for tokens; a state of four layers takes 100.
    tokens, sequences, size = capacity([FULL, STATE])
    assert (tokens, size) == (128.0, 400 * 10 + 100)
    assert sequences == min(3.2, 1280 / 4000)
    assert capacity([FULL, STATE], context=8.0)[1] == 3.2
    assert capacity([FULL, STATE], rules=replace(RULES, state_pool_ratio=None))[1] == 1600.0 / size


@given(
    st.floats(0.0, 1e6),
    st.floats(0.0, 1e6),
    st.integers(1, 5000),
    st.sampled_from([[FULL], [FULL, SLIDING], [SLIDING], [FULL, STATE]]),
)
def test_more_room_never_holds_less_and_no_room_holds_nothing(less, more, context, kinds):
    little, much = (capacity(kinds, least, context=float(context)) for least in sorted((less, more)))
    assert little[0] <= much[0]
    assert little[1] <= much[1]
    assert capacity(kinds, -1.0)[:2] == (0.0, 0.0)
    whole = capacity(kinds, context=float(8 * -(-context // 8)))
    assert capacity(kinds, context=float(context)) == pytest.approx(whole)  # sequences are rounded to blocks
