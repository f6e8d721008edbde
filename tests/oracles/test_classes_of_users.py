"""Users who belong to a class: exact mean value analysis, the law of interactive users, and an event loop of few lines."""

from dataclasses import replace
from heapq import heappop, heappush
from itertools import count, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.profile import Scheduling
from capplan.fleet.load.demand import demand_of_classes
from capplan.fleet.load.offered import SamplePath, split_crowd
from capplan.serving.fleet_simulator import simulate_fleet
from capplan.serving.requests import BEGIN_S, ClosedLoopUsers, Requests, joined_users
from capplan.serving.simulator import simulate
from capplan.workload.length import fixed
from capplan.workload.request_class import RequestClass
from tests.oracles.test_simulator import one_seat
from tests.sweeps import examples
from tests.tables import table


def mean_values(users: tuple[int, ...], think_s: tuple[float, ...], service_s: float) -> list[float]:
    """Return requests per second of each class at one exponential server with one service time, first come first served.

    Reiser, Lavenberg 1980, "Mean-value analysis of closed multichain queuing networks",
    doi:10.1145/322186.322195: R_c(n) = s (1 + Q(n - 1_c)), X_c = n_c / (Z_c + R_c), Q = sum X_c R_c.
    """
    queue = {}
    rates = [0.0] * len(users)
    for population in product(*(range(most + 1) for most in users)):
        waits = [
            service_s * (1.0 + queue[(*population[:c], n - 1, *population[c + 1 :])]) if n else 0.0
            for c, n in enumerate(population)
        ]
        rates = [n / (z + r) for n, z, r in zip(population, think_s, waits, strict=True)]
        queue[population] = sum(x * r for x, r in zip(rates, waits, strict=True))
    return rates


def crowd_of(rng: np.random.Generator, users, think_s, tokens, most: int) -> ClosedLoopUsers:
    """Return users of several classes; `tokens` draws the outputs of a class."""
    parts = []
    for index, (number, think) in enumerate(zip(users, think_s, strict=True)):
        asked = Requests(
            np.ones(most, dtype=np.int64), tokens(index), class_index=np.full(most, index, dtype=np.int64)
        )
        parts.append(ClosedLoopUsers(asked, number, rng.exponential(think, most)))
    return joined_users(parts, most)


def rates_of(outcome, classes: int, seconds: float) -> list[float]:
    return [float(np.sum(outcome.class_index == index)) / seconds for index in range(classes)]


@table
def test_classes_at_one_exponential_server_are_those_of_mean_value_analysis(users, think_s) -> None:
    """Services of 1 s in steps of 10 ms; the rarest class sends about 6,000 of 60,000 requests: 4 % are three errors."""
    rng, most = np.random.default_rng(4), 60_000
    crowd = crowd_of(rng, users, think_s, lambda _: rng.geometric(0.01, most), most)
    outcome = simulate(None, one_seat(0.01), crowd=crowd)
    found = rates_of(outcome, len(users), float(outcome.arrival_s.max()))
    assert found == pytest.approx(mean_values(users, think_s, 1.0), rel=0.04)


def test_mean_value_analysis_finds_one_class_split_in_two() -> None:
    """The oracle itself: four users of one class are two and two of equal classes."""
    (whole,) = mean_values((4,), (3.0,), 1.0)
    assert sum(mean_values((2, 2), (3.0, 3.0), 1.0)) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("seats", [1, 4, 64])
def test_each_class_obeys_the_law_of_interactive_users(seats: int) -> None:
    """X_c = N_c / (Z_c + R_c) with the think times and responses of the class itself, until the first user finds nothing to send.

    Denning, Buzen 1978, "The operational analysis of queueing network models", section 4, doi:10.1145/356733.356735.
    """
    rng, most = np.random.default_rng(7), 30_000
    users, think_s, outputs = (12, 5), (1.0, 5.0), (20, 400)
    crowd = crowd_of(rng, users, think_s, lambda index: np.full(most, outputs[index]), most)
    engine = one_seat(0.01)
    engine = replace(engine, scheduling=Scheduling("mixed", seats, 16_384))
    outcome = simulate(None, engine, crowd=crowd)
    ends = np.sort(outcome.arrival_s + outcome.e2e_s)
    idle_s = float(ends[most - sum(users)])
    for index, number in enumerate(users):
        sent = outcome.class_index == index
        inside = sent & (outcome.arrival_s + outcome.e2e_s <= idle_s)
        thinks = crowd.think_s[index * most : index * most + int(sent.sum())].mean()
        rate = np.sum(inside) / idle_s
        assert rate == pytest.approx(number / (thinks + outcome.e2e_s[inside].mean()), rel=0.01)


def by_hand(arrivals_s, service_s, users, think_s, asked_s, most, counters):
    """Return class, arrival and end of each request, in order of arrival, at counters with a queue each, dealt in turn."""
    order, sent, out, line, free_s = count(), [0] * len(users), [], [], [0.0] * counters
    events = [
        (at_s, 0, next(order), len(users), each_s) for at_s, each_s in zip(arrivals_s, service_s, strict=True)
    ]

    def ask(group, now_s):
        if group < len(users) and sum(sent) < most and sent[group] < len(think_s[group]):
            row = sent[group]
            sent[group] += 1
            heappush(events, (now_s + think_s[group][row], 1, next(order), group, asked_s[group][row]))

    turns = [((i + 0.5) / n, g) for g, n in enumerate(users) for i in range(min(n, len(think_s[g])))]
    for user, (_, group) in enumerate(sorted(turns)):
        heappush(events, (BEGIN_S * user, -1, next(order), group, None))
    while events or line:
        if line and (not events or line[0][0] <= events[0][0]):
            end_s, _, group = heappop(line)
            ask(group, end_s)
            continue
        now_s, _, _, group, service = heappop(events)
        if service is None:  # a user begins
            ask(group, now_s)
            continue
        place = len(out) % counters
        free_s[place] = max(free_s[place], now_s) + service
        out.append((group, now_s, free_s[place]))
        heappush(line, (free_s[place], next(order), group))
    return zip(*out, strict=True)


@pytest.mark.long
@settings(max_examples=examples(100, 300), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_arrivals_and_users_of_several_classes_are_served_as_by_hand(seed: int) -> None:
    """At one to three counters; of one to three classes, some of which run out of requests; sums are taken in one order: 1e-9."""
    rng = np.random.default_rng(seed)
    groups, counters, clocked = (int(rng.integers(*ends)) for ends in ((1, 4), (1, 4), (0, 30)))
    users, rows = (rng.integers(1, most, groups).tolist() for most in (8, 40))
    most = int(rng.integers(1, sum(rows) + 1))
    tokens = [rng.integers(1, 100, size) for size in rows]
    thinks = [rng.exponential(float(rng.choice([0.01, 0.5, 20.0])), size) for size in rows]
    parts = [
        ClosedLoopUsers(
            Requests(np.ones(size, dtype=np.int64), length, class_index=np.full(size, index)), number, think
        )
        for index, (size, length, number, think) in enumerate(zip(rows, tokens, users, thinks, strict=True))
    ]
    crowd, ones = joined_users(parts, most), np.ones(clocked, dtype=np.int64)
    arrive = Requests(
        ones, rng.integers(1, 100, clocked), np.sort(10.0 * rng.random(clocked)), class_index=groups * ones
    )
    asked_s = [0.1 * length for length in tokens]
    hand = by_hand(arrive.arrival_s, 0.1 * arrive.output_tokens, users, thinks, asked_s, most, counters)
    group, arrived, ended = map(np.array, hand)
    engine = one_seat(0.1)
    runs = [simulate_fleet(arrive, engine, counters, crowd=crowd).outcome]
    for outcome in runs + ([simulate(arrive, engine, crowd=crowd)] if counters == 1 else []):
        assert outcome.class_index.tolist() == group.tolist()
        assert outcome.arrival_s == pytest.approx(arrived, rel=1e-9)
        assert outcome.arrival_s + outcome.e2e_s == pytest.approx(ended, rel=1e-9)


QUICK = RequestClass("quick", fixed(10), fixed(20), None, users=40.0, think_time_s=1.0)
SLOW = RequestClass("slow", fixed(10), fixed(200), None, users=10.0, think_time_s=5.0)


def mean_responses(*classes: RequestClass) -> list[float]:
    """Return the mean response of each class in a run of 40,000 requests on an engine whose steps take 5 ms and 0.3 ms a token."""
    path = SamplePath(demand_of_classes(classes), count=40_000, seed=3, longest=4096)
    engine = one_seat(0.005, 0.0003)
    engine = replace(engine, scheduling=Scheduling("mixed", 48, 2048))
    outcome = simulate(None, engine, crowd=path.offered(1.0).crowd)
    return [float(outcome.e2e_s[outcome.class_index == index].mean()) for index in range(len(classes))]


def test_the_order_of_classes_and_a_class_cut_in_two_change_nothing() -> None:
    """The rare class sends about 2,000 requests of one length, whose mean response is known to a percent."""
    quick, slow = mean_responses(QUICK, SLOW)
    assert mean_responses(SLOW, QUICK) == pytest.approx([slow, quick], rel=0.01)
    half = replace(QUICK, users=20.0)
    assert mean_responses(half, half, SLOW) == pytest.approx([quick, quick, slow], rel=0.01)


def test_another_class_lowers_no_response() -> None:
    (alone,) = mean_responses(QUICK)
    assert mean_responses(QUICK, SLOW)[0] > alone


@settings(max_examples=50, deadline=None)
@given(share=st.floats(0.1, 4.0), slowness=st.floats(0.5, 4.0))
def test_each_class_has_one_sample_path_at_every_load(share: float, slowness: float) -> None:
    path = SamplePath(demand_of_classes((QUICK, SLOW)), count=300, seed=3, longest=4096)
    usual, other = path.offered(1.0).crowd, path.offered(share, slowness=slowness).crowd
    assert usual.most_requests == other.most_requests == 300
    assert [group.users for group in usual.groups] == [40, 10]
    for left, right in zip(usual.parts, other.parts, strict=True):
        for name in ("input_tokens", "output_tokens", "class_index"):
            assert np.array_equal(getattr(left.requests, name), getattr(right.requests, name))
        np.testing.assert_allclose(right.think_s * slowness, left.think_s, rtol=1e-9)


def test_a_replica_may_have_whole_users_of_some_classes_only() -> None:
    path = SamplePath(demand_of_classes((QUICK, SLOW)), count=300, seed=3, longest=4096)
    only = path.offered(0.1, users=(0, 3)).crowd
    assert (only.users, set(only.requests.class_index.tolist())) == (3, {1})
    assert path.offered(0.1, users=(0, 0)).crowd is None
    assert path.users_of_share(0.1) == (4, 1)
    assert path.users_of_share(1e-6) == (1, 0)


@pytest.mark.parametrize("replicas", [1, 3, 7, 60])
def test_a_crowd_that_is_split_keeps_its_users_and_sends_for_as_long_everywhere(replicas: int) -> None:
    """Each class is dealt evenly; a replica without users gets no requests."""
    path = SamplePath(
        demand_of_classes((QUICK, SLOW)), count=20_000, seed=3, longest=4096, response_s=(0.2, 2.0)
    )
    parts = split_crowd(path.offered(1.0).crowd, replicas)
    assert len(parts) == min(replicas, 50)
    assert sum(part.users for part in parts) == 50
    assert {part.users for part in parts} <= {50 // replicas, 50 // replicas + 1}
    rates = [sum(group.users * group.user_rate for group in part.groups) or None for part in parts]
    sent = [part.most_requests for part in parts]
    assert sum(sent) == 20_000
    if all(rates):
        seconds = np.array(sent) / np.array(rates)
        assert seconds.max() < 1.05 * seconds.min()
