"""Caches that evict by a rule, against ones that look at every block, and against the curve of least recently used."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import InputError
from capplan.recorded.traces.trace import workload_of
from capplan.serving.prefix_cache import hit_curve, policy_hit_fractions
from tests.files import written_to
from tests.sweeps import examples

POLICIES = ("lru", "lfu", "prefix")
PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=40)
"""Branches taken in a tree: the id of a block stands for the branches up to it."""


def as_blocks(prompts):
    names = {}
    paths = [[names.setdefault(tuple(p[: i + 1]), len(names)) for i in range(len(p))] for p in prompts]
    counts = np.array([len(path) for path in paths])
    return paths, np.array([block for path in paths for block in path]), counts


def slow_hits(paths, size, policy):
    """Leading hits of every prompt; the victim is looked for among all cached blocks."""
    cached, parents, now, hits = {}, {}, 0, []
    for path in paths:
        leading, found, before = True, 0, None
        for block in path:
            leading = leading and block in cached
            found += leading
            if block not in cached:
                if len(cached) >= size:
                    leaves = [b for b in cached if not any(parents[c] == b for c in cached)]
                    rank = {
                        "lru": lambda b: cached[b][1],
                        "lfu": lambda b: cached[b],
                        "prefix": lambda b: cached[b][1],
                    }[policy]
                    del cached[min(leaves if policy == "prefix" else cached, key=rank)]
                cached[block] = (0, 0)
                parents[block] = before
            now += 1
            cached[block] = (cached[block][0] + 1, now)
            before = block
        hits.append(found)
    return hits


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(60, 400), deadline=None)
@given(prompts=PROMPTS, size=st.integers(1, 30))
def test_the_heap_finds_the_victim_that_a_search_finds(policy, prompts, size):
    paths, ids, counts = as_blocks(prompts)
    (found,) = policy_hit_fractions(ids, counts, [size], policy, block_tokens=16)
    assert found == pytest.approx(sum(slow_hits(paths, size, policy)) / ids.size, abs=1e-12)


@settings(max_examples=examples(60, 400), deadline=None)
@given(prompts=PROMPTS, lengths=st.randoms(use_true_random=False))
def test_least_recently_used_is_the_curve_at_every_size(prompts, lengths):
    _, ids, counts = as_blocks(prompts)
    tokens = np.array([16 * int(count) - lengths.randrange(16) for count in counts])
    sizes = [1, 2, 3, 5, 8, 1000]
    curve = hit_curve(ids, counts, block_tokens=16, input_tokens=tokens).hit_fraction(
        np.array(sizes, dtype=float)
    )
    found = policy_hit_fractions(ids, counts, sizes, "lru", block_tokens=16, input_tokens=tokens)
    assert found == pytest.approx(curve.tolist(), abs=1e-12)
    for policy in POLICIES:
        (every,) = policy_hit_fractions(ids, counts, [1000], policy, block_tokens=16, input_tokens=tokens)
        assert every == pytest.approx(float(curve[-1]), abs=1e-12)


def test_a_trace_with_blocks_is_run_and_one_without_is_refused(tmp_path):
    rows = [
        {"timestamp": 1000 * i, "input_length": 1500, "output_length": 9, "hash_ids": [1, 2, 10 + i % 3]}
        for i in range(30)
    ]
    chats = written_to(tmp_path / "chats.jsonl", "\n".join(map(json.dumps, rows)))
    summary = workload_of([chats], policies=["lfu", "prefix", "lfu"])
    assert [item["policy"] for item in summary.evictions] == ["lfu", "prefix"]
    assert all(
        item["cache_tokens"] == item["blocks"] * summary.prefix.block_tokens for item in summary.evictions
    )
    day = written_to(tmp_path / "day.csv", "arrival_s,input_tokens,output_tokens\n0,10,5\n1,20,5\n")
    with pytest.raises(InputError, match="--eviction"):
        workload_of([day], policies=["lfu"])
