"""A hosted bill against its requests one by one: tiers, lives of caches, batches, service tiers, hours of the day, all at once."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.fleet.money_terms import HostedTerms
from capplan.money.hosted import PeakHours, TokenPrice, TokenRates, billed_class, hosted_traffic, sold_price
from capplan.workload.length import fixed
from capplan.workload.request_class import RequestClass
from tests.sweeps import examples

REQUESTS = 40_000
LIVES = ("last use", "creation", "third request")
RATES = st.builds(
    lambda usd, output, read, write: TokenRates(usd, output, usd * read, usd * write),
    st.floats(0.1, 10.0), st.floats(0.1, 50.0), st.floats(0.02, 1.0), st.floats(1.0, 2.0),
)  # fmt: skip
CASES = st.fixed_dictionaries(
    {
        "rates": RATES,
        "tier": st.tuples(st.floats(500, 20_000), RATES),
        "service": st.sampled_from(["standard", "flex"]),
        "service_ratio": st.floats(0.3, 2.0),
        "life": st.sampled_from(LIVES),
        "gaps_alive": st.floats(0.05, 5.0),
        "storage": st.floats(0.0, 5.0),
        "minimum": st.sampled_from([0.0, 1024.0, 4096.0]),
        "batched": st.sampled_from([0.0, 0.3, 1.0]),
        "batch": st.floats(0.0, 0.6),
        "batch_read": st.one_of(st.none(), st.floats(0.0, 0.6)),
        "peak": st.one_of(st.none(), st.tuples(st.sets(st.integers(0, 23), min_size=1), st.floats(1.0, 3.0))),
        "by_day": st.booleans(),
        "ratio": st.floats(0.5, 1.3),
        "prompt": st.floats(600, 30_000),
        "prefix": st.floats(0.1, 0.95),
        "hit": st.floats(0.0, 1.0),
        "output": st.integers(1, 900),
        "seed": st.integers(0, 2**32 - 1),
    }
)


def offer_of(case, alive_s):
    above, dearer = case["tier"]
    times = case["service_ratio"]
    rates = case["rates"]
    flex = TokenRates(
        rates.input * times, rates.output * times, rates.cache_read * times, rates.cache_write * times
    )
    hours = case["peak"]
    return TokenPrice(
        "a", "b", rates, "2026", "page",
        tiers=((above, dearer),),
        storage_usd_per_million_tokens_hour=case["storage"],
        minimum_prefix_tokens=case["minimum"],
        time_to_live_s=alive_s,
        from_creation=case["life"] == "creation",
        whole_units=case["life"] == "third request",
        batch_discount_fraction=case["batch"],
        batch_read_discount_fraction=case["batch_read"],
        peak=None if hours is None else PeakHours(tuple(sorted(hours[0])), hours[1]),
        services=(("flex", flex),),
    )  # fmt: skip


def found_and_stored(case, gaps, alive_s):
    """Return which requests with the prefix find it, and for how long it is stored in all [s]: a walk over the requests."""
    found = np.zeros(gaps.size, dtype=bool)
    stored, ends, in_a_row = 0.0, -math.inf, 0
    now = 0.0
    for index, gap in enumerate(gaps):
        now += gap
        alive = now <= ends
        in_a_row = in_a_row + 1 if alive else 1
        if case["life"] == "creation":
            found[index] = alive
            if not alive:
                stored, ends = stored + alive_s, now + alive_s
            continue
        stored += min(gap, alive_s) if index else 0.0
        found[index] = alive and (case["life"] == "last use" or in_a_row >= 3)
        ends = now + alive_s
    return found, stored


def paid_one_by_one(case, alive_s, prefix, shares, *, cached):
    """Return the mean cost of a request with its standard error [$], every request with its own hour, batch, tier and cache."""
    random = np.random.default_rng(case["seed"])
    hours = random.choice(24, REQUESTS, p=np.array(shares) / sum(shares))
    weekend = random.random(REQUESTS) < 2 / 7
    above, dearer = case["tier"]
    rates = dearer if case["prompt"] > above else case["rates"]
    ratio = case["ratio"] * (case["service_ratio"] if case["service"] == "flex" else 1.0)
    in_batch = (random.random(REQUESTS) < case["batched"]) & (case["service"] == "standard")
    off_reads = case["batch"] if case["batch_read"] is None else case["batch_read"]
    usual, reads = 1.0 - case["batch"] * in_batch, 1.0 - off_reads * in_batch
    if case["peak"] is not None:
        dear = np.isin(hours, list(case["peak"][0])) & ~weekend
        usual, reads = (np.where(dear, part * case["peak"][1], part) for part in (usual, reads))
    has = (random.random(REQUESTS) < case["hit"]) & cached
    plain = case["prompt"] - prefix * has
    usd = usual * (plain * rates.input + case["output"] * rates.output)
    gaps = random.exponential(1.0, REQUESTS)
    times = np.cumsum(gaps)[has]
    storage = 0.0
    if times.size:
        found, stored = found_and_stored(case, np.diff(times, prepend=0.0), alive_s)
        usd[has] += np.where(found, reads[has] * rates.cache_read, usual[has] * rates.cache_write) * prefix
        storage = stored / 3600.0 * prefix * case["storage"] * case["ratio"] / REQUESTS
    usd = usd * 1e-6 * ratio
    return float(usd.mean()) + storage * 1e-6, float(usd.std()) / math.sqrt(REQUESTS)


@settings(deadline=None, max_examples=examples(12, 150))
@given(CASES)
def test_a_bill_is_the_mean_of_its_requests(case):
    """One request a second with the prefix or without; by the day a prefix is never forgotten, as its gaps follow the hour."""
    alive_s = math.inf if case["by_day"] and case["life"] != "creation" else case["gaps_alive"]
    by_day = case["by_day"] and math.isinf(alive_s)
    shares = tuple(0.1 + 0.9 * (8 <= hour < 18) for hour in range(24)) if by_day else (1.0,) * 24
    tokens = case["prompt"] * case["prefix"]
    prefix = tokens if tokens >= max(case["minimum"], 1.0) else 0.0
    item = RequestClass(
        "chat", fixed(case["prompt"]), fixed(case["output"]), 1.0, shared_prefix_tokens=tokens,
        prefix_hit_fraction=case["hit"], mean_rate_fraction=float(np.mean(shares)), hourly_rate_fractions=shares,
    )  # fmt: skip
    if by_day:
        case = case | {"storage": 0.0}
    terms = HostedTerms(batch_fraction=case["batched"], price_ratio=case["ratio"], service=case["service"])
    offer = sold_price(offer_of(case, alive_s), terms)
    traffic = hosted_traffic(item, 0.0)
    billed = billed_class(traffic, offer, terms)
    ways = [paid_one_by_one(case, alive_s, prefix, shares, cached=cached) for cached in (False, prefix > 0)]
    usd, error = min(ways)
    assert billed.bill.usd / traffic.requests == pytest.approx(usd, abs=8 * error, rel=0.01)
