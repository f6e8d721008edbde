"""What `capplan compare` shows: a month of the self-hosted fleet and of hosted APIs, and where they cost the same; and `capplan cache`: a prefix that an API keeps."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from capplan.assumption import Assumption
from capplan.money.comparison import ComparedApi, Comparison, OwnFleet
from capplan.money.hosted import NOT_CACHED, UNSTATED_TIME_TO_LIVE_S, CachedPrefix, TokenPrice
from capplan.money.total_cost import total_usd
from capplan.questions.money.comparison import AskedComparison
from capplan.questions.plans.plan_row import order_row
from capplan.report.answer import Answer, Table
from capplan.report.answers.fleet_money import currency_texts
from capplan.report.answers.fleet_words import purchase_text
from capplan.report.answers.order import ordered_texts
from capplan.scenario.records.money import Currency

_PARTS = (
    "input_usd",
    "cache_write_usd",
    "cache_read_usd",
    "storage_usd",
    "output_usd",
    "provisioned_usd",
    "outside_usd",
)
_TITLES = {
    "api": "",
    "provisioned_usd": "throughput",
    "date": "price of",
    "what": "",
}


def compare_answer(asked: AskedComparison, name: str, currency: Currency | None) -> Answer:
    """Return a month of both, the break-even traffic, and which is cheaper; in another currency too, if one is given."""
    comparison = asked.comparison
    rows = [_api_row(api) for api in comparison.apis]
    of_job = comparison.plan.money is not None and comparison.plan.money.usd_per_job is not None
    cost = "usd_per_job" if of_job else "usd_per_month"
    shown = [
        {"api": api.price.name, **row, cost: row["usd_per_month"]}
        for api, row in zip(comparison.apis, rows, strict=True)
    ]
    parts = tuple(part for part in _PARTS if any(row[part] for row in rows))
    used = ("caching",) if any(row["caching"] != NOT_CACHED for row in rows) else ()
    best = comparison.apis[0]
    own = comparison.own
    result = {
        "scenario": name,
        "own": {
            "usd_per_month": own.usd_today,
            "gpus": comparison.plan.gpus,
            "hardware": comparison.plan.hardware,
            "order": order_row(comparison.plan),
            "machines_usd_per_month": own.machines_usd,
            "overhead_usd_per_month": own.machines_usd * own.terms.overhead_fraction,
            "people_usd_per_month": own.terms.people_usd_per_month,
            "other_usd_per_month": total_usd(own.other),
            "outside_usd_per_month": own.outside_usd,
            "request_rate": own.request_rate,
        },
        "apis": rows,
        "breakeven_request_rate": best.breakeven_request_rate,
        "cheaper": comparison.cheaper,
    }
    return Answer(
        command="compare",
        result=result,
        tables=(
            Table(
                shown,
                title="Hosted APIs, cheapest first",
                shown=("api", "date", *parts, *used, cost, "breakeven_request_rate"),
                titles=_TITLES,
            ),
            Table(_own_rows(own, cost, by_mix=asked.by_mix), title="The self-hosted fleet", titles=_TITLES),
        ),
        headline=_headline(comparison, name, of_job=of_job),
        closing=(
            *_closing(comparison),
            *ordered_texts([comparison.plan]),
            *currency_texts(
                currency,
                {"for the self-hosted fleet": own.usd_today, f"for {best.price.name}": best.bill.usd},
            ),
        ),
        assumptions=asked.assumptions,
        warnings=asked.warnings,
        csv_rows=rows,
    )


def _api_row(api: ComparedApi) -> dict[str, Any]:
    return {
        "provider": api.price.provider,
        "model": api.price.model,
        "date": api.price.date,
        "usd_per_month": api.bill.usd,
        **asdict(api.bill),
        "caching": "; ".join(dict.fromkeys(api.ways)),
        "breakeven_request_rate": api.breakeven_request_rate,
        "source": api.price.source,
    }


def _own_rows(own: OwnFleet, cost: str, *, by_mix: bool) -> list[dict[str, Any]]:
    how = "by the mix of commitments" if by_mix else "as rented"
    rows = [
        {"what": f"machines, {how}", cost: own.machines_usd},
        {
            "what": f"overhead, {own.terms.overhead_fraction:.0%}",
            cost: own.machines_usd * own.terms.overhead_fraction,
        },
        {"what": "people", cost: own.terms.people_usd_per_month},
        *({"what": line.what, cost: line.usd} for line in own.other),
        {"what": "outside the GPUs, as at an API", cost: own.outside_usd},
    ]
    kept = [row for row in rows if row[cost]]
    return [*kept, {"what": "together", cost: own.usd_today}] if len(kept) > 1 else kept


def _headline(comparison: Comparison, name: str, *, of_job: bool) -> str:
    best, own = comparison.apis[0], comparison.own
    span = "for the job" if of_job else "per month"
    dearer, cheaper = max(own.usd_today, best.bill.usd), min(own.usd_today, best.bill.usd)
    ratio = f"{dearer / cheaper:.3g} times as much" if cheaper else "more"
    own_text = f"{purchase_text(comparison.plan)} ${own.usd_today:,.0f} {span}"
    api_text = f"{best.price.name} ${best.bill.usd:,.0f}"
    if comparison.cheaper == "own":
        return f"{name}: the self-hosted fleet is cheaper: {own_text}; {api_text}, {ratio}"
    return f"{name}: {best.price.name} is cheaper: ${best.bill.usd:,.0f} {span}; {own_text}, {ratio}"


def _closing(comparison: Comparison) -> list[str]:
    lines = []
    for api in comparison.apis:
        rate = api.breakeven_request_rate
        if rate is None:
            lines.append(
                f"no traffic is large enough for the self-hosted fleet to stay cheaper than {api.price.name}"
            )
        else:
            times = rate / comparison.own.request_rate
            lines.append(
                f"above a peak of {rate:.3g} req/s, {times:.3g} times today's, the self-hosted fleet never costs more than {api.price.name}"
            )
    outside = " + outside" if comparison.own.outside_usd else ""
    lines.append(
        f"input + cache writes + cache reads + storage + output{outside} = cost; the plan is that of capplan fleet"
    )
    return lines


_CACHE_TITLES = {
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
        tables=(Table([row], title="Prompt caching", titles=_CACHE_TITLES, upright=True),),
        headline=_cache_headline(day, price, prefix_tokens, named),
        assumptions=tuple(assumed),
        warnings=tuple(warnings),
    )


def _cache_headline(day: CachedPrefix, price: TokenPrice, prefix_tokens: int, named: str) -> str:
    if price.rates.cache_read is None:
        return f"{named}: sells no cached input"
    if prefix_tokens < price.minimum_prefix_tokens:
        return f"{named}: a prefix of {prefix_tokens:,} tokens is not cached; the minimum is {price.minimum_prefix_tokens:,.0f}"
    change = "saves" if day.saved_usd_per_month >= 0 else "costs another"
    return (
        f"{named}: caching {change} ${abs(day.saved_usd_per_month):,.0f} per month: "
        f"${day.cached_usd_per_day:,.2f} a day instead of ${day.uncached_usd_per_day:,.2f}"
    )
