"""What cannot be priced is refused in one clear line that names the place, what is allowed and the nearest match."""

import csv
import json
import re
import sys
from datetime import date
from types import ModuleType, SimpleNamespace

import pytest

from capplan.errors import InputError
from capplan.keys import current_day
from capplan.money.hosted import LongerLife, PeakHours, TokenPrice, TokenRates
from capplan.questions.plans.plan_check import age_warnings
from capplan.readers.catalogue.token_prices import (
    find_price,
    genai_price,
    json_prices,
    litellm_prices,
    read_token_prices,
    token_prices,
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
    (price,) = json_prices(tmp_path / "litellm.json", "2026-11-02")
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


@pytest.fixture
def genai(monkeypatch):
    """Stand in for the package genai-prices, with its names and one model of tiered prices."""
    tier = SimpleNamespace(base=3, tiers=[SimpleNamespace(start=200_000, price=6)])

    def prices(_, context=None):
        half = 0.5 if context else 1
        kinds = {
            "input_mtok": 3 * half if context else tier,
            "output_mtok": 15 * half,
            "cache_read_mtok": 0.3,
            "cache_write_mtok": None,
        }
        return SimpleNamespace(**kinds)

    def find(model, provider, provider_id, url):
        if (model, provider, provider_id, url) != ("nova", None, "acme", None):
            raise LookupError
        return None, SimpleNamespace(id="nova", context_window=1000, get_prices=prices)

    module = ModuleType("genai_prices.data_snapshot")
    module.get_snapshot = lambda: SimpleNamespace(find_provider_model=find)
    monkeypatch.setitem(sys.modules, "genai_prices", ModuleType("genai_prices"))
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", module)


def test_a_name_that_no_list_has_is_looked_up_in_genai_prices(genai):
    price = find_price("acme/nova", token_prices(), "2026-11")
    assert price.rates == TokenRates(3.0, 15.0, 0.3)
    assert price.tiers == ((200_000.0, TokenRates(6.0, 15.0, 0.3)),)
    assert (price.batch_discount_fraction, price.date) == (0.5, "2026-11")


GENAI = [
    {
        "id": "acme", "name": "Acme", "api_pattern": "x",
        "models": [
            {
                "id": "nova", "match": {"equals": "nova"}, "context_window": 500_000,
                "prices": {
                    "input_mtok": {"base": 3, "tiers": [{"start": 200_000, "price": 6}]}, "output_mtok": 15,
                    "cache_read_mtok": 0.3, "cache_write_mtok": 3.75, "cache_write_1h_mtok": 6,
                },
                "price_variants": [
                    {"when": {"processing": "batch"}, "prices": {"input_mtok": 1.5, "output_mtok": 7.5}},
                    {"when": {"service_tier": "flex"}, "prices": {"input_mtok": 2, "output_mtok": 8}},
                    {"when": {"service_tier": "flex"}, "prices": {"output_mtok": 9, "cache_read_mtok": 0.2}},
                ],
            },
            {
                "id": "tide", "match": {"equals": "tide"},
                "prices": [
                    {"prices": {"input_mtok": 1, "output_mtok": 4}},
                    {"constraint": {"start_date": "2026-10-01"}, "prices": {"input_mtok": 2, "output_mtok": 8}},
                    {"constraint": {"start_date": "2027-01-01"}, "prices": {"input_mtok": 3, "output_mtok": 12}},
                    {"constraint": {"start_time": "22:30:00Z", "end_time": "02:00:00Z"}, "prices": {"input_mtok": 5, "output_mtok": 20}},
                ],
            },
            {"id": "free", "match": {"equals": "free"}, "prices": {"input_mtok": 0, "output_mtok": 0}},
        ],
    }
]  # fmt: skip
"""Providers as the data.json of genai-prices has them."""


def test_the_file_of_genai_prices_is_read(tmp_path):
    file = tmp_path / "data.json"
    file.write_text(json.dumps(GENAI))
    nova, tide = json_prices(file, "2026-11-20")
    assert nova.rates == TokenRates(3.0, 15.0, 0.3, 3.75)
    assert nova.tiers == ((200_000.0, TokenRates(6.0, 15.0, 0.3, 3.75)),)
    assert nova.services == (
        ("flex", TokenRates(2.0, 8.0, 0.2, 3.75)),
    )  # the first variant that states a kind
    assert (nova.batch_discount_fraction, nova.batch_read_discount_fraction) == (0.5, 0.0)
    assert nova.longer_life == LongerLife(3600.0, 2.0)
    assert (nova.context_tokens, nova.peak, nova.change) == (500_000, None, None)
    assert tide.rates == TokenRates(2.0, 8.0)
    assert tide.peak == PeakHours((0, 1, 22, 23), 2.5, day_fraction=1.0)
    assert tide.change == ("2027-01-01", TokenRates(3.0, 12.0))
    (_, before) = json_prices(file, "2026-09-30")
    assert (before.rates.input, before.change[0]) == (1.0, "2026-10-01")


def test_the_file_of_genai_prices_counts_in_every_command(capplan, tmp_path):
    file = tmp_path / "data.json"
    file.write_text(json.dumps([{**GENAI[0], "id": "openai", "models": [{**GENAI[0]["models"][0], "id": "gpt-5"}]}]))  # fmt: skip
    words = ("--check", "--prices", file, "--date", "2026-11-20", "--format", "json")
    rows = capplan.result("list", "apis", "openai/gpt-5", *words)["rows"]
    remarks = {row["api"]: row["remark"] for row in rows}
    assert f"input $1.25, $3 in {file} of 2026-11-20" in remarks["openai/gpt-5"]
    path = scenario(tmp_path, file="data.json", date="2026-11-20")
    (api,) = capplan.result("compare", path, "--api", "openai/gpt-5", "--offline")["apis"]
    assert (api["date"], api["source"]) == ("2026-11-20", str(file))
    assert api["usd_per_month"] - api["output_usd"] == pytest.approx(2 * 730 * 3600 * 900 * 3e-6)


@table
def test_prices_of_other_lists_are_on_the_terms_of_the_model(tmp_path, provider, model, life_s, shortest):
    """Names of genai-prices; the shortest prefix and the storage of a model are those of the list that ships if no other states them."""
    file = tmp_path / "data.json"
    file.write_text(json.dumps([{"id": provider, "models": [{**GENAI[0]["models"][0], "id": model}]}]))
    (price,) = json_prices(file, "2026-11-20")
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


def test_the_package_itself_is_read_where_it_is_installed():
    """Claude Sonnet 4.5 as Anthropic lists it: 3 and 15 $, writes 1.25 and reads 0.1 times input, twice above 200,000 tokens."""
    pytest.importorskip("genai_prices")
    price = genai_price("anthropic", "claude-sonnet-4-5", "2026-11-01")
    assert price.rates == TokenRates(3.0, 15.0, 0.3, 3.75)
    assert price.tiers == ((200_000.0, TokenRates(6.0, 22.5, 0.6, 7.5)),)
    assert (price.batch_discount_fraction, price.minimum_prefix_tokens, price.time_to_live_s) == (
        0.5,
        1024.0,
        300.0,
    )
    assert genai_price("anthropic", "no-such-model", "2026-11-01") is None
    assert genai_price("no-such-provider", "gpt-5", "2026-11-01") is None
    assert (
        genai_price("google", "gemini-3-flash-preview", "2026-11-01").storage_usd_per_million_tokens_hour
        is None
    )
    assert genai_price("google", "gemini-4-argon", "2026-11-01").change == ("2026-12-01", TokenRates(4.0, 20.0, 0.2))  # fmt: skip
    assert genai_price("deepseek", "deepseek-v4-pro", "2026-11-01").peak == PeakHours(
        (1, 2, 3, 6, 7, 8, 9), 2.0
    )


def test_a_price_of_genai_prices_needs_its_date(genai, capplan):
    assert "acme/nova is known only to genai-prices, which does not date its prices" in capplan.refused(
        "compare", SMALL, "--api", "acme/nova", "--offline"
    )


def test_keys_of_the_scenario_are_not_overridden_beside_a_plan_file(capplan, tmp_path):
    plan = tmp_path / "plan.json"
    assert capplan("fleet", SMALL, "--offline", "-o", plan).code == 0
    assert "--set: slo.ttft_p95=1 s may change the plan" in capplan.refused(
        "compare --plan", plan, "--set", "slo.ttft_p95=1 s", "--api", "openai/gpt-5", "--offline"
    )
