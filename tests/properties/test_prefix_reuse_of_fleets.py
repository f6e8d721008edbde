"""Prefix reuse of fleets: in the demand, in the search, behind a router that knows the prefixes, and where caches decide the replicas."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.cli.main import main
from capplan.fleet.load.demand import demand_of
from capplan.fleet.load.offered import split_by_prefix
from capplan.fleet.load.session_load import offered_with_sessions, session_block_tokens
from capplan.recorded.traces.trace import workload_of
from capplan.scenario.scenario import read_scenario
from capplan.scenario.workload_file import workload_text
from capplan.serving.requests import Requests
from tests.files import written_to
from tests.sweeps import long_but

pytestmark = pytest.mark.usefixtures("shared_runs")


def chats(path, people=40, turns=12):
    """Write people who take turns, each prompt holding all that was said before, in blocks of 512 tokens."""
    rows, block = [], 0
    said = {person: [] for person in range(people)}
    for turn in range(turns):
        for person in range(people):
            said[person] = [*said[person], block]
            block += 1
            rows.append({"timestamp": 1000 * (turn * people + person), "input_length": 512 * len(said[person]), "output_length": 20, "hash_ids": said[person]})  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))


@pytest.fixture
def scenario(tmp_path):
    chats(tmp_path / "t.jsonl")
    (tmp_path / "s.yaml").write_text(
        "name: s\nmodel: llama-3.1-8b\ntraffic: [{trace: t.jsonl}]\nfleet: {hardware: [h100-sxm]}\n"
    )
    return tmp_path / "s.yaml"


def test_a_larger_cache_leaves_less_to_work_on(scenario):
    demand = demand_of(read_scenario(scenario))
    assert demand.reuses
    assert float(demand.lengths.cached_tokens) == 0.0
    cached = [float(demand.with_cache(tokens).lengths.cached_tokens) for tokens in (0.0, 1e5, 3e5, 1e6, 1e9)]
    assert cached == sorted(cached)
    # all of a prompt but its newest block: (n - 1) n / 2 of n (n + 1) / 2 blocks
    assert cached[-1] / float(demand.lengths.input_tokens) == pytest.approx(11 / 13, abs=0.01)


def test_a_workload_yaml_keeps_the_curve(scenario, tmp_path):
    (tmp_path / "w.yaml").write_text(workload_text(workload_of([tmp_path / "t.jsonl"])))
    raw = read_scenario(scenario).classes[0].reuse
    scenario.write_text(scenario.read_text().replace("t.jsonl", "w.yaml"))
    again = read_scenario(scenario).classes[0].reuse
    sizes = np.array([0.0, 5e4, 2e5, 1e6])
    assert again.hit_fraction(sizes) == pytest.approx(raw.hit_fraction(sizes), abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), replicas=st.integers(2, 4))
def test_a_prompt_of_its_own_goes_where_least_was_sent_lately(seed, replicas):
    """What was sent counts with exp(-age / 60 s): summed anew for every request, where the product keeps one sum and lets it decay."""
    rng = np.random.default_rng(seed)
    count = 60
    arrival = np.cumsum(rng.exponential(15.0, count))
    tokens = rng.integers(2, 4000, count)
    whole = Requests(
        tokens, np.full(count, 1), arrival,
        block_ids=np.arange(count), block_counts=np.full(count, 1),
    )  # fmt: skip
    sent = [[] for _ in range(replicas)]
    for at, size in zip(arrival, tokens, strict=True):
        loads = [sum((n + 1) * np.exp((then - at) / 60.0) for then, n in past) for past in sent]
        sent[int(np.argmin(loads))].append((at, size))
    dealt = split_by_prefix(whole, replicas)
    assert [part.arrival_s.tolist() for part in dealt] == [[at for at, _ in past] for past in sent]


SESSIONS = """name: sessions
model: llama-3.1-8b
traffic:
  - {name: s, request_rate: 28 req/s, turns: {mean: 10, p95: 24}, think_time: 5 s,
     input_tokens: {mean: 356, p95: 1068}, added_tokens: 790, output_tokens: 88}
fleet: {hardware: [b200]}
"""
SHARED = SESSIONS.replace("{mean: 356, p95: 1068}", "{min: 6100, max: 7200}, shared_prefix: {tokens: 6000}")


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("text", "shared"), [(SESSIONS, 0), (SHARED, 6000)])
def test_long_sessions_stay_and_replicas_compute_about_as_much(tmp_path, text, shared, seed):
    """Contexts of 20,000 tokens of which a turn computes 878: a session counts by what its turns compute, not by its context, nor by what all begin with."""
    path = written_to(tmp_path / "sessions.yaml", text)
    whole = offered_with_sessions(
        demand_of(read_scenario(path)),
        seconds=300.0,
        seed=seed,
        longest=40_000,
        response_s=1.5,
        turns_wait=False,
    ).requests
    dealt = split_by_prefix(whole, 7)
    own = shared // session_block_tokens(demand_of(read_scenario(path)))
    homes, moved, computed = {}, 0, []
    for replica, part in enumerate(dealt):
        seen = set()
        computed.append(0.0)
        for ids in part.pieces("block_ids"):
            if ids.size > own:
                moved += homes.setdefault(int(ids[own]), replica) != replica
            computed[-1] += len(set(ids.tolist()) - seen)
            seen.update(ids.tolist())
    assert moved <= 0.001 * len(whole)
    assert max(computed) <= 1.05 * np.mean(computed)


@pytest.mark.long
def test_a_fleet_with_a_tier_needs_less_and_waits_for_its_loads(scenario, capsys):
    """The same traffic on a small cache: with a host behind it a replica holds its targets at a larger rate."""

    def plan(more):
        small = scenario.with_name(f"s{len(more)}.yaml")
        promise = "slo: {ttft_p95: 1 s}\ngpu_memory_utilization: 0.27\nmax_num_batched_tokens: 2048\n"
        small.write_text(scenario.read_text() + promise + more)
        assert main(["fleet", str(small), "--format", "json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        return answer["result"]["plans"][0], answer

    alone, _ = plan("")
    tiered, said = plan("kv_offload: [{name: host, capacity: 200 GB}]\n")
    assert tiered["usd_per_hour"] <= alone["usd_per_hour"]
    assert tiered["ttft_s"]["mean"] < alone["ttft_s"]["mean"]
    slow, _ = plan("kv_offload: [{name: host, capacity: 200 GB, bandwidth: 2 GB/s}]\n")
    assert slow["ttft_s"]["mean"] > tiered["ttft_s"]["mean"]
    assert any("offload tiers" in line["assumption"] for line in said["assumptions"])


@pytest.mark.long
def test_host_memory_pays_below_what_the_smaller_fleet_saves(scenario, capsys, capplan):
    """What it may cost, times the memory of all replicas, is what is saved."""
    small = scenario.with_name("memory.yaml")
    small.write_text(
        scenario.read_text()
        + "slo: {ttft_p95: 1 s}\ngpu_memory_utilization: 0.27\nmax_num_batched_tokens: 2048\n"
    )
    rows = capplan.result("levers", small, "--lever", "kv-offload")["levers"]
    assert [row["host_memory_bytes"] % 128e9 for row in rows] == [0.0, 0.0, 0.0]
    for row in rows:
        worth, memory = row["host_memory_worth_usd_per_gb_month"], row["host_memory_bytes"]
        assert worth * memory / 1e9 == pytest.approx(row["usd_per_month_saved"])
    assert main(["levers", str(small), "--lever", "kv-offload"]) == 0
    assert "Host memory to buy, and whether it pays" in capsys.readouterr().out


@pytest.mark.long
def test_separate_pools_keep_a_session_where_its_context_is_as_simulate_does(capplan, tmp_path):
    """Turns were dealt to the prefill replicas in turn unless the scenario named a router: 46 % hits for 71, and TTFT half as long again."""
    path, plan = tmp_path / "s.yaml", tmp_path / "plan.json"
    path.write_text(
        "name: s\nmodel: meta-llama/Llama-3.1-8B-Instruct\nweight_dtype: fp8\n"
        "traffic: [{name: s, request_rate: 6 req/s, turns: 8, think_time: 15 s, input_tokens: 2000, added_tokens: 500, output_tokens: 100}]\n"
        "slo: {ttft_p95: 2 s, tpot_p95: 50 ms}\n"
        "fleet: {hardware: [l40s], tensor_parallel: 1, pipeline_parallel: 1, headroom: 0 %, spare_replicas: 0, disaggregation: only, kv_link: network}\n"
    )
    capplan("fleet", path, "--offline", "-o", plan)
    planned = json.loads(plan.read_text())["result"]["chosen"]
    seen = capplan.result("simulate", "--plan", plan, "--offline")
    assert planned["groups"][0]["replicas"] > 1
    assert planned["prefix_hit_fraction"] == pytest.approx(seen["prefix_hit_fraction"], abs=0.02)
    for latency in ("ttft_s", "tpot_s", "e2e_s"):
        assert planned[latency]["mean"] == pytest.approx(seen[latency]["mean"], rel=0.04)


LOADS = {"requests": "request_rate: 3 req/s", "users": "users: 150"}
HOST = "kv_offload=[{name: host, capacity: 300 GB}]"


def chosen(capplan, folder, load, think_s, *changes):
    scenario = folder / "chats.yaml"
    scenario.write_text(
        "name: chats\nmodel: meta-llama/Llama-3.1-8B-Instruct\n"
        f"traffic: [{{name: chat, {LOADS[load]}, turns: 12, input_tokens: 3000, added_tokens: 1500, output_tokens: 150, think_time: {think_s} s}}]\n"
        "slo: {ttft_p95: 1 s, tpot_p95: 60 ms}\nfleet: {hardware: [l40s], tensor_parallel: 1, pipeline_parallel: 1}\n"
    )
    more = [part for change in changes for part in ("--set", change)]
    return capplan.result("fleet", scenario, "--offline", *more)["chosen"]


SESSIONS_OF_CACHES = [(load, think_s) for load in LOADS for think_s in (5, 60)]


@pytest.mark.parametrize("case", long_but([("requests", 60)], SESSIONS_OF_CACHES), ids=str)
def test_caches_decide_exactly_where_memory_for_them_makes_the_fleet_smaller(capplan, tmp_path, case):
    """Host memory keeps what no longer fits on the device: with it a fleet that caches decide needs a quarter fewer replicas at least."""
    load, think_s = case
    plan = chosen(capplan, tmp_path, load, think_s)
    roomy = chosen(capplan, tmp_path, load, think_s, HOST)
    said = "prefix caches, whose hits decide" in plan["bottleneck"]
    assert said == (think_s == 60)
    assert said == (roomy["replicas"] < 0.8 * plan["replicas"])
    assert "prefix caches" not in roomy["bottleneck"]
    if said:
        here, busy, there, half = map(
            int,
            re.search(
                r"(\d+)% of the prompt tokens with (\d+) in service, at most (\d+)% with (\d+)",
                plan["bottleneck"],
            ).groups(),
        )
        assert here == round(100 * plan["prefix_hit_fraction"])
        assert (busy, half) == (plan["replicas"] - plan["spare_replicas"], busy // 2)
        assert there < here


def test_requests_without_sessions_have_no_caches_that_decide(capplan, tmp_path):
    scenario = tmp_path / "plain.yaml"
    scenario.write_text(
        "name: plain\nmodel: meta-llama/Llama-3.1-8B-Instruct\ntraffic: [{request_rate: 8 req/s, input_tokens: 900, output_tokens: 150}]\n"
        "slo: {ttft_p95: 1 s}\nfleet: {hardware: [l40s], tensor_parallel: 1, pipeline_parallel: 1}\n"
    )
    assert "prefix caches" not in capplan.result("fleet", scenario, "--offline")["chosen"]["bottleneck"]
