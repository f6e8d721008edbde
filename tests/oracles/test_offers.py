"""What a device costs by each commitment, worked out by hand: electricity paid apart, spot for all replicas, and the range of the offers."""

import csv
import json

import pytest

pytestmark = pytest.mark.usefixtures("shared_runs")
CATALOGUE = """InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region
one,L4,1,0.8,0.3,east
"""
KW = 0.072
"""Thermal design power of the L4 on its datasheet."""


def test_a_fleet_its_bill_and_a_comparison_pay_the_same_for_its_machines(commitments, capplan, tmp_path):
    found, _ = commitments(
        {"reserved_1y": {"discount": "40 %"}}, file="cloud/vms.csv", date="2026-11-01", people="50 $/month", overhead="10 %"
    )  # fmt: skip
    usd = found["usd_per_month"]
    assert usd == pytest.approx(2 * 730 * 0.8 * 0.6)
    words = (tmp_path / "s.yaml", "--offline", "--format", "json")
    bill = capplan.result("bill", *words)
    assert bill["usd_per_month"] == pytest.approx(1.1 * usd + 50)
    own = capplan.result("compare", *words, "--api", "openai/gpt-5")["own"]
    assert own["machines_usd_per_month"] == pytest.approx(usd)
    assert own["usd_per_month"] == pytest.approx(1.1 * usd + 50)
    assert (
        "machines, by the mix of commitments" in capplan("compare", *words[:2], "--api", "openai/gpt-5").out
    )


def three_offers(folder):
    """Write the prices of three providers that ask 1, 2 and 5 $ for an L4."""
    offers = [
        {"device": "l4", "provider": name, "commitment": "on-demand", "price": f"{usd} $/h", "date": f"2026-1{month}", "source": "page"}
        for name, usd, month in (("A", 1, 0), ("B", 2, 1), ("C", 5, 2))
    ]  # fmt: skip
    page = {"page": {"title": "page", "url": "https://example.org"}}
    (folder / "own.yaml").write_text(json.dumps({"sources": page, "prices": offers}))


@pytest.fixture
def commitments(capplan, tmp_path):
    """Return the commitments that `capplan fleet` shows for two replicas of an L4."""
    (tmp_path / "cloud").mkdir()
    (tmp_path / "cloud" / "vms.csv").write_text(CATALOGUE)

    def shown(terms, **prices):
        path = tmp_path / "s.yaml"
        path.write_text(
            "name: s\nmodel: Qwen/Qwen3-0.6B\ntraffic: [{request_rate: 2 req/s, input_tokens: 900, output_tokens: 9}]\n"
            "fleet: {hardware: [l4], tensor_parallel: 1, pipeline_parallel: 1, spare_replicas: 1}\n"
            f"prices: {json.dumps(prices)}\ncommitments: {json.dumps(terms)}\n"
        )
        result = capplan.result("fleet", path, "--offline")
        assert result["chosen"]["replicas"] == 2
        return result["commitments"], result["chosen"]

    return shown


def test_spot_may_carry_every_replica_where_the_scenario_says_so(commitments):
    found, _ = commitments(
        {"spot": {"headroom": "25 %", "most": "100 %"}}, file="cloud/vms.csv", date="2026-11-01"
    )
    assert [(row["commitment"], row["replicas"]) for row in found["rows"]] == [("spot", 2)]
    assert found["usd_per_month"] == pytest.approx(2 * 730 * 0.3 * 1.25)
    half, _ = commitments(
        {"spot": {"headroom": "25 %", "most": "50 %"}}, file="cloud/vms.csv", date="2026-11-01"
    )
    assert half["usd_per_month"] == pytest.approx(730 * (0.8 + 0.3 * 1.25))


def test_electricity_is_paid_beside_every_rent_and_no_discount_is_taken_off_it(commitments):
    """72 W at 0.2 $/kWh and a facility ratio of 1.5 are 0.0216 $ an hour, beside 0.8 $ and 40 % off."""
    power = KW * 0.2 * 1.5
    found, plan = commitments(
        {"reserved_1y": {"discount": "40 %"}, "reserved_3y": {"price": "0.3 $/h"}, "spot": {"headroom": "50 %"}},
        file="cloud/vms.csv", date="2026-11-01", electricity="0.2 $/kWh", facility_ratio=1.5,
    )  # fmt: skip
    alone = {row["commitment"]: row["usd_per_month"] / (2 * 730) for row in found["pure"]}
    assert alone["on-demand only"] == pytest.approx(0.8 + power)
    assert alone["on-demand only"] * 2 * 730 == pytest.approx(plan["usd_per_month"])
    assert alone["reserved-1y only"] == pytest.approx(0.8 * 0.6 + power)
    assert alone["reserved-3y only"] == pytest.approx(0.3 + power)
    assert alone["the mix"] == pytest.approx(0.3 + power)


def test_an_owned_device_by_hand(commitments):
    """35,040 $ over four years are 1 $ an hour, upkeep of 10 % 0.4 $; 1 kW at 0.1 $/kWh and a ratio of 1.5 is 0.15 $, waiting a fifth."""
    terms = {
        "capex": "35040 $", "life": "4 years", "interest": "0 %", "upkeep": "10 %", "electricity": "0.1 $/kWh", "power": "1 kW",
        "facility_ratio": 1.5, "idle": "20 %", "people": "73 $/month",
    }  # fmt: skip
    found, _ = commitments({"owned": terms}, file="cloud/vms.csv", date="2026-11-01")
    (owned,) = (row for row in found["pure"] if row["commitment"] == "owned only")
    assert owned["usd_per_month"] == pytest.approx(730 * (2 * (1.0 + 0.4 + 0.15) + 0.1))
    assert owned["usd_per_year"] == pytest.approx(12 * owned["usd_per_month"])


def test_low_and_high_are_the_rents_of_the_other_offers(commitments, tmp_path):
    """Three providers ask 1, 2 and 5 $: likely 2, low 1, high 5; half off, electricity the same in each."""
    three_offers(tmp_path)
    power = KW * 0.5
    found, _ = commitments({"reserved_1y": {"discount": "50 %"}}, file="own.yaml", electricity="0.5 $/kWh")
    (reserved,) = (row for row in found["pure"] if row["commitment"] == "reserved-1y only")
    shown = [reserved[f"usd_per_month{end}"] for end in ("_low", "", "_high")]
    assert shown == pytest.approx([2 * 730 * (0.5 * usd + power) for usd in (1, 2, 5)])


@pytest.fixture
def offered(capplan, tmp_path):
    """Return the words that follow `capplan fleet` for two replicas of an L4 at the prices of three providers."""
    three_offers(tmp_path)
    path = tmp_path / "s.yaml"

    def words(**more):
        keys = {
            "name": "s", "model": "Qwen/Qwen3-0.6B", "traffic": [{"request_rate": "2 req/s", "input_tokens": 900, "output_tokens": 9}],
            "fleet": {"hardware": ["l4"], "tensor_parallel": 1, "pipeline_parallel": 1, "spare_replicas": 1},
            "prices": {"file": "own.yaml", "electricity": "0.5 $/kWh"},
        }  # fmt: skip
        path.write_text(json.dumps(keys | more))
        return path, "--offline"

    return words


def test_a_plan_has_its_cost_at_the_lowest_the_likely_and_the_highest_offer(capplan, offered):
    """Two L4 at 1, 2 and 5 $ by A, B and C, and 72 W of each at 0.5 $/kWh, for 730 h a month and 8,760 h a year."""
    plan = capplan.result("fleet", *offered())["chosen"]
    for side, usd, provider, day in (
        ("low", 1, "A", "2026-10"),
        ("likely", 2, "B", "2026-11"),
        ("high", 5, "C", "2026-12"),
    ):
        cost = plan["offers"][side]
        hourly = 2 * (usd + KW * 0.5)
        assert [cost[f"usd_per_{period}"] for period in ("hour", "month", "year")] == pytest.approx(
            [hourly, 730 * hourly, 8760 * hourly]
        )
        assert (cost["providers"], cost["dates"], cost["usd_per_job"]) == ([provider], [day], None)
    assert plan["offers"]["likely"]["usd_per_month"] == plan["usd_per_month"]


def test_the_range_of_the_offers_is_in_the_tables_and_the_csv(capplan, offered):
    shown = capplan("fleet", *offered(), "--full").out
    low, high = 2 * (1 + KW * 0.5), 2 * (5 + KW * 0.5)
    assert (
        f"at the lowest offers the plan costs ${730 * low:,.0f} per month, ${8760 * low:,.0f} per year (A, 2026-10), "
        f"at the highest ${730 * high:,.0f} per month, ${8760 * high:,.0f} per year (C, 2026-12)"
    ) in shown
    row = next(csv.DictReader(capplan("fleet", *offered(), "--format", "csv").out.splitlines()))
    assert float(row["offers.high.usd_per_year"]) == pytest.approx(8760 * high)
    assert (row["offers.low.providers"], row["offers.low.dates"]) == ("A", "2026-10")


def test_a_price_of_the_scenario_has_no_range(capplan, offered):
    words = offered(prices={"per_gpu_hour": {"l4": "3 $/h"}})
    offers = capplan.result("fleet", *words)["chosen"]["offers"]
    assert {side: cost["usd_per_hour"] for side, cost in offers.items()} == {
        "low": 6.0,
        "likely": 6.0,
        "high": 6.0,
    }
    assert offers["low"]["providers"] == ["the scenario"]
    assert "Range of the offers" not in capplan("fleet", *words, "--full").out


def test_pools_cost_the_sum_of_the_offers_of_each(capplan, offered):
    """A job of 2 h on two pools of L4: each pool at the lowest, the likely and the highest offer."""
    traffic = [{"requests": 14400, "within": "2 h", "input_tokens": 900, "output_tokens": 9}]
    fleet = {
        "hardware": ["l4"],
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "disaggregation": "only",
        "kv_link": "pcie",
    }
    words = offered(traffic=traffic, fleet=fleet, prices={"file": "own.yaml"})
    plan = capplan.result("fleet", *words)["chosen"]
    for side, usd in (("low", 1), ("likely", 2), ("high", 5)):
        assert plan["offers"][side]["usd_per_job"] == pytest.approx(plan["gpus"] * usd * 2)
    assert f"${plan['gpus'] * 5 * 2:,.0f} for the job (C, 2026-12)" in capplan("fleet", *words, "--full").out
