"""What `capplan fleet` shows of a cascade: its fleets against the large model only, and what users wait for."""

import math
from dataclasses import asdict
from typing import Any

from capplan.money.cascade import Wait
from capplan.questions.cascade import ALONE, ESCALATED, CascadeAnswer, PartFleet, UserWait
from capplan.questions.plans.plan_row import plan_row
from capplan.report.answer import Answer, Table
from capplan.report.answers.fleet_money import currency_texts
from capplan.report.answers.fleet_words import against_text
from capplan.report.answers.order import ordered_texts, stated_order_row
from capplan.report.answers.plan_words import purchase_text
from capplan.scenario.several.models import one_by_one

_NAMES = {"first": "small model", "second": "large model", "alone": ALONE}
_WAITS = (
    "who",
    "share_fraction",
    *(f"{end}_s.{key}" for end in ("first_token", "answer") for key in ("mean", "nine_in_ten")),
)
_TITLES = {
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
    cost = "usd_per_job" if found.alone.paid.of_job else "usd_per_month"
    rows = [_row(part, found, cost) for part in (*found.parts, found.alone)]
    together = {
        "fleet": "both",
        "request_rate": found.alone.request_rate,
        "gpus": sum(part.plan.gpus for part in found.parts),
        **_usd(found.usd, found, cost),
    }
    waits = [_wait_row(wait) for wait in found.waits]
    grown = _growth_rows(found)
    shown = ("fleet", "model", "request_rate", "purchase", "gpus", cost, "usd_per_thousand_requests")
    promised = ("slo_met_probability",) if found.scenario.slo.targets else ()
    return Answer(
        command="fleet",
        result=_result(found, waits, grown, cost),
        tables=(
            Table(
                [*rows[:-1], *([together] if len(found.parts) > 1 else []), rows[-1]],
                title="Fleets",
                shown=(*shown, *promised),
                titles=_TITLES,
            ),
            Table(waits, title="What users wait for", shown=_WAITS, titles=_TITLES),
            *([Table(grown, title=_growth_title(grown), titles=_TITLES)] if grown else []),
        ),
        headline=_headline(found),
        closing=_closing(found),
        assumptions=found.assumptions,
        warnings=found.warnings,
    )


def _growth_rows(found: CascadeAnswer) -> list[dict[str, Any]]:
    """Return the GPUs of each fleet and the cost of the cascade and of the large model only, by month; empty without growth."""
    fleets = [(part, part.growth) for part in (*found.parts, found.alone) if part.growth is not None]
    return [
        {
            "month": row[-1].month,
            "request_rate": row[-1].request_rate,
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


def _row(part: PartFleet, found: CascadeAnswer, cost: str) -> dict[str, Any]:
    return {
        "fleet": _NAMES[part.part],
        "model": part.model,
        "request_rate": part.request_rate,
        "purchase": purchase_text(part.plan),
        "gpus": part.plan.gpus,
        **_usd(part.paid.machines_usd, found, cost),
        "slo_met_probability": part.plan.slo_met_probability,
    }


def _wait_row(wait: UserWait) -> dict[str, Any]:
    return {
        "who": wait.who,
        "share_fraction": wait.fraction,
        "first_token_s": _wait(wait.first_token),
        "answer_s": _wait(wait.answer),
    }


def _wait(wait: Wait) -> dict[str, float]:
    return {"mean": wait.mean_s, "nine_in_ten": wait.nine_in_ten_s}


def _result(
    found: CascadeAnswer, waits: list[dict[str, Any]], grown: list[dict[str, Any]], cost: str
) -> dict[str, Any]:
    seen, whole = found.mean_waits_s
    return {
        "scenario": found.scenario.name,
        "cascade": {
            **asdict(found.terms),
            **_usd(found.usd, found, cost),
            "gpus": sum(part.plan.gpus for part in found.parts),
            "first_token_s": seen,
            "answer_s": whole,
            "breakeven_fraction": found.breakeven_fraction,
        },
        "fleets": [
            {
                "part": part.part,
                "model": part.model,
                "request_rate": part.request_rate,
                **_usd(part.paid.machines_usd, found, cost),
                "plan": plan_row(part.plan),
                "stated_order": stated_order_row(part.plan),
            }
            for part in (*found.parts, found.alone)
        ],
        "waits": waits,
        "growth": grown or None,
    }


def _headline(found: CascadeAnswer) -> str:
    span = "for the job" if found.alone.paid.of_job else "per month"
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


def _closing(found: CascadeAnswer) -> tuple[str, ...]:
    share, seen = found.breakeven_fraction, found.mean_waits_s[0]
    ways = {wait.who: wait for wait in found.waits}
    alone = ways[ALONE].first_token.mean_s
    even = "the cascade costs more than the large model only, however few requests are escalated"
    if share is not None:
        even = f"up to an escalated share of {percent_below(share)} the cascade costs no more than the large model only, if replicas carry as many requests as planned"
    lines = [even] if found.parts[0].part == "first" else []
    if ESCALATED in ways:
        extra = ways[ESCALATED].first_token.mean_s - alone
        lines.append(
            f"escalated requests see their first token {extra:.3g} s later than at the large model only; over all requests the mean is "
            f"{seen:.3g} s against {alone:.3g} s"
        )
    if ESCALATED in ways and found.terms.after == "answer":
        lines.append(
            "nine in ten within: of requests that pass two stages a bound, the sum of both 95th percentiles"
        )
    lines += ordered_texts([part.plan for part in found.parts])
    lines.append(one_by_one("cascade"))
    return (
        *lines,
        *currency_texts(
            found.scenario.currency,
            {"for both": found.usd, "for the large model only": found.alone.paid.machines_usd},
        ),
    )
