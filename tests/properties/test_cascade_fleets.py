"""A cascade is its two fleets, searched like any other: at the ends one of them, in between the sum of both."""

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capplan.report.answers.several_models import percent_below

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
CASCADE = """name: two
model: qwen3-0.6b
weight_dtype: bf16
max_model_len: 4096
traffic:
  - {name: chat, request_rate: 30 req/s, arrival_cv: 2, input_tokens: {mean: 400, p95: 900}, output_tokens: {mean: 60, p95: 150}, mean_rate: 10 req/s}
  - {name: mail, request_rate: 6 req/s, input_tokens: 900, output_tokens: 90}
slo: {ttft_p95: 600 ms, tpot_p95: 30 ms}
fleet: {hardware: [l40s], tensor_parallel: 1, pipeline_parallel: 1}
prices: {per_gpu_hour: {l40s: 1 $/h, h100-sxm: 4 $/h}}
cascade:
  model: llama-3.1-8b
  escalated: 25 %
  verdict_time: 40 ms
  changes: {fleet: {hardware: [h100-sxm]}, slo: {ttft_p95: 800 ms}}
"""
LARGE = ("--set", "model=llama-3.1-8b", "--set", "fleet.hardware=[h100-sxm]", "--set", "slo.ttft_p95=800 ms")


@pytest.fixture
def result(capplan, tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text(CASCADE)

    def of(*words):
        return capplan.result("fleet", path, *words, "--offline")

    return of


def settings(*keys):
    return [word for key in keys for word in ("--set", key)]


def plans(found):
    return {fleet["part"]: fleet["plan"] for fleet in found["fleets"]}


def test_each_fleet_is_that_of_a_scenario_written_by_hand(result):
    """A quarter of 30 and 6 requests a second, of which the first arrive with a variation of sqrt(1 + 0.25 x 3)."""
    found = plans(result())
    alone = result(*settings("cascade=null"))["chosen"]
    assert found["first"] == alone
    assert found["alone"] == result(*settings("cascade=null"), *LARGE)["chosen"]
    quarter = settings(
        "cascade=null", "traffic[0].request_rate=7.5", "traffic[0].mean_rate=2.5", "traffic[1].request_rate=1.5",
        "traffic[0].arrival_cv=1.3228756555322954", "traffic[1].arrival_cv=1",
    )  # fmt: skip
    assert found["second"] == result(*quarter, *LARGE)["chosen"]
    for part, plan in found.items():
        assert result(*settings(f"cascade.part={part}"))["chosen"] == plan


def test_the_sum_and_the_cost_of_a_request(result):
    found = result()
    costs = {fleet["part"]: fleet["usd_per_month"] for fleet in found["fleets"]}
    both = found["cascade"]
    assert both["usd_per_month"] == pytest.approx(costs["first"] + costs["second"])
    requests = (10 + 6) * 3600 * 730
    assert both["usd_per_thousand_requests"] == pytest.approx(1000 * both["usd_per_month"] / requests)
    assert both["gpus"] == sum(plan["gpus"] for part, plan in plans(found).items() if part != "alone")


def test_with_nothing_escalated_it_is_the_small_fleet_and_with_everything_both(result):
    none, every = result(*settings("cascade.escalated=0")), result(*settings("cascade.escalated=1"))
    assert set(plans(none)) == {"first", "alone"}
    assert none["cascade"]["usd_per_month"] == plans(none)["first"]["usd_per_month"]
    assert plans(every)["second"] == plans(every)["alone"]
    whole = sum(plans(every)[part]["usd_per_month"] for part in ("first", "alone"))
    assert every["cascade"]["usd_per_month"] == pytest.approx(whole)
    routed = result(*settings("cascade.escalated=1", "cascade.after=router"))
    assert set(plans(routed)) == {"second", "alone"}
    assert routed["cascade"]["usd_per_month"] == plans(every)["alone"]["usd_per_month"]


def test_a_router_leaves_the_small_model_what_is_not_escalated(result):
    routed, judged = result(*settings("cascade.after=router")), result()
    rates = {fleet["part"]: fleet["request_rate"] for fleet in routed["fleets"]}
    assert rates == pytest.approx({"first": 27.0, "second": 9.0, "alone": 36.0})
    assert routed["cascade"]["usd_per_month"] <= judged["cascade"]["usd_per_month"]
    assert plans(routed)["second"] == plans(judged)["second"]


def test_waits_add_up_and_an_escalated_request_waits_for_the_whole_first_answer(result):
    found = result()
    first, second, alone = (plans(found)[part] for part in ("first", "second", "alone"))
    waits = {row["who"]: row for row in found["waits"]}
    seen = waits["escalated"]["first_token_s"]
    assert seen["mean"] == pytest.approx(0.04 + first["e2e_s"]["mean"] + second["ttft_s"]["mean"])
    assert seen["nine_in_ten"] == pytest.approx(0.04 + first["e2e_s"]["p95"] + second["ttft_s"]["p95"])
    kept = waits["answered by the small model"]
    assert kept["first_token_s"] == kept["answer_s"]
    assert kept["answer_s"]["nine_in_ten"] == pytest.approx(0.04 + first["e2e_s"]["p90"])
    assert waits["large model only"]["first_token_s"]["mean"] == pytest.approx(alone["ttft_s"]["mean"])
    mean = 0.75 * kept["first_token_s"]["mean"] + 0.25 * seen["mean"]
    assert found["cascade"]["first_token_s"] == pytest.approx(mean)
    routed = {row["who"]: row for row in result(*settings("cascade.after=router"))["waits"]}
    assert routed["escalated"]["first_token_s"]["mean"] == pytest.approx(0.04 + second["ttft_s"]["mean"])


def test_a_job_is_paid_for_once(result):
    job = settings(
        "traffic=[{requests: 90000, within: 1 h, input_tokens: 400, output_tokens: 60}]",
        "slo={}",
        "cascade.changes.slo=null",
    )
    found = result(*job)
    assert "usd_per_month" not in found["cascade"]
    assert found["cascade"]["usd_per_thousand_requests"] == pytest.approx(
        found["cascade"]["usd_per_job"] / 90
    )
    assert found["fleets"][1]["request_rate"] == pytest.approx(22_500 / 3600)


def test_a_plan_file_of_a_part_stands_for_itself(capplan, tmp_path):
    path, plan = tmp_path / "two.yaml", tmp_path / "plan.json"
    path.write_text(CASCADE)
    assert capplan("fleet", path, "--set", "cascade.part=second", "--offline", "-o", plan).code == 0
    assert capplan("check", "--plan", plan, "--offline", "--max-price-age", "9999").code == 0
    assert capplan("bill", "--plan", plan, "--offline").code == 0
    whole = tmp_path / "whole.json"
    assert capplan("fleet", path, "--offline", "-o", whole).code == 0
    assert "is not a plan file" in capplan("bill", "--plan", whole, "--offline").err


@given(st.floats(0.0, 1.0))
@example(0.82)
@example(0.81999)
def test_the_share_that_is_said_is_never_above_the_break_even(share):
    """What is said to cost no more up to a share does so: the share is rounded down, by less than a tenth of a percent."""
    said = float(percent_below(share).removesuffix("%")) / 100
    assert said <= share + 1e-9
    assert share - said < 1e-3


def test_at_the_share_that_is_said_the_fleets_of_the_rule_cost_no_more(result, capplan, tmp_path):
    """As many replicas as each plan asks for at that share, worked out by hand, and one more beyond the next tenth of a percent."""
    sure = settings("slo.confidence=97 %")
    found = result(*sure)
    (said,) = re.findall(
        r"up to an escalated share of ([\d.]+)% the cascade costs no more",
        capplan("fleet", tmp_path / "two.yaml", "--offline", *sure).out,
    )
    first, second, alone = (plans(found)[part] for part in ("first", "second", "alone"))

    def usd(share):
        of = [
            math.ceil(36 * share / plan["planned_request_rate_limit_per_replica"]) + plan["spare_replicas"]
            for plan in (second, alone)
        ]
        return first["usd_per_month"] + 2920 * min(of)

    assert usd(float(said) / 100) <= alone["usd_per_month"] < usd(float(said) / 100 + 0.001)


def test_growth_of_a_cascade_is_that_of_its_fleets(result):
    """The first month is today's plans; each month has the GPUs that each fleet has by itself, and costs their sum."""
    grown = settings("growth.per_month=20 %", "growth.months=3")
    found = result(*grown)
    months = found["growth"]
    assert [row["month"] for row in months] == [1, 2, 3]
    assert months[0]["usd_per_month"] == pytest.approx(found["cascade"]["usd_per_month"])
    alone = {
        part: result(*grown, *settings(f"cascade.part={part}"))["growth"]["months"] for part in plans(found)
    }
    for at, row in enumerate(months):
        assert row["request_rate"] == pytest.approx(36.0 * 1.2**at)
        assert {part: row[f"{part}_gpus"] for part in alone} == {
            part: of[at]["gpus"] for part, of in alone.items()
        }
        assert row["usd_per_month"] == pytest.approx(
            sum(alone[part][at]["usd_per_month"] for part in ("first", "second"))
        )
        assert row["alone_usd_per_month"] == pytest.approx(alone["alone"][at]["usd_per_month"])
    assert result()["growth"] is None
