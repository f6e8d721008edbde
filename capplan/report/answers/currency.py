"""Costs in the currency of a scenario, beside dollars."""

from collections.abc import Mapping
from typing import Any

from capplan.fleet.plan import FleetAnswer
from capplan.fleet.price import HOURS_PER_MONTH
from capplan.money.commitments import HOURS_PER_YEAR
from capplan.questions.outlook import Outlook

_JSON_NAMES = {"a month": "per_month", "a year": "per_year", "a job": "per_job"}
MONTHS_PER_YEAR = HOURS_PER_YEAR / HOURS_PER_MONTH


def currency_texts(currency: tuple[str, float] | None, usd: Mapping[str, float]) -> tuple[str, ...]:
    """Return a line with costs in a currency; none without one.

    Parameters
    ----------
    currency : its name, and the dollars that one unit of it costs
    usd : [$]
        by what they are for

    Examples
    --------
    >>> currency_texts(("EUR", 1.25), {"a month": 1000.0, "a year": 12000.0})
    ('in EUR, at 1.25 $: 800 a month, 9,600 a year',)
    """
    if currency is None or not usd:
        return ()
    name, rate = currency
    return (
        f"in {name}, at {rate:g} $: {', '.join(f'{cost / rate:,.0f} {what}' for what, cost in usd.items())}",
    )


def paid_usd(answer: FleetAnswer, outlook: Outlook) -> dict[str, float]:
    """Return what the recommended plan costs, by its mix of commitments where there is one: a month and a year, or a job [$]."""
    plan = answer.bought
    if plan is None or plan.usd_per_month is None:
        return {}
    if plan.money is not None and plan.money.usd_per_job is not None:
        return {"a job": plan.money.usd_per_job}
    mix = outlook.mixes[0].mix if outlook.mixes else None
    usd = plan.usd_per_month if mix is None else mix.usd_per_hour * HOURS_PER_MONTH
    return {"a month": usd, "a year": usd * MONTHS_PER_YEAR}


def in_currency(currency: tuple[str, float] | None, usd: Mapping[str, float]) -> dict[str, Any] | None:
    """Return costs in a currency, as JSON has them; None without one."""
    if currency is None or not usd:
        return None
    return {
        "name": currency[0],
        **{_JSON_NAMES[time]: cost / currency[1] for time, cost in usd.items()},
    }
