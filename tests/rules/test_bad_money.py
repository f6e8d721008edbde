"""What cannot be priced is refused in one clear line that names the place, what is allowed and the nearest match."""

import csv
import json
import sys
from datetime import date
from types import ModuleType, SimpleNamespace

import pytest

from capplan.money.hosted import TokenPrice, TokenRates
from capplan.questions.money.price_check import age_warnings, current_day
from capplan.readers.catalogue.token_prices import find_price, genai_price, litellm_prices, token_prices

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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--api", "gpt-5"), "--api: 'gpt-5' is not PROVIDER/MODEL; did you mean 'openai/gpt-5'?"),
        (("--api", "opnai/gpt-5"), "--api: unknown provider 'opnai': did you mean 'openai'?"),
        (("--api", "openai/gtp-5"), "--api: unknown model of openai 'gtp-5': did you mean"),
        (("--set", "hosted.batch_fraction=2"), "hosted.batch_fraction: '2' is over 1, so it needs its unit"),
        (("--set", "hosted.prefixs=3"), "hosted.prefixs: unknown key 'prefixs': did you mean 'prefixes'?"),
        (("--set", "hosted.date=yesterday"), "hosted.date: yesterday is not a date; write it as 2026-11-01"),
        (("--set", "hosted.date=2026-02-31"), "hosted.date: 2026-02-31 is not a date"),
        (("--set", "prices.people=-5 $/month"), "prices.people: '-5 $/month' is below 0"),
        (("--set", "prices.people=9000"), "prices.people: '9000' is not in $/month (the unit is missing)"),
        (("--set", "hosted.date=2026-11-01", "--api", "openai/gpt-5"), "hosted.date: openai/gpt-5 states its own date, 2026-11-23"),
        ((), "no listed API serves Qwen/Qwen3-0.6B; name what to compare with: --api PROVIDER/MODEL"),
    ],
)  # fmt: skip
def test_a_comparison_that_cannot_be_made_is_refused(capplan, words, said):
    ran = capplan("compare", SMALL, "--offline", *words)
    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err


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


def test_caching_that_would_cost_more_than_it_saves_is_left_out(capplan):
    """A million prefixes are hardly ever found again: marked, every request would pay 1.25 instead of 1 for its 2,000 tokens."""
    words = ("compare", SMALL, "--offline", "--api", "anthropic/claude-sonnet-5-5", "--set", "traffic[0].input_tokens=2500",
             "--set", "traffic[0].shared_prefix={tokens: 2000, hit_fraction: 100 %}", "--set", "slo.ttft_p95=3 s", "--format", "json")  # fmt: skip
    rare = json.loads(capplan(*words, "--set", "hosted.prefixes=1000000000").out)["result"]["apis"][0]
    assert (rare["caching"], rare["cache_write_usd"]) == ("not cached", 0.0)
    often = json.loads(capplan(*words).out)["result"]["apis"][0]
    assert often["caching"] == "kept for 300 s"
    assert often["usd_per_month"] < rare["usd_per_month"]


def test_a_life_that_no_provider_sells_is_refused(capplan):
    said = "anthropic keeps a prefix for 300 s or 3600 s since its last use, not for 7200 s"
    api = ("--api", "anthropic/claude-sonnet-5-5")
    ran = capplan(
        "cache", "--prefix-tokens", "5000", "--requests-per-day", "9", "--time-to-live", "2 h", *api
    )
    assert (ran.code, f"--time-to-live: {said}" in ran.err) == (2, True)
    ran = capplan("compare", SMALL, "--offline", "--set", "hosted.time_to_live=2 h", *api)
    assert (ran.code, f"hosted.time_to_live: {said}" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--prefix-tokens", "0"), "--prefix-tokens: '0' is out of range"),
        (("--requests-per-day", "0"), "--requests-per-day: '0' is not above zero"),
        (("--requests-per-day", "nan"), "--requests-per-day: 'nan' is not a number"),
        (("--read-price", "0.3 €"), "--read-price: '0.3 €' is not dollars per million tokens"),
        (("--time-to-live", "5"), "--time-to-live: '5' is not in s (the unit is missing)"),
        (("--api", "openai/gpt-5"), "--input-price: openai/gpt-5 has its own prices"),
    ],
)
def test_a_prefix_that_cannot_be_priced_is_refused(capplan, words, said):
    usual = {
        "--prefix-tokens": "4000",
        "--requests-per-day": "100",
        "--input-price": "3",
        "--read-price": "0.3",
    }
    line = usual | dict(zip(words[::2], words[1::2], strict=True))
    ran = capplan("cache", *(part for pair in line.items() for part in pair))
    assert ran.code == 2
    assert said in ran.err


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
    ran = capplan("compare", scenario(tmp_path, file="litellm.json"), "--api", "openai/gpt-x", "--offline")
    assert ran.code == 2
    assert "states no date for its prices, and a price without a date cannot be compared" in ran.err
    assert "hosted.date=2026-11-01" in ran.err


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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"gpt-x": {"input_cost_per_token": "1e-6", "output_cost_per_token": 1e-6}}, "gpt-x.input_cost_per_token: '1e-6' is not a price"),
        ({"gpt-x": {"input_cost_per_token": -1e-6, "output_cost_per_token": 1e-6}}, "gpt-x.input_cost_per_token: '-1e-06' is not a price"),
        ({"gpt-x": {"input_cost_per_token": 0.0, "output_cost_per_token": 0.0}}, "has no model with input_cost_per_token"),
        ({"gpt-x": {"mode": "chat"}}, "has no model with input_cost_per_token and output_cost_per_token"),
    ],
)  # fmt: skip
def test_a_broken_litellm_file_is_refused(capplan, tmp_path, content, said):
    (tmp_path / "litellm.json").write_text(json.dumps(content))
    path = scenario(tmp_path, file="litellm.json", date="2026-11-02")
    ran = capplan("compare", path, "--api", "openai/gpt-x", "--offline")
    assert ran.code == 2
    assert said in ran.err


@pytest.mark.parametrize("day", ["9" * 400, "2026-02-31", "2026-1-5", "٢٠٢٦", ""])
def test_a_day_that_is_in_no_calendar_is_refused(capplan, day):
    words = ("--prefix-tokens", "4000", "--requests-per-day", "100", "--api", "openai/gpt-5", "--date", day)
    ran = capplan("cache", *words)
    assert ran.code == 2
    assert f"--date: {day[:40]!r} is not a date; write it as 2026-11-01, 2026-11 or 2026" in ran.err


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

    assert "the newest price of l4 is of 2020-01, over 120 days old: check it at A" in said(("A", "2020-01"))
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


def test_the_package_itself_is_read_where_it_is_installed():
    """Claude Sonnet 4.5 as Anthropic lists it: 3 and 15 $, writes 1.25 and reads 0.1 times input, twice above 200,000 tokens."""
    pytest.importorskip("genai_prices")
    price = genai_price("anthropic", "claude-sonnet-5-5", "2026-11-01")
    assert price.rates == TokenRates(3.0, 15.0, 0.3, 3.75)
    assert price.tiers == ((200_000.0, TokenRates(6.0, 22.5, 0.6, 7.5)),)
    assert (price.batch_discount_fraction, price.minimum_prefix_tokens, price.time_to_live_s) == (
        0.5,
        1024.0,
        300.0,
    )
    assert genai_price("anthropic", "no-such-model", "2026-11-01") is None
    assert genai_price("no-such-provider", "gpt-5", "2026-11-01") is None
    assert genai_price("google", "gemini-2.5-flash", "2026-11-01").storage_usd_per_million_tokens_hour is None


def test_a_price_of_genai_prices_needs_its_date(genai, capplan):
    ran = capplan("compare", SMALL, "--api", "acme/nova", "--offline")
    assert ran.code == 2
    assert "acme/nova is known to genai-prices alone, which does not date its prices" in ran.err


def test_keys_of_the_scenario_are_not_overridden_beside_a_plan_file(capplan, tmp_path):
    plan = tmp_path / "plan.json"
    assert capplan("fleet", SMALL, "--offline", "-o", plan).code == 0
    ran = capplan(
        "compare", "--plan", plan, "--set", "slo.ttft_p95=1 s", "--api", "openai/gpt-5", "--offline"
    )
    assert ran.code == 2
    assert "--set: slo.ttft_p95=1 s may change the plan" in ran.err
