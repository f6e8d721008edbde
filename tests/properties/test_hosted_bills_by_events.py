"""A hosted bill against its requests one by one: tiers, lives of caches, batches, service tiers, hours of the day, all at once."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.money.hosted import Hosted, billed_class, hosted_traffic, price_on, sold_price
from capplan.money.token_price import LongerLife, PeakHours, TokenPrice, TokenRates
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
        "service": st.sampled_from(["standard", "flex", "priority"]),
        "longer": st.one_of(st.none(), st.tuples(st.floats(1.5, 12.0), st.floats(1.0, 3.0))),
        "by_itself": st.booleans(),
        "changed": st.booleans(),
        "default": st.sampled_from(["cheapest", "marked", "on request"]),
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


CHANGE = 1.7
"""Times all prices from December on."""


def of_service(rates, times):
    return TokenRates(
        rates.input * times, rates.output * times, rates.cache_read * times, rates.cache_write * times
    )


def offer_of(case, alive_s):
    above, dearer = case["tier"]
    times = case["service_ratio"]
    rates = case["rates"]
    other = tuple((name, of_service(rates, times)) for name in ("flex", "priority"))
    change = ("2026-12-01", of_service(rates, CHANGE))
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
        services=other,
        longer_life=None if case["longer"] is None else LongerLife(alive_s * case["longer"][0], case["longer"][1]),
        keeps_by_itself=case["by_itself"],
        change=change,
        marked=case["default"] == "marked",
        on_request=case["default"] == "on request",
    )  # fmt: skip


def found_and_stored(case, gaps, alive_s, life):
    """Return which requests with the prefix find it, and for how long it is stored in all [s]: a walk over the requests."""
    found = np.zeros(gaps.size, dtype=bool)
    stored, ends, in_a_row = 0.0, -math.inf, 0
    now = 0.0
    for index, gap in enumerate(gaps):
        now += gap
        alive = now <= ends
        in_a_row = in_a_row + 1 if alive else 1
        if life == "creation":
            found[index] = alive
            if not alive:
                stored, ends = stored + alive_s, now + alive_s
            continue
        stored += min(gap, alive_s) if index else 0.0
        found[index] = alive and (life == "last use" or in_a_row >= 3)
        ends = now + alive_s
    return found, stored


@dataclass(frozen=True)
class Way:
    """One way to use the cache: how long a prefix lasts, by which rule, what a write costs and whether storage does."""

    alive_s: float
    life: str
    write_ratio: float | None = None
    """Over the price of input; None: the listed price of a write."""
    stored: bool = True


def ways_of(case, alive_s):
    """Return the ways that a client may choose from, None for no cache at all."""
    ways = [None, Way(alive_s, case["life"])]
    if case["longer"] is not None:
        times, ratio = case["longer"]
        ways.append(Way(alive_s * times, case["life"], ratio))
    if case["by_itself"]:
        life = "third request" if case["life"] == "third request" else "last use"
        ways.append(Way(300.0, life, stored=False))
    return ways


def chosen_ways(case, ways):
    """Return the ways that count: all of them, or the one that an API takes if requests ask for nothing."""
    if case["default"] == "cheapest":
        return ways
    if case["default"] == "on request":
        return [None]
    return [ways[-1]] if case["by_itself"] else ["every prompt written"]


def paid_one_by_one(case, way, prefix, shares):
    """Return the mean cost of a request with its standard error [$], every request with its own hour, batch, tier and cache."""
    random = np.random.default_rng(case["seed"])
    hours = random.choice(24, REQUESTS, p=np.array(shares) / sum(shares))
    weekend = random.random(REQUESTS) < 2 / 7
    above, dearer = case["tier"]
    rates = dearer if case["prompt"] > above else case["rates"]
    ratio = case["ratio"] * (1.0 if case["service"] == "standard" else case["service_ratio"])
    ratio *= CHANGE if case["changed"] else 1.0
    in_batch = (random.random(REQUESTS) < case["batched"]) & (case["service"] == "standard")
    off_reads = case["batch"] if case["batch_read"] is None else case["batch_read"]
    usual, reads = 1.0 - case["batch"] * in_batch, 1.0 - off_reads * in_batch
    if case["peak"] is not None:
        dear = np.isin(hours, list(case["peak"][0])) & ~weekend
        usual, reads = (np.where(dear, part * case["peak"][1], part) for part in (usual, reads))
    if way == "every prompt written":  # each ends differently, so none is found
        written = case["prompt"] >= case["minimum"]
        each = rates.cache_write if written else rates.input
        usd = usual * (case["prompt"] * each + case["output"] * rates.output) * 1e-6 * ratio
        return float(usd.mean()), float(usd.std()) / math.sqrt(REQUESTS)
    has = (random.random(REQUESTS) < case["hit"]) & (way is not None) & (prefix > 0)
    plain = case["prompt"] - prefix * has
    usd = usual * (plain * rates.input + case["output"] * rates.output)
    gaps = random.exponential(1.0, REQUESTS)
    times = np.cumsum(gaps)[has]
    storage = 0.0
    if times.size:
        found, stored = found_and_stored(case, np.diff(times, prepend=0.0), way.alive_s, way.life)
        write = rates.cache_write if way.write_ratio is None else way.write_ratio * rates.input
        usd[has] += np.where(found, reads[has] * rates.cache_read, usual[has] * write) * prefix
        storage = way.stored * stored / 3600.0 * prefix * case["storage"] * case["ratio"] / REQUESTS
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
        case = case | {"storage": 0.0, "longer": None, "by_itself": False}
    caching = "cheapest" if case["default"] == "cheapest" else "default"
    terms = Hosted(
        batch_fraction=case["batched"],
        surcharge=max(case["ratio"] - 1.0, 0.0),
        discount=max(1.0 - case["ratio"], 0.0),
        service=case["service"],
        caching=caching,
    )
    day = "2026-12-01" if case["changed"] else "2026-11-30"
    offer = sold_price(price_on(offer_of(case, alive_s), day), terms)
    traffic = hosted_traffic(item, 0.0)
    billed = billed_class(traffic, offer, terms)
    ways = chosen_ways(case, ways_of(case, alive_s))
    usd, error = min(paid_one_by_one(case, way, prefix, shares) for way in ways)
    assert billed.bill.usd / traffic.requests == pytest.approx(usd, abs=8 * error, rel=0.01)
