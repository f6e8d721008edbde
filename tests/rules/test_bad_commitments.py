"""Commitments, budgets and price files that cannot be used are refused in one clear line."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("shared_runs")
SMALL = "tests/golden/small.yaml"
VMS = """InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
one,8,64,L4,1,,0.8,0.3,east,east-a
four,32,256,L4,4,,3.2,,east,east-a
half,8,64,L4,0.5,,0.4,,east,east-a
other,8,64,Trainium9,16,,9.0,,east,east-a
cpu,8,64,,,,0.3,0.1,east,east-a
"""


def test_a_budget_that_nothing_meets_says_what_the_cheapest_plan_costs(capplan):
    words = (
        "fleet",
        SMALL,
        "--offline",
        "--set",
        "budget.usd_per_month=700",
        "--set",
        "traffic[0].request_rate=44",
    )
    ran = capplan(*words)
    assert ran.code == 4
    assert "no plan meets the SLO targets on the allowed hardware within the budget" in ran.out
    assert "without the budget of $700 per month: 3 x l40s" in ran.out
    result = capplan.result(*words, code=4)
    assert result["chosen"] is None
    assert result["over_budget"]["usd_per_month"] == pytest.approx(2190.0)
    assert {row["code"] for row in result["rejected"]} >= {"budget"}


@pytest.fixture
def small(tmp_path):
    def scenario(**prices):
        path = tmp_path / "s.yaml"
        path.write_text(
            "name: s\nmodel: Qwen/Qwen3-0.6B\ntraffic: [{request_rate: 2 req/s, input_tokens: 900, output_tokens: 9}]\n"
            f"fleet: {{hardware: [l4], tensor_parallel: 1, pipeline_parallel: 1}}\nprices: {json.dumps(prices)}\n"
        )
        return path

    return scenario


def test_a_catalogue_of_skypilot_is_read_per_device(capplan, small, tmp_path):
    (tmp_path / "vms.csv").write_text(VMS)
    ran = capplan("fleet", small(file="vms.csv", date="2026-11-01"), "--offline", "--format", "json")
    assert json.loads(ran.out)["result"]["chosen"]["usd_per_gpu_hour"] == pytest.approx(0.8)
    assert "1 offers of devices that are not in the catalogue are left out: Trainium9" in ran.err
    assert capplan.result("fleet", small(file="vms.csv", date="2026-11-01", commitment="spot"), "--offline")[
        "chosen"
    ]["usd_per_gpu_hour"] == pytest.approx(0.3)


@pytest.mark.parametrize("field", ["x" * 200_000, '"' + "x,\n" * 60_000], ids=["plain", "quoted"])
def test_a_catalogue_with_an_endless_field_is_refused(capplan, small, tmp_path, field):
    (tmp_path / "vms.csv").write_text(VMS + field)
    said = capplan.refused("fleet", small(file="vms.csv", date="2026-11-01"), "--offline")
    assert "vms.csv: is not CSV (field larger than field limit" in said


def test_a_price_file_in_another_currency_is_read_in_dollars(capplan, small, tmp_path):
    offer = {
        "device": "l4",
        "provider": "Own",
        "commitment": "on-demand",
        "price": "0.5 EUR/h",
        "date": "2026",
        "source": "page",
    }
    file = {
        "currency": {"name": "EUR", "usd": 1.2},
        "sources": {"page": {"title": "page", "url": "https://example.org"}},
        "prices": [offer],
    }
    (tmp_path / "prices.yaml").write_text(json.dumps(file))
    assert capplan.result("fleet", small(file="prices.yaml"), "--offline")["chosen"][
        "usd_per_gpu_hour"
    ] == pytest.approx(0.6)
    (tmp_path / "prices.yaml").write_text(json.dumps(file | {"prices": [offer | {"price": "0.5 CHF/h"}]}))
    assert "prices[0].price: '0.5 CHF/h' is not in $/h" in capplan.refused(
        "fleet", small(file="prices.yaml"), "--offline"
    )


def test_what_if_on_any_key_needs_no_other_file(capplan):
    plan = capplan.result("fleet", SMALL, "--offline", "--set", "traffic[0].request_rate=40")["chosen"]
    assert plan["request_rate_per_replica"] * (plan["replicas"] - plan["spare_replicas"]) == pytest.approx(
        40.0
    )
