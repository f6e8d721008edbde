"""A plan file holds what it was made from: it is read, and means the same, without the files of its day."""

import json
import shutil

import pytest

from capplan.cli.main import main
from capplan.questions.plans.plan_file import asked_of_plan
from capplan.readers.catalogue.prices import price_records
from capplan.readers.plan_file import read_plan_file, result_digest
from tests.files import written_to
from tests.plan_files import fleet_plan, plan_in

pytestmark = pytest.mark.usefixtures("shared_runs")

SCENARIO = """name: small
model: llama-3.1-8b
weight_dtype: fp8
traffic:
  - {name: chat, request_rate: 60 req/s, input_tokens: {mean: 900, p95: 2500}, output_tokens: {mean: 120, p95: 300}}
  - {name: logged, trace: day.csv}
slo: {ttft_p95: 600 ms, tpot_p95: 30 ms}
fleet: {hardware: [h100-sxm, l40s], tensor_parallel: 1, pipeline_parallel: 1}
budget: {usd_per_month: 90000 $/month}
"""
TRACE = "timestamp,input_tokens,output_tokens\n" + "".join(f"{at / 2},500,60\n" for at in range(400))


@pytest.fixture
def folder(tmp_path, made):
    """Return a folder of its own with the scenario, its trace and its plan."""
    shutil.copytree(made, tmp_path / "here")
    text = (made / "plan.json").read_text().replace(str(made), str(tmp_path / "here"))
    envelope = json.loads(text)
    envelope["result"]["plan_file"]["result_sha256"] = result_digest(envelope["result"])
    (tmp_path / "here" / "plan.json").write_text(json.dumps(envelope))
    return tmp_path / "here"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    here = tmp_path_factory.mktemp("made")
    written_to(here / "day.csv", TRACE)
    return fleet_plan(written_to(here / "small.yaml", SCENARIO), "--set", "slo.tpot_p95=24 ms").parent


@pytest.mark.long
def test_a_plan_file_holds_what_it_was_made_from(folder):
    file = read_plan_file(folder / "plan.json")
    inputs, chosen = file.inputs, file.result["chosen"]
    assert inputs.content["slo"] == {"ttft_p95": "600 ms", "tpot_p95": "24 ms"}
    assert inputs.targets == {"ttft_p95": 0.6, "tpot_p95": 0.024}
    assert inputs.budget_usd_per_month == 90_000
    assert inputs.request_rate == pytest.approx(62.0, rel=1e-3)
    assert [(item.key, item.path) for item in inputs.files] == [("traffic[1].trace", str(folder / "day.csv"))]
    assert inputs.launch.published_weight_dtypes == ["bf16"]
    price = next(row for row in inputs.prices if row.hardware == chosen["hardware"])
    assert price.usd_per_gpu_hour == chosen["usd_per_gpu_hour"]
    offers = {(record.device, record.provider, record.date) for record in price_records()}
    assert {(price.hardware, *offer) for offer in zip(price.providers, price.dates, strict=True)} <= offers
    written = json.loads((folder / "plan.json").read_text())["assumptions"]
    assert [{"assumption": a.what, "replace": a.replace} for a in file.assumptions] == written
    assert file.remarks == ()


@pytest.mark.long
def test_a_plan_is_read_as_it_was_whatever_became_of_its_scenario(folder, capsys):
    asked, answer = asked_of_plan(None, folder / "plan.json", offline=True)
    (folder / "small.yaml").write_text(SCENARIO.replace("60 req/s", "600 req/s").replace("600 ms", "60 ms"))
    changed, same = asked_of_plan(None, folder / "plan.json", offline=True)
    assert same == answer
    assert changed.question.demand == asked.question.demand
    assert changed.scenario.slo == asked.scenario.slo
    assert "small.yaml has changed since" in changed.warnings[0]
    (folder / "small.yaml").unlink()
    gone, again = asked_of_plan(None, folder / "plan.json", offline=True)
    assert again == answer
    assert gone.question.demand == asked.question.demand
    assert main(["levers", "--plan", str(folder / "plan.json"), "--lever", "kv-dtype", "--offline"]) == 0
    assert str(folder / "small.yaml") in capsys.readouterr().err


@pytest.mark.long
def test_a_trace_that_changed_since_is_named(folder):
    (folder / "day.csv").write_text(TRACE + "200.5,500,60\n")
    assert any(
        "day.csv has changed since" in remark for remark in read_plan_file(folder / "plan.json").remarks
    )
    (folder / "day.csv").unlink()
    assert any(
        "day.csv has changed since" in remark for remark in read_plan_file(folder / "plan.json").remarks
    )
    assert main(["report", "--plan", str(folder / "plan.json"), "--offline"]) == 2


def test_a_plan_file_without_inputs_was_edited(folder, capplan):
    envelope = json.loads((folder / "plan.json").read_text())
    del envelope["result"]["plan_file"]["inputs"]
    envelope["capplan"] = "0.1.0"
    envelope["result"]["plan_file"]["result_sha256"] = result_digest(envelope["result"])
    (folder / "plan.json").write_text(json.dumps(envelope))
    said = capplan.refused("report", "--plan", folder / "plan.json")
    assert "plan_file.inputs is missing or malformed, so the file was edited" in said
    assert "write it again with: capplan fleet SCENARIO -o plan.json" in said


def test_an_input_that_was_edited_is_found(folder, capplan):
    text = (folder / "plan.json").read_text()
    for was, now in (('"600 ms"', '"900 ms"'), ('"max_num_seqs": ', '"max_num_seqs": 1')):
        assert was in text
        (folder / "plan.json").write_text(text.replace(was, now, 1))
        assert "was edited after it was written" in capplan.refused("report", "--plan", folder / "plan.json")


def test_a_step_of_no_gpus_is_not_one_that_was_written(folder, capplan):
    envelope = json.loads((folder / "plan.json").read_text())
    envelope["result"]["next_steps"]["surer"][0]["gpus"] = 0
    envelope["result"]["plan_file"]["result_sha256"] = result_digest(envelope["result"])
    (folder / "plan.json").write_text(json.dumps(envelope))
    assert "next_steps.surer[0].gpus" in capplan.refused("report", "--plan", folder / "plan.json")


def test_an_interval_that_is_unknown_is_null_and_is_read_back(tmp_path, capsys, monkeypatch, capplan):
    """As wide as so many times its value, an interval says nothing."""
    with monkeypatch.context() as patch:
        patch.setattr("capplan.accuracy.bounded.MOST_WIDTH", 0.3)
        plan = plan_in(tmp_path)
        assert "the interval of TTFT" in capsys.readouterr().err
    shown = json.loads(plan.read_text())["result"]["chosen"]
    assert (shown["ttft_s"]["low"], shown["ttft_s"]["high"]) == (None, None)
    for words in (
        ["report", "--plan", str(plan)],
        ["bill", "--plan", str(plan)],
        ["check", "--plan", str(plan)],
    ):
        assert main(words) in (0, 4)
    capsys.readouterr()
    assert capplan.result("report", "--plan", plan)["chosen"]["ttft_s"] == shown["ttft_s"]
