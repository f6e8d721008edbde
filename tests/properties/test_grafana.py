"""The plan over what engines report: every query names series and labels that a real server exposes."""

import json
import re
from pathlib import Path

import pytest
import yaml

from capplan.deploy.export import grafana_objects
from capplan.deploy.fleet_launch import fleet_launch
from capplan.readers.plan_file import read_plan_file

pytestmark = pytest.mark.usefixtures("shared_runs")
ROOT = Path(__file__).resolve().parents[2]
EXPOSED = (ROOT / "tests/data/results/vllm_0.33.0_series.txt").read_text(encoding="utf-8")
TYPES = dict(re.findall(r"^# TYPE (\S+) (\w+)$", EXPOSED, re.MULTILINE))
SERIES = set(re.findall(r"^([\w:]+)(?:\{| )", EXPOSED, re.MULTILINE))
GIVEN_BY_THE_SCRAPE = {"service", "pod"}
"""Labels that Prometheus adds from its service discovery."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    from capplan.cli.main import main

    folder = tmp_path_factory.mktemp("watched")
    plan, out = folder / "plan.json", folder / "watch.yaml"
    assert main(["fleet", str(ROOT / "tests/golden/small.yaml"), "--offline", "-o", str(plan)]) == 0
    assert main(["export", "--plan", str(plan), "--target", "grafana", "-o", str(out)]) == 0
    rules, config = yaml.safe_load_all(out.read_text(encoding="utf-8"))
    (text,) = config["data"].values()
    return plan, rules["spec"]["groups"][0]["rules"], json.loads(text)


def expressions(rules, start):
    return {
        (rule["record"], rule["labels"].get("latency")): rule["expr"]
        for rule in rules
        if rule["record"].startswith(start)
    }


def test_every_measured_series_is_one_that_a_server_exposes(exported):
    _, rules, _ = exported
    for (record, _), expr in expressions(rules, "capplan:measured_").items():
        alternatives = expr.split(" or ")
        names = [re.findall(r"vllm:\w+", part) for part in alternatives]
        assert all(names), record
        assert set(names[0]) <= SERIES, f"{record}: the first alternative is that of the newest version"
        for name in names[0]:
            base = re.sub(r"_(?:bucket|sum|count)$", "", name)
            counted = TYPES.get(base, TYPES.get(name.removesuffix("_total"), TYPES.get(name))) in {
                "counter",
                "histogram",
            }
            assert counted == ("rate(" in alternatives[0]), f"{record}: {name}"


def test_labels_are_those_of_the_exposition_or_of_the_scrape(exported):
    _, rules, _ = exported
    labels = set(re.findall(r'[{,](\w+)="', EXPOSED)) | GIVEN_BY_THE_SCRAPE
    for expr in expressions(rules, "capplan:measured_").values():
        assert set(re.findall(r"(\w+)=~?\"", expr)) | set(re.findall(r"by \((\w+)\)", expr)) <= labels


def test_planned_values_are_those_of_the_plan(exported):
    plan, rules, _ = exported
    result = json.loads(plan.read_text())["result"]
    planned = expressions(rules, "capplan:plan_")
    chosen = result["chosen"]
    assert planned["capplan:plan_replicas", None] == f"vector({chosen['replicas']})"
    assert (
        planned["capplan:plan_requests_per_second", None]
        == f"vector({result['demand']['peak_requests_per_s']:.6g})"
    )
    for key, limit in (("ttft_p95", 0.3), ("tpot_p95", 0.015)):
        assert planned["capplan:plan_latency_target_seconds", key] == f"vector({limit:.6g})"
        spread = chosen[f"{key[:4]}_s"]["p95"]
        assert planned["capplan:plan_latency_seconds", key] == f"vector({spread:.6g})"


def test_one_panel_shows_what_was_measured_over_what_was_planned(exported):
    plan, rules, dashboard = exported
    inputs = json.loads(plan.read_text())["result"]["plan_file"]["inputs"]
    over = {
        rule["labels"]["what"]: rule["expr"]
        for rule in rules
        if rule["record"] == "capplan:measured_over_planned"
    }
    assert set(over) == {"request rate over the peak", "input tokens", "output tokens"}
    assert over["input tokens"].endswith(f" / {inputs['input_tokens']:.6g}")
    assert over["request rate over the peak"].endswith(f" / {inputs['request_rate']:.6g}")
    (panel,) = (panel for panel in dashboard["panels"] if panel["title"].startswith("Measured over planned"))
    assert panel["targets"][0]["legendFormat"] == "{{what}}"


def test_the_dashboard_draws_rules_that_are_recorded(exported):
    _, rules, dashboard = exported
    recorded = {rule["record"] for rule in rules}
    assert len(dashboard["panels"]) == 6
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            name = target["expr"].partition("{")[0]
            assert name in recorded
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(places) == len(set(places))


def test_sglang_is_asked_by_its_own_names(exported):
    plan, _, _ = exported
    file = read_plan_file(plan)
    fleet = fleet_launch(file, image=None)

    class Sglang:
        engine, name, groups = "sglang", fleet.name, fleet.groups

    rules, _ = grafana_objects(file, Sglang())
    text = json.dumps(rules)
    assert "sglang:num_requests_total" in text
    assert "sglang:time_to_first_token_seconds_bucket" in text
    assert "sglang:request_time_per_output_token_seconds_bucket" in text
    assert "vllm:" not in text


def test_an_engine_without_these_series_is_refused(exported, capsys):
    plan, _, _ = exported
    file = read_plan_file(plan)

    class Trtllm:
        engine, name, groups = "trtllm", "x", ()

    with pytest.raises(Exception, match="reads what vLLM and SGLang report"):
        next(grafana_objects(file, Trtllm()))
