"""The largest load of some GPUs is the load at which `fleet` takes no more than those, and a little more takes more."""

import json
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.questions.capacity import asked_capacity
from tests.asked import fleet_of
from tests.files import written_to
from tests.oracles.test_mix_by_shares import OWN as HALF_OWN
from tests.oracles.test_mix_by_shares import PRICES
from tests.plan_files import choice
from tests.sweeps import examples

pytestmark = pytest.mark.usefixtures("shared_runs")

MODEL = "llama-3.1-8b"
LITTLE_MORE = 1.05


def fewest(settings, **more):
    """Return the plan of `fleet` with the fewest GPUs: of plans that cost the same, as parts of one machine do, it recommends the surest."""
    keys = (*settings, *(f"traffic[0].{key}={value}" for key, value in more.items()))
    plans = fleet_of(MODEL, *keys).plans
    return min(plans, key=lambda plan: plan.gpus, default=None)


@st.composite
def scenarios(draw):
    """Draw the keys of a scenario, and the GPUs that may serve it."""
    keys = [
        f"--input-tokens={draw(st.sampled_from([200, 1000, 4000]))}",
        f"--output-tokens={draw(st.sampled_from([40, 200, 600]))}",
        f"fleet.spare_replicas={draw(st.integers(0, 1))}",
    ]
    if ttft := draw(st.sampled_from(["", "500 ms", "2 s"])):
        keys.append(f"--ttft-p95={ttft}")
    if tpot := draw(st.sampled_from(["", "25 ms", "60 ms"])):
        keys.append(f"--tpot-p95={tpot}")
    if draw(st.booleans()):
        keys.append("--weight-dtype=fp8")
    return tuple(keys), draw(st.sampled_from(["h100-sxm", "l40s", "h200-sxm"])), draw(st.integers(1, 9))


@given(scenarios())
@settings(max_examples=examples(8, 40))
def test_fleet_takes_no_more_gpus_at_the_carried_load_and_more_above_it(drawn):
    keys, hardware, gpus = drawn
    _, answer = asked_capacity(Path(MODEL), keys, f"{gpus} x {hardware}", None, 30.0, offline=True)
    settings = (*keys, f"--hardware={hardware}")
    if answer.plan is None:
        plan = fewest(settings, request_rate="0.01 req/s")
        assert plan is None or plan.gpus > gpus
        return
    rate = answer.carried.request_rate
    plan = fewest(settings, request_rate=f"{rate} req/s")
    assert plan.gpus <= gpus
    assert plan.usd_per_month == pytest.approx(answer.plan.usd_per_month)
    more = fewest(settings, request_rate=f"{LITTLE_MORE * rate} req/s")
    assert more is None or more.gpus > gpus


@pytest.mark.parametrize("gpus", [2, 5])
def test_users_are_whole_and_a_few_more_take_more_gpus(gpus):
    keys = ("--users=10", "--think-time=20 s", "--ttft-p95=1 s", "--tpot-p95=30 ms", "--input-tokens=2000", "--output-tokens=200")  # fmt: skip
    _, answer = asked_capacity(Path(MODEL), keys, f"{gpus} x l40s", None, 0.0, offline=True)
    users = answer.carried.users
    assert users == int(users) > 0
    settings = (*keys, "--hardware=l40s")
    assert fewest(settings, users=users).gpus <= gpus
    assert fewest(settings, users=round(LITTLE_MORE * users) + 1).gpus > gpus


def test_each_change_carries_no_less_and_a_looser_target_is_what_it_says():
    keys = ("--ttft-p95=1 s", "--tpot-p95=12 ms", "--input-tokens=2000", "--output-tokens=200")
    _, answer = asked_capacity(Path(MODEL), keys, "4 x h100-sxm", None, 30.0, offline=True)
    rates = {row.change: row.request_rate for row in answer.more}
    assert set(rates) == {
        "1 more GPU",
        "fp8 weights and KV cache",
        "all targets 1.5 times as long",
        "no spare replicas",
    }
    assert min(rates.values()) >= answer.carried.request_rate
    looser = ("--ttft-p95=1.5 s", "--tpot-p95=18 ms", *keys[2:])
    _, other = asked_capacity(Path(MODEL), looser, "4 x h100-sxm", None, 30.0, offline=True)
    assert rates["all targets 1.5 times as long"] == pytest.approx(other.carried.request_rate, rel=0.05)
    _, more = asked_capacity(Path(MODEL), keys, "5 x h100-sxm", None, 30.0, offline=True)
    assert rates["1 more GPU"] == pytest.approx(more.carried.request_rate, rel=0.05)


def test_a_budget_pays_for_what_fleet_finds_within_it():
    keys = ("--tpot-p95=30 ms", "--hardware=l40s,h100-sxm")
    _, answer = asked_capacity(Path(MODEL), keys, None, 9000.0, 30.0, offline=True)
    assert answer.plan.usd_per_month <= 9000.0
    rate = answer.carried.request_rate
    assert fewest((*keys, "budget.usd_per_month=9000"), request_rate=f"{rate} req/s") is not None
    assert fewest((*keys, "budget.usd_per_month=9000"), request_rate=f"{LITTLE_MORE * rate} req/s") is None


def test_a_change_that_carries_no_more_is_no_row():
    """Three GPUs are all that there are, and cost less than the budget: more money adds none."""
    keys = ("--tpot-p95=40 ms", "budget.usd_per_month=20000")
    _, answer = asked_capacity(Path(MODEL), keys, "3 x l40s", None, 30.0, offline=True)
    rates = {row.change: row.request_rate for row in answer.more}
    assert "1 more GPU" in rates
    assert min(rates.values()) > answer.carried.request_rate


def test_the_command_prints_the_keys_and_ends_with_four_where_nothing_is_carried(capplan, tmp_path):
    line = ("capacity", MODEL, "--gpus", "3 x l40s", "--tpot-p95", "40 ms", "--offline")
    ran = capplan(*line, "--format", "json")
    result = json.loads(ran.out)["result"]
    assert ran.code == 0
    assert set(result) == {"carried", "limit", "plan", "more"}
    assert set(result["carried"]) == {"request_rate", "users", "concurrency", "tokens_per_day"}
    assert {"change", "request_rate", "usd_per_month"} <= set(result["more"][0])
    carried, plan = result["carried"], result["plan"]
    assert plan["gpus"] == 3
    assert carried["users"] == pytest.approx(carried["request_rate"] * (30.0 + plan["e2e_s"]["mean"]))
    assert carried["concurrency"] == pytest.approx(carried["request_rate"] * plan["e2e_s"]["mean"], rel=1e-6)
    assert carried["tokens_per_day"] == pytest.approx(86400 * carried["request_rate"] * 1800)
    assert capplan.result(*line, "--think-time", "60 s")["carried"]["users"] > carried["users"]
    none = capplan(*line, "--ttft-p95", "1 ms", "--format", "json")
    assert (none.code, json.loads(none.out)["result"]["carried"]) == (4, None)
    order = capplan(*line).out
    assert re.search(r"^order: 3 x .* per hour each, price\s+of 20", order, re.MULTILINE)
    few = capplan("capacity", MODEL, "--gpus", "1 x l40s", "--offline")
    assert few.code == 4
    assert "takes 2 x l40s" in few.out


def test_a_plan_file_carries_at_least_the_load_that_it_was_made_for(capplan, tmp_path):
    plan = tmp_path / "plan.json"
    line = shlex.split(
        f"fleet {MODEL} --request-rate '20 req/s' --tpot-p95 '40 ms' --hardware l40s --offline"
    )
    assert capplan(*line, "-o", plan).code == 0
    assert capplan.result("capacity", plan, "--offline")["carried"]["request_rate"] >= 0.97 * 20.0


def test_fleet_says_how_much_of_the_load_too_few_gpus_carry(capplan):
    line = ("fleet", MODEL, "--request-rate", "200 req/s", "--hardware", "l40s", "--set", "fleet.max_gpus=4", "--offline")  # fmt: skip
    ran = capplan(*line, "--format", "json")
    carried = json.loads(ran.out)["result"]["carried"]
    assert ran.code == 4
    assert carried["plan"]["gpus"] <= 4
    assert 0.0 < carried["traffic_fraction"] < 1.0
    assert (
        f"fleet.max_gpus of 4 carries {carried['traffic_fraction']:.0%} of the traffic" in capplan(*line).out
    )


@pytest.mark.long
def test_several_kinds_carry_what_each_carries_and_fleet_takes_no_more_of_any():
    keys = ("--tpot-p95=30 ms", "--input-tokens=1000", "--output-tokens=100", "fleet.spare_replicas=0")
    have = {"h100-sxm": 1, "l40s": 2}
    _, answer = asked_capacity(Path(MODEL), keys, "1 x h100-sxm, 2 x l40s", None, 30.0, offline=True)
    rate, plan = answer.carried.request_rate, answer.plan
    alone = [
        asked_capacity(Path(MODEL), keys, f"{count} x {name}", None, 30.0, offline=True)[1]
        for name, count in have.items()
    ]
    assert rate == pytest.approx(sum(other.carried.request_rate for other in alone))
    assert plan.usd_per_month == pytest.approx(sum(other.plan.usd_per_month for other in alone))
    assert plan.slo_met_probability >= 0.8
    for group in plan.groups:
        settings = (*keys, f"--hardware={group.hardware}")
        mine = group.requests.share * rate
        assert fewest(settings, request_rate=f"{mine!r} req/s").gpus <= have[group.hardware]
        assert fewest(settings, request_rate=f"{LITTLE_MORE * mine!r} req/s").gpus > have[group.hardware]
    assert sum(group.requests.share for group in plan.groups) == pytest.approx(1.0)
    rates = {row.change: row.request_rate for row in answer.more}
    assert {"1 more h100-sxm", "1 more l40s", "fp8 weights and KV cache"} <= set(rates)
    assert min(rates.values()) >= rate


OWN = """name: own
model: llama-3.1-8b
traffic: [{name: chat, request_rate: 10 req/s, input_tokens: 1000, output_tokens: 100}]
slo: {tpot_p95: 30 ms}
fleet:
  hardware: [h100-sxm, l40s]
  survive: {machine: 0}
  own: {2 x h100-sxm: 1, 4 x l40s: 1}
  machines: [p5.48xlarge, g6e.12xlarge]
  max_machines: {p5.48xlarge: 0, g6e.12xlarge: 0}
"""


@pytest.mark.long
def test_own_servers_of_two_kinds_carry_the_load_together(tmp_path):
    path = written_to(tmp_path / "own.yaml", OWN)
    _, answer = asked_capacity(path, (), None, None, 30.0, offline=True)
    assert {group.hardware: group.gpus for group in answer.plan.groups} == {"h100-sxm": 2, "l40s": 4}
    _, more = asked_capacity(
        path, ("fleet.own={2 x h100-sxm: 1, 4 x l40s: 2}",), None, None, 30.0, offline=True
    )
    assert more.carried.request_rate > answer.carried.request_rate


@pytest.mark.long
def test_a_plan_of_a_mix_carries_at_least_its_own_load_with_its_groups_and_its_router(capplan, tmp_path):
    path, plan = tmp_path / "own.yaml", tmp_path / "plan.json"
    path.write_text(HALF_OWN)
    (tmp_path / "prices.yaml").write_text(PRICES)
    assert capplan("fleet", path, "--set", "fleet.mix=shares", "--offline", "-o", plan).code == 0
    made = choice(json.loads(plan.read_text())["result"], "cheapest")
    assert len(made["groups"]) == 2
    result = json.loads(capplan("capacity", plan, "--offline", "--format", "json").out)["result"]
    assert result["carried"]["request_rate"] >= 60.0
    assert [group["gpus"] for group in result["plan"]["groups"]] == [
        group["gpus"] for group in made["groups"]
    ]
    assert result["plan"]["slo_met_probability"] >= 0.5
