"""A run that fits its plan verifies: what `simulate` of the plan produces with another seed, in the format of a benchmark tool."""

import json
import shlex

import numpy as np
import pytest

from capplan.library.simulated_fleet import SimulationRecords, simulation
from capplan.questions.plans.plan_file import asked_of_plan
from capplan.scenario.command_flags import PlanFlags, RequestFlags
from tests.files import written_to
from tests.plan_files import fleet_plan

pytestmark = pytest.mark.usefixtures("shared_runs")

HEAD = """name: {name}
model: llama-3.1-8b-instruct
weight_dtype: fp8
kv_dtype: fp8
slo: {{ttft_p95: 800 ms, tpot_p95: 30 ms}}
fleet: {{hardware: [h100-sxm], tensor_parallel: 1, pipeline_parallel: 1}}
traffic:
"""
TRAFFIC = {
    "open": "  - {name: chat, request_rate: 30 req/s, input_tokens: {mean: 900, p95: 2500}, output_tokens: {mean: 120, p95: 300}}\n",
    "long": "  - {name: rag, request_rate: 6 req/s, input_tokens: {mean: 3000, p95: 9000}, output_tokens: {mean: 200, p95: 700}}\n",
    "two": "  - {name: chat, request_rate: 15 req/s, input_tokens: 300, output_tokens: 150}\n"
    "  - {name: rag, request_rate: 3 req/s, input_tokens: {mean: 4000, p95: 8000}, output_tokens: {mean: 100, p95: 300}}\n",
    "users": "  - {name: chat, users: 300, think_time: 10 s, input_tokens: {mean: 900, p95: 2500}, output_tokens: {mean: 120, p95: 300}}\n",
    "prefix": "  - {name: chat, request_rate: 20 req/s, input_tokens: {mean: 1500, p95: 3000}, output_tokens: {mean: 120, p95: 300}, "
    "shared_prefix: {tokens: 800, hit_fraction: 0.9}}\n",
    "sessions": "  - {name: agents, request_rate: 8 req/s, turns: 5, input_tokens: {mean: 1500, p95: 3000}, added_tokens: 300, "
    "output_tokens: {mean: 120, p95: 300}, think_time: 8 s, shared_prefix: {tokens: 800}}\n",
}


@pytest.fixture(scope="module")
def plans(tmp_path_factory, few_requests):
    folder = tmp_path_factory.mktemp("verified-runs")
    for name, traffic in TRAFFIC.items():
        path = written_to(folder / f"{name}.yaml", HEAD.format(name=name) + traffic)
        fleet_plan(path, at=folder / f"{name}.json")
    return folder


def ran(plans, name, seed=111):
    """Return what a run of the whole plan measures."""
    asked, answer = asked_of_plan(None, plans / f"{name}.json", offline=True)
    flags = SimulationRecords(RequestFlags(seed=seed, until_s=200.0), PlanFlags())
    return simulation(asked, answer, flags, offline=True)


def result_of(run, slowness=1.0, **more):
    """Return a run as `vllm bench serve` writes it."""
    outcome = run.outcome
    arrival = np.concatenate([part.arrival_s for part in outcome.parts])
    tokens = {
        way: int(sum(getattr(part, f"{way}_tokens").sum() for part in outcome.parts))
        for way in ("input", "output")
    }
    rate = arrival.size / (arrival.max() - arrival.min())
    written = {
        "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct", "request_rate": rate, "completed": int(arrival.size),
        "duration": outcome.seconds, "total_input_tokens": tokens["input"], "total_output_tokens": tokens["output"],
    }  # fmt: skip
    for latency, name in (("ttft_s", "ttft_ms"), ("tpot_s", "tpot_ms"), ("e2e_s", "e2el_ms")):
        spread = getattr(outcome.all, latency)
        for statistic in ("mean", "p50", "p90", "p95", "p99"):
            written[f"{statistic}_{name}"] = 1e3 * slowness * getattr(spread, statistic)
    return written | more


def verified(capplan, plans, name, result, replicas):
    (plans / "result.json").write_text(json.dumps(result))
    words = shlex.split(
        f"verify-plan --plan {plans / f'{name}.json'} --results {plans / 'result.json'} --replicas {replicas} --offline"
    )
    found = capplan(*words, "--format", "json")
    return found.code, found.err if found.code == 2 else json.loads(found.out)["result"]


@pytest.mark.parametrize("seed", [111, 112, 113])
@pytest.mark.parametrize("name", TRAFFIC)
def test_a_run_of_the_plan_lies_in_every_interval(capplan, plans, name, seed):
    run = ran(plans, name, seed)
    code, found = verified(capplan, plans, name, result_of(run), run.outcome.replicas)
    assert [row["quantity"] for row in found["rows"] if not row["inside"]] == []
    assert (code, found["verdict"], found["lengths"]) == (0, "holds", "of the plan")
    assert {"ttft_s.p99", "tpot_s.p50", "e2e_s.mean"} <= {row["quantity"] for row in found["rows"]}


def test_a_run_with_a_list_of_requests_is_predicted_with_them(capplan, plans):
    """Every prompt is of one length there, so the 99th percentile is far below that of the plan."""
    run, count = ran(plans, "open"), 2000
    rate = 30.0 / run.outcome.replicas
    lists = {
        "input_lens": [900] * count, "output_lens": [120] * count, "ttfts": [0.05] * count,
        "itls": [[0.01] * 119] * count, "start_times": [at / rate for at in range(count)], "errors": [""] * count,
    }  # fmt: skip
    both = {}
    for name, more in (("of the results", lists), ("of the plan", {})):
        result = result_of(run) | {
            "request_rate": rate,
            "completed": count,
            "total_input_tokens": 900 * count,
            "total_output_tokens": 120 * count,
        }
        _, found = verified(capplan, plans, "open", result | more, 1)
        assert found["lengths"] == name
        both[name] = {row["quantity"]: row["predicted"] for row in found["rows"]}
    assert both["of the results"]["ttft_s.p99"] < 0.5 * both["of the plan"]["ttft_s.p99"]


def test_mean_lengths_of_another_traffic_are_taken_as_fixed(capplan, plans):
    result = result_of(ran(plans, "open"))
    _, found = verified(
        capplan, plans, "open", result | {"total_input_tokens": 2 * result["total_input_tokens"]}, 1
    )
    assert found["lengths"] == "fixed"


@pytest.mark.parametrize("model", ["Qwen/Qwen3-32B", "meta-llama/Llama-3.1-70B-Instruct"])
def test_results_of_another_model_are_refused(capplan, plans, model):
    code, said = verified(capplan, plans, "open", result_of(ran(plans, "open"), model_id=model), 1)
    assert code == 2
    assert f"is of a model called {model}, and the plan serves llama-3.1-8b-instruct" in said
