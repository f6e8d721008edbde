"""Where prefix caches decide the number of replicas, `fleet` says so, with the hits; memory for more hits is the oracle."""

import re

import pytest

from tests.sweeps import long_but

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


SESSIONS = [(load, think_s) for load in LOADS for think_s in (5, 60)]


@pytest.mark.parametrize("case", long_but([("requests", 60)], SESSIONS), ids=str)
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
