"""The prefix cache inside the simulator, and caches that evict by a rule: what is found, and that everything is given back."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.profile import Scheduling
from capplan.errors import InputError
from capplan.recorded.traces.trace import workload_of
from capplan.serving.block_cache import OffloadTier, PrefixCaching, PullLink
from capplan.serving.fleet_simulator import simulate_fleet
from capplan.serving.outcome import FINISHED
from capplan.serving.prefix_cache import hit_curve, policy_hit_fractions
from capplan.serving.requests import Requests
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepTable
from capplan.serving.terms import EngineSetup, Failure, Routing
from tests.files import written_to
from tests.sweeps import examples

ONE = np.array([1.0])
TABLE = StepTable(
    ONE, 0.013 * ONE, 0.0 * ONE, ONE, np.array([[0.001]]), ONE, 0.017 * ONE, ONE, ONE, np.array([[0.0]])
)


def requests_of(prompts: list[list[int]], outputs: list[int], gap_s: float) -> Requests:
    """Prompts of whole blocks of 16 tokens and one token more."""
    return Requests(
        np.array([16 * len(prompt) + 1 for prompt in prompts]),
        np.array(outputs),
        np.arange(len(prompts)) * gap_s,
        block_ids=np.array([block for prompt in prompts for block in prompt], dtype=np.int64),
        block_counts=np.array([len(prompt) for prompt in prompts]),
    )


prompts_of_blocks = st.lists(st.lists(st.integers(0, 12), unique=True, max_size=6), min_size=1, max_size=25)


def test_what_another_engine_has_computed_is_pulled_and_not_worked_on_again() -> None:
    """Two engines take turns. The second one pulls three of the four blocks of its prompt, at 5 ms a block after 20 ms."""
    requests = requests_of([[1, 2, 3, 4], [1, 2, 3, 5]], [1, 1], gap_s=1.0)
    scheduling = Scheduling("mixed", 4, 512)
    run = {
        pull: simulate_fleet(
            requests, EngineSetup(TABLE, scheduling, 6, caching=PrefixCaching(16, pull=pull)), 2
        )
        for pull in (None, PullLink(0.005, 0.02))
    }
    alone, pulls = (found.outcome for found in run.values())
    assert (alone.cached_tokens, pulls.cached_tokens) == (0, 48)
    assert pulls.prefill_tokens == alone.prefill_tokens - 48
    local = simulate(requests, EngineSetup(TABLE, scheduling, 6, caching=PrefixCaching(16)))
    assert pulls.ttft_s[1] == pytest.approx(local.ttft_s[1] + 0.02 + 3 * 0.005)


def test_a_prompt_that_is_not_computed_yet_is_not_pulled() -> None:
    requests = requests_of([[1, 2, 3, 4], [1, 2, 3, 4]], [1, 1], gap_s=0.0)
    engine = EngineSetup(TABLE, Scheduling("mixed", 4, 512), 6, caching=PrefixCaching(16, pull=PullLink(0.0)))
    assert simulate_fleet(requests, engine, 2).outcome.cached_tokens == 0


@settings(max_examples=examples(40, 150), deadline=None)
@given(prompts=prompts_of_blocks, seed=st.integers(0, 10**6))
def test_engines_that_pull_give_all_blocks_back(prompts: list[list[int]], seed: int) -> None:
    """Under load, with preemption, tiers and a replica that fails and comes back: every request ends, and no token is lost or counted twice."""
    rng = np.random.default_rng(seed)
    requests = requests_of(prompts, rng.integers(1, 40, len(prompts)).tolist(), gap_s=0.02)
    caching = PrefixCaching(16, (OffloadTier(3, 0.001),), PullLink(0.002, 0.003))
    engine = EngineSetup(TABLE, Scheduling("mixed", 4, 64), 12, caching=caching)
    fleet = simulate_fleet(requests, engine, 3, routing="least_loaded", failures=[Failure(0.05, 1, 0.1)])
    outcome = fleet.outcome
    assert outcome.count(FINISHED) == len(prompts)
    worked = outcome.prefill_tokens + outcome.cached_tokens
    assert worked >= outcome.input_tokens.sum()
    if outcome.preemptions == fleet.rerouted_requests == 0:
        assert worked == outcome.input_tokens.sum()


def test_a_router_that_sees_gpu_memory_only_misses_what_was_offloaded() -> None:
    """Four engines whose GPU holds a few prompts each. The router that sees host memory too sends prompts where they are."""
    rng = np.random.default_rng(3)
    prompts = [[100 * k + j for j in range(8)] for k in rng.integers(0, 40, 400)]
    requests = requests_of(prompts, rng.integers(1, 20, len(prompts)).tolist(), gap_s=0.02)

    def found(routing: Routing, *tiers: OffloadTier) -> int:
        engine = EngineSetup(TABLE, Scheduling("mixed", 8, 512), 40, caching=PrefixCaching(16, tiers))
        return simulate_fleet(requests, engine, 4, routing=routing).outcome.cached_tokens

    host = OffloadTier(80, 0.001)
    assert found("prefix_aware", host) > 1.1 * found("gpu_prefix_aware", host)
    assert found("prefix_aware") == found("gpu_prefix_aware")


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
