"""Prefix reuse of a published trace, and the curve against a cache that is run block by block."""

import gzip
import json
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import InputError
from capplan.serving.prefix_cache import NEVER, earlier_greater, hit_curve, stack_distances
from tests.sweeps import examples


def leading_hits(prompts: list[list[int]], blocks: int) -> int:
    """Blocks found by a least-recently-used cache, run one block at a time."""
    cache: OrderedDict[int, bool] = OrderedDict()
    hits = 0
    for prompt in prompts:
        leading = True
        for block in prompt:
            leading = leading and block in cache
            hits += leading
            cache[block] = True
            cache.move_to_end(block)
            if len(cache) > blocks:
                cache.popitem(last=False)
    return hits


def test_reuse_of_the_mooncake_conversation_trace(measured, trace) -> None:
    """Qin et al. 2025, "Mooncake", FAST '25, conversation trace: 36.6 % of blocks; by size, of tokens, to 0.1 points.

    Of the excerpt, the cache run block by block.
    """
    path = trace("mooncake_conversation_trace.jsonl.gz")
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    ids = np.concatenate([np.array(row["hash_ids"], dtype=np.int64) for row in rows])
    counts = np.array([len(row["hash_ids"]) for row in rows])
    curve = hit_curve(
        ids, counts, block_tokens=512, input_tokens=np.array([row["input_length"] for row in rows])
    )
    if measured.whole:
        assert float(curve.block_hit_fraction(np.inf)) == pytest.approx(0.366, abs=5e-4)
        by_size = curve.hit_fraction(np.array([1e3, 1e4, 2e4, 5e4]))
        assert by_size == pytest.approx([0.045, 0.215, 0.293, 0.362], abs=1e-3)
        return
    sizes = np.array([100.0, 1000.0, 3000.0, 1e6])
    prompts = [row["hash_ids"] for row in rows]
    expected = [leading_hits(prompts, int(size)) / ids.size for size in sizes]
    assert expected[0] < expected[1] < expected[2] < expected[3]
    assert curve.block_hit_fraction(sizes) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=examples(100, 200), deadline=None)
@given(values=st.lists(st.integers(-5, 40), max_size=60))
def test_earlier_greater_values_are_counted(values: list[int]) -> None:
    expected = [sum(before > value for before in values[:i]) for i, value in enumerate(values)]
    assert earlier_greater(np.array(values, dtype=np.int64)).tolist() == expected


def test_a_block_never_seen_is_found_in_no_cache() -> None:
    with pytest.raises(InputError, match="no block ids"):
        hit_curve(np.array([], dtype=np.int64), np.array([0]), block_tokens=16)
    assert stack_distances(np.array([4, 5])).tolist() == [NEVER, NEVER]
