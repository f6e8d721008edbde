"""The page for the planning review, unchanged: plans made up with round numbers, so that no fit moves it."""

import math
import re
import xml.etree.ElementTree as ET
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256

import pytest

from capplan.accuracy.bounded import BoundedSpread, Interval
from capplan.errors import Refusal
from capplan.fleet.answer import (
    Bought,
    Certainty,
    Choices,
    FleetAnswer,
    NextSteps,
    Relaxation,
    Relaxed,
    Sizing,
    Step,
    TightTarget,
    Uneconomical,
)
from capplan.fleet.fit import fit
from capplan.fleet.group import Group
from capplan.fleet.plan import Plan
from capplan.fleet.review import PlanDetail, plan_spec, target_margins
from capplan.fleet.search.candidates import Layout, Rejection
from capplan.fleet.sweep import WHAT_IF_RATIOS, Swing, Turn, WhatIf
from capplan.fleet.unit_costs import UnitCosts
from capplan.hardware.device import Source
from capplan.model.sharding import Sharding
from capplan.model.weight_format import in_weight_format
from capplan.money.order import Survival
from capplan.questions.fleet import asked_fleet
from capplan.questions.sensitivity import Sensitivity
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device, device_names
from capplan.replica.estimate import OperatorRow
from capplan.replica.load import Load
from capplan.replica.plans import step_rates
from capplan.report.answers.fleet import fleet_answer
from capplan.review.findings import Findings
from capplan.review.page import review_html, review_markdown, review_of
from capplan.scenario.scenario import read_scenario
from capplan.workload.request_class import Slo

COMMAND = "capplan report tests/golden/review.yaml -o plan.md"


def spread(mean):
    return BoundedSpread(mean, 0.8 * mean, 1.5 * mean, 2.0 * mean, 4.0 * mean, 0.5 * mean, 2.0 * mean)


def plan(asked, name, replicas, usd, *, ttft, tpot, sure):
    """Return a plan that carries the peak with one spare replica, everything in round numbers."""
    (device,) = (item for item in asked.question.devices if item.name == name)
    busy = replicas - 1
    group = Group(
        role="serve", model="m", layout=Layout(device, Sharding(), "bf16", "bf16"), weight_dtype="bf16", replicas=replicas, spare_replicas=1, survive=Survival("replica", 1), headroom_fraction=0.2,
        concurrency_per_replica=16.0, request_rate_per_replica=32.0 / busy, request_rate_limit_per_replica=40.0 / busy,
        sure_request_rate_limit_per_replica=32.0 / (busy - 0.5), planned_request_rate_limit_per_replica=32.0 / busy,
        label="measured", kv_cache_tokens=400_000.0, price=asked.prices[name],
    )  # fmt: skip
    return Plan(
        groups=(group,), few_open_loops_measured=False,
        target_probabilities={target.key: min(sure + 0.02, 1.0) for target in asked.question.slo.targets},
        ttft_s=spread(ttft), tpot_s=spread(tpot), e2e_s=spread(200 * tpot), slo_met_probability=sure,
        usd_per_hour=usd * replicas,
        usd_per_month_low=730.0 * usd * (replicas - 1), usd_per_month_high=730.0 * usd * (replicas + 2),
        usd_per_million_output_tokens=1e6 * usd * replicas / (3600.0 * 6400.0),
        usd_per_million_tokens=1e6 * usd * replicas / (3600.0 * 38400.0),
        bottleneck="decode memory (gate_up)",
        money=UnitCosts(1e6 * usd * replicas / (3600.0 * 3200.0), 1e6 * usd * replicas / (3600.0 * 19200.0)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def asked(request):
    root = request.config.rootpath
    scenario = replace(
        read_scenario(root / "tests" / "golden" / "review.yaml"), path="tests/golden/review.yaml"
    )
    found = asked_fleet(scenario, offline=True)
    fixed = {metric: Interval(0.5, 2.0, 100, 10) for metric in ("ttft", "tpot", "itl", "e2e")}
    return replace(found, question=replace(found.question, intervals=fixed))


def choosing(found, *plans):
    """Return the answer with other plans, the first of them recommended."""
    return replace(
        found, plans=plans, choices=Choices(*(plans[0] for _ in range(4)), why="it is the cheapest")
    )


@pytest.fixture(scope="module")
def given(asked):
    plans = (
        plan(asked, "h100-sxm", 5, 2.0, ttft=0.25, tpot=0.0125, sure=0.85),
        plan(asked, "l40s", 17, 1.0, ttft=0.4, tpot=0.02, sure=0.65),
    )
    surest = plan(asked, "h100-sxm", 6, 2.0, ttft=0.2, tpot=0.01, sure=0.94)
    found = FleetAnswer(
        plans,
        (
            Rejection("h100-sxm", "above the largest load that meets the targets", 150, Refusal.LOAD),
            Rejection("l40s", "memory", 50, Refusal.MEMORY),
        ),
        400,
        choices=Choices(plans[0], surest, plans[0], plans[0], why="it is the cheapest"),
        certainty=(
            Certainty(0.5, "h100-sxm", 4, 5840.0),
            Certainty(0.9, "h100-sxm", 6, 8760.0),
            Certainty(0.95, None, None, None),
        ),
        uneconomical=(
            Uneconomical(
                "a100-sxm-80gb",
                "ttft_p95",
                0.9,
                1.0,
                200,
                (Relaxed(1.5, 24), Relaxed(2.5, 12)),
                219000.0,
                30.0,
            ),
        ),
        tight=TightTarget(0.06, "ttft_p95", 0.45, 1.0, (Relaxed(1.75, 4),)),
        next_steps=NextSteps(
            (Step(0.9, 6, 8760.0), Step(0.95, None, None)),
            Sizing(4, 5840.0),
            (Bought("mi300x", 3, 5000.0),),
        ),
    )
    rows = (
        OperatorRow("gate_up", "prefill", 0.006, 3e12, 3e9, "compute"),
        OperatorRow("attention", "prefill", 0.002, 2e11, 1e9, "latency"),
        OperatorRow("gate_up", "decode", 0.003, 3e11, 9e9, "memory"),
        OperatorRow("attention", "decode", 0.001, 1e9, 2e9, "memory"),
    )
    spec = plan_spec(plans[0].single, asked.question)
    return Findings(
        asked, found, COMMAND, Source("model", "made up", url="https://example.org/config.json"),
        tuple(target_margins(item, asked.question) for item in plans),
        (PlanDetail(
            spec, fit(spec), rows, Load(1000, 200, request_rate=8.0), {"prefill": 0.007, "decode": 0.0035}
        ),), sensitivity=sensitivity(plans), date="2026-11-22", author="Platform team",
    )  # fmt: skip


def sensitivity(plans):
    """Return what moves the cost of the first plan, in round numbers, and plans that grow as the traffic does."""
    swings = (
        Swing("input length", Turn("-20%", 4, 5840.0), Turn("+20%", None, None)),
        Swing("kernel efficiency", Turn("as fast as the best tenth", 4, 5840.0), Turn("as slow as the worst tenth", 7, 10220.0)),
        Swing("traffic", Turn("-20%", 5, 7300.0), Turn("+20%", 6, 8760.0)),
    )  # fmt: skip
    return Sensitivity(swings, tuple((each, at_traffic(each)) for each in plans))


def at_traffic(plan):
    """Return a plan whose replicas in service grow as the traffic does."""
    points = []
    for ratio in WHAT_IF_RATIOS:
        gpus = math.ceil(plan.single.busy_replicas * ratio - 1e-9) + plan.spare_replicas
        points.append(WhatIf(ratio, 32.0 * ratio, gpus, 730.0 * plan.single.price.usd_per_hour * gpus))
    return tuple(points)


def test_the_review_is_unchanged(given, golden):
    golden("review.md", review_markdown(review_of(given)))


def test_the_review_says_the_decision_first_and_multiplies_across(given):
    review = review_of(given)
    assert review.decision.startswith("Rent 5 x h100-sxm (5 replicas of 1 GPU, 1 of them spare")
    assert "$7,300 per month" in review.decision
    assert "$0.868 per million output tokens at the mean load" in review.decision
    assert review.decision.endswith(
        "It is likely to meet both targets (85%); 90% costs $8,760 per month (6 x h100-sxm)."
    )
    tables = {section.title: section.tables for section in review.sections}
    for row in tables["Cost"][0].rows:
        assert row["gpus"] * row["usd_per_gpu_hour"] == pytest.approx(row["usd_per_hour"])
        assert row["usd_per_hour"] * row["hours"] == pytest.approx(row["usd_per_month"])
    assert [row["load"] for row in tables["Cost"][1].rows] == 2 * ["the mean load", "the peak, all month"]
    for row in tables["Cost"][1].rows:
        for kind, price in (("output", "usd_per_million_output_tokens"), ("total", "usd_per_million_tokens")):
            assert row["usd_per_month"] / row[f"{kind}_million_tokens_per_month"] == pytest.approx(row[price])
    at_mean, at_peak = tables["Cost"][1].rows[:2]
    (chat,) = tables["Workload"][0].rows
    for row, rate in ((at_mean, chat["mean_request_rate"]), (at_peak, chat["request_rate"])):
        answers = 730 * 3600 * rate * chat["output_tokens.mean"]
        assert row["output_million_tokens_per_month"] == pytest.approx(answers / 1e6)
    assert at_mean["usd_per_million_output_tokens"] == pytest.approx(10.0 / (3600.0 * 3200.0) * 1e6)
    assert at_peak["output_million_tokens_per_month"] == pytest.approx(730 * 3600 * 6400.0 / 1e6)
    assert tables["Why not the others"][0].rows[1]["more_usd_per_month"] == pytest.approx(17 * 730 - 7300)
    (sizing,) = tables["Number of replicas"][0].rows
    assert sizing["busy_replicas"] + sizing["spare_replicas"] == sizing["devices"] == 5
    assert sizing["planned_request_rate"] == pytest.approx(8.0)
    memory = tables["Memory of one GPU"][0].rows
    assert memory[-2]["left_bytes"] == pytest.approx(memory[-1]["memory_bytes"], rel=1e-6)
    for row in (row for table in tables["Where the time goes"] for row in table.rows):
        assert row["seconds"] * row["flop_per_s"] == pytest.approx(row["flop"])


def test_devices_without_a_plan_have_no_section_where_there_are_none(given):
    bare = replace(given, answer=replace(given.answer, uneconomical=()))
    assert "Devices without a plan in the table" not in {s.title for s in review_of(bare).sections}


def test_a_job_is_priced_as_a_job_wherever_the_page_speaks_of_money(given):
    """Ten hours of 10 $/h for a million requests: $100 and $0.1 a thousand, and nothing by the month."""
    cheap, dear = (
        replace(
            item,
            money=UnitCosts(
                usd_per_million_output_tokens_at_mean=1e6 * usd / (1e6 * 200),
                usd_per_million_tokens_at_mean=1e6 * usd / (1e6 * 1200),
                job_hours=10.0,
                usd_per_job=usd,
                usd_per_thousand_requests=usd / 1000.0,
            ),
        )
        for item, usd in zip(given.answer.plans, (100.0, 170.0), strict=True)
    )
    found = replace(
        given.answer, plans=(cheap, dear), choices=Choices(*4 * [cheap], why="it is the cheapest")
    )
    review = review_of(replace(given, answer=found))
    assert "for $100 for the job of 10 h, $0.1 per thousand requests" in review.decision
    assert "90% costs $120 for the job (6 x h100-sxm)." in review.decision
    sections = {section.title: section for section in review.sections}
    devices, tokens, *_order = sections["Cost"].tables
    for row in devices.rows:
        assert row["gpus"] * row["usd_per_gpu_hour"] == pytest.approx(row["usd_per_hour"])
        assert row["usd_per_hour"] * row["job_hours"] == pytest.approx(row["usd_per_job"])
    for row in tokens.rows:
        assert row["usd_per_job"] / row["thousand_requests"] == pytest.approx(
            row["usd_per_thousand_requests"]
        )
        assert row["usd_per_job"] / row["output_million_tokens_per_job"] == pytest.approx(
            row["usd_per_million_output_tokens"]
        )
    assert tokens.rows[0]["thousand_requests"] == pytest.approx(1000.0)
    assert tokens.rows[0]["total_million_tokens_per_job"] == pytest.approx(1200.0)
    assert "month" not in review_markdown(review)


def test_without_targets_the_page_speaks_of_none(given):
    asked = replace(given.asked, scenario=replace(given.asked.scenario, slo=Slo()))
    found = replace(given.answer, certainty=(), uneconomical=())
    review = review_of(replace(given, asked=asked, answer=found, margins=((), ())))
    markdown = review_markdown(review)
    assert "No target is set" in review.decision
    assert "chance to meet the SLO" not in markdown
    assert "highest chance" not in markdown
    assert "## Does it hold" not in markdown
    assert "required confidence costs" not in markdown


def page_of(html):
    """Return the page parsed by a strict parser: every element closed, every attribute quoted."""
    return ET.fromstring(html.replace("<!DOCTYPE html>\n", ""))


def test_the_html_is_well_formed_and_loads_nothing_from_elsewhere(given):
    html = review_html(review_of(given))
    page = page_of(html)
    names = [element.tag.rpartition("}")[2] for element in page.iter()]
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(names)
    scripts = list(page.iter("script"))
    assert [script.get("type") for script in scripts] == ["application/json", None]
    policy = next(e.get("content") for e in page.iter("meta") if e.get("http-equiv"))
    assert policy.startswith("default-src 'none'; ")
    for kind, text in (("style", page.find("head/style").text), ("script", scripts[-1].text)):
        digest = b64encode(sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert names.count("svg") >= 4
    for element in page.iter():
        assert not {"src", "srcset", "data", "background", "style"} & set(element.attrib)
        assert not [key for key in element.attrib if key.startswith("on")]
        assert element.get("href", "https://").startswith(("https://", "#"))
    style = page.find("head/style").text
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style
    ids = [element.get("id") for element in page.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert {e.get("href")[1:] for e in page.iter("a") if e.get("href").startswith("#")} <= set(ids)


def test_html_and_markdown_have_the_same_sections_and_numbers(given):
    review = review_of(given)
    page = page_of(review_html(review))
    markdown = review_markdown(review)
    assert [e.text for e in page.iter("h2")] == [
        line[3:] for line in markdown.splitlines() if line.startswith("## ")
    ]
    for cell in page.iter("td"):
        text = "".join(cell.itertext())
        assert text.replace("|", r"\|").replace("*", r"\*") in markdown


def test_what_people_wrote_in_a_scenario_stays_text(given):
    words = "<script>alert(1)</script> & | *"
    file = given.asked.scenario.file.model_copy(update={"name": words, "description": words})
    own = replace(given.asked, scenario=replace(given.asked.scenario, file=file))
    review = review_of(replace(given, asked=own))
    page = page_of(review_html(review))
    assert page.find("head/title").text == f"Plan: {words}"
    assert [script.get("type") for script in page.iter("script")] == ["application/json", None]
    assert not [script for script in page.iter("script") if "alert(1)" in script.text]


def test_no_price_leaves_cells_empty_and_no_number_behind(given):
    priced = given.answer.plans[0]
    bare = replace(
        priced, groups=(replace(priced.single, price=None),), usd_per_hour=None, usd_per_million_output_tokens=None, usd_per_million_tokens=None, money=None,
    )  # fmt: skip
    own = replace(given.asked, prices={**given.asked.prices, "h100-sxm": None})
    review = review_of(
        replace(given, asked=own, answer=choosing(given.answer, bare), margins=given.margins[:1])
    )
    assert "an unknown price" in review.decision
    assert "$0" not in review_markdown(review)
    page_of(review_html(review))


def on_device(given, hardware, dtype):
    """Return the findings with the first plan on another device, its efficiencies as they ship, labelled as they are."""
    question = given.asked.question
    network = in_weight_format(next(iter(question.networks.values())), dtype)
    efficiency = efficiency_for(hardware)
    rates = step_rates(network, hardware, efficiency, profile=question.profile, kv_format="bf16")
    first = given.answer.plans[0]
    layout = replace(first.single.layout, device=hardware, weight_format=dtype)
    group = replace(first.single, layout=layout, weight_dtype=dtype, label=rates.label, price=None)
    moved = replace(first, groups=(group,))
    question = replace(
        question, devices=(hardware,), networks={dtype: network}, efficiencies={hardware.name: efficiency}
    )
    return replace(
        given,
        asked=replace(given.asked, question=question, prices={}),
        answer=choosing(given.answer, moved),
        margins=(target_margins(moved, question),),
    ), rates


NOT_MEASURED_HERE = [
    name for name in device_names() if efficiency_for(device(name)).borrowed or name.startswith("a100")
]


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("name", NOT_MEASURED_HERE)
def test_a_device_that_borrows_kernels_has_one_label_everywhere(given, name, dtype):
    """In the plans, in their marks, among the assumptions and among the sources, of the page and of `fleet`."""
    findings, rates = on_device(given, device(name), dtype)
    assert rates.label == "assumed"
    review = review_of(findings)
    sections = {section.title: section for section in review.sections}
    (plans,) = sections["Why not the others"].tables
    (decision,) = sections["Does it hold"].tables
    assert [row["label"] for row in plans.rows] == ["assumed"]
    assert (0, "label") in plans.assumed
    assert (0, "predicted_s") in decision.assumed
    kernels = [
        row for row in sections["Sources"].tables[-1].rows if row["title"].startswith("kernel efficiencies")
    ]
    (source,) = kernels
    assert re.search(r"\b(measured|assumed)\b", source["title"]).group() == "assumed"
    (assumptions,) = sections["Assumptions"].tables
    stated = {row["assumed"] for row in assumptions.rows}
    told = {item.what for item in fleet_answer(findings.asked, findings.answer).assumptions}
    for item in rates.assumptions:
        assert item.what in stated
        assert item.what in told
        assert item.what in source["where"]
    assert not [what for what in stated - {item.what for item in rates.assumptions} if "borrowed" in what]


def test_a_device_whose_kernels_were_measured_is_marked_nowhere(given):
    findings, rates = on_device(given, device("h100-sxm"), "bf16")
    assert (rates.label, rates.assumptions) == ("measured", ())
    sections = {section.title: section for section in review_of(findings).sections}
    (plans,) = sections["Why not the others"].tables
    assert plans.assumed == frozenset()
    titles = [row["title"] for row in sections["Sources"].tables[-1].rows]
    assert "kernel efficiencies, measured, fitted on h100" in titles


def test_a_star_marks_what_rests_on_the_kernels_of_another_device(given):
    findings, _ = on_device(given, device("b300"), "bf16")
    markdown = " ".join(review_markdown(review_of(findings)).split())
    assert r"| assumed\* |" in markdown
    assert r"| 500\* |" in markdown
    assert "kernel efficiencies of b300 are borrowed from b200" in markdown


def test_without_a_plan_the_page_says_so_and_what_would_have_to_give(given):
    layout = given.answer.plans[0].single.layout
    found = FleetAnswer((), given.answer.rejected, 400, (Relaxation("ttft_p95", 1.0, 1.3, layout),))
    review = review_of(replace(given, answer=found, margins=(), details=(), sensitivity=Sensitivity()))
    assert review.decision.startswith("No fleet of h100-sxm, l40s serves review")
    assert review.answer.exit_code == 4
    markdown = review_markdown(review)
    assert "relax ttft_p95 from 1 s to 1.3 s" in markdown
    assert "## Cost" not in markdown
    page_of(review_html(review))
