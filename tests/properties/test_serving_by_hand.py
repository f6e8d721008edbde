"""Small fleets and batches whose every event a person can follow: steps of 0.25 s, 0.5 s where prompts are worked on.

Replicas have one seat unless said otherwise, so that what is sent to one waits for what it has.
"""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.profile import Scheduling
from capplan.errors import InputError
from capplan.serving.block_cache import BlockCache, OffloadTier
from capplan.serving.fleet_simulator import EnginePlan, simulate_disaggregated, simulate_fleet
from capplan.serving.outcome import UNFINISHED
from capplan.serving.requests import Admission, Requests
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepTable
from capplan.serving.terms import (
    Autoscaling,
    EngineSetup,
    Failure,
    Hedging,
    KvLink,
    check_events,
    check_link,
    wanted_replicas,
)
from tests.constant_steps import constant_steps
from tests.sweeps import examples
from tests.tables import table

ONE = np.array([1.0])
FLAT = constant_steps(0.25, 0.5)
THREE = ([7, 1, 5], [0.0, 0.1, 0.2])
"""Outputs and arrivals of a long request, one of a single token, and one that waits for the long one."""


def near(values):
    return pytest.approx(values, rel=1e-9, abs=1e-9)


def engine(seats=1, **scheduling):
    return EngineSetup(FLAT, Scheduling("mixed", seats, 64, **scheduling), 1000)


def run(outputs, arrivals, replicas=2, seats=1, **events):
    requests = Requests(np.full(len(outputs), 10), np.array(outputs), np.array(arrivals))
    return simulate_fleet(requests, engine(seats), replicas, **events)


def e2e(found):
    return found.outcome.e2e_s.tolist()


def lives(found):
    """Return number, requests, start and end of every replica there was."""
    return [
        (use.replica, use.requests, round(use.from_s, 9), round(use.until_s, 9)) for use in found.replicas
    ]


def test_dealt_out_in_turn_the_third_waits_for_the_first():
    found = run(*THREE)
    assert found.outcome.queue_s.tolist() == near([0.0, 0.0, 1.8])
    assert e2e(found) == near([2.0, 0.5, 3.3])
    assert lives(found) == [(0, 2, 0.0, 3.5), (1, 1, 0.0, 3.5)]
    assert found.replica_seconds == near(7.0)
    assert found.outcome.busy_fraction == near((3.5 + 0.5) / 7.0)
    # One block of 16 tokens for each, of 1000 in either replica.
    assert found.outcome.kv_occupancy_mean == near((2.0 + 0.5 + 1.5) / (1000 * 7.0))
    # With two seats it starts when the step under way ends.
    assert run(*THREE, seats=2).outcome.queue_s.tolist() == near([0.0, 0.0, 0.3])


@table
def test_of_two_copies_the_first_to_finish_answers_and_the_other_has_worked_in_vain(first_output, cancelled):
    """After a second without a token the third gets a copy, in the replica that is idle: first token 1.7, last 2.7."""
    found = run([first_output, 1, 5], THREE[1], hedging=Hedging(1.0))
    assert found.outcome.ttft_s[2] == near(1.5)
    assert found.outcome.e2e_s[2] == near(2.5)
    assert (found.copied_requests, found.cancelled_output_tokens) == (1, cancelled)
    assert found.outcome.queue_s[2] == near(1.0)


def test_a_copy_that_ends_in_the_same_step_is_all_in_vain():
    """The original ends at 3.75, in a step that was under way when the copy ended at 3.7."""
    found = run([4, 1, 9], THREE[1], hedging=Hedging(1.0))
    assert found.outcome.e2e_s[2] == near(3.5)
    assert (found.copied_requests, found.cancelled_output_tokens) == (1, 9)
    early = run([4, 1, 9], THREE[1], hedging=Hedging(1.0, "first_token"))
    assert early.outcome.e2e_s[2] == near(3.5)
    assert early.cancelled_output_tokens == 1  # cancelled at 1.75, with the token of its first step


def test_who_has_a_token_in_time_gets_no_copy():
    assert run(*THREE, hedging=Hedging(2.5)).copied_requests == 0
    assert run([4, 1, 5], THREE[1], hedging=Hedging(1.6)).copied_requests == 0
    assert run([4, 1, 5], THREE[1], hedging=Hedging(1.4)).copied_requests == 1


def test_a_replica_that_fails_ends_its_step_and_its_requests_go_on_elsewhere_by_arrival():
    """The first has its second token at 0.75; in the other replica its prompt of 12 gives the third at 1.25."""
    found = run(*THREE, failures=[Failure(0.6, 0, 5.0)])
    assert e2e(found) == near([2.25, 0.5, 3.55])
    assert found.rerouted_requests == 2
    assert lives(found) == [(0, 2, 0.0, 0.75), (1, 3, 0.0, 3.75)]
    assert found.outcome.ttft_s[0] == near(0.5)  # a token that was given stays given


def test_a_repair_is_not_over_before_the_step_that_was_under_way():
    """It fails at 0.1 in a step until 0.5 and would be repaired at 0.15."""
    found = run(*THREE, failures=[Failure(0.1, 0, 0.05)])
    assert lives(found) == [(0, 1, 0.0, 0.5), (1, 3, 0.0, 3.85), (0, 0, 0.5, 3.85)]
    assert e2e(found) == near([2.35, 0.5, 3.65])


def test_requests_wait_for_the_first_replica_that_is_repaired():
    found = run(*THREE, failures=[Failure(0.6, 0, 5.0), Failure(0.7, 1, 1.0)])
    assert e2e(found) == near([3.2, 0.5, 4.5])
    assert lives(found) == [(0, 2, 0.0, 0.75), (1, 1, 0.0, 0.7), (1, 2, 1.7, 4.7)]
    alone = run([7, 5], [0.0, 0.2], 1, failures=[Failure(0.6, 0, 1.0)])
    assert e2e(alone) == near([3.1, 4.4])
    assert lives(alone) == [(0, 2, 0.0, 0.75), (0, 2, 1.6, 4.6)]
    assert run([7, 5], [0.0, 0.2], 1, failures=[(0.6, 0)]).outcome.count(UNFINISHED) == 2


def test_a_copy_that_is_lost_leaves_the_other_to_go_on():
    lost_copy = run(*THREE, hedging=Hedging(1.0), failures=[Failure(1.3, 1, inf)])
    assert e2e(lost_copy) == near([2.0, 0.5, 3.3])
    assert (lost_copy.rerouted_requests, lost_copy.cancelled_output_tokens) == (0, 1)
    lost_original = run(*THREE, hedging=Hedging(1.0), failures=[Failure(1.3, 0, inf)])
    # The first had five tokens at 1.5 and waits for the copy until 2.7; its prompt gives the sixth, a step the seventh.
    assert e2e(lost_original) == near([3.45, 0.5, 2.5])
    assert (lost_original.rerouted_requests, lost_original.cancelled_output_tokens) == (1, 0)
    late = run([6, 1, 5], THREE[1], hedging=Hedging(1.0), failures=[Failure(2.4, 0, inf)])
    assert (late.rerouted_requests, late.cancelled_output_tokens) == (0, 2)


def test_an_autoscaler_starts_what_is_missing_and_keeps_it_for_a_while():
    """A replica counts with one request a second: two that end within half a second ask for four, three are allowed."""
    rule = Autoscaling(1, 3, start_s=1.0, rate_per_s=1.0, interval_s=0.5, window_s=0.5, hold_s=2.0)
    arrivals = [0.0, 0.1, 0.2, 0.3, 0.4, 9.0]
    found = run([5] * 6, arrivals, 1, seats=3, autoscaling=rule, routing="least_loaded")
    assert sorted((found.outcome.arrival_s + found.outcome.e2e_s).tolist()) == near(
        [1.75, 2.25, 2.25, 3.5, 3.75, 10.5]
    )
    # One ends until 2.0, two until 2.5, one until 3.5 and one until 4.0: two, four, two and two are asked for. Four was two seconds ago at
    # 4.5, and two at 6.0.
    assert lives(found) == [(0, 6, 0.0, 10.5), (1, 0, 2.0, 6.5), (2, 0, 2.5, 5.0)]
    assert found.replica_seconds == near(10.5 + 4.5 + 2.5)


@settings(max_examples=examples(200, 2000), deadline=None)
@given(
    rate=st.floats(0.01, 50.0),
    bounds=st.tuples(st.integers(1, 6), st.integers(0, 9)).map(lambda b: (b[0], b[0] + b[1])),
    finished=st.floats(0.0, 500.0),
)
def test_an_autoscaler_wants_the_fewest_that_are_not_too_full(rate, bounds, finished):
    """Counted up one by one: one more as long as each would have more than its rate."""
    wanted = 0
    while wanted < bounds[1] and finished / rate > wanted:
        wanted += 1
    rule = Autoscaling(*bounds, start_s=1.0, rate_per_s=rate)
    assert wanted_replicas(rule, finished) == max(bounds[0], wanted)


def test_who_comes_once_a_new_replica_serves_goes_there():
    rule = Autoscaling(1, 2, start_s=1.0, rate_per_s=1.0, interval_s=0.5, window_s=0.5)
    found = run([1, 9, 9, 1, 1], [-0.0, 0.0, 0.1, 1.4, 1.6], 1, autoscaling=rule, routing="least_loaded")
    # One ends at 0.5, two a second: another replica starts then and serves from 1.5.
    assert lives(found)[:2] == [(0, 4, 0.0, found.outcome.seconds), (1, 1, 0.5, found.outcome.seconds)]
    assert found.outcome.e2e_s[4] == near(0.5)


def test_caches_go_over_the_link_of_their_engine_one_after_the_other():
    """Prompts of 10 and 20 tokens, worked on together until 0.5; 20 bytes a second, 0.1 s for either to get there."""
    plan = EnginePlan(engine(2), 1)
    prompts = Requests(np.array([10, 20]), np.array([3, 3]))
    link = KvLink(1.0, 20.0, 0.1)
    found = simulate_disaggregated(prompts, plan, plan, link).outcome
    # The first arrives at 0.5 + 0.5 + 0.1, the second after 1.0 s more on the link; their first tokens are there by then, and are streamed.
    assert found.ttft_s.tolist() == near([1.1, 2.1])
    assert found.e2e_s.tolist() == near([1.1 + 0.5, 2.1 + 0.5])
    single = simulate_disaggregated(Requests(np.array([10, 20]), np.array([1, 3])), plan, plan, link).outcome
    assert single.e2e_s.tolist() == near([0.5, 1.6 + 0.5])  # one token needs no decoding, and no link


def static(outputs, *, table=FLAT, timeout_s=inf, arrivals=None, seats=3, prompts=10, **more):
    setup = EngineSetup(table, Scheduling("static", seats, 64), 1000, batch_timeout_s=timeout_s)
    count = len(outputs)
    arrival = None if arrivals is None else np.array(arrivals)
    return simulate(Requests(np.full(count, prompts), np.array(outputs), arrival), setup, **more)


def test_all_of_a_static_batch_ends_together_and_its_gaps_are_those_of_its_steps():
    """Steps get longer with their context: 0.25 s and a hundredth for each token of it."""
    growing = StepTable(
        ONE,
        0.25 * ONE,
        0 * ONE,
        np.array([0.0, 100.0]),
        np.array([[0.0, 1.0]]),
        ONE,
        0.5 * ONE,
        ONE,
        ONE,
        np.array([[0.0]]),
    )
    steps = [0.25 + 0.01 * (10 + place) for place in range(4)]  # contexts of 10 to 13 tokens before each step
    found = static([5, 5, 5], table=growing)
    later = found.e2e_s[0] - 0.5
    assert later == pytest.approx(sum(steps), rel=0.03)  # contexts before or after the token of a step
    assert found.e2e_s.tolist() == near([0.5 + later] * 3)
    assert (found.itl.weight, found.itl.total) == near((12.0, 3 * later))
    # A shorter one has fewer gaps, and waits for the longest: its first gap, then gaps as long as the others' in the mean.
    mixed = static([5, 2, 1], table=growing)
    assert mixed.e2e_s.tolist() == near([0.5 + later] * 3)
    first = mixed.itl.total - later
    assert first == pytest.approx(steps[0], rel=0.03)
    assert mixed.itl.weight == near(5.0)
    # Two steps: the second gap is the second step, not the first again.
    two = static([3, 3, 3], table=growing)
    assert two.itl.total == near(float((two.e2e_s - 0.5).sum()))
    assert static([3, 2]).itl.total == near(0.5 + 0.25)
    assert static([2, 2]).itl.total == near(0.25 + 0.25)


def test_rounds_of_several_tokens_are_gaps_as_long_as_a_round():
    """Two or four tokens after the first come in one or two rounds of 0.25 s."""
    for output, rounds in ((3, 1), (5, 2)):
        setup = EngineSetup(FLAT, Scheduling("static", 1, 64), 1000, tokens_per_step=2.0)
        found = simulate(Requests(np.array([10]), np.array([output])), setup)
        assert found.e2e_s.tolist() == near([0.5 + 0.25 * rounds])
        assert (found.itl.weight, found.itl.mean()) == near((output - 1.0, 0.25))


def test_a_batch_starts_when_it_is_full_or_its_oldest_has_waited_or_nobody_else_can_come():
    arrivals = [0.0, 0.1, 0.2, 5.0, 5.1]
    assert static([1] * 5, arrivals=arrivals).queue_s.tolist() == near([0.2, 0.1, 0.0, 0.1, 0.0])
    assert static([1] * 5, arrivals=arrivals, timeout_s=0.05).queue_s.tolist() == near(
        [0.05, 0.45, 0.35, 0.05, 0.45]
    )
    assert static([1] * 5, arrivals=arrivals, seats=2).queue_s.tolist() == near([0.1, 0.0, 4.8, 0.0, 0.4])


def test_those_who_wait_too_long_or_find_the_queue_full_are_turned_away():
    patient = static(
        [1] * 4, arrivals=[0.0, 0.1, 0.2, 0.3], seats=9, timeout_s=1.0, admission=Admission(deadline_s=(0.5,))
    )
    assert patient.status.tolist() == [0, 0, 0, 0]  # the last has come: nobody else can
    late = static(
        [1] * 3, arrivals=[0.0, 0.1, 0.9], seats=9, timeout_s=3.0, admission=Admission(deadline_s=(0.5,))
    )
    assert late.status.tolist() == [1, 1, 0]
    full = static(
        [1] * 4, arrivals=[0.0, 0.0, 0.0, 0.6], seats=9, timeout_s=0.5, admission=Admission(queue_limit=2)
    )
    assert full.status.tolist() == [0, 0, 1, 0]


def test_a_block_that_others_still_wait_for_is_found_by_nobody_until_it_is_worked_on():
    cache = BlockCache([OffloadTier(8, 0.5)])
    cache.pin([1, 2, 3])
    cache.hide([2, 3])
    assert cache.match([1, 2, 3], 1.0) == (1, 1.0)
    cache.reveal([2], 2.0)
    assert cache.match([1, 2, 3], 2.0) == (2, 2.0)
    # A second user of a block that nobody worked on: it is still absent when the first gives up before it.
    cache.pin([1, 2, 3])
    assert cache.unpin([1, 2, 3], worked_on=2) == 0
    assert cache.match([1, 2, 3], 2.0) == (2, 2.0)
    assert cache.unpin([1, 2, 3], worked_on=2) == 3
    assert cache.match([1, 2, 3], 3.0) == (2, 3.0)


def test_blocks_fall_through_the_tiers_and_come_back_over_the_link_of_each():
    cache = BlockCache([OffloadTier(2, 0.5), OffloadTier(1, 2.0)])
    cache.pin([1, 2, 3, 4])
    cache.unpin([1, 2, 3, 4])
    cache.trim(0)  # the tail first: 4, 3, 2, 1 fall, and the first tier keeps the last two of them
    assert cache.match([1, 2], 10.0) == (2, 11.0)
    assert cache.match([3], 10.0) == (1, 12.0)
    assert cache.match([4], 10.0) == (0, 10.0)
    assert cache.pin([1, 2, 3], 3, 10.0) == 3
    assert cache.hit_blocks == [0, 2, 1]
    # Two blocks of the first tier are under way until 11, one of the second until 12.
    assert cache.match([1, 2], 10.5) == (2, 11.0)
    assert cache.match([1, 2, 3], 10.5) == (3, 12.0)
    cache.reveal([1, 2], 11.0)
    assert cache.match([1, 2], 11.0) == (2, 11.0)


LEAST = Autoscaling(1, 1, start_s=0.0, rate_per_s=1e-9, interval_s=1e-9, window_s=1e-9, hold_s=0.0)


def test_a_run_may_stop_within_its_first_second():
    """The step under way at 0.25 s ends at 0.5 s, with one of three tokens."""
    found = simulate(Requests(np.array([10]), np.array([3])), engine(), until_s=0.25)
    assert (found.seconds, found.finished.tolist()) == (near(0.5), [False])
    with pytest.raises(InputError, match=r"until_s is 0\.0; it must be positive"):
        simulate(Requests(np.array([10]), np.array([3])), engine(), until_s=0.0)


def test_a_batch_may_wait_for_no_time_but_not_for_less():
    assert static([1, 1], arrivals=[0.0, 5.0], timeout_s=0.0).queue_s.tolist() == near([0.0, 0.0])
    with pytest.raises(InputError, match=r"batch_timeout_s is -0\.5; it must be at least 0"):
        static([1, 1], timeout_s=-0.5)


def test_events_and_links_are_taken_up_to_their_bounds_and_no_further():
    check_events(
        [Failure(0.0, 0, inf), Failure(1e9, 1, 1e-9)], replace(LEAST, max_replicas=2), Hedging(0.0), 1
    )
    check_events([Failure(0.0, 0)], None, None, 1)
    check_link(KvLink(0.0, 1e-9, 0.0))
    check_link(KvLink(1.0, inf, 1e9))
    for failure in (
        Failure(0.0, 1),
        Failure(0.0, -1),
        Failure(-1e-9, 0),
        Failure(inf, 0),
        Failure(0.0, 0, 0.0),
    ):
        with pytest.raises(InputError):
            check_events([failure], None, None, 1)
    for change in (
        {"start_s": -1e-9}, {"interval_s": 0.0}, {"interval_s": inf}, {"rate_per_s": 0.0}, {"rate_per_s": inf},
        {"window_s": 0.0}, {"hold_s": -1e-9}, {"min_replicas": 0}, {"min_replicas": 2}, {"max_replicas": 0},
    ):  # fmt: skip
        with pytest.raises(InputError):
            check_events([], replace(LEAST, **change), None, 1)
    with pytest.raises(InputError):
        check_events([], None, Hedging(-1e-9), 1)
    for link in (
        KvLink(-1.0, 1.0),
        KvLink(inf, 1.0),
        KvLink(1.0, 0.0),
        KvLink(1.0, 1.0, -1e-9),
        KvLink(1.0, 1.0, inf),
    ):
        with pytest.raises(InputError):
            check_link(link)
