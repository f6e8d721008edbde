"""Price lists that a person has: what each form says by hand, the layer that they become, and the dollars of a plan before and after."""

import csv
import json

import pytest

from capplan.cli.main import main
from capplan.money.price import usd_per_month
from capplan.readers.catalogue.price_exports import offers_in
from tests.focus_rules import follows_columns
from tests.tables import table

DAY = "2026-11-28"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The layer of the user is a folder of the test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def written(folder, name, value):
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def aws_item(*, system="Linux", hourly=50.0, upfront=0.0):
    """A machine of AWS: on demand, and for a year with a part upfront."""
    return {
        "product": {"attributes": {"instanceType": "p5.48xlarge", "regionCode": "us-west-2", "operatingSystem": system, "tenancy": "Shared",
                                   "preInstalledSw": "NA", "capacitystatus": "Used"}},
        "publicationDate": "2026-11-25T10:00:00Z",
        "terms": {
            "OnDemand": {"a": {"priceDimensions": {"b": {"unit": "Hrs", "pricePerUnit": {"USD": str(hourly)}}}}},
            "Reserved": {"c": {"termAttributes": {"LeaseContractLength": "1yr", "OfferingClass": "standard"}, "priceDimensions": {
                "d": {"unit": "Hrs", "pricePerUnit": {"USD": "20.0"}}, "e": {"unit": "Quantity", "pricePerUnit": {"USD": str(upfront)}}}}},
        },
    }  # fmt: skip


def prices_of(offers):
    return {
        (each.sku, each.region, commitment): (pytest.approx(each.usd_per_hour), each.date)
        for commitment, each in offers
    }


def test_aws_lists_hours_and_what_is_paid_upfront(folder):
    """$87,600 upfront are $10 for each of 8,760 hours, next to $20 as it runs; Windows and machines without GPUs are no offers."""
    listed = {"PriceList": [json.dumps(aws_item(upfront=87_600.0)), aws_item(system="Windows", hourly=1.0)]}
    offers, _ = offers_in(written(folder, "aws.json", listed), None)
    expected = {
        ("p5.48xlarge", "us-west-2", "on-demand"): (50.0, "2026-11-25"),
        ("p5.48xlarge", "us-west-2", "reserved-1y"): (30.0, "2026-11-25"),
    }
    assert prices_of(offers) == expected
    item = aws_item(upfront=87_600.0)
    bulk = {
        "publicationDate": "2026-11-25T00:00:00Z", "products": {"S": item["product"], "T": {"attributes": {"instanceType": "m5.large"}}},
        "terms": {kind: {"S": terms} for kind, terms in item["terms"].items()},
    }  # fmt: skip
    offers, left_out = offers_in(written(folder, "bulk.json", bulk), None)
    assert prices_of(offers) == expected
    assert left_out == {"m5.large": 1}


def test_azure_prices_reservations_by_the_term(folder):
    """$525,600 for three years of 8,760 hours are $20 an hour; an amount of ten minutes, Windows and low priority are no offers."""
    common = {
        "currencyCode": "USD",
        "armRegionName": "eastus",
        "armSkuName": "Standard_ND96isr_H100_v5",
        "unitOfMeasure": "1 Hour",
    }
    rows = [
        {
            "type": "Consumption",
            "retailPrice": 98.0,
            "productName": "Virtual Machines NDsr",
            "skuName": "ND96isr H100 v5",
        },
        {
            "type": "Consumption",
            "retailPrice": 33.0,
            "productName": "Virtual Machines NDsr",
            "skuName": "ND96isr H100 v5 Spot",
        },
        {
            "type": "Consumption",
            "retailPrice": 1.0,
            "productName": "Virtual Machines NDsr Windows",
            "skuName": "ND96isr",
        },
        {
            "type": "Consumption",
            "retailPrice": 2.0,
            "productName": "Virtual Machines NDsr",
            "skuName": "ND96isr Low Priority",
        },
        {
            "type": "Reservation",
            "retailPrice": 525_600.0,
            "reservationTerm": "3 Years",
            "productName": "NDsr",
            "skuName": "ND96isr",
        },
    ]
    path = written(folder, "azure.json", {"Items": [common | row for row in rows]})
    offers, _ = offers_in(path, DAY)
    assert prices_of(offers) == {
        ("ND96isr_H100_v5", "eastus", "on-demand"): (98.0, DAY),
        ("ND96isr_H100_v5", "eastus", "spot"): (33.0, DAY),
        ("ND96isr_H100_v5", "eastus", "reserved-3y"): (20.0, DAY),
    }


def test_gcp_sells_machines_in_parts(folder):
    """An a2-highgpu-1g has a GPU at $2.50, 12 processors at $0.03 and 85 GiB at $0.004: $3.20."""

    def sku(description, units, nanos, unit, usage="OnDemand"):
        return {
            "description": description, "category": {"usageType": usage}, "serviceRegions": ["us-central1"],
            "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": [{"unitPrice": {"currencyCode": "USD", "units": units, "nanos": nanos}}]}}],
        }  # fmt: skip

    skus = [
        sku("Nvidia Tesla A100 GPU running in Americas", "2", 500_000_000, "h"),
        sku("A2 Instance Core running in Americas", "0", 30_000_000, "h"),
        sku("A2 Instance Ram running in Americas", "0", 4_000_000, "GiBy.h"),
        sku("A2 Instance Ram running in Americas", "0", 1_000_000, "GiBy.h", "Preemptible"),
    ]
    offers, _ = offers_in(written(folder, "gcp.json", {"skus": skus}), DAY)
    prices = prices_of(offers)
    assert prices["a2-highgpu-1g", "us-central1", "on-demand"] == (2.5 + 12 * 0.03 + 85 * 0.004, DAY)
    assert {commitment for _, _, commitment in prices} == {"on-demand"}


OFFERS = "provider,machine,hardware,gpus,commitment,region,price,discount\nAcme,acme-8,h100-sxm,8,on-demand,Oslo,20,{}\n"


def test_a_discount_of_ones_own_is_taken_off_the_price_of_the_list(folder):
    offers, _ = offers_in(written(folder, "own.csv", OFFERS.format("15 %")), DAY)
    assert [(each.usd_per_hour, each.list_usd_per_hour) for _, each in offers] == [(17.0, 20.0)]


@table
def test_a_list_that_cannot_be_read_is_refused(capplan, folder, name, content, said):
    path = written(folder, name, content)
    assert said in capplan.refused("prices update", path, "--date", DAY)
    assert not (folder / "config").exists()


def test_a_list_without_a_day_is_refused(capplan, folder):
    assert "states no date for its prices" in capplan.refused(
        "prices update", written(folder, "own.csv", OFFERS.format(""))
    )
    assert "unknown action 'upgrade'" in capplan.refused("prices upgrade", folder / "own.csv")


def plan_file(folder):
    """Two H100 at AWS, on demand."""
    path = written(
        folder, "s.yaml",
        "name: s\nmodel: meta-llama/Llama-3.1-8B-Instruct\ntraffic: [{request_rate: 2 req/s, input_tokens: 400, output_tokens: 60}]\n"
        "fleet: {hardware: [h100-sxm], providers: [AWS], tensor_parallel: 1}\n",
    )  # fmt: skip
    plan = folder / "plan.json"
    assert main(["fleet", str(path), "--offline", "-o", str(plan)]) == 0
    return plan


@pytest.mark.long
def test_an_update_says_what_a_plan_costs_before_and_after(capplan, folder, few_requests):
    plan = plan_file(folder)
    order = json.loads(plan.read_text())["result"]["chosen"]["order"]
    (line,) = order["machines"]
    half = f"provider,machine,hardware,gpus,region,price,discount\nAWS,{line['sku']},h100-sxm,{line['gpus']},{line['region']},{line['usd_per_hour']!r},50%\n"
    result = capplan.result(
        "prices update", written(folder, "half.csv", half), "--date", DAY, "--plan", plan, "--offline"
    )
    (row,) = result["plans"]
    assert row["before_usd"] == pytest.approx(order["usd_per_month"])
    assert row["usd"] == pytest.approx(row["before_usd"] / 2)
    (machine,) = result["machines"]
    assert (machine["before_usd_per_hour"], machine["usd_per_hour"]) == pytest.approx(
        (line["usd_per_hour"], line["usd_per_hour"] / 2)
    )
    assert row["usd"] == pytest.approx(usd_per_month(line["count"] * machine["usd_per_hour"]))
    again = capplan.result("fleet", folder / "s.yaml", "--offline")["chosen"]["order"]["machines"][0]
    assert (again["usd_per_hour"], again["date"]) == (pytest.approx(line["usd_per_hour"] / 2), DAY)
    assert again["source"].startswith(f"your own list of {DAY}")
    sources = {each["source"] for each in capplan.result("list prices AWS")["rows"] if each["date"] == DAY}
    assert sources == {again["source"]}


@pytest.mark.parametrize("commitments", ["", "commitments: {reserved_1y: {discount: 40 %}}\n"])
def test_a_bill_has_the_price_of_the_list_the_contracted_one_and_what_is_used_up(
    capplan, folder, few_requests, commitments
):
    """A machine of eight at $20 with 15% off is contracted at $17; reserved at 40% off that it costs $10.20."""
    capplan.result("prices update", written(folder, "own.csv", OFFERS.format("15 %")), "--date", DAY)
    scenario = written(
        folder, "s.yaml",
        "name: s\nmodel: meta-llama/Llama-3.1-8B-Instruct\ntraffic: [{request_rate: 2 req/s, input_tokens: 400, output_tokens: 60}]\n"
        "fleet: {hardware: [h100-sxm], machines: [acme-8], tensor_parallel: 1, survive: {replica: 0}}\n" + commitments,
    )  # fmt: skip
    path = folder / "focus.csv"
    assert (
        capplan("bill", scenario, "--offline", "--focus", path, "--month", "2026-12", "--by", "machine").code
        == 0
    )
    rows = list(csv.DictReader(path.open()))
    follows_columns(rows, "1.2")
    (machine,) = (
        row for row in rows if row["ResourceType"] == "Machine" and row["ChargeCategory"] == "Usage"
    )
    paid = 10.2 if commitments else 17.0
    assert [float(machine[key]) for key in ("ListUnitPrice", "ContractedUnitPrice")] == pytest.approx(
        [20.0, 17.0]
    )
    assert [float(machine[key]) for key in ("ListCost", "ContractedCost", "EffectiveCost")] == pytest.approx(
        [20 * 744, 17 * 744, paid * 744]
    )


def test_a_second_list_replaces_only_what_it_states(capplan, folder):
    capplan.result("prices update", written(folder, "own.csv", OFFERS.format("")), "--date", "2026-11-01")
    more = OFFERS.format("").replace("on-demand,Oslo,20", "on-demand,Bergen,30")
    capplan.result("prices update", written(folder, "more.csv", more), "--date", DAY)
    rows = [each for each in capplan.result("list prices acme")["rows"] if each["provider"] == "Acme"]
    assert {(each["region"], each["usd_per_gpu_hour"], each["date"]) for each in rows} == {
        ("Oslo", 2.5, "2026-11-01"),
        ("Bergen", 3.75, DAY),
    }
    capplan.result("prices update", written(folder, "own.csv", OFFERS.format("50 %")), "--date", DAY)
    rows = capplan.result("list prices acme")["rows"]
    assert sorted(each["usd_per_gpu_hour"] for each in rows) == [1.25, 3.75]


def test_a_list_of_hosted_apis_replaces_the_shipped_prices_and_keeps_what_they_serve(capplan, folder):
    entry = {"litellm_provider": "groq", "input_cost_per_token": 2e-7, "output_cost_per_token": 9e-7}
    path = written(folder, "litellm.json", {"groq/openai/gpt-oss-120b": entry})
    shipped = {each["api"]: each for each in capplan.result("list apis groq/openai/gpt-oss-120b")["rows"]}[
        "groq/openai/gpt-oss-120b"
    ]
    (changed,) = capplan.result("prices update", path, "--date", DAY)["apis"]
    assert (changed["before_input_usd_per_million_tokens"], changed["input_usd_per_million_tokens"]) == (
        shipped["input_usd_per_million_tokens"],
        0.2,
    )
    now = {each["api"]: each for each in capplan.result("list apis groq/openai/gpt-oss-120b")["rows"]}[
        "groq/openai/gpt-oss-120b"
    ]
    assert (
        now["input_usd_per_million_tokens"],
        now["output_usd_per_million_tokens"],
        now["date"],
    ) == pytest.approx((0.2, 0.9, DAY))
    assert now["serves"] == shipped["serves"] is not None
    assert "litellm.json" in now["source"]


def test_the_layer_of_a_project_comes_before_that_of_the_user(capplan, folder, monkeypatch):
    own = written(folder, "own.csv", OFFERS.format(""))
    capplan.result("prices update", own, "--date", DAY)
    monkeypatch.chdir(folder)
    cheaper = written(folder, "cheaper.csv", OFFERS.format("10 %"))
    capplan.result("prices update --project", cheaper, "--date", DAY)
    assert (folder / ".capplan" / "machines" / "acme.yaml").exists()
    (row,) = capplan.result("list machines acme")["rows"]
    assert row["usd_per_hour"] == pytest.approx(18.0)
