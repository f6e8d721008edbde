"""The flat core gives what Server gives, to the bit: compiled or not, with preemptions, by the clock, from users, or both."""

import importlib.util
import sys
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib import import_module
from itertools import product
from math import inf
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.profile import Scheduling
from capplan.fleet.load.offered import users_idle_from_s
from capplan.serving import flat, flat_core, fleet_simulator
from capplan.serving.block_cache import PrefixCaching
from capplan.serving.flat import eligible, flat_outcome
from capplan.serving.fleet_simulator import (
    EnginePlan,
    FleetRun,
    simulate_disaggregated,
    simulate_fleet,
)
from capplan.serving.outcome import FINISHED, SHED, EarlyEnd, LatencyLimit, timeline_of
from capplan.serving.requests import NO_REQUESTS, Admission, Crowd, Requests, UserGroup, offered
from capplan.serving.server import served
from capplan.serving.step_table import StepTable
from capplan.serving.terms import EngineSetup, KvLink
from tests.sweeps import examples

sys.path.insert(0, str(Path(__file__).parent))
steps = import_module("test_serving_simulator")


def as_python():
    """Return the classes of the core as Python, whether compiled ones are beside them or not."""
    loaded = {}
    for name in ("capplan.serving.engine_parts", "capplan.serving.flat_core"):
        path = Path(flat.__file__).with_name(name.rpartition(".")[2] + ".py")
        spec = importlib.util.spec_from_file_location(name, path)
        loaded[name] = importlib.util.module_from_spec(spec)
        with mock.patch.dict(sys.modules, loaded):
            spec.loader.exec_module(loaded[name])
    return loaded["capplan.serving.flat_core"]


CLASSES = ("FlatEngine", "FlatRouter", "FlatPools")
CORES = {"as installed": flat_core, "in Python": as_python()}


@contextmanager
def running_on(core: str):
    """Run the flat core as it is installed, or as Python."""
    with mock.patch.multiple(flat, **{name: getattr(CORES[core], name) for name in CLASSES}):
        yield


def assert_equal(fast, slow) -> None:
    for field in fields(slow):
        left, right = getattr(fast, field.name), getattr(slow, field.name)
        if field.name == "itl":
            assert (left.weight_by_bin, left.weight, left.total) == (
                right.weight_by_bin,
                right.weight,
                right.total,
            )
        elif field.name == "timeline":
            for name in ("start_s", "span_s", "batch_sequences", "kv_blocks", "busy_fraction"):
                assert np.array_equal(getattr(left, name), getattr(right, name)), name
        elif field.name in ("admitted_tokens", "found_tokens"):
            assert right is None or np.array_equal(left, right), field.name
        elif isinstance(right, np.ndarray):
            assert left.tobytes() == right.tobytes(), field.name
        elif field.name != "hit_blocks":
            assert left == right, field.name


def who_asks(requests: Requests, options: dict, seed: int) -> tuple[Requests, Crowd | None]:
    """Everything by the clock, everything from users without think time, or both kinds with think times."""
    rng = np.random.default_rng(seed)
    if rng.random() < 0.5:
        return offered(requests, options["concurrency"], None)
    count = len(requests)
    clocked = int(rng.choice([0, count // 3, count]))
    asked = requests.between(clocked // 2, count)
    think_s = rng.exponential(float(rng.choice([1e-3, 0.1, 2.0])), len(asked))
    think_s[rng.random(len(asked)) < 0.3] = 0.0
    if rng.random() < 0.3:
        think_s = np.round(think_s, 1)
    crowd = Crowd(asked, int(rng.integers(1, 40)), think_s)
    return requests.between(0, clocked), crowd if rng.random() < 0.5 else in_groups(crowd, rng)


def alike(requests: Requests, rng: np.random.Generator) -> Requests:
    """Requests without block ids; some are all of one length, whose steps end at the same times, and some have one token of output."""
    requests = replace(requests, block_ids=None, block_counts=None)
    if rng.random() < 0.3:
        one = np.ones_like(requests.input_tokens)
        requests = replace(requests, input_tokens=20 * one, output_tokens=5 * one, cached_tokens=None)
    single = rng.random(len(requests)) < rng.choice([0.0, 0.3])
    return replace(requests, output_tokens=np.where(single, 1, requests.output_tokens))


def in_groups(crowd: Crowd, rng: np.random.Generator) -> Crowd:
    """Deal the requests of a crowd to groups of users; some run out of requests early, or all at a common number."""
    count = len(crowd.requests)
    ends = np.sort(rng.integers(0, count + 1, int(rng.integers(1, 4))))
    rows = np.diff(np.concatenate(([0], ends, [count]))).tolist()
    groups = tuple(UserGroup(int(rng.integers(1, 20)), of_group) for of_group in rows)
    most = None if rng.random() < 0.3 else int(rng.integers(1, count + 5))
    users = sum(group.users for group in groups)
    return replace(crowd, users=users, groups=groups, most_requests=most)


def with_rounds(engine: EngineSetup, seed: int) -> EngineSetup:
    """Every other engine without pipeline speculates: whole yields, broken ones, and none for several drafts."""
    rng = np.random.default_rng(seed + 1)
    if engine.clock.stages > 1 or rng.random() < 0.5:
        return engine
    query = int(rng.integers(2, 9))
    tokens = float(rng.choice([1.0, query, rng.uniform(1.0, query)]))
    rules = engine.scheduling
    budget = max(rules.max_num_batched_tokens, rules.max_num_seqs * query)
    rules = replace(rules, max_num_batched_tokens=budget)
    return replace(engine, scheduling=rules, tokens_per_step=tokens, query_tokens=query)


@pytest.mark.parametrize("policy", ["mixed", "prefill_first"])
@pytest.mark.parametrize("core", CORES)
@settings(max_examples=examples(40, 300), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_flat_arrays_give_what_the_server_gives(core: str, policy: str, seed: int) -> None:
    requests, table, scheduling, blocks, options = steps.random_case(seed, policy)
    stages = int(np.random.default_rng(seed).choice([1, 1, 2, 3]))
    table = replace(table, stages=stages, stage_fraction=min(1.1 / stages, 1.0))
    requests = replace(requests, block_ids=None, block_counts=None)
    scheduling = replace(
        scheduling,
        reserved_output_fraction=options["fraction"],
        takes_over=seed % 3 == 0,
        draws_first=seed % 2 == 0,
    )
    engine = with_rounds(EngineSetup(table, scheduling, blocks), seed)
    requests, crowd = who_asks(requests, options, seed)
    assert eligible(requests, engine, Admission(), crowd)
    load = {"crowd": crowd, "until_s": options["until_s"]}
    slow = served(requests, engine, **load)
    with running_on(core):
        assert_equal(flat_outcome(requests, engine, **load), slow)
        bare = flat_outcome(requests, engine, gauged=False, **load)
    for name in ("status", "arrival_s", "queue_s", "ttft_s", "tpot_s", "e2e_s", "class_index"):
        assert getattr(bare, name).tobytes() == getattr(slow, name).tobytes(), name
    assert (bare.steps, bare.preemptions, bare.prefill_tokens) == (
        slow.steps,
        slow.preemptions,
        slow.prefill_tokens,
    )
    assert bare.busy_fraction == slow.busy_fraction
    assert bare.itl.weight == bare.batch_mean == bare.timeline.start_s.size == 0


@pytest.mark.parametrize("policy", ["mixed", "prefill_first"])
@pytest.mark.parametrize("core", CORES)
@settings(max_examples=examples(60, 400), deadline=None)
@given(seed=st.integers(0, 10**6), metric=st.sampled_from(flat.METRICS), share=st.floats(0.0, 1.2))
def test_a_run_ends_early_only_where_the_whole_run_misses_the_limit(core, policy, seed, metric, share):
    """What requests saw until then is what they see in the whole run; a run by the clock always ends early where it misses."""
    requests, table, scheduling, blocks, options = steps.random_case(seed, policy)
    engine = EngineSetup(table, scheduling, blocks)
    requests, crowd = who_asks(replace(requests, block_ids=None, block_counts=None), options, seed)
    if crowd is not None and crowd.groups:
        crowd = replace(crowd, groups=(), users=min(crowd.users, 40), most_requests=None)
    rng = np.random.default_rng(seed)
    with running_on(core):
        whole = flat_outcome(requests, engine, crowd=crowd)
        values, first = getattr(whole, f"{metric}_s"), int(rng.integers(0, whole.arrival_s.size))
        limit_s = share * float(np.nanmax(values, initial=1e-9))
        until_s = float(rng.choice([inf, whole.arrival_s[-1] * rng.random()]))
        end = EarlyEnd((LatencyLimit(metric, limit_s, int(rng.integers(0, 8))),), first, until_s)
        run = flat_outcome(requests, engine, crowd=crowd, early_end=end)
    counts = (np.arange(values.size) >= first) & (whole.arrival_s <= until_s)
    if crowd is not None:
        counts &= whole.arrival_s <= users_idle_from_s(
            whole.arrival_s, whole.e2e_s, min(crowd.users, len(crowd.requests))
        )
    above = np.count_nonzero(values[counts] > limit_s)
    if run.missed is None:
        assert_equal(run, whole)
        assert crowd is not None or above <= end.limits[0].most_above
    else:
        assert above > end.limits[0].most_above or (crowd is not None and len(requests))
        done = np.isfinite(run.e2e_s)
        assert np.array_equal(run.e2e_s[done], whole.e2e_s[: done.size][done])


def many_requests(rng: np.random.Generator) -> Requests:
    count = 3000
    return Requests(
        rng.integers(1, 300, count),
        rng.integers(1, 200, count),
        np.cumsum(rng.exponential(0.02, count)),
        rng.integers(0, 100, count),
        rng.integers(0, 3, count),
    )


@pytest.mark.long
def test_a_crowded_engine_preempts_alike() -> None:
    """Three thousand requests in a cache that holds twenty of them, by the clock and from users."""
    rng = np.random.default_rng(5)
    requests = many_requests(rng)
    engine = EngineSetup(steps.random_table(rng), Scheduling("mixed", 64, 256), 400)
    think_s = rng.exponential(0.5, len(requests))
    cases = (
        (requests, None),
        (NO_REQUESTS, Crowd(requests, 48)),
        (NO_REQUESTS, Crowd(requests, 100, think_s)),
        (requests, Crowd(requests, 20, think_s)),
    )
    for (clocked, crowd), policy in product(cases, ("mixed", "prefill_first")):
        engine = replace(engine, scheduling=replace(engine.scheduling, policy=policy))
        slow = served(clocked, engine, crowd=crowd)
        assert slow.preemptions > 100
        assert_equal(flat_outcome(clocked, engine, crowd=crowd), slow)


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
    assert eligible(NO_REQUESTS, engine, Admission(), Crowd(requests, 1))
    assert not eligible(requests, engine, Admission(), Crowd(named, 1))
    assert not eligible(requests, engine, Admission(), Crowd(iter([requests]), 1))
    assert not eligible(NO_REQUESTS, engine, Admission(), Crowd(NO_REQUESTS, 1))
    assert eligible(requests, replace(engine, tokens_per_step=2.0, query_tokens=3), Admission())
    staged = replace(table, stages=2, stage_fraction=0.5)
    for change in (
        {"caching": PrefixCaching(16)},
        {"tokens_per_step": 2.0, "query_tokens": 3, "table": staged},
        {"batch_timeout_s": inf, "scheduling": Scheduling("static", 8, 64)},
    ):
        assert not eligible(requests, replace(engine, **change), Admission())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_fleet_of_one_is_the_same_core(seed: int) -> None:
    """With what its one replica did, to the bit; a queue limit that nobody meets leaves it to the server."""
    requests, table, scheduling, blocks, options = steps.random_case(seed, "mixed")
    requests = replace(requests, block_ids=None, block_counts=None)
    engine = EngineSetup(table, scheduling, blocks)
    requests, crowd = who_asks(requests, options, seed)
    if crowd is not None and not crowd.thinks:
        crowd = None
    load = {"crowd": crowd, "until_s": options["until_s"]}
    runs = []
    for admission in (Admission(), Admission(queue_limit=10**6)):
        with mock.patch.object(fleet_simulator, "flat_run", wraps=fleet_simulator.flat_run) as core:
            runs.append(simulate_fleet(requests, engine, 1, admission=admission, **load))
            assert core.called == eligible(requests, engine, admission, crowd)
    assert_same_run(*runs)
    assert len(runs[0].replicas) == 1


def assert_same_run(fast: FleetRun, slow: FleetRun) -> None:
    """All rows, all totals, and what each replica did."""
    assert_equal(fast.outcome, slow.outcome)
    assert fast.replica_seconds == slow.replica_seconds
    for one, other in zip(fast.replicas, slow.replicas, strict=True):
        for name in ("replica", "pool", "from_s", "until_s", "requests", "preemptions"):
            assert getattr(one, name) == getattr(other, name), name
        left, right = one.gauges, other.gauges
        for name in ("batch_s", "occupancy_s", "block_seconds", "busy_s", "capacity"):
            assert list(np.trim_zeros(np.ravel(getattr(left, name)), "b")) == list(
                np.trim_zeros(np.ravel(getattr(right, name)), "b")
            )
        assert (
            timeline_of(left, 1.0).busy_fraction.tobytes() == timeline_of(right, 1.0).busy_fraction.tobytes()
        )


@pytest.mark.parametrize("core", CORES)
@settings(max_examples=examples(100, 400), deadline=None)
@given(seed=st.integers(0, 10**6), by_clock=st.booleans())
def test_flat_pools_give_what_the_dispatcher_gives(core: str, seed: int, by_clock: bool) -> None:
    """Prefill and decode engines of other speeds and sizes, in turn or by load, for requests that arrive or that users send."""
    rng = np.random.default_rng(seed)
    policy = str(rng.choice(["mixed", "prefill_first"]))
    requests, table, scheduling, blocks, options = steps.random_case(seed, policy)
    requests = alike(requests, rng)
    scheduling = replace(
        scheduling, reserved_output_fraction=options["fraction"], draws_first=bool(rng.random() < 0.5)
    )
    stages = int(rng.choice([1, 1, 2, 3]))
    table = replace(table, stages=stages, stage_fraction=min(1.1 / stages, 1.0))
    first = EngineSetup(table, scheduling, blocks)
    later = EngineSetup(
        steps.random_table(rng), scheduling, max(int(blocks * rng.choice([0.3, 1.0, 1.0])), 1)
    )
    prefill, decode = (
        EnginePlan(engine, int(rng.integers(1, 5)), str(rng.choice(["round_robin", "least_loaded"])))
        for engine in (first, with_rounds(later, seed))
    )
    link = KvLink(*(float(rng.choice(values)) for values in ((0, 1e5), (1e6, 1e8, inf), (0, 1e-3, 0.1))))
    requests, crowd = (requests, None) if by_clock else who_asks(requests, options, seed)
    until_s = inf if crowd is None else options["until_s"]
    with running_on(core), without_dispatcher():
        fast = simulate_disaggregated(requests, prefill, decode, link, crowd=crowd, until_s=until_s)
    slow = dispatched(requests, prefill, decode, link, crowd=crowd, until_s=until_s)
    assert_same_run(fast, slow)


def without_dispatcher():
    """Let no run reach the dispatcher."""
    return mock.patch.object(fleet_simulator, "_dispatcher", side_effect=AssertionError("not on the core"))


def dispatched(*load, **options) -> FleetRun:
    """Run separate pools on the dispatcher."""
    with mock.patch.object(fleet_simulator, "pools_eligible", return_value=False):
        return simulate_disaggregated(*load, **options)


@pytest.mark.parametrize("core", CORES)
def test_prompts_that_end_together_move_on_in_the_order_of_their_engines(core: str) -> None:
    """Two prompts of 1 s on two engines, of which the first decodes longer: each decode engine gets the one that the dispatcher sends it."""
    one, none = np.array([1.0]), np.array([[0.0]])
    table = StepTable(one, 0.5 * one, 0 * one, one, none, one, one, one, one, none)
    engine = EngineSetup(table, Scheduling("mixed", 4, 64), 10)
    plans = EnginePlan(engine, 2), EnginePlan(engine, 2)
    requests = Requests(np.full(2, 9), np.array([9, 3]), np.zeros(2))
    crowd = Crowd(Requests(np.array([9]), np.array([2])), 1, np.array([30.0]))
    with running_on(core), without_dispatcher():
        fast = simulate_disaggregated(requests, *plans, KvLink(0.0, inf), crowd=crowd)
    assert_same_run(fast, dispatched(requests, *plans, KvLink(0.0, inf), crowd=crowd))
    assert [round(use.gauges.busy_s, 9) for use in fast.replicas if use.pool == "decode"] == [4.5, 1.0]


@pytest.mark.parametrize("core", CORES)
def test_a_request_of_one_token_needs_no_room_in_a_decode_engine(core: str) -> None:
    """Forty blocks of prompt, where decode engines hold three: served if one token is asked for, else shed."""
    one, none = np.array([1.0]), np.array([[0.0]])
    table = StepTable(one, 0.5 * one, 0 * one, one, none, one, one, one, one, none)
    rules = Scheduling("mixed", 4, 1024)
    plans = EnginePlan(EngineSetup(table, rules, 100), 1), EnginePlan(EngineSetup(table, rules, 3), 1)
    users = Requests(np.full(3, 640), np.array([1, 2, 1]))
    with running_on(core), without_dispatcher():
        fast = simulate_disaggregated(NO_REQUESTS, *plans, KvLink(0.0, inf), crowd=Crowd(users, 1))
    assert_same_run(fast, dispatched(NO_REQUESTS, *plans, KvLink(0.0, inf), crowd=Crowd(users, 1)))
    assert fast.outcome.status.tolist() == [FINISHED, SHED, FINISHED]


def test_crowded_pools_preempt_alike() -> None:
    """Three thousand requests through decode engines whose caches hold twenty of them."""
    rng = np.random.default_rng(6)
    requests = many_requests(rng)
    link = KvLink(1e4, 1e8, 1e-3)
    crowd, table = Crowd(requests, 150, rng.exponential(0.5, len(requests))), steps.random_table(rng)
    for routing, draws in (("round_robin", False), ("least_loaded", True)):
        engine = EngineSetup(table, Scheduling("mixed", 64, 256, draws_first=draws), 400)
        plans = EnginePlan(engine, 8, routing), EnginePlan(engine, 2, routing)
        for arrives, asks in ((requests, None), (NO_REQUESTS, crowd), (requests, crowd)):
            slow = dispatched(arrives, *plans, link, crowd=asks)
            assert slow.outcome.preemptions > 100
            with without_dispatcher():
                fast = simulate_disaggregated(arrives, *plans, link, crowd=asks)
            assert_same_run(fast, slow)


@pytest.mark.parametrize("core", CORES)
@settings(max_examples=examples(40, 400), deadline=None)
@given(seed=st.integers(0, 10**6), by_clock=st.booleans())
def test_users_behind_a_router_of_cores_see_what_the_dispatcher_gives(
    core: str, seed: int, by_clock: bool
) -> None:
    """Identical replicas in turn or by load, for requests that arrive or that users send."""
    rng = np.random.default_rng(seed)
    policy = str(rng.choice(["mixed", "prefill_first"]))
    requests, table, scheduling, blocks, options = steps.random_case(seed, policy)
    requests = alike(requests, rng)
    scheduling = replace(scheduling, reserved_output_fraction=options["fraction"])
    engine = with_rounds(EngineSetup(table, scheduling, blocks), seed)
    requests, crowd = (requests, None) if by_clock else who_asks(requests, options, seed)
    routing = str(rng.choice(["round_robin", "least_loaded"]))
    load = {"routing": routing, "crowd": crowd, "until_s": inf if crowd is None else options["until_s"]}
    replicas = int(rng.integers(2, 5))
    with running_on(core), without_dispatcher():
        fast = simulate_fleet(requests, engine, replicas, **load)
    with mock.patch.object(fleet_simulator, "pools_eligible", return_value=False):
        assert_same_run(fast, simulate_fleet(requests, engine, replicas, **load))


def test_a_router_of_pools_counts_no_request_as_ended_before_it_has() -> None:
    """Prompts of 1 s, one decode step of 2 s. The third arrives there at 2.6 s, when the first two decode until 3 and 3.5 s."""
    one, none = np.array([1.0]), np.array([[0.0]])
    table = StepTable(one, 2.0 * one, 0 * one, one, none, one, one, one, one, none)
    engine = EngineSetup(table, Scheduling("mixed", 1, 64), 10)
    plans = EnginePlan(engine, 3), EnginePlan(engine, 3, "least_loaded")
    requests = Requests(np.full(4, 9), np.full(4, 2), np.array([0.0, 0.5, 1.6, 30.0]))
    for admission in (Admission(), Admission(queue_limit=10**6)):
        run = simulate_disaggregated(requests, *plans, KvLink(0.0, inf), admission=admission)
        assert run.outcome.e2e_s.tolist() == pytest.approx([3.0] * 4)
        assert [use.requests for use in run.replicas if use.pool == "decode"] == [2, 1, 1]
