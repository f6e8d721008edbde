"""Planned and paid costs: ledgers by hand of the difference, and exports of FOCUS, AWS and OpenCost as they are written."""

import csv
import json

import pytest

from capplan.questions.money.actual import Costs, Difference
from capplan.recorded.paid import read_paid
from tests.plan_files import plan_of_file_with

SCENARIO = """name: paid
model: meta-llama/Llama-3.1-8B-Instruct
traffic:
  - {name: chat, request_rate: 2 req/s, input_tokens: 400, output_tokens: 60}
  - {name: mail, request_rate: 1 req/s, input_tokens: 900, output_tokens: 30}
fleet: {hardware: [h100-sxm], machines: [p5.48xlarge], tensor_parallel: 1, survive: {replica: 0}}
"""
DOLLARS = {"USD": 1.0}


plan = plan_of_file_with(SCENARIO, "s.yaml")
"""One machine of eight H100 at AWS, $55.04 an hour."""


def order(plan):
    (line,) = json.loads(plan.read_text())["result"]["chosen"]["order"]["machines"]
    return line


def compared(capplan, plan, path, *words):
    return capplan.result("bill", "--plan", plan, "--actual", path, *words, "--offline")


def test_a_difference_is_of_the_price_and_of_hours():
    """100 GPU hours were planned at $2, 130 were paid for at $3: $130 more for the price, $60 for 30 hours more."""
    found = Difference("h100", Costs(100.0, 200.0), Costs(130.0, 390.0))
    assert (found.usd, found.price_usd, found.hours_usd) == pytest.approx((190.0, 130.0, 60.0))


@pytest.mark.parametrize(
    ("planned", "paid", "usd"), [(Costs(), Costs(5.0, 20.0), 20.0), (Costs(5.0, 20.0), Costs(), -20.0)]
)
def test_what_was_not_planned_or_not_used_is_of_hours(planned, paid, usd):
    found = Difference("x", planned, paid)
    assert (found.usd, found.price_usd, found.hours_usd) == (usd, 0.0, usd)


def focus_file(folder, *rows):
    """Return rows of a provider's FOCUS export, each of a day unless it says otherwise."""
    usual = {
        "ChargePeriodStart": "2026-12-01T00:00:00Z", "ChargePeriodEnd": "2027-01-01T00:00:00Z", "ChargeCategory": "Usage", "BillingCurrency": "USD",
        "SkuPriceDetails": '{"InstanceType": "p5.48xlarge"}', "PricingUnit": "Hours", "Tags": "{}",
    }  # fmt: skip
    whole = [usual | row for row in rows]
    columns = list(dict.fromkeys(column for row in whole for column in row))
    path = folder / "focus.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(whole)
    return path


def test_a_provider_asks_more_and_a_machine_runs_too_long(capplan, plan, tmp_path):
    """Of a month of one machine $60 were paid instead of its price, and 100 hours of a second one at $30; the bucket and the purchase are no GPU hours."""
    line = order(plan)
    path = focus_file(
        tmp_path,
        {"PricingQuantity": 744, "EffectiveCost": 744 * 60},
        {"PricingQuantity": 100, "EffectiveCost": 100 * 30, "ChargePeriodEnd": "2026-12-05T04:00:00Z"},
        {"PricingQuantity": 5, "EffectiveCost": 12.5, "SkuPriceDetails": "", "PricingUnit": "GB"},
        {"PricingQuantity": 8760, "EffectiveCost": 0, "ChargeCategory": "Purchase"},
    )
    result = compared(capplan, plan, path)
    (month,), (machine,) = result["months"], result["machines"]
    planned, paid = 744 * line["usd_per_hour"] * line["count"], 744 * 60 + 3000
    assert line["count"] == 1
    assert (month["planned_usd"], month["paid_usd"], month["hours"]) == pytest.approx((planned, paid, 744.0))
    assert (machine["planned_gpu_hours"], machine["gpu_hours"]) == (8 * 744, 8 * 844)
    assert month["hours_usd"] == pytest.approx(100 * line["usd_per_hour"])
    assert month["price_usd"] == pytest.approx(paid - 844 * line["usd_per_hour"])
    assert month["difference_usd"] == pytest.approx(month["price_usd"] + month["hours_usd"])
    assert (month["load_usd"], month["idle_usd"], result["classes"]) == (None, None, [])
    assert result["left_out"] == {"rows": 1, "usd": 12.5}


def test_a_part_of_a_month_is_compared_with_that_part_of_the_plan(capplan, plan, tmp_path):
    ten_days = {
        "ChargePeriodEnd": "2026-12-11T00:00:00Z",
        "PricingQuantity": 240,
        "EffectiveCost": 240 * order(plan)["usd_per_hour"],
    }
    (month,) = compared(capplan, plan, focus_file(tmp_path, ten_days))["months"]
    assert (month["hours"], month["difference_usd"], month["hours_usd"]) == pytest.approx((240.0, 0.0, 0.0))


def test_only_charges_with_the_tags_of_the_scenario_count(capplan, plan, tmp_path):
    tagged = {"PricingQuantity": 744, "EffectiveCost": 7, "Tags": '{"team": "chat", "zone": "a"}'}
    path = focus_file(tmp_path, tagged, {**tagged, "Tags": '{"team": "search"}', "EffectiveCost": 900})
    scenario = tmp_path / "tagged.yaml"
    scenario.write_text(SCENARIO + "tags: {team: chat}\n")
    result = capplan.result("bill", scenario, "--plan", plan, "--actual", path, "--offline")
    assert result["paid_usd"] == 7.0
    scenario.write_text(SCENARIO + "tags: {team: none}\n")
    said = capplan.refused("bill", scenario, "--plan", plan, "--actual", path, "--offline")
    assert "no charge has the tags of the scenario, team: none" in said


CUR = "line_item_usage_start_date,line_item_usage_end_date,line_item_line_item_type,line_item_usage_amount,line_item_unblended_cost,reservation_effective_cost,product_instance_type,resource_tags_user_class\n"
LINES = (
    "2026-12-01T00:00:00Z,2026-12-01T01:00:00Z,Usage,1,55,,p5.48xlarge,chat\n"
    "2026-12-01T01:00:00Z,2026-12-01T02:00:00Z,DiscountedUsage,2,0,60,p5.48xlarge,mail\n"
    "2026-12-01T00:00:00Z,2026-12-01T01:00:00Z,RIFee,744,9000,,p5.48xlarge,\n"
    "2026-12-01T00:00:00Z,2026-12-01T01:00:00Z,Usage,1,0.5,,m5.large,\n"
)


@pytest.mark.parametrize("first", [False, True])
def test_a_cost_and_usage_report_has_what_is_used_up_of_a_reservation(tmp_path, first):
    """Both versions of the report; the fee of the reservation is billed, not used up, and m5.large has no GPU."""
    header = CUR
    if first:
        header = ("lineItem/UsageStartDate,lineItem/UsageEndDate,lineItem/LineItemType,lineItem/UsageAmount,lineItem/UnblendedCost,"
                  "reservation/EffectiveCost,product/instanceType,resourceTags/user:class\n")  # fmt: skip
    path = tmp_path / "cur.csv"
    path.write_text(header + LINES)
    file = read_paid(path, DOLLARS)
    assert [(each.machine, each.gpu_hours, each.usd) for each in file.charges] == [
        ("p5.48xlarge", 8.0, 55.0),
        ("p5.48xlarge", 16.0, 60.0),
    ]
    assert (file.left_out_rows, file.left_out_usd) == (1, 0.5)
    assert [each.name for each in file.charges] == ["chat", "mail"]


def test_opencost_tells_load_from_idle_gpus(capplan, plan, tmp_path):
    """The classes took twice the planned hours, the idle GPUs the rest, all at the planned price: what load took more, idle GPUs took less."""
    bill = capplan.result("bill", "--plan", plan, "--offline", "--month", "2026-12")
    hours, each = 8 * 744, order(plan)["usd_per_hour"] / 8
    share = {row["name"]: row["usd"] / bill["usd_per_month"] for row in bill["classes"]}
    taken = {name: 2 * part * hours for name, part in share.items()}
    taken["__idle__"] = hours - sum(taken.values())
    window = {"start": "2026-12-01T00:00:00Z", "end": "2027-01-01T00:00:00Z"}
    data = {
        name: {"window": window, "gpuHours": used, "totalCost": used * each, "properties": {}}
        for name, used in taken.items()
    }
    data["monitoring"] = {"window": window, "gpuHours": 0, "totalCost": 11.0}
    path = tmp_path / "opencost.json"
    path.write_text(json.dumps({"code": 200, "data": [data]}))
    result = compared(capplan, plan, path)
    (month,) = result["months"]
    busy = sum(share.values()) * hours * each
    assert (month["load_usd"], month["idle_usd"]) == pytest.approx((busy, -busy))
    assert (month["price_usd"], month["difference_usd"]) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert result["left_out"] == {"rows": 1, "usd": 11.0}
    assert result["machines"] == []
    rows = {row["class"]: row for row in result["classes"]}
    assert rows["chat"]["gpu_hours"] == pytest.approx(2 * rows["chat"]["planned_gpu_hours"])


@pytest.mark.parametrize("by", ["machine", "class"])
def test_a_bill_of_ours_is_paid_as_it_was_planned(capplan, plan, tmp_path, by):
    path = tmp_path / "ours.csv"
    words = ("--focus", path, "--by", by, "--focus-version", "1.3", "--month", "2026-12")
    assert capplan("bill", "--plan", plan, "--offline", *words).code == 0
    result = compared(capplan, plan, path)
    assert (
        result["planned_usd"]
        == pytest.approx(result["paid_usd"])
        == pytest.approx(744 * order(plan)["usd_per_hour"])
    )
    for row in (*result["months"], *result["machines"], *result["classes"]):
        assert (row["price_usd"], row["hours_usd"]) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert bool(result["classes"]) == (by == "class")


def test_odd_exports_are_refused(capplan, plan, tmp_path):
    tokens = tmp_path / "tokens.csv"
    assert capplan("bill", "--plan", plan, "--offline", "--focus", tokens, "--month", "2026-12").code == 0
    assert "line 2: is of tokens and states no hours" in capplan.refused(
        "bill --plan", plan, "--actual", tokens
    )
    euros = focus_file(tmp_path, {"BillingCurrency": "EUR", "PricingQuantity": 1, "EffectiveCost": 1})
    assert "line 2: is in EUR; give the scenario that currency" in capplan.refused(
        "bill --plan", plan, "--actual", euros
    )
    said = capplan.refused("bill", "--plan", plan, "--actual", euros, "--month", "2026-12")
    assert "--month: is of a bill of the plan, and --actual has its own months" in said
    for name, text, why in (
        ("a.csv", "cost,day\n1,2\n", "is no export of FOCUS"),
        ("a.json", '{"data": [[1]]}', "is not in the form of an export of costs"),
        ("a.json", '{"data": [{"x": {"totalCost": "much"}}]}', "x: totalCost: 'much' is not a number"),
        (
            "c.csv",
            "ChargePeriodStart,EffectiveCost,SkuPriceDetails\n2026-12-01,1,{\n",
            "is not in the form of an export of costs",
        ),
        ("a.json", '{"data": []}', "has no charge of a GPU machine"),
        (
            "b.csv",
            CUR + LINES.replace(",1,55,", ",x,55,"),
            "line 2: line_item_usage_amount: 'x' is not a number",
        ),
        (
            "b.csv",
            CUR + LINES.replace(",1,55,", ",1e308,55,"),
            "line_item_usage_amount: '1e308' is not a number, or out of range",
        ),
        (
            "b.csv",
            CUR
            + LINES.replace(
                "2026-12-01T00:00:00Z,2026-12-01T01:00:00Z,Usage", "today,2026-12-01T01:00:00Z,Usage"
            ),
            "is not a time",
        ),
    ):
        (tmp_path / name).write_text(text)
        assert why in capplan.refused("bill", "--plan", plan, "--actual", tmp_path / name)
