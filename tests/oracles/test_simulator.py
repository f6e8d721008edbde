"""The simulator as a queue whose theory is known, with the recorded steps of a running engine, and with users who think."""

from pathlib import Path

import numpy as np
import pytest

from calibrate.live.simulated_steps import agreement, recorded_load
from calibrate.live.step_logs import read_packed
from capplan.engine.profile import Scheduling
from capplan.serving.outcome import SHED
from capplan.serving.requests import BEGIN_S, NO_REQUESTS, Admission, ClosedLoopUsers, Requests
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


RUNS = sorted((Path(__file__).parents[1] / "data" / "steps").glob("*.json.gz"))


def name_of(path: Path) -> str:
    return path.name.removesuffix(".json.gz")


@pytest.mark.parametrize("path", RUNS, ids=name_of)
def test_each_recorded_step_has_the_same_prompts_decodes_and_preemptions(path: Path) -> None:
    result = agreement(read_packed(path))
    assert result.exact, result


@pytest.mark.parametrize("path", RUNS, ids=name_of)
def test_the_compiled_core_takes_as_many_steps_tokens_and_preemptions(path: Path) -> None:
    log = read_packed(path)
    requests, engine, admission = recorded_load(log)
    outcome = simulate(requests, engine, admission=admission)
    assert outcome.steps == len(log.steps)
    assert outcome.preemptions == sum(len(step.preempted) for step in log.steps)
    assert outcome.prefill_tokens == sum(new for step in log.steps for _, new, _ in step.prompts)


def test_the_runs_hold_what_they_are_about() -> None:
    logs = {name_of(path): read_packed(path) for path in RUNS}
    assert len(logs) == 29
    preempted = {name: sum(len(step.preempted) for step in log.steps) for name, log in logs.items()}
    assert min(preempted[name] for name in ("small-cache", "small-cache-128", "asynchronous-small")) >= 10
    hits = {
        name: sum(before > 0 for step in log.steps for _, _, before in step.prompts)
        for name, log in logs.items()
    }
    caching = ("sessions", "shared-prefix", "slots-sessions", "slots-sessions-few", "slots-shared-prefix")
    assert min(hits[name] for name in caching) >= 50
    assert all(len(log.steps) > 300 for log in logs.values())


def one_seat(fixed_s: float, each_s: float = 0.0) -> EngineSetup:
    """A step takes a fixed time and so much for each token in it; the next request starts when the last one is done."""
    zero, seconds = np.zeros((2, 1)), fixed_s + each_s * MANY
    table = StepTable(MANY, seconds, 0.0 * MANY, ONE, zero, MANY, seconds, ONE, ONE, np.zeros((1, 1)))
    return EngineSetup(table, Scheduling("mixed", 1, 16_384), 10**8)


def test_a_user_begins_to_think_when_the_answer_is_complete() -> None:
    """Two users, services of 1 s: asked at 1, 2, 2 + 3 and 3 + 1 after each has begun; at 4 the clocked request is ahead of the user's."""
    asked = Requests(np.ones(4, dtype=np.int64), np.ones(4, dtype=np.int64))
    crowd = ClosedLoopUsers(asked, 2, np.array([1.0, 2.0, 3.0, 1.0]))
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
    crowd = ClosedLoopUsers(asked, 3, np.array([0.0, 0.25, 0.5, 2.0, 9.0]))
    outcome = simulate(None, one_seat(1.0), crowd=crowd, admission=Admission(queue_limit=1))
    assert outcome.status.tolist() == [0, 0, SHED, 0, 0]
    begun_s = BEGIN_S * np.array([0, 1, 2, 2, 0])
    assert outcome.arrival_s == pytest.approx(np.array([0.0, 0.25, 0.5, 2.5, 10.0]) + begun_s)


def test_everybody_may_be_a_user_and_nobody_need_be() -> None:
    engine = one_seat(1.0)
    asked = Requests(np.ones(3, dtype=np.int64), np.ones(3, dtype=np.int64))
    together = simulate(None, engine, crowd=ClosedLoopUsers(asked, 9))
    assert together.arrival_s + together.e2e_s == pytest.approx([1.0, 2.0, 3.0])
    assert simulate(NO_REQUESTS, engine, crowd=ClosedLoopUsers(NO_REQUESTS, 9)).e2e_s.size == 0
    assert simulate(asked, engine, crowd=ClosedLoopUsers(NO_REQUESTS, 9)).e2e_s.tolist() == [1.0, 2.0, 3.0]
