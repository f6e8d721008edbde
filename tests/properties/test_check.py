"""`check` fails where, and only where, a target, the certainty, the capacity, the budget or the date of a price no longer holds."""

import json
import re
from datetime import date

import pytest

from capplan.cli.main import main
from capplan.fleet.search.cheapest import Sized, busy_replicas
from capplan.fleet.search.one_layout import standing_of, trial_of
from capplan.fleet.search.recommended import plan_of
from capplan.questions.fleet import terms_of
from capplan.questions.plans.plan_check import check_plan, latest_day
from capplan.questions.plans.plan_file import answer_of
from capplan.readers.plan_file import read_plan_file
from tests.asked import asked_of
from tests.files import written_to
from tests.plan_files import fleet_plan
from tests.tables import table

pytestmark = pytest.mark.usefixtures("shared_runs")

SCENARIO = """name: small
model: qwen3-0.6b
weight_dtype: fp8
kv_dtype: bf16
traffic:
  - {name: chat, request_rate: 70 req/s, input_tokens: {mean: 400, p95: 1200}, output_tokens: {mean: 100, p95: 300}}
slo: {ttft_p95: 300 ms, tpot_p95: 15 ms}
fleet: {hardware: [l4, l40s], tensor_parallel: 1, pipeline_parallel: 1}
prices: {file: prices.yaml}
"""
OFFER = {"provider": "Own", "commitment": "on-demand", "source": "page"}
LISTED = {
    "sources": {"page": {"title": "page", "url": "https://example.org"}},
    "prices": [
        OFFER | {"device": "l4", "price": "1 $/h", "date": "2026-03"},
        OFFER | {"device": "l40s", "price": "2 $/h", "date": "2026-03"},
    ],
}
IN_TIME = date(2026, 6, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    here = tmp_path_factory.mktemp("check")
    written_to(here / "prices.yaml", LISTED)
    return fleet_plan(written_to(here / "small.yaml", SCENARIO)).parent


@pytest.fixture
def checked(folder, monkeypatch, capsys):
    """Return a function that checks the plan against the scenario with some keys overridden, on a day."""

    def check(*settings, today=IN_TIME, words=()):
        monkeypatch.setattr("capplan.keys.current_day", lambda: today)
        options = [part for setting in settings for part in ("--set", setting)]
        line = [
            "check",
            str(folder / "small.yaml"),
            "--plan",
            str(folder / "plan.json"),
            "--offline",
            *options,
            *words,
        ]
        code = main([*line, "--format", "json"])
        result = json.loads(capsys.readouterr().out)["result"]
        assert code == (0 if result["holds"] else 4)
        assert result["failures"] == [
            {key: row[key] for key in ("what", "limit", "value")}
            for row in result["checks"]
            if not row["holds"]
        ]
        return {row["what"]: (row["limit"], row["value"]) for row in result["failures"]}

    return check


def test_a_plan_that_was_just_made_holds(checked):
    assert checked() == {}


@pytest.mark.parametrize(
    ("settings", "failing"),
    [
        (["slo.ttft_p95=1 ms"], {"slo.ttft_p95", "slo.confidence", "capacity"}),
        (["slo.confidence=99.9%"], {"slo.confidence"}),
        (["traffic[0].request_rate=4000 req/s"], {"slo.confidence", "capacity"}),
        (["budget.usd_per_month=5"], {"budget.usd_per_month"}),
        (["fleet.hardware=[h100-sxm]"], {"fleet.hardware", "prices."}),
        (["weight_dtype=bf16"], {"weight_dtype"}),
        (["kv_dtype=fp8"], {"kv_dtype"}),
        (["fleet.tensor_parallel=2"], {"fleet.tensor_parallel"}),
        (["fleet.max_gpus=1"], {"fleet.max_gpus"}),
        (["fleet.spare_replicas=3"], {"fleet.spare_replicas"}),
        (["model=llama-3.1-8b"], {"model"}),
        (["engine=sglang"], {"engine"}),
        (["gpu_memory_utilization=0.01"], {"layout"}),
        (["prices.commitment=spot"], {"prices."}),
    ],
)
def test_what_no_longer_holds_is_named(checked, settings, failing):
    failures = checked(*settings)
    assert failures
    for what in failing:
        assert any(name.startswith(what) for name in failures), (what, failures)
    if "slo.ttft_p95" not in failing:
        assert "slo.ttft_p95" not in failures or "capacity" in failing


def test_the_values_are_those_of_the_plan(folder, checked):
    """A limit just below what `fleet` printed fails by that value, one just above it holds."""
    chosen = json.loads((folder / "plan.json").read_text())["result"]["chosen"]
    value = chosen["ttft_s"]["p95"]
    assert checked(f"slo.ttft_p95={value * 0.999} s")["slo.ttft_p95"] == (pytest.approx(value * 0.999), value)
    assert "slo.ttft_p95" not in checked(f"slo.ttft_p95={value * 1.001} s")
    usd = chosen["usd_per_month"]
    assert checked(f"budget.usd_per_month={usd - 1}")["budget.usd_per_month"] == (usd - 1, usd)
    assert "budget.usd_per_month" not in checked(f"budget.usd_per_month={usd + 1}")


def test_a_price_holds_for_as_long_as_it_is_told_to(folder, checked):
    name = json.loads((folder / "plan.json").read_text())["result"]["chosen"]["hardware"]
    assert checked(today=date(2027, 3, 31)) == {}
    assert checked(today=date(2027, 4, 1)) == {f"price date of {name}": ("365 days", "2026-03")}
    assert checked(today=date(2026, 4, 30), words=["--max-price-age", "30"]) == {}
    assert set(checked(today=date(2026, 5, 1), words=["--max-price-age", "30"])) == {f"price date of {name}"}


def test_without_a_scenario_the_plan_is_held_against_its_own(folder, capsys, monkeypatch):
    monkeypatch.setattr("capplan.keys.current_day", lambda: IN_TIME)
    assert main(["check", "--plan", str(folder / "plan.json"), "--offline"]) == 0
    assert "meets" in capsys.readouterr().out.splitlines()[0]


@pytest.fixture(scope="module")
def judged(folder):
    asked = asked_of(folder / "small.yaml")
    file = read_plan_file(folder / "plan.json")
    plan = answer_of(file, asked).chosen
    return (
        asked,
        file,
        plan,
        trial_of(asked.question, plan.single.layout, terms_of(asked)),
    )


def test_one_layout_is_judged_as_the_search_judged_it(judged):
    asked, _, plan, trial = judged
    again = plan_of(Sized(trial, plan.single.busy_replicas, plan.gpus), terms_of(asked))
    assert again.groups == plan.groups
    for name in ("ttft_s", "tpot_s", "e2e_s", "slo_met_probability", "usd_per_month"):
        assert getattr(again, name) == getattr(plan, name)


def test_as_many_replicas_as_the_search_asks_for_stand_and_fewer_do_not(judged):
    asked, _, _, trial = judged
    terms, least = terms_of(asked), asked.scenario.slo.confidence
    needed = busy_replicas(trial, trial.limits, least, terms)
    assert needed > 1
    few, enough, more = (
        standing_of(trial, busy, terms.headroom_fraction) for busy in (needed - 1, needed, needed + 1)
    )
    assert few.needed > (needed - 1,) or few.probability < least
    for now in (enough, more):
        assert now.needed <= (needed,)
        assert now.probability >= least
        assert all(value <= target.limit_s for target, value in now.values_s.items())
    assert few.probability < enough.probability < more.probability


def test_the_checks_of_a_plan_name_no_price_without_one(judged):
    asked, file, _, _ = judged
    names = [check.name for check in check_plan(asked, file, IN_TIME, 365)]
    assert len(names) == len(set(names))
    assert "budget.usd_per_month" not in names


@pytest.mark.parametrize(
    ("written", "last"),
    [("2025", date(2025, 12, 31)), ("2026-02", date(2026, 2, 28)), ("2026-12", date(2026, 12, 31))],
)
def test_a_date_without_a_day_is_taken_as_its_last(written, last):
    assert latest_day(written) == last


@table
def test_a_mistake_is_one_line(folder, monkeypatch, capplan, words, said):
    monkeypatch.chdir(folder)
    error = capplan.refused(*words, "--offline")
    assert said in error
    assert "Traceback" not in error


def test_a_plan_of_a_device_with_a_file_of_its_own_is_checked(capplan, tmp_path, root):
    card = tmp_path / "mycard.yaml"
    l40s = (root / "hardware_specs" / "l40s.yaml").read_text(encoding="utf-8")
    card.write_text(l40s.replace("name: l40s", "name: mycard").replace("NVIDIA L40S", "My card"))
    scenario, plan = tmp_path / "small.yaml", tmp_path / "plan.json"
    scenario.write_text(
        SCENARIO.replace("[l4, l40s]", "[mycard.yaml]").replace(
            "{file: prices.yaml}", "{per_gpu_hour: {mycard: 1 $/h}}"
        )
    )
    assert capplan("fleet", scenario, "--offline", "-o", plan).code == 0
    checked = capplan("check", "--plan", plan, "--offline")
    assert (checked.code, checked.err) == (0, "")


def test_prices_of_gpus_that_the_plan_does_not_have_are_counted_and_json_has_all(folder, capsys):
    words = ["check", str(folder / "small.yaml"), "--plan", str(folder / "plan.json"), "--offline"]
    assert main(words) in (0, 4)
    text = capsys.readouterr().out
    assert main([*words, "--format", "json"]) in (0, 4)
    listed = [item["assumption"] for item in json.loads(capsys.readouterr().out)["assumptions"]]
    costs = [what for what in listed if " costs " in what]
    assert len(costs) == 2
    assert main([*words, "--assumptions"]) in (0, 4)
    every = capsys.readouterr().out
    assert all(what in every for what in costs)
    bought = json.loads((folder / "plan.json").read_text())["result"]["chosen"]["hardware"]
    (other,) = (what for what in costs if not what.startswith(f"{bought} "))
    assert other not in text
    assert re.search(rf"confirm these \d; --assumptions shows {len(listed) - 3} more:", text)
