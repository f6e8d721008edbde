"""Embeddings and rerankers: prompts that are answered by a vector or a score, against published sizes, closed forms and laws."""

import json

import pytest

from capplan.families.model_config import pooled
from capplan.readers.catalogue.models import read_model, shipped_config
from capplan.scenario.scenario import read_scenario

pytestmark = pytest.mark.usefixtures("shared_runs")

NON_EMBEDDING = {"Qwen/Qwen3-0.6B": 0.44e9, "Qwen/Qwen3-4B": 3.6e9, "Qwen/Qwen3-8B": 6.95e9}
"""Parameters without embeddings, as https://huggingface.co/Qwen/Qwen3-8B and its sisters state them."""
BASE = {
    "name": "s",
    "model": "Qwen/Qwen3-4B",
    "runner": "pooling",
    "traffic": [{"request_rate": "40 req/s", "input_tokens": {"mean": 300, "p95": 600}}],
    "slo": {"ttft_p95": "400 ms"},
    "fleet": {"hardware": ["h100-sxm"], "tensor_parallel": 1, "pipeline_parallel": 1},
}
LINE = ("--hardware", "h100-sxm", "--input-tokens", 512, "--offline", "--format", "json")


@pytest.fixture
def asked(capplan, tmp_path):
    """Return the result of a command on the base scenario with other traffic, or other keys."""

    def run(command="fleet", *words, traffic=(), **keys):
        path = tmp_path / "s.yaml"
        path.write_text(json.dumps(BASE | keys | {"traffic": [BASE["traffic"][0] | dict(traffic)]}))
        return capplan.result(command, path, *words, "--offline")

    return run


@pytest.mark.parametrize("model", NON_EMBEDDING)
def test_a_prompt_multiplies_the_published_parameters_without_embeddings(model, capplan):
    """Two FLOP a parameter and token; the vector itself is a pass over one position."""
    rows = capplan.result("estimate", model, *LINE, "--concurrency", 1, "--runner", "pooling")["breakdown"]
    products = sum(row["flop"] for row in rows if row["operator"] in ("qkv", "o", "gate_up", "down"))
    assert products / (2 * 512) == pytest.approx(NON_EMBEDDING[model], rel=0.015)
    assert {row["phase"] for row in rows} == {"prefill"}
    assert sum(row["flop"] for row in rows if row["operator"] in ("pooling", "lm_head")) == 0


def test_a_vector_takes_as_long_as_a_first_token_without_the_lm_head(capplan):
    prompt = ("estimate", "qwen3-4b", *LINE, "--concurrency", 1)
    vector = capplan.result(*prompt, "--runner", "pooling")
    token = capplan.result(*prompt, "--output-tokens", 1)

    def head_s(answer):
        rows = {row["operator"]: row["seconds"] for row in answer["breakdown"] if row["phase"] == "prefill"}
        return sum(rows.get(name, 0.0) for name in ("lm_head", "sampling", "pooling"))

    saved = head_s(token) - head_s(vector)
    assert saved > 0
    assert token["ttft_s"]["mean"] - vector["ttft_s"]["mean"] == pytest.approx(saved, rel=0.15)
    assert vector["output_tokens_per_s"] == 0.0
    assert vector["total_tokens_per_s"] == pytest.approx(512 * vector["requests_per_s"])


def test_cost_by_tokens_and_by_requests_is_that_of_the_month(asked):
    plan = asked()["chosen"]
    requests = 40 * 730 * 3600
    assert plan["usd_per_million_output_tokens"] is None
    assert plan["usd_per_million_output_tokens_at_mean"] is None
    assert plan["usd_per_thousand_requests"] == pytest.approx(1000 * plan["usd_per_month"] / requests)
    assert plan["usd_per_million_tokens_at_mean"] == pytest.approx(
        1e6 * plan["usd_per_month"] / (300 * requests)
    )


def test_documents_are_requests_that_arrive_together(asked):
    """Twenty documents each at 2 a second are the sequences of 40 a second, but burstier, so no fleet of them is smaller."""
    together = asked(traffic={"request_rate": "2 req/s", "documents": 20})["chosen"]
    alone = asked()["chosen"]
    assert together["replicas"] >= alone["replicas"]
    assert together["usd_per_million_tokens_at_mean"] == pytest.approx(
        alone["usd_per_million_tokens_at_mean"] * together["usd_per_month"] / alone["usd_per_month"]
    )
    assert together["usd_per_thousand_requests"] == pytest.approx(
        20 * alone["usd_per_thousand_requests"] * together["usd_per_month"] / alone["usd_per_month"]
    )
    assert together["ttft_s"]["p95"] > alone["ttft_s"]["p95"]


def test_a_simulation_has_prompts_and_no_output(asked):
    result = asked("simulate", "--hardware", "h100-sxm", "--until", "60s")
    assert result["output_tokens_per_s"] == 0.0
    assert result["input_tokens_per_s"] == pytest.approx(300 * result["requests_per_s"], rel=0.1)
    assert result["e2e_s"] == result["ttft_s"]


def test_the_fleet_of_a_plan_file_is_read_back(asked, capplan, tmp_path):
    """A plan without a price of output tokens still has its money."""
    asked("fleet")
    plan = tmp_path / "plan.json"
    assert capplan("fleet", tmp_path / "s.yaml", "--offline", "-o", plan).code == 0
    value = capplan.result("explain", plan, "usd_per_thousand_requests", "--offline")["value"]
    assert value == pytest.approx(
        json.loads(plan.read_text())["result"]["chosen"]["usd_per_thousand_requests"]
    )


def test_a_pooled_model_holds_no_lm_head():
    untied = read_model("Qwen/Qwen3-8B", offline=True)
    served = pooled(untied)
    assert served.lm_head.parameters == 0
    assert served.embedding_parameters == untied.embedding_parameters
    assert pooled(served) == served
    assert not served.generates


def test_a_model_of_scores_asks_for_the_runner(capplan, tmp_path):
    config, _ = shipped_config("Qwen/Qwen3-0.6B")
    scoring = {**config, "architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1}
    (tmp_path / "config.json").write_text(json.dumps(scoring))
    scenario = BASE | {"model": "./config.json"}
    generating = scenario | {"runner": "generate", "traffic": [BASE["traffic"][0] | {"output_tokens": 1}]}
    (tmp_path / "s.yaml").write_text(json.dumps(generating))
    assert "runner: pooling" in capplan.refused("fleet", tmp_path / "s.yaml", "--offline")
    (tmp_path / "s.yaml").write_text(json.dumps(scenario))
    assert capplan("fleet", tmp_path / "s.yaml", "--offline").code == 0
    assert read_scenario(tmp_path / "s.yaml").pooled
