"""Choices by prediction, worked out by hand: which run is picked, what it costs, and whether it keeps its limit."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.accuracy.decisions import Run, decision_score, decisions_of, runs_of
from capplan.accuracy.score import Prediction

ASKED = ("llama", "fp8", "1000", "1000")


def run(name, tpot, predicted_tpot, tokens, predicted_tokens, plan="h100", asked=ASKED):
    return Run(name, asked, (plan,), 4.0, tpot, predicted_tpot, tokens, predicted_tokens)


RUNS = [
    run("small", 8.0, 9.0, 100.0, 90.0),
    run("large", 18.0, 22.0, 200.0, 210.0, plan="h200"),
    run("wide", 24.0, 19.0, 300.0, 320.0, plan="b200"),
]


def test_a_pick_that_breaks_its_limit_and_one_that_costs():
    found, unanswered = decisions_of(RUNS, (10.0, 20.0, 30.0, 5.0))
    assert unanswered == 0
    assert [(item.picked.row, item.best.row) for item in found] == [
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
    (found,) = runs_of([(row, predictions)])
    assert (found.tokens_per_s, found.predicted_tokens_per_s) == (pytest.approx(101.0), pytest.approx(50.5))
    again = [replace(p, row="b", measured=3.0 * p.measured) for p in predictions]
    (both,) = runs_of([(row, predictions), ({**row, "id": "b"}, again)])
    assert both.tpot_ms == pytest.approx(20.0)
    assert runs_of([({**row, "kind": "online_rate"}, predictions)]) == []
    assert runs_of([(row, predictions[:1])]) == []
