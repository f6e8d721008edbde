"""Write the table of docs/reference/hosted-apis.md that compares hosted models with a fleet of one's own: `python -m docs.generators.hosted_models` (`make docs`).

All prices are those of the list that ships, on the newest day of the list, so the table does not change from one day to the next.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path

from capplan.money.comparison import ComparedApi
from capplan.money.token_price import NOT_CACHED
from capplan.questions.fleet import asked_fleet
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.money.comparison import AskedComparison, asked_comparison, asked_prices
from capplan.readers.catalogue.token_prices import token_prices
from capplan.scenario.scenario import read_scenario

PAGE = Path(__file__).resolve().parents[1] / "reference" / "hosted-apis.md"
BEGIN, END = "<!-- hosted models written by `make docs` -->", "<!-- end of the hosted models -->"
SCENARIO = "api-or-own"
MODELS = (
    "deepinfra/openai/gpt-oss-120b", "groq/openai/gpt-oss-120b", "anthropic/claude-haiku-4-5", "anthropic/claude-haiku-5-5",
    "anthropic/claude-sonnet-5-5", "openai/gpt-6-luna", "openai/gpt-6.1-terra", "google/gemini-3.8-flash", "google/gemini-4-argon", "deepseek/deepseek-flash",
    "moonshotai/kimi-k3", "xai/grok-4.7",
)  # fmt: skip
"""The scenario's own model at two providers, of each large provider a small model and a large one, and a small one of the generation before."""


def comparisons() -> dict[date, AskedComparison]:
    """Return the comparison by the day of its prices: the newest day of the list, and each day from which a provider announced others."""
    asked = asked_fleet(read_scenario(SCENARIO), offline=True)
    prices = asked_prices(MODELS, asked)
    newest = date.fromisoformat(max(price.date for price in token_prices()))
    changes = {date.fromisoformat(price.change[0]) for price in prices if price.change is not None}
    answer = fleet_for(asked)
    return {
        day: asked_comparison(asked, answer, prices, day)
        for day in sorted({newest, *(day for day in changes if day > newest)})
    }


def written(by_day: Mapping[date, AskedComparison]) -> str:
    """Return the table of comparisons by the day of their prices, and the sentences that say what it shows."""
    (newest, today), *later = by_day.items()
    own, apis = today.comparison.own.usd_today, today.comparison.apis
    prefix = today.comparison.traffic[0].request_class.shared_prefix_tokens
    lines = []
    for api in apis:
        changes = [(day, _of(api.price.name, each)) for day, each in later]
        dearer = [
            f" until {day - timedelta(days=1)}, then {changed.bill.usd:,.0f}"
            for day, changed in changes
            if api.price.change is not None and api.price.change[0] == day.isoformat()
        ]
        rate = api.breakeven_request_rate
        at = "no rate" if rate is None else f"a peak of {rate:.3g} req/s"
        lines.append(
            f"| {api.price.name} | {listed_input(api):g} | {api.bill.usd:,.0f}{''.join(dearer)} | {_caching(api, prefix)} | {at} |"
        )
    return "\n".join(
        (
            f"The same traffic at {len(apis)} hosted models, each at its cheapest way to cache, by the list that ships (`capplan compare {SCENARIO} "
            f"--api ...` at prices of {newest}; the self-hosted fleet costs ${own:,.0f} per month, people and overhead included):",
            "",
            "| API | input ($/Mtok) | $ per month | caching | self-hosting is cheaper from |",
            "| --- | ---: | --- | --- | --- |",
            *lines,
            "",
            _claim(today),
        )
    )


def _of(name: str, asked: AskedComparison) -> ComparedApi:
    return next(api for api in asked.comparison.apis if api.price.name == name)


def _caching(api: ComparedApi, prefix_tokens: float) -> str:
    """Return how the cache is used, and why not if it is not."""
    ways, shortest = "; ".join(dict.fromkeys(api.ways)), api.price.minimum_prefix_tokens
    if api.price.rates.cache_read is None:
        return "no cached input on sale"
    if ways == NOT_CACHED and prefix_tokens < shortest:
        ratio = api.price.token_ratio
        return f"not cached: the prefix has {prefix_tokens * ratio:,.0f} tokens, the shortest that is cached {shortest * ratio:,.0f}"
    return f"{ways}, marked" if api.price.marked else ways


def listed_input(api: ComparedApi) -> float:
    """Return the price of a million input tokens as the provider counts them [$]."""
    return round(api.price.rates.input / api.price.token_ratio, 9)


def dearest_and_cheapest(apis: Sequence[ComparedApi], own_usd: float) -> tuple[float, float]:
    """Return the dearest price of input of a model that costs less than the self-hosted fleet, and the cheapest of one that costs more."""
    below = [listed_input(api) for api in apis if api.bill.usd < own_usd]
    above = [listed_input(api) for api in apis if api.bill.usd >= own_usd]
    return max(below), min(above)


def _claim(asked: AskedComparison) -> str:
    own = asked.comparison.own
    below, above = dearest_and_cheapest(asked.comparison.apis, own.usd_today)
    return (
        f"At this traffic ({own.request_rate:g} requests per second at the peak of an office day) self-hosting beats all of these models whose input "
        f"costs ${above:g} per million tokens or more, and none at ${below:g} or less."
    )


def shown(page: str) -> str:
    """Return what a page has between the marks."""
    return page[page.index(BEGIN) + len(BEGIN) : page.index(END)].strip()


def run() -> None:
    """Write the table."""
    page = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(rf"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    PAGE.write_text(
        pattern.sub(lambda _: f"{BEGIN}\n{written(comparisons())}\n{END}", page), encoding="utf-8"
    )


if __name__ == "__main__":
    run()
