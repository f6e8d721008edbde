"""`capplan report` from end to end: the same plans in every format, the form taken from the name of the file."""

import csv
import json
import shutil
import subprocess

import pytest

from capplan.cli.main import main

SCENARIO = """name: page
model: meta-llama/Llama-3.1-8B-Instruct
weight_dtype: bf16
kv_dtype: bf16
engine: vllm
engine_version: 0.19.0
max_model_len: 8192
traffic:
  - name: chat
    request_rate: 10 req/s
    input_tokens: {mean: 800, p95: 2000}
    output_tokens: {mean: 150, p95: 400}
    shared_prefix: {tokens: 300, hit_fraction: 0.5}
slo: {ttft_p95: 2 s, tpot_p95: 60 ms}
fleet: {hardware: [h100-sxm, h200-sxm], tensor_parallel: [1, 2], pipeline_parallel: [1], headroom: 20 %, spare_replicas: 1}
prices: {commitment: on-demand, provider: any}
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One report in every form."""
    folder = tmp_path_factory.mktemp("mit Leerzeichen und ü")
    scenario = folder / "page.yaml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    written = {}
    for suffix in ("md", "html", "csv", "json"):
        file = folder / f"plan.{suffix}"
        assert main(["report", str(scenario), "--offline", "-o", str(file)]) == 0
        written[suffix] = file
    return written


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
        "Decision", "Workload", "Chosen plan and runners-up", "Number of replicas", "Cost", "Memory of one device",
        "Where the time goes", "Rejected", "Assumptions", "Sources", "Commands",
    ):  # fmt: skip
        assert f"\n## {heading}\n" in text
    assert "meta-llama/Llama-3.1-8B-Instruct, config as shipped" in text
    assert "vllm 0.19.0" in text
    assert "page.yaml' --offline -o" in text
    assert "capplan estimate meta-llama/Llama-3.1-8B-Instruct --hardware" in text


def test_the_command_that_looks_at_one_replica_runs(pages, capplan):
    import shlex

    text = pages["md"].read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("$ capplan estimate"))
    ran = capplan(*shlex.split(line)[2:], "--offline", "--format", "json")
    assert ran.code == 0, ran.err
    assert not json.loads(ran.out)["result"]["saturated"]


def test_a_terminal_and_a_pipe_get_the_tables_without_a_file(capplan, pages):
    ran = capplan("report", pages["md"].with_name("page.yaml"), "--offline")
    assert ran.code == 0
    assert "Where the time goes" in ran.out or "Prefill of one prompt: " in ran.out
    assert ran.out.startswith("Rent ")


@pytest.mark.parametrize("name", ["plan.pdf", "plan", "plan.docx"])
def test_a_file_whose_name_says_no_form_is_refused_before_anything_is_computed(capplan, tmp_path, name):
    ran = capplan("report", "scenarios/support-chat.yaml", "-o", tmp_path / name)
    assert ran.code == 2
    assert "*.md, *.csv, *.html" in ran.err
    assert not (tmp_path / name).exists()


def test_a_folder_that_does_not_exist_is_named(capplan, tmp_path, pages):
    ran = capplan(
        "report", pages["md"].with_name("page.yaml"), "--offline", "-o", tmp_path / "no" / "plan.md"
    )
    assert ran.code == 2
    assert "cannot write" in ran.err


def test_what_cannot_be_met_is_written_down_all_the_same(capplan, tmp_path):
    scenario = tmp_path / "hard.yaml"
    scenario.write_text(SCENARIO.replace("ttft_p95: 2 s", "ttft_p95: 1 ms"), encoding="utf-8")
    ran = capplan("report", scenario, "--offline", "-o", tmp_path / "plan.md")
    assert ran.code == 4
    assert "No fleet of h100-sxm, h200-sxm serves page" in (tmp_path / "plan.md").read_text(encoding="utf-8")


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed to draw the page with")
def test_the_page_is_drawn_by_a_browser(pages, tmp_path):
    picture = tmp_path / "page.png"
    subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--screenshot={picture}", "--window-size=1200,2000",
         f"--user-data-dir={tmp_path / 'profile'}", pages["html"].as_uri()],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert picture.stat().st_size > 20_000
