"""The page of a plan with separate pools: one plan, its two pools, and what moves their number; and the levers on a page."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from io import BytesIO
from math import inf
from zipfile import ZipFile

import pytest

from capplan.cli.main import main
from capplan.questions.levers.answer import asking_of, checked_names, levers_beside, levers_of
from capplan.questions.plans.plan_file import asked_of_plan
from capplan.readers.catalogue.models import model_source
from capplan.report.answers.levers import levers_answer
from capplan.report.safe_text import plain
from capplan.review.findings import findings
from capplan.review.page import review_html, review_markdown, review_of, tables_zip
from tests.plan_files import plan_of_file_with

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


plan = plan_of_file_with(SCENARIO, "apart.yaml")


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
def levers(plan, found):
    """Return what the command says of some levers of the plan."""
    asking = asking_of(None, plan, (), offline=True)
    _, base = levers_beside(asking, found.asked, found.answer)
    tried = levers_of(asking, base, checked_names(["commitment", "autoscaling", "kv-offload"]))
    return levers_answer(asking, base, tried)


@pytest.mark.long
def test_levers_stand_on_the_page_as_their_command_shows_them(found, levers):
    review = review_of(replace(found, levers=levers))
    section = next(section for section in review.sections if section.title == "Levers")
    assert section.tables == tuple(table for table in levers.tables if table.rows)
    compared, alone, *others = section.tables
    rows = {
        (row["lever"], row["change"]): row
        for table in (*others, alone)
        for row in table.rows
        if "reason" in row
    }
    assert set(rows) == {(row["lever"], row["change"]) for row in levers.result["levers"]}
    for row in levers.result["levers"]:
        shown = rows[row["lever"], row["change"]]
        for key in ("reason", "usd_per_month_saved", "risk"):
            assert shown[key] == row[key]
    assert compared.rows[0]["usd_per_month"] == found.chosen.usd_per_month
    assert max(row["usd_per_month_saved"] for row in alone.rows) > 0.0
    page = ET.fromstring(review_html(review).replace("<!DOCTYPE html>\n", ""))
    cells = {"".join(cell.itertext()) for cell in page.iter("td")}
    assert {row["change"] for row in levers.result["levers"]} <= cells
    with ZipFile(BytesIO(tables_zip(review))) as packed:
        assert len([name for name in packed.namelist() if name.startswith("levers")]) == len(section.tables)
