"""How old prices are: those of hosted APIs, and what the machines of a plan are rented for."""

from collections.abc import Sequence
from datetime import UTC, date, datetime

from capplan.fleet.plan import Plan
from capplan.fleet.price import MAX_AGE_DAYS
from capplan.money.hosted import TokenPrice
from capplan.readers.catalogue.offer_terms import first_day
from capplan.readers.catalogue.token_prices import OLD_DAYS, age_days

SOON_DAYS = 120
"""A model whose provider ends it within this time is named."""


def current_day() -> date:
    """Return the day that prices are judged old by."""
    return datetime.now(tz=UTC).date()


def life_warnings(prices: Sequence[TokenPrice], time_to_live_s: float | None) -> list[str]:
    """Return a warning for each API that keeps a prefix for less time than is stated, and does not sell more."""
    return [
        f"{price.provider} states that it keeps a prefix for {price.time_to_live_s:g} s, not for {time_to_live_s:g} s, which is taken from you"
        for price in prices
        if price.rates.cache_read is not None
        and price.longer_life is None
        and not price.storage_usd_per_million_tokens_hour
        and time_to_live_s is not None
        and price.time_to_live_s is not None
        and time_to_live_s > price.time_to_live_s
    ]


def age_warnings(prices: Sequence[TokenPrice], today: date) -> tuple[str, ...]:
    """Return the warnings for prices older than OLD_DAYS or dated in the future, and for models that end soon."""
    old = [price for price in prices if age_days(price, today) > OLD_DAYS]
    early = [price for price in prices if age_days(price, today) < 0]
    warnings = []
    if old:
        named = ", ".join(f"{price.name} ({price.date})" for price in old)
        warnings.append(f"prices older than {OLD_DAYS} days, check them at the provider: {named}")
    warnings += [f"{price.name} is dated {price.date}, which is still to come" for price in early]
    warnings += [
        f"{price.name} {'ended' if first_day(price.retires) <= today else 'ends'} on {price.retires}: its provider retires it"
        for price in prices
        if price.retires is not None and (first_day(price.retires) - today).days <= SOON_DAYS
    ]
    return tuple(warnings)


def rent_warnings(plan: Plan, today: date) -> tuple[str, ...]:
    """Return the warnings for devices of the plan whose newest offer is older than MAX_AGE_DAYS, and for offers of an unknown day."""
    prices = dict.fromkeys(group.price for group in plan.groups if group.price)
    records = [record for price in prices for record in price.records]
    undated = [
        f"the price of {record.device} at {record.provider} has no date: check it there"
        for record in records
        if record.date is None
    ]
    old = [
        f"the newest price of {record.device} is of {price.newest_day}, over {MAX_AGE_DAYS} days old: check it at {record.provider}"
        for price in prices
        for record in price.records[:1]
        if price.newest_day is not None and (today - first_day(price.newest_day)).days > MAX_AGE_DAYS
    ]
    return (*undated, *old)
