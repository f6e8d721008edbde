"""Why a plan has so many GPUs, cause by cause: as a table and as a chart."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from capplan.fleet.plan import Plan
from capplan.fleet.waterfall import Cause, waterfall
from capplan.money.price import HOURS_PER_MONTH
from capplan.report.answer import Table
from capplan.report.charts.of_answers import Bar, Bars

_WORDS: Mapping[Cause, str] = {
    "saturated": "saturated as predicted",
    "headroom": "+ headroom",
    "confidence": "+ required confidence",
    "spares": "+ spares",
    "machines": "+ rounding to machines",
    "hours": "+ hours of low load",
}
_SIZED_AT_ONCE = "headroom and confidence"
"""The first step of separate pools, which are sized for both at once."""


def _rows(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the first step and those that add something, each with the sum so far; of a batch job, with the dollars of the job."""
    steps = waterfall(plan)
    hours = plan.money.job_hours if plan.money else None
    for before, step in pairwise((None, *steps)):
        assert step is not None
        usd = step.usd_per_month
        if before and (before.gpus, before.usd_per_month) == (step.gpus, usd):
            continue
        words = _WORDS[step.step] if before or step.step == "saturated" else _SIZED_AT_ONCE
        idle = f" ({plan.order.gpus_idle} idle)" if plan.order and step.step == "machines" else ""
        paid = {"usd_per_month": usd}
        if hours is not None and usd is not None:
            paid = {"usd_per_job": usd / HOURS_PER_MONTH * hours}
        yield {"step": f"{words}{idle}", "gpus": step.gpus, **paid, "key": step.key}


def waterfall_table(plan: Plan, titles: Mapping[str, str]) -> Table:
    """Return the steps with the key that removes each.

    Parameters
    ----------
    plan : whose steps they are
    titles : headings of costs that need other words
    """
    rows = list(_rows(plan))
    return Table(
        rows,
        shown=tuple(name for name in rows[0] if any(row[name] is not None for row in rows)),
        titles={"step": f"Why {plan.gpus} GPUs", "key": "removed by", **titles},
        spare=("key",),
        drawn=("gpus",),
    )


def waterfall_chart(plan: Plan) -> Bars:
    """Return a bar for each step: what the steps before it come to, and what it adds; in GPUs without a price."""
    rows = list(_rows(plan))
    quantity = next(
        name for name in ("usd_per_job", "usd_per_month", "gpus") if rows[0].get(name) is not None
    )
    amounts = [float(row[quantity]) for row in rows]
    bars = tuple(
        Bar(row["step"], (("steps before", before), ("this step", after - before)))
        for row, (before, after) in zip(rows, pairwise((0.0, *amounts)), strict=True)
    )
    return Bars(f"Why {plan.gpus} GPUs", quantity, bars)
