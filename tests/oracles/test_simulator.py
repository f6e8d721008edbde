"""The simulator as a queue whose theory is known: equal or exponential services, one server or several."""

import numpy as np
import pytest

from capplan.engine.profile import Scheduling
from capplan.serving.queueing import md1_wait_at_most
from capplan.serving.requests import Requests
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepTable
from capplan.serving.terms import EngineSetup

ONE = np.array([1.0])


def steps_of(seconds: float) -> StepTable:
    """Every step takes the same time, whatever is in it."""
    zero = np.array([[0.0]])
    return StepTable(ONE, seconds * ONE, 0.0 * ONE, ONE, zero, ONE, seconds * ONE, ONE, ONE, zero)


def poisson(count: int, rate: float, seed: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, count))


@pytest.mark.parametrize(("load", "wait"), [(0.5, 0.5), (0.8, 2.0)])
def test_single_tokens_on_one_seat_are_md1(load: float, wait: float) -> None:
    """M/D/1 table (Erlang 1909): waits of 0.5 and 2.0 services; 60,000 arrivals leave 3 % of noise."""
    count = 60_000
    requests = Requests(
        np.ones(count, dtype=np.int64), np.ones(count, dtype=np.int64), poisson(count, load, 11)
    )
    outcome = simulate(requests, EngineSetup(steps_of(1.0), Scheduling("mixed", 1, 16), 100))
    assert outcome.queue_s.mean() == pytest.approx(wait, rel=0.03)
    for times in (0.5, 1.0, 3.0):
        assert np.mean(outcome.queue_s <= times) == pytest.approx(
            md1_wait_at_most(load, 1.0, times), abs=0.01
        )


@pytest.mark.parametrize(
    ("seats", "load", "wait"), [(1, 0.5, 1.0), (2, 0.5, 1 / 3), (4, 0.8, 0.7455), (10, 0.9, 0.6687)]
)
def test_geometric_outputs_on_several_seats_are_mmc(seats: int, load: float, wait: float) -> None:
    """M/M/c table (Erlang C), in units of the service; three runs of 50,000 leave 10 % of noise at these loads."""
    count = 50_000
    waits = []
    for seed in (1, 2, 3):
        outputs = np.random.default_rng(100 + seed).geometric(1 / 500, count)
        requests = Requests(np.ones(count, dtype=np.int64), outputs, poisson(count, load * seats, seed))
        outcome = simulate(requests, EngineSetup(steps_of(1 / 500), Scheduling("mixed", seats, 64), 10**7))
        waits.append(outcome.queue_s.mean())
        running = (outcome.e2e_s.sum() - outcome.queue_s.sum()) / outcome.seconds
        assert outcome.batch_mean * outcome.busy_fraction == pytest.approx(running, rel=1e-6), "Little's law"
    assert np.mean(waits) == pytest.approx(wait, rel=0.1)
