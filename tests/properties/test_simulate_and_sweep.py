"""Laws of `simulate` and `sweep`: same seed same bytes, nothing is lost, more load is never faster, reruns go on."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from capplan.cli.main import main
from capplan.fleet.search.workers import executor, runner
from capplan.fleet.simulation import Stream, fleet_outcome, simulated_fleet, split_round_robin
from capplan.fleet.sweep import knee, load_of, summaries, swept
from capplan.questions.sweep import asked_sweep, loads_of
from capplan.readers.point_file import PointFile
from capplan.replica.replica import replica_of
from capplan.scenario.command_flags import SweepFlags
from capplan.scenario.flags import LoadFlags, ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.serving.requests import Requests
from capplan.workload.request_class import Slo, Target
from tests.files import written_to

pytestmark = pytest.mark.usefixtures("shared_runs")

TRACE = "arrival_s,input_tokens,output_tokens\n" + "".join(
    f"{i * 0.2:.3f},{200 + i % 7},{20 + i % 5}\n" for i in range(200)
)
SCENARIO = """name: small
model: llama-3.1-8b
traffic:
  - {name: chat, request_rate: 4 req/s, input_tokens: {mean: 500, p95: 1200}, output_tokens: {mean: 100, p95: 250}}
  - {name: search, request_rate: 2 req/s, input_tokens: 900, output_tokens: 20}
slo: {ttft_p95: 2 s, tpot_p95: 60 ms}
fleet: {hardware: [h100-sxm]}
"""
NAMED = ("--hardware", "h100-sxm", "-tp", "1", "--replicas", "2", "--offline")


@pytest.fixture
def scenario(tmp_path):
    path = written_to(tmp_path / "small.yaml", SCENARIO)
    return str(path)


def said(capsys, *words, code=0):
    assert main([*words, "--format", "json"]) == code
    return capsys.readouterr().out


def test_same_seed_same_bytes_and_another_seed_others(scenario, capsys):
    one, two, other = (said(capsys, "simulate", scenario, *NAMED, "--seed", seed) for seed in ("1", "1", "2"))
    assert one == two
    assert json.loads(one)["result"]["ttft_s"] != json.loads(other)["result"]["ttft_s"]


def test_every_request_of_every_class_ends_somewhere(scenario, capsys):
    whole = json.loads(said(capsys, "simulate", scenario, *NAMED, "--until", "60 s"))["result"]
    assert whole["requests"] == whole["finished"] + whole["shed"] + whole["unfinished"]
    assert set(whole["classes"]) == {"chat", "search"}
    for key in ("requests", "finished", "shed", "unfinished"):
        assert whole[key] == sum(figures[key] for figures in whole["classes"].values())
    assert whole["goodput_requests_per_s"] <= whole["requests_per_s"] * (1 + 1e-12)
    assert whole["ttft_s"]["p50"] <= whole["ttft_s"]["p95"] <= whole["ttft_s"]["p99"]


def test_a_trace_is_replayed_whole_and_rows_left_out_are_said(scenario, tmp_path, capsys):
    (tmp_path / "t.csv").write_text(TRACE + "nonsense,1,2\n50,10,0\n")
    assert main(["simulate", scenario, *NAMED, "--trace", str(tmp_path / "t.csv"), "--format", "json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)["result"]
    assert (result["requests"], result["finished"]) == (200, 200)
    assert "1 row left out: is not a request (first in line 202: 'nonsense' is no time" in printed.err
    assert "1 row left out: no output token" in printed.err


def test_prompts_over_the_context_are_turned_away_and_counted(scenario, tmp_path, capsys):
    (tmp_path / "t.csv").write_text(TRACE + "41,500000,5\n42,130000,60000\n")
    assert main(["simulate", scenario, *NAMED, "--trace", str(tmp_path / "t.csv"), "--format", "json"]) in (
        0,
        4,
    )
    printed = capsys.readouterr()
    assert json.loads(printed.out)["result"]["requests"] == 201
    assert "1 prompts reach the context of 131,072 tokens" in printed.err
    assert "1 outputs are truncated" in printed.err


def test_shared_blocks_are_found_in_the_cache(scenario, tmp_path, capsys):
    rows = [
        {"timestamp": 1000 * i, "input_length": 1024, "output_length": 8, "hash_ids": [0, i % 3 + 1]}
        for i in range(60)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = json.loads(
        said(capsys, "simulate", scenario, *NAMED[:5], "1", "--offline", "--trace", str(tmp_path / "t.jsonl"))
    )
    # three first prompts find 0, 1 and 1 of their two blocks, the others both, but for the last token, which is computed
    assert result["result"]["prefix_hit_fraction"] == pytest.approx((116 * 512 - 57) / (60 * 1024))


def test_a_queue_limit_and_a_deadline_shed(tmp_path, capsys):
    scenario = str(tmp_path / "busy.yaml")
    text = SCENARIO.replace("4 req/s", "60 req/s")
    Path(scenario).write_text(f"{text}engine_version: '0.13.0'\n")  # joins a step as it begins
    busy = ("--hardware", "l40s", "-tp", "1", "--replicas", "1", "--offline", "--until", "30 s")
    free = json.loads(said(capsys, "simulate", scenario, *busy, code=4))["result"]
    late = json.loads(said(capsys, "simulate", scenario, *busy, "--deadline", "1 s", code=4))["result"]
    assert late["shed"] > 0
    assert late["queue_s"]["p99"] <= 1.1
    short = json.loads(said(capsys, "simulate", scenario, *busy, "--queue-limit", "0", code=4))["result"]
    assert free["shed"] == 0
    assert short["shed"] > 0


@pytest.fixture(scope="module")
def replica():
    return replica_of(
        asked_replica("llama-3.1-8b", "h100-sxm", ServingFlags(max_model_len=8192, offline=True)).spec
    )


def requests(count, seed=3):
    random = np.random.default_rng(seed)
    return Requests(
        random.integers(50, 900, count), random.integers(2, 90, count), np.cumsum(random.exponential(0.05, count)), None, random.integers(0, 2, count)
    )  # fmt: skip


def test_replicas_side_by_side_are_the_sum_of_their_parts(replica):
    whole = requests(301)
    dealt = split_round_robin(whole, 3)
    assert [len(part) for part in dealt] == [101, 100, 100]
    together = simulated_fleet(replica, Stream(whole, ("a", "b")), replicas=3, slo=Slo())
    alone = [simulated_fleet(replica, Stream(part, ("a", "b")), slo=Slo()) for part in dealt]
    assert together.all.finished == sum(one.all.finished for one in alone) == 301
    again = fleet_outcome([one.parts[0] for one in alone], Stream(None, ("a", "b")), Slo())
    assert again.all == together.all


def asked(**loads):
    flags = SweepFlags(hardware=["h100-sxm"], **loads)
    sweep = asked_sweep("llama-3.1-8b", flags, LoadFlags(500, 60), ServingFlags(offline=True))
    slo = Slo((Target("tpot", "p95", 12e-3),))
    return replace(sweep, points=[replace(point, slo=slo) for point in sweep.points], slo=slo)


def test_more_in_flight_serves_more_and_takes_longer():
    rows = swept(asked(concurrency="1, 4, 16, 64").points, runner(None, PointFile(None)), refine=False)
    assert [row["concurrency"] for row in rows] == [1, 4, 16, 64]
    served = [row["requests_per_s"] for row in rows]
    took = [row["e2e_s"]["mean"] for row in rows]
    assert served == sorted(served)
    assert took == sorted(took)
    # Little's law: in flight = rate x time in the system, to the 8 % of a finite run
    assert [
        row["requests_per_s"] * row["e2e_s"]["mean"] / row["concurrency"] for row in rows
    ] == pytest.approx([1.0] * 4, rel=0.08)


def test_the_last_good_load_is_closed_in_on():
    sweep = asked(concurrency="1, 256")
    rows = swept(sweep.points, runner(None, PointFile(None)))
    (summary,) = summaries(rows, sweep.slo, {})
    missed = min(load_of(row) for row in rows if not row["holds"])
    assert 1 < summary["largest_load_that_holds"] < missed <= summary["largest_load_that_holds"] + 16


def test_the_knee_is_where_power_is_largest():
    rate, time = np.array([1.0, 1.9, 2.6, 2.8]), np.array([1.0, 1.1, 1.6, 3.0])
    assert knee(rate, time) == int(np.argmax(rate / time)) == 1


def test_a_sweep_of_which_no_request_ends_has_a_knee_without_a_response(capsys):
    words = "--hardware l4 --input-tokens 200 --output-tokens 1e9 --concurrency 1,4 --offline"
    (row,) = json.loads(said(capsys, "sweep", "llama-3.1-8b", *words.split()))["result"]["plans"]
    assert (row["knee_requests_per_s"], row["knee_e2e_s"]) == (0.0, None)


def test_processes_find_what_one_process_finds():
    points = asked(concurrency="1, 8").points
    here = swept(points, runner(None, PointFile(None)), refine=False)
    with executor(2, None) as pool:
        there = swept(points, runner(pool, PointFile(None)), refine=False)
    assert there == here


@pytest.mark.long
def test_a_dask_cluster_finds_what_one_process_finds():
    import distributed

    points = asked(concurrency="1, 8").points
    here = swept(points, runner(None, PointFile(None)), refine=False)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        executor(1, cluster.scheduler_address) as pool,
    ):
        assert swept(points, runner(pool, PointFile(None)), refine=False) == here


def test_rates_are_read_with_or_without_their_unit():
    assert loads_of("1, 2, 4 req/s", None)[0] == (1.0, 2.0, 4.0)
    assert loads_of("60,120 req/min", None)[0] == (1.0, 2.0)
    assert loads_of(None, "8,1")[1] == (1, 8)


def test_a_sweep_shows_the_load_that_the_fleet_is_planned_for_beside_the_predicted_one(
    scenario, tmp_path, capsys
):
    """`export` counts a replica as full at the same rate, and the plan file has both."""
    plan = tmp_path / "plan.json"
    assert main(["fleet", str(scenario), "-o", str(plan), "--offline"]) == 0
    chosen = json.loads(plan.read_text())["result"]["chosen"]
    capsys.readouterr()
    assert (
        main(["sweep", str(scenario), "--offline", "--format", "json", "--request-rate", "1, 2 req/s"]) == 0
    )
    swept_plans = json.loads(capsys.readouterr().out)["result"]["plans"]
    (row,) = [row for row in swept_plans if row["plan"].startswith(chosen["hardware"])]
    headroom = json.loads(plan.read_text())["result"]["plan_file"]["inputs"]["headroom_fraction"]
    planned = min(
        chosen["request_rate_limit_per_replica"] * (1.0 - headroom),
        chosen["sure_request_rate_limit_per_replica"],
    )
    assert row["planned_requests_per_s"] == pytest.approx(planned)
    assert main(["export", "--plan", str(plan), "--target", "k8s"]) == 0
    text = capsys.readouterr().out
    assert f"counts as full at {planned:.4g} req/s" in text
    assert f"up to {chosen['request_rate_limit_per_replica']:.4g} req/s" in text


USERS = SCENARIO.replace("request_rate: 4 req/s", "users: 60, think_time: 5 s")


def simulated_text(capsys, path, *flags):
    assert main(["simulate", str(path), *NAMED, *flags, "--format", "json"]) in (0, 4)
    return json.loads(capsys.readouterr().out)["result"]


def test_users_that_are_dealt_in_turn_stay_with_their_replica(tmp_path, capsys):
    """`--routing round_robin` names the rule that is used anyway, so it changes nothing."""
    path = written_to(tmp_path / "users.yaml", USERS)
    assert simulated_text(capsys, path, "--routing", "round_robin") == simulated_text(capsys, path)


def test_throughput_is_the_offered_rate_where_it_is_served_however_long_the_drain(tmp_path, capsys):
    """Responses take some 10 s of a run of two minutes, which a mean over the whole run would count as time with traffic."""
    path, trace = tmp_path / "long.yaml", tmp_path / "long.csv"
    path.write_text(SCENARIO)
    lines = "".join(f"{number / 6:.4f},400,1200\n" for number in range(720))
    trace.write_text(f"arrival_s,input_tokens,output_tokens\n{lines}")
    result = simulated_text(capsys, path, "--trace", str(trace), "--warm-up", "30 s")
    assert result["seconds"] > result["measured_until_s"] + 5.0
    length = result["measured_until_s"] - result["measured_from_s"]
    assert result["requests_per_s"] == pytest.approx(6.0, rel=0.05)
    assert 720 / result["seconds"] < 5.7
    assert length == pytest.approx(90.0, rel=0.01)


def test_a_warm_up_that_leaves_nothing_is_refused(scenario, capplan):
    assert "leaves no request" in capplan.refused("simulate", scenario, *NAMED, "--warm-up", "30 h")


SESSIONS = """
name: sessions
model: Qwen/Qwen3-8B
traffic:
  - {request_rate: 6 req/s, turns: 10, think_time: 2 s, added_tokens: 1000, input_tokens: 4000, output_tokens: 20}
fleet: {hardware: h100-sxm}
"""


@pytest.mark.parametrize("replicas", ["1", "2"])
def test_sessions_that_are_served_in_time_are_within_capacity(tmp_path, capsys, replicas):
    """The capacity counts what the cache finds of earlier turns, as the run does."""
    path = written_to(tmp_path / "sessions.yaml", SESSIONS)
    words = ("simulate", str(path), "-tp", "1", "--hardware", "h100-sxm", "--replicas", replicas)
    assert main([*words, "--until", "2 min", "--format", "json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)["result"]
    assert result["ttft_s"]["p99"] < 0.5
    assert result["prefix_hit_fraction"] > 0.8
    assert result["utilisation_fraction"] < 0.5 / int(replicas)
    assert "keeps growing" not in printed.err
