"""`capplan report` from end to end: the same plans in every format, the form taken from the name of the file."""

import csv
import json
import re
import shutil
import xml.etree.ElementTree as ET
import zipfile
from itertools import pairwise

import pytest

from capplan.cli.main import main
from tests.plan_files import choice

pytestmark = pytest.mark.usefixtures("shared_runs")


@pytest.fixture(scope="module")
def pages(plan_of_page):
    """One report of the same plan file in every form."""
    written = {}
    for suffix in ("md", "html", "zip", "csv", "json"):
        file = plan_of_page.with_name(f"pages.{suffix}")
        assert main(["report", "--plan", str(plan_of_page), "--offline", "-o", str(file)]) == 0
        written[suffix] = file
    return written


def no_search(*_, **__):
    raise AssertionError("the plans are searched again")


@pytest.mark.long
def test_a_page_of_a_plan_file_searches_nothing_and_is_the_same_bytes_every_time(
    pages, plan_of_page, monkeypatch
):
    """The search of the fleet is taken away; the layout of the plan alone is simulated for what moves its number."""
    monkeypatch.setattr("capplan.fleet.search.cheapest.Search.best_of", no_search)
    monkeypatch.setattr("capplan.fleet.search.cheapest.Search.within", no_search)
    monkeypatch.setattr("capplan.fleet.search.cheapest.Search.cheapest", no_search)
    before = {file.name: file.read_bytes() for file in plan_of_page.parent.glob("pages.*")}
    assert len(before) > 7
    for suffix in ("md", "html", "zip", "csv", "json"):
        words = ["report", "--plan", str(plan_of_page), "--offline", "-o", str(pages[suffix])]
        assert main(words) == 0
    assert {file.name: file.read_bytes() for file in plan_of_page.parent.glob("pages.*")} == before


@pytest.mark.long
def test_a_markdown_page_shows_its_pictures_and_a_zip_has_every_table_and_a_readme(pages):
    text = pages["md"].read_text(encoding="utf-8")
    named = re.findall(r"^!\[[^\]]+\]\((\S+)\)$", text, re.MULTILINE)
    folder = pages["md"].parent
    assert sorted(named) == sorted(file.name for file in folder.glob("pages.*.svg"))
    for name in named:
        assert ET.parse(folder / name).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    result = json.loads(pages["json"].read_text(encoding="utf-8"))["result"]
    with zipfile.ZipFile(pages["zip"]) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    readme = texts.pop("README.md")
    assert re.findall(r"^\| (\S+\.csv) \|", readme, re.MULTILINE) == list(texts)
    assert texts["plans.csv"] == pages["csv"].read_text(encoding="utf-8")
    rows = list(csv.DictReader(texts["what-if.csv"].splitlines()))
    assert [float(row["usd_per_month"]) for row in rows] == [
        row["usd_per_month"] for row in result["what_if"]
    ]
    for section in result["sections"]:
        if section["tables"] and section["title"] != "Why not the others":
            assert f"{section['title'].lower().replace(' ', '-')}.csv" in texts
    assert not list(folder.glob("pages.*.csv"))


def test_a_picture_beside_the_page_never_takes_the_place_of_a_file_that_is_read(
    capplan, tmp_path, plan_of_page
):
    plan = tmp_path / "page.plan.svg"
    shutil.copy(plan_of_page, plan)
    assert "is read by this command" in capplan.refused(
        "report --plan", plan, "--offline", "-o", tmp_path / "page.md"
    )
    assert plan.read_bytes() == plan_of_page.read_bytes()


@pytest.mark.long
def test_what_moves_the_number_is_what_a_changed_scenario_would_get(pages, plan_of_page, tmp_path):
    """A fifth less and more traffic, and longer prompts: the page and `fleet` with these keys agree on the layout of the plan."""
    result = json.loads(pages["json"].read_text(encoding="utf-8"))["result"]
    (table,) = next(s["tables"] for s in result["sections"] if s["title"] == "What moves the number")
    rows = {(row["what"], row["if_it_is"]): row for row in table}
    chosen = result["chosen"]
    degrees = [f"fleet.{name}_parallel=[{chosen[f'{name}_parallel']}]" for name in ("tensor", "pipeline")]
    alone = [f"fleet.hardware=[{chosen['hardware']}]", *degrees]
    keys = {
        ("traffic", "-20%"): ["traffic[0].request_rate=8 req/s"],
        ("traffic", "+20%"): ["traffic[0].request_rate=12 req/s"],
        ("input length", "+20%"): ["traffic[0].input_tokens={mean: 960, p95: 2400}"],
        ("output length", "-20%"): ["traffic[0].output_tokens={mean: 120, p95: 320}"],
    }
    for (what, change), settings in keys.items():
        file = tmp_path / "changed.json"
        words = [part for setting in (*alone, *settings) for part in ("--set", setting)]
        scenario = str(plan_of_page.with_name("page.yaml"))
        assert main(["fleet", scenario, "--offline", "-o", str(file), *words]) == 0
        found = choice(json.loads(file.read_text(encoding="utf-8"))["result"], "cheapest")
        assert rows[what, change]["gpus"] == found["gpus"], (what, change)
        assert rows[what, change]["usd_per_month"] == pytest.approx(found["usd_per_month"])
    speed = [
        rows["kernel efficiency", f"as {how}"]
        for how in ("fast as the best tenth", "slow as the worst tenth")
    ]
    assert [row["usd_per_month"] for row in speed] == pytest.approx(
        [chosen["usd_per_month_low"], chosen["usd_per_month_high"]]
    )


@pytest.mark.long
def test_the_traffic_of_today_has_the_plans_of_today(pages):
    result = json.loads(pages["json"].read_text(encoding="utf-8"))["result"]
    today = [row for row in result["what_if"] if row["traffic_ratio"] == 1.0]
    assert [(row["gpus"], row["usd_per_month"]) for row in today] == [
        (plan["gpus"], plan["usd_per_month"]) for plan in result["plans"]
    ]
    for before, after in pairwise(row for row in result["what_if"] if row["plan"] == today[0]["plan"]):
        if before["hardware"] == after["hardware"]:
            assert before["gpus"] <= after["gpus"]


@pytest.mark.parametrize("written", ["yesterday", "2026-13-01"])
def test_a_date_that_is_none_is_refused(capplan, plan_of_page, written):
    assert "is not a day; e.g. 2026-11-22" in capplan.refused(
        "report --plan", plan_of_page, "--date", written
    )


def test_date_and_author_stand_below_the_title_and_in_the_command(plan_of_page):
    file = plan_of_page.with_name("by.md")
    words = [
        "report",
        "--plan",
        str(plan_of_page),
        "--offline",
        "--date",
        "2026-11-22",
        "--author",
        "A. *B* <c>",
    ]
    assert main([*words, "-o", str(file)]) == 0
    head = file.read_text(encoding="utf-8").splitlines()[2]
    assert head.startswith("capplan ")
    assert head.endswith(" · 2026-11-22 · A. *B* &lt;c>")
    assert "--author 'A. *B* <c>' --date 2026-11-22" in file.read_text(encoding="utf-8")


def test_every_form_decides_alike(pages):
    result = json.loads(pages["json"].read_text(encoding="utf-8"))["result"]
    with pages["csv"].open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert result["decision"] in pages["md"].read_text(encoding="utf-8").replace("**", "")
    assert result["decision"] in pages["html"].read_text(encoding="utf-8")
    assert len(rows) == len(result["plans"])
    assert rows[0]["hardware"] == result["chosen"]["hardware"]
    for row, plan in zip(rows, result["plans"], strict=True):
        assert float(row["usd_per_month"]) == plan["usd_per_month"]
        assert float(row["ttft_s.p95"]) == plan["ttft_s"]["p95"]
        assert float(row["more_usd_per_month"]) == pytest.approx(
            plan["usd_per_month"] - result["chosen"]["usd_per_month"]
        )


def test_a_margin_is_what_is_left_of_the_limit_and_the_targets_together_are_no_likelier_than_the_least_likely(
    pages,
):
    result = json.loads(pages["json"].read_text(encoding="utf-8"))["result"]
    for plan, margins in zip(result["plans"], result["margins"], strict=True):
        for margin in margins:
            metric, _, statistic = margin["target"].partition("_")
            assert margin["predicted_s"] == plan[f"{metric}_s"][statistic]
            assert margin["margin_fraction"] == pytest.approx(1.0 - margin["predicted_s"] / margin["limit_s"])
        assert plan["slo_met_probability"] <= min(m["met_probability"] for m in margins) + 1e-9


def test_the_page_names_its_sources_and_the_command_that_wrote_it(pages):
    text = pages["md"].read_text(encoding="utf-8")
    for heading in (
        "What it costs", "Does it hold", "What required confidence costs", "The three choices", "Workload", "Load over time",
        "Why not the others", "Rejected", "What moves the number", "If traffic changes", "Risks", "Levers",
        "Number of replicas", "Cost", "Memory of one GPU", "Roofline", "Where the time goes", "Assumptions", "Sources", "Commands",
    ):  # fmt: skip
        assert f"\n## {heading}\n" in text
    assert "meta-llama/Llama-3.1-8B-Instruct, config as shipped" in text
    assert "vllm 0.19.0" in text
    assert "plan.json' --offline -o" in text
    assert "capplan estimate meta-llama/Llama-3.1-8B-Instruct --hardware" in text


def test_the_command_that_looks_at_one_replica_runs(pages, capplan):
    import shlex

    text = pages["md"].read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("$ capplan estimate"))
    assert not capplan.result(*shlex.split(line)[2:], "--offline")["saturated"]


def test_a_terminal_and_a_pipe_get_the_tables_without_a_file(capplan, pages):
    ran = capplan("report", "--plan", pages["md"].with_name("plan.json"), "--offline")
    assert ran.code == 0
    assert "Where the time goes" in ran.out or "Prefill of one prompt: " in ran.out
    assert ran.out.startswith("Rent ")


@pytest.mark.parametrize("name", ["plan.pdf", "plan", "plan.docx"])
def test_a_file_whose_name_says_no_form_is_refused_before_anything_is_computed(capplan, tmp_path, name):
    assert "*.md, *.html, *.zip" in capplan.refused("report scenarios/support-chat.yaml -o", tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_folder_that_does_not_exist_is_named(capplan, tmp_path, pages):
    assert "cannot write" in capplan.refused(
        "report", pages["md"].with_name("page.yaml"), "--offline", "-o", tmp_path / "no" / "plan.md"
    )


def test_what_cannot_be_met_is_written_down_all_the_same(capplan, tmp_path, plan_of_page):
    scenario = tmp_path / "hard.yaml"
    page = plan_of_page.with_name("page.yaml").read_text(encoding="utf-8")
    scenario.write_text(page.replace("ttft_p95: 2 s", "ttft_p95: 1 ms"), encoding="utf-8")
    ran = capplan("report", scenario, "--offline", "-o", tmp_path / "plan.md")
    assert ran.code == 4
    assert "No fleet of h100-sxm, h200-sxm serves page" in (tmp_path / "plan.md").read_text(encoding="utf-8")


SMALL = "tests/golden/small.yaml"
ASKED = (
    "commitments={reserved_1y: {discount: 30 %}}", "growth={per_month: 20 %, months: 3}", "energy={grid: 400 g/kWh}",
    "traffic[0].daily_curve=office",
)  # fmt: skip


@pytest.mark.parametrize("asked", [True, False])
def test_the_review_shows_what_is_asked_for(capplan, asked):
    words = [part for setting in ASKED for part in ("--set", setting)] if asked else []
    ran = capplan("report", SMALL, "--offline", "--format", "markdown", *words)
    assert ran.code == 0, ran.err
    for text in (
        "## Commitments, growth and energy",
        "the cheapest mix for the load curve",
        "Power of a GPU by phase",
    ):
        assert (text in ran.out) == asked
