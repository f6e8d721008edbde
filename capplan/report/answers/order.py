"""The order of a plan: machines line by line, and what of them stays idle."""

from typing import Any

from capplan.fleet.plan import Plan, plan_order
from capplan.questions.plans.plan_row import order_row
from capplan.report.answer import Table

_TITLES = {
    "gpus": "GPUs each",
    "count": "machines",
    "usd_per_hour": "one machine",
    "total_usd_per_hour": "all",
    "date": "price of",
}


def order_tables(plan: Plan | None) -> list[Table]:
    """Return the machines to order for a plan; none without a price."""
    order = None if plan is None else order_row(plan)
    if order is None:
        return []
    rows: list[dict[str, Any]] = [
        {
            **line,
            "machine": line["sku"]
            or ("by the GPU" if line["gpus"] == 1 else f"{line['gpus']} x {line['hardware']}"),
            "total_usd_per_hour": line["count"] * line["usd_per_hour"],
        }
        for line in order["machines"]
    ]
    shown = ["machine", "provider", "region", "gpus", "count", "usd_per_hour", "total_usd_per_hour", "date"]
    if not any(row["region"] for row in rows):
        shown.remove("region")
    return [Table(rows, title="Order: machines for the recommended plan", shown=tuple(shown), titles=_TITLES)]


def order_texts(plan: Plan | None) -> tuple[str, ...]:
    """Return what of the machines stays idle; nothing if every GPU is used."""
    order = None if plan is None else plan_order(plan)
    if order is None or plan is None or not order.gpus_idle:
        return ()
    room = ""
    if order.free_replicas:
        noun = "replica fits" if order.free_replicas == 1 else "replicas fit"
        room = f": {order.free_replicas} more {noun} on them at no cost"
    return (f"of the {order.gpus} GPUs in the order {order.gpus_idle} stay idle{room}",)
