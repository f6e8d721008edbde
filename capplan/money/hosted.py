"""A month of traffic at a hosted API: what decides the bill of a class of requests, by the token or by the hour."""

import math
from dataclasses import dataclass, field, fields, replace
from math import ceil
from typing import Literal

import numpy as np

from capplan.keys import (
    ONLY_KNOWN_KEYS,
    Day,
    Discount,
    Fraction,
    Number,
    Seconds,
    TokenRatio,
    UsdPerHour,
)
from capplan.money.price import HOURS_PER_MONTH
from capplan.money.token_price import (
    UNSTATED_TIME_TO_LIVE_S,
    CacheWay,
    TokenPrice,
    TokenRates,
    cache_ways,
    default_way,
    hits_and_storage,
)
from capplan.numbers import Array
from capplan.serving.steady_state import replica_arrival_cv
from capplan.workload.request_class import SLICES, RequestClass
from capplan.workload.reuse import Reuse


@dataclass(frozen=True, slots=True)
class Provisioned:
    """Throughput that you rent from a hosted API by the hour, in units, instead of paying by the token."""

    __pydantic_config__ = ONLY_KNOWN_KEYS
    price: UsdPerHour
    """Price of one unit."""
    tokens_per_minute: Number
    """Tokens that one unit takes: input that the cache does not have, and weighted output."""
    output_weight: Number = 1.0
    """Input tokens that one output token counts as; 1 if not stated."""
    least: Number = 1.0
    """Fewest units on sale; 1 if not stated."""
    step: Number = 1.0
    """Units are sold in multiples of this; 1 if not stated."""

    def units(self, tokens_per_s: float) -> float:
        """Return the units that take a load.

            n = max(l, s ceil(60 r / (t s)))

        Parameters
        ----------
        tokens_per_s : [token/s]
            r, at the peak; t tokens a minute each, sold from l on in steps of s

        Returns
        -------
        [-]
            n

        Examples
        --------
        >>> Provisioned(1.0, 2400.0, least=15.0, step=5.0).units(700.0)
        20.0
        """
        steps = ceil(tokens_per_s / (self.tokens_per_minute / 60.0 * self.step) - 1e-9)
        return max(self.least, self.step * steps)


@dataclass(frozen=True, slots=True)
class Hosted:
    """How hosted APIs are used, for `capplan compare`."""

    __pydantic_config__ = ONLY_KNOWN_KEYS
    time_to_live: Seconds | None = None
    """Time that a cached prefix is kept after its last use."""
    prefixes: Number = 1.0
    """Different shared prefixes, each with an equal part of the requests."""
    batch_fraction: Fraction | None = None
    """Share of the requests whose answer may take a day."""
    file: str | None = None
    """Your own token-price YAML, or the price file of LiteLLM with its date, relative to this file."""
    date: Day | None = None
    """Date of the prices in the file of LiteLLM, which states none."""
    discount: Discount = 0.0
    """Your discount on every listed price."""
    surcharge: Fraction = 0.0
    """Surcharge on every listed price, such as 10% for data residency."""
    service: Literal["standard", "flex", "priority"] = "standard"
    """Service tier that requests are sent to; default: standard."""
    caching: Literal["cheapest", "default"] = "cheapest"
    """Use of the prompt cache: in the cheapest way, or as the API does if requests ask for nothing; default: cheapest."""
    provisioned: Provisioned | None = None
    """Throughput that you rent by the hour, instead of paying by the token."""
    token_ratios: dict[str, TokenRatio] = field(default_factory=dict)
    """Tokens that each provider counts for one token of the scenario's model."""

    @property
    def price_ratio(self) -> float:
        """Return the prices paid over those listed; the discount applies to the prices with the surcharge.

            r = (1 + s) (1 - d)

        Returns
        -------
        [-]
            r: surcharge s, discount d
        """
        return (1.0 + self.surcharge) * (1.0 - self.discount)


@dataclass(frozen=True, slots=True)
class HostedBill:
    """Dollars of a month, or of one batch job."""

    input_usd: float = 0.0
    """Prompt tokens that are neither written to the cache nor read from it."""
    output_usd: float = 0.0
    cache_write_usd: float = 0.0
    cache_read_usd: float = 0.0
    storage_usd: float = 0.0
    provisioned_usd: float = 0.0
    """Throughput that is rented by the hour, instead of all of the above."""
    outside_usd: float = 0.0
    """Retrieval and tools, which cost the same whoever serves the model."""

    @property
    def usd(self) -> float:
        """Return all of it.

            c = i + o + w + k + s + t + x

        Returns
        -------
        [$]
            c: input i, output o, cache writes w, reads k and storage s, or throughput t by the hour; and x outside
        """
        return float(sum(getattr(self, part.name) for part in fields(self)))

    def plus(self, other: "HostedBill") -> "HostedBill":
        """Return the sum of two bills."""
        return HostedBill(*(getattr(self, p.name) + getattr(other, p.name) for p in fields(self)))


@dataclass(frozen=True, slots=True)
class PerRequest:
    """Mean dollars of one request of a class."""

    input_usd: float
    output_usd: float
    prefix_input_usd: float = 0.0
    """Its prefix, paid as plain input."""
    prefix_read_usd: float = 0.0
    prefix_write_usd: float = 0.0
    prefix_tokens: float = 0.0
    """The longest prefix that is kept."""
    mean_prefix_tokens: float = 0.0


BATCH_WINDOW_S = 86_400.0
"""Time in which batch endpoints answer; a job that has at least this long is sent there."""


@dataclass(frozen=True, slots=True)
class HostedTraffic:
    """Requests of one class as a hosted API sees them."""

    request_class: RequestClass
    rates_per_s: Array
    """Request rate by hour of the day, or one number."""
    hours: float = HOURS_PER_MONTH
    """Duration of the traffic: a month, or one job."""
    reuse: Reuse | None = None
    """What prompts repeat of earlier ones, where a trace names their blocks or sessions send them again; instead of a shared prefix."""

    def answers_at(self, price: TokenPrice) -> float:
        """Return the answers that one request to an API asks for: all samples of a prompt if the API bills the prompt once for them."""
        return self.request_class.samples if price.several_answers else 1.0

    @property
    def requests(self) -> float:
        """Return how many there are in that time; each of several sequences counts."""
        return float(self.rates_per_s.mean()) * self.hours * 3600.0


@dataclass(frozen=True, slots=True)
class BilledClass:
    """What decides the cost of one class at a hosted API."""

    each: PerRequest
    requests: float
    batch_fraction: float
    """Discount on the price of what is sent in batches."""
    batch_read_fraction: float
    """Discount on cache reads in batches, which some providers do not give."""
    peak_ratio: float
    """Mean price over that of the cheap hours, by the hours at which requests come."""
    way: CacheWay
    """How the cache is used: the cheapest way."""
    prefix_fraction: float
    """Share of the requests that have the shared prefix."""
    hit_fraction: float
    """Share of those whose prefix the API still has."""
    stored_token_hours: float = 0.0
    """Tokens of prefixes by the hours that they are kept [10^6 token h]."""
    storage_usd: float = 0.0
    """Price of storage per million tokens and hour."""

    @property
    def paid_requests(self) -> float:
        """Return the requests, those in batches counted by what they pay.

            m = n (1 - q) v

        Returns
        -------
        [requests]
            m, of n with the part q off, at v times the price of the cheap hours
        """
        return self.requests * (1.0 - self.batch_fraction) * self.peak_ratio

    @property
    def paid_reads(self) -> float:
        """Return the requests whose cache reads are paid for, those in batches counted by what they pay.

            j = n (1 - b) v

        Returns
        -------
        [requests]
            j, of n with the part b off cache reads, at v times the price of the cheap hours
        """
        return self.requests * (1.0 - self.batch_read_fraction) * self.peak_ratio

    @property
    def input_usd(self) -> float:
        """Return what prompts cost that the cache has no part in.

            u = m (a - s d)

        Returns
        -------
        [$]
            u: plain input a of a request, of which the share s has a prefix d
        """
        return self.paid_requests * (self.each.input_usd - self.prefix_fraction * self.each.prefix_input_usd)

    @property
    def output_usd(self) -> float:
        """Return what outputs cost.

            u = m o

        Returns
        -------
        [$]
            u: output o of a request
        """
        return self.paid_requests * self.each.output_usd

    @property
    def cache_write_usd(self) -> float:
        """Return what prefixes cost that the cache does not have.

            u = m s (1 - f) w

        Returns
        -------
        [$]
            u: the prefix w to write, of a request that has one and does not find it
        """
        missed = self.paid_requests * self.prefix_fraction * (1.0 - self.hit_fraction)
        return missed * self.each.prefix_write_usd

    @property
    def cache_read_usd(self) -> float:
        """Return what prefixes cost that the cache has.

            u = j s f k

        Returns
        -------
        [$]
            u: the prefix k to read, of a request that finds it
        """
        return self.paid_reads * self.prefix_fraction * self.hit_fraction * self.each.prefix_read_usd

    @property
    def cache_storage_usd(self) -> float:
        """Return what it costs to keep prefixes.

            u = h g

        Returns
        -------
        [$]
            u: h kept, at the price g
        """
        return self.stored_token_hours * self.storage_usd

    @property
    def bill(self) -> HostedBill:
        """Return all parts."""
        return HostedBill(
            self.input_usd, self.output_usd, self.cache_write_usd, self.cache_read_usd, self.cache_storage_usd
        )


def hosted_traffic(
    request_class: RequestClass, response_s: float, reuse: Reuse | None = None
) -> HostedTraffic:
    """Return a class as a hosted API sees it: its rate by hour of the day; a batch job while it runs."""
    peak = request_class.request_rate_at(response_s)
    if request_class.job_requests is not None:
        return HostedTraffic(
            request_class, np.array([peak]), request_class.job_requests / peak / 3600.0, reuse
        )
    shares = np.array(request_class.hourly_rate_fractions or (request_class.mean_rate_fraction,))
    return HostedTraffic(request_class, peak * shares, reuse=reuse)


def per_request(request_class: RequestClass, price: TokenPrice) -> PerRequest:
    """Return the mean cost of a request, each by the tier of its own prompt length."""
    prompts = request_class.input_tokens.midpoints(SLICES)
    tier = np.searchsorted(np.array([above for above, _ in price.tiers]), prompts, side="left")
    lists = (price.rates, *(rates for _, rates in price.tiers))

    def by_tier(pick: tuple[float, ...]) -> Array:
        return np.asarray(np.array(pick)[tier] * 1e-6)

    inputs = by_tier(tuple(rates.input for rates in lists))
    outputs = by_tier(tuple(rates.output for rates in lists))
    plain = PerRequest(
        float((prompts * inputs).mean()), float(outputs.mean()) * request_class.generated_tokens
    )
    if price.rates.cache_read is None or request_class.shared_prefix_tokens <= 0.0:
        return plain
    reads = by_tier(
        tuple(rates.cache_read if rates.cache_read is not None else rates.input for rates in lists)
    )
    writes = by_tier(
        tuple(rates.cache_write if rates.cache_write is not None else rates.input for rates in lists)
    )
    held = np.minimum(prompts, request_class.shared_prefix_tokens)
    held = np.where(held >= max(price.minimum_prefix_tokens, 1.0), held, 0.0)
    return PerRequest(
        plain.input_usd,
        plain.output_usd,
        float((held * inputs).mean()),
        float((held * reads).mean()),
        float((held * writes).mean()),
        float(held.max()),
        float(held.mean()),
    )


def price_on(price: TokenPrice, day: str) -> TokenPrice:
    """Return the price that holds on a day: what its provider announced, from the day of the change on.

    Examples
    --------
    >>> price = TokenPrice("a", "b", TokenRates(2.0, 10.0), "2026-11", "page", change=("2026-12-01", TokenRates(4.0, 20.0)))
    >>> price_on(price, "2026-11-30").rates.input, price_on(price, "2026-12-01").rates.input
    (2.0, 4.0)
    """
    if price.change is None:
        return price
    first_day, changed = price.change
    if day < first_day:
        return price
    return replace(
        price,
        rates=changed,
        tiers=tuple((above, _times(rates, price.rates, changed)) for above, rates in price.tiers),
        services=tuple((name, _times(rates, price.rates, changed)) for name, rates in price.services),
        change=None,
    )


def _times(rates: TokenRates, before: TokenRates, after: TokenRates) -> TokenRates:
    """Return prices that move as those of the standard tier did, kind by kind; what has no price of its own moves as input."""

    def moved(kind: str) -> float | None:
        value, old, new = (getattr(each, kind) for each in (rates, before, after))
        known = old is not None and new is not None and old > 0.0
        return None if value is None else value * (new / old if known else after.input / before.input)

    inputs, outputs = (rates.input * after.input / before.input, rates.output * after.output / before.output)
    return TokenRates(inputs, outputs, moved("cache_read"), moved("cache_write"))


def sold_price(price: TokenPrice, terms: Hosted) -> TokenPrice:
    """Return a price as a client pays it, for the tokens of the scenario's model.

        p' = p (1 + s) (1 - d) c,   l' = l / c

    Parameters
    ----------
    price : as listed: prices p of the service tier, and lengths l of tiers, prefixes and contexts in tokens
    of the provider
    terms : of the client: surcharge s, discount d, and c tokens that the provider counts for one of the scenario's model

    Returns
    -------
    the price with p' for each token of the scenario's model, and with lengths l' in such tokens

    Examples
    --------
    >>> price = TokenPrice("a", "b", TokenRates(2.0, 10.0), "2026-11", "page", services=(("flex", TokenRates(1.0, 5.0)),))
    >>> sold_price(price, Hosted(discount=0.1)).rates.output, sold_price(price, Hosted(service="flex")).rates.input
    (9.0, 1.0)
    """
    listed = dict(price.services).get(terms.service, price.rates)
    counted = terms.token_ratios.get(price.provider, price.token_ratio)
    ratio = terms.price_ratio * counted

    def paid(rates: TokenRates) -> TokenRates:
        read, write = rates.cache_read, rates.cache_write
        return TokenRates(
            rates.input * ratio,
            rates.output * ratio,
            None if read is None else read * ratio,
            None if write is None else write * ratio,
        )

    stored = price.storage_usd_per_million_tokens_hour
    return replace(
        price,
        rates=paid(listed),
        tiers=tuple(
            (above / counted, paid(_times(rates, price.rates, listed))) for above, rates in price.tiers
        ),
        storage_usd_per_million_tokens_hour=None if stored is None else stored * ratio,
        minimum_prefix_tokens=price.minimum_prefix_tokens / counted,
        context_tokens=None if price.context_tokens is None else int(price.context_tokens / counted),
        token_ratio=counted,
        batch_discount_fraction=price.batch_discount_fraction if terms.service == "standard" else 0.0,
        batch_read_discount_fraction=price.batch_read_discount_fraction
        if terms.service == "standard"
        else None,
    )


def time_to_live_s(price: TokenPrice, terms: Hosted) -> float:
    """Return how long a prefix is kept after its last use: the scenario's, the provider's, or the assumed time; what is kept by itself is promised for no longer."""
    stated = terms.time_to_live if terms.time_to_live is not None else price.time_to_live_s
    if price.keeps_by_itself and price.time_to_live_s is None:
        return min(UNSTATED_TIME_TO_LIVE_S, stated or UNSTATED_TIME_TO_LIVE_S)
    return UNSTATED_TIME_TO_LIVE_S if stated is None else stated


def _batched_fraction(traffic: HostedTraffic, terms: Hosted) -> float:
    if terms.batch_fraction is not None:
        return terms.batch_fraction
    has_a_day = traffic.request_class.job_requests is not None and 3600.0 * traffic.hours >= BATCH_WINDOW_S
    return 1.0 if has_a_day else 0.0


def billed_class(
    traffic: HostedTraffic, price: TokenPrice, terms: Hosted, load_ratio: float = 1.0
) -> BilledClass:
    """Return what decides the cost of one class at a hosted API, with the cheapest way to use its cache.

        n (a + o - s d) + n s (f k + (1 - f) w) + storage,   all but storage times 1 - b q

    Parameters
    ----------
    traffic : n requests, of which the share s has the shared prefix
    price : dollars per request as plain input a and output o; of the prefix as input d, read k and written w; batch discount q
    terms : life and number of prefixes, which decide the share f that is found; batch share b; whether the
    cheapest way counts or what the API does by default
    load_ratio : [-]
        times the traffic

    Returns
    -------
    [$]
    """
    ways = cache_ways(price, terms.time_to_live)
    if terms.caching == "default":
        sessions = price.marked and traffic.request_class.sessions is not None
        ways = ways[-1:] if sessions else (default_way(price, terms.time_to_live),)
    if traffic.reuse is not None:
        ways = tuple(way for way in ways if not _paid_by_the_hour(way.price)) or ways[:1]
    return min((_billed_way(traffic, way, terms, load_ratio) for way in ways), key=lambda each: each.bill.usd)


def _paid_by_the_hour(price: TokenPrice) -> bool:
    """Return whether what is kept is paid for by the hour, which nobody buys for every prompt of a trace or a session."""
    return price.rates.cache_read is not None and price.storage_usd_per_million_tokens_hour != 0.0


def _billed_way(traffic: HostedTraffic, way: CacheWay, terms: Hosted, load_ratio: float) -> BilledClass:
    """Return what decides the cost of one class with one way to use the cache.

    Of prompts that repeat earlier ones what is found is read, and all else of those that are long enough to be kept is written.
    """
    price, request_class = way.price, traffic.request_class
    reuse = None if price.rates.cache_read is None else traffic.reuse
    if reuse is not None:
        request_class = replace(request_class, shared_prefix_tokens=math.inf)
    each, answers = per_request(request_class, price), traffic.answers_at(price)
    rates, alive_s = traffic.rates_per_s * load_ratio / answers, time_to_live_s(price, terms)
    share = request_class.prefix_hit_fraction if each.prefix_tokens else 0.0
    storage = price.storage_usd_per_million_tokens_hour if share and reuse is None else 0.0
    assert storage is not None
    hits, stored = np.zeros(1), 0.0
    if reuse is not None:
        share = 1.0
        hits = np.array([reuse.hit_fraction(alive_s, float(rate)) if rate else 0.0 for rate in rates])
    elif share:
        apart = terms.prefixes / share
        cv = float(replica_arrival_cv(request_class.arrival_cv, apart, "random"))
        hits, kept = hits_and_storage(price, rates / apart, alive_s, cv)
        stored = float(kept.mean()) * traffic.hours * terms.prefixes * each.prefix_tokens * 1e-6
    batched, usual = _batched_fraction(traffic, terms), price.batch_discount_fraction
    reads = price.batch_read_discount_fraction
    return BilledClass(
        replace(each, output_usd=each.output_usd * answers),
        float(rates.mean()) * traffic.hours * 3600.0,
        usual * batched,
        (usual if reads is None else reads) * batched,
        1.0 if price.peak is None else price.peak.mean_ratio(rates),
        way,
        share,
        float((hits * rates).sum() / rates.sum()) if share else 0.0,
        stored,
        storage,
    )


def keeps_a_prefix(request_class: RequestClass, price: TokenPrice) -> bool:
    """Return whether a hosted API keeps the shared prefix of a class."""
    return request_class.prefix_hit_fraction > 0.0 and per_request(request_class, price).prefix_tokens > 0.0


def hosted_bill(
    traffic: tuple[HostedTraffic, ...], price: TokenPrice, terms: Hosted, load_ratio: float = 1.0
) -> HostedBill:
    """Return what all classes cost at a hosted API [$], at some times the traffic."""
    bill = HostedBill()
    if terms.provisioned is not None:
        units = provisioned_units(traffic, price, terms, load_ratio)
        bill = HostedBill(provisioned_usd=units * terms.provisioned.price * traffic[0].hours)
    else:
        for part in traffic:
            bill = bill.plus(billed_class(part, price, terms, load_ratio).bill)
    return replace(bill, outside_usd=load_ratio * outside_usd(traffic))


def provisioned_units(
    traffic: tuple[HostedTraffic, ...], price: TokenPrice, terms: Hosted, load_ratio: float = 1.0
) -> float:
    """Return the units of throughput to rent for the busiest hour of all classes, at some times the traffic.

        r = max_h sum_c r_ch (a_c - s_c f_c d_c + w o_c)

    Parameters
    ----------
    traffic : rates r of classes c by hour h; a request has a input tokens and o output tokens, and finds f of the prefix d of s
    price : whose cache is used
    terms : with the units on sale and the weight w of an output token
    load_ratio : [-]
        times the traffic
    """
    sold = terms.provisioned
    assert sold is not None
    by_hour = np.zeros(24)
    for part in traffic:
        billed = billed_class(part, price, terms, load_ratio)
        found = billed.prefix_fraction * billed.hit_fraction * billed.each.mean_prefix_tokens
        request = part.request_class
        prompt = float(request.input_tokens.midpoints(SLICES).mean())
        answers = part.answers_at(price)
        tokens = prompt - found + sold.output_weight * answers * request.generated_tokens
        by_hour += (
            np.broadcast_to(part.rates_per_s, (24,)) * load_ratio / answers * tokens * price.token_ratio
        )
    return sold.units(float(by_hour.max()))


def outside_usd(traffic: tuple[HostedTraffic, ...]) -> float:
    """Return what the requests of all classes cost outside, in a month or in one job [$]; those of several sequences count once."""
    return sum(
        part.requests / part.request_class.sequences_per_request * part.request_class.outside.usd_per_request
        for part in traffic
    )


def tokens_of(traffic: tuple[HostedTraffic, ...], hours: float) -> tuple[float, float]:
    """Return the input tokens that requests send in some hours, and the tokens that they get; a prompt with several answers is sent once."""
    inputs = outputs = 0.0
    for part in traffic:
        item, sent = part.request_class, part.requests * hours / part.hours
        inputs += sent / item.sequences_per_request * item.input_tokens.mean_tokens
        outputs += sent * item.generated_tokens
    return inputs, outputs


def too_long_fraction(traffic: tuple[HostedTraffic, ...], price: TokenPrice) -> float:
    """Return the share of the requests that are longer than the context of a hosted model."""
    if price.context_tokens is None:
        return 0.0
    weights = np.array([float(part.rates_per_s.mean()) * part.hours for part in traffic])
    outputs = [part.request_class.generated_tokens for part in traffic]
    over = [
        float(np.mean(part.request_class.input_tokens.midpoints(SLICES) + output > price.context_tokens))
        for part, output in zip(traffic, outputs, strict=True)
    ]
    return float((weights * np.array(over)).sum() / weights.sum())
