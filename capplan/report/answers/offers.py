"""What plans cost across the offers of their devices, and who makes those: the tables and the line that `capplan fleet` adds."""

from collections.abc import Sequence
from typing import Any

from capplan.fleet.plan import AnyPlan
from capplan.fleet.price import SIDES, ChosenPrice
from capplan.money.offer_range import named_offers, offered_costs
from capplan.questions.plans.plan_row import OWN_PRICE, offers_row
from capplan.report.answer import Table

_NAMES = {"low": "lowest", "likely": "likely", "high": "highest"}
_PERIODS = ("usd_per_month", "usd_per_year")


def _has_range(plan: AnyPlan) -> bool:
    costs = offered_costs(plan)
    return bool(costs) and costs["low"].usd_per_hour < costs["high"].usd_per_hour


def _period_keys(row: dict[str, Any]) -> tuple[str, ...]:
    return ("usd_per_job",) if row["likely"]["usd_per_job"] is not None else _PERIODS


def offers_tables(plans: Sequence[AnyPlan]) -> tuple[Table, ...]:
    """Return every plan at the lowest, the likely and the highest offers, and who makes them; nothing where no price has a range."""
    if not any(_has_range(plan) for plan in plans):
        return ()
    rows = []
    for plan in plans:
        costs = offers_row(plan)
        if costs is not None:
            each = " + ".join(group.layout.in_words(group.weight_dtype) for group in plan.groups)
            money = {f"{key}.{side}": costs[side][key] for key in _period_keys(costs) for side in SIDES}
            rows.append({"hardware": plan.hardware, "plan": each, "gpus": plan.gpus, **money})
    prices = {group.layout.device.name: group.price for plan in plans for group in plan.groups}
    makers = [row for name, price in prices.items() if price for row in _makers(name, price)]
    return (
        Table(rows, title="Range of the offers: every plan at the lowest, the likely and the highest price", titles=_titles(rows)),
        Table(makers, title="Who makes these offers", titles={"offer": "", "usd_per_gpu_hour": ""}),
    )  # fmt: skip


def _titles(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {"plan": "each replica"} | {
        name: _NAMES[name.partition(".")[2]] for row in rows for name in row if "." in name
    }


def _makers(device: str, price: ChosenPrice) -> list[dict[str, Any]]:
    """Return the lowest, the likely and the highest offer of a device; one row where they are the same."""
    sides = SIDES if price.low_usd_per_hour < price.high_usd_per_hour else ("likely",)
    energy = price.energy_usd_per_hour or 0.0
    rows = []
    for side in sides:
        usd, records = price.at(side)
        rows.append(
            {
                "hardware": device,
                "offer": _NAMES[side],
                "usd_per_gpu_hour": usd - energy,
                "provider": " and ".join(record.provider for record in records) or OWN_PRICE,
                "date": " and ".join(record.date or "unknown" for record in records) or None,
            }
        )
    return rows


def offers_closing(plan: AnyPlan | None) -> tuple[str, ...]:
    """Return what the recommended plan costs at the lowest and at the highest offers; nothing without a range."""
    if plan is None or not _has_range(plan):
        return ()
    costs, row = offered_costs(plan), offers_row(plan)
    assert row is not None
    ends = {
        side: ", ".join(f"${row[side][key]:,.0f} {_SPANS[key]}" for key in _period_keys(row))
        for side in ("low", "high")
    }
    makers = {side: named_offers(costs[side].records) for side in SIDES}
    return (
        f"at the lowest offers the plan costs {ends['low']} ({makers['low']}), at the highest {ends['high']} ({makers['high']})",
    )


_SPANS = {"usd_per_month": "a month", "usd_per_year": "a year", "usd_per_job": "for the job"}
