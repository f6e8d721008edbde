"""Electricity of one's own hardware: added to the price of every device, and to nothing that is not asked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import InputError
from capplan.questions.fleet_answer import fleet_for
from capplan.report.answers.fleet import fleet_answer
from tests.asked import asked_of

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
SCENARIO = """name: small
model: meta-llama/Llama-3.1-8B-Instruct
traffic: [{request_rate: 2 req/s, input_tokens: 400, output_tokens: 60}]
fleet: {hardware: [l4, h100-sxm], tensor_parallel: 1, pipeline_parallel: 1}
prices:
  per_gpu_hour: {l4: 1.5 $/h, h100-sxm: 1.2 $/h}
"""
TDP_W = {"l4": 72.0, "h100-sxm": 700.0}
"""NVIDIA L4 and H100 datasheets, thermal design power."""


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "small.yaml"

    def answer(text):
        path.write_text(text)
        asked = asked_of(path)
        return fleet_answer(asked, fleet_for(asked))

    return answer


@given(st.floats(0.0, 3.0), st.none() | st.floats(1.0, 3.0))
@settings(max_examples=10, deadline=None)
def test_every_row_of_a_powered_fleet_multiplies_across(answered, usd_per_kwh, ratio):
    own = f"  electricity: {usd_per_kwh:.4f} $/kWh\n"
    own += "" if ratio is None else f"  facility_ratio: {ratio:.4f}\n"
    usd_per_kwh, ratio = float(f"{usd_per_kwh:.4f}"), float(f"{ratio or 1.0:.4f}")
    answer = answered(SCENARIO + own)
    plans = answer.result["plans"]
    assert {plan["hardware"] for plan in plans} == set(TDP_W)
    for plan in plans:
        kwh = plan["gpus"] * TDP_W[plan["hardware"]] * ratio / 1000.0
        assert plan["energy_usd_per_hour"] == pytest.approx(kwh * usd_per_kwh)
        assert plan["usd_per_hour"] == pytest.approx(
            plan["gpus"] * plan["usd_per_gpu_hour"] + plan["energy_usd_per_hour"]
        )
        assert plan["usd_per_month"] == pytest.approx(730 * plan["usd_per_hour"])
        # 2 requests of 60 tokens a second, at all hours
        assert plan["usd_per_million_output_tokens"] == pytest.approx(plan["usd_per_hour"] / 0.432)
    costs = [plan["usd_per_hour"] for plan in plans]
    assert costs == sorted(costs)
    assert "energy_usd_per_hour" in answer.tables[0].shown
    assert not answer.warnings or "electricity" not in " ".join(answer.warnings)


def test_without_electricity_nothing_is_added_and_no_column_shown(answered):
    answer = answered(SCENARIO)
    for plan in answer.result["plans"]:
        assert plan["energy_usd_per_hour"] is None
        assert plan["usd_per_hour"] == pytest.approx(plan["gpus"] * plan["usd_per_gpu_hour"])
    assert "energy_usd_per_hour" not in answer.tables[0].shown


def test_facility_ratio_multiplies_electricity_and_nothing_else(answered):
    with pytest.raises(InputError, match=r"line 7: prices\.facility_ratio: multiplies electricity"):
        answered(SCENARIO + "  facility_ratio: 1.4\n")
    (said,) = (
        item.what
        for item in answered(SCENARIO + "  electricity: 0.1 $/kWh\n").assumptions
        if item.replace == "prices.facility_ratio"
    )
    assert said == "facility ratio of 1: nothing for cooling and losses"


def test_electricity_on_a_rented_device_is_warned_of(answered):
    rented = SCENARIO.replace("l4: 1.5 $/h, ", "") + "  electricity: 0.1 $/kWh\n"
    (said,) = (text for text in answered(rented).warnings if "electricity" in text)
    assert "include electricity" in said
    assert "(l4)" in said


def test_a_device_of_unknown_power_has_no_cost_where_electricity_is_paid(answered):
    unknown = SCENARIO.replace("[l4, h100-sxm]", "[h100-sxm, tpu-v6e]").replace(
        "l4: 1.5 $/h", "tpu-v6e: 1 $/h"
    )
    plans = {plan["hardware"]: plan for plan in answered(unknown).result["plans"]}
    assert plans["tpu-v6e"]["usd_per_hour"] == pytest.approx(plans["tpu-v6e"]["gpus"])
    answer = answered(unknown + "  electricity: 0.1 $/kWh\n")
    assert any("power of tpu-v6e is not known" in text for text in answer.warnings)
    for plan in answer.result["plans"]:
        assert (plan["usd_per_hour"] is None) == (plan["hardware"] == "tpu-v6e")


def test_machines_draw_power_with_their_idle_gpus_too(answered):
    """A replica of one GPU in a machine of eight of your own: the cost counted eight, and the line of electricity one."""
    own = "  electricity: 0.2 $/kWh\n"
    fleet = "fleet: {hardware: [h100-sxm], own: {8 x h100-sxm: 2}, tensor_parallel: 1, pipeline_parallel: 1, spare_replicas: 0}"
    text = SCENARIO.replace(SCENARIO[SCENARIO.index("fleet:") : SCENARIO.index("\nprices:")], fleet)
    (plan,) = answered(text + own).result["plans"][:1]
    order = plan["order"]
    assert order["gpus_idle"] > 0
    assert plan["energy_usd_per_hour"] == pytest.approx(order["gpus"] * TDP_W["h100-sxm"] / 1000.0 * 0.2)
    assert (
        plan["usd_per_hour"] == order["usd_per_hour"] == pytest.approx(plan["energy_usd_per_hour"])
    )  # your own cost nothing more
