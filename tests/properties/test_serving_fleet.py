"""Several engines behind a router against a fleet that is written to be obviously right; and laws that must hold."""

import sys
from dataclasses import replace
from importlib import import_module
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from calibrate.live.python_core import python_core
from capplan.engine.profile import Scheduling
from capplan.errors import InputError
from capplan.serving import fleet_simulator, pool_simulator, simulator
from capplan.serving.dispatcher import EnginePool, Router
from capplan.serving.fleet_simulator import EnginePlan, simulate_disaggregated, simulate_fleet
from capplan.serving.outcome import FINISHED, SHED, UNFINISHED
from capplan.serving.requests import BEGIN_S, Admission, ClosedLoopUsers, Requests, offered
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepTable, decode_step_s
from capplan.serving.terms import Autoscaling, EngineSetup, Failure, Hedging, KvLink
from tests.constant_steps import constant_steps
from tests.sweeps import examples

sys.path.insert(0, str(Path(__file__).parent))
steps = import_module("test_serving_simulator")
Reference, front_end, random_case, random_table = (
    steps.Reference,
    steps.front_end,
    steps.random_case,
    steps.random_table,
)

POLICIES = pytest.mark.parametrize("policy", ["mixed", "prefill_first"])


class SlowReplica(Reference):
    """One replica, step by step, that gets its requests from a router."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **{**options, "concurrency": None})
        self.arrivals, self.due, self.ends = [], [], []
        self.tell = None

    def release(self, at_s):
        self.ends.append(at_s)
        self.tell(at_s)

    def arrive(self):
        """A row comes as new, a request that was under way elsewhere as it is."""
        due = self.due.pop(0)
        if isinstance(due, int):
            self.next_row = due
            super().arrive()
        else:
            self.arrivals.pop(0)
            self.everyone.append(due)
            self.waiting.append(due)
            self.waiting.sort(key=lambda r: (r.priority, r.index))
        self.next_row = 0

    def send(self, due, arrival_s, at_s):
        self.arrivals.append((arrival_s, at_s))
        self.due.append(due)
        self.next_row = 0

    def fail(self, at_s):
        """What was here goes elsewhere, at the end of the step under way, with the tokens it has."""
        end_s = max(at_s, self.now)
        late = [
            (end_s, (0, due) if isinstance(due, int) else (due.priority, due.index), due, arrival_s)
            for due, (arrival_s, _) in zip(self.due, self.arrivals, strict=True)
        ]
        for request in self.running + self.waiting:
            request.computed = 0
            late.append((end_s, (request.priority, request.index), request, request.arrival_s))
        self.running, self.waiting, self.due, self.arrivals = [], [], [], []
        return late

    def start_s(self):
        """When its next step begins."""
        if self.running or self.waiting:
            return self.now
        return max(self.now, self.arrivals[0][1]) if self.arrivals else inf

    def one_step(self):
        before = self.now = self.start_s()
        self.next_row = 0
        self.receive()
        while self.now == before and (self.running or self.waiting or self.seen() < before):
            self.step()
            self.next_row = 0
            self.receive()


def slow_fleet(requests, table, scheduling, blocks, options, replicas, routing, failures=()):
    """Whatever comes first, a failure, an arrival or a step of some replica, one after the other."""
    concurrency, until_s = options["concurrency"], options["until_s"]
    engines = [SlowReplica(requests, table, scheduling, blocks, **options) for _ in range(replicas)]
    clients = (
        requests.arrival_s.tolist()
        if concurrency is None
        else [BEGIN_S * client for client in range(concurrency)]
    )
    for engine in engines:
        engine.tell = lambda at_s: clients.append(at_s) if concurrency is not None else None
    sent, alive, last, row, rejected = [0] * replicas, list(range(replicas)), -1, 0, {}
    failures, late, reached_s = sorted(failures), [], 0.0
    while True:
        clients.sort()
        late.sort(key=lambda entry: entry[:2])
        arrival = (
            front_end(requests, table, row, clients[0], reached_s) if clients and row < len(requests) else inf
        )
        failure = failures[0][0] if failures else inf
        again = late[0][0] if late else inf
        first = min(engines, key=lambda engine: engine.start_s())
        event = min(arrival, failure, again)
        if min(event, first.start_s()) >= until_s:
            break
        if first.start_s() < event:
            first.one_step()
            continue
        if failure == event:
            number = failures.pop(0)[1]
            alive.remove(number)
            late += engines[number].fail(event)
            continue
        if again == event:
            _, _, due, at_s = late.pop(0)
        else:
            due, at_s, reached_s = row, clients.pop(0), arrival
            row += 1
            prompt, output = int(requests.input_tokens[due]), int(requests.output_tokens[due])
            cached = 0 if requests.cached_tokens is None else int(requests.cached_tokens[due])
            cached = min(cached, prompt - 1)
            own = prompt - cached // scheduling.block_tokens * scheduling.block_tokens + output - 1
            too_long = not scheduling.chunked and prompt - cached > scheduling.max_num_batched_tokens
            if too_long or engines[0].blocks(own) > blocks:
                rejected[due] = at_s
                engines[0].tell(event)
                continue
        if routing == "round_robin":
            last = next((number for number in alive if number > last), alive[0])
        else:
            last = min(alive, key=lambda n: (sent[n] - sum(end <= event for end in engines[n].ends), n))
        engines[last].send(due, at_s, event)
        sent[last] += 1
    for engine in engines:
        while engine.arrivals:
            engine.next_row = 0
            engine.now = max(engine.now, engine.arrivals[0][1])
            engine.receive(engine.now)
    return engines, rejected


@POLICIES
@pytest.mark.parametrize("routing", ["round_robin", "least_loaded"])
@settings(max_examples=examples(40, 150), deadline=None)
@given(seed=st.integers(0, 10**6), replicas=st.integers(2, 4))
def test_a_fleet_by_events_is_a_fleet_by_steps(policy: str, routing: str, seed: int, replicas: int) -> None:
    """Same results to rounding: 1e-9 relative, for sums are taken in another order."""
    requests, table, scheduling, blocks, options = random_case(seed, policy)
    options["until_s"] = inf
    rng = np.random.default_rng(seed + 1)
    failures = [
        (float(rng.random() * 2.0), int(number))
        for number in rng.permutation(replicas)[: int(rng.integers(0, replicas))]
    ]
    if failures or routing == "least_loaded" or options["concurrency"] is not None:
        options["admission"] = Admission(priority=options["admission"].priority)
    slow, rejected = slow_fleet(requests, table, scheduling, blocks, options, replicas, routing, failures)
    clocked, crowd = offered(requests, options["concurrency"], None)
    run = simulate_fleet(
        clocked,
        EngineSetup(table, replace(scheduling, reserved_output_fraction=options["fraction"]), blocks),
        replicas,
        routing=routing,
        failures=failures,
        crowd=crowd,
        admission=options["admission"],
    )
    fast = run.outcome
    rows = {r.index: r for engine in slow for r in engine.everyone}
    assert set(rows) | set(rejected) == set(range(len(fast.status)))
    states = {"shed": SHED, "finished": FINISHED, "waiting": UNFINISHED}
    near = {"rel": 1e-9, "abs": 1e-9, "nan_ok": True}
    for row in range(len(fast.status)):
        if row in rejected:
            assert fast.status[row] == SHED
            continue
        assert fast.status[row] == states[rows[row].state]
        assert fast.ttft_s[row] == pytest.approx(rows[row].first_s - rows[row].arrival_s, **near)
        assert fast.e2e_s[row] == pytest.approx(rows[row].end_s - rows[row].arrival_s, **near)
    assert fast.preemptions == sum(engine.preemptions for engine in slow)
    assert fast.seconds == pytest.approx(max(engine.now for engine in slow), rel=1e-9)


def events(seed: int, replicas: int):
    """Failures, autoscaling and hedging at random."""
    rng = np.random.default_rng(seed + 10**7)
    scaled = rng.random() < 0.4
    failures = [
        Failure(float(rng.random() * 3.0), int(number), inf if scaled or rng.random() < 0.5 else 0.5)
        for number in rng.permutation(replicas)[: int(rng.integers(0, replicas))]
    ]
    scaling = Autoscaling(
        1, replicas + 2, start_s=float(rng.random()), rate_per_s=float(rng.uniform(0.2, 20.0)), interval_s=0.2,
        window_s=0.5, hold_s=float(rng.random()),
    )  # fmt: skip
    hedging = Hedging(float(rng.random() * 0.3), "finish" if rng.random() < 0.5 else "first_token")
    return {
        "failures": failures,
        "autoscaling": scaling if scaled else None,
        "hedging": hedging if rng.random() < 0.5 else None,
    }


def random_run(seed: int, policy: str, *, until: bool = False):
    requests, table, scheduling, blocks, options = random_case(seed, policy)
    replicas = 2 + seed % 3
    happening = events(seed, replicas)
    clocked, crowd = offered(requests, options["concurrency"], None)
    run = simulate_fleet(
        clocked,
        EngineSetup(table, replace(scheduling, reserved_output_fraction=options["fraction"]), blocks),
        replicas,
        routing=("round_robin", "least_loaded")[seed % 2],
        crowd=crowd,
        until_s=options["until_s"] if until else inf,
        admission=options["admission"],
        **happening,
    )
    return run, requests, happening


@POLICIES
@settings(max_examples=examples(40, 250), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_nothing_is_lost_whatever_happens_to_the_fleet(policy: str, seed: int) -> None:
    """Every request ends once; each token is generated once, but for those of copies that were cancelled."""
    run, requests, happening = random_run(seed, policy)
    outcome = run.outcome
    assert outcome.count(FINISHED) + outcome.count(SHED) == len(requests)
    done = outcome.finished
    assert np.all(np.isfinite(outcome.e2e_s[done]) & np.isfinite(outcome.ttft_s[done]))
    assert np.all(outcome.e2e_s[done] >= outcome.ttft_s[done])
    gaps = outcome.output_tokens[done].sum() - done.sum()
    if not outcome.count(SHED) and happening["hedging"] is None:
        assert outcome.itl.weight == pytest.approx(gaps)
    elif not outcome.count(SHED):
        cancelled = run.cancelled_output_tokens
        assert gaps + cancelled - run.copied_requests <= outcome.itl.weight <= gaps + cancelled
    worked = outcome.prefill_tokens + outcome.cached_tokens
    if outcome.preemptions == run.rerouted_requests == run.copied_requests == 0:
        assert worked == outcome.input_tokens[done].sum()
    else:
        assert worked >= outcome.input_tokens[done].sum()
    lifetimes = [use.until_s - use.from_s for use in run.replicas]
    assert run.replica_seconds == pytest.approx(sum(lifetimes))
    assert all(life >= use.gauges.busy_s - 1e-9 for life, use in zip(lifetimes, run.replicas, strict=True))
    assert 0.0 <= outcome.kv_occupancy_mean <= 1.0
    assert_never_busier_than_there(run)


def assert_never_busier_than_there(run):
    """No replica, no span and no fleet is busy for longer than it is there, and time is counted once."""
    outcome, line = run.outcome, run.outcome.timeline
    assert 0.0 <= outcome.busy_fraction <= 1.0 + 1e-9
    assert line.busy_fraction.max() <= 1.0 + 1e-9
    starts = line.start_s
    there = sum(
        np.clip(np.minimum(use.until_s, starts + line.span_s) - np.maximum(use.from_s, starts), 0.0, None)
        for use in run.replicas
    )
    busy = sum(use.gauges.busy_s for use in run.replicas)
    if len(run.replicas) > 1:
        assert line.busy_fraction @ there == pytest.approx(busy, rel=1e-6, abs=1e-9)


@POLICIES
@settings(max_examples=examples(40, 300), deadline=None)
@given(seed=st.integers(0, 10**6), until_s=st.floats(0.01, 3.0))
def test_no_replica_is_busy_for_longer_than_it_is_there(policy: str, seed: int, until_s: float) -> None:
    assert_never_busier_than_there(random_run(seed, policy, until=True)[0])
    assert_never_busier_than_there(random_disaggregation(seed, 1e3, until_s=until_s)[0])


def test_a_replica_that_is_taken_away_is_there_until_its_step_ends() -> None:
    """A copy that was cancelled at 12 s keeps replica 1 busy until 15.5 s; at 13 s it is told to leave."""
    one, tokens = np.array([1.0]), np.array([1.0, 100.0])
    table = StepTable(one, one, 0 * one, one, np.array([[0.0]]), tokens, tokens, one, one, np.array([[0.0]]))
    requests = Requests(np.array([1, 4, 10, 1]), np.array([1, 1, 2, 1]), np.array([0.0, 0.0, 0.5, 30.0]))
    run = simulate_fleet(
        requests,
        EngineSetup(table, Scheduling("mixed", 4, 64), 100),
        2,
        hedging=Hedging(5.0),
        autoscaling=Autoscaling(1, 2, start_s=1.0, rate_per_s=1e3, interval_s=13.0, hold_s=0.0),
    )
    gone = run.replicas[1]
    assert (gone.replica, gone.gauges.busy_s, gone.until_s) == (1, 14.0, 15.5)


@POLICIES
@settings(max_examples=examples(40, 300), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_every_block_comes_back_whatever_happens(policy: str, seed: int) -> None:
    """No engine, ended or not, holds a request, a token or a promise of blocks when all is over and the last output has arrived."""
    lives, cores = [], []
    start, empty_core = EnginePool.start, pool_simulator.FlatPool.empty_core

    def kept(pool, number, at_s):
        lives.append(start(pool, number, at_s))
        return lives[-1]

    def kept_core(*of):
        cores.append(empty_core(*of))
        return cores[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EnginePool, "start", kept)
        for place, name in (
            (simulator, "FlatEngine"),
            (pool_simulator, "FlatEngine"),
            (pool_simulator, "FlatPools"),
            (pool_simulator, "FlatRouter"),
        ):
            patch.setattr(place, name, getattr(python_core(), name))
        patch.setattr(pool_simulator.FlatPool, "empty_core", kept_core)
        random_run(seed, policy)
        random_disaggregation(seed, 1e3)
        patch.setattr(fleet_simulator, "pools_eligible", lambda *_: False)
        random_run(seed, policy)
        random_disaggregation(seed, 1e3)
    assert len(lives) >= 4
    for core in (*cores, *(life.core for life in lives)):
        core.waits_for_output()
        assert (core.over, core.waiting, core.partial, core.kv.sequences) == (core.arrivals, 0, -1, 0)
        assert (core.kv.tokens, core.held, core.committed, core.shared_sum) == (0, 0, 0, 0)
    assert all((life.load, life.flights) == (0, {}) for life in lives)


@POLICIES
@settings(max_examples=examples(40, 180), deadline=None)
@given(seed=st.integers(0, 10**6))
@example(seed=240)  # two users ask again at the same time
@example(seed=1722)  # a deadline passes in a step before another request ends with it
@example(seed=8902)  # a queue that is full when another request is sent has room once a deadline has passed
def test_one_replica_is_one_engine(policy: str, seed: int) -> None:
    """To the byte without a router; to rounding through one, with a failure that comes too late."""
    requests, table, scheduling, blocks, options = random_case(seed, policy)
    # Steps that wait for launches take equal times, and requests at the very end of a step fall on either side of it by rounding.
    table = replace(table, launch_s=None)
    clocked, crowd = offered(requests, options["concurrency"], None)
    rules = {"crowd": crowd, "admission": options["admission"]}
    alone = simulate(clocked, EngineSetup(table, scheduling, blocks), **rules)
    same = simulate_fleet(clocked, EngineSetup(table, scheduling, blocks), 1, **rules).outcome
    routed = simulate_fleet(
        clocked, EngineSetup(table, scheduling, blocks), 1, failures=[(1e6, 0)], hedging=Hedging(0.1), **rules
    ).outcome
    # A step that is planned ahead tells which deadlines passed when the one after it is planned: other users have asked meanwhile.
    told_late = scheduling.asynchronous and options["concurrency"] and bool((alone.status == SHED).any())
    for name in ("status", "queue_s", "ttft_s", "tpot_s", "e2e_s"):
        assert getattr(alone, name).tobytes() == getattr(same, name).tobytes()
        assert told_late or getattr(routed, name) == pytest.approx(
            getattr(alone, name), rel=1e-9, abs=1e-9, nan_ok=True
        )


@pytest.mark.parametrize(
    "events",
    [
        {"hedging": Hedging(0.5)},
        {"failures": [(1e6, 0)], "hedging": Hedging(0.5)},
        {"autoscaling": Autoscaling(1, 1, start_s=1.0, rate_per_s=1e3, interval_s=0.5)},
    ],
)
def test_a_user_asks_again_when_a_deadline_ends_the_wait_whatever_the_fleet_does_meanwhile(events) -> None:
    """A step takes until 1 s, the deadline of the second user passes at 0.3 s, and other events come at 0.5 s."""
    one = np.array([1.0])
    table = StepTable(one, 0.5 * one, 0 * one, one, np.array([[0.0]]), one, one, one, one, np.array([[0.0]]))
    requests, crowd = offered(Requests(np.array([9, 9, 9]), np.array([3, 1, 1])), 2, None)
    engine = EngineSetup(table, Scheduling("mixed", 1, 64), 10)
    run = simulate_fleet(requests, engine, 1, crowd=crowd, admission=Admission(deadline_s=(0.3,)), **events)
    assert run.outcome.arrival_s == pytest.approx([0.0, BEGIN_S, BEGIN_S + 0.3])


def busy_case(seed: int, count: int = 300):
    rng = np.random.default_rng(seed)
    requests = Requests(
        rng.integers(5, 60, count), rng.integers(1, 40, count), np.cumsum(rng.exponential(0.05, count))
    )
    return requests, random_table(rng), Scheduling("mixed", 8, 64, block_tokens=4), 400


def random_disaggregation(seed: int, bytes_per_s: float, latency_s: float = 0.0, until_s: float = inf):
    requests, table, scheduling, blocks, options = random_case(seed, "mixed")
    rng = np.random.default_rng(seed + 1)
    reserving = replace(
        scheduling, reserved_output_fraction=options["fraction"], draws_first=bool(rng.random() < 0.5)
    )
    plans = [
        EnginePlan(EngineSetup(table, reserving, blocks), int(rng.integers(1, 4)), routing)
        for routing in ("round_robin", "least_loaded")
    ]
    run = simulate_disaggregated(
        requests,
        *plans,
        KvLink(1.0, bytes_per_s, latency_s),
        concurrency=options["concurrency"],
        until_s=until_s,
        admission=options["admission"],
    )
    return run, requests


@settings(max_examples=examples(40, 250), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_nothing_is_lost_between_prefill_and_decode(seed: int) -> None:
    run, requests = random_disaggregation(seed, 1e3, 0.01)
    outcome = run.outcome
    assert outcome.count(FINISHED) + outcome.count(SHED) == len(requests)
    done = outcome.finished
    assert outcome.itl.weight == outcome.output_tokens[done].sum() - done.sum()
    assert outcome.itl.total == pytest.approx(np.sum((outcome.e2e_s - outcome.ttft_s)[done]), abs=1e-9)
    more = done & (outcome.output_tokens > 1)
    least = outcome.input_tokens[more] / 1e3 + 0.01
    assert np.all(outcome.ttft_s[more] > least - 1e-9)


def slow_decode(arrivals, table, seats, replicas):
    """Return when requests join the steps of decode engines with room for everything, when their first step ends, and their last.

    arrivals: (time, row, context, steps); seats alone decide.
    """
    engines = [{"now": 0.0, "waiting": [], "running": []} for _ in range(replicas)]
    ends = [[] for _ in range(replicas)]
    sent, joins_s, first_s, end_s = [0] * replicas, {}, {}, {}
    arrivals = sorted(arrivals)
    while True:
        busy = [e for e in engines if e["waiting"] or e["running"]]
        first = min(busy, key=lambda e: e["now"], default=None)
        if arrivals and (first is None or arrivals[0][0] <= first["now"]):
            at_s, row, context, steps = arrivals.pop(0)
            loads = [count - sum(end <= at_s for end in done) for count, done in zip(sent, ends, strict=True)]
            chosen = loads.index(min(loads))
            engine = engines[chosen]
            if not engine["waiting"] and not engine["running"]:
                engine["now"] = max(engine["now"], at_s)
            engine["waiting"] = sorted([*engine["waiting"], [row, context, steps]])
            sent[chosen] += 1
            continue
        if first is None:
            return joins_s, first_s, end_s
        while first["waiting"] and len(first["running"]) < seats:
            first["running"].append(first["waiting"].pop(0))
            joins_s[first["running"][-1][0]] = first["now"]
        contexts = [context for _, context, _ in first["running"]]
        first["now"] += float(decode_step_s(table, float(len(contexts)), np.mean(contexts)))
        for entry in first["running"]:
            first_s.setdefault(entry[0], first["now"])
            entry[1] += 1
            entry[2] -= 1
            if not entry[2]:
                end_s[entry[0]] = first["now"]
                ends[engines.index(first)].append(first["now"])
        first["running"] = [entry for entry in first["running"] if entry[2]]


@POLICIES
@settings(max_examples=examples(40, 150), deadline=None)
@given(
    seed=st.integers(0, 10**6), prefillers=st.integers(1, 3), decoders=st.integers(1, 3), draws=st.booleans()
)
def test_prefill_and_decode_apart_are_two_fleets_by_steps(
    policy: str, seed: int, prefillers: int, decoders: int, draws: bool
) -> None:
    """A fleet that makes one token of each request, a line of transfers per engine, and engines that only decode, step after step.

    A decode engine draws the first token in its first step, or streams the one of the prefill engine when it begins.
    """
    requests, table, scheduling, _, options = random_case(seed, policy)
    scheduling = replace(scheduling, chunked=True)
    plain = {**options, "concurrency": None, "until_s": inf, "admission": Admission(), "fraction": 0.0}
    one_token = replace(requests, output_tokens=np.ones(len(requests), dtype=np.int64), cached_tokens=None)
    link = KvLink(bytes_per_token=3.0, bytes_per_s=float(10 ** (1 + seed % 3)), latency_s=0.01)
    slow, _ = slow_fleet(one_token, table, scheduling, 10**4, plain, prefillers, "least_loaded")
    first_s, arrivals = {}, []
    for engine in slow:
        free_s = 0.0
        for request in sorted(engine.everyone, key=lambda r: (r.first_s, r.index)):
            row, prompt = request.index, request.prompt
            first_s[row] = request.first_s
            if requests.output_tokens[row] > 1:
                free_s = max(request.first_s, free_s) + prompt * 3.0 / link.bytes_per_s
                arrivals.append((free_s + 0.01, row, prompt, int(requests.output_tokens[row]) - (not draws)))
    joins_s, drawn_s, end_s = slow_decode(arrivals, table, scheduling.max_num_seqs, decoders)
    end_s = {**first_s, **end_s}
    first_s |= drawn_s if draws else joins_s
    fast = simulate_disaggregated(
        replace(requests, cached_tokens=None),
        EnginePlan(EngineSetup(table, scheduling, 10**4), prefillers),
        EnginePlan(
            EngineSetup(table, replace(scheduling, asynchronous=False, draws_first=draws), 10**4), decoders
        ),
        link,
    ).outcome
    assert fast.count(FINISHED) == len(requests)
    rows = range(len(requests))
    ttft = np.array([first_s[row] for row in rows]) - requests.arrival_s
    assert fast.ttft_s == pytest.approx(ttft, rel=1e-9)
    assert fast.e2e_s == pytest.approx(np.array([end_s[row] for row in rows]) - requests.arrival_s, rel=1e-9)


@settings(max_examples=examples(40, 150), deadline=None)
@given(seed=st.integers(0, 10**6), draws=st.booleans())
def test_decode_engines_by_themselves_do_what_they_do_behind_a_prefill_pool_that_takes_no_time(
    seed: int, draws: bool
) -> None:
    requests, table, scheduling, _, _ = random_case(seed, "mixed")
    requests = replace(
        requests,
        output_tokens=requests.output_tokens + 1,
        cached_tokens=None,
        class_index=None,
        block_ids=None,
        block_counts=None,
    )
    scheduling = replace(scheduling, draws_first=draws, asynchronous=False)
    quick = replace(
        table,
        mixed_s=1e-12 * table.mixed_s,
        head_s=0.0 * table.head_s,
        prefill_attention_s=0.0 * table.prefill_attention_s,
        launch_s=None,
        request_s=0.0,
        prompt_token_s=0.0,
    )
    table = replace(table, request_s=0.0, prompt_token_s=0.0)
    prefill = EnginePlan(EngineSetup(quick, Scheduling("mixed", 10**4, 10**6), 10**5), 1)
    behind = simulate_disaggregated(
        requests,
        prefill,
        EnginePlan(EngineSetup(table, scheduling, 10**4), 2, "round_robin"),
        KvLink(0.0, inf),
    )
    alone = simulate_fleet(
        requests, EngineSetup(table, replace(scheduling, takes_over=True), 10**4), 2, routing="round_robin"
    )
    for name in ("ttft_s", "e2e_s", "status"):
        assert getattr(alone.outcome, name) == pytest.approx(
            getattr(behind.outcome, name), rel=1e-6, abs=1e-9
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"replicas": 0}, "replicas is 0"),
        (
            {"routing": "sticky"},
            "known: round_robin, random, least_loaded, reported_load, prefix_aware, gpu_prefix_aware",
        ),
        ({"routing": "prefix_aware"}, "block ids"),
        ({"failures": [(1.0, 2)]}, "failure of replica 2"),
        ({"autoscaling": Autoscaling(3, 5, start_s=1.0, rate_per_s=1.0)}, "cannot start with 2"),
        (
            {"crowd": ClosedLoopUsers(Requests(np.ones(2, dtype=np.int64), np.ones(2, dtype=np.int64)), 0)},
            "users is 0",
        ),
        ({"until_s": 0.0}, "until_s is 0"),
    ],
)
def test_a_fleet_that_cannot_be_simulated_is_refused_by_name(options, words: str) -> None:
    requests, table, scheduling, blocks = busy_case(1, 5)
    with pytest.raises(InputError, match=words):
        simulate_fleet(requests, EngineSetup(table, scheduling, blocks), **{"replicas": 2, **options})
    static = Scheduling("static", 8, 64)
    with pytest.raises(InputError, match="static batching"):
        simulate_fleet(requests, EngineSetup(table, static, blocks), 2)


class Reporting:
    """What a router sees of an engine."""

    def __init__(self, number, load, reported_load):
        self.number, self.load, self.reported_load = number, load, reported_load


def test_a_router_of_reports_sends_to_the_fewest_that_were_reported_and_to_any_of_a_tie():
    engines = [Reporting(0, 1, 3), Reporting(1, 9, 2), Reporting(2, 9, 2)]
    router = Router("reported_load", 16)
    chosen = {router.choice(engines, None).number for _ in range(50)}
    assert chosen == {1, 2}
    assert Router("least_loaded", 16).choice(engines, None).number == 0


def test_requests_between_two_reports_see_the_same_loads():
    """While all steps run nothing is reported: replicas get unequal numbers of prompts, where counted loads would share them out evenly."""
    table = constant_steps(0.5)
    engine = EngineSetup(table, Scheduling("mixed", 64, 10**6, chunked=True), kv_blocks=10**6)
    burst = np.concatenate([np.zeros(4), np.linspace(0.1, 0.4, 40)])
    requests = Requests(np.full(44, 9), np.full(44, 2), burst)
    counted, reported = (
        [use.requests for use in simulate_fleet(requests, engine, 4, routing=routing).replicas]
        for routing in ("least_loaded", "reported_load")
    )
    assert counted == [11, 11, 11, 11]
    assert sum(reported) == 44
    assert max(reported) > 11


def test_reports_are_as_good_as_counts_when_each_request_ends_before_the_next_one():
    table = constant_steps(0.5)
    engine = EngineSetup(table, Scheduling("mixed", 64, 64), kv_blocks=100)
    requests = Requests(np.full(6, 9), np.full(6, 2), 10.0 * np.arange(6.0))
    found = [
        simulate_fleet(requests, engine, 3, routing=routing).outcome.ttft_s.tolist()
        for routing in ("least_loaded", "reported_load")
    ]
    assert found[0] == pytest.approx(found[1])
