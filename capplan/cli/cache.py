"""`capplan cache`: what prompt caching at a hosted API saves."""

from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import Group, grouped, measure, whole
from capplan.scenario.flags import CachePriceFlags

PrefixTokens = Annotated[
    int, whole("--prefix-tokens", of="tokens", metavar="TOKENS", says="Length of the shared prefix.")
]
RequestsPerDay = Annotated[
    float, measure("--requests-per-day", "COUNT", metavar="N", says="Requests with this prefix.")
]
SuffixTokens = Annotated[
    int,
    whole(
        "--suffix-tokens", of="tokens", least=0, metavar="TOKENS", says="Input of a request after the prefix."
    ),
]
TimeToLive = Annotated[
    float | None,
    measure(
        "--time-to-live",
        says="Of the cached prefix since its last use, such as '5 min'; default: the provider's, else 5 min.",
    ),
]
_OF = "Dollars per million tokens of"
Price = Annotated[
    CachePriceFlags,
    Group(
        "Traffic and prices",
        api=typer.Option("--api", metavar="PROVIDER/MODEL", help="Hosted API, such as openai/gpt-5."),
        input_price=measure("--input-price", "USD_PER_MILLION", metavar="PRICE", says=f"{_OF} plain input, instead of --api."),
        write_price=measure("--write-price", "USD_PER_MILLION", metavar="PRICE", says=f"{_OF} cache writes; default: that of input."),
        read_price=measure("--read-price", "USD_PER_MILLION", metavar="PRICE", says=f"{_OF} cache reads."),
        prices=typer.Option("--prices", metavar="FILE", help="Token-price YAML, or price file of LiteLLM or genai-prices, instead of the shipped list."),
        date=typer.Option("--date", metavar="DAY", help="Date of a list that states none, such as the files of LiteLLM and genai-prices."),
    ),
]  # fmt: skip


@grouped
def command(
    *,
    prefix_tokens: PrefixTokens,
    requests_per_day: RequestsPerDay,
    price: Price,
    suffix_tokens: SuffixTokens = 0,
    time_to_live: TimeToLive = None,
    to: o.Output,
) -> int:
    """Show what prompt caching at a hosted API saves for a shared prefix, and from which request on it pays."""
    from capplan.money.hosted import cached_prefix
    from capplan.questions.money.comparison import cache_price
    from capplan.questions.plans.plan_check import (
        age_warnings,
        change_warnings,
        current_day,
        life_warnings,
    )
    from capplan.report.answers.compare import cache_answer
    from capplan.report.show import show

    today = current_day()
    offer = cache_price(price, prefix_tokens, time_to_live, today)
    day = cached_prefix(offer, prefix_tokens, requests_per_day, suffix_tokens, time_to_live)
    warnings = [
        *(age_warnings([offer], today) if price.api else ()),
        *change_warnings([offer]),
        *life_warnings([offer], time_to_live),
    ]
    return show(cache_answer(day, offer, prefix_tokens, time_to_live, warnings), to)
