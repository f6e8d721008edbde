"""A plan beside its measurement: what the replica of the plan produces lies in its intervals, what is slower does not."""

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest

from capplan.accuracy.replay import metrics_of, outcome_of
from capplan.fleet.review import spec_of_layout
from capplan.fleet.search.one_layout import trial_of
from capplan.questions.fleet import terms_of
from capplan.questions.plans.plan_file import asked_of_plan
from capplan.questions.plans.plan_verification import (
    LATENCIES,
    Compared,
    Verification,
    _benchmark,
    with_load_of_log,
)
from capplan.recorded.results.record import BenchmarkResult, Row, latency
from capplan.replica.replica import replica_of
from tests.files import written_to
from tests.plan_files import with_changes
from tests.sweeps import long_but, size_on_few_requests
from tests.tables import table

pytestmark = pytest.mark.usefixtures("shared_runs")

SERVED = {
    "backend": "vllm", "num_prompts": 400, "completed": 400, "duration": 40.0, "total_input_tokens": 720_000, "total_output_tokens": 96_000,
}  # fmt: skip


@pytest.fixture(scope="module")
def own(plan):
    """Return what the replica of the plan itself would measure at ten requests per second."""
    asked, answer = asked_of_plan(None, plan, offline=True)
    chosen = answer.chosen
    result = BenchmarkResult(
        "t", "p", request_rate_per_s=10.0, requests=400, input_tokens=1800.0, output_tokens=240.0
    )
    replica = replica_of(spec_of_layout(chosen.single.layout, asked.question))
    return metrics_of(outcome_of(_benchmark(asked, chosen, result, 1), replica), replica.spec.devices)


def verified(capplan, plan, folder, result, *more):
    (folder / "result.json").write_text(json.dumps(SERVED | result))
    ran = capplan(
        f"verify-plan --plan {plan} --results {folder / 'result.json'} --offline --format json", *more
    )
    assert ran.code in (0, 4), ran.err
    return ran.code, json.loads(ran.out)["result"]


def as_measured(own, slowness=1.0):
    return {
        "request_rate": 10.0,
        **{f"{name}_{latency}_ms": slowness * own[f"{latency}_ms_{column}"] for latency in ("ttft", "tpot") for name, column in (("mean", "mean"), ("p99", "p99"))},
    }  # fmt: skip


def test_what_the_replica_of_a_plan_produces_is_what_is_predicted(capplan, plan, own, tmp_path):
    code, found = verified(capplan, plan, tmp_path, as_measured(own))
    assert (code, found["verdict"], found["recalibrate"]) == (0, "holds", [])
    rows = {row["quantity"]: row for row in found["rows"]}
    assert {"ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "tpot_s.p99"} <= set(rows)
    for row in rows.values():
        assert row["predicted"] == pytest.approx(row["measured"], rel=1e-9)
        assert row["low"] <= row["predicted"] <= row["high"]
        assert row["inside"]
    assert found["next_settings"] == []


@pytest.mark.parametrize(("input_tokens", "output_tokens"), [(900, 120), (128, 16)])
def test_a_benchmark_changes_no_lengths(capplan, plan, tmp_path, monkeypatch, input_tokens, output_tokens):
    """Who runs a benchmark chooses its lengths: a slow run of short requests would shrink the fleet."""
    monkeypatch.chdir(plan.parent)
    slow = {
        "total_input_tokens": 400 * input_tokens,
        "total_output_tokens": 400 * output_tokens,
        "mean_ttft_ms": 20.0,
        "mean_tpot_ms": 900.0,
    }
    assert verified(capplan, plan, tmp_path, slow)[1]["next_settings"] == ["calibration=own.calibration.yaml"]


def test_the_calibration_is_found_from_any_folder(capplan, plan, own, tmp_path, monkeypatch):
    """A path in a scenario starts at the folder of the scenario, one on a command line at the working folder."""
    monkeypatch.chdir(tmp_path)
    slow = as_measured(own) | {"mean_tpot_ms": 20 * own["tpot_ms_mean"]}
    found = verified(capplan, plan, tmp_path, slow)[1]
    assert found["next_settings"] == [f"calibration={tmp_path / 'own.calibration.yaml'}"]


def test_a_tail_without_a_slower_mean_prints_no_calibration(capplan, plan, own, tmp_path):
    """A refit fits means: with means below the predicted ones it would shrink the fleet of a server whose tail is slower."""
    tail = as_measured(own, slowness=0.97) | {"p99_ttft_ms": 50 * own["ttft_ms_p99"]}
    found = verified(capplan, plan, tmp_path, tail)[1]
    assert (found["verdict"], found["next_settings"]) == ("slower", [])
    shown = capplan("verify-plan", "--plan", plan, "--results", tmp_path / "result.json", "--offline").out
    assert "capplan calibrate" not in shown


def test_a_server_that_is_slower_is_told_and_named(capplan, plan, own, tmp_path):
    code, found = verified(
        capplan, plan, tmp_path, as_measured(own) | {"mean_tpot_ms": 20 * own["tpot_ms_mean"]}
    )
    assert (code, found["verdict"], found["recalibrate"]) == (4, "slower", ["tpot_s"])
    assert found["next_settings"][-1].endswith("own.calibration.yaml")
    shown = capplan("verify-plan", "--plan", plan, "--results", tmp_path / "result.json", "--offline").out
    assert "recalibrate: time per output token" in shown
    assert "capplan calibrate --from" in shown


SPLIT = """name: split
model: llama-3.1-70b-instruct
weight_dtype: fp8
traffic:
  - {{request_rate: {rate} req/s, input_tokens: {{mean: 1500, p95: 4000}}, output_tokens: {{mean: 250, p95: 700}}}}
slo: {{ttft_p95: 2 s, tpot_p95: 60 ms}}
fleet: {{hardware: [{hardware}], tensor_parallel: {split}, pipeline_parallel: 1}}
"""


def printed(text, before):
    """Return the words of the command that a line prints after these words."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"{before}: capplan "))
    return shlex.split(line.partition(": capplan ")[2])


SLOWER = [
    (1.5, 12, "h200-sxm, h100-sxm", "[2, 4]"), (1.2, 12, "h100-sxm", "[2, 4]"), (1.9, 30, "h100-sxm", "[2, 4]"),
    (1.4, 5, "h200-sxm, b200", "[2, 4]"), (2.5, 12, "b200", "[2, 4]"),
]  # fmt: skip
"""How many times as slow as predicted a run is, the request rate of the plan, and the GPUs and layouts of its scenario."""
_DRAWN = np.random.default_rng(45)
SLOWER += [
    (round(float(_DRAWN.uniform(1.15, 3.0)), 2), int(_DRAWN.integers(3, 40)), hardware, split)
    for split in ("[1]", "[2]", "[4]", "[8]")
    for hardware in ("h200-sxm", "b200, h200-sxm")
]
"""Slow-downs at random, on one device and on several, for each layout."""


@pytest.mark.parametrize("case", long_but(SLOWER[:1], SLOWER), ids=str)
def test_a_slower_measurement_never_makes_a_fleet_smaller(capplan, tmp_path, monkeypatch, case):
    """The commands that verify-plan prints run one after the other as they stand: the refit is of the layout that was measured."""
    slowness, rate, hardware, split = case
    monkeypatch.chdir(tmp_path)
    size_on_few_requests(monkeypatch)
    (tmp_path / "split.yaml").write_text(SPLIT.format(rate=rate, hardware=hardware, split=split))
    assert capplan("fleet", "split.yaml", "-o", "plan.json", "--offline").code == 0
    answer = asked_of_plan(None, tmp_path / "plan.json", offline=True)[1]
    layout = answer.chosen.single.layout
    assert f"{layout.sharding.tensor:.0f}" in split
    share = rate / answer.chosen.single.busy_replicas
    run = {
        "backend": "vllm", "num_prompts": 300, "completed": 300, "duration": 300 / share, "request_rate": share, "request_throughput": share,
        "total_input_tokens": 300 * 1500, "total_output_tokens": 300 * 250, "mean_ttft_ms": 1.0, "mean_tpot_ms": 1.0,
    }  # fmt: skip
    result = written_to(tmp_path / "result.json", run)
    words = ("verify-plan", "--plan", "plan.json", "--results", "result.json", "--offline")
    first = capplan.result(*words)["rows"]
    own = {row["quantity"]: row["predicted"] for row in first}
    run |= {f"mean_{name}_ms": 1e3 * slowness * own[f"{name}_s.mean"] for name in ("ttft", "tpot")}
    result.write_text(json.dumps(run | {"median_tpot_ms": 100 * run["mean_tpot_ms"]}))
    shown = capplan(*words)
    assert shown.code == 4
    for before in ("with this result", "next version"):
        ran = capplan(*printed(shown.out, before), *(("-o", "next.json") if before == "next version" else ()))
        assert ran.code == 0, ran.err
    after = asked_of_plan(None, tmp_path / "next.json", offline=True)[1]
    assert after.chosen.usd_per_hour >= answer.chosen.usd_per_hour
    same = [plan for plan in after.plans if plan.single.layout == layout]
    fewest = min(plan.gpus for plan in answer.plans if plan.single.layout == layout)
    assert all(plan.gpus >= fewest for plan in same)


def test_a_server_that_is_faster_is_told(capplan, plan, own, tmp_path):
    code, found = verified(capplan, plan, tmp_path, as_measured(own, slowness=0.05))
    assert (code, found["verdict"]) == (0, "faster")


@pytest.mark.parametrize("slower", [0.5, 1.8])
def test_the_measured_speed_says_how_many_replicas_meet_the_targets(capplan, plan, own, tmp_path, slower):
    """A fleet whose steps take so many times as long has these mean responses, and its replicas meet the targets."""
    asked, answer = asked_of_plan(None, plan, offline=True)
    group, terms = answer.chosen.single, terms_of(asked)
    trial = trial_of(asked.question, group.layout, terms)
    usual_s, slow_s = (
        slowness * trial.fleet(group.busy_replicas, slowness).e2e_s.mean for slowness in (1.0, slower)
    )
    timed = as_measured(own) | {"mean_e2el_ms": 1000.0}
    (row,) = (
        row for row in verified(capplan, plan, tmp_path, timed)[1]["rows"] if row["quantity"] == "e2e_s.mean"
    )
    timed["mean_e2el_ms"] = 1000.0 * row["predicted"] * slow_s / usual_s
    seen = verified(capplan, plan, tmp_path, timed)[1]["as_measured"]
    assert seen["slowness"] == pytest.approx(slower, rel=0.03)
    needed = seen["busy_replicas"]
    ratio = 1.0 / (1.0 - terms.headroom_fraction)
    assert trial.meets(needed, seen["slowness"], trial.limits, ratio)
    assert (needed > group.busy_replicas) == (slower > 1.0)
    assert seen["gpus"] == (needed + group.spare_replicas) * group.layout.devices


def test_a_plan_that_holds_keeps_its_replicas(capplan, plan, own, tmp_path):
    assert verified(capplan, plan, tmp_path, as_measured(own))[1]["as_measured"] is None
    shown = capplan("verify-plan", "--plan", plan, "--results", tmp_path / "result.json", "--offline").out
    assert "the replica is as fast as predicted" in shown


def test_a_missed_target_is_one_whatever_was_predicted(capplan, plan, own, tmp_path):
    code, found = verified(capplan, plan, tmp_path, as_measured(own) | {"p95_ttft_ms": 601.0})
    assert code == 4
    (ttft,) = (row for row in found["targets"] if row["target"] == "ttft_p95")
    assert (ttft["limit_s"], ttft["measured_s"], ttft["holds"]) == (0.6, 0.601, False)
    _, found = verified(capplan, plan, tmp_path, as_measured(own) | {"p95_ttft_ms": 600.0})
    (ttft,) = (row for row in found["targets"] if row["target"] == "ttft_p95")
    assert (ttft["measured_s"], ttft["holds"]) == (0.6, True)


def test_replicas_share_the_load(capplan, plan, own, tmp_path):
    """Twice the replicas at twice the rate: the same prediction."""
    one = verified(capplan, plan, tmp_path, as_measured(own))[1]
    two = as_measured(own) | {
        "request_rate": 20.0,
        "completed": 800,
        "total_input_tokens": 1_440_000,
        "total_output_tokens": 192_000,
    }
    both = verified(capplan, plan, tmp_path, two, "--replicas", 2)[1]
    assert [row["predicted"] for row in one["rows"]] == [row["predicted"] for row in both["rows"]]


def test_rates_count_where_the_load_waits_for_the_server(capplan, plan, own, tmp_path):
    open_loop = {
        row["quantity"]
        for row in verified(capplan, plan, tmp_path, as_measured(own) | {"output_throughput": 900.0})[1][
            "rows"
        ]
    }
    closed = as_measured(own) | {"output_throughput": 900.0, "request_rate": "inf", "max_concurrency": 16}
    closed_loop = {row["quantity"] for row in verified(capplan, plan, tmp_path, closed)[1]["rows"]}
    assert "output_tokens_per_s" not in open_loop
    assert "output_tokens_per_s" in closed_loop


def counters(ttft_s, *, requests=600):
    lines = [f'vllm:request_success_total{{finished_reason="stop"}} {requests}']
    for name, mean in (("prompt", 900), ("generation", 120)):
        lines += [
            f"vllm:request_{name}_tokens_sum {mean * requests}",
            f"vllm:request_{name}_tokens_count {requests}",
        ]
    lines += [
        f"vllm:time_to_first_token_seconds_sum {ttft_s * requests}",
        f"vllm:time_to_first_token_seconds_count {requests}",
    ]
    return "\n".join(lines) + "\n"


def test_the_counters_of_a_server_are_compared_too(capplan, plan, tmp_path):
    (tmp_path / "scrape.txt").write_text(counters(30.0))
    words = ("verify-plan", "--plan", plan, "--results", tmp_path / "scrape.txt", "--offline")
    assert "--interval" in capplan.refused(*words)
    ran = capplan(*words, "--interval", "60 s", "--format", "json")
    found = json.loads(ran.out)["result"]
    assert (ran.code, found["verdict"], [row["quantity"] for row in found["rows"]]) == (
        4,
        "slower",
        ["ttft_s.mean"],
    )


@table
def test_what_is_no_measurement_of_the_plan_is_refused(capplan, plan, tmp_path, result, says):
    (tmp_path / "result.json").write_text(json.dumps(SERVED | result))
    assert says in capplan.refused(
        "verify-plan --plan", plan, "--results", tmp_path / "result.json", "--offline"
    )


def test_a_plan_that_speculates_is_refused(capplan, plan, tmp_path):
    changed = with_changes(plan, tmp_path / "p.json", chosen={"draft_tokens": 3})
    (tmp_path / "result.json").write_text(json.dumps(SERVED | {"mean_ttft_ms": 5.0}))
    assert "speculates" in capplan.refused(
        "verify-plan --plan", changed, "--results", tmp_path / "result.json", "--offline"
    )


@pytest.mark.parametrize(("gap_s", "in_flight"), [(0.5, 4.0), (0.0, None), (0.001, None)])
def test_a_log_of_requests_one_after_another_is_no_burst(gap_s, in_flight):
    """A request every half second that takes 2 s: four in flight."""
    log = tuple(Row(0, gap_s * number, 100, 50, (), 0.1, 2.0) for number in range(400))
    result = BenchmarkResult(
        "AIPerf", "p", log=log, e2e_s=latency(2.0), requests_per_s=400 / (399 * gap_s + 2.0)
    )
    assert with_load_of_log(result).concurrency == in_flight
    for stated in ({"request_rate_per_s": 3.0}, {"concurrency": 7.0}, {"log": ()}):
        other = replace(result, **stated)
        assert with_load_of_log(other) == other


@pytest.mark.parametrize("quantity", [*(f"{latency}.mean" for latency in LATENCIES), "output_tokens_per_s"])
def test_slower_is_a_higher_latency_or_a_lower_rate(quantity):
    row = Compared(quantity, predicted=10.0, low=8.0, high=12.0, measured=10.0)
    worse, better = (13.0, 7.0) if quantity.endswith("mean") else (7.0, 13.0)
    assert (row.inside, row.slower) == (True, False)
    assert replace(row, measured=worse).slower
    assert not replace(row, measured=better).slower
    both = Verification(BenchmarkResult("t", "p"), 1, (row, replace(row, measured=better)), ())
    assert both.verdict == "faster"


def test_percentiles_that_so_few_requests_do_not_carry_are_no_rows(capplan, plan, own, tmp_path):
    """Of 50 requests none is above the 99th percentile."""
    few = {"num_prompts": 50, "completed": 50, "duration": 5.0, "total_input_tokens": 90_000, "total_output_tokens": 12_000}  # fmt: skip
    rows = []
    for result in (as_measured(own), as_measured(own) | few):
        _, found = verified(capplan, plan, tmp_path, result)
        rows.append({row["quantity"] for row in found["rows"]})
    assert rows[0] - rows[1] == {"ttft_s.p99", "tpot_s.p99"}
    ran = capplan("verify-plan", "--plan", plan, "--results", tmp_path / "result.json", "--offline")
    assert "50 requests are too few for a 99th percentile" in ran.out + ran.err
