"""What of the prices is old, retired, or contradicted by another offer or by a newer list."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from capplan.fleet.price import MAX_AGE_DAYS, ChosenPrice, PriceChoice, choose_price
from capplan.money.hosted import TokenPrice
from capplan.readers.catalogue.hardware import device_names
from capplan.readers.catalogue.offer_terms import first_day
from capplan.readers.catalogue.prices import price_records
from capplan.readers.catalogue.token_prices import OLD_DAYS, TokenOffer, token_offers

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
