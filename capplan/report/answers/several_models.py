"""What `capplan fleet` shows of several models: those that share devices, and a cascade of a small one before a large one."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from capplan.assumption import Assumption
from capplan.fleet.plan import Plan
from capplan.money.price import HOURS_PER_MONTH
from capplan.questions.plans.plan_row import machine_rows, plan_row
from capplan.questions.several_models import (
    ALONE,
    ESCALATED,
    CascadeAnswer,
    SharedPool,
    SharingAnswer,
    SharingModel,
)
from capplan.report.answer import Answer, Table, columns, row_of
from capplan.report.answers.fleet_money import currency_texts
from capplan.report.answers.fleet_words import (
    against_text,
    layout_text,
    more_text,
    most_assumed_texts,
    purchase_text,
)
from capplan.report.answers.order import lines_texts, ordered_texts, used_by_texts, used_texts
from capplan.scenario.exclusions import one_by_one

_SHARED_TITLES = {
    "model": "",
    "replica": "layout",
    "request_rate": "peak",
    "alone": "a fleet of its own",
    "slice": "MIG slice",
    "cut": "cut into",
}


def sharing_answer(found: SharingAnswer) -> Answer:
    """Return the pool, its models, and the fleets that it takes the place of."""
    rows = list(map(partial(_shared_row, found), found.models, found.pool.plans))
    wanted = columns(
        "model network request_rate memory_fraction slice replica replicas ttft_p95_s tpot_p95_s "
        "slo_met_probability"
    )
    known = tuple(name for name in wanted if any(row[name] is not None for row in rows))
    models = Table(
        rows,
        title=f"In the pool of {found.pool.gpus} x {found.pool.hardware}",
        shown=known,
        titles=_SHARED_TITLES,
        assumed=_assumed(found),
        spare=("network", "replica", "tpot_p95_s", "ttft_p95_s", "request_rate"),
    )
    apart = ("model", "alone", "gpus", "usd_per_month")
    first = (*_slices_text(found), *_ordered_texts(found.pool))
    return Answer(
        command="fleet",
        result=_shared_result(found, rows),
        tables=(
            models,
            _cut(found),
            Table(_apart(found), title="A fleet for each", shown=apart, titles=_SHARED_TITLES),
        ),
        headline=_shared_headline(found),
        closing=(
            *first,
            one_by_one("sharing"),
            *currency_texts(found.scenario.file.currency, {"per month": found.pool.usd_per_month}),
        ),
        assumptions=found.assumptions,
        warnings=found.warnings,
        first_screen=Answer(
            command="fleet",
            result=None,
            tables=(replace(models, shown=tuple(name for name in known if name != "network")),),
            headline=_shared_headline(found),
            closing=(*first, *_last_texts(found.assumptions, "sharing")),
        ),
    )


def _last_texts(assumptions: Sequence[Assumption], key: str) -> tuple[str, ...]:
    """Return the last lines of a first screen: what was assumed most, one fleet at a time, and where the rest is."""
    return (*most_assumed_texts(assumptions), one_by_one(key), more_text(len(assumptions), page=False))


def _shared_row(found: SharingAnswer, model: SharingModel, plan: Plan) -> dict[str, Any]:
    idle, classes = model.paid is None, model.asked.question.demand.classes
    return {
        "model": model.name,
        "network": model.network_name,
        "request_rate": None if idle else sum(item.request_rate_at() for item in classes),
        "memory_fraction": model.memory_fraction,
        "slice": plan.hardware.partition(":")[2] or None,
        "replica": layout_text(plan),
        "replicas": plan.single.busy_replicas,
        "ttft_p95_s": None if idle else plan.ttft_s.p95 * found.slices,
        "tpot_p95_s": None if idle else plan.tpot_s.p95 * found.slices,
        "slo_met_probability": None if idle else plan.slo_met_probability,
    }


def _slices_text(found: SharingAnswer) -> Iterator[str]:
    """Yield what the latencies of slices stand for; nothing where a device has one model at a time."""
    if found.slices > 1:
        yield (
            f"TTFT and TPOT are those of a device that all {found.slices} models keep busy; while the others pause, a step takes down to "
            f"1/{found.slices} of the time"
        )


def _ordered_texts(pool: SharedPool) -> tuple[str, ...]:
    """Return the machines of the pool."""
    lines = pool.order.lines if pool.order else ()
    powered = bool(pool.price and pool.price.energy_usd_per_hour)
    return (*used_texts(lines, powered=powered), *lines_texts(lines))


def _order_row(pool: SharedPool) -> dict[str, Any] | None:
    """Return the machines of a pool with the keys of JSON; None without an order."""
    order, price = pool.order, pool.price
    if order is None or price is None:
        return None
    return {
        "machines": machine_rows(order.lines, pool.hardware),
        "gpus": order.gpus,
        "energy_usd_per_hour": price.energy_usd_per_hour and price.energy_usd_per_hour * order.gpus,
        "usd_per_hour": pool.usd_per_month / HOURS_PER_MONTH,
        "usd_per_month": pool.usd_per_month,
    }


def _cut(found: SharingAnswer) -> Table:
    """Return what the GPUs are cut into, those cut alike in one row; nothing where they are whole."""
    alike = Counter(found.pool.cut)
    rows = [{"gpus": gpus, "cut": " + ".join(slices)} for slices, gpus in alike.items()]
    return Table(rows, title="How the GPUs are cut, without spares", titles=_SHARED_TITLES)


def _assumed(found: SharingAnswer) -> frozenset[tuple[int, str]]:
    """Return the latencies that rest on kernels that were not measured on the device."""
    rows = [index for index, plan in enumerate(found.pool.plans) if plan.single.label == "assumed"]
    names = ("ttft_p95_s", "tpot_p95_s", "slo_met_probability")
    return frozenset((index, name) for index in rows for name in names)


def _apart(found: SharingAnswer) -> list[dict[str, Any]]:
    rows = [
        {
            "model": model.name,
            "alone": purchase_text(model.paid.plan),
            "gpus": model.paid.plan.gpus,
            "usd_per_month": model.paid.machines_usd,
        }
        for model in found.models
        if model.paid
    ]
    return [*rows, {"model": "together", "alone": None, **_apart_in_all(found)}]


def _apart_in_all(found: SharingAnswer) -> dict[str, float]:
    """Return the devices and the cost of the fleets that the pool takes the place of."""
    return {
        "gpus": sum(paid.plan.gpus for paid in found.separate_fleets),
        "usd_per_month": sum(paid.machines_usd for paid in found.separate_fleets),
    }


def _shared_result(found: SharingAnswer, rows: list[dict[str, Any]]) -> dict[str, Any]:
    pool = found.pool
    return {
        "scenario": found.scenario.name,
        "sharing": {
            "by": found.terms.by,
            **row_of(pool, "hardware gpus spare_gpus usd_per_month"),
            "usd_per_gpu_hour": None if pool.quote is None else pool.quote.total_usd_per_hour,
            "order": _order_row(pool),
            "cut": [list(slices) for slices in pool.cut],
            **{f"apart_{name}": value for name, value in _apart_in_all(found).items()},
        },
        "models": [
            {**row, "alone": plan_row(model.paid.plan) if model.paid else None}
            for row, model in zip(rows, found.models, strict=True)
        ],
    }


def _shared_headline(found: SharingAnswer) -> str:
    pool, apart = found.pool, _apart_in_all(found)
    usd = pool.usd_per_month
    spare = f" ({pool.spare_gpus} of them spare)" if pool.spare_gpus else ""
    return (
        f"{found.scenario.name}: {pool.gpus} x {pool.hardware}{spare} for {len(found.models)} models, ${usd:,.0f} per month, {against_text(usd, apart['usd_per_month'])} a fleet for "
        f"each ({apart['gpus']} GPUs, ${apart['usd_per_month']:,.0f})"
    )


_NAMES = {"first": "small model", "second": "large model", "alone": ALONE}
_WAITS = (
    "who",
    "share_fraction",
    *(f"{end}_s.{key}" for end in ("first_token", "answer") for key in ("mean", "nine_in_ten")),
)
_CASCADE_TITLES = {
    "fleet": "",
    "request_rate": "peak",
    "first_gpus": "small model (GPUs)",
    "second_gpus": "large model (GPUs)",
    "alone_gpus": f"{ALONE} (GPUs)",
    "alone_usd_per_month": ALONE,
    "who": "",
    "first_token_s.mean": "first token, mean",
    "first_token_s.nine_in_ten": "nine in ten within",
    "answer_s.mean": "whole answer, mean",
    "answer_s.nine_in_ten": "nine in ten within",
}


def cascade_answer(found: CascadeAnswer) -> Answer:
    """Return the fleets, the total against the large model only, the break-even share, and the waits."""
    cost = "usd_per_job" if found.alone.paid.plan.is_of_job else "usd_per_month"
    rows = [
        {
            "fleet": _NAMES[part.part],
            **row_of(part, "model request_rate"),
            "purchase": purchase_text(part.plan),
            "gpus": part.plan.gpus,
            **_usd(part.paid.machines_usd, found, cost),
            "slo_met_probability": part.plan.slo_met_probability,
        }
        for part in (*found.parts, found.alone)
    ]
    together = {
        "fleet": "both",
        "request_rate": found.alone.request_rate,
        "gpus": sum(part.plan.gpus for part in found.parts),
        **_usd(found.usd, found, cost),
    }
    waits = list(found.waits)
    grown = _growth_rows(found)
    shown = ("fleet", "model", "request_rate", "purchase", "gpus", cost, "usd_per_thousand_requests")
    promised = ("slo_met_probability",) if found.scenario.slo.targets else ()
    fleets = Table(
        [*rows[:-1], *([together] if len(found.parts) > 1 else []), rows[-1]],
        title="Fleets",
        shown=(*shown, *promised),
        titles=_CASCADE_TITLES,
        spare=("usd_per_thousand_requests", "purchase", "request_rate", "model"),
    )
    return Answer(
        command="fleet",
        result=_cascade_result(found, waits, grown, cost),
        tables=(
            fleets,
            Table(waits, title="What users wait for", shown=_WAITS, titles=_CASCADE_TITLES),
            Table(grown, title=_growth_title(grown), titles=_CASCADE_TITLES),
        ),
        headline=_cascade_headline(found),
        closing=tuple(_closing(found)),
        assumptions=found.assumptions,
        warnings=found.warnings,
        first_screen=Answer(
            command="fleet",
            result=None,
            tables=(replace(fleets, shown=("fleet", "model", "gpus", cost, *promised)),),
            headline=_cascade_headline(found),
            closing=(
                *_against_large_texts(found),
                *_machines_texts(found),
                *_last_texts(found.assumptions, "cascade"),
            ),
        ),
    )


def _machines_texts(found: CascadeAnswer) -> tuple[str, ...]:
    plans = [part.plan for part in found.parts]
    return (*used_by_texts(plans), *ordered_texts(plans))


def _growth_rows(found: CascadeAnswer) -> list[dict[str, Any]]:
    """Return the GPUs of each fleet and the cost of the cascade and of the large model only, by month; empty without growth."""
    fleets = [(part, part.growth) for part in (*found.parts, found.alone) if part.growth is not None]
    return [
        {
            **row_of(row[-1], "month request_rate"),
            **{f"{part.part}_gpus": month.gpus for (part, _), month in zip(fleets, row, strict=True)},
            "usd_per_month": sum(month.paid_usd or 0.0 for month in row[:-1]),
            "alone_usd_per_month": row[-1].paid_usd,
        }
        for row in zip(*(growth.months for _, growth in fleets), strict=True)
    ]


def _growth_title(rows: list[dict[str, Any]]) -> str:
    both, alone = (sum(row[key] for row in rows) for key in ("usd_per_month", "alone_usd_per_month"))
    return f"Growth: {len(rows)} months cost ${both:,.0f}, and ${alone:,.0f} with the large model only"


def _usd(usd: float, found: CascadeAnswer, cost: str) -> dict[str, float]:
    return {cost: usd, "usd_per_thousand_requests": 1000.0 * usd / found.requests}


def _cascade_result(
    found: CascadeAnswer, waits: list[dict[str, Any]], grown: list[dict[str, Any]], cost: str
) -> dict[str, Any]:
    terms, (seen, whole) = found.terms, found.mean_waits_s
    return {
        "scenario": found.scenario.name,
        "cascade": {
            "model": terms.model,
            "escalated_fraction": terms.escalated,
            "after": terms.after,
            "verdict_s": terms.verdict_time,
            **_usd(found.usd, found, cost),
            "gpus": sum(part.plan.gpus for part in found.parts),
            "first_token_s": seen,
            "answer_s": whole,
            "breakeven_fraction": found.breakeven_fraction,
        },
        "fleets": [
            {
                **row_of(part, "part model request_rate"),
                **_usd(part.paid.machines_usd, found, cost),
                "plan": plan_row(part.plan),
            }
            for part in (*found.parts, found.alone)
        ],
        "waits": waits,
        "growth": grown or None,
    }


def _cascade_headline(found: CascadeAnswer) -> str:
    span = "for the job" if found.alone.paid.plan.is_of_job else "per month"
    usd, alone = found.usd, found.alone.paid.machines_usd
    bought = " and ".join(f"{purchase_text(part.plan)} for {part.model}" for part in found.parts)
    return f"{found.scenario.name}: {bought}, ${usd:,.0f} {span}, {against_text(usd, alone)} {found.alone.model} for every request (${alone:,.0f})"


def percent_below(share: float) -> str:
    """Return a share in percent, rounded down to a tenth: what holds up to the share holds up to the percentage.

    Examples
    --------
    >>> percent_below(0.81996), percent_below(0.283), percent_below(0.9999), percent_below(1.0)
    ('81.9%', '28.3%', '99.9%', '100%')
    """
    return f"{math.floor(1e3 * share + 1e-9) / 10:.4g}%"


def _against_large_texts(found: CascadeAnswer) -> Iterator[str]:
    """Yield up to which escalated share the cascade saves money, and how much later a first token comes."""
    share, seen = found.breakeven_fraction, found.mean_waits_s[0]
    ways = {wait["who"]: wait["first_token_s"]["mean"] for wait in found.waits}
    alone = ways[ALONE]
    even = "the cascade costs more than the large model only, however few requests are escalated"
    if share is not None:
        even = f"up to an escalated share of {percent_below(share)} the cascade costs no more than the large model only, if replicas carry as many requests as planned"
    if found.parts[0].part == "first":
        yield even
    if ESCALATED in ways:
        extra = ways[ESCALATED] - alone
        yield (
            f"escalated requests see their first token {extra:.3g} s later than at the large model only; over all requests the mean is "
            f"{seen:.3g} s against {alone:.3g} s"
        )


def _closing(found: CascadeAnswer) -> Iterator[str]:
    bound = ESCALATED in {wait["who"] for wait in found.waits} and found.terms.after == "answer"
    yield from _against_large_texts(found)
    if bound:
        yield "nine in ten within: of requests that pass two stages a bound, the sum of both 95th percentiles"
    yield from _machines_texts(found)
    yield one_by_one("cascade")
    yield from currency_texts(
        found.scenario.file.currency,
        {"for both": found.usd, "for the large model only": found.alone.paid.machines_usd},
    )
