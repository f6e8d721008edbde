"""What cannot be priced is refused in one clear line that names the place, what is allowed and the nearest match."""

import csv
import json
import re
from datetime import date

import pytest

from capplan.errors import InputError
from capplan.keys import current_day
from capplan.money.token_price import PeakHours, TokenPrice, TokenRates
from capplan.questions.plans.plan_check import age_warnings
from capplan.readers.catalogue.token_prices import (
    litellm_prices,
    read_token_prices,
)
from tests.tables import table

pytestmark = pytest.mark.usefixtures("shared_runs")
SMALL = "tests/golden/small.yaml"


def test_a_life_beyond_what_a_provider_states_is_taken_with_a_warning(capplan):
    said = "openai states that it keeps a prefix for 300 s, not for 7200 s, which is taken from you"
    cache = ("cache", "--prefix-tokens", "5000", "--requests-per-day", "9", "--api", "openai/gpt-5")
    prompt = ("--set", "traffic[0].input_tokens=2400", "--set", "max_model_len=8192", "--set", "slo={}")
    api = (
        *prompt,
        "--set",
        "traffic[0].shared_prefix={tokens: 1100, hit_fraction: 0.5}",
        "--api",
        "openai/gpt-5",
    )
    compare = ("compare", SMALL, "--offline", *api, "--set", "hosted.time_to_live=")
    for longer, usual in (
        ((*cache, "--time-to-live", "2 h"), (*cache, "--time-to-live", "5 min")),
        ((*compare[:-1], compare[-1] + "2 h"), (*compare[:-1], compare[-1] + "5 min")),
    ):
        ran = capplan(*longer)
        assert (ran.code, said in ran.err) == (0, True)
        assert "states that it keeps" not in capplan(*usual).err


UNKNOWN_STORAGE = (
    "google/paid: the storage of cached tokens is paid for by the hour, and its price is not in the list"
)


def test_storage_that_has_no_price_is_refused_only_where_something_is_stored(capplan, tmp_path):
    own = tmp_path / "own.yaml"
    offer = "{provider: google, model: paid, input: 1 $/Mtok, output: 1 $/Mtok, cache_read: 0.1 $/Mtok, date: 2026-11-01, source: page"
    own.write_text(
        "sources: {page: {title: page, url: 'https://example.org'}}\n"
        "providers: {google: {paid_storage: true, minimum_prefix: 1024, source: page}}\n"
        f"prices: [{offer}}}, {offer.replace('paid', 'free')}, cache_storage: 0 $/Mtok/h}}]\n"
    )
    words = ("--set", "hosted.prefixes=3", "--set", f"hosted.file={own}", "--api", "google/paid", "--offline")
    assert capplan("compare", SMALL, *words).code == 0
    stored = capplan("compare", SMALL, "--set", "traffic[0].shared_prefix={tokens: 1100, hit_fraction: 50 %}",
                     "--set", "traffic[0].input_tokens=2000", *words)  # fmt: skip
    assert (stored.code, stored.err.splitlines()[0]) == (2, UNKNOWN_STORAGE)
    alone = ("cache", "--requests-per-day", "100", "--prices", own, "--api", "google/paid", "--prefix-tokens")
    assert UNKNOWN_STORAGE in capplan(*alone, "5000").err
    assert capplan(*alone, "500").code == 0
    free = (
        "cache",
        "--requests-per-day",
        "100",
        "--prices",
        own,
        "--api",
        "google/free",
        "--prefix-tokens",
        "5000",
    )
    assert capplan(*free).code == 0


@pytest.mark.long
@table
def test_hours_of_a_peak_are_those_of_a_day(tmp_path, peak, said):
    path = tmp_path / "prices.yaml"
    path.write_text(
        "sources: {page: {title: A page, url: 'https://example.org'}}\n"
        f"providers: {{a: {{peak: {peak}, source: page}}}}\n"
        "prices:\n  - {provider: a, model: b, input: 1 $/Mtok, output: 2 $/Mtok, date: 2026-11-01, source: page}\n"
    )
    if said is None:
        (price,) = read_token_prices(path)
        assert price.peak == PeakHours((1, 2), 2.0, 1.0 if "day_fraction" in peak else 5 / 7)
    else:
        with pytest.raises(InputError, match=re.escape(said)):
            read_token_prices(path)


def test_a_life_that_no_provider_sells_is_refused(capplan):
    said = "anthropic keeps a prefix for 300 s or 3600 s since its last use, not for 7200 s"
    api = ("--api", "anthropic/claude-sonnet-5-5")
    ran = capplan("cache --prefix-tokens 5000 --requests-per-day 9 --time-to-live '2 h'", *api)
    assert (ran.code, f"--time-to-live: {said}" in ran.err) == (2, True)
    ran = capplan("compare", SMALL, "--offline", "--set", "hosted.time_to_live=2 h", *api)
    assert (ran.code, f"hosted.time_to_live: {said}" in ran.err) == (2, True)


def test_no_price_at_all_is_said_with_both_ways_to_give_one(capplan):
    ran = capplan("cache", "--prefix-tokens", "4000", "--requests-per-day", "100")
    assert (ran.code, ran.err.count("\n")) == (2, 2)
    assert "--api PROVIDER/MODEL, or --input-price and --read-price" in ran.err


def scenario(tmp_path, **hosted):
    text = (
        "name: s\nmodel: Qwen/Qwen3-0.6B\ntraffic: [{request_rate: 2 req/s, input_tokens: 900, output_tokens: 9}]\n"
        f"fleet: {{hardware: [l4], tensor_parallel: 1, pipeline_parallel: 1}}\nhosted: {json.dumps(hosted)}\n"
    )
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return path


LITELLM = {
    "gpt-x": {
        "litellm_provider": "openai", "input_cost_per_token": 1.25e-6, "output_cost_per_token": 1e-5, "max_input_tokens": 272000,
        "cache_read_input_token_cost": 1.25e-7, "input_cost_per_token_batches": 6.25e-7, "input_cost_per_token_above_200k_tokens": 2.5e-6,
    },
    "dall-e": {"litellm_provider": "openai", "output_cost_per_image": 0.04},
}  # fmt: skip


def test_a_price_file_without_a_date_is_refused(capplan, tmp_path):
    (tmp_path / "litellm.json").write_text(json.dumps(LITELLM))
    message = capplan.refused(
        "compare", scenario(tmp_path, file="litellm.json"), "--api", "openai/gpt-x", "--offline"
    )
    assert "states no date for its prices, and a price without a date cannot be compared" in message
    assert "hosted.date=2026-11-01" in message


def test_a_price_that_states_no_date_is_refused_in_lists_of_ones_own(capplan, tmp_path):
    (tmp_path / "tokens.yaml").write_text(
        "sources: {page: {title: page, url: 'https://example.org'}}\n"
        "prices: [{provider: a, model: b, input: 1 $/Mtok, output: 1 $/Mtok, source: page}]\n"
    )
    ran = capplan("compare", scenario(tmp_path, file="tokens.yaml"), "--api", "a/b", "--offline")
    assert (ran.code, "tokens.yaml: line 2: prices[0].date: is missing" in ran.err) == (2, True)
    path = scenario(tmp_path)
    path.write_text(path.read_text() + "prices: {file: own.yaml}\n")
    (tmp_path / "own.yaml").write_text(
        "sources: {page: {title: page, url: 'https://example.org'}}\n"
        "prices: [{device: l4, provider: a, commitment: on-demand, price: 1 $/h, source: page}]\n"
    )
    ran = capplan("fleet", path, "--offline")
    assert (ran.code, "own.yaml: line 2: prices[0].date: is missing" in ran.err) == (2, True)


def test_litellm_tiers_are_read_wherever_they_start(tmp_path):
    entry = {"litellm_provider": "openai", "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
    entry |= {f"input_cost_per_token_above_{start}k_tokens": start * 1e-8 for start in (512, 32)}
    (tmp_path / "litellm.json").write_text(json.dumps({"long": entry}))
    (price,) = litellm_prices(tmp_path / "litellm.json", "2026-11-02")
    assert price.tiers == ((32_000.0, TokenRates(0.32, 2.0)), (512_000.0, TokenRates(5.12, 2.0)))


def test_litellm_service_tiers_are_read(tmp_path):
    entry = {"litellm_provider": "openai", "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
    entry |= {
        "input_cost_per_token_flex": 5e-7,
        "output_cost_per_token_flex": 1e-6,
        "cache_read_input_token_cost_flex": 5e-8,
    }
    entry |= {"input_cost_per_token_priority": 2e-6, "input_cost_per_token_batches": 2e-6}
    (tmp_path / "litellm.json").write_text(json.dumps({"x": entry}))
    (price,) = litellm_prices(tmp_path / "litellm.json", "2026-11-02")
    assert price.services == (("flex", TokenRates(0.5, 1.0, 0.05)),)  # priority has no price of output
    assert price.batch_discount_fraction == 0.0  # batches that cost more are no discount


def test_litellm_prices_are_read_in_dollars_per_million(capplan, tmp_path):
    (tmp_path / "litellm.json").write_text(json.dumps(LITELLM))
    (price,) = litellm_prices(tmp_path / "litellm.json", "2026-11-02")
    assert price.rates == TokenRates(1.25, 10.0, 0.125)
    assert price.tiers == ((200_000.0, TokenRates(2.5, 10.0)),)
    assert (price.batch_discount_fraction, price.context_tokens, price.date) == (0.5, 272_000, "2026-11-02")
    assert (price.minimum_prefix_tokens, price.time_to_live_s) == (1024.0, 300.0)  # the terms of OpenAI
    path = scenario(tmp_path, file="litellm.json", date="2026-11-02")
    ran = capplan("compare", path, "--api", "openai/gpt-x", "--offline", "--format", "json")
    api = json.loads(ran.out)["result"]["apis"][0]
    assert (ran.code, api["date"]) == (0, "2026-11-02")
    assert api["input_usd"] == pytest.approx(2 * 730 * 3600 * 900 * 1.25e-6)


def test_a_name_in_a_focus_bill_is_no_formula_and_moves_no_cursor(capplan, tmp_path):
    path = tmp_path / "focus.csv"
    names = ("--set", 'traffic[0].name="=cmd|calc"', "--set", 'traffic[0].tenant="+\\e[31m"')
    assert capplan("bill", SMALL, "--offline", "--focus", path, *names).code == 0
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert {row["ResourceName"] for row in rows} == {"'=cmd|calc", "__idle__"}
    assert {row["SubAccountId"] for row in rows} == {r"'+\x1b[31m", "__idle__"}


@pytest.mark.parametrize(("today", "flagged"), [(date(2026, 11, 19), False), (date(2026, 11, 20), True)])
def test_a_price_older_than_ninety_days_is_flagged(today, flagged):
    price = TokenPrice("a", "b", TokenRates(1.0, 2.0), "2026-08-21", "page")
    assert bool(age_warnings([price], today)) == flagged


def test_a_price_of_tomorrow_is_flagged():
    (said,) = age_warnings(
        [TokenPrice("a", "b", TokenRates(1.0, 2.0), "2027-01", "page")], date(2026, 12, 31)
    )
    assert said == "a/b is dated 2027-01, which is still to come"


@pytest.mark.parametrize("command", ["fleet", "bill"])
def test_a_rent_that_is_old_or_undated_is_flagged_wherever_a_plan_is_priced(capplan, tmp_path, command):
    offer = {"device": "l4", "commitment": "on-demand", "source": "page"}
    path = scenario(tmp_path)
    path.write_text(path.read_text() + "prices: {file: own.yaml}\n")

    def said(*dated):
        offers = [
            offer | {"provider": name, "price": f"{i} $/h", "date": day}
            for i, (name, day) in enumerate(dated, 1)
        ]
        page = {"page": {"title": "page", "url": "https://example.org"}}
        (tmp_path / "own.yaml").write_text(json.dumps({"sources": page, "prices": offers}))
        return capplan(command, path, "--offline").err

    assert re.search(
        r"the price of l4 at A is of 2020-01, \d{4} days old on [-0-9]{10}: check it there",
        said(("A", "2020-01")),
    )
    assert "the price of l4 at A has no date: check it there" in said(("A", None))
    assert "check it" not in said(("A", current_day().isoformat()))


@table
def test_prices_of_other_lists_are_on_the_terms_of_the_model(tmp_path, provider, model, life_s, shortest):
    """The shortest prefix and the storage of a model are those of the list that ships if no other states them."""
    file = tmp_path / "litellm.json"
    file.write_text(json.dumps({f"{provider}/{model}": {**LITELLM["gpt-x"], "litellm_provider": provider}}))
    (price,) = litellm_prices(file, "2026-11-20")
    assert (price.time_to_live_s, price.minimum_prefix_tokens) == (life_s, shortest)
    stored = price.storage_usd_per_million_tokens_hour
    assert stored == (4.5 if model == "gemini-2.5-pro" else 0.0)


def test_a_price_that_a_provider_announced_holds_from_its_day_on_for_a_prefix_too(capplan, monkeypatch):
    words = ("--prefix-tokens", "5000", "--requests-per-day", "900", "--api", "google/gemini-4-argon", "--format", "json")  # fmt: skip
    usd = []
    for day in (date(2026, 11, 30), date(2026, 12, 1)):
        monkeypatch.setattr("capplan.keys.current_day", lambda day=day: day)
        ran = capplan("cache", *words)
        usd.append(json.loads(ran.out)["result"]["uncached_usd_per_day"])
        assert ("announced other prices from 2026-12-01" in ran.err) == (day.month == 11)
    assert usd[1] == pytest.approx(2 * usd[0])


def test_keys_of_the_scenario_are_not_overridden_beside_a_plan_file(capplan, tmp_path):
    plan = tmp_path / "plan.json"
    assert capplan("fleet", SMALL, "--offline", "-o", plan).code == 0
    assert "--set: slo.ttft_p95=1 s may change the plan" in capplan.refused(
        "compare --plan", plan, "--set", "slo.ttft_p95=1 s", "--api", "openai/gpt-5", "--offline"
    )
