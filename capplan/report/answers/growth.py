"""The months to come: the table and the record that `capplan fleet` adds."""

from dataclasses import asdict
from typing import Any

from capplan.fleet.scenario import Scenario
from capplan.money.growth import Growth
from capplan.report.answer import Table

_TITLES = {
    "added_gpus": "GPUs to buy",
    "usd_per_month": "",
    "mix_usd_per_month": "with the mix",
    "request_rate": "peak",
    "pools": "prefill + decode",
}


def growth_result(growth: Growth | None) -> dict[str, Any] | None:
    """Return the fleets of the months to come."""
    if growth is None:
        return None
    return {
        "months": [asdict(row) for row in growth.months],
        "outgrown_in_month": growth.outgrown_in_month,
        "usd_over_horizon": growth.usd,
        "mix_usd_over_horizon": growth.mix_usd,
    }


def growth_tables(growth: Growth | None) -> tuple[Table, ...]:
    """Return what is needed and bought in which month."""
    if growth is None:
        return ()
    rows = [
        asdict(row) | {"pools": None if row.pool_replicas is None else "{} + {}".format(*row.pool_replicas)}
        for row in growth.months
    ]
    shown = (
        "month",
        "request_rate",
        "replicas",
        "pools",
        "gpus",
        "added_gpus",
        "usd_per_month",
        "mix_usd_per_month",
    )
    kept = tuple(name for name in shown if any(row[name] is not None for row in rows))
    title = f"Growth: {'; '.join((_holds(growth), *_cost(growth)))}"
    return (Table(rows, title=title, shown=kept, titles=_TITLES),)


def _holds(growth: Growth) -> str:
    month = growth.outgrown_in_month
    if month is None:
        return f"today's plan holds for all {len(growth.months)} months"
    return f"today's plan no longer holds in month {month}, at a peak of {growth.months[month - 1].request_rate:.3g} req/s"


def _cost(growth: Growth) -> tuple[str, ...]:
    if growth.usd is None:
        return ()
    mix = "" if growth.mix_usd is None else f", ${growth.mix_usd:,.0f} with the mix of each"
    return (f"{len(growth.months)} months cost ${growth.usd:,.0f}{mix}",)


def growth_closing(growth: Growth | None, scenario: Scenario) -> tuple[str, ...]:
    """Return the limits that growth reaches, and when."""
    if growth is None:
        return ()
    lines = []
    most, budget = scenario.fleet.max_devices, scenario.budget_usd_per_month
    over = next((row.month for row in growth.months if most is not None and row.gpus > most), None)
    lines += [f"fleet.max_gpus of {most} is exceeded in month {over}"] if over else []
    dear = next(
        (row.month for row in growth.months if budget is not None and (row.paid_usd or 0.0) > budget), None
    )
    lines += [f"the budget of ${budget:,.0f} a month is exceeded in month {dear}"] if dear else []
    return tuple(lines)
