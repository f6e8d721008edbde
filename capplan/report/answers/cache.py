"""What `capplan cache` shows."""

from collections.abc import Sequence

from capplan.assumption import Assumption
from capplan.money.hosted import UNSTATED_TIME_TO_LIVE_S, CachedPrefix, TokenPrice
from capplan.report.answer import Answer, Table

_TITLES = {
    "hit_fraction": "requests that find the prefix",
}


def cache_answer(
    day: CachedPrefix,
    price: TokenPrice,
    prefix_tokens: int,
    time_to_live_s: float | None,
    warnings: Sequence[str],
) -> Answer:
    """Return a day with and without caching, and from which request on it pays."""
    row = {
        "uncached_usd_per_day": day.uncached_usd_per_day,
        "cached_usd_per_day": day.cached_usd_per_day,
        "saved_usd_per_month": day.saved_usd_per_month,
        "breakeven_requests": day.breakeven_requests,
        "hit_fraction": day.hit_fraction,
    }
    by_name = price.provider != price.source
    named = f"{price.name} (prices of {price.date})" if by_name else "the prices given"
    assumed = [Assumption("arrivals are a Poisson process, spread over the day", "--requests-per-day")]
    if time_to_live_s is None and price.time_to_live_s is None:
        what = f"a prefix lives {UNSTATED_TIME_TO_LIVE_S:g} s after its last use"
        assumed.append(Assumption(what, "--time-to-live"))
    return Answer(
        command="cache",
        result={
            **row,
            "provider": price.provider,
            "model": price.model,
            "date": price.date if by_name else None,
        },
        tables=(Table([row], title="Prompt caching", titles=_TITLES, upright=True),),
        headline=_headline(day, price, prefix_tokens, named),
        assumptions=tuple(assumed),
        warnings=tuple(warnings),
    )


def _headline(day: CachedPrefix, price: TokenPrice, prefix_tokens: int, named: str) -> str:
    if price.rates.cache_read is None:
        return f"{named}: sells no cached input"
    if prefix_tokens < price.minimum_prefix_tokens:
        return f"{named}: a prefix of {prefix_tokens:,} tokens is not cached; the minimum is {price.minimum_prefix_tokens:,.0f}"
    change = "saves" if day.saved_usd_per_month >= 0 else "costs another"
    return (
        f"{named}: caching {change} ${abs(day.saved_usd_per_month):,.0f} per month: "
        f"${day.cached_usd_per_day:,.2f} a day instead of ${day.uncached_usd_per_day:,.2f}"
    )
