"""The simulator as a queue whose theory is known: one seat or several, any services, a server that all share."""

import numpy as np
import pytest

from capplan.engine.profile import Scheduling
from capplan.serving.requests import Requests
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepTable
from capplan.serving.terms import EngineSetup
from tests.oracles.queueing_formulas import (
    md1_wait_at_most,
    mg1_wait_s,
    mmc_wait_beyond,
    mmc_wait_s,
    number_probabilities,
    shared_time_s,
)

ONE = np.array([1.0])
MANY = np.array([0.0, 10_000.0])


def phase_steps(fixed_s: float, each_s: float = 0.0) -> StepTable:
    """A step takes a fixed time and so much for each token in it, whatever the contexts."""
    zero, seconds = np.zeros((2, 1)), fixed_s + each_s * MANY
    return StepTable(MANY, seconds, 0.0 * MANY, ONE, zero, MANY, seconds, ONE, ONE, np.zeros((1, 1)))


def poisson(count: int, rate: float, seed: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, count))


def answers(kind: str, mean: int, count: int, seed: int) -> np.ndarray:
    """Output lengths of one mean: equal, geometric (cv 1), or a tenth of them long (cv 1.6)."""
    rng = np.random.default_rng(100 + seed)
    if kind == "equal":
        return np.full(count, mean)
    if kind == "geometric":
        return rng.geometric(1 / mean, count)
    return rng.choice([mean // 2, mean // 2 + 5 * mean], count, p=[0.9, 0.1])


def run(outputs: np.ndarray, rate: float, seed: int, table: StepTable, seats: int):
    requests = Requests(np.ones(outputs.size, dtype=np.int64), outputs, poisson(outputs.size, rate, seed))
    return simulate(requests, EngineSetup(table, Scheduling("mixed", seats, 16_384), 10**8))


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_single_tokens_on_one_seat_are_md1(load: float) -> None:
    """60,000 arrivals leave 3 % of noise."""
    outcome = run(np.ones(60_000, dtype=np.int64), load, 11, phase_steps(1.0), 1)
    assert outcome.queue_s.mean() == pytest.approx(mg1_wait_s(load, 1.0, 0.0), rel=0.03)
    for times in (0.5, 1.0, 3.0):
        assert np.mean(outcome.queue_s <= times) == pytest.approx(
            md1_wait_at_most(load, 1.0, times), abs=0.01
        )


@pytest.mark.parametrize("kind", ["equal", "geometric", "few are long"])
def test_any_answers_on_one_seat_are_mg1(kind: str) -> None:
    """Three runs of 20,000 leave 8 % of noise at this load."""
    waits, exact = [], []
    for seed in (1, 2, 3):
        outputs = answers(kind, 200, 20_000, seed)
        waits.append(run(outputs, 0.6, seed, phase_steps(1 / 200), 1).queue_s.mean())
        exact.append(mg1_wait_s(0.6, outputs.mean() / 200, outputs.std() / outputs.mean()))
    assert np.mean(waits) == pytest.approx(np.mean(exact), rel=0.08)


@pytest.mark.parametrize(("seats", "load"), [(1, 0.5), (2, 0.5), (4, 0.8), (10, 0.9)])
def test_geometric_outputs_on_several_seats_are_mmc(seats: int, load: float) -> None:
    """Three runs of 50,000 leave 10 % of noise at these loads."""
    waits, beyond = [], []
    for seed in (1, 2, 3):
        outcome = run(
            answers("geometric", 500, 50_000, seed), load * seats, seed, phase_steps(1 / 500), seats
        )
        waits.append(outcome.queue_s.mean())
        beyond.append(np.mean(outcome.queue_s > 0.5))
        running = (outcome.e2e_s.sum() - outcome.queue_s.sum()) / outcome.seconds
        assert outcome.batch_mean * outcome.busy_fraction == pytest.approx(running, rel=1e-6), "Little's law"
    assert np.mean(waits) == pytest.approx(mmc_wait_s(load * seats, 1.0, seats), rel=0.1)
    assert np.mean(beyond) == pytest.approx(
        mmc_wait_beyond(load * seats, 1.0, seats, 0.5), rel=0.1, abs=0.005
    )


@pytest.mark.parametrize("kind", ["equal", "geometric", "few are long"])
def test_steps_as_long_as_the_batch_are_a_server_that_all_share(kind: str) -> None:
    """Each request gets 1/n of the engine: the mean time does not see how answers differ. Three runs leave 5 % of noise."""
    ratios = []
    for seed in (1, 2, 3):
        outputs = answers(kind, 200, 15_000, seed)
        outcome = run(outputs, 0.6, seed, phase_steps(1e-9, 1 / 200), 4096)
        ratios.append(outcome.e2e_s.mean() / shared_time_s(0.6, outputs.mean() / 200))
    assert np.mean(ratios) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("kind", ["equal", "geometric", "few are long"])
def test_steps_that_grow_with_the_batch_hold_as_many_as_they_should(kind: str) -> None:
    """t(n) = a + b n, as engines have it: the number in the system by its product form. Two runs leave 6 % of noise."""
    fixed_s, each_s, mean = 1 / 200, 1 / 2000, 200
    rate = 0.8 / (each_s * mean)
    numbers = np.arange(1, 2000)
    number = number_probabilities(rate, numbers / (mean * (fixed_s + each_s * numbers)))
    held = []
    for seed in (1, 2):
        outcome = run(answers(kind, mean, 20_000, seed), rate, seed, phase_steps(fixed_s, each_s), 4096)
        held.append(outcome.batch_mean * outcome.busy_fraction)
    assert np.mean(held) == pytest.approx(np.arange(number.size) @ number, rel=0.06)
