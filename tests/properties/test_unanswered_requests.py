"""Targets count every request: whatever was shed or would never be answered missed them."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.cli.main import main
from capplan.fleet.simulation import statistic_of, target_values, undecided
from capplan.numbers import Spread
from capplan.serving.outcome import FINISHED, SHED, UNFINISHED, spread
from capplan.workload.request_class import STATISTICS, Slo, Target
from tests.files import written_to

NO_GAPS = Spread(0.01, 0.01, 0.01, 0.01, 0.01)
SCENARIO = {
    "name": "s", "model": "llama-3.2-1b", "weight_dtype": "bf16", "kv_dtype": "bf16",
    "traffic": [{"request_rate": "2 req/s", "input_tokens": 100, "output_tokens": 20}],
    "fleet": {"hardware": ["l4"], "tensor_parallel": 1, "pipeline_parallel": 1},
}  # fmt: skip


def columns(status, ttft, arrival=None):
    n = len(status)
    known = np.array(ttft, dtype=float)
    return {
        "status": np.array(status),
        "ttft_s": known,
        "tpot_s": known / 10,
        "e2e_s": np.where(np.array(status) == FINISHED, known * 2, np.nan),
        "arrival_s": np.zeros(n) if arrival is None else np.array(arrival, dtype=float),
    }


@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=50), st.sampled_from(STATISTICS))
def test_without_lost_requests_a_statistic_is_the_usual_one(values, statistic):
    found = statistic_of(np.array(values), Target("ttft", statistic, 1.0))
    assert found == pytest.approx(getattr(spread(np.array(values)), statistic), rel=1e-9)


@given(
    st.lists(st.sampled_from([0.1, 0.5, 2.0, np.inf]), min_size=2, max_size=60),
    st.sampled_from(STATISTICS[1:]),
)
def test_a_percentile_holds_only_with_enough_requests_under_its_limit(values, statistic):
    """By the definition of a percentile: at least that share of n - 1 steps up the sorted values is within."""
    share = int(statistic[1:]) / 100
    within = sum(value <= 1.0 for value in values)
    if statistic_of(np.array(values), Target("ttft", statistic, 1.0)) <= 1.0:
        assert within >= np.floor(share * (len(values) - 1)) + 1
    if np.inf in values:
        assert statistic_of(np.array(values), Target("ttft", "mean", 1.0)) == np.inf


@pytest.mark.parametrize("metric", ["ttft", "tpot", "e2e", "itl"])
def test_shed_requests_miss_every_target(metric):
    rows = columns([FINISHED] * 90 + [SHED] * 10, [0.1] * 90 + [np.nan] * 10)
    everyone = np.ones(100, dtype=bool)
    for statistic, missed in (("p50", False), ("p90", True), ("p99", True), ("mean", True)):
        target = Target(metric, statistic, 1.0)
        found = target_values(rows, everyone, Slo((target,)), np.inf, NO_GAPS)[target]
        assert np.isinf(found) == missed, statistic


def test_of_a_stopped_run_those_that_are_not_late_yet_are_left_out():
    rows = columns([FINISHED] * 8 + [UNFINISHED] * 2, [0.1] * 8 + [np.nan] * 2, [0.0] * 8 + [9.5, 5.0])
    target = Target("ttft", "p99", 1.0)
    alive = target_values(rows, np.ones(10, dtype=bool), Slo((target,)), 10.0, NO_GAPS)[target]
    assert alive == np.inf  # one has waited for 5 s
    assert undecided(rows, np.ones(10, dtype=bool), Slo((target,)), 10.0) == 1
    assert undecided(rows, np.arange(10) != 8, Slo((target,)), 10.0) == 0
    patient = Target("ttft", "p99", 6.0)
    assert target_values(rows, np.ones(10, dtype=bool), Slo((patient,)), 10.0, NO_GAPS)[
        patient
    ] == pytest.approx(0.1)
    never = target_values(rows, np.ones(10, dtype=bool), Slo((patient,)), np.inf, NO_GAPS)[patient]
    assert never == np.inf  # a run that ended of itself: nobody answers any more
    assert undecided(rows, np.ones(10, dtype=bool), Slo((patient,)), np.inf) == 0


@pytest.mark.parametrize("target", ["ttft_p95", "tpot_p95", "e2e_p95", "itl_p95"])
@pytest.mark.parametrize(
    "words",
    [
        ("--deadline", "1e-12 s"),
        ("--queue-limit", "0", "--deadline", "1e-12 s"),
        ("--fail", "0@1 s"),
        ("--fail", "0@1 s", "--until", "60 s"),
    ],
    ids=" ".join,
)
def test_a_fleet_that_leaves_requests_unanswered_holds_no_target(tmp_path, capsys, target, words):
    path = written_to(tmp_path / "s.json.yaml", {**SCENARIO, "slo": {target: "30 s"}})
    code = main(
        ["simulate", str(path), "--hardware", "l4", "-tp", "1", "--replicas", "1", "--offline", *words]
    )
    said = capsys.readouterr()
    assert code == 4
    assert f"misses {target}" in said.out
    assert "they miss every target" in said.err


def test_a_run_that_is_stopped_says_whom_it_leaves_out(tmp_path, capsys):
    path = written_to(tmp_path / "s.yaml", {**SCENARIO, "slo": {"ttft_p95": "30 s"}})
    words = ["simulate", str(path), "--hardware", "l4", "-tp", "1", "--replicas", "1", "--offline"]
    assert main([*words, "--until", "60 s"]) == 0
    said = capsys.readouterr()
    assert "meets all targets" in said.out
    assert "under way at the end and not late yet" in said.err or "100.0%" in said.out


@pytest.mark.parametrize("traffic", [{"users": 7, "think_time": "0 s"}, {"users": 300, "think_time": "10 s"}])
def test_users_who_wait_let_no_queue_grow_and_no_count_is_negative(tmp_path, capsys, traffic):
    """A page said "-2 of 314,083 requests were shed", and of users who wait for each response that their queue keeps growing."""
    path = tmp_path / "s.yaml"
    path.write_text(
        json.dumps(
            {
                **SCENARIO,
                "slo": {"ttft_p95": "30 s"},
                "traffic": [{"input_tokens": 500, "output_tokens": 60, **traffic}],
            }
        )
    )
    words = ["simulate", str(path), "--hardware", "l4", "-tp", "1", "--replicas", "1", "--offline"]
    assert main([*words, "--until", "60 s"]) in (0, 4)
    said = capsys.readouterr()
    assert "keeps growing" not in said.err + said.out
    assert "warning: -" not in said.err
