"""What `capplan fleet` adds about money: other currencies, offers, commitments, and what is spent outside the GPUs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isclose
from typing import Any

from capplan.fleet.answer import FleetAnswer
from capplan.fleet.plan import Plan
from capplan.money.commitments import HOURS_PER_YEAR, Cash, Mix, Offer, named_offers
from capplan.money.ledger import Entry, cost_lines, total_usd
from capplan.money.price import HOURS_PER_MONTH, SIDES, ChosenPrice
from capplan.questions.money.commitments import AskedMix
from capplan.questions.money.energy import Outlook
from capplan.questions.money.ledger import TermPrice
from capplan.questions.plans.plan_row import OWN_PRICE, offers_row
from capplan.report.answer import Table, columns, row_of
from capplan.scenario.scenario_file import Currency
from capplan.workload.request_class import OutsideUse, Slo

_JSON_NAMES = {"per month": "per_month", "per year": "per_year", "per job": "per_job"}
MONTHS_PER_YEAR = HOURS_PER_YEAR / HOURS_PER_MONTH


def currency_texts(currency: Currency | None, usd: Mapping[str, float]) -> tuple[str, ...]:
    """Return a line with costs in a currency; none without one.

    Parameters
    ----------
    currency : with its name, and the dollars that one unit of it costs
    usd : [$]
        by what they are for

    Examples
    --------
    >>> currency_texts(Currency(name="EUR", usd=1.25), {"per month": 1000.0, "per year": 12000.0})
    ('in EUR, at 1.25 $: 800 per month, 9,600 per year',)
    """
    if currency is None or not usd:
        return ()
    costs = ", ".join(f"{cost / currency.usd:,.0f} {what}" for what, cost in usd.items())
    return (f"in {currency.name}, at {currency.usd:g} $: {costs}",)


def paid_usd(answer: FleetAnswer, outlook: Outlook) -> dict[str, float]:
    """Return what the recommended plan costs, by its mix of commitments where there is one: a month and a year, or a job [$]."""
    plan = answer.chosen
    if plan is None or plan.usd_per_month is None:
        return {}
    if plan.money is not None and plan.money.usd_per_job is not None:
        return {"per job": plan.money.usd_per_job}
    mix = mix_usd_per_month(outlook)
    usd = plan.usd_per_month if mix is None else mix
    return {"per month": usd, "per year": usd * MONTHS_PER_YEAR}


def mix_usd_per_month(outlook: Outlook) -> float | None:
    """Return what a month costs by the mix of the recommended plan [$]; None without commitments."""
    return outlook.mixes[0].mix.usd_per_hour * HOURS_PER_MONTH if outlook.mixes else None


def mixed_usd(plan: Plan, outlook: Outlook) -> dict[str, float]:
    """Return what a month of a plan costs by its own mix, as a column [$]; none without commitments."""
    own = next((item.mix.usd_per_hour for item in outlook.mixes if item.plan == plan), None)
    return {} if own is None else {"mix_usd_per_month": own * HOURS_PER_MONTH}


def in_currency(currency: Currency | None, usd: Mapping[str, float]) -> dict[str, Any] | None:
    """Return costs in a currency, as JSON has them; None without one."""
    if currency is None or not usd:
        return None
    return {
        "name": currency.name,
        **{_JSON_NAMES[time]: cost / currency.usd for time, cost in usd.items()},
    }


_AT_FALLING_PRICES = ("rented_usd", "breakeven_decline")
_TERM_TITLES = {
    "name": "commitment",
    "month": "from month",
    "devices": "GPUs",
    "usd": "whole term",
    "rented_usd": "the same hours rented",
    "breakeven_decline": "pays below a yearly fall of",
}


def cash_rows(cash: Cash) -> list[dict[str, Any]]:
    """Return what is paid in each month."""
    return [{**asdict(row), "usd": row.usd} for row in cash.months]


def cash_result(cash: Cash | None) -> dict[str, Any] | None:
    """Return the payments of each month, and what is owed and worth after the last; None without commitments in the mix."""
    if cash is None:
        return None
    return {
        "months": cash_rows(cash),
        **row_of(cash, "bound_usd bound_until_month worth_usd interest_usd"),
        "terms": list(cash.begun),
    }


def cash_tables(cash: Cash | None) -> tuple[Table, ...]:
    """Return what is paid in which month, and what each term costs by the month in which it begins; nothing if every month pays alike."""
    if cash is None or len({round(row.usd, 2) for row in cash.months}) == 1:
        return ()
    rows = cash_rows(cash)
    shown = columns("month upfront_usd running_usd residual_usd usd interest_usd cost_usd")
    kept = tuple(name for name in shown if name in {"month", "usd"} or any(row[name] for row in rows))
    months = Table(rows, title="Cash: what is paid in which month", shown=kept, titles={"usd": "paid"})
    title = "Terms: what each costs, by the month in which it is first needed"
    names = next(iter(cash.begun), ())
    terms = tuple(name for name in names if cash.decline_fraction or name not in _AT_FALLING_PRICES)
    return months, Table(cash.begun, title=title, shown=terms, titles=_TERM_TITLES)


def _decline_texts(cash: Cash) -> Iterator[str]:
    """Yield what each kind of term costs against renting the same hours at falling prices."""
    if not cash.decline_fraction:
        return
    for name in dict.fromkeys(row["name"] for row in cash.begun):
        rows = [row for row in cash.begun if row["name"] == name and row["rented_usd"] is not None]
        more = sum(row["usd"] - row["rented_usd"] for row in rows)
        falls = [row["breakeven_decline"] for row in rows if row["breakeven_decline"] is not None]
        pays = f"; it pays if they fall by less than {min(falls):.0%}" if falls else ""
        yield (
            f"if prices fall by {cash.decline_fraction:.0%} a year, {name} costs ${abs(more):,.0f} {'more' if more > 0.0 else 'less'} "
            f"over its whole term than renting the same hours{pays}"
        )


def cash_texts(cash: Cash | None) -> Iterator[str]:
    """Yield what reservations still owe after the last month, and what bought devices are worth then."""
    if cash is None:
        return
    last = len(cash.months)
    paid, cost = (sum(getattr(row, name) for row in cash.months) for name in ("usd", "cost_usd"))
    if abs(paid - cost) >= 0.5:  # dollars
        rest = (
            "for other months, or for GPUs that a later month does not need" if paid > cost else "due later"
        )
        yield f"you pay ${paid:,.0f} in {last} months; the mixes of these months cost ${cost:,.0f}: the rest is {rest}"
    if cash.interest_usd:
        yield f"interest on upfront parts costs ${cash.interest_usd:,.0f} in {last} months; it is in the cost by the mix, not in what is paid"
    if cash.bound_until_month is not None:
        yield f"reservations go on after month {last}: ${cash.bound_usd:,.0f} until month {cash.bound_until_month}"
    if cash.worth_usd:
        yield f"devices that are bought are worth ${cash.worth_usd:,.0f} after month {last}, by even depreciation"
    yield from _decline_texts(cash)


_TOTAL_TITLES = {"what": "line", "usd_each": "price of one", "usd": "cost", "basis": "price from"}


def total_rows(lines: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return the lines of a total cost; quantity times price is the cost of a line."""
    return [row_of(line, "what quantity unit usd_each usd basis") for line in cost_lines(lines)]


def total_result(lines: Sequence[Entry]) -> dict[str, Any] | None:
    """Return the total cost with its lines, as JSON has them; None without a price."""
    return {"usd": total_usd(lines), "lines": total_rows(lines)} if lines else None


def total_table(lines: Sequence[Entry]) -> Table:
    """Return the lines of a total cost, and their sum."""
    end = {"what": "total", "usd": total_usd(lines)}
    return Table([*total_rows(lines), end], title="Total cost", titles=_TOTAL_TITLES)


def total_texts(plan: Plan | None, lines: Sequence[Entry]) -> Iterator[str]:
    """Yield the total cost in words, if it is not what the machines cost."""
    machines = total_usd(lines, "machines")
    if plan is None or not lines or isclose(total_usd(lines), machines):
        return
    span = "for the job" if plan.is_of_job else "a month"
    yield f"in all ${total_usd(lines):,.0f} {span}, ${machines:,.0f} for machines; capplan report has every line"


_NAMES = {"low": "lowest", "likely": "median", "high": "highest"}


def _has_range(plan: Plan) -> bool:
    costs = plan.offers
    return bool(costs) and costs["low"][0] < costs["high"][0]


def _period_keys(row: dict[str, Any]) -> tuple[str, ...]:
    return ("usd_per_job",) if row["likely"]["usd_per_job"] is not None else ("usd_per_month", "usd_per_year")


def offers_tables(plans: Sequence[Plan]) -> Iterator[Table]:
    """Yield every plan at the lowest, the median and the highest offers, and who makes them; nothing where no price has a range."""
    if not any(_has_range(plan) for plan in plans):
        return
    rows = []
    for plan in plans:
        costs = offers_row(plan)
        if costs is not None:
            money = {f"{key}.{side}": costs[side][key] for key in _period_keys(costs) for side in SIDES}
            rows.append({"hardware": plan.hardware, "plan": _layouts_text(plan), "gpus": plan.gpus, **money})
    prices = {group.layout.device.name: group.quote for plan in plans for group in plan.groups}
    makers = [row for name, price in prices.items() if price for row in _makers(name, price)]
    titles = {name: _NAMES[name.partition(".")[2]] for row in rows for name in row if "." in name}
    yield Table(
        rows,
        title="Range of the offers: every plan at the lowest, the median and the highest price",
        titles={"plan": "layout"} | titles,
        spare=("plan", "usd_per_year.highest", "usd_per_year.lowest", "usd_per_year.likely"),
    )
    yield Table(makers, title="Who makes these offers", titles={"offer": ""})


def _makers(device: str, price: ChosenPrice) -> Iterator[dict[str, Any]]:
    """Yield the lowest, the median and the highest offer of a device; one row where they are the same."""
    sides = SIDES if price.low_usd_per_hour < price.high_usd_per_hour else ("likely",)
    energy = price.energy_usd_per_hour or 0.0
    for side in sides:
        usd, records = price.at(side)
        yield {
            "hardware": device,
            "offer": _NAMES[side],
            "usd_per_gpu_hour": usd - energy,
            "provider": " and ".join(record.provider for record in records) or OWN_PRICE,
            "date": " and ".join(record.date or "unknown" for record in records) or None,
        }


def offers_closing(plan: Plan | None) -> Iterator[str]:
    """Yield what the recommended plan costs at the lowest and at the highest offers; nothing without a range."""
    if plan is None or not _has_range(plan):
        return
    costs, row = plan.offers, offers_row(plan)
    assert row is not None
    ends = {
        side: ", ".join(f"${row[side][key]:,.0f} {_SPANS[key]}" for key in _period_keys(row))
        for side in ("low", "high")
    }
    makers = {side: named_offers(costs[side][1]) for side in SIDES}
    yield f"at the lowest offers the plan costs {ends['low']} ({makers['low']}), at the highest {ends['high']} ({makers['high']})"


_SPANS = {"usd_per_month": "per month", "usd_per_year": "per year", "usd_per_job": "for the job"}


def term_rows(terms: Sequence[TermPrice]) -> list[dict[str, Any]]:
    """Return the public prices of the GPUs of a plan by term: of one GPU, and of all of them for a month or a job."""
    rows = []
    for term in terms:
        price, offer = term.price, term.price.records[0]
        span = "month" if term.hours == HOURS_PER_MONTH else "job"
        sides = {
            "": price.usd_per_hour,
            "lowest_": price.low_usd_per_hour,
            "highest_": price.high_usd_per_hour,
        }
        rows.append(
            {
                **row_of(term, "hardware gpus"),
                "commitment": price.commitment,
                **{f"{side}usd_per_gpu_hour": usd for side, usd in sides.items()},
                **{f"{side}usd_per_{span}": usd * term.gpus * term.hours for side, usd in sides.items()},
                "price_basis": term.basis,
                **row_of(offer, "provider date source"),
                "remark": term.remark,
            }
        )
    return rows


def term_tables(terms: Sequence[TermPrice]) -> Iterator[Table]:
    """Yield the public prices by term; nothing if fewer than two ways to pay have one."""
    rows = term_rows(terms)
    span = next((name for name in ("usd_per_month", "usd_per_job") if rows and name in rows[0]), "")
    remarks: dict[str, list[str]] = {}
    for row in rows:
        remarks.setdefault(row["remark"], []).append(f"{row['hardware']} {row['commitment']}")
    said = "; ".join(f"{remark}: {', '.join(prices)}" for remark, prices in remarks.items() if remark)
    shown = f"hardware commitment lowest_usd_per_gpu_hour usd_per_gpu_hour highest_usd_per_gpu_hour {span} price_basis provider date"
    yield Table(
        rows,
        title=f"Public prices by term{f' ({said})' if said else ''}",
        shown=columns(shown),
        titles={"commitment": "", "provider": "median offer", "date": "price of"},
        spare=columns("price_basis provider highest_usd_per_gpu_hour lowest_usd_per_gpu_hour"),
    )


_COMMITMENT_TITLES = {
    "pool": "",
    "commitment": "",
    "usd_per_month_low": "low",
    "usd_per_month_high": "high",
    "mix": "",
}


def mix_rows(mix: Mix, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the parts of a mix, each with its price per device and hour and its cost, by the names of the groups if there are several."""
    return [
        {
            **({"pool": names[part.group]} if len(names) > 1 else {}),
            "commitment": part.offer.name,
            "machine": part.sku,
            **row_of(part, "replicas gpus used_fraction"),
            "usd_per_gpu_hour": part.offer.usd_per_hour(1.0),
            **_offer_totals(part.offer, part.usd_per_hour),
            "price_basis": part.offer.origin,
        }
        for part in mix.parts
    ]


def _totals(usd_per_hour: float, low: float, high: float) -> dict[str, float]:
    return {
        "usd_per_month": usd_per_hour * HOURS_PER_MONTH,
        "usd_per_month_low": low * HOURS_PER_MONTH,
        "usd_per_month_high": high * HOURS_PER_MONTH,
        "usd_per_year": usd_per_hour * HOURS_PER_YEAR,
    }


def _offer_totals(offer: Offer, usd_per_hour: float) -> dict[str, float]:
    return _totals(usd_per_hour, usd_per_hour * offer.low_ratio, usd_per_hour * offer.high_ratio)


def mix_totals(mix: Mix) -> dict[str, float]:
    """Return what a mix costs a month, low, likely and high, and a year."""
    return _totals(mix.usd_per_hour, mix.usd_per_hour_at("low"), mix.usd_per_hour_at("high"))


def pure_rows(mix: Mix) -> list[dict[str, Any]]:
    """Return what each single commitment would cost, and the mix."""
    rows = [{"commitment": f"{offer.name} only", **_offer_totals(offer, usd)} for offer, usd in mix.pure]
    return [*rows, {"commitment": "the mix", **mix_totals(mix)}]


def commitments_result(mixes: tuple[AskedMix, ...]) -> dict[str, Any] | None:
    """Return the mix of the recommended plan, each single commitment, and the mixes of the other plans."""
    if not mixes:
        return None
    mix = mixes[0].mix
    return {
        "rows": mix_rows(mix, mixes[0].plan.group_names),
        **mix_totals(mix),
        "short_fraction": mixes[0].short_fraction,
        "people_usd_per_month": mix.people_usd_per_hour * HOURS_PER_MONTH,
        "pure": pure_rows(mix),
        "plans": [_plan_row(item) for item in mixes],
    }


def _layouts_text(plan: Plan) -> str:
    return " + ".join(group.layout.in_words() for group in plan.groups)


def _plan_row(item: AskedMix) -> dict[str, Any]:
    return {
        "hardware": item.plan.hardware,
        "plan": _layouts_text(item.plan),
        "gpus": item.plan.gpus,
        "mix": " + ".join(
            ", ".join(f"{p.gpus} {p.offer.name}" for p in item.mix.parts if p.group == place)
            for place in range(len(item.plan.groups))
        ),
        **mix_totals(item.mix),
        "short_fraction": item.short_fraction,
    }


def commitments_tables(mixes: tuple[AskedMix, ...]) -> Iterator[Table]:
    """Yield the mix of the recommended plan, against each single commitment, and the mixes of other plans."""
    if not mixes:
        return
    mix = mixes[0].mix
    yield Table(
        mix_rows(mix, mixes[0].plan.group_names),
        title="Commitments: the cheapest mix for the load curve",
        titles=_COMMITMENT_TITLES,
        spare=columns("usd_per_year machine price_basis replicas usd_per_month_high usd_per_month_low"),
    )
    yield Table(pure_rows(mix), title="The mix against one commitment", titles=_COMMITMENT_TITLES)
    if len(mixes) > 1:
        rows = sorted(map(_plan_row, mixes), key=lambda row: float(row["usd_per_month"]))
        shown = columns("hardware plan gpus mix usd_per_month usd_per_year short_fraction")
        title = "Every plan with its own mix, cheapest first"
        yield Table(rows, title=title, shown=shown, titles=_COMMITMENT_TITLES)


def commitments_text(mixes: tuple[AskedMix, ...]) -> Iterator[str]:
    """Yield in one line how the recommended plan is paid for, and what it then costs; nothing without commitments."""
    for row in map(_plan_row, mixes[:1]):
        yield f"commitments: {row['mix']} GPUs cost ${row['usd_per_month']:,.0f} per month"


def commitments_closing(mixes: tuple[AskedMix, ...]) -> Iterator[str]:
    """Yield the totals of the mix in words, and a plan that its mix makes cheaper."""
    if not mixes:
        return
    mix = mixes[0].mix
    usd = mix.usd_per_hour * HOURS_PER_YEAR
    yield "GPUs x $/GPU/h x in use (where only hours in use are paid for) x 730 = $/month; low and high: the range of the offers"
    short, few = mixes[0].short_fraction, ""
    if short:
        few = f"; {short:.1%} of the requests arrive while replicas start, and find fewer than they need"
    yield f"the mix costs ${mix.usd_per_hour * HOURS_PER_MONTH:,.0f} per month, ${usd:,.0f} per year{few}"
    best = min(mixes, key=lambda item: item.mix.usd_per_hour)
    if best.mix.usd_per_hour < mix.usd_per_hour:
        row = _plan_row(best)
        yield f"with commitments {row['gpus']} x {row['hardware']} ({row['plan']}) would cost less: ${row['usd_per_month']:,.0f} per month"


def outside_rows(use: OutsideUse) -> list[dict[str, Any]]:
    """Return what the requests of each class take outside."""
    cost = "usd_per_job" if use.of_job else "usd_per_month"
    return [
        {
            **row_of(item, "name requests wait_s tool_calls usd_per_request"),
            cost: item.usd,
            "answer_s": item.answer_s,
        }
        for item in use.classes
    ]


def outside_tables(plan: Plan | None) -> Iterator[Table]:
    """Yield what is outside the GPUs of the recommended plan, if anything is stated."""
    if plan is None or plan.outside is None:
        return
    rows = outside_rows(plan.outside)
    kept = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    titles = {"name": "class", "wait_s": "before the prompt"}
    yield Table(rows, title="Outside the GPUs, by class of requests", shown=tuple(kept), titles=titles)


def class_texts(plan: Plan | None, slo: Slo) -> Iterator[str]:
    """Yield which users see the largest latency of each target that counts what they wait outside, if some wait longer than others."""
    if plan is None or plan.outside is None or not any(plan.seen.by_class):
        return
    for target in slo.targets:
        if target.metric not in ("ttft", "e2e") or not target.outside_s:
            continue
        own = plan.seen.by_class[target.metric != "ttft"]
        seen_s, name = max((float(getattr(one, target.statistic)), item.name) for one, item in zip(own, plan.outside.classes, strict=True))  # fmt: skip
        held = "within" if seen_s <= target.stated_s else "above"
        yield (
            f"of all classes {name} sees the largest {target.key} at the peak, {1e3 * seen_s:,.0f} ms, {held} the target of {1e3 * target.stated_s:,.0f} ms, "
            "which counts all requests of an hour together"
        )


def outside_texts(plan: Plan | None) -> Iterator[str]:
    """Yield what users wait for in all, and what is paid on top of the plan."""
    if plan is None or plan.outside is None:
        return
    use = plan.outside
    if use.longest_wait_s:
        seen = [f"{name} p95 {1e3 * spread.p95:,.0f} ms" for name, spread in (("TTFT", plan.seen.ttft_s), ("E2E", plan.seen.e2e_s))]  # fmt: skip
        yield f"with what is outside users see {' and '.join(seen)}; the table of plans has the engine's part"
    if use.usd:
        span = "for the job" if use.of_job else "per month"
        yield f"outside the GPUs ${use.usd:,.0f} {span}, on top of the plan"
