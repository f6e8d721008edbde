"""The closed forms against the simulator, and the laws they keep."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.profile import Scheduling
from capplan.errors import InputError
from capplan.serving.requests import Requests
from capplan.serving.simulator import simulate
from capplan.serving.steady_state import closed_loop, open_loop
from capplan.serving.steady_steps import Lengths, Limits, sequences_that_fit, table_step_function
from capplan.serving.step_table import StepTable
from capplan.serving.terms import EngineSetup

BLOCKS = 40_000


def chat_table() -> StepTable:
    """Steps of about a 70B model on four H100."""
    sequences = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512], dtype=float)
    contexts = np.array([0, 512, 2048, 8192, 32768], dtype=float)
    tokens = np.array([1, 64, 256, 512, 1024, 2048, 8192, 16384], dtype=float)
    past = np.array([0, 4096, 65536], dtype=float)
    return StepTable(
        sequence_knots=sequences,
        decode_s=0.013 + 2e-5 * sequences,
        head_s=2e-4 + 1e-6 * sequences,
        context_knots=contexts,
        decode_attention_s=1e-4 + np.outer(sequences, contexts) * 2.6e-8,
        token_knots=tokens,
        mixed_s=np.maximum(0.013, 4e-5 * tokens),
        new_knots=tokens,
        past_knots=past,
        prefill_attention_s=1e-4 + 3e-9 * tokens[:, None] * (tokens[:, None] / 2 + past[None, :]),
        request_s=0.004,
    )


TABLE = chat_table()


def lognormal(rng: np.random.Generator, mean: float, cv: float, count: int) -> np.ndarray:
    sigma = np.sqrt(np.log1p(cv * cv))
    return np.maximum(rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, count).astype(np.int64), 1)


def both(lengths: Lengths, policy: str, *, clients: int | None = None, load: float = 0.0):
    """Steady state and the middle of a simulated run."""
    rng = np.random.default_rng(1)
    limits = Limits(
        sequences_that_fit(BLOCKS * 16.0, 256.0, lengths), 8192.0, policy == "prefill_first", 0.004
    )
    steps = table_step_function(TABLE, lengths)
    arrivals = None
    if clients is None:
        count = 6000
        rate = load * 1e-3 / float(open_loop(steps, lengths, limits, 1e-3).utilisation)
        steady = open_loop(steps, lengths, limits, rate)
        arrivals = np.cumsum(rng.exponential(1.0 / rate, count))
    else:
        count = max(2000, 20 * clients)
        steady = closed_loop(steps, lengths, limits, float(clients))
    requests = Requests(
        lognormal(rng, lengths.input_tokens, lengths.input_cv, count),
        lognormal(rng, lengths.output_tokens, lengths.output_cv, count),
        arrivals,
    )
    run = simulate(requests, EngineSetup(TABLE, Scheduling(policy, 256, 8192), BLOCKS), concurrency=clients)
    return steady, run, slice(count // 4, -count // 10)


CHAT = Lengths(1800.0, 350.0, 1.0, 0.8)
SHORT = Lengths(500.0, 100.0, 0.5, 0.5)
LONG = Lengths(8000.0, 1000.0, 0.1, 0.1)


@pytest.mark.parametrize("policy", ["mixed", "prefill_first"])
@pytest.mark.parametrize("lengths", [CHAT, SHORT, LONG])
@pytest.mark.parametrize("clients", [1, 16, 64])
def test_closed_loop_is_near_the_simulator(lengths: Lengths, policy: str, clients: int) -> None:
    """Mean TPOT and throughput within 5 %, mean TTFT within 10 %, 90th percentiles within 20 %."""
    steady, run, middle = both(lengths, policy, clients=clients)
    assert float(steady.tpot_s.mean) == pytest.approx(np.nanmean(run.tpot_s[middle]), rel=0.05)
    assert float(steady.output_tokens_per_s) == pytest.approx(run.output_tokens_per_s, rel=0.08)
    assert float(steady.ttft_s.mean) == pytest.approx(run.ttft_s[middle].mean(), rel=0.10)
    assert float(steady.ttft_s.p90) == pytest.approx(np.quantile(run.ttft_s[middle], 0.9), rel=0.25)
    assert float(steady.tpot_s.p90) == pytest.approx(np.nanquantile(run.tpot_s[middle], 0.9), rel=0.12)
    assert float(steady.e2e_s.p90) == pytest.approx(np.quantile(run.e2e_s[middle], 0.9), rel=0.1)


@pytest.mark.parametrize("policy", ["mixed", "prefill_first"])
@pytest.mark.parametrize("lengths", [CHAT, SHORT, LONG])
@pytest.mark.parametrize(("load", "token", "first"), [(0.3, 0.04, 0.15), (0.6, 0.06, 0.25)])
def test_open_loop_is_near_the_simulator(
    lengths: Lengths, policy: str, load: float, token: float, first: float
) -> None:
    """Mean TPOT within 4 to 6 %, mean TTFT within 15 to 25 %; bursts of long prompts make the rest."""
    steady, run, middle = both(lengths, policy, load=load)
    assert float(steady.tpot_s.mean) == pytest.approx(np.nanmean(run.tpot_s[middle]), rel=token)
    assert float(steady.ttft_s.mean) == pytest.approx(run.ttft_s[middle].mean(), rel=first)
    assert float(steady.e2e_s.p90) == pytest.approx(np.quantile(run.e2e_s[middle], 0.9), rel=0.12)


@settings(max_examples=3, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_plans_together_give_what_plans_alone_give(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs, outputs = rng.uniform(50, 5000, 4), rng.uniform(2, 900, 4)
    seats = rng.uniform(1, 300, 4)

    def state(i):
        lengths = Lengths(inputs[i], outputs[i], 0.7, 0.5)
        limits = Limits(seats[i], 4096.0, request_s=0.001)
        steps = table_step_function(TABLE, lengths)
        return closed_loop(steps, lengths, limits, 20.0), open_loop(steps, lengths, limits, 0.1)

    together = state(slice(None))
    for i in range(4):
        for whole, alone in zip(together, state(i), strict=True):
            assert whole.ttft_s.p95[i] == pytest.approx(float(alone.ttft_s.p95), rel=1e-9)
            assert whole.tpot_s.mean[i] == pytest.approx(float(alone.tpot_s.mean), rel=1e-9)
            assert whole.requests_per_s[i] == pytest.approx(float(alone.requests_per_s), rel=1e-9)


def test_more_clients_never_get_fewer_tokens_nor_faster_ones() -> None:
    limits = Limits(128.0, 8192.0, request_s=0.004)
    steady = closed_loop(table_step_function(TABLE, CHAT), CHAT, limits, np.arange(1.0, 400.0, 7.0))
    assert np.all(np.diff(steady.output_tokens_per_s) > -1e-6 * steady.output_tokens_per_s[1:])
    assert np.all(np.diff(steady.tpot_s.mean) > -1e-6)
    assert steady.saturated[[0, -1]].tolist() == [False, True]
    clients = steady.requests_per_s * steady.e2e_s.mean
    assert clients == pytest.approx(np.arange(1.0, 400.0, 7.0), rel=1e-3), "Little's law"


def test_a_rate_that_cannot_be_served_says_so() -> None:
    limits = Limits(128.0, 8192.0)
    steady = open_loop(table_step_function(TABLE, CHAT), CHAT, limits, np.array([0.1, 1.0, 100.0]))
    assert steady.saturated.tolist() == [False, False, True]
    assert np.isfinite(steady.ttft_s.mean).tolist() == [True, True, False]
    assert steady.utilisation[2] > 1.0
    assert np.all(np.diff(steady.ttft_s.mean[:2]) > 0.0)


def test_percentiles_ascend() -> None:
    limits = Limits(128.0, 8192.0)
    steady = open_loop(table_step_function(TABLE, CHAT), CHAT, limits, np.array([0.1, 1.0, 3.0]))
    for spread in (steady.ttft_s, steady.tpot_s, steady.e2e_s):
        assert np.all((spread.p50 <= spread.p90) & (spread.p90 <= spread.p95) & (spread.p95 <= spread.p99))


@pytest.mark.parametrize(
    ("lengths", "limits", "words"),
    [
        (Lengths(0.0, 10.0), Limits(8.0, 64.0), "input_tokens"),
        (Lengths(10.0, 10.0), Limits(0.0, 64.0), "max_sequences"),
    ],
)
def test_impossible_plans_are_refused_by_name(lengths: Lengths, limits: Limits, words: str) -> None:
    with pytest.raises(InputError, match=words):
        closed_loop(table_step_function(TABLE, CHAT), lengths, limits, 4.0)
