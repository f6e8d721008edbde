"""Several engines behind a router against a fleet that is written to be obviously right; and laws that must hold."""

import sys
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.profile import Scheduling
from capplan.errors import InputError
from capplan.serving.block_cache import PrefixCaching
from capplan.serving.fleet_simulator import EnginePlan, simulate_disaggregated, simulate_fleet
from capplan.serving.fleet_terms import Autoscaling, Failure, Hedging, KvLink
from capplan.serving.outcome import FINISHED, SHED, UNFINISHED
from capplan.serving.requests import Admission, Requests
from capplan.serving.simulator import simulate

sys.path.insert(0, str(Path(__file__).parent))
from test_serving_simulator import Reference, random_case, random_table

POLICIES = pytest.mark.parametrize("policy", ["mixed", "prefill_first"])
ROWS = ("status", "queue_s", "ttft_s", "tpot_s", "e2e_s")


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
        self.next_row = self.due.pop(0)
        super().arrive()

    def send(self, row, arrival_s, enqueued_s):
        self.arrivals.append((arrival_s, enqueued_s))
        self.due.append(row)
        self.next_row = 0

    def start_s(self):
        """When its next step begins."""
        if self.running or self.waiting:
            return self.now
        return max(self.now, self.arrivals[0][1]) if self.arrivals else inf

    def one_step(self):
        self.now = self.start_s()
        self.next_row = 0
        self.receive()
        before = self.now
        if self.running or self.waiting:
            self.step()
            assert self.now > before
        self.next_row = 0
        self.receive()


def slow_fleet(requests, table, scheduling, blocks, options, replicas, routing):
    """Whatever comes first, an arrival or a step of some replica, one after the other."""
    concurrency, until_s = options["concurrency"], options["until_s"]
    engines = [SlowReplica(requests, table, scheduling, blocks, **options) for _ in range(replicas)]
    if concurrency is None:
        clients = [float(at_s) for at_s in requests.arrival_s]
    else:
        clients = [0.0] * concurrency
    for engine in engines:
        engine.tell = lambda at_s: clients.append(at_s) if concurrency is not None else None
    sent = [0] * replicas
    turn = row = 0
    rejected = {}
    while True:
        clients.sort()
        arrival = clients[0] + table.request_s if clients and row < len(requests) else inf
        first = min(engines, key=lambda engine: engine.start_s())
        if min(arrival, first.start_s()) >= until_s:
            break
        if first.start_s() < arrival:
            first.one_step()
            continue
        at_s = clients.pop(0)
        prompt, output = int(requests.input_tokens[row]), int(requests.output_tokens[row])
        cached = 0 if requests.cached_tokens is None else int(requests.cached_tokens[row])
        cached = min(cached, prompt - 1)
        own = prompt - cached // scheduling.block_tokens * scheduling.block_tokens + output - 1
        too_long = not scheduling.chunked and prompt - cached > scheduling.max_num_batched_tokens
        if too_long or engines[0].blocks(own) > blocks:
            rejected[row] = at_s
            engines[0].tell(arrival)
        else:
            if routing == "round_robin":
                chosen, turn = turn % replicas, turn + 1
            else:
                loads = [
                    count - sum(end <= arrival for end in e.ends)
                    for count, e in zip(sent, engines, strict=True)
                ]
                chosen = loads.index(min(loads))
            engines[chosen].send(row, at_s, arrival)
            sent[chosen] += 1
        row += 1
    for engine in engines:
        while engine.arrivals:
            engine.next_row = 0
            engine.now = max(engine.now, engine.arrivals[0][1])
            engine.receive()
    return engines, rejected


@POLICIES
@pytest.mark.parametrize("routing", ["round_robin", "least_loaded"])
@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), replicas=st.integers(2, 4))
def test_a_fleet_by_events_is_a_fleet_by_steps(policy: str, routing: str, seed: int, replicas: int) -> None:
    """Same results to rounding: 1e-9 relative, for sums are taken in another order."""
    requests, table, scheduling, blocks, options = random_case(seed, policy)
    if options["until_s"] < inf:
        options["until_s"] = inf
    if routing == "least_loaded" or options["concurrency"] is not None:
        options["admission"] = Admission(priority=options["admission"].priority)
    slow, rejected = slow_fleet(requests, table, scheduling, blocks, options, replicas, routing)
    run = simulate_fleet(
        requests,
        table,
        scheduling,
        blocks,
        replicas,
        routing=routing,
        concurrency=options["concurrency"],
        admission=options["admission"],
        reserved_output_fraction=options["fraction"],
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
    assert fast.seconds == pytest.approx(max(engine.now for engine in slow if engine.everyone or True), rel=1e-9)
