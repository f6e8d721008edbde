"""Users who think, ask and wait: by hand, one answer after the other; `test_classes_of_users` has their event loop and their theory."""

import numpy as np
import pytest

from capplan.engine.profile import Scheduling
from capplan.serving.outcome import SHED
from capplan.serving.requests import BEGIN_S, NO_REQUESTS, Admission, Crowd, Requests
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepTable
from capplan.serving.terms import EngineSetup

ONE = np.array([1.0])
MANY = np.array([0.0, 10_000.0])


def one_seat(fixed_s: float, each_s: float = 0.0) -> EngineSetup:
    """A step takes a fixed time and so much for each token in it; the next request starts when the last one is done."""
    zero, seconds = np.zeros((2, 1)), fixed_s + each_s * MANY
    table = StepTable(MANY, seconds, 0.0 * MANY, ONE, zero, MANY, seconds, ONE, ONE, np.zeros((1, 1)))
    return EngineSetup(table, Scheduling("mixed", 1, 16_384), 10**8)


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
