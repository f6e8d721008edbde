"""The plan over what engines report: every query names series and labels that a real server exposes."""

import json
import re
from pathlib import Path

import pytest

from capplan.deploy.export import grafana_dashboard
from capplan.deploy.fleet_launch import fleet_launch
from capplan.readers.plan_file import read_plan_file
from tests.plan_files import fleet_plan

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
    out = folder / "dashboard.json"
    plan = fleet_plan(ROOT / "tests/golden/small.yaml", at=folder / "plan.json")
    assert main(["export", str(plan), "--target", "grafana", "-o", str(out)]) == 0
    return plan, json.loads(out.read_text(encoding="utf-8"))


def queries(dashboard):
    return {
        (panel["title"], target["legendFormat"]): target["expr"]
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }


def measured(dashboard):
    return {key: expr for key, expr in queries(dashboard).items() if not expr.startswith("vector(")}


def test_the_file_is_one_dashboard_that_grafana_imports(exported):
    """https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/."""
    plan, dashboard = exported
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(dashboard)
    assert len(dashboard["uid"]) <= 40
    assert dashboard["templating"]["list"][0]["type"] == "datasource"
    assert len(dashboard["panels"]) == 6
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(places) == len(set(places))
    assert plan.name in dashboard["description"]
    assert "Import" in dashboard["description"]


def test_every_measured_series_is_one_that_a_server_exposes(exported):
    _, dashboard = exported
    assert len(measured(dashboard)) == 9
    for title, expr in measured(dashboard).items():
        alternatives = expr.split(" or ")
        names = [re.findall(r"vllm:\w+", part) for part in alternatives]
        assert all(names), title
        assert set(names[0]) <= SERIES, f"{title}: the first alternative is that of the newest version"
        for name in names[0]:
            base = re.sub(r"_(?:bucket|sum|count)$", "", name)
            counted = TYPES.get(base, TYPES.get(name.removesuffix("_total"), TYPES.get(name))) in {
                "counter",
                "histogram",
            }
            assert counted == ("rate(" in alternatives[0]), f"{title}: {name}"


def test_labels_are_those_of_the_exposition_or_of_the_scrape(exported):
    _, dashboard = exported
    labels = set(re.findall(r'[{,](\w+)="', EXPOSED)) | GIVEN_BY_THE_SCRAPE
    for expr in measured(dashboard).values():
        assert set(re.findall(r"(\w+)=~?\"", expr)) | set(re.findall(r"by \((\w+)\)", expr)) <= labels


def test_planned_values_are_those_of_the_plan(exported):
    plan, dashboard = exported
    result = json.loads(plan.read_text())["result"]
    shown, chosen = queries(dashboard), result["chosen"]
    assert shown["Replicas", "planned, spares included"] == f"vector({chosen['replicas']})"
    peak = result["demand"]["peak_requests_per_s"]
    assert shown["Requests per second", "planned peak"] == f"vector({peak:.6g})"
    for title, key, limit in (
        ("Time to first token", "ttft_s", 0.3),
        ("Time per output token", "tpot_s", 0.013),
    ):
        assert shown[f"{title}, p95", "SLO target"] == f"vector({limit:.6g})"
        assert shown[f"{title}, p95", "predicted at the peak"] == f"vector({chosen[key]['p95']:.6g})"


def test_one_panel_shows_what_was_measured_over_what_was_planned(exported):
    plan, dashboard = exported
    inputs = json.loads(plan.read_text())["result"]["plan_file"]["inputs"]
    title = "Measured over planned (1: as planned)"
    over = {what: expr for (panel, what), expr in queries(dashboard).items() if panel == title}
    assert set(over) == {"request rate over the peak", "input tokens", "output tokens"}
    assert over["input tokens"].endswith(f" / {inputs['input_tokens']:.6g}")
    assert over["request rate over the peak"].endswith(f" / {inputs['request_rate']:.6g}")


def test_sglang_is_asked_by_its_own_names(exported):
    plan, _ = exported
    file = read_plan_file(plan)
    fleet = fleet_launch(file, image=None)

    class Sglang:
        engine, name, groups = "sglang", fleet.name, fleet.groups

    text = json.dumps(grafana_dashboard(file, Sglang()))
    assert "sglang:num_requests_total" in text
    assert "sglang:time_to_first_token_seconds_bucket" in text
    assert "sglang:request_time_per_output_token_seconds_bucket" in text
    assert "vllm:" not in text


def test_an_engine_without_these_series_is_refused(exported, capsys):
    plan, _ = exported
    file = read_plan_file(plan)

    class Trtllm:
        engine, name, groups = "trtllm", "x", ()

    with pytest.raises(Exception, match="reads what vLLM and SGLang report"):
        grafana_dashboard(file, Trtllm())
