"""Prices against what providers print, and money against worked examples."""

import re
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import get_args

import pytest
import yaml

from capplan.keys import Commitment, Term, first_day
from capplan.money.price import Prices, choose_price, missing_price_warning, usd_per_million_tokens
from capplan.questions.plans.plan_check import checked_apis, checked_devices
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.prices import price_records, scenario_prices
from capplan.readers.catalogue.token_prices import token_prices
from capplan.scenario.scenario import read_scenario
from tests.tables import table

ROOT = Path(__file__).resolve().parents[2]
RECORDS = price_records()


def test_list_is_long_and_names_the_large_providers():
    assert len(RECORDS) >= 150
    providers = Counter(record.provider for record in RECORDS)
    assert {"AWS", "GCP", "Azure", "CoreWeave", "Lambda", "RunPod", "Crusoe", "Nebius"} <= providers.keys()
    assert {record.commitment for record in RECORDS} == {*get_args(Commitment), *get_args(Term)}
    assert len(token_prices()) >= 60


def test_every_offer_is_of_a_device_in_the_catalogue_and_has_a_page():
    for record in RECORDS:
        assert device(record.device).name == record.device
        assert record.source.startswith("https://")
        assert 0.1 < record.usd_per_hour < 34


@pytest.mark.parametrize(
    ("sku", "region", "instance_usd", "gpus"),
    [
        # AWS EC2 on-demand price list
        ("p5.48xlarge", "us-east-1", 55.04, 8), ("p5en.48xlarge", "us-east-1", 63.296, 8),
        ("p6-b200.48xlarge", "us-east-1", 113.9328, 8), ("p4d.24xlarge", "us-east-1", 21.957642, 8),
        # Azure price list
        ("ND96isr_H100_v5", "eastus", 98.32, 8), ("NC24ads_A100_v4", "eastus", 3.673, 1),
    ],
)  # fmt: skip
def test_instance_price_is_shared_by_its_devices(sku, region, instance_usd, gpus):
    found = [r for r in RECORDS if (r.sku, r.region, r.commitment) == (sku, region, "on-demand")]
    assert found
    assert all(record.usd_per_hour == pytest.approx(instance_usd / gpus) for record in found)


def test_prices_of_one_provider_and_of_any():
    aws = choose_price(RECORDS, "h100-sxm", Prices(provider="aws"))
    assert aws.usd_per_hour == pytest.approx(6.88)
    assert [offer.date for offer in aws.records] == ["2026-11-09"]
    anyone = choose_price(RECORDS, "h100-sxm", Prices())
    assert re.search(r"the median of [1-9]\d providers", anyone.assumption.what)
    assert anyone.low_usd_per_hour < anyone.usd_per_hour < anyone.high_usd_per_hour
    assert anyone.records[0].provider in anyone.assumption.what


def test_a_machine_of_four_is_paid_for_each_device_and_of_two_offers_the_lower_counts():
    """GB200: CoreWeave asks 42 $ for four (20 September 2026), Azure 108.16 $ (18 June); Spheron's 9.08 $ for two are of March."""
    chosen = choose_price(RECORDS, "gb200", Prices())
    assert [offer.provider for offer in chosen.records] == ["CoreWeave"]
    assert (chosen.usd_per_hour, chosen.high_usd_per_hour) == pytest.approx((42.0 / 4, 108.16 / 4))
    assert chosen.basis == "median of 2 offers"
    assert "CoreWeave, 2026-09-20; the median of 2 providers, 10.50 to 27.04" in chosen.assumption.what


def test_an_offer_of_march_no_longer_sets_the_price_of_october():
    """Offers of H200 in the 180 days before 24 October 2026; Spheron's 4.54 is of March."""
    chosen = choose_price(RECORDS, "h200-sxm", Prices())
    assert (chosen.records[0].provider, chosen.newest_day) == ("Qubrid", "2026-10-24")


@table
def test_a_reservation_costs_what_its_provider_takes_off_its_own_price(device, commitment, off):
    """Google takes 56 % off H100 and 37 and 65 % off A100 for one and three years, from prices above those of others."""
    rented = choose_price(RECORDS, device, Prices())
    reserved = choose_price(RECORDS, device, Prices(commitment=commitment))
    assert 1 - reserved.usd_per_hour / rented.usd_per_hour == pytest.approx(off, abs=0.003)
    google = choose_price(RECORDS, device, Prices(commitment=commitment, provider="gcp"))
    assert google.usd_per_hour > reserved.usd_per_hour


def test_a_year_of_an_h100_counts_google_and_the_index_of_the_market():
    """31 % off the price on demand, and 2.35 $ in the index of SemiAnalysis; the estimates of 1.30 and 2.00 $ do not count."""
    reserved = choose_price(RECORDS, "h100-sxm", Prices(commitment="reserved-1y"))
    rented = choose_price(RECORDS, "h100-sxm", Prices())
    assert reserved.lowest.provider, reserved.low_usd_per_hour == ("SemiAnalysis index", 2.35)
    assert reserved.high_usd_per_hour == pytest.approx(0.6887 * rented.usd_per_hour, rel=0.01)
    assert choose_price(RECORDS, "h100-sxm", Prices(commitment="reserved")).usd_per_hour == 1.85


@table
def test_what_a_price_rests_on_is_said(name, basis, said):
    chosen = choose_price(RECORDS, name, Prices())
    assert chosen.basis == basis
    assert said in chosen.assumption.what


def test_an_estimate_is_used_only_where_nobody_lists_a_price():
    chosen = choose_price(RECORDS, "gb300", Prices(commitment="reserved"))
    assert (chosen.basis, chosen.estimated) == ("an estimate", True)
    assert "(an estimate): SemiAnalysis estimate" in chosen.assumption.what
    assert "an estimate is used" in chosen.warning
    assert not choose_price(RECORDS, "l4", Prices()).estimated


@table
def test_larger_azure_instances_are_listed_with_windows_and_do_not_count(one, many, vcpus):
    """They cost what their GPUs cost one by one, and 0.046 $ an hour for each vCPU, Azure's price of Windows."""
    single, larger = (
        next(r for r in RECORDS if (r.sku, r.commitment) == (sku, "on-demand")) for sku in (one, many)
    )
    windows = larger.devices * (larger.usd_per_hour - single.usd_per_hour)
    assert windows == pytest.approx(0.046 * vcpus, abs=1e-9)
    assert larger.quality == "doubtful"


SOLD_WITH_MANY_HOSTS = {"t4", "l4", "a10g", "a10", "l40s", "rtx-pro-6000-server"}
"""The host is a large part of the price of such a machine, and one GPU comes with hosts of many sizes."""


def test_instances_of_one_provider_cost_the_same_for_each_device_whatever_their_size():
    """A price that was not divided by the devices of its instance would be far off the same provider's others."""
    for larger in RECORDS:
        alone = [
            r.usd_per_hour
            for r in RECORDS
            if r.devices == 1
            and r.device not in SOLD_WITH_MANY_HOSTS
            and (r.device, r.provider, r.commitment, r.region, r.date)
            == (larger.device, larger.provider, larger.commitment, larger.region, larger.date)
        ]
        if larger.devices > 1 and larger.quality == "list" and alone:
            assert 0.6 < larger.usd_per_hour / min(alone) < 1.5, (larger, alone)


def test_spot_is_below_on_demand():
    for name in ("h100-sxm", "a100-sxm-80gb", "l40s"):
        spot, listed = (choose_price(RECORDS, name, Prices(commitment=c)) for c in ("spot", "on-demand"))
        assert spot.usd_per_hour < listed.usd_per_hour


def test_device_without_an_offer_has_no_price_and_a_warning():
    assert choose_price(RECORDS, "h20", Prices()) is None
    assert "per_gpu_hour.h20" in missing_price_warning(RECORDS, "h20", Prices())


def test_million_tokens_of_the_worked_example():
    # 8 H100 at 2.99 $ that deliver 2500 output tokens per second: 23.92 $/h over 9 million tokens
    assert usd_per_million_tokens(8 * 2.99, 2500.0) == pytest.approx(2.6578, abs=1e-4)


def test_shipped_scenarios_find_their_prices():
    for path in sorted((ROOT / "scenarios").glob("*.yaml")):
        chosen, warnings = scenario_prices(read_scenario(path))
        assert all(price is not None for price in chosen.values()), (path, warnings)


def test_hosted_prices_name_the_open_model_that_they_serve():
    serving = {price.serves for price in token_prices()} - {None}
    assert {
        "meta-llama/Llama-3.3-70B-Instruct",
        "openai/gpt-oss-120b",
        "deepseek-ai/DeepSeek-V4-Pro",
    } <= serving
    for price in token_prices():
        for rates in (price.rates, *(tier for _, tier in price.tiers)):
            assert rates.output >= rates.input > 0
            assert rates.cache_read is None or rates.cache_read <= rates.input
            assert rates.cache_write is None or rates.cache_write >= rates.input


ACCOUNTS = re.compile(
    r"^https://(?:www\.)?(?:github|gitlab)\.com/[^/]+/?$|^https://huggingface\.co/[^/]+/?$|/(?:login|signin|account|billing|dashboard)(?:[/?#]|$)|^https://[^/]+/?$"
)
"""Pages of an account, of a login or of a whole site, which state no price; the documentation on a console is one that does."""


@pytest.mark.parametrize(
    "name",
    [
        "prices.yaml",
        "token_prices.yaml",
        *sorted(f"machines/{path.name}" for path in (ROOT / "hardware_specs" / "machines").glob("*.yaml")),
    ],
)
def test_a_source_is_a_page_and_not_an_account(name):
    file = yaml.safe_load((ROOT / "hardware_specs" / name).read_text())
    urls = {key: source["url"] for key, source in file["sources"].items() if source.get("url")}
    assert urls
    assert {key: url for key, url in urls.items() if ACCOUNTS.search(url)} == {}


def test_each_offer_ages_by_itself_and_none_without_a_day_wins():
    """Counted apart: of each provider its newest listed offer, those within 180 days of the newest, and of them those over 90 days old."""
    today, records = date(2026, 11, 30), price_records()
    rows = {row["hardware"]: row for row in checked_devices(today)}

    def days(offer):
        return (today - first_day(offer.date)).days

    for name in ("h100-sxm", "h200-sxm", "b200", "mi300x"):
        mine = [
            each
            for each in records
            if (each.device, each.commitment, each.quality) == (name, "on-demand", "list") and each.date
        ]
        newest = [
            min(days(each) for each in mine if each.provider == seller)
            for seller in {each.provider for each in mine}
        ]
        kept = [age for age in newest if age - min(newest) <= 180]
        old = sum(age > 90 for age in kept)
        said = (
            f"old: the newest offer is {min(kept)} days old"
            if old == len(kept)
            else f"{old} of {len(kept)} offers are over 90 days old"
        )
        assert rows[name]["offers"] == len(kept)
        assert said in rows[name]["remark"]
    for name in {record.device for record in records}:
        for paid_as in ("on-demand", "spot", "reserved-1y", "reserved-3y"):
            price = choose_price(records, name, Prices(commitment=paid_as))
            assert price is None or all(record.date for record in price.records)


def test_a_newer_list_names_other_contexts_and_models_that_the_catalogue_lacks():
    """Half of a context is another one, one in a thousand is rounding, and a name that is not on the list is new."""
    one, two = (
        next(each for each in token_prices() if each.name == name)
        for name in ("openai/gpt-5-mini", "xai/grok-4.7")
    )
    newer = (
        replace(one, context_tokens=one.context_tokens // 2),
        replace(two, context_tokens=two.context_tokens + two.context_tokens // 1000),
        replace(one, model="gpt-newest"),
    )
    remarks = {row["api"]: row["remark"] for row in checked_apis(date(2026, 11, 30), newer)}
    assert (
        f"context of {one.context_tokens:,} tokens, {one.context_tokens // 2:,} in"
        in remarks["openai/gpt-5-mini"]
    )
    assert "context" not in remarks.get("xai/grok-4.7", "")
    assert remarks["openai/gpt-newest"].startswith("new in")


def test_prices_of_amd_are_those_of_the_providers_pages():
    """DigitalOcean and TensorWave on 2026-07-31, Hot Aisle on 2026-07-14: contracts are no on-demand prices."""
    found = {(r.device, r.provider, r.commitment): r.usd_per_hour for r in RECORDS}
    assert found["mi300x", "Hot Aisle", "on-demand"] == 2.99
    assert found["mi300x", "DigitalOcean", "reserved-1y"] == 1.91
    assert found["mi300x", "TensorWave", "reserved"] == 1.71
    assert found["mi355x", "OCI", "on-demand"] == 8.6
    assert found["gb300", "OCI", "on-demand"] == 18.0
