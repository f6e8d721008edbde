"""The flat core gives what Server gives, to the bit: compiled or not, with preemptions, in open and closed loops."""

import importlib.util
import sys
from dataclasses import fields, replace
from importlib import import_module
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.profile import Scheduling
from capplan.serving import flat, flat_core
from capplan.serving.block_cache import PrefixCaching
from capplan.serving.flat import eligible, flat_outcome
from capplan.serving.requests import Admission, Requests
from capplan.serving.simulator import served
from capplan.serving.terms import EngineSetup

sys.path.insert(0, str(Path(__file__).parent))
steps = import_module("test_serving_simulator")


def as_python():
    """Return the core as Python, whether a compiled one is beside it or not."""
    names = tuple(f"capplan.serving.{name}" for name in ("flat_batch", "flat_steps", "flat_core"))
    installed = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    try:
        for name in names:
            path = Path(flat.__file__).with_name(f"{name.rpartition('.')[2]}.py")
            spec = importlib.util.spec_from_file_location(name, path)
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return sys.modules[names[-1]]
    finally:
        sys.modules.update(installed)


CORES = {"as installed": flat_core, "in Python": as_python()}


def assert_equal(fast, slow) -> None:
    for field in fields(slow):
        left, right = getattr(fast, field.name), getattr(slow, field.name)
        if field.name == "itl":
            assert (left._weights, left.weight, left.total) == (right._weights, right.weight, right.total)
        elif field.name == "timeline":
            for name in ("start_s", "span_s", "batch_sequences", "kv_blocks", "busy_fraction"):
                assert np.array_equal(getattr(left, name), getattr(right, name)), name
        elif isinstance(right, np.ndarray):
            assert left.tobytes() == right.tobytes(), field.name
        elif field.name != "found_blocks":
            assert left == right, field.name


@pytest.mark.parametrize("policy", ["mixed", "prefill_first"])
@pytest.mark.parametrize("core", CORES)
@settings(max_examples=300, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_flat_arrays_give_what_the_server_gives(core: str, policy: str, seed: int) -> None:
    requests, table, scheduling, blocks, options = steps.random_case(seed, policy)
    stages = int(np.random.default_rng(seed).choice([1, 1, 2, 3]))
    table = replace(table, stages=stages, stage_fraction=min(1.1 / stages, 1.0))
    requests = replace(requests, block_ids=None, block_counts=None)
    engine = EngineSetup(table, replace(scheduling, reserved_output_fraction=options["fraction"]), blocks)
    assert eligible(requests, engine, Admission())
    load = {"concurrency": options["concurrency"], "until_s": options["until_s"]}
    slow = served(requests, engine, **load)
    own, flat.FlatEngine = flat.FlatEngine, CORES[core].FlatEngine
    try:
        assert_equal(flat_outcome(requests, engine, **load), slow)
    finally:
        flat.FlatEngine = own


def test_a_crowded_engine_preempts_alike() -> None:
    """Three thousand requests in a cache that holds twenty of them, in an open and in a closed loop."""
    rng = np.random.default_rng(5)
    count = 3000
    requests = Requests(
        rng.integers(1, 300, count),
        rng.integers(1, 200, count),
        np.cumsum(rng.exponential(0.02, count)),
        rng.integers(0, 100, count),
        rng.integers(0, 3, count),
    )
    engine = EngineSetup(steps.random_table(rng), Scheduling("mixed", 64, 256), 400)
    for concurrency, policy in (
        (None, "mixed"),
        (48, "mixed"),
        (None, "prefill_first"),
        (48, "prefill_first"),
    ):
        engine = replace(engine, scheduling=replace(engine.scheduling, policy=policy))
        slow = served(requests, engine, concurrency=concurrency)
        assert slow.preemptions > 100
        assert_equal(flat_outcome(requests, engine, concurrency=concurrency), slow)


def test_what_the_core_does_not_know_goes_to_the_server() -> None:
    requests = Requests(np.array([9, 9]), np.array([3, 3]))
    table = steps.random_table(np.random.default_rng(1))
    engine = EngineSetup(table, Scheduling("mixed", 8, 64), 100)
    assert eligible(requests, engine, Admission())
    assert not eligible(iter([requests]), engine, Admission())
    assert not eligible(requests, engine, Admission(queue_limit=3))
    assert not eligible(requests, engine, Admission(priority=(1,)))
    named = replace(requests, block_ids=np.array([1, 2]), block_counts=np.array([1, 1]))
    assert not eligible(named, engine, Admission())
    for change in (
        {"caching": PrefixCaching(16)},
        {"tokens_per_step": 2.0, "query_tokens": 3},
        {"batch_timeout_s": inf, "scheduling": Scheduling("static", 8, 64)},
    ):
        assert not eligible(requests, replace(engine, **change), Admission())
