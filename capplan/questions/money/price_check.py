"""What of the prices is old, retired, or contradicted by another offer or by a newer list."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from capplan.fleet.plan import Plan
from capplan.fleet.price import MAX_AGE_DAYS, ChosenPrice, PriceChoice, choose_price
from capplan.money.hosted import TokenPrice
from capplan.readers.catalogue.hardware import device_names
from capplan.readers.catalogue.offer_terms import first_day
from capplan.readers.catalogue.prices import price_records
from capplan.readers.catalogue.token_prices import OLD_DAYS, TokenOffer, age_days, token_offers

FAR_APART = 3.0
"""Offers of one device that differ by more than this are named."""
SAME_WITHIN = 0.01
"""Prices of two lists that differ by less are the same."""

Row = Mapping[str, Any]


def checked_devices(today: date) -> Iterator[Row]:
    """Yield each device that is offered on demand, with the price that plans take and what is to be known of it."""
    records = price_records()
    for name in device_names():
        chosen = choose_price(records, name, PriceChoice())
        if chosen is not None:
            yield {
                "hardware": name,
                "usd_per_gpu_hour": chosen.usd_per_hour,
                "offers": chosen.offers,
                "newest": chosen.newest_day,
                "remark": "; ".join(_device_remarks(chosen, today)) or None,
            }


def _device_remarks(price: ChosenPrice, today: date) -> Iterator[str]:
    if price.newest_day is None:
        yield "no offer has a date"
    elif (age := (today - first_day(price.newest_day)).days) > MAX_AGE_DAYS:
        yield f"old: the newest offer is {age} days old"
    if price.estimated:
        yield "an estimate: nobody lists a price"
    elif price.offers == 1:
        yield "one offer"
    low, high = price.low_usd_per_hour, price.high_usd_per_hour
    if high > FAR_APART * low:
        assert price.lowest is not None
        assert price.highest is not None
        yield f"far apart: {price.lowest.provider} {low:.2f}, {price.highest.provider} {high:.2f} $/h"


def checked_apis(today: date, newer: Sequence[TokenPrice] | None) -> Iterator[Row]:
    """Yield the hosted APIs of which something is to be known: their age, their end, what another list states.

    Parameters
    ----------
    today : that prices are judged old by
    newer : another list, whose names decide; None: none is given
    """
    by_name = {price.name.lower(): price for price in newer or ()}
    for offer in token_offers():
        name = f"{offer.provider}/{offer.model}"
        remarks = list(offer_remarks(offer, today))
        if newer is not None:
            remarks += _newer_remarks(offer, by_name.get(name.lower()))
        if remarks:
            yield {"api": name, "date": offer.date, "remark": "; ".join(remarks)}
    known = {f"{offer.provider}/{offer.model}".lower() for offer in token_offers()}
    for price in newer or ():
        if price.name.lower() not in known:
            rates = price.rates
            what = (
                f"new in {price.source}: input ${rates.input:g}, output ${rates.output:g} per million tokens"
            )
            yield {"api": price.name, "date": price.date, "remark": what}


def offer_remarks(offer: TokenOffer, today: date) -> Iterator[str]:
    """Yield what is to be known of a hosted price: its age, its end, what it rests on."""
    if (today - first_day(offer.date)).days > OLD_DAYS:
        yield f"older than {OLD_DAYS} days"
    if offer.retires is not None:
        yield f"{'ended' if first_day(offer.retires) <= today else 'ends'} on {offer.retires}"
    if offer.change is not None:
        yield f"input ${offer.change.input:g} and output ${offer.change.output:g} from {offer.change.on}"
    if offer.disagreement is not None:
        yield f"sources disagree: {offer.disagreement}"
    elif offer.second_source is None:
        yield "one source"


def _newer_remarks(offer: TokenOffer, newer: TokenPrice | None) -> list[str]:
    """Return where another list contradicts a price."""
    if newer is None:
        return []
    pairs = (
        ("input", offer.input, newer.rates.input),
        ("output", offer.output, newer.rates.output),
        ("cache reads", offer.cache_read, newer.rates.cache_read),
    )
    return [
        f"{kind} ${listed:g}, ${other:g} in {newer.source} of {newer.date}"
        for kind, listed, other in pairs
        if listed is not None and other is not None and abs(other - listed) > SAME_WITHIN * listed
    ]


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


def change_warnings(prices: Sequence[TokenPrice]) -> list[str]:
    """Return a warning for each API whose provider announced other prices."""
    return [
        f"{price.name} announced other prices from {price.change.on}: input ${price.change.rates.input:g}, "
        f"output ${price.change.rates.output:g} per million tokens"
        for price in prices
        if price.change is not None
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
