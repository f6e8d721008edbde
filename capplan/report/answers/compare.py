"""What `capplan bill`, `compare` and `cache` show: who pays, what hosted APIs cost instead, and a prefix that an API keeps."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from capplan.assumption import Assumption
from capplan.money.comparison import ComparedApi, Comparison, OwnFleet
from capplan.money.ledger import CommitmentRates, MachineEntry, commitment_rates, machines_of, total_usd
from capplan.money.token_price import NOT_CACHED, UNSTATED_TIME_TO_LIVE_S, CachedPrefix, TokenPrice
from capplan.money.who_pays import Share
from capplan.questions.money.comparison import AskedComparison
from capplan.questions.money.who_pays import AskedBill
from capplan.questions.plans.plan_row import order_row
from capplan.report.answer import Answer, Table, columns, row_of
from capplan.report.answers.fleet_money import currency_texts, term_rows, term_tables, total_texts
from capplan.report.answers.fleet_words import purchase_text
from capplan.report.answers.order import ordered_texts, used_by_texts
from capplan.scenario.scenario_file import Currency, Scenario

IDLE = "idle"
"""Name of the line of GPUs that wait for requests."""
_BILL_TITLES = {"name": "class"}
_OF_TENANTS = columns(
    "requests gpu_time_fraction prefill_usd decode_usd outside_usd usd idle_usd with_idle_usd"
)
"""Numbers of a tenant, which are sums over its classes."""
_SPARE = ("usd_per_thousand_conversations", "usd_per_user", "prefill_usd", "decode_usd")
"""Columns that a narrow terminal does without, the first one first."""


def bill_answer(
    asked: AskedBill,
    scenario: Scenario,
    written: str | None,
    month: tuple[int, int] | None = None,
) -> Answer:
    """Return what each class and tenant pays, and the cost of a request, a user and a thousand conversations."""
    of_job, machines = asked.plan.is_of_job, machines_of(asked.entries)
    name, cost = scenario.name, "usd_per_job" if of_job else "usd_per_month"
    rates = commitment_rates(machines)
    rows = list(map(_class_row, asked.bill.shares))
    grouped = [
        {"tenant": tenant}
        | {key: sum(row[key] for row in rows if row["tenant"] == tenant) for key in _OF_TENANTS}
        for tenant in dict.fromkeys(row["tenant"] for row in rows)
    ]
    span = "for the job" if of_job else "per month"
    span = span if month is None else f"in {month[0]}-{month[1]:02} of {asked.hours:g} h"
    outside = " + outside" if any(row["outside_usd"] for row in rows) else ""
    written_text = (f"the bill is in {written}, in the columns of FOCUS",) if written else ()
    return Answer(
        command="bill",
        result={
            "scenario": name,
            cost: asked.bill.usd,
            "hours": asked.hours,
            "gpus": asked.plan.gpus,
            "order": order_row(asked.plan),
            **row_of(asked.bill, "busy_fraction idle_usd"),
            "tags": scenario.file.tags,
            "charges": [_charge_row(entry) for entry in machines],
            "rates": asdict(rates) if rates else None,
            "prices_by_term": term_rows(asked.terms),
            "classes": rows,
            "tenants": grouped,
        },
        tables=(*_tables(rows, grouped, asked.bill.idle_usd, cost), *term_tables(asked.terms)),
        headline=f"{name}: {purchase_text(asked.plan)}, ${asked.bill.usd:,.0f} {span}, shared by the time of the GPUs",
        closing=(
            f"prefill + decode{outside} = cost; cost with idle / requests x 1,000 = cost of a thousand requests",
            f"requests take {asked.bill.busy_fraction:.0%} of what the paid replicas can serve within the targets, spares included; "
            f"idle: what the machines cost for the rest, ${asked.bill.idle_usd:,.0f}",
            *used_by_texts([asked.plan]),
            *total_texts(asked.plan, asked.entries),
            *rates_texts(rates),
            *_decline_texts(machines),
            *ordered_texts([asked.plan]),
            *currency_texts(scenario.file.currency, {span: asked.bill.usd}),
            *written_text,
        ),
        assumptions=asked.assumptions,
        warnings=asked.warnings,
        csv_rows=rows,
    )


def _charge_row(entry: MachineEntry) -> dict[str, Any]:
    """Return what machines that are paid for in one way cost, as it is billed and as it is used up."""
    part = entry.part
    return {
        "machine": part.sku,
        "provider": part.machine.provider if part.machine else None,
        "commitment": part.offer.name,
        "gpus": part.gpus,
        "hours": entry.machine_hours,
        **row_of(entry, "unused_fraction breakeven_decline"),
        **asdict(entry.paid),
    }


def _decline_texts(entries: Sequence[MachineEntry]) -> Iterator[str]:
    """Yield at which fall of prices each term costs as much as renting by the hour."""
    falls: dict[str, float] = {}
    for entry in entries:
        if (fall := entry.breakeven_decline) is not None:
            name = entry.part.offer.name
            falls[name] = min(fall, falls.get(name, 1.0))
    if falls:
        each = ", ".join(f"{name} {fall:.0%}" for name, fall in falls.items())
        yield f"a term pays if prices on demand fall by less a year: {each}"


def rates_texts(rates: CommitmentRates | None, whose: str = "") -> Iterator[str]:
    """Yield how well reservations fit the load, if there are any."""
    if rates is not None and rates.utilisation_fraction is not None:
        yield (
            f"{whose}reservations cover {rates.coverage_fraction:.0%} of the cost on demand, and replicas run in {rates.utilisation_fraction:.0%} of what they cost; "
            f"effective savings rate {rates.effective_savings_fraction:.1%}"
        )


def _tables(
    rows: Sequence[dict[str, Any]], grouped: Sequence[dict[str, Any]], idle_usd: float, cost: str
) -> Iterator[Table]:
    """Yield the classes and, if they are more, the tenants, each table with the line of idle GPUs."""
    outside = "outside_usd" if any(row["outside_usd"] for row in rows) else ""
    of_tenant = columns(
        f"tenant requests gpu_time_fraction prefill_usd decode_usd {outside} {cost} with_idle_usd"
    )
    shown = (
        "name",
        *of_tenant,
        "usd_per_thousand_requests",
        "usd_per_user",
        "usd_per_thousand_conversations",
    )
    is_own_tenant = all(row["tenant"] == row["name"] for row in rows)

    def tells(column: str) -> bool:
        if column == "tenant" and is_own_tenant:
            return False
        return column == cost or any(row[column] is not None for row in rows)

    kept = tuple(filter(tells, shown))

    def with_idle(lines: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
        idle = {**dict.fromkeys(lines[0]), key: IDLE, "usd": idle_usd}
        return [{**line, cost: line["usd"]} for line in [*lines, idle]]

    table = partial(Table, titles=_BILL_TITLES, spare=_SPARE)
    yield table(with_idle(rows, "name"), title="By class of requests", shown=kept)
    if len(grouped) < len(rows):
        yield table(with_idle(grouped, "tenant"), title="By tenant", shown=of_tenant)


def _class_row(share: Share) -> dict[str, Any]:
    use = share.use
    return {
        **row_of(use, "name tenant requests input_tokens output_tokens"),
        "gpu_time_fraction": share.fraction,
        **row_of(share, "prefill_usd decode_usd"),
        "outside_usd": share.use.outside_usd,
        **row_of(share, "usd idle_usd with_idle_usd usd_per_request"),
        "usd_per_thousand_requests": 1000.0 * share.usd_per_request,
        **row_of(share, "usd_per_user usd_per_thousand_conversations"),
    }


_PARTS = columns(
    "input_usd cache_write_usd cache_read_usd storage_usd output_usd provisioned_usd outside_usd"
)
_MONTH_TITLES = {"request_rate": "peak", "own_usd": "self-hosted", "api": "cheapest API", "api_usd": "API"}
_COMPARE_TITLES = {
    "api": "",
    "date": "price of",
    "what": "",
}


def compare_answer(asked: AskedComparison, name: str, currency: Currency | None) -> Answer:
    """Return a month of both, the break-even traffic, and which is cheaper; in another currency too, if one is given."""
    comparison, plan = asked.comparison, asked.plan
    rows = [_api_row(api) for api in comparison.apis]
    cost = "usd_per_job" if plan.is_of_job else "usd_per_month"
    shown = [
        {"api": api.price.name, **row, cost: row["usd_per_month"]}
        for api, row in zip(comparison.apis, rows, strict=True)
    ]
    parts = tuple(part for part in _PARTS if any(row[part] for row in rows))
    used = ("caching",) if any(row["caching"] != NOT_CACHED for row in rows) else ()
    best = comparison.apis[0]
    own = comparison.own
    return Answer(
        command="compare",
        result=_compare_result(asked, name, rows),
        tables=(
            Table(
                shown,
                title="Hosted APIs, cheapest first",
                shown=("api", "date", *parts, *used, cost, "breakeven_request_rate"),
                titles=_COMPARE_TITLES,
                spare=("date", *used, *reversed(parts)),
            ),
            Table(_own_rows(own, cost, by_mix=asked.by_mix), "The self-hosted fleet", titles=_COMPARE_TITLES),
            *_month_tables(asked),
        ),
        headline=_headline(asked, name),
        closing=(
            *_closing(comparison),
            *_carbon_texts(asked.kg_co2),
            *used_by_texts([plan]),
            *ordered_texts([plan]),
            *currency_texts(
                currency,
                {"for the self-hosted fleet": own.usd_today, f"for {best.price.name}": best.bill.usd},
            ),
        ),
        assumptions=asked.assumptions,
        warnings=asked.warnings,
        csv_rows=rows,
    )


def _month_tables(asked: AskedComparison) -> tuple[Table, ...]:
    """Return both sides in the months to come, and from which month on the other one is cheaper; nothing without growth."""
    if not asked.months:
        return ()
    owns = [row.own_usd <= row.api_usd for row in asked.months]
    turn = next((row for row, own in zip(asked.months, owns, strict=True) if own != owns[0]), None)
    side = "the cheapest API" if owns[0] else "the self-hosted fleet"
    turns = "the cheaper side stays" if turn is None else f"{side} is cheaper in month {turn.month}"
    rows = [asdict(row) for row in asked.months]
    return (Table(rows, title=f"Growth: {turns}", titles=_MONTH_TITLES),)


def _compare_result(asked: AskedComparison, name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a comparison with the keys of JSON."""
    comparison, plan = asked.comparison, asked.plan
    best, own = comparison.apis[0], comparison.own
    return {
        "scenario": name,
        "own": {
            "usd_per_month": own.usd_today,
            **row_of(plan, "gpus hardware"),
            "order": order_row(plan),
            "machines_usd_per_month": own.machines_usd,
            "overhead_usd_per_month": total_usd(own.entries, "overhead"),
            "people_usd_per_month": total_usd(own.entries, "people"),
            "other_usd_per_month": total_usd(own.entries, "other"),
            "outside_usd_per_month": own.outside_usd,
            "request_rate": own.request_rate,
            "kg_co2": asked.kg_co2,
        },
        "apis": rows,
        "months": [asdict(row) for row in asked.months],
        "breakeven_request_rate": best.breakeven_request_rate,
        "cheaper": comparison.cheaper,
        "offers_compared": len(comparison.apis),
        "even": {
            "price_ratio": comparison.even_price_ratio,
            "machines_ratio": comparison.even_machines_ratio,
        },
    }


def _api_row(api: ComparedApi) -> dict[str, Any]:
    return {
        **row_of(api.price, "provider model date"),
        "usd_per_month": api.bill.usd,
        **asdict(api.bill),
        "caching": "; ".join(dict.fromkeys(api.ways)),
        "breakeven_request_rate": api.breakeven_request_rate,
        "source": api.price.source,
    }


def _own_rows(own: OwnFleet, cost: str, *, by_mix: bool) -> list[dict[str, Any]]:
    how = "by the mix of commitments" if by_mix else "as rented"
    rows = [{"what": f"machines, {how}", cost: own.machines_usd}]
    for entry in own.entries:
        named = {"overhead": f"overhead, {entry.usd_each:.0%}", "outside": "outside the GPUs, as at an API"}
        if entry.kind != "machines":
            rows.append({"what": named.get(entry.kind, entry.what), cost: entry.usd})
    kept = [row for row in rows if row[cost]]
    return [*kept, {"what": "together", cost: own.usd_today}] if len(kept) > 1 else kept


def _headline(asked: AskedComparison, name: str) -> str:
    comparison = asked.comparison
    best, own, count = comparison.apis[0], comparison.own, len(comparison.apis)
    span = "for the job" if asked.plan.is_of_job else "per month"
    dearer, cheaper = max(own.usd_today, best.bill.usd), min(own.usd_today, best.bill.usd)
    ratio = f"{dearer / cheaper:.3g} times as much" if cheaper else "more"
    own_text = f"{purchase_text(asked.plan)} ${own.usd_today:,.0f} {span}"
    api_text = f"{best.price.name} ${best.bill.usd:,.0f}"
    if comparison.cheaper is None:
        which = "the API" if best.bill.usd > own.usd_today else "the fleet"
        return f"{name}: one offer is no verdict: {own_text}; {api_text}; {which} costs {ratio}"
    if comparison.cheaper == "own":
        return f"{name}: the self-hosted fleet is cheaper than all {count} offers compared: {own_text}; {api_text}, {ratio}"
    return f"{name}: {best.price.name} is cheaper, of {count} offers compared: ${best.bill.usd:,.0f} {span}; {own_text}, {ratio}"


def _flip_text(comparison: Comparison) -> str:
    """Return the price at which the cheapest API and the fleet cost the same."""
    best, prices = comparison.apis[0].price, comparison.even_price_ratio
    at = []
    if prices is not None:
        rates = (
            f" (${prices * best.rates.input / best.token_ratio:.3g} per million input tokens, ${prices * best.rates.output / best.token_ratio:.3g} output)"
            if comparison.terms.provisioned is None
            else ""
        )
        at.append(f"{prices:.3g} times the prices of {best.name}{rates}")
    if (machines := comparison.even_machines_ratio) is not None:
        at.append(f"{machines:.3g} times the price of the machines")
    return f"both cost the same at {', or at '.join(at)}" if at else "both cost the same at no price"


def _carbon_texts(kg_co2: float | None) -> Iterator[str]:
    """Yield the carbon dioxide of the self-hosted fleet, and that no API states its own."""
    if kg_co2 is not None:
        yield f"carbon dioxide of the self-hosted fleet: {kg_co2:,.0f} kg; that of the APIs is unknown"


def _closing(comparison: Comparison) -> Iterator[str]:
    yield _flip_text(comparison)
    if comparison.cheaper is None:
        yield "name more APIs for a verdict: --api PROVIDER/MODEL; capplan list apis has them"
    for api in comparison.apis:
        rate = api.breakeven_request_rate
        if rate is None:
            yield f"no traffic is large enough for the self-hosted fleet to stay cheaper than {api.price.name}"
        else:
            times = rate / comparison.own.request_rate
            yield f"above a peak of {rate:.3g} req/s, {times:.3g} times today's, the self-hosted fleet never costs more than {api.price.name}"
    outside = " + outside" if comparison.own.outside_usd else ""
    yield f"input + cache writes + cache reads + storage + output{outside} = cost; the plan is that of capplan fleet"


def cache_answer(
    day: CachedPrefix,
    price: TokenPrice,
    prefix_tokens: int,
    time_to_live_s: float | None,
    warnings: Sequence[str],
) -> Answer:
    """Return a day with and without caching, and from which request on it pays."""
    row = row_of(
        day, "uncached_usd_per_day cached_usd_per_day saved_usd_per_month breakeven_requests hit_fraction"
    )
    by_name, titles = price.provider != price.source, {"hit_fraction": "requests that find the prefix"}
    named = f"{price.name} (prices of {price.date})" if by_name else "the prices given"
    assumed = [Assumption("arrivals are a Poisson process, spread over the day", "--requests-per-day")]
    if time_to_live_s is None and price.time_to_live_s is None:
        what = f"a prefix lives {UNSTATED_TIME_TO_LIVE_S:g} s after its last use"
        assumed.append(Assumption(what, "--time-to-live"))
    return Answer(
        command="cache",
        result={
            **row,
            **row_of(price, "provider model"),
            "date": price.date if by_name else None,
        },
        tables=(Table([row], title="Prompt caching", titles=titles, upright=True),),
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
