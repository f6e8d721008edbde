"""One shared prefix at a hosted API: a day with and without prompt caching."""

import math
from dataclasses import dataclass

import numpy as np

from capplan.money.hosted import (
    NOT_CACHED,
    UNSTATED_TIME_TO_LIVE_S,
    TokenPrice,
    cache_ways,
    hits_and_storage,
    rates_of,
)
from capplan.money.prompt_cache import breakeven_requests, cached_prefix_usd

DAY_S = 86_400.0
DAYS_PER_MONTH = 365.0 / 12.0


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """A day of requests with one prefix, with and without caching."""

    uncached_usd_per_day: float
    cached_usd_per_day: float
    hit_fraction: float
    """Share of the requests that find the prefix."""
    breakeven_requests: int | None
    """First request within one time to live at which caching costs less than none; None where it never does."""

    @property
    def saved_usd_per_month(self) -> float:
        """Saving of a month; below zero where caching costs more."""
        return (self.uncached_usd_per_day - self.cached_usd_per_day) * DAYS_PER_MONTH


def cached_prefix(
    price: TokenPrice,
    prefix_tokens: float,
    requests_per_day: float,
    suffix_tokens: float = 0.0,
    time_to_live_s: float | None = None,
) -> CachedPrefix:
    """Return a day of requests with one prefix, with and without caching.

    The first request of the day writes the prefix; each other one finds it if the one before came within the time to live.

    Parameters
    ----------
    price : of the API; of the ways to use its cache that it sells, the cheapest counts
    prefix_tokens : [tokens]
    requests_per_day : [1/d]
        Poisson arrivals, spread over the day
    suffix_tokens : [tokens]
        after the prefix, in every request
    time_to_live_s : [s]
        that is asked for; None: any that is sold, UNSTATED_TIME_TO_LIVE_S if none is stated

    Returns
    -------
    [$/d]

    Examples
    --------
    >>> from capplan.money.hosted import TokenRates
    >>> price = TokenPrice("a", "b", TokenRates(3.0, 15.0, 0.3, 3.75), "2026", "page")
    >>> day = cached_prefix(price, 4000.0, 10_000.0)
    >>> round(day.uncached_usd_per_day, 2), round(day.cached_usd_per_day, 2), day.breakeven_requests
    (120.0, 12.01, 2)
    """
    ways = [way.price for way in cache_ways(price, time_to_live_s) if way.name != NOT_CACHED]
    days = [_day(way, prefix_tokens, requests_per_day, suffix_tokens) for way in ways or [price]]
    return min(days, key=lambda day: day.cached_usd_per_day)


def _day(
    price: TokenPrice, prefix_tokens: float, requests_per_day: float, suffix_tokens: float
) -> CachedPrefix:
    """Return a day with and without caching, cached in the one way that these prices are of."""
    rates = rates_of(price, prefix_tokens + suffix_tokens)
    uncached = 1e-6 * requests_per_day * (prefix_tokens + suffix_tokens) * rates.input
    if rates.cache_read is None or prefix_tokens < price.minimum_prefix_tokens:
        return CachedPrefix(uncached, uncached, 0.0, None)
    write = rates.input if rates.cache_write is None else rates.cache_write
    alive_s = UNSTATED_TIME_TO_LIVE_S if price.time_to_live_s is None else price.time_to_live_s
    found, stored = hits_and_storage(price, np.array([requests_per_day / DAY_S]), alive_s, 1.0)
    later = max(requests_per_day - 1.0, 0.0) / max(requests_per_day, 1.0)
    hits = later * float(found[0])
    prefix = requests_per_day * float(cached_prefix_usd(prefix_tokens, hits, rates.cache_read, write))
    hourly = price.storage_usd_per_million_tokens_hour or 0.0
    storage = 24e-6 * prefix_tokens * float(stored[0]) * hourly
    cached = prefix + 1e-6 * requests_per_day * suffix_tokens * rates.input + storage
    even = (
        breakeven_requests(
            write / rates.input, rates.cache_read / rates.input, hourly * alive_s / 3600.0 / rates.input
        )
        if rates.input
        else math.inf
    )
    return CachedPrefix(uncached, cached, hits, None if math.isinf(even) else math.floor(even) + 1)
