"""The page of a plan with separate pools: one plan, its two pools, and what moves their number; and the levers on a page."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from math import inf

import pytest

from capplan.cli.main import main
from capplan.errors import InputError
from capplan.questions.plans.plan_file import asked_of_plan
from capplan.readers.catalogue.models import model_source
from capplan.report.safe_text import plain
from capplan.review.findings import findings
from capplan.review.levers import saved_levers
from capplan.review.page import review_html, review_markdown, review_of
from tests.files import written_to
from tests.plan_files import fleet_plan

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
SCENARIO = """name: apart
model: llama-3.1-8b
max_num_seqs: 128
traffic:
  - {name: chat, request_rate: 12 req/s, input_tokens: {mean: 3000, p95: 6000}, output_tokens: {mean: 120, p95: 300}, daily_curve: office}
slo: {ttft_p95: 900 ms, tpot_p95: 15 ms}
fleet:
  {hardware: [h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, spare_replicas: 1, disaggregation: only, kv_link: ethernet-100g}
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory, few_requests):
    return fleet_plan(written_to(tmp_path_factory.mktemp("pools") / "apart.yaml", SCENARIO))


@pytest.fixture(scope="module")
def found(plan):
    asked, answer = asked_of_plan(None, plan, offline=True)
    return findings(asked, answer, "capplan report", model_source(asked.scenario.model))


@pytest.fixture(scope="module")
def result(found):
    return plain(review_of(found).answer.result)


@pytest.fixture(scope="module")
def tables(result):
    return {section["title"]: section["tables"] for section in result["sections"]}


@pytest.mark.long
def test_the_page_decides_for_the_pools_and_has_a_part_for_each(plan, result, tables):
    chosen = json.loads(plan.read_text())["result"]["chosen"]
    assert result["decision"].startswith(f"Rent {chosen['gpus']} GPUs, prefill on ")
    titles = [f"{what}: {pool} pool" for what in ("Memory of one GPU", "Roofline", "Where the time goes") for pool in ("prefill", "decode")]  # fmt: skip
    assert set(titles) < set(tables)
    for pool in ("prefill", "decode"):
        (operators,) = tables[f"Where the time goes: {pool} pool"]
        assert {row["bound"] for row in operators} <= {"compute", "memory", "network", "latency"}
    prefill, decode = (tables[f"Where the time goes: {pool} pool"][0] for pool in ("prefill", "decode"))
    assert {"host"} <= {row["operator"] for row in decode} - {row["operator"] for row in prefill}
    over_time = tables["Load over time"]
    assert len(over_time) == 6


def test_devices_times_price_is_the_cost_of_the_plan(result, tables):
    devices, tokens, *_ = tables["Cost"]
    of_plan = devices[:2]
    assert sum(row["gpus"] for row in of_plan) == result["chosen"]["gpus"]
    assert sum(row["usd_per_month"] for row in of_plan) == pytest.approx(result["chosen"]["usd_per_month"])
    for row in devices:
        assert row["gpus"] * row["usd_per_gpu_hour"] == pytest.approx(row["usd_per_hour"])
    assert tokens[0]["usd_per_month"] == pytest.approx(result["chosen"]["usd_per_month"])


def test_certainty_costs_more_the_surer_and_never_more_than_a_plan_that_is_as_sure(result):
    """A plan that is p sure stands for every confidence up to p; a confidence that no fleet reaches costs without end."""
    chosen = result["chosen"]
    costs = {row["confidence"]: row["usd_per_month"] or inf for row in result["certainty"]}
    assert list(costs) == sorted(costs)
    assert list(costs.values()) == sorted(costs.values())
    for confidence, usd in costs.items():
        if confidence <= chosen["slo_met_probability"]:
            assert usd <= chosen["usd_per_month"]
    assert costs[0.5] < inf
    assert costs[0.95] > chosen["usd_per_month"]
    assert chosen["usd_per_month_low"] <= chosen["usd_per_month"] <= (chosen["usd_per_month_high"] or inf)


@pytest.mark.long
def test_what_moves_the_number_is_what_a_changed_scenario_would_get(plan, result, tables):
    """The scenario has one layout for either pool, so the page and `fleet` with these keys have the same replicas to find."""
    rows = {(row["what"], row["if_it_is"]): row for row in tables["What moves the number"][0]}
    what_if = {row["traffic_ratio"]: row["gpus"] for row in result["what_if"]}
    file = plan.with_name("changed.json")
    setting = "traffic[0].request_rate=9.6 req/s"
    assert (
        main(["fleet", str(plan.with_name("apart.yaml")), "--offline", "--set", setting, "-o", str(file)])
        == 0
    )
    changed = json.loads(file.read_text())["result"]["chosen"]
    assert rows["traffic", "+20%"]["gpus"] == changed["gpus"]
    assert rows["traffic", "+20%"]["usd_per_month"] == pytest.approx(changed["usd_per_month"])
    assert what_if[1.2] == rows["traffic", "+20%"]["gpus"]
    assert what_if[1.0] == result["chosen"]["gpus"]
    assert list(what_if.values()) == sorted(what_if.values())
    slow = rows["kernel efficiency", "as slow as the worst tenth"]["usd_per_month"]
    assert slow == pytest.approx(result["chosen"]["usd_per_month_high"])


def test_html_and_markdown_have_the_same_plan(found, result):
    review = review_of(found)
    html, markdown = review_html(review), review_markdown(review)
    page = ET.fromstring(html.replace("<!DOCTYPE html>\n", ""))
    titles = [section["title"] for section in result["sections"]]
    assert [e.text for e in page.iter("h2")] == titles
    assert [line[3:] for line in markdown.splitlines() if line.startswith("## ")] == titles
    assert result["decision"] in html
    assert result["decision"] in markdown
    for cell in page.iter("td"):
        assert "".join(cell.itertext()).replace("|", r"\|").replace("*", r"\*") in markdown


@pytest.fixture(scope="module")
def levers(plan):
    """Some levers of the plan, in a file."""
    file = plan.with_name("levers.json")
    words = ["--lever", "commitment", "--lever", "autoscaling", "--lever", "kv-offload"]
    assert main(["levers", "--plan", str(plan), "--offline", *words, "-o", str(file)]) == 0
    return file


@pytest.mark.long
def test_saved_levers_stand_on_the_page_as_they_were_saved(found, levers):
    tried = json.loads(levers.read_text())["result"]
    review = review_of(replace(found, levers=saved_levers(levers, found.chosen)))
    compared, alone, *others = next(s.tables for s in review.sections if s.title == "Levers")
    rows = {(row["lever"], row["change"]): row for table in (alone, *others) for row in table.rows}
    assert set(rows) == {(row["lever"], row["change"]) for row in tried["levers"]}
    for row in tried["levers"]:
        shown = rows[row["lever"], row["change"]]
        if row["gpus"] is None:
            assert shown["reason"] == row["reason"]
        else:
            assert shown["usd_per_month_saved"] == row["usd_per_month_saved"]
            assert shown["risk"] == row["risk"]
    assert compared.rows[0]["usd_per_month"] == found.chosen.usd_per_month
    assert max(row["usd_per_month_saved"] for row in alone.rows) > 0.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda answer: answer["result"]["base"].update(gpus=99),
            "was written for another plan .99 x h100-sxm",
        ),
        (lambda answer: answer.update(command="fleet"), "is not an answer of capplan levers"),
        (lambda answer: answer["result"]["levers"][0].update(usd_per_month="much"), "usd_per_month"),
        (lambda answer: answer["result"]["levers"][0].pop("change"), "change"),
    ],
)
def test_levers_of_something_else_are_refused(found, levers, tmp_path, change, said):
    answer = json.loads(levers.read_text())
    change(answer)
    file = written_to(tmp_path / "levers.json", answer)
    with pytest.raises(InputError, match=said):
        saved_levers(file, found.chosen)


def test_levers_are_tried_or_read_not_both(plan, capplan):
    assert "give one of them" in capplan.refused(
        "report --plan", plan, "--offline", "--levers", "--levers-file", plan
    )
