"""Why a plan has so many GPUs, cause by cause."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from capplan.fleet.plan import Plan
from capplan.fleet.waterfall import Cause, waterfall
from capplan.money.price import HOURS_PER_MONTH
from capplan.report.answer import Table

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


def waterfall_rows(plan: Plan) -> Iterator[dict[str, Any]]:
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


def why_title(plan: Plan) -> str:
    """Return what the steps of a plan answer."""
    return f"Why {plan.gpus:,} GPU{'s' * (plan.gpus > 1)}"


def why_texts(plan: Plan) -> tuple[str, ...]:
    """Return in one line what each step adds to the GPUs; nothing if no step adds to the first one."""
    first, *later = waterfall(plan)
    start = first.step if first.step == "saturated" else f"with {_SIZED_AT_ONCE}"
    added = [
        f"{after.gpus - before.gpus:,} {after.step.removesuffix('s')}"
        for before, after in pairwise((first, *later))
        if after.gpus > before.gpus
    ]
    terms = " + ".join((f"{first.gpus:,} {start}", *added))
    return (f"GPUs: {terms} = {plan.gpus:,}",) if added else ()


def waterfall_tables(plan: Plan, titles: Mapping[str, str]) -> tuple[Table, ...]:
    """Return the steps with the key that removes each; no table if nothing adds to the first one.

    Parameters
    ----------
    plan : whose steps they are
    titles : headings of costs that need other words
    """
    rows = list(waterfall_rows(plan))
    if len(rows) == 1:
        return ()
    shown = tuple(name for name in rows[0] if any(row[name] is not None for row in rows))
    headings = {"step": why_title(plan), "key": "removed by", **titles}
    return (Table(rows, shown=shown, titles=headings, drawn=("gpus",)),)
