"""The price that the options of `capplan cache` mean."""

from datetime import date

from capplan.errors import InputError
from capplan.money.hosted import TokenPrice, TokenRates, price_on
from capplan.questions.money.comparison import listed_prices, refuse_unknown_storage, refuse_unsold_life
from capplan.readers.catalogue.offer_terms import first_day
from capplan.readers.catalogue.token_prices import find_price, refuse_unused_day
from capplan.scenario.flags import CachePriceFlags

STATED = "as stated"
_USED = ("input_price", "write_price", "read_price")


def cache_price(
    flags: CachePriceFlags, prefix_tokens: float, time_to_live_s: float | None, today: date
) -> TokenPrice:
    """Return the price that the options name or state, for a prefix of this length that lives this long, as it is on a day."""
    given = [f"--{name.replace('_', '-')}" for name in _USED if getattr(flags, name) is not None]
    if flags.api is not None:
        if given:
            raise InputError(f"{given[0]}: {flags.api} has its own prices; leave out --api or {given[0]}")
        if flags.date is not None:
            first_day(flags.date, "--date")
        known = listed_prices(str(flags.prices) if flags.prices else None, flags.date)
        found = find_price(flags.api, known, flags.date, own_list=flags.prices is not None)
        refuse_unused_day(flags.date, [found], "--date")
        refuse_unsold_life(found, time_to_live_s, "--time-to-live")
        if prefix_tokens >= found.minimum_prefix_tokens:
            refuse_unknown_storage(found)
        return price_on(found, today.isoformat())
    if flags.date is not None:
        raise InputError("--date: belongs to --api, and none is given; e.g. --api openai/gpt-5")
    if flags.prices is not None:
        raise InputError("--prices: says what names mean, and no --api is given; e.g. --api openai/gpt-5")
    if flags.input_price is None or flags.read_price is None:
        raise InputError(
            "no price is given: --api PROVIDER/MODEL, or --input-price and --read-price, with --write-price where writes cost more\n"
            "  e.g. --api anthropic/claude-sonnet-5-5, or --input-price 3 --write-price 3.75 --read-price 0.3"
        )
    rates = TokenRates(flags.input_price, 0.0, flags.read_price, flags.write_price)
    return TokenPrice(STATED, "prices", rates, STATED, STATED)
