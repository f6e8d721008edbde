"""Choices by prediction, worked out by hand: which run is picked, what it costs, and whether it keeps its limit."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.accuracy.benchmark import benchmark_of
from capplan.accuracy.bounded import network_class
from capplan.accuracy.score import (
    CONFIDENCES,
    TPOT_LIMITS_MS,
    Prediction,
    Run,
    decision_score,
    decisions_of,
    runs_of,
)
from capplan.accuracy.slowness import Slowness
from capplan.questions.benchmark_spec import benchmark_servers
from capplan.questions.validation import BUILT_IN_POINTS, run_slowness
from capplan.recorded.measured import measured_table
from capplan.workload.request_class import Target
from tests.asked import asked_in

ASKED = ("llama", "fp8", "1000", "1000")
USUAL = Slowness((-0.1, 0.0, 0.1, 0.2, 0.4, 0.5), 36, 22, False)


def run(name, tpot, predicted_tpot, tokens, predicted_tokens, plan="h100", asked=ASKED):
    return Run(name, asked, (plan,), 4.0, tpot, predicted_tpot, tokens, predicted_tokens, USUAL)


RUNS = [
    run("small", 8.0, 9.0, 100.0, 90.0),
    run("large", 18.0, 22.0, 200.0, 210.0, plan="h200"),
    run("wide", 24.0, 19.0, 300.0, 320.0, plan="b200"),
]


def test_a_pick_that_breaks_its_limit_and_one_that_costs():
    found, unanswered = decisions_of(RUNS, (10.0, 20.0, 30.0, 5.0))
    assert unanswered == 0
    assert [(picked.row, best.row) for _, picked, best in found] == [
        ("small", "small"),
        ("wide", "large"),
        ("wide", "wide"),
    ]
    score = decision_score(RUNS, (10.0, 20.0, 30.0, 5.0))
    assert (score.questions, score.broke_limit_fraction, score.broke_by_10_fraction) == (
        3,
        pytest.approx(1 / 3),
        pytest.approx(1 / 3),
    )
    assert score.regret == {"median": 0.0, "mean": 0.0, "p90": 0.0}
    assert score.right_device_fraction == pytest.approx(2 / 3)
    alone = [replace(item, plan=("h100", item.row)) for item in RUNS]
    assert decision_score(alone, (20.0,)).right_device_fraction is None
    slower = [RUNS[0], RUNS[1], replace(RUNS[2], predicted_tokens_per_s=10.0)]
    assert decision_score(slower, (30.0,)).regret["mean"] == pytest.approx(1.0 - 200.0 / 300.0)


def test_no_run_that_is_promised_is_an_unanswered_question():
    shy = [replace(item, predicted_tpot_ms=2.0 * item.tpot_ms) for item in RUNS]
    assert decisions_of(shy, (10.0,)) == ([], 1)
    assert decision_score(shy, (10.0,)).questions == 0


def test_a_model_with_a_single_plan_asks_nothing():
    assert decisions_of([RUNS[0], replace(RUNS[1], plan=("h100",))], (30.0,)) == ([], 0)


@given(st.lists(st.tuples(st.floats(1, 90), st.floats(1, 500)), min_size=2, max_size=12))
def test_perfect_predictions_never_regret_nor_break(values):
    runs = [run(str(i), tpot, tpot, rate, rate, plan=str(i)) for i, (tpot, rate) in enumerate(values)]
    score = decision_score(runs)
    assert score.unanswered == 0
    assert score.broke_limit_fraction == 0.0
    assert score.regret == {"median": 0.0, "mean": 0.0, "p90": 0.0}


def test_rows_become_runs_by_littles_law():
    row = {
        "id": "a", "kind": "online_conc", "concurrency": "4", "osl": "101", "isl": "9", "num_gpus": "2", "gpu": "b200",
        "model_hf_id": "m", "weights_dtype": "fp8",
    }  # fmt: skip
    predictions = [
        Prediction("a", "ttft_ms_mean", 1000.0, 2000.0),
        Prediction("a", "tpot_ms_mean", 10.0, 20.0),
    ]
    (found,) = runs_of([(row, predictions, lambda _: USUAL)])
    assert (found.tokens_per_s, found.predicted_tokens_per_s) == (pytest.approx(101.0), pytest.approx(50.5))
    again = [replace(p, row="b", measured=3.0 * p.measured) for p in predictions]
    (both,) = runs_of([(row, predictions, lambda _: USUAL), ({**row, "id": "b"}, again, lambda _: USUAL)])
    assert both.tpot_ms == pytest.approx(20.0)
    assert runs_of([({**row, "kind": "online_rate"}, predictions, lambda _: USUAL)]) == []
    assert runs_of([(row, predictions[:1], lambda _: USUAL)]) == []


def test_a_surer_pick_keeps_its_limit_with_a_slower_replica():
    """Half of the replicas are at most exp(0.1) times as slow as predicted, nine of ten at most exp(0.4) times."""
    fast = run("fast", 18.0, 18.0, 300.0, 300.0, plan="h200")
    slow = run("slow", 12.0, 12.0, 200.0, 200.0)
    for confidence, picked in ((None, "fast"), (0.5, "fast"), (0.9, "slow")):
        ((_, pick, _),), _ = decisions_of([fast, slow], (20.0,), confidence)
        assert pick.row == picked
    assert decisions_of([fast, slow], (20.0,), 0.99) == ([], 1)


@given(
    st.lists(
        st.tuples(st.floats(1, 90), st.floats(0.5, 2.0), st.floats(1, 500), st.floats(1, 500)),
        min_size=2,
        max_size=12,
    )
)
def test_more_confidence_never_promises_more(values):
    """Picks that are surer are predicted to deliver no more, and leave no fewer questions without an answer."""
    runs = [
        run(str(i), tpot, tpot * off, rate, predicted, plan=str(i))
        for i, (tpot, off, rate, predicted) in enumerate(values)
    ]
    found = [decisions_of(runs, TPOT_LIMITS_MS, confidence) for confidence in CONFIDENCES]
    for (less, unanswered), (more, still) in pairwise(found):
        assert still >= unanswered
        assert len(more) + still == len(less) + unanswered
        usual = {limit: picked for limit, picked, _ in less}
        for limit, picked, _ in more:
            assert picked.predicted_tokens_per_s <= usual[limit].predicted_tokens_per_s


QUESTION = """name: small
model: llama-3.1-8b
traffic: [{name: chat, request_rate: 60 req/s, input_tokens: {mean: 900, p95: 2500}, output_tokens: {mean: 120, p95: 300}}]
slo: {tpot_mean: 60 ms}
fleet: {hardware: [l40s]}
"""


def test_picks_are_as_sure_as_plans_of_a_fleet():
    """A run keeps its limit with the probability that a search gives a plan with the same step on that device."""
    question = asked_in(QUESTION).question
    loops = (row for row in measured_table(BUILT_IN_POINTS)[1] if row["kind"] == "online_conc")
    first = {(row["gpu"], row["model_hf_id"]): row for row in loops if float(row["concurrency"]) <= 16.0}
    assert len({gpu for gpu, _ in first}) > 2
    for row in first.values():
        found = benchmark_servers(benchmark_of(row)).replica
        gpu, step_s = found.spec.device, 0.02
        usual = run_slowness(network_class(found.spec.network), gpu, found.spec.efficiency, step_s)
        of_run = run(row["id"], 20.0, 1e3 * step_s, 1.0, 1.0)
        of_run = replace(of_run, slowness=usual)
        asked = replace(question, efficiencies={gpu.name: found.spec.efficiency})
        for confidence in CONFIDENCES:
            limit_s = 1e-3 * of_run.promised_ms(confidence)
            of_plan = asked.slowness([Target("tpot", "mean", limit_s)], found.spec.network, step_s, gpu)
            assert of_plan.probability(limit_s / step_s) == pytest.approx(confidence)
