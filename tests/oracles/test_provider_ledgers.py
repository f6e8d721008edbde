"""Every rule by which a provider bills, as a ledger of its requests: what is stored, what is found and what each token costs, one request after the other.

A ledger knows nothing of the product: prices are those of the lists of 2026-11-23, rules those of the providers' pages, times are drawn.
"""

import json
import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from capplan.money.hosted import Hosted, hosted_bill, hosted_traffic, price_on, sold_price
from capplan.readers.catalogue.token_prices import litellm_prices, token_prices
from capplan.workload.length import fixed
from capplan.workload.request_class import RequestClass
from tests.tables import table

REQUESTS = 60_000
HOUR, DAY, WEEK = 3600.0, 86_400.0, 604_800.0
MONTH_S = 730 * HOUR
PREFIX, PROMPT, OUTPUT = 4000, 5000, 200


def arrivals(pause_s, seed=3):
    """Return Poisson arrivals, from Monday 00:00 UTC on."""
    return np.cumsum(np.random.default_rng(seed).exponential(pause_s, REQUESTS))


@dataclass
class Cache:
    """What a provider has stored of the one prefix: until when, and how often it was seen while it lasted."""

    life_s: float
    renewed: bool = True
    third: bool = False
    """Whether the second request with a common prefix stores it, so that the third finds it."""
    until: float = -math.inf
    seen: int = 0
    stored_s: float = 0.0

    def finds(self, now):
        """Return whether a request finds the prefix, and keep the books of what is stored."""
        alive = now <= self.until
        self.seen = self.seen + 1 if alive else 1
        if self.renewed:
            self.stored_s += self.life_s - (self.until - now if alive else 0.0)
            self.until = now + self.life_s
        elif not alive:
            self.stored_s += self.life_s
            self.until = now + self.life_s
        return alive and (not self.third or self.seen >= 3)


@dataclass
class Prices:
    """Dollars per million tokens."""

    input: float
    output: float
    read: float = 0.0
    write: float | None = None
    storage_hour: float = 0.0
    batch: float = 1.0
    """What is paid of input, output and writes."""
    batch_read: float = 1.0
    peak: float = 1.0
    peak_hours: tuple = field(default_factory=tuple)


def mean_usd(times, prices, cache, prefix=PREFIX, prompt=PROMPT):
    """Return the mean cost of a request by the ledger; without a cache the prefix is input."""
    usd = 0.0
    for now in times:
        dear = prices.peak if (now % WEEK) < 5 * DAY and int(now % DAY // HOUR) in prices.peak_hours else 1.0
        cost = prices.batch * ((prompt - prefix) * prices.input + OUTPUT * prices.output)
        if cache is None:
            cost += prices.batch * prefix * prices.input
        elif cache.finds(now):
            cost += prices.batch_read * prefix * prices.read
        else:
            cost += prices.batch * prefix * (prices.input if prices.write is None else prices.write)
        usd += dear * cost
    kept = cache.stored_s / HOUR * prefix * prices.storage_hour if cache is not None else 0.0
    return 1e-6 * (usd + kept) / len(times)


def billed(name_or_price, pause_s, day="2026-11-25", prefix=PREFIX, prompt=PROMPT, **terms):
    """Return the mean cost of a request as the product bills it; lengths are as the provider counts them."""
    price = name_or_price
    if isinstance(price, str):
        price = next(item for item in token_prices() if item.name == name_or_price)
    asked = Hosted(token_ratios={price.provider: 1.0}, **terms)
    item = RequestClass(
        "chat",
        fixed(prompt),
        fixed(OUTPUT),
        1.0 / pause_s,
        shared_prefix_tokens=prefix,
        prefix_hit_fraction=1.0,
    )
    bill = hosted_bill((hosted_traffic(item, 0.0),), sold_price(price_on(price, day), asked), asked)
    return bill.usd / (MONTH_S / pause_s)


def near(usd):
    return pytest.approx(usd, rel=0.01)


@pytest.mark.parametrize("pause_s", [20.0, 900.0, 20_000.0])
def test_anthropic_five_minutes_an_hour_or_nothing(pause_s):
    """Opus 5.5: a hit renews; writes 1.25 or 2 times input; reads 0.05 times; the client marks what pays."""
    times = arrivals(pause_s)
    ways = [
        mean_usd(times, Prices(4.0, 20.0), None),
        mean_usd(times, Prices(4.0, 20.0, 0.2, 5.0), Cache(300.0)),
        mean_usd(times, Prices(4.0, 20.0, 0.2, 8.0), Cache(HOUR)),
    ]
    assert billed("anthropic/claude-opus-5-5", pause_s) == near(min(ways))
    assert billed("anthropic/claude-opus-5-5", pause_s, time_to_live=300.0) == near(min(ways[:2]))
    assert billed("anthropic/claude-opus-5-5", pause_s, time_to_live=HOUR) == near(min(ways[0], ways[2]))
    assert billed("anthropic/claude-opus-5-5", pause_s, caching="default") == near(ways[0])


def test_anthropic_caches_nothing_below_its_shortest_prefix():
    """512 tokens on Opus 5.5, 4,096 on Haiku 4.5; shorter prefixes are input without an error."""
    times = arrivals(10.0)[:1000]
    short = mean_usd(times, Prices(4.0, 20.0), None, prefix=511)
    assert billed("anthropic/claude-opus-5-5", 10.0, prefix=511) == near(short)
    plain = mean_usd(times, Prices(1.0, 5.0), None)
    assert billed("anthropic/claude-haiku-4-5", 10.0) == near(plain)
    assert billed("anthropic/claude-opus-5-5", 10.0, prefix=512) < short


def test_a_long_prompt_pays_the_tier_for_every_token():
    """Haiku 5.5 above 100,000 tokens of prompt: five times, cached tokens and output too."""
    size = {"prefix": 90_000, "prompt": 120_000}
    times = arrivals(30.0)
    ways = [
        mean_usd(times, Prices(0.5, 2.5), None, **size),
        mean_usd(times, Prices(0.5, 2.5, 0.05, 0.625), Cache(300.0), **size),
        mean_usd(times, Prices(0.5, 2.5, 0.05, 1.0), Cache(HOUR), **size),
    ]
    assert billed("anthropic/claude-haiku-5-5", 30.0, **size) == near(min(ways))


@pytest.mark.parametrize("pause_s", [60.0, 1800.0, 40_000.0])
def test_openai_from_gpt_5_6_finds_marked_ends_alone(pause_s):
    """Entries by the exact text up to a mark, for 30 minutes: marked at the prefix it is found, marked at the prompt's end never."""
    times = arrivals(pause_s)
    marked = mean_usd(times, Prices(0.2, 1.2, 0.02, 0.25), Cache(1800.0))
    assert billed("openai/gpt-5.6-luna", pause_s) == near(
        min(marked, mean_usd(times, Prices(0.2, 1.2), None))
    )
    stored, usd = {}, 0.0
    for number, now in enumerate(times):
        text = ("prefix", number)  # the end of each prompt is its own
        if stored.get(text, -math.inf) >= now:
            usd += PROMPT * 0.02
        else:
            usd += PROMPT * 0.25
        stored[text] = now + 1800.0
        usd += OUTPUT * 1.2
    assert billed("openai/gpt-5.6-luna", pause_s, caching="default") == near(1e-6 * usd / len(times))


@pytest.mark.parametrize("pause_s", [100.0, 30_000.0])
def test_openai_before_5_6_writes_for_nothing_and_keeps_a_day_on_request(pause_s):
    """gpt-5.1: 5 minutes by itself, 24 hours at no charge; gpt-4.1: 5 minutes."""
    times = arrivals(pause_s)
    day = mean_usd(times, Prices(1.25, 10.0, 0.125), Cache(DAY))
    assert billed("openai/gpt-5.1", pause_s) == near(day)
    assert billed("openai/gpt-5.1", pause_s, caching="default") == near(
        mean_usd(times, Prices(1.25, 10.0, 0.125), Cache(300.0))
    )
    assert billed("openai/gpt-4.1", pause_s) == near(mean_usd(times, Prices(2.0, 8.0, 0.5), Cache(300.0)))


BATCHES = {
    "openai/gpt-4.1": (Prices(2.0, 8.0, 0.5, batch=0.5, batch_read=1.0), 300.0),
    "google/gemini-3.8-flash": (Prices(0.75, 3.75, 0.075, batch=0.5, batch_read=0.5), 300.0),
    "groq/openai/gpt-oss-120b": (Prices(0.15, 0.6, 0.075, batch=0.5, batch_read=1.0), 7200.0),
    "xai/grok-4.7": (Prices(2.0, 6.0, 0.5, batch=0.8, batch_read=0.8), 300.0),
}
"""Half price for cache reads too at Google from 3.5 on, not at OpenAI's older models nor at Groq; a fifth off everything at xAI."""


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_takes_off_what_its_provider_says(name):
    prices, life_s = BATCHES[name]
    paid = mean_usd(arrivals(120.0), prices, Cache(life_s), prefix=4600)
    assert billed(name, 120.0, prefix=4600, batch_fraction=1.0) == near(paid)


GEMINI = {
    "google/gemini-2.5-pro": Prices(1.25, 10.0, 0.125, storage_hour=4.5),
    "google/gemini-2.5-flash": Prices(0.3, 2.5, 0.03, storage_hour=1.0),
    "google/gemini-3.8-flash": Prices(0.75, 3.75, 0.075, storage_hour=0.5),
    "vertex/gemini-3.8-flash": Prices(0.75, 3.75, 0.075, storage_hour=0.5),
    "google/gemini-3-flash-preview": Prices(
        0.5, 3.0, 0.05
    ),  # nobody lists a price of storage: implicit alone
}
"""Input, output, reads, and storage of a million tokens for an hour."""
ON_DEMAND = {
    "google/gemini-2.5-flash": {400.0},
    "google/gemini-3.8-flash": {400.0, 1500.0, 3000.0},
    "vertex/gemini-3.8-flash": {400.0, 1500.0, 3000.0},
}
"""Pauses between requests at which an hour of storage pays."""


@pytest.mark.parametrize("name", GEMINI)
@pytest.mark.parametrize("pause_s", [2.0, 400.0, 1500.0, 3000.0])
def test_google_by_itself_on_demand_or_not_at_all(name, pause_s):
    """On demand an hour from creation, a hit renews nothing; by itself 5 minutes, assumed, without storage."""
    times, prices, size = arrivals(pause_s), GEMINI[name], {"prefix": 4500}
    alone = replace(prices, storage_hour=0.0)
    ways = {
        "not cached": mean_usd(times, alone, None, **size),
        "kept by itself": mean_usd(times, alone, Cache(300.0), **size),
    }
    if prices.storage_hour:
        ways["kept for 3600 s"] = mean_usd(times, prices, Cache(HOUR, renewed=False), **size)
    assert billed(name, pause_s, **size) == near(min(ways.values()))
    on_demand = min(ways, key=ways.__getitem__) == "kept for 3600 s"
    assert on_demand == (pause_s in ON_DEMAND.get(name, ()))


READS = {
    "anthropic/claude-opus-5-5": 0.05, "anthropic/claude-sonnet-5-5": 0.05, "anthropic/claude-fable-5-1": 0.025,
    "anthropic/claude-fable-5-2": 0.025, "anthropic/claude-mythos-5-2": 0.025, "anthropic/claude-haiku-5-5": 0.1,
    "openai/gpt-6.1-terra": 0.05, "openai/gpt-6-luna": 0.1, "openai/gpt-4.1": 0.25, "google/gemini-4-argon": 0.05,
}  # fmt: skip
"""Price of a cache read over that of input, which is 0.1 no longer everywhere."""


@pytest.mark.parametrize("name", READS)
def test_a_found_prefix_costs_what_its_model_asks_for(name):
    """A request a second finds the prefix nearly always."""
    price = next(item for item in token_prices() if item.name == name)
    inputs, output = price.rates.input, price.rates.output
    listed = Prices(inputs, output, READS[name] * inputs, price.rates.cache_write)
    ledger = mean_usd(arrivals(1.0), listed, Cache(300.0), prefix=4500)
    assert billed(name, 1.0, prefix=4500) == near(ledger)


@table
@pytest.mark.parametrize("service", ["standard", "flex"])
def test_announced_prices_double_from_their_day_on_in_every_service_tier(
    name, prices, last_day, first_day, service
):
    """Flex is half of what the day's price is; implicit caching, 5 minutes assumed."""
    part = 0.5 if service == "flex" else 1.0
    inputs, output, read = (part * usd for usd in prices)
    usd = mean_usd(arrivals(60.0), Prices(inputs, output, read), Cache(300.0), prefix=4500)
    assert billed(name, 60.0, day=last_day, prefix=4500, service=service) == near(usd)
    assert billed(name, 60.0, day=first_day, prefix=4500, service=service) == near(2 * usd)


def test_flex_of_a_long_prompt_keeps_the_price_of_reads_that_flex_does_not_halve():
    """2.5 Pro above 200,000 tokens: flex halves 2.50 and 15 $, and leaves cache reads of 0.25 $ as they are."""
    size = {"prefix": 250_000, "prompt": 260_000}
    usd = mean_usd(arrivals(100.0), Prices(1.25, 7.5, 0.25), Cache(300.0), **size)
    assert billed("google/gemini-2.5-pro", 100.0, service="flex", **size) == near(usd)


@pytest.mark.parametrize("pause_s", [50.0, 700.0])
def test_deepseek_finds_a_common_prefix_from_the_third_request_on_and_doubles_at_its_peak(pause_s):
    """01:00 to 04:00 and 06:00 to 10:00 UTC from Monday to Friday; how long a prefix lasts is not stated, 5 minutes assumed. V3.2 has no peak."""
    times = arrivals(pause_s)
    hours = (1, 2, 3, 6, 7, 8, 9)
    pro = Prices(0.66, 1.98, 0.022, peak=2.0, peak_hours=hours)
    assert billed("deepseek/deepseek-v4-pro", pause_s) == near(mean_usd(times, pro, Cache(300.0, third=True)))
    older = Prices(0.2288, 0.3432, 0.028)
    assert billed("deepseek/deepseek-v3.2", pause_s) == near(mean_usd(times, older, Cache(300.0, third=True)))


@pytest.mark.parametrize("pause_s", [60.0, 1500.0, 30_000.0])
def test_kimi_k3_pays_for_writes(pause_s):
    """At Moonshot 5 minutes as input or an hour at twice the price; at Bedrock 30 minutes at 1.25 times."""
    times = arrivals(pause_s)
    plain = mean_usd(times, Prices(3.0, 15.0), None)
    short = mean_usd(times, Prices(3.0, 15.0, 0.3, 3.0), Cache(300.0))
    long = mean_usd(times, Prices(3.0, 15.0, 0.3, 6.0), Cache(HOUR))
    assert billed("moonshotai/kimi-k3", pause_s) == near(min(plain, short, long))
    half = mean_usd(times, Prices(3.0, 15.0, 0.3, 3.75), Cache(1800.0))
    assert billed("bedrock/global.moonshotai.kimi-k3", pause_s) == near(min(plain, half))


@pytest.mark.parametrize(("write", "hour"), [(0.0, None), (2.5e-6, 4e-6)])
def test_litellm_s_write_prices_are_paid_by_misses(tmp_path, write, hour):
    """A price of zero means as input; one for an hour is another life on sale."""
    entry = {
        "litellm_provider": "anthropic" if hour else "zai", "input_cost_per_token": 2e-6, "output_cost_per_token": 8e-6,
        "cache_read_input_token_cost": 0.2e-6, "cache_creation_input_token_cost": write, "prompt_cache_min_tokens": 4001,
    } | ({"cache_creation_input_token_cost_above_1hr": hour} if hour else {})  # fmt: skip
    file = tmp_path / "litellm.json"
    file.write_text(json.dumps({"x/model": entry}))
    (offer,) = litellm_prices(file, "2026-11-23")
    times = arrivals(250.0)
    size = {"prefix": 4500}
    ways = [mean_usd(times, Prices(2.0, 8.0), None, **size)]
    ways += [mean_usd(times, Prices(2.0, 8.0, 0.2, 1e6 * write or 2.0), Cache(300.0), **size)]
    ways += [mean_usd(times, Prices(2.0, 8.0, 0.2, 4.0), Cache(HOUR), **size)] if hour else []
    assert billed(offer, 250.0, **size) == near(min(ways))
    assert billed(offer, 250.0, prefix=4000) == near(mean_usd(times, Prices(2.0, 8.0), None))
