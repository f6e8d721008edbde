"""What `capplan prices update` shows: which prices are others now, and what the plans cost before and after."""

from collections.abc import Mapping
from pathlib import Path

from capplan.questions.money.own_prices import PlanCost, PriceUpdate
from capplan.report.answer import Answer, Table

_MOST_ROWS = 20
_TITLES = {
    "before_usd": "cost before",
    "before_usd_per_hour": "price before",
    "before_input_usd_per_million_tokens": "input before",
    "before_output_usd_per_million_tokens": "output before",
    "date_before": "price of",
}


def price_update_answer(
    update: PriceUpdate, before: Mapping[Path, PlanCost], after: Mapping[Path, PlanCost]
) -> Answer:
    """Return what an update changed."""
    plans = [
        {
            "plan_file": str(path),
            "before_usd": cost.usd,
            "usd": after[path].usd,
            "order_before": cost.order,
            "order": after[path].order,
        }
        for path, cost in before.items()
    ]
    read = [{"file": name, "prices_read": count} for name, count in update.counts.items()]
    changed, apis = update.machines, update.apis
    words = f"{len(changed)} prices of machines and {len(apis)} of hosted APIs are others now"
    missing = ", ".join(name for name, _ in update.left_out.most_common(4))
    hidden = max(len(changed), len(apis)) - _MOST_ROWS
    return Answer(
        command="prices",
        result={
            "files": [str(path) for path in update.texts],
            "read": read,
            "left_out": dict(update.left_out),
            "machines": list(changed),
            "apis": list(apis),
            "plans": plans,
        },
        tables=tuple(
            Table(
                rows[:_MOST_ROWS],
                title=title,
                titles=_TITLES,
                spare=("order_before", "date_before", "region", "date"),
            )
            for title, rows in (
                ("Files", read),
                ("Plans", plans),
                ("Machines", list(changed)),
                ("Hosted APIs", list(apis)),
            )
            if rows
        ),
        headline=f"{sum(update.counts.values()):,} prices read from {len(update.counts)} files: {words}",
        closing=(
            *((f"{hidden} more: --format json",) if hidden > 0 else ()),
            *(
                (f"left out, not in the catalogue: {update.left_out.total():,} offers of {missing}",)
                if missing
                else ()
            ),
            "list: capplan list machines, list prices and list apis say where each price is from",
        ),
        csv_rows=list(changed) or read,
    )
