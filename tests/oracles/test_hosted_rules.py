"""Rules by which providers bill caches, batches and hours of the day: each against a bill that is worked out request by request."""

import json
import math
import re
from collections import Counter
from dataclasses import replace
from datetime import date

import numpy as np
import pytest

from capplan.keys import current_day
from capplan.money.hosted import (
    Hosted,
    Provisioned,
    billed_class,
    hosted_bill,
    hosted_traffic,
    provisioned_units,
    sold_price,
)
from capplan.money.prompt_cache import fixed_life_fractions, renewals
from capplan.money.token_price import LongerLife, PeakHours, TokenPrice, TokenRates, default_way
from capplan.readers.catalogue.token_prices import litellm_prices, token_offers, token_prices
from capplan.workload.length import fixed
from capplan.workload.request_class import RequestClass
from tests.tables import table

GEMINI = TokenRates(1.25, 10.0, 0.125)
ARRIVALS = 400_000


def price(rates=GEMINI, **more):
    return TokenPrice("a", "b", rates, "2026-11-23", "page", **{"time_to_live_s": 3600.0, **more})


def chat(rate=0.001, prompt=5000.0, prefix=4000.0, hit=1.0, **more):
    return RequestClass(
        "chat", fixed(prompt), fixed(200), rate, shared_prefix_tokens=prefix, prefix_hit_fraction=hit, **more
    )


def gaps_of(rate, cv, seed=5):
    return np.random.default_rng(seed).gamma(1 / cv**2, cv**2 / rate, ARRIVALS)


def counted_from_creation(gaps, alive_s):
    """Return hits, misses and stored seconds of a cache that lives from its creation, request by request."""
    hits = misses = 0
    stored, ends, now, created = 0.0, -math.inf, 0.0, 0.0
    for gap in gaps:
        now += gap
        if now <= ends:
            hits += 1
        else:
            stored += min(ends, now) - created if misses else 0.0
            created, ends, misses = now, now + alive_s, misses + 1
    return hits, misses, stored, now


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("gaps_alive", [0.3, 1.0, 6.0])
def test_a_life_from_creation_agrees_with_arrivals_one_by_one(cv, gaps_alive):
    rate = 0.02
    alive_s = gaps_alive / rate
    hits, misses, stored, now = counted_from_creation(gaps_of(rate, cv), alive_s)
    found, kept = fixed_life_fractions(np.array([rate]), alive_s, cv)
    assert found[0] == pytest.approx(hits / (hits + misses), abs=0.004)
    assert kept[0] == pytest.approx(stored / now, abs=0.006)
    assert renewals(rate, alive_s, cv) == pytest.approx(hits / misses, rel=0.02)


TERMS = {
    "openai/gpt-5.6-luna": {"marked": True, "time_to_live_s": 1800.0, "batch_read_discount_fraction": None},
    "openai/gpt-4.1": {"marked": False, "time_to_live_s": 300.0, "batch_read_discount_fraction": 0.0},
    "google/gemini-2.5-pro": {
        "from_creation": True,
        "keeps_by_itself": True,
        "batch_read_discount_fraction": 0.0,
    },
    "google/gemini-4-argon": {"keeps_by_itself": True, "storage_usd_per_million_tokens_hour": None},
    "deepseek/deepseek-v4-pro": {"whole_units": True, "batch_discount_fraction": 0.0},
    "groq/openai/gpt-oss-120b": {"time_to_live_s": 7200.0, "batch_read_discount_fraction": 0.0},
    "anthropic/claude-opus-5-5": {"time_to_live_s": 300.0, "minimum_prefix_tokens": 512.0},
}


@pytest.mark.parametrize("name", TERMS)
def test_terms_are_those_of_the_generation(name):
    offer = next(p for p in token_prices() if p.name == name)
    assert {key: getattr(offer, key) for key in TERMS[name]} == TERMS[name]


def test_every_hosted_price_has_a_day_and_two_sources_or_says_one(capplan):
    """Two lists that state the same, two that disagree and in what, or the words "one source" in the check of prices."""
    remarks = {row["api"]: row["remark"] for row in capplan.result("list", "apis", "--check")["rows"]}
    kinds = Counter()
    for offer in token_offers():
        name = f"{offer.provider}/{offer.model}"
        assert re.fullmatch(r"2026-11-\d\d", offer.date), name
        assert min(offer.input, offer.output) > 0.0, name
        if offer.disagreement is not None:
            kinds["disagree"] += 1
            assert f"sources disagree: {offer.disagreement}" in remarks[name]
        elif offer.second_source is not None:
            kinds["two"] += 1
            assert offer.second_source != offer.source
            assert "one source" not in remarks.get(name, "")
        else:
            kinds["one"] += 1
            assert "one source" in remarks[name]
    assert kinds["two"] > kinds["one"] + kinds["disagree"]


def test_every_hosted_price_is_of_today_and_no_model_has_ended():
    for offer in token_prices():
        assert offer.date >= "2026-11-01"
        assert offer.retires is None or offer.retires > offer.date


@pytest.fixture
def litellm(tmp_path):
    def read(key, **entry):
        file = tmp_path / "litellm.json"
        usual = {
            "input_cost_per_token": 2e-6,
            "output_cost_per_token": 8e-6,
            "cache_read_input_token_cost": 0.2e-6,
        }
        file.write_text(json.dumps({key: {**usual, **entry}}))
        return litellm_prices(file, "2026-11-23")[0]

    return read


@table
def test_other_names_of_a_provider_have_its_terms(litellm, key, provider, life_s):
    assert litellm(key, litellm_provider=provider).time_to_live_s == life_s


def test_terms_that_litellm_states_count(litellm):
    found = litellm(
        "anthropic/claude-x", litellm_provider="anthropic", prompt_cache_min_tokens=512,
        cache_creation_input_token_cost_above_1hr=5e-6, input_cost_per_token_batches=1e-6, cache_read_input_token_cost_batches=0.15e-6,
    )  # fmt: skip
    assert found.minimum_prefix_tokens == 512.0
    assert found.longer_life == LongerLife(3600.0, 2.5)
    assert (found.batch_discount_fraction, found.batch_read_discount_fraction) == (0.5, pytest.approx(0.25))


def test_listed_prices_of_litellm_are_those_of_the_peak(litellm):
    """Its DeepSeek rows list the dear hours, with the cheap ones beside them."""
    cheap = {"hours_utc": "16:30-00:30", "input_cost_per_token": 1e-6}
    other = litellm("x/y", litellm_provider="x", off_peak_pricing=cheap)
    assert other.rates == TokenRates(1.0, 4.0, 0.1)
    assert other.peak == PeakHours((*range(17), 0)[:-1], 2.0, day_fraction=1.0)
    known = litellm("deepseek/v4", litellm_provider="deepseek", off_peak_pricing=cheap)
    assert known.rates.input == 1.0
    assert known.peak == PeakHours((1, 2, 3, 6, 7, 8, 9), 2.0)
    unreadable = litellm(
        "x/y", litellm_provider="x", off_peak_pricing={"hours_utc": "at night", "input_cost_per_token": 1e-6}
    )
    assert (unreadable.rates.input, unreadable.peak) == (2.0, None)
    assert litellm("deepseek/v3", litellm_provider="deepseek").peak is None


@pytest.mark.long
def test_a_comparison_says_when_a_model_ends(capplan):
    ran = capplan("compare", "tests/golden/small.yaml", "--offline", "--api", "openai/gpt-5")
    if current_day() < date(2026, 12, 11):
        assert "openai/gpt-5 ends on 2026-12-11" in ran.err
    else:
        assert "openai/gpt-5 ended on 2026-12-11" in ran.err


@table
def test_what_an_api_does_if_nothing_is_asked_for(name, way):
    offer = next(p for p in token_prices() if p.name == name)
    assert default_way(offer, None).name == way
    billed = [
        billed_class(hosted_traffic(chat(0.5), 0.0), offer, Hosted(caching=mode)).bill.usd
        for mode in ("cheapest", "default")
    ]
    assert billed[0] <= billed[1]


def test_rented_throughput_is_paid_for_the_busiest_hour_at_all_hours():
    """Two classes hour by hour: one by day, one by night; units of 2,500 tokens a minute, from 15 on in steps of 5."""
    day = tuple(1.0 if 8 <= hour < 18 else 0.1 for hour in range(24))
    night = tuple(1.0 if hour < 6 else 0.2 for hour in range(24))
    classes = [
        RequestClass(
            "a",
            fixed(900),
            fixed(100),
            3.0,
            mean_rate_fraction=float(np.mean(day)),
            hourly_rate_fractions=day,
        ),
        RequestClass(
            "b",
            fixed(4000),
            fixed(50),
            1.0,
            mean_rate_fraction=float(np.mean(night)),
            hourly_rate_fractions=night,
        ),
    ]
    traffic = tuple(hosted_traffic(item, 0.0) for item in classes)
    sold = Provisioned(1.5, 2500.0, output_weight=4.0, least=15.0, step=5.0)
    busiest = max(
        3.0 * day[hour] * (900 + 4 * 100) + 1.0 * night[hour] * (4000 + 4 * 50) for hour in range(24)
    )
    units = 15
    while units * 2500 / 60 < busiest:
        units += 5
    bill = hosted_bill(traffic, price(), Hosted(provisioned=sold))
    assert bill.provisioned_usd == pytest.approx(units * 1.5 * 730) == pytest.approx(bill.usd)
    assert hosted_bill(traffic, price(), Hosted(provisioned=sold), 0.01).usd == pytest.approx(15 * 1.5 * 730)
    cached = (hosted_traffic(chat(3.0), 0.0),)
    assert provisioned_units(
        cached, price(time_to_live_s=math.inf), Hosted(provisioned=sold)
    ) == 5 * math.ceil(3.0 * (1000 + 4 * 200) / (5 * 2500 / 60))


@pytest.mark.long
def test_ones_own_discount_and_a_surcharge_for_residency_are_on_the_whole_bill(capplan):
    """A tenth more for the region, of which 12 % are taken off: every part of the bill times 1.1 x 0.88."""
    parts = []
    for terms in ({}, {"discount": "12 %", "surcharge": "10 %"}):
        words = ("--api", "openai/gpt-5-mini", "--set", f"hosted={json.dumps(terms)}", "--format", "json")
        (row,) = capplan.result("compare", "tests/golden/small.yaml", "--offline", *words)["apis"]
        parts.append({key: usd for key, usd in row.items() if key.endswith("_usd") or key == "usd_per_month"})
    plain, own = parts
    assert own == pytest.approx({key: 1.1 * 0.88 * usd for key, usd in plain.items()})


@pytest.mark.long
def test_a_comparison_rents_throughput_of_one_api(capplan):
    words = ("compare", "tests/golden/small.yaml", "--offline", "--set")
    rented = "hosted.provisioned={price: 1 $/h, tokens_per_minute: 2500, least: 15, step: 5}"
    assert "hosted.provisioned is the price of one API, and 2 are compared" in capplan.refused(
        *words, rented, "--api", "openai/gpt-5", "--api", "openai/gpt-5-mini"
    )
    one = capplan(*words, rented, "--api", "openai/gpt-5")
    assert "units rented" in one.out
    odd = capplan(
        *words,
        "hosted={discount: 10 %, provisioned: {price: 1 $/h, tokens_per_minute: 2500}}",
        "--api",
        "openai/gpt-5",
    )
    assert "hosted.discount: is of prices by the token" in odd.err


def test_a_check_of_prices_names_the_old_and_the_contradicted(capplan):
    rows = capplan.result("list", "prices", "--check")["rows"]
    remarks = {row["hardware"]: row["remark"] or "" for row in rows}
    assert "far apart: Novita 2.59, Azure 12.29 $/h" in remarks["h100-sxm"]
    assert "one offer" in remarks["a10g"]
    assert "days old" in remarks["rtx-4090"]
    apis = capplan.result("list", "apis", "--check")["rows"]
    assert any("sources disagree" in row["remark"] for row in apis)
    for words, said in ((("list", "models", "--check"), "--check: models have no prices"), (("list", "prices", "--prices", "x"), "--prices: "), (("list", "apis", "--check", "--date", "2026"), "--date: ")):  # fmt: skip
        assert said in capplan.refused(*words)


@pytest.mark.parametrize("prompt", [900.0, 1000.0, 3000.0])
def test_a_provider_that_counts_more_tokens_bills_the_same_text_as_if_it_were_longer(prompt):
    """1.3 tokens for one: lengths times 1.3 at the listed price, where a tier begins at 2,000 of them and a prefix is cached from 1,200 on."""
    listed = TokenPrice(
        "anthropic", "b", TokenRates(2.0, 10.0, 0.2, 2.5), "2026-11-01", "page", tiers=((2000.0, TokenRates(4.0, 15.0, 0.4, 5.0)),),
        minimum_prefix_tokens=1200.0, context_tokens=100_000, time_to_live_s=300.0, token_ratio=1.3,
    )  # fmt: skip

    def traffic(ratio):
        item = RequestClass(
            "chat", fixed(ratio * prompt), fixed(ratio * 200.0), 2.0,
            shared_prefix_tokens=ratio * 950.0 if prompt > 950.0 else 0.0, prefix_hit_fraction=0.5 if prompt > 950.0 else 0.0,
        )  # fmt: skip
        return (hosted_traffic(item, 0.0),)

    sold = sold_price(listed, Hosted())
    as_counted = replace(listed, token_ratio=1.0)
    assert hosted_bill(traffic(1.0), sold, Hosted()).usd == pytest.approx(
        hosted_bill(traffic(1.3), as_counted, Hosted()).usd
    )
    asked = sold_price(listed, Hosted(token_ratios={"anthropic": 1.0}))
    assert hosted_bill(traffic(1.0), asked, Hosted()).usd == pytest.approx(
        hosted_bill(traffic(1.0), as_counted, Hosted()).usd
    )


def test_claude_since_opus_4_7_counts_more_tokens():
    """Anthropic: Opus 4.7 and later Opus models, Fable, Mythos, Sonnet 5 and Haiku 5.5 count about 30% more than earlier models."""
    ratios = {price.name: price.token_ratio for price in token_prices() if "claude" in price.model}
    newer = ("opus-4-7", "opus-4-8", "opus-5", "sonnet-5", "haiku-5", "fable", "mythos")
    assert ratios == {name: 1.3 if any(each in name for each in newer) else 1.0 for name in ratios}
    assert {1.0, 1.3} == set(ratios.values())
    assert all(price.token_ratio == 1.0 for price in token_prices() if "claude" not in price.model)


@pytest.mark.parametrize(("asked", "lives"), [(None, 300.0), (3600.0, 300.0), (60.0, 60.0)])
def test_what_gemini_keeps_by_itself_is_no_promise_of_an_hour(asked, lives):
    """Poisson arrivals 20 minutes apart find a prefix of 300 s in 1 - exp(-300 / 1200) of the cases, whatever longer life is asked for."""
    gemini = TokenPrice(
        "google", "gemini", TokenRates(2.0, 10.0, 0.2), "2026-11-01", "page", minimum_prefix_tokens=1024.0, time_to_live_s=3600.0,
        from_creation=True, keeps_by_itself=True, storage_usd_per_million_tokens_hour=4.5,
    )  # fmt: skip
    item = RequestClass(
        "chat",
        fixed(5000.0),
        fixed(200.0),
        1.0 / 1200.0,
        shared_prefix_tokens=4000.0,
        prefix_hit_fraction=1.0,
    )
    terms = Hosted(time_to_live=asked, caching="default")
    found = billed_class(hosted_traffic(item, 0.0), gemini, terms)
    assert found.hit_fraction == pytest.approx(1.0 - math.exp(-lives / 1200.0))
