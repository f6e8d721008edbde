"""Prices of hosted APIs by kind of token, and the ways to use their caches."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from capplan.keys import (
    ONLY_KNOWN_KEYS,
    Fraction,
    Limits,
    Seconds,
    TokenRatio,
    UsdPerMillionTokens,
    UsdPerPaidMillionTokens,
)
from capplan.money.prompt_cache import (
    breakeven_requests,
    cached_prefix_usd,
    fixed_life_fractions,
    hit_fractions,
)
from capplan.numbers import Array

UNSTATED_TIME_TO_LIVE_S = 300.0
"""How long a provider keeps a prefix after its last use where its price list does not say (an assumption)."""


@dataclass(frozen=True, slots=True)
class TokenRates:
    """Dollars per million tokens, by kind."""

    __pydantic_config__ = ONLY_KNOWN_KEYS
    input: UsdPerPaidMillionTokens
    output: UsdPerPaidMillionTokens
    cache_read: UsdPerMillionTokens | None = None
    """Price of input that the cache has; none: the provider sells no cached input."""
    cache_write: UsdPerMillionTokens | None = None
    """Price of input that is written to the cache; none: as other input."""


@dataclass(frozen=True, slots=True)
class LongerLife:
    """A longer time to live that a provider sells."""

    __pydantic_config__ = ONLY_KNOWN_KEYS
    time_to_live: Seconds
    """Time that a cached prefix stays after its last use."""
    write_ratio: Annotated[float, Limits(1, 100)]
    """Price of a cache write over the price of input."""


@dataclass(frozen=True, slots=True)
class PeakHours:
    """Hours of the day at which a provider asks for more."""

    __pydantic_config__ = ONLY_KNOWN_KEYS
    hours_utc: tuple[Annotated[int, Limits(0, 23)], ...]
    """Hours of the day in UTC, by their first minute."""
    ratio: Annotated[float, Limits(1, 100)]
    """Price in these hours over the listed price."""
    day_fraction: Fraction = 5.0 / 7.0
    """Share of the days that have such hours; working days if not stated."""

    def __post_init__(self) -> None:
        """Raise the error for a peak without hours."""
        if not self.hours_utc:
            raise ValueError("hours_utc names no hour")

    def mean_ratio(self, rates_per_s: Array) -> float:
        """Return the ratio of the mean to the usual price, by the rates of all hours of the day in UTC, or by one rate.

            v = sum_h r_h (1 + d (p - 1) [h at the peak]) / sum_h r_h

        Returns
        -------
        [-]
            v: rates r, price ratio p on the share d of the days

        Examples
        --------
        Seven hours at twice the price on working days, requests at all hours alike:

        >>> round(PeakHours((1, 2, 3, 6, 7, 8, 9), 2.0).mean_ratio(np.array([5.0])), 4)
        1.2083
        """
        rates = np.broadcast_to(rates_per_s, (24,)) if rates_per_s.size == 1 else rates_per_s
        dearer = np.zeros(24)
        dearer[list(self.hours_utc)] = self.day_fraction * (self.ratio - 1.0)
        return float(1.0 + (rates * dearer).sum() / rates.sum()) if rates.sum() else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """What decides how a provider bills prompts that repeat."""

    __pydantic_config__ = ONLY_KNOWN_KEYS
    from_creation: bool = False
    """Whether the time to live runs from the creation of the cache, and a hit does not renew it."""
    keeps_by_itself: bool = False
    """Whether prompts are also cached without a request for it, without storage and without a stated time."""
    whole_units: bool = False
    """Whether a common prefix is stored at the second request that has it, so that the third request finds it."""
    marked: bool = False
    """Whether a prefix is found at marked ends only."""
    on_request: bool = False
    """Whether nothing is cached unless a request asks for it."""
    several_answers: bool = False
    """Whether a request may ask for several answers (`n`), and its prompt is billed once."""
    peak: PeakHours | None = None
    """Hours of higher prices."""
    token_ratio: TokenRatio = 1.0
    """Tokens that the provider counts for the text of one token of other models."""


@dataclass(frozen=True, slots=True)
class TokenPrice(CacheRules):
    """Prices of a hosted API, and the terms of its cache and its batches."""

    provider: str
    model: str
    rates: TokenRates
    date: str
    source: str
    serves: str | None = None
    """The open model behind the name, if there is one."""
    tiers: tuple[tuple[float, TokenRates], ...] = ()
    """(tokens of the prompt above which they hold, for all tokens of the request), ascending."""
    context_tokens: int | None = None
    storage_usd_per_million_tokens_hour: float | None = 0.0
    """Price of tokens that stay in the cache; None: there is such a price, and it is not known."""
    minimum_prefix_tokens: float = 0.0
    """Shorter prefixes are not cached."""
    time_to_live_s: float | None = None
    """Time that a cached prefix stays after its last use; None: not stated."""
    batch_discount_fraction: float = 0.0
    batch_read_discount_fraction: float | None = None
    """Discount on cache reads in batches; None: the same as on all else."""
    longer_life: LongerLife | None = None
    """None: a prefix costs the same to write, however long it lives."""
    change: tuple[str, TokenRates] | None = None
    """Day from which other prices hold, and these prices, if the provider announced some."""
    retires: str | None = None
    """Day on which the provider ends the model."""
    services: tuple[tuple[str, TokenRates], ...] = ()
    """Other service tiers by name, with their prices."""

    @property
    def name(self) -> str:
        """PROVIDER/MODEL."""
        return f"{self.provider}/{self.model}"

    def at_rates(self, changed: Callable[[TokenRates], TokenRates]) -> "TokenPrice":
        """Return the price with other rates, in each tier of the prompt length."""
        tiers = tuple((above, changed(rates)) for above, rates in self.tiers)
        return replace(self, rates=changed(self.rates), tiers=tiers)


def rates_of(price: TokenPrice, prompt_tokens: float) -> TokenRates:
    """Return the prices that hold for a prompt of this length: those of the last tier whose start it exceeds.

    Examples
    --------
    >>> price = TokenPrice("a", "b", TokenRates(1.0, 2.0), "2026", "page", tiers=((200_000.0, TokenRates(2.0, 3.0)),))
    >>> rates_of(price, 200_000.0).input, rates_of(price, 200_001.0).input
    (1.0, 2.0)
    """
    reached = [rates for above, rates in price.tiers if prompt_tokens > above]
    return reached[-1] if reached else price.rates


def written_to_live(price: TokenPrice, time_to_live_s: float | None) -> TokenPrice:
    """Return a price with the writes that a time to live costs, beyond the usual one those of the longer life on sale.

    Examples
    --------
    >>> price = TokenPrice("a", "b", TokenRates(3.0, 15.0, 0.3, 3.75), "2026", "page", time_to_live_s=300.0, longer_life=LongerLife(3600.0, 2.0))
    >>> written_to_live(price, 3600.0).rates.cache_write, written_to_live(price, 300.0).rates.cache_write
    (6.0, 3.75)
    """
    longer = price.longer_life
    if longer is None or time_to_live_s is None or time_to_live_s <= (price.time_to_live_s or 0.0):
        return price
    ratio = longer.write_ratio
    return price.at_rates(lambda rates: replace(rates, cache_write=ratio * rates.input))


@dataclass(frozen=True, slots=True)
class CacheWay:
    """A way to use the cache of an API, with the prices and terms that it has then."""

    name: str
    price: TokenPrice


NOT_CACHED, BY_ITSELF, WRITTEN_ANEW = "not cached", "kept by itself", "every prompt written"


def default_way(price: TokenPrice, time_to_live_s: float | None) -> CacheWay:
    """Return how an API uses its cache if requests ask for nothing.

    Where prefixes are found only at marked ends, the default mark is the end of the prompt: prompts with other ends find
    nothing, and each of at least the shortest length is written.

    Examples
    --------
    >>> marked = TokenPrice("a", "b", TokenRates(2.0, 9.0, 0.2, 2.5), "2026", "page", marked=True, minimum_prefix_tokens=1024.0)
    >>> way = default_way(marked, None)
    >>> way.name, rates_of(way.price, 1023.0).input, rates_of(way.price, 1024.0).input
    ('every prompt written', 2.0, 2.5)
    """
    ways = {way.name: way for way in cache_ways(price, time_to_live_s)}
    if price.on_request or len(ways) == 1:
        return ways[NOT_CACHED]
    if price.keeps_by_itself:
        return ways[BY_ITSELF]
    if not price.marked:
        return list(ways.values())[1]

    def written(rates: TokenRates) -> TokenRates:
        return replace(
            rates, input=rates.input if rates.cache_write is None else rates.cache_write, cache_read=None
        )

    shortest, every = price.minimum_prefix_tokens, price.at_rates(written)
    if shortest:
        begin = (shortest - 1.0, every.rates)
        every = replace(every, rates=replace(price.rates, cache_read=None), tiers=(begin, *every.tiers))
    return CacheWay(WRITTEN_ANEW, every)


def cache_ways(price: TokenPrice, time_to_live_s: float | None) -> tuple[CacheWay, ...]:
    """Return the ways to use the cache of an API, of which a client takes the cheapest for its traffic.

    Parameters
    ----------
    price : of the API
    time_to_live_s : [s]
        that a scenario asks for; None: any that is sold

    Returns
    -------
    ways; without cached input on sale the one without

    Examples
    --------
    >>> claude = TokenPrice("a", "b", TokenRates(3.0, 15.0, 0.3, 3.75), "2026", "page", time_to_live_s=300.0, longer_life=LongerLife(3600.0, 2.0))
    >>> [way.name for way in cache_ways(claude, None)]
    ['not cached', 'kept for 300 s', 'kept for 3600 s']
    >>> [way.name for way in cache_ways(claude, 3600.0)]
    ['not cached', 'kept for 3600 s']
    """
    ways = [CacheWay(NOT_CACHED, price.at_rates(lambda rates: replace(rates, cache_read=None)))]
    if price.rates.cache_read is None:
        return tuple(ways)
    if price.keeps_by_itself:
        free = replace(
            price, storage_usd_per_million_tokens_hour=0.0, time_to_live_s=None, from_creation=False
        )
        ways.append(CacheWay(BY_ITSELF, free))
    if price.storage_usd_per_million_tokens_hour is not None:
        lives = [price.time_to_live_s if time_to_live_s is None else time_to_live_s]
        if time_to_live_s is None and price.longer_life is not None:
            lives.append(price.longer_life.time_to_live)
        for life in lives:
            name = "cached" if life is None else f"kept for {life:g} s"
            ways.append(CacheWay(name, replace(written_to_live(price, life), time_to_live_s=life)))
    return tuple(ways)


def hits_and_storage(
    price: TokenPrice, rates_per_s: Array, alive_s: float, arrival_cv: float
) -> tuple[Array, Array]:
    """Return the share of requests that find their prefix and the share of the time in which it is stored, by the rule of the API.

    Parameters
    ----------
    price : says what a life counts from, and whether a prefix is stored at once
    rates_per_s : [1/s]
        requests with the prefix, by hour
    alive_s : [s]
        life of a prefix
    arrival_cv : [-]
        of the time between them

    Returns
    -------
    found, stored [-]
    """
    if price.from_creation:
        return fixed_life_fractions(rates_per_s, alive_s, arrival_cv)
    found, stored = hit_fractions(rates_per_s, alive_s, arrival_cv)
    return (found**2 if price.whole_units else found), stored


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
    >>> from capplan.money.token_price import TokenRates
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
    """Return the cost of a day without caching, and with the one way of caching that these prices belong to."""
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
