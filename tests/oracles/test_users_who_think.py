"""Users who think, ask and wait: an event loop of forty lines that knows nothing of engines, and the theory of such users."""

from collections import deque
from heapq import heappop, heappush
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.profile import Scheduling
from capplan.serving.fleet_simulator import simulate_fleet
from capplan.serving.outcome import SHED
from capplan.serving.requests import BEGIN_S, NO_REQUESTS, Admission, Crowd, Requests
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepTable
from capplan.serving.terms import EngineSetup
from tests.oracles.queueing_formulas import machine_repair_per_s
from tests.sweeps import examples

ONE = np.array([1.0])
MANY = np.array([0.0, 10_000.0])


def one_seat(fixed_s: float, each_s: float = 0.0) -> EngineSetup:
    """A step takes a fixed time and so much for each token in it; the next request starts when the last one is done."""
    zero, seconds = np.zeros((2, 1)), fixed_s + each_s * MANY
    table = StepTable(MANY, seconds, 0.0 * MANY, ONE, zero, MANY, seconds, ONE, ONE, np.zeros((1, 1)))
    return EngineSetup(table, Scheduling("mixed", 1, 16_384), 10**8)


def by_hand(arrivals_s, service_s, users, think_s, asked_service_s, counters=1):
    """Return arrival and end of every request, in order of arrival, at counters with a queue each, dealt in turn."""
    order, rows, out = count(), iter(zip(think_s, asked_service_s, strict=True)), []
    events = []
    for at_s, service in zip(arrivals_s, service_s, strict=True):
        heappush(events, (at_s, 0, next(order), service, False))

    def ask(now_s):
        think, service = next(rows, (None, None))
        if think is not None:
            heappush(events, (now_s + think, 1, next(order), service, True))

    for user in range(users):
        heappush(events, (BEGIN_S * user, -1, next(order), None, True))
    queues, busy = [deque() for _ in range(counters)], [False] * counters
    ends = []

    def start(place, now_s):
        index, service, is_user = queues[place].popleft()
        busy[place] = True
        heappush(ends, (now_s + service, next(order), place, index, is_user))

    while events or ends:
        if ends and (not events or ends[0][0] <= events[0][0]):
            now_s, _, place, index, is_user = heappop(ends)
            out[index][1] = now_s
            busy[place] = False
            if is_user:
                ask(now_s)
        else:
            now_s, _, _, service, is_user = heappop(events)
            if service is None:  # a user begins
                ask(now_s)
                continue
            place = len(out) % counters
            queues[place].append((len(out), service, is_user))
            out.append([now_s, np.nan])
        if queues[place] and not busy[place]:
            start(place, now_s)
    return np.array(out).reshape(-1, 2).T


@pytest.mark.long
@settings(max_examples=examples(100, 200), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_users_and_arrivals_share_counters_as_by_hand(seed: int) -> None:
    """A request of n tokens takes 0.1 s + n x 0.01 s at a counter of its own; sums are taken in one order: 1e-9."""
    rng = np.random.default_rng(seed)
    clocked, asked = int(rng.integers(0, 30)), int(rng.integers(1, 60))
    arrival_s = np.sort(rng.random(clocked) * 10.0)
    think_s = rng.exponential(float(rng.choice([0.01, 0.5, 20.0])), asked)
    lengths = [rng.integers(1, 100, size) for size in (clocked, asked)]
    users, counters = int(rng.integers(1, 12)), int(rng.integers(1, 4))
    arrived, ended = by_hand(
        arrival_s, 0.1 + 0.01 * lengths[0], users, think_s, 0.1 + 0.01 * lengths[1], counters
    )
    requests = Requests(lengths[0], np.ones(clocked, dtype=np.int64), arrival_s)
    crowd = Crowd(Requests(lengths[1], np.ones(asked, dtype=np.int64)), users, think_s)
    engine = one_seat(0.1, 0.01)
    runs = [simulate_fleet(requests, engine, counters, crowd=crowd).outcome]
    if counters == 1:
        runs.append(simulate(requests, engine, crowd=crowd))
    for outcome in runs:
        assert outcome.arrival_s == pytest.approx(arrived, rel=1e-9)
        assert outcome.arrival_s + outcome.e2e_s == pytest.approx(ended, rel=1e-9)


@pytest.mark.parametrize(("users", "think_s"), [(1, 3.0), (4, 3.0), (8, 6.0), (12, 4.0)])
def test_exponential_users_of_one_server_are_the_machine_repairmans(users: int, think_s: float) -> None:
    """Services of 1 s in steps of 10 ms; 40,000 requests leave 2 % of noise, and the law of users under 0.1 %.

    X = N / (Z + R): Denning, Buzen 1978, "The operational analysis of queueing network models", section 4,
    doi:10.1145/356733.356735; bounds X <= min(1 / s, N / (s + Z)), section 5.
    """
    rng = np.random.default_rng(users)
    count = 40_000
    thinks = rng.exponential(think_s, count)
    asked = Requests(np.ones(count, dtype=np.int64), rng.geometric(0.01, count))
    outcome = simulate(None, one_seat(0.01), crowd=Crowd(asked, users, thinks))
    rate = outcome.requests_per_s
    assert rate == pytest.approx(machine_repair_per_s(users, think_s, 1.0), rel=0.02)
    assert rate == pytest.approx(users / (thinks.mean() + outcome.e2e_s.mean()), rel=1e-3)
    service_s = 0.01 * asked.output_tokens.mean()
    assert rate <= min(1.0 / service_s, users / (service_s + thinks.mean())) * 1.001


def test_users_who_think_for_long_never_meet() -> None:
    """Five users, a request every 10,000 s each, services of 1 s: a response time is a service, but one in thousands."""
    rng = np.random.default_rng(2)
    asked = Requests(np.ones(2000, dtype=np.int64), np.full(2000, 100))
    outcome = simulate(None, one_seat(0.01), crowd=Crowd(asked, 5, rng.exponential(1e4, 2000)))
    assert np.median(outcome.e2e_s) == pytest.approx(1.0)
    assert np.mean(outcome.e2e_s > 1.0 + 1e-9) < 0.002


def test_a_user_begins_to_think_when_the_answer_is_complete() -> None:
    """Two users, services of 1 s: asked at 1, 2, 2 + 3 and 3 + 1 after each has begun; at 4 the clocked request is ahead of the user's."""
    asked = Requests(np.ones(4, dtype=np.int64), np.ones(4, dtype=np.int64))
    crowd = Crowd(asked, 2, np.array([1.0, 2.0, 3.0, 1.0]))
    outcome = simulate(None, one_seat(1.0), crowd=crowd)
    assert outcome.arrival_s == pytest.approx([1.0, 2.0 + BEGIN_S, 4.0, 5.0 + BEGIN_S], abs=BEGIN_S)
    assert outcome.e2e_s == pytest.approx([1.0, 1.0, 1.0, 1.0], abs=BEGIN_S)
    clocked = Requests(np.array([5]), np.array([2]), np.array([4.0]))
    both = simulate(clocked, one_seat(1.0), crowd=crowd)
    assert both.arrival_s == pytest.approx([1.0, 2.0, 4.0, 4.0, 5.0], abs=2.0 * BEGIN_S)
    assert both.output_tokens.tolist() == [1, 1, 2, 1, 1]
    assert both.e2e_s == pytest.approx([1.0, 1.0, 2.0, 3.0, 3.0], abs=2.0 * BEGIN_S)


def test_a_user_who_is_turned_away_thinks_and_asks_again() -> None:
    """One seat, one may wait, services of 1 s: the third user is shed at 0.5 s and comes back after 2 s of thought."""
    asked = Requests(np.ones(5, dtype=np.int64), np.ones(5, dtype=np.int64))
    crowd = Crowd(asked, 3, np.array([0.0, 0.25, 0.5, 2.0, 9.0]))
    outcome = simulate(None, one_seat(1.0), crowd=crowd, admission=Admission(queue_limit=1))
    assert outcome.status.tolist() == [0, 0, SHED, 0, 0]
    begun_s = BEGIN_S * np.array([0, 1, 2, 2, 0])
    assert outcome.arrival_s == pytest.approx(np.array([0.0, 0.25, 0.5, 2.5, 10.0]) + begun_s)


def test_everybody_may_be_a_user_and_nobody_need_be() -> None:
    engine = one_seat(1.0)
    asked = Requests(np.ones(3, dtype=np.int64), np.ones(3, dtype=np.int64))
    together = simulate(None, engine, crowd=Crowd(asked, 9))
    assert together.arrival_s + together.e2e_s == pytest.approx([1.0, 2.0, 3.0])
    assert simulate(NO_REQUESTS, engine, crowd=Crowd(NO_REQUESTS, 9)).e2e_s.size == 0
    assert simulate(asked, engine, crowd=Crowd(NO_REQUESTS, 9)).e2e_s.tolist() == [1.0, 2.0, 3.0]
