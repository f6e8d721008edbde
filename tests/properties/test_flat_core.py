"""The core gives the same to the bit compiled and as Python, whatever an engine does; and pools on it what the dispatcher gives."""

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

from calibrate.live.python_core import python_core
from capplan.engine.profile import Scheduling
from capplan.fleet.load.offered import users_idle_from_s
from capplan.serving import flat_slots, flat_static, fleet_simulator, pool_simulator, simulator
from capplan.serving.block_cache import OffloadTier, PrefixCaching
from capplan.serving.fleet_simulator import EnginePlan, FleetRun, simulate_disaggregated, simulate_fleet
from capplan.serving.outcome import FINISHED, SHED, EarlyEnd, LatencyLimit, timeline_of
from capplan.serving.requests import NO_REQUESTS, Admission, ClosedLoopUsers, Requests, UserGroup, offered
from capplan.serving.simulator import simulate
from capplan.serving.terms import EngineSetup, KvLink
from tests.constant_steps import constant_steps
from tests.sweeps import examples

sys.path.insert(0, str(Path(__file__).parent))
steps = import_module("test_serving_simulator")


CLASSES = {
    "FlatEngine": (simulator, pool_simulator),
    "FlatPools": (pool_simulator,),
    "FlatRouter": (pool_simulator,),
    "FlatSlots": (flat_slots,),
    "FlatStatic": (flat_static,),
}
"""Classes of the core, and the modules in which their users look them up."""
CORES = {
    "as installed": {name: getattr(places[0], name) for name, places in CLASSES.items()},
    "in Python": {name: getattr(python_core(), name) for name in CLASSES},
}


@contextmanager
def running_on(core: str):
    """Run the flat core as it is installed, or as Python."""
    with pytest.MonkeyPatch.context() as patch:
        for name, places in CLASSES.items():
            for place in places:
                patch.setattr(place, name, CORES[core][name])
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
        elif isinstance(right, np.ndarray):
            assert left.tobytes() == right.tobytes(), field.name
        elif field.name != "hit_blocks":
            assert left == right, field.name


def who_asks(requests: Requests, options: dict, seed: int) -> tuple[Requests, ClosedLoopUsers | None]:
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
    crowd = ClosedLoopUsers(asked, int(rng.integers(1, 40)), think_s)
    return requests.between(0, clocked), crowd if rng.random() < 0.5 else in_groups(crowd, rng)


def alike(requests: Requests, rng: np.random.Generator) -> Requests:
    """Requests without block ids; some are all of one length, whose steps end at the same times, and some have one token of output."""
    requests = replace(requests, block_ids=None, block_counts=None)
    if rng.random() < 0.3:
        one = np.ones_like(requests.input_tokens)
        requests = replace(requests, input_tokens=20 * one, output_tokens=5 * one, cached_tokens=None)
    single = rng.random(len(requests)) < rng.choice([0.0, 0.3])
    return replace(requests, output_tokens=np.where(single, 1, requests.output_tokens))


def in_groups(crowd: ClosedLoopUsers, rng: np.random.Generator) -> ClosedLoopUsers:
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
    variance = float(rng.choice([0.0, rng.uniform(0.0, (tokens - 1.0) * (query - tokens))]))
    return replace(
        engine, scheduling=rules, tokens_per_step=tokens, tokens_variance=variance, query_tokens=query
    )


def with_ids(requests: Requests, id_tokens: int, rng: np.random.Generator) -> Requests:
    """Let prompts of a few conversations share blocks, whose responses are cached for half of them."""
    ids: list[list[int]] = [[], []]
    counts: list[list[int]] = [[], []]
    for row, tokens in enumerate(requests.input_tokens.tolist()):
        chat, whole = 1000 * int(rng.integers(0, 4)), tokens // id_tokens
        shared = int(rng.integers(0, whole + 1))
        named = [*range(chat, chat + shared), *range(10**6 + 1000 * row, 10**6 + 1000 * row + whole - shared)]
        said = list(range(chat + whole, chat + whole + int(rng.integers(0, 3)))) if rng.random() < 0.5 else []
        for place, blocks in enumerate((named, said)):
            ids[place] += blocks
            counts[place].append(len(blocks))
    (prompt_ids, output_ids), (prompts, outputs) = (
        (np.array(column, dtype=np.int64) for column in ids),
        counts,
    )
    return replace(
        requests,
        cached_tokens=None,
        block_ids=prompt_ids,
        block_counts=np.array(prompts),
        output_ids=output_ids,
        output_counts=np.array(outputs),
    )


def any_case(seed: int, policy: str):
    """An engine with whatever it may do: pipelines, rounds, prefix cache with tiers, priorities, deadlines, a full queue, users."""
    rng = np.random.default_rng(seed)
    requests, table, scheduling, blocks, options = steps.random_case(seed, policy)
    stages = int(rng.choice([1, 1, 2, 3]))
    table = replace(
        table,
        stages=stages,
        stage_fraction=min(1.1 / stages, 1.0),
        separate_prefill_pass=bool(rng.random() < 0.3),
    )
    scheduling = replace(
        scheduling,
        reserved_output_fraction=options["fraction"],
        asynchronous=scheduling.asynchronous and policy != "slots",
        takes_over=policy in {"mixed", "prefill_first"} and seed % 3 == 0,
        draws_first=seed % 2 == 0,
    )
    blocks = max(blocks, scheduling.max_num_seqs)
    engine = EngineSetup(table, scheduling, blocks, batch_timeout_s=options["timeout_s"])
    if policy in {"mixed", "prefill_first"}:
        engine = with_rounds(engine, seed)
    if policy != "static" and rng.random() < 0.5:
        tiers = tuple(
            OffloadTier(int(rng.integers(0, 20)), float(rng.choice([0.0, 0.001, 0.05])))
            for _ in range(0 if policy == "slots" else int(rng.integers(0, 3)))
        )
        caching = PrefixCaching(scheduling.block_tokens * int(rng.integers(1, 4)), tiers)
        requests, engine = with_ids(requests, caching.id_tokens, rng), replace(engine, caching=caching)
    requests, crowd = who_asks(requests, options, seed)
    admission = options["admission"]
    if crowd is not None and not crowd.thinks:
        admission = replace(admission, queue_limit=None)
    return requests, engine, {"crowd": crowd, "until_s": options["until_s"], "admission": admission}


@pytest.mark.parametrize("policy", ["mixed", "prefill_first", "slots", "static"])
@settings(max_examples=examples(60, 600), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_compiled_or_not_the_core_gives_the_same(policy: str, seed: int) -> None:
    """And without gauges the times of requests and of all steps."""
    requests, engine, load = any_case(seed, policy)
    with running_on("in Python"):
        slow = simulate(requests, engine, **load)
    assert_equal(simulate(requests, engine, **load), slow)
    bare = simulate(requests, engine, gauged=False, **load)
    for name in ("status", "arrival_s", "queue_s", "ttft_s", "tpot_s", "e2e_s", "class_index"):
        assert getattr(bare, name).tobytes() == getattr(slow, name).tobytes(), name
    for name in ("steps", "preemptions", "prefill_tokens", "busy_fraction", "hit_blocks"):
        assert getattr(bare, name) == getattr(slow, name), name
    assert bare.itl.weight == bare.batch_mean == bare.timeline.start_s.size == 0


@pytest.mark.parametrize("policy", ["mixed", "prefill_first"])
@pytest.mark.parametrize("core", CORES)
@settings(max_examples=examples(60, 400), deadline=None)
@given(seed=st.integers(0, 10**6), metric=st.sampled_from(simulator.METRICS), share=st.floats(0.0, 1.2))
def test_a_run_ends_early_only_where_the_whole_run_misses_the_limit(core, policy, seed, metric, share):
    """What requests saw until then is what they see in the whole run; a run by the clock always ends early where it misses."""
    requests, table, scheduling, blocks, options = steps.random_case(seed, policy)
    engine = EngineSetup(table, scheduling, blocks)
    requests, crowd = who_asks(replace(requests, block_ids=None, block_counts=None), options, seed)
    if crowd is not None and crowd.groups:
        crowd = replace(crowd, groups=(), users=min(crowd.users, 40), most_requests=None)
    rng = np.random.default_rng(seed)
    with running_on(core):
        whole = simulate(requests, engine, crowd=crowd)
        values, first = getattr(whole, f"{metric}_s"), int(rng.integers(0, whole.arrival_s.size))
        limit_s = share * float(np.nanmax(values, initial=1e-9))
        until_s = float(rng.choice([inf, whole.arrival_s[-1] * rng.random()]))
        end = EarlyEnd((LatencyLimit(metric, limit_s, int(rng.integers(0, 8))),), first, until_s)
        run = simulate(requests, engine, crowd=crowd, early_end=end)
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
        (NO_REQUESTS, ClosedLoopUsers(requests, 48)),
        (NO_REQUESTS, ClosedLoopUsers(requests, 100, think_s)),
        (requests, ClosedLoopUsers(requests, 20, think_s)),
    )
    for (clocked, crowd), policy in product(cases, ("mixed", "prefill_first")):
        engine = replace(engine, scheduling=replace(engine.scheduling, policy=policy))
        with running_on("in Python"):
            slow = simulate(clocked, engine, crowd=crowd)
        assert slow.preemptions > 100
        assert_equal(simulate(clocked, engine, crowd=crowd), slow)


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
    table = constant_steps(0.5)
    engine = EngineSetup(table, Scheduling("mixed", 4, 64), 10)
    plans = EnginePlan(engine, 2), EnginePlan(engine, 2)
    requests = Requests(np.full(2, 9), np.array([9, 3]), np.zeros(2))
    crowd = ClosedLoopUsers(Requests(np.array([9]), np.array([2])), 1, np.array([30.0]))
    with running_on(core), without_dispatcher():
        fast = simulate_disaggregated(requests, *plans, KvLink(0.0, inf), crowd=crowd)
    assert_same_run(fast, dispatched(requests, *plans, KvLink(0.0, inf), crowd=crowd))
    assert [round(use.gauges.busy_s, 9) for use in fast.replicas if use.pool == "decode"] == [4.5, 1.0]


@pytest.mark.parametrize("core", CORES)
def test_a_request_of_one_token_needs_no_room_in_a_decode_engine(core: str) -> None:
    """Forty blocks of prompt, where decode engines hold three: served if one token is asked for, else shed."""
    table = constant_steps(0.5)
    rules = Scheduling("mixed", 4, 1024)
    plans = EnginePlan(EngineSetup(table, rules, 100), 1), EnginePlan(EngineSetup(table, rules, 3), 1)
    users = Requests(np.full(3, 640), np.array([1, 2, 1]))
    with running_on(core), without_dispatcher():
        fast = simulate_disaggregated(NO_REQUESTS, *plans, KvLink(0.0, inf), crowd=ClosedLoopUsers(users, 1))
    assert_same_run(fast, dispatched(NO_REQUESTS, *plans, KvLink(0.0, inf), crowd=ClosedLoopUsers(users, 1)))
    assert fast.outcome.status.tolist() == [FINISHED, SHED, FINISHED]


def test_crowded_pools_preempt_alike() -> None:
    """Three thousand requests through decode engines whose caches hold twenty of them."""
    rng = np.random.default_rng(6)
    requests = many_requests(rng)
    link = KvLink(1e4, 1e8, 1e-3)
    crowd, table = (
        ClosedLoopUsers(requests, 150, rng.exponential(0.5, len(requests))),
        steps.random_table(rng),
    )
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
    table = constant_steps(2.0)
    engine = EngineSetup(table, Scheduling("mixed", 1, 64), 10)
    plans = EnginePlan(engine, 3), EnginePlan(engine, 3, "least_loaded")
    requests = Requests(np.full(4, 9), np.full(4, 2), np.array([0.0, 0.5, 1.6, 30.0]))
    for admission in (Admission(), Admission(queue_limit=10**6)):
        run = simulate_disaggregated(requests, *plans, KvLink(0.0, inf), admission=admission)
        assert run.outcome.e2e_s.tolist() == pytest.approx([3.0] * 4)
        assert [use.requests for use in run.replicas if use.pool == "decode"] == [2, 1, 1]
