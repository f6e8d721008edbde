"""Hosted APIs against worked examples, random arrivals drawn one by one, and a scan of every rate."""

import math
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from capplan.money.comparison import ComparedApi, Comparison, breakeven_rate
from capplan.money.hosted import Hosted, HostedBill, HostedTraffic, billed_class, hosted_bill, hosted_traffic
from capplan.money.prompt_cache import breakeven_requests, gamma_share, reused_fraction, stored_fraction
from capplan.money.token_price import LongerLife, TokenPrice, TokenRates, cached_prefix, written_to_live
from capplan.readers.catalogue.models import model_rows, same_model, shipped_id
from capplan.readers.catalogue.token_prices import prices_of_model, token_prices
from capplan.workload.daily_curve import OFFICE
from capplan.workload.length import fixed, lognormal
from capplan.workload.request_class import RequestClass
from capplan.workload.reuse import ReuseByAge, reuse_by_age
from tests.ledgers import fleet_that_costs

CLAUDE = TokenRates(3.0, 15.0, 0.3, 3.75)
"""$3 a million, writes 1.25 times and reads 0.1 times that."""


def price(rates=CLAUDE, **more):
    return TokenPrice("a", "b", rates, "2026-11-01", "page", **{"time_to_live_s": 300.0, **more})


def test_worked_example_of_ten_thousand_requests_a_day():
    """4,000 tokens, 10,000 requests a day at 3.00 / 3.75 / 0.30: 9,999 reads and one write, 12.01 $ instead of 120 $."""
    day = cached_prefix(price(), 4000.0, 10_000.0)
    assert day.uncached_usd_per_day == pytest.approx(120.0)
    assert day.cached_usd_per_day == pytest.approx((9_999 * 0.3 + 3.75) * 4000 / 1e6, abs=1e-9)
    assert round(day.cached_usd_per_day, 2) == 12.01
    assert day.saved_usd_per_month == pytest.approx((120.0 - 12.0138) * 365 / 12)


@pytest.mark.parametrize(("requests", "cheaper"), [(1, False), (2, True), (3, True)])
def test_caching_pays_from_the_second_request(requests, cheaper):
    """Write 1.25 and read 0.1 times the price of input: n > 1.278, counted request by request."""
    assert breakeven_requests(1.25, 0.1) == pytest.approx(1.15 / 0.9)
    assert (1.25 + 0.1 * (requests - 1) < requests) == cheaper
    assert cached_prefix(price(), 4000.0, 10_000.0).breakeven_requests == 2


def test_storage_by_the_hour_delays_the_request_from_which_caching_pays():
    """Gemini 2.5 Pro: 1.25 $ a million, reads 0.125 $, an hour of storage 4.50 $: 1 + 0.1 (n - 1) + 3.6 < n from the sixth on."""
    offer = price(
        TokenRates(1.25, 10.0, 0.125), time_to_live_s=3600.0, storage_usd_per_million_tokens_hour=4.5
    )
    for n in (5, 6):
        assert (1.25 + 0.125 * (n - 1) + 4.5 < 1.25 * n) == (n == 6)
    assert cached_prefix(offer, 50_000.0, 100.0).breakeven_requests == 6
    assert cached_prefix(offer, 50_000.0, 100.0, time_to_live_s=600.0).breakeven_requests == 2


def test_an_hour_of_life_costs_twice_the_input_to_write():
    """Anthropic's writes: 1.25 times input for five minutes, twice for an hour; tiers alike."""
    offer = price(longer_life=LongerLife(3600.0, 2.0), tiers=((200_000.0, TokenRates(6.0, 22.5, 0.6, 7.5)),))
    assert written_to_live(offer, 3600.0).rates == TokenRates(3.0, 15.0, 0.3, 6.0)
    assert written_to_live(offer, 3600.0).tiers == ((200_000.0, TokenRates(6.0, 22.5, 0.6, 12.0)),)
    assert written_to_live(offer, 300.0) == written_to_live(offer, None) == offer
    day = cached_prefix(offer, 4000.0, 24.0, time_to_live_s=3600.0)
    found = 23 * (1 - math.exp(-1.0))
    assert day.cached_usd_per_day == pytest.approx((found * 0.3 + (24 - found) * 6.0) * 4000e-6)


def test_a_read_that_costs_as_much_as_input_never_pays():
    assert math.isinf(breakeven_requests(1.25, 1.0))
    assert cached_prefix(price(TokenRates(1.0, 1.0, 1.0, 1.25)), 4000.0, 100.0).breakeven_requests is None


@pytest.mark.parametrize("shape", [0.04, 0.3, 1.0, 2.5, 30.0, 4000.0])
def test_gamma_distribution_agrees_with_scipy(shape):
    for x in shape * np.array([0.0, 0.01, 0.3, 0.9, 1.0, 1.2, 3.0, 100.0]):
        assert gamma_share(shape, float(x)) == pytest.approx(special.gammainc(shape, x), abs=1e-12, rel=1e-9)


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("gaps_alive", [0.1, 1.0, 4.0])
def test_reuse_and_storage_agree_with_arrivals_drawn_one_by_one(cv, gaps_alive):
    """400,000 gamma gaps: how many are within the time to live, and how long the prefix is stored."""
    rate, alive_s = 0.2, gaps_alive / 0.2
    gaps = np.random.default_rng(7).gamma(1 / cv**2, cv**2 / rate, 400_000)
    assert reused_fraction(rate, alive_s, cv) == pytest.approx(np.mean(gaps <= alive_s), abs=0.004)
    stored = np.minimum(gaps, alive_s).sum() / gaps.sum()
    assert stored_fraction(rate, alive_s, cv) == pytest.approx(stored, abs=0.01)


def test_an_office_day_agrees_with_its_requests_drawn_one_by_one():
    """60 days of Poisson arrivals at 0.05 req/s at the peak: reads, writes and storage counted request by request."""
    chat = RequestClass(
        "chat", fixed(5000), fixed(200), 0.05, shared_prefix_tokens=4000.0, prefix_hit_fraction=0.8,
        mean_rate_fraction=float(np.mean(OFFICE)), hourly_rate_fractions=OFFICE,
    )  # fmt: skip
    offer = price(storage_usd_per_million_tokens_hour=1.0)
    bill = billed_class(hosted_traffic(chat, 0.0), offer, Hosted()).bill
    random, days = np.random.default_rng(3), 400
    hourly = [random.poisson(0.05 * share * 3600, days) for share in OFFICE]
    times = np.sort(np.concatenate([
        3600 * (24 * np.repeat(np.arange(days), counts) + hour + random.random(counts.sum())) for hour, counts in enumerate(hourly)
    ]))  # fmt: skip
    having = times[random.random(times.size) < 0.8]
    gaps = np.diff(having)
    months = days * 24 / 730
    reads = np.count_nonzero(gaps <= 300.0) / months
    writes = having.size / months - reads
    assert bill.cache_read_usd == pytest.approx(reads * 4000 * 0.3e-6, rel=0.02)
    assert bill.cache_write_usd == pytest.approx(writes * 4000 * 3.75e-6, rel=0.02)
    assert bill.output_usd == pytest.approx(times.size / months * 200 * 15e-6, rel=0.02)
    plain = times.size / months * 5000 - having.size / months * 4000
    assert bill.input_usd == pytest.approx(plain * 3e-6, rel=0.02)
    stored_hours = np.minimum(gaps, 300.0).sum() / 3600 / months
    assert bill.storage_usd == pytest.approx(stored_hours * 4000e-6, rel=0.03)


def chat(tokens=5000.0, prefix=0.0, hit=1.0, **more):
    return RequestClass(
        "chat", fixed(tokens), fixed(100), 2.0, shared_prefix_tokens=prefix, prefix_hit_fraction=hit, **more
    )


def test_a_long_prompt_pays_its_tier_for_all_tokens():
    """Above 200,000 tokens input costs 6 instead of 3 and output 22.5 instead of 15; half of these prompts are above."""
    tiered = price(tiers=((200_000.0, TokenRates(6.0, 22.5)),))
    long = RequestClass("long", lognormal(200_000.0, 0.5), fixed(100), 1.0)
    prompts = long.input_tokens.midpoints(4096)
    over = prompts > 200_000.0
    bill = hosted_bill((hosted_traffic(long, 0.0),), tiered, Hosted())
    requests = 730 * 3600
    assert bill.input_usd == pytest.approx(requests * np.where(over, 6.0, 3.0) @ prompts / 4096 * 1e-6)
    assert bill.output_usd == pytest.approx(requests * 100e-6 * np.where(over, 22.5, 15.0).mean())


def test_a_job_with_a_day_goes_to_the_batch_endpoint_at_half_price():
    """100,000 requests within two days; within two hours they pay the usual price."""
    offer = price(batch_discount_fraction=0.5)
    slow = chat(job_requests=100_000.0)
    two_days = RequestClass("job", fixed(5000), fixed(100), 100_000 / 172_800, job_requests=100_000.0)
    usual = 100_000 * (5000 * 3e-6 + 100 * 15e-6)
    assert hosted_bill((hosted_traffic(two_days, 0.0),), offer, Hosted()).usd == pytest.approx(usual / 2)
    assert hosted_bill((hosted_traffic(slow, 0.0),), offer, Hosted()).usd == pytest.approx(usual)
    some = hosted_bill((hosted_traffic(slow, 0.0),), offer, Hosted(batch_fraction=0.4))
    assert some.usd == pytest.approx(usual * 0.8)


def test_many_prefixes_are_each_asked_for_less_often():
    """1,000 prefixes at 0.002 req/s each find theirs within 5 minutes with 1 - e^-0.6."""
    item = chat(prefix=4000.0)
    bill = billed_class(HostedTraffic(item, np.array([2.0])), price(), Hosted(prefixes=1000.0)).bill
    found = 1 - math.exp(-0.6)
    assert bill.cache_read_usd == pytest.approx(5_256_000 * found * 4000 * 0.3e-6)
    assert bill.cache_write_usd == pytest.approx(5_256_000 * (1 - found) * 4000 * 3.75e-6)


@pytest.mark.parametrize(("fixed_usd", "replica", "carried", "per_request"), [
    (20.0, 30.0, 10.0, 5.0), (0.0, 9.0, 2.0, 5.0), (500.0, 10.0, 3.0, 5.0), (1.0, 1.0, 7.0, 2.0),
])  # fmt: skip
def test_breakeven_agrees_with_a_scan_of_all_rates(fixed_usd, replica, carried, per_request):
    n = np.arange(20_001)
    found = breakeven_rate(lambda n: fixed_usd + replica * n, carried * n, lambda rate: per_request * rate)
    rates = np.arange(1, 1_200_000) * 1e-3
    own = fixed_usd + replica * np.maximum(np.ceil(rates / carried - 1e-9), 1)
    dearer = np.flatnonzero(own > per_request * rates + 1e-9)
    assert found == pytest.approx(rates[dearer[-1] + 1], abs=1.5e-3)


def test_an_api_below_the_cost_of_a_replica_stays_cheaper():
    n = np.arange(20_001)
    assert breakeven_rate(lambda n: 30.0 * n, 10.0 * n, lambda rate: 2.9 * rate) is None


def test_blocks_of_a_trace_are_found_by_their_age_one_by_one():
    """60 requests of random blocks: each prompt walked by hand, with a clock for every block."""
    random = np.random.default_rng(11)
    prompts = [
        [int(random.integers(3))] + [10 * n + int(random.integers(2)) for n in range(1, 4)] for _ in range(60)
    ]
    arrival = np.cumsum(random.exponential(4.0, 60))
    prompts = [prompt[: int(random.integers(1, 5))] for prompt in prompts]
    counts = np.array([len(prompt) for prompt in prompts])
    repeated = reuse_by_age(np.concatenate([np.array(prompt) for prompt in prompts]), counts, arrival, 16)
    for alive_s, least in product((1.0, 7.0, 30.0, math.inf), (1, 2, 3)):
        used, found, kept = {}, 0, 0
        for prompt, now in zip(prompts, arrival, strict=True):
            ages = [now - used.get(block, -math.inf) for block in prompt]
            gone = [place for place, age in enumerate(ages) if age > alive_s or age == math.inf]
            leading = prompt[: gone[0]] if gone else prompt
            found += len(leading) if len(leading) >= least else 0
            kept += len(prompt) if len(prompt) >= least else 0
            used |= dict.fromkeys(prompt, now)
        reuse = repeated.kept_from(16.0 * least - 3.0)
        assert reuse.hit_fraction(alive_s, reuse.request_rate) == pytest.approx(found / kept)


def test_a_trace_pays_reads_for_what_it_repeats_and_writes_for_the_rest():
    """Half of the blocks come again within 5 minutes: 5,000 tokens at (0.3 + 3.75) / 2."""
    reuse = ReuseByAge(np.array([10.0, 20.0, 4000.0]), 4, 2.0)
    bill = billed_class(hosted_traffic(chat(), 0.0, reuse), price(), Hosted()).bill
    assert bill.input_usd == 0.0
    assert bill.cache_read_usd == pytest.approx(5_256_000 * 0.5 * 5000 * 0.3e-6)
    assert bill.cache_write_usd == pytest.approx(5_256_000 * 0.5 * 5000 * 3.75e-6)
    quiet = billed_class(hosted_traffic(chat(), 0.0, reuse), price(), Hosted(), 0.05).bill
    assert quiet.cache_read_usd == pytest.approx(0.05 * 5_256_000 * 0.25 * 5000 * 0.3e-6)


@pytest.mark.parametrize(
    ("model", "least"),
    [("meta-llama/Meta-Llama-3.1-8B-Instruct", "deepinfra/"), ("meta-llama/Llama-3.1-8B-Instruct", "deepinfra/"),
     ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "deepinfra/"), ("moonshotai/Kimi-K3", "deepinfra/")],
)  # fmt: skip
def test_an_open_model_finds_the_cheapest_api_of_the_list_under_any_of_its_ids(model, least):
    """The list sells Llama 3.1 8B at 0.02 $ for a million input tokens under an older id, and at 0.05 and 0.2 $ under the newer one."""
    found = prices_of_model(model, token_prices())
    assert len(found) >= 3
    assert min(found, key=lambda price: price.rates.input).name.startswith(least)


def test_no_row_of_the_list_is_without_the_open_model_that_its_name_is_the_id_of():
    """Names that are ids of shipped checkpoints say which model it is, and the list says no other."""
    named = [price for price in token_prices() if "/" in price.model and shipped_id(price.model)]
    assert len(named) > 20
    assert [
        price.name for price in named if not same_model(price.serves or "", shipped_id(price.model) or "")
    ] == []


def test_checkpoints_of_one_model_are_alike_and_other_trainings_are_not():
    """A quantised checkpoint that ships is alike to one of 16 bits of the same shapes; the models of one shape keep their own names."""
    plain, quantised = {}, []
    for row in model_rows():
        if row["quantization"] is None:
            plain.setdefault(row["folder"], []).append(row["model"])
        else:
            quantised.append(row)
    alike = [
        any(same_model(row["model"], name) for name in plain.get(row["folder"], ())) for row in quantised
    ]
    assert sum(alike) >= 0.95 * len(alike)
    for first, second in combinations(("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3-0324", "Qwen/Qwen3-235B-A22B",
                                       "Qwen/Qwen3-235B-A22B-Instruct-2507", "moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.6"), 2):  # fmt: skip
        assert not same_model(first, second)


@pytest.mark.long
@given(st.floats(0.01, 30.0), st.floats(0.01, 30.0), st.floats(0.0, 9000.0), st.floats(0.0, 0.3))
def test_at_the_price_of_the_flip_both_cost_the_same(dear, gpu, people, overhead):
    """The fleet is worked out again at the machines' flip price, the API at its own: each costs what the other does."""
    own = fleet_that_costs((), 730.0 * gpu, people, overhead)
    apis = tuple(
        ComparedApi(
            price(TokenRates(rate, 2 * rate, None, None)), HostedBill(input_usd=1000.0 * rate), (), None
        )
        for rate in (dear, 2 * dear)
    )
    found = Comparison(own, apis, (), Hosted())
    even = found.even_price_ratio
    assert even * apis[0].bill.usd == pytest.approx(own.usd_today)
    if found.even_machines_ratio is None:
        assert people >= apis[0].bill.usd * (1 - 1e-9)
    else:
        flipped = fleet_that_costs((), own.machines_usd * found.even_machines_ratio, people, overhead)
        assert flipped.usd_today == pytest.approx(apis[0].bill.usd, abs=1e-6 * (1 + people))
    assert replace(found, apis=apis[:1]).cheaper is None


@pytest.mark.parametrize("samples", [1, 4])
def test_a_prompt_is_billed_once_for_its_samples_where_an_api_has_n(samples):
    """A ledger of every request: with `n` one prompt and its answers, without it a prompt for each answer."""
    several = replace(chat(), samples=float(samples), sequences_per_request=float(samples))
    each = {True: 0.0, False: 0.0}
    for has_n in each:
        sent = price(several_answers=has_n)
        traffic = hosted_traffic(several, 0.0)
        ledger = {"input": 0.0, "output": 0.0}
        for answer in range(samples):
            if answer == 0 or not has_n:
                ledger["input"] += 5000.0 * 3.0e-6
            ledger["output"] += several.generated_tokens * 15.0e-6
        prompts = traffic.requests / samples
        bill = billed_class(traffic, sent, Hosted())
        assert bill.input_usd == pytest.approx(prompts * ledger["input"])
        assert bill.output_usd == pytest.approx(prompts * ledger["output"])
        each[has_n] = bill.input_usd
    assert each[False] == pytest.approx(samples * each[True])


def test_apis_with_n_are_those_whose_provider_says_so():
    """Mistral's documentation: input tokens are billed once for N completions, and mistral-large-2512 has no N; OpenAI charges for the tokens of all choices."""
    having = {price.name for price in token_prices() if price.several_answers}
    assert {"mistral/mistral-nemo", "openai/gpt-5-mini", "openai/gpt-4o"} <= having
    assert not having & {"mistral/mistral-large-2512", "anthropic/claude-haiku-5-5", "groq/qwen/qwen3-32b"}
